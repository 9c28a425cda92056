//! `warpfire cp`: copy files into a pool, out of it, or inside it.
//!
//! A copy keeps directories, symbolic links, special files, holes, hard links between copied files,
//! permission bits, times and, as superuser, owners. With `--archive` it keeps extended attributes and access
//! control lists too. A file that cannot be copied is reported, and the copy continues.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use warpfire::Warpfire;
use warpfire_terminal::{Failure, counted, is_json, note, print_json};

use self::job::{CopyJob, CopyOptions, LossyCopy};
use self::local::{LocalDir, NamedPath};
use self::pools::Pools;
use self::to_local::LocalSink;
use self::to_pool::PoolSink;
use super::tx;
use crate::location::{Location, PathArgument, names_directory};
use crate::progress::CopySummary;
use crate::tree::{self, MountedTree, Tree};

mod from_local;
mod from_pool;
mod job;
mod local;
mod new_local;
mod pools;
mod short;
mod sink;
mod source;
mod stdio;
mod tar;
mod to_local;
mod to_pool;
mod xattrs;

const EXAMPLES: &str = "\
Examples:
  warpfire cp -r ~/photos pool:/             copy into a pool, as /photos
  warpfire cp -r --atomic ~/photos pool:/    all of it, or nothing
  warpfire cp -r pool:/photos ~/back         copy out of a pool
  warpfire cp pool:/big.tar pool:/again.tar  copy inside a pool: only pointers
  warpfire cp -a /srv/www pool:/             keep attributes and ACLs too
  warpfire cp -ru ~/photos pool:/            copy new and newer files
  warpfire cp -r --salvage pool:/ rescued    copy the rest of damaged files
  pg_dump db | warpfire cp - pool:/db.sql    copy stdin; to stdout likewise
  warpfire cp --tar pool:/photos - > p.tar   write an archive
  warpfire cp --tar p.tar pool:/             unpack an archive, a file or stdin

A copy keeps permission bits, times, symbolic links, hard links between copied files, holes and special \
files. A copy by root keeps owners too. No symbolic link below the named files is followed.

A file gets its name when it is whole: after a failure, a signal or a crash no name has a part of a file. \
At the target it replaces a file, link, pipe or socket; a local device node stays. A local file is copied up \
to the length that it has when it is opened.

With --tar, directories are copied with their contents. An archive gets its name when it is whole. Names \
with '..' are not unpacked, and a slash before a name is left out. Owners are numbers.

Files of a mounted pool are copied through its mount, and may be named by local paths. A copy inside of one \
mounted pool copies only pointers.";

// Arguments of `warpfire cp`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent options of the command line")]
pub struct Args {
    /// The files to copy; '-' is stdin.
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,

    /// The new name, or an existing directory; '-' is stdout.
    #[arg(required = true, value_name = "DESTINATION")]
    destination: OsString,

    /// Copy directories and their contents.
    #[arg(long, short)]
    recursive: bool,

    /// Copy directories and their contents, and keep extended attributes and access control lists.
    #[arg(long, short)]
    archive: bool,

    /// Make the whole copy in one transaction: all of it, or nothing. Into a pool only.
    #[arg(long)]
    atomic: bool,

    /// Copy what can be read of damaged files. Lost bytes become holes; their ranges are listed on stderr,
    /// and the exit code is 1.
    #[arg(long)]
    salvage: bool,

    /// Write a tar archive of files in pools, or unpack tar archives into a pool.
    #[arg(long)]
    tar: bool,

    /// Leave files that exist.
    #[arg(long, short)]
    no_clobber: bool,

    /// Leave files that exist and are not older than the source.
    #[arg(long, short)]
    update: bool,

    /// Keep permission bits, times and, as root, owners. Every copy does; scripts for other commands ask.
    #[arg(long, short)]
    preserve: bool,

    /// Leave out what a pattern names: files and directories of that name, or with a slash in the pattern,
    /// of that path below the directory that is copied.
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,

    /// Change nothing; print what would be copied.
    #[arg(long)]
    dry_run: bool,

    /// Do not print a summary.
    #[arg(long, short)]
    quiet: bool,
}

/// The answer of `--json`.
#[derive(Debug, Serialize)]
struct CopyReport {
    #[serde(flatten)]
    summary: CopySummary,
    /// Files that were left because of `--no-clobber` or `--update`.
    skipped: u64,
    /// Files that could not be copied.
    failed: u64,
    /// Files that were copied without bytes that could not be read.
    damaged: Vec<LossyCopy>,
}

