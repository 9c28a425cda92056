//! Applying pieces over a file: every change of content but a splice goes through `apply_pieces`.
//!
//! # Invariants
//! 1. No extent of data reaches past the file's size. Reserved extents may (asserts in `apply_pieces`;
//!    `tests::check` reads all records).
//! 2. A file without the flag `SPARSE` has data at every offset below its size. So a write to such a file,
//!    if nothing is reserved past the end, reads nothing to keep `allocated_bytes` exact (`allocation_after`;
//!    `tests::file_model` counts every byte).
//! 3. `allocated_bytes` counts data and reserved bytes, `reserved_bytes` the latter. A commit adds their
//!    changes to the sums of the volume, and the engine keeps room for the second sum (`tests::reserved`).
//! 4. A commit that fails leaves the node as it was: each function changes the node's state after its commit
//!    (`tests::bad_days`).
//!
//! ```text
//!             outgrows 64 KiB: `promote_to_regions`, or a splice
//!   Inline ──────────────────────────────────────────────────────► Regions
//!          ◄──────────────────────────────────────────────────────
//!             becomes empty: `empty`, or a splice
//! ```

use warpfire_format::fs::{
    ExtentMap, ExtentReader, Inode, InodeContent, InodeEdit, REGION_BYTES, SMALL_FILE_BYTES_MAX,
    decode_region, encode_region, flag,
};
use warpfire_meta::{Admit, Batch, RESERVED, Storage};

use super::piece::{FilePiece, FilePieces, by_region};
use crate::attrs::missing_record;
use crate::damage::MISCOUNTED_BYTES;
use crate::deferred::BYTES;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::region_key;
use crate::limits::REGIONS_PER_COMMIT;
use crate::node::{Layout, Node, NodeState};

const REGION: u64 = REGION_BYTES as u64;

impl<E: Storage> Fs<E> {
    /// Commits pieces over the content of a file, with its new size in bytes and everything in `edit` and
    /// `batch`. Pieces are in order and do not overlap. Only holes and reserved pieces may reach past
    /// `size_after`.
    ///
    /// # Errors
    /// `FileTooLarge` for more than 2^18 regions; `Damaged` if a record is wrong; as `commit`.
    #[expect(clippy::too_many_arguments, reason = "the one commit of all changes of content, with its state")]
    pub(crate) fn apply_pieces<'a>(
        &self,
        node: &Node,
        state: &mut NodeState,
        pieces: &[FilePiece<'a>],
        size_after: u64,
        edit: InodeEdit<'a>,
        batch: &mut Batch,
        admit: Admit,
    ) -> Result<(), FsError> {
        debug_assert!(
            pieces.is_sorted_by(|a, b| a.end() <= b.offset),
            "pieces are in order and do not overlap"
        );
        debug_assert!(
            pieces.iter().all(|piece| !piece.is_data() || piece.end() <= size_after),
            "no extent of data reaches past the file's size"
        );
        let before = state.attrs;
        let after = self.allocation_after(node, state, pieces, size_after)?;
        let allocated = after.allocated()?;
        batch.add(BYTES, allocated.wrapping_sub(before.allocated_bytes).cast_signed());
        batch.add(RESERVED, after.reserved.wrapping_sub(before.reserved_bytes).cast_signed());
        let reserved = (after.reserved != before.reserved_bytes).then_some(after.reserved);
        let mut edit = InodeEdit { size: Some((size_after, allocated)), reserved, ..edit };
        let flags = edit.flags.unwrap_or(state.attrs.flags);
        let sparse = after.data < size_after;
        let new_flags = if sparse { flags | flag::SPARSE } else { flags & !flag::SPARSE };
        if new_flags != state.attrs.flags {
            edit.flags = Some(new_flags);
        }
        let end = pieces.last().filter(|piece| piece.is_reserved()).map_or(0, FilePiece::end);
        let fits = size_after.max(end) <= u64::from(SMALL_FILE_BYTES_MAX);
        match state.layout {
            Layout::Inline if fits => {
                // One merge of an edit with the extents in it: nothing is read.
                let limit = u64::from(SMALL_FILE_BYTES_MAX);
                let parts: FilePieces<'_> = pieces.iter().filter_map(|p| p.clip(0, limit)).collect();
                edit.extents = by_region(&parts).into_iter().next().map(|(_, map)| map).unwrap_or_default();
                self.commit_edit(node, state, &edit, batch, admit)?;
                self.note_edits(node, state, 0, pieces);
            }
            Layout::Inline => self.promote_to_regions(node, state, pieces, &edit, batch, admit)?,
            Layout::Regions if size_after == 0 && allocated == 0 => {
                self.empty(node, state, &edit, batch, admit)?
            }
            Layout::Regions => {
                self.plan_regions(node.ino(), pieces, state.extents_end(), batch)?;
                // An edit is merged without a read. In a transaction the record is in the read set anyway.
                if self.call_gate.is_transaction() {
                    self.commit_whole(node, state, &edit, batch, admit)?;
                } else {
                    self.commit_edit(node, state, &edit, batch, admit)?;
                }
                // Appends go on in the last region. So its history is the one to count.
                if let Some(last) = pieces.last().filter(|p| !p.is_hole()) {
                    self.note_edits(node, state, (last.end() - 1) / REGION, pieces);
                }
            }
        }
        debug_assert_eq!(state.attrs.size_bytes, size_after, "the node has the size that was committed");
        debug_assert!(
            state.attrs.allocated_bytes - state.attrs.reserved_bytes <= size_after,
            "no extent of data reaches past the file's size"
        );
        Ok(())
    }

