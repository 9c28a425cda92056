//! Creation of a pool on blank devices.
//!
//! The first root makes a set of devices a pool. Creation empties the root zones of all devices, writes the
//! first root on each of them, and then clears the places where an older pool could have left a root. A crash
//! leaves the first root on none, some or all of the devices: no pool, or an empty one.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, DeviceError, Random, Timestamp};
use warpfire_format::Uuid;
use warpfire_format::root::{
    DEVICES_MAX, DeviceEntry, DeviceLife, DeviceUse, PoolLabel, RootPoint, RootWishes, ZONE_BLOCKS_MIN,
};
use warpfire_format::segment::SegmentKind;
use warpfire_units::{BLOCK_BYTES, COLUMNS_MAX, PARITY_MAX};

use crate::device::active_zones::{ACTIVE_ZONES_MIN, finish_old_zones, has_too_few};
use crate::device::geometry::{
    Geometry, SEGMENT_PAYLOAD_MIN_BYTES, ZONES_MIN, default_zone_bytes, device_bytes_min, shape,
};
use crate::error::{DeviceSetError, PoolError};
use crate::life::find_roots::{find_roots, possible_zone_bytes, unsupported_root};
use crate::life::open::{Opening, PoolIdentity};
use crate::life::roots::{RootEnd, Roots, random_session};
use crate::pool::Pool;

/// Shape of a new pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateOptions {
    /// Data columns of a bulk segment, k.
    pub data: u16,
    /// Parity columns, m: the number of devices that may be lost.
    pub parity: u8,
    /// Bytes in a zone, a power of two of at least 64 KiB, or 128 KiB where a segment may have one data
    /// column. `None` stands for 1/256 of the smallest device,
    /// between 1 and 256 MiB, or up to 1 GiB where a device would have more than 65,536 zones. Zoned devices
    /// have a zone size of their own.
    pub zone_bytes: Option<u64>,
    /// Whether to overwrite devices that belong to a pool.
    pub force: bool,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions { data: 1, parity: 0, zone_bytes: None, force: false }
    }
}

impl Pool {
    /// Makes a pool of all `devices`. Its first root has an empty payload. Durable on return.
    ///
    /// # Errors
    /// `Devices`, before anything is written, if the devices cannot become this pool or one is in use;
    /// `Device` or `Failed` if a device fails: then there is no pool.
    pub fn create(
        devices: Vec<Arc<dyn Device>>,
        options: &CreateOptions,
        random: &dyn Random,
        now: Timestamp,
    ) -> Result<Pool, PoolError> {
        let zone_bytes = choose_zone_bytes(&devices, options)?;
        let zone_blocks = verify_shape(&devices, options, zone_bytes)?;
        if !options.force {
            refuse_pools(&devices)?;
        }
        let session = random_session(random);
        let entry = |d: &Arc<dyn Device>| DeviceEntry {
            uuid: random_uuid(random),
            zones: u32::try_from(d.info().size_bytes / zone_bytes).unwrap_or(u32::MAX),
            state: DeviceUse::Active,
            is_leaving: false,
            is_kept_offline: false,
            is_spare: false,
            joined: 1,
            seen: RootPoint { epoch: 1, session, sequence: 1 },
            life: DeviceLife::default(),
        };
        let identity = PoolIdentity {
            uuid: random_uuid(random),
            data: options.data,
            parity: options.parity,
            wishes: RootWishes::NONE,
            zone_blocks,
            epoch: 1,
            epoch_of_roots: 0,
            may_be_older: false,
            opening: Opening::Writing,
            old_copies: Vec::new(),
            returned: BTreeSet::new(),
            table: devices.iter().map(entry).collect(),
        };
        // Roots of an older pool go first, on all devices: otherwise a crash could leave some of them beside
        // new ones.
        for device in &devices {
            empty_root_zones(device.as_ref(), zone_bytes)?;
            finish_old_zones(device.as_ref());
        }
        let roots = Roots {
            sequence: 0,
            made_seconds: now.seconds,
            label: PoolLabel::EMPTY,
            config_version: 1,
            session,
            earlier: Vec::new(),
            table: identity.table.clone(),
            // The first root goes to all devices, or there is no pool.
            holds: vec![true; devices.len()],
            payload: Vec::new(),
            inherits: false,
            ends: vec![RootEnd::EMPTY; devices.len()],
        };
        let pool = Pool::assemble(identity, devices.iter().cloned().map(Some).collect(), roots);
        pool.label_all()?;
        // The flush makes the cleared places durable; the roots are durable already.
        for device in &devices {
            clear_old_root_places(device.as_ref())?;
            device.flush()?;
        }
        tracing::info!(pool = %pool.uuid(), devices = devices.len(), zone_bytes, "pool created");
        Ok(pool)
    }

