//! `warpfire stat`: the metadata of files.

use std::ffi::OsString;

use warpfire::FileType;
use warpfire_terminal::{Failure, Size, print, print_json};

use super::pool;
use crate::location::Location;
use crate::output::FileInfo;

const EXAMPLES: &str = "\
Examples:
  warpfire stat a.img:/photos/1.jpg
  warpfire stat --json pool:/photos/1.jpg";

/// Arguments of `warpfire stat`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files; symbolic links are not followed.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,
}

/// Shows each file.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let locations = args.locations.iter().map(|location| Location::parse(location));
    let locations = locations.collect::<Result<Vec<_>, _>>()?;
    let mut entries = Vec::new();
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = pool::open(&group[0].pool)?;
        for Location { path, .. } in group {
            let failed = |error| Failure::at(path, &error);
            let metadata = fs.symlink_metadata(path).map_err(failed)?;
            let target = match metadata.file_type() {
                FileType::Symlink => Some(fs.read_link(path).map_err(failed)?),
                _ => None,
            };
            entries.push(FileInfo::new(path, &metadata, target.as_deref()));
        }
    }
    if json { print_json(&entries) } else { print(entries.iter().map(in_words).collect::<String>()) }
}

fn in_words(entry: &FileInfo) -> String {
    let mut text = format!("{}: {}", entry.name, entry.kind);
    if let Some(target) = &entry.target {
        text += &format!(" to {target}");
    }
    if let Some((major, minor)) = entry.device {
        text += &format!(" {major}, {minor}");
    }
    text += &format!(
        "\n  size      {} bytes, {} allocated\n  inode     {}, {} {}\n  mode      {}, owner {}, group {}\n",
        entry.size_bytes,
        Size(entry.allocated_bytes),
        entry.inode,
        entry.links,
        if entry.links == 1 { "link" } else { "links" },
        entry.mode,
        entry.uid,
        entry.gid,
    );
    for (label, moment) in [
        ("accessed", &entry.accessed),
        ("modified", &entry.modified),
        ("changed", &entry.changed),
        ("created", &entry.created),
    ] {
        text += &format!("  {label:<9} {moment}\n");
    }
    text
}
