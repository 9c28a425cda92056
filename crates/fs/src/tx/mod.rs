//! Transactions: any set of changes to any number of files, all of them or none.
//!
//! # Terms
//! The *base* is the filesystem that everyone sees. A transaction has a filesystem of its own, [`TxFs`], over
//! a [`TxStore`](warpfire_meta::TxStore): a snapshot of the base's engine with the transaction's changes over
//! it. Names, nodes and calls there are those of any filesystem, so a transaction reads what it wrote without
//! a line of code for it.
//!
//! This module begins and ends transactions. It uses [`Fs`](crate::Fs) and `op`, and no other module uses it:
//! to it, a call is an `Operation` that it can replay.
//!
//! # Invariants
//! 1. Calls of the base run side by side; a commit of a transaction runs alone (`op/call_gate.rs`,
//!    `CallGate::enter_exclusive`). So no call sees a part of a transaction, and what a call read is still so
//!    when it commits.
//! 2. A commit changes the base only if every recorded call would answer now as it did: either nothing that
//!    was read has changed, which the engine says, or a replay of the calls has answered the same
//!    (`replay.rs`). During a replay nothing else changes, so one replay is enough. `commit_changes` asserts
//!    that the commit is alone.
//! 3. When a commit has returned, the base's nodes equal their records (`commit.rs`; the test
//!    `files_that_are_open_outside_show_what_was_committed`).
//! 4. A file that loses its last name inside becomes an orphan, never nothing: only the base knows who holds
//!    it. `InodeCache::claim` refuses inside a transaction.
//! 5. Inode numbers come from the base, each one once: a replay gets the same again (`numbers.rs`).
//!
//! ```text
//!                   ┌── savepoint, roll_back ──┐
//!   begin ──► open ─┴──────────────────────────┘
//!              ├── commit ──► committed        visible to all at once
//!              │        └───► conflict         nothing has changed; the error names the call
//!              └── abort, drop ──► aborted     its slices are released
//! ```
//!
//! These do not conflict: the times that the filesystem itself keeps for a directory, and access times, which
//! reads inside do not renew. So names that others make in a directory do not disturb a transaction that
//! makes another there.

mod begin;
mod commit;
mod diff;
mod invalidation;
mod replay;
mod savepoint;

pub use begin::{Transaction, TxFs};
pub use commit::FileVersion;
pub use diff::{Aspect, ChangeKind, ChangedRanges, Diff, PathChange, RANGES_LISTED_MAX, XATTRS_LISTED_MAX};
pub use invalidation::Invalidation;
