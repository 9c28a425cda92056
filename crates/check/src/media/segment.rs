//! A segment's stripes: their places in the zones, and the length of each one's payload.

use warpfire_format::segment::{SegmentDescriptor, SegmentState};
use warpfire_units::BLOCK_BYTES;

/// The place of one stripe in its segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StripePosition {
    pub(crate) stripe: u32,
    /// Block of the header in each column's zone.
    pub(crate) block: u64,
    /// Rows of all stripes before it.
    pub(crate) first_row: u64,
    pub(crate) rows: u16,
}

/// A live segment.
///
/// Invariants
/// 1. `starts` has one entry for each stripe run of the descriptor (`index`, assert in `find`).
/// 2. `short` rises by stripe number (assert in `note_payload`).
#[derive(Clone, Debug)]
pub(crate) struct CheckedSegment {
    pub(crate) descriptor: SegmentDescriptor,
    /// The first stripe of each run in the descriptor.
    starts: Vec<StripePosition>,
    /// Stripes with payload that does not fill their rows: (stripe, payload bytes).
    short: Vec<(u32, u32)>,
    /// In the commit log: recovery needs none of the stripes from here on, which hold copies of roots.
    pub(crate) needed_stripes: u32,
}

impl CheckedSegment {
    pub(crate) fn new(descriptor: SegmentDescriptor) -> Self {
        let mut segment =
            CheckedSegment { descriptor, starts: Vec::new(), short: Vec::new(), needed_stripes: u32::MAX };
        segment.index();
        segment
    }

    fn index(&mut self) {
        self.starts.clear();
        let mut next = StripePosition { stripe: 0, block: 0, first_row: 0, rows: 0 };
        for run in &self.descriptor.stripes {
            next.rows = run.rows;
            self.starts.push(next);
            next.stripe = next.stripe.saturating_add(run.count);
            next.block += (u64::from(run.rows) + 1) * u64::from(run.count);
            next.first_row += u64::from(run.rows) * u64::from(run.count);
        }
    }

    /// Adds stripes at the end.
    pub(crate) fn grow(&mut self, rows: u16, count: u32) {
        let run = warpfire_format::segment::StripeRun { rows, count };
        match self.descriptor.stripes.last_mut() {
            Some(last) if last.rows == rows => last.count = last.count.saturating_add(count),
            _ => self.descriptor.stripes.push(run),
        }
        self.index();
    }

    pub(crate) fn stripe_count(&self) -> u32 {
        self.descriptor.stripe_count()
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.descriptor.state == SegmentState::Sealed
    }

    /// Removes the stripes that do not end within `zone_blocks`. Returns whether there were any.
    pub(crate) fn clip(&mut self, zone_blocks: u32) -> bool {
        let fits = self.stripes().take_while(|p| p.block + 1 + u64::from(p.rows) <= u64::from(zone_blocks));
        let count = u32::try_from(fits.count()).unwrap_or(u32::MAX);
        let too_long = count < self.stripe_count();
        if too_long {
            self.descriptor.truncate_stripes(count);
            self.index();
        }
        too_long
    }

