//! The segment table: every bulk segment, what refers to it, and what the commit log knows of it.
//!
//! ```text
//!                       ┌──retain, hold──┐
//!                       ▼ (who has a pin)│
//!   Open ──seal──▶ Sealed ──retire_empty──▶ Retired ──free──▶ Freeing ──take_freed──▶ gone
//!                  (nothing refers to it)   (no pin is left)  (its frame is durable)
//! ```
//!
//! # Invariants
//! 1. `logged` is what a reader of the commit log up to the last barrier *written* knows of the segment; the
//!    rest (`unlogged_runs`, `logged_as`) is what the next group has to say.
//! 2. Each segment's `live_bytes` is what was appended and retained, less what was released; it is unknown from
//!    recovery until `set_live`, and a segment with an unknown count is not retired.
//! 3. Zones of a segment are given back only after `take_freed`, that is after a barrier behind its
//!    `Freed` frame became durable. (The reset rule, docs/FORMAT.md "Log frames" 8.)
//! 4. A retired segment is referred to again only by who has a pin that is older than its retirement: the pin keeps it from
//!    being freed, and a reference makes it sealed again.
//! 5. `dirty` holds at least the segments of which the next group has something to say, so that a sync costs
//!    what changed and not what there is.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use warpfire_format::log_frame::{GREW_RUNS_MAX, LogFrame};
use warpfire_format::segment::{SegmentDescriptor, SegmentState, StripeRun};
use warpfire_units::SegmentId;

use crate::pins::Pins;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentStage {
    Open,
    Sealed,
    Retired,
    Freeing,
}

/// One bulk segment.
pub(crate) struct SegmentEntry {
    logged: SegmentDescriptor,
    unlogged_runs: Vec<StripeRun>,
    /// The last state that the log was told, `None` before its `Opened` frame.
    logged_as: Option<SegmentStage>,
    pub(crate) state: SegmentStage,
    live_bytes: Option<u64>,
    /// References among `live_bytes` that are nowhere in metadata, so that no cleaning can move them.
    holds: u64,
    /// Places in the queue of the retired: more than one if it was retired, referred to again, and retired again.
    queued: u32,
    /// Payload bytes in its stripes and, while it is open, in its stream's buffer.
    pub(crate) written_bytes: u64,
}

impl SegmentEntry {
    /// Whether someone holds bytes in it that only he knows of.
    pub(crate) fn is_held(&self) -> bool {
        self.holds > 0
    }

    /// Bytes that something refers to, counted once each at most; all of them while the count is unknown.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.map_or(self.written_bytes, |live| live.min(self.written_bytes))
    }
}

/// Every bulk segment.
#[derive(Default)]
pub(crate) struct SegmentTable {
    segments: BTreeMap<SegmentId, SegmentEntry>,
    dirty: BTreeSet<SegmentId>,
    /// Their `Freed` frames are written and not yet known durable.
    freed_in_log: Vec<SegmentId>,
}

impl SegmentTable {
    /// A table as recovery found it: all sealed, nothing known of references.
    pub(crate) fn recovered(segments: Vec<SegmentDescriptor>) -> Self {
        let entry = |logged: SegmentDescriptor| {
            let written_bytes = logged.payload_bytes();
            let entry = SegmentEntry {
                logged,
                unlogged_runs: Vec::new(),
                logged_as: Some(SegmentStage::Sealed),
                state: SegmentStage::Sealed,
                live_bytes: None,
                holds: 0,
                queued: 0,
                written_bytes,
            };
            (entry.logged.id, entry)
        };
        SegmentTable { segments: segments.into_iter().map(entry).collect(), ..SegmentTable::default() }
    }

    /// A segment that the log itself holds a writer or a place in the queue of.
    fn get(&mut self, id: SegmentId) -> &mut SegmentEntry {
        self.segments.get_mut(&id).expect("a segment that is in use is in the table")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentId, &SegmentEntry)> {
        self.segments.iter().map(|(id, entry)| (*id, entry))
    }

