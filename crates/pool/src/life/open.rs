//! Opening: identifies the devices by their roots, refuses sets that are not one pool, and assembles the pool
//! from the devices that are present.
//!
//! The *label* of a device is its newest root: it names the pool and the device's index. The steps, each a
//! function:
//!
//! ```text
//!   read_labels ──▶ refuse_mixed ──▶ newest_root ──▶ refuse_diverged ──▶ assign_slots ──▶ refuse_few
//!   no root: not      foreign or       newest state     two histories      by index;        too few, or
//!   in the pool       doubled          with a body      of one pool        the rest is      maybe an older
//!                                                                          missing          state
//! ```
//!
//! Nothing is written. So an open that is refused, or that fails half-way, changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use warpfire_env::{Device, PlantedBug, Random, RankedMutex, RankedRwLock, is_planted};
use warpfire_format::root::{DeviceEntry, DeviceUse, RootHeader, RootWishes};
use warpfire_format::{Corrupt, Uuid};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, ZoneIndex};

use crate::device::devices::Devices;
use crate::device::zones::Zones;
use crate::error::{DeviceSetError, MembershipError, PoolError};
use crate::life::find_roots::{DeviceRoots, FoundRoot, find_roots, read_body, unsupported_root};
use crate::life::history::{age, earlier_with, is_diverged};
use crate::life::roots::{Root, RootEnd, Roots, random_session};
use crate::life::tune::PoolShape;
use crate::pool::{Inner, Pool};
use crate::read::checksums::Checksums;
use crate::segment::pool_segment::Codes;

/// The constants of an open pool.
pub(crate) struct PoolIdentity {
    pub uuid: Uuid,
    pub data: u16,
    pub parity: u8,
    pub wishes: RootWishes,
    pub zone_blocks: u32,
    pub epoch: u32,
    /// The latest epoch of a root.
    pub epoch_of_roots: u32,
    /// Whether the missing devices may hold a newer state.
    pub may_be_older: bool,
    pub opening: Opening,
    /// Old copies of devices, by name. The devices themselves are missing.
    pub old_copies: Vec<(DeviceIndex, String)>,
    /// Devices that are there, and that the newest root names as offline.
    pub returned: BTreeSet<DeviceIndex>,
    pub table: Vec<DeviceEntry>,
}

/// How a pool is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// To read only.
    Reading,
    /// To write, unless missing devices may hold a newer state.
    Writing,
    /// To write, even then.
    Degraded,
}

/// A device that holds roots of the pool.
#[derive(Clone)]
pub(crate) struct LabelledDevice {
    pub device: Arc<dyn Device>,
    roots: DeviceRoots,
    /// The newest root with a body that verifies.
    whole: Option<FoundRoot>,
}

impl LabelledDevice {
    /// The label of a device; `None` if it has no root.
    pub fn read(device: Arc<dyn Device>, roots: DeviceRoots) -> Result<Option<Self>, DeviceSetError> {
        if !roots.is_empty() {
            let whole = whole_root(device.as_ref(), &roots);
            return Ok(Some(LabelledDevice { device, roots, whole }));
        }
        match unsupported_root(device.as_ref()) {
            Some(found) => Err(DeviceSetError::Unsupported { device: device.info().name.clone(), found }),
            None => Ok(None),
        }
    }

    fn name(&self) -> String {
        self.device.info().name.clone()
    }

    /// Its newest root, whole or not.
    pub fn label(&self) -> &FoundRoot {
        self.roots.first().expect("a labelled device has a root")
    }

    /// The header of its newest whole root. The caller knows that there is one.
    pub fn whole_header(&self) -> &RootHeader {
        &self.whole.as_ref().expect("the newest root is whole").header
    }

    /// Whether the device holds an older state than it had once: `entry` names a later session of which it
    /// held a root. It is a copy from before, or has lost writes that it had flushed. A root whose body does
    /// not verify proves that its session wrote the device.
    pub fn is_old_copy(&self, entry: &DeviceEntry) -> bool {
        self.label().header.epoch < entry.seen.epoch && !is_planted(PlantedBug::OldCopyAccepted)
    }

