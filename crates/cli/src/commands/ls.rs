//! `warpfire ls`: list directories, in the order of the bytes of the names, or by time or size.

use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use warpfire::FileType;
use warpfire_terminal::{Failure, JsonLines, Lines, Size, is_json, name_for_stdout};

use super::tally::Tally;
use crate::location::Location;
use crate::output::{FileInfo, Owners, mode_letters, moment};
use crate::tree::{self, Attributes, Tree, TreeError};

const EXAMPLES: &str = "\
Examples:
  warpfire ls pool
  warpfire ls -l a.img,b.img:/photos
  warpfire ls -lhS pool:/photos      the largest first
  warpfire ls -l /mnt/photos         in a pool that is mounted on /mnt
  WARPFIRE_POOL=pool warpfire ls -R :/

On a terminal names are shown as a shell reads them, with escapes for bytes that drive the terminal. \
Elsewhere they are printed as they are. A name that fails is reported, the others are listed, and the exit \
code is 1.";

// Arguments of `warpfire ls`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub struct Args {
    /// The directories and files to list; a pool alone is its root.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,

    /// Print mode, links, owner, group, size, modification time and name.
    #[arg(long, short)]
    long: bool,

    /// As -l, with the numbers of owners and groups.
    #[arg(long, short)]
    numeric: bool,

    /// Print sizes such as 1.5 KiB instead of bytes.
    #[arg(long, short = 'h')]
    human_readable: bool,

    /// List directories below too.
    #[arg(long, short = 'R')]
    recursive: bool,

    /// List directories themselves, and not their entries.
    #[arg(long, short, conflicts_with = "recursive")]
    directory: bool,

    /// The last changed first.
    #[arg(long, short, conflicts_with = "size")]
    time: bool,

    /// The largest first.
    #[arg(long, short = 'S')]
    size: bool,

    /// Reverse the order.
    #[arg(long, short)]
    reverse: bool,

    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    fn is_long(&self) -> bool {
        self.long || self.numeric
    }
}

/// Lists each directory, or the file itself.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse_or_root)?;
    let mut listing = Listing {
        args,
        tally: Tally::default(),
        has_headings: locations.len() > 1 || args.recursive,
        has_lines: false,
        owners: Owners::default(),
        lines: Lines::default(),
        list: is_json().then(JsonLines::default),
    };
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open_for_reading(&group[0].pool)?;
        listing.group(&fs, group)?;
    }
    listing.finish()
}

/// Entries that are listed and not yet printed.
struct Listing<'a> {
    args: &'a Args,
    tally: Tally,
    /// Whether the name of each directory stands above its entries.
    has_headings: bool,
    has_lines: bool,
    owners: Owners,
    lines: Lines,
    list: Option<JsonLines>,
}

/// One entry to list.
struct Entry {
    path: PathBuf,
    /// The name on the command line; `None` for an entry of a directory.
    named: Option<OsString>,
    /// `None` if nothing but the name is needed.
    metadata: Option<Attributes>,
}