    /// Payload bytes of a segment, in stripes or in a buffer; 0 if it does not exist.
    pub(crate) fn written_bytes(&self, id: SegmentId) -> u64 {
        self.segments.get(&id).map_or(0, |entry| entry.written_bytes)
    }

    /// Takes in a segment that was just allocated.
    pub(crate) fn open(&mut self, mut logged: SegmentDescriptor) {
        logged.stripes.clear();
        let entry = SegmentEntry {
            unlogged_runs: Vec::new(),
            logged_as: None,
            state: SegmentStage::Open,
            live_bytes: Some(0),
            holds: 0,
            queued: 0,
            written_bytes: 0,
            logged,
        };
        self.dirty.insert(entry.logged.id);
        let before = self.segments.insert(entry.logged.id, entry);
        assert!(before.is_none(), "segment ids are never reused");
    }

    /// A stripe of an open segment was written.
    pub(crate) fn grow(&mut self, id: SegmentId, rows: u16) {
        self.dirty.insert(id);
        let entry = self.get(id);
        assert_eq!(entry.state, SegmentStage::Open, "only open segments grow");
        match entry.unlogged_runs.last_mut() {
            Some(run) if run.rows == rows => run.count += 1,
            _ => entry.unlogged_runs.push(StripeRun { rows, count: 1 }),
        }
    }

    /// Counts an append: `len_bytes` that are referred to, and the segment's length after them.
    pub(crate) fn note_append(&mut self, id: SegmentId, len_bytes: u64, written_bytes: u64) {
        let entry = self.get(id);
        entry.written_bytes = written_bytes;
        *entry.live_bytes.as_mut().expect("the count of an open segment is known") += len_bytes;
    }

    /// Nothing more is appended to the segment.
    pub(crate) fn seal(&mut self, id: SegmentId, pins: &Pins) {
        self.dirty.insert(id);
        let entry = self.get(id);
        assert_eq!(entry.state, SegmentStage::Open, "a segment is sealed once");
        entry.state = SegmentStage::Sealed;
        retire_empty(id, entry, pins);
    }

    /// Open segments that were written and that nothing refers to.
    pub(crate) fn open_and_dead(&self) -> BTreeSet<SegmentId> {
        let dead = |e: &SegmentEntry| {
            e.state == SegmentStage::Open && e.written_bytes > 0 && e.live_bytes == Some(0)
        };
        self.segments.iter().filter(|(_, e)| dead(e)).map(|(id, _)| *id).collect()
    }

    /// Counts one more reference. Metadata that names a segment which does not exist is damage, which reading it
    /// reports; there is nothing to count.
    pub(crate) fn retain(&mut self, id: SegmentId, bytes: u64) {
        let Some(entry) = self.segments.get_mut(&id) else { return };
        assert!(entry.state != SegmentStage::Freeing, "who refers to what nothing refers to has pinned it");
        if entry.state == SegmentStage::Retired {
            entry.state = SegmentStage::Sealed;
        }
        if let Some(live) = &mut entry.live_bytes {
            *live += bytes;
        }
    }

    /// Counts references that are gone; as `retain` for a segment that does not exist.
    pub(crate) fn release(&mut self, id: SegmentId, bytes: u64, pins: &Pins) {
        let Some(entry) = self.segments.get_mut(&id) else { return };
        if let Some(live) = &mut entry.live_bytes {
            *live = live.checked_sub(bytes).expect("no more is released than was referred to");
        }
        retire_empty(id, entry, pins);
    }

    /// As `retain`, for a reference that metadata does not know of.
    pub(crate) fn hold(&mut self, id: SegmentId, bytes: u64) {
        self.retain(id, bytes);
        if let Some(entry) = self.segments.get_mut(&id) {
            entry.holds += 1;
        }
    }

