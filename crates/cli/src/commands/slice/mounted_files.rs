//! Slices of files on a mounted pool, by ioctls to its server, in the view of a transaction.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use warpfire_mount::{MountedSlice, remove_range};
use warpfire_terminal::Failure;

use crate::commands::cat::print_piece;
use crate::commands::mount::mounted_pool::mount_around;
use crate::tree::MountedTree;

use super::{FileRange, PastePosition, SliceBackend};

/// A range is read and printed in pieces of this size, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Files on a mounted pool, as the view of a transaction shows them.
pub struct MountedFiles<'a> {
    /// Where the pool is mounted, if the paths of the command line are local paths below that. Otherwise they
    /// are paths in the pool.
    pub mountpoint: Option<&'a Path>,
    /// The files of the view.
    pub view: MountedTree,
}

/// The mountpoint of the pool that a file is on. The file need not exist.
pub fn mountpoint_of(path: &Path) -> Result<PathBuf, Failure> {
    let whole = resolved(path)?;
    let around = whole.parent().and_then(mount_around);
    around.ok_or_else(|| failed(path)(io::Error::from(Errno::NOTTY)))
}

/// The path without links. The file need not exist, but its directory.
fn resolved(path: &Path) -> Result<PathBuf, Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (path.canonicalize(), path.file_name()) {
        (Err(error), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(parent.canonicalize().map_err(failed(path))?.join(name))
        }
        (whole, _) => whole.map_err(failed(path)),
    }
}

impl MountedFiles<'_> {
    fn open(&self, path: &Path) -> Result<File, Failure> {
        self.view.open_file(&self.in_pool(path)?).map_err(|errno| failed(path)(errno.into()))
    }

    fn writable(&self, path: &Path) -> Result<File, Failure> {
        self.view.open_or_make(&self.in_pool(path)?).map_err(|errno| failed(path)(errno.into()))
    }

    /// The path of a file in the pool.
    fn in_pool(&self, path: &Path) -> Result<PathBuf, Failure> {
        let Some(mountpoint) = self.mountpoint else { return Ok(path.to_path_buf()) };
        let whole = resolved(path)?;
        let below = whole.strip_prefix(mountpoint).map_err(|_| different_mounts(path))?;
        Ok(Path::new("/").join(below))
    }
}

fn different_mounts(path: &Path) -> Failure {
    Failure::new(format_args!("{} and the other files are on different mounts", path.display()))
        .hint("name files on one mounted pool")
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| {
        if error.raw_os_error() == Some(Errno::NOTTY.raw_os_error()) {
            return Failure::new(format_args!("{} is not on a mounted pool", path.display()))
                .hint("mount the pool, or name its files as POOL:/path");
        }
        Failure::local(path, &error)
    }
}

fn len(file: &File, path: &Path) -> Result<u64, Failure> {
    Ok(file.metadata().map_err(failed(path))?.len())
}

/// Yanks a part of a file that is on the same mount as `target`.
fn taken(part: &FileRange, source: &File, target: &File) -> Result<MountedSlice, Failure> {
    let mount = |file: &File| file.metadata().map(|meta| meta.dev()).map_err(failed(&part.path));
    let slice = MountedSlice::yank(source, part.range.clone()).map_err(failed(&part.path))?;
    if mount(source)? != mount(target)? {
        return Err(different_mounts(&part.path));
    }
    Ok(slice)
}

/// Joins two slices into a new one, and releases the two.
fn joined(file: &File, first: MountedSlice, second: MountedSlice) -> io::Result<MountedSlice> {
    let both = first.join(file, second)?;
    first.release(file)?;
    second.release(file)?;
    Ok(both)
}

impl SliceBackend for MountedFiles<'_> {
    fn len(&self, path: &Path) -> Result<u64, Failure> {
        len(&self.open(path)?, path)
    }

    fn print(&self, part: &FileRange) -> Result<(), Failure> {
        let file = self.open(&part.path)?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = part.range.start;
        while at < part.range.end {
            let wanted = usize::try_from(part.range.end - at).unwrap_or(usize::MAX).min(PIECE_BYTES);
            let read = file.read_at(&mut piece[..wanted], at).map_err(failed(&part.path))?;
            if read == 0 {
                break;
            }
            print_piece(&part.path, at, &piece[..read])?;
            at += read as u64;
        }
        Ok(())
    }

    fn assemble(&self, parts: &[FileRange], target: &Path) -> Result<(), Failure> {
        let file = self.writable(target)?;
        let join = |first, second| joined(&file, first, second).map_err(failed(target));
        // A slice of rank r joins 2^r parts, and the ranks in `waiting` fall. So each part is joined a number
        // of times that is logarithmic in the number of parts, and few slices are kept at a time.
        let mut waiting: Vec<(u32, MountedSlice)> = Vec::new();
        let mut source: Option<(&Path, File)> = None;
        for part in parts {
            if source.as_ref().is_none_or(|(path, _)| *path != part.path) {
                source = Some((&part.path, self.open(&part.path)?));
            }
            let (_, from) = source.as_ref().expect("the source of a part is open");
            let (mut rank, mut slice) = (0, taken(part, from, &file)?);
            while let Some((_, before)) = waiting.pop_if(|(other, _)| *other == rank) {
                (rank, slice) = (rank + 1, join(before, slice)?);
            }
            waiting.push((rank, slice));
        }
        let Some((_, mut whole)) = waiting.pop() else { return file.set_len(0).map_err(failed(target)) };
        while let Some((_, before)) = waiting.pop() {
            whole = join(before, whole)?;
        }
        whole.replace(&file).and_then(|()| whole.release(&file)).map_err(failed(target))
    }

    fn paste(&self, part: &FileRange, target: &Path, position: PastePosition) -> Result<(), Failure> {
        let file = self.writable(target)?;
        let slice = taken(part, &self.open(&part.path)?, &file)?;
        match position {
            PastePosition::Over(at) => slice.paste(&file, Some(at)),
            PastePosition::End => slice.paste(&file, None),
            PastePosition::Between(at) if at > len(&file, target)? => {
                return Err(Failure::new(format_args!("{} ends before offset {at}", target.display()))
                    .hint("use an offset inside the file with --insert"));
            }
            PastePosition::Between(at) => slice.insert(&file, at),
        }
        .and_then(|()| slice.release(&file))
        .map_err(failed(target))
    }

    fn remove(&self, part: &FileRange) -> Result<(), Failure> {
        remove_range(&self.writable(&part.path)?, part.range.clone()).map_err(failed(&part.path))
    }
}
