//! `warpfire-bench`: measure a pool, a mounted directory, and other filesystems beside them.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match warpfire_bench::run(&warpfire_bench::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
