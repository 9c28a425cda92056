//! The space after a change of the devices, for plans. Nothing is changed.

use std::collections::BinaryHeap;

use warpfire_format::segment::FIRST_SEGMENT_ZONE;
use warpfire_units::DeviceIndex;

use crate::device::capacity::Plan;
use crate::device::zones::{KEPT_ZONES, Zones};
use crate::pool::{Inner, Pool};

/// A change of the pool's devices, as far as their space is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlannedChange {
    /// The device leaves, present or not.
    Leaves(DeviceIndex),
    /// A device with so many zones joins, those for roots included.
    Joins {
        /// Its zones.
        zones: u32,
    },
    /// The device has so many zones then.
    Resized {
        /// The device.
        device: DeviceIndex,
        /// Its zones.
        zones: u32,
    },
}

impl Pool {
    /// What [`free_bytes`](Self::free_bytes) would be after these changes, when `columns` columns have moved
    /// to the devices with the most free zones. `None` if they have no room.
    #[must_use]
    pub fn free_bytes_after(&self, changes: &[PlannedChange], columns: u64) -> Option<u64> {
        let inner = &self.inner;
        let used_from = |device, first| u64::from(self.used_zones_from(device, first));
        // Before the lock on the zones, which comes after that on the segments.
        let used_behind: Vec<u64> = changes
            .iter()
            .map(|change| match *change {
                PlannedChange::Resized { device, zones } => used_from(device, zones),
                PlannedChange::Leaves(_) | PlannedChange::Joins { .. } => 0,
            })
            .collect();
        let mut devices = inner.devices.all_allocatable();
        let zones = inner.zones.lock();
        let mut leaves = None;
        let mut joined = Vec::new();
        let mut more: Vec<(DeviceIndex, i64)> = Vec::new();
        for (change, used_behind) in changes.iter().zip(used_behind) {
            match *change {
                PlannedChange::Leaves(device) => {
                    devices.retain(|d| *d != device);
                    leaves = Some(device);
                }
                PlannedChange::Joins { zones } => {
                    joined.push(u64::from(zones.saturating_sub(FIRST_SEGMENT_ZONE.0)));
                }
                PlannedChange::Resized { device, zones: then } => {
                    let grown = i64::from(then) - i64::from(zones.count_on(device));
                    // Of the zones that are cut off, the free ones are free no longer.
                    let used = i64::try_from(used_behind).unwrap_or(i64::MAX);
                    more.push((device, if grown < 0 { (grown + used).min(0) } else { grown }));
                }
            }
        }
        let free_on = |device: &DeviceIndex| {
            let more = more.iter().find(|(d, _)| d == device).map_or(0, |(_, more)| *more);
            (zones.free_on(*device) as u64).saturating_add_signed(more)
        };
        let sizes = devices.iter().map(|d| inner.zones_after(&zones, *d, changes)).chain(joined.clone());
        let largest = sizes.max().unwrap_or(0);
        let mut free: BinaryHeap<u64> = devices.iter().map(free_on).chain(joined).collect();
        for _ in 0..columns {
            let most = free.pop().filter(|most| *most > 0)?;
            free.push(most - 1);
        }
        let spare = inner.spare_zones_after(&zones, leaves, free.len() as u64, largest);
        let widths = inner.widths_of(inner.shape.get(), free.len());
        let free: Vec<u64> = free.into_iter().map(|zones| zones.saturating_sub(KEPT_ZONES + spare)).collect();
        Some(inner.payload_bytes_of(Plan::of(&free, widths).by_width(), widths.parity))
    }
}

impl Inner {
    /// Zones for segments that the device has after these changes.
    fn zones_after(&self, zones: &Zones, device: DeviceIndex, changes: &[PlannedChange]) -> u64 {
        let resized = changes.iter().find_map(|change| match *change {
            PlannedChange::Resized { device: it, zones } if it == device => Some(zones),
            _ => None,
        });
        let zones = resized.unwrap_or_else(|| zones.count_on(device));
        u64::from(zones.saturating_sub(FIRST_SEGMENT_ZONE.0))
    }
}
