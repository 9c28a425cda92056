//! Writing roots: each root is appended to zone 0 or zone 1 of several devices; the newest whole root wins.
//!
//! A *record* is a root as it lies on a device: a header block and the blocks of the body.
//!
//! # Invariants
//! 1. A zone is reset only when the other zone of the device holds the device's newest whole root
//!    (`RootEnd::advance` and `RootEnd::away_from`; test
//!    `a_cut_at_any_point_leaves_the_root_before_or_the_one_being_written`).
//! 2. The first root of a session goes to the other zone. So no root is appended after bytes that a crash may
//!    have torn, and nothing is overwritten.
//! 3. A root's number is used once, whether the write succeeded or not (`write_copies`).
//! 4. A root counts as written when it is durable on m+1 devices. If fewer than m+1 take writes and at most m
//!    are lost, it must be durable on all that take writes (`append_root`).
//! 5. The first root of a session repeats the state that the session began with (`write_root`,
//!    `ensure_epoch_is_durable`).
//! 6. The lives of devices in a root count all sessions before, and this one up to the root (`Devices::life`;
//!    test `a_device_s_life_goes_on_from_session_to_session`).
//! 7. The first root of a session is on every device that takes writes. So each device proves that the
//!    session wrote it, and an older copy of any device is known as one (`append_root_wanting`; test
//!    `an_old_copy_of_any_device_of_a_large_pool_is_left_out`).
//! 8. When a flush or a root returns, a root is durable that names as offline each device that is lost
//!    (`record_losses`).
//!
//! ```text
//!   zone 0: [5][6][7]…          full, 64 roots, or session ends
//!   zone 1: ────────── reset ──▶ [8][9]…   then zone 0 again
//! ```

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use warpfire_env::{AlignedBuf, PlantedBug, Random, is_planted};
use warpfire_format::crc32c;
use warpfire_format::root::{
    DEVICES_MAX, DeviceEntry, EarlierSession, PoolLabel, RootHeader, RootPoint, counts_lives, encode_body,
    table_bytes,
};
use warpfire_format::root_copy::{self, ROOT_COPY_HEAD_BYTES_MAX};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, ZoneIndex};

use crate::device::devices::is_refused;
use crate::error::PoolError;
use crate::life::history::state_in_next_root;
use crate::pool::{Inner, Pool};

/// Most roots in one zone before the other zone is used. It limits the headers that an open reads.
const RECORDS_MAX: u32 = 64;

/// Devices that get a copy of each root, if the pool has so many; m+1 if that is more. The first root of a
/// session goes to all.
const COPIES: usize = 8;

/// The newest root, as `Pool::open` returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// Its number; later roots have larger ones.
    pub sequence: u64,
    /// Epoch of the session that wrote it.
    pub epoch: u32,
    /// The bytes that the client passed to `write_root`; empty in a new pool.
    pub payload: Vec<u8>,
}

/// State of the roots on all devices.
pub(crate) struct Roots {
    /// The number used last.
    pub sequence: u64,
    /// Seconds since 1970 when the pool was created; copied from root to root.
    pub made_seconds: i64,
    /// The pool's name; copied from root to root.
    pub label: PoolLabel,
    /// Number of the pool's configuration; each change adds one.
    pub config_version: u64,
    /// The random number of this session.
    pub session: u64,
    /// The sessions before this one, newest first.
    pub earlier: Vec<EarlierSession>,
    /// The device table of the newest root, or of the one that is being written.
    pub table: Vec<DeviceEntry>,
    /// By device index: whether a root of this session is durable on the device.
    pub holds: Vec<bool>,
    /// Payload of the newest durable root.
    pub payload: Vec<u8>,
    /// Whether that root is of an earlier session.
    pub inherits: bool,
    /// By device index.
    pub ends: Vec<RootEnd>,
}

/// The place of the next root on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RootEnd {
    zone: u32,
    block: u32,
    records: u32,
}

impl RootEnd {
    /// The start of zone 0, which has been reset.
    pub(crate) const EMPTY: RootEnd = RootEnd { zone: 0, block: 0, records: 0 };

    /// The start of the other zone, which must be reset first. `zone` holds the device's newest whole root.
    pub(crate) fn away_from(zone: ZoneIndex) -> Self {
        RootEnd { zone: zone.0, block: 0, records: RECORDS_MAX }
    }

