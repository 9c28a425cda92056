//! A frozen state: what the devices hold at one moment stays readable while the pool goes on.
//!
//! An independent reader of the devices, such as a check, needs a state that does not change under it. All
//! that a pool writes goes to zones that are free. So a state stays readable as long as no zone is reset that
//! had a column then. The newest root is the exception: its zone may be reset while the reader looks for it.
//!
//! # Invariants
//! 1. While the reader loads (`Pool::freeze`), no root and no stripe is half written, and no zone is reset:
//!    writers of stripes and resets hold a pass, and roots are written under their own lock.
//! 2. From then on until the frozen state is dropped or given up, no zone is reset that had a column
//!    (`Inner::free_zones`; test `a_frozen_state_stays_readable_until_it_is_dropped`). The zones that are
//!    freed until then are *kept*: they are neither used by a segment nor free.
//! 3. When the pool is out of room, it gives the frozen states up and takes the kept zones
//!    (`Inner::give_up_frozen`). A reader looks at `FrozenState::is_given_up` at its end: if it says so, what
//!    the reader saw may be anything.
//! 4. Kept zones are freed once, by the last frozen state that is dropped, or by giving up.

use std::fmt;
use std::sync::Arc;

use warpfire_env::{Device, PlantedBug, is_planted};
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::pool::{Inner, Pool};

/// The zones that frozen states keep.
#[derive(Debug, Default)]
pub(crate) struct KeptZones {
    /// Number of frozen states that are not given up.
    frozen: usize,
    /// How often frozen states were given up.
    given_up: u64,
    zones: Vec<(DeviceIndex, ZoneIndex)>,
}

/// A state of the devices that stays readable while this value lives, unless the pool needs the room.
#[must_use = "the state thaws when this value is dropped"]
pub struct FrozenState {
    inner: Arc<Inner>,
    given_up_before: u64,
}

impl fmt::Debug for FrozenState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrozenState").field("is_given_up", &self.is_given_up()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Freezes the state that the devices hold now. `load` gets the devices that can be read, and finds roots
    /// and segments there. All writes to the pool wait until it returns. Later the reader may read all that
    /// this state names, beside everything else.
    pub fn freeze<T>(&self, load: impl FnOnce(&[Arc<dyn Device>]) -> T) -> (FrozenState, T) {
        let inner = &self.inner;
        // Dropped after the locks, which its end takes: a panic in `load` thaws too.
        let frozen;
        let _roots = inner.roots.lock();
        let _alone = inner.writing.write();
        let given_up_before = {
            let mut kept = inner.kept.lock();
            kept.frozen += 1;
            kept.given_up
        };
        frozen = FrozenState { inner: Arc::clone(inner), given_up_before };
        let loaded = load(&inner.devices.all_readable());
        (frozen, loaded)
    }
}

impl FrozenState {
    /// Whether the pool has given this state up because it needed the room.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.inner.kept.lock().given_up != self.given_up_before
    }
}

impl Drop for FrozenState {
    fn drop(&mut self) {
        let _writing = self.inner.writing.read();
        let zones = {
            let mut kept = self.inner.kept.lock();
            if kept.given_up != self.given_up_before {
                return;
            }
            kept.frozen -= 1;
            if kept.frozen > 0 { Vec::new() } else { std::mem::take(&mut kept.zones) }
        };
        self.inner.reset_and_free(zones.into_iter());
    }
}

impl Inner {
    /// Resets zones and makes them free, or keeps them for frozen states.
    pub(crate) fn free_zones(&self, zones: impl Iterator<Item = (DeviceIndex, ZoneIndex)>) {
        let _writing = self.writing.read();
        {
            let mut kept = self.kept.lock();
            if kept.frozen > 0 && !is_planted(PlantedBug::FrozenNotKept) {
                kept.zones.extend(zones);
                return;
            }
        }
        self.reset_and_free(zones);
    }

    /// Gives all frozen states up. Returns the number of zones that are free by it.
    pub(crate) fn give_up_frozen(&self) -> usize {
        let _writing = self.writing.read();
        let zones = {
            let mut kept = self.kept.lock();
            if kept.zones.is_empty() {
                return 0;
            }
            kept.frozen = 0;
            kept.given_up += 1;
            std::mem::take(&mut kept.zones)
        };
        let count = zones.len();
        tracing::info!(name: "frozen_state_given_up", zones = count, "a check gives its zones to the pool");
        self.reset_and_free(zones.into_iter());
        count
    }

    /// Number of zones that frozen states keep.
    pub(crate) fn kept_zones(&self) -> usize {
        self.kept.lock().zones.len()
    }

    /// Resets zones and makes them free. A zone on a device that takes no writes becomes free too. One that
    /// its device cannot reset is retired. The caller holds a pass (`Inner::writing`).
    fn reset_and_free(&self, zones: impl Iterator<Item = (DeviceIndex, ZoneIndex)>) {
        for (device, zone) in zones {
            let moment = self.devices.moment();
            if !self.devices.writable(device) {
                self.zones.lock().free_zone(device, zone, false);
            } else if self.reset_with_pass(device, zone) {
                self.free_reset_zone(device, zone, moment);
            } else {
                self.retire_zone(device, zone);
            }
        }
    }
}
