//! Open files.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use warpfire_fs::acl::Perm;
use warpfire_fs::{AllocMode, Follow, FsError, NewMode, NodeRef, Position, Seek};
use warpfire_meta::Storage;

use crate::{Engine, Error, Metadata, Result, SetMetadata, Warpfire};

/// How to open a file, as in `std::fs::OpenOptions`.
///
/// ```
/// use warpfire::{OpenOptions, Pool};
///
/// let fs = Pool::options().in_memory()?;
/// let log = OpenOptions::new().append(true).create(true).open(&fs, "/log")?;
/// log.append(b"one\n")?;
/// log.append(b"two\n")?;
/// assert_eq!(fs.read("/log")?, b"one\ntwo\n");
/// # Ok::<(), warpfire::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are independent of each other, as the flags of open(2)"
)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: NewMode,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: crate::warpfire::FILE_MODE,
        }
    }
}

impl OpenOptions {
    /// Nothing is allowed yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows reading.
    #[must_use]
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// Allows writing at any offset.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Allows writing at the end.
    #[must_use]
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Empties the file.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Makes the file if it is missing.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Makes the file, which must be missing.
    #[must_use]
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Exactly these permission bits for a file that is made, where no default access control list says otherwise.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = NewMode::exact(mode);
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`, `IsADirectory`, `PermissionDenied`, `NoSpace`; `InvalidInput` if nothing is allowed, or something is to be
    /// made or emptied that may not be written.
    pub fn open<E: Storage>(&self, pool: &Warpfire<E>, path: impl AsRef<Path>) -> Result<File<E>> {
        let writes = self.write || self.append;
        let changes = self.create || self.create_new || self.truncate;
        if !writes && (changes || !self.read) {
            return Err(Error::invalid(
                "a file is opened for reading, writing or appending; only writing makes or empties one",
            ));
        }
        if !(self.create || self.create_new) {
            return self.open_node(pool, pool.node_at(path.as_ref(), Follow::Yes)?);
        }
        let follow = if self.create_new { Follow::No } else { Follow::Yes };
        let (fs, caller) = (pool.fs(), pool.identity().caller());
        loop {
            let path = path.as_ref().as_os_str().as_bytes();
            let found = fs.resolve_parent(&caller, &fs.root(), path, follow)?;
            match found.node {
                Some(_) if self.create_new => return Err(FsError::Exists.into()),
                Some(node) => return self.open_node(pool, node),
                None if found.wants_dir => return Err(FsError::IsDirectory.into()),
                None => {}
            }
            match fs.create(&caller, &found.dir, &found.name, self.mode) {
                Ok(node) => return Ok(self.opened(pool, node)),
                // Someone else was quicker: open what there is.
                Err(FsError::Exists) if !self.create_new => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens a file that is there.
    pub(crate) fn open_node<E: Storage>(&self, pool: &Warpfire<E>, node: NodeRef) -> Result<File<E>> {
        let (fs, caller) = (pool.fs(), pool.identity().caller());
        if node.is_dir() {
            return Err(FsError::IsDirectory.into());
        }
        if self.read {
            fs.access(&caller, &node, Perm::READ)?;
        }
        if self.write || self.append {
            fs.access(&caller, &node, Perm::WRITE)?;
        }
        if self.truncate {
            fs.truncate(&caller, &node, 0)?;
        }
        Ok(self.opened(pool, node))
    }

    fn opened<E: Storage>(&self, pool: &Warpfire<E>, node: NodeRef) -> File<E> {
        File { pool: pool.clone(), node, reads: self.read, writes: self.write, appends: self.append }
    }
}

/// An open file. Reads and writes name their offset, so any number of threads may share it. The file stays while it is open, also
/// when its last name goes.
///
/// ```
/// use warpfire::{OpenOptions, Pool};
///
/// let fs = Pool::options().in_memory()?;
/// let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/sparse")?;
/// file.write_all_at(b"far out", 1 << 40)?;
/// assert_eq!(file.metadata()?.len(), (1 << 40) + 7);
/// let mut bytes = [0; 4];
/// file.read_exact_at(&mut bytes, (1 << 40) + 3)?;
/// assert_eq!(&bytes, b" out");
/// file.sync_all()?;
/// # Ok::<(), warpfire::Error>(())
/// ```
pub struct File<E: Storage = Engine> {
    pub(crate) pool: Warpfire<E>,
    pub(crate) node: NodeRef,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) appends: bool,
}

/// Most bytes that are asked for at once when a whole file is read.
const READ_BYTES_MAX: u64 = 16 << 20;

impl<E: Storage> Clone for File<E> {
    fn clone(&self) -> Self {
        File { pool: self.pool.clone(), node: NodeRef::clone(&self.node), ..*self }
    }
}

impl<E: Storage> std::fmt::Debug for File<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({:?})", self.node)
    }
}

impl<E: Storage> File<E> {
    pub(crate) fn check(&self, allowed: bool, what: &str) -> Result<()> {
        if allowed {
            return Ok(());
        }
        let message = format!("the file was not opened for {what}");
        Err(Error::new(crate::ErrorKind::InvalidInput, Errno::BADF.raw_os_error(), message))
    }

    /// Fills the buffer from the offset; gives how many bytes there were before the end of the file.
    ///
    /// # Errors
    /// `Damaged` if bytes can not be had; never wrong bytes.
    pub fn read_at(&self, into: &mut [u8], at: u64) -> Result<usize> {
        self.check(self.reads, "reading")?;
        Ok(self.pool.fs().read(&self.node, at, into)?)
    }

