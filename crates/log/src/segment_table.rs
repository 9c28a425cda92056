//! The segment table: every bulk segment, its count of references, and the part that the commit log knows.
//!
//! A *reference* is a slice pointer that keeps bytes alive: one in metadata, or one that the slice store
//! holds for its callers. *Live bytes* are the
//! bytes that references name, each once (`live_bytes.rs`). An *edit* is a frame of the commit log that says
//! how a segment has changed: opened, grew, sealed, freed, a column moved or lost.
//!
//! ```text
//!                            ┌──── retain ────┐
//!                            ▼  (under a pin) │
//!   (new) ─add_open─▶ Open ─seal─▶ Sealed ─retire_empty─▶ Retired ─free─▶ Freeing ─take_freed─▶ (removed)
//!                              when its last          when no older   when its `Freed` frame
//!                              reference goes         pin is left     is durable
//! ```
//!
//! # Invariants
//! 1. `logged` is the segment as a reader of the commit log knows it up to the last barrier *written*. The
//!    difference to the present, `unlogged_runs`, `unlogged_moves`, `lost` against that of `logged`, and
//!    `state` against `logged_as`, goes into the next group (assert in `grow`: only an open segment grows).
//! 2. A segment is retired when its last reference goes. The references are unknown from recovery until
//!    `set_live`, and a segment with an unknown number is not retired (`LiveBytes::is_unreferenced`).
//! 3. A segment leaves the table in `take_freed`, after a barrier behind its `Freed` frame became durable,
//!    and only then may its zones be reset (assert in `take_freed`; the reset rule, docs/FORMAT.md "Log
//!    frames" 8).
//! 4. Only a caller that holds a pin older than the retirement refers to a retired segment again. The pin
//!    keeps the segment from being freed; the new reference makes it sealed again (assert in `retain`).
//! 5. `queued` is the number of the segment's entries in the queue of `Pins`, and of guards on it (assert in
//!    `free`).
//! 6. `sums` are the sums over all segments, each counted by the bytes that its own columns hold. Every
//!    change of an entry's state, live or written bytes goes through `change`, and the sums follow (assert
//!    in `sums`, in debug builds).
//! 7. `dirty` holds at least the segments that the next group must edit. So the cost of a sync grows with the
//!    changes and not with the table.
//! 8. The old zones of a moved column leave the table in `take_moved`, after a barrier behind its `Moved`
//!    frame became durable, and only then may they be reset (`tests/returning.rs`).
//! 9. `unsaved` holds at least the segments that differ from the saved state. So the cost of a checkpoint
//!    grows with the changes (`state_log::tests`).
//! 10. `index` has the sets of segments by device, shape and state (`segment_index.rs`). Every change of an
//!     entry's columns, lost columns, state or live bytes goes on to it. So what concerns few segments is
//!     asked of those alone.
//! 11. `victims` holds the sealed segments with live bytes that are worth cleaning, and `unsure` those that a
//!     census may find to be worth it, so that none of them is looked for among all segments (assert in
//!     `sums`, in debug builds).

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use warpfire_format::log_frame::{GREW_RUNS_MAX, LogFrame};
use warpfire_format::segment::{LostColumn, SegmentDescriptor, SegmentState, StripeRun};
use warpfire_pool::{ColumnMove, OldZones, ResilveredSegment};
use warpfire_units::{BLOCK_BYTES, SegmentId};

use crate::limits::{COLUMN_EDIT_BYTES, EDIT_MAX_BYTES};
use crate::live_bytes::LiveBytes;
use crate::pins::{Pins, Retired};
use crate::segment_index::{Indexed, SegmentIndex};
use crate::state_log::SavedChange;
use crate::store::{CensusCandidate, CensusMark, CensusNeed, CountedSegment};
use crate::victims::{Victims, benefit};

pub(crate) use crate::segment_entry::{SegmentEntry, SegmentStage, SegmentSums};

/// Longest table of which debug builds count the sums anew.
const RECOUNTED_MAX: usize = 200;

