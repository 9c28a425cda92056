//! `warpfire ls`: list folders.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use warpfire::{FileType, Metadata, Warpfire};

use super::pool;
use crate::failure::Failure;
use crate::location::Location;
use crate::output::{Entry, mode_letters, moment, print, print_json};

const EXAMPLES: &str = "\
Examples:
  warpfire ls a.img:/
  warpfire ls -l a.img,b.img:/photos
  WARPFIRE_POOL=pool warpfire ls :/";

/// Arguments of `warpfire ls`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder or file to list.
    #[arg(value_name = "POOL:/path")]
    location: OsString,

    /// One line for each file: mode, links, owner, group, size, time of change (UTC), name.
    #[arg(long, short)]
    long: bool,
}

/// How many entries are sorted and shown together; a folder with more is shown in the order that it has.
const SORTED_MAX: usize = 100_000;

/// Lists the folder, or the file itself.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let location = Location::parse(&args.location)?;
    let fs = pool::open(&location.pool)?;
    let path = &location.path;
    let metadata = fs.symlink_metadata(path).map_err(|error| Failure::at(path, &error))?;
    if !metadata.is_dir() {
        return show(&fs, vec![(path.clone(), path.clone())], args.long, json);
    }
    let failed = |error| Failure::at(path, &error);
    let mut names: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut sorted = true;
    for entry in fs.read_dir(path).map_err(failed)? {
        let name = PathBuf::from(entry.map_err(failed)?.file_name());
        names.push((path.join(&name), name));
        if names.len() == SORTED_MAX && !json {
            sorted = false;
            show(&fs, std::mem::take(&mut names), args.long, false)?;
        }
    }
    if sorted {
        names.sort();
    }
    show(&fs, names, args.long, json)
}

/// Shows files: each its path and the name to show it by.
fn show(fs: &Warpfire, files: Vec<(PathBuf, PathBuf)>, long: bool, json: bool) -> Result<(), Failure> {
    let mut text = String::new();
    let mut entries = Vec::new();
    for (path, name) in files {
        if !long && !json {
            text += &format!("{}\n", name.display());
            continue;
        }
        let failed = |error| Failure::at(&path, &error);
        let metadata = fs.symlink_metadata(&path).map_err(failed)?;
        let target = match metadata.file_type() {
            FileType::Symlink => Some(fs.read_link(&path).map_err(failed)?),
            _ => None,
        };
        if json {
            entries.push(Entry::new(&name, &metadata, target.as_deref()));
        } else {
            text += &long_line(&name, &metadata, target.as_deref());
        }
    }
    if json { print_json(&entries) } else { print(text) }
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
