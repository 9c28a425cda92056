//! The local engine: memtable, tables and background work over one log.
//!
//! ```text
//!   commit → active memtable ──freeze──▶ frozen memtable ──flush──▶ run of tables ──compact──▶ larger runs
//!                 └─────── sync: collect ───▶ commit log ◀── manifest edits ──┘
//! ```
//!
//! # Invariants
//! 1. Every commit is either in a memtable or in the tables of the current table set. One publication moves a
//!    frozen memtable's commits from the one to the other (`install`).
//! 2. Seqs in the frozen memtable are below those in the active one and above those in tables (assert in
//!    `install`).
//! 3. A commit that a successful sync covers is in tables of a durable manifest edit, or in a durable record
//!    that the next recovery still reads (`install` and `checkpoint` keep such records).
//! 4. Locks are taken in this order: compacting, flushing, sync point, manifest, shards (rising), order,
//!    hook. A thread that holds `compacting` may take `unrecoverable`, and takes nothing but `flushing` and
//!    what follows it while holding it. No lock is taken under that of `reclaim`.

mod background;
mod recovery;
mod shards;
mod store_impl;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::sync::Mutex;
use warpfire_env::{RankedMutex, RankedReentrantMutex};
use warpfire_format::manifest::ManifestEdit;
use warpfire_log::{LogError, LogPos, LogStore, ScrubStep, WorkFor};
use warpfire_slices::{HeldSlices, LocalSlices};
use warpfire_units::{SegmentId, Seq};

pub(crate) use shards::{EngineShard, EngineShards, ShardWriteGuard};

use crate::commit::{EngineUsage, GroupSync, PendingRemovals, SyncPoint};
use crate::compaction::{HiddenBytes, Reclaim};
use crate::domain::{Domains, OriginTable};
use crate::key_locks::KeyLocks;
use crate::lock_ranks::{COMPACTING, FLUSHING, HOOK, MANIFEST, ORDER, SYNC_POINT};
use crate::memtable::{KeyOrder, MemtableShard};
use crate::reserved::ReservedBytes;
use crate::schema::Schema;
use crate::snapshot::{SnapshotRegistry, VisibleSeqs};
use crate::store::{MetaError, SyncPointHook};
use crate::table::{BlockCache, CacheMemory};
use crate::table_set::{InstallInto, ManifestState, TableChange, TableSet};
use background::{BackgroundSignal, Threads};

/// Beyond this many runs, commits compact some before they go on.
pub(crate) const RUNS_MAX: usize = 24;

/// Bounds of the length that tables are meant to have.
const TABLE_BYTES_MAX: u64 = 16 << 20;
const TABLE_BYTES_MIN: u64 = 64 << 10;

/// Whether threads do the background work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Background {
    /// Callers of `background_step` do it; commits too, when limits force them.
    Manual,
    /// One thread flushes, another compacts and cleans. Without work they sleep.
    Threads,
}

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Bytes of keys, values and index that one memtable holds before it is frozen. There may be two.
    pub memtable_bytes: u64,
    /// Memory for decoded blocks of tables, in bytes. `limit_cache` changes it.
    pub block_cache_bytes: u64,
    /// Length of the commit log at which the memtable is written and a checkpoint shortens the log, in bytes.
    pub log_bytes_max: u64,
    /// Whether threads or callers do background work.
    pub background: Background,
    /// Refuse every commit and write nothing, not while opening either: replayed commits stay in memory. They
    /// are those that the last writer had in its two memtables, so they take no more memory than there, and
    /// no more than an opening for writing takes for them. `sync` and `close` have nothing to do.
    pub read_only: bool,
}

/// Memtable and commit log take at most one part in so many of a pool each: both come out of the reserve.
const UPKEEP_POOL_PART: u64 = 32;

