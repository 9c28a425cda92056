//! Compaction of all runs when there is no space to write everything twice: one key range after the other.
//!
//! # Terms
//! A *piece* is the work on one key range. The *known runs* are those that existed at the start; flushes may
//! add newer ones on the way.
//!
//! # Invariants
//! 1. A piece takes all tables of its range from all known runs. So the tables that it adds to the oldest run
//!    are older than any other version of their keys.
//! 2. A table that reaches over the end of a piece is split there first, within its run (assert in
//!    `compact_ranges`).
//! 3. Each step is a manifest edit of its own, and no table set is held across steps. So the log frees the
//!    replaced tables after each step, and the space that is needed at a time is that of a piece, not of a
//!    run.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_format::manifest::TableDescriptor;
use warpfire_log::LogStore;

use super::job::{JobScope, RewriteJob};
use super::moves::SliceMoves;
use super::tiers::{compact_streams, references, seq_base};
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::{RunStream, Table};
use crate::table_set::{InstallInto, Run, TableSet};

/// A piece takes at most one part in so many of the free space: replaced tables may share segments with
/// tables that stay, so their space need not become free at once.
const FREE_PART: u64 = 8;

/// Attempts at a step, each followed by cleaning.
const STEP_TRIES_MAX: u32 = 4;

/// The tables of known runs that begin in a range, by run. Tables were split at both ends of the range, so
/// these hold all its keys.
fn within<L: LogStore>(
    table_set: &TableSet<L>,
    known: &BTreeSet<u64>,
    from: &[u8],
    until: Option<&[u8]>,
) -> Vec<Run<L>> {
    let is_within = |t: &&Arc<Table<L>>| {
        let smallest = t.entry().smallest.as_slice();
        smallest >= from && until.is_none_or(|until| smallest < until)
    };
    let part = |run: &Run<L>| Run::new(run.id, run.tables.iter().filter(is_within).cloned().collect());
    table_set.runs.iter().filter(|run| known.contains(&run.id)).map(part).collect()
}

/// The end of the first piece of these runs: its tables are about `bytes` long together, or one. `None`: the
/// piece reaches to the end of all keys.
fn range_end<L: LogStore>(runs: &[Run<L>], bytes: u64) -> Option<Vec<u8>> {
    let mut tables: Vec<&TableDescriptor> =
        runs.iter().flat_map(|run| &run.tables).map(|t| t.entry().as_ref()).collect();
    tables.sort_unstable_by(|a, b| a.smallest.cmp(&b.smallest));
    let first = tables.first()?;
    let mut sum = 0;
    let mut beyond = tables.iter().skip_while(|t| {
        sum += u64::from(t.len_bytes);
        t.smallest == first.smallest || sum <= bytes
    });
    beyond.next().map(|t| t.smallest.clone())
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Compacts all tables into the oldest run, piece by piece. `false`: a table proved unreadable, and the
    /// pieces from there on are unchanged. The caller has locked `compacting` and holds no table set.
    pub(super) fn compact_by_range(&self) -> Result<bool, MetaError> {
        let known = self.table_set().runs.iter().map(|run| run.id).collect();
        match self.compact_ranges(&known) {
            Err(_) if self.table_set().runs.iter().any(Run::is_unreadable) => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn compact_ranges(&self, known: &BTreeSet<u64>) -> Result<(), MetaError> {
        let mut from = Vec::new();
        loop {
            // Measured for each piece: the pieces before have freed space, and commits have taken some.
            let bytes = (self.log.space().free_bytes / FREE_PART).max(self.table_bytes() as u64);
            let end = range_end(&within(&self.table_set(), known, &from, None), bytes);
            if let Some(end) = &end {
                assert!(end > &from, "each piece leaves less to do");
                while self.with_cleaning(|| self.split_at(known, end))? {}
            }
            self.with_cleaning(|| {
                let runs = within(&self.table_set(), known, &from, end.as_deref());
                let Some(oldest) = runs.last() else { return Ok(()) };
                self.compact_tables(&runs, JobScope::Bottom, &InstallInto::Existing(oldest.id), false)
            })?;
            match end {
                Some(end) => from = end,
                None => return Ok(()),
            }
        }
    }

    /// Splits one table that reaches over `key`. `false`: no table of the known runs does.
    fn split_at(&self, known: &BTreeSet<u64>, key: &[u8]) -> Result<bool, MetaError> {
        let reaches_over = |table: &Table<L>| {
            let entry = table.entry();
            entry.smallest.as_slice() < key && entry.largest.as_slice() >= key
        };
        let (run, table) = {
            let tables = self.tables_where(|run, table| known.contains(&run) && reaches_over(table));
            let Some(first) = tables.into_iter().next() else { return Ok(false) };
            first
        };
        self.check_room_for(u64::from(table.entry().len_bytes))?;
        let one = || std::iter::once(&table);
        // Not at the bottom: the table alone cannot show that no older version of a key exists.
        let (cleaning, mut moves) = (BTreeSet::new(), SliceMoves::default());
        let (before, scope) = (references(one()), JobScope::Present);
        let mut job = RewriteJob::new(self, scope, seq_base(one()), before, &cleaning, &mut moves);
        let mut streams = vec![RunStream::new(vec![Arc::clone(&table)])?];
        compact_streams(&mut streams, &mut job, Some(key))?;
        job.end_table()?;
        compact_streams(&mut streams, &mut job, None)?;
        job.finish(&InstallInto::Existing(run), vec![table.entry().id], Vec::new())?;
        Ok(true)
    }

    /// Does a step. If there is no space for it, cleans segments and tries again: the steps before have left
    /// many segments partly empty.
    fn with_cleaning<T>(&self, mut step: impl FnMut() -> Result<T, MetaError>) -> Result<T, MetaError> {
        for _ in 0..STEP_TRIES_MAX {
            match step() {
                Err(e) if e.is_no_space() => {}
                other => return other,
            }
            // As long as cleaning gains space: its first steps may only move live bytes together.
            loop {
                let free_bytes = self.log.space().free_bytes;
                if !self.clean_step()? || self.log.space().free_bytes <= free_bytes {
                    break;
                }
            }
        }
        step()
    }
}
