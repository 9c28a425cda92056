//! Refolding: a value that took many edits is written whole again, so that a read folds few.
//!
//! A write merges an edit and reads nothing. So a read folds all edits since the value was last written
//! whole, and `EditHistory` counts them. A value is written whole after 64 edits, and later the more bytes it
//! copies. So many small writes cost linear time, and so do reads between them.
//!
//! # Invariants
//! 1. Refolding changes no byte of a file: it commits the folded value (assert in `rewrite_region`).
//! 2. It runs after the write has been committed, with the node's state locked, so no edit comes between its
//!    read and its commit. An error changes nothing and is not the write's answer.

use warpfire_format::fs::{
    Extent, ExtentMap, ExtentSource, INLINE_FOREVER_BYTES_MAX, Inode, InodeContent, decode_region,
    encode_region,
};
use warpfire_meta::{Admit, Batch, Storage, Stream};

use super::piece::FilePiece;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::region_key;
use crate::limits::{EDIT_PER_BYTES, EDITS_MAX, REGION_INLINE_BYTES_MAX};
use crate::node::{EditHistory, Layout, Node, NodeState};

impl<E: Storage> Fs<E> {
    /// Counts edits that were merged into a region (0 for an inline file), and writes the value whole when it
    /// is time. That is upkeep. The write has succeeded, so an error here is left for the next time; a read
    /// reports damage.
    pub(super) fn note_edits(
        &self,
        node: &Node,
        state: &mut NodeState,
        region: u64,
        pieces: &[FilePiece<'_>],
    ) {
        let history = &mut state.history;
        if history.region != region {
            *history = EditHistory { region, record_edits: history.record_edits, ..EditHistory::default() };
        }
        let inline: u64 =
            pieces.iter().filter(|p| matches!(p.source, ExtentSource::Bytes(_))).map(|p| p.len).sum();
        history.edits += 1;
        // The record of a file in regions takes an edit too: its size and times. Inside a transaction it was
        // written whole.
        if state.layout == Layout::Regions && !self.call_gate.is_transaction() {
            history.record_edits += 1;
            if history.record_edits >= EDITS_MAX {
                history.record_edits = 0;
                let _ = self.put_whole_record(node, state);
            }
        }
        // `many`: the fold is long. `heavy`: the bytes are better in a slice, which a fold does not copy.
        let history = &mut state.history;
        history.bytes = history.bytes.saturating_add(u32::try_from(inline).unwrap_or(u32::MAX));
        let many = history.edits >= EDITS_MAX + history.bytes.min(REGION_INLINE_BYTES_MAX) / EDIT_PER_BYTES;
        let heavy = state.layout == Layout::Regions && history.bytes >= REGION_INLINE_BYTES_MAX;
        if !many && !heavy {
            return;
        }
        let rewritten = if state.layout == Layout::Regions {
            self.rewrite_region(node.ino(), region, heavy)
        } else {
            self.rewrite_record(node, state)
        };
        let record_edits = state.history.record_edits;
        state.history = EditHistory { region, edits: 0, bytes: rewritten.unwrap_or(0), record_edits };
    }

    /// Writes the record of a file in regions whole. The node's state has all of it, so nothing is read.
    fn put_whole_record(&self, node: &Node, state: &NodeState) -> Result<(), FsError> {
        debug_assert!(state.layout == Layout::Regions, "this record has no extents that would be lost");
        let Some(key) = state.record_key(node.ino()) else { return Ok(()) };
        let mut batch = Batch::new();
        let mut value = Vec::new();
        Inode { ino: node.ino(), attrs: state.attrs, content: InodeContent::Regions }.encode(&mut value);
        batch.put_naming(&key, &value, []);
        self.commit_upkeep(&batch)
    }

    /// Writes the record of an inline file whole. Returns its length, a bound of the bytes inline in it.
    fn rewrite_record(&self, node: &Node, state: &NodeState) -> Result<u32, FsError> {
        debug_assert!(state.layout == Layout::Inline, "the record has the extents");
        let _pin = self.engine.pin()?;
        let value = self.record(node, state)?;
        let mut batch = Batch::new();
        if let Some(key) = state.record_key(node.ino()) {
            batch.put(&key, &value);
            self.commit_upkeep(&batch)?;
        }
        Ok(u32::try_from(value.len()).unwrap_or(u32::MAX))
    }

    /// Writes a region whole; with `pack`, runs of inline bytes go to the slice store. Returns a bound of the
    /// bytes that are still inline.
    fn rewrite_region(&self, ino: u64, index: u64, pack: bool) -> Result<u32, FsError> {
        // The value names slices: the pin keeps these where they are until the commit names them again.
        let _pin = self.engine.pin()?;
        let key = region_key(ino, index);
        let mut value = Vec::new();
        if !self.get(&key, &mut value)? {
            return Ok(0);
        }
        let mut batch = Batch::new();
        if !pack {
            batch.put(&key, &value);
            self.commit_upkeep(&batch)?;
            return Ok(u32::try_from(value.len()).unwrap_or(u32::MAX));
        }
        if !self.has_room_for_upkeep() {
            return Ok(0);
        }
        let mut packed = ExtentMap::new();
        let mut written = Vec::new();
        let map = decode_region(&value, false)?;
        for extent in map.iter() {
            let ExtentSource::Bytes(bytes) = extent.source else {
                packed.overlay(*extent);
                continue;
            };
            if bytes.len() <= INLINE_FOREVER_BYTES_MAX {
                // A pointer would take about as much room as these bytes.
                packed.overlay(*extent);
                continue;
            }
            let slices = match self.engine.write(Stream::Small, bytes, Admit::User) {
                Ok(slices) => slices,
                // Upkeep can wait; the write itself has succeeded.
                Err(_) => {
                    self.engine.release(&written);
                    return Ok(0);
                }
            };
            let mut at = extent.offset;
            for slice in slices {
                packed.overlay(Extent::slice(at, slice));
                at += slice.len_bytes;
                written.push(slice);
            }
        }
        assert_eq!(packed.data_bytes(), map.data_bytes(), "packing moves bytes and loses none");
        let mut out = Vec::new();
        encode_region(&mut out, &packed, false);
        batch.put_naming(&key, &out, packed.pointers());
        let committed = self.commit_upkeep(&batch);
        // The commit took references of its own.
        self.engine.release(&written);
        committed.map(|()| 0)
    }

    /// Whether the pool has room at once. Reclaim is not for upkeep, which comes again and again: writes of
    /// reserved bytes on a full pool would each wait for it.
    fn has_room_for_upkeep(&self) -> bool {
        self.engine.has_room(u64::from(REGION_INLINE_BYTES_MAX), Admit::User)
    }

    /// Commits a value that was written whole. On a full pool it changes nothing and succeeds: upkeep can
    /// wait.
    fn commit_upkeep(&self, batch: &Batch) -> Result<(), FsError> {
        if !self.has_room_for_upkeep() {
            return Ok(());
        }
        match self.commit(batch, Admit::User) {
            Err(FsError::NoSpace) => Ok(()),
            other => other,
        }
    }
}
