//! Named bytes, each once: a list of ranges for each segment.
//!
//! # Invariants
//! 1. The ranges of a segment are sorted, and no two of them overlap or touch (assert in `add`).

use std::collections::BTreeMap;

use warpfire_units::{SegmentId, SlicePtr};

/// The bytes that names have named so far.
#[derive(Default)]
pub(super) struct DistinctBytes(BTreeMap<SegmentId, BTreeMap<u64, u64>>);

impl DistinctBytes {
    /// Adds the bytes of one name.
    pub(super) fn add(&mut self, slice: SlicePtr) {
        let ranges = self.0.entry(slice.segment).or_default();
        let mut from = slice.offset_bytes;
        let mut to = slice.offset_bytes.saturating_add(u64::from(slice.len_bytes));
        // The ranges that overlap or touch the new one become part of it.
        while let Some((&start, &end)) = ranges.range(..=to).next_back().filter(|(_, end)| **end >= from) {
            ranges.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        let before = ranges.insert(from, to);
        assert!(before.is_none(), "a range that begins there was a part of the new one");
    }

    /// The number of bytes, by segment.
    pub(super) fn by_segment(&self) -> impl Iterator<Item = (SegmentId, u64)> + '_ {
        self.0.iter().map(|(id, ranges)| (*id, ranges.iter().map(|(from, to)| to - from).sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_in_any_order_count_each_byte_once() {
        let mut state = 11u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let (mut distinct, mut naive) = (DistinctBytes::default(), [false; 200]);
            for _ in 0..draw(40) {
                let (offset_bytes, len_bytes) = (draw(150), 1 + draw(50) as u32);
                distinct.add(SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes });
                naive[offset_bytes as usize..][..len_bytes as usize].fill(true);
                let wanted = naive.iter().filter(|named| **named).count() as u64;
                assert_eq!(distinct.by_segment().map(|(_, bytes)| bytes).sum::<u64>(), wanted);
            }
        }
    }
}