impl EngineOptions {
    /// The same options, lowered to the limits of a pool of this size.
    fn clamped_to(mut self, pool_bytes: u64) -> Self {
        let most = (pool_bytes / UPKEEP_POOL_PART).max(TABLE_BYTES_MIN);
        self.memtable_bytes = self.memtable_bytes.min(most);
        self.log_bytes_max = self.log_bytes_max.min(most);
        self
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            memtable_bytes: 64 << 20,
            block_cache_bytes: 64 << 20,
            log_bytes_max: 64 << 20,
            background: Background::Threads,
            read_only: false,
        }
    }
}

/// The latch: set by a failure that leaves the state of the flash unknown, and from the start in an engine
/// that only reads. From then on the engine refuses every write, until the pool is reopened.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    reason: OnceLock<MetaError>,
}

impl Latch {
    pub(crate) fn check(&self) -> Result<(), MetaError> {
        self.reason.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// Latched from the start.
    pub(super) fn read_only(&self) {
        self.set(MetaError::Log(LogError::OpenForReading));
    }

    /// `true` if this call has set the latch. The first reason stays: the later ones follow from it.
    fn set(&self, reason: MetaError) -> bool {
        self.reason.set(reason).is_ok()
    }

    /// Passes a result on. A failure sets the latch. `NoSpace` does so only where the caller has no other way
    /// to make its change durable.
    pub(crate) fn note<T>(&self, result: Result<T, LogError>) -> Result<T, MetaError> {
        result.map_err(|e| {
            let e = match e {
                LogError::NoSpace => LogError::ReadOnly("the root of the pool has no room".into()),
                other => other,
            };
            if self.set(MetaError::Log(e.clone())) {
                tracing::error!(
                    name: "engine_latched",
                    error = %e,
                    "the metadata engine is read-only until the pool is reopened"
                );
            }
            MetaError::Log(e)
        })
    }
}

/// Where the edit of an installation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EditPlace {
    /// In the log, durable.
    Durable,
    /// In the log's memory, with other records that wait for room.
    Queued,
    /// Nowhere: so many records wait for room that the log takes no more.
    Refused,
}

#[derive(Clone)]
pub(crate) struct LoggedManifest {
    state: ManifestState,
    /// Commit records that recovery may still need: their places and last seqs, oldest first.
    records: VecDeque<(LogPos, Seq)>,
    edits_since_checkpoint: u64,
}

impl LoggedManifest {
    /// Takes back an edit that no record and no root has.
    fn restore(&mut self, before: LoggedManifest, edit: &ManifestEdit) {
        *self = before;
        self.state.skip_ids(edit);
    }
}

pub(crate) struct EngineInner<L: LogStore, S> {
    pub(crate) log: Arc<L>,
    /// Bytes of the log that no metadata names.
    pub(crate) held: Arc<HeldSlices<L>>,
    pub(crate) schema: S,
    pub(crate) options: EngineOptions,
    pub(crate) shards: EngineShards<L>,
    /// The newest commit.
    pub(crate) seq: AtomicU64,
    pub(crate) snapshots: Arc<SnapshotRegistry>,
    pub(crate) domains: Domains,
    /// The removals of domains that compaction has worked off.
    pub(crate) removals_done: AtomicU64,
    /// The releases of snapshots after which the past was looked through.
    pub(crate) past_looked_at: AtomicU64,
    pub(crate) locks: KeyLocks,
    pub(crate) cache: BlockCache,
    pub(crate) hook: RankedMutex<HOOK, Option<SyncPointHook>>,
    pub(crate) order: RankedMutex<ORDER, KeyOrder>,
    pub(crate) sync_point: RankedMutex<SYNC_POINT, SyncPoint>,
    pub(crate) spare: Mutex<Option<Vec<MemtableShard>>>,
    /// `flushing` is held while memory is written as tables, `compacting` while tables are rewritten. Reclaim
    /// holds `compacting` and calls functions that lock it again.
    pub(crate) flushing: RankedReentrantMutex<FLUSHING, ()>,
    pub(crate) compacting: RankedReentrantMutex<COMPACTING, ()>,
    manifest: RankedMutex<MANIFEST, LoggedManifest>,
    pub(crate) group_sync: GroupSync,
    /// Every commit up to here is durable.
    pub(crate) durable: AtomicU64,
    pub(crate) removals: PendingRemovals,
    pub(crate) usage: EngineUsage,
    pub(crate) reserved: ReservedBytes,
    pub(crate) reclaim: Reclaim,
    pub(crate) hidden: HiddenBytes,
    /// Segments with bytes that can be neither read nor reconstructed: they are not cleaned again.
    pub(crate) unrecoverable: Mutex<BTreeSet<SegmentId>>,
    /// What the log had seen of damage when background work was last called for it.
    damage_handled: AtomicU64,
    pub(crate) latch: Latch,
    signal: BackgroundSignal,
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    pub(crate) fn newest(&self) -> Seq {
        Seq(self.seq.load(Ordering::Acquire))
    }

