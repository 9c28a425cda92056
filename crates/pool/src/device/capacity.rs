//! The bulk segments that fit into free zones. The allocator and the count of free space use this one rule.
//!
//! A segment takes a zone of each of its devices, so it takes at most one of a device. S segments with T
//! columns in all, each with T/S of them rounded up or down, fit exactly if the devices have T free zones,
//! counting at most S on each.
//!
//! # Invariants
//! 1. A plan holds the most data columns that fit. Of such plans it has the fewest segments, and so the
//!    widest (test `a_plan_holds_what_the_best_of_all_ways_holds`).
//! 2. An allocator that takes the widest segment of the plan from the devices with the most free zones can
//!    take the rest of the plan (test `zones::tests::bulk_segments_are_those_of_the_first_plan`).

/// The numbers of columns that a new segment may have, parity columns included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Widths {
    pub least: u64,
    pub most: u64,
    /// Parity columns of each.
    pub parity: u64,
}

/// Segments that fit into free zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    pub segments: u64,
    /// Their columns in all.
    pub columns: u64,
}

impl Plan {
    /// The segments that fit into `free` zones, given by device.
    pub(crate) fn of(free: &[u64], widths: Widths) -> Plan {
        let most = |segments: u64| zones_of(free, segments).min(segments * widths.most);
        // Each further segment adds fewer columns than the one before, so the first that adds no data column
        // is the first one too many.
        let fit = segments_that_fit(free, widths.least);
        let (mut segments, mut too_many) = (0, fit + 1);
        while too_many - segments > 1 {
            let middle = segments + (too_many - segments) / 2;
            if most(middle) > most(middle - 1) + widths.parity {
                segments = middle;
            } else {
                too_many = middle;
            }
        }
        let plan = Plan { segments, columns: most(segments) };
        debug_assert!(
            plan.columns >= segments * widths.least,
            "each segment has the fewest columns at least"
        );
        plan
    }

    /// Columns of the segment to take first: the widest. `None` if no segment fits.
    pub(crate) fn next_width(self) -> Option<u64> {
        (self.segments > 0).then(|| self.columns.div_ceil(self.segments))
    }

    /// The segments by their width: how many, and the columns of each.
    pub(crate) fn by_width(self) -> [(u64, u64); 2] {
        let segments = self.segments.max(1);
        let (width, wider) = (self.columns / segments, self.columns % segments);
        [(wider, width + 1), (self.segments - wider, width)]
    }
}

/// The number of segments of `width` columns that fit into `free` zones, given by device.
pub(crate) fn segments_that_fit(free: &[u64], width: u64) -> u64 {
    if width == 0 {
        return 0;
    }
    let possible = |segments: u64| zones_of(free, segments) >= segments * width;
    // Binary search: `yes` is always possible, `no` never is.
    let mut yes = 0;
    let mut no = free.iter().sum::<u64>() / width + 1;
    while no - yes > 1 {
        let middle = yes + (no - yes) / 2;
        if possible(middle) {
            yes = middle;
        } else {
            no = middle;
        }
    }
    debug_assert!(possible(yes) && !possible(yes + 1), "the largest possible number was found");
    yes
}

/// The free zones that so many segments can use.
fn zones_of(free: &[u64], segments: u64) -> u64 {
    free.iter().map(|f| (*f).min(segments)).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The most data columns of all ways to allocate segments, one after the other. `free` is sorted, because
    /// only the counts make a difference.
    fn best(free: &[u64], widths: Widths, known: &mut HashMap<Vec<u64>, u64>) -> u64 {
        if let Some(most) = known.get(free) {
            return *most;
        }
        let mut most = 0;
        // Every set of devices, as bits.
        for set in 1u64..1 << free.len() {
            let width = u64::from(set.count_ones());
            let is_allowed = (widths.least..=widths.most).contains(&width);
            if is_allowed && (0..free.len()).all(|d| set >> d & 1 == 0 || free[d] > 0) {
                let mut left: Vec<u64> = (0..free.len()).map(|d| free[d] - (set >> d & 1)).collect();
                left.sort_unstable();
                most = most.max(width - widths.parity + best(&left, widths, known));
            }
        }
        known.insert(free.to_vec(), most);
        most
    }

    #[test]
    fn a_large_device_beside_small_ones_has_zones_that_no_segment_can_use() {
        let plan = |free: &[u64]| Plan::of(free, Widths { least: 2, most: 3, parity: 1 });
        // 2+1 on 1, 1, 1 and 4: 3 of data, and 2.5 of the largest are left.
        assert_eq!(plan(&[100, 100, 100, 400]), Plan { segments: 150, columns: 450 });
        // Two more of 2.5 use all of it.
        assert_eq!(plan(&[100, 100, 100, 400, 250, 250]).columns, 1200);
        assert_eq!(plan(&[7, 0, 0]), Plan::default());
    }

    #[test]
    fn segments_are_narrower_where_that_holds_more() {
        let plan = |free: &[u64]| Plan::of(free, Widths { least: 4, most: 6, parity: 2 });
        assert_eq!(plan(&[9, 9, 9, 9, 9, 9]), Plan { segments: 9, columns: 54 });
        assert_eq!(plan(&[9, 9, 9, 9, 9, 0]), Plan { segments: 9, columns: 45 });
        assert_eq!(plan(&[9, 9, 9, 9, 9, 3]).by_width(), [(3, 6), (6, 5)]);
        // All six devices at once would make one segment of four data columns; these make three of two.
        assert_eq!(plan(&[5, 5, 5, 1, 1, 1]).by_width(), [(0, 5), (3, 4)]);
        assert_eq!(plan(&[5, 5, 5, 0, 0, 0]), Plan::default());
    }

    proptest::proptest! {
        #[test]
        fn a_plan_holds_what_the_best_of_all_ways_holds(
            mut free in proptest::collection::vec(0u64..=8, 1..=5),
            parity in 0u64..3, data in 1u64..5, narrower in 0u64..3,
        ) {
            let widths = Widths { least: parity + data.saturating_sub(narrower).max(1), most: parity + data, parity };
            let plan = Plan::of(&free, widths);
            free.sort_unstable();
            let most = best(&free, widths, &mut HashMap::new());
            proptest::prop_assert_eq!(plan.columns - plan.segments * parity, most);
        }
    }
}
