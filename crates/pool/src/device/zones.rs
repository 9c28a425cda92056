//! The free zones of all devices, and the choice of the next ones.
//!
//! A zone is *fresh* while it is free and no segment of this session has had it. Fresh zones are taken in the
//! order of a *circle* over the device. A zone that this session freed waits in a queue behind them. A zone
//! is *clean* if it is known to be empty, and *trimmed* if its device has discarded it.
//!
//! A device of a large pool has 65,536 zones, and nearly all of them are fresh or used. So a zone takes four
//! bits, and the queue four bytes for each zone that this session freed.
//!
//! # Invariants
//! 1. A zone is free or used, never both. A free zone is fresh, or it is in `freed` or `freed_behind_end`
//!    once (asserts in `DeviceZones::take` and `Zones::free_zone`).
//! 2. Zones 0 and 1 (the roots) are always used (asserts in `DeviceZones::take` and `Zones::free_zone`).
//! 3. A device's free zones are taken in the order in which they became free, so that wear spreads (tests
//!    `a_freed_zone_is_taken_last` and `zones_are_those_of_the_plain_list`). After an open the order starts
//!    at a zone that moves with each root.
//! 4. A zone that its device cannot reset stays used: it is retired (`retire_zone`), until a later reset
//!    succeeds.
//! 5. A zone is clean only if it was reset in this session and has not been taken since, and its device has
//!    been there since. A zone is trimmed only if it was discarded in this session and has not been taken
//!    since, and its device has been there since (`distrust`).
//! 6. A bulk segment never takes the last free zone of a device (`plan`; test
//!    `bulk_segments_are_those_of_the_first_plan`). So bulk segments leave zones for a mirror, also when
//!    devices are lost.
//! 7. At most one zone is being trimmed. It stays free during that, so that the space of the pool does not
//!    change. Whoever takes it waits for the end of the discard before it resets or writes the zone
//!    (`Inner::take_zones`).
//! 8. `free_count` is the number of free zones before `end` (test `zones_are_those_of_the_plain_list`).
//!
//! ```text
//!   free, not clean ──take, use_zone──▶ used ──free_zone(clean = false)──▶ free, not clean
//!                                       used ──free_zone(clean = true)───▶ free, clean ──take──▶ used
//! ```

use std::cmp::Reverse;
use std::ops::Range;

use warpfire_format::segment::FIRST_SEGMENT_ZONE;
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::device::capacity::{Plan, Widths, segments_that_fit};
use crate::device::device_zones::{DeviceZones, FreePlace, TAKEN};

/// Free zones of each device that bulk segments leave to mirrors.
pub(crate) const KEPT_ZONES: u64 = 1;

/// A zone that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenZone {
    pub device: DeviceIndex,
    pub zone: ZoneIndex,
    /// Whether it is empty and needs no reset.
    pub clean: bool,
}

/// The zones of all devices.
#[derive(Debug)]
pub(crate) struct Zones {
    devices: Vec<DeviceZones>,
    /// The zone that is being trimmed.
    trimming: Option<TrimmedZone>,
}

/// The zone that is being trimmed.
#[derive(Clone, Copy, Debug)]
struct TrimmedZone {
    device: DeviceIndex,
    zone: u32,
    /// Whether it was taken since the trim began.
    is_taken: bool,
}

impl Zones {
    /// All zones are free, except those of the roots. `zone_counts` is in device order. `rotate` chooses
    /// the zone that is taken first.
    pub(crate) fn new(zone_counts: &[u32], rotate: u64) -> Self {
        let devices = zone_counts.iter().map(|count| DeviceZones::new(*count, rotate)).collect();
        Zones { devices, trimming: None }
    }

    /// Adds a device at the end of the table, with all its zones free.
    pub(crate) fn add_device(&mut self, zone_count: u32) {
        self.devices.push(DeviceZones::new(zone_count, 0));
    }

    /// Takes the last device back, of which no zone was taken.
    pub(crate) fn remove_last_device(&mut self) {
        let removed = self.devices.pop();
        let is_unused = |d: &DeviceZones| d.free_count == d.free.zones().saturating_sub(FIRST_SEGMENT_ZONE.0);
        assert!(removed.as_ref().is_some_and(is_unused), "no segment has a zone of it");
    }

    fn device(&self, index: DeviceIndex) -> Option<&DeviceZones> {
        self.devices.get(usize::from(index.0))
    }

