//! The scan of devices for the segments of pools.
//!
//! A segment begins at the first block of a zone. Where the zone size is not known, the scan looks at the
//! multiples of each possible size, largest first, until it has found a copy of a root of the pool. The copy
//! names the size, and the scan then looks at every zone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, DeviceOp, OpKind, PlantedBug, is_planted, run_batch};
use warpfire_format::Uuid;
use warpfire_format::log_frame::LogFrame;
use warpfire_format::root::{DeviceEntry, DeviceUse};
use warpfire_format::root_copy::RootCopy;
use warpfire_format::segment::{FIRST_SEGMENT_ZONE, ROWS_MAX, SegmentKind};
use warpfire_format::stripe::{StripeHeader, StripeIdentity};
use warpfire_pool::possible_zone_bytes;
use warpfire_units::{BLOCK_BYTES, SegmentId, ZoneIndex};

use crate::identify::Columns;

/// Blocks that are read in one batch.
const BATCH_BLOCKS: usize = 256;

/// Bytes that a walk of a log reads at once.
const WINDOW_BYTES: usize = 1 << 20;

/// Blocks of a device, or reads of a column, that fail before the scan leaves it. Each may take seconds.
const UNREADABLE_MAX: usize = 64;

/// Zones of each smaller size that the scan looks at after it has found a pool.
const FIRST_ZONES: u64 = 256;

/// A column of a segment on a device: what the header of its first stripe says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundColumn {
    /// The place of the device in the list.
    pub slot: usize,
    pub offset_bytes: u64,
    pub segment: SegmentId,
    pub epoch: u32,
    /// The number of the column; in a mirror always 0.
    pub column: u16,
    pub kind: SegmentKind,
}

impl FoundColumn {
    /// The zone of the column, if it begins one that segments may take.
    pub fn zone(&self, zone_bytes: u64) -> Option<ZoneIndex> {
        let zone = u32::try_from(self.offset_bytes / zone_bytes).ok().map(ZoneIndex)?;
        (self.offset_bytes.is_multiple_of(zone_bytes) && zone >= FIRST_SEGMENT_ZONE).then_some(zone)
    }
}

/// What the scan found of one pool.
#[derive(Default)]
pub(crate) struct ScannedSegments {
    pub found: Vec<FoundColumn>,
    /// The newest copy of a root. All that it names was durable before it was written.
    pub copy: Option<RootCopy>,
    /// Whether a copy was found that the newest one does not go on from.
    pub is_apart: bool,
    /// The devices of columns, as the commit log names them.
    pub columns: Columns,
}

impl ScannedSegments {
    fn note_copy(&mut self, copy: RootCopy) {
        let Some(newest) = &mut self.copy else {
            self.copy = Some(copy);
            return;
        };
        let mut older = copy;
        if (newest.header.epoch, newest.header.sequence) < (older.header.epoch, older.header.sequence) {
            std::mem::swap(newest, &mut older);
        }
        self.is_apart |= !goes_on_from(newest, &older);
    }
}

/// Whether the session of the root `newer` went on from what the session of `older` had written: it wrote one
/// of the same devices itself, or knew of a session that did. Otherwise two parts of the pool were each
/// written without the other.
pub(crate) fn goes_on_from(newer: &RootCopy, older: &RootCopy) -> bool {
    if is_planted(PlantedBug::CopiesApartAccepted) {
        return true;
    }
    let (at, is_narrow) = (older.header.point(), older.header.is_narrow);
    let is_known = |(then, now): (&DeviceEntry, &DeviceEntry)| {
        let is_same = now.seen.session == at.session;
        // A narrow root behind the last one that is known was on devices that `newer` did not have.
        let is_behind = is_narrow && at.sequence > now.seen.sequence;
        let is_seen = if is_same { !is_behind } else { now.seen.epoch > at.epoch };
        // Only devices that a session writes are active in its roots.
        now.state != DeviceUse::Offline || now.uuid != then.uuid || is_seen
    };
    let written = older.table.iter().zip(&newer.table).filter(|(then, _)| then.state == DeviceUse::Active);
    newer.header.session == at.session || { written }.any(is_known)
}

