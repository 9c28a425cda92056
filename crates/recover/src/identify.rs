//! Which device of a pool is which: a device without roots does not say so, but its columns do.
//!
//! The descriptor of a segment names the device and the zone of each column. A device that holds that column
//! in that zone is the named one, or was it before the column moved. The index of a device never changes and
//! is never given to another one, so a descriptor that is out of date is a witness too, if a weaker one.

use std::collections::{BTreeMap, BTreeSet};

use warpfire_format::segment::{SegmentDescriptor, SegmentKind};
use warpfire_units::{DeviceIndex, SegmentId, ZoneIndex};

use crate::scan::FoundColumn;

/// A column of the pool's state counts more than all columns that only older descriptors name: the old place
/// of a column that has moved keeps a copy for a while.
const STATE_WEIGHT: i64 = 1 << 32;

/// Decides between devices that as many columns of the state name: one that the root counts as present is
/// taken. The log may name the old place of a column and its new one, in a zone of the same number, and the
/// column has moved because its old device went away.
const PRESENT_WEIGHT: i64 = 1 << 24;

/// Columns of which two devices that could change places are compared stripe by stripe, the newest first. The
/// column that one of them has only in part was being written when the device went away.
const COMPARED_MAX: usize = 64;

/// Where descriptors place columns.
#[derive(Default)]
pub(crate) struct Columns {
    places: BTreeMap<SegmentId, Vec<PlacedColumn>>,
}

#[derive(Clone, Copy)]
struct PlacedColumn {
    /// `None` if the witness does not say it.
    epoch: Option<u32>,
    /// `None` for a mirror, the columns of which are equal.
    column: Option<u16>,
    device: DeviceIndex,
    zone: ZoneIndex,
}

impl Columns {
    /// Takes note of all columns of a segment.
    pub fn note(&mut self, descriptor: &SegmentDescriptor) {
        let is_bulk = descriptor.kind() == SegmentKind::Bulk;
        let placed = (0u16..).zip(&descriptor.columns).map(|(column, (device, zone))| PlacedColumn {
            epoch: Some(descriptor.epoch),
            column: is_bulk.then_some(column),
            device: *device,
            zone: *zone,
        });
        self.places.entry(descriptor.id).or_default().extend(placed);
    }

    /// Takes note of a bulk column that has moved.
    pub fn note_move(&mut self, segment: SegmentId, column: u16, (device, zone): (DeviceIndex, ZoneIndex)) {
        let placed = PlacedColumn { epoch: None, column: Some(column), device, zone };
        self.places.entry(segment).or_default().push(placed);
    }

    /// Adds what other witnesses say of some segments.
    pub fn join(&mut self, other: &Columns, is_wanted: impl Fn(SegmentId) -> bool) {
        for (segment, places) in other.places.iter().filter(|(segment, _)| is_wanted(**segment)) {
            self.places.entry(*segment).or_default().extend_from_slice(places);
        }
    }

    /// The devices with columns of these segments.
    pub fn devices_of(&self, is_wanted: impl Fn(SegmentId) -> bool) -> BTreeSet<DeviceIndex> {
        let wanted = self.places.iter().filter(|(segment, _)| is_wanted(**segment));
        wanted.flat_map(|(_, places)| places).map(|placed| placed.device).collect()
    }

    /// The devices that may be the one with this column in this zone.
    fn devices(&self, found: &FoundColumn, zone: ZoneIndex) -> BTreeSet<DeviceIndex> {
        let is_mirror = found.kind == SegmentKind::Mirror;
        let fits = |placed: &&PlacedColumn| {
            placed.zone == zone
                && placed.epoch.is_none_or(|epoch| epoch == found.epoch)
                && if is_mirror { placed.column.is_none() } else { placed.column == Some(found.column) }
        };
        let places = self.places.get(&found.segment).into_iter().flatten();
        places.filter(fits).map(|placed| placed.device).collect()
    }
}

