//! Transactions: any set of changes to any number of files, all of them or none.
//!
//! # Terms
//! The *base* is the filesystem that everyone sees. A transaction's *inside* is a filesystem of its own, over a
//! [`TxStore`](warpfire_meta::TxStore): a snapshot of the base's engine with the transaction's changes over it. Names, nodes and calls there are those of
//! any filesystem, so a transaction reads what it wrote without a line of code for it.
//!
//! # Invariants
//! 1. Calls of the base go side by side; a commit of a transaction goes alone (`turn.rs`). So no call sees a part of a transaction, and what a call
//!    read is still so when it commits.
//! 2. A commit changes the base only if every logged call would answer now as it did: either nothing that was read has changed, which the engine
//!    says, or the calls were made again and have answered the same (`replay.rs`). While they are made again nothing else changes, so
//!    one repetition is enough.
//! 3. When a commit has returned, the base's nodes say what their records say (`commit.rs`).
//! 4. A file that loses its last name inside becomes an orphan, never nothing: whether someone holds it is for the base to know.
//! 5. Inode numbers are drawn from the base, and drawn once: a repetition gets the same again.
//!
//! ```text
//!                   ┌── savepoint, roll_back ──┐
//!   begin ──► open ─┴──────────────────────────┘
//!              ├── commit ──► committed        visible to all at once
//!              │        └───► conflict         nothing has changed; the error names the call
//!              └── abort, drop ──► aborted     what it wrote is given back
//! ```
//!
//! Not part of what conflicts: the times that the filesystem keeps for a directory by itself, and access times, which reads inside do not renew. So
//! names made by others in a directory do not disturb who makes another there.

mod answer;
mod begin;
mod call;
mod changed;
mod commit;
mod diff;
mod journal;
mod replay;
mod savepoint;
mod turn;

pub use begin::{Inside, Transaction};
pub use changed::Changed;
pub use commit::{TransactionCounts, Version};
pub use diff::{Aspect, Change, Diff, Differing, How, RANGES_TOLD_MAX, XATTRS_TOLD_MAX};
pub use savepoint::Savepoint;

pub(crate) use answer::{Answer, Fresh, Shown, Told};
pub(crate) use call::{Call, Data, KeptInserted, Who};
pub(crate) use commit::Counters;
pub(crate) use journal::Journal;
pub(crate) use turn::{Turn, Turns};