/// An argument that names a source.
enum Source {
    Stdin,
    /// An archive to unpack; `None` is stdin.
    Archive(Option<PathBuf>),
    Local(PathBuf),
    Pool(Location),
}

/// The place of a copy: a directory, and the name in it.
struct Target {
    base: PathBuf,
    /// `None` if the sources keep their names.
    name: Option<OsString>,
}

/// Copies all sources.
pub fn run(args: &Args) -> Result<(), Failure> {
    admit_deep_trees();
    let sources: Vec<Source> = args.sources.iter().map(|source| Source::parse(source)).collect();
    let mut job = CopyJob::new(args.options());
    expect_bytes(&mut job, &sources);
    let copied = if args.tar {
        with_archives(&mut job, sources, args)
    } else if args.destination == "-" {
        to_stdout(&mut job, &sources, args)
    } else {
        match PathArgument::parse(&args.destination) {
            PathArgument::Pool(destination) => into_pool(&mut job, &sources, &destination, args.atomic),
            PathArgument::Local(_) if args.atomic => Err(needs_pool()),
            PathArgument::Local(destination) => out_of_pool(&mut job, &sources, &destination),
        }
    };
    report(args, job, copied)
}

/// Prints the summary, and returns the end of the command.
fn report(args: &Args, job: CopyJob, copied: Result<(), Failure>) -> Result<(), Failure> {
    let CopyJob { progress, interrupt, failed, skipped, damaged, is_committed, end, .. } = job;
    let summary = progress.finish();
    copied?;
    if let Some(end) = end {
        return Err(end);
    }
    let is_undone = args.atomic && !args.dry_run && !is_committed;
    let verb = if args.dry_run { "would copy" } else { "copied" };
    let lossy = damaged.len() as u64;
    if is_undone {
        // There is no result.
    } else if is_json() {
        if !args.dry_run {
            print_json(&CopyReport { summary, skipped, failed, damaged })?;
        }
    } else if !args.quiet && (summary.files > 0 || failed == 0) {
        let left = if skipped > 0 { format!("; {skipped} left as they are") } else { String::new() };
        note(format_args!("{}{left}", summary.in_words(verb)));
    }
    if interrupt.has_come() && !is_committed {
        let left = match PathArgument::parse(&args.destination) {
            _ if args.atomic => "nothing was copied",
            PathArgument::Local(_) if args.tar => "no archive is whole",
            _ => "each file that was copied is whole",
        };
        return Err(interrupt.failure(left));
    }
    match (failed, lossy) {
        _ if is_undone => Err(Failure::new("nothing was copied; the reason is above")),
        (0, 0) => Ok(()),
        (0, damaged) => {
            let files = counted(damaged, "file has", "files have");
            Err(Failure::new(format_args!("{files} lost bytes; the ranges are above")))
        }
        (1, _) => Err(Failure::new("one file could not be copied; the reason is above")),
        (failed, _) => {
            Err(Failure::new(format_args!("{failed} files could not be copied; the reasons are above")))
        }
    }
}

impl Args {
    fn options(&self) -> CopyOptions {
        CopyOptions {
            recursive: self.recursive || self.archive || self.tar,
            archive: self.archive,
            salvage: self.salvage,
            no_clobber: self.no_clobber,
            update: self.update,
            dry_run: self.dry_run,
            all_or_nothing: self.atomic,
            exclude: self.exclude.clone(),
        }
    }
}

impl Source {
    fn parse(argument: &OsStr) -> Source {
        match PathArgument::parse(argument) {
            _ if argument == "-" => Source::Stdin,
            PathArgument::Local(path) => Source::Local(path),
            PathArgument::Pool(location) => Source::Pool(location),
        }
    }

    /// The same source as an archive; `None` for a file in a pool.
    fn into_archive(self) -> Option<Source> {
        match self {
            Source::Stdin => Some(Source::Archive(None)),
            Source::Local(path) => Some(Source::Archive(Some(path))),
            Source::Archive(_) => Some(self),
            Source::Pool(_) => None,
        }
    }

