//! The segments that are worth cleaning, by their fill, so that the best ones are found without a look at
//! each.
//!
//! The *benefit* of cleaning a segment for its cost is (1-u)·age/(1+u), where u is the share of live bytes
//! and age the number of segments made since (Rosenblum and Ousterhout 1991). Ages change with each new
//! segment, so no order by benefit lasts. Segments of one fill do keep their order: the oldest is best.
//! A *shelf* holds the segments with u between n/128 and (n+1)/128.
//!
//! # Invariants
//! 1. `best` returns what a sort of all segments by benefit returns (test
//!    `the_best_are_those_of_a_sort_of_all`).
//! 2. A segment is on the shelf of its fill, if it is worth cleaning and nowhere else; `SegmentTable` puts it
//!    there (assert in `SegmentTable::sums`, in debug builds).

use std::cmp::Reverse;
use std::collections::BTreeSet;

use warpfire_units::SegmentId;

/// Number of shelves.
const SHELVES: usize = 128;

/// Segments that are worth cleaning.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Victims {
    shelves: Vec<BTreeSet<SegmentId>>,
}

impl Default for Victims {
    fn default() -> Self {
        Victims { shelves: vec![BTreeSet::new(); SHELVES] }
    }
}

/// The place of a segment on the shelves, from its live bytes and the bytes that it can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shelf(u8);

impl Shelf {
    /// The shelf of a segment; it holds no more live bytes than it can hold.
    pub(crate) fn of(live_bytes: u64, capacity_bytes: u64) -> Shelf {
        let shelves = SHELVES as u128;
        let shelf = u128::from(live_bytes) * shelves / u128::from(capacity_bytes.max(1));
        Shelf(u8::try_from(shelf.min(shelves - 1)).expect("128 shelves"))
    }
}

/// The benefit of cleaning a segment with so many live bytes of so many, times a million.
pub(crate) fn benefit(live_bytes: u64, capacity_bytes: u64, age: u64) -> u128 {
    let capacity = capacity_bytes.max(1);
    let live = live_bytes.min(capacity);
    let gain = u128::from(capacity - live) * u128::from(age) * 1_000_000;
    gain / u128::from(capacity + live)
}

impl Victims {
    /// Moves a segment from one shelf to another. `None`: it is on no shelf.
    pub(crate) fn shift(&mut self, id: SegmentId, from: Option<Shelf>, to: Option<Shelf>) {
        if from == to {
            return;
        }
        if let Some(Shelf(shelf)) = from {
            let was_there = self.shelves[usize::from(shelf)].remove(&id);
            debug_assert!(was_there, "a segment is on the shelf of its fill");
        }
        if let Some(Shelf(shelf)) = to {
            self.shelves[usize::from(shelf)].insert(id);
        }
    }

    /// The segments with the most benefit, at most `max`, best first, and of equal ones the oldest first.
    /// `newest` is the id of the newest segment, and `benefit_of` a segment's benefit.
    pub(crate) fn best(
        &self,
        newest: u64,
        max: usize,
        benefit_of: impl Fn(SegmentId) -> u128,
    ) -> Vec<SegmentId> {
        // Best last, so that the one to replace is the first.
        let mut found: BTreeSet<(u128, Reverse<SegmentId>)> = BTreeSet::new();
        for (shelf, ids) in self.shelves.iter().enumerate() {
            for id in ids {
                // No segment of the shelf that is as young has more benefit than an emptiest one.
                let age = newest - id.get() + 1;
                let most = benefit(shelf as u64, SHELVES as u64, age);
                let is_full = found.len() >= max;
                if is_full && found.first().is_none_or(|(least, _)| most < *least) {
                    break;
                }
                found.insert((benefit_of(*id), Reverse(*id)));
                if is_full {
                    found.pop_first();
                }
            }
        }
        found.into_iter().rev().map(|(_, Reverse(id))| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn id(n: u64) -> SegmentId {
        SegmentId::new(n).expect("the tests count from 1")
    }

    /// The best of all segments, by a sort.
    fn plainly_best(segments: &[(u64, u64)], newest: u64, max: usize) -> Vec<SegmentId> {
        let mut all: Vec<(u128, Reverse<u64>)> = (1u64..)
            .zip(segments)
            .map(|(n, (live, capacity))| (benefit(*live, *capacity, newest - n + 1), Reverse(n)))
            .collect();
        all.sort_unstable();
        all.into_iter().rev().take(max).map(|(_, Reverse(n))| id(n)).collect()
    }

    fn on_shelves(segments: &[(u64, u64)]) -> Victims {
        let mut victims = Victims::default();
        for (n, (live, capacity)) in (1u64..).zip(segments) {
            victims.shift(id(n), None, Some(Shelf::of(*live, *capacity)));
        }
        victims
    }

    proptest::proptest! {
        #[test]
        fn the_best_are_those_of_a_sort_of_all(
            segments in proptest::collection::vec((0u64..=900, 1u64..=4), 1..400),
            later in 0u64..500, max in 0usize..12,
        ) {
            // Segments of several capacities, as in a pool whose width has changed.
            let segments: Vec<(u64, u64)> =
                segments.into_iter().map(|(live, k)| (live * k, 1000 * k)).collect();
            let newest = segments.len() as u64 + later;
            let of = |n: SegmentId| segments[usize::try_from(n.get()).unwrap() - 1];
            let benefit_of = |n: SegmentId| benefit(of(n).0, of(n).1, newest - n.get() + 1);
            let best = on_shelves(&segments).best(newest, max, benefit_of);
            proptest::prop_assert_eq!(best, plainly_best(&segments, newest, max));
        }
    }

    #[test]
    fn few_of_very_many_segments_are_looked_at() {
        // Fills of all kinds, at random among all ages.
        let segments: Vec<(u64, u64)> = (0..65_536u64).map(|n| (n * 7919 % 1000, 1000)).collect();
        let newest = segments.len() as u64;
        let looks = Cell::new(0);
        let of = |n: SegmentId| segments[usize::try_from(n.get()).unwrap() - 1];
        let benefit_of = |n: SegmentId| {
            looks.set(looks.get() + 1);
            benefit(of(n).0, of(n).1, newest - n.get() + 1)
        };
        let best = on_shelves(&segments).best(newest, 4, benefit_of);
        assert_eq!(best, plainly_best(&segments, newest, 4));
        assert!(looks.get() < 1000, "{} of 65,536 segments", looks.get());
    }

    #[test]
    fn a_full_shelf_of_equals_yields_the_oldest() {
        let segments = vec![(500, 1000); 5000];
        let looks = Cell::new(0);
        let benefit_of = |n: SegmentId| {
            looks.set(looks.get() + 1);
            benefit(500, 1000, 5000 - n.get() + 1)
        };
        let best = on_shelves(&segments).best(5000, 3, benefit_of);
        assert_eq!(best, [id(1), id(2), id(3)]);
        assert!(looks.get() < 10, "{} of 5,000 segments", looks.get());
    }
}
