//! Counts of each device: of this session, and of its life in the pool.

use std::sync::atomic::Ordering::Relaxed;

use warpfire_format::root::DeviceLife;
use warpfire_units::DeviceIndex;

use super::Devices;
use crate::device::counters::DeviceCounters;

impl Devices {
    pub(crate) fn count_checksum_error(&self, index: DeviceIndex) {
        if let Some((_, _, state)) = self.set.load().opened(index) {
            state.tally.checksum_errors.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn count_identity_error(&self, index: DeviceIndex) {
        if let Some((_, _, state)) = self.set.load().opened(index) {
            state.tally.identity_errors.fetch_add(1, Relaxed);
        }
    }

    /// Counts of the device since it was opened; zero if it is missing.
    pub(crate) fn counters(&self, index: DeviceIndex) -> DeviceCounters {
        self.set.load().opened(index).map_or_else(Default::default, |(_, _, state)| state.tally.snapshot())
    }

    /// What all sessions have done to the device, as far as roots have recorded it, and this one. A device
    /// that the table lacks has no life.
    pub(crate) fn life(&self, index: DeviceIndex) -> DeviceLife {
        let before = self.set.load().member(index).map_or_else(Default::default, |member| member.life_before);
        let now = self.counters(index);
        DeviceLife {
            written_bytes: before.written_bytes.saturating_add(now.written_bytes),
            resets: before.resets.saturating_add(now.resets),
        }
    }
}
