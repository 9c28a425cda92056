//! Files rearranged by moving pointers: slices as values.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use warpfire_fs::{AllocMode, FsError, InsertSource, NodeRef, Position, YankedSlice};
use warpfire_meta::Storage;

use crate::{Error, File, OpenOptions, Result, SetMetadata, Warpfire};

/// A range of a file, taken as pointers by [`File::yank`]. A value: it can be pasted many times, into any file of its pool, also after its file was overwritten
/// or removed, and cut up and joined. Cloning it costs next to nothing.
///
/// While it lives the pool keeps its bytes, or until the end of a [lease](Warpfire::lease). It does not keep the pool open, and is of no use once that was closed.
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
/// | what | what happens |
/// |---|---|
/// | a slice of another pool, or of this one before it was closed | `InvalidInput` |
/// | a slice whose lease has ended | `Expired` |
/// | a range that reaches past the end, yanked or removed | what there is of it |
/// | a slice pasted past the end | a hole is between, as after a write |
/// | a slice inserted past the end | `InvalidInput` |
/// | a slice pasted over where it was taken from | the file shows it as it was when it was taken |
/// | a file concatenated with itself onto itself | it holds what it held, twice |
/// | a folder, a link, a pipe | `IsADirectory`, `InvalidInput` |
/// | more than 256 GiB of data in one call, or a file beyond 2^63 - 1 | `InvalidInput` |
/// | a full pool | `NoSpace`; removing a range still works |
///
/// # Reading what is in many pieces
/// A file of pieces below some 24 KiB reads slowly: each costs the device a read. When reads that met many such pieces have read as much of a region (1 MiB) as
/// there is, the region's bytes are written next to each other, and the next read is fast; [`Stats::defragmented`](crate::Stats::defragmented) counts them. It happens while a
/// quarter of the pool is free and no transaction is open. What other files share is copied by that.
#[derive(Clone, Debug)]
pub struct Slice(YankedSlice);

impl Slice {
    /// Length in bytes, holes included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len_bytes()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes in it that are not holes.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.0.data_bytes()
    }

    /// The part of it in a range, cut to its length.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> Slice {
        Slice(self.0.part(range))
    }

    /// What lies before a place in it, and what from there on.
    #[must_use]
    pub fn split_at(&self, at: u64) -> (Slice, Slice) {
        let (before, behind) = self.0.split_at(at);
        (Slice(before), Slice(behind))
    }

    /// Slices one after the other, as one.
    ///
    /// # Errors
    /// `InvalidInput` for none at all, or if they are not all of one pool.
    pub fn join(parts: &[Slice]) -> Result<Slice> {
        let parts: Vec<YankedSlice> = parts.iter().map(|part| part.0.clone()).collect();
        YankedSlice::join(&parts)?
            .map(Slice)
            .ok_or_else(|| Error::invalid("there are no slices to be joined"))
    }
}

impl<E: Storage> File<E> {
    /// Takes a range as a slice: what there is of it before the end of the file. No data is read.
    ///
    /// # Errors
    /// `InvalidInput` for more than 256 GiB of data; `Damaged`.
    pub fn yank(&self, range: Range<u64>) -> Result<Slice> {
        self.check(self.reads, "reading")?;
        let len = range.end.saturating_sub(range.start);
        Ok(Slice(self.pool.fs().yank(&self.node, range.start, len)?))
    }

    /// Writes a slice at the offset, holes included, in one commit. No data moves.
    ///
    /// # Errors
    /// `InvalidInput` for a slice of another pool and beyond 2^63 - 1; `Expired`; `NoSpace`, `ReadOnly`. Nothing is written then.
    pub fn paste_at(&self, slice: &Slice, at: u64) -> Result<()> {
        self.check(self.writes, "writing")?;
        self.paste(slice, Position::At(at)).map(|_| ())
    }

    /// Writes a slice at the end, wherever that is when it takes place; gives where it went.
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

