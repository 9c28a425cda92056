//! The search for pools on devices of which nothing is known: which devices belong together, and whether the
//! pool of these devices can be opened.
//!
//! The steps are those of an opening (`open`). A scan reads roots only and writes nothing. It holds no lock,
//! so a server may write roots while they are read: the roots that it finds are those of some moment.

use std::sync::Arc;

use warpfire_env::Device;
use warpfire_format::Uuid;
use warpfire_format::root::{DeviceEntry, DeviceUse, PoolLabel};
use warpfire_format::root_copy::RootCopy;
use warpfire_units::{BLOCK_BYTES, DeviceIndex};

use crate::error::DeviceSetError;
use crate::life::find_roots::find_roots;
use crate::life::history::age;
use crate::life::open::{
    LabelledDevice, Opening, assign_slots, missing_members, newest_root, old_copies, refuse_diverged,
    refuse_few, refuse_mixed,
};
use crate::pool::Pool;

/// A device that holds a root of some pool.
#[derive(Clone)]
pub struct ScannedDevice(LabelledDevice);

impl ScannedDevice {
    /// The pool of its newest root.
    #[must_use]
    pub fn pool(&self) -> Uuid {
        self.0.label().header.pool
    }

    /// Its place in the device table of its newest root.
    #[must_use]
    pub fn index(&self) -> DeviceIndex {
        self.0.label().header.device
    }

    /// Whether this table has the device.
    #[must_use]
    pub fn is_listed(&self, table: &[DeviceEntry]) -> bool {
        self.0.entry(table).is_some()
    }

    /// Whether this table has the device, and the device is no old copy by it.
    #[must_use]
    pub fn is_current(&self, table: &[DeviceEntry]) -> bool {
        self.0.entry(table).is_some_and(|entry| !self.0.is_old_copy(entry))
    }

    /// Devices in that table.
    #[must_use]
    pub fn table_len(&self) -> u16 {
        self.0.label().header.device_count
    }
}

/// A pool, by the roots of the devices that were found.
#[derive(Clone, Debug)]
pub struct ScannedPool {
    /// The pool.
    pub uuid: Uuid,
    /// Its name.
    pub label: PoolLabel,
    /// Data columns of a new segment.
    pub data: u16,
    /// Parity columns of a new segment.
    pub parity: u8,
    /// Bytes of a zone.
    pub zone_bytes: u64,
    /// The devices of the newest root, without those that were removed. Where no root is whole, the devices
    /// that were found.
    pub members: Vec<ScannedMember>,
    /// Devices with roots of this pool that do not belong to it: removed, replaced, a second copy, or an
    /// old one. They
    /// are places in the list of scanned devices.
    pub strangers: Vec<usize>,
    /// Whether the pool can be opened to read, as far as the roots say, and the reason if not.
    pub reading: Result<(), DeviceSetError>,
    /// As `reading`, to write.
    pub writing: Result<(), DeviceSetError>,
}

/// A device of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScannedMember {
    /// Its place in the device table.
    pub index: DeviceIndex,
    /// Its uuid.
    pub uuid: Uuid,
    /// Its zones; `None` if no root is whole.
    pub zones: Option<u32>,
    /// Whether the newest root says that its session does not write the device.
    pub is_offline: bool,
    /// Whether the device is to leave the pool.
    pub is_leaving: bool,
    /// The place of the device in the list of scanned devices; `None` if it was not found.
    pub found: Option<usize>,
}

