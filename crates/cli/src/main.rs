//! `warpfire`: makes, mounts, checks and inspects pools, and copies files into and out of them.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod location;
mod output;
mod progress;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match commands::run(args::Cli::parse()) {
        Ok(exit) => exit,
        Err(failure) => failure.report(),
    }
}
