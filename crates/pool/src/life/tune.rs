//! The shape of new segments, k + m, and the wishes for older ones. Both are part of each root.
//!
//! # Invariants
//! 1. A change is done once a root with it is durable, on every device that takes writes (`tune`). A crash
//!    leaves the shape before the change or the one after it; segments of both are there either way.
//! 2. A segment with an id of `shape_since` or above was made for the shape of the root: the shape changes
//!    before the id is drawn. One below may have any shape.
//! 3. A root with another m is on every device that takes writes, because the number of devices from which a
//!    later root may be missing follows from m. A device that is away then was away before, by the older m.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use warpfire_format::root::{DeviceEntry, DeviceUse, RootWishes, SPARE_SPACE_MAX};
use warpfire_format::segment::{FIRST_SEGMENT_ZONE, SegmentKind};
use warpfire_units::{COLUMNS_MAX, PARITY_MAX, SegmentId};

use crate::device::capacity::Plan;
use crate::device::geometry::{Geometry, SEGMENT_PAYLOAD_MIN_BYTES};
use crate::device::zones::KEPT_ZONES;
use crate::error::{DeviceSetError, MembershipError, PoolError};
use crate::pool::{Inner, Pool};

/// k and m of new segments. They change together.
pub(crate) struct PoolShape(AtomicU32);

impl PoolShape {
    pub fn new(data: u16, parity: u8) -> PoolShape {
        PoolShape(AtomicU32::new(packed(data, parity)))
    }

    pub fn get(&self) -> (u16, u8) {
        let packed = self.0.load(Acquire).to_le_bytes();
        (u16::from_le_bytes([packed[0], packed[1]]), packed[2])
    }

    pub fn data(&self) -> u16 {
        self.get().0
    }

    pub fn parity(&self) -> u8 {
        self.get().1
    }

    fn set(&self, (data, parity): (u16, u8)) {
        self.0.store(packed(data, parity), Release);
    }
}

fn packed(data: u16, parity: u8) -> u32 {
    let [low, high] = data.to_le_bytes();
    u32::from_le_bytes([low, high, parity, 0])
}

/// A change of the shape of new segments, and of the wishes for older ones and for free space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Data columns of new segments.
    pub data: u16,
    /// Parity columns of new segments.
    pub parity: u8,
    /// Whether the older segments are to get this shape.
    pub converts: bool,
    /// The space of so many devices is kept free.
    pub spare_space: u16,
}