/// Every bulk segment.
#[derive(Default)]
pub(crate) struct SegmentTable {
    segments: BTreeMap<SegmentId, SegmentEntry>,
    sums: SegmentSums,
    dirty: BTreeSet<SegmentId>,
    /// Segments that the next root must save, each with whether the last one has it.
    unsaved: BTreeMap<SegmentId, bool>,
    /// Segments with a `Freed` frame that is written and not yet known to be durable.
    freed_in_log: Vec<SegmentId>,
    /// Old zones of moved columns, without a `Moved` frame yet.
    old_zones: Vec<OldZones>,
    /// Old zones with `Moved` frames that are written and not yet known to be durable.
    old_zones_in_log: Vec<OldZones>,
    index: SegmentIndex,
    victims: Victims,
    /// Segments in which a census may find garbage.
    unsure: BTreeSet<SegmentId>,
    /// Payload bytes of the stripes that are in no `Grew` frame yet, padding included.
    unlogged_bytes: u64,
}

impl SegmentTable {
    /// The table as recovery found it: all segments sealed, their references unknown. `saved` is the table of
    /// the last root, and `capacity_bytes` the payload of a segment with so many data columns.
    pub(crate) fn recovered(
        segments: Vec<SegmentDescriptor>,
        saved: &BTreeMap<SegmentId, SegmentDescriptor>,
        capacity_bytes: impl Fn(u16) -> u64,
    ) -> Self {
        // A pool has few widths and many segments.
        let mut capacities: BTreeMap<u16, u64> = BTreeMap::new();
        // Segments that are gone stay in; the others leave below unless they have changed.
        let mut unsaved: BTreeMap<SegmentId, bool> = saved.keys().map(|id| (*id, true)).collect();
        let mut entry = |logged: SegmentDescriptor| {
            assert_eq!(logged.state, SegmentState::Sealed, "recovery seals every segment");
            let written_bytes = logged.payload_bytes();
            let in_root = saved.get(&logged.id);
            if in_root == Some(&logged) {
                unsaved.remove(&logged.id);
            } else {
                unsaved.insert(logged.id, in_root.is_some());
            }
            let data = logged.data;
            let entry = SegmentEntry {
                is_saved: in_root.is_some(),
                capacity_bytes: *capacities.entry(data).or_insert_with(|| capacity_bytes(data)),
                lost: logged.lost.clone(),
                logged,
                unlogged_runs: Vec::new(),
                unlogged_moves: Vec::new(),
                logged_as: Some(SegmentStage::Sealed),
                state: SegmentStage::Sealed,
                live: LiveBytes::unknown(),
                queued: 0,
                written_bytes,
            };
            (entry.logged.id, entry)
        };
        let segments: BTreeMap<SegmentId, SegmentEntry> = segments.into_iter().map(&mut entry).collect();
        let mut table = SegmentTable { segments, unsaved, ..SegmentTable::default() };
        table.index = table.counted_index();
        table.count_all();
        table
    }

    /// The sums over all segments.
    pub(crate) fn sums(&self) -> SegmentSums {
        // Of small tables only: it counts every segment.
        debug_assert!(
            self.segments.len() > RECOUNTED_MAX || self.sums == self.counted(),
            "the sums are those of the segments"
        );
        debug_assert!(
            self.segments.len() > RECOUNTED_MAX
                || (self.victims == self.sorted_victims()
                    && self.index == self.counted_index()
                    && self.unsure == self.counted_unsure()),
            "victims, the index and unsure segments are those of the table"
        );
        self.sums
    }

    /// Counts all segments anew, but for the index.
    fn count_all(&mut self) {
        self.sums = self.counted();
        self.victims = self.sorted_victims();
        self.unsure = self.counted_unsure();
    }

    fn counted_unsure(&self) -> BTreeSet<SegmentId> {
        let unsure = self.segments.iter().filter(|(_, entry)| entry.unsure_bytes(false) > 0);
        unsure.map(|(id, _)| *id).collect()
    }

    fn sorted_victims(&self) -> Victims {
        let mut victims = Victims::default();
        self.segments.iter().for_each(|(id, entry)| victims.shift(*id, None, entry.shelf()));
        victims
    }

    fn counted_index(&self) -> SegmentIndex {
        let mut index = SegmentIndex::default();
        self.segments.iter().for_each(|(id, entry)| index.add(*id, entry));
        index
    }

    /// Sealed segments with live bytes that are worth cleaning, at most `max`, those with the most benefit
    /// for the cost first.
    pub(crate) fn victims(&self, max: usize) -> Vec<SegmentId> {
        let newest = self.newest_id();
        self.victims.best(newest, max, |id| self.benefit(id, newest))
    }

