//! Resilvering: rewriting the damaged columns of a segment to fresh zones of their devices.
//!
//! A crash can leave a stripe on some of its columns only, and a device can lose blocks. The stripe is
//! readable, but one more lost device may be one too many. So each damaged column, if its device takes
//! writes, is reconstructed and written, whole, to a fresh zone of that device. The other columns stay where
//! they are.
//!
//! # Invariants
//! 1. The old zones stay used and untouched until `free_old_zones`. So the old descriptor stays readable: a
//!    crash before the new descriptor is durable loses nothing.
//! 2. A resilvered column has the same blocks, byte for byte, as the column that was first written: identity,
//!    lengths and addresses do not change.
//! 3. If a write fails, the segment keeps its old columns, and the fresh zones are free again.

use std::sync::Arc;

use warpfire_env::{AlignedBuf, PlantedBug, is_planted};
use warpfire_format::crc32c;
use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState};
use warpfire_format::stripe::{StripeHeader, inline_start};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::error::PoolError;
use crate::pool::{Inner, Pool};
use crate::read::read_stripe::ColumnWait;
use crate::segment::header_readahead::HeaderReadahead;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// A segment after `resilver`, and its old zones.
#[derive(Debug)]
#[must_use = "the old zones stay used until `free_old_zones`"]
pub struct ResilveredSegment {
    /// The segment with its new columns.
    pub descriptor: SegmentDescriptor,
    /// The zones of the columns before they were rewritten.
    old_zones: Vec<(DeviceIndex, ZoneIndex)>,
}

/// The result of a verification of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifiedSegment {
    /// Whether every block on a working device verifies.
    pub is_whole: bool,
    /// Bytes of its stripes on working devices. A column is read up to its first bad block.
    pub read_bytes: u64,
}

impl Pool {
    /// Reads all of a sealed segment. Writes each damaged column, if its device takes writes, to a fresh zone
    /// of that device. `None` if there is no such column. The new columns are durable after the next flush.
    /// The caller then makes the new descriptor durable and calls `free_old_zones`.
    ///
    /// # Errors
    /// `Unreadable` if more is damaged than parity covers, `NoSpace` if a device has no free zone, `Failed`
    /// if a device fails, `UnknownSegment`, `OpenForReading`. The segment is unchanged then.
    pub fn resilver(&self, id: SegmentId) -> Result<Option<ResilveredSegment>, PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        inner.ensure_epoch_is_durable()?;
        let segment = inner.segment(id)?;
        let places = segment.stripes.read().places();
        let lost = inner.damaged_columns(&segment, &places);
        if lost.is_empty() || is_planted(PlantedBug::ResilverSkipped) {
            return Ok(None);
        }
        let mut columns = segment.columns.clone();
        let mut old_zones = Vec::new();
        let count = lost.len();
        for column in lost {
            let (device, old) = segment.columns[column];
            match inner.write_column(&segment, &places, column) {
                Ok(zone) => {
                    assert_ne!(zone, old, "a fresh zone is not the old one, which stays used");
                    columns[column].1 = zone;
                    old_zones.push((device, old));
                }
                Err(e) => {
                    // No reader and no descriptor has seen the fresh zones: they can be freed at once.
                    let written = columns.iter().zip(&segment.columns).filter(|(new, old)| new != old);
                    inner.free_zones(written.map(|(new, _)| *new));
                    return Err(e);
                }
            }
        }
        let descriptor = SegmentDescriptor { columns, ..segment.descriptor(SegmentState::Sealed) };
        // `unflushed` first: a flush that starts after a reader used the new columns must cover them. Readers
        // that still hold the old segment read the old zones.
        let resilvered = Arc::new(PoolSegment::new(&descriptor, segment.stripes.read().clone()));
        inner.unflushed.lock().insert(id, Arc::clone(&resilvered));
        inner.segments.write().insert(id, resilvered);
        inner.damaged.lock().remove(&id);
        tracing::info!(segment = id.get(), columns = count, "segment resilvered");
        Ok(Some(ResilveredSegment { descriptor, old_zones }))
    }

    /// Reads and verifies every block of a segment, headers and parity included. If a column does not verify,
    /// lists the segment as damaged. Columns on devices that take no writes are not read.
    ///
    /// # Errors
    /// `UnknownSegment`.
    pub fn verify(&self, id: SegmentId) -> Result<VerifiedSegment, PoolError> {
        let inner = &self.inner;
        let segment = inner.segment(id)?;
        let places = segment.stripes.read().places();
        // With a cached CRC table a read skips the header block. Headers are to be verified here too.
        for place in &places {
            (0..segment.width()).for_each(|column| inner.checksums.remove(&segment, place.stripe, column));
        }
        let is_whole = inner.damaged_columns(&segment, &places).is_empty();
        if !is_whole {
            inner.note_damage(id);
        }
        let columns = segment.columns.iter().filter(|(device, _)| inner.devices.writable(*device)).count();
        let blocks: u64 = places.iter().map(|place| u64::from(place.rows) + 1).sum();
        Ok(VerifiedSegment { is_whole, read_bytes: blocks * columns as u64 * BLOCK_BYTES as u64 })
    }

    /// Resets and frees the old zones of a resilvered segment. Before the call the caller makes the new
    /// descriptor durable.
    pub fn free_old_zones(&self, resilvered: ResilveredSegment) {
        self.inner.free_zones(resilvered.old_zones.into_iter());
    }
}