    fn device_mut(&mut self, index: DeviceIndex) -> Option<&mut DeviceZones> {
        self.devices.get_mut(usize::from(index.0))
    }

    /// Number of zones of one device, those of the roots included.
    pub(crate) fn count_on(&self, index: DeviceIndex) -> u32 {
        self.device(index).map_or(0, |d| d.free.zones())
    }

    /// Number of free zones on one device.
    pub(crate) fn free_on(&self, index: DeviceIndex) -> usize {
        self.device(index).map_or(0, |d| d.free_count as usize)
    }

    /// Number of retired zones on one device.
    pub(crate) fn retired_on(&self, index: DeviceIndex) -> u32 {
        let retired = self.device(index).map_or(0, |d| d.retired.len());
        u32::try_from(retired).expect("zones are numbered by 32 bits")
    }

    /// Number of retired zones on all devices.
    pub(crate) fn retired(&self) -> usize {
        self.devices.iter().map(|d| d.retired.len()).sum()
    }

    /// Lists a used zone that its device cannot reset.
    pub(crate) fn retire_zone(&mut self, device: DeviceIndex, zone: ZoneIndex) {
        let zones = self.device_mut(device).expect("a used zone is on a device");
        debug_assert!(!zones.free.contains(zone.0), "a retired zone is used");
        zones.retired.push_back(zone.0);
    }

    /// Takes the retired zone that was tried longest ago from the list. It stays used.
    pub(crate) fn take_retired(&mut self, device: DeviceIndex) -> Option<ZoneIndex> {
        self.device_mut(device)?.retired.pop_front().map(ZoneIndex)
    }

    /// The free zones of a device that are taken first, at most so many.
    pub(crate) fn first_free(&self, index: DeviceIndex, max: usize) -> Vec<ZoneIndex> {
        let free = self.device(index).into_iter().flat_map(|d| d.free_from(0));
        free.take(max).map(|(_, zone)| ZoneIndex(zone)).collect()
    }

    /// Whether the zone exists and is free.
    pub(crate) fn is_free(&self, device: DeviceIndex, zone: ZoneIndex) -> bool {
        self.device(device).is_some_and(|d| d.free.contains(zone.0))
    }

    /// Marks one zone used.
    ///
    /// # Panics
    /// If the zone is not free.
    pub(crate) fn use_zone(&mut self, device: DeviceIndex, zone: ZoneIndex) {
        assert!(self.is_free(device, zone), "only a free zone can become used");
        self.device_mut(device).expect("a free zone is on a device").take(zone.0);
        self.note_taken(device, zone.0);
    }

    /// Takes one free zone on each of `width` of the `candidates`: of those with the most free zones. Among
    /// devices with equally many, a hash of device and `rotation` decides, so that each pair of devices meets
    /// in as many segments as any other. `rotation` chooses the first column's device. So consecutive
    /// segments have their parity on different devices. `None` if fewer than `width` candidates have a free
    /// zone.
    pub(crate) fn take(
        &mut self,
        width: usize,
        candidates: &[DeviceIndex],
        rotation: u64,
    ) -> Option<Vec<TakenZone>> {
        // Emptiest devices first: they would otherwise be the only ones with free zones in the end, too few
        // for a segment (test `takes_left_is_the_number_that_take_reaches`).
        let mut ranked: Vec<(Reverse<usize>, u64, DeviceIndex)> = candidates
            .iter()
            .filter(|d| self.free_on(**d) > 0)
            .map(|d| (Reverse(self.free_on(*d)), tie_breaker(rotation, *d), *d))
            .collect();
        if ranked.len() < width || width == 0 {
            return None;
        }
        ranked.sort_unstable();
        let mut chosen: Vec<DeviceIndex> = ranked.iter().take(width).map(|(_, _, d)| *d).collect();
        chosen.sort_unstable();
        chosen.rotate_left((rotation % width as u64) as usize);
        let taken = chosen.into_iter().map(|device| {
            let zones = self.device_mut(device).expect("a candidate is a device");
            let zone = zones.first_free().expect("a chosen device has a free zone");
            let clean = zones.take(zone);
            self.note_taken(device, zone);
            TakenZone { device, zone: ZoneIndex(zone), clean }
        });
        let taken: Vec<TakenZone> = taken.collect();
        debug_assert_eq!(taken.len(), width, "one zone for each column");
        Some(taken)
    }

