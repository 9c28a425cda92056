//! Membership: which devices belong to the pool, as its roots say it, and the name of the pool.
//!
//! # Invariants
//! 1. A change of membership is done once a root with the new table is durable, as any root
//!    (`Inner::write_table`). A crash leaves the table before the change or the one after it.
//! 2. The root repeats the payload of the newest root, so a change of membership or of the name changes
//!    nothing else.
//! 3. A device joins in two roots. The first lies on the new device alone, the second on as many devices as
//!    any root. No zone of the device is taken before the second is durable, and it has no root before its
//!    old root places are cleared (`add_device`; test
//!    `a_cut_at_any_moment_of_an_add_leaves_the_pool_with_or_without_the_device`).
//! 4. A device is removed when no segment has a column on it. The other devices have the root without it
//!    before its own label says that it has left (`remove_device`; test
//!    `a_cut_at_any_moment_of_a_removal_leaves_the_device_leaving_or_removed`).
//! 5. No zone of a device that leaves is taken, from before the root is written that says so (`set_leaving`).

use std::sync::Arc;

use warpfire_env::{Device, Random};
use warpfire_format::root::{DEVICES_MAX, DeviceEntry, DeviceUse, PoolLabel};
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::device::geometry::device_bytes_min;
use crate::error::{DeviceSetError, MembershipError, PoolError};
use crate::life::create::{clear_old_root_places, empty_root_zones, random_uuid};
use crate::life::find_roots::{find_roots, unsupported_root};
use crate::life::roots::{RootEnd, Roots};
use crate::pool::{Inner, Pool};
use crate::segment::pool_segment::PoolSegment;

impl Pool {
    /// Adds a device to the pool, and returns its index. Its zones can be taken from then on. Durable on
    /// return. `force` overwrites a device that belongs to another pool.
    ///
    /// A crash leaves the pool with the device or without it. A device that the crash left with a root of
    /// this pool, but outside of its table, is added by another call.
    ///
    /// # Errors
    /// `Membership` or `Devices` if the device cannot join: then nothing was written; `OpenForReading`;
    /// `Device` or `Failed` if a device fails: then the pool is as before.
    pub fn add_device(
        &self,
        device: Arc<dyn Device>,
        force: bool,
        random: &dyn Random,
    ) -> Result<DeviceIndex, PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        let zones = inner.zones_to_join(&device, &roots.table, force)?;
        let (bytes, max) = (roots.payload.len() as u64, inner.payload_bytes_max(roots.table.len() + 1));
        if bytes > max {
            return Err(PoolError::RootTooLarge { bytes, max });
        }
        inner.repeat_inherited(&mut roots)?;
        // A root of an older pool must not stand beside the first root of this one.
        empty_root_zones(device.as_ref(), inner.zone_bytes())?;
        clear_old_root_places(device.as_ref(), inner.zone_bytes())?;
        device.flush()?;
        let point = inner.next_point(&roots);
        let entry = DeviceEntry {
            uuid: random_uuid(random),
            zones,
            state: DeviceUse::Active,
            is_leaving: false,
            joined: inner.epoch,
            seen: point,
        };
        let index = DeviceIndex(u16::try_from(roots.table.len()).expect("the table has room"));
        inner.devices.begin_join(&entry, device);
        inner.zones.lock().add_device(zones);
        roots.table.push(entry);
        roots.holds.push(false);
        roots.ends.push(RootEnd::EMPTY);
        let joined = inner.write_joining_roots(&mut roots, index);
        if joined.is_ok() {
            inner.devices.end_join(index);
            tracing::info!(name: "device_added", device = index.0, uuid = %entry.uuid, zones, "device added");
        } else {
            roots.table.pop();
            roots.holds.pop();
            roots.ends.pop();
            inner.zones.lock().remove_last_device();
            inner.devices.cancel_join();
        }
        joined.map(|()| index)
    }

    /// Marks a device as leaving, or as staying again. A device that leaves gets no new columns; those that
    /// it has stay readable until the caller has moved them. Durable on return.
    ///
    /// # Errors
    /// `Membership` if the pool has no such device, or if too few devices would stay; `OpenForReading`;
    /// `Failed` if the root could not be written.
    pub fn set_leaving(&self, device: DeviceIndex, is_leaving: bool) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        let mut table = roots.table.clone();
        let entry = member_mut(&mut table, device).ok_or(MembershipError::Unknown(device))?;
        if entry.is_leaving == is_leaving {
            return Ok(());
        }
        entry.is_leaving = is_leaving;
        let staying = table.iter().filter(|e| e.state != DeviceUse::Gone && !e.is_leaving).count();
        let width = usize::from(inner.data) + usize::from(inner.parity);
        if is_leaving && staying < width {
            return Err(MembershipError::TooFew { staying, width }.into());
        }
        // Before the root: of the segments that are allocated from now on none is on the device.
        inner.devices.set_leaving(device, is_leaving);
        let written = inner.write_table(&mut roots, table);
        if written.is_err() {
            inner.devices.set_leaving(device, !is_leaving);
        }
        written
    }
}

