//! Keeping short what a read has to fold.
//!
//! Writes are merged without reading. A value that takes very many edits is written whole now and then, the more rarely the more it
//! copies, so that both many small writes and the reads between them cost linear time.

use warpfire_format::fs::{
    Extent, ExtentMap, ExtentSource, INLINE_FOREVER_BYTES_MAX, Inode, InodeContent, decode_region,
    encode_region, region_key,
};
use warpfire_meta::{Admit, Batch, Storage, Stream};

use super::piece::FilePiece;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::{EDIT_PER_BYTES, EDITS_MAX, REGION_INLINE_BYTES_MAX};
use crate::node::{EditHistory, Layout, Node, NodeState};

impl<E: Storage> Fs<E> {
    /// Notes that pieces were merged, and writes the value whole when it is time. That is upkeep: the write itself has succeeded,
    /// so what fails here is left for the next time, and what is damaged for the next read to say.
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
        // Inside a transaction the record was written whole.
        if state.layout == Layout::Regions && !self.call_gate.is_transaction() {
            history.record_edits += 1;
            if history.record_edits >= EDITS_MAX {
                history.record_edits = 0;
                let _ = self.put_whole_record(node, state);
            }
        }
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

    /// Writes the record of a file in regions whole. What it says is what the node knows, so nothing is read.
    fn put_whole_record(&self, node: &Node, state: &NodeState) -> Result<(), FsError> {
        let Some(key) = state.record_key(self.volume, node.ino()) else { return Ok(()) };
        let (mut batch, mut value) = (Batch::new(), Vec::new());
        Inode { ino: node.ino(), attrs: state.attrs, content: InodeContent::Regions }.encode(&mut value);
        batch.put_naming(&key, &value, []);
        self.commit_upkeep(&batch)
    }

    /// Writes a small file's record whole. Returns how many bytes may ride in it.
    fn rewrite_record(&self, node: &Node, state: &NodeState) -> Result<u32, FsError> {
        let _pin = self.engine.pin()?;
        let value = self.record(node, state)?;
        let mut batch = Batch::new();
        if let Some(key) = state.record_key(self.volume, node.ino()) {
            batch.put(&key, &value);
            self.commit_upkeep(&batch)?;
        }
        Ok(u32::try_from(value.len()).unwrap_or(u32::MAX))
    }

    /// Writes a region whole; with `pack`, runs that ride in it go to the slice store. Returns how many bytes still ride.
    fn rewrite_region(&self, ino: u64, index: u64, pack: bool) -> Result<u32, FsError> {
        let _pin = self.engine.pin()?;
        let key = region_key(self.volume, ino, index);
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
        let mut packed = ExtentMap::new();
        let mut written = Vec::new();
        for extent in decode_region(&value, false)?.iter() {
            let ExtentSource::Bytes(bytes) = extent.source else {
                packed.overlay(*extent);
                continue;
            };
            if bytes.len() <= INLINE_FOREVER_BYTES_MAX {
                packed.overlay(*extent);
                continue;
            }
            let slices = match self.engine.write(Stream::Small, bytes, Admit::User) {
                Ok(slices) => slices,
                // Tidying can wait; the write itself has succeeded.
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
        let mut out = Vec::new();
        encode_region(&mut out, &packed, false);
        batch.put_naming(&key, &out, packed.pointers());
        let committed = self.commit_upkeep(&batch);
        self.engine.release(&written);
        committed.map(|()| 0)
    }

    /// Commits a rewrite. Where there is no room it can wait.
    fn commit_upkeep(&self, batch: &Batch) -> Result<(), FsError> {
        match self.commit(batch, Admit::User) {
            Err(FsError::NoSpace) => Ok(()),
            other => other,
        }
    }
}
