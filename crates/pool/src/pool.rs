//! The pool: devices, zones, segments and the root, each behind its own lock.
//!
//! Terms. A *session* is the time from one open of the pool to the next; its *epoch* is its number. A column
//! of a segment is *lost* from the first stripe on that it may lack, because its device took no more writes
//! or failed the flush. A segment is *damaged* once a read of one of its present devices failed or did not
//! verify.
//!
//! # Invariants
//! 1. A zone belongs to at most one segment in `segments`, or to one that is being allocated (assert in
//!    `Zones::use_zone` and `Zones::free_zone`).
//! 2. No zone is written before a root with this session's epoch is durable. So no stripe on flash carries an
//!    identity that this session can assign again (`ensure_epoch_is_durable`; test
//!    `two_sessions_that_crash_never_write_under_one_identity`).
//! 3. A segment in `unflushed` has stripes that no flush has covered yet. A flush after which one of these
//!    segments has more lost columns than parity columns returns an error (test
//!    `beyond_parity_a_write_or_flush_is_an_error_and_flushed_bytes_stay`).
//! 4. A pool that is open for reading refuses each call that would write, before it changes anything
//!    (`check_writable`; test `a_pool_that_is_open_for_reading_refuses_every_call_that_writes`).
//! 5. A column without a stripe that the segment's index has is in the segment's `lost` after the next flush,
//!    and in `lost` here until the client takes it (`PreparedStripe::record` and `flush`; test
//!    `a_column_that_misses_a_write_or_a_flush_is_lost_from_there_on`).
//! 6. Locks are taken in the order of their ranks (`lock_ranks`). Only `roots`, `writing`, `flushing` and
//!    `trimming` are held during device operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use warpfire_env::{RankedMutex, RankedRwLock};
use warpfire_format::root::{DeviceLife, RootWishes};
use warpfire_format::segment::{LostColumn, SegmentDescriptor, SegmentKind};
use warpfire_format::{Corrupt, Uuid};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::device::capacity::{Plan, Widths};
use crate::device::counters::{DeviceCounters, PoolCounters};
use crate::device::devices::{DeviceState, Devices};
use crate::device::geometry::{Geometry, SEGMENT_PAYLOAD_MIN_BYTES, shape};
use crate::device::zones::Zones;
use crate::error::PoolError;
use crate::life::frozen::KeptZones;
use crate::life::open::Opening;
use crate::life::roots::Roots;
use crate::life::tune::PoolShape;
use crate::lock_ranks::{
    DAMAGED, FLUSHING, KEPT, LOST, ROOTS, SEGMENTS, TRIMMING, UNFLUSHED, WISHES, WRITING, ZONES,
};
use crate::read::checksums::Checksums;
use crate::segment::pool_segment::{Codes, PoolSegment};
use crate::segment::stripe_index::StripeIndex;

const OVERLAP: Corrupt = Corrupt::new(210, "segment lies on a zone that is taken or does not exist");
pub(crate) const TOO_LONG: Corrupt = Corrupt::new(211, "segment has more stripes than its zones can hold");
const TWICE: Corrupt = Corrupt::new(212, "two segments have one number");

