//! Resilvering: rewriting columns of a segment, whole, to fresh zones.
//!
//! A crash can leave a stripe on some of its columns only, a device can miss writes, and a device can lose
//! blocks. The stripe is readable, but one more lost device may be one too many. So each such column, if its
//! device takes writes, is written to a fresh zone: of its own device, or of another one if its own has none.
//! The other columns stay where they are.
//!
//! A device is *vacated* while its columns move to other devices, because it stays away or leaves the pool.
//! Each of its columns is written to a device that the segment does not use yet. The end of a device is
//! vacated while it shrinks: its columns there move to its other zones, or to such a device.
//!
//! Blocks that verify on the column's own device are copied. The others are reconstructed.
//!
//! # Invariants
//! 1. The old zones stay used and untouched until `free_old_zones`. So the old descriptor stays readable: a
//!    crash before the new descriptor is durable loses nothing.
//! 2. A resilvered column has the same blocks, byte for byte, as the column that was first written: identity,
//!    lengths and addresses do not change.
//! 3. A fresh zone is durable before a reader or the caller learns of it (`write_columns` flushes; test
//!    `a_column_whose_device_fails_the_flush_stays_where_it_was`).
//! 4. If a column cannot be written, it stays where it is. It is lost if it does not verify or missed a
//!    write.
//! 5. A segment never has two columns on one device (assert in `SegmentDescriptor::move_column`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::segment::{LostColumn, SegmentDescriptor, SegmentState};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, SegmentId, ZoneIndex};

use crate::error::PoolError;
use crate::life::piece_work::{AtOnce, PieceWork, Turns, next_piece};
use crate::life::read_ahead::ReadAhead;
use crate::pool::{Inner, Pool};
use crate::read::read_stripe::ColumnWait;
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
#[derive(Debug, Default)]
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
    /// Whether its caller has ended the work early. No column was rewritten then.
    pub is_ended: bool,
}

impl ResilveredSegment {
    /// The segment of which nothing was rewritten, because the caller has ended the work.
    fn unchanged(descriptor: SegmentDescriptor) -> Self {
        let (moves, old_zones, failure) = Default::default();
        ResilveredSegment { descriptor, moves, old_zones, failure, is_ended: true }
    }
}

/// The columns that were written, and why another one was not.
type WrittenColumns = (Vec<ColumnMove>, Option<PoolError>);

/// Devices, and ends of devices, from which columns move away.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Vacated {
    devices: BTreeSet<DeviceIndex>,
    /// The zones of a device from this one on.
    ends: BTreeMap<DeviceIndex, ZoneIndex>,
}

impl Vacated {
    /// Whether nothing is vacated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.ends.is_empty()
    }

    /// Whether all columns of the device move away.
    #[must_use]
    pub fn has_device(&self, device: DeviceIndex) -> bool {
        self.devices.contains(&device)
    }

    /// Whether some columns of the device move away.
    #[must_use]
    pub fn concerns(&self, device: DeviceIndex) -> bool {
        self.has_device(device) || self.ends.contains_key(&device)
    }

    /// Whether a column in this zone moves away.
    #[must_use]
    pub fn contains(&self, device: DeviceIndex, zone: ZoneIndex) -> bool {
        self.has_device(device) || self.ends.get(&device).is_some_and(|end| zone >= *end)
    }
}

impl From<BTreeSet<DeviceIndex>> for Vacated {
    fn from(devices: BTreeSet<DeviceIndex>) -> Self {
        Vacated { devices, ends: BTreeMap::new() }
    }
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
    /// Writes the suspect columns of a sealed segment to fresh zones, if their devices take writes, and those
    /// on `vacated` devices to other devices. The new columns are durable on return, and reads use them. The
    /// caller then makes the new descriptor durable, waits for the readers of the old zones, and calls
    /// `free_old_zones`.
    ///
    /// # Errors
    /// `UnknownSegment`, `OpenForReading`, and `Failed` if a root or a flush fails beyond parity. That a
    /// column cannot be rewritten is no error.
    pub fn resilver(
        &self,
        id: SegmentId,
        suspects: Suspects,
        vacated: &Vacated,
    ) -> Result<ResilveredSegment, PoolError> {
        self.resilver_in_pieces(id, suspects, vacated, &mut AtOnce)
    }

