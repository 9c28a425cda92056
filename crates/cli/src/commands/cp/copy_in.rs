//! Copying of local files into a pool.
//!
//! A directory of the pool is opened once, and its files are made through that handle: each in one commit
//! with its bytes, mode, owner and times. A file that is long, has holes or has extended attributes takes
//! several commits. `local.rs` says how other users of the source are kept out.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, readlinkat, seek};
use rustix::io::Errno;
use warpfire::{Dir, FileType, SetMetadata, Timestamp, Warpfire};
use warpfire_terminal::Failure;

use super::local::{LocalDir, NamedPath};
use super::pool_target::{is_free_or_file, make_dir, remove_existing};
use super::xattrs::{XattrStage, Xattrs};
use super::{CopyJob, PIECE_BYTES};

/// A file of up to this size, in bytes, is read whole and made in one commit.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// Unit of `st_blocks`, in bytes, on every filesystem.
const STAT_BLOCK_BYTES: u64 = 512;

/// A copy into one pool.
pub struct CopyIn<'a> {
    fs: &'a Warpfire,
    /// Files with several names, by device and inode number: the target of the first name.
    linked: HashMap<(u64, u64), PathBuf>,
    is_superuser: bool,
    piece: Vec<u8>,
}

/// A local file that is open, or a link or special file that is pinned.
struct LocalFile<'a> {
    file: File,
    metadata: Metadata,
    path: &'a Path,
}

impl<'a> CopyIn<'a> {
    pub fn new(fs: &'a Warpfire) -> Self {
        let is_superuser = rustix::process::geteuid().is_root();
        CopyIn { fs, linked: HashMap::new(), is_superuser, piece: Vec::new() }
    }

    /// Copies a file, or a directory with its contents.
    pub fn copy(&mut self, job: &mut CopyJob, source: &Path, target: &Path) {
        let named = match NamedPath::open(source) {
            Ok(named) => named,
            Err(failure) => return job.skip(source, failure),
        };
        let parent = target.parent().unwrap_or(Path::new("/"));
        match (self.fs.dir(parent), &named.name) {
            (Ok(parent), Some(name)) => self.entry(job, &named.dir, name, &parent, target),
            (Ok(_), None) => self.directory(job, source, &named.dir, target),
            (Err(error), _) => job.skip(parent, error),
        }
    }

    fn entry(&mut self, job: &mut CopyJob, dir: &LocalDir, name: &OsStr, parent: &Dir, target: &Path) {
        let source = dir.shown(name);
        let failed = |error: io::Error| Failure::local(&source, &error);
        let pinned = match dir.pin(name).and_then(|pinned| Ok((pinned.metadata()?, pinned))) {
            Ok((metadata, _)) if metadata.is_dir() => match dir.open(name) {
                Ok(opened) => return self.directory(job, &source, &opened, target),
                Err(error) => return job.skip(&source, Failure::new(error)),
            },
            Ok((metadata, _)) if metadata.is_file() => dir.open_file(name),
            Ok((metadata, pinned)) => Ok((pinned, metadata)),
            Err(error) => Err(error),
        };
        let copied = pinned.map_err(failed).and_then(|(file, metadata)| {
            self.file(job, &LocalFile { file, metadata, path: &source }, parent, target)
        });
        job.outcome(&source, copied);
    }

    fn directory(&mut self, job: &mut CopyJob, source: &Path, dir: &LocalDir, target: &Path) {
        let failed = |error: io::Error| Failure::local(source, &error);
        job.directory(source, |job| {
            make_dir(self.fs, target)?;
            let parent = self.fs.dir(target)?;
            for name in dir.names().map_err(failed)? {
                self.entry(job, dir, &name, &parent, &target.join(&name));
            }
            let metadata = dir.metadata().map_err(failed)?;
            let xattrs = self.xattrs(job, dir, source)?;
            self.keep(&xattrs, &metadata, target)
        });
    }

    /// Copies anything but a directory; returns its bytes.
    fn file(
        &mut self,
        job: &CopyJob,
        source: &LocalFile<'_>,
        parent: &Dir,
        target: &Path,
    ) -> Result<u64, Failure> {
        let metadata = &source.metadata;
        if metadata.nlink() > 1 {
            let file = (metadata.dev(), metadata.ino());
            if let Some(first) = self.linked.get(&file) {
                remove_existing(self.fs, target)?;
                self.fs.hard_link(first, target)?;
                return Ok(0);
            }
            self.linked.insert(file, target.to_path_buf());
        }
        let file_type = metadata.file_type();
        if file_type.is_file() {
            let xattrs = self.xattrs(job, &source.file, source.path)?;
            if !is_free_or_file(self.fs, target) {
                remove_existing(self.fs, target)?;
            }
            return self.contents(source, &xattrs, parent, target);
        }
        // Unlike contents, a link or a special file cannot be written over an existing file.
        remove_existing(self.fs, target)?;
        if file_type.is_symlink() {
            let to = readlinkat(&source.file, "", Vec::new())
                .map_err(|error| Failure::local(source.path, &error.into()))?;
            self.fs.symlink(OsStr::from_bytes(to.as_bytes()), target)?;
            self.fs.set_symlink_metadata(target, &self.kept(metadata))?;
            return Ok(0);
        }
        let kind = match file_type {
            kind if kind.is_fifo() => FileType::Fifo,
            kind if kind.is_socket() => FileType::Socket,
            kind if kind.is_block_device() => FileType::BlockDevice,
            _ => FileType::CharDevice,
        };
        let device = metadata.rdev();
        let numbers = (rustix::fs::major(device), rustix::fs::minor(device));
        self.fs.create_special(target, kind, metadata.mode() & 0o7777, numbers)?;
        self.keep(&self.xattrs(job, &source.file, source.path)?, metadata, target)?;
        Ok(0)
    }