    /// The device's entry in a table, if it is there and was not removed.
    pub fn entry<'a>(&self, table: &'a [DeviceEntry]) -> Option<&'a DeviceEntry> {
        let header = &self.label().header;
        let is_own =
            |entry: &&DeviceEntry| entry.uuid == header.device_uuid && entry.state != DeviceUse::Gone;
        table.get(usize::from(header.device.0)).filter(is_own)
    }
}

impl Pool {
    /// Opens the pool on `devices`, which come in any order and of which up to m may be missing. Returns the
    /// pool and the newest root that is readable on any device. Nothing is written. `random` gives the number
    /// of the session.
    ///
    /// A device without any readable root counts as missing, and so does one that holds an older state than
    /// it had once.
    ///
    /// # Errors
    /// `Devices` if the devices are not one pool, or too few of it, or if the missing devices may hold a
    /// newer state.
    pub fn open(devices: Vec<Arc<dyn Device>>, random: &dyn Random) -> Result<(Pool, Root), PoolError> {
        Self::open_as(devices, Opening::Writing, Some(random), &[])
    }

    /// As [`open`](Self::open), even if the missing devices may hold a newer state, or if segments cannot be
    /// read without them (`refuse_uncovered`). The writes of this session and a newer state cannot be joined
    /// then.
    ///
    /// # Errors
    /// As `open`, without `MayBeOlder`.
    pub fn open_degraded(
        devices: Vec<Arc<dyn Device>>,
        random: &dyn Random,
    ) -> Result<(Pool, Root), PoolError> {
        Self::open_as(devices, Opening::Degraded, Some(random), &[])
    }

    /// As [`open_degraded`](Self::open_degraded), to read only: nothing is written to the devices while this
    /// pool is open. Every call that would write returns `OpenForReading`.
    ///
    /// # Errors
    /// As `open_degraded`.
    pub fn open_for_reading(devices: Vec<Arc<dyn Device>>) -> Result<(Pool, Root), PoolError> {
        Self::open_as(devices, Opening::Reading, None, &[])
    }

