//! The ranges in which the content of a file differs between the sides.
//!
//! Pointers are compared first, region by region. That finds every byte that differs, and also bytes that
//! were written again with the same value. Where the ranges are few and short, their bytes are read and
//! compared, and only those that differ are listed.

use std::ops::Range;

use warpfire_format::fs::{
    Extent, ExtentMap, ExtentSource, Inode, InodeContent, Key, REGION_BYTES, region_extents,
};
use warpfire_meta::{SliceRead, Storage};
use warpfire_units::SlicePtr;

use super::sides::{DiffSide, DiffSides, SideRecord};
use super::{ChangedRanges, RANGES_LISTED_MAX};
use crate::error::FsError;
use crate::keys::{region_key, region_range};

/// Most bytes that are read and compared. It is the largest inline file: promoting one to regions changes
/// where its bytes are, and must not show in a diff.
const COMPARED_BYTES_MAX: u64 = 64 << 10;

/// Changed regions of a file that one look-up returns.
const REGIONS_AT_ONCE: usize = 256;

const REGION: u64 = REGION_BYTES as u64;

/// A list of ranges that are added in order. Ranges that touch become one.
#[derive(Default)]
struct RangeList {
    last: Option<Range<u64>>,
    done: ChangedRanges,
}

impl RangeList {
    fn add(&mut self, range: Range<u64>) {
        debug_assert!(range.start < range.end, "a range is not empty");
        debug_assert!(self.last.as_ref().is_none_or(|last| last.end <= range.start), "ranges come in order");
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
    /// The ranges of the file after the changes in which its bytes differ. The caller has had a pin since
    /// before it read the records.
    ///
    /// # Errors
    /// `Damaged` if a value does not decode, or bytes cannot be read.
    pub(crate) fn differing(
        &self,
        before: &SideRecord,
        after: &SideRecord,
    ) -> Result<ChangedRanges, FsError> {
        let before = before.inode()?;
        let after = after.inode()?;
        let mut ranges = RangeList::default();
        let is_small = |inode: &Inode<'_>| matches!(inode.content, InodeContent::Small(_));
        // An inline file has its extents in its record, which has changed; no key of region 0 need have. So
        // region 0 is compared in any case. All others are found by their changed keys.
        let mut next = 0;
        if is_small(&before) || is_small(&after) {
            self.compare_region(&before, &after, 0, &mut |range| ranges.add(range))?;
            next = 1;
        }
        let end = region_range(after.ino, 0).1;
        loop {
            let start = region_key(after.ino, next);
            let keys = self.changed(&start, Some(&end), REGIONS_AT_ONCE)?;
            for key in &keys {
                if let Key::Region(_, _, index) = Key::decode(key)? {
                    self.compare_region(&before, &after, index, &mut |range| ranges.add(range))?;
                    next = index + 1;
                }
            }
            if keys.len() < REGIONS_AT_ONCE {
                break;
            }
        }
        // Only ranges that are all listed can be made exact: the count would be wrong else.
        let found = ranges.finish();
        if found.bytes > COMPARED_BYTES_MAX || found.count > found.ranges.len() as u64 {
            return Ok(found);
        }
        let mut exact = RangeList::default();
        for range in &found.ranges {
            let was = self.read(DiffSide::Before, &before, range)?;
            let is = self.read(DiffSide::After, &after, range)?;
            let differs = |(was, is): (&u8, &u8)| was != is;
            // From the first byte that differs to the last: one range stays one range.
            if let Some(skip) = was.iter().zip(&is).position(differs) {
                let past = was.iter().zip(&is).rposition(differs).map_or(0, |last| last + 1);
                exact.add(range.start + skip as u64..range.start + past as u64);
            }
        }
        Ok(exact.finish())
    }

    /// Adds the ranges in which the pointers of a region differ: all of it, if the content before is not
    /// known.
    pub(crate) fn compare_region(
        &self,
        before: &Inode<'_>,
        after: &Inode<'_>,
        index: u64,
        add: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), FsError> {
        let start = index * REGION;
        let len = after.attrs.size_bytes.saturating_sub(start).min(REGION) as u32;
        if !self.know_content() {
            if len > 0 {
                add(start..start + u64::from(len));
            }
            return Ok(());
        }
        let mut was = Vec::new();
        let mut is = Vec::new();
        let was = self.extents(DiffSide::Before, before, index, &mut was)?;
        let is = self.extents(DiffSide::After, after, index, &mut is)?;
        // Between two neighbouring bounds neither side has an extent that begins or ends, so one comparison
        // of the sources covers all bytes there.
        let mut bounds: Vec<u32> = was.iter().chain(is.iter()).flat_map(|e| [e.offset, e.end()]).collect();
        bounds.retain(|bound| *bound < len);
        bounds.extend([0, len]);
        bounds.sort_unstable();
        bounds.dedup();
        for (from, to) in bounds.iter().zip(bounds.iter().skip(1)) {
            if source_at(&was, *from, *to) != source_at(&is, *from, *to) {
                add(start + u64::from(*from)..start + u64::from(*to));
            }
        }
        Ok(())
    }

    /// A region's extents on one side. `value` is the buffer for its value.
    pub(crate) fn extents<'a>(
        &self,
        side: DiffSide,
        inode: &Inode<'a>,
        index: u64,
        value: &'a mut Vec<u8>,
    ) -> Result<ExtentMap<'a>, FsError> {
        Ok(match inode.content {
            InodeContent::Small(extents) if index == 0 => extents.to_map()?,
            InodeContent::Regions if self.get(side, &region_key(inode.ino, index), value)? => {
                region_extents(value, false)?.to_map()?
            }
            _ => ExtentMap::new(),
        })
    }

    /// The bytes of a range. In holes, and past the end of the file, they are zeros.
    fn read(&self, side: DiffSide, inode: &Inode<'_>, range: &Range<u64>) -> Result<Vec<u8>, FsError> {
        let mut bytes = Vec::new();
        for index in range.start / REGION..range.end.div_ceil(REGION) {
            let start = index * REGION;
            let from = (range.start.max(start) - start) as u32;
            let to = (range.end.min(start + REGION) - start) as u32;
            let mut value = Vec::new();
            let extents = self.extents(side, inode, index, &mut value)?;
            let mut part = vec![0; (to - from) as usize];
            let mut reads: Vec<SliceRead<'_>> = Vec::new();
            // The buffer is zero, and is split at each extent, so that all slices are read in one batch.
            let mut rest = part.as_mut_slice();
            let mut at = from;
            for extent in extents.iter().filter(|e| e.offset < to && e.end() > from) {
                let extent = extent.clip(from, to);
                let (_, tail) = rest.split_at_mut((extent.offset - at) as usize);
                let (place, tail) = tail.split_at_mut(extent.len as usize);
                match extent.source {
                    ExtentSource::Hole | ExtentSource::Reserved => {}
                    ExtentSource::Bytes(bytes) => place.copy_from_slice(bytes),
                    ExtentSource::Slice(segment, offset_bytes) => {
                        reads.push((SlicePtr { segment, offset_bytes, len_bytes: extent.len }, place));
                    }
                }
                rest = tail;
                at = extent.end();
            }
            self.read_slices(&mut reads)?;
            bytes.append(&mut part);
        }
        debug_assert_eq!(bytes.len() as u64, range.end - range.start, "every byte of the range was read");
        Ok(bytes)
    }
}

/// The source of the bytes `from..to`. No extent begins or ends between.
fn source_at<'a>(extents: &ExtentMap<'a>, from: u32, to: u32) -> ExtentSource<'a> {
    let extents: &[Extent<'a>] = extents.iter().as_slice();
    let number = extents.partition_point(|extent| extent.end() <= from);
    let there = extents.get(number).filter(|extent| extent.offset < to);
    let source = there.map_or(ExtentSource::Hole, |extent| extent.clip(from, to).source);
    // A reserved range reads as a hole.
    if source == ExtentSource::Reserved { ExtentSource::Hole } else { source }
}
