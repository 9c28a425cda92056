//! The search: from devices of which nothing is known to a pool that can be opened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, DeviceError};
use warpfire_format::Uuid;
use warpfire_format::log_state::LogState;
use warpfire_format::root::DeviceUse;
use warpfire_format::root_copy::RootCopy;
use warpfire_format::segment::{SegmentDescriptor, SegmentKind};
use warpfire_format::state_frame::{SavedState, StateFrame};
use warpfire_format::stripe::StripeIdentity;
use warpfire_pool::{DeviceSetError, Pool, ScannedDevice};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId};

use crate::identify::{Columns, has_same_columns, identify};
use crate::scan::{
    FoundColumn, Scan, ScannedSegments, count_stripes, goes_on_from, walk_mirror, zone_bytes_of,
};
use crate::with_root::{WithRoot, record};

/// Why no pool was found.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoverError {
    /// The devices have roots that contradict each other, or that this version cannot read.
    #[error(transparent)]
    Roots(#[from] DeviceSetError),
    /// No device holds a root or a copy of one.
    #[error("no root of a pool, and no copy of one, is on {}", devices.join(", "))]
    NothingFound {
        /// The names of the devices.
        devices: Vec<String>,
    },
    /// The devices hold data of several pools.
    #[error("the devices hold data of {} pools: {}", pools.len(), texts(pools))]
    Several {
        /// The pools.
        pools: Vec<Uuid>,
    },
    /// Parts of the pool were each written without the others.
    #[error("parts of pool {pool} were written separately")]
    Apart {
        /// The pool.
        pool: Uuid,
    },
    /// A root could not be written.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn texts(pools: &[Uuid]) -> String {
    pools.iter().map(Uuid::to_string).collect::<Vec<_>>().join(", ")
}

/// Where the root of a found pool was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RootSource {
    /// In the root zones of a device.
    Root,
    /// In the commit log.
    Copy,
}

/// A device of the list.
#[derive(Clone)]
pub struct FoundDevice {
    device: Arc<dyn Device>,
    /// Its place in the pool's table of devices; `None` if it is no device of the pool, as far as is known.
    pub index: Option<DeviceIndex>,
    /// Whether it holds roots of its own.
    pub has_root: bool,
}

/// A pool as of one root.
#[derive(Clone)]
pub struct FoundPool {
    root: RootCopy,
    /// Where the root was.
    pub source: RootSource,
    /// The devices of the list, in its order.
    pub devices: Vec<FoundDevice>,
}

/// Finds the pool on `devices`: as of the newest root that is left, or as of the newest copy of a root in the
/// commit log if that is newer. `wanted` chooses among several pools.
///
/// An older copy never takes the place of the newest one: it would show an older state without a word.
///
/// # Errors
/// See [`RecoverError`].
pub fn find_pool(devices: &[Arc<dyn Device>], wanted: Option<Uuid>) -> Result<FoundPool, RecoverError> {
    let mut labels = devices
        .iter()
        .map(|device| Pool::scan_device(device.clone()))
        .collect::<Result<Vec<Option<ScannedDevice>>, _>>()?;
    let is_wanted = |pool: &Uuid| wanted.is_none_or(|wanted| wanted == *pool);
    let named: BTreeSet<Uuid> =
        labels.iter().flatten().map(ScannedDevice::pool).filter(|pool| is_wanted(pool)).collect();
    if named.len() > 1 {
        return Err(RecoverError::Several { pools: named.into_iter().collect() });
    }
    let wanted = wanted.or_else(|| named.first().copied());
    // Devices of other pools keep their roots, whatever else is on them.
    let mut strangers = BTreeSet::new();
    for (slot, label) in labels.iter_mut().enumerate() {
        if label.take_if(|label| Some(label.pool()) != wanted).is_some() {
            strangers.insert(slot);
        }
    }
    let of_pool: Vec<ScannedDevice> = labels.iter().flatten().cloned().collect();
    let root = if of_pool.is_empty() { None } else { Pool::newest_root(&of_pool)? };
    let mut scan = Scan::new(devices);
    let uuid = match &root {
        Some(root) => {
            scan.look_at_zones(zone_bytes_of(root.header.zone_blocks));
            root.header.pool
        }
        None => {
            scan.run(wanted);
            pool_with_copies(&scan, devices, wanted)?
        }
    };
    let scanned = scan.pools.remove(&uuid).unwrap_or_default();
    strangers.extend(scan.pools.values().flat_map(|pool| &pool.found).map(|column| column.slot));
    let goes_on = |a: &RootCopy, b: &RootCopy| {
        let (older, newer) = if age(a) < age(b) { (a, b) } else { (b, a) };
        goes_on_from(newer, older)
    };
    let both = root.as_ref().zip(scanned.copy.as_ref());
    if scanned.is_apart || both.is_some_and(|(root, copy)| !goes_on(root, copy)) {
        return Err(RecoverError::Apart { pool: uuid });
    }
    // A copy that is newer than every root: the roots that followed it are lost.
    let copy = scanned.copy.clone().filter(|copy| root.as_ref().is_none_or(|root| age(root) < age(copy)));
    let (source, root) = match (copy, root) {
        (Some(copy), _) => (RootSource::Copy, copy),
        (None, Some(root)) => (RootSource::Root, root),
        (None, None) => unreachable!("a pool without roots was found by its copy"),
    };
    let found = ScannedDevices { devices, labels: &labels, scanned: &scanned, strangers: &strangers };
    Ok(place_devices(&found, root, source))
}