    /// The benefit of cleaning a segment for its cost.
    pub(crate) fn benefit(&self, id: SegmentId, newest: u64) -> u128 {
        // By its own width: a segment with fewer data columns than a new one is not emptier for that.
        self.segments
            .get(&id)
            .map_or(0, |entry| benefit(entry.live_bytes(), entry.capacity_bytes, newest - id.get() + 1))
    }

    fn counted(&self) -> SegmentSums {
        let mut sums = SegmentSums::default();
        self.segments.values().for_each(|entry| sums.add(entry.sums()));
        sums
    }

    /// Changes an entry, and the sums with it. `None` if there is no such segment.
    fn change<T>(&mut self, id: SegmentId, act: impl FnOnce(&mut SegmentEntry) -> T) -> Option<T> {
        let entry = self.segments.get_mut(&id)?;
        let (before, shelf, indexed) = (entry.sums(), entry.shelf(), Indexed::of(entry));
        let done = act(entry);
        let after = entry.sums();
        self.index.change(id, indexed, entry);
        self.sums.add(after);
        self.sums.remove(before);
        match (before.unsure_bytes > 0, after.unsure_bytes > 0) {
            (false, true) => _ = self.unsure.insert(id),
            (true, false) => _ = self.unsure.remove(&id),
            _ => {}
        }
        self.victims.shift(id, shelf, entry.shelf());
        Some(done)
    }

    /// A segment that must exist, because the log holds its writer or an entry of it in a queue.
    fn get(&mut self, id: SegmentId) -> &mut SegmentEntry {
        self.segments.get_mut(&id).expect("a segment that is in use is in the table")
    }

    /// A segment, if it is in the table.
    pub(crate) fn entry(&self, id: SegmentId) -> Option<&SegmentEntry> {
        self.segments.get(&id)
    }

    /// The largest id in the table; 0 if it is empty.
    pub(crate) fn newest_id(&self) -> u64 {
        self.segments.last_key_value().map_or(0, |(id, _)| id.get())
    }

    /// Payload bytes of a segment, in stripes or in a buffer; 0 if it does not exist.
    pub(crate) fn written_bytes(&self, id: SegmentId) -> u64 {
        self.segments.get(&id).map_or(0, |entry| entry.written_bytes)
    }

    /// Adds a segment that was just allocated and holds `capacity_bytes` of payload.
    pub(crate) fn add_open(&mut self, mut logged: SegmentDescriptor, capacity_bytes: u64) {
        assert_eq!(logged.state, SegmentState::Open, "a new segment takes appends");
        logged.stripes.clear();
        let entry = SegmentEntry {
            unlogged_runs: Vec::new(),
            unlogged_moves: Vec::new(),
            lost: std::mem::take(&mut logged.lost),
            logged_as: None,
            state: SegmentStage::Open,
            is_saved: false,
            live: LiveBytes::new(),
            queued: 0,
            written_bytes: 0,
            capacity_bytes,
            logged,
        };
        self.dirty.insert(entry.logged.id);
        self.index.add(entry.logged.id, &entry);
        self.sums.add(entry.sums());
        let before = self.segments.insert(entry.logged.id, entry);
        assert!(before.is_none(), "a session uses a segment id once");
    }

    /// Counts a stripe of an open segment that was written.
    pub(crate) fn grow(&mut self, id: SegmentId, rows: u16) {
        assert!(rows > 0, "a stripe has at least one row");
        self.dirty.insert(id);
        let entry = self.get(id);
        assert_eq!(entry.state, SegmentStage::Open, "only open segments grow");
        let bytes = u64::from(rows) * u64::from(entry.logged.data) * BLOCK_BYTES as u64;
        // Stripes of equal rows share one run, so that a segment of full stripes takes eight bytes in a root.
        match entry.unlogged_runs.last_mut() {
            Some(run) if run.rows == rows => run.count += 1,
            _ => entry.unlogged_runs.push(StripeRun { rows, count: 1 }),
        }
        self.unlogged_bytes += bytes;
    }

    /// Payload bytes of stripes that the next group lists.
    pub(crate) fn unlogged_bytes(&self) -> u64 {
        self.unlogged_bytes
    }

