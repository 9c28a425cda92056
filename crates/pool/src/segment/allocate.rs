//! Making a new segment: zones from the emptiest devices, reset, and a writer for them.

use std::sync::Arc;

use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState};
use warpfire_units::{DeviceIndex, SegmentId};

use crate::device::zones::TakenZone;
use crate::error::PoolError;
use crate::pool::{Inner, Pool};
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripeIndex;
use crate::segment::writer::SegmentWriter;

impl Pool {
    /// Makes a new, empty segment. A device that can not reset its zone is dropped, and the segment made
    /// of the others.
    ///
    /// The first call of a session rewrites the last root with this session's epoch, unless `write_root` has
    /// been called (see "Invariants" in this crate's README).
    ///
    /// # Errors
    /// `NoSpace`; `Failed` if no device takes writes any more.
    ///
    /// # Panics
    /// If the segment exists: numbers are never reused.
    pub fn allocate(&self, id: SegmentId, kind: SegmentKind) -> Result<SegmentWriter, PoolError> {
        let inner = &self.inner;
        inner.ensure_epoch_is_durable()?;
        loop {
            let writable = inner.devices.all_writable();
            let (data, parity) = inner.shape(kind, writable.len());
            if data == 0 {
                return Err(inner.failed());
            }
            let width = usize::from(data) + usize::from(parity);
            let taken = inner.zones.lock().take(width, &writable, id.get()).ok_or(PoolError::NoSpace)?;
            if !inner.reset_all(&taken) {
                continue;
            }
            let d = SegmentDescriptor {
                id,
                epoch: inner.epoch,
                kind,
                data,
                parity,
                columns: taken.iter().map(|t| (t.device, t.zone)).collect(),
                stripes: Vec::new(),
                state: SegmentState::Open,
            };
            let segment = Arc::new(PoolSegment::new(&d, StripeIndex::default()));
            let before = inner.segments.write().insert(id, Arc::clone(&segment));
            assert!(before.is_none(), "segment numbers are never reused");
            return Ok(SegmentWriter::new(Arc::clone(inner), segment));
        }
    }
}

impl Inner {
    /// Resets what is not clean. If a device fails, gives all zones back and says no.
    fn reset_all(&self, taken: &[TakenZone]) -> bool {
        let reset: Vec<(DeviceIndex, bool)> =
            taken.iter().map(|t| (t.device, t.clean || self.reset_zone(t.device, t.zone))).collect();
        let all = reset.iter().all(|(_, ok)| *ok);
        if !all {
            let mut zones = self.zones.lock();
            for (t, (device, ok)) in taken.iter().zip(reset) {
                zones.free_zone(device, t.zone, ok);
            }
        }
        all
    }
}
