//! Sync points: moments at which no commit is in progress. The commits before a sync point go to the commit
//! log as one record (`collect_commits`), or stay in a memtable that freezes (`freeze`).
//!
//! # Terms
//! A *mark* is the number of slots of a shard that records in the commit log hold already.
//!
//! # Invariants
//! 1. `sync_point` is locked from the sync point until its record is logged. So records are in the order of
//!    their seqs, and the memtable does not freeze while it is collected.
//! 2. Slots below the marks are in the commit log; marks never pass the end of their shard (asserts in
//!    `collect_commits`).
//! 3. There is at most one frozen memtable, and it is not empty (assert in `freeze`).

use std::sync::Arc;
use warpfire_env::sync::atomic::Ordering;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::commit::CommitRecordBuilder;
use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::PreparedCommit;
use crate::batch::{Batch, SUMS};
use crate::engine::{EngineInner, ShardWriteGuard};
use crate::memtable::{FrozenMemtable, MemtableShard, SHARDS};
use crate::schema::Schema;
use crate::store::MetaError;

/// Most bytes of one commit record; more than this become tables instead.
const COLLECT_BYTES_MAX: usize = 4 << 20;

/// The marks of the active and the frozen memtable, for each shard.
#[derive(Debug, Default)]
pub(crate) struct SyncPoint {
    active: [usize; SHARDS],
    frozen: [usize; SHARDS],
}

impl SyncPoint {
    /// The marks after recovery: the whole memtable came from the commit log.
    pub(crate) fn all_of(memtable: &[MemtableShard]) -> Self {
        let mut sync_point = SyncPoint::default();
        sync_point.active.iter_mut().zip(memtable).for_each(|(mark, shard)| *mark = shard.len());
        sync_point
    }
}

