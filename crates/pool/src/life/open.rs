//! Opening: identifies the devices by their roots, refuses sets that are not one pool, and assembles the pool
//! from the devices that are present.
//!
//! The *label* of a device is its newest root: it names the pool and the device's index. The steps, each a
//! function:
//!
//! ```text
//!   read_labels ──▶ refuse_mixed ──▶ refuse_diverged ──▶ newest_root ──▶ assign_slots ──▶ assemble
//!   no root: not      foreign or       two histories      first whole     by index;
//!   in the pool       doubled          of one pool        body wins       the rest is missing
//! ```
//!
//! Nothing is written. So an open that is refused, or that fails half-way, changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use warpfire_env::{Device, RankedMutex, RankedRwLock};
use warpfire_format::root::DeviceEntry;
use warpfire_format::{Corrupt, Uuid};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, ZoneIndex};

use crate::device::devices::Devices;
use crate::device::zones::Zones;
use crate::error::{DeviceSetError, PoolError};
use crate::life::find_roots::{DeviceRoots, FoundRoot, find_roots, read_body};
use crate::life::roots::{Root, RootEnd, Roots};
use crate::pool::{Inner, Pool};
use crate::read::checksums::Checksums;

/// The constants of an open pool.
pub(crate) struct PoolIdentity {
    pub uuid: Uuid,
    pub data: u16,
    pub parity: u8,
    pub zone_blocks: u32,
    pub epoch: u32,
    pub for_reading: bool,
    pub table: Vec<DeviceEntry>,
}

/// A device that holds roots of the pool.
struct LabelledDevice {
    device: Arc<dyn Device>,
    roots: DeviceRoots,
}

impl LabelledDevice {
    fn name(&self) -> String {
        self.device.info().name.clone()
    }

    fn label(&self) -> &FoundRoot {
        self.roots.first().expect("a labelled device has a root")
    }
}

impl Pool {
    /// Opens the pool on `devices`, which come in any order and of which up to m may be missing. Returns the
    /// pool and the newest root that is readable on any device. Nothing is written.
    ///
    /// A device without any readable root counts as missing.
    ///
    /// # Errors
    /// `Devices` if the devices are not one pool, or too few of it.
    pub fn open(devices: Vec<Arc<dyn Device>>) -> Result<(Pool, Root), PoolError> {
        Self::open_as(devices, false)
    }

