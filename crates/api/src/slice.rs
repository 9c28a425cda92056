//! Slices: ranges of files as values, to rearrange files by moving pointers.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use warpfire_fs::{AllocMode, Follow, FsError, InsertSource, NodeRef, Position, YankedSlice};
use warpfire_meta::Storage;

use crate::warpfire::FILE_MODE;
use crate::{Error, ErrorKind, File, OpenOptions, Result, SetMetadata, Warpfire};

/// A range of a file as a value: pointers to its bytes, taken by [`File::yank`]. It can be cut, joined and
/// pasted many times, into any file of its pool, and still has its bytes after the file was overwritten or
/// removed. A clone shares the pointers.
///
/// The pool keeps the bytes of a slice while the slice lives, or until its [lease](Warpfire::lease) ends. A
/// slice does not keep its pool open, and is of no use after the pool was closed.
///
/// The verbs *yank*, *paste* and *punch* are those of WTF (the Wave Transactional Filesystem, 2015).
///
/// ```
/// use warpfire::{OpenOptions, Pool, Slice};
///
/// let fs = Pool::options().in_memory()?;
/// let film = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/film")?;
/// film.append(&[1; 1 << 20])?;
/// film.append(&[2; 1 << 20])?;
/// let (one, two) = film.yank(0..2 << 20)?.split_at(1 << 20);
/// film.paste_at(&Slice::join(&[two, one])?, 0)?;
/// let mut byte = [0];
/// film.read_exact_at(&mut byte, 0)?;
/// assert_eq!(byte, [2]);
/// # Ok::<(), warpfire::Error>(())
/// ```
///
/// # Bad days
/// A call that fails has changed nothing.
///
/// | event | result |
/// |---|---|
/// | a slice of another pool, or from before the pool was closed and reopened | `InvalidInput` |
/// | a slice with an ended lease | `Expired` |
/// | a range beyond the end of the file is yanked or removed | the call takes the part before the end |
/// | a slice is pasted beyond the end | a hole lies between, as after a write there |
/// | a slice is inserted beyond the end | `InvalidInput` |
/// | a slice is pasted over its own source | the file shows the bytes as of when they were yanked |
/// | a file is concatenated with itself into itself | its content, twice |
/// | a directory, a symbolic link or a pipe | `IsADirectory`, `InvalidInput` |
/// | more than 256 GiB of data in one call, or a file longer than 2^63 - 1 bytes | `InvalidInput` |
/// | a full pool | `NoSpace`; removing a range still works |
///
/// # Reading fragmented files
/// Every small piece of a file costs the device a read, so a region (1 MiB of a file) in pieces below about
/// 24 KiB reads slowly. The pool *defragments* such a region: after reads have fetched as many bytes as it
/// holds, the pool writes them next to each other, and later reads are fast. It does so only while a quarter
/// of the pool is free and no transaction is open. Bytes that other files share are copied by it.
/// [`Stats::defragmented`](crate::Stats::defragmented) counts the regions.
#[derive(Clone, Debug)]
pub struct Slice(YankedSlice);

impl Slice {
    /// Length in bytes, holes included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len_bytes()
    }

    /// Whether its length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of data, holes not included.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.0.data_bytes()
    }

    /// A part of it. The range counts from the start of the slice; beyond the end of the slice there is
    /// nothing.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> Slice {
        Slice(self.0.part(range))
    }

    /// The part before an offset and the part from there on.
    #[must_use]
    pub fn split_at(&self, at: u64) -> (Slice, Slice) {
        let (before, behind) = self.0.split_at(at);
        (Slice(before), Slice(behind))
    }

    /// Joins slices one after the other.
    ///
    /// # Errors
    /// `InvalidInput` for an empty list, and for slices of different pools.
    pub fn join(parts: &[Slice]) -> Result<Slice> {
        let parts: Vec<YankedSlice> = parts.iter().map(|part| part.0.clone()).collect();
        YankedSlice::join(&parts)?
            .map(Slice)
            .ok_or_else(|| Error::invalid("a list of slices to join is empty"))
    }
}