    /// As [`resilver`](Self::resilver). If `turns` end the work, the segment stays as it was.
    ///
    /// # Errors
    /// As `resilver`.
    pub fn resilver_in_pieces(
        &self,
        id: SegmentId,
        suspects: Suspects,
        vacated: &Vacated,
        turns: &mut dyn Turns,
    ) -> Result<ResilveredSegment, PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        inner.ensure_epoch_is_durable()?;
        // Afterwards no flush looks for lost columns of the segment as it is now.
        inner.flush()?;
        let segment = inner.segment(id)?;
        let places = segment.stripes.read().places();
        let mut descriptor = segment.descriptor(SegmentState::Sealed);
        if suspects != Suspects::Recorded {
            let Some(damaged) = inner.damaged_columns(&segment, &places, turns) else {
                return Ok(ResilveredSegment::unchanged(descriptor));
            };
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
            match inner.write_columns(&segment, &places, &descriptor, vacated, turns)? {
                Some(done) => done,
                None => return Ok(ResilveredSegment::unchanged(segment.descriptor(SegmentState::Sealed))),
            }
        };
        let mut old_zones = OldZones(Vec::new());
        for moved in &written {
            let old = descriptor.move_column(moved.column, moved.to);
            assert_ne!(old, moved.to, "a fresh zone is not the old one, which stays used");
            old_zones.0.push(old);
        }
        // Readers that still hold the old segment read the old zones.
        let stripes = segment.stripes.read().clone();
        let resilvered = Arc::new(PoolSegment::new(&descriptor, &inner.codes, stripes, segment.moment));
        inner.segments.write().insert(id, Arc::clone(&resilvered));
        if !written.is_empty() {
            inner.finish_zones(&resilvered);
        }
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
        Ok(ResilveredSegment { descriptor, moves: written, old_zones, failure, is_ended: false })
    }

    /// Reads and verifies every block of a segment, headers and parity included. If a column does not verify,
    /// lists the segment as damaged. Columns on devices that take no writes are not read.
    ///
    /// # Errors
    /// `UnknownSegment`.
    pub fn verify(&self, id: SegmentId) -> Result<VerifiedSegment, PoolError> {
        self.verify_in_pieces(id, &mut AtOnce).map(|verified| verified.expect("nothing ends the work"))
    }

    /// As [`verify`](Self::verify), piece by piece. `None` if `turns` have ended the work: then nothing is
    /// known of the segment.
    ///
    /// # Errors
    /// As `verify`.
    pub fn verify_in_pieces(
        &self,
        id: SegmentId,
        turns: &mut dyn Turns,
    ) -> Result<Option<VerifiedSegment>, PoolError> {
        let inner = &self.inner;
        let segment = inner.segment(id)?;
        let places = segment.stripes.read().places();
        // With a cached CRC table a read skips the header block. Headers are to be verified here too.
        for place in &places {
            (0..segment.width()).for_each(|column| inner.checksums.remove(&segment, place.stripe, column));
        }
        let Some(damaged) = inner.damaged_columns(&segment, &places, turns) else { return Ok(None) };
        let is_whole = damaged.is_empty();
        if !is_whole {
            inner.note_damage(id);
        }
        let columns = segment.columns.iter().filter(|(device, _)| inner.devices.writable(*device)).count();
        let blocks: u64 = places.iter().map(|place| u64::from(place.rows) + 1).sum();
        Ok(Some(VerifiedSegment { is_whole, read_bytes: blocks * columns as u64 * BLOCK_BYTES as u64 }))
    }

    /// Everything that is vacated if these devices are: they, those that leave the pool, and the ends of
    /// those that shrink.
    #[must_use]
    pub fn vacated_with(&self, mut devices: BTreeSet<DeviceIndex>) -> Vacated {
        let members = self.inner.devices.members();
        devices.extend(members.iter().filter(|(_, member)| member.is_leaving).map(|(index, _)| *index));
        let shrinks = members.iter().filter(|(_, member)| member.kept_zones.0 < member.zones);
        Vacated { devices, ends: shrinks.map(|(index, member)| (*index, member.kept_zones)).collect() }
    }

    /// Devices that take writes and have a zone for a column that moves.
    #[must_use]
    pub fn devices_with_room(&self) -> Vec<DeviceIndex> {
        self.inner.devices_with_room()
    }

    /// Resets and frees the old zones of resilvered columns. Before the call the caller makes the new
    /// descriptor durable, and the readers that began before it end.
    pub fn free_old_zones(&self, old_zones: OldZones) {
        self.inner.free_zones(old_zones.0.into_iter());
    }
}