    /// The extended attributes to keep; not for symbolic links.
    fn xattrs(&self, job: &CopyJob, file: impl AsFd, source: &Path) -> Result<Xattrs, Failure> {
        if job.archive { Xattrs::of_local(file, source) } else { Ok(Xattrs::default()) }
    }

    /// Sets the attributes of the copy; not for symbolic links.
    fn keep(&self, xattrs: &Xattrs, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
        xattrs.set_on_pool(self.fs, target, XattrStage::Before)?;
        self.fs.set_metadata(target, &self.kept(metadata))?;
        xattrs.set_on_pool(self.fs, target, XattrStage::After)
    }

    fn contents(
        &mut self,
        source: &LocalFile<'_>,
        xattrs: &Xattrs,
        parent: &Dir,
        target: &Path,
    ) -> Result<u64, Failure> {
        let LocalFile { file: from, metadata, path } = source;
        let name = target
            .file_name()
            .ok_or_else(|| Failure::new("the root of a pool is a directory; name a file in it"))?;
        let failed = |error| Failure::local(path, &error);
        let mut from: &File = from;
        let mut data = Some(0..metadata.len());
        if may_have_holes(metadata) {
            data = next_data(from, 0).map_err(failed)?;
        }
        let is_dense = data == Some(0..metadata.len());
        if is_dense && xattrs.is_empty() && metadata.len() <= WHOLE_BYTES_MAX {
            // The search for data moved the offset.
            from.rewind().map_err(failed)?;
            self.piece.clear();
            from.read_to_end(&mut self.piece).map_err(failed)?;
            parent.write_with(name, &self.piece, &self.kept(metadata))?;
            return Ok(self.piece.len() as u64);
        }
        let to = self.fs.create(target)?;
        let (mut copied, mut end) = (0, 0);
        while let Some(range) = data {
            copied += self.range(path, from, &to, range.clone())?;
            end = range.end;
            data = if is_dense { None } else { next_data(from, end).map_err(failed)? };
        }
        if end < metadata.len() {
            // A hole at the end was not written.
            to.set_len(metadata.len())?;
        }
        self.keep(xattrs, metadata, target)?;
        Ok(copied)
    }

    /// Copies a range of a file; returns the number of bytes, fewer if the file has become shorter.
    fn range(
        &mut self,
        source: &Path,
        from: &File,
        to: &warpfire::File,
        range: Range<u64>,
    ) -> Result<u64, Failure> {
        self.piece.resize(PIECE_BYTES, 0);
        let mut at = range.start;
        while at < range.end {
            let wanted = usize::try_from(range.end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let read = from.read_at(&mut self.piece[..wanted], at);
            let read = read.map_err(|error| Failure::local(source, &error))?;
            if read == 0 {
                break;
            }
            to.write_all_at(&self.piece[..read], at)?;
            at += read as u64;
        }
        Ok(at - range.start)
    }

    /// The metadata to set on a copy. The owner is set only by the superuser: other users cannot change it.
    fn kept(&self, metadata: &Metadata) -> SetMetadata {
        let nanos = |nanos: i64| u32::try_from(nanos).expect("nanoseconds of stat(2) are below a second");
        let accessed = Timestamp { seconds: metadata.atime(), nanos: nanos(metadata.atime_nsec()) };
        let modified = Timestamp { seconds: metadata.mtime(), nanos: nanos(metadata.mtime_nsec()) };
        let mut kept = SetMetadata::new().accessed(accessed).modified(modified);
        if !metadata.is_symlink() {
            kept = kept.mode(metadata.mode() & 0o7777);
        }
        if self.is_superuser {
            kept = kept.owner(metadata.uid()).group(metadata.gid());
        }
        kept
    }
}

/// Whether fewer bytes are allocated than the file is long: then it may have holes.
fn may_have_holes(metadata: &Metadata) -> bool {
    metadata.blocks().saturating_mul(STAT_BLOCK_BYTES) < metadata.len()
}

/// The next range of data at or after an offset; `None` if only a hole is left. Moves the file's offset.
///
/// # Errors
/// The errors of lseek(2).
fn next_data(file: &File, at: u64) -> io::Result<Option<Range<u64>>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start..seek(file, SeekFrom::Hole(start))?)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
