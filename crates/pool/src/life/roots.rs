//! The root: appended to zones 0 and 1 of some devices in turn, newest wins.
//!
//! Invariants
//! 1. On each device the newest root that is whole lies in the zone that is not being reset: a zone is reset only when
//!    the other one holds the device's newest whole root.
//! 2. The first root of a session goes to the other zone, so nothing is ever appended after what a crash may have
//!    torn, and nothing is overwritten.
//! 3. A root's number is used once, whether writing it succeeded or not.
//! 4. A root counts as written when it is durable on m+1 devices; or on all that take writes, if that is fewer and
//!    no more than m are lost.
//!
//! ```text
//!   zone 0: [5][6][7]…          full, 64 roots, or session ends
//!   zone 1: ────────── reset ──▶ [8][9]…   then zone 0 again
//! ```

use warpfire_env::AlignedBuf;
use warpfire_format::crc32c;
use warpfire_format::root::{RootHeader, encode_body, table_bytes};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, ZoneIndex};

use crate::error::PoolError;
use crate::pool::{Inner, Pool};

/// Most roots in a zone before the other one is used: bounds what an open has to read.
const RECORDS_MAX: u32 = 64;

/// Devices that get a copy of each root, where there are so many; at least m+1 always.
const COPIES: usize = 8;

/// What the pool hands back from the newest root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// Its number; later roots have larger ones.
    pub sequence: u64,
    /// The session that wrote it.
    pub epoch: u32,
    /// What was given to `write_root`; empty in a new pool.
    pub payload: Vec<u8>,
}

/// Where roots stand, device by device.
pub(crate) struct Roots {
    /// The number last used.
    pub sequence: u64,
    /// Seconds since 1970 when the pool was made; copied from root to root.
    pub made_seconds: i64,
    /// `None` once a root with this session's epoch is durable; until then what such a root must say.
    pub inherited: Option<Vec<u8>>,
    pub ends: Vec<RootEnd>,
}

/// Where the next root goes on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RootEnd {
    zone: u32,
    block: u32,
    records: u32,
}

impl RootEnd {
    /// An empty first zone, just reset.
    pub(crate) const EMPTY: RootEnd = RootEnd { zone: 0, block: 0, records: 0 };

    /// The device's newest whole root lies in `zone`: the other one is next.
    pub(crate) fn away_from(zone: ZoneIndex) -> Self {
        RootEnd { zone: zone.0, block: 0, records: RECORDS_MAX }
    }

    /// Makes room for a record and says where, and whether the zone must be reset first.
    fn advance(&mut self, record_blocks: u32, zone_blocks: u32) -> (ZoneIndex, u32, bool) {
        let switches_zone = self.records >= RECORDS_MAX || record_blocks > zone_blocks - self.block;
        if switches_zone {
            *self = RootEnd { zone: 1 - self.zone, block: 0, records: 0 };
        }
        let block = self.block;
        self.block += record_blocks;
        self.records += 1;
        (ZoneIndex(self.zone), block, switches_zone)
    }
}

impl Pool {
    /// Most payload bytes that a root can have.
    #[must_use]
    pub fn root_payload_bytes_max(&self) -> u64 {
        let blocks = u64::from(self.inner.zone_blocks) - 1;
        let table = table_bytes(self.inner.devices.table().len()) as u64;
        (blocks * BLOCK_BYTES as u64 - table).min(u64::from(u32::MAX) - table)
    }

    /// Makes `payload` what the next open returns, durable on return. Everything written before this call is
    /// made durable first.
    ///
    /// # Errors
    /// `RootTooLarge`; `Failed` if too few devices took it: then the next open may find this root or the last.
    pub fn write_root(&self, payload: &[u8]) -> Result<(), PoolError> {
        let (bytes, max) = (payload.len() as u64, self.root_payload_bytes_max());
        if bytes > max {
            return Err(PoolError::RootTooLarge { bytes, max });
        }
        let mut roots = self.inner.roots.lock();
        self.inner.append_root(&mut roots, payload)
    }
}

impl Inner {
    /// Writes the inherited root again under this session's epoch, unless a root of this session is there.
    pub(crate) fn ensure_epoch_is_durable(&self) -> Result<(), PoolError> {
        let mut roots = self.roots.lock();
        match roots.inherited.clone() {
            Some(payload) => self.append_root(&mut roots, &payload),
            None => Ok(()),
        }
    }

    fn append_root(&self, roots: &mut Roots, payload: &[u8]) -> Result<(), PoolError> {
        self.flush()?;
        let candidates = self.devices.all_writable();
        let wanted = COPIES.max(usize::from(self.parity) + 1);
        let copies = self.write_copies(roots, payload, &candidates, wanted)?;
        let all_there_are = copies == self.devices.all_writable().len();
        let enough = copies > usize::from(self.parity)
            || (copies > 0 && all_there_are && self.devices.lost_count() <= usize::from(self.parity));
        if !enough {
            return Err(self.failed());
        }
        roots.inherited = None;
        Ok(())
    }

    /// Writes and flushes one root on the first `wanted` of `candidates`, and on further ones for those that fail.
    /// Returns how many hold it.
    pub(crate) fn write_copies(
        &self,
        roots: &mut Roots,
        payload: &[u8],
        candidates: &[DeviceIndex],
        wanted: usize,
    ) -> Result<usize, PoolError> {
        roots.sequence += 1;
        let body = encode_body(self.devices.table(), payload);
        let mut copies = 0;
        let mut rest = candidates;
        while copies < wanted && !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(wanted - copies));
            rest = later;
            self.write_to(roots, &body, now);
            self.flush()?;
            copies += now.iter().filter(|d| self.devices.writable(**d)).count();
        }
        Ok(copies)
    }

    fn write_to(&self, roots: &mut Roots, body: &[u8], devices: &[DeviceIndex]) {
        let mut records = Vec::with_capacity(devices.len());
        for device in devices {
            let header = self.root_header(roots, body, *device);
            let blocks = u32::try_from(header.record_blocks()).expect("a record is no longer than a zone");
            let end = &mut roots.ends[usize::from(device.0)];
            let (zone, block, switches_zone) = end.advance(blocks, self.zone_blocks);
            if switches_zone && !self.reset_zone(*device, zone) {
                continue;
            }
            let mut record = AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES);
            let (first, rest) = record.split_at_mut(BLOCK_BYTES);
            header.encode(first);
            rest[..body.len()].copy_from_slice(body);
            records.push(((*device, self.zone_offset(zone, block)), record));
        }
        let mut ops: Vec<_> =
            records.iter().filter_map(|(at, record)| self.devices.write_op(*at, record)).collect();
        self.devices.run(&mut ops);
    }

    fn root_header(&self, roots: &Roots, body: &[u8], device: DeviceIndex) -> RootHeader {
        let table = self.devices.table();
        RootHeader {
            data: self.data,
            parity: self.parity,
            device,
            device_uuid: table[usize::from(device.0)].uuid,
            device_count: u16::try_from(table.len()).expect("the table's length fits its field"),
            pool: self.uuid,
            sequence: roots.sequence,
            epoch: self.epoch,
            zone_blocks: self.zone_blocks,
            body_bytes: u32::try_from(body.len()).expect("the payload's length was checked"),
            body_crc: crc32c(body),
            made_seconds: roots.made_seconds,
        }
    }
}
