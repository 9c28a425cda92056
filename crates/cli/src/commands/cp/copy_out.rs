//! Copying of files out of a pool.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType as NodeType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat,
};
use warpfire::{FileType, Metadata, Timestamp, Warpfire};
use warpfire_terminal::Failure;

use super::xattrs::{XattrStage, Xattrs};
use super::{CopyJob, PIECE_BYTES};

/// A copy out of one pool.
pub struct CopyOut<'a> {
    fs: &'a Warpfire,
    /// Files with several names: the target of the first name.
    linked: HashMap<u64, PathBuf>,
    is_superuser: bool,
    piece: Vec<u8>,
}

impl<'a> CopyOut<'a> {
    pub fn new(fs: &'a Warpfire) -> Self {
        let is_superuser = rustix::process::geteuid().is_root();
        CopyOut { fs, linked: HashMap::new(), is_superuser, piece: vec![0; PIECE_BYTES] }
    }

    /// Copies a file, or a directory with its contents.
    pub fn copy(&mut self, job: &mut CopyJob, source: &Path, target: &Path) {
        let metadata = match self.fs.symlink_metadata(source) {
            Ok(metadata) => metadata,
            Err(error) => return job.skip(source, error),
        };
        if !metadata.is_dir() {
            let copied = self.file(job, source, &metadata, target);
            return job.outcome(source, copied);
        }
        if !job.recursive {
            return job.skip(source, "is a directory; copy it with -r");
        }
        if let Err(failure) = self.directory(job, source, target) {
            return job.skip(source, failure);
        }
        let kept = self.keep(job, source, &metadata, target);
        job.outcome(source, kept.map(|()| 0));
    }

    fn directory(&mut self, job: &mut CopyJob, source: &Path, target: &Path) -> Result<(), Failure> {
        if !target.is_dir() {
            fs::create_dir(target).map_err(|error| Failure::local(target, &error))?;
        }
        for entry in self.fs.read_dir(source)? {
            let name = entry?.file_name().to_owned();
            self.copy(job, &source.join(&name), &target.join(&name));
        }
        Ok(())
    }

    /// Copies anything but a directory; returns its bytes.
    fn file(
        &mut self,
        job: &CopyJob,
        source: &Path,
        metadata: &Metadata,
        target: &Path,
    ) -> Result<u64, Failure> {
        let failed = |error| Failure::local(target, &error);
        if metadata.nlink() > 1 {
            if let Some(first) = self.linked.get(&metadata.ino()) {
                replace(target)?;
                fs::hard_link(first, target).map_err(failed)?;
                return Ok(0);
            }
            self.linked.insert(metadata.ino(), target.to_path_buf());
        }
        let bytes = match metadata.file_type() {
            FileType::Symlink => {
                replace(target)?;
                symlink(self.fs.read_link(source)?, target).map_err(failed)?;
                0
            }
            FileType::File | FileType::Dir => self.contents(source, metadata, target)?,
            special => {
                replace(target)?;
                let (kind, (major, minor)) = (node_type(special), metadata.device_numbers());
                mknodat(CWD, target, kind, Mode::from_raw_mode(0o600), makedev(major, minor))
                    .map_err(|error| failed(error.into()))?;
                0
            }
        };
        self.keep(job, source, metadata, target)?;
        Ok(bytes)
    }

    fn contents(&mut self, source: &Path, metadata: &Metadata, target: &Path) -> Result<u64, Failure> {
        let failed = |error| Failure::local(target, &error);
        let from = self.fs.open(source)?;
        let to = fs::File::create(target).map_err(failed)?;
        let len = metadata.len();
        // A dense file is copied without the search for holes.
        let is_dense = metadata.allocated_bytes() >= len;
        let (mut at, mut copied) = (0, 0);
        while at < len {
            let data_end = if is_dense {
                len
            } else {
                let Some(data) = from.next_data(at)? else { break };
                at = data;
                from.next_hole(data)?.unwrap_or(len)
            };
            while at < data_end {
                let wanted = usize::try_from(data_end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                let read = from.read_at(&mut self.piece[..wanted], at)?;
                if read == 0 {
                    return Err(Failure::new("the file became shorter during the copy; copy it again"));
                }
                to.write_all_at(&self.piece[..read], at).map_err(failed)?;
                at += read as u64;
                copied += read as u64;
            }
        }
        if !is_dense {
            // A hole at the end was not written.
            to.set_len(len).map_err(failed)?;
        }
        Ok(copied)
    }

    /// Sets owner, mode and times of the copy, and with `--archive` its extended attributes. The owner is set
    /// only by the superuser: other users cannot change it.
    fn keep(&self, job: &CopyJob, source: &Path, metadata: &Metadata, target: &Path) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::local(target, &error);
        let xattrs = if job.archive && metadata.file_type() != FileType::Symlink {
            Xattrs::of_pool(self.fs, source)?
        } else {
            Xattrs::default()
        };
        xattrs.set_on_local(target, XattrStage::Before)?;
        if self.is_superuser {
            lchown(target, Some(metadata.uid()), Some(metadata.gid())).map_err(failed)?;
        }
        if metadata.file_type() != FileType::Symlink {
            let permissions = fs::Permissions::from_mode(metadata.mode());
            fs::set_permissions(target, permissions).map_err(failed)?;
        }
        xattrs.set_on_local(target, XattrStage::After)?;
        // Last, because no later step may change the times.
        let times = Timestamps {
            last_access: timespec(metadata.accessed()),
            last_modification: timespec(metadata.modified()),
        };
        utimensat(CWD, target, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| failed(error.into()))
    }
}

fn timespec(at: Timestamp) -> Timespec {
    Timespec { tv_sec: at.seconds, tv_nsec: i64::from(at.nanos) }
}

fn node_type(special: FileType) -> NodeType {
    match special {
        FileType::Fifo => NodeType::Fifo,
        FileType::Socket => NodeType::Socket,
        FileType::BlockDevice => NodeType::BlockDevice,
        _ => NodeType::CharacterDevice,
    }
}

/// Removes a file at the target, so that a link or a special file can be made there.
fn replace(target: &Path) -> Result<(), Failure> {
    match fs::remove_file(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::local(target, &error)),
        _ => Ok(()),
    }
}
