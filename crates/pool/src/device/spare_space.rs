//! Spare space: zones that are kept free for the columns of lost devices.
//!
//! With a wish for the space of s devices, s devices can be lost one after the other, and each can be rebuilt
//! on the others while these are full. The others then have room for s times the zones of the largest device,
//! each for its part. So on n devices, each keeps s/(n - s) of that free.
//!
//! # Invariants
//! 1. A bulk segment takes no zone that is kept (`Zones::plan`). Columns that are rebuilt do.
//! 2. A lost device takes one from the wish, and until it is rebuilt its own used zones are kept instead. So
//!    a rebuild leaves the room of writers as it is (`crates/api`, test
//!    `a_rebuild_takes_the_space_that_is_kept_and_not_that_of_writers`).

use warpfire_format::segment::FIRST_SEGMENT_ZONE;
use warpfire_units::DeviceIndex;

use crate::device::zones::Zones;
use crate::pool::{Inner, Pool};

/// The wish, and the facts on which the kept zones depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SpareSpace {
    /// Devices whose space is to be kept free.
    wished: u64,
    /// Devices that take no writes.
    lost: u64,
    /// Devices that take columns.
    present: u64,
    /// Zones for segments of the largest device.
    largest: u64,
    /// Zones of the lost devices that are in use.
    unbuilt: u64,
}

impl SpareSpace {
    /// Zones to keep free on each device that takes columns.
    fn per_device(self) -> u64 {
        let left = self.wished.saturating_sub(self.lost);
        // Of the lost devices only so many have space that was kept for them.
        let unbuilt = self.unbuilt.min(self.wished.min(self.lost) * self.largest);
        match self.present.saturating_sub(left) {
            0 => self.largest,
            others => (left * self.largest + unbuilt).div_ceil(others),
        }
    }
}

impl Inner {
    /// Zones that bulk segments leave free on each of these devices, for the columns of lost ones.
    pub(crate) fn spare_zones(&self, zones: &Zones, devices: &[DeviceIndex]) -> u64 {
        let wished = self.wishes.lock().spare_space;
        if wished == 0 { 0 } else { self.spare_space(zones, devices, wished).per_device() }
    }

    /// As `spare_zones`, for a wish that is not that of the pool yet.
    pub(crate) fn spare_zones_of(&self, zones: &Zones, devices: &[DeviceIndex], wished: u16) -> u64 {
        self.spare_space(zones, devices, wished).per_device()
    }

    /// As `spare_zones`, after the device that `leaves` has left, when `present` devices take columns and the
    /// largest one has so many zones for segments.
    pub(crate) fn spare_zones_after(
        &self,
        zones: &Zones,
        leaves: Option<DeviceIndex>,
        present: u64,
        largest: u64,
    ) -> u64 {
        let wished = self.wishes.lock().spare_space;
        if wished == 0 {
            return 0;
        }
        let devices = self.devices.all_allocatable();
        let mut after = SpareSpace { present, largest, ..self.spare_space(zones, &devices, wished) };
        // Its columns have moved.
        if let Some(device) = leaves.filter(|device| !self.devices.writable(*device)) {
            after.lost = after.lost.saturating_sub(1);
            after.unbuilt = after.unbuilt.saturating_sub(self.unbuilt_zones(zones, device));
        }
        after.per_device()
    }

    /// Zones of a device that are in use.
    fn unbuilt_zones(&self, zones: &Zones, index: DeviceIndex) -> u64 {
        let unused = zones.free_on(index) as u64 + u64::from(zones.retired_on(index) + FIRST_SEGMENT_ZONE.0);
        u64::from(zones.count_on(index)).saturating_sub(unused)
    }

    fn spare_space(&self, zones: &Zones, devices: &[DeviceIndex], wished: u16) -> SpareSpace {
        let set_aside = FIRST_SEGMENT_ZONE.0;
        let members = self.devices.members().into_iter();
        let members = members.filter(|(_, member)| !member.is_gone && !member.is_spare);
        let all: Vec<(DeviceIndex, u32)> = members.map(|(index, member)| (index, member.zones)).collect();
        let is_lost = |index: &DeviceIndex| !self.devices.writable(*index);
        let unbuilt = |index: DeviceIndex| self.unbuilt_zones(zones, index);
        SpareSpace {
            wished: wished.into(),
            lost: all.iter().filter(|(index, _)| is_lost(index)).count() as u64,
            present: devices.len() as u64,
            largest: all
                .iter()
                .map(|(_, zones)| u64::from(zones.saturating_sub(set_aside)))
                .max()
                .unwrap_or(0),
            unbuilt: all.iter().filter(|(index, _)| is_lost(index)).map(|(index, _)| unbuilt(*index)).sum(),
        }
    }
}

impl Pool {
    /// Payload bytes that are kept free for the columns of devices that are lost now, and may be taken to
    /// rebuild them.
    #[must_use]
    pub fn bytes_kept_for_lost(&self) -> u64 {
        let inner = &self.inner;
        let wished = inner.wishes.lock().spare_space;
        if wished == 0 || inner.devices.lost_count() == 0 {
            return 0;
        }
        let devices = inner.devices.all_allocatable();
        let zones = inner.zones.lock();
        let all = inner.spare_space(&zones, &devices, wished);
        let without = SpareSpace { unbuilt: 0, ..all };
        let free = |spare: SpareSpace| inner.free_bytes_beside(&zones, &devices, spare.per_device());
        free(without).saturating_sub(free(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_moves_the_kept_zones_from_the_wish_to_the_lost_device() {
        let whole = SpareSpace { wished: 1, lost: 0, present: 6, largest: 100, unbuilt: 0 };
        assert_eq!(whole.per_device(), 20, "five devices take the columns of the sixth");
        let lost = SpareSpace { lost: 1, present: 5, unbuilt: 100, ..whole };
        assert_eq!((lost.per_device(), SpareSpace { unbuilt: 0, ..lost }.per_device()), (20, 0));
        let two = SpareSpace { wished: 2, ..whole };
        assert_eq!(two.per_device(), 50);
        let one_of_two = SpareSpace { lost: 1, present: 5, unbuilt: 60, ..two };
        assert_eq!(one_of_two.per_device(), 40, "100 for the next one, and 60 for this one, on four");
        let more_than_wished = SpareSpace { lost: 3, present: 3, unbuilt: 300, ..whole };
        assert_eq!(more_than_wished.per_device(), 34, "the zones that were kept are kept for one");
        assert_eq!(SpareSpace { wished: 9, lost: 0, present: 3, ..whole }.per_device(), 100);
    }
}
