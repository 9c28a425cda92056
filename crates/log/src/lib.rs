//! Everything is an append: streams, the commit log, checkpoints, recovery and the choice of what to clean.
//!
//! `LogStore` is the seam to the metadata engine.

#![forbid(unsafe_code)]

mod mem;
mod pins;
mod store;

pub use mem::{MemLog, MemLogCounters, MemLogOptions};
pub use store::{Admit, LogError, LogPos, LogStore, Pin, Records, Recovered, Slices, Space, Stream};