/// The result of collecting.
pub(super) enum CollectOutcome {
    /// Everything up to the seq is in the commit log.
    Logged(Seq),
    /// The commits up to the seq are too large for a record and must become tables.
    TooMuch(Seq),
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Applies the changes that the hook has deferred. The caller holds the locks of all shards.
    pub(super) fn run_hook(&self, shards: &mut [ShardWriteGuard<'_, L>]) -> Result<(), MetaError> {
        assert_eq!(shards.len(), SHARDS, "no commit is in progress at a sync point");
        let hook = self.hook.lock();
        let Some(hook) = &*hook else { return Ok(()) };
        let mut sums = [0; SUMS];
        for shard in shards.iter_mut() {
            for (sum, added) in sums.iter_mut().zip(std::mem::take(&mut shard.sums)) {
                *sum = added.wrapping_add(*sum);
            }
        }
        // The sums of exactly the commits since the last sync point: later commits wait for the shards.
        let mut batch = Batch::new();
        hook(&sums, &mut batch);
        if !batch.is_empty() {
            let prepared = PreparedCommit::new(&batch, &self.schema)?;
            // Counted without asking for room, which could need the locks that are held here.
            self.usage.active_bytes.fetch_add(prepared.bytes, Ordering::Relaxed);
            self.apply(&prepared, u32::MAX, shards);
        }
        Ok(())
    }

    /// Freezes the memtable and starts an empty one. `false` if it is empty, or if one is frozen already.
    pub(crate) fn freeze(&self) -> Result<bool, MetaError> {
        let is_nearly_full = self.is_nearly_full(0);
        let mut sync_point = self.sync_point.lock();
        let mut shards = self.shards.write_all();
        if shards[0].frozen.is_some() {
            return Ok(false);
        }
        self.run_hook(&mut shards)?;
        if shards.iter().all(|s| s.active.len() == 0) {
            return Ok(false);
        }
        // The memory of the last frozen memtable, if its flush could keep it.
        let fresh = self.spare.lock().take();
        let fresh = fresh.unwrap_or_else(|| {
            let bytes = self.options.memtable_bytes as usize / SHARDS;
            (0..SHARDS).map(|_| MemtableShard::with_capacity(bytes)).collect()
        });
        assert!(
            sync_point.active.iter().zip(shards.iter()).all(|(mark, s)| *mark <= s.active.len()),
            "a mark is in its shard"
        );
        let full = shards.iter_mut().zip(fresh).map(|(s, f)| std::mem::replace(&mut s.active, f)).collect();
        let frozen = Arc::new(FrozenMemtable::new(full, self.newest()));
        for shard in &mut shards {
            shard.frozen = Some(Arc::clone(&frozen));
            if is_nearly_full {
                // It is counted with the bytes that are frozen: a commit to the new memtable asks anew.
                shard.credit = 0;
            }
        }
        // The marks move with the memtable: its tail that is in no record is still collected.
        sync_point.frozen = std::mem::take(&mut sync_point.active);
        self.order.lock().clear();
        let bytes = self.usage.active_bytes.swap(0, Ordering::Relaxed);
        self.usage.frozen_bytes.store(bytes, Ordering::Relaxed);
        drop(shards);
        self.wake_background();
        Ok(true)
    }

    /// Appends the commits that no record holds yet to the commit log, as one record.
    pub(super) fn collect_commits(&self) -> Result<CollectOutcome, MetaError> {
        let mut sync_point = self.sync_point.lock();
        let mut shards = self.shards.write_all();
        self.run_hook(&mut shards)?;
        let newest = self.newest();
        let frozen = shards[0].frozen.clone().filter(|_| !is_planted(PlantedBug::SyncSkipsFrozen));
        let frozen_bytes = frozen.iter().flat_map(|f| f.shards.iter().zip(sync_point.frozen));
        let active_bytes = shards.iter().map(|s| &s.active).zip(sync_point.active);
        let bytes: usize = frozen_bytes.chain(active_bytes).map(|(m, from)| m.bytes_since(from)).sum();
        // A table has the same bytes once; a record of them would be written now and as a table later.
        if bytes > COLLECT_BYTES_MAX {
            return Ok(CollectOutcome::TooMuch(newest));
        }
        let to: Vec<usize> = shards.iter().map(|s| s.active.len()).collect();
        drop(shards);
        // Commits go on while the record is built. They append slots behind `to`, and slots never change.
        let mut first = None;
        if let Some(frozen) = &frozen {
            first =
                first_seq(frozen.shards.iter().zip(sync_point.frozen).map(|(m, from)| (m, from, m.len())));
        }
        let first = first.or_else(|| {
            let seq = |n: usize| {
                let shard = self.shards.read(n);
                (sync_point.active[n] < to[n]).then(|| shard.active.entry(sync_point.active[n]).seq)
            };
            (0..SHARDS).filter_map(seq).min()
        });
        // Nothing is new: no record is needed, but an earlier one may still wait for its sync.
        let Some(first) = first else { return Ok(CollectOutcome::Logged(newest)) };
        assert!(first <= newest, "the commits of a record exist");
        let mut record = CommitRecordBuilder::new(first, newest);
        if let Some(frozen) = &frozen {
            for (shard, from) in frozen.shards.iter().zip(sync_point.frozen) {
                (from..shard.len()).for_each(|slot| record.push(shard.entry(slot)));
            }
        }
        for (n, end) in to.iter().enumerate() {
            let shard = self.shards.read(n);
            (sync_point.active[n]..*end).for_each(|slot| record.push(shard.active.entry(slot)));
        }
        // A crash between here and the log's sync leaves the commits of this record out, all of them.
        match self.log_commits(&record.finish(), newest) {
            // The commit log has no room, and so many records wait for some that it takes no more.
            Err(e) if e.is_no_space() => return Ok(CollectOutcome::TooMuch(newest)),
            logged => logged?,
        }
        // Only now: after a failed append the next sync collects the same slots again.
        debug_assert!(sync_point.active.iter().zip(&to).all(|(from, to)| from <= to), "marks only move on");
        sync_point.active.copy_from_slice(&to);
        if let Some(frozen) = &frozen {
            sync_point.frozen.iter_mut().zip(&frozen.shards).for_each(|(from, shard)| *from = shard.len());
        }
        Ok(CollectOutcome::Logged(newest))
    }
}

/// The lowest seq in these ranges of slots. Within a shard the first slot has the lowest.
fn first_seq<'m>(ranges: impl Iterator<Item = (&'m MemtableShard, usize, usize)>) -> Option<Seq> {
    ranges.filter(|(_, from, to)| from < to).map(|(m, from, _)| m.entry(from).seq).min()
}