/// Devices joined by parity and checksums. A clone is cheap and refers to the same pool. Many threads may
/// call every method at once.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub uuid: Uuid,
    /// The k and m of new segments.
    pub shape: PoolShape,
    /// What the newest root wishes, or the one that is being written (`life/tune.rs`).
    pub wishes: RankedMutex<WISHES, RootWishes>,
    pub zone_blocks: u32,
    /// Changes only before the first root of the session (`look_for_newer_session`).
    pub epoch: AtomicU32,
    /// The latest epoch of a root that was found at the opening.
    pub epoch_of_roots: u32,
    /// Whether the devices that were missing at the opening may hold a newer state.
    pub may_be_older: bool,
    pub opening: Opening,
    /// Devices that were there at the opening, and that the newest root names as offline.
    pub returned: BTreeSet<DeviceIndex>,
    /// Segments at the end of the log that the missing devices leave without enough columns
    /// (`life/covered.rs`).
    pub uncovered_in_tail: AtomicUsize,
    /// The later session that devices prove, or 0.
    pub newer_session: AtomicU32,
    /// Old copies of devices that were found at the opening and left out, by name.
    pub old_copies: Vec<(DeviceIndex, String)>,
    pub devices: Devices,
    pub zones: RankedMutex<ZONES, Zones>,
    /// Held together by all that write stripes or reset zones, and alone while a state is frozen.
    pub writing: RankedRwLock<WRITING, ()>,
    pub kept: RankedMutex<KEPT, KeptZones>,
    /// Held while a zone is trimmed.
    pub trimming: RankedMutex<TRIMMING, ()>,
    pub segments: RankedRwLock<SEGMENTS, BTreeMap<SegmentId, Arc<PoolSegment>>>,
    pub roots: RankedMutex<ROOTS, Roots>,
    /// Number of losses of devices after which the newest root was written.
    pub losses_recorded: AtomicUsize,
    /// The number of the last root that this session has made durable; 0 before the first.
    pub last_root: AtomicU64,
    pub flushing: RankedMutex<FLUSHING, ()>,
    /// Calls of `find_free_zones` since one of them freed a retired zone.
    pub retired_asked: AtomicU64,
    /// Segments with stripes that no flush has covered, and the first of these stripes.
    pub unflushed: RankedMutex<UNFLUSHED, BTreeMap<SegmentId, (Arc<PoolSegment>, u32)>>,
    /// Lost columns that `take_lost` has not returned yet.
    pub lost: RankedMutex<LOST, Vec<(SegmentId, LostColumn)>>,
    pub damaged: RankedMutex<DAMAGED, BTreeSet<SegmentId>>,
    /// How often a segment was added to `damaged`; it never decreases.
    pub damage_seen: AtomicU64,
    pub checksums: Checksums,
    pub codes: Codes,
    pub rebuilt_blocks: AtomicU64,
    pub stripes_written: AtomicU64,
    pub payload_bytes: AtomicU64,
}

/// One device of the pool, as `status` reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceStatus {
    /// Its index in the pool's device table.
    pub index: DeviceIndex,
    /// Its uuid.
    pub uuid: Uuid,
    /// Its name; `None` when it is missing.
    pub name: Option<String>,
    /// Its health.
    pub state: DeviceState,
    /// The name of an old copy of it that was found at the opening instead of it.
    pub old_copy: Option<String>,
    /// Whether it leaves the pool: it gets no new columns, and those that it has move to other devices.
    pub is_leaving: bool,
    /// Whether it waits for the loss of another device: it gets no columns before.
    pub is_spare: bool,
    /// Whether it owes an answer to an operation that the pool stopped waiting for. Reads go round it.
    pub is_slow: bool,
    /// Number of its zones, the two for roots included.
    pub zones: u32,
    /// Number of its free zones.
    pub free_zones: u32,
    /// Number of its zones that it could not reset since the pool was opened. They are out of use until a
    /// later reset succeeds.
    pub retired_zones: u32,
    /// Operations on it since the pool was opened.
    pub counters: DeviceCounters,
    /// What the pool has done to it since it joined, as far as roots have recorded it.
    pub life: DeviceLife,
}

/// Summary of the pool's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The pool's uuid.
    pub uuid: Uuid,
    /// Data columns of new segments.
    pub data: u16,
    /// Parity columns of new segments.
    pub parity: u8,
    /// Bytes in a zone.
    pub zone_bytes: u64,
    /// Its devices, in index order, without those that were removed.
    pub devices: Vec<DeviceStatus>,
    /// Number of segments that are damaged now.
    pub damaged_segments: usize,
}

impl Status {
    /// Number of devices that are missing, failed or gone.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.devices.iter().filter(|d| d.state != DeviceState::Present).count()
    }
}

/// Data columns of a bulk segment of `width` columns.
pub(crate) fn data_columns(width: u64, parity: u8) -> u16 {
    u16::try_from(width - u64::from(parity)).expect("no more than the pool's data columns")
}

