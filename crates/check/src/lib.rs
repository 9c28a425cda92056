//! The independent reader: verifies every byte of a pool, offline, and dumps its structures.
//!
//! It shares the decoders of `warpfire-format` with the engine and nothing else: where things are, which of them count and
//! what they mean together is worked out here a second time from `docs/FORMAT.md`, so that a mistake has to be made twice to go
//! unseen. It never writes.
//!
//! [`check`] reads bottom up: roots, commit log, stripes, tables, names. Every stage reports what it finds
//! and goes on with what is left.

#![forbid(unsafe_code)]

mod code;
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
pub use options::{CheckError, CheckOptions, CheckPhase, CheckProgress};
pub use report::{CheckReport, Finding, LISTED_MAX, Severity, Totals};
pub use run::check;
