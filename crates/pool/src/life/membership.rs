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
//! 6. A device is taken offline only if each segment with stripes has enough other columns, and if roots can
//!    be written without it (`take_offline`). The other devices have the root that says so; from before that
//!    root the device is neither read nor written.
//! 7. A zone behind the end of a device, as the table has it, is never taken: a device that grows has the
//!    zones before they are in the table, and the table has them before they are taken. A device that shrinks
//!    has no column in the zones that it loses before the table is without them, and loses them after that
//!    (`grow_device`, `shrink_device`; test
//!    `a_cut_at_any_moment_of_a_change_of_size_leaves_the_old_or_the_new_one`).
//! 8. A device is taken back only if it is the device that left: it has its own label, its newest root is
//!    one that the history of the pool knows, and it is not older than the one that it had then
//!    (`find_returned`). What it missed was recorded when it was missed (`Inner::note_lost`), and no segment
//!    that was open then is written on it again (`Devices`, 8).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use warpfire_env::{Device, Random, unanswered};
use warpfire_format::root::{DEVICES_MAX, DeviceEntry, DeviceLife, DeviceUse, PoolLabel};
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::device::active_zones::{finish_old_zones, has_too_few};
use crate::device::geometry::device_bytes_min;
use crate::error::{DeviceSetError, MembershipError, PoolError};
use crate::life::create::{clear_old_root_places, empty_root_zones, random_uuid, too_few};
use crate::life::find_roots::{FoundRoot, find_roots, unsupported_root};
use crate::life::history::is_diverged;
use crate::life::open::whole_root;
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
        self.join(device, force, random, false)
    }

    /// As [`add_device`](Self::add_device), and the device waits for the loss of another one: no zone of it
    /// is taken before [`use_spare`](Self::use_spare).
    ///
    /// # Errors
    /// As `add_device`.
    pub fn add_spare(
        &self,
        device: Arc<dyn Device>,
        force: bool,
        random: &dyn Random,
    ) -> Result<DeviceIndex, PoolError> {
        self.join(device, force, random, true)
    }

    fn join(
        &self,
        device: Arc<dyn Device>,
        force: bool,
        random: &dyn Random,
        is_spare: bool,
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
        finish_old_zones(device.as_ref());
        clear_old_root_places(device.as_ref())?;
        device.flush()?;
        let point = inner.next_point(&roots);
        let entry = DeviceEntry {
            uuid: random_uuid(random),
            zones,
            state: DeviceUse::Active,
            is_leaving: false,
            is_kept_offline: false,
            is_spare,
            joined: self.epoch(),
            seen: point,
            life: DeviceLife::default(),
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
        let was_spare = std::mem::take(&mut entry.is_spare);
        let stays = |e: &&DeviceEntry| e.state != DeviceUse::Gone && !e.is_leaving && !e.is_spare;
        let staying = table.iter().filter(stays).count();
        let (data, parity) = inner.shape.get();
        let width = usize::from(data) + usize::from(parity);
        if is_leaving && staying < width {
            return Err(MembershipError::TooFew { staying, width }.into());
        }
        // Before the root: of the segments that are allocated from now on none is on the device.
        inner.devices.set_leaving(device, is_leaving);
        let written = inner.write_table(&mut roots, table);
        match &written {
            Ok(()) => inner.devices.set_spare(device, false),
            Err(_) => inner.devices.set_leaving(device, !is_leaving),
        }
        debug_assert!(!was_spare || is_leaving, "a spare does not leave");
        written
    }

    /// Lets a spare take the place of a device: zones of the spare may be taken from now on, and the device,
    /// if one is named, leaves the pool. Durable on return. A crash leaves the spare waiting, or in use and
    /// the device leaving.
    ///
    /// # Errors
    /// `Membership` if the pool has no such devices, if `spare` is no spare or takes no writes, or if the
    /// other one is a spare or leaves already; `OpenForReading`; `Failed` if the root could not be written.
    pub fn use_spare(&self, spare: DeviceIndex, for_device: Option<DeviceIndex>) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        let mut table = roots.table.clone();
        if !inner.devices.writable(spare) {
            return Err(MembershipError::Away(spare).into());
        }
        let entry = member_mut(&mut table, spare).filter(|entry| entry.is_spare);
        entry.ok_or(MembershipError::Unknown(spare))?.is_spare = false;
        if let Some(device) = for_device {
            let has_place =
                |entry: &&mut DeviceEntry| !entry.is_leaving && !entry.is_spare && device != spare;
            let entry = member_mut(&mut table, device).filter(has_place);
            entry.ok_or(MembershipError::Unknown(device))?.is_leaving = true;
            // Before the root: of the segments that are allocated from now on none is on the device.
            inner.devices.set_leaving(device, true);
        }
        if let Err(error) = inner.write_table(&mut roots, table) {
            for_device.into_iter().for_each(|device| inner.devices.set_leaving(device, false));
            return Err(error);
        }
        // After the root: no zone of a spare is taken.
        inner.devices.set_spare(spare, false);
        let for_device = for_device.map(|device| device.0);
        tracing::warn!(name: "spare_in_use", spare = spare.0, for_device, "a spare is in use");
        Ok(())
    }

    /// The spares that take writes, and their zones.
    #[must_use]
    pub fn spares(&self) -> Vec<(DeviceIndex, u32)> {
        let members = self.inner.devices.members().into_iter();
        let waits = |index: &DeviceIndex| self.inner.devices.writable(*index);
        let spares = members.filter(|(index, member)| member.is_spare && !member.is_gone && waits(index));
        spares.map(|(index, member)| (index, member.zones)).collect()
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
        (entry.is_kept_offline, entry.is_spare) = (false, false);
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
    /// Stops using a device and closes it, until it is taken online. Later sessions do not use it either.
    /// Everything written before is durable, as after a flush. Durable on return. A crash leaves the device
    /// in use, or offline.
    ///
    /// # Errors
    /// `Membership` if the pool has no such device, or cannot spare it; `OpenForReading`; `Failed` if the
    /// root could not be written: the device is not used then, and the next session may use it.
    pub fn take_offline(&self, device: DeviceIndex) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        let mut table = roots.table.clone();
        let entry = member_mut(&mut table, device).ok_or(MembershipError::Unknown(device))?;
        if entry.is_kept_offline {
            return Ok(());
        }
        entry.is_kept_offline = true;
        // The first root of a session has the table that the session began with.
        inner.repeat_inherited(&mut roots)?;
        // Afterwards each column that has missed a write is recorded.
        inner.flush()?;
        inner.check_spared(device)?;
        inner.devices.set_offline(device);
        inner.write_table(&mut roots, table)?;
        tracing::info!(name: "device_offline", device = device.0, "device taken offline");
        Ok(())
    }

    /// Uses a device again that takes no writes: one that is offline or missing, that has failed, or that was
    /// gone. Returns its index. It may be the device that has failed, or opened anew. Columns that have
    /// missed writes stay recorded as lost until they are resilvered. Durable on return. After a crash the
    /// next session uses the device, or does not if it was kept offline.
    ///
    /// # Errors
    /// `Membership` or `Devices` if it is not the device that left, or is in use: then nothing was written;
    /// `OpenForReading`; `Failed` if the root could not be written.
    pub fn take_online(&self, device: Arc<dyn Device>) -> Result<DeviceIndex, PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        let (index, end) = inner.find_returned(&device, &roots)?;
        inner.repeat_inherited(&mut roots)?;
        inner.flush()?;
        let mut table = roots.table.clone();
        table[usize::from(index.0)].is_kept_offline = false;
        roots.ends[usize::from(index.0)] = end;
        inner.devices.take_back(index, device);
        // After that: a zone that is freed in between is not clean (`free_reset_zone`).
        inner.zones.lock().distrust(index);
        if let Err(error) = inner.write_table(&mut roots, table) {
            inner.devices.set_offline(index);
            return Err(error);
        }
        tracing::info!(name: "device_online", device = index.0, "device taken online");
        Ok(index)
    }

    /// Checks that `take_offline` would not be refused for what segments need. Nothing is written.
    ///
    /// # Errors
    /// `Membership`.
    pub fn check_spared(&self, device: DeviceIndex) -> Result<(), PoolError> {
        member_mut(&mut self.inner.roots.lock().table.clone(), device)
            .ok_or(MembershipError::Unknown(device))?;
        Ok(self.inner.check_spared(device)?)
    }

    /// The device as it was opened, if it has failed in this session and can still be read: it can be taken
    /// online again.
    #[must_use]
    pub fn failed_device(&self, device: DeviceIndex) -> Option<Arc<dyn Device>> {
        self.inner.devices.failed_device(device)
    }
}