/// Later states have a higher one.
fn age(root: &RootCopy) -> (u32, u64) {
    let origin = root.header.origin().last;
    (origin.epoch, origin.sequence)
}

/// The pool of which copies of roots were found.
fn pool_with_copies(
    scan: &Scan<'_>,
    devices: &[Arc<dyn Device>],
    wanted: Option<Uuid>,
) -> Result<Uuid, RecoverError> {
    let is_wanted = |uuid: &Uuid| wanted.is_none_or(|wanted| wanted == *uuid);
    let with_copies = scan.pools.iter().filter(|(uuid, pool)| is_wanted(uuid) && pool.copy.is_some());
    let pools: Vec<Uuid> = with_copies.map(|(uuid, _)| *uuid).collect();
    match pools[..] {
        [one] => Ok(one),
        [] => {
            let devices = devices.iter().map(|device| device.info().name.clone()).collect();
            Err(RecoverError::NothingFound { devices })
        }
        _ => Err(RecoverError::Several { pools }),
    }
}

/// The devices, and the findings of the scan.
struct ScannedDevices<'a> {
    devices: &'a [Arc<dyn Device>],
    /// By device: its roots, if it is of the pool and has some.
    labels: &'a [Option<ScannedDevice>],
    scanned: &'a ScannedSegments,
    /// Devices with columns of other pools.
    strangers: &'a BTreeSet<usize>,
}

