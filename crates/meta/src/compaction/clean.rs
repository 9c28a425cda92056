//! Emptying segments that are worth more as free space: tables that name slices in them, or lie in them, are rewritten.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_log::{Admit, LogStore};
use warpfire_units::SegmentId;

use super::job::{Job, Moves};
use super::merge::{merge_streams, references, seq_base};
use crate::engine::Inner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::{RunStream, Table};
use crate::version::Into;

/// Segments cleaned at a time.
const VICTIMS: usize = 4;

impl<L: LogStore, S: Schema> Inner<L, S> {
    /// Cleans some segments, if that gains space. `true` if anything was moved.
    pub(crate) fn clean_step(&self) -> Result<bool, MetaError> {
        let compacting = self.compacting.lock();
        let victims: BTreeSet<SegmentId> = self.log.victims(VICTIMS).into_iter().collect();
        if victims.is_empty() {
            return Ok(false);
        }
        let mut moved = false;
        if self.shards.memory_names(&victims) {
            moved |= self.freeze()?;
            moved |= self.flush_frozen()?;
        }
        let version = self.version();
        let mut moves = Moves::new();
        for (run, table) in version.tables() {
            let entry = table.entry();
            let lies_there = entry.slices.iter().any(|s| victims.contains(&s.segment));
            if lies_there || entry.references.iter().any(|(segment, _)| victims.contains(segment)) {
                self.rewrite(run, table, &victims, &mut moves)?;
                moved = true;
            }
        }
        drop(compacting);
        Ok(moved)
    }

    fn rewrite(
        &self,
        run: u64,
        table: &Arc<Table<L>>,
        victims: &BTreeSet<SegmentId>,
        moves: &mut Moves,
    ) -> Result<(), MetaError> {
        let one = || std::iter::once(table);
        let mut job = Job::new(self, seq_base(one()), references(one()), victims, moves);
        let mut streams = vec![RunStream::new(vec![Arc::clone(table)])?];
        merge_streams(&mut streams, &mut job, false)?;
        job.finish(&Into::Same(run), vec![table.entry().id], Vec::new())
    }

    /// Whether cleaning is worth its writes when nobody is waiting for space.
    pub(crate) fn cleaning_pays(&self) -> bool {
        let space = self.log.space();
        space.free_bytes < space.total_bytes / 8
            || space.garbage_bytes > (space.total_bytes / 16).max(space.live_bytes / 4)
    }

    /// Makes room after the log had none: cleans, and if there is nothing to clean, drops what deletes hide.
    /// `true` if it did something, so that it is worth trying again.
    pub(crate) fn reclaim(&self) -> Result<bool, MetaError> {
        if self.clean_step()? {
            return Ok(true);
        }
        let mut did = self.freeze()?;
        did |= self.flush_frozen()?;
        did |= self.merge_all()?;
        if did {
            self.checkpoint()?;
        }
        Ok(did)
    }

    /// `admit` of the log, after as much cleaning as it takes and gains.
    pub(crate) fn admit(&self, bytes: u64, who: Admit) -> Result<(), MetaError> {
        let mut tries = 0;
        loop {
            match self.log.admit(bytes, who) {
                Err(warpfire_log::LogError::NoSpace) if tries < crate::engine::RECLAIM_TRIES => {
                    tries += 1;
                    match self.reclaim() {
                        Ok(true) => {}
                        Ok(false) => return Err(warpfire_log::LogError::NoSpace.into()),
                        Err(e) => return Err(e),
                    }
                }
                other => return Ok(other?),
            }
        }
    }
}
