//! Finding the roots on devices about which nothing is known yet.
//!
//! A device's zone size is in any of its roots. Zone 0 begins with one, unless the device was caught between resetting
//! zone 0 and writing it; then zone 1 does, and its place is found by trying the possible sizes, smallest first. Making a
//! pool clears the places that an older pool could have left a root in (`create`).

use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, DeviceOp, OpKind, run_batch};
use warpfire_format::Corrupt;
use warpfire_format::root::{DeviceEntry, RootHeader, ZONE_BLOCKS_MIN};
use warpfire_units::{BLOCK_BYTES, ZoneIndex};

use crate::device::geometry::ZONES_MIN;

const UNREADABLE: Corrupt = Corrupt::new(110, "root can not be read from its device");

/// A root header that verified, and where it lies. Its body has not been looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRoot {
    pub zone: ZoneIndex,
    pub offset_bytes: u64,
    pub header: RootHeader,
}

/// What `find_roots` found on one device: roots of one pool, newest first. Empty if there are none.
pub(crate) type DeviceRoots = Vec<FoundRoot>;

/// Zone sizes to try on a conventional device of this size, smallest first.
pub(crate) fn possible_zone_bytes(size_bytes: u64) -> impl Iterator<Item = u64> {
    let smallest = u64::from(ZONE_BLOCKS_MIN) * BLOCK_BYTES as u64;
    (smallest.ilog2()..u64::BITS)
        .map(|power| 1u64 << power)
        .take_while(move |zone| zone.checked_mul(ZONES_MIN).is_some_and(|all| all <= size_bytes))
}

/// Finds the roots on each device, all devices at once.
pub(crate) fn find_roots(devices: &[Arc<dyn Device>]) -> Vec<DeviceRoots> {
    let mut walks: Vec<RootWalk> = Vec::new();
    for (slot, device) in devices.iter().enumerate() {
        if let Some(first) = first_root(device.as_ref()) {
            let zone_bytes = u64::from(first.zone_blocks) * BLOCK_BYTES as u64;
            let walk = |zone: u32| RootWalk { slot, zone, zone_bytes, at: 0, found: Vec::new(), like: first };
            walks.extend([walk(0), walk(1)]);
        }
    }
    let mut active: Vec<&mut RootWalk> = walks.iter_mut().collect();
    let mut blocks: Vec<AlignedBuf> = active.iter().map(|_| AlignedBuf::zeroed(BLOCK_BYTES)).collect();
    while !active.is_empty() {
        let mut ops: Vec<DeviceOp<'_>> = active
            .iter()
            .zip(&mut blocks)
            .map(|(walk, block)| DeviceOp::new(walk.slot, OpKind::Read(walk.offset_bytes(), block)))
            .collect();
        run_batch(devices, &mut ops);
        let read: Vec<bool> = ops.iter().map(|op| op.result.is_ok()).collect();
        let mut next = Vec::new();
        for ((walk, block), read) in active.into_iter().zip(&blocks).zip(read) {
            if read && walk.take(block) {
                next.push(walk);
            }
        }
        active = next;
    }
    let mut roots: Vec<DeviceRoots> = vec![Vec::new(); devices.len()];
    for walk in walks {
        if let Some(of_device) = roots.get_mut(walk.slot) {
            of_device.extend(walk.found);
        }
    }
    for of_device in &mut roots {
        of_device.sort_by_key(|r| std::cmp::Reverse((r.header.epoch, r.header.sequence)));
    }
    roots
}

/// Reads a root's body from its device.
pub(crate) fn read_body(
    device: &dyn Device,
    root: &FoundRoot,
) -> Result<(Vec<DeviceEntry>, Vec<u8>), Corrupt> {
    let blocks = usize::try_from(root.header.record_blocks()).map_err(|_| UNREADABLE)?;
    let mut record = AlignedBuf::zeroed(blocks * BLOCK_BYTES);
    device.read(root.offset_bytes, &mut record).map_err(|_| UNREADABLE)?;
    let body = record.get(BLOCK_BYTES..).ok_or(UNREADABLE)?;
    let (table, payload) = root.header.decode_body(body)?;
    Ok((table, payload.to_vec()))
}

fn read_header(device: &dyn Device, offset_bytes: u64) -> Option<RootHeader> {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    device.read(offset_bytes, &mut block).ok()?;
    RootHeader::decode(&block).ok()
}

fn first_root(device: &dyn Device) -> Option<RootHeader> {
    let info = device.info();
    let second_zone = || {
        let sizes: Vec<u64> = match info.zones {
            Some(zones) => vec![zones.zone_bytes],
            None => possible_zone_bytes(info.size_bytes).collect(),
        };
        sizes.into_iter().find_map(|zone_bytes| {
            let header = read_header(device, zone_bytes)?;
            (u64::from(header.zone_blocks) * BLOCK_BYTES as u64 == zone_bytes).then_some(header)
        })
    };
    read_header(device, 0).or_else(second_zone)
}

/// A walk over the roots of one zone.
struct RootWalk {
    slot: usize,
    zone: u32,
    zone_bytes: u64,
    at: u64,
    found: Vec<FoundRoot>,
    like: RootHeader,
}

impl RootWalk {
    fn offset_bytes(&self) -> u64 {
        u64::from(self.zone) * self.zone_bytes + self.at
    }

    /// Looks at the block where the next root would begin, and says whether another may follow it.
    ///
    /// What lies past the newest root is left from before the zone was reset: nothing, or older roots.
    fn take(&mut self, block: &[u8]) -> bool {
        let Ok(header) = RootHeader::decode(block) else { return false };
        let same = |h: &RootHeader| (h.pool, h.device_uuid, h.zone_blocks, h.device);
        let newer = self.found.last().is_none_or(|last| last.header.sequence < header.sequence);
        if same(&header) != same(&self.like) || !newer {
            return false;
        }
        let offset_bytes = self.offset_bytes();
        self.at += header.record_blocks() * BLOCK_BYTES as u64;
        if self.at > self.zone_bytes {
            return false;
        }
        self.found.push(FoundRoot { zone: ZoneIndex(self.zone), offset_bytes, header });
        self.at < self.zone_bytes
    }
}