    /// Reserves room for a record. Returns its zone, its first block, and whether the zone must be reset
    /// first.
    fn advance(&mut self, record_blocks: u32, zone_blocks: u32) -> (ZoneIndex, u32, bool) {
        assert!(record_blocks <= zone_blocks, "a record is no longer than a zone");
        let switches_zone = self.records >= RECORDS_MAX || record_blocks > zone_blocks - self.block;
        if switches_zone {
            let other = if is_planted(PlantedBug::RootOverItself) { self.zone } else { 1 - self.zone };
            *self = RootEnd { zone: other, block: 0, records: 0 };
        }
        let block = self.block;
        self.block += record_blocks;
        self.records += 1;
        assert!(self.block <= zone_blocks && self.zone <= 1, "a record lies in a root zone");
        (ZoneIndex(self.zone), block, switches_zone)
    }
}

impl Pool {
    /// Most payload bytes of a root.
    #[must_use]
    pub fn root_payload_bytes_max(&self) -> u64 {
        self.inner.payload_bytes_max(self.inner.devices.table_len())
    }

    /// Writes a root with `payload`, which the next open returns. Durable on return. Everything written
    /// before this call becomes durable before the root.
    ///
    /// # Errors
    /// `OpenForReading`; `RootTooLarge`; `Failed` if too few devices hold the root: the next open then finds
    /// this root or the last one.
    pub fn write_root(&self, payload: &[u8]) -> Result<(), PoolError> {
        self.inner.check_writable()?;
        let (bytes, max) = (payload.len() as u64, self.root_payload_bytes_max());
        if bytes > max {
            return Err(PoolError::RootTooLarge { bytes, max });
        }
        let mut roots = self.inner.roots.lock();
        // A root with another payload follows a durable root of its session. So a session of which only
        // inherited roots are found on a device was not known to the others, and had written nothing.
        self.inner.repeat_inherited(&mut roots)?;
        self.inner.append_root(&mut roots, payload.to_vec(), false)
    }

    /// Most bytes of a copy of a root with a payload of so many bytes.
    #[must_use]
    pub fn root_copy_bytes_max(&self, payload_bytes: usize) -> usize {
        ROOT_COPY_HEAD_BYTES_MAX + table_bytes(self.inner.devices.table_len()) + payload_bytes
    }

    /// The number of the last root that this session has made durable, by `write_root` or with a change of
    /// the devices or the name; 0 before the first.
    #[must_use]
    pub fn last_root(&self) -> u64 {
        self.inner.last_root.load(Relaxed)
    }

    /// A copy of the root that `write_root` would write with `payload` now, for the commit log; without a
    /// payload with that of the newest root. It takes a number of its own, below that of the next root.
    /// `None` if `write_root` would refuse the payload.
    #[must_use]
    pub fn root_copy(&self, payload: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut roots = self.inner.roots.lock();
        let payload = payload.unwrap_or(&roots.payload);
        let mut table = roots.table.clone();
        if payload.len() as u64 > self.root_payload_bytes_max() {
            return None;
        }
        let point = self.inner.next_point(&roots);
        self.inner.renew_table(&mut table, &roots.holds, point, false);
        let body = encode_body(&table, payload);
        roots.sequence += 1;
        let header = self.inner.root_header(&roots, &table, &body, false, self.inner.is_narrow());
        Some(root_copy::encode(&header, &body))
    }
}

impl Inner {
    /// Most payload bytes of a root with so many devices in its table.
    pub(crate) fn payload_bytes_max(&self, devices: usize) -> u64 {
        let blocks = u64::from(self.zone_blocks) - 1;
        let table = table_bytes(devices) as u64;
        (blocks * BLOCK_BYTES as u64).min(u64::from(u32::MAX)).saturating_sub(table)
    }

    /// Writes the inherited root again with this session's epoch, unless this session wrote a root already.
    pub(crate) fn ensure_epoch_is_durable(&self) -> Result<(), PoolError> {
        self.repeat_inherited(&mut self.roots.lock())
    }

    /// Writes the inherited root again, unless this session wrote a root already.
    pub(crate) fn repeat_inherited(&self, roots: &mut Roots) -> Result<(), PoolError> {
        if roots.inherits { self.repeat_root(roots) } else { Ok(()) }
    }

    /// Writes the newest root again if a device was lost that it does not name as offline. Without this, what
    /// is written from now on could be lost without a trace with the devices that hold it.
    pub(crate) fn record_losses(&self) -> Result<(), PoolError> {
        let is_recorded = || self.devices.losses() == self.losses_recorded.load(Acquire);
        if is_recorded() || self.devices.for_reading() {
            return Ok(());
        }
        let mut roots = self.roots.lock();
        if is_recorded() { Ok(()) } else { self.repeat_root(&mut roots) }
    }

