//! Copies files of a pool.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use warpfire::{Dir, ErrorKind, File, FileType, Metadata, Storage, Warpfire};
use warpfire_terminal::Failure;

use super::job::CopyJob;
use super::sink::Sink;
use super::source::{Attributes, Content, NewFile, Piece, data_map};
use super::xattrs::Xattrs;

/// The pool, or the snapshot of a pool, that files are copied from.
pub struct PoolSource<'a, E: Storage> {
    fs: &'a Warpfire<E>,
    /// Distinguishes the pools of one copy.
    number: u64,
    /// Whether the target is in the same pool.
    is_shared: bool,
}

/// A file of the pool: its directory, its name there, and its path.
struct FoundInPool<'a, E: Storage> {
    dir: &'a Dir<E>,
    name: &'a OsStr,
    path: &'a Path,
    metadata: Metadata,
}

impl<'a, E: Storage> PoolSource<'a, E> {
    pub fn new(fs: &'a Warpfire<E>, number: u64, is_shared: bool) -> Self {
        PoolSource { fs, number, is_shared }
    }

    /// Copies a file, or a directory with its contents, to a name in the current directory of a sink;
    /// without a name, the contents into that directory.
    pub fn copy(&self, job: &mut CopyJob, sink: &mut dyn Sink, source: &Path, name: Option<&OsStr>) {
        let metadata = match self.fs.symlink_metadata(source) {
            Ok(metadata) => metadata,
            Err(error) => return job.skip(source, error),
        };
        if metadata.is_dir() {
            return self.directory(job, sink, source, &metadata, self.fs.dir(source), name);
        }
        let Some(name) = name else {
            let reason = Failure::new("the destination is a directory").hint("name a file in it");
            return job.skip(source, reason);
        };
        let parent = source.parent().unwrap_or(Path::new("/"));
        match (self.fs.dir(parent), source.file_name()) {
            (Ok(dir), Some(found)) => {
                self.file(job, sink, &FoundInPool { dir: &dir, name: found, path: source, metadata }, name);
            }
            (Err(error), _) => job.skip(source, error),
            (Ok(_), None) => job.skip(source, Failure::new("has no name").hint("name the file itself")),
        }
    }

    fn directory(
        &self,
        job: &mut CopyJob,
        sink: &mut dyn Sink,
        source: &Path,
        metadata: &Metadata,
        opened: warpfire::Result<Dir<E>>,
        name: Option<&OsStr>,
    ) {
        let attributes = Attributes::of_pool(self.number, metadata);
        let xattrs = self.xattrs(job, source);
        job.directory(sink, source, name, &attributes, xattrs, |job, sink| {
            let dir = opened?;
            for entry in dir.read_dir()? {
                if !job.goes_on() {
                    break;
                }
                let entry = match entry {
                    Ok(entry) => entry,
                    // The listing goes on after damage.
                    Err(error) => {
                        job.skip(source, error);
                        continue;
                    }
                };
                let name = entry.file_name();
                if job.is_excluded(name) {
                    continue;
                }
                let path = source.join(name);
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => {
                        self.directory(job, sink, &path, &metadata, entry.open_dir(), Some(name));
                    }
                    Ok(metadata) => {
                        self.file(job, sink, &FoundInPool { dir: &dir, name, path: &path, metadata }, name);
                    }
                    Err(error) => job.skip(&path, error),
                }
            }
            Ok(())
        });
    }

    fn file(&self, job: &mut CopyJob, sink: &mut dyn Sink, found: &FoundInPool<'_, E>, name: &OsStr) {
        let attributes = Attributes::of_pool(self.number, &found.metadata);
        let new = NewFile { name, attributes: &attributes };
        job.file(sink, found.path, new, |job, sink| match attributes.kind {
            FileType::Symlink => {
                let to = self.fs.read_link(found.path)?;
                sink.symlink(new, to.as_os_str()).map(|()| 0)
            }
            FileType::File => {
                let xattrs = self.xattrs(job, found.path)?;
                let len = found.metadata.len();
                // A dense file is copied without the search for holes.
                let is_dense = found.metadata.allocated_bytes() >= len;
                let mut content = PoolContent {
                    file: found.dir.open(found.name)?,
                    shared: self.is_shared.then(|| found.path.to_path_buf()),
                    len,
                    is_dense,
                    data: if is_dense { 0..len } else { 0..0 },
                    good: VecDeque::new(),
                    missing: Vec::new(),
                    salvage: job.options.salvage,
                    failure: None,
                };
                job.contents(sink, found.path, new, &xattrs, &mut content)
            }
            _ => sink.special(new, &self.xattrs(job, found.path)?).map(|()| 0),
        });
    }

    fn xattrs(&self, job: &mut CopyJob, path: &Path) -> Result<Xattrs, Failure> {
        if !job.options.archive {
            return Ok(Xattrs::default());
        }
        match Xattrs::of_pool(self.fs, path) {
            Err(failure) if job.options.salvage && failure.is_of(ErrorKind::Damaged) => {
                job.skip(path, failure);
                Ok(Xattrs::default())
            }
            xattrs => xattrs,
        }
    }
}