impl Pool {
    /// The pool's uuid.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.inner.uuid
    }

    /// This session's epoch: one more than the epoch of the newest root found when the pool was opened. A
    /// session that reads has no epoch of its own, and this is the epoch of that root.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.inner.epoch.load(Relaxed)
    }

    /// Whether the pool is open for reading: then every call that would write returns `OpenForReading`.
    #[must_use]
    pub fn is_for_reading(&self) -> bool {
        self.inner.devices.for_reading()
    }

    /// Whether reads of so many bytes may be made together by one call of `read_many`, although they are of
    /// different callers: none of them waits for a device that another one needs and that does not answer.
    #[must_use]
    pub fn may_share_batch(&self, len_bytes: usize) -> bool {
        self.inner.devices.may_share_batch(len_bytes)
    }

    /// The geometry of a segment of this kind that is allocated now. A bulk segment has fewer data columns
    /// than on devices with equally many free zones where more data fits so. If none fits, the geometry is
    /// that of `full_geometry`.
    #[must_use]
    pub fn geometry(&self, kind: SegmentKind) -> Geometry {
        let inner = &self.inner;
        let devices = inner.devices.all_allocatable();
        let (mut data, parity) = inner.shape(kind, devices.len());
        if kind == SegmentKind::Bulk {
            let plan = inner.plan(&inner.zones.lock(), &devices);
            data = plan.next_width().map_or(data, |width| data_columns(width, parity));
        }
        Geometry::new(kind, data, parity, inner.zone_blocks)
    }

    /// The geometry of a bulk segment if all devices that take writes have equally many free zones.
    #[must_use]
    pub fn full_geometry(&self) -> Geometry {
        let inner = &self.inner;
        let (data, parity) = inner.shape(SegmentKind::Bulk, inner.devices.all_allocatable().len());
        Geometry::new(SegmentKind::Bulk, data, parity, inner.zone_blocks)
    }

    /// Payload bytes of a bulk segment with `data` data columns, whatever a new one would have.
    #[must_use]
    pub fn bulk_payload_bytes(&self, data: u16) -> u64 {
        self.inner.bulk_payload_bytes(data)
    }

    /// How many segments of this kind fit into the free zones, if only this kind is allocated. Bulk segments
    /// leave the last free zone of each device to mirrors.
    #[must_use]
    pub fn free_segments(&self, kind: SegmentKind) -> u64 {
        let inner = &self.inner;
        let devices = inner.devices.all_allocatable();
        match kind {
            SegmentKind::Bulk => inner.plan(&inner.zones.lock(), &devices).segments,
            SegmentKind::Mirror => {
                let (data, parity) = inner.shape(kind, devices.len());
                inner.zones.lock().takes_left(usize::from(data) + usize::from(parity), &devices)
            }
        }
    }

    /// Payload bytes of the bulk segments that fit into the free zones: exactly those that `allocate` makes,
    /// if no other segment is made or freed.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let inner = &self.inner;
        let devices = inner.devices.all_allocatable();
        let zones = inner.zones.lock();
        inner.free_bytes_beside(&zones, &devices, inner.spare_zones(&zones, &devices))
    }

    /// Whether a mirror can be allocated so that another one can be allocated after it, even if as many
    /// devices are lost in between as parity still covers.
    #[must_use]
    pub fn leaves_a_mirror(&self) -> bool {
        let inner = &self.inner;
        let devices = inner.devices.all_allocatable();
        let losses = usize::from(inner.shape.parity()).saturating_sub(inner.devices.lost_count());
        let width = |live| {
            let (data, parity) = inner.shape(SegmentKind::Mirror, live);
            usize::from(data) + usize::from(parity)
        };
        let left = width(devices.len().saturating_sub(losses));
        inner.zones.lock().leaves_after(width(devices.len()), &devices, losses, left)
    }

    /// Adds a segment that the caller knows from its own records: its zones become used, and the stripes in
    /// the descriptor become readable. No device is read.
    ///
    /// # Errors
    /// `Misfit` if the descriptor contradicts the pool or another segment.
    pub fn adopt(&self, d: &SegmentDescriptor) -> Result<(), PoolError> {
        let inner = &self.inner;
        let misfit = |source| PoolError::Misfit { id: d.id, source };
        let stripes = StripeIndex::of(d, inner.zone_blocks).ok_or(misfit(TOO_LONG))?;
        let mut segments = inner.segments.write();
        if segments.contains_key(&d.id) {
            return Err(misfit(TWICE));
        }
        let mut zones = inner.zones.lock();
        // All zones are checked before the first is taken, so a refused descriptor changes nothing.
        if !d.columns.iter().all(|(device, zone)| zones.is_free(*device, *zone)) {
            return Err(misfit(OVERLAP));
        }
        for (device, zone) in &d.columns {
            zones.use_zone(*device, *zone);
        }
        let moment = inner.devices.moment();
        segments.insert(d.id, Arc::new(PoolSegment::new(d, &inner.codes, stripes, moment)));
        Ok(())
    }

    /// Removes a segment and resets its zones. Before the call the caller makes durable that nothing refers
    /// to the segment.
    ///
    /// A zone that its device cannot reset is retired.
    ///
    /// # Errors
    /// `UnknownSegment`; `OpenForReading`.
    pub fn free(&self, id: SegmentId) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let segment = inner.segments.write().remove(&id).ok_or(PoolError::UnknownSegment(id))?;
        // A flush must not fail for a segment that nobody needs any more.
        inner.unflushed.lock().remove(&id);
        inner.damaged.lock().remove(&id);
        inner.free_zones(segment.columns.iter().copied());
        Ok(())
    }

    /// Looks for zones that are neither used nor free, for a caller that finds the pool full. Gives frozen
    /// states up, and tries to reset retired zones. Returns whether a zone is free again. Of the calls in a
    /// row that free none, only the 1st, 2nd, 4th, 8th and so on try retired zones: a device that refuses
    /// every reset is asked less and less.
    #[must_use]
    pub fn find_free_zones(&self) -> bool {
        let inner = &self.inner;
        if inner.give_up_frozen() > 0 {
            return true;
        }
        let retired = inner.zones.lock().retired();
        if retired == 0 || !(inner.retired_asked.fetch_add(1, Relaxed) + 1).is_power_of_two() {
            return false;
        }
        let (mut freed, moment) = (0, inner.devices.moment());
        for device in inner.devices.all_writable() {
            // Ends: each round takes a zone from the list and puts at most one back, with which it ends.
            while let Some(zone) = {
                let mut zones = inner.zones.lock();
                zones.take_retired(device)
            } {
                if !inner.reset_zone(device, zone) {
                    inner.zones.lock().retire_zone(device, zone);
                    break;
                }
                inner.free_reset_zone(device, zone, moment);
                freed += 1;
            }
        }
        if freed > 0 {
            inner.retired_asked.store(0, Relaxed);
        }
        tracing::warn!(
            name: "pool_full_with_retired_zones",
            retired,
            freed,
            "the pool is full while zones are out of use that their devices could not reset"
        );
        freed > 0
    }

    /// Number of zones that frozen states keep: neither used nor free.
    #[must_use]
    pub fn kept_zones(&self) -> u64 {
        self.inner.kept_zones() as u64
    }

    /// Makes every write durable that returned before this call: flushes, all at once, each device that was
    /// written since its last flush.
    ///
    /// # Errors
    /// `Failed` if a segment with unflushed stripes has more lost columns than parity columns, or if a device
    /// was lost and no root can name it.
    pub fn flush(&self) -> Result<(), PoolError> {
        self.inner.flush()?;
        self.inner.record_losses()
    }

    /// Segments in which a read or a verification met damage since the pool was opened, without those that
    /// were freed or resilvered since.
    #[must_use]
    pub fn damaged_segments(&self) -> Vec<SegmentId> {
        self.inner.damaged.lock().iter().copied().collect()
    }

    /// Whether the device takes writes.
    #[must_use]
    pub fn takes_writes(&self, device: DeviceIndex) -> bool {
        self.inner.devices.writable(device)
    }

    /// How many more devices a segment may lose: its parity columns, without the columns that lack stripes or
    /// are on devices that take no writes. `None` if it has lost more than parity covers, or does not exist.
    #[must_use]
    pub fn losses_left(&self, id: SegmentId) -> Option<usize> {
        let segment = self.inner.segment(id).ok()?;
        usize::from(segment.parity).checked_sub(self.inner.columns_away(&segment))
    }

    /// How often a device was taken back since the pool was opened.
    #[must_use]
    pub fn returns(&self) -> u64 {
        self.inner.devices.moment()
    }

    /// Whether a column in this zone is to move: its device leaves the pool, or is to end before the zone.
    #[must_use]
    pub fn vacates(&self, device: DeviceIndex, zone: ZoneIndex) -> bool {
        self.inner.devices.vacates(device, zone)
    }

    /// Devices that take writes, in index order.
    #[must_use]
    pub fn writable_devices(&self) -> Vec<DeviceIndex> {
        self.inner.devices.all_writable()
    }

    /// Devices on which zones may be taken: those that take writes, do not leave the pool, and are no spares.
    #[must_use]
    pub fn allocatable_devices(&self) -> Vec<DeviceIndex> {
        self.inner.devices.all_allocatable()
    }

    /// Columns that missed a write or a flush, as far as no call has returned them yet. After a flush these
    /// are all columns that lack a stripe written before it.
    #[must_use]
    pub fn take_lost(&self) -> Vec<(SegmentId, LostColumn)> {
        std::mem::take(&mut *self.inner.lost.lock())
    }

    /// How often a segment was listed as damaged since the pool was opened. The call is cheap: a caller may
    /// compare the number after every read.
    #[must_use]
    pub fn damage_seen(&self) -> u64 {
        self.inner.damage_seen.load(Relaxed)
    }

    /// Numbers of reads, writes, flushes and reconstructed blocks since the pool was opened.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        let inner = &self.inner;
        let members = inner.devices.members();
        let devices: Vec<DeviceCounters> =
            members.iter().map(|(index, _)| inner.devices.counters(*index)).collect();
        let mut total = DeviceCounters::default();
        for d in &devices {
            total += *d;
        }
        PoolCounters {
            total,
            devices,
            rebuilt_blocks: inner.rebuilt_blocks.load(Relaxed),
            stripes: inner.stripes_written.load(Relaxed),
            payload_bytes: inner.payload_bytes.load(Relaxed),
        }
    }

    /// Device operations since the pool was opened that programs wait for: those of threads that do no
    /// background work.
    #[must_use]
    pub fn program_ops(&self) -> u64 {
        self.inner.devices.program_ops()
    }

    /// The pool's shape, its devices and their health.
    #[must_use]
    pub fn status(&self) -> Status {
        let inner = &self.inner;
        // Counters, zones and states are read one after the other: under load they may be some operations
        // apart.
        let members = inner.devices.members();
        let zones = inner.zones.lock();
        let devices = members.into_iter().filter(|(_, member)| !member.is_gone);
        let devices = devices.map(|(index, entry)| DeviceStatus {
            index,
            uuid: entry.uuid,
            name: inner.devices.name(index),
            state: inner.devices.state(index),
            old_copy: inner.old_copy(index),
            is_leaving: entry.is_leaving,
            is_spare: entry.is_spare,
            is_slow: !inner.devices.answers(index),
            zones: entry.zones,
            free_zones: u32::try_from(zones.free_on(index)).expect("zones are numbered by 32 bits"),
            retired_zones: zones.retired_on(index),
            counters: inner.devices.counters(index),
            life: inner.devices.life(index),
        });
        Status {
            uuid: inner.uuid,
            data: inner.shape.data(),
            parity: inner.shape.parity(),
            zone_bytes: inner.zone_bytes(),
            devices: devices.collect(),
            damaged_segments: inner.damaged.lock().len(),
        }
    }
}