    pub(crate) fn table_set(&self) -> Arc<TableSet<L>> {
        self.shards.table_set()
    }

    /// The seqs that readers may read at.
    pub(crate) fn visible(&self) -> VisibleSeqs {
        self.snapshots.visible_to(|| self.newest())
    }

    /// The domains, and the seqs that readers may read at, of one moment. A clone of a snapshot that is
    /// dropped at the same time is in one of the two.
    pub(crate) fn readers(&self) -> (Option<Arc<OriginTable>>, VisibleSeqs) {
        let mut domains = self.domains.get();
        loop {
            // After the domains: the readers of a domain that is removed by now are in the list.
            let mut visible = self.visible();
            let now = self.domains.get();
            if domains.as_ref().map(Arc::as_ptr) == now.as_ref().map(Arc::as_ptr) {
                // A clone reads whole values at the seq of its origin, and a domain at that of its rollback.
                if let Some(table) = domains.as_deref().filter(|_| !visible.faded.is_empty()) {
                    let held: BTreeSet<Seq> = table.held_with(&[], &[]).collect();
                    visible.faded.retain(|seq| !held.contains(seq));
                }
                return (domains, visible);
            }
            domains = now;
        }
    }

    /// How long a table is meant to be: never more than a quarter of a segment.
    pub(crate) fn table_bytes(&self) -> usize {
        let quarter = self.log.segment_bytes() / 4;
        usize::try_from(quarter.clamp(TABLE_BYTES_MIN, TABLE_BYTES_MAX)).expect("16 MiB fit")
    }

    /// Notes that all commits up to a seq are durable.
    pub(crate) fn note_durable(&self, upto: Seq) {
        self.durable.fetch_max(upto.0, Ordering::AcqRel);
        if self.domains.note_durable(upto) {
            // A rollback holds less from now on.
            self.snapshots.note_removal();
        }
        self.end_removals();
    }

    /// Logs a commit record and remembers its position for checkpoints.
    pub(crate) fn log_commits(&self, record: &[u8], last: Seq) -> Result<(), MetaError> {
        let mut manifest = self.manifest.lock();
        // Under the manifest's lock: a checkpoint must not cut the log between the record and its position.
        let place = self.log.log_named(record)?;
        assert!(
            manifest.records.back().is_none_or(|(_, newer)| *newer <= last),
            "records are in the order of seqs"
        );
        manifest.records.push_back((place, last));
        Ok(())
    }

    /// Logs an edit of the manifest and syncs it. Calls `logged` once the edit may become durable.
    fn log_edit(&self, edit: &[u8], logged: &mut impl FnMut()) -> Result<EditPlace, MetaError> {
        match self.log.log(edit) {
            Err(LogError::NoSpace) => return Ok(EditPlace::Refused),
            queued => queued?,
        };
        logged();
        match self.log.sync() {
            Err(LogError::NoSpace) => Ok(EditPlace::Queued),
            // A failed sync leaves it open whether the edit is durable, so no table set would be right.
            synced => self.latch.note(synced).map(|()| EditPlace::Durable),
        }
    }

