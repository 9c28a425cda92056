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
    Extent, ExtentMap, REGION_BYTES, Source, decode_region, encode_region, region_key,
};
use warpfire_meta::{Admit, Batch, SliceRead, SliceStore, Store, Stream};
use warpfire_units::SlicePtr;

use super::read::ReadAt;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::{
    GATHER_FREE_PART, GATHER_GAIN, GATHER_PIECE_BYTES_MAX, GATHER_PIECES_MIN, STRAINED_REGIONS_MAX,
};
use crate::node::{Layout, Node};

/// How much was gathered since the filesystem was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GatherCounts {
    /// Regions whose pieces were written next to each other.
    pub regions: u64,
    /// Bytes that were written for that.
    pub bytes: u64,
}

/// What a filesystem knows of strained regions. Insides of transactions hold it too, so that the base can tell whether there are any.
#[derive(Default)]
pub(crate) struct Strain {
    /// Bytes read of each, by inode number and region.
    read: Mutex<BTreeMap<(u64, u64), u64>>,
    regions: AtomicU64,
    bytes: AtomicU64,
}

impl Strain {
    /// Counts a read. Whether the region, which holds so many bytes, is due; then it starts anew.
    fn is_due_after(&self, region: (u64, u64), read_bytes: u64, holds_bytes: u64) -> bool {
        let mut read = self.read.lock();
        if read.len() >= STRAINED_REGIONS_MAX {
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
pub(super) struct Strained {
    pub(super) index: u64,
    /// Its value, as it was read.
    pub(super) value: Vec<u8>,
    pub(super) read_bytes: u64,
    /// Which of the reads that were made together it was.
    pub(super) read: usize,
}

impl Strained {
    /// The bytes from the region's start on, if the read that strained it has them up to `end`.
    fn shown<'r>(&self, reads: &'r [ReadAt<'_>], end: u32) -> Option<&'r [u8]> {
        let read = reads.get(self.read)?;
        let skipped = (self.index * u64::from(REGION_BYTES)).checked_sub(read.offset)?;
        let bytes = read.buf.get(..read.len)?.get(usize::try_from(skipped).ok()?..)?;
        bytes.get(..end as usize)
    }
}

/// Whether a read of so many bytes through so many pieces strains a region.
pub(super) fn strains(pieces: usize, bytes: u64) -> bool {
    pieces >= GATHER_PIECES_MIN && bytes < pieces as u64 * GATHER_PIECE_BYTES_MAX
}

impl<E: Store + SliceStore> Fs<E> {
    /// How much was gathered since the filesystem was opened.
    #[must_use]
    pub fn gather_counts(&self) -> GatherCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        GatherCounts { regions: read(&self.strain.regions), bytes: read(&self.strain.bytes) }
    }

    /// Gathers those regions that are due, for who has a pin since their values were read, and has made the reads that strained them.
    pub(super) fn gather(&self, node: &Node, strained: &[Strained], reads: &[ReadAt<'_>]) {
        let is_open = |strain| Arc::strong_count(strain) > 1;
        if strained.is_empty()
            || self.call_gate.is_transaction()
            || self.call_gate.is_entered()
            || is_open(&self.strain)
        {
            return;
        }
        for region in strained {
            match self.gather_region(node, region, reads) {
                Ok(0) => {}
                Ok(bytes) => {
                    self.strain.regions.fetch_add(1, Ordering::Relaxed);
                    self.strain.bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                Err(_) => return,
            }
        }
    }

    /// Gives the bytes written, 0 if it is not due, not worth it, or has changed meanwhile.
    fn gather_region(&self, node: &Node, region: &Strained, reads: &[ReadAt<'_>]) -> Result<u64, FsError> {
        let map = decode_region(&region.value, false)?;
        let holds = map.data_bytes();
        if !self.strain.is_due_after((node.ino(), region.index), region.read_bytes, holds)
            || map.len() < GATHER_GAIN * runs(&map)
        {
            return Ok(0);
        }
        let space = self.engine.space();
        if space.free_bytes < space.total_bytes / GATHER_FREE_PART {
            return Ok(0);
        }
        let end = map.iter().last().map_or(0, Extent::end);
        let bytes: Vec<u8> = match region.shown(reads, end) {
            Some(shown) => {
                let places = map.iter().map(|extent| extent.offset as usize..extent.end() as usize);
                let parts = places.map(|place| shown.get(place).expect("it was read up to its end"));
                parts.collect::<Vec<_>>().concat()
            }
            None => self.data_of(&map)?,
        };
        let slices = self.engine.write(Stream::Large, &bytes, Admit::User)?;
        let replaced = self.replace_region(node, region, &gathered(&map, &slices));
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
                (None, Source::Bytes(riding)) => place.copy_from_slice(riding),
                (None, _) => unreachable!("a value holds no holes"),
            }
        }
        self.engine.read(&mut reads)?;
        Ok(bytes)
    }

    /// Puts a region's new value in the place of the one that was read. `false` if that is not there any more.
    fn replace_region(&self, node: &Node, region: &Strained, map: &ExtentMap<'_>) -> Result<bool, FsError> {
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
        batch.put(&key, &value);
        self.commit(&batch, Admit::User)?;
        if state.history.region == region.index {
            state.history.edits = 0;
            state.history.bytes = 0;
        }
        Ok(true)
    }
}

/// Stretches of data without a hole.
fn runs(map: &ExtentMap<'_>) -> usize {
    let mut end = None;
    map.iter().filter(|extent| end.replace(extent.end()) != Some(extent.offset)).count()
}

/// The extents of a map, whose bytes now lie in slices, one after the other.
fn gathered(map: &ExtentMap<'_>, slices: &[SlicePtr]) -> ExtentMap<'static> {
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