impl Pool {
    /// The shape of new segments, and the wishes.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        let ((data, parity), wishes) = (self.inner.shape.get(), self.wishes());
        Tuning { data, parity, converts: wishes.converts, spare_space: wishes.spare_space }
    }

    /// The wishes for older segments and for free space, as the newest root has them.
    #[must_use]
    pub fn wishes(&self) -> RootWishes {
        *self.inner.wishes.lock()
    }

    /// Checks that the devices allow a change. Nothing is written.
    ///
    /// # Errors
    /// `Membership` if fewer devices than the new k + m are there to stay; `Devices` if no pool has this
    /// shape.
    pub fn check_tuning(&self, tuning: Tuning) -> Result<(), PoolError> {
        self.inner.check_tuning(tuning, &self.inner.roots.lock().table)
    }

    /// Changes the shape of the segments that are made from now on, and the wishes. `next_segment` returns
    /// the id of the next segment. Durable on return. A crash leaves the shape and the wishes before the
    /// change or those after it.
    ///
    /// # Errors
    /// As `check_tuning`; `OpenForReading`; `Failed` if the root could not be written: the shape stays as it
    /// is.
    pub fn tune(&self, tuning: Tuning, next_segment: impl FnOnce() -> SegmentId) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        inner.check_tuning(tuning, &roots.table)?;
        // The first root of a session has the shape that the session began with.
        inner.repeat_inherited(&mut roots)?;
        let (shape_before, wishes_before) = (inner.shape.get(), *inner.wishes.lock());
        let shape = (tuning.data, tuning.parity);
        inner.set_shape(shape);
        let mut wishes = RootWishes { spare_space: tuning.spare_space, ..wishes_before };
        if shape != shape_before || tuning.converts != wishes_before.converts {
            // The allocator uses the new shape already, so no segment with this id or a later one has
            // another.
            wishes.shape_since = next_segment().get();
            wishes.converts = tuning.converts;
            let of_older =
                if wishes_before.shape_since > 0 { wishes_before.older_parity } else { shape_before.1 };
            wishes.older_parity = of_older.min(shape_before.1).min(tuning.parity);
        }
        *inner.wishes.lock() = wishes;
        roots.config_version += 1;
        let payload = roots.payload.clone();
        let written = inner.append_root_to_all(&mut roots, payload);
        if written.is_err() {
            inner.set_shape(shape_before);
            *inner.wishes.lock() = wishes_before;
            return written;
        }
        let Tuning { data, parity, converts, spare_space } = tuning;
        tracing::info!(name: "pool_tuned", data, parity, converts, spare_space, "the shape of new segments");
        Ok(())
    }

    /// Payload bytes of all segments that fit into the pool, if each has this shape or a narrower one of it.
    #[must_use]
    pub fn capacity_of(&self, tuning: Tuning) -> u64 {
        let inner = &self.inner;
        let devices = inner.devices.all_allocatable();
        let set_aside = u64::from(FIRST_SEGMENT_ZONE.0) + KEPT_ZONES;
        let zones = inner.zones.lock();
        let usable =
            |d| u64::from(zones.count_on(d)).saturating_sub(set_aside + u64::from(zones.retired_on(d)));
        let spare = inner.spare_zones_of(&zones, &devices, tuning.spare_space);
        let sizes: Vec<u64> = devices.iter().map(|d| usable(*d).saturating_sub(spare)).collect();
        let widths = inner.widths_of((tuning.data, tuning.parity), devices.len());
        inner.payload_bytes_of(Plan::of(&sizes, widths).by_width(), widths.parity)
    }
}

impl Inner {
    fn set_shape(&self, shape: (u16, u8)) {
        self.shape.set(shape);
        self.devices.set_parity(usize::from(shape.1));
    }

    fn check_tuning(&self, tuning: Tuning, table: &[DeviceEntry]) -> Result<(), PoolError> {
        let Tuning { data, parity, spare_space, .. } = tuning;
        let width = usize::from(data) + usize::from(parity);
        let impossible = |reason| Err(DeviceSetError::Impossible(reason).into());
        if data == 0 || usize::from(parity) > PARITY_MAX || width > COLUMNS_MAX {
            return impossible(format!(
                "{data}+{parity}: at least 1 data column, at most {PARITY_MAX} parity and {COLUMNS_MAX} together"
            ));
        }
        let stays = |e: &&DeviceEntry| e.state != DeviceUse::Gone && !e.is_leaving && !e.is_spare;
        let staying = table.iter().filter(stays).count();
        if staying < width {
            return Err(MembershipError::TooFew { staying, width }.into());
        }
        if spare_space > SPARE_SPACE_MAX || usize::from(spare_space) >= staying {
            return impossible(format!(
                "the space of {spare_space} devices cannot be kept free on {staying}"
            ));
        }
        // As in a new pool: the narrowest segment takes the longest append that is never split.
        let narrowest = Geometry::new(SegmentKind::Bulk, 1, parity, self.zone_blocks).segment_payload_bytes;
        let may_be_narrow = data == 1 || parity > 0;
        if may_be_narrow && narrowest < SEGMENT_PAYLOAD_MIN_BYTES {
            let zone_bytes = self.zone_bytes();
            return impossible(format!("a zone of {zone_bytes} bytes is too small for one data column"));
        }
        Ok(())
    }
}
