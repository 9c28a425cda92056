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
    /// Options that allow nothing yet.
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

    /// Allows writing at the end only.
    #[must_use]
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Whether opening empties the file.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Whether opening makes the file if it is missing.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether opening makes the file, and fails if it exists.
    #[must_use]
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a new file, exactly; a default access control list of its directory overrides them.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = NewMode::exact(mode);
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`, `IsADirectory`, `PermissionDenied`, `NoSpace`; `InvalidInput` if the
    /// options allow neither reading, writing nor appending, or ask to make or empty a file that they do not
    /// allow to write.
    pub fn open<E: Storage>(&self, pool: &Warpfire<E>, path: impl AsRef<Path>) -> Result<File<E>> {
        let writes = self.write || self.append;
        let changes = self.create || self.create_new || self.truncate;
        if !writes && (changes || !self.read) {
            return Err(Error::invalid(
                "a file is opened for reading, writing or appending, and only a writer may make or empty it",
            ));
        }
        if !(self.create || self.create_new) {
            let path = path.as_ref();
            let reads_first = self.read && !self.truncate;
            let node =
                if reads_first { pool.node_at_to_read(path)? } else { pool.node_at(path, Follow::Yes)? };
            return self.open_node(pool, node);
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
                // Another caller made the file first. Look again: it may be a link, or gone once more.
                Err(FsError::Exists) if !self.create_new => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens an existing file.
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

    pub(crate) fn opened<E: Storage>(&self, pool: &Warpfire<E>, node: NodeRef) -> File<E> {
        File { pool: pool.clone(), node, reads: self.read, writes: self.write, appends: self.append }
    }
}

/// An open file. It has no position: reads and writes name their offset, so any number of threads may share
/// it. The file keeps its content while it is open, even after its last name was removed.
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

/// Bytes per read when a whole file is read: bounds the memory of one read call.
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

    /// Reads bytes from an offset into a buffer. Returns how many: fewer than the buffer holds only at the
    /// end of the file, and before bytes that cannot be read. Holes read as zeros.
    ///
    /// # Errors
    /// `Damaged` if the first byte cannot be read or reconstructed, with the range of bytes that are lost;
    /// never wrong bytes. Inside a transaction, `Damaged` if any of the bytes cannot be read.
    pub fn read_at(&self, into: &mut [u8], at: u64) -> Result<usize> {
        self.check(self.reads, "reading")?;
        let error = match self.pool.fs().read(&self.node, at, into) {
            Err(error @ FsError::Damaged { .. }) => error,
            other => return Ok(other?),
        };
        let wanted = at..at.saturating_add(into.len() as u64);
        let missing = self.unreadable(wanted).unwrap_or_default();
        let Some(lost) = missing.first() else { return Err(error.into()) };
        let good = usize::try_from(lost.start - at).unwrap_or(0);
        match into.get_mut(..good).filter(|good| !good.is_empty()) {
            Some(good) => Ok(self.pool.fs().read(&self.node, at, good)?),
            None => Err(Error::lost_bytes(lost)),
        }
    }

    /// The ranges of bytes in `range` that cannot be read or reconstructed, in order. All bytes between them
    /// can be read. Reads all bytes of the range.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/whole", vec![7; 100_000])?;
    /// assert!(fs.open("/whole")?.unreadable(0..100_000)?.is_empty());
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Unsupported` inside a transaction.
    pub fn unreadable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.check(self.reads, "reading")?;
        Ok(self.pool.fs().unreadable(&self.node, range)?)
    }

    /// Fills a buffer with the bytes from an offset.
    ///
    /// # Errors
    /// `Damaged` if any of the bytes cannot be read; `InvalidInput` if the file ends before the buffer is
    /// full.
    pub fn read_exact_at(&self, into: &mut [u8], at: u64) -> Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            match self.read_at(&mut into[filled..], at + filled as u64)? {
                0 => {
                    let left = into.len() - filled;
                    let message = format!("the file ends {left} bytes before the end of the read");
                    return Err(Error::invalid(message));
                }
                read => filled += read,
            }
        }
        Ok(())
    }

    /// Reads the whole file.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    pub fn read_to_end(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the whole file into a buffer, which is cleared first. The buffer keeps its memory for the next
    /// call.
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

    /// Writes all bytes at an offset, in one commit. If the file ends before the offset, a hole lies between.
    ///
    /// # Errors
    /// `NoSpace`; `ReadOnly`; `InvalidInput` if the file would be longer than 2^63 - 1 bytes. Nothing is
    /// written then.
    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.check(self.writes, "writing")?;
        self.pool.fs().write(&self.pool.identity().caller(), &self.node, Position::At(at), bytes)?;
        Ok(())
    }

    /// Makes bytes the whole content, in one commit.
    ///
    /// # Errors
    /// As [`write_all_at`](File::write_all_at).
    pub(crate) fn overwrite(&self, bytes: &[u8]) -> Result<()> {
        self.check(self.writes, "writing")?;
        Ok(self.pool.fs().overwrite(&self.pool.identity().caller(), &self.node, bytes)?)
    }

    /// Writes all bytes at the end of the file in one commit and returns their offset. Concurrent appends do
    /// not overlap.
    ///
    /// # Errors
    /// As [`write_all_at`](File::write_all_at).
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.check(self.writes || self.appends, "writing")?;
        Ok(self.pool.fs().write(&self.pool.identity().caller(), &self.node, Position::End, bytes)?)
    }

    /// As [`append`](File::append), but does not return the offset. Inside a transaction such an append does
    /// not conflict with other appends.
    ///
    /// # Errors
    /// As [`write_all_at`](File::write_all_at).
    pub fn append_blindly(&self, bytes: &[u8]) -> Result<()> {
        self.check(self.writes || self.appends, "writing")?;
        Ok(self.pool.fs().append(&self.pool.identity().caller(), &self.node, bytes)?)
    }

    /// Sets the length. Longer adds a hole; shorter frees the bytes beyond it.
    ///
    /// # Errors
    /// `InvalidInput` above 2^63 - 1; `ReadOnly`.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        self.check(self.writes, "writing")?;
        Ok(self.pool.fs().truncate(&self.pool.identity().caller(), &self.node, bytes)?)
    }

    /// Reserves space for a range. Unwritten parts of it read as zeros. The file grows to the end of the
    /// range if it is shorter.
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

    /// Makes bytes of this file share the bytes of another file (or of this one) by pointers: no data is read
    /// or moved. Returns how many bytes: fewer than `len_bytes` at the end of the other file, and if one
    /// commit cannot take more.
    ///
    /// # Errors
    /// `InvalidInput` if both ranges lie in one file and overlap, or if the other file is of another pool or
    /// transaction; otherwise as [`write_all_at`](File::write_all_at).
    pub fn copy_range_from(&self, from: &File<E>, from_at: u64, len_bytes: u64, at: u64) -> Result<u64> {
        self.check(self.writes, "writing")?;
        from.check(from.reads, "reading")?;
        let caller = self.pool.identity().caller();
        Ok(self.pool.fs().copy_range(&caller, (&from.node, from_at), (&self.node, at), len_bytes)?)
    }

    /// The offset of the next byte of data at or after an offset; `None` if only a hole is left.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn next_data(&self, at: u64) -> Result<Option<u64>> {
        self.seek(Seek::Data, at)
    }

    /// The offset of the next hole at or after an offset. The end of the file counts as a hole. `None` beyond
    /// the end.
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

    /// Makes the file and its names durable, and with them all earlier changes of the pool.
    ///
    /// # Errors
    /// `ReadOnly` if too many devices failed.
    pub fn sync_all(&self) -> Result<()> {
        Ok(self.pool.fs().fsync(&self.node)?)
    }

    /// The same as [`sync_all`](File::sync_all): data and names share one commit log, so there is nothing to
    /// leave out.
    ///
    /// # Errors
    /// As [`sync_all`](File::sync_all).
    pub fn sync_data(&self) -> Result<()> {
        self.sync_all()
    }

    /// Size, type, permissions, owner and times of the file.
    ///
    /// # Errors
    /// None today. A pool over a network will have some.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(self.pool.fs().getattr(&self.node).into())
    }

    /// Sets permissions, owner, group and times, in one commit.
    ///
    /// # Errors
    /// `PermissionDenied`, by the rules of fchmod(2), fchown(2) and futimens(2).
    pub fn set_metadata(&self, set: &SetMetadata) -> Result<()> {
        self.pool.fs().set_attributes(&self.pool.identity().caller(), &self.node, &set.0)?;
        Ok(())
    }
}
