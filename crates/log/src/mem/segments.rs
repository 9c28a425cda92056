//! The segments of a `MemLog`: byte vectors with a count.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use warpfire_units::{BLOCK_BYTES, SegmentId, SlicePtr};

use super::MemLogOptions;
use crate::live_bytes::LiveBytes;
use crate::segment_entry::{is_worth_cleaning, is_worth_sealing};
use crate::store::{
    CensusCandidate, CensusMark, CensusNeed, CountedSegment, LogError, Slices, Space, Stream,
};
use crate::stream::{room_wanted_bytes, slot, starts_on_block};

/// Segments kept for deletion and cleaning.
const RESERVE_SEGMENTS: u64 = 6;

#[derive(Clone)]
struct MemSegment {
    bytes: Vec<u8>,
    /// The tick of each append that no sync has covered, and the segment's length after it.
    unsynced: Vec<(u64, usize)>,
    /// Its length when a sync last covered it, or the end of the last slice that a sync of records covered.
    synced_len: usize,
    /// Slices that records need and no sync has covered: the tick before the records, and the slice's end.
    needed: Vec<(u64, usize)>,
    live: LiveBytes,
    sealed: bool,
    /// Without references, sealed, and waiting for pins. Only a caller with an older pin refers to it again.
    retired: bool,
    /// Its entries in the queue of `Pins`: one for each retirement that may still have older pins.
    queued: u32,
}

impl MemSegment {
    fn new() -> Self {
        MemSegment {
            bytes: Vec::new(),
            unsynced: Vec::new(),
            needed: Vec::new(),
            synced_len: 0,
            live: LiveBytes::new(),
            sealed: false,
            retired: false,
            queued: 0,
        }
    }

    fn live_bytes(&self) -> u64 {
        self.live.live(self.bytes.len() as u64)
    }

    /// As `SegmentEntry::unsure_bytes`.
    fn unsure_bytes(&self, segment_bytes: u64, doubts: bool) -> u64 {
        let (live, least) = (self.live_bytes(), self.live.least(self.bytes.len() as u64, doubts));
        let may_pay =
            self.sealed && is_worth_cleaning(least, segment_bytes) && !is_worth_cleaning(live, segment_bytes);
        if may_pay { live - least } else { 0 }
    }

    /// Retires the segment if it is sealed and has no reference. `true` if this call retired it.
    fn retire_if_empty(&mut self) -> bool {
        let retires = self.sealed && self.live.is_unreferenced() && !self.retired;
        self.retired |= retires;
        self.queued += u32::from(retires);
        retires
    }
}

#[derive(Clone)]
pub(super) struct MemSegments {
    options: MemLogOptions,
    all: BTreeMap<SegmentId, MemSegment>,
    open: [Option<SegmentId>; 4],
    next: SegmentId,
}

impl MemSegments {
    pub(super) fn new(options: MemLogOptions) -> Self {
        MemSegments { options, all: BTreeMap::new(), open: [None; 4], next: SegmentId::FIRST }
    }

    pub(super) fn segment_bytes(&self) -> u64 {
        self.options.segment_bytes
    }

    fn count_max(&self) -> u64 {
        self.options.capacity_bytes / self.options.segment_bytes
    }

    fn get(&mut self, id: SegmentId) -> &mut MemSegment {
        self.all.get_mut(&id).expect("a segment that is referenced is not freed")
    }