    /// Counts an append: `len_bytes` with one reference, and the segment's length after them. Returns
    /// `unlogged_bytes`.
    pub(crate) fn note_append(&mut self, id: SegmentId, len_bytes: u64, written_bytes: u64) -> u64 {
        let noted = self.change(id, |entry| {
            debug_assert_eq!(entry.state, SegmentStage::Open, "only an open segment takes appends");
            debug_assert!(
                written_bytes >= entry.written_bytes + len_bytes,
                "a segment grows by at least the append"
            );
            entry.written_bytes = written_bytes;
            entry.live.append(len_bytes);
        });
        noted.expect("a segment that is in use is in the table");
        self.unlogged_bytes
    }

    /// Notes that a column missed a write. The segment may be one of the commit log, which is not in the
    /// table: recovery verifies all of these.
    pub(crate) fn note_lost(&mut self, id: SegmentId, lost: LostColumn) {
        let Some(entry) = self.segments.get_mut(&id) else { return };
        let before = Indexed::of(entry);
        if entry.logged_as != Some(SegmentStage::Freeing) && lost.note_in(&mut entry.lost) {
            self.dirty.insert(id);
            self.unsaved.entry(id).or_insert(entry.is_saved);
            self.index.change(id, before, entry);
        }
    }

    /// Takes over the columns of a segment that was resilvered. Its caller guards the segment.
    pub(crate) fn resilvered(&mut self, id: SegmentId, resilvered: ResilveredSegment) {
        let entry = self.segments.get_mut(&id).expect("a segment that is in use is in the table");
        assert!(entry.state != SegmentStage::Freeing, "a guard keeps the segment");
        self.index.displace(id, entry);
        let before = Indexed::of(entry);
        entry.unlogged_moves.extend(resilvered.moves);
        entry.lost = resilvered.descriptor.lost;
        self.index.place(id, entry);
        self.index.change(id, before, entry);
        self.old_zones.push(resilvered.old_zones);
        self.dirty.insert(id);
    }

    /// Which segments concern a device, a shape or a scrub.
    pub(crate) fn index(&self) -> &SegmentIndex {
        &self.index
    }

    /// Ends the segment: all its stripes are written, and no append follows.
    pub(crate) fn seal(&mut self, id: SegmentId, pins: &Pins<Retired>) {
        self.dirty.insert(id);
        let sealed = self.change(id, |entry| {
            assert_eq!(entry.state, SegmentStage::Open, "a segment is sealed once");
            entry.state = SegmentStage::Sealed;
            // Its last reference may have gone while it was open.
            retire_empty(id, entry, pins);
        });
        sealed.expect("a segment that is in use is in the table");
    }

    /// Open segments that hold bytes and have no reference.
    pub(crate) fn open_and_dead(&self) -> BTreeSet<SegmentId> {
        let dead = |e: &SegmentEntry| e.written_bytes > 0 && e.live.is_unreferenced();
        self.open().filter(|(_, e)| dead(e)).map(|(id, _)| id).collect()
    }

    /// Segments that take appends.
    pub(crate) fn open(&self) -> impl Iterator<Item = (SegmentId, &SegmentEntry)> {
        self.index.open().iter().filter_map(|id| Some((id, self.segments.get(&id)?)))
    }

    /// Counts more references. A segment that does not exist is passed over: damaged metadata may name one,
    /// and reading the slice reports it.
    pub(crate) fn retain(&mut self, id: SegmentId, count: impl FnOnce(&mut LiveBytes)) {
        self.change(id, |entry| {
            assert!(
                entry.state != SegmentStage::Freeing,
                "a new reference to a segment without references needs a pin older than its retirement"
            );
            if entry.state == SegmentStage::Retired {
                entry.state = SegmentStage::Sealed;
            }
            count(&mut entry.live);
        });
    }

    /// Counts references that are gone. As in `retain`, a segment that does not exist is passed over.
    pub(crate) fn release(
        &mut self,
        id: SegmentId,
        pins: &Pins<Retired>,
        count: impl FnOnce(&mut LiveBytes),
    ) {
        self.change(id, |entry| {
            count(&mut entry.live);
            retire_empty(id, entry, pins);
        });
    }

