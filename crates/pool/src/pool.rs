//! The pool: devices, zones, segments and the root, each behind its own lock.
//!
//! Invariants
//! 1. A zone belongs to at most one segment in `segments`, or to one being allocated.
//! 2. No zone is written before a root with this session's epoch is durable. So nothing on flash carries an
//!    identity that this session may give again, whatever earlier sessions left behind.
//! 3. A segment in `unflushed` has stripes that no flush has covered yet. A flush that loses more columns of one
//!    than it has parity is an error.
//! 4. Locks are taken in this order: `roots`, `flushing`, `unflushed`; and `segments`, `zones`, `damaged`. Of these only
//!    `roots` and `flushing` are held over device operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Mutex, RwLock};
use warpfire_format::segment::{SegmentDescriptor, SegmentKind};
use warpfire_format::{Corrupt, Uuid};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::device::counters::{DeviceCounters, PoolCounters};
use crate::device::devices::{DeviceState, Devices};
use crate::device::geometry::{Geometry, shape};
use crate::device::zones::Zones;
use crate::error::PoolError;
use crate::life::roots::Roots;
use crate::read::checksums::Checksums;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripeIndex;

const OVERLAP: Corrupt = Corrupt::new(210, "segment lies on a zone that is taken or does not exist");
pub(crate) const TOO_LONG: Corrupt = Corrupt::new(211, "segment has more stripes than its zones can hold");
const TWICE: Corrupt = Corrupt::new(212, "two segments have one number");

/// Devices joined by parity and checksums. Cheap to clone; clones are the same pool. All calls may come
/// from many threads at once.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub uuid: Uuid,
    pub data: u16,
    pub parity: u8,
    pub zone_blocks: u32,
    pub epoch: u32,
    pub devices: Devices,
    pub zones: Mutex<Zones>,
    pub segments: RwLock<BTreeMap<SegmentId, Arc<PoolSegment>>>,
    pub roots: Mutex<Roots>,
    pub flushing: Mutex<()>,
    pub unflushed: Mutex<BTreeMap<SegmentId, Arc<PoolSegment>>>,
    pub damaged: Mutex<BTreeSet<SegmentId>>,
    /// Counts the segments that ever were listed in `damaged`.
    pub damage_seen: AtomicU64,
    pub checksums: Checksums,
    pub rebuilt_blocks: AtomicU64,
    pub stripes_written: AtomicU64,
    pub payload_bytes: AtomicU64,
}

/// One device of the pool, as `status` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceStatus {
    /// Its place in the pool.
    pub index: DeviceIndex,
    /// Its uuid.
    pub uuid: Uuid,
    /// Its name; `None` when it is missing.
    pub name: Option<String>,
    /// How it is doing.
    pub state: DeviceState,
    /// All its zones, the two for roots included.
    pub zones: u32,
    /// Zones that are free.
    pub free_zones: u32,
    /// What was done to it since the pool was opened.
    pub counters: DeviceCounters,
}

/// The pool at a glance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The pool's uuid.
    pub uuid: Uuid,
    /// Data columns that the pool was made with.
    pub data: u16,
    /// Parity columns that the pool was made with.
    pub parity: u8,
    /// Bytes in a zone.
    pub zone_bytes: u64,
    /// Its devices, in order.
    pub devices: Vec<DeviceStatus>,
    /// Segments in which damage was seen since the pool was opened.
    pub damaged_segments: usize,
}

impl Status {
    /// Devices that are missing, failed or gone.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.devices.iter().filter(|d| d.state != DeviceState::Present).count()
    }
}

