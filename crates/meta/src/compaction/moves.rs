//! The bytes that one cleaning has copied so far, so that it copies each byte once.
//!
//! # Invariants
//! 1. No two ranges have a byte in common, and neighbours that were copied to neighbouring places are one
//!    range (assert in `note`). So slices that share some bytes share the copies of these, wherever they
//!    begin and end (`tests::each_byte_has_one_copy_however_slices_overlap`).
//! 2. The copies of all ranges are referenced: by the job that made them, or by a table that it has installed
//!    (`forget` is called when a job fails and releases its copies).

use std::collections::{BTreeMap, BTreeSet};

use warpfire_slices::KnownCopy;
use warpfire_units::{SegmentId, SlicePtr};

/// Most ranges that are remembered (about 64 MiB). Bytes beyond them are copied once for each of their names.
const RANGES_MAX: usize = 1 << 20;

/// A segment and an offset in it.
type Address = (SegmentId, u64);

#[derive(Clone, Copy, Debug)]
struct CopiedRange {
    len_bytes: u64,
    to: Address,
}

/// The moves of one cleaning so far, over all its jobs.
#[derive(Default)]
pub(crate) struct SliceMoves {
    copied: BTreeMap<Address, CopiedRange>,
    /// Segments with a slice that cannot be read. Such a slice stays named, and reading it stays an error.
    pub(super) unrecoverable: BTreeSet<SegmentId>,
}

impl SliceMoves {
    /// The copy of the first bytes of a slice, if this cleaning has made one.
    pub(super) fn known_copy(&self, slice: SlicePtr) -> KnownCopy {
        let at = (slice.segment, slice.offset_bytes);
        if let Some((from, range)) = self.copied.range(..=at).next_back()
            && from.0 == slice.segment
            && let Some(left) = range.len_bytes.checked_sub(at.1 - from.1).filter(|left| *left > 0)
        {
            return KnownCopy::Of(SlicePtr {
                segment: range.to.0,
                offset_bytes: range.to.1 + (at.1 - from.1),
                len_bytes: u32::try_from(left).map_or(slice.len_bytes, |left| left.min(slice.len_bytes)),
            });
        }
        let behind = self.copied.range(at..).next().filter(|(from, _)| from.0 == slice.segment);
        let gap = behind.and_then(|(from, _)| u32::try_from(from.1 - at.1).ok());
        KnownCopy::NoneOf(gap.map_or(slice.len_bytes, |gap| gap.min(slice.len_bytes)))
    }

    /// Notes the copies of a slice, in order. No byte of it has a copy yet.
    pub(super) fn note(&mut self, slice: SlicePtr, copies: &[SlicePtr]) {
        let mut offset_bytes = slice.offset_bytes;
        for copy in copies {
            let from = (slice.segment, offset_bytes);
            let to = (copy.segment, copy.offset_bytes);
            let len_bytes = u64::from(copy.len_bytes);
            offset_bytes += len_bytes;
            debug_assert!(
                self.copied.range(from..(slice.segment, offset_bytes)).next().is_none(),
                "a byte is copied once"
            );
            if let Some((before, range)) = self.copied.range_mut(..from).next_back()
                && before.0 == from.0
                && range.to.0 == to.0
            {
                assert!(before.1 + range.len_bytes <= from.1, "a byte is copied once");
                if (before.1 + range.len_bytes, range.to.1 + range.len_bytes) == (from.1, to.1) {
                    range.len_bytes += len_bytes;
                    continue;
                }
            }
            if self.copied.len() < RANGES_MAX {
                self.copied.insert(from, CopiedRange { len_bytes, to });
            }
        }
    }

    /// Forgets all copies: nobody may refer to them any more.
    pub(super) fn forget(&mut self) {
        self.copied.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    #[test]
    fn each_byte_has_one_copy_however_slices_overlap() {
        let mut rng = Rng(5);
        let segment = |n: u64| SegmentId::new(1 + n).expect("the tests count from 1");
        for _ in 0..200 {
            let mut moves = SliceMoves::default();
            // The place of each byte of two segments, and the end of the copies.
            let mut places: BTreeMap<Address, Address> = BTreeMap::new();
            let mut end = 0;
            for _ in 0..30 {
                let slice = SlicePtr {
                    segment: segment(rng.below(2)),
                    offset_bytes: rng.below(100),
                    len_bytes: 1 + rng.below(40) as u32,
                };
                let mut done = 0;
                while done < slice.len_bytes {
                    let rest = slice.part(done, slice.len_bytes - done);
                    match moves.known_copy(rest) {
                        KnownCopy::Of(copy) => {
                            for n in 0..u64::from(copy.len_bytes) {
                                let at = (rest.segment, rest.offset_bytes + n);
                                assert_eq!(places[&at], (copy.segment, copy.offset_bytes + n));
                            }
                            done += copy.len_bytes;
                        }
                        KnownCopy::NoneOf(len) => {
                            let gap = rest.part(0, len);
                            // Now and then a copy goes on in another segment.
                            let first = 1 + rng.below(u64::from(len)) as u32;
                            let mut copies = Vec::new();
                            for part in [gap.part(0, first), gap.part(first, len - first)] {
                                let to = segment(9 + end / 50);
                                let copy = SlicePtr { segment: to, offset_bytes: end, ..part };
                                end += u64::from(part.len_bytes);
                                for n in 0..u64::from(part.len_bytes) {
                                    let at = (part.segment, part.offset_bytes + n);
                                    let before = places.insert(at, (to, copy.offset_bytes + n));
                                    assert_eq!(before, None, "a byte is copied once");
                                }
                                copies.extend((part.len_bytes > 0).then_some(copy));
                            }
                            moves.note(gap, &copies);
                            done += len;
                        }
                    }
                }
            }
            assert_eq!(end, places.len() as u64);
        }
    }

    #[test]
    fn neighbours_that_go_to_neighbouring_places_take_one_range() {
        let mut moves = SliceMoves::default();
        let whole = SlicePtr { segment: SegmentId::FIRST, offset_bytes: 0, len_bytes: 1000 };
        let copy = SlicePtr { segment: SegmentId::FIRST.next(), offset_bytes: 70, len_bytes: 1000 };
        for n in 0..10 {
            moves.note(whole.part(n * 100, 100), &[copy.part(n * 100, 100)]);
        }
        assert_eq!(moves.copied.len(), 1);
        assert_eq!(moves.known_copy(whole.part(250, 600)), KnownCopy::Of(copy.part(250, 600)));
    }
}