    /// Makes a change of the tables durable, then visible. Calls `logged` once the change may become durable.
    /// If the commit log has no room, a checkpoint makes the change durable. Returns the ids of the added
    /// tables, first those of the change's own run.
    pub(crate) fn install(
        &self,
        into: &InstallInto,
        change: TableChange,
        mut logged: impl FnMut(),
    ) -> Result<Range<u64>, MetaError> {
        let mut manifest = self.manifest.lock();
        self.latch.check()?;
        let edit = manifest.state.plan(into, change);
        assert!(edit.flushed >= manifest.state.flushed, "tables only gain commits");
        let place = self.log_edit(&edit.encode(), &mut logged)?;
        let before = (place == EditPlace::Refused).then(|| manifest.clone());
        let old = self.table_set();
        manifest.state.apply(&edit)?;
        let table_set = match manifest.state.table_set(&self.log, Some(&old)) {
            Ok(table_set) => Arc::new(table_set),
            Err(e) => {
                if let Some(before) = before {
                    manifest.restore(before, &edit);
                }
                return Err(e);
            }
        };
        manifest.edits_since_checkpoint += 1;
        let flushed = manifest.state.flushed;
        // Recovery no longer needs records with all their commits in tables.
        while manifest.records.front().is_some_and(|(_, last)| *last <= flushed) {
            manifest.records.pop_front();
        }
        if place != EditPlace::Durable {
            // A checkpoint needs no room in the commit log. A record of the edit may still be queued there;
            // the state that recovery starts from contains it already.
            match (self.write_checkpoint(&mut manifest), before) {
                // The root has no room for the state. It was checked before anything was written, and no
                // record has the edit.
                (Err(LogError::NoSpace), Some(before)) => {
                    manifest.restore(before, &edit);
                    return Err(MetaError::Log(LogError::NoSpace));
                }
                (written, _) => {
                    logged();
                    self.latch.note(written)?;
                }
            }
        }
        // Durably removed: the last reader of the table releases its bytes.
        for (_, table) in old.tables() {
            if edit.removed.contains(&table.entry().id) {
                table.mark_removed();
            }
        }
        self.usage.runs.store(table_set.runs.len(), Ordering::Relaxed);
        // All shards at once: a reader finds the commits of a flush in the frozen memtable or in the tables,
        // not in both and not in neither.
        for mut shard in self.shards.write_all() {
            shard.table_set = Arc::clone(&table_set);
            if matches!(into, InstallInto::Newest(_)) {
                shard.frozen = None;
            }
        }
        self.note_durable(flushed);
        self.reclaim.note_gain();
        Ok(edit.next_table - edit.added.len() as u64..edit.next_table)
    }

    /// Logs a checkpoint: the next recovery begins with this manifest.
    pub(crate) fn checkpoint(&self) -> Result<(), MetaError> {
        let mut manifest = self.manifest.lock();
        self.latch.check()?;
        Ok(self.write_checkpoint(&mut manifest)?)
    }

    fn write_checkpoint(&self, manifest: &mut LoggedManifest) -> Result<(), LogError> {
        // From the oldest record on that has a commit in no table; the log before it may be freed.
        let keep_from = manifest.records.front().map_or_else(|| self.log.position(), |(place, _)| *place);
        self.log.checkpoint(&manifest.state.encode(), keep_from)?;
        manifest.edits_since_checkpoint = 0;
        Ok(())
    }
}

/// An ordered map with versions, over a log.
pub struct Engine<L: LogStore, S: Schema> {
    inner: Arc<EngineInner<L, S>>,
    slices: Arc<LocalSlices<L>>,
    threads: Threads,
}

impl<L: LogStore, S: Schema> Engine<L, S> {
    /// The log below.
    #[must_use]
    pub fn log(&self) -> &L {
        &self.inner.log
    }

    #[cfg(test)]
    pub(crate) fn inner_for_tests(&self) -> &EngineInner<L, S> {
        &self.inner
    }

