//! The search for roots on devices of which nothing is known yet.
//!
//! Each root contains the device's zone size. Zone 0 begins with a root, unless a crash came between the
//! reset of zone 0 and the next write to it. Then zone 1 begins with a root; the search tries the possible
//! zone sizes, smallest first. Creation clears the places in which an older pool could have left a root
//! (`create`).
//!
//! All bytes here are hostile: a device may hold anything. A header is used only after it decoded, which
//! includes its checksum.

use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, DeviceOp, OpKind, run_batch};
use warpfire_format::Corrupt;
use warpfire_format::root::{DeviceEntry, RootHeader, Unsupported, ZONE_BLOCKS_MIN, unsupported};
use warpfire_units::{BLOCK_BYTES, ZoneIndex};

use crate::device::geometry::ZONES_MIN;

const UNREADABLE: Corrupt = Corrupt::new(110, "root cannot be read from its device");

/// A root header that verified, and its place. Its body has not been read.
#[derive(Clone, Debug)]
pub(crate) struct FoundRoot {
    pub zone: ZoneIndex,
    pub offset_bytes: u64,
    pub header: RootHeader,
}

/// The roots on one device, all of one pool, newest first. Empty if there are none.
pub(crate) type DeviceRoots = Vec<FoundRoot>;

/// Zone sizes, in bytes, that a conventional device of this size may have, smallest first.
pub fn possible_zone_bytes(size_bytes: u64) -> impl Iterator<Item = u64> {
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
            let walk = |zone, like| RootWalk { slot, zone, zone_bytes, at: 0, found: Vec::new(), like };
            walks.extend([walk(0, first.clone()), walk(1, first)]);
        }
    }
    // One block of each walk in each round: the devices work at the same time, so opening many devices takes
    // hardly longer than opening one.
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
            // A root that cannot be read ends its walk. Older roots of the zone were found; newer ones may be
            // lost.
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

/// Reads and verifies a root's body: the device table and the payload.
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

fn read_block(device: &dyn Device, offset_bytes: u64) -> Option<AlignedBuf> {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    device.read(offset_bytes, &mut block).ok()?;
    Some(block)
}

/// Where zone 1 of a device may begin.
fn second_zones(device: &dyn Device) -> Vec<u64> {
    let info = device.info();
    match info.zones {
        Some(zones) => vec![zones.zone_bytes],
        None => possible_zone_bytes(info.size_bytes).collect(),
    }
}

/// The header of any root on the device: the first in zone 0, or else the first in zone 1.
fn first_root(device: &dyn Device) -> Option<RootHeader> {
    let header_at = |offset_bytes| RootHeader::decode(&read_block(device, offset_bytes)?).ok();
    // A header in the right place with another zone size is payload of something else.
    let second_zone = || {
        second_zones(device).into_iter().find_map(|zone_bytes| {
            let header = header_at(zone_bytes)?;
            (u64::from(header.zone_blocks) * BLOCK_BYTES as u64 == zone_bytes).then_some(header)
        })
    };
    header_at(0).or_else(second_zone)
}

/// What an intact root on the device needs that this version lacks.
pub(crate) fn unsupported_root(device: &dyn Device) -> Option<Unsupported> {
    let places = std::iter::once(0).chain(second_zones(device));
    places.filter_map(|at| read_block(device, at)).find_map(|block| unsupported(&block))
}

/// A walk over the roots of one zone.
struct RootWalk {
    slot: usize,
    zone: u32,
    zone_bytes: u64,
    /// Byte in the zone at which the next root would begin.
    at: u64,
    found: Vec<FoundRoot>,
    /// A root of the device; roots that belong to another pool or device are ignored.
    like: RootHeader,
}

impl RootWalk {
    fn offset_bytes(&self) -> u64 {
        u64::from(self.zone) * self.zone_bytes + self.at
    }

    /// Examines the block at which the next root would begin. Returns whether another root may follow.
    fn take(&mut self, block: &[u8]) -> bool {
        debug_assert!(self.at < self.zone_bytes, "a walk stays in its zone");
        let Ok(header) = RootHeader::decode(block) else { return false };
        let same = |h: &RootHeader| (h.pool, h.device_uuid, h.zone_blocks, h.device);
        // After the newest root of a zone may come bytes from before its reset. They can be roots, but older
        // ones.
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
