//! `warpfire mkdir`: make directories.

use std::ffi::OsString;

use warpfire_terminal::Failure;

use super::tally::Tally;
use crate::location::Location;
use crate::tree;

const EXAMPLES: &str = "\
Examples:
  warpfire mkdir a.img:/photos
  warpfire mkdir -p pool:/photos/2026/11

A directory that fails is reported, the others are made, and the exit code is 1.";

// Arguments of `warpfire mkdir`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directories to make.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,

    /// Make missing parent directories too; do not fail if a directory exists.
    #[arg(long, short)]
    parents: bool,
}

/// Makes each directory.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse)?;
    let tally = Tally::default();
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open(&group[0].pool)?;
        for Location { path, .. } in group {
            let made = if args.parents { fs.create_dir_all(path) } else { fs.create_dir(path) };
            tally.change(made.map_err(|error| error.at(path)))?;
        }
        fs.close()?;
    }
    tally.finish_changes()
}