    /// As [`open`](Self::open), and takes those of the devices `online` that were kept offline. The next root
    /// that does not only repeat another says so.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_with_online(
        devices: Vec<Arc<dyn Device>>,
        random: &dyn Random,
        online: &[DeviceIndex],
    ) -> Result<(Pool, Root), PoolError> {
        Self::open_as(devices, Opening::Writing, Some(random), online)
    }

    /// Identifies the devices and assembles the pool, by the steps at the head of this file. A writer gives
    /// the source of its session's number. Devices of `online` are not kept offline any more.
    fn open_as(
        devices: Vec<Arc<dyn Device>>,
        opening: Opening,
        random: Option<&dyn Random>,
        online: &[DeviceIndex],
    ) -> Result<(Pool, Root), PoolError> {
        // The order matters: `newest_root` compares roots of one pool only.
        let labelled = read_labels(devices)?;
        refuse_mixed(&labelled)?;
        let (newest, mut table, payload) = newest_root(&labelled)?;
        refuse_diverged(&labelled, newest, &table)?;
        let header = newest.whole_header().clone();
        let zone_bytes = u64::from(header.zone_blocks) * BLOCK_BYTES as u64;
        let ends = root_ends(&labelled, &table);
        let all = || labelled.iter().flat_map(|l| &l.roots).map(|r| &r.header);
        let epoch_max = all().map(|h| h.epoch).max().unwrap_or(header.epoch);
        let sequence = all().map(|h| h.sequence).max().unwrap_or(header.sequence);
        let is_named = |index: u16| online.contains(&DeviceIndex(index));
        let named = (0u16..).zip(&mut table).filter(|(index, _)| is_named(*index));
        named.for_each(|(_, entry)| entry.is_kept_offline = false);
        refuse_old_copy(&labelled, &table, online)?;
        let old_copies = old_copies(&labelled, &table);
        for (index, device) in &old_copies {
            tracing::warn!(
                name: "old_copy_left_out",
                device,
                index = index.0,
                "the device holds an older state than it had once: it may be an old copy, and is not used"
            );
        }
        let by_index = assign_slots(labelled, &table, zone_bytes)?;
        let missing = missing_members(&table, &by_index);
        let may_be_older = refuse_few(&header, &table, &missing, &old_copies, opening)?;
        for (index, uuid) in &missing {
            tracing::warn!(device = index.0, %uuid, "device missing");
        }
        // The new epoch is in memory only. It becomes durable with this session's first root. A reader writes
        // no root, so it needs none and can open a pool that has spent its epochs.
        let (epoch, session) = match random {
            None => (header.epoch, header.session),
            Some(random) => {
                let next = epoch_max.checked_add(1).ok_or(DeviceSetError::NoRoot(EPOCHS_SPENT))?;
                (next, random_session(random))
            }
        };
        let is_offline = |index: &DeviceIndex| table[usize::from(index.0)].state == DeviceUse::Offline;
        let present = (0u16..).zip(&by_index).filter(|(_, device)| device.is_some());
        let returned = present.map(|(index, _)| DeviceIndex(index)).filter(is_offline).collect();
        let identity = PoolIdentity {
            uuid: header.pool,
            data: header.data,
            parity: header.parity,
            wishes: header.wishes,
            zone_blocks: header.zone_blocks,
            epoch,
            epoch_of_roots: epoch_max,
            may_be_older,
            opening,
            old_copies,
            returned,
            table: table.clone(),
        };
        let roots = Roots {
            sequence,
            made_seconds: header.made_seconds,
            label: header.label,
            config_version: header.config_version,
            session,
            earlier: earlier_with(&header),
            holds: vec![false; table.len()],
            table,
            payload: payload.clone(),
            inherits: true,
            ends,
        };
        let root = Root { sequence: header.sequence, epoch: header.epoch, payload };
        let devices = table_members(&identity.table);
        tracing::info!(
            pool = %identity.uuid,
            epoch = identity.epoch,
            root = root.sequence,
            devices,
            missing = missing.len(),
            for_reading = opening == Opening::Reading,
            "pool opened"
        );
        Ok((Pool::assemble(identity, by_index, roots), root))
    }

    /// A pool without segments. `by_index` has an entry for each device in the table, `None` if it is
    /// missing.
    pub(crate) fn assemble(i: PoolIdentity, by_index: Vec<Option<Arc<dyn Device>>>, roots: Roots) -> Pool {
        assert_eq!(roots.ends.len(), i.table.len(), "each device has a place for its next root");
        assert!(i.data > 0 && i.epoch > 0, "zero is never valid");
        // A device that was removed has no zone to take.
        let zones_of = |d: &DeviceEntry| if d.state == DeviceUse::Gone { 0 } else { d.zones };
        let zone_counts: Vec<u32> = i.table.iter().map(zones_of).collect();
        let inner = Inner {
            uuid: i.uuid,
            shape: PoolShape::new(i.data, i.parity),
            wishes: RankedMutex::new(i.wishes),
            zone_blocks: i.zone_blocks,
            epoch: AtomicU32::new(i.epoch),
            epoch_of_roots: i.epoch_of_roots,
            may_be_older: i.may_be_older,
            newer_session: AtomicU32::new(0),
            old_copies: i.old_copies,
            returned: i.returned,
            opening: i.opening,
            uncovered_in_tail: AtomicUsize::new(0),
            devices: Devices::new(&i.table, by_index, usize::from(i.parity), i.opening == Opening::Reading),
            // The root's number moves from session to session, and with it the first zone to be written: wear
            // spreads.
            zones: RankedMutex::new(Zones::new(&zone_counts, roots.sequence)),
            writing: RankedRwLock::new(()),
            kept: RankedMutex::default(),
            segments: RankedRwLock::new(BTreeMap::new()),
            trimming: RankedMutex::new(()),
            roots: RankedMutex::new(roots),
            losses_recorded: AtomicUsize::new(0),
            last_root: AtomicU64::new(0),
            flushing: RankedMutex::new(()),
            retired_asked: AtomicU64::new(0),
            unflushed: RankedMutex::new(BTreeMap::new()),
            lost: RankedMutex::new(Vec::new()),
            damaged: RankedMutex::new(BTreeSet::new()),
            damage_seen: AtomicU64::new(0),
            checksums: Checksums::new(),
            codes: Codes::default(),
            rebuilt_blocks: AtomicU64::new(0),
            stripes_written: AtomicU64::new(0),
            payload_bytes: AtomicU64::new(0),
        };
        Pool { inner: Arc::new(inner) }
    }
}

