//! Looks at many segments without keeping readers and writers from the segment table.
//!
//! # Invariants
//! 1. No look at segments keeps the table locked for more than `LOOKED_AT_ONCE` of them. So the time for
//!    which an append waits does not grow with the pool. A segment that comes or goes in between may be
//!    missed, as by a look a moment earlier or later.

use std::ops::ControlFlow;

use warpfire_pool::Pool;
use warpfire_units::{DeviceIndex, SegmentId};

use crate::log::Log;
use crate::segment_table::SegmentEntry;

/// Segments to look at before others may take the table.
const LOOKED_AT_ONCE: usize = 128;

/// A set of devices, in which each is found at once.
pub(crate) struct DeviceSet {
    flags: Vec<bool>,
    len: usize,
}

impl DeviceSet {
    pub(crate) fn has(&self, device: DeviceIndex) -> bool {
        self.flags.get(usize::from(device.0)).copied().unwrap_or(false)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl From<Vec<DeviceIndex>> for DeviceSet {
    fn from(devices: Vec<DeviceIndex>) -> Self {
        let last = devices.iter().map(|device| usize::from(device.0)).max();
        let mut flags = vec![false; last.map_or(0, |last| last + 1)];
        devices.iter().for_each(|device| flags[usize::from(device.0)] = true);
        DeviceSet { flags, len: devices.len() }
    }
}

/// The devices that take writes, as of one moment.
pub(crate) struct Writable(DeviceSet);

impl Writable {
    pub(crate) fn of(pool: &Pool) -> Writable {
        Writable(pool.writable_devices().into())
    }

    pub(crate) fn has(&self, device: DeviceIndex) -> bool {
        self.0.has(device)
    }

    /// How many more columns the segment may lose; `None` if more are away than its parity covers.
    pub(crate) fn left(&self, entry: &SegmentEntry) -> Option<usize> {
        let away = entry.columns().filter(|(device, is_lost)| *is_lost || !self.has(*device)).count();
        usize::from(entry.parity()).checked_sub(away)
    }

    /// As `left`, and 0 if more are away.
    pub(crate) fn columns_left(&self, entry: &SegmentEntry) -> usize {
        self.left(entry).unwrap_or(0)
    }
}

impl Log {
    /// Calls `act` for each of the segments that is there, in this order, until it breaks.
    pub(crate) fn look_at<T>(
        &self,
        ids: &[SegmentId],
        mut act: impl FnMut(SegmentId, &SegmentEntry) -> ControlFlow<T>,
    ) -> ControlFlow<T> {
        for some in ids.chunks(LOOKED_AT_ONCE) {
            let segment_table = self.segment_table.lock();
            for id in some {
                if let Some(entry) = segment_table.entry(*id) {
                    act(*id, entry)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Calls `act` for each of the segments that is there, in this order.
    pub(crate) fn look_at_each(&self, ids: &[SegmentId], mut act: impl FnMut(SegmentId, &SegmentEntry)) {
        let looked = self.look_at(ids, |id, entry| -> ControlFlow<()> {
            act(id, entry);
            ControlFlow::Continue(())
        });
        debug_assert!(looked.is_continue(), "nothing ends the look");
    }
}
