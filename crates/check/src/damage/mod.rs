//! Damage by file: which files, and which metadata, the damaged blocks belong to.
//!
//! ```text
//! stripes ─▶ ledger: rows with bad blocks ─┬─▶ tables: bytes of tables in these rows
//!                                          ├─▶ files: extents in these rows, region by region, then by name
//!                                          └─▶ settle: rows that nothing needs are notes
//! tables ─▶ lost keys: keys that unreadable blocks of tables may hold ─▶ files and metadata
//! ```
//!
//! A byte is *lost* if its block is bad and its row has more bad blocks than parity columns. It is *weak* if
//! it can be read, but its row has a bad block and so less redundancy than it should have. Bytes that no
//! newest value names are needed by nothing.

mod files;
mod ledger;
mod paths;
mod report;

pub(crate) use files::{DamagedFiles, FileNamer};
pub(crate) use ledger::DamageLedger;
pub use report::{ByteRange, DamageReport, FileDamage, MetadataDamage};
