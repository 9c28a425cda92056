//! `warpfire find`: files by name, type, size and age.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::ValueEnum;
use warpfire::FileType;
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{Failure, JsonLines, Lines, Size, is_json, name_for_stdout, print};

use super::tally::Tally;
use super::walk::{FoundFile, Moment, walk};
use crate::location::Location;
use crate::output::{FileInfo, MomentArgument, age_or_moment};
use crate::tree::{self, Tree};

const EXAMPLES: &str = "\
Examples:
  warpfire find pool:/photos --name '*.jpg' --newer-than 7d
  warpfire find pool --type file --larger-than 1G
  warpfire find pool:/tmp --older-than 2026-01-01 --print0 |
      xargs -0 warpfire rm -r

A file is found if it meets all conditions. A moment is an age such as 90s, 15m, 12h, 7d or 2w, or a moment \
as of 'warpfire touch'. Symbolic links are not followed. A directory that cannot be read is reported, the \
search goes on, and the exit code is 1.";

// Arguments of `warpfire find`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to search; a pool alone is its root.
    #[arg(required = true, value_name = "POOL:/path")]
    locations: Vec<OsString>,

    /// The name, with * ? [..] and {a,b} as in a shell; several patterns: one of them.
    #[arg(long, value_name = "PATTERN")]
    name: Vec<OsString>,

    /// The type; several types: one of them.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Vec<Kind>,

    /// Files of more than this length.
    #[arg(long, value_name = "SIZE")]
    larger_than: Option<Size>,

    /// Files of less than this length.
    #[arg(long, value_name = "SIZE")]
    smaller_than: Option<Size>,

    /// Files with content that has changed since this moment.
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    newer_than: Option<MomentArgument>,

    /// Files with content that has not changed since this moment.
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    older_than: Option<MomentArgument>,

    /// Search down to this depth; 0 is the argument itself.
    #[arg(long, value_name = "DEPTH")]
    max_depth: Option<usize>,

    /// End each name with a NUL byte, for 'xargs -0'; print them after the search.
    #[arg(long, short = '0', conflicts_with = "json")]
    print0: bool,
}

/// The types of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Kind {
    #[value(alias = "f")]
    File,
    #[value(alias = "d")]
    Directory,
    #[value(alias = "l")]
    Symlink,
    #[value(alias = "p")]
    Fifo,
    #[value(alias = "s")]
    Socket,
    #[value(alias = "b")]
    Block,
    #[value(alias = "c")]
    Character,
}

fn moment(text: &str) -> Result<MomentArgument, String> {
    age_or_moment(text, SystemClock.now())
}

/// Prints the files that are found.
pub fn run(args: &Args) -> Result<(), Failure> {
    let locations = Location::parse_all(&args.locations, Location::parse_or_root)?;
    let depth_max = args.max_depth.unwrap_or(usize::MAX);
    let tally = Tally::default();
    let mut list = is_json().then(JsonLines::default);
    let mut names = Lines::default();
    let mut for_xargs = Vec::new();
    for group in locations.chunk_by(|a, b| a.pool == b.pool) {
        let fs = tree::open_for_reading(&group[0].pool)?;
        for location in group {
            walk(&fs, &tally, &location.path, depth_max, |moment, found| {
                if moment == Moment::Left || !args.admits(found) {
                    return Ok(());
                }
                if let Some(list) = &mut list {
                    return list.add(&info(&fs, &location.in_list(&found.path), found)?);
                }
                let name = location.named(&found.path);
                match args.print0 {
                    true => {
                        for_xargs.extend_from_slice(name.as_bytes());
                        for_xargs.push(0);
                        Ok(())
                    }
                    false => names.add(&[&name_for_stdout(&name), b"\n"]),
                }
            })?;
        }
    }
    // Printed when no pool is open any more: xargs starts its first command before it has read all names, and
    // that command may write to the pool.
    print(&for_xargs)?;
    names.finish()?;
    list.map_or(Ok(()), JsonLines::finish)?;
    tally.finish()
}

fn info(fs: &Tree, name: &Path, found: &FoundFile) -> Result<FileInfo, Failure> {
    let target = match found.metadata.file_type {
        FileType::Symlink => Some(fs.read_link(&found.path).map_err(|error| error.at(&found.path))?),
        _ => None,
    };
    Ok(FileInfo::new(name, &found.metadata, target.as_deref()))
}

impl Args {
    fn admits(&self, found: &FoundFile) -> bool {
        let metadata = &found.metadata;
        let name = found.path.file_name().unwrap_or(OsStr::new("/"));
        let matches = |pattern: &OsString| fast_glob::glob_match(pattern.as_bytes(), name.as_bytes());
        let modified = metadata.modified;
        (self.name.is_empty() || self.name.iter().any(matches))
            && (self.kind.is_empty() || self.kind.contains(&metadata.file_type.into()))
            && self.larger_than.is_none_or(|size| metadata.is_file() && metadata.len > size.0)
            && self.smaller_than.is_none_or(|size| metadata.is_file() && metadata.len < size.0)
            && self.newer_than.is_none_or(|since| modified >= since.timestamp())
            && self.older_than.is_none_or(|since| modified < since.timestamp())
    }
}

impl From<FileType> for Kind {
    fn from(file_type: FileType) -> Self {
        match file_type {
            FileType::File => Kind::File,
            FileType::Dir => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::BlockDevice => Kind::Block,
            FileType::CharDevice => Kind::Character,
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn patterns_match_names_of_any_bytes() {
        let rows: [(&[u8], &[u8], bool); 12] = [
            (b"*.jpg", b"1.jpg", true),
            (b"*.jpg", b"1.jpeg", false),
            (b"*.{jpg,jpeg}", b"1.jpeg", true),
            (b"?.jpg", b"1.jpg", true),
            (b"[0-9]*", b"7 seas", true),
            (b"[!0-9]*", b"7 seas", false),
            (b"*", b"bad\xff\xfe", true),
            (b"bad*", b"bad\xff\xfe", true),
            (b"bad\xff*", b"bad\xff\xfe", true),
            (b"*", b".hidden", true),
            (b"a\\*", b"a*", true),
            (b"a", b"A", false),
        ];
        for (pattern, name, expected) in rows {
            assert_eq!(fast_glob::glob_match(pattern, name), expected, "{pattern:?} {name:?}");
        }
    }
}
