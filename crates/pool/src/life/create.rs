//! Making a pool out of blank devices.

use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, Random, Timestamp};
use warpfire_format::Uuid;
use warpfire_format::root::{DEVICES_MAX, DeviceEntry, ZONE_BLOCKS_MIN};
use warpfire_units::{BLOCK_BYTES, COLUMNS_MAX, PARITY_MAX};

use crate::device::geometry::{ZONES_MIN, default_zone_bytes, device_bytes_min};
use crate::error::{DeviceSetError, PoolError};
use crate::life::find_roots::{find_roots, possible_zone_bytes};
use crate::life::open::PoolIdentity;
use crate::life::roots::{RootEnd, Roots};
use crate::pool::Pool;

/// What a new pool is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateOptions {
    /// Data columns of a bulk segment, k.
    pub data: u16,
    /// Parity columns, m: devices that may be lost.
    pub parity: u8,
    /// Bytes in a zone, a power of two of at least 64 KiB; `None` for 1/256 of the smallest device, between 1 and
    /// 256 MiB. Zoned devices decide it themselves.
    pub zone_bytes: Option<u64>,
    /// Whether devices that hold a pool are overwritten.
    pub force: bool,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions { data: 1, parity: 0, zone_bytes: None, force: false }
    }
}

impl Pool {
    /// Makes a pool over all of `devices`, whose first root has an empty payload. Durable on return.
    ///
    /// # Errors
    /// `Devices` if the pool can not be made of them or one is in use, before anything is written; `Device` or
    /// `Failed` if one fails: then there is no pool.
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
        let entry = |d: &Arc<dyn Device>| DeviceEntry {
            uuid: random_uuid(random),
            zones: u32::try_from(d.info().size_bytes / zone_bytes).unwrap_or(u32::MAX),
        };
        let identity = PoolIdentity {
            uuid: random_uuid(random),
            data: options.data,
            parity: options.parity,
            zone_blocks,
            epoch: 1,
            table: devices.iter().map(entry).collect(),
        };
        for device in &devices {
            empty_root_zones(device.as_ref(), zone_bytes)?;
        }
        let roots = Roots {
            sequence: 0,
            made_seconds: now.seconds,
            inherited: None,
            ends: vec![RootEnd::EMPTY; devices.len()],
        };
        let pool = Pool::assemble(identity, devices.iter().cloned().map(Some).collect(), roots);
        pool.label_all()?;
        for device in &devices {
            clear_old_root_places(device.as_ref(), zone_bytes)?;
            device.flush()?;
        }
        Ok(pool)
    }

    /// Writes the first root on every device, so that each can be told from then on.
    fn label_all(&self) -> Result<(), PoolError> {
        let inner = &self.inner;
        let mut roots = inner.roots.lock();
        let all = inner.devices.all_writable();
        let copies = inner.write_copies(&mut roots, &[], &all, all.len())?;
        if copies < all.len() {
            return Err(inner.failed());
        }
        let next = RootEnd::away_from(warpfire_units::ZoneIndex(0));
        roots.ends.fill(next);
        Ok(())
    }
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
            let smallest = devices.iter().map(|d| d.info().size_bytes).min();
            Ok(default_zone_bytes(smallest.unwrap_or(0)))
        }
        ([], Some(wanted)) if wanted.is_power_of_two() => Ok(wanted),
        ([], Some(wanted)) => Err(impossible(format!("a zone of {wanted} bytes is not a power of two"))),
        ([zone], None) => Ok(*zone),
        ([zone], Some(wanted)) if wanted == *zone => Ok(*zone),
        ([zone], Some(wanted)) => {
            Err(impossible(format!("the devices have zones of {zone} bytes, not {wanted}")))
        }
        _ => Err(impossible(format!("the devices have zones of different sizes: {own:?}"))),
    }
}

/// Checks counts and sizes, and returns the blocks in a zone.
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
        return Err(impossible(format!("{have} devices given; from {width} to {DEVICES_MAX} make a pool")));
    }
    let zone_blocks = u32::try_from(zone_bytes / BLOCK_BYTES as u64).ok();
    let zone_blocks =
        zone_blocks.filter(|b| *b >= ZONE_BLOCKS_MIN && zone_bytes.is_multiple_of(BLOCK_BYTES as u64));
    let Some(zone_blocks) = zone_blocks else {
        return Err(impossible(format!("a zone of {zone_bytes} bytes is too small or too large")));
    };
    for info in devices.iter().map(|d| d.info()) {
        let least_bytes = device_bytes_min(Some(zone_bytes));
        if info.size_bytes < least_bytes {
            return Err(impossible(format!(
                "{} has {} bytes; {least_bytes} are the least, {ZONES_MIN} zones of {zone_bytes} bytes",
                info.name, info.size_bytes
            )));
        }
    }
    Ok(zone_blocks)
}

fn refuse_pools(devices: &[Arc<dyn Device>]) -> Result<(), DeviceSetError> {
    for (device, roots) in devices.iter().zip(find_roots(devices)) {
        if let Some(root) = roots.first() {
            let device = device.info().name.clone();
            return Err(DeviceSetError::InUse { device, pool: root.header.pool });
        }
    }
    Ok(())
}

fn random_uuid(random: &dyn Random) -> Uuid {
    loop {
        let raw = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
        if let Some(uuid) = Uuid::new(raw) {
            return uuid;
        }
    }
}

fn empty_root_zones(device: &dyn Device, zone_bytes: u64) -> Result<(), PoolError> {
    device.reset_zone(0, zone_bytes)?;
    Ok(device.reset_zone(zone_bytes, zone_bytes)?)
}

/// On devices whose resets may leave old bytes: clears each place in the root zones, after the first root, where
/// an open would look for the start of zone 1. Without it a pool that was here before could be taken for this one.
fn clear_old_root_places(device: &dyn Device, zone_bytes: u64) -> Result<(), PoolError> {
    if device.info().zones.is_some() {
        return Ok(());
    }
    let zeroes = AlignedBuf::zeroed(BLOCK_BYTES);
    for place in possible_zone_bytes(device.info().size_bytes).take_while(|place| *place <= zone_bytes) {
        device.write(place, &zeroes)?;
    }
    Ok(())
}