/// A scan of some devices.
pub(crate) struct Scan<'a> {
    devices: &'a [Arc<dyn Device>],
    /// Zone sizes, and how many zones of each were looked at.
    looked_at: Vec<(u64, u64)>,
    /// By device: blocks that could not be read.
    unreadable: Vec<usize>,
    pub pools: BTreeMap<Uuid, ScannedSegments>,
}

impl<'a> Scan<'a> {
    pub fn new(devices: &'a [Arc<dyn Device>]) -> Self {
        let unreadable = vec![0; devices.len()];
        Scan { devices, looked_at: Vec::new(), unreadable, pools: BTreeMap::new() }
    }

    /// Looks at the possible zone sizes until copies of roots of the `wanted` pool are found, or of any, and
    /// then at all zones of theirs.
    pub fn run(&mut self, wanted: Option<Uuid>) {
        let info = self.devices.iter().map(|device| device.info());
        let mut sizes: Vec<u64> = info
            .flat_map(|info| match info.zones {
                Some(zones) => vec![zones.zone_bytes],
                None => possible_zone_bytes(info.size_bytes).collect(),
            })
            .collect();
        sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
        sizes.dedup();
        for zone_bytes in sizes {
            let is_found = match wanted {
                Some(wanted) => self.pools.get(&wanted).is_some_and(|pool| pool.copy.is_some()),
                None => self.pools.values().any(|pool| pool.copy.is_some()),
            };
            if is_found && wanted.is_some() {
                return;
            }
            // A pool that was made later, with smaller zones, may show in its first zones only.
            self.look_at_first_zones(zone_bytes, if is_found { FIRST_ZONES } else { u64::MAX });
            let copies = self.pools.values().filter_map(|pool| pool.copy.as_ref());
            let named: BTreeSet<u32> = copies.map(|copy| copy.header.zone_blocks).collect();
            for zone_bytes in named.into_iter().map(zone_bytes_of) {
                if !self.looked_at.contains(&(zone_bytes, u64::MAX)) {
                    self.look_at_zones(zone_bytes);
                }
            }
        }
    }

    /// Looks at the first block of each zone of this size, and follows the logs that begin there.
    pub fn look_at_zones(&mut self, zone_bytes: u64) {
        self.look_at_first_zones(zone_bytes, u64::MAX);
    }

    fn look_at_first_zones(&mut self, zone_bytes: u64, zones_max: u64) {
        let devices = self.devices;
        let looked_at = std::mem::take(&mut self.looked_at);
        let is_new =
            |at: u64| !looked_at.iter().any(|(size, zones)| at.is_multiple_of(*size) && at / size < *zones);
        let sizes: Vec<u64> = devices.iter().map(|device| device.info().size_bytes).collect();
        let zones = sizes.iter().max().map_or(0, |bytes| bytes / zone_bytes).min(zones_max);
        // The same zone of all devices, so that the devices work at the same time.
        let mut places = (1..zones)
            .map(|zone| zone * zone_bytes)
            .filter(|at| is_new(*at))
            .flat_map(|at| (0..sizes.len()).map(move |slot| (slot, at)))
            .filter(|(slot, at)| at + zone_bytes <= sizes[*slot]);
        let mut blocks: Vec<AlignedBuf> =
            (0..BATCH_BLOCKS).map(|_| AlignedBuf::zeroed(BLOCK_BYTES)).collect();
        loop {
            let batch: Vec<(usize, u64)> = places.by_ref().take(BATCH_BLOCKS).collect();
            if batch.is_empty() {
                break;
            }
            let batch: Vec<(usize, u64)> =
                batch.into_iter().filter(|(slot, _)| self.unreadable[*slot] < UNREADABLE_MAX).collect();
            let mut ops: Vec<DeviceOp<'_>> = batch
                .iter()
                .zip(&mut blocks)
                .map(|((slot, at), block)| DeviceOp::new(*slot, OpKind::Read(*at, block)))
                .collect();
            run_batch(devices, &mut ops);
            let read: Vec<bool> = ops.iter().map(|op| op.result.is_ok()).collect();
            for (((slot, at), block), read) in batch.into_iter().zip(&blocks).zip(read) {
                if read {
                    self.take_first_block(slot, at, block);
                } else {
                    self.unreadable[slot] += 1;
                }
            }
        }
        drop(places);
        self.looked_at = looked_at;
        self.looked_at.push((zone_bytes, zones_max));
    }

