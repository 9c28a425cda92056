//! `warpfire cat`: print files.

use std::ffi::OsString;
use std::path::Path;

use warpfire_terminal::{Failure, base64, is_json, path_bytes, path_text, print, print_json};

use super::tally::Tally;
use crate::location::Location;
use crate::output::ContentPiece;
use crate::tree::{self, Tree, TreeError};

const EXAMPLES: &str = "\
Examples:
  warpfire cat a.img:/notes.txt
  warpfire cat pool:/big.tar | tar -t

With --json each line is a piece of a file: 'bytes' in base64 that begin at 'offset'.

A file that fails is reported, the others are printed, and the exit code is 1.";

// Arguments of `warpfire cat`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files to print, one after the other.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,
}

/// A file is read and printed in pieces of this size, in bytes. It is a stripe of most pools, whose columns
/// are then read side by side.
const PIECE_BYTES: usize = 4 << 20;

/// Prints each file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse_followed)?;
    let tally = Tally::default();
    let mut piece = vec![0; PIECE_BYTES];
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open_for_reading(&group[0].pool)?;
        for Location { path, .. } in group {
            tally.take(print_file(&fs, path, &mut piece))?;
        }
    }
    tally.finish()
}

fn print_file(fs: &Tree, path: &Path, piece: &mut [u8]) -> Result<(), Failure> {
    let failed = |error: TreeError| error.at(path);
    let file = fs.open_file(path).map_err(failed)?;
    let mut at = 0;
    loop {
        let read = fs.read_at(&file, piece, at).map_err(failed)?;
        if read == 0 {
            return Ok(());
        }
        print_piece(path, at, &piece[..read])?;
        at += read as u64;
    }
}

/// Prints bytes of a file that begin at this offset.
///
/// # Errors
/// stdout cannot be written.
pub fn print_piece(path: &Path, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
    if !is_json() {
        return print(bytes);
    }
    let (path, path_bytes) = (path_text(path), path_bytes(path));
    print_json(&ContentPiece { path, path_bytes, offset, bytes: base64(bytes) })
}
