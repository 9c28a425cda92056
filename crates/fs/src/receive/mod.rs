//! Receiving: a stream of bytes (`docs/STREAM.md`) becomes a tree in this pool.
//!
//! # Terms
//! The *target* is the directory that shows the tree in the end. The *spool* is a directory of files that
//! listings leave out; a target has one while a stream is received for it.
//!
//! # Invariants
//! 1. Until the last step nothing outside of the spool changes. The last step is one commit, with a snapshot
//!    of it: the target shows its old state or its new one (`switch`; `tests::transfer::cuts`).
//! 2. The state of a spool is written after the bytes that it counts, and made durable at each mark. A crash
//!    keeps every commit up to some moment, so the bytes of a state that is found are there (`spool`).
//! 3. Nothing of a stream is used before all of it has arrived and its hash is right (`Receiver::finish`).
//! 4. The bytes of files are written once: files of the tree name slices of the spool (`build`).
//!
//! ```text
//!   frames ──► Receiver::feed ──► spool: data, records, state ──┐ at the end, if the hash is right
//!                                                               ▼
//!     full stream   TreeBuilder makes a tree in the spool; a crash begins it anew ──┐
//!     increment     TreeBuilder changes the target in a transaction ────────────────┴─► one commit
//! ```

mod build;
mod checks;
mod error;
mod removal;
mod spool;
mod switch;
mod target;

pub use error::ReceiveError;
pub use spool::Receiver;
pub use switch::ReceivedTree;
pub use target::ReceiveTarget;
pub use warpfire_format::stream::{ReceiveState, StreamEnd, StreamHeader, StreamMark, StreamSnapshot};