    /// Notes that the zone will be written, if it is the one that is being trimmed.
    fn note_taken(&mut self, device: DeviceIndex, zone: u32) {
        if let Some(trimming) = self.trimming.as_mut().filter(|t| t.device == device && t.zone == zone) {
            trimming.is_taken = true;
        }
    }

    /// Frees a used zone. It is taken again after all zones that are free now.
    ///
    /// # Panics
    /// If the zone is free already, or belongs to the roots.
    pub(crate) fn free_zone(&mut self, device: DeviceIndex, zone: ZoneIndex, clean: bool) {
        let zones = self.device_mut(device).expect("a used zone is on a device");
        let is_used = zone.0 < zones.free.zones() && !zones.free.contains(zone.0);
        assert!(is_used && zone >= FIRST_SEGMENT_ZONE, "only a segment's zone is freed, and once");
        zones.clean.set(zone.0, clean);
        zones.trimmed.remove(zone.0);
        zones.queue(zone.0);
    }

    /// Takes no zone of a device from `end` on; with `None`, takes all zones again.
    pub(crate) fn set_end(&mut self, device: DeviceIndex, end: Option<ZoneIndex>) {
        let zones = self.device_mut(device).expect("a device of the table");
        zones.end = end.map_or(u32::MAX, |end| end.0);
        let mut behind = std::mem::take(&mut zones.freed_behind_end);
        zones.freed.extend(behind.drain(..));
        let end = zones.end;
        for zone in zones.freed.iter_mut().filter(|zone| **zone != TAKEN && **zone >= end) {
            behind.push(std::mem::replace(zone, TAKEN));
        }
        zones.freed_behind_end = behind;
        zones.free_count = zones.free.count_before(end.min(zones.free.zones()));
    }

    /// Whether no segment has a zone of the device from `end` on.
    pub(crate) fn is_unused_from(&self, device: DeviceIndex, end: ZoneIndex) -> bool {
        let zones = self.device(device).expect("a device of the table");
        let is_unused = |zone: u32| zones.free.contains(zone) || zones.retired.contains(&zone);
        (end.0..zones.free.zones()).all(is_unused)
    }

    /// Gives a device another number of zones. No segment has one of those that it loses.
    pub(crate) fn resize(&mut self, device: DeviceIndex, count: u32) {
        assert!(self.is_unused_from(device, ZoneIndex(count)), "no segment is cut off");
        self.set_end(device, None);
        let zones = self.device_mut(device).expect("a device of the table");
        let before = zones.free.zones();
        for set in [&mut zones.free, &mut zones.fresh, &mut zones.clean, &mut zones.trimmed] {
            set.resize(count);
        }
        zones.retired.retain(|zone| *zone < count);
        zones.freed.iter_mut().filter(|zone| **zone >= count).for_each(|zone| *zone = TAKEN);
        zones.free_count = zones.free.count_before(count);
        (before..count).for_each(|zone| zones.queue(zone));
    }

    /// Counts no zone of a device as clean or trimmed: the device was away, and may have lost its resets and
    /// discards, or missed them.
    pub(crate) fn distrust(&mut self, device: DeviceIndex) {
        let zones = self.device_mut(device).expect("a device that returns is in the table");
        zones.clean.clear();
        zones.trimmed.clear();
    }

    /// The places of all zones of a device that are free now.
    pub(crate) fn free_places(&self, device: DeviceIndex) -> Range<FreePlace> {
        0..self.device(device).map_or(0, |zones| zones.queue_place(zones.freed.len()))
    }

    /// Begins to trim the first free zone among these places that is not trimmed. Returns its place and the
    /// zone; `None` if there is no such zone.
    pub(crate) fn begin_trim(
        &mut self,
        device: DeviceIndex,
        places: Range<FreePlace>,
    ) -> Option<(FreePlace, ZoneIndex)> {
        assert!(self.trimming.is_none(), "one zone is trimmed at a time");
        let zones = self.device(device)?;
        let untrimmed = |(_, zone): &(FreePlace, u32)| !zones.trimmed.contains(*zone);
        let (place, zone) = zones.free_from(places.start).find(untrimmed)?;
        if place >= places.end {
            return None;
        }
        self.trimming = Some(TrimmedZone { device, zone, is_taken: false });
        Some((place, ZoneIndex(zone)))
    }

