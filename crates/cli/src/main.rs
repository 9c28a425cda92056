//! `warpfire`: make a pool, mount it, copy in and out, look inside.

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