impl Pool {
    /// The pool's uuid.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.inner.uuid
    }

    /// This session's number: one more than that of the newest root found when the pool was opened.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.inner.epoch
    }

    /// What a segment allocated now would look like.
    #[must_use]
    pub fn geometry(&self, kind: SegmentKind) -> Geometry {
        let inner = &self.inner;
        let (data, parity) = inner.shape(kind, inner.devices.all_writable().len());
        Geometry::new(kind, data, parity, inner.zone_blocks)
    }

    /// How many segments of this kind could be allocated now, if no other kind were.
    #[must_use]
    pub fn free_segments(&self, kind: SegmentKind) -> u64 {
        let inner = &self.inner;
        let writable = inner.devices.all_writable();
        let (data, parity) = inner.shape(kind, writable.len());
        inner.zones.lock().takes_left(usize::from(data) + usize::from(parity), &writable)
    }

    /// Takes in a segment that the caller knows from its own records: its zones become used, and the stripes
    /// that it lists readable. Nothing is read.
    ///
    /// # Errors
    /// `Misfit` if it contradicts the pool or another segment.
    pub fn adopt(&self, d: &SegmentDescriptor) -> Result<(), PoolError> {
        let inner = &self.inner;
        let misfit = |source| PoolError::Misfit { id: d.id, source };
        let stripes = StripeIndex::of(d, inner.zone_blocks).ok_or(misfit(TOO_LONG))?;
        let mut segments = inner.segments.write();
        if segments.contains_key(&d.id) {
            return Err(misfit(TWICE));
        }
        let mut zones = inner.zones.lock();
        if !d.columns.iter().all(|(device, zone)| zones.is_free(*device, *zone)) {
            return Err(misfit(OVERLAP));
        }
        for (device, zone) in &d.columns {
            zones.use_zone(*device, *zone);
        }
        segments.insert(d.id, Arc::new(PoolSegment::new(d, stripes)));
        Ok(())
    }

    /// Forgets a segment and resets its zones. The caller made durable before that nothing refers to it.
    ///
    /// A zone that can not be reset now is reset before it is used again.
    ///
    /// # Errors
    /// `UnknownSegment`.
    pub fn free(&self, id: SegmentId) -> Result<(), PoolError> {
        let inner = &self.inner;
        let segment = inner.segments.write().remove(&id).ok_or(PoolError::UnknownSegment(id))?;
        inner.unflushed.lock().remove(&id);
        inner.damaged.lock().remove(&id);
        inner.free_zones(segment.columns.iter().copied());
        Ok(())
    }

    /// Makes durable every write that returned before this call: flushes each device that was written since
    /// its last flush, all at once.
    ///
    /// # Errors
    /// `Failed` when a segment with unflushed stripes lost more columns than it has parity.
    pub fn flush(&self) -> Result<(), PoolError> {
        self.inner.flush()
    }

    /// Segments in which a read or recovery met damage since the pool was opened, freed ones left out.
    #[must_use]
    pub fn damaged_segments(&self) -> Vec<SegmentId> {
        self.inner.damaged.lock().iter().copied().collect()
    }

    /// How many segments damage was met in since the pool was opened: cheap to ask after every read.
    #[must_use]
    pub fn damage_seen(&self) -> u64 {
        self.inner.damage_seen.load(Relaxed)
    }

    /// What was read, written, flushed and rebuilt since the pool was opened.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        let inner = &self.inner;
        let devices = inner.devices.counters();
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

    /// The devices and how they are doing.
    #[must_use]
    pub fn status(&self) -> Status {
        let inner = &self.inner;
        let counters = inner.devices.counters();
        let zones = inner.zones.lock();
        let devices = inner.devices.indices().zip(inner.devices.table()).zip(counters);
        let devices = devices.map(|((index, entry), counters)| DeviceStatus {
            index,
            uuid: entry.uuid,
            name: inner.devices.name(index).map(str::to_owned),
            state: inner.devices.state(index),
            zones: entry.zones,
            free_zones: u32::try_from(zones.free_on(index)).expect("zones are numbered by 32 bits"),
            counters,
        });
        Status {
            uuid: inner.uuid,
            data: inner.data,
            parity: inner.parity,
            zone_bytes: inner.zone_bytes(),
            devices: devices.collect(),
            damaged_segments: inner.damaged.lock().len(),
        }
    }
}

impl Inner {
    pub(crate) fn shape(&self, kind: SegmentKind, live: usize) -> (u16, u8) {
        shape(kind, self.data, self.parity, live)
    }

    pub(crate) fn zone_bytes(&self) -> u64 {
        u64::from(self.zone_blocks) * BLOCK_BYTES as u64
    }

    /// The device byte at which block `block` of a zone lies.
    pub(crate) fn zone_offset(&self, zone: ZoneIndex, block: u32) -> u64 {
        u64::from(zone.0) * self.zone_bytes() + u64::from(block) * BLOCK_BYTES as u64
    }

    /// Whether the zone is empty now; if not, the device was dropped.
    pub(crate) fn reset_zone(&self, device: DeviceIndex, zone: ZoneIndex) -> bool {
        self.devices.reset_zone(device, self.zone_offset(zone, 0), self.zone_bytes()).is_ok()
    }

    pub(crate) fn segment(&self, id: SegmentId) -> Result<Arc<PoolSegment>, PoolError> {
        self.segments.read().get(&id).cloned().ok_or(PoolError::UnknownSegment(id))
    }

    /// Columns of a segment that lie on devices which are not written any more.
    pub(crate) fn lost_columns(&self, segment: &PoolSegment) -> usize {
        segment.columns.iter().filter(|(device, _)| !self.devices.writable(*device)).count()
    }

    /// Lists a segment as damaged.
    pub(crate) fn note_damage(&self, id: SegmentId) {
        if self.damaged.lock().insert(id) {
            self.damage_seen.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn failed(&self) -> PoolError {
        PoolError::Failed { reason: self.devices.last_failure() }
    }

    pub(crate) fn flush(&self) -> Result<(), PoolError> {
        // Held to the end: a second caller must not return before the flush that took its writes has.
        let _flushing = self.flushing.lock();
        let covered = std::mem::take(&mut *self.unflushed.lock());
        self.devices.flush_dirty();
        if covered.values().any(|s| self.lost_columns(s) > usize::from(s.parity)) {
            return Err(self.failed());
        }
        Ok(())
    }
}