    /// As [`open`](Self::open), to read only: nothing is written to the devices while this pool is open.
    /// Every call that would write returns `OpenForReading`.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_for_reading(devices: Vec<Arc<dyn Device>>) -> Result<(Pool, Root), PoolError> {
        Self::open_as(devices, true)
    }

    /// Identifies the devices and assembles the pool, by the steps at the head of this file.
    fn open_as(devices: Vec<Arc<dyn Device>>, for_reading: bool) -> Result<(Pool, Root), PoolError> {
        // The order matters: `newest_root` compares roots of one pool and one history only.
        let labelled = read_labels(devices)?;
        refuse_mixed(&labelled)?;
        refuse_diverged(&labelled)?;
        let (newest, table, payload) = newest_root(&labelled)?;
        let header = newest.header;
        let zone_bytes = u64::from(header.zone_blocks) * BLOCK_BYTES as u64;
        let ends = root_ends(&labelled, table.len());
        let by_index = assign_slots(labelled, &table, zone_bytes)?;
        let missing: Vec<(DeviceIndex, Uuid)> = (0u16..)
            .zip(table.iter().zip(&by_index))
            .filter(|(_, (_, device))| device.is_none())
            .map(|(index, (entry, _))| (DeviceIndex(index), entry.uuid))
            .collect();
        if missing.len() > usize::from(header.parity) {
            return Err(DeviceSetError::Missing { missing, parity: header.parity }.into());
        }
        for (index, uuid) in &missing {
            tracing::warn!(device = index.0, %uuid, "device missing");
        }
        // The new epoch is in memory only. It becomes durable with this session's first root. A reader writes
        // no root, so it needs none and can open a pool that has spent its epochs.
        let epoch = match header.epoch.checked_add(1) {
            _ if for_reading => header.epoch,
            next => next.ok_or(DeviceSetError::NoRoot(EPOCHS_SPENT))?,
        };
        let identity = PoolIdentity {
            uuid: header.pool,
            data: header.data,
            parity: header.parity,
            zone_blocks: header.zone_blocks,
            epoch,
            for_reading,
            table,
        };
        let roots = Roots {
            sequence: header.sequence,
            made_seconds: header.made_seconds,
            inherited: Some(payload.clone()),
            ends,
        };
        let root = Root { sequence: header.sequence, epoch: header.epoch, payload };
        let devices = by_index.len();
        tracing::info!(
            pool = %identity.uuid,
            epoch = identity.epoch,
            root = root.sequence,
            devices,
            missing = missing.len(),
            for_reading,
            "pool opened"
        );
        Ok((Pool::assemble(identity, by_index, roots), root))
    }

    /// A pool without segments. `by_index` has an entry for each device in the table, `None` if it is
    /// missing.
    pub(crate) fn assemble(i: PoolIdentity, by_index: Vec<Option<Arc<dyn Device>>>, roots: Roots) -> Pool {
        assert_eq!(roots.ends.len(), i.table.len(), "each device has a place for its next root");
        assert!(i.data > 0 && i.epoch > 0, "zero is never valid");
        let zone_counts: Vec<u32> = i.table.iter().map(|d| d.zones).collect();
        let inner = Inner {
            uuid: i.uuid,
            data: i.data,
            parity: i.parity,
            zone_blocks: i.zone_blocks,
            epoch: i.epoch,
            devices: Devices::new(i.table, by_index, usize::from(i.parity), i.for_reading),
            // The root's number moves from session to session, and with it the first zone to be written: wear
            // spreads.
            zones: RankedMutex::new(Zones::new(&zone_counts, roots.sequence)),
            segments: RankedRwLock::new(BTreeMap::new()),
            trimming: RankedMutex::new(()),
            roots: RankedMutex::new(roots),
            flushing: RankedMutex::new(()),
            retired_asked: AtomicU64::new(0),
            unflushed: RankedMutex::new(BTreeMap::new()),
            lost: RankedMutex::new(Vec::new()),
            damaged: RankedMutex::new(BTreeSet::new()),
            damage_seen: AtomicU64::new(0),
            checksums: Checksums::new(),
            rebuilt_blocks: AtomicU64::new(0),
            stripes_written: AtomicU64::new(0),
            payload_bytes: AtomicU64::new(0),
        };
        Pool { inner: Arc::new(inner) }
    }
}

const EPOCHS_SPENT: Corrupt = Corrupt::new(111, "root with the last possible epoch");

/// The devices that hold roots. A device without a root cannot be identified and is left out.
fn read_labels(devices: Vec<Arc<dyn Device>>) -> Result<Vec<LabelledDevice>, DeviceSetError> {
    let found = find_roots(&devices);
    let names = devices.iter().map(|d| d.info().name.clone()).collect();
    let all = devices.into_iter().zip(found).map(|(device, roots)| LabelledDevice { device, roots });
    let labelled: Vec<LabelledDevice> = all.filter(|l| !l.roots.is_empty()).collect();
    if labelled.is_empty() { Err(DeviceSetError::NoPool { devices: names }) } else { Ok(labelled) }
}

/// Refuses devices of two pools, and two devices with one index.
fn refuse_mixed(labelled: &[LabelledDevice]) -> Result<(), DeviceSetError> {
    let mut by_index: BTreeMap<DeviceIndex, &LabelledDevice> = BTreeMap::new();
    let mut pool = None;
    for l in labelled {
        let header = l.label().header;
        let expected = *pool.get_or_insert(header.pool);
        if header.pool != expected {
            return Err(DeviceSetError::Foreign { device: l.name(), found: header.pool, expected });
        }
        if let Some(other) = by_index.insert(header.device, l) {
            let index = header.device;
            return Err(DeviceSetError::Duplicate { index, first: other.name(), second: l.name() });
        }
    }
    Ok(())
}

