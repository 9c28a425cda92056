//! What `stat` shows and what `chmod`, `chown`, `utimens` and `truncate` change.

use std::hash::{Hash, Hasher};

use warpfire_env::Timestamp;
use warpfire_format::fs::{Attrs, FileKind};

use crate::op::Digestible;
use crate::stamp::timestamp;

/// What `stat` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// Kind of file.
    pub kind: FileKind,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Names; of a directory 2 and one for each subdirectory.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device.
    pub rdev: u64,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Bytes that are not holes; `st_blocks` is this in units of 512, rounded up.
    pub allocated_bytes: u64,
    /// Last access, to the precision of relatime.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    At(Timestamp),
}

/// What to change; absent fields stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits; type bits are not looked at.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size_bytes: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// Mode and creation mask of something new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewMode {
    /// Permission bits asked for.
    pub mode: u32,
    /// Bits to leave out where no default ACL decides.
    pub umask: u32,
}

impl NewMode {
    /// Exactly these bits.
    #[must_use]
    pub fn exact(mode: u32) -> Self {
        NewMode { mode, umask: 0 }
    }
}

/// `st_mode` of an inode.
pub(crate) fn mode_of(attrs: &Attrs) -> u32 {
    (attrs.kind as u32) << 12 | u32::from(attrs.permissions)
}

pub(crate) fn attr_of(ino: u64, a: &Attrs) -> Attr {
    Attr {
        ino,
        kind: a.kind,
        mode: mode_of(a),
        links: a.links,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        size_bytes: a.size_bytes,
        allocated_bytes: a.allocated_bytes,
        atime: timestamp(a.atime),
        mtime: timestamp(a.mtime),
        ctime: timestamp(a.ctime),
        btime: timestamp(a.btime),
    }
}

impl Digestible for Attr {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.ino, self.mode, self.links, self.uid, self.gid, self.rdev).hash(state);
        (self.size_bytes, self.allocated_bytes).hash(state);
        (self.btime.seconds, self.btime.nanos).hash(state);
        // A directory's times move with every name that anyone makes in it; access times move with reading.
        if self.kind != FileKind::Directory {
            for time in [self.mtime, self.ctime] {
                (time.seconds, time.nanos).hash(state);
            }
        }
    }
}
