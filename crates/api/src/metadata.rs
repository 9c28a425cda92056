//! Attributes of a file: those that a call returns, and those that a call sets.

use warpfire_env::Timestamp;
use warpfire_fs::{Attr, FileKind, SetAttr, SetTime};

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
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

/// The attributes of a file at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata(Attr);

impl From<Attr> for Metadata {
    fn from(attr: Attr) -> Self {
        Metadata(attr)
    }
}

#[expect(clippy::len_without_is_empty, reason = "as in std::fs::Metadata: it is the length of the file")]
impl Metadata {
    /// The type of the file.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.0.kind.into()
    }

    /// Whether it is a directory.
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

    /// Bytes of data, holes not included.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.0.allocated_bytes
    }

    /// Permission bits with the set-id and sticky bits, without the type: at most `0o7777`.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.0.mode & 0o7777
    }

    /// The number of names of the file; of a directory, 2 and one for each directory in it.
    #[must_use]
    pub fn nlink(&self) -> u64 {
        self.0.links.into()
    }

    /// The number of the owning user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The number of the owning group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// The inode number. All names of a file share it, and no other file ever gets it.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    /// The major and minor number of a device node; zeros for other files.
    #[must_use]
    pub fn device_numbers(&self) -> (u32, u32) {
        (rustix::fs::major(self.0.rdev), rustix::fs::minor(self.0.rdev))
    }

    /// When the file was last read, to the precision of relatime: the first read after a change updates it,
    /// and otherwise at most one read a day.
    #[must_use]
    pub fn accessed(&self) -> Timestamp {
        self.0.atime
    }

    /// When the content last changed.
    #[must_use]
    pub fn modified(&self) -> Timestamp {
        self.0.mtime
    }

    /// When the content or any attribute last changed.
    #[must_use]
    pub fn changed(&self) -> Timestamp {
        self.0.ctime
    }

    /// When the file was made.
    #[must_use]
    pub fn created(&self) -> Timestamp {
        self.0.btime
    }
}

/// The attributes to set, as a builder. Attributes that it does not name keep their values.
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
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Permission bits with the set-id and sticky bits, such as `0o755`.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.0.mode = Some(mode & 0o7777);
        self
    }

    /// The number of the owning user.
    #[must_use]
    pub fn owner(mut self, uid: u32) -> Self {
        self.0.uid = Some(uid);
        self
    }

    /// The number of the owning group.
    #[must_use]
    pub fn group(mut self, gid: u32) -> Self {
        self.0.gid = Some(gid);
        self
    }

    /// The time of the last read.
    #[must_use]
    pub fn accessed(mut self, at: Timestamp) -> Self {
        self.0.atime = Some(SetTime::At(at));
        self
    }

    /// The time of the last change of content.
    #[must_use]
    pub fn modified(mut self, at: Timestamp) -> Self {
        self.0.mtime = Some(SetTime::At(at));
        self
    }

    /// The moment of the call as the time of the last read. Its owner may set it, and every
    /// user with permission to write.
    #[must_use]
    pub fn accessed_now(mut self) -> Self {
        self.0.atime = Some(SetTime::Now);
        self
    }

    /// The moment of the call as the time of the last change of content. Its owner may set it, and
    /// every user with permission to write.
    #[must_use]
    pub fn modified_now(mut self) -> Self {
        self.0.mtime = Some(SetTime::Now);
        self
    }
}
