//! Allocation of a new segment: takes zones on the emptiest devices, resets them and makes a writer for them.
//! A bulk segment is the next one of the plan (`device::capacity`).
//!
//! A crash during allocation leaves zones that were reset and that no descriptor names. They are free after
//! the next open, because the client names all segments and every other zone is free.

use std::sync::Arc;

use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState, SegmentStream};
use warpfire_units::{DeviceIndex, SegmentId};

use crate::device::zones::TakenZone;
use crate::error::PoolError;
use crate::pool::{Inner, Pool, data_columns};
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripeIndex;
use crate::segment::writer::SegmentWriter;

impl Pool {
    /// Makes a new, empty segment for one stream. A zone that its device cannot reset is retired, and the
    /// segment is made of others.
    ///
    /// The first call of a session rewrites the last root with this session's epoch, unless `write_root` has
    /// been called (see "Invariants" in this crate's README).
    ///
    /// # Errors
    /// `NoSpace`; `Failed` if no device takes writes any more, or if the root could not be written;
    /// `OpenForReading`.
    ///
    /// # Panics
    /// If the segment exists: a session uses a number once.
    pub fn allocate(&self, id: SegmentId, stream: SegmentStream) -> Result<SegmentWriter, PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        // Before the first write to a zone: stripes must not carry an epoch that the next open would assign
        // again.
        inner.ensure_epoch_is_durable()?;
        // Ends: each round that fails retires a zone.
        loop {
            let moment = inner.devices.moment();
            let devices = inner.devices.all_allocatable();
            let (data, parity) = inner.shape(stream.kind(), devices.len());
            if data == 0 {
                return Err(inner.failed());
            }
            let taken = match stream.kind() {
                SegmentKind::Bulk => {
                    let widths = inner.widths(devices.len());
                    inner.take_zones(|zones| {
                        let spare = inner.spare_zones(zones, &devices);
                        zones.take_bulk(widths, &devices, id.get(), spare)
                    })
                }
                SegmentKind::Mirror => {
                    let width = usize::from(data) + usize::from(parity);
                    inner.take_zones(|zones| zones.take(width, &devices, id.get()))
                }
            };
            let taken = taken.ok_or(PoolError::NoSpace)?;
            let data = data.min(data_columns(taken.len() as u64, parity));
            if !inner.reset_all(&taken, moment) {
                continue;
            }
            let d = SegmentDescriptor {
                id,
                epoch: self.epoch(),
                stream,
                data,
                parity,
                columns: taken.iter().map(|t| (t.device, t.zone)).collect(),
                lost: Vec::new(),
                stripes: Vec::new(),
                state: SegmentState::Open,
            };
            let segment = Arc::new(PoolSegment::new(&d, &inner.codes, StripeIndex::default(), moment));
            let before = inner.segments.write().insert(id, Arc::clone(&segment));
            assert!(before.is_none(), "a session uses a segment number once");
            return Ok(SegmentWriter::new(Arc::clone(inner), segment));
        }
    }
}

impl Inner {
    /// Resets the zones that are not clean. If a reset fails, retires its zone, frees the others of `taken`
    /// and returns `false`.
    fn reset_all(&self, taken: &[TakenZone], moment: u64) -> bool {
        // The lock on the zones is not held: a reset waits for its device.
        let reset: Vec<(DeviceIndex, bool)> =
            taken.iter().map(|t| (t.device, t.clean || self.reset_zone(t.device, t.zone))).collect();
        let all = reset.iter().all(|(_, ok)| *ok);
        if !all {
            // The zones that were reset are clean, so the next round takes them without another reset.
            for (t, (device, ok)) in taken.iter().zip(reset) {
                if ok {
                    self.free_reset_zone(device, t.zone, moment);
                } else {
                    self.retire_zone(device, t.zone);
                }
            }
        }
        all
    }
}
