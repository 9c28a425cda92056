//! `warpfire rm`: remove files and directories.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use warpfire_terminal::{Failure, counted, grouped};

use super::confirmation::confirm;
use super::tally::Tally;
use super::volume;
use super::walk::{Moment, walk};
use crate::location::{Location, PoolName};
use crate::progress::{FILES_PER_DRAW, WorkLine};
use crate::tree::{self, Tree};

const EXAMPLES: &str = "\
Examples:
  warpfire rm a.img:/notes.txt
  warpfire rm -r pool:/photos/2025
  warpfire rm -r --yes pool:/              empty the pool

Before it removes everything in a pool, the command asks. A file that fails is reported, the others are removed, and the exit code is 1.";

// Arguments of `warpfire rm`.
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

    /// Do not ask before everything in a pool is removed.
    #[arg(long)]
    yes: bool,
}

/// Removes each file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse_name)?;
    let tally = Tally::default();
    let line = WorkLine::start();
    let (mut removed, mut total) = (0_u64, 0_u64);
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open(&group[0].pool)?;
        if args.recursive && !args.yes && group.iter().any(|location| is_root(&fs, &location.path)) {
            confirm("removes everything in the pool")?;
        }
        for location in group {
            if args.recursive {
                total += count_shown(&fs, &location.path, &line)?;
            }
            let done = remove(&fs, location, args, || {
                removed += 1;
                if removed.is_multiple_of(FILES_PER_DRAW) {
                    let words =
                        format_args!("{} of {} removed", grouped(removed), counted(total, "file", "files"));
                    line.part(removed, total, words);
                }
            });
            if done.is_err() {
                // The failure is printed next.
                line.finish();
            }
            tally.change(done)?;
        }
        fs.close()?;
    }
    line.finish();
    tally.finish_changes()
}

/// The number of files at and below a path, if the line is shown: nothing else needs it.
fn count_shown(fs: &Tree, path: &Path, line: &WorkLine) -> Result<u64, Failure> {
    let mut total = 0_u64;
    if line.is_shown() {
        walk(fs, &Tally::quiet(), path, usize::MAX, |moment, _| {
            total += u64::from(moment == Moment::Reached);
            if total.is_multiple_of(FILES_PER_DRAW) {
                line.message(format_args!("{} found", counted(total, "file", "files")));
            }
            Ok(())
        })?;
    }
    Ok(total)
}

/// Whether a path leads to the root, by whatever names.
fn is_root(fs: &Tree, path: &Path) -> bool {
    let number = |path: &Path| fs.symlink_metadata(path).map(|metadata| metadata.ino).ok();
    number(path).is_some_and(|found| Some(found) == number(Path::new("/")))
}

fn remove(
    fs: &Tree,
    Location { pool, path, .. }: &Location,
    args: &Args,
    progress: impl FnMut(),
) -> Result<(), Failure> {
    fs.check_slash(path, |path| fs.symlink_metadata(path))?;
    let removed = match fs.symlink_metadata(path) {
        Ok(metadata) if !metadata.is_dir() => fs.remove_file(path),
        Ok(_) if args.recursive => fs.remove_dir_all(path, progress),
        Ok(_) => {
            return Err(Failure::new(format_args!("{} is a directory", fs.shown(path)))
                .hint("remove it and its contents with -r"));
        }
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if args.force && error.is_not_found() => Ok(()),
        Err(error) if error.is_busy() => {
            Err(volume_below(fs, pool, path).map_or_else(|| error.at(path), |volume| is_volume(fs, &volume)))
        }
        other => other.map_err(|error| error.at(path)),
    }
}

/// The first volume at or below a path, if there is one.
fn volume_below(fs: &Tree, pool: &PoolName, path: &Path) -> Option<PathBuf> {
    let volumes = match fs {
        Tree::Open(pool) => volume::list_in(pool),
        Tree::Mounted(_) => volume::listed(pool),
    };
    let mut doors = volumes.ok()?.into_iter().map(|volume| PathBuf::from(OsStr::from_bytes(volume.door())));
    doors.find(|door| door.starts_with(path))
}

fn is_volume(fs: &Tree, door: &Path) -> Failure {
    let failure = Failure::new(format_args!("{} is the directory of a volume", fs.shown(door)));
    failure.of_path(door).hint("'warpfire volume delete' with its path deletes the volume")
}
