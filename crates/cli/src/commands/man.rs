//! `warpfire man`: manual pages, from the table of arguments.

use std::path::PathBuf;

use clap::CommandFactory;
use warpfire_terminal::Failure;

use crate::args::Cli;

/// Arguments of `warpfire man`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory for `warpfire.1`, `warpfire-mkfs.1` and so on; it is made if it does not exist.
    directory: PathBuf,
}

/// Writes a page for the program and a page for each command.
pub fn run(args: &Args) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.directory).map_err(|error| Failure::local(&args.directory, &error))?;
    clap_mangen::generate_to(Cli::command(), &args.directory)
        .map_err(|error| Failure::local(&args.directory, &error))
}
