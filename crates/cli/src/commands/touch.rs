//! `warpfire touch`: set the times of files; make files that do not exist.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use warpfire::Timestamp;
use warpfire_terminal::Failure;

use super::tally::Tally;
use crate::location::Location;
use crate::output::{MomentArgument, parse_moment};
use crate::tree::{self, NewAttributes, NewTime, Tree, TreeError};

const EXAMPLES: &str = "\
Examples:
  warpfire touch pool:/new
  warpfire touch -d 2026-11-21T08:29:31Z pool:/photos/1.jpg
  warpfire touch -r pool:/photos/1.jpg pool:/photos/2.jpg

A moment is RFC 3339, a date with or without a time of day, or @ and seconds since 1970: see 'warpfire help \
times'. A file that fails is reported, the others are changed, and the exit code is 1.";

// Arguments of `warpfire touch`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,

    /// Do not make files that do not exist.
    #[arg(long, short = 'c')]
    no_create: bool,

    /// Set this moment instead of the present.
    #[arg(long, short, value_name = "MOMENT", value_parser = |text: &str| parse_moment(text))]
    date: Option<MomentArgument>,

    /// Set the times of this file, which is in a pool too.
    #[arg(long, short, value_name = "POOL:/path", conflicts_with = "date")]
    reference: Option<OsString>,

    /// Set the time of the last read only.
    #[arg(long, short, conflicts_with = "modified")]
    accessed: bool,

    /// Set the time of the last change only.
    #[arg(long, short)]
    modified: bool,
}

/// Times to set: that of the last read and that of the last change.
type Times = Option<(Timestamp, Timestamp)>;

/// Touches each file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse_followed)?;
    let reference = args.reference.as_deref().map(Location::parse_followed).transpose()?;
    let mut times = args.date.map(MomentArgument::timestamp).map(|date| (date, date));
    if let Some(other) = reference.as_ref().filter(|reference| reference.pool != locations[0].pool) {
        let fs = tree::open_for_reading(&other.pool)?;
        times = times_of(&fs, other)?;
    }
    let tally = Tally::default();
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open(&group[0].pool)?;
        if let Some(reference) = reference.as_ref().filter(|reference| reference.pool == group[0].pool) {
            times = times_of(&fs, reference)?;
        }
        let set = args.set(times);
        for location in group {
            tally.change(args.touch(&fs, location, &set))?;
        }
        fs.close()?;
    }
    tally.finish_changes()
}

fn times_of(fs: &Tree, Location { path, .. }: &Location) -> Result<Times, Failure> {
    let metadata = fs.metadata(path).map_err(|error| error.at(path))?;
    Ok(Some((metadata.accessed, metadata.modified)))
}

impl Args {
    fn set(&self, times: Times) -> NewAttributes {
        let (accessed, modified) = match times {
            Some((accessed, modified)) => (NewTime::At(accessed), NewTime::At(modified)),
            None => (NewTime::Now, NewTime::Now),
        };
        NewAttributes {
            accessed: (!self.modified).then_some(accessed),
            modified: (!self.accessed).then_some(modified),
            ..NewAttributes::default()
        }
    }

    fn touch(&self, fs: &Tree, Location { path, .. }: &Location, set: &NewAttributes) -> Result<(), Failure> {
        let mut touched = fs.set(path, set);
        if touched.as_ref().is_err_and(TreeError::is_not_found) {
            if self.no_create {
                return Ok(());
            }
            if path.as_os_str().as_bytes().ends_with(b"/") {
                let absent = Failure::local_as(path, &Errno::NOENT.into(), "no such directory");
                return Err(absent.hint("make it with 'warpfire mkdir'"));
            }
            touched = fs.open_to_write(path, true).and_then(|_| fs.set(path, set));
        }
        touched.map_err(|error| error.at(path))
    }
}
