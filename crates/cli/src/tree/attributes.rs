//! The attributes of a file: those that a tree shows, and those that a command sets.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::time::UNIX_EPOCH;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use warpfire::{FileType, Metadata, SetMetadata, Timestamp};

/// Unit of `st_blocks`, in bytes, on every filesystem.
const STAT_BLOCK_BYTES: u64 = 512;

/// The attributes of a file at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    pub file_type: FileType,
    pub len: u64,
    pub allocated_bytes: u64,
    /// Permission bits with the set-id and sticky bits, without the type.
    pub mode: u32,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub ino: u64,
    /// The major and minor number of a device node; zeros for other files.
    pub device_numbers: (u32, u32),
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    /// `None` on a mount: Linux does not ask FUSE servers for it.
    pub created: Option<Timestamp>,
}

impl Attributes {
    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Dir
    }

    pub fn is_file(&self) -> bool {
        self.file_type == FileType::File
    }

    pub fn is_symlink(&self) -> bool {
        self.file_type == FileType::Symlink
    }
}

impl From<Metadata> for Attributes {
    fn from(found: Metadata) -> Self {
        Attributes {
            file_type: found.file_type(),
            len: found.len(),
            allocated_bytes: found.allocated_bytes(),
            mode: found.mode(),
            nlink: found.nlink(),
            uid: found.uid(),
            gid: found.gid(),
            ino: found.ino(),
            device_numbers: found.device_numbers(),
            accessed: found.accessed(),
            modified: found.modified(),
            changed: found.changed(),
            created: Some(found.created()),
        }
    }
}

impl From<std::fs::Metadata> for Attributes {
    fn from(found: std::fs::Metadata) -> Self {
        let nanos = |nanos: i64| u32::try_from(nanos).expect("the system keeps less than a second");
        let at = |seconds, part| Timestamp { seconds, nanos: nanos(part) };
        let created = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let created = created.and_then(|since| {
            Some(Timestamp { seconds: i64::try_from(since.as_secs()).ok()?, nanos: since.subsec_nanos() })
        });
        Attributes {
            file_type: file_type_of(found.file_type()),
            len: found.len(),
            allocated_bytes: found.blocks() * STAT_BLOCK_BYTES,
            mode: found.permissions().mode() & 0o7777,
            nlink: found.nlink(),
            uid: found.uid(),
            gid: found.gid(),
            ino: found.ino(),
            device_numbers: (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev())),
            accessed: at(found.atime(), found.atime_nsec()),
            modified: at(found.mtime(), found.mtime_nsec()),
            changed: at(found.ctime(), found.ctime_nsec()),
            created,
        }
    }
}

fn file_type_of(found: std::fs::FileType) -> FileType {
    match found {
        kind if kind.is_dir() => FileType::Dir,
        kind if kind.is_symlink() => FileType::Symlink,
        kind if kind.is_fifo() => FileType::Fifo,
        kind if kind.is_socket() => FileType::Socket,
        kind if kind.is_block_device() => FileType::BlockDevice,
        kind if kind.is_char_device() => FileType::CharDevice,
        _ => FileType::File,
    }
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewTime {
    /// This moment.
    At(Timestamp),
    /// The moment of the call.
    Now,
}

/// Attributes to set. Those that are `None` keep their values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NewAttributes {
    pub mode: Option<u32>,
    pub owner: Option<u32>,
    pub group: Option<u32>,
    pub accessed: Option<NewTime>,
    pub modified: Option<NewTime>,
}

impl NewAttributes {
    /// For a call of the library.
    pub fn for_library(&self) -> SetMetadata {
        let mut set = SetMetadata::new();
        set = self.mode.map_or(set, |mode| set.mode(mode));
        set = self.owner.map_or(set, |owner| set.owner(owner));
        set = self.group.map_or(set, |group| set.group(group));
        set = match self.accessed {
            Some(NewTime::At(at)) => set.accessed(at),
            Some(NewTime::Now) => set.accessed_now(),
            None => set,
        };
        match self.modified {
            Some(NewTime::At(at)) => set.modified(at),
            Some(NewTime::Now) => set.modified_now(),
            None => set,
        }
    }

    /// The times, for a call of the system; `None` if both stay.
    pub fn times(&self) -> Option<Timestamps> {
        let of = |time: Option<NewTime>| match time {
            Some(NewTime::At(at)) => Timespec { tv_sec: at.seconds, tv_nsec: at.nanos.into() },
            Some(NewTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        };
        let is_set = self.accessed.is_some() || self.modified.is_some();
        is_set.then(|| Timestamps { last_access: of(self.accessed), last_modification: of(self.modified) })
    }
}
