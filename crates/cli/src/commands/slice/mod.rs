//! `warpfire slice`: rearrange files by moving pointers.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::Serialize;

use super::confirmation::confirm;
use super::tx::transact;
use crate::location::{PathArgument, PoolName, names_directory};
use crate::tree::{self, MountedTree, Tree};

mod mounted_files;
mod pool_files;

use mounted_files::MountedFiles;
use warpfire::Warpfire;
use warpfire_terminal::{Failure, Size, grouped, is_json, note, print_json};

const EXAMPLES: &str = "\
Examples:
  warpfire slice concat pool:/a pool:/b pool:/whole    join files
  warpfire slice cut --from 1G --len 20M pool:/film    remove a range
  warpfire slice paste --len 5M --insert 1G pool:/intro pool:/film
  warpfire slice shuffle --seed 7 /mnt/film /mnt/new   files on a mounted pool
  warpfire slice cat --from 4096 --len 100 pool:/film

All files must be in one pool, or on one mounted pool. Only pointers change; cat alone reads data. Ranges \
may begin and end at any byte. Each command is one transaction: it uses the files as of one moment, and \
other programs see all of its changes or none.";

/// A range of a file that does not exceed the file.
#[derive(Clone, Debug)]
struct FileRange {
    path: PathBuf,
    range: Range<u64>,
}

impl FileRange {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The position at which a part is pasted.
#[derive(Clone, Copy, Debug)]
enum PastePosition {
    /// Over the bytes at this offset.
    Over(u64),
    /// Inserted at this offset: the bytes from there on move up.
    Between(u64),
    /// At the end of the file.
    End,
}

/// Access to the files: by the library, or on a mount.
trait SliceBackend {
    /// A file's length.
    fn len(&self, path: &Path) -> Result<u64, Failure>;

    /// Prints a part.
    fn print(&self, part: &FileRange) -> Result<(), Failure>;

    /// Replaces the content of `target` by these parts, one after the other. `target` is made if it does not
    /// exist, and may be one of the sources.
    fn assemble(&self, parts: &[FileRange], target: &Path) -> Result<(), Failure>;

    /// Pastes a part into `target`, which is made if it does not exist and may be the source.
    fn paste(&self, part: &FileRange, target: &Path, position: PastePosition) -> Result<(), Failure>;

    /// Removes a part. The bytes after it move down.
    fn remove(&self, part: &FileRange) -> Result<(), Failure>;
}

// Arguments of `warpfire slice`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, subcommand_required = true)]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    verb: SliceCommand,
}