/// Refuses devices with different histories. Two roots with the same epoch and number are copies of each
/// other. If they differ, two sessions had the same epoch, each on its own part of the pool; their stripes
/// have the same identities.
fn refuse_diverged(labelled: &[LabelledDevice]) -> Result<(), DeviceSetError> {
    let mut seen: BTreeMap<(u32, u64), (u32, &LabelledDevice)> = BTreeMap::new();
    for l in labelled {
        for h in l.roots.iter().map(|r| r.header) {
            let (crc, other) = *seen.entry((h.epoch, h.sequence)).or_insert((h.body_crc, l));
            if crc != h.body_crc {
                let (first, second, sequence) = (other.name(), l.name(), h.sequence);
                return Err(DeviceSetError::Diverged { first, second, sequence });
            }
        }
    }
    Ok(())
}

/// The newest root that is readable on any device, with its device table and payload.
fn newest_root(
    labelled: &[LabelledDevice],
) -> Result<(FoundRoot, Vec<DeviceEntry>, Vec<u8>), DeviceSetError> {
    let mut all: Vec<(&LabelledDevice, &FoundRoot)> =
        labelled.iter().flat_map(|l| l.roots.iter().map(move |r| (l, r))).collect();
    all.sort_by_key(|(_, r)| std::cmp::Reverse((r.header.epoch, r.header.sequence)));
    let mut first_fault = None;
    for (l, root) in all {
        match read_body(l.device.as_ref(), root) {
            Ok((table, payload)) => return Ok((*root, table, payload)),
            // A torn or rotten copy. Another device may have this root whole; if none has, the root before it
            // counts.
            Err(fault) => {
                let device = &l.device.info().name;
                tracing::warn!(device = %device, root = root.header.sequence, error = %fault, "root refused");
                first_fault = first_fault.or(Some(fault));
            }
        }
    }
    Err(DeviceSetError::NoRoot(first_fault.expect("a labelled device has a root")))
}

/// The place of the next root on each device: the zone that does not hold the device's newest whole root.
fn root_ends(labelled: &[LabelledDevice], devices: usize) -> Vec<RootEnd> {
    // Missing devices get a place too. It is not used in this session.
    let mut ends = vec![RootEnd::away_from(ZoneIndex(1)); devices];
    for l in labelled {
        let whole = l.roots.iter().find(|root| read_body(l.device.as_ref(), root).is_ok());
        let keep = whole.unwrap_or(l.label());
        if let Some(end) = ends.get_mut(usize::from(keep.header.device.0)) {
            *end = RootEnd::away_from(keep.zone);
        }
    }
    ends
}

/// The devices in index order, `None` where one is missing. A device that is not in the newest root's table
/// is left out.
fn assign_slots(
    labelled: Vec<LabelledDevice>,
    table: &[DeviceEntry],
    zone_bytes: u64,
) -> Result<Vec<Option<Arc<dyn Device>>>, DeviceSetError> {
    let mut by_index: Vec<Option<Arc<dyn Device>>> = vec![None; table.len()];
    for l in labelled {
        let index = usize::from(l.label().header.device.0);
        // The newest root decides which devices belong to the pool. A device that it does not list, or lists
        // under another uuid, was replaced.
        let entry = table.get(index).zip(by_index.get_mut(index));
        let Some((entry, place)) = entry.filter(|(entry, _)| entry.uuid == l.label().header.device_uuid)
        else {
            tracing::warn!(device = %l.name(), index, "device left out");
            continue;
        };
        let needed_bytes = u64::from(entry.zones) * zone_bytes;
        let found_bytes = l.device.info().size_bytes;
        if found_bytes < needed_bytes {
            return Err(DeviceSetError::Shrunk { device: l.name(), found_bytes, needed_bytes });
        }
        assert!(place.is_none(), "two devices with one index were refused before");
        *place = Some(l.device);
    }
    Ok(by_index)
}
