//! Where each stripe of a segment lies: run-length coded in memory too, found by binary search.
//!
//! Invariants
//! 1. Stripes lie one after the other from the zone's first block: a header block, then the rows.
//! 2. A stripe's payload begins where the payload capacity of all earlier ones ends, padding counted.

use warpfire_format::segment::{SegmentDescriptor, StripeRun};

/// One stripe's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StripePlace {
    /// Its number in the segment.
    pub stripe: u32,
    /// The zone block of its header, on each column.
    pub block: u32,
    /// Rows on each column before it, in payload order.
    pub first_row: u64,
    /// Its own rows.
    pub rows: u16,
}

/// The stripes of one segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct StripeIndex {
    runs: Vec<StripeIndexRun>,
    /// Where the next stripe would be.
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
        if d.zone_blocks_used() > u64::from(zone_blocks) {
            return None;
        }
        let mut index = StripeIndex::default();
        for run in &d.stripes {
            index.push_run(run.rows, run.count);
        }
        Some(index)
    }

    /// Every stripe, in order.
    pub(crate) fn places(&self) -> Vec<StripePlace> {
        self.runs.iter().flat_map(|run| (0..run.count).map(|n| run.nth(n))).collect()
    }

    /// Adds one stripe at the end and says where it is.
    pub(crate) fn push(&mut self, rows: u16) -> StripePlace {
        self.push_run(rows, 1);
        let last = self.runs.last().expect("a run was just pushed or made longer");
        last.nth(last.count - 1)
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

    /// Rows of all stripes, on one column.
    pub(crate) fn end_row(&self) -> u64 {
        self.end.row
    }

    /// Number of stripes.
    pub(crate) fn count(&self) -> u32 {
        self.end.stripe
    }

    /// The stripe that holds payload row `row`, counted over the whole segment.
    pub(crate) fn find_row(&self, row: u64) -> Option<StripePlace> {
        let after = self.runs.partition_point(|r| r.start.row <= row);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let n = u32::try_from((row - run.start.row) / u64::from(run.rows).max(1)).ok()?;
        (run.rows > 0 && n < run.count).then(|| run.nth(n))
    }

    /// The runs, as descriptors list them.
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