impl Pool {
    /// Looks for roots on a device; `None` if it has none.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn scan_device(device: Arc<dyn Device>) -> Result<Option<ScannedDevice>, DeviceSetError> {
        let mut found = find_roots(std::slice::from_ref(&device));
        Ok(LabelledDevice::read(device, found.pop().unwrap_or_default())?.map(ScannedDevice))
    }

    /// The newest whole root of these devices, which are of one pool; `None` if none is whole.
    ///
    /// # Errors
    /// If parts of the devices were written separately, or one of them is there twice.
    pub fn newest_root(devices: &[ScannedDevice]) -> Result<Option<RootCopy>, DeviceSetError> {
        let labelled: Vec<LabelledDevice> = devices.iter().map(|device| device.0.clone()).collect();
        refuse_mixed(&labelled)?;
        let Ok((newest, table, payload)) = newest_root(&labelled) else { return Ok(None) };
        refuse_diverged(&labelled, newest, &table)?;
        Ok(Some(RootCopy { header: newest.whole_header().clone(), table, payload }))
    }

    /// The pool that these devices are of. All of them have roots of one pool, and there is at least one.
    ///
    /// # Panics
    /// The list is empty, or the devices are of two pools.
    #[must_use]
    pub fn scan(devices: &[ScannedDevice]) -> ScannedPool {
        let uuid = devices.first().expect("a pool was found on a device").pool();
        assert!(devices.iter().all(|device| device.pool() == uuid), "the devices are of one pool");
        let labelled: Vec<LabelledDevice> = devices.iter().map(|device| device.0.clone()).collect();
        let newest = labelled.iter().max_by_key(|l| age(&l.label().header)).expect("a device");
        let (header, members) = match newest_root(&labelled) {
            Ok((l, table, _)) => (l.whole_header(), members_of(&table, &labelled)),
            Err(_) => (&newest.label().header, found_members(&labelled)),
        };
        let strangers =
            (0..labelled.len()).filter(|place| members.iter().all(|m| m.found != Some(*place))).collect();
        ScannedPool {
            uuid,
            label: header.label,
            data: header.data,
            parity: header.parity,
            zone_bytes: u64::from(header.zone_blocks) * BLOCK_BYTES as u64,
            strangers,
            reading: judge(&labelled, Opening::Reading),
            writing: judge(&labelled, Opening::Writing),
            members,
        }
    }
}

/// The steps of an opening that need roots only.
fn judge(labelled: &[LabelledDevice], opening: Opening) -> Result<(), DeviceSetError> {
    refuse_mixed(labelled)?;
    let (newest, table, _) = newest_root(labelled)?;
    refuse_diverged(labelled, newest, &table)?;
    let header = newest.whole_header();
    let zone_bytes = u64::from(header.zone_blocks) * BLOCK_BYTES as u64;
    let by_index = assign_slots(labelled.to_vec(), &table, zone_bytes)?;
    let missing = missing_members(&table, &by_index);
    refuse_few(header, &table, &missing, &old_copies(labelled, &table), opening).map(drop)
}

/// The devices of a table that were not removed.
fn members_of(table: &[DeviceEntry], labelled: &[LabelledDevice]) -> Vec<ScannedMember> {
    let members = (0u16..).zip(table).filter(|(_, entry)| entry.state != DeviceUse::Gone);
    let is_it = |l: &LabelledDevice, entry: &DeviceEntry| {
        l.entry(table).is_some_and(|own| own.uuid == entry.uuid && !l.is_old_copy(own))
    };
    members
        .map(|(index, entry)| ScannedMember {
            index: DeviceIndex(index),
            uuid: entry.uuid,
            zones: Some(entry.zones),
            is_offline: entry.state == DeviceUse::Offline,
            is_leaving: entry.is_leaving,
            found: labelled.iter().position(|l| is_it(l, entry)),
        })
        .collect()
}

/// The devices that were found, each once, by their own labels.
fn found_members(labelled: &[LabelledDevice]) -> Vec<ScannedMember> {
    let mut members: Vec<ScannedMember> = Vec::new();
    for (place, l) in labelled.iter().enumerate() {
        let header = &l.label().header;
        if members.iter().all(|member| member.uuid != header.device_uuid) {
            members.push(ScannedMember {
                index: header.device,
                uuid: header.device_uuid,
                zones: None,
                is_offline: false,
                is_leaving: false,
                found: Some(place),
            });
        }
    }
    members.sort_by_key(|member| member.index);
    members
}
