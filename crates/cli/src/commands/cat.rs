//! `warpfire cat`: print files.

use std::ffi::OsString;

use warpfire_terminal::{Failure, print};

use super::pool;
use crate::location::Location;

const EXAMPLES: &str = "\
Examples:
  warpfire cat a.img:/notes.txt
  warpfire cat pool:/big.tar | tar -t";

/// Arguments of `warpfire cat`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files to print, one after the other.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,
}

/// A file is read and printed in pieces of this size, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Prints each file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = args.locations.iter().map(|location| Location::parse(location));
    let locations = locations.collect::<Result<Vec<_>, _>>()?;
    let mut piece = vec![0; PIECE_BYTES];
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = pool::open(&group[0].pool)?;
        for Location { path, .. } in group {
            let failed = |error| Failure::at(path, &error);
            let file = fs.open(path).map_err(failed)?;
            let mut at = 0;
            loop {
                let read = file.read_at(&mut piece, at).map_err(failed)?;
                if read == 0 {
                    break;
                }
                print(&piece[..read])?;
                at += read as u64;
            }
        }
    }
    Ok(())
}
