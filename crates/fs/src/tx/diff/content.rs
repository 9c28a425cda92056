//! Where the content of a file differs between the sides.

use std::ops::Range;

use warpfire_format::fs::{
    Extent, ExtentMap, ExtentSource, Inode, InodeContent, Key, REGION_BYTES, region_extents, region_key,
    region_range,
};
use warpfire_meta::{SliceRead, SliceStore, Storage};
use warpfire_units::SlicePtr;

use super::sides::{DiffSide, DiffSides, SideRecord};
use super::{ChangedRanges, RANGES_LISTED_MAX};
use crate::error::FsError;

/// Up to so many bytes, in no more ranges than are told, are read and compared. It is what a small file has at most, so where its bytes are does not show.
const COMPARED_BYTES_MAX: u64 = 64 << 10;

/// Changed regions of a file that are looked up at a time.
const REGIONS_AT_ONCE: usize = 256;

const REGION: u64 = REGION_BYTES as u64;

/// Ranges that come in order; those that touch become one.
#[derive(Default)]
struct RangeList {
    last: Option<Range<u64>>,
    done: ChangedRanges,
}

impl RangeList {
    fn add(&mut self, range: Range<u64>) {
        match &mut self.last {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => {
                self.end_last();
                self.last = Some(range);
            }
        }
    }

    fn end_last(&mut self) {
        if let Some(range) = self.last.take() {
            self.done.bytes += range.end - range.start;
            self.done.count += 1;
            if self.done.ranges.len() < RANGES_LISTED_MAX {
                self.done.ranges.push(range);
            }
        }
    }

    fn finish(mut self) -> ChangedRanges {
        self.end_last();
        self.done
    }
}

impl<E: Storage> DiffSides<E> {
    /// Where the bytes of the file are others inside than before, as far as it goes then. The caller has a pin since before it read the records.
    pub(super) fn differing(
        &self,
        before: &SideRecord,
        after: &SideRecord,
    ) -> Result<ChangedRanges, FsError> {
        let (before, after) = (before.inode()?, after.inode()?);
        let mut ranges = RangeList::default();
        let is_small = |inode: &Inode<'_>| matches!(inode.content, InodeContent::Small(_));
        let mut next = 0;
        if is_small(&before) || is_small(&after) {
            self.compare_region(&before, &after, 0, &mut ranges)?;
            next = 1;
        }
        let end = region_range(self.volume(), after.ino, 0).1;
        loop {
            let start = region_key(self.volume(), after.ino, next);
            let keys = self.changed(&start, Some(&end), REGIONS_AT_ONCE)?;
            for key in &keys {
                if let Key::Region(_, _, index) = Key::decode(key)? {
                    self.compare_region(&before, &after, index, &mut ranges)?;
                    next = index + 1;
                }
            }
            if keys.len() < REGIONS_AT_ONCE {
                break;
            }
        }
        let found = ranges.finish();
        if found.bytes > COMPARED_BYTES_MAX || found.count > found.ranges.len() as u64 {
            return Ok(found);
        }
        let mut exact = RangeList::default();
        for range in &found.ranges {
            let was = self.read(DiffSide::Before, &before, range)?;
            let is = self.read(DiffSide::After, &after, range)?;
            let differs = |(was, is): (&u8, &u8)| was != is;
            if let Some(skip) = was.iter().zip(&is).position(differs) {
                let past = was.iter().zip(&is).rposition(differs).map_or(0, |last| last + 1);
                exact.add(range.start + skip as u64..range.start + past as u64);
            }
        }
        Ok(exact.finish())
    }

    /// Adds where the pointers of a region differ.
    fn compare_region(
        &self,
        before: &Inode<'_>,
        after: &Inode<'_>,
        index: u64,
        ranges: &mut RangeList,
    ) -> Result<(), FsError> {
        let start = index * REGION;
        let len = after.attrs.size_bytes.saturating_sub(start).min(REGION) as u32;
        let (mut was, mut is) = (Vec::new(), Vec::new());
        let was = self.extents(DiffSide::Before, before, index, &mut was)?;
        let is = self.extents(DiffSide::After, after, index, &mut is)?;
        let mut bounds: Vec<u32> = was.iter().chain(is.iter()).flat_map(|e| [e.offset, e.end()]).collect();
        bounds.retain(|bound| *bound < len);
        bounds.extend([0, len]);
        bounds.sort_unstable();
        bounds.dedup();
        for (from, to) in bounds.iter().zip(bounds.iter().skip(1)) {
            if source_at(&was, *from, *to) != source_at(&is, *from, *to) {
                ranges.add(start + u64::from(*from)..start + u64::from(*to));
            }
        }
        Ok(())
    }

    /// A region's extents on one side.
    fn extents<'a>(
        &self,
        side: DiffSide,
        inode: &Inode<'a>,
        index: u64,
        value: &'a mut Vec<u8>,
    ) -> Result<ExtentMap<'a>, FsError> {
        Ok(match inode.content {
            InodeContent::Small(extents) if index == 0 => extents.to_map()?,
            InodeContent::Regions
                if self.get(side, &region_key(self.volume(), inode.ino, index), value)? =>
            {
                region_extents(value, false)?.to_map()?
            }
            _ => ExtentMap::new(),
        })
    }

    /// Bytes of a range; what the file has none of are zeros.
    fn read(&self, side: DiffSide, inode: &Inode<'_>, range: &Range<u64>) -> Result<Vec<u8>, FsError> {
        let mut bytes = Vec::new();
        for index in range.start / REGION..range.end.div_ceil(REGION) {
            let start = index * REGION;
            let (from, to) = (range.start.max(start) - start, range.end.min(start + REGION) - start);
            let mut value = Vec::new();
            let extents = self.extents(side, inode, index, &mut value)?;
            let (from, to) = (from as u32, to as u32);
            let mut part = vec![0; (to - from) as usize];
            let mut reads: Vec<SliceRead<'_>> = Vec::new();
            let (mut rest, mut at) = (part.as_mut_slice(), from);
            for extent in extents.iter().filter(|e| e.offset < to && e.end() > from) {
                let extent = extent.clip(from, to);
                let (_, tail) = rest.split_at_mut((extent.offset - at) as usize);
                let (place, tail) = tail.split_at_mut(extent.len as usize);
                match extent.source {
                    ExtentSource::Hole => {}
                    ExtentSource::Bytes(bytes) => place.copy_from_slice(bytes),
                    ExtentSource::Slice(segment, offset_bytes) => {
                        reads.push((SlicePtr { segment, offset_bytes, len_bytes: extent.len }, place));
                    }
                }
                (rest, at) = (tail, extent.end());
            }
            self.tx_fs().engine.read(&mut reads)?;
            bytes.append(&mut part);
        }
        Ok(bytes)
    }
}

/// Where the bytes of a part are that no extent begins or ends in.
fn source_at<'a>(extents: &ExtentMap<'a>, from: u32, to: u32) -> ExtentSource<'a> {
    let extents: &[Extent<'a>] = extents.iter().as_slice();
    let number = extents.partition_point(|extent| extent.end() <= from);
    let there = extents.get(number).filter(|extent| extent.offset < to);
    there.map_or(ExtentSource::Hole, |extent| extent.clip(from, to).source)
}
