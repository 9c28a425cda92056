//! Copying of files inside one pool: the copy shares the slices of the file, so no data moves.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use warpfire::{FileType, Metadata, SetMetadata, Warpfire};
use warpfire_terminal::Failure;

use super::CopyJob;
use super::pool_target::{is_free_or_file, make_dir, remove_existing};
use super::xattrs::{XattrStage, Xattrs};

/// A copy inside one pool.
pub struct CopyWithin<'a> {
    fs: &'a Warpfire,
    /// Files with several names, by inode number: the target of the first name.
    linked: HashMap<u64, PathBuf>,
    is_superuser: bool,
}

impl<'a> CopyWithin<'a> {
    pub fn new(fs: &'a Warpfire) -> Self {
        CopyWithin { fs, linked: HashMap::new(), is_superuser: rustix::process::geteuid().is_root() }
    }

    /// Copies a file, or a directory with its contents.
    pub fn copy(&mut self, job: &mut CopyJob, source: &Path, target: &Path) {
        if target.starts_with(source) {
            return job.skip(source, Failure::new("cannot be copied into itself"));
        }
        let metadata = match self.fs.symlink_metadata(source) {
            Ok(metadata) => metadata,
            Err(error) => return job.skip(source, error),
        };
        if !metadata.is_dir() {
            let copied = self.file(job, source, &metadata, target);
            return job.outcome(source, copied);
        }
        job.directory(source, |job| {
            make_dir(self.fs, target)?;
            for entry in self.fs.read_dir(source)? {
                let name = entry?.file_name().to_owned();
                self.copy(job, &source.join(&name), &target.join(&name));
            }
            self.keep(job, source, &metadata, target)
        });
    }

    fn file(
        &mut self,
        job: &CopyJob,
        source: &Path,
        metadata: &Metadata,
        target: &Path,
    ) -> Result<u64, Failure> {
        if metadata.nlink() > 1 {
            if let Some(first) = self.linked.get(&metadata.ino()) {
                remove_existing(self.fs, target)?;
                self.fs.hard_link(first, target)?;
                return Ok(0);
            }
            self.linked.insert(metadata.ino(), target.to_path_buf());
        }
        let is_file = metadata.file_type() == FileType::File;
        if !is_file || !is_free_or_file(self.fs, target) {
            remove_existing(self.fs, target)?;
        }
        match metadata.file_type() {
            FileType::File | FileType::Dir => {
                self.fs.copy(source, target)?;
            }
            FileType::Symlink => self.fs.symlink(self.fs.read_link(source)?, target)?,
            special => {
                self.fs.create_special(target, special, metadata.mode(), metadata.device_numbers())?;
            }
        }
        self.keep(job, source, metadata, target)?;
        Ok(metadata.len())
    }

    /// Sets mode and times of the copy, as superuser its owner too, and with `--archive` its extended
    /// attributes.
    fn keep(&self, job: &CopyJob, source: &Path, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
        let mut kept = SetMetadata::new().accessed(metadata.accessed()).modified(metadata.modified());
        if self.is_superuser {
            kept = kept.owner(metadata.uid()).group(metadata.gid());
        }
        if metadata.file_type() == FileType::Symlink {
            return Ok(self.fs.set_symlink_metadata(target, &kept)?);
        }
        let xattrs = if job.archive { Xattrs::of_pool(self.fs, source)? } else { Xattrs::default() };
        xattrs.set_on_pool(self.fs, target, XattrStage::Before)?;
        self.fs.set_symlink_metadata(target, &kept.mode(metadata.mode()))?;
        xattrs.set_on_pool(self.fs, target, XattrStage::After)
    }
}