    /// The name that it has in a directory; `None` for the root of a pool, which has none: its contents are
    /// copied into the directory.
    fn name(&self) -> Result<Option<OsString>, Failure> {
        match self {
            Source::Stdin | Source::Archive(_) => Ok(None),
            Source::Local(path) | Source::Pool(Location { path, .. }) if path == Path::new("/") => Ok(None),
            Source::Pool(Location { path, .. }) => Ok(path.file_name().map(OsStr::to_owned)),
            Source::Local(path) => match path.file_name() {
                Some(name) => Ok(Some(name.to_owned())),
                None => named_by_the_system(path).map(Some),
            },
        }
    }
}

impl Target {
    /// The target of sources that are copied to `destination`: a name in it if it is a directory.
    fn of(sources: usize, destination: &Path, is_directory: bool) -> Result<Target, Failure> {
        if sources > 1 && !is_directory {
            return Err(Failure::usage(format_args!("{} is not a directory", destination.display()))
                .hint("name an existing directory to copy several files"));
        }
        let parent = destination.parent().filter(|_| !is_directory);
        Ok(match (parent, destination.file_name()) {
            (Some(parent), Some(name)) => Target { base: parent.to_path_buf(), name: Some(name.to_owned()) },
            _ => Target { base: destination.to_path_buf(), name: None },
        })
    }

    fn name_of(&self, source: &Source) -> Result<Option<OsString>, Failure> {
        match &self.name {
            Some(name) => Ok(Some(name.clone())),
            None => source.name(),
        }
    }
}

/// Raises the limit of open files as far as this user may: each level of a directory takes one.
fn admit_deep_trees() {
    let limit = getrlimit(Resource::Nofile);
    // Without it the usual limit holds, and a deeper directory is reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Sets the total of the progress line, if all sources are local files: the size of a tree is
/// known only after a walk.
fn expect_bytes(job: &mut CopyJob, sources: &[Source]) {
    let len = |source: &Source| match source {
        Source::Local(path) => path.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len()),
        _ => None,
    };
    if let Some(total) = sources.iter().map(len).sum() {
        job.progress.expect_bytes(total);
    }
}

fn into_pool(
    job: &mut CopyJob,
    sources: &[Source],
    destination: &Location,
    atomic: bool,
) -> Result<(), Failure> {
    let pools = Pools::into(&destination.pool, sources, job.options.dry_run)?;
    check_slash(sources, &pools, destination)?;
    let is_atomic = atomic && !job.options.dry_run;
    match pools.of(&destination.pool) {
        Tree::Open(fs) => into_open_pool(job, sources, &pools, fs, destination, is_atomic)?,
        Tree::Mounted(mount) => into_mounted_pool(job, sources, &pools, mount, destination, is_atomic)?,
    }
    pools.close()
}

/// Refuses a destination with a slash at its end where no directory is, for a source that is none either.
fn check_slash(sources: &[Source], pools: &Pools<'_>, destination: &Location) -> Result<(), Failure> {
    let (fs, path) = (pools.of(&destination.pool), &destination.path);
    let [source] = sources else { return Ok(()) };
    let is_directory = match source {
        Source::Stdin => false,
        // The copy reports a source that is not there.
        Source::Local(source) => source.symlink_metadata().map_or(true, |there| there.is_dir()),
        Source::Pool(Location { pool, path, .. }) => {
            pools.of(pool).symlink_metadata(path).map_or(true, |there| there.is_dir())
        }
        Source::Archive(_) => true,
    };
    if is_directory || !names_directory(path) {
        return Ok(());
    }
    match fs.metadata(path) {
        Ok(there) if there.is_dir() => Ok(()),
        Err(error) if !error.is_not_found() => Err(error.at(path)),
        _ => Err(fs.not_a_directory(path)),
    }
}

fn into_open_pool(
    job: &mut CopyJob,
    sources: &[Source],
    pools: &Pools<'_>,
    fs: &Warpfire,
    destination: &Location,
    is_atomic: bool,
) -> Result<(), Failure> {
    tree::check_changeable(fs, &destination.path).map_err(|error| error.at(&destination.path))?;
    let is_directory = fs.metadata(&destination.path).is_ok_and(|metadata| metadata.is_dir());
    let target = Target::of(sources.len(), &destination.path, is_directory)?;
    let inside = Some(&destination.pool);
    if !is_atomic {
        return pools.copy(job, &mut PoolSink::of_pool(fs, &target.base)?, sources, &target, inside);
    }
    let tx = fs.begin()?;
    pools.copy(job, &mut PoolSink::of_transaction(&tx, &target.base)?, sources, &target, inside)?;
    if job.goes_on() {
        tx.commit_durable()?;
        job.is_committed = true;
    }
    Ok(())
}

