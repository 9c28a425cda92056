//! Tiered compaction: neighbouring runs of one size class become one run, so that the number of runs grows
//! with the logarithm of the data.
//!
//! # Terms
//! A *group* is a range of neighbouring runs that are compacted together, `FANOUT` or more. A *cluster* is a
//! set of tables of a group that overlap each other, directly or through others.
//!
//! # Invariants
//! 1. Runs stay in the order of their age: the new run takes the place of its group.
//! 2. Clusters are in key order and do not overlap (assert in `clusters`), so each is compacted alone.
//! 3. A table that overlaps no other table of the group moves to the new run unchanged, so keys that are
//!    inserted in order are never rewritten. If the group has the oldest run, tables are
//!    rewritten from which a version may go: a delete, or one that a snapshot has kept. A table that stayed
//!    as it is because snapshots need all its versions is not rewritten before one of them is released;
//!    readers that come and go at newer seqs do not matter (`tests::rewriting`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warpfire_log::LogStore;
use warpfire_units::{SegmentId, Seq};

use super::fold::VersionGroup;
use super::job::{JobScope, RewriteJob};
use super::moves::SliceMoves;
use super::past::UnseenPart;
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::{RunStream, Table};
use crate::table_set::{InstallInto, Run, TableSet};

/// Runs of one size class that become one run of the next.
const FANOUT: usize = 4;

/// The tables of a cluster, each with the position of its run in the group.
type TableCluster<L> = Vec<(usize, Arc<Table<L>>)>;

pub(super) fn size_class(bytes: u64) -> u32 {
    // Base FANOUT: two bits a class.
    (u64::BITS - bytes.leading_zeros()) / 2
}

/// The runs to compact.
fn pick<L: LogStore>(table_set: &TableSet<L>) -> Option<std::ops::Range<usize>> {
    let class_of = |run: &Run<L>| (!run.is_unreadable()).then(|| size_class(run.bytes()));
    let classes: Vec<Option<u32>> = table_set.runs.iter().map(class_of).collect();
    pick_group(&classes)
}

/// Of runs with these size classes, newest first, the oldest group of neighbours to compact: no run in it has
/// a higher class than the oldest. It has `FANOUT` runs of its oldest run's class, or twice as many runs of
/// any. An unreadable run has no class; it is in no group, and no group reaches over it.
fn pick_group(classes: &[Option<u32>]) -> Option<std::ops::Range<usize>> {
    (0..classes.len()).rev().find_map(|last| {
        let oldest = classes[last]?;
        let newer = classes[..=last].iter().rev();
        let group = newer.clone().take_while(|class| class.is_some_and(|c| c <= oldest)).count();
        let alike = newer.take(group).filter(|class| **class == Some(oldest)).count();
        (alike >= FANOUT || group >= 2 * FANOUT).then(|| last + 1 - group..last + 1)
    })
}

fn clusters<L: LogStore>(runs: &[Run<L>]) -> Vec<TableCluster<L>> {
    let tables =
        runs.iter().enumerate().flat_map(|(n, run)| run.tables.iter().map(move |t| (n, Arc::clone(t))));
    let mut tables: Vec<(usize, Arc<Table<L>>)> = tables.collect();
    tables.sort_by(|a, b| a.1.entry().smallest.cmp(&b.1.entry().smallest));
    let mut clusters: Vec<TableCluster<L>> = Vec::new();
    // The largest key so far, not that of the last table: an earlier table may reach further.
    let mut largest: Vec<u8> = Vec::new();
    for (run, table) in tables {
        let entry = Arc::clone(table.entry());
        match clusters.last_mut() {
            Some(cluster) if entry.smallest <= largest => cluster.push((run, table)),
            _ => clusters.push(vec![(run, table)]),
        }
        if entry.largest > largest {
            largest.clone_from(&entry.largest);
        }
    }
    debug_assert!(
        clusters.windows(2).all(|pair| {
            pair[0].iter().all(|(_, table)| table.entry().largest < pair[1][0].1.entry().smallest)
        }),
        "clusters do not overlap"
    );
    clusters
}

/// The references that the values of these tables have, in bytes by segment.
pub(super) fn references<'t, L: LogStore>(
    tables: impl Iterator<Item = &'t Arc<Table<L>>>,
) -> BTreeMap<SegmentId, u64> {
    let mut sum = BTreeMap::new();
    for (segment, bytes) in tables.flat_map(|t| &t.entry().references) {
        *sum.entry(*segment).or_insert(0) += bytes;
    }
    sum
}