    /// The segments in which a census may serve the need, the best first.
    pub(crate) fn census_candidates(&self, need: CensusNeed) -> Vec<CensusCandidate> {
        let unsure_bytes = |entry: &SegmentEntry| match need {
            CensusNeed::Gain => entry.unsure_bytes(false),
            CensusNeed::Room => entry.unsure_bytes(true),
            CensusNeed::Everything => entry.live_bytes(),
        };
        let candidate = |(id, entry): (&SegmentId, &SegmentEntry)| {
            let unsure_bytes = unsure_bytes(entry);
            (unsure_bytes > 0).then_some(CensusCandidate { segment: *id, unsure_bytes })
        };
        let mut found: Vec<CensusCandidate> = match need {
            CensusNeed::Gain => {
                let entries = self.unsure.iter().filter_map(|id| Some((id, self.segments.get(id)?)));
                entries.filter_map(candidate).collect()
            }
            CensusNeed::Room | CensusNeed::Everything => self.segments.iter().filter_map(candidate).collect(),
        };
        found.sort_by_key(|candidate| (Reverse(candidate.unsure_bytes), candidate.segment));
        found
    }

    /// The counts of segments at the beginning of a census. Segments that are gone are left out.
    pub(crate) fn census_marks(&self, segments: &[SegmentId]) -> Vec<CensusMark> {
        let mark = |id: &SegmentId| {
            let entry = self.segments.get(id)?;
            entry.live.mark(*id, entry.written_bytes)
        };
        segments.iter().filter_map(mark).collect()
    }

    /// Takes the results of a census. Segments that are gone by now are passed over.
    pub(crate) fn note_census(&mut self, counted: &[CountedSegment]) {
        for segment in counted {
            self.change(segment.mark.segment, |entry| entry.live.note_census(segment));
        }
    }

    /// Sets the references of every segment after recovery. Segments that `live` does not name have none.
    pub(crate) fn set_live(&mut self, live: &HashMap<SegmentId, u64>, pins: &Pins<Retired>) {
        for (id, entry) in &mut self.segments {
            let before = Indexed::of(entry);
            entry.live.set(live.get(id).copied().unwrap_or(0), entry.written_bytes);
            retire_empty(*id, entry, pins);
            self.index.change(*id, before, entry);
        }
        self.count_all();
    }

    /// Keeps the zones of a segment with live bytes until `free` is called for it once more. Returns whether
    /// there is such a segment.
    pub(crate) fn guard(&mut self, id: SegmentId) -> bool {
        let guarded = self.segments.get_mut(&id).filter(|entry| entry.state == SegmentStage::Sealed);
        guarded.map(|entry| entry.queued += 1).is_some()
    }

    /// Takes note that `Pins` has returned one of the segment's entries, or that a guard was dropped. After
    /// the last one the segment is freed, if nothing has referred to it again.
    pub(crate) fn free(&mut self, id: SegmentId) {
        let entry = self.get(id);
        assert!(entry.queued > 0, "a segment leaves the queue of pins as often as it entered");
        entry.queued -= 1;
        // An entry that is left belongs to a later retirement, and waits for younger pins.
        if entry.queued > 0 || entry.state != SegmentStage::Retired {
            return;
        }
        assert!(entry.live.is_unreferenced(), "only a segment without references is freed");
        // As for `Retired`, the sums are those of a segment that is not open.
        entry.state = SegmentStage::Freeing;
        self.dirty.insert(id);
    }