/// The index of each of `slots`, as far as its columns say: so that as many columns of the state as possible
/// have their places. `present` has the indexes that no device with roots has, and whether the root counts
/// each as present. `state` places the columns of the pool's state, `older` also those of the past.
/// `count_stripes` counts the stripes of a column that verify.
pub(crate) fn identify(
    slots: &BTreeSet<usize>,
    present: &BTreeMap<DeviceIndex, bool>,
    (state, older): (&Columns, &Columns),
    (found, zone_bytes): (&[FoundColumn], u64),
    count_stripes: &mut dyn FnMut(&FoundColumn) -> usize,
) -> BTreeMap<usize, DeviceIndex> {
    let (slots, wanted): (Vec<usize>, Vec<DeviceIndex>) =
        (slots.iter().copied().collect(), present.keys().copied().collect());
    let mut weights = vec![vec![0; wanted.len()]; slots.len()];
    for column in found {
        let (Ok(row), Some(zone)) = (slots.binary_search(&column.slot), column.zone(zone_bytes)) else {
            continue;
        };
        for (columns, weight) in [(state, STATE_WEIGHT), (older, 1)] {
            for device in columns.devices(column, zone) {
                if let Ok(place) = wanted.binary_search(&device) {
                    weights[row][place] += weight;
                }
            }
        }
    }
    for (weight, device) in weights.iter_mut().flat_map(|row| row.iter_mut().zip(&wanted)) {
        if *weight >= STATE_WEIGHT && present[device] {
            *weight += PRESENT_WEIGHT;
        }
    }
    let mut places = assign(&weights);
    let is_present = |place: Option<usize>| place.is_some_and(|place| present[&wanted[place]]);
    let weight = |row: usize, place: Option<usize>| place.map_or(0, |place| weights[row][place]);
    // A device that left the pool and the one that took its place hold the same columns in the same zones.
    // The one that left may lack the last stripes.
    for one in 0..slots.len() {
        for other in 0..slots.len() {
            let (here, there) = (places[one], places[other]);
            let sum = weight(one, here) + weight(other, there);
            let is_tie = sum > 0 && sum == weight(one, there) + weight(other, here);
            if is_tie && is_present(here) && !is_present(there) {
                let shared = shared_columns(slots[one], slots[other], found);
                let counts = shared.iter().map(|(column, twin)| (count_stripes(column), count_stripes(twin)));
                let differing = counts.into_iter().find(|(own, of_twin)| own != of_twin);
                if differing.is_some_and(|(own, of_twin)| own < of_twin) {
                    places.swap(one, other);
                }
            }
        }
    }
    let assigned = slots.into_iter().zip(places);
    assigned.filter_map(|(slot, place)| Some((slot, wanted[place?]))).collect()
}

/// The newest bulk columns that two slots hold at the same places.
fn shared_columns(one: usize, other: usize, found: &[FoundColumn]) -> Vec<(FoundColumn, FoundColumn)> {
    // Mirrors are equal on all their devices.
    let of = |slot: usize| found.iter().filter(move |c| c.slot == slot && c.kind == SegmentKind::Bulk);
    let by_place: BTreeMap<u64, &FoundColumn> =
        of(other).map(|column| (column.offset_bytes, column)).collect();
    let with_twin = of(one).filter_map(|column| {
        let twin = **by_place.get(&column.offset_bytes)?;
        (FoundColumn { slot: one, ..twin } == *column).then_some((*column, twin))
    });
    let mut shared: Vec<(FoundColumn, FoundColumn)> = with_twin.collect();
    shared.sort_by_key(|(column, _)| std::cmp::Reverse(column.segment));
    shared.truncate(COMPARED_MAX);
    shared
}

/// A column for each row, each column once, with the greatest sum of weights: the Hungarian algorithm. `None`
/// for a row whose weight there is zero.
fn assign(weights: &[Vec<i64>]) -> Vec<Option<usize>> {
    let rows = weights.len();
    let columns = weights.first().map_or(0, Vec::len).max(rows);
    // Rows and columns count from 1; 0 stands for none. `cost` falls with the weight.
    let cost = |row: usize, column: usize| -weights[row - 1].get(column - 1).copied().unwrap_or(0);
    let (mut of_row, mut of_column) = (vec![0i64; rows + 1], vec![0i64; columns + 1]);
    let mut row_at = vec![0usize; columns + 1];
    for row in 1..=rows {
        let (mut least, mut before) = (vec![i64::MAX; columns + 1], vec![0usize; columns + 1]);
        let mut done = vec![false; columns + 1];
        let mut column = 0;
        row_at[0] = row;
        while row_at[column] != 0 {
            done[column] = true;
            let (at, mut step, mut next) = (row_at[column], i64::MAX, 0);
            for other in 1..=columns {
                if done[other] {
                    continue;
                }
                let reduced = cost(at, other) - of_row[at] - of_column[other];
                if reduced < least[other] {
                    (least[other], before[other]) = (reduced, column);
                }
                if least[other] < step {
                    (step, next) = (least[other], other);
                }
            }
            for other in 0..=columns {
                if done[other] {
                    of_row[row_at[other]] += step;
                    of_column[other] -= step;
                } else {
                    least[other] = least[other].saturating_sub(step);
                }
            }
            column = next;
        }
        while column != 0 {
            row_at[column] = row_at[before[column]];
            column = before[column];
        }
    }
    let mut result = vec![None; rows];
    for (column, row) in row_at.into_iter().enumerate().skip(1) {
        if row != 0 && cost(row, column) != 0 {
            result[row - 1] = Some(column - 1);
        }
    }
    result
}