impl Inner {
    /// The bulk segments that fit into the free zones of these devices.
    fn plan(&self, zones: &Zones, devices: &[DeviceIndex]) -> Plan {
        zones.plan(self.widths(devices.len()), devices, self.spare_zones(zones, devices))
    }

    /// Payload bytes of the bulk segments that leave so many zones of each device free.
    pub(crate) fn free_bytes_beside(&self, zones: &Zones, devices: &[DeviceIndex], spare: u64) -> u64 {
        let widths = self.widths(devices.len());
        let shapes = zones.plan(widths, devices, spare).by_width();
        self.payload_bytes_of(shapes, widths.parity)
    }

    /// Payload bytes of bulk segments, given by their width.
    pub(crate) fn payload_bytes_of(&self, shapes: [(u64, u64); 2], parity: u64) -> u64 {
        let parity = u8::try_from(parity).expect("parity columns are a byte");
        let payload = |width| self.bulk_payload_bytes(data_columns(width, parity));
        shapes.into_iter().filter(|(n, _)| *n > 0).map(|(n, width)| n * payload(width)).sum()
    }

    /// The name of the device that was left out as an old copy of this one, while this one is missing.
    fn old_copy(&self, index: DeviceIndex) -> Option<String> {
        let is_missing = self.devices.state(index) == DeviceState::Missing;
        let copy = self.old_copies.iter().find(|(of, _)| *of == index && is_missing);
        copy.map(|(_, device)| device.clone())
    }