// The commands.
#[derive(clap::Subcommand, Debug)]
#[command(defer = true)]
enum SliceCommand {
    /// Print a range of a file.
    Cat {
        #[command(flatten)]
        part: RangeArgs,
    },
    /// Remove a range of a file; the bytes after it move down. With TARGET, the range becomes the content of
    /// that file.
    Cut {
        #[command(flatten)]
        part: RangeArgs,
        /// The file for the range; its content is replaced.
        target: Option<OsString>,
        /// Do not ask before the whole content of a file is removed.
        #[arg(long)]
        yes: bool,
    },
    /// Write a range of a file into another: at its end, or where --over or --insert says.
    Paste {
        #[command(flatten)]
        part: RangeArgs,
        /// The file to write into; it is made if it does not exist.
        target: OsString,
        /// Write over the bytes at this offset.
        #[arg(long, value_name = "OFFSET", conflicts_with = "insert")]
        over: Option<Size>,
        /// Insert at this offset; the bytes from there on move up.
        #[arg(long, value_name = "OFFSET")]
        insert: Option<Size>,
    },
    /// Join whole files, one after the other, into one; the sources stay.
    Concat {
        /// The files to join.
        #[arg(required = true, value_name = "SOURCE")]
        sources: Vec<OsString>,
        /// The joined file; its content is replaced, and it may be one of the sources.
        #[arg(required = true)]
        target: OsString,
    },
    /// Make a file from the parts of another, in a random order that a seed determines.
    Shuffle {
        /// The file to take the parts from; it stays.
        source: OsString,
        /// The shuffled file; its content is replaced, and it may be the source.
        target: OsString,
        /// Length of a part; the last may be shorter.
        #[arg(long, default_value = "16M")]
        size: Size,
        /// Seed of the order; the same seed makes the same order.
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
}

// A range of a file.
#[derive(clap::Args, Debug)]
struct RangeArgs {
    /// The file.
    source: OsString,
    /// Offset of the range.
    #[arg(long, value_name = "OFFSET", default_value = "0")]
    from: Size,
    /// Length of the range [default: to the end of the file].
    #[arg(long, value_name = "LENGTH")]
    len: Option<Size>,
}

/// The result of a command.
#[derive(Serialize)]
struct SliceSummary {
    verb: &'static str,
    /// Ranges that were placed or removed.
    parts: u64,
    /// Their bytes. No data was moved.
    bytes: u64,
}

/// Most parts of a shuffle: 2^20 of them take about 100 MB of memory.
const PARTS_MAX: u64 = 1 << 20;

/// Runs the command, in the pool or on the mount of the files.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.verb.empties_a_file() {
        confirm("removes the whole content of the file")?;
    }
    let sides: Vec<PathArgument> =
        args.verb.files().into_iter().map(|file| PathArgument::parse(file)).collect();
    let summary = match pool_of(&sides)? {
        Some(pool) if args.verb.only_reads() => match tree::open_for_reading(pool)? {
            Tree::Open(pool) => {
                args.verb.run(&pool_files::PoolFiles(Warpfire::clone(&*pool.begin_read_only()?)))?
            }
            Tree::Mounted(mount) => args.verb.run_on_mount(mount.mountpoint(), false)?,
        },
        Some(pool) => match tree::open(pool)? {
            Tree::Open(pool) => {
                let tx = pool.begin()?;
                let summary = args.verb.run(&pool_files::PoolFiles(Warpfire::clone(&tx)))?;
                tx.commit()?;
                pool.close()?;
                summary
            }
            Tree::Mounted(mount) => args.verb.run_on_mount(mount.mountpoint(), false)?,
        },
        None => {
            let files = args.verb.files();
            let first = Path::new(files.first().expect("every command names a file"));
            args.verb.run_on_mount(&mounted_files::mountpoint_of(first)?, true)?
        }
    };
    match (summary, is_json()) {
        (None, _) => Ok(()),
        (Some(summary), true) => print_json(&summary),
        (Some(SliceSummary { verb, parts, bytes }), false) => {
            let ranges = if parts == 1 { "range" } else { "ranges" };
            note(format_args!("{verb} {} {ranges}, {}, by pointers", grouped(parts), Size(bytes)));
            Ok(())
        }
    }
}

/// The pool that all files are in; `None` if all are local files.
fn pool_of(sides: &[PathArgument]) -> Result<Option<&PoolName>, Failure> {
    let pools = sides.iter().map(|side| match side {
        PathArgument::Pool(location) => Some(&location.pool),
        PathArgument::Local(_) => None,
    });
    let mut pools = pools.collect::<Vec<_>>();
    pools.dedup();
    match pools.as_slice() {
        [one] => Ok(*one),
        _ => Err(Failure::usage("the files are not all in one pool")
            .hint("name files in one pool, or files on one mounted pool")),
    }
}

fn path_of(file: &OsString) -> PathBuf {
    match PathArgument::parse(file) {
        PathArgument::Pool(location) => location.path,
        PathArgument::Local(path) => path,
    }
}

/// The path of a file to write.
fn path_to_write(file: &OsString) -> Result<PathBuf, Failure> {
    let path = path_of(file);
    if names_directory(&path) {
        let words = "a name with a slash at its end is that of a directory, and a file is needed";
        return Err(Failure::local_as(&path, &Errno::ISDIR.into(), words));
    }
    Ok(path)
}

impl RangeArgs {
    /// The range, clipped to the end of the file.
    fn resolve(&self, backend: &impl SliceBackend) -> Result<FileRange, Failure> {
        let path = path_of(&self.source);
        let size = backend.len(&path)?;
        let end = self.len.map_or(size, |len| self.from.0.saturating_add(len.0).min(size));
        Ok(FileRange { path, range: self.from.0.min(end)..end })
    }
}

impl SliceCommand {
    fn files(&self) -> Vec<&OsString> {
        match self {
            SliceCommand::Cat { part } => vec![&part.source],
            SliceCommand::Cut { part, target, .. } => std::iter::once(&part.source).chain(target).collect(),
            SliceCommand::Paste { part, target, .. } => vec![&part.source, target],
            SliceCommand::Concat { sources, target } => sources.iter().chain([target]).collect(),
            SliceCommand::Shuffle { source, target, .. } => vec![source, target],
        }
    }

    /// Whether it removes all bytes of a file, puts them nowhere, and was not confirmed. A range that the
    /// command line names is meant.
    fn empties_a_file(&self) -> bool {
        match self {
            SliceCommand::Cut { part, target: None, yes: false } => part.from.0 == 0 && part.len.is_none(),
            _ => false,
        }
    }

    fn only_reads(&self) -> bool {
        matches!(self, SliceCommand::Cat { .. })
    }