    /// Ends a `hold`.
    pub(crate) fn release_hold(&mut self, id: SegmentId, bytes: u64, pins: &Pins) {
        if let Some(entry) = self.segments.get_mut(&id) {
            entry.holds = entry.holds.checked_sub(1).expect("what is let go was held");
        }
        self.release(id, bytes, pins);
    }

    pub(crate) fn set_live(&mut self, live: &HashMap<SegmentId, u64>, pins: &Pins) {
        for (id, entry) in &mut self.segments {
            entry.live_bytes = Some(live.get(id).copied().unwrap_or(0));
            retire_empty(*id, entry, pins);
        }
    }

    /// No pin from before one of the segment's retirements is left. If that was its last one, and it is still retired, it goes.
    pub(crate) fn free(&mut self, id: SegmentId) {
        let entry = self.get(id);
        entry.queued -= 1;
        if entry.queued > 0 || entry.state != SegmentStage::Retired {
            return;
        }
        assert!(entry.live_bytes == Some(0), "only what nothing refers to is freed");
        entry.state = SegmentStage::Freeing;
        self.dirty.insert(id);
    }

    /// What the log does not know yet, as frames; it knows it from now on.
    pub(crate) fn edits(&mut self) -> Vec<LogFrame<'static>> {
        let mut frames = Vec::new();
        for id in std::mem::take(&mut self.dirty) {
            let entry = self.get(id);
            if entry.logged_as.is_none() {
                frames.push(LogFrame::Opened(entry.logged.clone()));
            }
            for runs in entry.unlogged_runs.chunks(GREW_RUNS_MAX) {
                let first_stripe = entry.logged.stripe_count();
                frames.push(LogFrame::Grew { segment: id, first_stripe, runs: runs.to_vec() });
                append_runs(&mut entry.logged, runs);
            }
            entry.unlogged_runs.clear();
            if entry.state != SegmentStage::Open && matches!(entry.logged_as, None | Some(SegmentStage::Open))
            {
                entry.logged.state = SegmentState::Sealed;
                frames.push(LogFrame::Sealed(id));
            }
            let freed =
                entry.state == SegmentStage::Freeing && entry.logged_as != Some(SegmentStage::Freeing);
            entry.logged_as = Some(entry.state);
            if freed {
                frames.push(LogFrame::Freed(id));
                self.freed_in_log.push(id);
            }
        }
        frames
    }

    /// Segments of which `edits` may have something to say.
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Most bytes that the table can take in a root, counted as if all edits were made.
    pub(crate) fn root_bytes_max(&self) -> usize {
        let bytes = |e: &SegmentEntry| {
            24 + 6 * e.logged.columns.len() + 8 * (e.logged.stripes.len() + e.unlogged_runs.len())
        };
        self.segments.values().map(bytes).sum()
    }

    /// Every segment as the log knows it, those apart whose `Freed` frame was written.
    pub(crate) fn logged(&self) -> Vec<SegmentDescriptor> {
        let kept = |e: &&SegmentEntry| e.logged_as.is_some_and(|s| s != SegmentStage::Freeing);
        self.segments.values().filter(kept).map(|e| e.logged.clone()).collect()
    }

    /// Removes and returns the segments whose `Freed` frame is durable now.
    pub(crate) fn take_freed(&mut self) -> Vec<SegmentId> {
        let freed = std::mem::take(&mut self.freed_in_log);
        for id in &freed {
            self.segments.remove(id);
        }
        freed
    }
}

/// Lists further stripes at a descriptor's end.
pub(crate) fn append_runs(descriptor: &mut SegmentDescriptor, runs: &[StripeRun]) {
    for run in runs {
        match descriptor.stripes.last_mut() {
            Some(last) if last.rows == run.rows => last.count += run.count,
            _ => descriptor.stripes.push(*run),
        }
    }
}

fn retire_empty(id: SegmentId, entry: &mut SegmentEntry, pins: &Pins) {
    if entry.state == SegmentStage::Sealed && entry.live_bytes == Some(0) {
        entry.state = SegmentStage::Retired;
        entry.queued += 1;
        pins.retire(id);
    }
}