    pub(crate) fn shape(&self, kind: SegmentKind, live: usize) -> (u16, u8) {
        let (data, parity) = self.shape.get();
        shape(kind, data, parity, live)
    }

    pub(crate) fn bulk_payload_bytes(&self, data: u16) -> u64 {
        Geometry::new(SegmentKind::Bulk, data, 0, self.zone_blocks).segment_payload_bytes
    }

    /// The widths of new bulk segments on `live` devices. Data columns give way down to half of the pool's,
    /// as long as a segment takes the longest append that is never split. Parity columns do not.
    pub(crate) fn widths(&self, live: usize) -> Widths {
        self.widths_of(self.shape.get(), live)
    }

    /// As `widths`, for a pool of this shape.
    pub(crate) fn widths_of(&self, of_pool: (u16, u8), live: usize) -> Widths {
        let (data, parity) = shape(SegmentKind::Bulk, of_pool.0, of_pool.1, live);
        let half = of_pool.0.div_ceil(2).min(data);
        let takes_appends = |data: &u16| self.bulk_payload_bytes(*data) >= SEGMENT_PAYLOAD_MIN_BYTES;
        let least = (half..data).find(takes_appends).unwrap_or(data);
        let width = |data| u64::from(data) + u64::from(parity);
        if data == 0 {
            return Widths { least: 0, most: 0, parity: 0 };
        }
        Widths { least: width(least), most: width(data), parity: parity.into() }
    }

