//! Copying local files into a pool.
//!
//! A folder is opened in the pool once and its files are made through that handle, each in one commit with its
//! bytes, mode, owner and times.

use std::collections::HashMap;
use std::fs::{self, DirEntry};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use warpfire::{Dir, FileType, SetMetadata, Timestamp, Warpfire};

use super::Job;
use crate::failure::Failure;

/// A file up to this size is read whole and made in one commit.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// A larger file is copied in pieces of this size.
const PIECE_BYTES: usize = 4 << 20;

/// A copy into one pool.
pub struct Inward<'a> {
    fs: &'a Warpfire,
    /// Files with more than one name: where the first was copied to.
    linked: HashMap<(u64, u64), PathBuf>,
    is_superuser: bool,
    piece: Vec<u8>,
}

impl<'a> Inward<'a> {
    pub fn new(fs: &'a Warpfire) -> Self {
        let is_superuser = rustix::process::geteuid().is_root();
        Inward { fs, linked: HashMap::new(), is_superuser, piece: Vec::new() }
    }

    /// Copies a file, or a folder with all that is in it.
    pub fn copy(&mut self, job: &mut Job, source: &Path, target: &Path) {
        let parent = target.parent().unwrap_or(Path::new("/"));
        match self.fs.dir(parent) {
            Ok(parent) => self.entry(job, source, &parent, target),
            Err(error) => job.skip(parent, error),
        }
    }

    fn entry(&mut self, job: &mut Job, source: &Path, parent: &Dir, target: &Path) {
        let metadata = match fs::symlink_metadata(source) {
            Ok(metadata) => metadata,
            Err(error) => return job.skip(source, error),
        };
        if !metadata.is_dir() {
            let copied = self.file(source, &metadata, parent, target);
            return job.outcome(source, copied);
        }
        if !job.recursive {
            return job.skip(source, "is a folder; copy it with -r");
        }
        if let Err(failure) = self.folder(job, source, target) {
            return job.skip(source, failure);
        }
        // Times and a mode without the owner's write bit can be set only once everything is inside.
        let set = self.fs.set_metadata(target, &self.kept(&metadata));
        job.outcome(source, set.map(|()| 0));
    }

    fn folder(&mut self, job: &mut Job, source: &Path, target: &Path) -> Result<(), Failure> {
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

    /// Copies what is no folder; gives the bytes that it held.
    fn file(
        &mut self,
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
            return self.contents(source, metadata, parent, target);
        }
        self.replace(target)?;
        if file_type.is_symlink() {
            let to = fs::read_link(source).map_err(|error| Failure::local(source, &error))?;
            self.fs.symlink(&to, target)?;
        } else {
            let kind = match file_type {
                kind if kind.is_fifo() => FileType::Fifo,
                kind if kind.is_socket() => FileType::Socket,
                kind if kind.is_block_device() => FileType::BlockDevice,
                _ => FileType::CharDevice,
            };
            let device = metadata.rdev();
            let numbers = (rustix::fs::major(device), rustix::fs::minor(device));
            self.fs.create_special(target, kind, metadata.mode() & 0o7777, numbers)?;
        }
        self.fs.set_symlink_metadata(target, &self.kept(metadata))?;
        Ok(0)
    }

    /// Removes what is in the way of something that is no regular file.
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
        parent: &Dir,
        target: &Path,
    ) -> Result<u64, Failure> {
        let name = target.file_name().ok_or_else(|| Failure::new("the root of a pool is no file"))?;
        let failed = |error| Failure::local(source, &error);
        let mut from = fs::File::open(source).map_err(failed)?;
        let kept = self.kept(metadata);
        self.piece.clear();
        if metadata.len() <= WHOLE_BYTES_MAX {
            from.read_to_end(&mut self.piece).map_err(failed)?;
            parent.write_with(name, &self.piece, &kept)?;
            return Ok(self.piece.len() as u64);
        }
        let to = self.fs.create(target)?;
        self.piece.resize(PIECE_BYTES, 0);
        let mut at = 0;
        loop {
            let read = from.read(&mut self.piece).map_err(failed)?;
            if read == 0 {
                break;
            }
            to.write_all_at(&self.piece[..read], at)?;
            at += read as u64;
        }
        self.fs.set_metadata(target, &kept)?;
        Ok(at)
    }

    /// What is kept of a file besides its contents. Only the superuser can give files away.
    fn kept(&self, metadata: &fs::Metadata) -> SetMetadata {
        let nanos = |nanos: i64| u32::try_from(nanos).expect("the kernel keeps nanoseconds below a second");
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