const NO_BODY: Corrupt = Corrupt::new(112, "no device holds a root with a body that verifies");
const EPOCHS_SPENT: Corrupt = Corrupt::new(111, "root with the last possible epoch");

/// The devices that hold roots. A device without a root cannot be identified and is left out, but not one
/// with roots that this version cannot read.
fn read_labels(devices: Vec<Arc<dyn Device>>) -> Result<Vec<LabelledDevice>, DeviceSetError> {
    let found = find_roots(&devices);
    let mut labelled = Vec::with_capacity(devices.len());
    for (device, roots) in devices.iter().cloned().zip(found) {
        labelled.extend(LabelledDevice::read(device, roots)?);
    }
    if labelled.is_empty() { Err(without_roots(&devices)) } else { Ok(labelled) }
}

/// The refusal of devices without a root. It names a pool that has lost its roots, because
/// another pool on these devices would destroy its data.
fn without_roots(devices: &[Arc<dyn Device>]) -> DeviceSetError {
    let name = |device: &Arc<dyn Device>| device.info().name.clone();
    let found = devices.iter().find_map(|d| Some((name(d), Pool::find_stripes(d.as_ref())?)));
    match found {
        Some((device, pool)) => DeviceSetError::RootsLost { device, pool },
        None => DeviceSetError::NoPool { devices: devices.iter().map(name).collect() },
    }
}

/// The newest root of a device with a body that verifies.
pub(crate) fn whole_root(device: &dyn Device, roots: &DeviceRoots) -> Option<FoundRoot> {
    let verifies = |root: &&FoundRoot| match read_body(device, root) {
        Ok(_) => true,
        // A torn or rotten copy. Another device may have this root whole; if none has, the root before it
        // counts.
        Err(fault) => {
            let (name, sequence) = (&device.info().name, root.header.sequence);
            tracing::warn!(device = %name, root = sequence, error = %fault, "root refused");
            false
        }
    };
    roots.iter().find(verifies).cloned()
}

/// Refuses devices of two pools, and two copies of one device.
pub(crate) fn refuse_mixed(labelled: &[LabelledDevice]) -> Result<(), DeviceSetError> {
    let mut by_uuid: BTreeMap<Uuid, &LabelledDevice> = BTreeMap::new();
    let mut pool = None;
    for l in labelled {
        let header = &l.label().header;
        let expected = *pool.get_or_insert(header.pool);
        if header.pool != expected {
            return Err(DeviceSetError::Foreign { device: l.name(), found: header.pool, expected });
        }
        if let Some(other) = by_uuid.insert(header.device_uuid, l) {
            let index = header.device;
            return Err(DeviceSetError::Duplicate { index, first: other.name(), second: l.name() });
        }
    }
    Ok(())
}

