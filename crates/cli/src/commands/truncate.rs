//! `warpfire truncate`: set the length of files.

use std::ffi::OsString;
use std::str::FromStr;

use warpfire_terminal::{Failure, Size};

use super::tally::Tally;
use crate::location::{Location, names_directory};
use crate::tree::{self, Tree};

const EXAMPLES: &str = "\
Examples:
  warpfire truncate -s 0 pool:/log
  warpfire truncate -s 1G pool:/disk.img     longer files get a hole at the end
  warpfire truncate -s +4K pool:/a pool:/b

A file that fails is reported, the others are changed, and the exit code is 1.";

// Arguments of `warpfire truncate`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files; one that does not exist is made.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,

    /// The new length; with + or - before it, so much more or less than the file has.
    #[arg(long, short, value_name = "SIZE", allow_hyphen_values = true)]
    size: NewLength,

    /// Do not make files that do not exist.
    #[arg(long, short = 'c')]
    no_create: bool,
}

/// The length that a file gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NewLength {
    Exact(u64),
    Longer(u64),
    Shorter(u64),
}

impl FromStr for NewLength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| text.parse::<Size>().map(|size| size.0);
        match text.split_at_checked(1) {
            Some(("+", more)) => size(more).map(NewLength::Longer),
            Some(("-", less)) => size(less).map(NewLength::Shorter),
            _ => size(text).map(NewLength::Exact),
        }
    }
}

impl NewLength {
    fn from(self, len: u64) -> u64 {
        match self {
            NewLength::Exact(new) => new,
            NewLength::Longer(more) => len.saturating_add(more),
            NewLength::Shorter(less) => len.saturating_sub(less),
        }
    }
}

/// Sets the length of each file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse_followed)?;
    let tally = Tally::default();
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open(&group[0].pool)?;
        for location in group {
            tally.change(args.truncate(&fs, location))?;
        }
        fs.close()?;
    }
    tally.finish_changes()
}

impl Args {
    fn truncate(&self, fs: &Tree, Location { path, .. }: &Location) -> Result<(), Failure> {
        if names_directory(path) {
            fs.metadata(path).map_err(|error| error.at(path))?;
        }
        let file = match fs.open_to_write(path, !self.no_create) {
            Err(error) if self.no_create && error.is_not_found() => return Ok(()),
            other => other.map_err(|error| error.at(path))?,
        };
        fs.set_len(&file, |len| self.size.from(len)).map_err(|error| error.at(path))
    }
}