impl Inner {
    /// Columns with a block that does not verify, among those on devices that take writes, each with the
    /// first stripe that has such a block. `None` if `turns` have ended the work.
    fn damaged_columns(
        &self,
        segment: &PoolSegment,
        places: &[StripePlace],
        turns: &mut dyn Turns,
    ) -> Option<Vec<LostColumn>> {
        // A column leaves `whole` at its first bad block and is not read any further.
        let mut whole: Vec<usize> =
            (0..segment.width()).filter(|c| self.devices.writable(segment.columns[*c].0)).collect();
        let mut damaged = Vec::new();
        for place in places {
            let mut left = 0..place.rows;
            loop {
                let rows = next_piece(turns, left.clone(), whole.len());
                let shards = self.read_columns(segment, place, &whole, rows.clone(), ColumnWait::Patient);
                let work = PieceWork::of(rows.len(), whole.len(), 0);
                whole.retain(|column| {
                    let shard = shards.iter().find(|s| s.column == *column);
                    let is_sound = shard.is_some_and(|s| rows.clone().all(|row| s.is_sound(row)));
                    if !is_sound {
                        let column = u16::try_from(*column).expect("a segment has at most 250 columns");
                        damaged.push(LostColumn { column, first_stripe: place.stripe });
                    }
                    is_sound
                });
                if turns.after_piece(work).is_break() {
                    return None;
                }
                left.start = rows.end;
                // A stripe without rows has one piece: its headers.
                if left.is_empty() {
                    break;
                }
            }
        }
        Some(damaged)
    }

    /// Writes to fresh zones the columns of a descriptor that are lost on devices that take writes, or lie on
    /// `vacated` devices. They are durable on return. Returns the columns that were written, and why another
    /// one was not. The zones of those are free again. `None` if `turns` have ended the work: then all
    /// of them are.
    fn write_columns(
        &self,
        segment: &PoolSegment,
        places: &[StripePlace],
        descriptor: &SegmentDescriptor,
        vacated: &Vacated,
        turns: &mut dyn Turns,
    ) -> Result<Option<WrittenColumns>, PoolError> {
        let moment = self.devices.moment();
        let (mut written, mut failure) = self.take_targets(segment, descriptor, vacated);
        let is_ended = std::thread::scope(|scope| {
            let mut stripes = ReadAhead::new(scope, self, segment, places);
            while !written.is_empty() {
                match self.move_stripe(&mut stripes, &written, moment, turns) {
                    Ok(ControlFlow::Continue(true)) => {
                        failure = self.free_unwritable(&mut written, moment).or(failure.take());
                    }
                    Ok(ControlFlow::Continue(false)) => break,
                    Ok(ControlFlow::Break(())) => return true,
                    Err(e) => {
                        failure = Some(e);
                        self.free_zones(written.drain(..).map(|m| m.to));
                    }
                }
            }
            false
        });
        if is_ended {
            // No reader and no descriptor has seen them.
            self.free_zones(written.drain(..).map(|m| m.to));
            return Ok(None);
        }
        if written.is_empty() {
            return Ok(Some((written, failure)));
        }
        let flushed = self.flush();
        // No reader and no descriptor has seen the fresh zones: those on a device that was dropped since, and
        // all of them after an error, can be freed at once.
        if flushed.is_err() {
            self.free_zones(written.drain(..).map(|m| m.to));
        }
        failure = self.free_unwritable(&mut written, moment).or(failure);
        flushed.map(|()| Some((written, failure)))
    }