/// The device with the newest root of which the body verifies, the root's device table and its payload.
pub(crate) fn newest_root(
    labelled: &[LabelledDevice],
) -> Result<(&LabelledDevice, Vec<DeviceEntry>, Vec<u8>), DeviceSetError> {
    let whole = labelled.iter().filter_map(|l| Some((l, l.whole.as_ref()?)));
    let (l, root) = whole.max_by_key(|(_, root)| age(&root.header)).ok_or(DeviceSetError::NoRoot(NO_BODY))?;
    let (table, payload) = read_body(l.device.as_ref(), root).map_err(DeviceSetError::NoRoot)?;
    Ok((l, table, payload))
}

/// Refuses devices that were written apart from the newest root.
pub(crate) fn refuse_diverged(
    labelled: &[LabelledDevice],
    newest: &LabelledDevice,
    table: &[DeviceEntry],
) -> Result<(), DeviceSetError> {
    let header = newest.whole_header();
    let is_apart = |l: &&LabelledDevice| match (&l.whole, l.entry(table)) {
        (Some(root), Some(entry)) => is_diverged(&root.header, header, entry),
        _ => false,
    };
    let (apart, together): (Vec<_>, Vec<_>) = labelled.iter().partition(is_apart);
    if apart.is_empty() {
        return Ok(());
    }
    let names = |part: Vec<&LabelledDevice>| part.into_iter().map(LabelledDevice::name).collect();
    Err(DeviceSetError::Diverged { one: names(together), other: names(apart) })
}

/// Index and uuid of the devices of a table that are not there, or not used, and were not removed.
pub(crate) fn missing_members(
    table: &[DeviceEntry],
    by_index: &[Option<Arc<dyn Device>>],
) -> Vec<(DeviceIndex, Uuid)> {
    let is_away = |entry: &DeviceEntry, device: &Option<_>| device.is_none() || entry.is_kept_offline;
    (0u16..)
        .zip(table.iter().zip(by_index))
        .filter(|(_, (entry, device))| entry.state != DeviceUse::Gone && is_away(entry, device))
        .map(|(index, (entry, _))| (DeviceIndex(index), entry.uuid))
        .collect()
}

/// The devices of a table that are there as old copies only, with their names.
pub(crate) fn old_copies(labelled: &[LabelledDevice], table: &[DeviceEntry]) -> Vec<(DeviceIndex, String)> {
    let old = labelled.iter().filter(|l| l.entry(table).is_some_and(|entry| l.is_old_copy(entry)));
    old.map(|l| (l.label().header.device, l.name())).collect()
}

/// Refuses a device that comes online if it is older than when it left.
fn refuse_old_copy(
    labelled: &[LabelledDevice],
    table: &[DeviceEntry],
    online: &[DeviceIndex],
) -> Result<(), MembershipError> {
    let old = old_copies(labelled, table).into_iter().find(|(index, _)| online.contains(index));
    old.map_or(Ok(()), |(_, device)| Err(MembershipError::OldCopy { device }))
}

/// Number of devices of a table that were not removed.
fn table_members(table: &[DeviceEntry]) -> usize {
    table.iter().filter(|entry| entry.state != DeviceUse::Gone).count()
}