impl Inner {
    /// Resets zones and makes them free. A zone on a device that takes no writes becomes free too. One that
    /// its device cannot reset is retired.
    pub(crate) fn free_zones(&self, zones: impl Iterator<Item = (DeviceIndex, ZoneIndex)>) {
        for (device, zone) in zones {
            let is_writable = self.devices.writable(device);
            if !is_writable || self.reset_zone(device, zone) {
                self.zones.lock().free_zone(device, zone, is_writable);
            } else {
                self.retire_zone(device, zone);
            }
        }
    }

    /// Columns with a block that does not verify, among those on devices that take writes.
    fn damaged_columns(&self, segment: &PoolSegment, places: &[StripePlace]) -> Vec<usize> {
        // A column leaves `whole` at its first bad block and is not read any further.
        let mut whole: Vec<usize> =
            (0..segment.width()).filter(|c| self.devices.writable(segment.columns[*c].0)).collect();
        let candidates = whole.clone();
        for place in places {
            let shards = self.read_columns(segment, place, &whole, 0..place.rows, ColumnWait::Patient);
            whole.retain(|column| {
                let shard = shards.iter().find(|s| s.column == *column);
                shard.is_some_and(|s| (0..place.rows).all(|row| s.is_sound(row)))
            });
        }
        candidates.into_iter().filter(|c| !whole.contains(c)).collect()
    }

    /// Writes a column to a fresh zone of its device. Returns the zone; frees it again if the write fails.
    fn write_column(
        &self,
        segment: &PoolSegment,
        places: &[StripePlace],
        column: usize,
    ) -> Result<ZoneIndex, PoolError> {
        let device = segment.columns[column].0;
        let taken = self.take_zones(1, &[device], 0).ok_or(PoolError::NoSpace)?;
        let zone = taken.first().expect("one zone was taken").zone;
        if !taken.iter().all(|t| t.clean) && !self.reset_zone(device, zone) {
            self.retire_zone(device, zone);
            return Err(self.failed());
        }
        let written = places.iter().try_for_each(|p| self.write_shard(segment, p, column, zone));
        if let Err(e) = written {
            self.free_zones([(device, zone)].into_iter());
            return Err(e);
        }
        Ok(zone)
    }

    /// Reconstructs one shard and writes it to `zone`.
    fn write_shard(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        column: usize,
        zone: ZoneIndex,
    ) -> Result<(), PoolError> {
        // Sequence, lengths and inline payload are in every header of the stripe: any one that verifies will
        // do.
        let found = self
            .headers_at(segment, place.stripe, place.block, Some(place.rows), &mut HeaderReadahead::default())
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
        // The header block of a mirror holds payload too. It is copied, because reconstruction covers rows
        // only.
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
            payload_bytes: u32::try_from(found.payload_bytes).expect("the header's own field has 32 bits"),
        }
        .encode(header, &crcs);
        debug_assert!(StripeHeader::decode(header).is_ok(), "a written header decodes");
        let device = segment.columns[column].0;
        let mut ops: Vec<_> = self
            .devices
            .write_op((device, self.zone_offset(zone, place.block)), &shard)
            .into_iter()
            .collect();
        self.devices.run(&mut ops);
        let written = ops.iter().all(|op| op.result.is_ok()) && self.devices.writable(device);
        if written { Ok(()) } else { Err(self.failed()) }
    }
}