/// Finds out which device is which in the table of a root.
fn place_devices(found: &ScannedDevices<'_>, mut root: RootCopy, source: RootSource) -> FoundPool {
    let ScannedDevices { devices, scanned, .. } = *found;
    // The label of another device at this index says nothing of this pool, and neither does that of an old
    // copy.
    let is_current = |label: &&ScannedDevice| label.is_current(&root.table);
    let labels: Vec<Option<&ScannedDevice>> =
        found.labels.iter().map(|label| label.as_ref().filter(is_current)).collect();
    let zone_bytes = zone_bytes_of(root.header.zone_blocks);
    let (state, needed) = note_state(devices, scanned, &root);
    let labelled: BTreeSet<DeviceIndex> = labels.iter().flatten().map(|label| label.index()).collect();
    let indexes = (0..root.header.device_count).map(DeviceIndex);
    let wanted: BTreeSet<DeviceIndex> = indexes.filter(|index| !labelled.contains(index)).collect();
    // Where all newest roots are lost, older ones are no proof of an old copy: the columns decide.
    let has_older_root = |slot: usize| {
        let label = found.labels[slot].as_ref().filter(|_| source == RootSource::Copy);
        label.filter(|label| label.is_listed(&root.table)).map(ScannedDevice::index)
    };
    let slots: BTreeSet<usize> = (0..devices.len())
        .filter(|slot| {
            found.labels[*slot].is_none() || labels[*slot].is_none() && has_older_root(*slot).is_some()
        })
        .collect();
    let entry = |index: DeviceIndex| &root.table[usize::from(index.0)];
    let fits = |slot: usize, index: DeviceIndex| {
        devices[slot].info().size_bytes >= u64::from(entry(index).zones) * zone_bytes
    };
    let is_present = |index: &DeviceIndex| {
        let entry = entry(*index);
        entry.state == DeviceUse::Active && !entry.is_kept_offline
    };
    let present = wanted.iter().map(|index| (*index, is_present(index))).collect();
    let columns = (&scanned.found[..], zone_bytes);
    let mut known = identify(&slots, &present, (&state, &scanned.columns), columns, &mut |column| {
        count_stripes(&*devices[column.slot], column)
    });
    known.retain(|slot, index| fits(*slot, *index) && has_older_root(*slot).is_none_or(|own| own == *index));
    let recognized: BTreeSet<usize> = known.keys().copied().collect();
    // Devices that were removed from the pool keep their columns.
    known.retain(|_, index| entry(*index).state != DeviceUse::Gone);

    // The others hold no column that the state needs, or lack what a power cut kept from them. They differ in
    // nothing, so any of them may be any device that is left. A second copy of a device, or one whose columns
    // all moved to the same places of another, is taken only if too many are missing without it.
    let is_member = |slot: &usize| {
        let may_be_any = found.labels[*slot].is_none() && !found.strangers.contains(slot);
        may_be_any && !recognized.contains(slot)
    };
    let (twins, others): (Vec<usize>, Vec<usize>) = slots
        .into_iter()
        .filter(is_member)
        .partition(|slot| recognized.iter().any(|other| has_same_columns(*slot, *other, &scanned.found)));
    for (slot, is_twin) in
        others.into_iter().map(|slot| (slot, false)).chain(twins.into_iter().map(|slot| (slot, true)))
    {
        let taken: BTreeSet<DeviceIndex> = known.values().copied().collect();
        let left: Vec<DeviceIndex> = wanted
            .iter()
            .copied()
            .filter(|index| !taken.contains(index) && entry(*index).state != DeviceUse::Gone)
            .collect();
        if is_twin && left.len() <= usize::from(root.header.parity) {
            continue;
        }
        // First those that are in use and need nothing.
        let is_away = |index: DeviceIndex| entry(index).state != DeviceUse::Active;
        let fitting = left.into_iter().filter(|index| fits(slot, *index));
        let index = fitting.min_by_key(|index| (needed.contains(index), is_away(*index)));
        known.extend(index.map(|index| (slot, index)));
    }
    // A copy does not know yet that a device came back, and a device that is kept offline is not read.
    if source == RootSource::Copy {
        known.values().for_each(|index| root.table[usize::from(index.0)].is_kept_offline = false);
    }
    let found = |(slot, device): (usize, &Arc<dyn Device>)| FoundDevice {
        device: device.clone(),
        index: labels[slot].map(|label| label.index()).or_else(|| known.get(&slot).copied()),
        // A device with older roots gets the newest one too.
        has_root: labels[slot].is_some() && source == RootSource::Root,
    };
    FoundPool { devices: devices.iter().enumerate().map(found).collect(), root, source }
}

/// The columns of the state that a root leads to, and the devices with some of those that were written.
fn note_state(
    devices: &[Arc<dyn Device>],
    scanned: &ScannedSegments,
    root: &RootCopy,
) -> (Columns, BTreeSet<DeviceIndex>) {
    let mut columns = Columns::default();
    let Ok((state, tail)) = LogState::decode(&root.payload) else { return (columns, BTreeSet::new()) };
    let mut frames = Vec::new();
    for descriptor in &state.state_chain {
        let stripes = read_state_segment(devices, &scanned.found, descriptor, root.header.pool);
        stripes.range(..descriptor.stripe_count()).for_each(|(_, payload)| frames.extend(payload));
    }
    frames.extend_from_slice(tail);
    let mut saved = SavedState::default();
    if saved.apply(&frames, state.next_segment).is_err() {
        // A hole in the state log: what can be decoded is still evidence.
        let mut rest = &frames[..];
        while let Ok((frame, after)) = StateFrame::decode(rest) {
            if let StateFrame::Segment(descriptor) = frame {
                columns.note(&descriptor);
            }
            rest = after;
        }
    }
    let descriptors = saved.segments.values().chain(&state.chain).chain(&state.state_chain);
    descriptors.for_each(|descriptor| columns.note(descriptor));
    // The log since the root opens segments and moves columns.
    columns.join(&scanned.columns, |id| id >= state.next_segment || saved.segments.contains_key(&id));
    let is_written = |id: SegmentId| scanned.found.iter().any(|column| column.segment == id);
    let needed = columns.devices_of(is_written);
    (columns, needed)
}