    /// The schema of the values.
    #[must_use]
    pub fn schema(&self) -> &S {
        &self.inner.schema
    }

    /// Runs of tables of the present, newest first, each as its number of tables and of bytes: for status and
    /// tests.
    #[must_use]
    pub fn runs(&self) -> Vec<(usize, u64)> {
        self.inner.table_set().runs.iter().map(|run| (run.tables.len(), run.bytes())).collect()
    }

    /// As `runs`, for the runs of the past, in no order.
    #[must_use]
    pub fn past_runs(&self) -> Vec<(usize, u64)> {
        self.inner.table_set().past.iter().map(|run| (run.tables.len(), run.bytes())).collect()
    }

    /// The memory of the cache of blocks.
    #[must_use]
    pub fn cache_memory(&self) -> CacheMemory {
        self.inner.cache.memory()
    }

    /// Changes the memory that the cache of blocks may take, at first `block_cache_bytes`. Blocks beyond the
    /// limit are dropped before the call returns.
    pub fn limit_cache(&self, bytes: u64) {
        self.inner.cache.limit(bytes);
    }

    /// Verifies every block, parity too, of the next segment after `after`, and returns its findings.
    /// Background work then moves the live bytes out of damaged segments.
    ///
    /// # Errors
    /// The errors of `LogStore::scrub`.
    pub fn scrub_step(&self, after: Option<SegmentId>, work_for: WorkFor<'_>) -> Result<ScrubStep, LogError> {
        let scrubbed = self.inner.log.scrub(after, work_for);
        self.inner.repair_seen_damage();
        scrubbed
    }

    /// Writes all commits in memory as tables.
    ///
    /// # Errors
    /// The errors of `sync`; `NoSpace` leaves everything as it was.
    pub fn flush(&self) -> Result<(), MetaError> {
        self.inner.flush_or_reclaim()?;
        self.inner.freeze()?;
        self.inner.flush_or_reclaim()
    }

    /// Wakes the background threads, if there are any: something below the engine has made work for them.
    pub fn wake(&self) {
        self.inner.wake_background();
    }

    /// Looks how much callers have written since the last call, which should be about a second ago. If it is
    /// little, background work drops what newer versions hide, as far as that pays.
    pub fn look_for_quiet(&self) {
        self.inner.look_for_quiet();
    }

    /// Writes all commits in memory as tables, and then a checkpoint, so that the log keeps no record of
    /// them.
    ///
    /// # Errors
    /// The errors of `flush`.
    pub fn checkpoint(&self) -> Result<(), MetaError> {
        self.flush()?;
        self.inner.checkpoint()
    }

    /// Frees all that can be freed now: drops deleted versions, and cleans every segment that is worth it.
    /// For callers that want the space back at once; background work does the same later, and less of it.
    ///
    /// # Errors
    /// The errors of `sync`; without room for a step, that step is left out.
    pub fn reclaim_all(&self) -> Result<(), MetaError> {
        self.inner.reclaim_all()
    }

    /// Counts the live bytes of all segments exactly, except for segments longer than 8 MiB, in which a part
    /// of a few bytes counts as a whole. `space` then says how much is live and how much is saved by sharing.
    /// It reads all tables.
    ///
    /// # Errors
    /// The errors of a read of tables; `Corrupt` for a value in memory that does not decode.
    pub fn count_live(&self) -> Result<(), MetaError> {
        self.inner.count_everything()
    }

    /// Compacts all tables into one run, if all can be read.
    ///
    /// # Errors
    /// The errors of `sync`; `NoSpace` leaves everything as it was.
    pub fn compact(&self) -> Result<(), MetaError> {
        self.flush()?;
        self.inner.compact_all().map(|_| ())
    }
}

impl<L: LogStore, S: Schema> fmt::Debug for Engine<L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("newest", &self.inner.newest()).field("runs", &self.runs()).finish()
    }
}
