//! Client of the slice ioctls: requests to the server of a mount.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};
use warpfire_fs::Position;

use super::wire::{
    DROP, INSERT, JOIN, PASTE, REMOVE, REPLACE, SliceBlock, SlicePart, SliceReply, SliceRequest, YANK,
};

/// Lease of a slice, in seconds: longer than it takes to join a very long list of slices.
const LEASE_SECONDS: u32 = 600;

/// A slice that a mount keeps for ten minutes.
///
/// The errors of all calls are those that `slices/wire.rs` lists, and `ENOTTY` if the file is not on a
/// mounted pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MountedSlice(u64);

impl MountedSlice {
    /// Yanks a range of a file, clipped to the end of the file.
    ///
    /// # Errors
    /// `EACCES` if the file may not be read.
    pub fn yank(file: &File, range: Range<u64>) -> io::Result<MountedSlice> {
        let len = range.end.saturating_sub(range.start);
        let reply = ask(file, SliceRequest::Yank { offset: range.start, len, seconds: LEASE_SECONDS })?;
        Ok(MountedSlice(reply.slice))
    }

    /// Joins this slice and `next` into a new one, and renews the lease of both. `file` is any file on the
    /// mount.
    ///
    /// # Errors
    /// `ENOENT` if the mount no longer keeps one of them.
    pub fn join(self, file: &File, next: MountedSlice) -> io::Result<MountedSlice> {
        let reply = ask(file, SliceRequest::Join { slice: self.0, other: next.0, seconds: LEASE_SECONDS })?;
        Ok(MountedSlice(reply.slice))
    }

    /// Ends the lease. `file` is any file on the mount.
    ///
    /// # Errors
    /// `ENOENT` if the mount no longer keeps the slice.
    pub fn release(self, file: &File) -> io::Result<()> {
        ask(file, SliceRequest::Drop { slice: self.0 }).map(drop)
    }

    /// Writes the slice over the bytes at an offset, or at the end of the file if `offset` is `None`.
    ///
    /// # Errors
    /// `EACCES` if the file may not be written.
    pub fn paste(self, file: &File, offset: Option<u64>) -> io::Result<()> {
        let position = offset.map_or(Position::End, Position::At);
        ask(file, SliceRequest::Paste { part: self.whole(), position }).map(drop)
    }

    /// Inserts the slice at an offset. The bytes from there on move up.
    ///
    /// # Errors
    /// `EINVAL` if the offset is past the end.
    pub fn insert(self, file: &File, offset: u64) -> io::Result<()> {
        ask(file, SliceRequest::Insert { part: self.whole(), offset }).map(drop)
    }

    /// Replaces the content of the file by the slice.
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

/// Removes a range of a file on a mounted pool. The bytes after it move down.
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
    // A stat makes the kernel fetch the new length of the file. Without it an append would use the old
    // length.
    file.metadata()?;
    SliceReply::decode(&block)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the server's answer is malformed"))
}

#[expect(unsafe_code, reason = "only the number of an ioctl defines the type of its argument")]
fn exchange<const NUMBER: Opcode>(file: &File, block: &mut SliceBlock) -> Result<(), Errno> {
    // SAFETY: the number encodes that the call reads and writes the length of a block, and FUSE copies no
    // more.
    unsafe { ioctl(file, Updater::<NUMBER, SliceBlock>::new(block)) }
}
