//! Finding the bytes of a file that damage has taken.
//!
//! A read of many blocks fails if one of them is damaged. This call reads the slices of a range one by one,
//! and one that fails block by block, so its answer is exact.

use std::ops::Range;

use warpfire_format::fs::REGION_BYTES;
use warpfire_meta::Storage;
use warpfire_units::{BLOCK_BYTES, SlicePtr};

use super::check_regular;
use super::read::ReadFill;
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::NodeRef;

impl<E: Storage> Fs<E> {
    /// The ranges of bytes in `range` that cannot be read, in order, with data between any two of them.
    /// `range` may end behind the end of the file. A region whose pointers cannot be read is missing as a
    /// whole.
    ///
    /// # Errors
    /// `IsDirectory`; `Invalid` for a node without content; `Unsupported` inside a transaction, whose reads
    /// are recorded whole. Other errors than damage, as `read`.
    pub fn unreadable(&self, node: &NodeRef, range: Range<u64>) -> Result<Vec<Range<u64>>, FsError> {
        check_regular(node)?;
        if self.call_gate.is_transaction() {
            return Err(FsError::Unsupported);
        }
        let region = u64::from(REGION_BYTES);
        let mut missing = Vec::new();
        let mut at = range.start;
        // Behind the end of the file there is nothing to lose.
        let range_end = range.end.min(self.getattr(node).size_bytes);
        // One region at a time bounds the buffer, and keeps the loss of a region's pointers to that region.
        while at < range_end {
            let end = ((at / region + 1) * region).min(range_end);
            match self.unreadable_in_region(node, at..end, &mut missing) {
                Err(FsError::Damaged { .. }) => add(&mut missing, at..end),
                other => other?,
            }
            at = end;
        }
        Ok(missing)
    }

    fn unreadable_in_region(
        &self,
        node: &NodeRef,
        range: Range<u64>,
        missing: &mut Vec<Range<u64>>,
    ) -> Result<(), FsError> {
        let guard = self.call_gate.enter();
        // The pin comes before the pointers are read, as in every read.
        let pin = self.engine.pin()?;
        let state = node.state.read();
        let end = range.end.min(state.attrs.size_bytes);
        let len = usize::try_from(end.saturating_sub(range.start)).expect("at most a region");
        let mut bytes = vec![0; len];
        let mut fill = ReadFill::new(&mut bytes, range.start, 0);
        self.read_from_state(node, &state, &mut fill)?;
        let slices = fill.into_slices();
        drop((state, guard));
        let mut buf = vec![0; len];
        for (place, slice) in slices {
            let at = range.start + place as u64;
            if self.is_readable(slice, &mut buf)? {
                continue;
            }
            for (skip, block) in blocks_of(slice) {
                if !self.is_readable(block, &mut buf)? {
                    add(missing, at + skip..at + skip + u64::from(block.len_bytes));
                }
            }
        }
        drop(pin);
        Ok(())
    }

    fn is_readable(&self, slice: SlicePtr, buf: &mut [u8]) -> Result<bool, FsError> {
        let place = buf.get_mut(..slice.len_bytes as usize).expect("a slice of the range fits its buffer");
        match self.engine.read(&mut [(slice, place)]).map_err(FsError::from) {
            Ok(()) => Ok(true),
            Err(FsError::Damaged { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The parts of a slice in each block that has a checksum of its own, with their offsets in the slice.
fn blocks_of(slice: SlicePtr) -> impl Iterator<Item = (u64, SlicePtr)> {
    let block = BLOCK_BYTES as u64;
    let (start, end) = (slice.offset_bytes, slice.offset_bytes + u64::from(slice.len_bytes));
    (start / block..end.div_ceil(block)).map(move |number| {
        let (from, to) = ((number * block).max(start), ((number + 1) * block).min(end));
        let len_bytes = u32::try_from(to - from).expect("at most a block");
        (from - start, SlicePtr { segment: slice.segment, offset_bytes: from, len_bytes })
    })
}

/// Adds a range behind the others; it becomes one with a range that it touches.
fn add(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ if next.is_empty() => {}
        _ => ranges.push(next),
    }
}

#[cfg(test)]
mod tests {
    use warpfire_units::SegmentId;

    use super::*;

    #[test]
    fn a_slice_is_cut_where_blocks_end() {
        let segment = SegmentId::new(7).expect("not zero");
        let slice = SlicePtr { segment, offset_bytes: 4000, len_bytes: 8000 };
        let parts: Vec<(u64, u64, u32)> =
            blocks_of(slice).map(|(skip, part)| (skip, part.offset_bytes, part.len_bytes)).collect();
        assert_eq!(parts, [(0, 4000, 96), (96, 4096, 4096), (4192, 8192, 3808)]);
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut ranges = Vec::new();
        for next in [0..3, 3..5, 7..9, 9..9, 9..10] {
            add(&mut ranges, next);
        }
        assert_eq!(ranges, [0..5, 7..10]);
    }
}
