//! Transactions: any set of changes to any number of files, of which all take place or none.
//!
//! # Terms
//! The *base* is the filesystem that everyone sees. A transaction has a filesystem of its own, [`TxFs`], over
//! a [`TxStore`](warpfire_meta::TxStore): a snapshot of the base's engine with the transaction's changes over
//! it. The code of names, nodes and calls is the same for both. So a transaction reads its own changes, and
//! no code is needed for that.
//!
//! This module begins and ends transactions. It uses [`Fs`](crate::Fs) and `op`, and no other module uses it.
//! It knows a call only as an `Operation` that it can replay.
//!
//! # Invariants
//! 1. Calls of the base run side by side, and a commit of a transaction runs alone (assert in
//!    `CallGate::enter_exclusive`). So no call sees a part of a transaction, and the records that a call has
//!    read are unchanged when it commits.
//! 2. A commit changes the base only if every recorded call would answer now as it did. Either nothing that
//!    matters has changed of all that was read (`changes.rs`), or a replay of the calls gets the same answers
//!    (`replay.rs`). Others go on during both, so the last check is made alone in the base (`pending.rs`).
//! 3. When a commit has returned, the base's nodes equal their records
//!    (`tests::transactions::files_that_are_open_outside_show_what_was_committed`).
//! 4. A file that loses its last name in a transaction becomes an orphan and is not removed there: only the
//!    base knows its holders (`InodeCache::claim`; `tests::transactions`).
//! 5. Inode numbers come from the base, each one once. A replay draws the same numbers again
//!    (`inode_numbers.rs`).
//!
//! ```text
//!                   ┌── savepoint, roll_back ──┐
//!   begin ──► open ─┴──────────────────────────┘
//!              ├── commit ──► committed        visible to all at once
//!              │        └───► conflict         nothing has changed; the error names the call
//!              └── abort, drop ──► aborted     its slices are released
//! ```
//!
//! Two things never conflict. The times and the link count of a directory, which the filesystem itself keeps:
//! so a transaction may make a name in a directory while others make other names there, subdirectories too.
//! And access times: reads in a transaction do not renew them.

mod begin;
mod changes;
mod commit;
mod invalidation;
mod pending;
mod replay;
mod savepoint;

pub use begin::{Transaction, TxFs};
pub use commit::FileVersion;
pub use pending::PendingCommit;
