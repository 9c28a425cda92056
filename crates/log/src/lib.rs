//! Everything is an append: streams, the commit log, checkpoints, recovery and the choice of what to clean.
//!
//! `LogStore` is the seam to the metadata engine.

#![forbid(unsafe_code)]

mod behind;
mod clean;
mod commit;
mod latch;
mod limits;
mod log;
mod mem;
mod pending;
mod pins;
mod placing;
mod recover;
mod store;
mod stream;
mod table;

pub use log::Log;
pub use mem::{MemLog, MemLogCounters, MemLogOptions};
pub use store::{
    Admit, LogError, LogPos, LogStore, Pin, Records, Recovered, Scrubbed, Slices, Space, Stream,
};
