//! Merging everything when there is no space to write it twice: one range of keys after the other.
//!
//! # Invariants
//! 1. A piece takes all tables of its range from all runs that there were at the beginning, so what it puts into the oldest
//!    run is older than whatever else there is of its keys.
//! 2. Tables that reach over a piece's end are split there before, within their runs.
//! 3. Each step is an edit of its own, behind which what it replaced is released, for nothing holds a version over it: what a
//!    merge needs at any time is a piece, and not the run.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_format::manifest::TableDescriptor;
use warpfire_log::LogStore;

use super::job::{RewriteJob, SliceMoves};
use super::tiers::{compact_streams, references, seq_base};
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::{RunStream, Table};
use crate::table_set::{InstallInto, Run, TableSet};

/// A piece is meant to take this part of what is free, for what it replaces may share segments with what stays.
const FREE_PART: u64 = 8;

/// Times that a step is tried again after cleaning.
const STEP_TRIES_MAX: u32 = 4;

/// Tables that hold keys in a range: none is below `from`, and one that is not below `until` is not in it.
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
    let part =
        |run: &Run<L>| Run { id: run.id, tables: run.tables.iter().filter(is_within).cloned().collect() };
    table_set.runs.iter().filter(|run| known.contains(&run.id)).map(part).collect()
}

/// Where a piece from the front of these runs ends, for the tables that begin in it to be about `bytes`, or one. `None`: at
/// the end.
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
    /// Merges all tables of a version into its oldest run, piece by piece. `false`: a table proved unreadable, and from there
    /// on everything is as it was. The caller has locked compaction, and holds no version.
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
            let bytes = (self.log.space().free_bytes / FREE_PART).max(self.table_bytes() as u64);
            let end = range_end(&within(&self.table_set(), known, &from, None), bytes);
            if let Some(end) = &end {
                while self.with_cleaning(|| self.split_at(known, end))? {}
            }
            self.with_cleaning(|| {
                let runs = within(&self.table_set(), known, &from, end.as_deref());
                let Some(oldest) = runs.last() else { return Ok(()) };
                self.compact_tables(&runs, true, &InstallInto::SameRun(oldest.id), false)
            })?;
            match end {
                Some(end) => from = end,
                None => return Ok(()),
            }
        }
    }

    /// Splits one table that reaches over `key`. `false`: there is none in these runs.
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
        let (cleaning, mut moves) = (BTreeSet::new(), SliceMoves::default());
        let mut job = RewriteJob::new(self, seq_base(one()), references(one()), &cleaning, &mut moves);
        let mut streams = vec![RunStream::new(vec![Arc::clone(&table)])?];
        compact_streams(&mut streams, &mut job, false, Some(key))?;
        job.end_table()?;
        compact_streams(&mut streams, &mut job, false, None)?;
        job.finish(&InstallInto::SameRun(run), vec![table.entry().id], Vec::new())?;
        Ok(true)
    }

    /// Does a step. Where there is no space for it, segments are cleaned, which it and those before it have left partly empty, and it is
    /// tried again.
    fn with_cleaning<T>(&self, mut step: impl FnMut() -> Result<T, MetaError>) -> Result<T, MetaError> {
        for _ in 0..STEP_TRIES_MAX {
            match step() {
                Err(e) if e.is_no_space() => {}
                other => return other,
            }
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
