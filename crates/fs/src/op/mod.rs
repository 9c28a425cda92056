//! Operations: how a call enters a filesystem, and how a transaction records it so that a commit can make it
//! again.
//!
//! # Terms
//! An *operation* is a call of [`Fs`](crate::Fs) in the form that a journal keeps. Each is one type, in the
//! file of its call; this module and `tx` know only the trait [`Operation`]. To *replay* an operation is to
//! make its call again.
//!
//! ```text
//!   tx                begins, commits, replays; marks savepoints
//!    │ uses
//!    ▼
//!   Fs and its calls  names, data, attrs, slice, path: each call with its operation
//!    │ use
//!    ▼
//!   op                CallGate ──► CallJournal ──► Box<dyn Operation<F>> ──► ReplayScene
//! ```
//!
//! The filesystem is a type parameter, `F`, in this module. So the module needs nothing of `Fs`, and `Fs` can
//! hold a [`CallGate`].
//!
//! # To add an operation
//! The file of the new call gets three things: a struct of the call's arguments, with inode numbers instead
//! of nodes; its `impl Operation`; and the call, which passes both forms to `Fs::call`. No other file of this
//! crate changes. CONTRIBUTING.md has the steps with an example.

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
pub(crate) use digest::{Digestible, digest_of_bytes, new_hasher};
pub(crate) use journal::CallJournal;
pub use journal::CallNumber;
pub(crate) use operation::{HeapBytes, Operation, PureRead};
pub(crate) use scene::ReplayScene;
pub use scene::Savepoint;