fn into_mounted_pool(
    job: &mut CopyJob,
    sources: &[Source],
    pools: &Pools<'_>,
    mount: &MountedTree,
    destination: &Location,
    is_atomic: bool,
) -> Result<(), Failure> {
    let is_directory = match mount.metadata(&destination.path) {
        Ok(there) => there.is_dir(),
        Err(Errno::NOENT | Errno::LOOP) => false,
        Err(errno) => return Err(mount.error(errno).at(&destination.path)),
    };
    let target = Target::of(sources.len(), &destination.path, is_directory)?;
    let inside = Some(&destination.pool);
    if !is_atomic {
        let mut sink = LocalSink::at(LocalDir::in_mount(mount, &target.base)?);
        return pools.copy(job, &mut sink, sources, &target, inside);
    }
    let copied = tx::transact_once(mount.mountpoint(), |view| {
        let view = mount.over(view).map_err(|errno| mount.error(errno).at(Path::new("/")))?;
        let mut sink = LocalSink::at(LocalDir::in_mount(&view, &target.base)?);
        pools.in_view(view)?.copy(job, &mut sink, sources, &target, inside)?;
        // The failure aborts the transaction. What the copy has printed is the reason.
        if job.goes_on() { Ok(()) } else { Err(Failure::silent()) }
    });
    if job.goes_on() {
        copied?;
        job.is_committed = true;
    }
    Ok(())
}

fn out_of_pool(job: &mut CopyJob, sources: &[Source], destination: &Path) -> Result<(), Failure> {
    let pools = Pools::out(sources, Some(destination))?;
    let is_directory = destination.is_dir();
    let target = Target::of(sources.len(), destination, is_directory)?;
    let (dir, name) = match &target.name {
        Some(_) => {
            let NamedPath { dir, name } = NamedPath::open(destination)?;
            (dir, name)
        }
        None => (LocalDir::named(destination)?, None),
    };
    // A name with a slash behind it is that of a directory, which is not there.
    let target = Target { name, ..target };
    pools.copy(job, &mut LocalSink::at(dir), sources, &target, None)
}

/// Writes an archive, or unpacks archives.
fn with_archives(job: &mut CopyJob, sources: Vec<Source>, args: &Args) -> Result<(), Failure> {
    let destination = match PathArgument::parse(&args.destination) {
        PathArgument::Local(_) if args.atomic => return Err(needs_pool()),
        PathArgument::Local(local) => {
            let local = Some(local.as_path()).filter(|_| args.destination != "-");
            return tar::pack(job, &sources, args, local);
        }
        PathArgument::Pool(destination) => destination,
    };
    let archives: Option<Vec<Source>> = sources.into_iter().map(Source::into_archive).collect();
    match archives {
        Some(archives) => into_pool(job, &archives, &destination, args.atomic),
        None => Err(Failure::usage("--tar copies between a pool and an archive outside of pools")
            .hint("name a local file or '-' as the archive")),
    }
}

fn needs_pool() -> Failure {
    Failure::usage("--atomic copies into a pool").hint("name a destination 'POOL:/path'")
}

fn to_stdout(job: &mut CopyJob, sources: &[Source], args: &Args) -> Result<(), Failure> {
    if args.atomic {
        return Err(needs_pool());
    }
    let pools = Pools::out(sources, None)?;
    let target = Target { base: PathBuf::new(), name: Some(OsString::from("-")) };
    pools.copy(job, &mut stdio::StdoutSink, sources, &target, None)
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
            let target = Target::of(1, Path::new("/d"), is_directory).expect("one source has a target");
            let name = target.name_of(&Source::Local(source.into())).expect("named");
            (target.base, name)
        };
        let named = |base: &str, name: &str| (PathBuf::from(base), Some(OsString::from(name)));
        assert_eq!(to("/a/b", true), named("/d", "b"));
        assert_eq!(to("/a/b/", true), named("/d", "b"));
        assert_eq!(to("/a/b", false), named("/", "d"));
        assert_eq!(to("/", true), (PathBuf::from("/d"), None));
    }
}