    /// All stripes from the front.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = StripePosition> + '_ {
        self.descriptor.stripes.iter().zip(&self.starts).flat_map(|(run, start)| {
            (0..run.count).map(move |n| StripePosition {
                stripe: start.stripe.saturating_add(n),
                block: start.block + u64::from(n) * (u64::from(run.rows) + 1),
                first_row: start.first_row + u64::from(n) * u64::from(run.rows),
                rows: run.rows,
            })
        })
    }

    /// One stripe by its number.
    pub(crate) fn stripe(&self, number: u32) -> Option<StripePosition> {
        self.find(|start| start.stripe <= number, |start| number - start.stripe)
    }

    /// The stripe that holds a payload row, counted over the whole segment.
    pub(crate) fn stripe_of_row(&self, row: u64) -> Option<StripePosition> {
        let nth = |start: &StripePosition| {
            u32::try_from((row - start.first_row) / u64::from(start.rows).max(1)).unwrap_or(u32::MAX)
        };
        self.find(|start| start.first_row <= row, nth)
    }

    fn find(
        &self,
        begins_before: impl Fn(&StripePosition) -> bool,
        nth: impl Fn(&StripePosition) -> u32,
    ) -> Option<StripePosition> {
        debug_assert_eq!(self.starts.len(), self.descriptor.stripes.len(), "each stripe run has a start");
        let run = self.starts.partition_point(begins_before).checked_sub(1)?;
        let (start, listed) = self.starts.get(run).zip(self.descriptor.stripes.get(run))?;
        let n = nth(start);
        (n < listed.count).then(|| StripePosition {
            stripe: start.stripe + n,
            block: start.block + u64::from(n) * (u64::from(listed.rows) + 1),
            first_row: start.first_row + u64::from(n) * u64::from(listed.rows),
            rows: listed.rows,
        })
    }

    /// Notes the payload length of a stripe. The caller passes stripes in order.
    pub(crate) fn note_payload(&mut self, place: StripePosition, payload_bytes: u32) {
        if u64::from(payload_bytes) < self.capacity(place) {
            debug_assert!(self.short.last().is_none_or(|(s, _)| *s < place.stripe), "stripes come in order");
            self.short.push((place.stripe, payload_bytes));
        }
    }

    fn capacity(&self, place: StripePosition) -> u64 {
        u64::from(place.rows) * u64::from(self.descriptor.data) * BLOCK_BYTES as u64
    }

    /// Whether every byte of a range of the segment's addresses is payload.
    pub(crate) fn holds(&self, offset: u64, len: u64) -> bool {
        let row_bytes = u64::from(self.descriptor.data) * BLOCK_BYTES as u64;
        let Some(end) = offset.checked_add(len) else { return false };
        let mut at = offset;
        while at < end {
            let Some(place) = self.stripe_of_row(at / row_bytes) else { return false };
            let start = place.first_row * row_bytes;
            let short = self.short.binary_search_by_key(&place.stripe, |(stripe, _)| *stripe).ok();
            let written = short
                .and_then(|i| self.short.get(i))
                .map_or(self.capacity(place), |(_, bytes)| u64::from(*bytes));
            if end.min(start + self.capacity(place)) > start + written {
                return false;
            }
            at = start + self.capacity(place);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use warpfire_format::segment::SegmentStream;
    use warpfire_units::{DeviceIndex, SegmentId, ZoneIndex};

    use super::*;

    fn segment() -> CheckedSegment {
        let mut segment = CheckedSegment::new(SegmentDescriptor {
            id: SegmentId::FIRST,
            epoch: 1,
            stream: SegmentStream::Small,
            data: 2,
            parity: 0,
            columns: vec![(DeviceIndex(0), ZoneIndex(2)), (DeviceIndex(1), ZoneIndex(2))].into(),
            lost: Vec::new(),
            stripes: Vec::new(),
            state: SegmentState::Open,
        });
        segment.grow(3, 2);
        segment.grow(1, 1);
        segment
    }

    #[test]
    fn stripes_are_found_by_number_and_by_row() {
        let segment = segment();
        let all: Vec<StripePosition> = segment.stripes().collect();
        assert_eq!(all.iter().map(|p| (p.block, p.first_row)).collect::<Vec<_>>(), [(0, 0), (4, 3), (8, 6)]);
        for place in &all {
            assert_eq!(segment.stripe(place.stripe), Some(*place));
            for row in 0..place.rows {
                assert_eq!(segment.stripe_of_row(place.first_row + u64::from(row)), Some(*place));
            }
        }
        assert_eq!((segment.stripe(3), segment.stripe_of_row(7)), (None, None));
    }

    #[test]
    fn padding_and_unwritten_bytes_hold_nothing() {
        let mut segment = segment();
        let second = segment.stripe(1).unwrap();
        segment.note_payload(second, 100);
        let stripe_bytes = 3 * 2 * 4096;
        assert!(segment.holds(0, stripe_bytes + 100));
        assert!(!segment.holds(0, stripe_bytes + 101));
        assert!(!segment.holds(stripe_bytes + 100, 1));
        assert!(segment.holds(2 * stripe_bytes, 8192));
        assert!(!segment.holds(2 * stripe_bytes, 8193));
        assert!(!segment.holds(u64::MAX, 2));
    }

    #[test]
    fn stripes_past_the_zone_are_dropped() {
        let mut segment = segment();
        assert!(!segment.clip(10));
        assert!(segment.clip(9));
        assert_eq!(segment.stripe_count(), 2);
    }
}
