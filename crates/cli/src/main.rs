//! `warpfire`: makes, mounts, checks and inspects pools, and copies files into and out of them.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod location;
mod output;
mod progress;
mod tree;

use std::process::ExitCode;

use clap::Parser;
use commands::mount::mount_helper;

fn main() -> ExitCode {
    let is_helper = mount_helper::is_helper(std::env::args_os().next().as_deref());
    let words = match mount_helper::words_of_process() {
        Ok(Some(words)) => words,
        Ok(None) => return ExitCode::SUCCESS,
        Err(failure) => return failure.exit_code(mount_helper::WRONG_CALL).report(),
    };
    match commands::run(args::Cli::parse_from(words)) {
        Ok(exit) => exit,
        Err(failure) if is_helper => failure.exit_code(mount_helper::MOUNT_FAILED).report(),
        Err(failure) => failure.report(),
    }
}
