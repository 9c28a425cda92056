//! Cleaning: victims are emptied, for their space or because they are damaged.
//!
//! To empty a victim, the engine rewrites each table that lies in it or names slices in it, and moves the
//! bytes that holds keep there. The log reconstructs damaged blocks on the way.
//!
//! # Invariants
//! 1. Bytes that the log cannot reconstruct stay in place and stay named. Their segment becomes
//!    *unrecoverable*: it is no victim again until the pool is reopened (assert in `empty_segments`).
//! 2. A rewrite begins only if its tables leave room in which to clean (`check_room_for`).
//! 3. Victims whose tables are rewritten anyway are emptied with the others, so that a cleaning writes more
//!    data than tables where it can (`choose_victims`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use warpfire_log::{LogError, LogStore, WorkFor};
use warpfire_units::SegmentId;

use super::job::{JobScope, RewriteJob};
use super::moves::SliceMoves;
use super::tiers::{compact_streams, references, seq_base};
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::{RunStream, Table};
use crate::table_set::InstallInto;

/// One part in so many of the reserve is left for cleaning alone. Of six segments that is two: one for the
/// live bytes of a victim, and one for the rest of the tables that reach into it at either end.
const CLEANING_PART: u64 = 3;

/// Segments cleaned at a time, at least.
const VICTIMS: usize = 4;

/// Segments cleaned at a time, at most.
const VICTIMS_MAX: usize = 64;

