//! Copying of files out of a pool. `local.rs` says how other users of the target are kept out.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType as NodeType, Gid, OFlags, Timespec, Timestamps, Uid, makedev};
use rustix::fs::{chownat, futimens, linkat, mknodat, openat, symlinkat, utimensat};
use warpfire::{FileType, Metadata, Timestamp, Warpfire};
use warpfire_terminal::Failure;

use super::local::{LocalDir, NamedPath, NewEntry, PRIVATE_FILE, magic_path};
use super::xattrs::{XattrStage, Xattrs};
use super::{CopyJob, PIECE_BYTES};

/// A copy of one source out of a pool.
pub struct CopyOut<'a> {
    fs: &'a Warpfire,
    /// Files with several names, by inode number: the first copy.
    linked: HashMap<u64, FirstCopy>,
    is_superuser: bool,
    piece: Vec<u8>,
}

/// The first copy of a file with several names.
struct FirstCopy {
    /// Its path from the directory that the copy began in.
    path: PathBuf,
    /// Device and inode number.
    file: (u64, u64),
}

/// The place of a copy.
struct Place<'a> {
    dir: &'a LocalDir,
    name: &'a OsStr,
    /// The directory that the copy began in, and the path from there.
    top: &'a LocalDir,
    path: &'a Path,
}

impl<'a> CopyOut<'a> {
    pub fn new(fs: &'a Warpfire) -> Self {
        let is_superuser = rustix::process::geteuid().is_root();
        CopyOut { fs, linked: HashMap::new(), is_superuser, piece: vec![0; PIECE_BYTES] }
    }

    /// Copies a file, or a directory with its contents.
    pub fn copy(&mut self, job: &mut CopyJob, source: &Path, target: &Path) {
        let target = match NamedPath::open(target) {
            Ok(target) => target,
            Err(failure) => return job.skip(source, failure),
        };
        let top = &target.dir;
        if let Some(name) = &target.name {
            return self.entry(job, source, &Place { dir: top, name, top, path: Path::new(name) });
        }
        // The root of a pool is copied into the directory that is named.
        let metadata = match self.fs.symlink_metadata(source) {
            Ok(metadata) if metadata.is_dir() => metadata,
            Ok(_) => {
                let reason = Failure::new("the destination is a directory").hint("name a file in it");
                return job.skip(source, reason);
            }
            Err(error) => return job.skip(source, error),
        };
        job.directory(source, |job| self.fill(job, source, &metadata, top, top, Path::new("")));
    }

    fn entry(&mut self, job: &mut CopyJob, source: &Path, place: &Place<'_>) {
        let metadata = match self.fs.symlink_metadata(source) {
            Ok(metadata) => metadata,
            Err(error) => return job.skip(source, error),
        };
        if !metadata.is_dir() {
            let copied = self.file(job, source, &metadata, place);
            return job.outcome(source, copied);
        }
        job.directory(source, |job| {
            let made = place.dir.open_or_make(place.name);
            let made = made.map_err(|error| Failure::local(&place.dir.shown(place.name), &error))?;
            self.fill(job, source, &metadata, &made, place.top, place.path)
        });
    }

    fn fill(
        &mut self,
        job: &mut CopyJob,
        source: &Path,
        metadata: &Metadata,
        dir: &LocalDir,
        top: &LocalDir,
        path: &Path,
    ) -> Result<(), Failure> {
        for entry in self.fs.read_dir(source)? {
            let name = entry?.file_name().to_owned();
            let path = path.join(&name);
            self.entry(job, &source.join(&name), &Place { dir, name: &name, top, path: &path });
        }
        self.keep(job, source, metadata, dir, dir.shown(OsStr::new("")).as_path())
    }

