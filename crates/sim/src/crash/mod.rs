//! Every crash state of a recorded workload, reopened and judged.
//!
//! ```text
//!   workload ──▶ trace of the devices ──▶ each boundary × each cut ──▶ reopen ──▶ one of the allowed states?
//!                                                                        │ recorded
//!                                                                        └──▶ each boundary × sampled cuts ──▶ again
//! ```
//!
//! A cut is tried where the next event is a flush, a mark or the end. A cut between two writes leaves a subset of what
//! is pending at the boundary after them, so every prefix is among what is tried there.

mod judge;
mod small;
mod workload;

pub use judge::{Budget, Judge};
pub use small::SmallWorkloads;
pub use workload::Workload;
