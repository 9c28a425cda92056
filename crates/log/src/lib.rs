//! Everything is an append: streams, the commit log, checkpoints, recovery and the choice of what to clean.
//!
//! `LogStore` is the seam to the metadata engine.

#![forbid(unsafe_code)]

mod store;

pub use store::{Admit, LogError, LogPos, LogStore, Pin, Recovered, Slices, Space, Stream};