    /// Copies anything but a directory; returns its bytes.
    fn file(
        &mut self,
        job: &CopyJob,
        source: &Path,
        metadata: &Metadata,
        place: &Place<'_>,
    ) -> Result<u64, Failure> {
        let (dir, shown) = (place.dir, place.dir.shown(place.name));
        let failed = |error| Failure::local(&shown, &error);
        if let Some(first) = self.linked.get(&metadata.ino())
            && let Some(linked) = link_again(first, place)
        {
            linked.put(place.name).map_err(failed)?;
            return Ok(0);
        }
        let mut bytes = 0;
        let (entry, made) = match metadata.file_type() {
            FileType::Symlink => {
                let target = self.fs.read_link(source)?;
                NewEntry::make(dir, |dir, name| symlinkat(&target, dir, name)).map_err(failed)?
            }
            FileType::File | FileType::Dir => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let (entry, to) = NewEntry::make(dir, |dir, name| openat(dir, name, flags, PRIVATE_FILE))
                    .map_err(failed)?;
                let to = File::from(to);
                bytes = self.contents(source, metadata, &to, &shown)?;
                return self.finish(job, source, metadata, place, entry, to).map(|()| bytes);
            }
            special => {
                let (kind, (major, minor)) = (node_type(special), metadata.device_numbers());
                let device = makedev(major, minor);
                NewEntry::make(dir, |dir, name| mknodat(dir, name, kind, PRIVATE_FILE, device))
                    .map_err(failed)?
            }
        };
        let () = made;
        let pinned = dir.pin(entry.name()).map_err(failed)?;
        // Found again by name: the owner of the directory may have put another file there.
        let there = pinned.metadata().map_err(failed)?;
        let is_ours = there.uid() == rustix::process::geteuid().as_raw() && there.nlink() == 1;
        let wanted = node_type(metadata.file_type());
        if !is_ours || NodeType::from_raw_mode(there.mode()) != wanted {
            return Err(Failure::new("the new file was replaced during the copy").hint("copy it again"));
        }
        self.finish(job, source, metadata, place, entry, pinned).map(|()| bytes)
    }

    /// Sets the attributes of a new file and puts it in its place.
    fn finish(
        &mut self,
        job: &CopyJob,
        source: &Path,
        metadata: &Metadata,
        place: &Place<'_>,
        entry: NewEntry<'_>,
        made: File,
    ) -> Result<(), Failure> {
        let shown = place.dir.shown(place.name);
        let failed = |error| Failure::local(&shown, &error);
        self.keep(job, source, metadata, &made, &shown)?;
        if metadata.nlink() > 1 {
            let there = made.metadata().map_err(failed)?;
            let first = FirstCopy { path: place.path.to_path_buf(), file: (there.dev(), there.ino()) };
            self.linked.insert(metadata.ino(), first);
        }
        entry.put(place.name).map_err(failed)
    }

    fn contents(
        &mut self,
        source: &Path,
        metadata: &Metadata,
        to: &File,
        shown: &Path,
    ) -> Result<u64, Failure> {
        let failed = |error| Failure::local(shown, &error);
        let from = self.fs.open(source)?;
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
    /// only by the superuser: other users cannot change it. `made` is a directory or file that is open, or a
    /// pinned link or special file.
    fn keep(
        &self,
        job: &CopyJob,
        source: &Path,
        metadata: &Metadata,
        made: impl AsFd,
        shown: &Path,
    ) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::local(shown, &error);
        let is_link = metadata.file_type() == FileType::Symlink;
        let xattrs =
            if job.archive && !is_link { Xattrs::of_pool(self.fs, source)? } else { Xattrs::default() };
        xattrs.set_on_local(&made, shown, XattrStage::Before)?;
        if self.is_superuser {
            let (uid, gid) = (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid()));
            chownat(&made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(|e| failed(e.into()))?;
        }
        if !is_link {
            let permissions = Permissions::from_mode(metadata.mode());
            std::fs::set_permissions(magic_path(&made), permissions).map_err(failed)?;
        }
        xattrs.set_on_local(&made, shown, XattrStage::After)?;
        // Last, because no later step may change the times.
        let times = Timestamps {
            last_access: timespec(metadata.accessed()),
            last_modification: timespec(metadata.modified()),
        };
        let set = match metadata.file_type() {
            FileType::File | FileType::Dir => futimens(&made, &times),
            _ => utimensat(&made, "", &times, AtFlags::EMPTY_PATH),
        };
        set.map_err(|error| failed(error.into()))
    }
}

/// Another name of a file that was copied before; `None` if that copy is no longer in its place.
fn link_again<'a>(first: &FirstCopy, place: &Place<'a>) -> Option<NewEntry<'a>> {
    let from = place.top.open_below(first.path.parent()?).ok()?;
    let name = first.path.file_name()?;
    let link = |dir: &LocalDir, aside: &OsStr| linkat(&from, name, dir, aside, AtFlags::empty());
    let (entry, ()) = NewEntry::make(place.dir, link).ok()?;
    let linked = place.dir.pin(entry.name()).and_then(|linked| linked.metadata()).ok()?;
    ((linked.dev(), linked.ino()) == first.file).then_some(entry)
}

fn timespec(at: Timestamp) -> Timespec {
    Timespec { tv_sec: at.seconds, tv_nsec: i64::from(at.nanos) }
}

fn node_type(special: FileType) -> NodeType {
    match special {
        FileType::Symlink => NodeType::Symlink,
        FileType::Fifo => NodeType::Fifo,
        FileType::Socket => NodeType::Socket,
        FileType::BlockDevice => NodeType::BlockDevice,
        _ => NodeType::CharacterDevice,
    }
}
