//! Asking the server of a mount for slices of files.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};
use warpfire_fs::Position;

use super::wire::{
    DROP, INSERT, JOIN, PASTE, REMOVE, REPLACE, SliceBlock, SlicePart, SliceReply, SliceRequest, YANK,
};

/// How long slices are kept that nobody forgets: longer than a very long list of them takes to join.
const LEASE_SECONDS: u32 = 600;

/// A slice that a mount keeps, for ten minutes. Errors are those that `slices/wire.rs` lists; `ENOTTY` if the file is on no mounted pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MountedSlice(u64);

impl MountedSlice {
    /// Takes a range of a file, as far as the file goes.
    ///
    /// # Errors
    /// `EACCES` if the file may not be read.
    pub fn yank(file: &File, range: Range<u64>) -> io::Result<MountedSlice> {
        let len = range.end.saturating_sub(range.start);
        let reply = ask(file, SliceRequest::Yank { offset: range.start, len, seconds: LEASE_SECONDS })?;
        Ok(MountedSlice(reply.slice))
    }

    /// This one with another behind it; both are kept for another ten minutes. `file` is any on the mount.
    ///
    /// # Errors
    /// `ENOENT` if one is not kept any more.
    pub fn join(self, file: &File, behind: MountedSlice) -> io::Result<MountedSlice> {
        let reply = ask(file, SliceRequest::Join { slice: self.0, other: behind.0, seconds: LEASE_SECONDS })?;
        Ok(MountedSlice(reply.slice))
    }

    /// Forgets it. `file` is any on the mount.
    ///
    /// # Errors
    /// `ENOENT` if it is not kept any more.
    pub fn release(self, file: &File) -> io::Result<()> {
        ask(file, SliceRequest::Drop { slice: self.0 }).map(drop)
    }

    /// Writes it over what is at the offset, or at the end if there is none.
    ///
    /// # Errors
    /// `EACCES` if the file may not be written.
    pub fn paste(self, file: &File, offset: Option<u64>) -> io::Result<()> {
        let position = offset.map_or(Position::End, Position::At);
        ask(file, SliceRequest::Paste { part: self.whole(), position }).map(drop)
    }

    /// Puts it between what is before the offset and what follows, which moves up.
    ///
    /// # Errors
    /// `EINVAL` past the end.
    pub fn insert(self, file: &File, offset: u64) -> io::Result<()> {
        ask(file, SliceRequest::Insert { part: self.whole(), offset }).map(drop)
    }

    /// Makes the file hold it and nothing else.
    ///
    /// # Errors
    /// `EACCES` if the file may not be written.
    pub fn replace(self, file: &File) -> io::Result<()> {
        ask(file, SliceRequest::Replace { slice: self.0 }).map(drop)
    }

    fn whole(self) -> SlicePart {
        SlicePart { slice: self.0, from: 0, len: u64::MAX }
    }
}

/// Takes a range out of a file on a mounted pool; what follows moves down.
///
/// # Errors
/// As for [`MountedSlice::replace`].
pub fn remove_range(file: &File, range: Range<u64>) -> io::Result<()> {
    let len = range.end.saturating_sub(range.start);
    ask(file, SliceRequest::Remove { offset: range.start, len }).map(drop)
}

fn ask(file: &File, request: SliceRequest) -> io::Result<SliceReply> {
    let (command, mut block) = request.encode();
    match command {
        YANK => exchange::<{ YANK as Opcode }>(file, &mut block),
        PASTE => exchange::<{ PASTE as Opcode }>(file, &mut block),
        INSERT => exchange::<{ INSERT as Opcode }>(file, &mut block),
        REMOVE => exchange::<{ REMOVE as Opcode }>(file, &mut block),
        REPLACE => exchange::<{ REPLACE as Opcode }>(file, &mut block),
        JOIN => exchange::<{ JOIN as Opcode }>(file, &mut block),
        DROP => exchange::<{ DROP as Opcode }>(file, &mut block),
        _ => unreachable!("requests have no other numbers"),
    }?;
    // The kernel learns the file's new length when someone asks for it.
    file.metadata()?;
    SliceReply::decode(&block).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is none"))
}

#[expect(unsafe_code, reason = "an ioctl is a call with an argument that only its number tells the type of")]
fn exchange<const NUMBER: Opcode>(file: &File, block: &mut SliceBlock) -> Result<(), Errno> {
    // SAFETY: the number says that it reads and writes as many bytes as a block has, and FUSE passes no more.
    unsafe { ioctl(file, Updater::<NUMBER, SliceBlock>::new(block)) }
}