    /// Writes the newest root again, with this session's epoch and the devices as they are.
    fn repeat_root(&self, roots: &mut Roots) -> Result<(), PoolError> {
        self.append_root(roots, roots.payload.clone(), roots.inherits)
    }

    /// Makes all earlier writes durable, then a root with `payload`.
    pub(crate) fn append_root(
        &self,
        roots: &mut Roots,
        payload: Vec<u8>,
        is_inherited: bool,
    ) -> Result<(), PoolError> {
        self.append_root_wanting(roots, payload, is_inherited, COPIES)
    }

    /// As `append_root`, on every device that takes writes.
    pub(crate) fn append_root_to_all(&self, roots: &mut Roots, payload: Vec<u8>) -> Result<(), PoolError> {
        self.append_root_wanting(roots, payload, false, DEVICES_MAX)
    }

    /// As `append_root`, on so many devices if they take writes.
    fn append_root_wanting(
        &self,
        roots: &mut Roots,
        payload: Vec<u8>,
        is_inherited: bool,
        copies: usize,
    ) -> Result<(), PoolError> {
        let is_first = !roots.holds.contains(&true);
        let copies = if is_first { DEVICES_MAX } else { copies };
        // Ends: each further round has fewer devices.
        loop {
            // Before the table of the root is made: a device that is lost later counts as not recorded.
            let losses = self.devices.losses();
            self.append_root_once(roots, &payload, is_inherited, copies)?;
            if self.devices.losses() == losses {
                self.losses_recorded.swap(losses, AcqRel);
                self.last_root.store(roots.sequence, Relaxed);
                roots.payload = payload;
                roots.inherits = false;
                return Ok(());
            }
        }
    }

    fn append_root_once(
        &self,
        roots: &mut Roots,
        payload: &[u8],
        inherited: bool,
        copies: usize,
    ) -> Result<(), PoolError> {
        // The root may refer to anything written so far, so all of it must be durable before the root is
        // written.
        if !is_planted(PlantedBug::RootBeforeFlush) {
            self.flush()?;
        }
        let mut candidates = self.devices.all_writable();
        // Other devices each time a root zone is full, so that the wear of root zones spreads.
        let turn = (roots.sequence / u64::from(RECORDS_MAX)) % candidates.len().max(1) as u64;
        candidates.rotate_left(usize::try_from(turn).expect("a number of devices"));
        let parity = usize::from(self.shape.parity());
        let wanted = copies.max(parity + 1);
        let copies = self.write_copies(roots, payload, inherited, &candidates, wanted)?;
        // m+1 copies: an open may miss m devices and must still find this root. If fewer devices take writes,
        // all of them must hold it: more copies are not possible.
        let is_on_all_writable = copies == self.devices.all_writable().len();
        let enough =
            copies > parity || (copies > 0 && is_on_all_writable && self.devices.lost_count() <= parity);
        if enough { Ok(()) } else { Err(self.failed()) }
    }

