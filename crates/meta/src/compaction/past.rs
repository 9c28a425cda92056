//! The runs of the past: few of each size, and without versions that nobody sees any more.
//!
//! # Terms
//! The *readers* of a table of the past are the held seqs between its lowest and its highest seq: those of
//! snapshots, and those that are held for origins and rollbacks. One at a seq that is not faded counts as
//! two: first it fades, then it goes.
//!
//! # Invariants
//! 1. A table without a reader is dropped unread: no version in it is shown at any held seq, and no seq in
//!    between is held again (`persistent.rs`: a new snapshot or origin has the newest seq, or one that is
//!    held).
//! 2. A table that stays is rewritten once half of the readers have gone that it had when its versions were
//!    chosen. So upkeep writes as many bytes as it drops, about (`tests::past`). A caller that
//!    needs room rewrites it as soon as one has gone (`UnseenPart::Any`).
//! 3. A run of full spans is not merged: a merge could neither shorten it nor divide it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use warpfire_env::sync::atomic::Ordering;

use warpfire_format::manifest::TableDescriptor;
use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::job::JobScope;
use super::moves::SliceMoves;
use super::retire::SPAN_BYTES;
use super::tiers::size_class;
use crate::domain::OriginTable;
use crate::engine::EngineInner;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::Table;
use crate::table_set::{InstallInto, Run, TableSet};

/// Runs of the past of one size class that become one run. More than in the present: readers of the past are
/// rare, and each looks only into the tables with its seq.
const FANOUT: usize = 8;

/// How much of a table must be unseen for the table to be rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UnseenPart {
    /// About half of it.
    Half,
    /// Any part.
    Any,
}

/// The count of the readers of a table of the past. `visible` has the seqs of readers of every domain, and
/// `faded` those of them that are faded.
pub(super) fn held_readers(
    table: &TableDescriptor,
    (visible, faded): (&[Seq], &[Seq]),
    domains: Option<&OriginTable>,
) -> u64 {
    let TableDescriptor { seq_min, seq_max, smallest, largest, .. } = table;
    let removed = domains.and_then(|domains| domains.removed_with(smallest, largest));
    let end = removed.map_or(*seq_max, |removed| Seq(removed.0 + 1).min(*seq_max));
    let between = |seqs: &[Seq]| {
        let below = |bound: Seq| seqs.partition_point(|seq| *seq < bound);
        below(end).saturating_sub(below(*seq_min))
    };
    let is_other = |seq: &Seq| (*seq_min..end).contains(seq) && visible.binary_search(seq).is_err();
    let origins = domains.map_or(0, |domains| domains.held_with(smallest, largest).filter(is_other).count());
    let (all, faded) = (between(visible) + origins, between(faded));
    debug_assert!(faded <= all, "a faded seq is the seq of a reader");
    (2 * all - faded) as u64
}

/// Whether a run consists of full spans, each of one key.
fn is_full<L: LogStore>(run: &Run<L>) -> bool {
    run.tables.iter().all(|table| {
        let TableDescriptor { smallest, largest, len_bytes, .. } = &**table.entry();
        smallest == largest && *len_bytes as usize >= SPAN_BYTES / 2
    })
}

/// The ids of the runs of the past to merge: those of the smallest class that has enough.
fn pick<L: LogStore>(table_set: &TableSet<L>) -> Option<Vec<u64>> {
    let mut by_class: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for run in table_set.past.iter().filter(|run| !run.is_unreadable() && !is_full(run)) {
        by_class.entry(size_class(run.bytes())).or_default().push(run.id);
    }
    by_class.into_values().find(|runs| runs.len() >= FANOUT)
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Merges runs of the past, or drops what nobody sees. `false`: there was nothing to do.
    pub(crate) fn past_step(&self) -> Result<bool, MetaError> {
        let _compacting = self.compacting.lock();
        Ok(self.drop_unseen_past_step()? || self.merge_past_step()?)
    }

    fn merge_past_step(&self) -> Result<bool, MetaError> {
        let table_set = self.table_set();
        let Some(ids) = pick(&table_set) else { return Ok(false) };
        let runs: Vec<Run<L>> = (table_set.past.iter())
            .filter(|run| ids.contains(&run.id))
            .map(|run| Run::new(run.id, run.tables.clone()))
            .collect();
        match self.compact_tables(&runs, JobScope::Past, &InstallInto::Replacing(ids), true) {
            // The next step picks other runs.
            Err(_) if runs.iter().any(Run::is_unreadable) => Ok(true),
            other => other.map(|()| true),
        }
    }

    /// Drops what nobody sees, if snapshots have gone since the last call.
    fn drop_unseen_past_step(&self) -> Result<bool, MetaError> {
        // Before the work: a release that comes while it goes on is worked off by the next step.
        let released = self.snapshots.released();
        // Readers of newer seqs come and go all the time, and hold nothing here.
        let looked_at = self.past_looked_at.load(Ordering::Relaxed);
        let may_drop = self.snapshots.released_below(looked_at, self.table_set().past_end());
        let did = looked_at != released && may_drop && self.drop_unseen_past(UnseenPart::Half)?;
        self.past_looked_at.store(released, Ordering::Relaxed);
        Ok(did)
    }

    /// Drops the tables of the past without a reader, and rewrites those of which a good part is unseen. The
    /// caller has locked `compacting`.
    pub(super) fn drop_unseen_past(&self, part: UnseenPart) -> Result<bool, MetaError> {
        if self.table_set().past.is_empty() {
            return Ok(false);
        }
        let (domains, visible) = self.readers();
        let (mut unread, mut shrunk) = (Vec::new(), Vec::new());
        for run in &self.table_set().past {
            for table in &run.tables {
                let readers = held_readers(table.entry(), (&visible.all, &visible.faded), domains.as_deref());
                let noted = table.noted_readers();
                let is_shrunk = match part {
                    UnseenPart::Half => noted.is_some_and(|noted| readers <= noted / 2),
                    // Of a table that was there at the opening the engine does not know how many have gone
                    // since.
                    UnseenPart::Any => noted.is_none_or(|noted| readers < noted),
                };
                if noted.is_none() {
                    table.note_readers(readers);
                }
                match readers {
                    0 => unread.push((run.id, Arc::clone(table))),
                    _ if is_shrunk && !table.is_unreadable() => shrunk.push((run.id, Arc::clone(table))),
                    _ => {}
                }
            }
        }
        let mut did = self.drop_tables(unread)?;
        for (run, table) in shrunk {
            self.check_room_for(u64::from(table.entry().len_bytes))?;
            match self.rewrite_past(run, &table) {
                Err(_) if table.is_unreadable() => {}
                rewritten => {
                    rewritten?;
                    did = true;
                }
            }
        }
        Ok(did)
    }

    fn rewrite_past(&self, run: u64, table: &Arc<Table<L>>) -> Result<(), MetaError> {
        debug_assert!(self.table_set().is_past(run), "a table stays in the past");
        self.rewrite(run, table, &BTreeSet::new(), &mut SliceMoves::default())
    }
}
