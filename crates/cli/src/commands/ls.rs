//! `warpfire ls`: list directories, in the order of the bytes of the names.

use std::ffi::OsString;
use std::path::Path;

use warpfire::{FileType, Metadata, Warpfire};
use warpfire_terminal::{Failure, print, print_json};

use super::pool;
use crate::location::Location;
use crate::output::{FileInfo, mode_letters, moment};

const EXAMPLES: &str = "\
Examples:
  warpfire ls a.img:/
  warpfire ls -l a.img,b.img:/photos
  WARPFIRE_POOL=pool warpfire ls :/";

/// Arguments of `warpfire ls`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory or file to list.
    #[arg(value_name = "POOL:/path")]
    location: OsString,

    /// Print mode, links, owner, group, size, modification time (UTC) and name.
    #[arg(long, short)]
    long: bool,
}

/// Lines that are collected before they are printed.
const LINES_AT_ONCE: usize = 1000;

/// Lists the directory, or the file itself.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let Location { pool, path } = Location::parse(&args.location)?;
    let fs = pool::open(&pool)?;
    let failed = |error| Failure::at(&path, &error);
    let mut list =
        DirectoryListing { fs: &fs, long: args.long, json, lines: Vec::new(), entries: Vec::new() };
    let metadata = fs.symlink_metadata(&path).map_err(failed)?;
    if !metadata.is_dir() {
        list.add(&path, &path, || Ok(metadata))?;
        return list.finish();
    }
    for entry in fs.read_dir(&path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = Path::new(entry.file_name());
        list.add(&path.join(name), name, || entry.metadata())?;
    }
    list.finish()
}

/// Entries that are listed and not yet printed. JSON is one document, so all of it is printed at the end.
struct DirectoryListing<'a> {
    fs: &'a Warpfire,
    long: bool,
    json: bool,
    lines: Vec<String>,
    entries: Vec<FileInfo>,
}

impl DirectoryListing<'_> {
    fn add(
        &mut self,
        path: &Path,
        name: &Path,
        metadata: impl FnOnce() -> warpfire::Result<Metadata>,
    ) -> Result<(), Failure> {
        if !self.long && !self.json {
            return self.line(format!("{}\n", name.display()));
        }
        let failed = |error| Failure::at(path, &error);
        let metadata = metadata().map_err(failed)?;
        let target = match metadata.file_type() {
            FileType::Symlink => Some(self.fs.read_link(path).map_err(failed)?),
            _ => None,
        };
        if self.json {
            self.entries.push(FileInfo::new(name, &metadata, target.as_deref()));
            return Ok(());
        }
        self.line(long_line(name, &metadata, target.as_deref()))
    }

    fn line(&mut self, line: String) -> Result<(), Failure> {
        self.lines.push(line);
        if self.lines.len() < LINES_AT_ONCE {
            return Ok(());
        }
        print(std::mem::take(&mut self.lines).concat())
    }

    fn finish(self) -> Result<(), Failure> {
        if self.json { print_json(&self.entries) } else { print(self.lines.concat()) }
    }
}

fn long_line(name: &Path, metadata: &Metadata, target: Option<&Path>) -> String {
    let size = match metadata.file_type() {
        FileType::BlockDevice | FileType::CharDevice => {
            let (major, minor) = metadata.device_numbers();
            format!("{major}, {minor}")
        }
        _ => metadata.len().to_string(),
    };
    let arrow = target.map(|target| format!(" -> {}", target.display())).unwrap_or_default();
    format!(
        "{} {:>3} {:>5} {:>5} {size:>12} {} {}{arrow}\n",
        mode_letters(metadata),
        metadata.nlink(),
        metadata.uid(),
        metadata.gid(),
        moment(metadata.modified()),
        name.display(),
    )
}