    /// Writes and flushes one root on the first `wanted` of the `candidates`; for each that fails, on one
    /// more. Returns the number of devices that hold the root.
    pub(crate) fn write_copies(
        &self,
        roots: &mut Roots,
        payload: &[u8],
        is_inherited: bool,
        candidates: &[DeviceIndex],
        wanted: usize,
    ) -> Result<usize, PoolError> {
        // Before the first write: the number is spent even if every write fails, because a failed write may
        // have left a whole root on a device.
        roots.sequence += 1;
        let point = self.point(roots);
        self.renew_table(&mut roots.table, &roots.holds, point, is_inherited);
        let body = encode_body(&roots.table, payload);
        let like = self.root_header(roots, &roots.table, &body, is_inherited, self.is_narrow());
        let mut copies = 0;
        let mut rest = candidates;
        while copies < wanted && !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(wanted - copies));
            rest = later;
            let refused = self.write_to(roots, &like, &body, now);
            self.flush()?;
            for device in now.iter().filter(|d| self.devices.writable(**d) && !refused.contains(d)) {
                roots.holds[usize::from(device.0)] = true;
                copies += 1;
            }
        }
        assert!(copies <= candidates.len(), "a device holds one copy");
        Ok(copies)
    }

    /// The point of the root with the number that was used last.
    fn point(&self, roots: &Roots) -> RootPoint {
        RootPoint { epoch: self.epoch.load(Relaxed), session: roots.session, sequence: roots.sequence }
    }

    /// The point of the next root.
    pub(crate) fn next_point(&self, roots: &Roots) -> RootPoint {
        RootPoint { sequence: roots.sequence + 1, ..self.point(roots) }
    }

    /// Whether a root cannot be on m + 1 devices now.
    fn is_narrow(&self) -> bool {
        self.devices.all_writable().len() <= usize::from(self.shape.parity())
    }

    /// Brings a device table to what the root at `point` says. `holds`: the devices with a root of this
    /// session.
    fn renew_table(&self, table: &mut [DeviceEntry], holds: &[bool], point: RootPoint, is_inherited: bool) {
        for (index, (entry, holds)) in (0u16..).zip(table.iter_mut().zip(holds)) {
            let is_written = self.devices.writable(DeviceIndex(index));
            entry.state = state_in_next_root(entry.state, is_written, is_inherited);
            if is_written && *holds {
                entry.seen = point;
            }
            entry.life = self.devices.life(DeviceIndex(index));
        }
    }

    /// Writes the root on `devices`, in one batch, without a flush. Devices that fail are dropped. Returns
    /// those with a full host: they are sound and do not hold the root.
    fn write_to(
        &self,
        roots: &mut Roots,
        like: &RootHeader,
        body: &[u8],
        devices: &[DeviceIndex],
    ) -> Vec<DeviceIndex> {
        // Records are collected first: the operations borrow them.
        let mut records = Vec::with_capacity(devices.len());
        let ends_before: Vec<_> = devices.iter().map(|d| (*d, roots.ends[usize::from(d.0)])).collect();
        for device in devices {
            let device_uuid = roots.table[usize::from(device.0)].uuid;
            let header = RootHeader { device: *device, device_uuid, ..like.clone() };
            let blocks = u32::try_from(header.record_blocks()).expect("a record is no longer than a zone");
            let end = &mut roots.ends[usize::from(device.0)];
            let (zone, block, switches_zone) = end.advance(blocks, self.zone_blocks);
            // The device's roots have no other place.
            let at = self.zone_offset(zone, 0);
            if switches_zone && let Err(e) = self.devices.reset_zone(*device, at, self.zone_bytes()) {
                self.devices.drop_without_root_zone(*device, &e);
                continue;
            }
            let mut record = AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES);
            let (first, rest) = record.split_at_mut(BLOCK_BYTES);
            header.encode(first);
            debug_assert!(RootHeader::decode(first).is_ok(), "a written root header decodes");
            rest[..body.len()].copy_from_slice(body);
            records.push(((*device, self.zone_offset(zone, block)), record));
        }
        let (owners, mut ops): (Vec<DeviceIndex>, Vec<_>) = records
            .iter()
            .filter_map(|(at, record)| Some((at.0, self.devices.write_op(*at, record.into())?)))
            .unzip();
        self.devices.run(&mut ops);
        let refused = ops.iter().zip(owners).filter(|(op, _)| is_refused(op));
        let refused: Vec<DeviceIndex> = refused.map(|(_, device)| device).collect();
        // The next root goes to the same place: an open would not look behind a gap.
        for (device, end) in ends_before.into_iter().filter(|(device, _)| refused.contains(device)) {
            roots.ends[usize::from(device.0)] = end;
        }
        refused
    }

    /// The header of the next root, as the first device holds it. `table` is the one in its body.
    pub(crate) fn root_header(
        &self,
        roots: &Roots,
        table: &[DeviceEntry],
        body: &[u8],
        is_inherited: bool,
        is_narrow: bool,
    ) -> RootHeader {
        let (data, parity) = self.shape.get();
        RootHeader {
            data,
            parity,
            device: DeviceIndex(0),
            device_uuid: roots.table.first().expect("a pool has a device").uuid,
            device_count: u16::try_from(roots.table.len()).expect("the table's length fits its field"),
            pool: self.uuid,
            sequence: roots.sequence,
            epoch: self.epoch.load(Relaxed),
            zone_blocks: self.zone_blocks,
            body_bytes: u32::try_from(body.len()).expect("the payload's length was checked"),
            body_crc: crc32c(body),
            made_seconds: roots.made_seconds,
            write_features: 0,
            label: roots.label,
            config_version: roots.config_version,
            wishes: *self.wishes.lock(),
            counts_lives: counts_lives(table),
            session: roots.session,
            is_inherited,
            is_narrow,
            earlier: roots.earlier.clone(),
        }
    }
}

/// A number for a session, not zero.
pub(crate) fn random_session(random: &dyn Random) -> u64 {
    loop {
        if let session @ 1.. = random.next_u64() {
            return session;
        }
    }
}
