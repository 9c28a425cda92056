//! Splicing: a range of a file is replaced by one of another length. The bytes behind it keep their slices
//! and change their offsets, so no data is read or written.
//!
//! ```text
//!            0          start            from              size
//!   before   |── kept ────|── removed ─────|──── moved ──────|
//!   after    |── kept ────|── inserted ─|──── moved ──────|
//!            0          start           to            to + size − from
//! ```
//!
//! # Invariants
//! 1. `start` is at or before both `from` and `to`, and `from` is within the file (assert in `splice`). So
//!    the pieces that are kept, inserted and moved follow each other without overlap (assert in
//!    `put_spliced`).
//! 2. Reserved extents move with the bytes around them. Those past the file's size are dropped: they must
//!    not move into the file (`tests::reserved`).
//! 3. One commit deletes the old values from the region of `start` on and writes the new ones
//!    (`tests::slice_model`, under power cuts).

use warpfire_format::fs::{
    ExtentMap, ExtentReader, Inode, InodeContent, InodeEdit, REGION_BYTES, SMALL_FILE_BYTES_MAX,
    decode_region, encode_region, flag,
};
use warpfire_meta::{Admit, Batch, RESERVED, Storage};

use super::change::{Allocation, wrong_allocated_bytes};
use super::piece::{FilePiece, by_region};
use super::write::check_end;
use crate::attrs::missing_record;
use crate::deferred::BYTES;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::region_key;
use crate::limits::REGIONS_PER_COMMIT;
use crate::node::{EditHistory, Layout, Node, NodeState};

const REGION: u64 = REGION_BYTES as u64;

/// Bytes before `start` stay. Bytes from `from` on move to `to`. Bytes between are removed, and `inserted`
/// comes between `start` and `to`: pieces in order that do not overlap. Offsets are in bytes of the file.
#[derive(Clone, Copy)]
pub(crate) struct Splice<'p, 'a> {
    pub(crate) start: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) inserted: &'p [FilePiece<'a>],
}

impl<'a> Splice<'_, 'a> {
    fn before(&self, piece: &FilePiece<'a>) -> Option<FilePiece<'a>> {
        piece.clip(0, self.start)
    }

    fn after(&self, piece: &FilePiece<'a>) -> Option<FilePiece<'a>> {
        let piece = piece.clip(self.from, u64::MAX)?;
        Some(FilePiece { offset: piece.offset - self.from + self.to, ..piece })
    }
}

/// The part of a piece that stays when bytes move: a reserved one ends at the file's size.
fn without_spare<'a>(piece: &FilePiece<'a>, size: u64) -> Option<FilePiece<'a>> {
    if piece.is_reserved() { piece.clip(0, size) } else { Some(*piece) }
}

