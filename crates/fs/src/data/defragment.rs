//! Gathering: what is read through many small pieces is written again, next to each other, so that it is read fast from then on.
//!
//! # Terms
//! A read *strains* a region if it meets many small pieces there.
//!
//! # Invariants
//! 1. A region is gathered when reads that strained it have read as much as it holds: gathering writes no more than they read, and a file that is
//!    not read is left alone.
//! 2. One commit replaces the region's value, under its file's lock and only if that value is still the one whose pieces were copied. So a crash leaves the one or
//!    the other, of the same bytes.
//! 3. Nothing is gathered while a transaction is open, whose snapshot would keep the old bytes too; nor while space is short.
//! 4. It is upkeep: what fails is left for another read, and only the read itself can say that something is wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use warpfire_format::fs::{
    Extent, ExtentMap, ExtentSource, REGION_BYTES, decode_region, encode_region, region_key,
};
use warpfire_meta::{Admit, Batch, SliceRead, Storage, Stream};
use warpfire_units::SlicePtr;

use super::read::ReadAt;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::{
    DEFRAGMENT_FREE_PART, DEFRAGMENT_GAIN, DEFRAGMENT_PIECE_BYTES_MAX, DEFRAGMENT_PIECES_MIN,
    FRAGMENTED_REGIONS_MAX,
};
use crate::node::{Layout, Node};

/// How much was gathered since the filesystem was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DefragmentCounts {
    /// Regions whose pieces were written next to each other.
    pub regions: u64,
    /// Bytes that were written for that.
    pub bytes: u64,
}

/// What a filesystem knows of strained regions. Insides of transactions hold it too, so that the base can tell whether there are any.
#[derive(Default)]
pub(crate) struct Fragmentation {
    /// Bytes read of each, by inode number and region.
    read: Mutex<BTreeMap<(u64, u64), u64>>,
    regions: AtomicU64,
    bytes: AtomicU64,
}

impl Fragmentation {
    /// Counts a read. Whether the region, which holds so many bytes, is due; then it starts anew.
    fn is_due_after(&self, region: (u64, u64), read_bytes: u64, holds_bytes: u64) -> bool {
        let mut read = self.read.lock();
        if read.len() >= FRAGMENTED_REGIONS_MAX {
            // To forget one only puts it off.
            read.clear();
        }
        let sum = read.entry(region).or_default();
        *sum += read_bytes;
        let is_due = *sum >= holds_bytes;
        if is_due {
            read.remove(&region);
        }
        is_due
    }
}

/// A region that a read strained.
pub(super) struct FragmentedRegion {
    pub(super) index: u64,
    /// Its value, as it was read.
    pub(super) value: Vec<u8>,
    pub(super) read_bytes: u64,
    /// Which of the reads that were made together it was.
    pub(super) read: usize,
}

impl FragmentedRegion {
    /// The bytes from the region's start on, if the read that strained it has them up to `end`.
    fn bytes_read<'r>(&self, reads: &'r [ReadAt<'_>], end: u32) -> Option<&'r [u8]> {
        let read = reads.get(self.read)?;
        let skipped = (self.index * u64::from(REGION_BYTES)).checked_sub(read.offset)?;
        let bytes = read.buf.get(..read.len)?.get(usize::try_from(skipped).ok()?..)?;
        bytes.get(..end as usize)
    }
}

/// Whether a read of so many bytes through so many pieces strains a region.
pub(super) fn is_fragmented(pieces: usize, bytes: u64) -> bool {
    pieces >= DEFRAGMENT_PIECES_MIN && bytes < pieces as u64 * DEFRAGMENT_PIECE_BYTES_MAX
}

impl<E: Storage> Fs<E> {
    /// How much was gathered since the filesystem was opened.
    #[must_use]
    pub fn defragment_counts(&self) -> DefragmentCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DefragmentCounts {
            regions: read(&self.fragmentation.regions),
            bytes: read(&self.fragmentation.bytes),
        }
    }

