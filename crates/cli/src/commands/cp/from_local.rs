//! Copies local files. `local.rs` says how other users of the source are kept out.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{SeekFrom, readlinkat, seek};
use rustix::io::Errno;
use warpfire::{FileType, Timestamp};
use warpfire_terminal::Failure;

use super::job::CopyJob;
use super::local::{LocalDir, NamedPath};
use super::sink::Sink;
use super::source::{Attributes, Content, FileIdentity, NewFile, Piece, data_map};
use super::xattrs::Xattrs;

/// Unit of `st_blocks`, in bytes, on every filesystem.
const STAT_BLOCK_BYTES: u64 = 512;

/// Copies a local file, or a directory with its contents, to a name in the current directory of a sink;
/// without a name, the contents into that directory.
pub fn copy(
    job: &mut CopyJob,
    sink: &mut dyn Sink,
    source: &Path,
    named: Result<NamedPath, Failure>,
    name: Option<&OsStr>,
) {
    let named = match named {
        Ok(named) => named,
        Err(failure) => return job.skip(source, failure),
    };
    match named.name {
        Some(found) => entry(job, sink, &named.dir, &found, name),
        None => directory(job, sink, source, &named.dir, name),
    }
}

fn entry(job: &mut CopyJob, sink: &mut dyn Sink, dir: &LocalDir, found: &OsStr, name: Option<&OsStr>) {
    let source = dir.shown(found);
    let (pinned, metadata) = match dir.pin(found).and_then(|pinned| Ok((pinned.metadata()?, pinned))) {
        Ok((metadata, _)) if metadata.is_dir() => match dir.open(found) {
            Ok(opened) => return directory(job, sink, &source, &opened, name),
            Err(error) => return job.skip(&source, dir.failure(&source, &error)),
        },
        Ok((metadata, pinned)) => (pinned, metadata),
        Err(error) => return job.skip(&source, dir.failure(&source, &error)),
    };
    let Some(name) = name else {
        let reason = Failure::new("the destination is a directory").hint("name a file in it");
        return job.skip(&source, reason);
    };
    let attributes = attributes(&metadata);
    let new = NewFile { name, attributes: &attributes };
    job.file(sink, &source, new, |job, sink| match attributes.kind {
        FileType::File => regular(job, sink, dir, found, name),
        FileType::Symlink => {
            let to =
                readlinkat(&pinned, "", Vec::new()).map_err(|error| dir.failure(&source, &error.into()))?;
            sink.symlink(new, OsStr::from_bytes(to.as_bytes())).map(|()| 0)
        }
        _ => sink.special(new, &xattrs(job, &pinned, &source)?).map(|()| 0),
    });
}

/// Opens a regular file and copies it.
fn regular(
    job: &mut CopyJob,
    sink: &mut dyn Sink,
    dir: &LocalDir,
    found: &OsStr,
    name: &OsStr,
) -> Result<u64, Failure> {
    let source = &dir.shown(found);
    let failed = |error: io::Error| dir.failure(source, &error);
    // The attributes are those of the file that was opened. Another one may have been pinned.
    let (file, metadata) = dir.open_file(found).map_err(failed)?;
    let xattrs = xattrs(job, &file, source)?;
    let attributes = attributes(&metadata);
    let mut content = LocalContent::new(file, &metadata, dir, source, job.options.salvage).map_err(failed)?;
    job.contents(sink, source, NewFile { name, attributes: &attributes }, &xattrs, &mut content)
}

fn directory(job: &mut CopyJob, sink: &mut dyn Sink, source: &Path, dir: &LocalDir, name: Option<&OsStr>) {
    let failed = |error: io::Error| dir.failure(source, &error);
    let attributes = match dir.metadata() {
        Ok(metadata) if sink.is_within((metadata.dev(), metadata.ino())) => {
            return job.skip(source, Failure::new("cannot be copied into itself"));
        }
        Ok(metadata) => attributes(&metadata),
        Err(error) => return job.skip(source, failed(error)),
    };
    let xattrs = xattrs(job, dir, source);
    job.directory(sink, source, name, &attributes, xattrs, |job, sink| {
        for found in dir.names().map_err(failed)? {
            if !job.goes_on() {
                break;
            }
            if !job.is_excluded(&found) {
                entry(job, sink, dir, &found, Some(&found));
            }
        }
        Ok(())
    });
}

/// The extended attributes to keep; not for symbolic links.
fn xattrs(job: &CopyJob, file: impl std::os::fd::AsFd, source: &Path) -> Result<Xattrs, Failure> {
    if job.options.archive { Xattrs::of_local(file, source) } else { Ok(Xattrs::default()) }
}

fn attributes(metadata: &Metadata) -> Attributes {
    let nanos = |nanos: i64| u32::try_from(nanos).expect("nanoseconds of stat(2) are below a second");
    let is_linked = !metadata.is_dir() && metadata.nlink() > 1;
    Attributes {
        kind: kind(metadata.file_type()),
        mode: metadata.mode() & 0o7777,
        owner: Some((metadata.uid(), metadata.gid())),
        accessed: Some(Timestamp { seconds: metadata.atime(), nanos: nanos(metadata.atime_nsec()) }),
        modified: Some(Timestamp { seconds: metadata.mtime(), nanos: nanos(metadata.mtime_nsec()) }),
        device: (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev())),
        len: metadata.is_file().then_some(metadata.len()),
        identity: is_linked.then(|| FileIdentity::Number(metadata.dev(), metadata.ino())),
    }
}