    pub(crate) fn zone_bytes(&self) -> u64 {
        u64::from(self.zone_blocks) * BLOCK_BYTES as u64
    }

    /// The device byte at which block `block` of a zone begins.
    pub(crate) fn zone_offset(&self, zone: ZoneIndex, block: u32) -> u64 {
        debug_assert!(block <= self.zone_blocks, "a block offset is inside its zone or at its end");
        u64::from(zone.0) * self.zone_bytes() + u64::from(block) * BLOCK_BYTES as u64
    }

    /// Resets a zone. Returns whether it can be written from its start now. If not, the caller retires it.
    pub(crate) fn reset_zone(&self, device: DeviceIndex, zone: ZoneIndex) -> bool {
        let _writing = self.writing.read();
        self.reset_with_pass(device, zone)
    }

    /// As `reset_zone`, for a caller that holds a pass (`Inner::writing`).
    pub(crate) fn reset_with_pass(&self, device: DeviceIndex, zone: ZoneIndex) -> bool {
        self.devices.reset_zone(device, self.zone_offset(zone, 0), self.zone_bytes()).is_ok()
    }

    /// Takes a used zone that its device cannot reset out of use.
    pub(crate) fn retire_zone(&self, device: DeviceIndex, zone: ZoneIndex) {
        self.zones.lock().retire_zone(device, zone);
        tracing::warn!(
            name: "zone_retired",
            device = device.0,
            zone = zone.0,
            "a device cannot reset a zone; the zone is tried again when the pool is full or opened"
        );
    }

