//! Every crash state of a recorded workload, reopened and judged.
//!
//! ```text
//!   workload ─▶ trace of the devices ─▶ each boundary × each cut ─▶ reopen ─▶ one of the allowed states?
//!                                             └─ recording of the recovery ─▶ boundaries × cuts ─▶ again
//! ```
//!
//! The judge tries cuts where the next event is a flush, a mark or the end. The changes pending between two
//! writes are a subset of those pending at the next boundary, so the cuts there include those between writes.

mod judge;
mod small;
mod workload;

pub use judge::{Budget, Judge};
pub use small::SmallWorkloads;
pub use workload::Workload;
