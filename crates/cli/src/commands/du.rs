//! `warpfire du`: the space that directories and files take.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde::Serialize;
use warpfire_terminal::{Failure, JsonLines, Lines, Size, is_json, name_for_stdout, path_bytes, path_text};

use super::tally::Tally;
use super::walk::{FoundFile, Moment, walk};
use crate::location::Location;
use crate::tree::{self, Attributes};

const EXAMPLES: &str = "\
Examples:
  warpfire du -sh pool:/photos
  warpfire du -a --apparent-size pool:/photos/2026
  warpfire du -h --max-depth 1 pool

The space of a file are the bytes of its data, without holes. A file with several names counts once. Bytes \
that files share by pointers count for each of them; parity does not count. A directory that cannot be \
read is reported, the rest is counted, and the exit code is 1.";

// Arguments of `warpfire du`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Args {
    /// The files and directories; a pool alone is its root.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,

    /// Print a total for each argument only.
    #[arg(long, short, conflicts_with_all = ["all", "max_depth"])]
    summarize: bool,

    /// Print files too, and not directories alone.
    #[arg(long, short)]
    all: bool,

    /// Print sizes such as 1.5 KiB instead of bytes.
    #[arg(long, short = 'h')]
    human_readable: bool,

    /// Count the length of files, holes included.
    #[arg(long)]
    apparent_size: bool,

    /// Print directories down to this depth below an argument.
    #[arg(long, short = 'd', value_name = "DEPTH")]
    max_depth: Option<usize>,

    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// The space of one file or directory, as JSON.
#[derive(Serialize)]
struct UsageEntry {
    /// The path.
    path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    /// The space that it takes with everything in it.
    size_bytes: u64,
}

/// Prints the space of each argument.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse_or_root)?;
    let tally = Tally::default();
    let mut list = is_json().then(JsonLines::default);
    let mut lines = Lines::default();
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open_for_reading(&group[0].pool)?;
        let mut usage = Usage { args, linked: HashSet::new(), sums: Vec::new() };
        for location in group {
            walk(&fs, &tally, &location.path, usize::MAX, |moment, found| {
                let Some(bytes) = usage.visit(moment, found) else { return Ok(()) };
                args.print(
                    list.as_mut(),
                    &mut lines,
                    &location.named(&found.path),
                    &location.in_list(&found.path),
                    bytes,
                )
            })?;
        }
    }
    lines.finish()?;
    list.map_or(Ok(()), JsonLines::finish)?;
    tally.finish()
}

/// Sums of the directories that a walk is in.
struct Usage<'a> {
    args: &'a Args,
    /// Inode numbers of files with several names that have been counted.
    linked: HashSet<u64>,
    sums: Vec<u64>,
}

impl Usage<'_> {
    /// Counts a file. Returns the bytes to print, if its line is due.
    fn visit(&mut self, moment: Moment, found: &FoundFile) -> Option<u64> {
        let is_dir = found.metadata.is_dir();
        let bytes = match moment {
            Moment::Reached => self.bytes(&found.metadata),
            Moment::Left => self.sums.pop().expect("a directory that is left was reached"),
        };
        if is_dir && moment == Moment::Reached {
            self.sums.push(bytes);
            return None;
        }
        if let Some(above) = self.sums.last_mut() {
            *above += bytes;
        }
        let depth_max = if self.args.summarize { 0 } else { self.args.max_depth.unwrap_or(usize::MAX) };
        let is_due = found.depth == 0 || (is_dir || self.args.all) && found.depth <= depth_max;
        is_due.then_some(bytes)
    }

    fn bytes(&mut self, metadata: &Attributes) -> u64 {
        if !metadata.is_dir() && metadata.nlink > 1 && !self.linked.insert(metadata.ino) {
            return 0;
        }
        match self.args.apparent_size {
            true if metadata.is_dir() => 0,
            true => metadata.len,
            false => metadata.allocated_bytes,
        }
    }
}

impl Args {
    fn print(
        &self,
        list: Option<&mut JsonLines>,
        lines: &mut Lines,
        name: &OsStr,
        path: &Path,
        bytes: u64,
    ) -> Result<(), Failure> {
        if let Some(list) = list {
            let (path, path_bytes) = (path_text(path), path_bytes(path));
            return list.add(&UsageEntry { path, path_bytes, size_bytes: bytes });
        }
        let size = if self.human_readable { Size(bytes).to_string() } else { bytes.to_string() };
        lines.add(&[format!("{size:<11} ").as_bytes(), &name_for_stdout(name), b"\n"])
    }
}
