//! What is known about a file, and what can be set.

use warpfire_env::Timestamp;
use warpfire_fs::{Attr, FileKind, SetAttr, SetTime};

/// What kind of file it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileType {
    /// A regular file.
    File,
    /// A folder.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
}

impl From<FileKind> for FileType {
    fn from(kind: FileKind) -> Self {
        match kind {
            FileKind::Regular => FileType::File,
            FileKind::Directory => FileType::Dir,
            FileKind::Symlink => FileType::Symlink,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::CharDevice => FileType::CharDevice,
        }
    }
}

impl From<FileType> for FileKind {
    fn from(file_type: FileType) -> Self {
        match file_type {
            FileType::File => FileKind::Regular,
            FileType::Dir => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::BlockDevice => FileKind::BlockDevice,
            FileType::CharDevice => FileKind::CharDevice,
        }
    }
}

/// What is known about a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata(Attr);

impl From<Attr> for Metadata {
    fn from(attr: Attr) -> Self {
        Metadata(attr)
    }
}

#[expect(clippy::len_without_is_empty, reason = "as in std::fs::Metadata: it is the length of the file")]
impl Metadata {
    /// What kind of file it is.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.0.kind.into()
    }

    /// Whether it is a folder.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Dir
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_type() == FileType::File
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.file_type() == FileType::Symlink
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.size_bytes
    }

    /// Bytes that are not holes.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.0.allocated_bytes
    }

    /// Permission bits, set-id and sticky bits among them; without the type.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.0.mode & 0o7777
    }

    /// Names that it has; of a folder 2 and one for each folder in it.
    #[must_use]
    pub fn nlink(&self) -> u64 {
        self.0.links.into()
    }

    /// Owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Inode number: the same for all names of one file, never used again for another.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    /// Major and minor number of a device.
    #[must_use]
    pub fn device_numbers(&self) -> (u32, u32) {
        (rustix::fs::major(self.0.rdev), rustix::fs::minor(self.0.rdev))
    }

    /// Last access, to the precision of relatime: renewed by a read after a change, or once a day.
    #[must_use]
    pub fn accessed(&self) -> Timestamp {
        self.0.atime
    }

    /// Last change of content.
    #[must_use]
    pub fn modified(&self) -> Timestamp {
        self.0.mtime
    }

    /// Last change of anything.
    #[must_use]
    pub fn changed(&self) -> Timestamp {
        self.0.ctime
    }

    /// When it was made.
    #[must_use]
    pub fn created(&self) -> Timestamp {
        self.0.btime
    }
}

/// What to set of a file besides its contents. What is not named stays.
///
/// ```
/// use warpfire::{Pool, SetMetadata};
///
/// let fs = Pool::options().in_memory()?;
/// fs.write("/tool", b"#!/bin/sh\n")?;
/// fs.set_metadata("/tool", &SetMetadata::new().mode(0o755))?;
/// assert_eq!(fs.metadata("/tool")?.mode(), 0o755);
/// # Ok::<(), warpfire::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetMetadata(pub(crate) SetAttr);

impl SetMetadata {
    /// Sets nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Permission bits, set-id and sticky bits among them.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.0.mode = Some(mode & 0o7777);
        self
    }

    /// Owner.
    #[must_use]
    pub fn owner(mut self, uid: u32) -> Self {
        self.0.uid = Some(uid);
        self
    }

    /// Group.
    #[must_use]
    pub fn group(mut self, gid: u32) -> Self {
        self.0.gid = Some(gid);
        self
    }

    /// Last access.
    #[must_use]
    pub fn accessed(mut self, at: Timestamp) -> Self {
        self.0.atime = Some(SetTime::At(at));
        self
    }

    /// Last change of content.
    #[must_use]
    pub fn modified(mut self, at: Timestamp) -> Self {
        self.0.mtime = Some(SetTime::At(at));
        self
    }
}