    /// Writes the first root on every device. It is the device's label from then on.
    fn label_all(&self) -> Result<(), PoolError> {
        let inner = &self.inner;
        let mut roots = inner.roots.lock();
        let all = inner.devices.all_writable();
        // Later roots go to some devices only. The first goes to all: a device without any root counts as
        // missing.
        let copies = inner.write_copies(&mut roots, &[], false, &all, all.len())?;
        if copies < all.len() {
            return Err(inner.failed());
        }
        let next = RootEnd::away_from(warpfire_units::ZoneIndex(0));
        roots.ends.fill(next);
        Ok(())
    }
}

/// Why a device is refused that allows too few active zones.
pub(crate) fn too_few(device: &dyn Device) -> String {
    let (name, most) = (&device.info().name, device.info().zones.map_or(0, |zones| zones.active_zones_max));
    format!("{name} allows {most} zones that are written and not full; a pool needs {ACTIVE_ZONES_MIN}")
}

fn impossible(reason: String) -> DeviceSetError {
    DeviceSetError::Impossible(reason)
}

fn choose_zone_bytes(devices: &[Arc<dyn Device>], o: &CreateOptions) -> Result<u64, DeviceSetError> {
    let mut own: Vec<u64> = devices.iter().filter_map(|d| d.info().zones.map(|z| z.zone_bytes)).collect();
    own.sort_unstable();
    own.dedup();
    match (own.as_slice(), o.zone_bytes) {
        ([], None) => {
            let sizes = || devices.iter().map(|d| d.info().size_bytes);
            Ok(default_zone_bytes(sizes().min().unwrap_or(0), sizes().max().unwrap_or(0)))
        }
        ([], Some(wanted)) if wanted.is_power_of_two() => Ok(wanted),
        ([], Some(wanted)) => {
            Err(impossible(format!("the zone size, {wanted} bytes, is not a power of two")))
        }
        ([zone], None) => Ok(*zone),
        ([zone], Some(wanted)) if wanted == *zone => Ok(*zone),
        ([zone], Some(wanted)) => {
            Err(impossible(format!("the devices have zones of {zone} bytes, not {wanted}")))
        }
        _ => Err(impossible(format!("the devices have zones of different sizes: {own:?}"))),
    }
}

