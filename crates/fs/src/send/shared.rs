//! Slices that a stream has already: bytes that several files share are sent once.
//!
//! # Invariants
//! 1. Ranges do not overlap (`place` adds only what lies between them).
//! 2. There are at most [`RANGES_MAX`]: beyond that all are forgotten, and shared bytes are sent again.

use std::collections::BTreeMap;

use warpfire_units::{SegmentId, SlicePtr};

/// Most ranges that are remembered, some 64 bytes each. Files that are sent in the order in which they were
/// packed take one range together.
const RANGES_MAX: usize = 1 << 20;

/// A range of a segment that was sent.
#[derive(Clone, Copy)]
struct SentRange {
    end: u64,
    position: u64,
}

/// Ranges of segments that were sent, by their first byte.
#[derive(Default)]
pub(super) struct SharedRanges(BTreeMap<(SegmentId, u64), SentRange>);

/// A part of a slice.
pub(super) enum SlicePart {
    /// It was sent, at this data position.
    Sent { position: u64, len_bytes: u32 },
    /// It is sent now.
    New(SlicePtr),
}

impl SharedRanges {
    /// Forgets all ranges.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes a slice apart. `visit` returns the data position of each new part.
    pub(super) fn place(&mut self, slice: SlicePtr, visit: &mut dyn FnMut(SlicePart) -> u64) {
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let end = offset_bytes + u64::from(len_bytes);
        let mut at = offset_bytes;
        while at < end {
            let before = self.0.range(..=(segment, at)).next_back();
            let before =
                before.filter(|((of, _), _)| *of == segment).map(|((_, start), sent)| (*start, *sent));
            let narrow = |bytes: u64| u32::try_from(bytes).expect("a part of a slice is no longer than it");
            if let Some((start, sent)) = before
                && sent.end > at
            {
                let part_end = sent.end.min(end);
                visit(SlicePart::Sent {
                    position: sent.position + (at - start),
                    len_bytes: narrow(part_end - at),
                });
                at = part_end;
                continue;
            }
            let next = self.0.range((segment, at)..(segment, end)).next().map(|((_, start), _)| *start);
            let part_end = next.unwrap_or(end);
            let len_bytes = narrow(part_end - at);
            let position = visit(SlicePart::New(SlicePtr { segment, offset_bytes: at, len_bytes }));
            self.add(segment, at..part_end, position, before);
            at = part_end;
        }
    }

    fn add(
        &mut self,
        segment: SegmentId,
        range: std::ops::Range<u64>,
        position: u64,
        before: Option<(u64, SentRange)>,
    ) {
        let joins = |(start, sent): &(u64, SentRange)| {
            sent.end == range.start && sent.position + (sent.end - start) == position
        };
        if let Some((start, sent)) = before.filter(joins) {
            self.0.insert((segment, start), SentRange { end: range.end, ..sent });
            return;
        }
        if self.0.len() >= RANGES_MAX {
            self.0.clear();
        }
        self.0.insert((segment, range.start), SentRange { end: range.end, position });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::TestRandom;

    #[test]
    fn every_byte_has_the_position_at_which_it_was_first_sent() {
        let mut random = TestRandom(3);
        for _ in 0..200 {
            let mut shared = SharedRanges::default();
            let mut naive: BTreeMap<(u64, u64), u64> = BTreeMap::new();
            let mut next = 0;
            for _ in 0..40 {
                let segment = 1 + random.below(2);
                let (offset_bytes, len_bytes) = (random.below(60), 1 + random.below(20) as u32);
                let id = SegmentId::new(segment).expect("not zero");
                let mut found = Vec::new();
                shared.place(SlicePtr { segment: id, offset_bytes, len_bytes }, &mut |part| match part {
                    SlicePart::Sent { position, len_bytes } => {
                        found.extend(position..position + u64::from(len_bytes));
                        0
                    }
                    SlicePart::New(slice) => {
                        let position = next;
                        next += u64::from(slice.len_bytes);
                        found.extend(position..next);
                        position
                    }
                });
                let mut unsent = next;
                for (n, position) in found.iter().enumerate() {
                    let byte = (segment, offset_bytes + n as u64);
                    assert_eq!(naive.entry(byte).or_insert(*position), position);
                    unsent = unsent.min(*position);
                }
                assert_eq!(found.len(), len_bytes as usize);
            }
            assert_eq!(naive.len() as u64, next, "each byte is sent once");
        }
    }
}
