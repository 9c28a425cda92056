//! `warpfire cp`: copy files into a pool, out of it, or inside it.
//!
//! A copy keeps directories, symbolic links, special files, holes, hard links between copied files,
//! permission bits, times and, as superuser, owners. With `--archive` it keeps extended attributes and access
//! control lists too. A file that cannot be copied is reported, and the copy continues.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use warpfire::Warpfire;
use warpfire_terminal::{Failure, note, print_json, shown};

use super::pool;
use crate::location::{Location, PathArgument, PoolName};
use crate::progress::Progress;

mod copy_in;
mod copy_out;
mod copy_within;
mod local;
mod pool_target;
mod xattrs;

const EXAMPLES: &str = "\
Examples:
  warpfire cp -r ~/photos pool:/             copy into a pool, as /photos
  warpfire cp -r pool:/photos ~/back         copy out of a pool
  warpfire cp pool:/big.tar pool:/again.tar  copy inside a pool: only pointers
  warpfire cp -a /srv/www pool:/             keep attributes and ACLs too

A copy keeps permission bits, times, symbolic links, hard links between copied files, holes and special \
files. A copy by root keeps owners too. No symbolic link below the named files is followed. At the target \
a file, link, pipe or socket is replaced when the copy is complete; a device node is not.";

/// A file is copied in pieces of this size, in bytes.
const PIECE_BYTES: usize = 4 << 20;

/// Arguments of `warpfire cp`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files to copy.
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,

    /// The new name, or an existing directory.
    #[arg(required = true, value_name = "DESTINATION")]
    destination: OsString,

    /// Copy directories and their contents.
    #[arg(long, short)]
    recursive: bool,

    /// Copy directories and their contents, and keep extended attributes and access control lists.
    #[arg(long, short)]
    archive: bool,

    /// Do not print a summary.
    #[arg(long, short)]
    quiet: bool,
}

/// Options and totals of a run, for all three directions.
struct CopyJob {
    recursive: bool,
    archive: bool,
    progress: Progress,
    failed: u64,
}

impl CopyJob {
    /// Reports a file that could not be copied.
    fn skip(&mut self, path: &Path, reason: impl Into<Failure>) {
        reason.into().about(path).print();
        self.failed += 1;
    }

    /// Takes the result of one copied file: counts its bytes, or reports the error.
    fn outcome(&mut self, path: &Path, copied: Result<u64, impl Into<Failure>>) {
        match copied {
            Ok(bytes) => self.progress.file(bytes),
            Err(reason) => self.skip(path, reason),
        }
    }

    /// Copies a directory. `fill` copies its entries and then sets its attributes: each entry changes the
    /// times, and a mode without write permission would refuse it.
    fn directory(&mut self, source: &Path, fill: impl FnOnce(&mut CopyJob) -> Result<(), Failure>) {
        if !self.recursive {
            return self.skip(source, Failure::new("is a directory").hint("copy it with -r"));
        }
        let filled = fill(self);
        self.outcome(source, filled.map(|()| 0));
    }
}

/// Copies all sources.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    admit_deep_trees();
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
        1 => Err(Failure::new("one file could not be copied; the reason is above")),
        failed => {
            Err(Failure::new(format_args!("{failed} files could not be copied; the reasons are above")))
        }
    }
}

/// Raises the limit of open files as far as this user may: each level of a directory takes one.
fn admit_deep_trees() {
    let limit = getrlimit(Resource::Nofile);
    // Without it the usual limit holds, and a deeper directory is reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
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
                    .hint("mount one of the two pools, or copy to a local directory first"));
            }
        }
    }
    drop((copy_in, copy_within));
    fs.close().map_err(Failure::from)
}

fn out_of_pool(job: &mut CopyJob, sources: &[PathArgument], destination: &Path) -> Result<(), Failure> {
    if sources.iter().any(|source| matches!(source, PathArgument::Local(_))) {
        let pool = sources.iter().filter_map(|source| match source {
            PathArgument::Local(path) => Some(path.as_path()),
            PathArgument::Pool(_) => None,
        });
        let pool = std::iter::once(destination).chain(pool).find(|path| PoolName::new(*path).is_pool());
        let failure = Failure::usage("neither source nor destination is inside a pool");
        return Err(match pool {
            Some(pool) => failure.hint(format_args!("the root of that pool is '{}:/'", shown(pool))),
            None => failure.hint("write one of them as 'POOL:/path'"),
        });
    }
    let is_directory = destination.is_dir();
    check_room_for(sources.len(), is_directory, destination)?;
    let mut opened: Option<(Location, Warpfire)> = None;
    for source in sources {
        let PathArgument::Pool(location) = source else { continue };
        let fs = match opened.take().filter(|(other, _)| other.pool == location.pool) {
            Some((_, fs)) => fs,
            None => pool::open_for_reading(&location.pool)?,
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
            .hint("name an existing directory to copy several files"));
    }
    Ok(())
}

/// The target of a source: a name in the destination if that is a directory, else the destination itself. The
/// root of a pool has no name, so its contents are copied into the directory.
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

/// The name of a local directory that the command line calls `.` or `..`.
fn named_by_the_system(source: &Path) -> Result<OsString, Failure> {
    let whole = source.canonicalize().map_err(|error| Failure::local(source, &error))?;
    Ok(whole.file_name().unwrap_or(OsStr::new(".")).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_copied_into_a_directory_or_to_a_new_name() {
        let to = |source: &str, is_directory| {
            target(Path::new(source), Path::new("/d"), is_directory).expect("named")
        };
        assert_eq!(to("/a/b", true), Path::new("/d/b"));
        assert_eq!(to("/a/b/", true), Path::new("/d/b"));
        assert_eq!(to("/a/b", false), Path::new("/d"));
        assert_eq!(to("/", true), Path::new("/d"));
    }
}