    /// Takes the block at the place where a zone may begin.
    fn take_first_block(&mut self, slot: usize, offset_bytes: u64, block: &[u8]) {
        let Ok(found) = StripeHeader::decode(block) else { return };
        let id = found.header.identity;
        if id.stripe != 0 {
            return;
        }
        let pool = self.pools.entry(id.pool).or_default();
        let StripeIdentity { segment, epoch, column, kind, .. } = id;
        pool.found.push(FoundColumn { slot, offset_bytes, segment, epoch, column, kind });
        if kind == SegmentKind::Mirror {
            let device = &*self.devices[slot];
            walk_mirror(device, offset_bytes, id, &mut |_, payload| take_frames(pool, payload));
        }
    }
}

/// Bytes of a zone of so many blocks.
pub(crate) fn zone_bytes_of(zone_blocks: u32) -> u64 {
    u64::from(zone_blocks) * BLOCK_BYTES as u64
}

/// Takes what the payload of a mirror stripe says, if it is of the commit log.
fn take_frames(pool: &mut ScannedSegments, mut payload: &[u8]) {
    // The payload of the state log ends this at once: its frames have other types.
    while let Ok((frame, rest)) = LogFrame::decode(payload) {
        match frame {
            LogFrame::Root(copy) => {
                // It decodes: the frame did.
                if let Ok(copy) = RootCopy::decode(copy) {
                    pool.note_copy(copy);
                }
            }
            LogFrame::Opened(descriptor) | LogFrame::LogNext(descriptor) => pool.columns.note(&descriptor),
            LogFrame::Moved { segment, column, to } => pool.columns.note_move(segment, column, to),
            LogFrame::Record { .. }
            | LogFrame::Barrier { .. }
            | LogFrame::Grew { .. }
            | LogFrame::Sealed(_)
            | LogFrame::Freed(_)
            | LogFrame::Lost { .. } => {}
        }
        payload = rest;
    }
}

/// Passes each stripe of one column of a mirror segment that verifies to `each`, with its number.
pub(crate) fn walk_mirror(
    device: &dyn Device,
    offset_bytes: u64,
    first: StripeIdentity,
    each: &mut dyn FnMut(u32, &[u8]),
) {
    walk_column(device, offset_bytes, (first, usize::MAX), &mut |header, shard| {
        if let Some(payload) = mirror_payload(shard) {
            each(header.identity.stripe, &payload);
        }
    });
}

/// The stripes of a column that verify on this device, which may be a failed one: the count ends after
/// `UNREADABLE_MAX` reads that failed.
pub(crate) fn count_stripes(device: &dyn Device, column: &FoundColumn) -> usize {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    let read = device.read(column.offset_bytes, &mut block);
    let first = read.ok().and_then(|()| StripeHeader::decode(&block).ok());
    let mut stripes = 0;
    if let Some(first) = first {
        let first = first.header.identity;
        walk_column(device, column.offset_bytes, (first, UNREADABLE_MAX), &mut |_, _| stripes += 1);
    }
    stripes
}

