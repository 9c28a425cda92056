//! One segment of the table, and the sums over all of them. `segment_table` keeps the invariants.

use warpfire_format::segment::{LostColumn, SegmentDescriptor, SegmentStream, StripeRun};
use warpfire_pool::ColumnMove;
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::limits::VICTIM_LIVE_MAX_PERCENT;
use crate::live_bytes::LiveBytes;
use crate::victims::Shelf;

/// The states of a segment; the transitions are drawn at the head of `segment_table`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentStage {
    /// A stream appends to it.
    Open,
    /// Complete, and referred to.
    Sealed,
    /// Complete, without references, and perhaps read under a pin.
    Retired,
    /// Without references and pins; its zones wait for a durable `Freed` frame.
    Freeing,
}

/// One bulk segment.
pub(crate) struct SegmentEntry {
    pub(crate) logged: SegmentDescriptor,
    /// Stripes that are written and in no `Grew` frame yet.
    pub(crate) unlogged_runs: Vec<StripeRun>,
    /// Columns that were moved, in no `Moved` frame yet.
    pub(crate) unlogged_moves: Vec<ColumnMove>,
    /// Columns that are lost now.
    pub(crate) lost: Vec<LostColumn>,
    /// The state that the commit log knows, `None` before the `Opened` frame.
    pub(crate) logged_as: Option<SegmentStage>,
    pub(crate) state: SegmentStage,
    /// Whether the saved state has the segment.
    pub(crate) is_saved: bool,
    pub(crate) live: LiveBytes,
    /// Entries in the queue of `Pins`, and guards. A segment retired twice has two entries.
    pub(crate) queued: u32,
    /// Payload bytes in its stripes and, while it is open, in its stream's buffer.
    pub(crate) written_bytes: u64,
    /// Payload bytes that its columns hold if all its stripes are full. Segments of other widths hold others.
    pub(crate) capacity_bytes: u64,
}

impl SegmentEntry {
    /// Its live bytes, at most. All of its bytes while its references are unknown.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live.live(self.written_bytes)
    }

    /// Live bytes of a sealed segment that a census may find to be garbage, if that would make the segment
    /// worth cleaning; else 0. With `doubts` nothing is assumed of segments that were not counted yet.
    pub(crate) fn unsure_bytes(&self, doubts: bool) -> u64 {
        let least = self.live.least(self.written_bytes, doubts);
        let may_pay = self.state == SegmentStage::Sealed
            && is_worth_cleaning(least, self.capacity_bytes)
            && !self.is_worth_cleaning();
        if may_pay { self.live_bytes() - least } else { 0 }
    }

    /// Parity columns of the segment.
    pub(crate) fn parity(&self) -> u8 {
        self.logged.parity
    }

    /// Data columns of the segment.
    pub(crate) fn data(&self) -> u16 {
        self.logged.data
    }

    /// Its columns, as the table counts them.
    pub(crate) fn shape(&self) -> (u8, u16) {
        (self.parity(), self.data())
    }

    /// Whether it holds tables.
    pub(crate) fn is_table(&self) -> bool {
        self.logged.stream == SegmentStream::Table
    }

    /// The devices of its columns as of now, each with whether the column is lost.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (DeviceIndex, bool)> + '_ {
        self.places().map(|(device, _, is_lost)| (device, is_lost))
    }

    /// The devices and zones of its columns as of now, each with whether the column is lost.
    pub(crate) fn places(&self) -> impl Iterator<Item = (DeviceIndex, ZoneIndex, bool)> + '_ {
        let is_lost = |column| self.lost.iter().any(|lost| lost.column == column);
        (0u16..).zip(&self.logged.columns).map(move |(column, place)| {
            let moved = self.unlogged_moves.iter().rev().find(|moved| moved.column == column);
            let (device, zone) = moved.map_or(*place, |moved| moved.to);
            (device, zone, is_lost(column))
        })
    }

    /// Whether cleaning the segment gains enough for its cost.
    pub(crate) fn is_worth_cleaning(&self) -> bool {
        is_worth_cleaning(self.live_bytes(), self.capacity_bytes)
    }

    /// Its bytes without a reference, if it is open and they are worth it to seal it and to clean it.
    pub(crate) fn garbage_worth_sealing(&self) -> Option<u64> {
        let garbage_bytes = self.written_bytes - self.live_bytes();
        let is_worth =
            self.state == SegmentStage::Open && is_worth_sealing(garbage_bytes, self.capacity_bytes);
        is_worth.then_some(garbage_bytes)
    }

    /// Its place among those that are worth cleaning, if it is one.
    pub(crate) fn shelf(&self) -> Option<Shelf> {
        let live_bytes = self.live_bytes();
        let is_victim = self.state == SegmentStage::Sealed && live_bytes > 0 && self.is_worth_cleaning();
        is_victim.then(|| Shelf::of(live_bytes, self.capacity_bytes))
    }

    /// The segment as a root describes it; `None` if the commit log does not know it, or has freed it.
    pub(crate) fn in_root(&self) -> Option<SegmentDescriptor> {
        _ = self.logged_as.filter(|stage| *stage != SegmentStage::Freeing)?;
        let mut descriptor = self.logged.clone();
        self.lost.iter().for_each(|lost| _ = descriptor.note_lost(*lost));
        Some(descriptor)
    }

    pub(crate) fn sums(&self) -> SegmentSums {
        let live_bytes = self.live_bytes();
        let rest_bytes = self.capacity_bytes.saturating_sub(self.written_bytes);
        let unreferenced_bytes = self.written_bytes - live_bytes;
        let shared_bytes = self.live.shared(self.written_bytes);
        let unsure_bytes = self.unsure_bytes(false);
        let of_all = SegmentSums { live_bytes, shared_bytes, unsure_bytes, ..SegmentSums::default() };
        if self.state == SegmentStage::Open {
            return SegmentSums { open_rest_bytes: rest_bytes, garbage_bytes: unreferenced_bytes, ..of_all };
        }
        let garbage_bytes = unreferenced_bytes + rest_bytes;
        let stuck_bytes = if self.is_worth_cleaning() { 0 } else { garbage_bytes };
        SegmentSums { garbage_bytes, stuck_bytes, ..of_all }
    }
}