fn kind(file_type: std::fs::FileType) -> FileType {
    match file_type {
        kind if kind.is_file() => FileType::File,
        kind if kind.is_dir() => FileType::Dir,
        kind if kind.is_symlink() => FileType::Symlink,
        kind if kind.is_fifo() => FileType::Fifo,
        kind if kind.is_socket() => FileType::Socket,
        kind if kind.is_block_device() => FileType::BlockDevice,
        _ => FileType::CharDevice,
    }
}

/// A read that meets damage is repeated in pieces of this size, in bytes.
const SALVAGE_BYTES: u64 = 4096;

/// After a failed search for data, the file is read up to the next multiple of this many bytes.
const SEARCH_BYTES: u64 = 1 << 20;

/// The content of an open local file, up to the length that it had when it was opened.
struct LocalContent<'a> {
    file: File,
    dir: &'a LocalDir,
    path: &'a Path,
    len: u64,
    is_dense: bool,
    /// Whether the length may be wrong: files that the kernel makes up while they are read have no blocks,
    /// and a length of 0 or of a page. They end where reads end.
    is_made_up: bool,
    /// The data that is being read; what lies before it has been read.
    data: Range<u64>,
    salvage: bool,
    /// Damage lies before this offset, so reads up to it are short.
    damaged_to: u64,
    missing: Vec<Range<u64>>,
}

impl<'a> LocalContent<'a> {
    fn new(
        file: File,
        metadata: &Metadata,
        dir: &'a LocalDir,
        path: &'a Path,
        salvage: bool,
    ) -> io::Result<LocalContent<'a>> {
        let len = metadata.len();
        // With fewer bytes allocated than the file is long it may have holes.
        let is_dense = metadata.blocks().saturating_mul(STAT_BLOCK_BYTES) >= len;
        let is_made_up = metadata.blocks() == 0;
        let data = if is_dense { 0..len } else { 0..0 };
        let (damaged_to, missing) = (0, Vec::new());
        let mut content =
            LocalContent { file, dir, path, len, is_dense, is_made_up, data, salvage, damaged_to, missing };
        if !is_dense {
            content.data = content.next_data(0)?;
        }
        Ok(content)
    }

    fn next_data(&self, at: u64) -> io::Result<Range<u64>> {
        match next_data(&self.file, at, self.len) {
            // Where the pointers of the file are lost, it cannot say where data is. The read finds the loss.
            Err(error) if self.salvage && is_damage(&error) && at < self.len => {
                Ok(at..((at / SEARCH_BYTES + 1) * SEARCH_BYTES).min(self.len))
            }
            found => found,
        }
    }

    /// Takes the failure of a read of `len` bytes: with `--salvage`, the damage is searched in shorter reads,
    /// and the bytes of a short one are lost.
    fn take_damage(&mut self, error: &io::Error, len: u64) -> Result<(), Failure> {
        let at = self.data.start;
        if !is_damage(error) || !self.salvage {
            let failure = self.dir.failure(self.path, error);
            return Err(match is_damage(error) && self.dir.is_in_mount() {
                true => failure.hint("copy the rest of it with --salvage; the log of the server says more"),
                false => failure,
            });
        }
        if at >= self.damaged_to && len > SALVAGE_BYTES {
            self.damaged_to = at + len;
            return Ok(());
        }
        match self.missing.last_mut() {
            Some(last) if last.end == at => last.end = at + len,
            _ => self.missing.push(at..at + len),
        }
        self.data.start = at + len;
        Ok(())
    }
}

fn is_damage(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::IO)
}

impl Content for LocalContent<'_> {
    fn map(&mut self) -> Result<Vec<Range<u64>>, Failure> {
        let found = |at| if self.is_dense { Ok(at..self.len) } else { self.next_data(at) };
        data_map(self.len, |at| found(at).map_err(|error| self.dir.failure(self.path, &error)))
    }

    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, Failure> {
        loop {
            if self.data.is_empty() && !self.is_dense {
                let found = self.next_data(self.data.end);
                self.data = found.map_err(|error| self.dir.failure(self.path, &error))?;
            }
            let at = self.data.start;
            let has_no_length = self.is_made_up && at == self.len && self.is_dense;
            if self.data.is_empty() && !has_no_length {
                return Ok(None);
            }
            let left = if has_no_length { u64::MAX } else { self.data.end - at };
            let step = if at < self.damaged_to { SALVAGE_BYTES - at % SALVAGE_BYTES } else { u64::MAX };
            let wanted = usize::try_from(left.min(step)).unwrap_or(usize::MAX).min(buffer.len());
            let read = match self.file.read_at(&mut buffer[..wanted], at) {
                Ok(read) => read as u64,
                Err(error) => {
                    self.take_damage(&error, wanted as u64)?;
                    continue;
                }
            };
            if read == 0 && self.is_made_up {
                (self.len, self.data) = (at, at..at);
                return Ok(None);
            }
            if read == 0 {
                return Err(Failure::new("became shorter during the copy").hint("copy it again"));
            }
            self.len = self.len.max(at + read);
            self.data = at + read..self.data.end.max(at + read);
            return Ok(Some(Piece::at(at, usize::try_from(read).expect("at most the buffer"))));
        }
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn local_file(&self) -> Option<&File> {
        Some(&self.file)
    }

    fn missing(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.missing)
    }
}

/// The next range of data in `at..len`; an empty one at `len` if only a hole is left. Moves the file's
/// offset.
///
/// # Errors
/// The errors of lseek(2).
fn next_data(file: &File, at: u64, len: u64) -> io::Result<Range<u64>> {
    if at >= len {
        return Ok(len..len);
    }
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(start.min(len)..seek(file, SeekFrom::Hole(start))?.min(len)),
        Err(Errno::NXIO) => Ok(len..len),
        Err(error) => Err(error.into()),
    }
}
