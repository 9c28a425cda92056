//! The look for data of a later session than that of every root.
//!
//! A session makes its first root durable before it writes a zone. So a stripe of a later session than that
//! of every root proves that newer roots are lost, and that the newest root here has an older state.
//!
//! A full search reads a block of each zone, as `warpfire fsck` does. An opening reads only the free zones
//! that come next: the later session opened this state too, so it began with about the same zones. Roots that
//! the session before it had written after the one that is the newest now moved its start by as many zones.

use std::sync::atomic::Ordering::Relaxed;

use warpfire_env::AlignedBuf;
use warpfire_format::stripe::StripeHeader;
use warpfire_units::{BLOCK_BYTES, DeviceIndex, ZoneIndex};

use crate::device::zones::Zones;
use crate::pool::{Inner, Pool};

/// Free zones of each device that an opening looks at. A device reads them in one batch.
const LOOKED_AT_MAX: usize = 16;

impl Pool {
    /// Looks whether the devices hold data of a later session than that of every root. If so, this is an
    /// older state of the pool: [`newer_session`](Pool::newer_session) says so from then on, and the session
    /// that writes here gets a later epoch than all of those. The client calls it once after each open, when
    /// it has adopted all segments and before it writes.
    pub fn look_for_newer_session(&self) {
        let inner = &self.inner;
        let first = |zones: &Zones, device| zones.first_free(device, LOOKED_AT_MAX);
        if inner.newest_session_in(first).is_none() {
            return;
        }
        // One such zone is enough to know. The epoch of this session must be later than that of any other.
        let all = |zones: &Zones, device| zones.first_free(device, usize::MAX);
        let Some(newer) = inner.newest_session_in(all) else { return };
        inner.newer_session.store(newer, Relaxed);
        if !inner.devices.for_reading() {
            inner.epoch.store(newer.saturating_add(1), Relaxed);
        }
        tracing::warn!(
            name: "state_is_older",
            newer_session = newer,
            newest_root = inner.epoch_of_roots,
            "the devices hold data of a later session than that of every root: this is an older state of the pool"
        );
    }

    /// The session that has written data after that of the newest root here, if the devices prove that there
    /// was one.
    #[must_use]
    pub fn newer_session(&self) -> Option<u32> {
        Some(self.inner.newer_session.load(Relaxed)).filter(|epoch| *epoch > 0)
    }

    /// Whether the devices that were missing at the opening may hold a newer state.
    #[must_use]
    pub fn may_be_older(&self) -> bool {
        self.inner.may_be_older
    }
}

impl Inner {
    /// The newest session that has written one of these zones, if it is later than that of every root.
    fn newest_session_in(&self, wanted: impl Fn(&Zones, DeviceIndex) -> Vec<ZoneIndex>) -> Option<u32> {
        let places: Vec<(DeviceIndex, ZoneIndex)> = {
            let zones = self.zones.lock();
            let members = self.devices.members().into_iter();
            let of_device = |device| wanted(&zones, device).into_iter().map(move |zone| (device, zone));
            members.flat_map(|(device, _)| of_device(device)).collect()
        };
        let batch = LOOKED_AT_MAX * self.devices.table_len().max(1);
        let mut newest = None;
        for places in places.chunks(batch) {
            let mut blocks: Vec<AlignedBuf> =
                places.iter().map(|_| AlignedBuf::zeroed(BLOCK_BYTES)).collect();
            let at = places.iter().map(|(device, zone)| (*device, self.zone_offset(*zone, 0)));
            let ops = at.zip(&mut blocks).filter_map(|(at, block)| self.devices.read_op(at, block));
            self.devices.run(&mut ops.collect::<Vec<_>>());
            // A block that could not be read is still zero, and no header.
            let epochs = blocks.iter().filter_map(|block| {
                let identity = StripeHeader::decode(block).ok()?.header.identity;
                (identity.pool == self.uuid && identity.epoch > self.epoch_of_roots).then_some(identity.epoch)
            });
            newest = newest.max(epochs.max());
        }
        newest
    }
}