impl Pool {
    /// Removes a device that leaves from the pool, and closes it. No segment has a column on it, and the
    /// newest root names none that has: the caller has moved them, and written a root since. The device may
    /// be missing. Durable on return. A crash leaves the device leaving, or removed.
    ///
    /// # Errors
    /// `Membership` if the device does not leave or still has columns; `OpenForReading`; `Failed` if the root
    /// could not be written.
    pub fn remove_device(&self, device: DeviceIndex) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        let mut table = roots.table.clone();
        let entry = member_mut(&mut table, device).ok_or(MembershipError::Unknown(device))?;
        let has_column = |s: &Arc<PoolSegment>| s.columns.iter().any(|(at, _)| *at == device);
        let segments = inner.segments.read().values().filter(|s| has_column(s)).count();
        if !entry.is_leaving || segments > 0 {
            return Err(MembershipError::InUse { device, segments }.into());
        }
        (entry.state, entry.is_leaving) = (DeviceUse::Gone, false);
        // The copies of the root count on the other devices only.
        inner.devices.set_gone(device, true);
        if let Err(error) = inner.write_table(&mut roots, table) {
            inner.devices.set_gone(device, false);
            return Err(error);
        }
        // The label of the device says that it has left. If that fails, its older root is enough: the table
        // of the pool decides.
        if inner.devices.writable(device) {
            let payload = roots.payload.clone();
            drop(inner.write_copies(&mut roots, &payload, false, &[device], 1));
        }
        inner.devices.close(device);
        tracing::info!(name: "device_removed", device = device.0, "device removed");
        Ok(())
    }
}

impl Pool {
    /// The name that people have given the pool; empty if they have not.
    #[must_use]
    pub fn label(&self) -> PoolLabel {
        self.inner.roots.lock().label
    }

    /// Names the pool. Durable on return. After a crash it has the old name or the new one.
    ///
    /// # Errors
    /// `OpenForReading`; `Failed` if the root could not be written: the pool has the old name then.
    pub fn set_label(&self, label: PoolLabel) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        // The first root of a session has the label that the session began with.
        inner.repeat_inherited(&mut roots)?;
        let before = std::mem::replace(&mut roots.label, label);
        roots.config_version += 1;
        let payload = roots.payload.clone();
        let written = inner.append_root(&mut roots, payload, false);
        if written.is_err() {
            roots.label = before;
        }
        written
    }
}

impl Inner {
    /// The number of zones of a device that may join.
    fn zones_to_join(
        &self,
        device: &Arc<dyn Device>,
        table: &[DeviceEntry],
        force: bool,
    ) -> Result<u32, PoolError> {
        let (info, zone_bytes) = (device.info(), self.zone_bytes());
        let name = info.name.clone();
        if table.len() >= DEVICES_MAX {
            return Err(MembershipError::TableFull { held: table.len() }.into());
        }
        if let Some(own) = info.zones.filter(|own| own.zone_bytes != zone_bytes) {
            let found_bytes = own.zone_bytes;
            return Err(MembershipError::OtherZones { device: name, found_bytes, zone_bytes }.into());
        }
        let (size_bytes, least_bytes) = (info.size_bytes, device_bytes_min(Some(zone_bytes)));
        if size_bytes < least_bytes {
            return Err(MembershipError::TooSmall { device: name, size_bytes, least_bytes }.into());
        }
        let found = find_roots(std::slice::from_ref(device)).pop().unwrap_or_default();
        if let Some(root) = found.first().map(|root| &root.header) {
            let is_own = root.pool == self.uuid;
            let stays = |e: &DeviceEntry| e.uuid == root.device_uuid && e.state != DeviceUse::Gone;
            if is_own && table.iter().any(stays) {
                return Err(MembershipError::Member { device: name }.into());
            }
            // One of this pool that is not in its table has left, or a crash came while it joined.
            if !is_own && !force {
                return Err(DeviceSetError::InUse { device: name, pool: root.pool }.into());
            }
        } else if let Some(found) = unsupported_root(device.as_ref()).filter(|_| !force) {
            return Err(DeviceSetError::Unsupported { device: name, found }.into());
        }
        Ok(u32::try_from(size_bytes / zone_bytes).unwrap_or(u32::MAX))
    }

    /// Writes the first root of a device that joins, and then the root that takes it in.
    fn write_joining_roots(&self, roots: &mut Roots, index: DeviceIndex) -> Result<(), PoolError> {
        // As before any root: all that was written so far is durable.
        self.flush()?;
        let payload = roots.payload.clone();
        roots.config_version += 1;
        if self.write_copies(roots, &payload, false, &[index], 1)? < 1 {
            return Err(self.failed());
        }
        roots.ends[usize::from(index.0)] = RootEnd::away_from(ZoneIndex(0));
        self.append_root(roots, payload, false)
    }

    /// Writes a root with this device table and the payload of the newest root. If that fails, the next root
    /// has the table from before.
    fn write_table(&self, roots: &mut Roots, table: Vec<DeviceEntry>) -> Result<(), PoolError> {
        // The first root of a session has the table that the session began with.
        self.repeat_inherited(roots)?;
        let before = std::mem::replace(&mut roots.table, table);
        roots.config_version += 1;
        let payload = roots.payload.clone();
        let written = self.append_root(roots, payload, false);
        if written.is_err() {
            roots.table = before;
        }
        written
    }
}

/// The entry of a device that was not removed.
fn member_mut(table: &mut [DeviceEntry], device: DeviceIndex) -> Option<&mut DeviceEntry> {
    table.get_mut(usize::from(device.0)).filter(|entry| entry.state != DeviceUse::Gone)
}
