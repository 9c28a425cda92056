//! What is done to a filesystem: operations as data, so that they can be drawn, listed, replayed and shown.

mod alphabet;
mod draw;

use std::fmt;

use warpfire_fs::RenameMode;
use warpfire_simdev::mix;

use crate::model::{Name, Path, show_path};

pub use alphabet::{alphabet, namespace};
pub use draw::{Draw, Menu};

/// Bytes that a number names: `len` of them, never zero, the same each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// How many.
    pub len: usize,
    /// Which.
    pub seed: u64,
}

impl Fill {
    /// The bytes.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len + 8);
        let mut word = self.seed;
        while bytes.len() < self.len {
            word = mix(word.wrapping_add(1));
            // No byte is zero, so that a lost page is never mistaken for what was written.
            bytes.extend_from_slice(&(word | 0x0101_0101_0101_0101).to_le_bytes());
        }
        bytes.truncate(self.len);
        bytes
    }
}

/// A range of a file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// One operation on a filesystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Makes an empty file.
    Create(Path),
    /// Makes a file with all of its bytes.
    Put(Path, Fill),
    /// Makes a directory.
    Mkdir(Path),
    /// Makes a symbolic link that leads to a target.
    Symlink(Path, Name),
    /// Makes a pipe.
    Mkfifo(Path),
    /// Writes at an offset.
    Write(Path, u64, Fill),
    /// Writes at the end.
    Append(Path, Fill),
    /// Sets the size.
    Truncate(Path, u64),
    /// Reserves a range and lets the file grow to hold it.
    Allocate(Path, Span),
    /// Makes a range a hole.
    Punch(Path, Span),
    /// Inserts a hole, in whole pages.
    Insert(Path, Span),
    /// Takes a range out, in whole pages.
    Collapse(Path, Span),
    /// Copies a range of the first file to an offset of the second.
    CopyRange(Path, Span, Path, u64),
    /// Gives a file one more name.
    Link(Path, Path),
    /// Takes a name away.
    Unlink(Path),
    /// Removes an empty directory.
    Rmdir(Path),
    /// Renames.
    Rename(Path, Path, RenameMode),
    /// Sets the permission bits.
    SetMode(Path, u32),
    /// Sets owner and group.
    SetOwner(Path, u32, u32),
    /// Sets the time of last change, in seconds since 1970.
    SetTime(Path, i64),
    /// Sets an extended attribute.
    SetXattr(Path, Name, Fill),
    /// Removes an extended attribute.
    RemoveXattr(Path, Name),
    /// Makes a file durable.
    Fsync(Path),
    /// Makes everything durable.
    Sync,
    /// Does this many pieces of background work.
    Background(u32),
    /// Closes and opens again.
    Reopen,
}

impl Op {
    /// Whether everything that came before is durable once this has returned without an error.
    #[must_use]
    pub fn makes_durable(&self) -> bool {
        matches!(self, Op::Fsync(_) | Op::Sync | Op::Reopen)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = show_path;
        match self {
            Op::Create(path) => write!(f, "create {}", p(path)),
            Op::Put(path, fill) => write!(f, "put {} ({} bytes)", p(path), fill.len),
            Op::Mkdir(path) => write!(f, "mkdir {}", p(path)),
            Op::Symlink(path, target) => {
                write!(f, "symlink {} -> {} bytes", p(path), target.len())
            }
            Op::Mkfifo(path) => write!(f, "mkfifo {}", p(path)),
            Op::Write(path, offset, fill) => write!(f, "write {} {} at {offset}", p(path), fill.len),
            Op::Append(path, fill) => write!(f, "append {} {}", p(path), fill.len),
            Op::Truncate(path, size) => write!(f, "truncate {} to {size}", p(path)),
            Op::Allocate(path, s) => write!(f, "allocate {} {} at {}", p(path), s.len, s.offset),
            Op::Punch(path, s) => write!(f, "punch {} {} at {}", p(path), s.len, s.offset),
            Op::Insert(path, s) => write!(f, "insert {} {} at {}", p(path), s.len, s.offset),
            Op::Collapse(path, s) => write!(f, "collapse {} {} at {}", p(path), s.len, s.offset),
            Op::CopyRange(from, s, to, at) => {
                write!(f, "copy {} {} at {} to {} at {at}", p(from), s.len, s.offset, p(to))
            }
            Op::Link(from, to) => write!(f, "link {} {}", p(from), p(to)),
            Op::Unlink(path) => write!(f, "unlink {}", p(path)),
            Op::Rmdir(path) => write!(f, "rmdir {}", p(path)),
            Op::Rename(from, to, mode) => write!(f, "rename {} {} {mode:?}", p(from), p(to)),
            Op::SetMode(path, mode) => write!(f, "chmod {mode:o} {}", p(path)),
            Op::SetOwner(path, uid, gid) => write!(f, "chown {uid}:{gid} {}", p(path)),
            Op::SetTime(path, seconds) => write!(f, "touch {} at {seconds}", p(path)),
            Op::SetXattr(path, name, fill) => {
                write!(f, "setxattr {} {} {}", p(path), String::from_utf8_lossy(name), fill.len)
            }
            Op::RemoveXattr(path, name) => {
                write!(f, "removexattr {} {}", p(path), String::from_utf8_lossy(name))
            }
            Op::Fsync(path) => write!(f, "fsync {}", p(path)),
            Op::Sync => f.write_str("sync"),
            Op::Background(steps) => write!(f, "background x{steps}"),
            Op::Reopen => f.write_str("reopen"),
        }
    }
}
