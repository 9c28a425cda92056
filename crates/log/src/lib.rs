//! The log: byte streams in segments, one commit log, checkpoints, recovery, and the choice of segments to
//! clean. Everything is an append.
//!
//! `LogStore` is the seam to the metadata engine. `Log` implements it over a pool, `MemLog` in memory.

#![forbid(unsafe_code)]

mod clean;
mod latch;
mod leave_work;
mod limits;
mod live_bytes;
mod lock_ranks;
mod log;
mod log_writer;
mod look;
#[cfg(any(test, feature = "twin"))]
mod mem;
mod mend;
mod mend_step;
mod pending;
mod pins;
mod recover;
mod segment_entry;
mod segment_index;
mod segment_set;
mod segment_table;
mod shape;
mod state_log;
mod store;
mod stream;
mod upkeep_limit;
mod victims;
mod write_queue;

pub use leave_work::LeaveWork;
pub use log::Log;
#[cfg(any(test, feature = "twin"))]
pub use mem::{MemLog, MemLogCounters, MemLogOptions};
pub use mend::{Blocked, DueReason, DueWork, ReasonWork, SegmentsAtRisk};
pub use shape::{Guarantee, OtherShapes};
pub use store::{
    Admit, CensusCandidate, CensusMark, CensusNeed, CountedSegment, LogError, LogPos, LogStore, Pin,
    RecordIter, RecoveredLog, ScrubStep, ScrubbedSegment, Slices, Space, Stream, WaitBy, Waiter, WorkFor,
};
pub use upkeep_limit::UpkeepLimit;
