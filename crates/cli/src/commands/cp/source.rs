//! What a copy reads: the attributes of a file, and its content piece by piece.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use warpfire::{FileType, Metadata, Timestamp};
use warpfire_terminal::Failure;

/// The attributes of a file that a copy keeps.
#[derive(Clone, Debug)]
pub struct Attributes {
    pub kind: FileType,
    /// Permission bits with the set-id and sticky bits.
    pub mode: u32,
    /// User and group, if the source has them.
    pub owner: Option<(u32, u32)>,
    pub accessed: Option<Timestamp>,
    pub modified: Option<Timestamp>,
    /// Major and minor number of a device node.
    pub device: (u32, u32),
    /// Length in bytes of a regular file, if it is known.
    pub len: Option<u64>,
    /// The file itself, if it may have further names.
    pub identity: Option<FileIdentity>,
}

/// A file of a source that may have further names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum FileIdentity {
    /// Device or pool, and inode number.
    Number(u64, u64),
    /// The path of its first copy from the directory that the copy began in.
    Path(PathBuf),
}

/// A file that a copy makes: its name in the current directory of the target, and its attributes.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    pub name: &'a OsStr,
    pub attributes: &'a Attributes,
}

/// A run of data: its offset in the file, and its place in the buffer that the caller gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub at: u64,
    pub bytes: Range<usize>,
}

impl Piece {
    /// The first `len` bytes of the buffer.
    pub fn at(at: u64, len: usize) -> Piece {
        Piece { at, bytes: 0..len }
    }
}

/// The content of one regular file, read once from its beginning to its end.
pub trait Content {
    /// Reads the next data into a buffer. Between two pieces is a hole. `None` at the end.
    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, Failure>;

    /// The length in bytes; final once `next` has returned `None`.
    fn len(&self) -> u64;

    /// Whether `next` can read without a long wait. May wait a short while itself.
    fn is_ready(&mut self) -> bool {
        true
    }

    /// The path of the file in the pool that the target lies in: then its slices are shared, and no data is
    /// read.
    fn shared_path(&self) -> Option<&Path> {
        None
    }

    /// The open file, if it is a local one. Its filesystem may copy it without its data.
    fn local_file(&self) -> Option<&File> {
        None
    }

    /// The ranges of data, in order, before they are read. They are never empty and never touch.
    fn map(&mut self) -> Result<Vec<Range<u64>>, Failure>;

    /// The ranges of bytes that could not be read and are left out.
    fn missing(&mut self) -> Vec<Range<u64>> {
        Vec::new()
    }
}

/// The map of a file by a search for its next range of data, which is empty at the end.
pub fn data_map(
    len: u64,
    mut next: impl FnMut(u64) -> Result<Range<u64>, Failure>,
) -> Result<Vec<Range<u64>>, Failure> {
    let mut map: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < len {
        let found = next(at)?;
        at = found.end;
        match map.last_mut() {
            Some(last) if last.end == found.start => last.end = found.end,
            _ if found.is_empty() => {}
            _ => map.push(found),
        }
    }
    Ok(map)
}

impl Attributes {
    /// The attributes of a file whose source has no others.
    pub fn made_up(kind: FileType, mode: u32) -> Attributes {
        Attributes {
            kind,
            mode,
            owner: None,
            accessed: None,
            modified: None,
            device: (0, 0),
            len: None,
            identity: None,
        }
    }

    /// The attributes of a file of a pool. `pool` is a number for each pool of the copy.
    pub fn of_pool(pool: u64, metadata: &Metadata) -> Attributes {
        let is_linked = !metadata.is_dir() && metadata.nlink() > 1;
        Attributes {
            kind: metadata.file_type(),
            mode: metadata.mode(),
            owner: Some((metadata.uid(), metadata.gid())),
            accessed: Some(metadata.accessed()),
            modified: Some(metadata.modified()),
            device: metadata.device_numbers(),
            len: metadata.is_file().then(|| metadata.len()),
            identity: is_linked.then(|| FileIdentity::Number(pool, metadata.ino())),
        }
    }
}

/// The directory that a copy is in, for patterns: the names below the top of the copy.
#[derive(Debug, Default)]
pub struct Trail(Vec<OsString>);

impl Trail {
    /// Enters a directory. The first one is the top, whose name does not count.
    pub fn enter(&mut self, name: &OsStr) {
        self.0.push(if self.0.is_empty() { OsString::new() } else { name.to_owned() });
    }

    pub fn leave(&mut self) {
        self.0.pop();
    }

    /// The path of a name in the current directory.
    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        self.0.iter().map(OsString::as_os_str).chain([name]).collect()
    }
}