impl Listing<'_> {
    /// Lists names of one pool: files first, then directories with their entries.
    fn group(&mut self, fs: &Tree, locations: &[Location]) -> Result<(), Failure> {
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for location in locations {
            let path = &location.path;
            let metadata = fs.symlink_metadata(path).map_err(|error| error.at(path));
            let Some(metadata) = self.tally.take(metadata)? else { continue };
            if metadata.is_dir() && !self.args.directory {
                directories.push(location);
            } else {
                let named = Some(location.name());
                files.push(Entry { path: path.clone(), named, metadata: Some(metadata) });
            }
        }
        self.sort(&mut files);
        for mut file in files {
            let name = file.named.take().unwrap_or_default();
            self.add(fs, file, &name)?;
        }
        for location in directories {
            let mut waiting = vec![location.path.clone()];
            while let Some(path) = waiting.pop() {
                let first = waiting.len();
                let listed = self.directory(fs, location, &path, &mut waiting);
                self.tally.take(listed)?;
                waiting[first..].reverse();
            }
        }
        Ok(())
    }

    /// Lists one directory. With -R the directories in it join those that wait.
    fn directory(
        &mut self,
        fs: &Tree,
        location: &Location,
        path: &Path,
        waiting: &mut Vec<PathBuf>,
    ) -> Result<(), Failure> {
        let failed = |error: TreeError| error.at(path);
        let mut entries = fs.read_dir(path).map_err(failed)?;
        if self.has_headings && self.list.is_none() {
            let gap: &[u8] = if self.has_lines { b"\n" } else { b"" };
            self.lines.add(&[gap, &name_for_stdout(&location.named(path)), b":\n"])?;
            self.has_lines = true;
        }
        let is_sorted = self.args.time || self.args.size;
        let needs_metadata = is_sorted || self.args.is_long() || self.list.is_some();
        let mut sorted = Vec::new();
        while let Some(entry) = fs.next_entry(&mut entries) {
            let Some(entry) = self.tally.take(entry.map_err(failed))? else { continue };
            let path = path.join(entry.file_name());
            if self.args.recursive && entry.file_type() == FileType::Dir {
                waiting.push(path.clone());
            }
            let metadata = match needs_metadata {
                true => self.tally.take(fs.entry_metadata(&entry).map_err(|error| error.at(&path)))?,
                false => None,
            };
            if needs_metadata && metadata.is_none() {
                continue;
            }
            let entry = Entry { path, named: None, metadata };
            if is_sorted || self.args.reverse {
                sorted.push(entry);
            } else {
                self.add_below(fs, location, entry)?;
            }
        }
        self.sort(&mut sorted);
        for entry in sorted {
            self.add_below(fs, location, entry)?;
        }
        Ok(())
    }

    fn sort(&self, entries: &mut [Entry]) {
        let key = |entry: &Entry| entry.metadata.as_ref().map(|found| (found.modified, found.len));
        if self.args.time {
            entries.sort_by_key(|entry| Reverse(key(entry).map(|(modified, _)| modified)));
        } else if self.args.size {
            entries.sort_by_key(|entry| Reverse(key(entry).map(|(_, len)| len)));
        }
        if self.args.reverse {
            entries.reverse();
        }
    }

    /// Adds an entry of a directory. A list in JSON has no headings, so it may need the whole path.
    fn add_below(&mut self, fs: &Tree, location: &Location, entry: Entry) -> Result<(), Failure> {
        let whole = self.has_headings && self.list.is_some();
        let name = match whole {
            true => location.in_list(&entry.path).into(),
            false => entry.path.file_name().unwrap_or_default().to_owned(),
        };
        self.add(fs, entry, &name)
    }

    fn add(&mut self, fs: &Tree, entry: Entry, name: &OsStr) -> Result<(), Failure> {
        self.has_lines = true;
        let metadata = entry.metadata.filter(|_| self.args.is_long() || self.list.is_some());
        if let Some(metadata) = metadata {
            let target = match metadata.file_type {
                FileType::Symlink => fs.read_link(&entry.path).map(Some),
                _ => Ok(None),
            };
            let target = target.map_err(|error: TreeError| error.at(&entry.path));
            let Some(target) = self.tally.take(target)? else { return Ok(()) };
            if let Some(list) = &mut self.list {
                return list.add(&FileInfo::new(Path::new(name), &metadata, target.as_deref()));
            }
            let (details, shown) = (self.details(&metadata), name_for_stdout(name));
            return match &target {
                None => self.lines.add(&[&details, &shown, b"\n"]),
                Some(to) => {
                    self.lines.add(&[&details, &shown, b" -> ", &name_for_stdout(to.as_os_str()), b"\n"])
                }
            };
        }
        self.lines.add(&[&name_for_stdout(name), b"\n"])
    }

    /// The columns before a name.
    fn details(&self, metadata: &Attributes) -> Vec<u8> {
        let size = match metadata.file_type {
            FileType::BlockDevice | FileType::CharDevice => {
                let (major, minor) = metadata.device_numbers;
                format!("{major}, {minor}")
            }
            _ if self.args.human_readable => Size(metadata.len).to_string(),
            _ => metadata.len.to_string(),
        };
        let (links, modified) = (metadata.nlink, moment(metadata.modified));
        let (user, group) = match self.args.numeric {
            true => (metadata.uid.to_string(), metadata.gid.to_string()),
            false => (self.owners.user(metadata.uid), self.owners.group(metadata.gid)),
        };
        format!("{} {links:>3} {user:<8} {group:<8} {size:>12} {modified} ", mode_letters(metadata))
            .into_bytes()
    }

    fn finish(self) -> Result<(), Failure> {
        self.lines.finish()?;
        self.list.map_or(Ok(()), JsonLines::finish)?;
        self.tally.finish()
    }
}
