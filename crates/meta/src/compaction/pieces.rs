//! Merging everything when there is no space to write it twice: one range of keys after the other.
//!
//! # Invariants
//! 1. A piece takes all tables of its range from all runs that there were at the beginning, so what it puts into the oldest
//!    run is older than whatever else there is of its keys.
//! 2. Tables that reach over a piece's end are split there before, within their runs.
//! 3. Each step is an edit of its own, behind which what it replaced is released: what a merge needs at any time is a
//!    piece, and not the run.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_log::LogStore;

use super::job::{Job, Moves};
use super::merge::{merge_streams, references, seq_base};
use crate::engine::Inner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::{RunStream, Table};
use crate::version::{Into, Run, Version};

/// A piece is meant to take this part of what is free, for what it replaces may share segments with what stays.
const FREE_PART: u64 = 8;

/// Tables that hold keys in a range: none is below `from`, and one that is not below `until` is not in it.
fn within<L: LogStore>(
    version: &Version<L>,
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
    version.runs.iter().filter(|run| known.contains(&run.id)).map(part).collect()
}

/// Where a piece from the front of these runs ends, for its share of the longest to be about `bytes`. `None`: at the end.
fn piece_end<L: LogStore>(runs: &[Run<L>], bytes: u64) -> Option<Vec<u8>> {
    let longest = runs.iter().max_by_key(|run| run.bytes())?;
    let mut sum = 0;
    let mut beyond = longest.tables.iter().skip_while(|t| {
        let before = sum;
        sum += u64::from(t.entry().len_bytes);
        before == 0 || sum <= bytes
    });
    beyond.next().map(|t| t.entry().smallest.clone())
}

impl<L: LogStore, S: Schema> Inner<L, S> {
    /// Merges all tables of a version into its oldest run, piece by piece. `false`: a table proved unreadable, and from there
    /// on everything is as it was. The caller has locked compaction.
    pub(super) fn merge_in_pieces(&self, version: &Version<L>) -> Result<bool, MetaError> {
        match self.merge_pieces(&version.runs.iter().map(|run| run.id).collect()) {
            Err(_) if self.version().runs.iter().any(Run::is_unreadable) => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn merge_pieces(&self, known: &BTreeSet<u64>) -> Result<(), MetaError> {
        let mut from = Vec::new();
        loop {
            let version = self.version();
            let bytes = (self.log.space().free_bytes / FREE_PART).max(self.table_bytes() as u64);
            let end = piece_end(&within(&version, known, &from, None), bytes);
            if let Some(end) = &end {
                self.split_at(&version, known, end)?;
            }
            let runs = within(&self.version(), known, &from, end.as_deref());
            if let Some(oldest) = runs.last() {
                self.merge_tables(&runs, true, &Into::Same(oldest.id), false)?;
            }
            match end {
                Some(end) => from = end,
                None => return Ok(()),
            }
        }
    }

    /// Makes `key` a boundary of tables in all of these runs.
    fn split_at(&self, version: &Version<L>, known: &BTreeSet<u64>, key: &[u8]) -> Result<(), MetaError> {
        for (run, table) in version.tables().filter(|(run, _)| known.contains(run)) {
            let entry = table.entry();
            if entry.smallest.as_slice() >= key || entry.largest.as_slice() < key {
                continue;
            }
            let one = || std::iter::once(table);
            let (cleaning, mut moves) = (BTreeSet::new(), Moves::default());
            let mut job = Job::new(self, seq_base(one()), references(one()), &cleaning, &mut moves);
            let mut streams = vec![RunStream::new(vec![Arc::clone(table)])?];
            merge_streams(&mut streams, &mut job, false, Some(key))?;
            job.end_table()?;
            merge_streams(&mut streams, &mut job, false, None)?;
            job.finish(&Into::Same(run), vec![entry.id], Vec::new())?;
        }
        Ok(())
    }
}