    /// Ends the trim of the zone that `begin_trim` returned. `is_discarded`: its device has discarded it.
    pub(crate) fn end_trim(&mut self, device: DeviceIndex, zone: ZoneIndex, is_discarded: bool) {
        let trimmed = self.trimming.take().filter(|t| (t.device, t.zone) == (device, zone.0));
        let trimmed = trimmed.expect("the trim of this zone was begun");
        let zones = self.device_mut(device).expect("a free zone is on a device");
        // It may have been taken since. Then it will be written, or was and is free again.
        if is_discarded && !trimmed.is_taken && zones.free.contains(zone.0) {
            zones.trimmed.insert(zone.0);
        }
    }

    /// Whether one of the zones is being trimmed.
    pub(crate) fn trims_one_of(&self, taken: &[TakenZone]) -> bool {
        self.trimming
            .is_some_and(|t| taken.iter().any(|taken| (taken.device, taken.zone.0) == (t.device, t.zone)))
    }

    /// How often `take` would succeed: the number of segments that still fit, of `width` different devices
    /// each.
    pub(crate) fn takes_left(&self, width: usize, candidates: &[DeviceIndex]) -> u64 {
        let free: Vec<u64> = candidates.iter().map(|d| self.free_on(*d) as u64).collect();
        segments_that_fit(&free, width as u64)
    }

    /// The bulk segments that fit into free zones. The last free zone of each device is left out, and `spare`
    /// more (`spare_space`).
    pub(crate) fn plan(&self, widths: Widths, candidates: &[DeviceIndex], spare: u64) -> Plan {
        let free = |d: &DeviceIndex| (self.free_on(*d) as u64).saturating_sub(KEPT_ZONES + spare);
        Plan::of(&candidates.iter().map(free).collect::<Vec<u64>>(), widths)
    }

    /// Takes the zones of the next bulk segment of the plan, as `take`. `None` if the plan has none.
    pub(crate) fn take_bulk(
        &mut self,
        widths: Widths,
        candidates: &[DeviceIndex],
        rotation: u64,
        spare: u64,
    ) -> Option<Vec<TakenZone>> {
        let width = self.plan(widths, candidates, spare).next_width()?;
        self.take(usize::try_from(width).expect("no wider than the candidates"), candidates, rotation)
    }

    /// Whether a `take` of `width` succeeds and leaves a free zone on `wanted` other devices each,
    /// whichever `losses` of the candidates are lost after it.
    pub(crate) fn leaves_after(
        &self,
        width: usize,
        candidates: &[DeviceIndex],
        losses: usize,
        wanted: usize,
    ) -> bool {
        let mut free: Vec<usize> = candidates.iter().map(|d| self.free_on(*d)).collect();
        // `take` chooses the emptiest devices. Which of equally empty ones makes no difference to the
        // counts.
        free.sort_unstable_by_key(|f| Reverse(*f));
        let Some(taken) = free.get_mut(..width).filter(|taken| taken.iter().all(|f| *f > 0)) else {
            return false;
        };
        taken.iter_mut().for_each(|f| *f -= 1);
        free.iter().filter(|f| **f > 0).count() >= wanted + losses
    }
}

