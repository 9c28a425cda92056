//! `warpfire cp`: copy files into a pool, out of it, or inside it.
//!
//! Directories, symbolic links, special files, holes, hard links within what is copied, permission bits, owners (for the
//! superuser) and times are kept; with `--archive` extended attributes and access control lists too. A file that cannot be copied is reported and the rest goes on.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use warpfire::Warpfire;
use warpfire_terminal::{Failure, note, print_json};

use super::pool;
use crate::location::{Location, PathArgument};
use crate::progress::Progress;

mod copy_in;
mod copy_out;
mod copy_within;
mod xattrs;

const EXAMPLES: &str = "\
Examples:
  warpfire cp -r ~/photos pool:/             into a pool, as /photos
  warpfire cp -r pool:/photos ~/back         out of it
  warpfire cp pool:/big.tar pool:/again.tar  inside it: only pointers are copied
  warpfire cp -a /srv/www pool:/             with extended attributes and access control lists

Kept are permission bits, times, symbolic links, hard links within what is copied, holes, special files and, for the
superuser, owners.";

/// A file is copied in pieces of this size.
const PIECE_BYTES: usize = 4 << 20;

/// Arguments of `warpfire cp`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to copy.
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,

    /// Where to: the new name, or a directory that exists.
    #[arg(required = true, value_name = "DESTINATION")]
    destination: OsString,

    /// Copy directories with all that is in them.
    #[arg(long, short)]
    recursive: bool,

    /// Copy directories with all that is in them, and keep extended attributes and access control lists.
    #[arg(long, short)]
    archive: bool,

    /// Say nothing of what was done.
    #[arg(long, short)]
    quiet: bool,
}

/// What all three directions keep of a run.
struct CopyJob {
    recursive: bool,
    archive: bool,
    progress: Progress,
    failed: u64,
}

impl CopyJob {
    /// Reports a file that could not be copied.
    fn skip(&mut self, path: &Path, reason: impl Display) {
        note(format_args!("{}: {reason}", path.display()));
        self.failed += 1;
    }

    /// Takes the result of copying one file: counts its bytes, or reports why not.
    fn outcome(&mut self, path: &Path, copied: Result<u64, impl Display>) {
        match copied {
            Ok(bytes) => self.progress.file(bytes),
            Err(reason) => self.skip(path, reason),
        }
    }
}

/// Copies everything that was named.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let mut job = CopyJob {
        recursive: args.recursive || args.archive,
        archive: args.archive,
        progress: Progress::start("copied"),
        failed: 0,
    };
    let sources: Vec<PathArgument> = args.sources.iter().map(|source| PathArgument::parse(source)).collect();
    match PathArgument::parse(&args.destination) {
        PathArgument::Pool(destination) => into_pool(&mut job, &sources, &destination)?,
        PathArgument::Local(destination) => out_of_pool(&mut job, &sources, &destination)?,
    }
    let summary = job.progress.finish();
    if json {
        print_json(&summary)?;
    } else if !args.quiet {
        note(summary.in_words("copied"));
    }
    match job.failed {
        0 => Ok(()),
        1 => Err(Failure::new("one file could not be copied")),
        failed => Err(Failure::new(format_args!("{failed} files could not be copied"))),
    }
}

fn into_pool(job: &mut CopyJob, sources: &[PathArgument], destination: &Location) -> Result<(), Failure> {
    let fs = pool::open(&destination.pool)?;
    let is_directory = fs.metadata(&destination.path).is_ok_and(|metadata| metadata.is_dir());
    check_room_for(sources.len(), is_directory, &destination.path)?;
    let mut copy_in = copy_in::CopyIn::new(&fs);
    let mut copy_within = copy_within::CopyWithin::new(&fs);
    for source in sources {
        match source {
            PathArgument::Local(path) => {
                let target = target(path, &destination.path, is_directory)?;
                copy_in.copy(job, path, &target);
            }
            PathArgument::Pool(location) if location.pool == destination.pool => {
                let target = target(&location.path, &destination.path, is_directory)?;
                copy_within.copy(job, &location.path, &target);
            }
            PathArgument::Pool(location) => {
                return Err(Failure::usage(format_args!("{} is in another pool", location.path.display()))
                    .hint("mount one of the two, or copy by way of a local directory"));
            }
        }
    }
    drop((copy_in, copy_within));
    fs.close().map_err(Failure::from)
}

fn out_of_pool(job: &mut CopyJob, sources: &[PathArgument], destination: &Path) -> Result<(), Failure> {
    let is_directory = destination.is_dir();
    check_room_for(sources.len(), is_directory, destination)?;
    let mut opened: Option<(Location, Warpfire)> = None;
    for source in sources {
        let PathArgument::Pool(location) = source else {
            return Err(
                Failure::usage("neither side is inside a pool").hint("write 'POOL:/path' on one side")
            );
        };
        let fs = match opened.take().filter(|(other, _)| other.pool == location.pool) {
            Some((_, fs)) => fs,
            None => pool::open(&location.pool)?,
        };
        let target = target(&location.path, destination, is_directory)?;
        copy_out::CopyOut::new(&fs).copy(job, &location.path, &target);
        opened = Some((location.clone(), fs));
    }
    Ok(())
}

fn check_room_for(sources: usize, is_directory: bool, destination: &Path) -> Result<(), Failure> {
    if sources > 1 && !is_directory {
        return Err(Failure::usage(format_args!("{} is not a directory", destination.display()))
            .hint("several files can be copied only into a directory that exists"));
    }
    Ok(())
}

/// The path that a source gets: inside the destination if that is a directory, else the destination itself. The root of a pool has no name of
/// its own, so its copy merges into the directory.
fn target(source: &Path, destination: &Path, is_directory: bool) -> Result<PathBuf, Failure> {
    if !is_directory {
        return Ok(destination.to_path_buf());
    }
    if source == Path::new("/") {
        return Ok(destination.to_path_buf());
    }
    let name = match source.file_name() {
        Some(name) => name.to_owned(),
        None => named_by_the_system(source)?,
    };
    Ok(destination.join(name))
}

/// The name of a local directory given as `.` or `..`.
fn named_by_the_system(source: &Path) -> Result<OsString, Failure> {
    let whole = source.canonicalize().map_err(|error| Failure::local(source, &error))?;
    Ok(whole.file_name().unwrap_or(OsStr::new(".")).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_goes_into_a_directory_and_otherwise_takes_its_new_name() {
        let to = |source: &str, is_directory| {
            target(Path::new(source), Path::new("/d"), is_directory).expect("named")
        };
        assert_eq!(to("/a/b", true), Path::new("/d/b"));
        assert_eq!(to("/a/b/", true), Path::new("/d/b"));
        assert_eq!(to("/a/b", false), Path::new("/d"));
        assert_eq!(to("/", true), Path::new("/d"));
    }
}
