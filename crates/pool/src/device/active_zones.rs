//! Active zones: a zoned device limits how many zones may be written and not full at once.
//!
//! A pool writes few zones of a device at a time: one for each of four streams, one for the commit log, one
//! for the state log, one for a column that moves, and two for roots. A zone that gets no more writes is
//! *finished*, so that it does not count any more. One batch may write the last stripe of a segment and the
//! first of the next, so for a moment each stream may have two. A device with a smaller limit is refused.
//!
//! # Invariants
//! 1. A zone is finished only when no write to it follows before its next reset: all stripes of its segment
//!    are written (`SegmentWriter::end`), or a session before left it (`finish_old_zones`).
//! 2. Finishing changes no byte and no pointer of the pool, so it needs no place in the order of writes. A
//!    finish that is lost in a power cut is made up for by the next opening.

use warpfire_env::Device;
use warpfire_format::segment::FIRST_SEGMENT_ZONE;

use crate::pool::{Inner, Pool};
use crate::segment::pool_segment::PoolSegment;

/// Fewest active zones that a device must allow: the 13 named above, and one to spare. Drives with a limit
/// have one of 14 or more.
pub const ACTIVE_ZONES_MIN: u32 = 14;

/// Whether the device limits its active zones to fewer than a pool writes at once.
pub(crate) fn has_too_few(device: &dyn Device) -> bool {
    let most = device.info().zones.map_or(0, |zones| zones.active_zones_max);
    most > 0 && most < ACTIVE_ZONES_MIN
}

/// Finishes the active zones that no session writes any more: all but those of the roots.
pub(crate) fn finish_old_zones(device: &dyn Device) {
    let Some(zones) = device.info().zones.filter(|zones| zones.active_zones_max > 0) else { return };
    let first = u64::from(FIRST_SEGMENT_ZONE.0) * zones.zone_bytes;
    let finished = device.active_zones().and_then(|active| {
        let mut old = active.into_iter().filter(|at| *at >= first);
        old.try_for_each(|at| device.finish_zone(at, zones.zone_bytes))
    });
    if let Err(error) = finished {
        note_unfinished(&error);
    }
}

fn note_unfinished(error: &warpfire_env::DeviceError) {
    tracing::warn!(name: "zone_not_finished", %error, "a zone that is not full stays active");
}

impl Pool {
    /// Finishes the zones that earlier sessions left half written, on devices that limit the number of such
    /// zones. The client calls it once after each open, before it writes.
    pub fn finish_old_zones(&self) {
        for device in self.inner.devices.all_writable() {
            if let Some(device) = self.inner.devices.device(device) {
                finish_old_zones(&*device);
            }
        }
    }
}

impl Inner {
    /// Finishes the zones of a segment that gets no more stripes.
    pub(crate) fn finish_zones(&self, segment: &PoolSegment) {
        let used = segment.stripes.read().end_block();
        if used == 0 || used == self.zone_blocks {
            return;
        }
        for (device, zone) in &segment.columns {
            let Some(device) = self.devices.device(*device).filter(|_| self.devices.writable(*device)) else {
                continue;
            };
            // A drive without a limit would write the rest of the zone for nothing.
            if device.info().zones.is_some_and(|zones| zones.active_zones_max > 0)
                && let Err(error) = device.finish_zone(self.zone_offset(*zone, 0), self.zone_bytes())
            {
                note_unfinished(&error);
            }
        }
    }
}
