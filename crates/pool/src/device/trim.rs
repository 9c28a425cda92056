//! Trim: devices learn which zones the pool needs no more, so that whatever is below them can reuse the
//! space.
//!
//! A reset already discards a zone of a block device, but an image file keeps its space: writing over it is
//! faster than writing to a hole. A trim gives that space back when somebody asks for it.
//!
//! # Invariants
//! 1. Only zones are trimmed that `allocate` could take and reset at that moment. So a trim needs no
//!    argument of its own for crash safety: after a crash, each trimmed zone is as free as one that was
//!    reset.
//! 2. A trim begins after a root with this session's epoch is durable, as the first allocation does.
//! 3. `trimming` is held from `Zones::begin_trim` to `Zones::end_trim`, and released between two zones, also
//!    while `progress` waits. So a caller that needs the zone waits for one discard at most.

use std::ops::{ControlFlow, Range};

use warpfire_units::DeviceIndex;

use crate::device::device_zones::FreePlace;
use crate::device::zones::{TakenZone, Zones};
use crate::error::PoolError;
use crate::pool::{Inner, Pool};

/// The result of a trim.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Trimmed {
    /// Bytes of the zones that devices have discarded.
    pub bytes: u64,
    /// Number of devices that refused a discard. They are used as before.
    pub refused: usize,
}

impl Pool {
    /// Discards every free zone of conventional devices that was not discarded in this session. Other calls
    /// may run at the same time. A zone that becomes free during the call is left to the next trim.
    ///
    /// Zoned devices are left out: the reset of a zone says as much to them.
    ///
    /// `progress` is called after each zone. It may wait, to bound the rate, or end the trim with `Break`.
    ///
    /// # Errors
    /// `OpenForReading`; `Failed` if the session's first root could not be written. A device that refuses a
    /// discard is no error.
    pub fn trim(&self, mut progress: impl FnMut(Trimmed) -> ControlFlow<()>) -> Result<Trimmed, PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        inner.ensure_epoch_is_durable()?;
        let mut trimmed = Trimmed::default();
        for device in inner.devices.all_writable() {
            // The zones that became free first are discarded first, as they are reset (DURABILITY.md,
            // I8).
            let mut places = inner.zones.lock().free_places(device);
            // Ends: the range loses its first place each time, and zones that become free get later ones.
            while inner.devices.takes_discards(device) {
                let Some((place, is_discarded)) = inner.trim_zone(device, places.clone()) else { break };
                if !is_discarded {
                    trimmed.refused += 1;
                    break;
                }
                trimmed.bytes += inner.zone_bytes();
                places.start = place + 1;
                if progress(trimmed).is_break() {
                    return Ok(trimmed);
                }
            }
        }
        Ok(trimmed)
    }
}

impl Inner {
    /// Discards the first zone of these places that is not discarded. Returns its place, and whether the
    /// device has discarded it; `None` if there is no such zone.
    fn trim_zone(&self, device: DeviceIndex, places: Range<FreePlace>) -> Option<(FreePlace, bool)> {
        let _trimming = self.trimming.lock();
        let (place, zone) = self.zones.lock().begin_trim(device, places)?;
        let is_discarded = self.devices.discard_zone(device, self.zone_offset(zone, 0), self.zone_bytes());
        self.zones.lock().end_trim(device, zone, is_discarded);
        Some((place, is_discarded))
    }

    /// Takes zones by `take`. They are not being trimmed when this returns.
    pub(crate) fn take_zones(
        &self,
        take: impl FnOnce(&mut Zones) -> Option<Vec<TakenZone>>,
    ) -> Option<Vec<TakenZone>> {
        let (taken, is_trimmed) = {
            let mut zones = self.zones.lock();
            let taken = take(&mut zones)?;
            let is_trimmed = zones.trims_one_of(&taken);
            (taken, is_trimmed)
        };
        if is_trimmed {
            drop(self.trimming.lock());
        }
        Some(taken)
    }
}