/// Passes the blocks of each stripe of one column that verify to `each`, with their header. Ends after
/// `unreadable_max` reads that failed.
fn walk_column(
    device: &dyn Device,
    offset_bytes: u64,
    (first, unreadable_max): (StripeIdentity, usize),
    each: &mut dyn FnMut(&StripeHeader, &[u8]),
) {
    let mut window =
        Window { device, start: 0, bytes: AlignedBuf::zeroed(BLOCK_BYTES), len: 0, unreadable: 0 };
    let (mut at, mut stripe) = (offset_bytes, 0);
    // Blocks without the next header so far: a stripe that was damaged takes no more than this.
    let mut passed = 0;
    while passed <= u64::from(ROWS_MAX) && window.unreadable < unreadable_max {
        let header = window.get(at, BLOCK_BYTES).and_then(|block| {
            let header = StripeHeader::decode(block).ok()?.header;
            let is_next = header.identity.stripe >= stripe;
            (is_next && header.identity == StripeIdentity { stripe: header.identity.stripe, ..first })
                .then_some(header)
        });
        let Some(header) = header else {
            (at, passed) = (at + BLOCK_BYTES as u64, passed + 1);
            continue;
        };
        let shard_bytes = (usize::from(header.rows) + 1) * BLOCK_BYTES;
        if let Some(shard) = window.get(at, shard_bytes).filter(|shard| verifies(shard)) {
            each(&header, shard);
        }
        (at, stripe, passed) = (at + shard_bytes as u64, header.identity.stripe + 1, 0);
    }
}

/// Whether the rows of a stripe on one column are those of the header before them.
fn verifies(shard: &[u8]) -> bool {
    let Some((head, rows)) = shard.split_at_checked(BLOCK_BYTES) else { return false };
    let is_row = |(row, crc): (&[u8], u32)| warpfire_format::crc32c(row) == crc;
    StripeHeader::decode(head).is_ok_and(|block| rows.chunks_exact(BLOCK_BYTES).zip(block.crcs()).all(is_row))
}

/// The payload of a mirror stripe, from the blocks of one column.
fn mirror_payload(shard: &[u8]) -> Option<Vec<u8>> {
    let (head, rows) = shard.split_at_checked(BLOCK_BYTES)?;
    let block = StripeHeader::decode(head).ok()?;
    let mut payload = [block.inline(), rows].concat();
    payload.truncate(usize::try_from(block.header.payload_bytes).ok()?);
    Some(payload)
}

/// Bytes of a device that a walk from front to back has read ahead.
struct Window<'a> {
    device: &'a dyn Device,
    start: u64,
    bytes: AlignedBuf,
    len: usize,
    /// Reads that failed.
    unreadable: usize,
}

impl Window<'_> {
    /// The bytes at this place; `None` if they cannot be read or lie behind the end of the device.
    fn get(&mut self, at: u64, len: usize) -> Option<&[u8]> {
        let size_bytes = self.device.info().size_bytes;
        if at.checked_add(len as u64)? > size_bytes {
            return None;
        }
        let is_inside = at >= self.start && at + len as u64 <= self.start + self.len as u64;
        if !is_inside {
            let ahead = usize::try_from(size_bytes - at).unwrap_or(usize::MAX).min(WINDOW_BYTES).max(len);
            // Bytes behind the wanted ones may be damaged.
            if !self.read(at, ahead / BLOCK_BYTES * BLOCK_BYTES) && !self.read(at, len) {
                return None;
            }
        }
        let begin = usize::try_from(at - self.start).ok()?;
        self.bytes.get(begin..begin + len)
    }

    fn read(&mut self, at: u64, len: usize) -> bool {
        if self.bytes.len() < len {
            self.bytes = AlignedBuf::zeroed(len);
        }
        let is_read = self.device.read(at, &mut self.bytes[..len]).is_ok();
        (self.start, self.len) = if is_read { (at, len) } else { (0, 0) };
        self.unreadable += usize::from(!is_read);
        is_read
    }
}
