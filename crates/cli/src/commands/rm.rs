//! `warpfire rm`: remove files and directories.

use std::ffi::OsString;

use warpfire::{ErrorKind, Warpfire};
use warpfire_terminal::Failure;

use super::pool;
use crate::location::Location;

const EXAMPLES: &str = "\
Examples:
  warpfire rm a.img:/notes.txt
  warpfire rm -r pool:/photos/2025";

/// Arguments of `warpfire rm`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files to remove.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,

    /// Remove directories and their contents.
    #[arg(long, short)]
    recursive: bool,

    /// Do not fail if a file does not exist.
    #[arg(long, short)]
    force: bool,
}

/// Removes each file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = args.locations.iter().map(|location| Location::parse(location));
    let locations = locations.collect::<Result<Vec<_>, _>>()?;
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = pool::open(&group[0].pool)?;
        for location in group {
            remove(&fs, location, args)?;
        }
        fs.close()?;
    }
    Ok(())
}

fn remove(fs: &Warpfire, Location { path, .. }: &Location, args: &Args) -> Result<(), Failure> {
    let removed = match fs.symlink_metadata(path) {
        Ok(metadata) if !metadata.is_dir() => fs.remove_file(path),
        Ok(_) if args.recursive => fs.remove_dir_all(path),
        Ok(_) => {
            return Err(Failure::new(format_args!("{} is a directory", path.display()))
                .hint("remove it and its contents with -r"));
        }
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if args.force && error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| Failure::at(path, &error)),
    }
}
