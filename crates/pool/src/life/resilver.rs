//! Giving a segment back the columns that it lost while their devices are still there.
//!
//! A crash can leave a stripe on some of its columns only, and a device can forget blocks. The stripe is readable, but the
//! next device that is lost may be one too many. So each such column is written again, whole, to a fresh zone of its own
//! device; the others stay where they are.
//!
//! Invariants
//! 1. The old zones stay used and untouched until `free_zone`, so whoever finds the old descriptor still reads what it says.
//! 2. A restored column is block for block what was first written: identity, lengths and addresses do not change.

use std::sync::Arc;

use warpfire_env::AlignedBuf;
use warpfire_format::crc32c;
use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState};
use warpfire_format::stripe::{StripeHeader, inline_start};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::error::PoolError;
use crate::pool::{Inner, Pool};
use crate::segment::header_readahead::HeaderReadahead;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// A segment after `resilver`, and the zones that it left.
#[derive(Debug)]
#[must_use = "the old zones stay used until they are given back"]
pub struct ResilveredSegment {
    /// Where the segment lies now.
    pub descriptor: SegmentDescriptor,
    old_zones: Vec<(DeviceIndex, ZoneIndex)>,
}

impl Pool {
    /// Reads all of a sealed segment and writes each column that is not whole, and whose device takes writes, to a fresh zone
    /// of that device. `None` if there is no such column. Durable after the next flush; make the new descriptor durable too,
    /// then call `free_zone`.
    ///
    /// # Errors
    /// `Unreadable` beyond parity, `NoSpace` if a device has no zone for its column, `Failed` if it fails; the segment is
    /// as it was then.
    pub fn resilver(&self, id: SegmentId) -> Result<Option<ResilveredSegment>, PoolError> {
        let inner = &self.inner;
        inner.ensure_epoch_is_durable()?;
        let segment = inner.segment(id)?;
        let places = segment.stripes.read().places();
        let lost = inner.damaged_columns(&segment, &places);
        if lost.is_empty() {
            return Ok(None);
        }
        let mut columns = segment.columns.clone();
        let mut old_zones = Vec::new();
        for column in lost {
            let (device, old) = segment.columns[column];
            match inner.write_column(&segment, &places, column) {
                Ok(zone) => {
                    columns[column].1 = zone;
                    old_zones.push((device, old));
                }
                Err(e) => {
                    let written = columns.iter().zip(&segment.columns).filter(|(new, old)| new != old);
                    inner.free_zones(written.map(|(new, _)| *new));
                    return Err(e);
                }
            }
        }
        let descriptor = SegmentDescriptor { columns, ..segment.descriptor(SegmentState::Sealed) };
        let resilvered = Arc::new(PoolSegment::new(&descriptor, segment.stripes.read().clone()));
        inner.unflushed.lock().insert(id, Arc::clone(&resilvered));
        inner.segments.write().insert(id, resilvered);
        inner.damaged.lock().remove(&id);
        Ok(Some(ResilveredSegment { descriptor, old_zones }))
    }

    /// Reads every block of a segment, headers and parity too. If some column does not verify it is listed as damaged, and the
    /// answer is `false`. Columns on devices that take no writes are not judged.
    ///
    /// # Errors
    /// `UnknownSegment`.
    pub fn verify(&self, id: SegmentId) -> Result<bool, PoolError> {
        let inner = &self.inner;
        let segment = inner.segment(id)?;
        let places = segment.stripes.read().places();
        for place in &places {
            (0..segment.width()).for_each(|column| inner.checksums.remove(id, place.stripe, column));
        }
        let whole = inner.damaged_columns(&segment, &places).is_empty();
        if !whole {
            inner.note_damage(id);
        }
        Ok(whole)
    }

    /// Resets the zones that a segment left. The caller made its new descriptor durable before.
    pub fn free_old_zones(&self, resilvered: ResilveredSegment) {
        self.inner.free_zones(resilvered.old_zones.into_iter());
    }
}

impl Inner {
    pub(crate) fn free_zones(&self, zones: impl Iterator<Item = (DeviceIndex, ZoneIndex)>) {
        for (device, zone) in zones {
            let clean = self.devices.writable(device) && self.reset_zone(device, zone);
            self.zones.lock().free_zone(device, zone, clean);
        }
    }

    /// Columns on devices that take writes of which some block does not verify.
    fn damaged_columns(&self, segment: &PoolSegment, places: &[StripePlace]) -> Vec<usize> {
        let mut whole: Vec<usize> =
            (0..segment.width()).filter(|c| self.devices.writable(segment.columns[*c].0)).collect();
        let candidates = whole.clone();
        for place in places {
            let shards = self.read_columns(segment, place, &whole, 0..place.rows);
            whole.retain(|column| {
                let shard = shards.iter().find(|s| s.column == *column);
                shard.is_some_and(|s| (0..place.rows).all(|row| s.is_sound(row)))
            });
        }
        candidates.into_iter().filter(|c| !whole.contains(c)).collect()
    }

    /// Writes a column to a fresh zone of its device.
    fn write_column(
        &self,
        segment: &PoolSegment,
        places: &[StripePlace],
        column: usize,
    ) -> Result<ZoneIndex, PoolError> {
        let device = segment.columns[column].0;
        let taken = self.zones.lock().take(1, &[device], 0).ok_or(PoolError::NoSpace)?;
        let zone = taken.first().expect("one zone was taken").zone;
        let written = (taken.iter().all(|t| t.clean) || self.reset_zone(device, zone))
            .then_some(())
            .ok_or_else(|| self.failed())
            .and_then(|()| places.iter().try_for_each(|p| self.write_shard(segment, p, column, zone)));
        if let Err(e) = written {
            self.free_zones([(device, zone)].into_iter());
            return Err(e);
        }
        Ok(zone)
    }

    fn write_shard(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        column: usize,
        zone: ZoneIndex,
    ) -> Result<(), PoolError> {
        let found = self
            .headers_at(segment, place.stripe, place.block, &mut HeaderReadahead::default())
            .ok_or(PoolError::Unreadable {
                segment: segment.id,
                stripe: place.stripe,
                readable: 0,
                needed: segment.needed(),
            })?;
        let reconstructed = self.reconstruct(segment, place, &[column], 0..place.rows)?;
        let mut shard = AlignedBuf::zeroed((usize::from(place.rows) + 1) * BLOCK_BYTES);
        let (header, blocks) = shard.split_at_mut(BLOCK_BYTES);
        for (row, block) in (0..place.rows).zip(blocks.chunks_exact_mut(BLOCK_BYTES)) {
            block.copy_from_slice(reconstructed.block(column, row));
        }
        if segment.kind == SegmentKind::Mirror {
            let start = inline_start(place.rows);
            header[start..start + found.inline.len()].copy_from_slice(&found.inline);
        }
        let crcs: Vec<u32> =
            blocks.chunks_exact(BLOCK_BYTES).take(usize::from(place.rows)).map(crc32c).collect();
        StripeHeader {
            identity: segment.identity(self.uuid, place.stripe, column),
            sequence: found.sequence,
            rows: place.rows,
            payload_bytes: u32::try_from(found.payload_bytes).expect("as decoded"),
        }
        .encode(header, &crcs);
        let device = segment.columns[column].0;
        let mut ops: Vec<_> = self
            .devices
            .write_op((device, self.zone_offset(zone, place.block)), &shard)
            .into_iter()
            .collect();
        self.devices.run(&mut ops);
        if self.devices.writable(device) { Ok(()) } else { Err(self.failed()) }
    }
}