impl<E: Storage> File<E> {
    /// Takes a range of the file as a slice, without reading it. A range beyond the end of the file is cut
    /// there.
    ///
    /// # Errors
    /// `InvalidInput` for more than 256 GiB of data; `Damaged`.
    pub fn yank(&self, range: Range<u64>) -> Result<Slice> {
        self.check(self.reads, "reading")?;
        let len = range.end.saturating_sub(range.start);
        Ok(Slice(self.pool.fs().yank(&self.node, range.start, len)?))
    }

    /// Writes a slice at an offset, its holes too, in one commit. No data moves.
    ///
    /// # Errors
    /// `InvalidInput` for a slice of another pool, and if the file would be longer than 2^63 - 1 bytes;
    /// `Expired`; `NoSpace`; `ReadOnly`. Nothing is written then.
    pub fn paste_at(&self, slice: &Slice, at: u64) -> Result<()> {
        self.check(self.writes, "writing")?;
        self.paste(slice, Position::At(at)).map(|_| ())
    }

    /// Writes a slice at the end of the file in one commit and returns its offset. No data moves, and
    /// concurrent appends do not overlap.
    ///
    /// ```
    /// use warpfire::{OpenOptions, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/day", b"one two three")?;
    /// let word = fs.open("/day")?.yank(4..7)?;
    /// let words = OpenOptions::new().append(true).create(true).open(&fs, "/words")?;
    /// words.append_slice(&word)?;
    /// words.append_slice(&word)?;
    /// assert_eq!(fs.read("/words")?, b"twotwo");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`paste_at`](File::paste_at).
    pub fn append_slice(&self, slice: &Slice) -> Result<u64> {
        self.check(self.writes || self.appends, "writing")?;
        self.paste(slice, Position::End)
    }

    fn paste(&self, slice: &Slice, position: Position) -> Result<u64> {
        Ok(self.pool.fs().paste(&self.pool.identity().caller(), &self.node, position, &slice.0)?)
    }

    /// Replaces the content of the file by a slice, in one commit. No data moves.
    ///
    /// # Errors
    /// As [`paste_at`](File::paste_at); `InvalidInput` if the file has more than 256 GiB of data.
    pub fn replace(&self, slice: &Slice) -> Result<()> {
        self.check(self.writes, "writing")?;
        Ok(self.pool.fs().replace_content(&self.pool.identity().caller(), &self.node, &slice.0)?)
    }

    /// Inserts a slice at an offset, in one commit: the bytes from there on move up by its length. No data
    /// moves.
    ///
    /// # Errors
    /// As [`paste_at`](File::paste_at); `InvalidInput` beyond the end of the file, and if more than 256 GiB
    /// of data follow.
    pub fn insert_at(&self, slice: &Slice, at: u64) -> Result<()> {
        self.insert(at, InsertSource::Slice(&slice.0))
    }

    /// Inserts a hole for a range, in one commit: the bytes from its start on move up by its length. No data
    /// moves.
    ///
    /// # Errors
    /// As [`insert_at`](File::insert_at).
    pub fn insert_range(&self, range: Range<u64>) -> Result<()> {
        self.insert(range.start, InsertSource::Hole(range.end.saturating_sub(range.start)))
    }

    fn insert(&self, at: u64, inserted: InsertSource<'_>) -> Result<()> {
        self.check(self.writes, "writing")?;
        let caller = self.pool.identity().caller();
        Ok(self.pool.fs().insert_range(&caller, &self.node, at, inserted)?)
    }

    /// Removes a range, in one commit: the bytes after it move down by its length. No data moves. A range
    /// beyond the end of the file is cut there.
    ///
    /// ```
    /// use warpfire::{OpenOptions, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/text", b"not so good")?;
    /// OpenOptions::new().write(true).open(&fs, "/text")?.remove_range(0..7)?;
    /// assert_eq!(fs.read("/text")?, b"good");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if more than 256 GiB of data lie from the start of the range on.
    pub fn remove_range(&self, range: Range<u64>) -> Result<()> {
        self.check(self.writes, "writing")?;
        let len = range.end.saturating_sub(range.start);
        let caller = self.pool.identity().caller();
        Ok(self.pool.fs().remove_range(&caller, &self.node, range.start, len)?)
    }

