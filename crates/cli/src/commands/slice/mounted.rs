//! Slices of files on a mounted pool, by `copy_file_range`: the kernel asks the pool, which copies pointers.
//!
//! A range can not be copied within a file over itself, and a file can not be its own source while it is being emptied, so what is
//! needed later is first put aside in a file without a name, by pointers too.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::door::{Door, Part, Place};
use crate::failure::Failure;
use crate::output::print;

/// A range is read and printed in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// A file is asked for in pieces that the answer of a copy has room for.
const COPY_BYTES_MAX: u64 = 1 << 30;

/// The files of this machine.
pub struct Mounted;

fn failed<E: Into<std::io::Error>>(path: &Path) -> impl FnOnce(E) -> Failure {
    move |error| Failure::local(path, &error.into())
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

/// A file beside `path` that goes with its last user: the mount makes none without a name, so it has one for a moment.
fn aside(path: &Path) -> Result<File, Failure> {
    let name = path.with_file_name(format!(".warpfire-slice-{}", std::process::id()));
    let made = File::options().read(true).write(true).create_new(true).open(&name);
    let made = made.map_err(failed(&name))?;
    std::fs::remove_file(&name).map_err(failed(&name))?;
    Ok(made)
}

/// Copies a range by pointers to an offset of another file.
fn copy(from: &File, range: Range<u64>, to: &File, at: u64, path: &Path) -> Result<(), Failure> {
    let (mut from_at, mut to_at) = (range.start, at);
    while from_at < range.end {
        let len = usize::try_from((range.end - from_at).min(COPY_BYTES_MAX)).expect("a piece fits");
        let copied = rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len);
        if copied.map_err(failed(path))? == 0 {
            return Err(Failure::new(format_args!("{}: it became shorter meanwhile", path.display())));
        }
    }
    Ok(())
}

/// The range of a file, on its own.
fn taken(part: &Part, beside: &Path) -> Result<File, Failure> {
    let taken = aside(beside)?;
    copy(&open(&part.path)?, part.range.clone(), &taken, 0, &part.path)?;
    Ok(taken)
}

/// Makes the bytes from an offset of a file on those of another.
fn end_with(file: &File, at: u64, tail: &File, path: &Path) -> Result<(), Failure> {
    file.set_len(at).map_err(failed(path))?;
    let tail_len = len(tail, path)?;
    copy(tail, 0..tail_len, file, at, path)?;
    // A hole at the end is not copied everywhere.
    file.set_len(at + tail_len).map_err(failed(path))
}

impl Door for Mounted {
    fn len(&self, path: &Path) -> Result<u64, Failure> {
        len(&open(path)?, path)
    }

    fn print(&self, part: &Part) -> Result<(), Failure> {
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

    fn assemble(&self, parts: &[Part], target: &Path) -> Result<(), Failure> {
        let whole = aside(target)?;
        let mut at = 0;
        for part in parts {
            copy(&open(&part.path)?, part.range.clone(), &whole, at, &part.path)?;
            at += part.len();
        }
        end_with(&writable(target)?, 0, &whole, target)
    }

    fn paste(&self, part: &Part, target: &Path, place: Place) -> Result<(), Failure> {
        let slice = taken(part, target)?;
        let file = writable(target)?;
        let size = len(&file, target)?;
        let at = match place {
            Place::Over(at) | Place::Between(at) => at,
            Place::End => size,
        };
        if !matches!(place, Place::Between(_)) {
            return copy(&slice, 0..part.len(), &file, at, target);
        }
        if at > size {
            return Err(Failure::new(format_args!("{}: it ends before {at}", target.display())));
        }
        let tail = taken(&Part { path: target.to_path_buf(), range: at..size }, target)?;
        copy(&slice, 0..part.len(), &file, at, target)?;
        end_with(&file, at + part.len(), &tail, target)
    }

    fn remove(&self, part: &Part) -> Result<(), Failure> {
        let file = writable(&part.path)?;
        let tail = Part { path: part.path.clone(), range: part.range.end..len(&file, &part.path)? };
        end_with(&file, part.range.start, &taken(&tail, &part.path)?, &part.path)
    }
}
