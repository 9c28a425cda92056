//! Changes of the set of devices. Each one makes a new version, under the lock on the roots.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use warpfire_env::Device;
use warpfire_format::root::DeviceEntry;
use warpfire_units::{DeviceIndex, ZoneIndex};

use super::{ALL_ZONES, DeviceSet, Devices, FAILED, GONE, Member, PRESENT};

impl Devices {
    /// Makes the next version of the set. The caller holds the lock on the roots.
    fn change(&self, change: impl FnOnce(&mut DeviceSet)) {
        let mut next = DeviceSet::clone(&self.set.load());
        change(&mut next);
        self.set.store(Arc::new(next));
        self.note_change();
    }

    fn change_member(&self, index: DeviceIndex, change: impl FnOnce(&mut Member)) {
        self.change(|set| {
            let member = set.members.get_mut(usize::from(index.0));
            change(member.expect("the caller knows the device from the table"));
        });
    }

    /// Decides whether zones may be taken on a device.
    pub(crate) fn set_leaving(&self, index: DeviceIndex, is_leaving: bool) {
        self.change_member(index, |member| member.is_leaving = is_leaving);
    }

    /// Decides whether a device waits for the loss of another one.
    pub(crate) fn set_spare(&self, index: DeviceIndex, is_spare: bool) {
        self.change_member(index, |member| member.is_spare = is_spare);
    }

    /// Decides which zones of a device stay in use.
    pub(crate) fn set_kept_zones(&self, index: DeviceIndex, kept_zones: Option<ZoneIndex>) {
        self.change_member(index, |member| member.kept_zones = kept_zones.unwrap_or(ALL_ZONES));
    }

    /// Whether the columns in this zone are to move away.
    pub(crate) fn vacates(&self, index: DeviceIndex, zone: ZoneIndex) -> bool {
        self.set.load().member(index).is_some_and(|member| member.is_leaving || zone >= member.kept_zones)
    }

    /// Gives a device another number of zones.
    pub(crate) fn set_zones(&self, index: DeviceIndex, zones: u32) {
        self.change_member(index, |member| (member.zones, member.kept_zones) = (zones, ALL_ZONES));
    }

    /// The device as it is open; `None` if it takes no writes.
    pub(crate) fn written_device(&self, index: DeviceIndex) -> Option<Arc<dyn Device>> {
        let set = self.set.load();
        let (_, device, state) = set.opened(index)?;
        state.is_written().then(|| Arc::clone(device))
    }

    /// Puts the device in its slot that is this one with another size.
    pub(crate) fn set_device(&self, index: DeviceIndex, device: Arc<dyn Device>) {
        self.change(|set| {
            let slot = set.members[usize::from(index.0)].slot.expect("a device that takes writes is open");
            set.opened[slot] = device;
        });
    }

    /// Adds a device at the end of the table. It takes roots, and no segments before `end_join`.
    pub(crate) fn begin_join(&self, entry: &DeviceEntry, device: Arc<dyn Device>) {
        self.change(|set| set.push(entry, Some(device), true));
    }

    /// Lets a device that joins take segments.
    pub(crate) fn end_join(&self, index: DeviceIndex) {
        self.change_member(index, |member| member.is_joining = false);
    }

    /// Decides whether a device that leaves is removed: it gets no roots as a device of the pool.
    pub(crate) fn set_gone(&self, index: DeviceIndex, is_gone: bool) {
        self.change_member(index, |member| (member.is_gone, member.is_leaving) = (is_gone, !is_gone));
    }

    /// Closes a device that was removed.
    pub(crate) fn close(&self, index: DeviceIndex) {
        self.change(|set| {
            let member = set.members[usize::from(index.0)];
            assert!(member.is_gone, "no segment is on a device that was removed");
            // One that was missing or had failed counts as lost no longer.
            if !member.slot.is_some_and(|slot| set.slot_states[slot].is_written()) {
                self.lost.fetch_sub(1, Relaxed);
            }
            set.close_slot(member.slot);
        });
    }

    /// Stops using a device, and closes it.
    pub(crate) fn set_offline(&self, index: DeviceIndex) {
        self.change(|set| {
            let member = &mut set.members[usize::from(index.0)];
            member.is_kept_offline = true;
            let Some(slot) = member.slot else { return };
            // An operation that is under way may drop the device at the same time: one of both counts it.
            let health_before = set.slot_states[slot].health.fetch_max(GONE, AcqRel);
            if health_before == PRESENT {
                self.lost.fetch_add(1, Relaxed);
                self.losses.fetch_add(1, AcqRel);
            }
            set.close_slot(Some(slot));
        });
    }

    /// Uses a device again that took no writes, in a new slot.
    pub(crate) fn take_back(&self, index: DeviceIndex, device: Arc<dyn Device>) {
        self.change(|set| {
            set.moment += 1;
            let slot_before = set.members[usize::from(index.0)].slot;
            let tally = slot_before.map_or_else(Arc::default, |slot| {
                assert!(!set.slot_states[slot].is_written(), "a device that is used is not taken back");
                Arc::clone(&set.slot_states[slot].tally)
            });
            set.close_slot(slot_before);
            let slot = set.push_slot(device, index, tally);
            let member = &mut set.members[usize::from(index.0)];
            (member.slot, member.is_kept_offline) = (Some(slot), false);
            self.lost.fetch_sub(1, Relaxed);
        });
    }

    /// The device as it was opened, if it has failed and is readable still.
    pub(crate) fn failed_device(&self, index: DeviceIndex) -> Option<Arc<dyn Device>> {
        let set = self.set.load();
        let (_, device, state) = set.opened(index)?;
        (state.health.load(Acquire) == FAILED).then(|| Arc::clone(device))
    }

    /// Takes the last device of the table back, which could not join.
    pub(crate) fn cancel_join(&self) {
        self.change(|set| {
            let member = set.members.pop().expect("a device that joins is the last of the table");
            assert!(member.is_joining, "no segment is on a device that joins");
            // A device that failed counts as lost no longer.
            if !set.is_written(&member) {
                self.lost.fetch_sub(1, Relaxed);
            }
            set.close_slot(member.slot);
        });
    }
}
