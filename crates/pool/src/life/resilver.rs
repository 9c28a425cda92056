//! Resilvering: rewriting columns of a segment, whole, to fresh zones.
//!
//! A crash can leave a stripe on some of its columns only, a device can miss writes, and a device can lose
//! blocks. The stripe is readable, but one more lost device may be one too many. So each such column, if its
//! device takes writes, is reconstructed and written to a fresh zone: of its own device, or of another one if
//! its own has none. The other columns stay where they are.
//!
//! # Invariants
//! 1. The old zones stay used and untouched until `free_old_zones`. So the old descriptor stays readable: a
//!    crash before the new descriptor is durable loses nothing.
//! 2. A resilvered column has the same blocks, byte for byte, as the column that was first written: identity,
//!    lengths and addresses do not change.
//! 3. A fresh zone is durable before a reader or the caller learns of it (`write_columns` flushes; test
//!    `a_column_whose_device_fails_the_flush_stays_where_it_was`).
//! 4. If a column cannot be written, it stays where it is, and is lost.
//! 5. A segment never has two columns on one device (assert in `SegmentDescriptor::move_column`).

use std::sync::Arc;

use warpfire_env::{AlignedBuf, PlantedBug, is_planted};
use warpfire_format::crc32c;
use warpfire_format::segment::{LostColumn, SegmentDescriptor, SegmentKind, SegmentState};
use warpfire_format::stripe::{StripeHeader, inline_start};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::error::PoolError;
use crate::pool::{Inner, Pool};
use crate::read::read_stripe::ColumnWait;
use crate::segment::header_readahead::HeaderReadahead;
use crate::segment::pool_segment::PoolSegment;
use crate::segment::stripe_index::StripePlace;

/// A column that was written to a fresh zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnMove {
    /// The column.
    pub column: u16,
    /// Its new place.
    pub to: (DeviceIndex, ZoneIndex),
}

/// Zones of columns that were resilvered.
#[derive(Debug)]
#[must_use = "the zones stay used until `free_old_zones`"]
pub struct OldZones(Vec<(DeviceIndex, ZoneIndex)>);

/// The result of resilvering a segment.
#[derive(Debug)]
pub struct ResilveredSegment {
    /// The segment with its new columns, and with those as lost that could not be rewritten.
    pub descriptor: SegmentDescriptor,
    /// The columns that were rewritten.
    pub moves: Vec<ColumnMove>,
    /// The places that they had.
    pub old_zones: OldZones,
    /// Why a column could not be rewritten; `None` if each was.
    pub failure: Option<PoolError>,
}