    /// Gathers those regions that are due, for who has a pin since their values were read, and has made the reads that strained them.
    pub(super) fn defragment(&self, node: &Node, fragmented: &[FragmentedRegion], reads: &[ReadAt<'_>]) {
        let is_open = |fragmentation| Arc::strong_count(fragmentation) > 1;
        if fragmented.is_empty()
            || self.call_gate.is_transaction()
            || self.call_gate.is_entered()
            || is_open(&self.fragmentation)
        {
            return;
        }
        for region in fragmented {
            match self.defragment_region(node, region, reads) {
                Ok(0) => {}
                Ok(bytes) => {
                    self.fragmentation.regions.fetch_add(1, Ordering::Relaxed);
                    self.fragmentation.bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                Err(_) => return,
            }
        }
    }

    /// Gives the bytes written, 0 if it is not due, not worth it, or has changed meanwhile.
    fn defragment_region(
        &self,
        node: &Node,
        region: &FragmentedRegion,
        reads: &[ReadAt<'_>],
    ) -> Result<u64, FsError> {
        let map = decode_region(&region.value, false)?;
        let holds = map.data_bytes();
        if !self.fragmentation.is_due_after((node.ino(), region.index), region.read_bytes, holds)
            || map.len() < DEFRAGMENT_GAIN * data_runs(&map)
        {
            return Ok(0);
        }
        let space = self.engine.space()?;
        if space.free_bytes < space.total_bytes / DEFRAGMENT_FREE_PART {
            return Ok(0);
        }
        let end = map.iter().last().map_or(0, Extent::end);
        let bytes: Vec<u8> = match region.bytes_read(reads, end) {
            Some(bytes) => {
                let places = map.iter().map(|extent| extent.offset as usize..extent.end() as usize);
                let parts = places.map(|place| bytes.get(place).expect("it was read up to its end"));
                parts.collect::<Vec<_>>().concat()
            }
            None => self.data_of(&map)?,
        };
        let slices = self.engine.write(Stream::Large, &bytes, Admit::User)?;
        let replaced = self.replace_region(node, region, &map_of_slices(&map, &slices));
        self.engine.release(&slices);
        Ok(if replaced? { holds } else { 0 })
    }

    /// The bytes of a map's extents, one after the other.
    fn data_of(&self, map: &ExtentMap<'_>) -> Result<Vec<u8>, FsError> {
        let mut bytes = vec![0; usize::try_from(map.data_bytes()).expect("a region fits in memory")];
        let mut reads: Vec<SliceRead<'_>> = Vec::with_capacity(map.len());
        let mut rest = bytes.as_mut_slice();
        for extent in map.iter() {
            let (place, behind) = rest.split_at_mut(extent.len as usize);
            rest = behind;
            match (extent.pointer(), extent.source) {
                (Some(slice), _) => reads.push((slice, place)),
                (None, ExtentSource::Bytes(inline)) => place.copy_from_slice(inline),
                (None, _) => unreachable!("a value holds no holes"),
            }
        }
        self.engine.read(&mut reads)?;
        Ok(bytes)
    }

    /// Puts a region's new value in the place of the one that was read. `false` if that is not there any more.
    fn replace_region(
        &self,
        node: &Node,
        region: &FragmentedRegion,
        map: &ExtentMap<'_>,
    ) -> Result<bool, FsError> {
        let _guard = self.call_gate.enter();
        let mut state = node.state.write();
        let key = region_key(self.volume, node.ino(), region.index);
        let mut value = Vec::new();
        if state.layout != Layout::Regions || !self.get(&key, &mut value)? || value != region.value {
            return Ok(false);
        }
        value.clear();
        encode_region(&mut value, map, false);
        let mut batch = Batch::new();
        batch.put_naming(&key, &value, map.pointers());
        self.commit(&batch, Admit::User)?;
        if state.history.region == region.index {
            state.history.edits = 0;
            state.history.bytes = 0;
        }
        Ok(true)
    }
}

/// Stretches of data without a hole.
fn data_runs(map: &ExtentMap<'_>) -> usize {
    let mut end = None;
    map.iter().filter(|extent| end.replace(extent.end()) != Some(extent.offset)).count()
}

/// The extents of a map, whose bytes now lie in slices, one after the other.
fn map_of_slices(map: &ExtentMap<'_>, slices: &[SlicePtr]) -> ExtentMap<'static> {
    let mut slices = slices.iter().copied();
    let mut left: Option<SlicePtr> = None;
    let mut out = ExtentMap::new();
    for extent in map.iter() {
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
    out
}
