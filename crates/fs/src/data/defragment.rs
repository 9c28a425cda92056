//! Defragmenting: the pieces of a region that reads meet in many small pieces are written again, next to each
//! other, so that later reads are fast.
//!
//! # Terms
//! A region is *fragmented* for a read that meets many small pieces there (`is_fragmented`). It is *due* when
//! such reads have read as many bytes as it holds.
//!
//! # Invariants
//! 1. Only a region that is due is defragmented. So defragmenting writes no more than was read, and a file
//!    that nobody reads is left alone (`Fragmentation::is_due_after`; `tests::defragment`).
//! 2. The new slices hold the bytes of the old pieces, byte for byte (asserts in `defragment_region` and
//!    `map_of_slices`).
//! 3. One commit replaces the region's value, under its file's lock, and only if the value is still the one
//!    that was copied. So a crash leaves the old value or the new one, with the same bytes
//!    (`tests::defragment::a_write_during_reads_is_never_lost_to_defragmentation`).
//! 4. Nothing is defragmented while a transaction is open, because its snapshot would keep the old bytes too;
//!    nor while space is short (`tests::defragment`).
//! 5. Defragmenting is upkeep. An error leaves the region for a later read, and the read that noticed the
//!    region succeeds.
//!
//! ```text
//!   region, old value   |a|b|c|d|e|f|g|h|      each piece a slice somewhere in the log
//!     1. read            a b c d e f g h       by the read that met the pieces; else `data_of`
//!     2. write          |───────s────────|     one slice, or few, next to each other
//!     3. commit          old value ──► new     if it is still there: `replace_region`
//!     4. release s                             the new value has its own reference now
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::sync::Mutex;
use warpfire_format::fs::{Extent, ExtentMap, ExtentSource, REGION_BYTES, decode_region, encode_region};
use warpfire_meta::{Admit, Batch, SliceRead, Storage, Stream};
use warpfire_units::SlicePtr;

use super::read::ReadAt;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::region_key;
use crate::limits::{
    DEFRAGMENT_FREE_PART, DEFRAGMENT_GAIN, DEFRAGMENT_PIECE_BYTES_MAX, DEFRAGMENT_PIECES_MIN,
    FRAGMENTED_REGIONS_MAX,
};
use crate::node::{Layout, Node};

/// The work of defragmenting since the filesystem was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DefragmentCounts {
    /// Regions that were defragmented.
    pub regions: u64,
    /// Bytes that were written to do so.
    pub bytes: u64,
}

/// The fragmented regions of a filesystem. Each open transaction holds a reference too: the count of
/// references shows the base whether any transaction is open.
#[derive(Default)]
pub(crate) struct Fragmentation {
    /// Bytes read from each region while it was fragmented, by inode number and index.
    read: Mutex<BTreeMap<(u64, u64), u64>>,
    regions: AtomicU64,
    bytes: AtomicU64,
}

impl Fragmentation {
    /// Counts a read of `read_bytes`. Returns whether the region, which holds `holds_bytes`, is due; its
    /// count begins anew then.
    fn is_due_after(&self, region: (u64, u64), read_bytes: u64, holds_bytes: u64) -> bool {
        let mut read = self.read.lock();
        if read.len() >= FRAGMENTED_REGIONS_MAX {
            // A region that loses its count is due later than it could be. Nothing else depends on the count.
            read.clear();
        }
        debug_assert!(read.len() < FRAGMENTED_REGIONS_MAX, "there is room for one more region");
        let sum = read.entry(region).or_default();
        *sum += read_bytes;
        let is_due = *sum >= holds_bytes;
        if is_due {
            read.remove(&region);
        }
        is_due
    }
}

/// A region that a read met in many small pieces.
pub(super) struct FragmentedRegion {
    pub(super) index: u64,
    /// Its value at the time of the read.
    pub(super) value: Vec<u8>,
    pub(super) read_bytes: u64,
    /// Number of the read among those that one call made together.
    pub(super) read: usize,
}