    /// Runs the command on a mount, where the paths are local paths or paths in the pool.
    fn run_on_mount(&self, mountpoint: &Path, is_local: bool) -> Result<Option<SliceSummary>, Failure> {
        let run = |view: &Path| {
            let view = MountedTree::open(view, false).map_err(|errno| Failure::local(view, &errno.into()))?;
            self.run(&MountedFiles { mountpoint: is_local.then_some(mountpoint), view })
        };
        // A listing of bytes needs no transaction, and works on a read-only mount.
        if self.only_reads() { run(mountpoint) } else { transact(mountpoint, run) }
    }

    fn run(&self, backend: &impl SliceBackend) -> Result<Option<SliceSummary>, Failure> {
        let done = |verb, parts: &[FileRange]| {
            let bytes = parts.iter().map(FileRange::len).sum();
            Ok(Some(SliceSummary { verb, parts: parts.len() as u64, bytes }))
        };
        match self {
            SliceCommand::Cat { part } => {
                backend.print(&part.resolve(backend)?)?;
                Ok(None)
            }
            SliceCommand::Cut { part, target, .. } => {
                let part = part.resolve(backend)?;
                if let Some(target) = target {
                    let target = path_to_write(target)?;
                    if target == part.path {
                        return Err(Failure::usage("a range can only be cut into another file")
                            .hint("name another TARGET, or none to remove the range"));
                    }
                    backend.assemble(std::slice::from_ref(&part), &target)?;
                }
                backend.remove(&part)?;
                done("cut", &[part])
            }
            SliceCommand::Paste { part, target, over, insert } => {
                let part = part.resolve(backend)?;
                let position = match (over, insert) {
                    (Some(at), _) => PastePosition::Over(at.0),
                    (None, Some(at)) => PastePosition::Between(at.0),
                    (None, None) => PastePosition::End,
                };
                backend.paste(&part, &path_to_write(target)?, position)?;
                done("pasted", &[part])
            }
            SliceCommand::Concat { sources, target } => {
                let whole = |source| {
                    let path = path_of(source);
                    Ok(FileRange { range: 0..backend.len(&path)?, path })
                };
                let parts = sources.iter().map(whole).collect::<Result<Vec<_>, Failure>>()?;
                backend.assemble(&parts, &path_to_write(target)?)?;
                done("joined", &parts)
            }
            SliceCommand::Shuffle { source, target, size, seed } => {
                let path = path_of(source);
                let ranges = shuffled(backend.len(&path)?, size.0, *seed)?;
                let parts: Vec<FileRange> =
                    ranges.into_iter().map(|range| FileRange { path: path.clone(), range }).collect();
                backend.assemble(&parts, &path_to_write(target)?)?;
                done("shuffled", &parts)
            }
        }
    }
}

/// The parts of a file of this length, each once, in an order drawn from the seed (Fisher and Yates).
fn shuffled(len: u64, size: u64, seed: u64) -> Result<Vec<Range<u64>>, Failure> {
    if size == 0 || len.div_ceil(size) > PARTS_MAX {
        return Err(Failure::usage(format_args!(
            "parts of {} are too small for a file of {}",
            Size(size),
            Size(len)
        ))
        .hint(format_args!("use a --size that makes at most {} parts", grouped(PARTS_MAX))));
    }
    let mut parts: Vec<Range<u64>> =
        (0..len.div_ceil(size)).map(|n| n * size..((n + 1) * size).min(len)).collect();
    let mut state = seed;
    for left in (2..=parts.len()).rev() {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut drawn = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let other = usize::try_from((drawn ^ (drawn >> 31)) % left as u64).expect("below the count");
        parts.swap(left - 1, other);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_has_each_part_once_and_a_seed_gives_one_order() {
        let parts = shuffled(1000, 30, 1).expect("few parts");
        let mut sorted = parts.clone();
        sorted.sort_by_key(|part| part.start);
        assert_ne!(parts, sorted);
        assert_eq!(sorted.first(), Some(&(0..30)));
        assert_eq!(sorted.last(), Some(&(990..1000)));
        assert!(sorted.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(shuffled(1000, 30, 1).expect("few parts"), parts);
        assert_ne!(shuffled(1000, 30, 2).expect("few parts"), parts);
        assert!(shuffled(0, 30, 1).expect("none").is_empty());
    }

    #[test]
    fn parts_of_nothing_and_too_many_parts_are_refused() {
        shuffled(1000, 0, 1).expect_err("a part has at least one byte");
        shuffled(1 << 40, 1, 1).expect_err("too many");
    }
}