    /// Appends, and returns the segments that were sealed without a reference.
    pub(super) fn append(
        &mut self,
        stream: Stream,
        bytes: &[u8],
        unsplit_max_bytes: usize,
        tick: u64,
    ) -> Result<(Slices, Vec<SegmentId>), LogError> {
        let mut slices = Slices::new();
        let mut emptied = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            // A failure here has released the parts before it: the append leaves no reference behind.
            let wanted = room_wanted_bytes(bytes.len(), rest.len(), unsplit_max_bytes);
            let on_block = starts_on_block(stream, bytes.len());
            let id = self.open_for(stream, on_block, wanted, &slices, &mut emptied)?;
            let room = self.options.segment_bytes;
            let segment = self.get(id);
            if on_block {
                segment.bytes.resize(segment.bytes.len().next_multiple_of(BLOCK_BYTES), 0);
            }
            let offset_bytes = segment.bytes.len() as u64;
            let take = rest.len().min(usize::try_from(room - offset_bytes).expect("a segment fits memory"));
            let (now, later) = rest.split_at(take);
            segment.bytes.extend_from_slice(now);
            segment.unsynced.push((tick, segment.bytes.len()));
            segment.live.append(take as u64);
            let len_bytes = u32::try_from(take).expect("a segment is below 4 GiB");
            slices.push(SlicePtr { segment: id, offset_bytes, len_bytes });
            rest = later;
        }
        Ok((slices, emptied))
    }

    /// The stream's open segment, if `wanted` bytes fit; else a new one; else any open one with room.
    fn open_for(
        &mut self,
        stream: Stream,
        on_block: bool,
        wanted: usize,
        before: &Slices,
        emptied: &mut Vec<SegmentId>,
    ) -> Result<SegmentId, LogError> {
        let fits = |id: &SegmentId| {
            let start = self.all[id].bytes.len();
            let start = if on_block { start.next_multiple_of(BLOCK_BYTES) } else { start };
            (start + wanted) as u64 <= self.options.segment_bytes
        };
        if let Some(id) = self.open[slot(stream)].filter(fits) {
            return Ok(id);
        }
        if self.all.len() as u64 >= self.count_max() {
            // Free bytes in other streams' segments are free for all streams.
            if let Some(id) = self.open.iter().flatten().copied().find(fits) {
                return Ok(id);
            }
            for slice in before {
                self.get(slice.segment).live.release(u64::from(slice.len_bytes));
            }
            return Err(LogError::NoSpace);
        }
        if let Some(full) = self.open[slot(stream)].take() {
            let full_segment = self.get(full);
            full_segment.sealed = true;
            if full_segment.retire_if_empty() {
                emptied.push(full);
            }
        }
        let id = self.next;
        self.next = id.next();
        self.open[slot(stream)] = Some(id);
        let empty = MemSegment::new();
        self.all.insert(id, empty);
        Ok(id)
    }

    pub(super) fn len_bytes(&self, id: SegmentId) -> u64 {
        self.all.get(&id).map_or(0, |s| s.bytes.len() as u64)
    }

    pub(super) fn read(&self, slice: SlicePtr, buf: &mut [u8]) -> Result<(), LogError> {
        assert_eq!(buf.len(), slice.len_bytes as usize, "a buffer has its slice's length");
        let held = self.all.get(&slice.segment).and_then(|s| {
            let start = usize::try_from(slice.offset_bytes).ok()?;
            s.bytes.get(start..start.checked_add(buf.len())?)
        });
        buf.copy_from_slice(held.ok_or(LogError::BadPointer(slice))?);
        Ok(())
    }

    pub(super) fn retain(&mut self, id: SegmentId, count: impl FnOnce(&mut LiveBytes)) {
        let segment = self.get(id);
        segment.retired = false;
        count(&mut segment.live);
    }

    /// Records after this tick need the slice.
    pub(super) fn need(&mut self, slice: SlicePtr, tick: u64) {
        let segment = self.get(slice.segment);
        let end =
            usize::try_from(slice.offset_bytes).expect("a segment fits memory") + slice.len_bytes as usize;
        if end > segment.synced_len {
            segment.needed.push((tick, end));
        }
    }

    pub(super) fn release(&mut self, id: SegmentId, count: impl FnOnce(&mut LiveBytes)) -> Option<SegmentId> {
        let segment = self.get(id);
        count(&mut segment.live);
        segment.retire_if_empty().then_some(id)
    }

    pub(super) fn census_candidates(&self, need: CensusNeed) -> Vec<CensusCandidate> {
        let candidate = |(id, segment): (&SegmentId, &MemSegment)| {
            let unsure_bytes = match need {
                CensusNeed::Gain => segment.unsure_bytes(self.options.segment_bytes, false),
                CensusNeed::Room => segment.unsure_bytes(self.options.segment_bytes, true),
                CensusNeed::Everything => segment.live_bytes(),
            };
            (unsure_bytes > 0).then_some(CensusCandidate { segment: *id, unsure_bytes })
        };
        let mut found: Vec<CensusCandidate> = self.all.iter().filter_map(candidate).collect();
        found.sort_by_key(|candidate| (Reverse(candidate.unsure_bytes), candidate.segment));
        found
    }

    pub(super) fn census_marks(&self, segments: &[SegmentId]) -> Vec<CensusMark> {
        let mark = |id: &SegmentId| {
            let segment = self.all.get(id)?;
            segment.live.mark(*id, segment.bytes.len() as u64)
        };
        segments.iter().filter_map(mark).collect()
    }

    pub(super) fn note_census(&mut self, counted: &[CountedSegment]) {
        for result in counted {
            if let Some(segment) = self.all.get_mut(&result.mark.segment) {
                segment.live.note_census(result);
            }
        }
    }

    pub(super) fn set_live(&mut self, live: &HashMap<SegmentId, u64>) -> Vec<SegmentId> {
        assert!(live.keys().all(|id| self.all.contains_key(id)), "only segments that exist are referenced");
        let mut emptied = Vec::new();
        for (id, segment) in &mut self.all {
            segment.live.set(live.get(id).copied().unwrap_or(0), segment.bytes.len() as u64);
            if segment.retire_if_empty() {
                emptied.push(*id);
            }
        }
        emptied
    }

    /// Takes note that `Pins` has returned one of the segment's entries. After the last one the segment is
    /// freed, if nothing has referred to it again. `true` if it was freed.
    pub(super) fn free(&mut self, id: SegmentId) -> bool {
        let segment = self.get(id);
        segment.queued -= 1;
        if segment.queued > 0 || !segment.retired {
            return false;
        }
        let freed = self.all.remove(&id).expect("a segment is freed once");
        assert!(
            freed.sealed && freed.live.is_unreferenced(),
            "only sealed segments without references are freed"
        );
        true
    }

    /// Every append so far is durable.
    pub(super) fn mark_synced(&mut self) {
        for segment in self.all.values_mut() {
            segment.unsynced.clear();
            segment.needed.clear();
            segment.synced_len = segment.bytes.len();
        }
    }

    /// Every slice that records need is durable, and no byte after it.
    pub(super) fn mark_needed_synced(&mut self) {
        for segment in self.all.values_mut() {
            let ends = segment.needed.drain(..).map(|(_, end)| end);
            segment.synced_len = ends.fold(segment.synced_len, usize::max);
        }
    }

    /// Keeps the bytes that a sync covered, the appends up to the tick `appended`, and the slices needed up
    /// to the tick `needed`. Drops all others and seals the rest, as recovery does.
    pub(super) fn truncate_to(&mut self, appended: u64, needed: u64) {
        for segment in self.all.values_mut() {
            let appends = segment.unsynced.iter().filter(|(tick, _)| *tick <= appended);
            let slices = segment.needed.iter().filter(|(tick, _)| *tick <= needed);
            let ends = appends.chain(slices).map(|(_, end)| *end);
            segment.bytes.truncate(ends.fold(segment.synced_len, usize::max));
            segment.unsynced.clear();
            segment.needed.clear();
            segment.synced_len = segment.bytes.len();
            segment.sealed = true;
        }
        self.all.retain(|_, s| !s.bytes.is_empty());
        self.open = [None; 4];
    }

    pub(super) fn victims(&self, max: usize) -> Vec<SegmentId> {
        let worth = |s: &MemSegment| is_worth_cleaning(s.live_bytes(), self.options.segment_bytes);
        let mut found: Vec<_> =
            self.all.iter().filter(|(_, s)| s.sealed && s.live_bytes() > 0 && worth(s)).collect();
        found.sort_by_key(|(id, s)| (s.live_bytes(), **id));
        found.into_iter().map(|(id, _)| *id).take(max).collect()
    }

    /// Seals the open segment with the most garbage, if that is worth it. Returns it if it has no reference.
    pub(super) fn seal_victim(&mut self) -> Option<Vec<SegmentId>> {
        let segment_bytes = self.options.segment_bytes;
        let garbage = |id: &SegmentId| {
            let segment = self.all.get(id)?;
            let garbage_bytes = segment.bytes.len() as u64 - segment.live_bytes();
            is_worth_sealing(garbage_bytes, segment_bytes).then_some((garbage_bytes, Reverse(*id)))
        };
        let (_, Reverse(most)) = self.open.iter().flatten().filter_map(garbage).max()?;
        self.open.iter_mut().filter(|open| **open == Some(most)).for_each(|open| *open = None);
        let sealed = self.get(most);
        sealed.sealed = true;
        Some(if sealed.retire_if_empty() { vec![most] } else { Vec::new() })
    }

    pub(super) fn space(&self) -> Space {
        let total_bytes = self.count_max() * self.options.segment_bytes;
        let segments = || self.all.values();
        let live_bytes = segments().map(MemSegment::live_bytes).sum();
        let held = |s: &MemSegment| if s.sealed { self.options.segment_bytes } else { s.bytes.len() as u64 };
        let used_bytes: u64 = segments().map(held).sum();
        let is_stuck =
            |s: &&MemSegment| s.sealed && !is_worth_cleaning(s.live_bytes(), self.options.segment_bytes);
        Space {
            total_bytes,
            live_bytes,
            shared_bytes: segments().map(|s| s.live.shared(s.bytes.len() as u64)).sum(),
            unsure_bytes: segments().map(|s| s.unsure_bytes(self.options.segment_bytes, false)).sum(),
            garbage_bytes: used_bytes - live_bytes,
            stuck_bytes: segments().filter(is_stuck).map(|s| held(s) - s.live_bytes()).sum(),
            log_bytes: 0,
            log_growth_bytes: 0,
            free_bytes: total_bytes - used_bytes,
            reserve_bytes: (RESERVE_SEGMENTS * self.options.segment_bytes).min(total_bytes / 4),
        }
    }
}
