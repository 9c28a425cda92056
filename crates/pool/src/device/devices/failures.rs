//! Failures of operations: each is counted, and some drop their device.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use warpfire_env::{Device, DeviceError, OpKind};
use warpfire_units::DeviceIndex;

use super::{Devices, FAILED, GONE, PRESENT, SlotState};

impl Devices {
    /// Counts a failed reset or discard. Drops the device if it is gone, or if it has not answered: a late
    /// discard would take bytes that are written after it. Reports a conventional device that refuses.
    pub(super) fn note_refused_reset(
        &self,
        device: &dyn Device,
        slot_state: &SlotState,
        error: &DeviceError,
    ) {
        if matches!(error, DeviceError::Late { .. }) {
            Self::note_late(slot_state, error);
            return self.drop_device(slot_state, FAILED, error);
        }
        slot_state.tally.errors.fetch_add(1, Relaxed);
        if matches!(error, DeviceError::Gone { .. }) {
            return self.drop_device(slot_state, GONE, error);
        }
        let is_zoned = device.info().zones.is_some();
        // Once for each device: a device that takes no discards refuses all of them.
        if !is_zoned && !slot_state.is_discard_reported.swap(true, Relaxed) {
            tracing::warn!(
                name: "discard_failed",
                device = slot_state.index.0,
                error = %error,
                "a device refuses a discard; it is used without"
            );
        }
    }

    /// Drops a device that cannot hold roots, because a zone for them cannot be reset.
    pub(crate) fn drop_without_root_zone(&self, index: DeviceIndex, error: &DeviceError) {
        if let Some((_, _, slot_state)) = self.set.load().opened(index) {
            self.drop_device(slot_state, FAILED, error);
        }
    }

    fn note_late(slot_state: &SlotState, error: &DeviceError) {
        slot_state.tally.late.fetch_add(1, Relaxed);
        if !slot_state.is_slow.swap(true, AcqRel) {
            tracing::warn!(
                name: "device_slow",
                device = slot_state.index.0,
                error = %error,
                "a device does not answer in time"
            );
        }
    }

    /// Counts a failed read, write or flush, and drops the device if that is the consequence.
    pub(super) fn note_failure(&self, slot_state: &SlotState, error: &DeviceError, kind: &OpKind<'_>) {
        if matches!(error, DeviceError::Late { .. }) {
            Self::note_late(slot_state, error);
        } else {
            slot_state.tally.errors.fetch_add(1, Relaxed);
        }
        match (error, kind) {
            (DeviceError::Gone { .. }, _) => self.drop_device(slot_state, GONE, error),
            // A failed read is a lost block. Parity covers it, and the device goes on.
            (_, OpKind::Read(..)) => {}
            // The host of an image file is full, and the device as good as before. The caller sees the
            // error in the operation.
            (DeviceError::NoSpace { .. }, OpKind::Write(..)) => {
                tracing::warn!(
                    name: "device_host_full",
                    device = slot_state.index.0,
                    error = %error,
                    "a device has no room for a write within its own size"
                );
                *self.last_failure.lock() = Some(error.clone());
            }
            _ => self.drop_device(slot_state, FAILED, error),
        }
    }

    /// Lowers the health of a device.
    fn drop_device(&self, slot_state: &SlotState, health: u8, error: &DeviceError) {
        // Two threads may fail on one device at once: `fetch_max` keeps the worse health.
        let health_before = slot_state.health.fetch_max(health, AcqRel);
        debug_assert_ne!(slot_state.health.load(Acquire), PRESENT, "a dropped device is not written again");
        if health_before == PRESENT {
            self.lost.fetch_add(1, Relaxed);
            self.losses.fetch_add(1, AcqRel);
        }
        self.note_change();
        if health_before < health {
            let is_gone = health == GONE;
            tracing::warn!(
                name: "device_dropped",
                device = slot_state.index.0,
                is_gone,
                error = %error,
                "device dropped"
            );
        }
        *self.last_failure.lock() = Some(error.clone());
    }

    /// Text of the last error that dropped a device or that a dropped device returned.
    pub(crate) fn last_failure(&self) -> Arc<str> {
        match &*self.last_failure.lock() {
            Some(e) => Arc::from(e.to_string()),
            None => Arc::from("devices are missing"),
        }
    }
}