/// Sums over the segments, in payload bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegmentSums {
    pub(crate) live_bytes: u64,
    /// Bytes that further references to the same bytes would take, at least.
    pub(crate) shared_bytes: u64,
    /// The part of `live_bytes` that a census may find to be garbage.
    pub(crate) unsure_bytes: u64,
    /// The unwritten rest of open segments: free while a stream can fill it.
    pub(crate) open_rest_bytes: u64,
    /// Written bytes without a reference, and the unwritten rest of sealed segments.
    pub(crate) garbage_bytes: u64,
    /// The part of `garbage_bytes` in sealed segments that are not worth cleaning.
    pub(crate) stuck_bytes: u64,
}

impl SegmentSums {
    pub(crate) fn add(&mut self, more: SegmentSums) {
        self.live_bytes += more.live_bytes;
        self.shared_bytes += more.shared_bytes;
        self.unsure_bytes += more.unsure_bytes;
        self.open_rest_bytes += more.open_rest_bytes;
        self.garbage_bytes += more.garbage_bytes;
        self.stuck_bytes += more.stuck_bytes;
    }

    pub(crate) fn remove(&mut self, less: SegmentSums) {
        self.live_bytes -= less.live_bytes;
        self.shared_bytes -= less.shared_bytes;
        self.unsure_bytes -= less.unsure_bytes;
        self.open_rest_bytes -= less.open_rest_bytes;
        self.garbage_bytes -= less.garbage_bytes;
        self.stuck_bytes -= less.stuck_bytes;
    }
}

/// Whether so many bytes without a reference are worth it to seal an open segment and to clean it: as many as
/// a sealed segment has that is worth cleaning.
pub(crate) fn is_worth_sealing(garbage_bytes: u64, capacity_bytes: u64) -> bool {
    garbage_bytes * 100 > capacity_bytes * (100 - VICTIM_LIVE_MAX_PERCENT)
}

/// Whether cleaning a segment with so many live bytes of so many that it can hold gains enough for its cost.
pub(crate) fn is_worth_cleaning(live_bytes: u64, capacity_bytes: u64) -> bool {
    live_bytes * 100 < capacity_bytes * VICTIM_LIVE_MAX_PERCENT
}
