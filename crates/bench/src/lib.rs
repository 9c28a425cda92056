//! `warpfire-bench`: measure a pool and, in the same run, other filesystems over the same backing.
//!
//! Runs are interleaved: each round measures every target once, so that a machine that changes its speed changes it
//! for all. The library is measured through its public calls only.

#![forbid(unsafe_code)]

mod backing;
mod command;
mod directory;
mod engine;
mod kernel;
mod library;
pub mod load;
mod memory;
mod names;
mod raw;
mod report;
mod rocksdb;
mod served;
mod target;
mod workload;

pub use command::{Args, run};
