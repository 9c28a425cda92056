//! `warpfire-bench` measures a pool and, in the same rounds, other filesystems on the same device.
//!
//! A *target* keeps files and can be measured. Runs are interleaved: each round runs every target once, so
//! that changes in the speed of the machine affect all targets alike. The benchmark uses the library through
//! its public calls only.

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
