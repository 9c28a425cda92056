//! Emptying segments, for their space or because they are damaged: tables that name slices in them, or lie in them, are
//! rewritten, which reads what is damaged from the rest of its stripe.
//!
//! What can not be read beyond that stays where it is and stays named: a segment with something lost in it is not tried
//! again before the pool is opened the next time.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_log::{Admit, LogError, LogStore};
use warpfire_units::{SegmentId, Seq};

use super::job::{RewriteJob, SliceMoves};
use super::tiers::{compact_streams, references, seq_base};
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::{RunStream, Table};
use crate::table_set::InstallInto;

/// Turns of work for one request, before it is told that there is no space.
const RECLAIM_STEPS_MAX: u32 = 128;

/// Turns that gain nothing, one after the other, before it is held that nothing more can be gained: two of each kind at the least.
const IDLE_STEPS_MAX: u32 = 6;

/// One part in so many of the reserve is left for cleaning alone: of six segments two, one for what is live in a victim and one for
/// the rest of the tables that reach into it, one at each end.
const CLEANING_PART: u64 = 3;

/// Segments cleaned at a time.
const VICTIMS: usize = 4;

/// What work for space depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReclaimState {
    newest: Seq,
    /// Snapshots let go since the engine was opened.
    snapshots_released: u64,
    free_bytes: u64,
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Cleans some segments, if that gains space. `true` if anything was moved.
    pub(crate) fn clean_step(&self) -> Result<bool, MetaError> {
        let _compacting = self.compacting.lock();
        let mut unrecoverable = self.unrecoverable.lock();
        let victims = self.log.victims(VICTIMS + unrecoverable.len());
        self.empty_segments(victims, &mut unrecoverable)
    }

    /// Moves what is live out of some segments in which damage is known, so that it has all its parity again. `true` if
    /// anything was moved; without space nothing is.
    pub(crate) fn repair_step(&self) -> Result<bool, MetaError> {
        let _compacting = self.compacting.lock();
        let mut unrecoverable = self.unrecoverable.lock();
        let damaged = self.log.damaged()?;
        match self.empty_segments(damaged, &mut unrecoverable) {
            Err(MetaError::Log(LogError::NoSpace)) => Ok(false),
            other => other,
        }
    }

    /// Moves what is live and readable out of the first of these segments that are not known to be lossy, and notes those
    /// that prove so. `true` if anything was moved.
    fn empty_segments(
        &self,
        segments: Vec<SegmentId>,
        unrecoverable: &mut BTreeSet<SegmentId>,
    ) -> Result<bool, MetaError> {
        let victims: BTreeSet<SegmentId> = segments
            .into_iter()
            .filter(|s| !unrecoverable.contains(s))
            .take(self.victims_at_once())
            .collect();
        if victims.is_empty() {
            return Ok(false);
        }
        let mut moved = false;
        if self.shards.memory_names(&victims) {
            moved |= self.freeze()?;
            moved |= self.flush_frozen()?;
        }
        let concerns = |table: &Table<L>| -> Vec<SegmentId> {
            let entry = table.entry();
            let lies_in = entry.slices.iter().map(|s| s.segment);
            let names = entry.references.iter().map(|(segment, _)| *segment);
            lies_in.chain(names).filter(|s| victims.contains(s)).collect()
        };
        let mut moves = SliceMoves::default();
        for (run, table) in self.tables_where(|_, table| !concerns(table).is_empty()) {
            let rewritten = match table.is_unreadable() {
                true => Ok(()),
                false => self.rewrite(run, &table, &victims, &mut moves),
            };
            if table.is_unreadable() {
                moves.unrecoverable.extend(concerns(&table));
            } else {
                rewritten?;
                moved = true;
            }
        }
        unrecoverable.append(&mut moves.unrecoverable);
        Ok(moved)
    }

    /// Some tables, with their runs. None of the others is held, and each of these only until it is dropped, so that a table
    /// which is replaced gives back its space at once.
    pub(super) fn tables_where(
        &self,
        concerned: impl Fn(u64, &Table<L>) -> bool,
    ) -> Vec<(u64, Arc<Table<L>>)> {
        let table_set = self.table_set();
        let tables = table_set.tables().filter(|(run, table)| concerned(*run, table));
        tables.map(|(run, table)| (run, Arc::clone(table))).collect()
    }

    /// Segments to empty at a time: what is moved out of them is there twice until the last table is written.
    fn victims_at_once(&self) -> usize {
        if self.is_short_of_space() { 1 } else { VICTIMS }
    }

    /// Whether so much of the reserve is used that work for space has to take the smallest steps.
    fn is_short_of_space(&self) -> bool {
        let space = self.log.space();
        space.free_bytes < space.reserve_bytes
    }

    fn rewrite(
        &self,
        run: u64,
        table: &Arc<Table<L>>,
        victims: &BTreeSet<SegmentId>,
        moves: &mut SliceMoves,
    ) -> Result<(), MetaError> {
        let one = || std::iter::once(table);
        let mut job = RewriteJob::new(self, seq_base(one()), references(one()), victims, moves);
        let mut streams = vec![RunStream::new(vec![Arc::clone(table)])?];
        compact_streams(&mut streams, &mut job, false, None)?;
        job.finish(&InstallInto::SameRun(run), vec![table.entry().id], Vec::new())
    }

    /// Whether cleaning is worth its writes when nobody is waiting for space.
    pub(crate) fn cleaning_pays(&self) -> bool {
        let space = self.log.space();
        space.free_bytes < space.total_bytes / 8
            || space.garbage_bytes > (space.total_bytes / 16).max(space.live_bytes / 4)
    }

    /// Drops what deletes hide: writes what is in memory and merges everything. `true` if there was anything to do.
    fn drop_deleted(&self) -> Result<bool, MetaError> {
        // With nothing in memory this needs no room, and the log's segments are needed below.
        self.checkpoint()?;
        let mut did = self.flush_frozen()?;
        did |= self.freeze()?;
        did |= self.flush_frozen()?;
        did |= self.compact_all()?;
        if did {
            self.checkpoint()?;
        }
        Ok(did)
    }

    /// Works for space until `enough` has what it wants, or there is nothing left to gain. Cleaning alone may move for ever what
    /// deletes have made useless, so the two take turns.
    pub(crate) fn reclaim<T>(
        &self,
        mut enough: impl FnMut() -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        match enough() {
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        // Alone: what another thread's work holds for the moment would look like space that can not be won.
        let (_compacting, _flushing) = (self.compacting.lock(), self.flushing.lock());
        let mut best = self.used_and_free_bytes();
        let mut idle = 0;
        // When it is short, cleaning first would spend what is left on moving what has been deleted.
        let mut drops = self.is_short_of_space();
        for step_number in 1..=RECLAIM_STEPS_MAX {
            match enough() {
                Err(e) if e.is_no_space() => {}
                other => return other,
            }
            let reclaim_state = self.reclaim_state();
            if *self.reclaim_failed_at.lock() == Some(reclaim_state) {
                break;
            }
            let step = if drops { self.drop_deleted() } else { self.clean_step() };
            let did = match step {
                Err(e) if !e.is_no_space() => return Err(e),
                step => step.unwrap_or(false),
            };
            // Also a step that found no space at last may have won some before.
            let (used, free) = self.used_and_free_bytes();
            idle = if used < best.0 || free > best.1 { 0 } else { idle + 1 };
            best = (used.min(best.0), free.max(best.1));
            if idle == IDLE_STEPS_MAX {
                // Nothing will help before something changes.
                *self.reclaim_failed_at.lock() = Some(self.reclaim_state());
            }
            drops = if did { step_number % 3 == 2 } else { !drops };
        }
        enough()
    }

    /// Says whether tables of `bytes` may be written, so that there is room left in which to clean. What begins without it would end
    /// without it too, and leave garbage where that room was.
    pub(super) fn check_room_for(&self, bytes: u64) -> Result<(), MetaError> {
        let space = self.log.space();
        if space.free_bytes < bytes + space.reserve_bytes / CLEANING_PART {
            return Err(MetaError::Log(LogError::NoSpace));
        }
        Ok(())
    }

    /// What is live, with what memory will make of it; and what is free.
    fn used_and_free_bytes(&self) -> (u64, u64) {
        let space = self.log.space();
        (space.live_bytes + self.usage.in_memory_bytes(), space.free_bytes)
    }

    fn reclaim_state(&self) -> ReclaimState {
        ReclaimState {
            newest: self.newest(),
            snapshots_released: self.snapshots.released(),
            free_bytes: self.log.space().free_bytes,
        }
    }

    /// `admit` of the log, after as much work for space as it takes and gains.
    pub(crate) fn admit(&self, bytes: u64, admit: Admit) -> Result<(), MetaError> {
        self.reclaim(|| Ok(self.log.admit(bytes, admit)?))
    }
}
