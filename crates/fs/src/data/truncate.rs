//! Changing a file's size.

use warpfire_format::fs::REGION_BYTES;
use warpfire_meta::{Admit, Storage};

use super::check_regular;
use super::piece::{FilePiece, FilePieces};
use crate::acl::Caller;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::{FILE_BYTES_MAX, REGIONS_PER_COMMIT};
use crate::node::{Layout, NodeRef};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

impl<E: Storage> Fs<E> {
    /// Sets a file's size in bytes; a longer file gets a hole at its end. The caller of this function checks
    /// the permission to write. It is one commit, unless the file loses more than 2^18 regions (256 GiB of
    /// data): such a file becomes shorter in steps, from its end.
    ///
    /// # Errors
    /// `FileTooLarge` above 2^63 - 1; `IsDirectory`; `Invalid` for a node without content.
    pub fn truncate(&self, caller: &Caller<'_>, node: &NodeRef, size: u64) -> Result<(), FsError> {
        let record = || Truncate { caller: RecordedCaller::of(caller), node: node.ino(), size };
        self.call(record, || {
            check_regular(node)?;
            if size > FILE_BYTES_MAX {
                return Err(FsError::FileTooLarge);
            }
            self.truncate_to_one_commit(caller, node, size)?;
            self.set_size(caller, node, size)
        })
    }

    /// Removes extents from the end until one more commit can reach `size`. Nearly no file needs a step.
    pub(super) fn truncate_to_one_commit(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        size: u64,
    ) -> Result<(), FsError> {
        while let Some(step) = self.truncate_step(node, size)? {
            self.cut(caller, node, step)?;
        }
        Ok(())
    }

    /// An offset between the end of the file's extents and `size`, so that one commit can remove what lies
    /// past it; `None` if one commit can reach `size`.
    fn truncate_step(&self, node: &NodeRef, size: u64) -> Result<Option<u64>, FsError> {
        let state = node.state.read();
        let region = u64::from(REGION_BYTES);
        let end = state.extents_end();
        // By the sizes alone: nearly every truncation is short, and reads nothing here.
        let lost = end.saturating_sub(size) / region;
        if state.layout == Layout::Inline || lost <= REGIONS_PER_COMMIT as u64 {
            return Ok(None);
        }
        let mut regions = self.regions_from(node.ino(), size / region, end, usize::MAX)?;
        let Some(kept) = regions.len().checked_sub(REGIONS_PER_COMMIT).filter(|kept| *kept > 0) else {
            return Ok(None);
        };
        let first_lost = regions.swap_remove(kept);
        assert!(first_lost * region < end, "each step removes extents");
        Ok(Some((first_lost * region).max(size)).filter(|step| *step > size))
    }

    /// Removes all extents past `offset`. The file has that size then, unless it is smaller already.
    fn cut(&self, caller: &Caller<'_>, node: &NodeRef, offset: u64) -> Result<(), FsError> {
        let mut scratch = Scratch::take();
        let mut state = node.state.write();
        let size = state.attrs.size_bytes.min(offset);
        let rest = [FilePiece::hole(offset, state.extents_end().saturating_sub(offset))];
        let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
        self.apply_pieces(node, &mut state, &rest, size, edit, &mut scratch.batch, Admit::Reserve)
    }

    fn set_size(&self, caller: &Caller<'_>, node: &NodeRef, size: u64) -> Result<(), FsError> {
        let mut scratch = Scratch::take();
        let mut state = node.state.write();
        let (old, end) = (state.attrs.size_bytes, state.extents_end());
        let mut pieces = FilePieces::new();
        // Reserved extents past the end go too, unless the file grows.
        if size <= old && size < end {
            pieces.push(FilePiece::hole(size, end - size));
        }
        // A shorter file makes room, so a full pool allows it.
        let admit = if size <= old { Admit::Reserve } else { Admit::User };
        let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
        self.apply_pieces(node, &mut state, &pieces, size, edit, &mut scratch.batch, admit)
    }
}

/// The journal's form of [`Fs::truncate`].
struct Truncate {
    caller: RecordedCaller,
    node: u64,
    size: u64,
}

impl<E: Storage> Operation<Fs<E>> for Truncate {
    fn name(&self) -> &'static str {
        "truncate"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.truncate(&self.caller.get(), scene.node(self.node)?, self.size)
    }
}
