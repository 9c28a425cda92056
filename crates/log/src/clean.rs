//! The space that is left, the segments that are worth cleaning, the scrub of one segment, and the trim.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use warpfire_env::sync::atomic::Ordering;

use warpfire_env::{PlantedBug, begin_background_work, is_planted};
use warpfire_format::segment::SegmentKind;
use warpfire_format::state_frame::segment_frame_bytes_max;
use warpfire_pool::{Trimmed, VerifiedSegment};
use warpfire_units::SegmentId;

use crate::limits::{
    LOG_RESERVE_SEGMENTS, LOG_SEGMENTS_MIN, RECOVERY_RESERVE, RESERVE_PART, RESERVE_SEGMENTS_MIN,
    STATE_TAIL_MAX_BYTES,
};
use crate::log::Log;
use crate::mend_step::PacedTurns;
use crate::segment_table::{SegmentEntry, SegmentStage};
use crate::store::{LogError, ScrubStep, ScrubbedSegment, Space, WorkFor};
use crate::stream::log_segments_in_bulk;

impl Log {
    /// Stores a number of bytes that surely fit, so that most calls of `admit` need not count space.
    pub(crate) fn note_room(&self) {
        let whole_bytes = self.pool.free_bytes();
        let reserve_bytes = self.measure_space().reserve_bytes;
        self.room_bytes.store(whole_bytes.saturating_sub(reserve_bytes), Ordering::Relaxed);
    }

    /// Segments of the state log once the pool has so many segments; 0 if roots hold their descriptors.
    fn state_segments_of(&self, segments: u64) -> u64 {
        let columns = self.pool.full_geometry().width();
        let columns = usize::try_from(columns).expect("a segment has fewer columns than 2^16");
        let state_bytes = segments.saturating_mul(segment_frame_bytes_max(columns, 0, 1) as u64);
        let payload_bytes = self.pool.geometry(SegmentKind::Mirror).segment_payload_bytes.max(1);
        if state_bytes <= STATE_TAIL_MAX_BYTES as u64 { 0 } else { state_bytes.div_ceil(payload_bytes) }
    }

    /// The pool's space. The segment table keeps the sums, so that the cost does not grow with the pool.
    pub(crate) fn measure_space(&self) -> Space {
        // The reserve is counted in segments, and must not change with the width of the next one.
        let bulk = self.pool.full_geometry();
        let segment_bytes = bulk.segment_payload_bytes;
        let free_bytes = self.pool.free_bytes();
        let sums = self.segment_table.lock().sums();
        let mut space = Space {
            live_bytes: sums.live_bytes,
            shared_bytes: sums.shared_bytes,
            unsure_bytes: sums.unsure_bytes,
            garbage_bytes: sums.garbage_bytes,
            stuck_bytes: sums.stuck_bytes,
            free_bytes: free_bytes + sums.open_rest_bytes,
            ..Space::default()
        };
        // The next checkpoints free the log segments, except those that a log always has. So these count as
        // garbage, as many bytes as their zones would hold in bulk segments.
        let in_bulk = |segments: u64| {
            segments * self.pool.geometry(SegmentKind::Mirror).width() * segment_bytes / bulk.width().max(1)
        };
        let log_segments = self.log_segments();
        space.garbage_bytes += in_bulk(log_segments);
        // A frozen state keeps these zones only until the pool needs them.
        space.garbage_bytes += self.pool.kept_zones() * segment_bytes / bulk.width().max(1);
        if is_planted(PlantedBug::GarbageOvercounted) {
            space.garbage_bytes += 1 << 30;
        }
        space.total_bytes = space.live_bytes + space.garbage_bytes + space.free_bytes;
        let segments = space.total_bytes / segment_bytes.max(1);
        // Counted before the state needs them, so that the available bytes are those that can be written.
        let state_segments = self.state_segments().max(self.state_segments_of(segments));
        let segments_of_logs = LOG_SEGMENTS_MIN + state_segments;
        space.log_bytes = in_bulk(log_segments.min(segments_of_logs));
        space.log_growth_bytes = in_bulk(segments_of_logs.saturating_sub(log_segments)).min(space.free_bytes);
        // The pool keeps the zones for a recovery's log segment out of the free bytes.
        // The state log keeps its zones: they are no garbage that cleaning could turn into room.
        let log_segments = LOG_RESERVE_SEGMENTS - RECOVERY_RESERVE + state_segments;
        let reserve_segments = RESERVE_SEGMENTS_MIN.max(segments / RESERVE_PART)
            + log_segments.div_ceil(log_segments_in_bulk(&self.pool, bulk).max(1));
        space.reserve_bytes = (reserve_segments * segment_bytes).min(space.total_bytes);
        debug_assert!(
            space.log_bytes <= space.garbage_bytes && space.stuck_bytes <= space.garbage_bytes,
            "parts are no more than the whole: {space:?}"
        );
        space
    }

