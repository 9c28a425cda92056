//! Operations: how a call enters a filesystem, and how a transaction keeps it so that a commit can make it
//! again.
//!
//! # Terms
//! An *operation* is a call of [`Fs`](crate::Fs) in the form that a journal keeps. It is one type, in the
//! file of the call that it stands for, and that file is all that an operation needs: this module and `tx`
//! know the trait [`Operation`] only. To *replay* an operation is to make its call again.
//!
//! ```text
//!   tx                begins, commits, replays; marks savepoints
//!    │ uses
//!    ▼
//!   Fs and its calls  names, data, attrs, slice, path: each call with its operation
//!    │ use
//!    ▼
//!   op                CallGate ──► CallJournal ──► Box<dyn Operation<F>> ──► Scene
//! ```
//!
//! The filesystem is a type parameter, `F`, in this module. So it needs nothing of `Fs`, and `Fs` can hold a
//! [`CallGate`].
//!
//! # To add an operation
//! In the file of the new call: a struct of what the call was given, with inode numbers in place of nodes;
//! its `impl Operation`; and the call, which gives both forms to [`CallGate::call`]. Nothing else in this
//! crate has to change.

mod call_gate;
mod caller;
mod counts;
mod digest;
mod journal;
mod operation;
mod scene;

pub(crate) use call_gate::{CallGate, CallGuard};
pub(crate) use caller::RecordedCaller;
pub(crate) use counts::TransactionCounters;
pub use counts::TransactionCounts;
pub(crate) use digest::{Digestible, new_hasher};
pub(crate) use journal::CallJournal;
pub(crate) use operation::{HeapBytes, Operation};
pub(crate) use scene::ReplayScene;
pub use scene::Savepoint;