impl<E: Storage> Fs<E> {
    /// Splices a file in one commit: writes anew every extent from the region of `splice.start` on. The
    /// caller holds a pin: the old values name slices, which stay where they are until the commit names them
    /// again.
    ///
    /// # Errors
    /// `FileTooLarge` beyond 2^63 - 1, or for more than 2^18 regions; `Damaged`; as `commit`.
    pub(crate) fn splice<'a>(
        &self,
        node: &Node,
        state: &mut NodeState,
        splice: &Splice<'_, 'a>,
        edit: InodeEdit<'_>,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        let size = state.attrs.size_bytes;
        assert!(
            splice.start <= splice.from && splice.start <= splice.to && splice.from <= size,
            "a splice replaces a range within the file"
        );
        let size_after = check_end(splice.to, size - splice.from)?;
        let mut values: Vec<(u64, Vec<u8>)> = Vec::new();
        let record;
        let mut old = Vec::new();
        if state.layout == Layout::Inline {
            record = self.record(node, state)?;
            let InodeContent::Small(extents) = Inode::decode(&record)?.content else {
                return Err(missing_record());
            };
            old.extend(extents.to_map()?.iter().map(|extent| FilePiece::of_extent(0, extent)));
        } else {
            // Regions before the one with `start` are all kept, so they are not read.
            self.for_each_region(node.ino(), splice.start / REGION, u64::MAX, &mut |index, value| {
                values.push((index, value.to_vec()));
                if values.len() > REGIONS_PER_COMMIT { Err(FsError::FileTooLarge) } else { Ok(true) }
            })?;
            for (index, value) in &values {
                let map = decode_region(value, false)?;
                old.extend(map.iter().map(|extent| FilePiece::of_extent(*index, extent)));
                batch.delete(&region_key(node.ino(), *index));
            }
        }
        // A hole needs no extent here: the values are written whole, and what no extent covers is a hole.
        let kept: Vec<FilePiece<'_>> = old.iter().filter_map(|piece| without_spare(piece, size)).collect();
        let mut pieces: Vec<FilePiece<'_>> = kept.iter().filter_map(|piece| splice.before(piece)).collect();
        pieces.extend(splice.inserted.iter().filter(|piece| !piece.is_hole()));
        pieces.extend(kept.iter().filter_map(|piece| splice.after(piece)));
        let bytes = |pieces: &[FilePiece<'_>]| {
            let mut counted = Allocation::default();
            pieces.iter().for_each(|piece| counted.count(piece));
            counted
        };
        let (lost, new) = (bytes(&old), bytes(&pieces));
        let reserved_before = state.attrs.reserved_bytes;
        let data = state.attrs.allocated_bytes.checked_sub(reserved_before);
        let data = data.and_then(|data| data.checked_sub(lost.data)).map(|data| data + new.data);
        let reserved = reserved_before.checked_sub(lost.reserved).map(|reserved| reserved + new.reserved);
        let after = Allocation {
            data: data.filter(|bytes| *bytes <= size_after).ok_or_else(wrong_allocated_bytes)?,
            reserved: reserved.ok_or_else(wrong_allocated_bytes)?,
        };
        // A call that only removes may use the reserve: it makes room on a full pool.
        let adds = size_after > size || !splice.inserted.is_empty();
        let admit = if adds { Admit::User } else { Admit::Reserve };
        self.put_spliced(node, state, &pieces, (size_after, after), edit, batch, admit)
    }

    #[expect(clippy::too_many_arguments, reason = "the second half of the one function above")]
    fn put_spliced(
        &self,
        node: &Node,
        state: &mut NodeState,
        pieces: &[FilePiece<'_>],
        (size_after, after): (u64, Allocation),
        edit: InodeEdit<'_>,
        batch: &mut Batch,
        admit: Admit,
    ) -> Result<(), FsError> {
        debug_assert!(
            pieces.is_sorted_by(|a, b| a.end() <= b.offset),
            "pieces are in order and do not overlap"
        );
        let before = state.attrs;
        let mut attrs = before;
        edit.apply(&mut attrs)?;
        attrs.size_bytes = size_after;
        attrs.allocated_bytes = after.allocated()?;
        attrs.reserved_bytes = after.reserved;
        // A file in regions that would fit inline again stays in regions: only an empty one goes back.
        let fits = state.layout == Layout::Inline && size_after <= u64::from(SMALL_FILE_BYTES_MAX);
        let small = fits || size_after == 0;
        let regions = by_region(pieces);
        if regions.len() > REGIONS_PER_COMMIT {
            return Err(FsError::FileTooLarge);
        }
        assert!(!small || regions.len() <= 1, "an inline record has one list of extents");
        let mut out = Vec::new();
        let sparse = after.data < size_after;
        attrs.flags = if sparse { attrs.flags | flag::SPARSE } else { attrs.flags & !flag::SPARSE };
        let content = if small { InodeContent::Small(ExtentReader::EMPTY) } else { InodeContent::Regions };
        let mut record = Vec::new();
        Inode { ino: node.ino(), attrs, content }.encode(&mut record);
        let mut in_record = ExtentMap::new();
        for (index, map) in regions {
            if small {
                // The extents are the end of the record.
                map.encode(&mut record);
                in_record = map;
                continue;
            }
            out.clear();
            encode_region(&mut out, &map, false);
            batch.put_naming(&region_key(node.ino(), index), &out, map.pointers());
        }
        let key = state.record_key(node.ino()).ok_or(FsError::Gone)?;
        batch.put_naming(&key, &record, in_record.pointers());
        batch.add(BYTES, attrs.allocated_bytes.wrapping_sub(before.allocated_bytes).cast_signed());
        batch.add(RESERVED, attrs.reserved_bytes.wrapping_sub(before.reserved_bytes).cast_signed());
        self.commit(batch, admit)?;
        // The node follows only now: a failed commit leaves node and record as they were.
        self.version_counters.bump(&key);
        state.attrs = attrs;
        state.layout = if small { Layout::Inline } else { Layout::Regions };
        state.history = EditHistory::default();
        Ok(())
    }
}
