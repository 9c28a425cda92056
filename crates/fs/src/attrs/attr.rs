//! The types of attributes: the answer of `stat`, and the arguments of `chmod`, `chown`, `utimens` and
//! `truncate`.

use std::hash::{Hash, Hasher};

use warpfire_env::Timestamp;
use warpfire_format::fs::{Attrs, FileKind};

use crate::op::Digestible;
use crate::stamp::timestamp;

/// The attributes of a file, as `stat` shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// Kind of file.
    pub kind: FileKind,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Number of names; for a directory 2 and one for each subdirectory.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device.
    pub rdev: u64,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Bytes that are not holes. `st_blocks` is this number in units of 512, rounded up.
    pub allocated_bytes: u64,
    /// Last access, to the precision of relatime.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Creation.
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

/// A change of attributes. An attribute that is `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits; type bits are ignored.
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

/// Mode and creation mask of a new file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewMode {
    /// Permission bits that the caller asks for.
    pub mode: u32,
    /// Bits that the new file does not get, unless the directory has a default list.
    pub umask: u32,
}

impl NewMode {
    /// These bits without a mask.
    #[must_use]
    pub fn exact(mode: u32) -> Self {
        NewMode { mode, umask: 0 }
    }
}

/// The mode of an inode as `st_mode`: type, special and permission bits.
pub(crate) fn mode_of(attrs: &Attrs) -> u32 {
    (attrs.kind as u32) << 12 | u32::from(attrs.permissions)
}

/// The attributes of a record, for callers.
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
        (self.ino, self.mode, self.uid, self.gid, self.rdev).hash(state);
        (self.size_bytes, self.allocated_bytes).hash(state);
        (self.btime.seconds, self.btime.nanos).hash(state);
        // A directory's times change with every name in it, its links with every subdirectory, and access
        // times with every read. A digest with them would make conflicts of transactions that do not depend
        // on them.
        if self.kind != FileKind::Directory {
            self.links.hash(state);
            for time in [self.mtime, self.ctime] {
                (time.seconds, time.nanos).hash(state);
            }
        }
    }
}