    /// Writes the next stripe of some columns to their new zones. `false`: there was none. `Break` if `turns`
    /// have ended the work.
    fn move_stripe(
        &self,
        stripes: &mut ReadAhead<'_, '_>,
        moves: &[ColumnMove],
        moment: u64,
        turns: &mut dyn Turns,
    ) -> Result<ControlFlow<(), bool>, PoolError> {
        let next = match stripes.next(moves, turns)? {
            ControlFlow::Continue(next) => next,
            ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
        };
        let Some((place, filled)) = next else { return Ok(ControlFlow::Continue(false)) };
        let wrote = self.write_stripe(place, moves, &filled, moment, turns)?;
        Ok(wrote.map_continue(|()| true))
    }

    /// Takes a fresh, empty zone for each column that `write_columns` writes. Returns these, and why there is
    /// none for another column.
    fn take_targets(
        &self,
        segment: &PoolSegment,
        descriptor: &SegmentDescriptor,
        vacated: &Vacated,
    ) -> (Vec<ColumnMove>, Option<PoolError>) {
        let mut target = descriptor.clone();
        let (mut taken, mut failure) = (Vec::new(), None);
        for (column, (own, zone)) in (0u16..).zip(&segment.columns) {
            let is_lost = descriptor.lost.iter().any(|lost| lost.column == column);
            let is_due = vacated.contains(*own, *zone) || (is_lost && self.devices.writable(*own));
            if !is_due {
                continue;
            }
            match self.take_target(column, &target, vacated) {
                Ok(to) => {
                    // Two columns must not go to one device.
                    _ = target.move_column(column, to);
                    taken.push(ColumnMove { column, to });
                }
                Err(e) => failure = Some(e),
            }
        }
        (taken, failure)
    }

    /// Takes an empty zone for a column: of its device or, if that has none or is vacated, of another one
    /// that the segment does not use.
    fn take_target(
        &self,
        column: u16,
        descriptor: &SegmentDescriptor,
        vacated: &Vacated,
    ) -> Result<(DeviceIndex, ZoneIndex), PoolError> {
        let own = descriptor.columns[usize::from(column)].0;
        let stays = !vacated.has_device(own) && self.devices.all_allocatable().contains(&own);
        let mut others = if stays { self.devices.all_allocatable() } else { self.devices_with_room() };
        others.retain(|device| {
            let is_free =
                descriptor.takes_column(column, *device) || is_planted(PlantedBug::ColumnsShareDevice);
            is_free && !vacated.has_device(*device)
        });
        let taken = if stays { self.take_zones(|zones| zones.take(1, &[own], 0)) } else { None };
        let taken = taken.or_else(|| self.take_zones(|zones| zones.take(1, &others, descriptor.id.get())));
        let taken = taken.ok_or(PoolError::NoSpace)?;
        let taken = *taken.first().expect("one zone was taken");
        if !taken.clean && !self.reset_zone(taken.device, taken.zone) {
            self.retire_zone(taken.device, taken.zone);
            return Err(self.failed());
        }
        Ok((taken.device, taken.zone))
    }

    /// A device keeps its last free zone: the log counts on devices with a free zone.
    fn devices_with_room(&self) -> Vec<DeviceIndex> {
        let mut devices = self.devices.all_allocatable();
        let zones = self.zones.lock();
        devices.retain(|device| zones.free_on(*device) > 1);
        devices
    }

    /// Frees the zones of those columns whose devices were dropped since this moment, or whose zones died.
    /// Returns why, if there are any.
    fn free_unwritable(&self, written: &mut Vec<ColumnMove>, moment: u64) -> Option<PoolError> {
        let (whole, dropped): (Vec<_>, Vec<_>) =
            written.drain(..).partition(|m| self.takes_stripes(m.to, moment));
        *written = whole;
        if dropped.is_empty() {
            return None;
        }
        self.free_zones(dropped.into_iter().map(|m| m.to));
        Some(self.failed())
    }
}
