//! Copying of local files into a pool.
//!
//! A directory of the pool is opened once, and its files are made through that handle: each in one commit
//! with its bytes, mode, owner and times. A file that is long, has holes or has extended attributes takes
//! several commits.

use std::collections::HashMap;
use std::fs::{self, DirEntry, File, Metadata};
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use warpfire::{Dir, FileType, SetMetadata, Timestamp, Warpfire};
use warpfire_terminal::Failure;

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

impl<'a> CopyIn<'a> {
    pub fn new(fs: &'a Warpfire) -> Self {
        let is_superuser = rustix::process::geteuid().is_root();
        CopyIn { fs, linked: HashMap::new(), is_superuser, piece: Vec::new() }
    }

    /// Copies a file, or a directory with its contents.
    pub fn copy(&mut self, job: &mut CopyJob, source: &Path, target: &Path) {
        let parent = target.parent().unwrap_or(Path::new("/"));
        match self.fs.dir(parent) {
            Ok(parent) => self.entry(job, source, &parent, target),
            Err(error) => job.skip(parent, error),
        }
    }

    fn entry(&mut self, job: &mut CopyJob, source: &Path, parent: &Dir, target: &Path) {
        let metadata = match fs::symlink_metadata(source) {
            Ok(metadata) => metadata,
            Err(error) => return job.skip(source, error),
        };
        if !metadata.is_dir() {
            let copied = self.file(job, source, &metadata, parent, target);
            return job.outcome(source, copied);
        }
        if !job.recursive {
            return job.skip(source, "is a directory; copy it with -r");
        }
        if let Err(failure) = self.directory(job, source, target) {
            return job.skip(source, failure);
        }
        // After the contents: each entry changes the times, and a mode without write permission would refuse
        // it.
        let kept = self.xattrs(job, source).and_then(|xattrs| self.keep(&xattrs, &metadata, target));
        job.outcome(source, kept.map(|()| 0));
    }

    fn directory(&mut self, job: &mut CopyJob, source: &Path, target: &Path) -> Result<(), Failure> {
        if !self.fs.metadata(target).is_ok_and(|there| there.is_dir()) {
            self.fs.create_dir(target)?;
        }
        let dir = self.fs.dir(target)?;
        let entries = fs::read_dir(source).and_then(|entries| entries.collect::<Result<Vec<DirEntry>, _>>());
        let mut names: Vec<_> = match entries {
            Ok(entries) => entries.iter().map(DirEntry::file_name).collect(),
            Err(error) => return Err(Failure::local(source, &error)),
        };
        names.sort();
        for name in names {
            self.entry(job, &source.join(&name), &dir, &target.join(&name));
        }
        Ok(())
    }

    /// Copies anything but a directory; returns its bytes.
    fn file(
        &mut self,
        job: &CopyJob,
        source: &Path,
        metadata: &fs::Metadata,
        parent: &Dir,
        target: &Path,
    ) -> Result<u64, Failure> {
        if metadata.nlink() > 1 {
            let file = (metadata.dev(), metadata.ino());
            if let Some(first) = self.linked.get(&file) {
                self.replace(target)?;
                self.fs.hard_link(first, target)?;
                return Ok(0);
            }
            self.linked.insert(file, target.to_path_buf());
        }
        let file_type = metadata.file_type();
        if file_type.is_file() {
            let xattrs = self.xattrs(job, source)?;
            return self.contents(source, metadata, &xattrs, parent, target);
        }
        // Unlike contents, a link or a special file cannot be written over an existing file.
        self.replace(target)?;
        if file_type.is_symlink() {
            let to = fs::read_link(source).map_err(|error| Failure::local(source, &error))?;
            self.fs.symlink(&to, target)?;
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
        self.keep(&self.xattrs(job, source)?, metadata, target)?;
        Ok(0)
    }

    /// The extended attributes to keep; not for symbolic links.
    fn xattrs(&self, job: &CopyJob, source: &Path) -> Result<Xattrs, Failure> {
        if job.archive { Xattrs::of_local(source) } else { Ok(Xattrs::default()) }
    }

    /// Sets the attributes of the copy; not for symbolic links.
    fn keep(&self, xattrs: &Xattrs, metadata: &fs::Metadata, target: &Path) -> Result<(), Failure> {
        xattrs.set_on_pool(self.fs, target, XattrStage::Before)?;
        self.fs.set_metadata(target, &self.kept(metadata))?;
        xattrs.set_on_pool(self.fs, target, XattrStage::After)
    }

    /// Removes a file at the target, so that a link or a special file can be made there.
    fn replace(&self, target: &Path) -> Result<(), Failure> {
        match self.fs.remove_file(target) {
            Err(error) if error.kind() != warpfire::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn contents(
        &mut self,
        source: &Path,
        metadata: &fs::Metadata,
        xattrs: &Xattrs,
        parent: &Dir,
        target: &Path,
    ) -> Result<u64, Failure> {
        let name = target
            .file_name()
            .ok_or_else(|| Failure::new("the root of a pool is a directory; name a file in it"))?;
        let failed = |error| Failure::local(source, &error);
        let mut from = fs::File::open(source).map_err(failed)?;
        let mut data = Some(0..metadata.len());
        if may_have_holes(metadata) {
            data = next_data(&from, 0).map_err(failed)?;
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
            copied += self.range(source, &from, &to, range.clone())?;
            end = range.end;
            data = if is_dense { None } else { next_data(&from, end).map_err(failed)? };
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
        from: &fs::File,
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
    fn kept(&self, metadata: &fs::Metadata) -> SetMetadata {
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