impl FragmentedRegion {
    /// The bytes from the region's start to its offset `end`, if the read has all of them.
    fn bytes_read<'r>(&self, reads: &'r [ReadAt<'_>], end: u32) -> Option<&'r [u8]> {
        let read = reads.get(self.read)?;
        let skipped = (self.index * u64::from(REGION_BYTES)).checked_sub(read.offset)?;
        let bytes = read.buf.get(..read.len)?.get(usize::try_from(skipped).ok()?..)?;
        bytes.get(..end as usize)
    }
}

/// Whether a region is fragmented for a read of `bytes` through this many pieces.
pub(super) fn is_fragmented(pieces: usize, bytes: u64) -> bool {
    pieces >= DEFRAGMENT_PIECES_MIN && bytes < pieces as u64 * DEFRAGMENT_PIECE_BYTES_MAX
}

impl<E: Storage> Fs<E> {
    /// The work of defragmenting since the filesystem was opened.
    #[must_use]
    pub fn defragment_counts(&self) -> DefragmentCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DefragmentCounts {
            regions: read(&self.fragmentation.regions),
            bytes: read(&self.fragmentation.bytes),
        }
    }

    /// Defragments those regions that are due. The caller has made the reads that met them, and has held a
    /// pin since it read their values.
    pub(super) fn defragment(&self, node: &Node, fragmented: &[FragmentedRegion], reads: &[ReadAt<'_>]) {
        let is_open = |fragmentation| Arc::strong_count(fragmentation) > 1;
        if fragmented.is_empty()
            || self.options.read_only
            || self.call_gate.is_transaction()
            || self.call_gate.is_entered()
            || is_open(&self.fragmentation)
        {
            // A read that is part of another call holds the gate: a commit would wait while this writes.
            return;
        }
        let mut counts = DefragmentCounts::default();
        for region in fragmented {
            match self.defragment_region(node, region, reads) {
                Ok(0) => {}
                Ok(bytes) => {
                    self.fragmentation.regions.fetch_add(1, Ordering::Relaxed);
                    self.fragmentation.bytes.fetch_add(bytes, Ordering::Relaxed);
                    counts.regions += 1;
                    counts.bytes += bytes;
                }
                Err(e) => {
                    // The read has succeeded and only asked for upkeep, so the error is nobody's answer.
                    let inode = node.ino();
                    let region = region.index;
                    tracing::debug!(inode, region, error = %e, "defragmenting failed");
                    break;
                }
            }
        }
        if counts.regions > 0 {
            let DefragmentCounts { regions, bytes } = counts;
            tracing::trace!(inode = node.ino(), regions, bytes, "regions defragmented");
        }
    }

    /// Defragments one region. Returns the bytes written: 0 if the region is not due, would gain too little,
    /// or has changed since it was read.
    fn defragment_region(
        &self,
        node: &Node,
        region: &FragmentedRegion,
        reads: &[ReadAt<'_>],
    ) -> Result<u64, FsError> {
        let map = decode_region(&region.value, false)?;
        let holds = map.data_bytes();
        if !self.fragmentation.is_due_after((node.ino(), region.index), region.read_bytes, holds)
            || data_extents(&map).count() < DEFRAGMENT_GAIN * data_runs(&map)
        {
            return Ok(0);
        }
        // The old slices may be shared with other files and stay then, so the copy needs room of its own.
        let space = self.engine.space()?;
        if space.free_bytes < space.total_bytes / DEFRAGMENT_FREE_PART {
            return Ok(0);
        }
        let end = map.iter().last().map_or(0, Extent::end);
        let bytes: Vec<u8> = match region.bytes_read(reads, end) {
            Some(bytes) => {
                let places = data_extents(&map).map(|extent| extent.offset as usize..extent.end() as usize);
                let parts = places.map(|place| bytes.get(place).expect("it was read up to its end"));
                parts.collect::<Vec<_>>().concat()
            }
            None => self.data_of(&map)?,
        };
        assert_eq!(bytes.len() as u64, holds, "the copy has every byte of the region");
        // Written before the file is locked: a reader or writer does not wait for the device.
        let slices = self.engine.write(Stream::Large, &bytes, Admit::User)?;
        let replaced = self.replace_region(node, region, &map_of_slices(&map, &slices));
        // The commit took references of its own. Without a commit the bytes are free again.
        self.engine.release(&slices);
        Ok(if replaced? { holds } else { 0 })
    }

    /// The bytes of a map's extents, one after the other.
    fn data_of(&self, map: &ExtentMap<'_>) -> Result<Vec<u8>, FsError> {
        let mut bytes = vec![0; usize::try_from(map.data_bytes()).expect("a region fits in memory")];
        let mut reads: Vec<SliceRead<'_>> = Vec::with_capacity(map.len());
        let mut rest = bytes.as_mut_slice();
        for extent in data_extents(map) {
            let (place, behind) = rest.split_at_mut(extent.len as usize);
            rest = behind;
            match (extent.pointer(), extent.source) {
                (Some(slice), _) => reads.push((slice, place)),
                (None, ExtentSource::Bytes(inline)) => place.copy_from_slice(inline),
                (None, _) => unreachable!("only data is copied, and a value holds no holes"),
            }
        }
        self.engine.read(&mut reads)?;
        Ok(bytes)
    }

    /// Replaces the region's value by `map`. Returns `false`, and changes nothing, if the value is another
    /// one than was read.
    fn replace_region(
        &self,
        node: &Node,
        region: &FragmentedRegion,
        map: &ExtentMap<'_>,
    ) -> Result<bool, FsError> {
        debug_assert!(!self.call_gate.is_transaction(), "only the base is defragmented");
        let _guard = self.call_gate.enter();
        let mut state = node.state.write();
        let key = region_key(node.ino(), region.index);
        let mut value = Vec::new();
        // The values are compared as bytes: any write since has changed a pointer or an edit in them.
        if state.layout != Layout::Regions || !self.get(&key, &mut value)? || value != region.value {
            return Ok(false);
        }
        value.clear();
        encode_region(&mut value, map, false);
        let mut batch = Batch::new();
        batch.put_naming(&key, &value, map.pointers());
        self.commit(&batch, Admit::User)?;
        // The value was written whole, so a read of it folds no edit.
        if state.history.region == region.index {
            state.history.edits = 0;
            state.history.bytes = 0;
        }
        Ok(true)
    }
}

/// The extents with data. A reserved extent has none.
fn data_extents<'m, 'a>(map: &'m ExtentMap<'a>) -> impl Iterator<Item = &'m Extent<'a>> {
    map.iter().filter(|extent| extent.source != ExtentSource::Reserved)
}

/// The number of runs of data that holes and reserved extents keep apart: the fewest extents of data that the
/// region can have.
fn data_runs(map: &ExtentMap<'_>) -> usize {
    let mut end = None;
    data_extents(map).filter(|extent| end.replace(extent.end()) != Some(extent.offset)).count()
}

/// A map with the same data at the same offsets, where `slices` hold the data, one after the other.
fn map_of_slices(map: &ExtentMap<'_>, slices: &[SlicePtr]) -> ExtentMap<'static> {
    let mut slices = slices.iter().copied();
    let mut left: Option<SlicePtr> = None;
    let mut out = ExtentMap::new();
    for extent in map.iter() {
        if extent.source == ExtentSource::Reserved {
            out.overlay(Extent::reserved(extent.offset, extent.len));
            continue;
        }
        let mut at = extent.offset;
        while at < extent.end() {
            let slice = left.take().or_else(|| slices.next()).expect("the slices hold all the data");
            let len_bytes = slice.len_bytes.min(extent.end() - at);
            out.overlay(Extent::slice(at, SlicePtr { len_bytes, ..slice }));
            at += len_bytes;
            if len_bytes < slice.len_bytes {
                left = Some(SlicePtr {
                    offset_bytes: slice.offset_bytes + u64::from(len_bytes),
                    len_bytes: slice.len_bytes - len_bytes,
                    ..slice
                });
            }
        }
    }
    assert!(left.is_none() && slices.next().is_none(), "the extents take up the slices to the last byte");
    debug_assert_eq!(out.data_bytes(), map.data_bytes(), "both maps have the same data");
    out
}
