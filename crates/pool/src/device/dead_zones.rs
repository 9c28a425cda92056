//! Zones that take no writes although their devices do: a zoned drive has made them read-only or offline.
//!
//! # Invariants
//! 1. A zone is dead from the first write that failed there, if its drive then says that it takes none, until
//!    a reset of it succeeds (`Devices::run` and `Devices::reset_zone`).
//! 2. A dead zone gets no write. Its column misses the stripes from then on, as one on a device that takes no
//!    writes does, and its device stays (test `a_zone_dies_and_its_device_goes_on`).
//! 3. A device that cannot write one of its root zones is no device to go on with: it is dropped.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use warpfire_env::sync::RwLock;
use warpfire_env::{Device, DeviceError, ZoneInfo};
use warpfire_format::segment::FIRST_SEGMENT_ZONE;
use warpfire_units::DeviceIndex;

/// The dead zones of a pool.
#[derive(Default)]
pub(crate) struct DeadZones {
    /// Whether there are some; most pools have none.
    any: AtomicBool,
    /// By the byte at which they start.
    zones: RwLock<BTreeSet<(DeviceIndex, u64)>>,
}

fn start_of(zones: ZoneInfo, at: u64) -> u64 {
    at - at % zones.zone_bytes
}

impl DeadZones {
    /// Whether the zone with this byte is dead.
    pub(crate) fn contains(&self, device: &dyn Device, index: DeviceIndex, at: u64) -> bool {
        let is_dead = |zones| self.zones.read().contains(&(index, start_of(zones, at)));
        self.any.load(Acquire) && device.info().zones.is_some_and(is_dead)
    }

    /// Notes the zone with the byte `at` as dead if a write there failed for that reason. The drive is asked.
    pub(crate) fn note_failed_write(
        &self,
        device: &dyn Device,
        index: DeviceIndex,
        at: u64,
        error: &DeviceError,
    ) -> bool {
        if !matches!(error, DeviceError::Io { .. } | DeviceError::Zone { .. }) {
            return false;
        }
        let Some(zones) = device.info().zones else { return false };
        let start = start_of(zones, at);
        if start < u64::from(FIRST_SEGMENT_ZONE.0) * zones.zone_bytes {
            return false;
        }
        if self.contains(device, index, at) {
            return true;
        }
        if !matches!(device.zone_report(start), Err(DeviceError::Zone { .. })) {
            return false;
        }
        self.zones.write().insert((index, start));
        self.any.store(true, Release);
        tracing::warn!(
            name: "zone_died",
            device = index.0,
            zone = start / zones.zone_bytes,
            error = %error,
            "a zone takes no more writes; its part of a segment is rewritten elsewhere"
        );
        true
    }

    /// The zone that starts at this byte was reset.
    pub(crate) fn revive(&self, index: DeviceIndex, start: u64) {
        if self.any.load(Acquire) {
            self.zones.write().remove(&(index, start));
        }
    }
}
