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
use super::source::{Attributes, Content, FileIdentity, NewFile, Piece};
use super::xattrs::Xattrs;

/// Unit of `st_blocks`, in bytes, on every filesystem.
const STAT_BLOCK_BYTES: u64 = 512;

/// Copies a local file, or a directory with its contents, to a name in the current directory of a sink;
/// without a name, the contents into that directory.
pub fn copy(job: &mut CopyJob, sink: &mut dyn Sink, source: &Path, name: Option<&OsStr>) {
    let named = match NamedPath::open(source) {
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
            Err(error) => return job.skip(&source, Failure::new(error)),
        },
        Ok((metadata, pinned)) => (pinned, metadata),
        Err(error) => return job.skip(&source, Failure::local(&source, &error)),
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
            let to = readlinkat(&pinned, "", Vec::new())
                .map_err(|error| Failure::local(&source, &error.into()))?;
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
    let failed = |error: io::Error| Failure::local(source, &error);
    // The attributes are those of the file that was opened. Another one may have been pinned.
    let (file, metadata) = dir.open_file(found).map_err(failed)?;
    let xattrs = xattrs(job, &file, source)?;
    let attributes = attributes(&metadata);
    let mut content = LocalContent::new(file, &metadata, source).map_err(failed)?;
    job.contents(sink, source, NewFile { name, attributes: &attributes }, &xattrs, &mut content)
}

fn directory(job: &mut CopyJob, sink: &mut dyn Sink, source: &Path, dir: &LocalDir, name: Option<&OsStr>) {
    let failed = |error: io::Error| Failure::local(source, &error);
    let attributes = match dir.metadata() {
        Ok(metadata) => attributes(&metadata),
        Err(error) => return job.skip(source, failed(error)),
    };
    job.directory(sink, source, name, &attributes, |job, sink| {
        for found in dir.names().map_err(failed)? {
            if !job.goes_on() {
                break;
            }
            if !job.is_excluded(&found) {
                entry(job, sink, dir, &found, Some(&found));
            }
        }
        xattrs(job, dir, source)
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
        identity: is_linked.then(|| FileIdentity(metadata.dev(), metadata.ino())),
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

/// The content of an open local file, up to the length that it had when it was opened.
struct LocalContent<'a> {
    file: File,
    path: &'a Path,
    len: u64,
    is_dense: bool,
    /// Whether the length may be wrong: files that the kernel makes up while they are read have no blocks,
    /// and a length of 0 or of a page. They end where reads end.
    is_made_up: bool,
    /// The data that is being read; what lies before it has been read.
    data: Range<u64>,
}

impl<'a> LocalContent<'a> {
    fn new(file: File, metadata: &Metadata, path: &'a Path) -> io::Result<LocalContent<'a>> {
        let len = metadata.len();
        // With fewer bytes allocated than the file is long it may have holes.
        let is_dense = metadata.blocks().saturating_mul(STAT_BLOCK_BYTES) >= len;
        let data = if is_dense { 0..len } else { next_data(&file, 0, len)? };
        let is_made_up = metadata.blocks() == 0;
        Ok(LocalContent { file, path, len, is_dense, is_made_up, data })
    }
}

impl Content for LocalContent<'_> {
    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, Failure> {
        let failed = |error: io::Error| Failure::local(self.path, &error);
        if self.data.is_empty() && !self.is_dense {
            self.data = next_data(&self.file, self.data.end, self.len).map_err(failed)?;
        }
        let at = self.data.start;
        let has_no_length = self.is_made_up && at == self.len && self.is_dense;
        if self.data.is_empty() && !has_no_length {
            return Ok(None);
        }
        let left = if has_no_length { u64::MAX } else { self.data.end - at };
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..wanted], at).map_err(failed)? as u64;
        if read == 0 && self.is_made_up {
            (self.len, self.data) = (at, at..at);
            return Ok(None);
        }
        if read == 0 {
            return Err(Failure::new("became shorter during the copy").hint("copy it again"));
        }
        self.len = self.len.max(at + read);
        self.data = at + read..self.data.end.max(at + read);
        Ok(Some(Piece::at(at, usize::try_from(read).expect("at most the buffer"))))
    }

    fn len(&self) -> u64 {
        self.len
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