    pub(crate) fn segment(&self, id: SegmentId) -> Result<Arc<PoolSegment>, PoolError> {
        self.segments.read().get(&id).cloned().ok_or(PoolError::UnknownSegment(id))
    }

    /// Frees a zone that was reset after this moment.
    pub(crate) fn free_reset_zone(&self, device: DeviceIndex, zone: ZoneIndex, moment: u64) {
        let mut zones = self.zones.lock();
        // A device that was away since may have lost the reset.
        let is_clean = self.devices.writes_since(device, moment);
        zones.free_zone(device, zone, is_clean);
    }

    /// Records that the columns of a segment on devices that take no more writes, or have missed some, may
    /// lack stripes from `first_stripe` on.
    pub(crate) fn note_lost(&self, segment: &PoolSegment, first_stripe: u32) {
        let mut lost = segment.lost.lock();
        for (column, place) in (0u16..).zip(&segment.columns) {
            let missing = LostColumn { column, first_stripe };
            if !self.takes_stripes(*place, segment.moment) && missing.note_in(&mut lost) {
                self.lost.lock().push((segment.id, missing));
            }
        }
    }

    /// Number of columns of a segment that gets stripes which take none: their devices or zones take no more
    /// writes, or the devices have missed some.
    pub(crate) fn lost_columns(&self, segment: &PoolSegment) -> usize {
        segment.columns.iter().filter(|place| !self.takes_stripes(**place, segment.moment)).count()
    }

    /// Whether a column in this zone, which was taken at this moment, gets the stripes of its segment.
    pub(crate) fn takes_stripes(&self, (device, zone): (DeviceIndex, ZoneIndex), moment: u64) -> bool {
        self.devices.writes_zone_since(device, self.zone_offset(zone, 0), moment)
    }

    /// Number of columns of a segment that lack stripes or are on devices that take no writes.
    pub(crate) fn columns_away(&self, segment: &PoolSegment) -> usize {
        let lost = segment.lost.lock();
        let is_away = |(column, (device, _)): &(u16, &(DeviceIndex, ZoneIndex))| {
            !self.devices.writable(*device) || lost.iter().any(|lost| lost.column == *column)
        };
        (0u16..).zip(&segment.columns).filter(is_away).count()
    }

    /// Lists a segment as damaged, and reports it the first time. A segment that was freed while it was read
    /// is not listed: its zones may hold anything.
    pub(crate) fn note_damage(&self, id: SegmentId) {
        // Held while the list is changed: `free` removes the segment first, and then the entry in the list.
        let segments = self.segments.read();
        if segments.contains_key(&id) && self.damaged.lock().insert(id) {
            self.damage_seen.fetch_add(1, Relaxed);
            tracing::warn!(segment = id.get(), "segment damaged");
        }
    }

    /// `OpenForReading` while the pool is open for reading.
    pub(crate) fn check_writable(&self) -> Result<(), PoolError> {
        if self.devices.for_reading() { Err(PoolError::OpenForReading) } else { Ok(()) }
    }

    pub(crate) fn failed(&self) -> PoolError {
        PoolError::Failed { reason: self.devices.last_failure() }
    }

    pub(crate) fn flush(&self) -> Result<(), PoolError> {
        // Held to the end. The first caller may have taken a second caller's writes out of `unflushed`; the
        // second must not return before the first caller's flush has made these writes durable.
        let _flushing = self.flushing.lock();
        let covered = std::mem::take(&mut *self.unflushed.lock());
        self.devices.flush_dirty();
        // A device that fails its flush is dropped, so it counts as a lost column here. This includes a
        // device that failed a write earlier: its part of the stripes is lost as well.
        let mut is_beyond_parity = false;
        for (segment, first_stripe) in covered.values() {
            let lost = self.lost_columns(segment);
            if lost > 0 {
                self.note_lost(segment, *first_stripe);
            }
            is_beyond_parity |= lost > usize::from(segment.parity);
        }
        if is_beyond_parity { Err(self.failed()) } else { Ok(()) }
    }
}
