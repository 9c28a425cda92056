//! Counts of each device: of this session, and of its life in the pool.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use warpfire_env::is_background_work;
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

    /// Operations on the device that the pool stopped waiting for.
    pub(crate) fn late_count(&self, index: DeviceIndex) -> u64 {
        self.set.load().opened(index).map_or(0, |(_, _, state)| state.tally.late.load(Relaxed))
    }

    /// Number of devices of the table that are missing or no longer written.
    pub(crate) fn lost_count(&self) -> usize {
        self.lost.load(Relaxed)
    }

    /// How often a device was lost since the pool was opened. It never decreases.
    pub(crate) fn losses(&self) -> usize {
        self.losses.load(Acquire)
    }

    /// Counts operations before they run, so that background work beside them sees that a program waits.
    pub(super) fn count_program_ops(&self, ops: usize) {
        if !is_background_work() {
            self.program_ops.fetch_add(ops as u64, Relaxed);
        }
    }

    /// Operations so far that programs wait for: those of threads that do no background work.
    pub(crate) fn program_ops(&self) -> u64 {
        self.program_ops.load(Relaxed)
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