    /// Discards every free zone, as [`Trimmed`] counts them. `progress` is called after each, and ends the
    /// trim with `Break`. A zone is free once it is durable that nothing
    /// refers to its segment and no pin is older than that, so the pool's free zones are those.
    ///
    /// # Errors
    /// `ReadOnly`, `OpenForReading`. A device that refuses a discard is no error.
    pub fn trim(&self, progress: impl FnMut(Trimmed) -> ControlFlow<()>) -> Result<Trimmed, LogError> {
        self.latch.check()?;
        self.pool.trim(progress).map_err(|e| self.latch.on_write(e))
    }

    /// Verifies the oldest segment with live bytes that is newer than `after`; the first one seals the open
    /// segments before.
    pub(crate) fn scrub_after(
        &self,
        after: Option<SegmentId>,
        work_for: WorkFor<'_>,
    ) -> Result<ScrubStep, LogError> {
        let _in_background = begin_background_work();
        if after.is_none() {
            self.seal_open(|_| true)?;
        }
        let (segment, left) = {
            let segment_table = self.segment_table.lock();
            let mut later = segment_table.index().live_sealed().after(after);
            let Some(segment) = later.next() else { return Ok(ScrubStep::AtEnd) };
            (segment, later.count() as u64)
        };
        let Some(_guard) = self.guard(segment) else { return self.scrub_after(Some(segment), work_for) };
        let mut turns = PacedTurns { log: self, work_for, is_urgent: false };
        match self.pool.verify_in_pieces(segment, &mut turns) {
            Ok(Some(VerifiedSegment { is_whole, read_bytes })) => {
                Ok(ScrubStep::Verified(ScrubbedSegment { segment, is_whole, read_bytes, left }))
            }
            Ok(None) => Ok(ScrubStep::Interrupted { left: left + 1 }),
            Err(e) => Err(LogError::Damaged(format!("{segment}: {e}").into())),
        }
    }

    /// Sealed segments, best victim first: damaged ones, then by the benefit of cleaning for its cost
    /// (`victims`).
    pub(crate) fn choose_victims(&self, max: usize) -> Vec<SegmentId> {
        // Before the table is locked: this takes locks of the pool.
        let damaged = self.known_damaged();
        let segment_table = self.segment_table.lock();
        // From the table, under its lock: no segment in it is newer, whatever other threads open now.
        let newest = segment_table.newest_id();
        let is_live = |e: &SegmentEntry| e.state == SegmentStage::Sealed && e.live_bytes() > 0;
        let live = damaged.iter().filter(|id| segment_table.entry(**id).is_some_and(is_live));
        let mut found: Vec<SegmentId> = live.copied().collect();
        // The oldest first among equals, so that the choice depends on nothing but the table.
        found.sort_by_key(|id| (Reverse(segment_table.benefit(*id, newest)), *id));
        found.truncate(max);
        if found.len() == max {
            return found;
        }
        let others = segment_table.victims(max.saturating_add(damaged.len()));
        found.extend(others.into_iter().filter(|id| !damaged.contains(id)));
        found.truncate(max);
        found
    }
}