/// The payloads of a segment's stripes, from any device that has them.
fn read_state_segment(
    devices: &[Arc<dyn Device>],
    found: &[FoundColumn],
    descriptor: &SegmentDescriptor,
    pool: Uuid,
) -> BTreeMap<u32, Vec<u8>> {
    let first = StripeIdentity {
        pool,
        segment: descriptor.id,
        epoch: descriptor.epoch,
        stripe: 0,
        column: 0,
        kind: SegmentKind::Mirror,
        data: descriptor.data,
        parity: descriptor.parity,
    };
    let mut stripes = BTreeMap::new();
    let is_it = |c: &&FoundColumn| {
        c.kind == SegmentKind::Mirror && c.segment == descriptor.id && c.epoch == descriptor.epoch
    };
    for column in found.iter().filter(is_it) {
        walk_mirror(&*devices[column.slot], column.offset_bytes, first, &mut |stripe, payload| {
            stripes.entry(stripe).or_insert_with(|| payload.to_vec());
        });
    }
    stripes
}

impl FoundPool {
    /// The pool.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.root.header.pool
    }

    /// Its name.
    #[must_use]
    pub fn label(&self) -> &str {
        self.root.header.label.as_str()
    }

    /// Number of the root, as the sequence of roots counts.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.root.header.sequence
    }

    /// The devices of the pool that are not in the list, or were not recognized.
    #[must_use]
    pub fn missing(&self) -> Vec<(DeviceIndex, Uuid)> {
        let is_found = |index| self.devices.iter().any(|found| found.index == Some(DeviceIndex(index)));
        let members = (0u16..).zip(&self.root.table).filter(|(_, entry)| entry.state != DeviceUse::Gone);
        let missing = members.filter(|(index, _)| !is_found(*index));
        missing.map(|(index, entry)| (DeviceIndex(index), entry.uuid)).collect()
    }

    /// The devices that have lost their roots and were recognized, with the root of each.
    fn without_root(&self) -> impl Iterator<Item = (&FoundDevice, AlignedBuf)> {
        let lost = self.devices.iter().filter(|found| !found.has_root);
        lost.filter_map(|found| Some((found, found.index?))).map(|(found, index)| {
            let uuid = self.root.table[usize::from(index.0)].uuid;
            (found, record(&self.root, index, uuid))
        })
    }

    /// The devices of the pool, each with a root: those without one seem to have it. To open for reading
    /// only.
    #[must_use]
    pub fn devices_with_roots(&self) -> Vec<Arc<dyn Device>> {
        let own = self.devices.iter().filter(|found| found.has_root).map(|found| found.device.clone());
        let zone_blocks = self.root.header.zone_blocks;
        let with = self.without_root().map(|(found, record)| -> Arc<dyn Device> {
            Arc::new(WithRoot::new(found.device.clone(), record, zone_blocks))
        });
        own.chain(with).collect()
    }

    /// Writes the root on each device that has lost its own and was recognized. Durable on return. Returns
    /// their number. The caller has opened the pool for reading before.
    ///
    /// # Errors
    /// Of a device that takes no writes. Those before it have their roots.
    pub fn rebuild_roots(&self) -> Result<usize, RecoverError> {
        let zone_bytes = zone_bytes_of(self.root.header.zone_blocks);
        let mut written = 0;
        for (found, record) in self.without_root() {
            let device = &*found.device;
            if device.info().zones.is_some() {
                device.reset_zone(0, zone_bytes)?;
                device.reset_zone(zone_bytes, zone_bytes)?;
            } else {
                // Remains of older roots there could be found later.
                device.write(zone_bytes, &AlignedBuf::zeroed(BLOCK_BYTES))?;
                device.write(record.len() as u64, &AlignedBuf::zeroed(BLOCK_BYTES))?;
            }
            device.write(0, &record)?;
            device.flush()?;
            written += 1;
        }
        tracing::info!(
            name: "roots_rebuilt",
            pool = %self.uuid(),
            root = self.sequence(),
            devices = written,
            "the roots of a pool were written again"
        );
        Ok(written)
    }
}