/// After a failed search for data, the file is read up to the next multiple of this many bytes.
const SEARCH_BYTES: u64 = 1 << 20;

/// The content of a file of a pool.
struct PoolContent<E: Storage> {
    file: File<E>,
    /// The path, if the target is in the same pool.
    shared: Option<PathBuf>,
    len: u64,
    is_dense: bool,
    /// The run of data that is being read; what lies before it has been read.
    data: Range<u64>,
    /// Readable parts of a piece that has damage, to be read next.
    good: VecDeque<Range<u64>>,
    missing: Vec<Range<u64>>,
    salvage: bool,
    /// The failure that follows the good parts.
    failure: Option<Failure>,
}

impl<E: Storage> PoolContent<E> {
    /// The next range of data that fits the buffer; `None` at the end.
    fn next_range(&mut self, max: usize) -> Result<Option<Range<u64>>, Failure> {
        if self.data.is_empty() && !self.is_dense {
            self.data = self.next_data(self.data.end)?;
        }
        if self.data.is_empty() {
            return Ok(None);
        }
        let start = self.data.start;
        let end = self.data.end.min(start + max as u64);
        self.data.start = end;
        Ok(Some(start..end))
    }

    fn next_data(&self, at: u64) -> Result<Range<u64>, Failure> {
        let found = match self.file.next_data(at) {
            Ok(Some(start)) => self.file.next_hole(start).map(|end| start..end.unwrap_or(self.len)),
            Ok(None) => Ok(self.len..self.len),
            Err(error) => Err(error),
        };
        match found {
            // Where the pointers of the file are lost, it cannot say where data is. The read finds the loss.
            Err(error) if self.salvage && error.kind() == ErrorKind::Damaged && at < self.len => {
                Ok(at..((at / SEARCH_BYTES + 1) * SEARCH_BYTES).min(self.len))
            }
            other => Ok(other?),
        }
    }

    /// Reads a range that has no known damage. `None` if it has: then its good parts are next, or the copy
    /// of the file fails.
    fn read(&mut self, range: &Range<u64>, buffer: &mut [u8]) -> Result<Option<Piece>, Failure> {
        let len = usize::try_from(range.end - range.start).expect("a range fits the buffer");
        let error = match self.file.read_exact_at(&mut buffer[..len], range.start) {
            Ok(()) => return Ok(Some(Piece::at(range.start, len))),
            Err(error) if error.kind() == ErrorKind::Damaged => error,
            Err(error) => return Err(error.into()),
        };
        let mut missing = self.file.unreadable(range.clone())?;
        if missing.is_empty() {
            // The damage was there only for a moment, and it is too late to find where.
            missing.push(range.clone());
        }
        if !self.salvage {
            if missing[0].start == range.start {
                return Err(error.into());
            }
            // Stdout gets the bytes before the damage; a file with them is not kept.
            self.good.push_back(range.start..missing[0].start);
            self.failure = Some(error.into());
            return Ok(None);
        }
        let mut at = range.start;
        for lost in missing {
            self.good.push_back(at..lost.start);
            at = lost.end;
            match self.missing.last_mut() {
                Some(last) if last.end == lost.start => last.end = lost.end,
                _ => self.missing.push(lost),
            }
        }
        self.good.push_back(at..range.end);
        self.good.retain(|good| !good.is_empty());
        Ok(None)
    }
}

impl<E: Storage> Content for PoolContent<E> {
    fn map(&mut self) -> Result<Vec<Range<u64>>, Failure> {
        data_map(self.len, |at| if self.is_dense { Ok(at..self.len) } else { self.next_data(at) })
    }

    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, Failure> {
        loop {
            let range = match (self.good.pop_front(), self.failure.take()) {
                (Some(good), failure) => {
                    self.failure = failure;
                    good
                }
                (None, Some(failure)) => return Err(failure),
                (None, None) => match self.next_range(buffer.len())? {
                    Some(range) => range,
                    None => return Ok(None),
                },
            };
            if let Some(piece) = self.read(&range, buffer)? {
                return Ok(Some(piece));
            }
        }
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn shared_path(&self) -> Option<&Path> {
        self.shared.as_deref()
    }

    fn missing(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.missing)
    }
}
