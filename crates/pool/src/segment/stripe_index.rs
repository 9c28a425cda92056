//! The places of all stripes of a segment, run-length coded and found by binary search.
//!
//! A *run* is a series of stripes with the same number of rows. A *payload row* is a row counted over all
//! stripes of the segment.
//!
//! # Invariants
//! 1. Stripes follow each other without a gap from the zone's first block: a header block, then the rows.
//! 2. The payload of a stripe begins where the payload capacity of the stripe before it ends. So padding of a
//!    short stripe has addresses too.
//! 3. `end` is the position after the last run (test `agrees_with_a_plain_list_of_stripes`).

use warpfire_format::segment::{SegmentDescriptor, StripeRun};

/// The place of one stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StripePlace {
    /// Its number in the segment.
    pub stripe: u32,
    /// The zone block of its header, the same on each column.
    pub block: u32,
    /// Its first payload row.
    pub first_row: u64,
    /// Number of its rows.
    pub rows: u16,
}

/// The stripes of one segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct StripeIndex {
    runs: Vec<StripeIndexRun>,
    /// The position of the next stripe.
    end: StripePosition,
}

#[derive(Clone, Copy, Debug, Default)]
struct StripePosition {
    stripe: u32,
    block: u32,
    row: u64,
}

#[derive(Clone, Copy, Debug)]
struct StripeIndexRun {
    start: StripePosition,
    rows: u16,
    count: u32,
}

impl StripeIndexRun {
    fn nth(&self, n: u32) -> StripePlace {
        debug_assert!(n < self.count, "the stripe belongs to the run");
        StripePlace {
            stripe: self.start.stripe + n,
            block: self.start.block + n * (u32::from(self.rows) + 1),
            first_row: self.start.row + u64::from(n) * u64::from(self.rows),
            rows: self.rows,
        }
    }
}

impl StripeIndex {
    /// The stripes that `d` lists; `None` if they do not fit into a zone.
    pub(crate) fn of(d: &SegmentDescriptor, zone_blocks: u32) -> Option<Self> {
        // First, in 64 bits: the sums below are of 32 bits and rely on stripes that fit.
        if d.zone_blocks_used() > u64::from(zone_blocks) {
            return None;
        }
        let mut index = StripeIndex::default();
        for run in &d.stripes {
            index.push_run(run.rows, run.count);
        }
        assert!(index.end_block() <= zone_blocks, "the stripes fit into a zone");
        Some(index)
    }

    /// The places of all stripes, in order.
    pub(crate) fn places(&self) -> Vec<StripePlace> {
        self.runs.iter().flat_map(|run| (0..run.count).map(|n| run.nth(n))).collect()
    }

    /// Adds one stripe at the end and returns its place.
    pub(crate) fn push(&mut self, rows: u16) -> StripePlace {
        self.push_run(rows, 1);
        let last = self.runs.last().expect("a run was just pushed or made longer");
        let place = last.nth(last.count - 1);
        debug_assert_eq!(place.stripe + 1, self.count(), "the new stripe is the last one");
        place
    }

    fn push_run(&mut self, rows: u16, count: u32) {
        match self.runs.last_mut() {
            Some(run) if run.rows == rows => run.count += count,
            _ => self.runs.push(StripeIndexRun { start: self.end, rows, count }),
        }
        self.end.stripe += count;
        self.end.block += count * (u32::from(rows) + 1);
        self.end.row += u64::from(count) * u64::from(rows);
    }

    /// Zone blocks that the stripes occupy.
    pub(crate) fn end_block(&self) -> u32 {
        self.end.block
    }

    /// Number of payload rows.
    pub(crate) fn end_row(&self) -> u64 {
        self.end.row
    }

    /// Number of stripes.
    pub(crate) fn count(&self) -> u32 {
        self.end.stripe
    }

    /// The stripe that holds payload row `row`; `None` if the row is past the last stripe.
    pub(crate) fn find_row(&self, row: u64) -> Option<StripePlace> {
        let after = self.runs.partition_point(|r| r.start.row <= row);
        let run = self.runs.get(after.checked_sub(1)?)?;
        // Mirror stripes may have no rows: such a run holds no payload row.
        let n = u32::try_from((row - run.start.row) / u64::from(run.rows).max(1)).ok()?;
        (run.rows > 0 && n < run.count).then(|| run.nth(n))
    }

    /// The runs in the form of a descriptor.
    pub(crate) fn runs(&self) -> Vec<StripeRun> {
        self.runs.iter().map(|r| StripeRun { rows: r.rows, count: r.count }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn agrees_with_a_plain_list_of_stripes(
            lengths in proptest::collection::vec((1u16..5, 1u32..4), 0..20),
        ) {
            let mut index = StripeIndex::default();
            let mut naive = Vec::new();
            let (mut block, mut row) = (0, 0);
            for rows in lengths.iter().flat_map(|(rows, n)| std::iter::repeat_n(*rows, *n as usize)) {
                let stripe = u32::try_from(naive.len()).unwrap();
                let place = StripePlace { stripe, block, first_row: row, rows };
                proptest::prop_assert_eq!(index.push(rows), place);
                naive.push(place);
                block += u32::from(rows) + 1;
                row += u64::from(rows);
            }
            for place in &naive {
                for r in 0..place.rows {
                    proptest::prop_assert_eq!(index.find_row(place.first_row + u64::from(r)), Some(*place));
                }
            }
            proptest::prop_assert_eq!(index.find_row(row), None);
            proptest::prop_assert_eq!((index.end_block(), index.end_row()), (block, row));
        }
    }
}
