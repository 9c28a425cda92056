//! Everything is an append: streams, the commit log, checkpoints, recovery and the choice of what to clean.
//!
//! `LogStore` is the seam to the metadata engine.

#![forbid(unsafe_code)]

mod clean;
mod latch;
mod limits;
mod log;
mod log_writer;
#[cfg(any(test, feature = "twin"))]
mod mem;
mod pending;
mod pins;
mod placing;
mod recover;
mod segment_table;
mod store;
mod stream;
mod write_queue;

pub use log::Log;
#[cfg(any(test, feature = "twin"))]
pub use mem::{MemLog, MemLogCounters, MemLogOptions};
pub use store::{
    Admit, LogError, LogPos, LogStore, Pin, RecordIter, RecoveredLog, ScrubbedSegment, Slices, Space, Stream,
};