    /// Fills the whole buffer from the offset.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at); `InvalidInput` if the file ends before.
    pub fn read_exact_at(&self, into: &mut [u8], at: u64) -> Result<()> {
        let read = self.read_at(into, at)?;
        if read == into.len() {
            return Ok(());
        }
        Err(Error::invalid(format!("the file ends {} bytes before what was to be read", into.len() - read)))
    }

    /// The whole file.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    pub fn read_to_end(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// The whole file, into a buffer that is emptied first and can be used again.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    pub fn read_into(&self, into: &mut Vec<u8>) -> Result<()> {
        self.check(self.reads, "reading")?;
        into.clear();
        loop {
            let at = into.len();
            let left = self.pool.fs().getattr(&self.node).size_bytes.saturating_sub(at as u64);
            if left == 0 {
                return Ok(());
            }
            let piece = usize::try_from(left.min(READ_BYTES_MAX)).expect("a piece fits in memory");
            into.resize(at + piece, 0);
            let read = self.read_at(&mut into[at..], at as u64)?;
            into.truncate(at + read);
        }
    }

    /// Writes all the bytes at the offset, in one commit. A gap before them is a hole.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`; `InvalidInput` beyond 2^63 - 1. Nothing is written then.
    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.check(self.writes, "writing")?;
        self.pool.fs().write(&self.pool.identity().caller(), &self.node, Position::At(at), bytes)?;
        Ok(())
    }

    /// Writes all the bytes at the end, wherever that is when the write takes place, in one commit; gives where they went. Appends of many threads do not
    /// overlap.
    ///
    /// # Errors
    /// As [`write_all_at`](File::write_all_at).
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.check(self.writes || self.appends, "writing")?;
        Ok(self.pool.fs().write(&self.pool.identity().caller(), &self.node, Position::End, bytes)?)
    }

    /// As [`append`](File::append), for who does not ask where that was. In a transaction it disturbs no other append, and is disturbed by none.
    ///
    /// # Errors
    /// As [`write_all_at`](File::write_all_at).
    pub fn append_blindly(&self, bytes: &[u8]) -> Result<()> {
        self.check(self.writes || self.appends, "writing")?;
        Ok(self.pool.fs().append(&self.pool.identity().caller(), &self.node, bytes)?)
    }

    /// Sets the length; what is added is a hole.
    ///
    /// # Errors
    /// `InvalidInput` above 2^63 - 1; `ReadOnly`.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        self.check(self.writes, "writing")?;
        Ok(self.pool.fs().truncate(&self.pool.identity().caller(), &self.node, bytes)?)
    }

    /// Sees that there is room for a range, which reads as zeros where nothing was written; the file grows to its end.
    ///
    /// # Errors
    /// `NoSpace`; `InvalidInput` for an empty range.
    pub fn allocate(&self, range: Range<u64>) -> Result<()> {
        self.change_range(AllocMode::Allocate, range)
    }

    pub(crate) fn change_range(&self, mode: AllocMode, range: Range<u64>) -> Result<()> {
        self.check(self.writes, "writing")?;
        let len = range.end.saturating_sub(range.start);
        Ok(self.pool.fs().fallocate(&self.pool.identity().caller(), &self.node, mode, range.start, len)?)
    }

    /// Makes bytes of this file, from an offset, show what bytes of another (or this one) hold. No data is read or moved. Gives how many bytes: fewer
    /// than asked for at the end of the other file, or when one commit can not take more.
    ///
    /// # Errors
    /// `InvalidInput` if both ranges are of one file and overlap; otherwise as [`write_all_at`](File::write_all_at).
    pub fn copy_range_from(&self, from: &File<E>, from_at: u64, len_bytes: u64, at: u64) -> Result<u64> {
        self.check(self.writes, "writing")?;
        from.check(from.reads, "reading")?;
        let caller = self.pool.identity().caller();
        Ok(self.pool.fs().copy_range(&caller, (&from.node, from_at), (&self.node, at), len_bytes)?)
    }

    /// The next byte of data at or after an offset; `None` if only a hole is left.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn next_data(&self, at: u64) -> Result<Option<u64>> {
        self.seek(Seek::Data, at)
    }

    /// The next hole at or after an offset; the end of the file counts as one. `None` past the end.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn next_hole(&self, at: u64) -> Result<Option<u64>> {
        self.seek(Seek::Hole, at)
    }

    fn seek(&self, what: Seek, at: u64) -> Result<Option<u64>> {
        match self.pool.fs().seek(&self.node, what, at) {
            Err(FsError::NoSuchOffset) => Ok(None),
            other => Ok(Some(other?)),
        }
    }

    /// Makes the file, its names and everything that was done before durable.
    ///
    /// # Errors
    /// `ReadOnly` if the pool could not.
    pub fn sync_all(&self) -> Result<()> {
        Ok(self.pool.fs().fsync(&self.node)?)
    }

    /// As [`sync_all`](File::sync_all): one commit log holds data and names, so there is nothing to leave out.
    ///
    /// # Errors
    /// As [`sync_all`](File::sync_all).
    pub fn sync_data(&self) -> Result<()> {
        self.sync_all()
    }

    /// What is known about the file.
    ///
    /// # Errors
    /// None yet; a pool over a network will have some.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(self.pool.fs().getattr(&self.node).into())
    }

    /// Sets permissions, owner, group and times.
    ///
    /// # Errors
    /// `PermissionDenied` as for fchmod, fchown and futimens.
    pub fn set_metadata(&self, set: &SetMetadata) -> Result<()> {
        self.pool.fs().set_attributes(&self.pool.identity().caller(), &self.node, &set.0)?;
        Ok(())
    }
}