/// A number that looks random: the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
fn tie_breaker(rotation: u64, device: DeviceIndex) -> u64 {
    let z = (rotation << 16 | u64::from(device.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The free zones of one device as plain lists.
    struct PlainZones {
        fresh: Vec<u32>,
        freed: Vec<u32>,
        /// Freed zones behind the end.
        behind: Vec<u32>,
        count: u32,
        end: u32,
    }

    impl PlainZones {
        fn new(count: u32, rotate: u32) -> Self {
            let mut fresh: Vec<u32> = (FIRST_SEGMENT_ZONE.0..count).collect();
            let usable = fresh.len().max(1);
            fresh.rotate_left(rotate as usize % usable);
            PlainZones { fresh, freed: Vec::new(), behind: Vec::new(), count, end: u32::MAX }
        }

        fn all(&self) -> Vec<u32> {
            [&self.fresh[..], &self.freed, &self.behind].concat()
        }

        fn takeable(&self) -> Vec<u32> {
            let free = self.fresh.iter().chain(&self.freed).copied();
            free.filter(|zone| *zone < self.end).collect()
        }

        fn free_zone(&mut self, zone: u32) {
            if zone < self.end { self.freed.push(zone) } else { self.behind.push(zone) }
        }

        fn set_end(&mut self, end: u32) {
            self.end = end;
            let freed = [std::mem::take(&mut self.freed), std::mem::take(&mut self.behind)].concat();
            freed.into_iter().for_each(|zone| self.free_zone(zone));
        }

        fn retain(&mut self, stays: impl Fn(u32) -> bool) {
            for list in [&mut self.fresh, &mut self.freed, &mut self.behind] {
                list.retain(|zone| stays(*zone));
            }
        }
    }

    fn devices(n: u16) -> Vec<DeviceIndex> {
        (0..n).map(DeviceIndex).collect()
    }

    #[test]
    fn a_segment_takes_one_zone_of_each_of_the_emptiest_devices() {
        let mut zones = Zones::new(&[4, 8, 6], 0);
        let taken = zones.take(2, &devices(3), 0).unwrap();
        assert_eq!(taken.iter().map(|t| t.device.0).collect::<Vec<_>>(), [1, 2]);
        assert!(taken.iter().all(|t| t.zone >= FIRST_SEGMENT_ZONE && !t.clean));
        assert_eq!(zones.take(4, &devices(3), 0), None);
    }

    #[test]
    fn columns_wander_over_the_devices() {
        let mut zones = Zones::new(&[32, 32, 32], 0);
        let mut last = BTreeSet::new();
        for rotation in 0..3 {
            last.insert(zones.take(3, &devices(3), rotation).unwrap()[2].device);
        }
        assert_eq!(last.len(), 3, "the parity column was on each device once");
    }

    /// Takes `segments` of six columns on `count` devices, and returns the fewest and the most segments in
    /// which two devices meet, and the fewest and the most parity columns on a device.
    fn meetings(count: u16, segments: u64) -> [u64; 4] {
        let zone_count = u32::try_from(segments * 6 / u64::from(count)).expect("few zones") + 4;
        let mut zones = Zones::new(&vec![zone_count; usize::from(count)], 0);
        let (mut pairs, mut parities) = (std::collections::BTreeMap::new(), vec![0; usize::from(count)]);
        for rotation in 1..=segments {
            let taken = zones.take(6, &devices(count), rotation).expect("zones are left");
            taken[4..].iter().for_each(|t| parities[usize::from(t.device.0)] += 1);
            for a in &taken {
                for b in taken.iter().filter(|b| b.device > a.device) {
                    *pairs.entry((a.device, b.device)).or_insert(0) += 1;
                }
            }
        }
        assert_eq!(pairs.len(), usize::from(count) * usize::from(count - 1) / 2, "each pair met");
        let meetings = || pairs.values().copied();
        let parities = || parities.iter().copied();
        [meetings().min(), meetings().max(), parities().min(), parities().max()]
            .map(|n| n.expect("devices meet"))
    }

    #[test]
    fn each_pair_of_devices_meets_within_twice_the_mean() {
        for (count, segments) in [(7, 1000), (8, 1000), (12, 1000), (20, 1000), (60, 12_000)] {
            let [fewest, most, ..] = meetings(count, segments);
            let mean = segments * 30 / (u64::from(count) * u64::from(count - 1));
            let context = format!("{count} devices, mean {mean}: {fewest} to {most}");
            assert!(most <= 2 * mean && fewest * 2 >= mean, "{context}");
        }
    }

    #[test]
    fn each_device_has_its_part_of_the_parity() {
        for count in [6, 7, 12] {
            let [.., fewest, most] = meetings(count, 1200);
            let mean = 2 * 1200 / u64::from(count);
            assert!(most * 4 <= mean * 5 && fewest * 5 >= mean * 4, "{count} devices: {fewest} to {most}");
        }
    }

    #[test]
    fn a_freed_zone_is_taken_last() {
        let mut zones = Zones::new(&[6], 1);
        let order: Vec<u32> = (0..4).map(|t| zones.take(1, &devices(1), t).unwrap()[0].zone.0).collect();
        assert_eq!(order, [3, 4, 5, 2], "`rotate` chooses the first zone");
        zones.free_zone(DeviceIndex(0), ZoneIndex(4), true);
        zones.free_zone(DeviceIndex(0), ZoneIndex(2), false);
        let again: Vec<TakenZone> = (0..2).map(|t| zones.take(1, &devices(1), t).unwrap()[0]).collect();
        assert_eq!(again.iter().map(|t| (t.zone.0, t.clean)).collect::<Vec<_>>(), [(4, true), (2, false)]);
    }

    #[test]
    fn a_zone_stays_free_while_it_is_trimmed_and_its_taker_learns_of_the_trim() {
        let mut zones = Zones::new(&[6], 1);
        let places = |zones: &Zones| zones.free_places(DeviceIndex(0));
        let (_, zone) = zones.begin_trim(DeviceIndex(0), places(&zones)).unwrap();
        assert_eq!((zone.0, zones.free_on(DeviceIndex(0))), (3, 4), "the zone that is taken first");
        let taken: Vec<TakenZone> = (0..4).map(|t| zones.take(1, &devices(1), t).unwrap()[0]).collect();
        assert!(zones.trims_one_of(&taken[..1]) && !zones.trims_one_of(&taken[1..]));
        zones.free_zone(DeviceIndex(0), ZoneIndex(3), true);
        zones.end_trim(DeviceIndex(0), zone, true);
        let (_, again) = zones.begin_trim(DeviceIndex(0), places(&zones)).unwrap();
        assert_eq!(again.0, 3, "it was taken during the trim, so it is not known to be discarded");
        zones.end_trim(DeviceIndex(0), again, true);
        assert_eq!(zones.begin_trim(DeviceIndex(0), places(&zones)), None, "it is trimmed");
    }

    #[test]
    fn a_device_that_ends_before_a_retired_zone_has_it_no_more() {
        let mut zones = Zones::new(&[8], 0);
        for zone in [4, 6] {
            zones.use_zone(DeviceIndex(0), ZoneIndex(zone));
            zones.retire_zone(DeviceIndex(0), ZoneIndex(zone));
        }
        let left = [8, 7, 6, 5, 4].map(|count| {
            zones.resize(DeviceIndex(0), count);
            zones.retired_on(DeviceIndex(0))
        });
        assert_eq!(left, [2, 2, 1, 1, 0]);
    }

    #[test]
    fn a_trim_leaves_out_the_zones_that_a_device_gets_after_it_began() {
        let mut zones = Zones::new(&[4], 0);
        let of_the_trim = zones.free_places(DeviceIndex(0));
        zones.resize(DeviceIndex(0), 6);
        let trimmed = |zones: &mut Zones, places: Range<FreePlace>| {
            let mut trimmed = Vec::new();
            while let Some((_, zone)) = zones.begin_trim(DeviceIndex(0), places.clone()) {
                zones.end_trim(DeviceIndex(0), zone, true);
                trimmed.push(zone.0);
            }
            trimmed
        };
        assert_eq!(trimmed(&mut zones, of_the_trim), [2, 3]);
        let of_the_next = zones.free_places(DeviceIndex(0));
        assert_eq!(trimmed(&mut zones, of_the_next), [4, 5]);
    }

    proptest::proptest! {
        #[test]
        fn zones_are_those_of_the_plain_list(
            count in 3u32..300, rotate in 0u32..400,
            steps in proptest::collection::vec((0u8..8, 0u32..400), 1..300),
        ) {
            let device = DeviceIndex(0);
            let (mut zones, mut plain) = (Zones::new(&[count], rotate.into()), PlainZones::new(count, rotate));
            for (turn, (step, number)) in (0..).zip(steps) {
                let (zone, all) = (number % plain.count, plain.all());
                match step {
                    0..=2 => {
                        let taken = zones.take(1, &[device], turn).map(|taken| taken[0].zone.0);
                        proptest::prop_assert_eq!(taken, plain.takeable().first().copied());
                        plain.retain(|zone| Some(zone) != taken);
                    }
                    3 | 4 if zone >= FIRST_SEGMENT_ZONE.0 && !all.contains(&zone) => {
                        zones.free_zone(device, ZoneIndex(zone), false);
                        plain.free_zone(zone);
                    }
                    5 if !all.is_empty() => {
                        let zone = all[number as usize % all.len()];
                        zones.use_zone(device, ZoneIndex(zone));
                        plain.retain(|free| free != zone);
                    }
                    6 => {
                        let end = if number > 100 { number } else { u32::MAX };
                        zones.set_end(device, (number > 100).then_some(ZoneIndex(number)));
                        plain.set_end(end);
                    }
                    7 if zones.is_unused_from(device, ZoneIndex(number.max(3))) => {
                        let count = number.max(3);
                        zones.resize(device, count);
                        plain.set_end(u32::MAX);
                        plain.retain(|zone| zone < count);
                        (plain.count..count).for_each(|zone| plain.free_zone(zone));
                        plain.count = count;
                    }
                    _ => {}
                }
                let takeable = plain.takeable();
                proptest::prop_assert_eq!(zones.free_on(device), takeable.len());
                let all: Vec<u32> = zones.first_free(device, usize::MAX).iter().map(|zone| zone.0).collect();
                proptest::prop_assert_eq!(&all, &takeable);
                let places = zones.devices[0].free_from(0).collect::<Vec<_>>();
                proptest::prop_assert!(places.is_sorted_by(|a, b| a.0 < b.0), "places rise: {:?}", places);
                for (n, (place, _)) in places.iter().enumerate().step_by(7) {
                    let rest: Vec<u32> = zones.devices[0].free_from(*place).map(|(_, zone)| zone).collect();
                    proptest::prop_assert_eq!(&rest[..], &all[n..]);
                }
                let is_free = |zone: u32| zones.is_free(device, ZoneIndex(zone));
                proptest::prop_assert!((0..500).all(|zone| is_free(zone) == plain.all().contains(&zone)));
            }
        }

        #[test]
        fn leaves_after_counts_on_the_worst_losses(
            counts in proptest::collection::vec(2u32..6, 1..6),
            width in 1usize..4, losses in 0usize..3, wanted in 1usize..3,
        ) {
            let mut zones = Zones::new(&counts, 3);
            let all = devices(u16::try_from(counts.len()).unwrap());
            let promised = zones.leaves_after(width, &all, losses, wanted);
            let took = zones.take(width, &all, 0).is_some();
            // Every set of lost devices, as bits.
            let survives = (0u32..1 << all.len()).filter(|lost| lost.count_ones() as usize == losses).all(|lost| {
                let left: Vec<DeviceIndex> =
                    all.iter().copied().filter(|d| lost >> d.0 & 1 == 0).collect();
                zones.takes_left(wanted, &left) > 0
            });
            proptest::prop_assert_eq!(promised, took && survives && losses <= all.len());
        }

        #[test]
        fn bulk_segments_are_those_of_the_first_plan(
            counts in proptest::collection::vec(2u32..12, 1..7),
            parity in 0u64..3, data in 1u64..5, narrower in 0u64..3, spare in 0u64..3,
        ) {
            let least = parity + data.saturating_sub(narrower).max(1);
            let widths = Widths { least, most: parity + data, parity };
            let mut zones = Zones::new(&counts, 3);
            let all = devices(u16::try_from(counts.len()).unwrap());
            let mut promised = zones.plan(widths, &all, spare);
            let mut rotation = 0;
            while let Some(taken) = zones.take_bulk(widths, &all, rotation, spare) {
                rotation += 1;
                let distinct: BTreeSet<_> = taken.iter().map(|z| z.device).collect();
                proptest::prop_assert_eq!(distinct.len(), taken.len());
                promised.segments -= 1;
                promised.columns -= taken.len() as u64;
                proptest::prop_assert_eq!(zones.plan(widths, &all, spare), promised);
            }
            proptest::prop_assert_eq!(promised, Plan::default());
            let free = all.iter().zip(&counts).filter(|(_, count)| **count > 2).map(|(d, _)| zones.free_on(*d));
            proptest::prop_assert!(free.min().unwrap_or(1) > 0, "each device keeps a zone");
        }

        #[test]
        fn takes_left_is_the_number_that_take_reaches(
            counts in proptest::collection::vec(2u32..12, 1..7), width in 1usize..5,
        ) {
            let mut zones = Zones::new(&counts, 3);
            let all = devices(u16::try_from(counts.len()).unwrap());
            let promised = zones.takes_left(width, &all);
            let mut taken = 0;
            while let Some(t) = zones.take(width, &all, taken) {
                let distinct: BTreeSet<_> = t.iter().map(|z| z.device).collect();
                proptest::prop_assert_eq!(distinct.len(), width);
                taken += 1;
                proptest::prop_assert_eq!(zones.takes_left(width, &all), promised - taken);
            }
            proptest::prop_assert_eq!(taken, promised);
        }
    }
}