/// The columns of a segment to resilver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suspects {
    /// Those that the segment records as lost.
    Recorded,
    /// Those too with a block that does not verify. The whole segment is read to find them.
    Unverified,
    /// As `Unverified`, and columns on devices that take no writes count as lost from this stripe on. For
    /// recovery, which does not know whether they hold the stripes that were written last.
    WrittenLast(u32),
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
    /// Writes the suspect columns of a sealed segment to fresh zones, if their devices take writes. The new
    /// columns are durable on return, and reads use them. The caller then makes the new descriptor durable,
    /// waits for the readers of the old zones, and calls `free_old_zones`.
    ///
    /// # Errors
    /// `UnknownSegment`, `OpenForReading`, and `Failed` if a root or a flush fails beyond parity. That a
    /// column cannot be rewritten is no error.
    pub fn resilver(&self, id: SegmentId, suspects: Suspects) -> Result<ResilveredSegment, PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        inner.ensure_epoch_is_durable()?;
        // Afterwards no flush looks for lost columns of the segment as it is now.
        inner.flush()?;
        let segment = inner.segment(id)?;
        let places = segment.stripes.read().places();
        let mut descriptor = segment.descriptor(SegmentState::Sealed);
        if suspects != Suspects::Recorded {
            let damaged = inner.damaged_columns(&segment, &places);
            damaged.into_iter().for_each(|lost| _ = descriptor.note_lost(lost));
        }
        if let Suspects::WrittenLast(first_stripe) = suspects {
            for (column, (device, _)) in (0u16..).zip(&segment.columns) {
                if !inner.devices.writable(*device) {
                    _ = descriptor.note_lost(LostColumn { column, first_stripe });
                }
            }
        }
        let (written, failure) = if is_planted(PlantedBug::ResilverSkipped) {
            (Vec::new(), None)
        } else {
            inner.write_columns(&segment, &places, &descriptor)?
        };
        let mut old_zones = OldZones(Vec::new());
        for moved in &written {
            let old = descriptor.move_column(moved.column, moved.to);
            assert_ne!(old, moved.to, "a fresh zone is not the old one, which stays used");
            old_zones.0.push(old);
        }
        // Readers that still hold the old segment read the old zones.
        let resilvered = Arc::new(PoolSegment::new(&descriptor, segment.stripes.read().clone()));
        inner.segments.write().insert(id, resilvered);
        if failure.is_none() {
            inner.damaged.lock().remove(&id);
        }
        if !written.is_empty() {
            tracing::info!(
                segment = id.get(),
                columns = written.len(),
                lost = descriptor.lost.len(),
                "segment resilvered"
            );
        }
        Ok(ResilveredSegment { descriptor, moves: written, old_zones, failure })
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

    /// Resets and frees the old zones of resilvered columns. Before the call the caller makes the new
    /// descriptor durable, and the readers that began before it end.
    pub fn free_old_zones(&self, old_zones: OldZones) {
        self.inner.free_zones(old_zones.0.into_iter());
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

    /// Columns with a block that does not verify, among those on devices that take writes, each with the
    /// first stripe that has such a block.
    fn damaged_columns(&self, segment: &PoolSegment, places: &[StripePlace]) -> Vec<LostColumn> {
        // A column leaves `whole` at its first bad block and is not read any further.
        let mut whole: Vec<usize> =
            (0..segment.width()).filter(|c| self.devices.writable(segment.columns[*c].0)).collect();
        let mut damaged = Vec::new();
        for place in places {
            let shards = self.read_columns(segment, place, &whole, 0..place.rows, ColumnWait::Patient);
            whole.retain(|column| {
                let shard = shards.iter().find(|s| s.column == *column);
                let is_sound = shard.is_some_and(|s| (0..place.rows).all(|row| s.is_sound(row)));
                if !is_sound {
                    let column = u16::try_from(*column).expect("a segment has at most 250 columns");
                    damaged.push(LostColumn { column, first_stripe: place.stripe });
                }
                is_sound
            });
        }
        damaged
    }

    /// Writes the lost columns of a descriptor whose devices take writes to fresh zones, durable on return.
    /// Returns the columns that were written, and why another one was not. The zones of those are free again.
    fn write_columns(
        &self,
        segment: &PoolSegment,
        places: &[StripePlace],
        descriptor: &SegmentDescriptor,
    ) -> Result<(Vec<ColumnMove>, Option<PoolError>), PoolError> {
        let mut target = descriptor.clone();
        let mut written = Vec::new();
        let mut failure = None;
        for lost in &descriptor.lost {
            if !self.devices.writable(segment.columns[usize::from(lost.column)].0) {
                continue;
            }
            match self.write_column(segment, places, lost.column, &target) {
                Ok(to) => {
                    // Two columns must not go to one device.
                    _ = target.move_column(lost.column, to);
                    written.push(ColumnMove { column: lost.column, to });
                }
                Err(e) => failure = Some(e),
            }
        }
        if written.is_empty() {
            return Ok((written, failure));
        }
        let flushed = self.flush();
        // No reader and no descriptor has seen the fresh zones: those on a device that was dropped since, and
        // all of them after an error, can be freed at once.
        let (whole, dropped) =
            written.into_iter().partition(|m| flushed.is_ok() && self.devices.writable(m.to.0));
        let dropped: Vec<ColumnMove> = dropped;
        if !dropped.is_empty() {
            failure = Some(self.failed());
            self.free_zones(dropped.into_iter().map(|m| m.to));
        }
        flushed.map(|()| (whole, failure))
    }

    /// Writes a column to a fresh zone of its device or, if that has none, of another one. Returns the zone;
    /// frees it again if the write fails.
    fn write_column(
        &self,
        segment: &PoolSegment,
        places: &[StripePlace],
        column: u16,
        descriptor: &SegmentDescriptor,
    ) -> Result<(DeviceIndex, ZoneIndex), PoolError> {
        let own = segment.columns[usize::from(column)].0;
        let allocatable = self.devices.all_allocatable();
        let own: Vec<DeviceIndex> = allocatable.iter().filter(|device| **device == own).copied().collect();
        let mut others = allocatable;
        others.retain(|device| descriptor.takes_column(column, *device));
        let taken = self.take_zones(1, &own, 0);
        let taken =
            taken.or_else(|| self.take_zones(1, &others, segment.id.get())).ok_or(PoolError::NoSpace)?;
        let taken = *taken.first().expect("one zone was taken");
        let to = (taken.device, taken.zone);
        if !taken.clean && !self.reset_zone(to.0, to.1) {
            self.retire_zone(to.0, to.1);
            return Err(self.failed());
        }
        let column = usize::from(column);
        let written = places.iter().try_for_each(|p| self.write_shard(segment, p, column, to));
        if let Err(e) = written {
            self.free_zones([to].into_iter());
            return Err(e);
        }
        Ok(to)
    }

    /// Reconstructs one shard and writes it to a zone.
    fn write_shard(
        &self,
        segment: &PoolSegment,
        place: &StripePlace,
        column: usize,
        (device, zone): (DeviceIndex, ZoneIndex),
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
        let reconstructed = self.reconstruct(segment, place, &[column], (0..place.rows).collect())?;
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
        let mut ops: Vec<_> = self
            .devices
            .write_op((device, self.zone_offset(zone, place.block)), (&shard).into())
            .into_iter()
            .collect();
        self.devices.run(&mut ops);
        let written = ops.iter().all(|op| op.result.is_ok()) && self.devices.writable(device);
        if written { Ok(()) } else { Err(self.failed()) }
    }
}