    /// As `commit_edit`, for a file in regions inside a transaction. The transaction has read the record, so
    /// another change of it is a conflict anyway. It is written whole, and the next read folds nothing.
    fn commit_whole(
        &self,
        node: &Node,
        state: &mut NodeState,
        edit: &InodeEdit<'_>,
        batch: &mut Batch,
        admit: Admit,
    ) -> Result<(), FsError> {
        debug_assert!(state.layout == Layout::Regions, "this record has no extents that would be lost");
        let Some(key) = state.record_key(node.ino()) else { return Err(FsError::NotFound) };
        let mut attrs = state.attrs;
        edit.apply(&mut attrs)?;
        let mut value = Vec::with_capacity(128);
        Inode { ino: node.ino(), attrs, content: InodeContent::Regions }.encode(&mut value);
        batch.put_naming(&key, &value, []);
        self.commit(batch, admit)?;
        state.attrs = attrs;
        state.history.record_edits = 0;
        self.version_counters.bump(&key);
        Ok(())
    }

    /// The bytes of a file after the pieces have been applied.
    fn allocation_after(
        &self,
        node: &Node,
        state: &NodeState,
        pieces: &[FilePiece<'_>],
        size_after: u64,
    ) -> Result<Allocation, FsError> {
        let before = state.attrs;
        let reads = before.flags & flag::SPARSE != 0 || before.reserved_bytes > 0;
        let mut added = Allocation::default();
        let mut covered = Allocation::default();
        for piece in pieces {
            added.count(piece);
            // Bytes that the piece replaces were counted before. A file without holes has data everywhere, so
            // only another one has to be read to count them.
            if reads {
                let end = piece.end().min(state.extents_end());
                self.for_each_extent(node, state, piece.offset, end, &mut |piece| {
                    covered.count(&piece);
                    Ok(true)
                })?;
            } else {
                covered.data += piece.end().min(before.size_bytes).saturating_sub(piece.offset);
            }
        }
        let after = |before: u64, added: u64, covered: u64| before.checked_add(added)?.checked_sub(covered);
        let data = before.allocated_bytes.checked_sub(before.reserved_bytes);
        let data = data.and_then(|data| after(data, added.data, covered.data));
        let reserved = after(before.reserved_bytes, added.reserved, covered.reserved);
        Ok(Allocation {
            data: data.filter(|bytes| *bytes <= size_after).ok_or_else(wrong_allocated_bytes)?,
            reserved: reserved.ok_or_else(wrong_allocated_bytes)?,
        })
    }

    /// Bytes of data, and reserved bytes, in a range of a file.
    pub(super) fn allocated_in(
        &self,
        node: &Node,
        state: &NodeState,
        start: u64,
        end: u64,
    ) -> Result<Allocation, FsError> {
        let mut found = Allocation::default();
        self.for_each_extent(node, state, start, end, &mut |piece| {
            found.count(&piece);
            Ok(true)
        })?;
        Ok(found)
    }

    /// Visits the data in a range of a file, in order and clipped to the range, until `visit` returns
    /// `false`. Holes and reserved ranges are not visited: they read as zeros.
    pub(crate) fn for_each_piece(
        &self,
        node: &Node,
        state: &NodeState,
        start: u64,
        end: u64,
        visit: &mut dyn FnMut(FilePiece<'_>) -> Result<bool, FsError>,
    ) -> Result<(), FsError> {
        self.for_each_extent(node, state, start, end, &mut |piece| {
            if piece.is_reserved() { Ok(true) } else { visit(piece) }
        })
    }

    /// As `for_each_piece`, with reserved ranges.
    pub(super) fn for_each_extent(
        &self,
        node: &Node,
        state: &NodeState,
        start: u64,
        end: u64,
        visit: &mut dyn FnMut(FilePiece<'_>) -> Result<bool, FsError>,
    ) -> Result<(), FsError> {
        if start >= end {
            return Ok(());
        }
        let mut visit_map = |index: u64, map: &ExtentMap<'_>| -> Result<bool, FsError> {
            for extent in map.iter() {
                if let Some(part) = FilePiece::of_extent(index, extent).clip(start, end)
                    && !visit(part)?
                {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        if state.layout == Layout::Inline {
            let value = self.record(node, state)?;
            let InodeContent::Small(extents) = Inode::decode(&value)?.content else {
                return Err(missing_record());
            };
            visit_map(0, &extents.to_map()?)?;
            return Ok(());
        }
        // One or two regions are read by their keys: a scan costs more than two reads.
        if end.div_ceil(REGION) - start / REGION <= 2 {
            let mut value = Vec::new();
            for index in start / REGION..end.div_ceil(REGION) {
                let there = self.get(&region_key(node.ino(), index), &mut value)?;
                if there && !visit_map(index, &decode_region(&value, false)?)? {
                    break;
                }
            }
            return Ok(());
        }
        self.for_each_region(node.ino(), start / REGION, end.div_ceil(REGION), &mut |index, value| {
            visit_map(index, &decode_region(value, false)?)
        })
    }

    /// The node's record, as the store has it.
    pub(crate) fn record(&self, node: &Node, state: &NodeState) -> Result<Vec<u8>, FsError> {
        let key = state.record_key(node.ino()).ok_or(FsError::Gone)?;
        let mut value = Vec::new();
        if self.get(&key, &mut value)? { Ok(value) } else { Err(missing_record()) }
    }

    /// Moves the extents of an inline file to regions, in the commit that makes it too large to be inline.
    fn promote_to_regions(
        &self,
        node: &Node,
        state: &mut NodeState,
        pieces: &[FilePiece<'_>],
        edit: &InodeEdit<'_>,
        batch: &mut Batch,
        admit: Admit,
    ) -> Result<(), FsError> {
        debug_assert!(state.layout == Layout::Inline, "a file in regions has been promoted already");
        // The slices of the old record stay where they are until the commit names them in a region.
        let _pin = self.pin_to_commit()?;
        let value = self.record(node, state)?;
        let inode = Inode::decode(&value)?;
        let InodeContent::Small(extents) = inode.content else { return Err(missing_record()) };
        let first = extents.to_map()?;
        let mut out = Vec::new();
        if !first.is_empty() {
            encode_region(&mut out, &first, false);
            batch.put_naming(&region_key(node.ino(), 0), &out, first.pointers());
        }
        // The pieces are merged over the region that was put just above: a batch keeps the order of its
        // changes.
        self.plan_regions(node.ino(), pieces, state.extents_end(), batch)?;
        self.put_record(node, state, Layout::Regions, edit, batch, admit)
    }

    /// Empties a file in regions: it is inline again.
    fn empty(
        &self,
        node: &Node,
        state: &mut NodeState,
        edit: &InodeEdit<'_>,
        batch: &mut Batch,
        admit: Admit,
    ) -> Result<(), FsError> {
        debug_assert_eq!(edit.size, Some((0, 0)), "a file without bytes has none allocated");
        self.plan_region_removal(node.ino(), 0, state.extents_end(), batch)?;
        self.put_record(node, state, Layout::Inline, edit, batch, admit)
    }

    /// Commits the record whole, without extents, and the rest of `batch`. The node has `layout` then.
    fn put_record(
        &self,
        node: &Node,
        state: &mut NodeState,
        layout: Layout,
        edit: &InodeEdit<'_>,
        batch: &mut Batch,
        admit: Admit,
    ) -> Result<(), FsError> {
        let mut attrs = state.attrs;
        edit.apply(&mut attrs)?;
        let content = match layout {
            Layout::Inline => InodeContent::Small(ExtentReader::EMPTY),
            Layout::Regions => InodeContent::Regions,
        };
        assert!(
            layout == Layout::Regions || attrs.allocated_bytes == 0,
            "a record without extents is of an empty file, or of one in regions"
        );
        let mut out = Vec::new();
        Inode { ino: node.ino(), attrs, content }.encode(&mut out);
        let key = state.record_key(node.ino()).ok_or(FsError::Gone)?;
        batch.put_naming(&key, &out, []);
        self.commit(batch, admit)?;
        // The node follows only now: a failed commit leaves node and record as they were.
        self.version_counters.bump(&key);
        state.attrs = attrs;
        state.layout = layout;
        state.history = crate::node::EditHistory::default();
        Ok(())
    }

    /// Adds the operands to the batch that apply the pieces over regions. No extent of the file reaches past
    /// the byte `old_end` before this change.
    fn plan_regions(
        &self,
        ino: u64,
        pieces: &[FilePiece<'_>],
        old_end: u64,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        let mut parts: Vec<FilePiece<'_>> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if !piece.is_hole() {
                parts.push(*piece);
                continue;
            }
            // A region that becomes all hole is deleted. Only the two at the hole's ends are edited. Beyond
            // the old end there is nothing to cover.
            let end = if piece.end() >= old_end { old_end.next_multiple_of(REGION) } else { piece.end() };
            if piece.offset >= end {
                continue;
            }
            let first_whole = piece.offset.div_ceil(REGION);
            let past_whole = end / REGION;
            if first_whole <= past_whole {
                parts.extend(piece.clip(piece.offset, (first_whole * REGION).min(end)));
                parts.extend(piece.clip(past_whole * REGION, end));
                self.plan_region_removal(ino, first_whole, past_whole * REGION, batch)?;
            } else {
                parts.extend(piece.clip(piece.offset, end));
            }
        }
        let mut operand = Vec::new();
        let regions = by_region(&parts);
        if regions.len() > REGIONS_PER_COMMIT {
            return Err(FsError::FileTooLarge);
        }
        for (index, map) in regions {
            operand.clear();
            encode_region(&mut operand, &map, true);
            batch.merge_naming(&region_key(ino, index), &operand, map.pointers());
        }
        Ok(())
    }

    /// Adds deletions to the batch: of the regions from index `first` on that begin below the byte `end`.
    fn plan_region_removal(&self, ino: u64, first: u64, end: u64, batch: &mut Batch) -> Result<(), FsError> {
        let past = end.div_ceil(REGION);
        // One more than fits is asked for, to see that there are too many.
        let regions = self.regions_from(ino, first, end, REGIONS_PER_COMMIT + 1)?;
        debug_assert!(regions.is_sorted(), "regions are listed in order");
        let doomed = regions.iter().take_while(|index| **index < past);
        let mut count = 0;
        for index in doomed {
            batch.delete(&region_key(ino, *index));
            count += 1;
        }
        if count > REGIONS_PER_COMMIT { Err(FsError::FileTooLarge) } else { Ok(()) }
    }
}

/// Bytes of a file that are not holes.
#[derive(Clone, Copy, Default)]
pub(super) struct Allocation {
    /// Bytes that have been written.
    pub(super) data: u64,
    /// Bytes that are reserved.
    pub(super) reserved: u64,
}

impl Allocation {
    /// Counts the bytes of a piece.
    pub(super) fn count(&mut self, piece: &FilePiece<'_>) {
        if piece.is_reserved() {
            self.reserved += piece.len;
        } else if !piece.is_hole() {
            self.data += piece.len;
        }
    }

    /// Both together.
    pub(super) fn allocated(&self) -> Result<u64, FsError> {
        self.data.checked_add(self.reserved).ok_or_else(wrong_allocated_bytes)
    }
}

/// The error for a record with another number of allocated bytes than its extents hold.
pub(super) fn wrong_allocated_bytes() -> FsError {
    MISCOUNTED_BYTES.into()
}
