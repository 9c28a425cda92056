//! Whether the devices that were opened are enough for each segment.
//!
//! The devices of a pool may be enough by its root, and too few for some of its segments: for those from
//! before m was raised, for those that have not got back what a device missed, and for all where more than m
//! devices are missing and not every column was rebuilt. What lies in these segments cannot be read, and the
//! last group of the commit log may look torn, although its sync has returned. The same holds where a device
//! has returned that did not have the last writes, and one that had them is missing. So such a pool is opened
//! for writing on request only (decision 11); for reading it is opened without a question.

use std::sync::atomic::Ordering::Relaxed;

use warpfire_format::Uuid;
use warpfire_format::segment::{LostColumn, SegmentDescriptor};
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::device::devices::DeviceState;
use crate::error::DeviceSetError;
use crate::life::open::Opening;
use crate::pool::{Inner, Pool};

impl Pool {
    /// Checks that each segment that was adopted has enough columns on the devices that were opened.
    ///
    /// # Errors
    /// `Uncovered`.
    pub fn check_covered(&self) -> Result<(), DeviceSetError> {
        let inner = &self.inner;
        let missing: Vec<(DeviceIndex, Uuid)> = inner
            .devices
            .members()
            .into_iter()
            .filter(|(index, member)| !member.is_gone && inner.is_missing(*index))
            .map(|(index, member)| (index, member.uuid))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let adopted = inner.segments.read();
        let uncovered = adopted
            .values()
            .filter(|s| {
                let is_away = |index| inner.is_missing(index);
                !inner.covers(&s.columns, &s.lost.lock(), usize::from(s.parity), is_away)
            })
            .count();
        let segments = uncovered + inner.uncovered_in_tail.load(Relaxed);
        if segments == 0 {
            return Ok(());
        }
        let is_offline =
            |(index, _): &&(DeviceIndex, Uuid)| inner.devices.state(*index) == DeviceState::Offline;
        let offline = missing.iter().filter(is_offline).map(|(index, _)| *index).collect();
        let old_copies = inner.old_copies.clone();
        Err(DeviceSetError::Uncovered { missing, segments, offline, old_copies })
    }

    /// Counts a segment at the end of the commit log: one that the last, refused group writes, or one of the
    /// log itself. If the missing devices leave it without enough columns, they may be why the group looks
    /// torn, or why the log seems to end. A device that has returned is no better there than a missing one.
    pub fn note_tail(&self, segment: &SegmentDescriptor) {
        let inner = &self.inner;
        let is_old = |index| inner.is_missing(index) || inner.returned.contains(&index);
        if !inner.covers(&segment.columns, &segment.lost, usize::from(segment.parity), is_old) {
            inner.uncovered_in_tail.fetch_add(1, Relaxed);
        }
    }

    /// As [`check_covered`](Self::check_covered), for a client that is about to write. No error where the
    /// pool was opened for reading, or for writing in spite of missing devices (`open_degraded`).
    ///
    /// # Errors
    /// `Uncovered`.
    pub fn refuse_uncovered(&self) -> Result<(), DeviceSetError> {
        let Err(uncovered) = self.check_covered() else { return Ok(()) };
        if self.inner.opening == Opening::Writing {
            return Err(uncovered);
        }
        tracing::warn!(
            name: "segments_uncovered",
            error = %uncovered,
            "the pool is opened without devices that some of its segments need"
        );
        Ok(())
    }
}

impl Inner {
    /// Whether the device was not there at the opening, or is kept offline.
    fn is_missing(&self, index: DeviceIndex) -> bool {
        matches!(self.devices.state(index), DeviceState::Missing | DeviceState::Offline)
    }

    /// Whether enough columns of a segment are left, or no missing device would bring more. `is_away` says
    /// which devices have no column.
    fn covers(
        &self,
        columns: &[(DeviceIndex, ZoneIndex)],
        lost: &[LostColumn],
        parity: usize,
        is_away: impl Fn(DeviceIndex) -> bool,
    ) -> bool {
        let is_lost = |column: u16| lost.iter().any(|lost| lost.column == column);
        let away = (0u16..).zip(columns).filter(|(n, (device, _))| is_away(*device) || is_lost(*n)).count();
        away <= parity || !columns.iter().any(|(device, _)| self.is_missing(*device))
    }
}
