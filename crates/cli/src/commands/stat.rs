//! `warpfire stat`: the metadata of files.

use std::ffi::OsString;
use std::path::Path;

use warpfire::FileType;
use warpfire_terminal::{Failure, Size, is_json, print, print_json, quoted};

use super::tally::Tally;
use crate::location::Location;
use crate::output::{FileInfo, Owners, exact_moment};
use crate::tree::{self, Tree, TreeError};

const EXAMPLES: &str = "\
Examples:
  warpfire stat a.img:/photos/1.jpg
  warpfire stat --json pool:/photos/1.jpg

A file that fails is reported, the others are shown, and the exit code is 1.";

// Arguments of `warpfire stat`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The files; a pool alone is its root. Symbolic links are not followed.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,
}

/// Shows each file.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse_or_root)?;
    let tally = Tally::default();
    let mut entries = Vec::new();
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open_for_reading(&group[0].pool)?;
        for location in group {
            entries.extend(tally.take(info(&fs, location))?);
        }
    }
    if is_json() {
        entries.iter().try_for_each(print_json)?;
    } else {
        let owners = Owners::default();
        print(entries.iter().map(|entry| in_words(entry, &owners)).collect::<String>())?
    }
    tally.finish()
}

fn info(fs: &Tree, location: &Location) -> Result<FileInfo, Failure> {
    let path = &location.path;
    let failed = |error: TreeError| error.at(path);
    let metadata = fs.symlink_metadata(path).map_err(failed)?;
    let target = match metadata.file_type {
        FileType::Symlink => Some(fs.read_link(path).map_err(failed)?),
        _ => None,
    };
    Ok(FileInfo::new(Path::new(&location.name()), &metadata, target.as_deref()))
}

/// A name with its number.
fn named(name: String, id: u32) -> String {
    if name == id.to_string() { name } else { format!("{name} ({id})") }
}

fn in_words(entry: &FileInfo, owners: &Owners) -> String {
    let mut text = format!("{}: {}", quoted(&entry.raw_name), entry.kind);
    if let Some(target) = &entry.raw_target {
        text += &format!(" to {}", quoted(target));
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
        named(owners.user(entry.uid), entry.uid),
        named(owners.group(entry.gid), entry.gid),
    );
    let moments = [
        ("accessed", Some(entry.accessed)),
        ("modified", Some(entry.modified)),
        ("changed", Some(entry.changed)),
        ("created", entry.created),
    ];
    for (label, moment) in moments.into_iter().filter_map(|(label, moment)| Some((label, moment?))) {
        text += &format!("  {label:<9} {}\n", exact_moment(moment.0));
    }
    text
}