impl Pool {
    /// The device as it is open; `None` if it takes no writes.
    #[must_use]
    pub fn written_device(&self, device: DeviceIndex) -> Option<Arc<dyn Device>> {
        self.inner.devices.written_device(device)
    }

    /// The most zones that the pool can use of a device of this size.
    #[must_use]
    pub fn zones_in(&self, size_bytes: u64) -> u32 {
        u32::try_from(size_bytes / self.inner.zone_bytes()).unwrap_or(u32::MAX)
    }

    /// Uses more zones of a device, `zones` in all: `larger` is the device with its new size. Durable on
    /// return. After a crash the pool uses the old zones or the new ones; the device may be larger than these
    /// take.
    ///
    /// # Errors
    /// `Membership` if the pool has no such device, or it takes no writes; `Devices` if it is too small for
    /// its zones; `OpenForReading`; `Failed` if the root could not be written: the zones stay as they are.
    pub fn grow_device(
        &self,
        device: DeviceIndex,
        zones: u32,
        larger: Arc<dyn Device>,
    ) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        let mut table = roots.table.clone();
        let entry = member_mut(&mut table, device).ok_or(MembershipError::Unknown(device))?;
        if !inner.devices.writable(device) {
            return Err(MembershipError::Away(device).into());
        }
        let (found_bytes, needed_bytes) = (larger.info().size_bytes, u64::from(zones) * inner.zone_bytes());
        if found_bytes < needed_bytes {
            let device = larger.info().name.clone();
            return Err(DeviceSetError::Shrunk { device, found_bytes, needed_bytes }.into());
        }
        inner.devices.set_device(device, larger);
        if zones > entry.zones {
            entry.zones = zones;
            inner.write_table(&mut roots, table)?;
            // Now no zone is taken that no durable root knows.
            inner.devices.set_zones(device, zones);
            inner.zones.lock().resize(device, zones);
            tracing::info!(name: "device_grown", device = device.0, zones, "a device has more zones");
        }
        Ok(())
    }

    /// Takes no zone of a device from `zones` on, so that the caller can move its columns there away. With
    /// `None` all zones are taken again. Nothing is written: an opening forgets it.
    ///
    /// # Errors
    /// `Membership` if the pool has no such device, it takes no writes, or too few zones would be left;
    /// `OpenForReading`.
    pub fn set_end(&self, device: DeviceIndex, zones: Option<u32>) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let roots = inner.roots.lock();
        let entry = member_mut(&mut roots.table.clone(), device).copied();
        let name = inner.devices.name(device).unwrap_or_default();
        if entry.is_none() {
            return Err(MembershipError::Unknown(device).into());
        }
        if let Some(zones) = zones {
            let size_bytes = u64::from(zones) * inner.zone_bytes();
            let least_bytes = device_bytes_min(Some(inner.zone_bytes()));
            if size_bytes < least_bytes {
                return Err(MembershipError::TooSmall { device: name, size_bytes, least_bytes }.into());
            }
            if !inner.devices.writable(device) {
                return Err(MembershipError::Away(device).into());
            }
        }
        // First: a segment that is made in between may have a zone there, and is outdated then.
        inner.devices.set_kept_zones(device, zones.map(ZoneIndex));
        inner.zones.lock().set_end(device, zones.map(ZoneIndex));
        Ok(())
    }

    /// Uses fewer zones of a device. No segment has a column in the others, and the newest root names none
    /// that has: the caller has moved them after `set_end`, and written a root since. Durable on return.
    /// After a crash the pool uses the old zones or the new ones. Only afterwards may the device itself
    /// become smaller.
    ///
    /// # Errors
    /// `Membership` if segments have columns there; `OpenForReading`; `Failed` if the root could not be
    /// written.
    pub fn shrink_device(&self, device: DeviceIndex, zones: u32) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        // A frozen state may keep zones there.
        inner.give_up_frozen();
        let mut roots = inner.roots.lock();
        let mut table = roots.table.clone();
        let entry = member_mut(&mut table, device).ok_or(MembershipError::Unknown(device))?;
        let is_behind = |(at, zone): &(DeviceIndex, ZoneIndex)| *at == device && zone.0 >= zones;
        let segments = inner.segments.read().values().filter(|s| s.columns.iter().any(&is_behind)).count();
        let is_free = inner.zones.lock().is_unused_from(device, ZoneIndex(zones));
        if segments > 0 || !is_free || zones >= entry.zones {
            return Err(MembershipError::InUse { device, segments }.into());
        }
        entry.zones = zones;
        inner.write_table(&mut roots, table)?;
        // A zone may be trimmed until then.
        let _trimming = inner.trimming.lock();
        inner.devices.set_zones(device, zones);
        inner.zones.lock().resize(device, zones);
        tracing::info!(name: "device_shrunk", device = device.0, zones, "a device has fewer zones");
        Ok(())
    }

    /// Number of zones of the device from `first` on that segments use.
    #[must_use]
    pub fn used_zones_from(&self, device: DeviceIndex, first: u32) -> u32 {
        let is_behind = |(at, zone): &(DeviceIndex, ZoneIndex)| *at == device && zone.0 >= first;
        let segments = self.inner.segments.read();
        let used = segments.values().flat_map(|s| &s.columns).filter(|place| is_behind(place)).count();
        u32::try_from(used).expect("zones are numbered by 32 bits")
    }

    /// Puts a device in its place that is the same with another size.
    pub fn set_device(&self, device: DeviceIndex, resized: Arc<dyn Device>) {
        let _roots = self.inner.roots.lock();
        self.inner.devices.set_device(device, resized);
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
        if has_too_few(device.as_ref()) {
            return Err(DeviceSetError::Impossible(too_few(device.as_ref())).into());
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

    /// Checks that the pool can go on without a device: each segment has lost no more columns than parity
    /// covers then, and a root can be written.
    fn check_spared(&self, device: DeviceIndex) -> Result<(), MembershipError> {
        let is_on_it = |s: &&Arc<PoolSegment>| {
            s.columns.iter().any(|(at, _)| *at == device) && s.stripes.read().count() > 0
        };
        let parity_after = |s: &Arc<PoolSegment>| {
            let lost = s.lost.lock();
            let is_lost = |(column, (at, _)): &(u16, &(DeviceIndex, ZoneIndex))| {
                *at == device || !self.devices.writable(*at) || lost.iter().any(|l| l.column == *column)
            };
            usize::from(s.parity).checked_sub((0u16..).zip(&s.columns).filter(is_lost).count())
        };
        let segments = self.segments.read();
        let needing = segments.values().filter(is_on_it).filter(|s| parity_after(s).is_none()).count();
        if needing > 0 {
            return Err(MembershipError::Needed { device, segments: needing });
        }
        let is_other = |other: &&DeviceIndex| **other != device;
        let others = self.devices.all_writable().iter().filter(is_other).count();
        let lost = self.devices.lost_count() + usize::from(self.devices.writable(device));
        let parity = usize::from(self.shape.parity());
        if others == 0 || (others <= parity && lost > parity) {
            return Err(MembershipError::LastDevices { device, others });
        }
        Ok(())
    }

    /// Finds the index of a device that may be taken back, and the place of its next root.
    fn find_returned(
        &self,
        device: &Arc<dyn Device>,
        roots: &Roots,
    ) -> Result<(DeviceIndex, RootEnd), PoolError> {
        let name = device.info().name.clone();
        let found = find_roots(std::slice::from_ref(device)).pop().unwrap_or_default();
        let Some(label) = found.first() else {
            return Err(match unsupported_root(device.as_ref()) {
                Some(found) => DeviceSetError::Unsupported { device: name, found },
                None => DeviceSetError::NoPool { devices: vec![name] },
            }
            .into());
        };
        let header = &label.header;
        if header.pool != self.uuid {
            let (found, expected) = (header.pool, self.uuid);
            return Err(DeviceSetError::Foreign { device: name, found, expected }.into());
        }
        let is_own =
            |(_, e): &(u16, &DeviceEntry)| e.uuid == header.device_uuid && e.state != DeviceUse::Gone;
        let (index, entry) = (0u16..)
            .zip(&roots.table)
            .find(is_own)
            .ok_or(MembershipError::NotMember { device: name.clone() })?;
        let index = DeviceIndex(index);
        if self.devices.writable(index) {
            return Err(MembershipError::Online(index).into());
        }
        let needed_bytes = u64::from(entry.zones) * self.zone_bytes();
        let found_bytes = device.info().size_bytes;
        if found_bytes < needed_bytes {
            return Err(DeviceSetError::Shrunk { device: name, found_bytes, needed_bytes }.into());
        }
        if unanswered(device) > 0 {
            return Err(MembershipError::OwesAnswer { device: name }.into());
        }
        let whole = whole_root(device.as_ref(), &found);
        let newest = whole.as_ref().map_or(header, |root| &root.header);
        let like = self.root_header(roots, &roots.table, &[], roots.inherits, false);
        // Another session of this epoch may have written stripes with identities that this one assigns.
        let epoch = self.epoch.load(Relaxed);
        let is_foreign = |root: &FoundRoot| {
            let header = &root.header;
            header.epoch > epoch || (header.epoch == epoch && header.session != roots.session)
        };
        if is_diverged(newest, &like, entry) || found.iter().any(is_foreign) {
            let one = self.devices.all_writable().into_iter().filter_map(|d| self.devices.name(d)).collect();
            return Err(DeviceSetError::Diverged { one, other: vec![name] }.into());
        }
        // A root that it held is durable on it. An older one is that of a copy that was made before.
        if header.epoch < entry.seen.epoch {
            return Err(MembershipError::OldCopy { device: name }.into());
        }
        let keep = whole.as_ref().unwrap_or(label);
        Ok((index, RootEnd::away_from(keep.zone)))
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