    /// Makes the file hold a slice and nothing else, in one commit. No data moves.
    ///
    /// # Errors
    /// As [`paste_at`](File::paste_at); `InvalidInput` if the file has more than 256 GiB of data.
    pub fn replace(&self, slice: &Slice) -> Result<()> {
        self.check(self.writes, "writing")?;
        Ok(self.pool.fs().replace_content(&self.pool.identity().caller(), &self.node, &slice.0)?)
    }

    /// Puts a slice between the bytes before the offset and those from there on, which move up, in one commit. No data moves.
    ///
    /// # Errors
    /// As [`paste_at`](File::paste_at); `InvalidInput` past the end, or if more than 256 GiB of data lie behind.
    pub fn insert_at(&self, slice: &Slice, at: u64) -> Result<()> {
        self.insert(at, InsertSource::Slice(&slice.0))
    }

    /// Makes room for a range, which reads as zeros: what follows its start moves up, in one commit. No data moves.
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

    /// Takes a range out of the file, what there is of it: what follows moves down, in one commit. No data moves.
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
    /// `InvalidInput` if more than 256 GiB of data lie from its start on.
    pub fn remove_range(&self, range: Range<u64>) -> Result<()> {
        self.check(self.writes, "writing")?;
        let len = range.end.saturating_sub(range.start);
        let caller = self.pool.identity().caller();
        Ok(self.pool.fs().remove_range(&caller, &self.node, range.start, len)?)
    }

    /// Makes a range read as zeros and lets go of its bytes. The length stays.
    ///
    /// # Errors
    /// `InvalidInput` for an empty range.
    pub fn punch_hole(&self, range: Range<u64>) -> Result<()> {
        self.change_range(AllocMode::PunchHole, range)
    }
}

impl<E: Storage> Warpfire<E> {
    /// The bytes of a slice from a place in it on, into a buffer. Gives how many there were.
    ///
    /// # Errors
    /// `InvalidInput` for a slice of another pool; `Expired`; `Damaged`.
    pub fn read_slice(&self, slice: &Slice, at: u64, into: &mut [u8]) -> Result<usize> {
        Ok(self.fs().read_yanked_slice(&slice.0, at, into)?)
    }

    /// Bounds how long a slice, with all its clones and parts, keeps its bytes: for `time` from now, though it may live longer. Another
    /// lease before that takes its place.
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

    /// Makes `to` hold what the files `from` hold, one after the other, in one commit and by pointers: no data is read or moved. `to` is made if it is
    /// missing, and may be one of `from`. Gives the length.
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
    /// `NotFound`, `IsADirectory`, `PermissionDenied`, `NoSpace`; `InvalidInput` beyond 2^63 - 1, and for more than 256 GiB of data.
    pub fn concat(&self, from: &[impl AsRef<Path>], to: impl AsRef<Path>) -> Result<u64> {
        let sources = from.iter().map(|path| self.open(path)).collect::<Result<Vec<_>>>()?;
        let target = OpenOptions::new().write(true).create(true).open(self, to)?;
        let nodes: Vec<NodeRef> = sources.iter().map(|source| source.node.clone()).collect();
        Ok(self.fs().concat(&self.identity().caller(), &target.node, &nodes)?)
    }

    /// Makes `to` hold what `from` holds, with its permissions, by pointers: no data is read or moved. What was at `to` is replaced, in place,
    /// in one commit up to 256 GiB of data. Gives the length.
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
    /// As [`concat`](Warpfire::concat), but of any length; `InvalidInput` if both are one file.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let source = self.open(from)?;
        let target = OpenOptions::new().write(true).create(true).open(self, to)?;
        if source.node.ino() == target.node.ino() {
            return Err(Error::invalid("a file can not be copied onto itself"));
        }
        let node = std::slice::from_ref(&source.node);
        let length = match self.fs().concat(&self.identity().caller(), &target.node, node) {
            Err(FsError::FileTooLarge) => copy_in_steps(&source, &target)?,
            other => other?,
        };
        target.set_metadata(&SetMetadata::new().mode(source.metadata()?.mode()))?;
        Ok(length)
    }
}

/// What one commit can not take.
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