/// Checks numbers and sizes. Returns the blocks in a zone.
fn verify_shape(
    devices: &[Arc<dyn Device>],
    o: &CreateOptions,
    zone_bytes: u64,
) -> Result<u32, DeviceSetError> {
    let width = usize::from(o.data) + usize::from(o.parity);
    if o.data == 0 || usize::from(o.parity) > PARITY_MAX || width > COLUMNS_MAX {
        return Err(impossible(format!(
            "{}+{}: at least 1 data column, at most {PARITY_MAX} parity and {COLUMNS_MAX} together",
            o.data, o.parity
        )));
    }
    if devices.len() < width || devices.len() > DEVICES_MAX {
        let have = devices.len();
        return Err(impossible(format!("{have} devices; a pool has from {width} to {DEVICES_MAX}")));
    }
    let block = BLOCK_BYTES as u64;
    let zone_blocks = u32::try_from(zone_bytes / block).ok();
    let zone_blocks = zone_blocks.filter(|b| *b >= ZONE_BLOCKS_MIN && zone_bytes.is_multiple_of(block));
    let Some(zone_blocks) = zone_blocks else {
        let (least, most) = (u64::from(ZONE_BLOCKS_MIN) * block, u64::from(u32::MAX) * block);
        return Err(impossible(format!(
            "a zone has from {least} to {most} bytes in blocks of {block}, and not {zone_bytes}"
        )));
    };
    // Segments become narrower as devices are lost.
    let live = devices.len() - usize::from(o.parity)..=devices.len();
    let shortest = live.map(|live| {
        let (data, parity) = shape(SegmentKind::Bulk, o.data, o.parity, live);
        Geometry::new(SegmentKind::Bulk, data, parity, zone_blocks).segment_payload_bytes
    });
    if shortest.min().is_some_and(|bytes| bytes < SEGMENT_PAYLOAD_MIN_BYTES) {
        return Err(impossible(format!(
            "a zone of {zone_bytes} bytes is too small for one data column: make it {}",
            2 * zone_bytes
        )));
    }
    for info in devices.iter().map(|d| d.info()) {
        let least_bytes = device_bytes_min(Some(zone_bytes));
        if info.size_bytes < least_bytes {
            return Err(impossible(format!(
                "{} has {} bytes; it needs at least {least_bytes}, {ZONES_MIN} zones of {zone_bytes} bytes",
                info.name, info.size_bytes
            )));
        }
    }
    if let Some(device) = devices.iter().find(|device| has_too_few(device.as_ref())) {
        return Err(impossible(too_few(device.as_ref())));
    }
    assert!(zone_blocks >= ZONE_BLOCKS_MIN, "a root fits into a zone");
    Ok(zone_blocks)
}

fn refuse_pools(devices: &[Arc<dyn Device>]) -> Result<(), DeviceSetError> {
    for (device, roots) in devices.iter().zip(find_roots(devices)) {
        if let Some(root) = roots.first() {
            let device = device.info().name.clone();
            return Err(DeviceSetError::InUse { device, pool: root.header.pool });
        }
        if let Some(found) = unsupported_root(device.as_ref()) {
            return Err(DeviceSetError::Unsupported { device: device.info().name.clone(), found });
        }
    }
    Ok(())
}

pub(crate) fn random_uuid(random: &dyn Random) -> Uuid {
    loop {
        let raw = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
        if let Some(uuid) = Uuid::new(raw) {
            return uuid;
        }
    }
}

pub(crate) fn empty_root_zones(device: &dyn Device, zone_bytes: u64) -> Result<(), PoolError> {
    for at in [0, zone_bytes] {
        match device.reset_zone(at, zone_bytes) {
            // A discard is advice: `clear_old_root_places` clears what counts.
            Err(DeviceError::Io { .. }) if device.info().zones.is_none() => {}
            other => other?,
        }
    }
    Ok(())
}

/// Clears, on a device that may keep old bytes after a reset, each place where zone 1 of an older pool may
/// have begun. An opening looks at them if it finds no root at the front, and would take the older pool for
/// this one.
pub(crate) fn clear_old_root_places(device: &dyn Device) -> Result<(), PoolError> {
    if device.info().zones.is_some() {
        return Ok(());
    }
    let zeroes = AlignedBuf::zeroed(BLOCK_BYTES);
    let places = || possible_zone_bytes(device.info().size_bytes);
    // Some of them lie in zones that segments take, and are not in use there: neither before, as after a call
    // that was broken off, nor after this. A discard is advice, and bytes below the zeroes do not come back.
    let discard = || places().for_each(|place| _ = device.discard(place, BLOCK_BYTES as u64));
    discard();
    for place in places() {
        device.write(place, &zeroes)?;
    }
    device.flush()?;
    discard();
    Ok(())
}