/// Refuses to open with too few devices, and to write where the missing devices may hold a newer state.
/// Returns whether they may.
pub(crate) fn refuse_few(
    header: &RootHeader,
    table: &[DeviceEntry],
    missing: &[(DeviceIndex, Uuid)],
    old_copies: &[(DeviceIndex, String)],
    opening: Opening,
) -> Result<bool, DeviceSetError> {
    let parity = usize::from(header.parity);
    let members = table_members(table);
    let is_missing = |index: usize| missing.iter().any(|(m, _)| usize::from(m.0) == index);
    let in_use = || table.iter().enumerate().filter(|(_, entry)| entry.state == DeviceUse::Active);
    let absent: Vec<(DeviceIndex, Uuid)> = missing
        .iter()
        .filter(|(m, _)| in_use().any(|(index, _)| index == usize::from(m.0)))
        .copied()
        .collect();
    // Devices that the newest root has offline may lack all that it refers to.
    let all_in_use_are_missing = in_use().all(|(index, _)| is_missing(index));
    // The columns of a device that the newest root has offline may have been rebuilt on others. So it counts
    // only if a segment still needs it, and the log looks at each (`Pool::refuse_uncovered`). With m devices
    // or fewer no session goes on in this way: the root of any that does is on m + 1 devices.
    let is_beyond_parity = missing.len() > parity;
    let may_be_rebuilt = absent.len() <= parity && members - missing.len() > parity;
    if (is_beyond_parity && !may_be_rebuilt) || all_in_use_are_missing {
        let kept = |(_, entry): &(u16, &DeviceEntry)| entry.state != DeviceUse::Gone && entry.is_kept_offline;
        let offline = (0u16..).zip(table).filter(kept).map(|(index, _)| DeviceIndex(index)).collect();
        let old_copies = old_copies.to_vec();
        return Err(DeviceSetError::Missing {
            missing: missing.to_vec(),
            parity: header.parity,
            offline,
            old_copies,
        });
    }
    // A session goes on with n - m devices, or with all but m of those in use. The missing ones are as many,
    // and the newest root that is here had them in use: it may not be the newest.
    let others = if is_beyond_parity { in_use().count() } else { members };
    let may_be_older = !absent.is_empty() && absent.len() >= others.saturating_sub(parity);
    let unknown = header.unknown_write_features();
    match opening {
        Opening::Writing | Opening::Degraded if unknown != 0 => {
            Err(DeviceSetError::WriteFeatures { features: unknown })
        }
        Opening::Writing if may_be_older => {
            Err(DeviceSetError::MayBeOlder { missing: absent, old_copies: old_copies.to_vec() })
        }
        Opening::Reading if may_be_older => {
            tracing::warn!(
                name: "state_may_be_older",
                missing = absent.len(),
                "the missing devices may hold a newer state of the pool"
            );
            Ok(true)
        }
        _ => Ok(may_be_older),
    }
}

/// The place of the next root on each device: the zone that does not hold the device's newest whole root.
fn root_ends(labelled: &[LabelledDevice], table: &[DeviceEntry]) -> Vec<RootEnd> {
    // Missing devices get a place too. It is not used in this session.
    let mut ends = vec![RootEnd::away_from(ZoneIndex(1)); table.len()];
    for l in labelled.iter().filter(|l| l.entry(table).is_some()) {
        let keep = l.whole.as_ref().unwrap_or(l.label());
        if let Some(end) = ends.get_mut(usize::from(keep.header.device.0)) {
            *end = RootEnd::away_from(keep.zone);
        }
    }
    ends
}

/// The devices in index order, `None` where one is missing. A device that is not in the newest root's table
/// is left out, and so is an old copy.
pub(crate) fn assign_slots(
    labelled: Vec<LabelledDevice>,
    table: &[DeviceEntry],
    zone_bytes: u64,
) -> Result<Vec<Option<Arc<dyn Device>>>, DeviceSetError> {
    let mut by_index: Vec<Option<Arc<dyn Device>>> = vec![None; table.len()];
    for l in labelled {
        let index = usize::from(l.label().header.device.0);
        // The newest root decides which devices belong to the pool. A device that it does not list, or lists
        // under another uuid, was replaced.
        let Some((entry, place)) = l.entry(table).zip(by_index.get_mut(index)) else {
            tracing::warn!(
                device = %l.name(),
                index,
                "device left out: it has left the pool, or its addition was not completed; add it again to use it"
            );
            continue;
        };
        if l.is_old_copy(entry) {
            continue;
        }
        let needed_bytes = u64::from(entry.zones) * zone_bytes;
        let found_bytes = l.device.info().size_bytes;
        if found_bytes < needed_bytes {
            return Err(DeviceSetError::Shrunk { device: l.name(), found_bytes, needed_bytes });
        }
        assert!(place.is_none(), "two copies of one device were refused before");
        *place = Some(l.device);
    }
    Ok(by_index)
}
