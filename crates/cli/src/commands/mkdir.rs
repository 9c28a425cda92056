//! `warpfire mkdir`: make directories.

use std::ffi::OsString;

use warpfire_terminal::Failure;

use super::pool;
use crate::location::Location;

const EXAMPLES: &str = "\
Examples:
  warpfire mkdir a.img:/photos
  warpfire mkdir -p pool:/photos/2026/11";

/// Arguments of `warpfire mkdir`.
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
    let locations = args.locations.iter().map(|location| Location::parse(location));
    let locations = locations.collect::<Result<Vec<_>, _>>()?;
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = pool::open(&group[0].pool)?;
        for Location { path, .. } in group {
            let made = if args.parents { fs.create_dir_all(path) } else { fs.create_dir(path) };
            made.map_err(|error| Failure::at(path, &error))?;
        }
        fs.close()?;
    }
    Ok(())
}