    /// Makes a range read as zeros and frees its bytes. The length of the file stays.
    ///
    /// # Errors
    /// `InvalidInput` for an empty range.
    pub fn punch_hole(&self, range: Range<u64>) -> Result<()> {
        self.change_range(AllocMode::PunchHole, range)
    }
}

impl<E: Storage> Warpfire<E> {
    /// Reads bytes of a slice, from an offset in it, into a buffer. Returns how many bytes it read: fewer
    /// than the buffer holds only at the end of the slice.
    ///
    /// # Errors
    /// `InvalidInput` for a slice of another pool; `Expired`; `Damaged`.
    pub fn read_slice(&self, slice: &Slice, at: u64, into: &mut [u8]) -> Result<usize> {
        Ok(self.fs().read_yanked_slice(&slice.0, at, into)?)
    }

    /// Limits how long a slice keeps its bytes: for `time` from now, even if it lives longer. The lease holds
    /// for all clones and parts of the slice. A new lease replaces a running one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use warpfire::{ErrorKind, Pool};
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/a", vec![7; 100_000])?;
    /// let slice = fs.open("/a")?.yank(0..50_000)?;
    /// fs.lease(&slice, Duration::from_millis(1))?;
    /// std::thread::sleep(Duration::from_millis(5));
    /// let refused = fs.read_slice(&slice, 0, &mut [0; 10]).unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::Expired);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a slice of another pool; `Expired` if its lease has ended.
    pub fn lease(&self, slice: &Slice, time: Duration) -> Result<()> {
        Ok(self.fs().lease(&slice.0, time)?)
    }

    /// Replaces the content of `to` by the content of the files `from`, one after the other, in one commit
    /// and by pointers: no data is read or moved. `to` is made if it is missing, and may be one of `from`.
    /// Returns the new length.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/a", b"a")?;
    /// fs.write("/b", b"b")?;
    /// fs.concat(&["/b", "/a", "/b"], "/b")?;
    /// assert_eq!(fs.read("/b")?, b"bab");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `PermissionDenied`, `NoSpace`; `InvalidInput` if `to` would be longer than
    /// 2^63 - 1 bytes or have more than 256 GiB of data.
    pub fn concat(&self, from: &[impl AsRef<Path>], to: impl AsRef<Path>) -> Result<u64> {
        let sources = from.iter().map(|path| self.open(path)).collect::<Result<Vec<_>>>()?;
        let nodes: Vec<NodeRef> = sources.iter().map(|source| source.node.clone()).collect();
        let caller = self.identity().caller();
        self.fill(to.as_ref(), &|target, _| Ok(self.fs().concat(&caller, &target.node, &nodes)?))
    }

