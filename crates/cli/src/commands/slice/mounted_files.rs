//! Slices of files on a mounted pool, by ioctls to its server. Each step is one commit, as inside a pool.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::io::Errno;
use warpfire_mount::{MountedSlice, remove_range};
use warpfire_terminal::{Failure, print};

use super::{FileRange, PastePosition, SliceBackend};

/// A range is read and printed in pieces of this size, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Local files.
pub struct MountedFiles;

fn failed(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| {
        if error.raw_os_error() == Some(Errno::NOTTY.raw_os_error()) {
            return Failure::new(format_args!("{} is not on a mounted pool", path.display()))
                .hint("mount the pool, or name its files as POOL:/path");
        }
        Failure::local(path, &error)
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(failed(path))
}

fn writable(path: &Path) -> Result<File, Failure> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed(path))
}

fn len(file: &File, path: &Path) -> Result<u64, Failure> {
    Ok(file.metadata().map_err(failed(path))?.len())
}

/// Yanks a part of a file that is on the same mount as `target`.
fn taken(part: &FileRange, source: &File, target: &File) -> Result<MountedSlice, Failure> {
    let mount = |file: &File| file.metadata().map(|meta| meta.dev()).map_err(failed(&part.path));
    let slice = MountedSlice::yank(source, part.range.clone()).map_err(failed(&part.path))?;
    if mount(source)? != mount(target)? {
        return Err(Failure::new(format_args!(
            "{} and the target are on different mounts",
            part.path.display()
        ))
        .hint("name files on one mounted pool"));
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

impl SliceBackend for MountedFiles {
    fn len(&self, path: &Path) -> Result<u64, Failure> {
        len(&open(path)?, path)
    }

    fn print(&self, part: &FileRange) -> Result<(), Failure> {
        let file = open(&part.path)?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = part.range.start;
        while at < part.range.end {
            let wanted = usize::try_from(part.range.end - at).unwrap_or(usize::MAX).min(PIECE_BYTES);
            let read = file.read_at(&mut piece[..wanted], at).map_err(failed(&part.path))?;
            if read == 0 {
                break;
            }
            print(&piece[..read])?;
            at += read as u64;
        }
        Ok(())
    }

    fn assemble(&self, parts: &[FileRange], target: &Path) -> Result<(), Failure> {
        let file = writable(target)?;
        let join = |first, second| joined(&file, first, second).map_err(failed(target));
        // A slice of rank r joins 2^r parts, and the ranks in `waiting` fall. So each part is joined a number
        // of times that is logarithmic in the number of parts, and few slices are kept at a time.
        let mut waiting: Vec<(u32, MountedSlice)> = Vec::new();
        let mut source: Option<(&Path, File)> = None;
        for part in parts {
            if source.as_ref().is_none_or(|(path, _)| *path != part.path) {
                source = Some((&part.path, open(&part.path)?));
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
        let file = writable(target)?;
        let slice = taken(part, &open(&part.path)?, &file)?;
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
        remove_range(&writable(&part.path)?, part.range.clone()).map_err(failed(&part.path))
    }
}