/// The lowest seq of these tables. Seq 0 does not count: it stands for a version that every reader sees.
pub(super) fn seq_base<'t, L: LogStore>(tables: impl Iterator<Item = &'t Arc<Table<L>>>) -> Seq {
    tables.map(|t| t.entry().seq_min).filter(|seq| *seq != Seq(0)).min().unwrap_or(Seq(1))
}

/// Passes the versions in `streams` to a job, key by key, up to `until` or the end. Streams of the present
/// come from the newest run to the oldest.
pub(super) fn compact_streams<L: LogStore, S: Schema>(
    streams: &mut Vec<RunStream<L>>,
    job: &mut RewriteJob<'_, L, S>,
    until: Option<&[u8]>,
) -> Result<(), MetaError> {
    let mut group = VersionGroup::default();
    streams.retain(|s| s.entry().is_some());
    while let Some(smallest) = streams.iter().filter_map(RunStream::entry).map(|e| e.key).min()
        && until.is_none_or(|until| smallest < until)
    {
        group.begin(smallest);
        let mut ended = false;
        // From the newest run to the oldest: the group collects versions from the newest to the oldest.
        for stream in &mut *streams {
            while let Some(entry) = stream.entry().filter(|e| e.key == group.key()) {
                group.push(entry, stream.bundle());
                stream.next()?;
            }
            ended |= stream.entry().is_none();
        }
        debug_assert!(!group.is_empty(), "some stream had the smallest key");
        if job.scope() == JobScope::Past {
            group.sort();
        }
        job.push(&mut group)?;
        if ended {
            streams.retain(|s| s.entry().is_some());
        }
    }
    Ok(())
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Compacts one group of runs, if one is due. `false`: none is.
    pub(crate) fn compact_step(&self) -> Result<bool, MetaError> {
        let _compacting = self.compacting.lock();
        let table_set = self.table_set();
        let Some(group) = pick(&table_set) else { return Ok(false) };
        // If a table proves unreadable, the next step picks another group.
        self.compact_runs(&table_set, group)?;
        Ok(true)
    }

    /// Compacts everything into one run. That drops every version that no reader sees. `false` if there is
    /// nothing to drop, or if a table is unreadable.
    pub(crate) fn compact_all(&self) -> Result<bool, MetaError> {
        let _compacting = self.compacting.lock();
        let dropped = match self.drop_unseen_past(UnseenPart::Any) {
            // A table of the past that finds no room stays. The present may gain some.
            Err(e) if e.is_no_space() => false,
            other => other?,
        };
        Ok(self.compact_present()? || dropped)
    }

    /// Compacts all runs of the present into one. `false` as for `compact_all`.
    pub(super) fn compact_present(&self) -> Result<bool, MetaError> {
        let _compacting = self.compacting.lock();
        let table_set = self.table_set();
        let unreadable = table_set.runs.iter().any(Run::is_unreadable);
        let domains = self.domains.get();
        let mut tables = table_set.runs.iter().flat_map(|run| &run.tables);
        let mut may_drop = || tables.any(|table| table.may_drop(&self.snapshots, domains.as_deref()));
        if unreadable || table_set.runs.len() < 2 && !may_drop() {
            return Ok(false);
        }
        let bytes: u64 = table_set.runs.iter().map(Run::bytes).sum();
        if bytes > self.log.space().free_bytes / 2 {
            // A held table set would keep the space of replaced tables.
            drop(table_set);
            return self.compact_by_range();
        }
        self.compact_runs(&table_set, 0..table_set.runs.len())
    }

    /// Brings the versions after a seq together: afterwards no key has some of them in one run and some in
    /// another, or in memory. `false`: a table is unreadable, and they are not together.
    pub(crate) fn join_versions_after(&self, seq: Seq) -> Result<bool, MetaError> {
        // A memtable may be frozen already, and then the active one has its turn after it.
        self.flush_frozen().and_then(|_| self.freeze()).and_then(|_| self.flush_frozen())?;
        let _compacting = self.compacting.lock();
        let table_set = self.table_set();
        let is_later = |run: &Run<L>| run.tables.iter().any(|table| table.entry().seq_max > seq);
        match table_set.runs.iter().rposition(is_later) {
            None | Some(0) => Ok(true),
            Some(last) => self.compact_runs(&table_set, 0..last + 1),
        }
    }

    /// Replaces a group by one run. `false`: a table proved unreadable, and nothing has changed.
    fn compact_runs(
        &self,
        table_set: &TableSet<L>,
        group: std::ops::Range<usize>,
    ) -> Result<bool, MetaError> {
        match self.compact_group(table_set, group.clone()) {
            Err(_) if table_set.runs[group].iter().any(Run::is_unreadable) => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn compact_group(&self, table_set: &TableSet<L>, group: std::ops::Range<usize>) -> Result<(), MetaError> {
        // Flushes add runs only before the newest, so the last run stays the last while compaction is locked.
        let scope = match group.end == table_set.runs.len() {
            true => JobScope::Bottom,
            false => JobScope::Present,
        };
        let runs = &table_set.runs[group];
        let into = InstallInto::Replacing(runs.iter().map(|run| run.id).collect());
        self.compact_tables(runs, scope, &into, true)
    }

    /// Compacts those tables of some runs that overlap or have something to drop. The others move to the new
    /// run (`others_move`), or stay in theirs.
    pub(super) fn compact_tables(
        &self,
        runs: &[Run<L>],
        scope: JobScope,
        into: &InstallInto,
        others_move: bool,
    ) -> Result<(), MetaError> {
        let mut unchanged = Vec::new();
        let mut overlapping = Vec::new();
        let domains = self.domains.get();
        for cluster in clusters(runs) {
            match cluster.as_slice() {
                [(_, table)]
                    if scope != JobScope::Bottom || !table.may_drop(&self.snapshots, domains.as_deref()) =>
                {
                    unchanged.push(Arc::clone(table))
                }
                _ => overlapping.push(cluster),
            }
        }
        if !others_move {
            unchanged.clear();
            if overlapping.is_empty() {
                return Ok(());
            }
        }
        // The job must not begin without room for its output: it would fail and leave garbage.
        let tables = || overlapping.iter().flatten().map(|(_, t)| t);
        self.check_room_for(tables().map(|t| u64::from(t.entry().len_bytes)).sum())?;
        let (cleaning, mut moves) = (BTreeSet::new(), SliceMoves::default());
        let (base, before) = (seq_base(tables()), references(tables()));
        let mut job = RewriteJob::new(self, scope, base, before, &cleaning, &mut moves);
        for cluster in &overlapping {
            let mut by_run: Vec<Vec<Arc<Table<L>>>> = runs.iter().map(|_| Vec::new()).collect();
            for (run, table) in cluster {
                by_run[*run].push(Arc::clone(table));
            }
            let mut streams =
                by_run.into_iter().filter(|t| !t.is_empty()).map(RunStream::new).collect::<Result<_, _>>()?;
            compact_streams(&mut streams, &mut job, None)?;
            // A table ends with its cluster: a table across two clusters could overlap one that moves
            // unchanged.
            job.end_table()?;
        }
        let ids = |tables: &mut dyn Iterator<Item = &Arc<Table<L>>>| tables.map(|t| t.entry().id).collect();
        let (removed, moved) = (ids(&mut tables()), ids(&mut unchanged.iter()));
        job.finish(into, removed, moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_full_by_its_oldest_class_or_by_twice_as_many_runs() {
        let pick =
            |classes: &[u32]| pick_group(&classes.iter().map(|class| Some(*class)).collect::<Vec<_>>());
        assert_eq!(pick(&[1, 1, 1]), None);
        assert_eq!(pick(&[1, 1, 1, 1]), Some(0..4));
        assert_eq!(pick(&[1, 1, 1, 1, 9]), Some(0..4), "a larger run behind them stays");
        assert_eq!(pick(&[9, 1, 1, 1, 1]), Some(1..5), "and one before them too");
        assert_eq!(pick(&[1, 1, 9, 1, 1]), None, "no group reaches over a larger run");
        assert_eq!(pick(&[1, 2, 1, 2, 1, 2, 3]), None, "seven of classes up to 3");
        assert_eq!(pick(&[1, 2, 1, 2, 1, 2, 1, 3]), Some(0..8));
        assert_eq!(pick(&[1, 1, 1, 1, 2, 2, 2, 2]), Some(0..8), "the oldest group comes first");
        let over = [Some(1), Some(1), None, Some(1), Some(1)];
        assert_eq!(pick_group(&over), None, "nor over an unreadable one");
    }

    #[test]
    fn a_size_class_is_a_power_of_four() {
        for (class, bytes) in [(0, 0), (0, 1), (1, 2), (1, 7), (2, 8), (2, 31), (3, 32), (15, 1 << 30)] {
            assert_eq!(size_class(bytes), class, "{bytes}");
        }
    }
}