    /// Copies a file by pointers: no data is read or moved. `to` gets the content and the permissions of
    /// `from`; a file that is there is replaced in place. Up to 256 GiB of data the content changes in one
    /// commit. Returns the length.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// fs.write("/a", vec![7; 10 << 20])?;
    /// fs.copy("/a", "/b")?;
    /// assert_eq!(fs.read("/b")?, fs.read("/a")?);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`concat`](Warpfire::concat), but without its limit of 256 GiB; `InvalidInput` if both paths lead
    /// to one file.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let source = self.open(from)?;
        self.fill(to.as_ref(), &|target, is_new| {
            if source.node.ino() == target.node.ino() {
                return Err(Error::invalid("a file cannot be copied onto itself"));
            }
            let mode = |mode: u32| SetMetadata::new().mode(mode);
            let (before, after) = (target.metadata()?.mode(), source.metadata()?.mode());
            if !is_new {
                // First: nobody reads the new content with the old permissions. A write takes the set-id bits
                // away, so these come last.
                target.set_metadata(&mode(after & 0o777))?;
            }
            let length = self.put_content(&source, target).inspect_err(|_| {
                if !is_new {
                    // The answer is the error of the copy.
                    let _ = target.set_metadata(&mode(before));
                }
            })?;
            target.set_metadata(&mode(after))?;
            Ok(length)
        })
    }

    fn put_content(&self, source: &File<E>, target: &File<E>) -> Result<u64> {
        let node = std::slice::from_ref(&source.node);
        match self.fs().concat(&self.identity().caller(), &target.node, node) {
            Err(FsError::FileTooLarge) => copy_in_steps(source, target),
            other => Ok(other?),
        }
    }

    /// Fills the file at a path with `put`, which gets the file and whether it is new. A new file gets its
    /// name after that: so a call that fails, or a crash, leaves no part of it.
    fn fill(&self, path: &Path, put: &dyn Fn(&File<E>, bool) -> Result<u64>) -> Result<u64> {
        let (fs, caller) = (self.fs(), self.identity().caller());
        let options = OpenOptions::new().write(true);
        loop {
            let found = fs.resolve_parent(&caller, &fs.root(), path.as_os_str().as_bytes(), Follow::Yes)?;
            match found.node {
                Some(node) => return put(&options.open_node(self, node)?, false),
                None if found.wants_dir => return Err(FsError::IsDirectory.into()),
                None => {}
            }
            let file = options.opened(self, fs.tmpfile(&caller, &found.dir, FILE_MODE)?);
            let put = put(&file, true);
            let linked = put.and_then(|length| {
                fs.link(&caller, &file.node, &found.dir, &found.name)?;
                Ok(length)
            });
            drop(file);
            match linked {
                // Another caller made the file first. Look again: it may be a link, or gone once more.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    // The file without a name. The answer is the first error.
                    let _ = fs.reap();
                    return Err(error);
                }
                Ok(length) => return Ok(length),
            }
        }
    }
}

/// Copies a file that has too much data for one commit.
fn copy_in_steps<E: Storage>(source: &File<E>, target: &File<E>) -> Result<u64> {
    let length = source.metadata()?.len();
    target.set_len(0)?;
    let mut copied = 0;
    while copied < length {
        match target.copy_range_from(source, copied, length - copied, copied)? {
            0 => break,
            bytes => copied += bytes,
        }
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, Pool};

    #[test]
    fn a_file_that_cannot_be_filled_is_not_made() {
        let fs = Pool::options().in_memory().unwrap();
        fs.write("/long", b"long").unwrap();
        OpenOptions::new().write(true).open(&fs, "/long").unwrap().set_len(1 << 62).unwrap();
        let before = fs.space().unwrap().inodes;
        let tx = fs.begin().unwrap();
        assert_eq!(fs.concat(&["/long"; 3], "/new").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(tx.concat(&["/long"; 3], "/new").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(!fs.exists("/new") && !tx.exists("/new"));
        drop(tx);
        assert_eq!(fs.space().unwrap().inodes, before, "no file without a name is left");
        assert_eq!(fs.concat(&["/long"], "/new").unwrap(), 1 << 62);
        // The link leads to a missing file, which is made.
        fs.symlink("/behind", "/link").unwrap();
        fs.copy("/long", "/link").unwrap();
        assert_eq!(fs.symlink_metadata("/behind").unwrap().len(), 1 << 62);
    }

    #[test]
    fn a_copy_has_the_permissions_before_the_content() {
        let fs = Pool::options().identity(Identity::superuser()).in_memory().unwrap();
        fs.write("/secret", b"secret").unwrap();
        fs.set_mode("/secret", 0o4600).unwrap();
        fs.copy("/secret", "/new").unwrap();
        fs.write("/open", b"open").unwrap();
        fs.copy("/secret", "/open").unwrap();
        for path in ["/new", "/open"] {
            assert_eq!(fs.metadata(path).unwrap().mode(), 0o4600, "{path}");
            assert_eq!(fs.read(path).unwrap(), b"secret");
        }
        // Only the owner may change the permissions. So nothing may be written either.
        fs.write("/public", b"public").unwrap();
        fs.set_mode("/public", 0o666).unwrap();
        fs.set_mode("/secret", 0o644).unwrap();
        let guest = fs.acting_as(Identity::new(1000, 1000));
        let refused = guest.copy("/secret", "/public").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        assert_eq!(fs.read("/public").unwrap(), b"public");
    }
}
