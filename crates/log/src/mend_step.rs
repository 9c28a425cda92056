//! One step of mending: the due columns of the most urgent segment are rewritten.
//!
//! # Invariants
//! 1. No lock that readers, writers or the status need is held during device operations: `mending` is taken
//!    by `mend_one` alone.
//! 2. A step guards its segment and has no pin. So while it waits for its turn, no other segment is kept from
//!    being reused (`tests/pace.rs`).
//! 3. A step that its caller or a pause ends leaves the segment as it was.

use std::ops::ControlFlow;
use std::time::Duration;

use warpfire_env::sync::atomic::Ordering;
use warpfire_env::{PlantedBug, begin_background_work, is_planted};
use warpfire_pool::{PieceWork, PoolError, Suspects, Turns, Vacated};
use warpfire_units::SegmentId;

use crate::log::Log;
use crate::store::{LogError, LogStore, WorkFor};
use crate::upkeep_limit::Look;

/// Keeps the zones of a segment, and nothing else, from being reused.
pub(crate) struct SegmentGuard<'a> {
    log: &'a Log,
    segment: SegmentId,
}

impl Drop for SegmentGuard<'_> {
    fn drop(&mut self) {
        self.log.segment_table.lock().free(self.segment);
        // The segment may be free now: the next sync logs that.
        self.log.changes.fetch_add(1, Ordering::Release);
    }
}

/// The turns of upkeep: pieces that are as long, and follow each other as fast, as the limit allows.
pub(crate) struct PacedTurns<'a> {
    pub(crate) log: &'a Log,
    pub(crate) work_for: WorkFor<'a>,
    /// Whether the work is on data that has no redundancy left.
    pub(crate) is_urgent: bool,
}

impl Turns for PacedTurns<'_> {
    fn piece_bytes(&self) -> u64 {
        match self.work_for {
            WorkFor::Caller => u64::MAX,
            WorkFor::Pool(_) => self.log.upkeep_limit.piece_bytes(),
        }
    }

    fn after_piece(&mut self, work: PieceWork) -> ControlFlow<()> {
        self.log.upkeep_limit.spend(work.read_bytes, work.written_bytes);
        self.log.take_turn(self.work_for, self.is_urgent)
    }
}

impl Log {
    /// Guards a sealed segment that is referred to; `None` if it is none by now.
    pub(crate) fn guard(&self, segment: SegmentId) -> Option<SegmentGuard<'_>> {
        let is_there = self.segment_table.lock().guard(segment);
        is_there.then(|| SegmentGuard { log: self, segment })
    }

    /// Waits until upkeep may move more. `Break`: its caller has ended the work, or upkeep is paused.
    fn take_turn(&self, work_for: WorkFor<'_>, is_urgent: bool) -> ControlFlow<()> {
        let WorkFor::Pool(waiter) = work_for else { return ControlFlow::Continue(()) };
        loop {
            let (now_nanos, program_ops) = (waiter.now_nanos(), self.pool.program_ops());
            let wait = self.upkeep_limit.look(Look { now_nanos, program_ops, is_urgent });
            let goes_on = waiter.goes_on_after(Duration::from_nanos(wait));
            if !goes_on || self.upkeep_limit.must_end() {
                return ControlFlow::Break(());
            }
            if wait == 0 {
                return ControlFlow::Continue(());
            }
        }
    }

    /// Rewrites the due columns of one segment: of the one with the fewest columns left to lose.
    pub(crate) fn mend_one(&self, work_for: WorkFor<'_>) -> Result<bool, LogError> {
        self.latch.check()?;
        let _in_background = begin_background_work();
        // A step in the background that is under way does not wait from now on.
        let _command = matches!(work_for, WorkFor::Caller).then(|| self.upkeep_limit.command());
        self.spend_converted();
        if self.take_turn(work_for, false).is_break() {
            return Ok(false);
        }
        let _mending = self.mending.lock();
        self.seal_for_mending()?;
        let survey = self.survey();
        let Some((segment, left)) = self.most_urgent(&survey) else { return Ok(false) };
        // No other segment may be written to its zones while they are read.
        let Some(guard) = self.guard(segment) else { return Ok(true) };
        let suspects =
            if survey.unsound.contains(&segment) { Suspects::Unverified } else { Suspects::Recorded };
        let nothing_moves = Vacated::default();
        let vacated = if survey.missing_bytes == 0 { &survey.vacated } else { &nothing_moves };
        let mut turns = PacedTurns { log: self, work_for, is_urgent: left == 0 };
        let mut resilvered = self
            .pool
            .resilver_in_pieces(segment, suspects, vacated, &mut turns)
            .map_err(|e| self.latch.on_write(e))?;
        if resilvered.is_ended {
            return Ok(false);
        }
        let no_zone = matches!(resilvered.failure, Some(PoolError::NoSpace));
        if let Some(error) = &resilvered.failure {
            tracing::warn!(name: "segment_not_mended", %segment, %error, "a segment stays damaged");
        }
        let columns = resilvered.moves.len();
        if columns == 0 || (resilvered.failure.is_some() && !no_zone) {
            self.note_unmended(segment);
        }
        tracing::debug!(name: "segment_mended", %segment, left, columns, "columns of a segment were rewritten");
        // What the columns missed before is known to the new descriptor, and must not count again later.
        self.note_losses();
        if is_planted(PlantedBug::OldZoneResetEarly) {
            self.pool.free_old_zones(std::mem::take(&mut resilvered.old_zones));
        }
        self.segment_table.lock().resilvered(segment, resilvered);
        drop(guard);
        self.changes.fetch_add(1, Ordering::Release);
        match self.sync() {
            Err(LogError::NoSpace) => {}
            synced => synced?,
        }
        Ok(true)
    }
}
