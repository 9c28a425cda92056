//! The independent reader. It verifies every byte of a pool, offline, and dumps its structures.
//!
//! It shares the decoders of `warpfire-format` with the engine and nothing else. Where structures lie, which
//! of them count and what they mean together is implemented here a second time from `docs/FORMAT.md`, so that
//! a mistake has to be made twice to stay unseen. It never writes.
//!
//! [`check`] reads bottom up. Each stage reports findings and passes on everything that it could read:
//!
//! ```text
//! devices ─▶ roots ─▶ commit log ─▶ stripes ─▶ tables + commit records ─▶ names, inodes, extents ─▶ files
//!            media/     log/         media/     tables/                    names/                    damage/
//! ```
//!
//! Invariants
//! 1. For any bytes the check ends with a report or a [`CheckError`]: it does not panic, does not loop
//!    without end and makes no large allocation for a false count (tests/pools/forged.rs).
//! 2. Damage that parity covers is [`Severity::Repairable`]; lost or contradictory data is
//!    [`Severity::Error`] (tests/pools/damage.rs); damage that nothing needs is [`Severity::Note`]. A power
//!    cut at any moment leaves no errors (tests/pools/clean.rs).
//! 3. A finding that depends on data that could not be read is not reported (`doubtful` in names/).

#![forbid(unsafe_code)]

mod code;
mod damage;
pub mod inspect;
mod load;
mod log;
mod media;
mod names;
mod options;
mod report;
mod run;
mod tables;

pub use code::FindingCode;
pub use damage::{ByteRange, DamageReport, FileDamage, MetadataDamage};
pub use options::{CheckError, CheckOptions, CheckPhase, CheckProgress};
pub use report::{CheckReport, Finding, LISTED_MAX, Severity, Totals};
pub use run::{LoadedCheck, check};