    /// The changes that the commit log does not know yet, as frames. The caller writes them before any
    /// others.
    pub(crate) fn edits(&mut self) -> Vec<LogFrame<'static>> {
        let mut frames = Vec::new();
        self.unlogged_bytes = 0;
        for id in std::mem::take(&mut self.dirty) {
            let is_saved = self.get(id).is_saved;
            self.unsaved.entry(id).or_insert(is_saved);
            let entry = self.get(id);
            // A reader of the log applies frames in order: a segment is opened, grown, sealed and freed, each
            // only after the one before.
            if entry.logged_as.is_none() {
                frames.push(LogFrame::Opened(entry.logged.clone()));
            }
            // A frame must fit one stripe, so long growth takes several.
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
            for ColumnMove { column, to } in std::mem::take(&mut entry.unlogged_moves) {
                let _old = entry.logged.move_column(column, to);
                frames.push(LogFrame::Moved { segment: id, column, to });
            }
            for lost in &entry.lost {
                if entry.logged.note_lost(*lost) {
                    frames.push(LogFrame::Lost { segment: id, lost: *lost });
                }
            }
            let freed =
                entry.state == SegmentStage::Freeing && entry.logged_as != Some(SegmentStage::Freeing);
            entry.logged_as = Some(entry.state);
            if freed {
                assert!(entry.live.is_unreferenced(), "the log frees only segments without references");
                frames.push(LogFrame::Freed(id));
                self.freed_in_log.push(id);
            }
        }
        self.old_zones_in_log.append(&mut self.old_zones);
        frames
    }

    /// Most bytes of the frames that `edits` would return.
    pub(crate) fn edit_bytes_max(&self) -> usize {
        let column_edits = |entry: &SegmentEntry| entry.unlogged_moves.len() + entry.lost.len();
        let of_columns: usize =
            self.dirty.iter().filter_map(|id| self.segments.get(id)).map(column_edits).sum();
        self.dirty.len() * EDIT_MAX_BYTES + of_columns * COLUMN_EDIT_BYTES
    }

    /// Takes the old zones of moved columns. The caller knows that every `Moved` frame written so far, or a
    /// root with these moves, is durable.
    pub(crate) fn take_moved(&mut self) -> Vec<OldZones> {
        std::mem::take(&mut self.old_zones_in_log)
    }

    /// Most bytes of the changes that a root can have to save once all edits are made.
    pub(crate) fn unsaved_bytes_max(&self) -> usize {
        let bytes = |id: &SegmentId| {
            self.segments.get(id).map_or(SavedChange::bytes_max(0, 0, 0), |e| {
                let runs = e.logged.stripes.len() + e.unlogged_runs.len();
                SavedChange::bytes_max(e.logged.columns.len(), e.lost.len(), runs)
            })
        };
        self.unsaved.keys().chain(&self.dirty).map(bytes).sum()
    }

    /// Every segment as the commit log knows it, without those that it has freed, and with every column that
    /// is lost by now.
    pub(crate) fn logged(&self) -> Vec<SegmentDescriptor> {
        self.segments.values().filter_map(SegmentEntry::in_root).collect()
    }

    /// The changes since the last call, for the next root.
    pub(crate) fn take_unsaved(&mut self) -> Vec<SavedChange> {
        let mut changes = Vec::new();
        for (id, was_saved) in std::mem::take(&mut self.unsaved) {
            let entry = self.segments.get_mut(&id);
            match entry.and_then(|e| e.in_root().inspect(|_| e.is_saved = true)) {
                Some(descriptor) => changes.push(SavedChange::Segment(descriptor)),
                None if was_saved => changes.push(SavedChange::Gone(id)),
                // It came and went between two roots, or no frame names it yet.
                None => {}
            }
        }
        changes
    }

    /// Removes and returns the freed segments. The caller knows that every `Freed` frame written so far, or a
    /// root without these segments, is durable.
    pub(crate) fn take_freed(&mut self) -> Vec<SegmentId> {
        let freed = std::mem::take(&mut self.freed_in_log);
        for id in &freed {
            let removed = self.segments.remove(id);
            let removed = removed.expect("a freed segment is removed once");
            assert_eq!(removed.state, SegmentStage::Freeing, "nothing has referred to a freed segment again");
            self.sums.remove(removed.sums());
            self.index.remove(*id, &removed);
        }
        freed
    }
}

/// Adds stripes to the end of a descriptor's list. Equal runs become one.
pub(crate) fn append_runs(descriptor: &mut SegmentDescriptor, runs: &[StripeRun]) {
    for run in runs {
        match descriptor.stripes.last_mut() {
            Some(last) if last.rows == run.rows => last.count += run.count,
            _ => descriptor.stripes.push(*run),
        }
    }
}

/// Retires a sealed segment without references.
fn retire_empty(id: SegmentId, entry: &mut SegmentEntry, pins: &Pins<Retired>) {
    if entry.state == SegmentStage::Sealed && entry.live.is_unreferenced() {
        entry.state = SegmentStage::Retired;
        entry.queued += 1;
        pins.retire(Retired::Segment(id));
    }
}
