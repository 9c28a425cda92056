//! Which segments concern a device, a shape or a scrub, so that nobody looks for them among all segments.
//!
//! # Invariants
//! 1. Each set is the one that a look at every segment finds: `on_device` those with a column on the device,
//!    `shapes` those with so many parity and data columns, with their live bytes, `with_lost` those with a
//!    lost column, `open` those that take appends, `live_sealed` the sealed ones with live bytes (assert in
//!    `SegmentTable::sums`, in debug builds).

use std::collections::BTreeMap;

use warpfire_units::{DeviceIndex, SegmentId};

use crate::segment_entry::{SegmentEntry, SegmentStage};
use crate::segment_set::SegmentSet;

/// Sets of segments.
#[derive(Default, Debug)]
pub(crate) struct SegmentIndex {
    /// By device index. The last ones may be empty.
    on_device: Vec<SegmentSet>,
    /// By parity and data columns. None is empty.
    shapes: BTreeMap<(u8, u16), ShapeSegments>,
    with_lost: SegmentSet,
    open: SegmentSet,
    live_sealed: SegmentSet,
}

/// The segments of a shape.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct ShapeSegments {
    pub(crate) segments: SegmentSet,
    /// Number of those with live bytes.
    pub(crate) live_segments: usize,
    pub(crate) live_bytes: u64,
}

/// What the sets need of an entry that changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Indexed {
    state: SegmentStage,
    live_bytes: u64,
    has_lost: bool,
}

impl Indexed {
    pub(crate) fn of(entry: &SegmentEntry) -> Indexed {
        Indexed { state: entry.state, live_bytes: entry.live_bytes(), has_lost: !entry.lost.is_empty() }
    }

    fn is_live_sealed(self) -> bool {
        self.state == SegmentStage::Sealed && self.live_bytes > 0
    }
}

fn set_to(set: &mut SegmentSet, id: SegmentId, is_in: bool) {
    if is_in { set.insert(id) } else { set.remove(id) }
}

impl SegmentIndex {
    /// Adds a segment.
    pub(crate) fn add(&mut self, id: SegmentId, entry: &SegmentEntry) {
        self.place(id, entry);
        let of_shape = self.shapes.entry(entry.shape()).or_default();
        of_shape.segments.insert(id);
        let now = Indexed::of(entry);
        of_shape.live_segments += usize::from(now.live_bytes > 0);
        of_shape.live_bytes += now.live_bytes;
        self.sort_in(id, now);
    }

    fn sort_in(&mut self, id: SegmentId, now: Indexed) {
        set_to(&mut self.with_lost, id, now.has_lost);
        set_to(&mut self.open, id, now.state == SegmentStage::Open);
        set_to(&mut self.live_sealed, id, now.is_live_sealed());
    }

    /// Takes note of a change of an entry, but for its columns.
    pub(crate) fn change(&mut self, id: SegmentId, before: Indexed, entry: &SegmentEntry) {
        let now = Indexed::of(entry);
        if now == before {
            return;
        }
        let of_shape = self.shapes.get_mut(&entry.shape()).expect("every segment has its shape");
        of_shape.live_segments += usize::from(now.live_bytes > 0);
        of_shape.live_segments -= usize::from(before.live_bytes > 0);
        of_shape.live_bytes += now.live_bytes;
        of_shape.live_bytes -= before.live_bytes;
        if (now.state, now.has_lost, now.is_live_sealed())
            != (before.state, before.has_lost, before.is_live_sealed())
        {
            self.sort_in(id, now);
        }
    }

    /// Removes a segment.
    pub(crate) fn remove(&mut self, id: SegmentId, entry: &SegmentEntry) {
        self.displace(id, entry);
        let shape = entry.shape();
        let of_shape = self.shapes.get_mut(&shape).expect("every segment has its shape");
        of_shape.segments.remove(id);
        let before = Indexed::of(entry);
        of_shape.live_segments -= usize::from(before.live_bytes > 0);
        of_shape.live_bytes -= before.live_bytes;
        if of_shape.segments.is_empty() {
            self.shapes.remove(&shape);
        }
        for set in [&mut self.with_lost, &mut self.open, &mut self.live_sealed] {
            set.remove(id);
        }
    }

    /// Takes the columns of a segment out, before they move.
    pub(crate) fn displace(&mut self, id: SegmentId, entry: &SegmentEntry) {
        for (device, _) in entry.columns() {
            self.on_device[usize::from(device.0)].remove(id);
        }
    }

    /// Adds the columns of a segment.
    pub(crate) fn place(&mut self, id: SegmentId, entry: &SegmentEntry) {
        for (device, _) in entry.columns() {
            let at = usize::from(device.0);
            if at >= self.on_device.len() {
                self.on_device.resize_with(at + 1, SegmentSet::default);
            }
            self.on_device[at].insert(id);
        }
    }

    /// Segments with a column on the device.
    pub(crate) fn on_device(&self, device: DeviceIndex) -> Option<&SegmentSet> {
        self.on_device.get(usize::from(device.0))
    }

    /// Segments with a lost column.
    pub(crate) fn with_lost(&self) -> &SegmentSet {
        &self.with_lost
    }

    /// Segments that take appends.
    pub(crate) fn open(&self) -> &SegmentSet {
        &self.open
    }

    /// Sealed segments with live bytes.
    pub(crate) fn live_sealed(&self) -> &SegmentSet {
        &self.live_sealed
    }

    /// The shapes that segments have, by parity and data columns, with these segments.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = ((u8, u16), &ShapeSegments)> {
        self.shapes.iter().map(|(shape, segments)| (*shape, segments))
    }

    /// Segments with a lost column, or with a column on such a device, ascending.
    pub(crate) fn touched_by(&self, is_such: impl Fn(DeviceIndex) -> bool) -> Vec<SegmentId> {
        let mut touched: Vec<SegmentId> = self.with_lost.iter().collect();
        let such = (0u16..).map(DeviceIndex).zip(&self.on_device).filter(|(device, _)| is_such(*device));
        such.for_each(|(_, segments)| touched.extend(segments.iter()));
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// Segments of such a shape, given as parity and data columns, ascending.
    pub(crate) fn of_shapes(&self, is_such: impl Fn((u8, u16)) -> bool) -> Vec<SegmentId> {
        let such = self.shapes.iter().filter(|(shape, _)| is_such(**shape));
        let mut found: Vec<SegmentId> = such.flat_map(|(_, of_shape)| of_shape.segments.iter()).collect();
        found.sort_unstable();
        found
    }
}

impl PartialEq for SegmentIndex {
    fn eq(&self, other: &Self) -> bool {
        let devices = self.on_device.len().max(other.on_device.len());
        let empty = SegmentSet::default();
        let same = |at| self.on_device.get(at).unwrap_or(&empty) == other.on_device.get(at).unwrap_or(&empty);
        (0..devices).all(same)
            && (&self.shapes, &self.with_lost, &self.open, &self.live_sealed)
                == (&other.shapes, &other.with_lost, &other.open, &other.live_sealed)
    }
}