/// Whether two slots hold the same bulk columns at the same places: one is a copy of the other, or has taken
/// its place in the pool.
pub(crate) fn has_same_columns(one: usize, other: usize, found: &[FoundColumn]) -> bool {
    let of = |slot: usize| -> BTreeSet<(u64, SegmentId, u32, u16)> {
        // Mirrors are equal on all their devices.
        let bulk = found.iter().filter(|c| c.slot == slot && c.kind == SegmentKind::Bulk);
        bulk.map(|c| (c.offset_bytes, c.segment, c.epoch, c.column)).collect()
    };
    let columns = of(one);
    !columns.is_empty() && columns == of(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpfire_format::segment::{SegmentState, SegmentStream};

    const ZONE_BYTES: u64 = 64 << 10;

    fn id(n: u64) -> SegmentId {
        SegmentId::new(n).expect("not zero")
    }

    fn descriptor(n: u64, stream: SegmentStream, columns: &[(u16, u32)]) -> SegmentDescriptor {
        SegmentDescriptor {
            id: id(n),
            epoch: 1,
            stream,
            data: 1,
            parity: u8::try_from(columns.len() - 1).expect("few columns"),
            columns: columns.iter().map(|(d, z)| (DeviceIndex(*d), ZoneIndex(*z))).collect(),
            lost: Vec::new(),
            stripes: Vec::new(),
            state: SegmentState::Open,
        }
    }

    fn column(slot: usize, zone: u64, segment: u64, column: u16, kind: SegmentKind) -> FoundColumn {
        FoundColumn { slot, offset_bytes: zone * ZONE_BYTES, segment: id(segment), epoch: 1, column, kind }
    }

    fn known(columns: &Columns, found: &[FoundColumn]) -> Vec<(usize, u16)> {
        let slots = found.iter().map(|column| column.slot).collect();
        let wanted = (0..4).map(|n| (DeviceIndex(n), true)).collect();
        let known =
            identify(&slots, &wanted, (columns, &Columns::default()), (found, ZONE_BYTES), &mut |_| 0);
        known.into_iter().map(|(slot, index)| (slot, index.0)).collect()
    }

    #[test]
    fn a_bulk_column_names_its_device_whatever_the_mirrors_allow() {
        let mut columns = Columns::default();
        columns.note(&descriptor(1, SegmentStream::CommitLog, &[(0, 2), (1, 2)]));
        columns.note(&descriptor(2, SegmentStream::Small, &[(1, 3), (0, 3)]));
        let found = [
            column(0, 2, 1, 0, SegmentKind::Mirror),
            column(1, 2, 1, 0, SegmentKind::Mirror),
            column(0, 3, 2, 0, SegmentKind::Bulk),
            column(1, 3, 2, 1, SegmentKind::Bulk),
        ];
        assert_eq!(known(&columns, &found), [(0, 1), (1, 0)]);
        // Either way: the columns are equal.
        let of_mirrors = known(&columns, &found[..2]);
        assert_eq!(of_mirrors.iter().map(|(_, index)| *index).sum::<u16>(), 1);
        assert_eq!(known(&columns, &[found[0], found[3]]), [(0, 1), (1, 0)]);
    }

    #[test]
    fn a_column_of_another_epoch_zone_or_number_says_nothing() {
        let mut columns = Columns::default();
        columns.note(&descriptor(2, SegmentStream::Small, &[(1, 3), (0, 4)]));
        let good = column(0, 3, 2, 0, SegmentKind::Bulk);
        assert_eq!(known(&columns, &[good]), [(0, 1)]);
        assert_eq!(known(&columns, &[FoundColumn { epoch: 2, ..good }]), []);
        assert_eq!(known(&columns, &[FoundColumn { column: 1, ..good }]), []);
        assert_eq!(known(&columns, &[column(0, 4, 2, 0, SegmentKind::Bulk)]), []);
        let between = FoundColumn { offset_bytes: 3 * ZONE_BYTES + 4096, ..good };
        assert_eq!(known(&columns, &[between]), []);
        columns.note_move(id(2), 0, (DeviceIndex(3), ZoneIndex(7)));
        let moved = FoundColumn { epoch: 9, ..column(0, 7, 2, 0, SegmentKind::Bulk) };
        assert_eq!(known(&columns, &[moved]), [(0, 3)]);
    }

    #[test]
    fn two_devices_with_the_same_columns_are_seen() {
        let one = [column(0, 3, 2, 0, SegmentKind::Bulk), column(1, 3, 2, 0, SegmentKind::Bulk)];
        assert!(has_same_columns(0, 1, &one));
        assert!(!has_same_columns(0, 1, &[one[0], FoundColumn { column: 1, ..one[1] }]));
        assert!(!has_same_columns(0, 1, &one.map(|c| FoundColumn { kind: SegmentKind::Mirror, ..c })));
    }

    /// The old place of a column that has moved still holds it, in the zone of the same number.
    #[test]
    fn a_device_that_keeps_an_old_copy_of_a_column_is_not_taken_for_its_new_device() {
        let (mut state, mut older) = (Columns::default(), Columns::default());
        older.note(&descriptor(2, SegmentStream::Small, &[(0, 3), (1, 3)]));
        state.note(&descriptor(2, SegmentStream::Small, &[(2, 3), (1, 3)]));
        state.note(&descriptor(5, SegmentStream::Small, &[(0, 4), (2, 4)]));
        let bulk = SegmentKind::Bulk;
        let found = [
            column(0, 3, 2, 0, bulk),
            column(0, 4, 5, 0, bulk),
            column(1, 3, 2, 0, bulk),
            column(1, 4, 5, 1, bulk),
        ];
        let slots = BTreeSet::from([0, 1]);
        let wanted = (0..4).map(|n| (DeviceIndex(n), true)).collect();
        let known = identify(&slots, &wanted, (&state, &older), (&found, ZONE_BYTES), &mut |_| 0);
        assert_eq!(known, BTreeMap::from([(0, DeviceIndex(0)), (1, DeviceIndex(2))]));
    }

    /// The log still says where the column was, and the root says that this device is away.
    #[test]
    fn a_column_that_was_rebuilt_in_a_zone_of_the_same_number_is_not_that_of_the_device_that_is_away() {
        let mut state = Columns::default();
        state.note(&descriptor(2, SegmentStream::Small, &[(1, 3), (0, 5)]));
        state.note_move(id(2), 0, (DeviceIndex(3), ZoneIndex(3)));
        let found = [column(7, 3, 2, 0, SegmentKind::Bulk)];
        let slots = BTreeSet::from([7]);
        for away in [1, 3] {
            let present = (0..4).map(|n| (DeviceIndex(n), n != away)).collect();
            let columns = (&state, &Columns::default());
            let known = identify(&slots, &present, columns, (&found, ZONE_BYTES), &mut |_| 0);
            assert_eq!(known, BTreeMap::from([(7, DeviceIndex(4 - away))]));
        }
    }

    /// Device 1 failed, device 3 took its place, and both are in the list.
    #[test]
    fn of_two_devices_with_the_same_column_the_present_one_is_that_with_more_stripes() {
        let mut state = Columns::default();
        state.note(&descriptor(2, SegmentStream::Small, &[(1, 3), (0, 5)]));
        state.note_move(id(2), 0, (DeviceIndex(3), ZoneIndex(3)));
        let found = [column(7, 3, 2, 0, SegmentKind::Bulk), column(8, 3, 2, 0, SegmentKind::Bulk)];
        let present = (0..4).map(|n| (DeviceIndex(n), n != 1)).collect();
        for whole in [7, 8] {
            let columns = (&state, &Columns::default());
            let mut count = |column: &FoundColumn| if column.slot == whole { 4 } else { 3 };
            let slots = BTreeSet::from([7, 8]);
            let known = identify(&slots, &present, columns, (&found, ZONE_BYTES), &mut count);
            assert_eq!(known, BTreeMap::from([(whole, DeviceIndex(3)), (15 - whole, DeviceIndex(1))]));
        }
    }

    #[test]
    fn the_assignment_has_the_greatest_weight() {
        assert_eq!(assign(&[vec![0, 1, 1], vec![0, 1, 0]]), [Some(2), Some(1)]);
        assert_eq!(assign(&[vec![3, 2], vec![3, 0]]), [Some(1), Some(0)]);
        assert_eq!(assign(&[vec![1], vec![2], vec![0]]), [None, Some(0), None]);
        assert_eq!(assign(&[]), []);
    }
}
