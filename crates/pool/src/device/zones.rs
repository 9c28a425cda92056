//! Which zones are free, and which to take next.
//!
//! Invariants
//! 1. A zone is free or used, never both; zones 0 and 1 (the roots) are always used.
//! 2. A device's free zones are taken in the order in which they became free, so that wear spreads; the
//!    order after an open begins at a place that moves with each root.
//! 3. A zone is `clean` only if it was reset in this session and has not been taken since.
//!
//! ```text
//!   free, unknown ──take──▶ used ──give back──▶ free, unknown
//!        └──────────── reset (`mark_clean`) ───▶ free, clean ──take──▶ used
//! ```

use std::cmp::Reverse;
use std::collections::BTreeSet;

use warpfire_format::segment::FIRST_SEGMENT_ZONE;
use warpfire_units::{DeviceIndex, ZoneIndex};

/// A zone that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenZone {
    pub device: DeviceIndex,
    pub zone: ZoneIndex,
    /// Whether it needs no reset.
    pub clean: bool,
}

/// The zones of all devices.
#[derive(Debug)]
pub(crate) struct Zones {
    devices: Vec<DeviceZones>,
    tick: u64,
}

#[derive(Debug)]
struct DeviceZones {
    /// By zone index: the zone's place in `free`, `None` when used.
    queued_at: Vec<Option<u64>>,
    clean: Vec<bool>,
    free: BTreeSet<(u64, u32)>,
}

impl Zones {
    /// All zones free but the roots. `zone_counts` is in device order; `rotate` moves the beginning.
    pub(crate) fn new(zone_counts: &[u32], rotate: u64) -> Self {
        let devices = zone_counts.iter().map(|count| DeviceZones::new(*count, rotate)).collect();
        let tick = zone_counts.iter().max().copied().map_or(0, u64::from);
        Zones { devices, tick }
    }

    fn device(&self, index: DeviceIndex) -> Option<&DeviceZones> {
        self.devices.get(usize::from(index.0))
    }

    fn device_mut(&mut self, index: DeviceIndex) -> Option<&mut DeviceZones> {
        self.devices.get_mut(usize::from(index.0))
    }

    /// Free zones on one device.
    pub(crate) fn free_on(&self, index: DeviceIndex) -> usize {
        self.device(index).map_or(0, |d| d.free.len())
    }

    /// Whether the zone exists and is free.
    pub(crate) fn is_free(&self, device: DeviceIndex, zone: ZoneIndex) -> bool {
        let queued = self.device(device).and_then(|d| d.queued_at.get(zone.0 as usize));
        queued.is_some_and(Option::is_some)
    }

    /// Marks one zone used.
    ///
    /// # Panics
    /// If it is not free: `is_free` was asked first.
    pub(crate) fn use_zone(&mut self, device: DeviceIndex, zone: ZoneIndex) {
        assert!(self.is_free(device, zone), "only a free zone can become used");
        self.device_mut(device).expect("a free zone is on a device").take(zone.0);
    }

    /// Takes a free zone from `width` of the `candidates`, those with most free zones first. `rotation`
    /// decides between equals and which device holds which column, so that parity wanders.
    pub(crate) fn take(
        &mut self,
        width: usize,
        candidates: &[DeviceIndex],
        rotation: u64,
    ) -> Option<Vec<TakenZone>> {
        let n = candidates.len() as u64;
        let mut ranked: Vec<(Reverse<usize>, u64, DeviceIndex)> = (0u64..)
            .zip(candidates)
            .filter(|(_, d)| self.free_on(**d) > 0)
            .map(|(place, d)| (Reverse(self.free_on(*d)), (place + n - rotation % n) % n, *d))
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
            let zone = zones.free.first().expect("a chosen device has a free zone").1;
            let clean = zones.take(zone);
            TakenZone { device, zone: ZoneIndex(zone), clean }
        });
        Some(taken.collect())
    }

    /// Makes a used zone free, behind all others.
    pub(crate) fn free_zone(&mut self, device: DeviceIndex, zone: ZoneIndex, clean: bool) {
        self.tick += 1;
        let tick = self.tick;
        let zones = self.device_mut(device).expect("a used zone is on a device");
        let place = &mut zones.queued_at[zone.0 as usize];
        assert!(place.is_none() && zone >= FIRST_SEGMENT_ZONE, "only a segment's zone is given back, once");
        *place = Some(tick);
        zones.clean[zone.0 as usize] = clean;
        zones.free.insert((tick, zone.0));
    }

    /// How often `take` would succeed: the most segments of `width` different devices each.
    ///
    /// t segments are possible exactly if the devices can give t·width zones with at most t from each.
    pub(crate) fn takes_left(&self, width: usize, candidates: &[DeviceIndex]) -> u64 {
        if width == 0 {
            return 0;
        }
        let free: Vec<u64> = candidates.iter().map(|d| self.free_on(*d) as u64).collect();
        let possible = |t: u64| free.iter().map(|f| (*f).min(t)).sum::<u64>() >= t * width as u64;
        let (mut yes, mut no) = (0, free.iter().sum::<u64>() / width as u64 + 1);
        while no - yes > 1 {
            let middle = yes + (no - yes) / 2;
            if possible(middle) {
                yes = middle;
            } else {
                no = middle;
            }
        }
        yes
    }
}

impl DeviceZones {
    fn new(count: u32, rotate: u64) -> Self {
        let first = FIRST_SEGMENT_ZONE.0.min(count);
        let usable = u64::from(count - first).max(1);
        let mut queued_at = vec![None; count as usize];
        let mut free = BTreeSet::new();
        for zone in first..count {
            let tick = (u64::from(zone - first) + usable - rotate % usable) % usable;
            queued_at[zone as usize] = Some(tick);
            free.insert((tick, zone));
        }
        DeviceZones { queued_at, clean: vec![false; count as usize], free }
    }

    fn take(&mut self, zone: u32) -> bool {
        let tick = self.queued_at[zone as usize].take().expect("a free zone is queued");
        self.free.remove(&(tick, zone));
        std::mem::replace(&mut self.clean[zone as usize], false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(last.len(), 3, "each device had the parity column once");
    }

    #[test]
    fn a_freed_zone_is_taken_last() {
        let mut zones = Zones::new(&[6], 1);
        let order: Vec<u32> = (0..4).map(|t| zones.take(1, &devices(1), t).unwrap()[0].zone.0).collect();
        assert_eq!(order, [3, 4, 5, 2], "begins where `rotate` says");
        zones.free_zone(DeviceIndex(0), ZoneIndex(4), true);
        zones.free_zone(DeviceIndex(0), ZoneIndex(2), false);
        let again: Vec<TakenZone> = (0..2).map(|t| zones.take(1, &devices(1), t).unwrap()[0]).collect();
        assert_eq!(again.iter().map(|t| (t.zone.0, t.clean)).collect::<Vec<_>>(), [(4, true), (2, false)]);
    }

    proptest::proptest! {
        #[test]
        fn takes_left_is_what_greed_achieves(
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