/// The live bytes that one cleaning moves take at most one part in so many of the free space, beyond those of
/// `VICTIMS` segments: they exist twice until the last table is written.
const MOVED_FREE_PART: u64 = 8;

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Cleans some segments, if that gains space. `true` if a table was rewritten or held bytes moved.
    pub(crate) fn clean_step(&self) -> Result<bool, MetaError> {
        let _compacting = self.compacting.lock();
        let mut unrecoverable = self.unrecoverable.lock();
        let mut victims = self.log.victims(VICTIMS_MAX + unrecoverable.len());
        victims.retain(|segment| !unrecoverable.contains(segment));
        let victims = self.choose_victims(&victims);
        self.empty_segments(victims, &mut unrecoverable)
    }

    /// As `clean_step`, for space that somebody waits for: without a victim it seals the open segment with
    /// the most garbage, and cleans it. A small pool has few segments, and a good part of them is open.
    pub(super) fn clean_for_room(&self) -> Result<bool, MetaError> {
        if self.clean_step()? {
            return Ok(true);
        }
        let has_sealed = self.log.seal_victim()?;
        if has_sealed {
            self.clean_step()?;
        }
        Ok(has_sealed)
    }

    /// The first victims, and more of them while the tables that name them take more bytes than the live
    /// bytes that move. Data that was overwritten at random is named in nearly all tables, so a cleaning of
    /// few segments would write all tables for a few segments.
    fn choose_victims(&self, victims: &[SegmentId]) -> Vec<SegmentId> {
        if self.is_short_of_space() {
            return victims.iter().copied().take(self.victims_at_once()).collect();
        }
        let table_set = self.table_set();
        let moved_bytes_max = self.log.space().free_bytes / MOVED_FREE_PART;
        let (mut chosen, mut tables) = (Vec::new(), BTreeSet::new());
        let (mut table_bytes, mut moved_bytes) = (0, 0);
        for victim in victims {
            let mut named_bytes = 0;
            for (_, table) in table_set.tables() {
                let entry = table.entry();
                let names: u64 =
                    entry.references.iter().filter(|(id, _)| id == victim).map(|(_, bytes)| bytes).sum();
                named_bytes += names;
                if names > 0 && tables.insert(entry.id) {
                    table_bytes += u64::from(entry.len_bytes);
                }
            }
            let is_one_of_many = chosen.len() >= VICTIMS;
            if is_one_of_many && (moved_bytes > table_bytes || moved_bytes + named_bytes > moved_bytes_max) {
                break;
            }
            moved_bytes += named_bytes;
            chosen.push(*victim);
        }
        chosen
    }

    /// Gives some segments all their parity again: rewrites damaged and lost columns or, where that is not
    /// possible, moves the live bytes to other segments. `true` if something was rewritten. Without space it
    /// does nothing.
    pub(crate) fn repair_step(&self, work_for: WorkFor<'_>) -> Result<bool, MetaError> {
        self.latch.check()?;
        // Without the lock, for which callers wait that need space: a column takes a while.
        if self.log.mend(work_for)? {
            return Ok(true);
        }
        // A step that was ended early has left columns that are not to be cleaned for that.
        if let WorkFor::Pool(waiter) = work_for
            && (!waiter.goes_on_after(Duration::ZERO) || !self.log.upkeep_may_work())
        {
            return Ok(false);
        }
        // Nor does it wait for a merge where there is nothing to clean.
        if self.log.damaged()?.is_empty() {
            return Ok(false);
        }
        let _compacting = self.compacting.lock();
        let mut unrecoverable = self.unrecoverable.lock();
        let mut damaged = self.log.damaged()?;
        damaged.retain(|segment| !unrecoverable.contains(segment));
        damaged.truncate(self.victims_at_once());
        match self.empty_segments(damaged, &mut unrecoverable) {
            Err(MetaError::Log(LogError::NoSpace)) => Ok(false),
            other => other,
        }
    }

    /// Moves the readable live bytes out of the first of these segments that are not known as unrecoverable.
    /// Adds those that prove unrecoverable. `true` if a table was rewritten.
    fn empty_segments(
        &self,
        segments: Vec<SegmentId>,
        unrecoverable: &mut BTreeSet<SegmentId>,
    ) -> Result<bool, MetaError> {
        let victims: BTreeSet<SegmentId> =
            segments.into_iter().filter(|segment| !unrecoverable.contains(segment)).collect();
        if victims.is_empty() {
            return Ok(false);
        }
        assert!(victims.is_disjoint(unrecoverable), "an unrecoverable segment is no victim");
        let mut moved = false;
        // Values in memory that name a victim get to tables first, where the loop below finds them.
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
            // An unreadable table fails its own rewrite only: the other tables of the victims are still
            // moved.
            if table.is_unreadable() {
                moves.unrecoverable.extend(concerns(&table));
            } else {
                rewritten?;
                moved = true;
            }
        }
        // After the tables: held bytes that metadata names too are copied once. Their copies stay referenced,
        // because only a job could drop them and this thread holds `compacting`.
        let mut held_bytes_moved = 0;
        for segment in &victims {
            let moved_out = self.held.move_out(*segment, &mut |slice| moves.known_copy(slice))?;
            held_bytes_moved += moved_out.bytes;
            if moved_out.is_unrecoverable {
                moves.unrecoverable.insert(*segment);
            }
        }
        if held_bytes_moved > 0 {
            moved = true;
            // No table was installed for these bytes: their segments become free with the next group.
            self.free_emptied_segments()?;
        }
        for segment in moves.unrecoverable.difference(unrecoverable) {
            tracing::warn!(
                name: "segment_unrecoverable",
                segment = %segment,
                "bytes of a segment are lost beyond parity; it is not cleaned until the pool is reopened"
            );
        }
        unrecoverable.append(&mut moves.unrecoverable);
        Ok(moved)
    }

    /// Makes the edits durable that free emptied segments, and wakes the callers that wait for space.
    fn free_emptied_segments(&self) -> Result<(), MetaError> {
        match self.log.sync() {
            // A checkpoint needs no room in the commit log, and its root has the edits too.
            Err(LogError::NoSpace) => self.checkpoint()?,
            synced => self.latch.note(synced)?,
        }
        self.reclaim.note_gain();
        Ok(())
    }

    /// Some tables, with their runs. The result holds no other table, so a replaced table frees its space as
    /// soon as the caller drops it.
    pub(super) fn tables_where(
        &self,
        concerned: impl Fn(u64, &Table<L>) -> bool,
    ) -> Vec<(u64, Arc<Table<L>>)> {
        let table_set = self.table_set();
        let tables = table_set.tables().filter(|(run, table)| concerned(*run, table));
        tables.map(|(run, table)| (run, Arc::clone(table))).collect()
    }

    /// Number of segments to empty at a time: their live bytes exist twice until the last table is written.
    fn victims_at_once(&self) -> usize {
        if self.is_short_of_space() { 1 } else { VICTIMS }
    }

    /// Whether the reserve is in use, so that reclaim must take its smallest steps.
    pub(super) fn is_short_of_space(&self) -> bool {
        let space = self.log.space();
        space.free_bytes < space.reserve_bytes
    }

    /// The scope of a job that rewrites single tables of a run.
    pub(super) fn scope_in(&self, run: u64) -> JobScope {
        if self.table_set().is_past(run) { JobScope::Past } else { JobScope::Present }
    }

    /// Rewrites a table within its run, out of some segments. The caller has locked `compacting`.
    pub(super) fn rewrite(
        &self,
        run: u64,
        table: &Arc<Table<L>>,
        victims: &BTreeSet<SegmentId>,
        moves: &mut SliceMoves,
    ) -> Result<(), MetaError> {
        let one = || std::iter::once(table);
        let scope = self.scope_in(run);
        let mut job = RewriteJob::new(self, scope, seq_base(one()), references(one()), victims, moves);
        let mut streams = vec![RunStream::new(vec![Arc::clone(table)])?];
        compact_streams(&mut streams, &mut job, None)?;
        job.finish(&InstallInto::Existing(run), vec![table.entry().id], Vec::new())
    }

    /// Whether cleaning is worth its writes while no caller waits for space.
    pub(crate) fn cleaning_pays(&self) -> bool {
        let space = self.log.space();
        space.free_bytes < space.total_bytes / 8
            || space.garbage_bytes > (space.total_bytes / 16).max(space.live_bytes / 4)
    }

    /// Refuses to begin writing tables of `bytes` unless they leave room in which to clean. A job that began
    /// without that room would run out of it, and its garbage would take the room for cleaning.
    pub(crate) fn check_room_for(&self, bytes: u64) -> Result<(), MetaError> {
        self.check_free(bytes + self.log.space().reserve_bytes / CLEANING_PART)
    }

    /// `NoSpace` if fewer bytes than this are free.
    pub(crate) fn check_free(&self, bytes: u64) -> Result<(), MetaError> {
        if self.log.space().free_bytes < bytes { Err(MetaError::Log(LogError::NoSpace)) } else { Ok(()) }
    }
}
