//! The local engine: memtable, tables and background work over one log.
//!
//! ```text
//!   commit → active memtable ──freeze──▶ frozen memtable ──flush──▶ run of tables ──merge──▶ larger runs
//!                 └──────── sync: gather ───▶ commit log ◀── manifest edits ──┘
//! ```
//!
//! # Invariants
//! 1. Every commit is in a memtable or in the tables of the current version, never in neither; a version with its
//!    operands is in one of them only.
//! 2. Seqs in the frozen memtable are below those of the active one and above those in tables.
//! 3. What a sync that returned had covered is in the tables of a durable manifest edit or in a durable record.
//! 4. Locks are taken in this order: compacting, flushing, cut, manifest, shards (rising), order, hook. Who holds `compacting`
//!    may take `unrecoverable` and `reclaim_failed_at`, and takes nothing but `flushing` and what follows it while holding them.

mod background;
mod recovery;
mod shards;
mod store_impl;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, ReentrantMutex};
use warpfire_format::manifest::TableDescriptor;
use warpfire_log::{LogError, LogPos, LogStore, ScrubbedSegment};
use warpfire_slices::LocalSlices;
use warpfire_units::{SegmentId, Seq};

pub(crate) use shards::{EngineShard, EngineShards};

use crate::commit::{EngineUsage, GroupSync, SyncPoint};
use crate::compaction::ReclaimState;
use crate::key_locks::KeyLocks;
use crate::memtable::{KeyOrder, MemtableShard};
use crate::schema::Schema;
use crate::snapshot::SnapshotRegistry;
use crate::store::{MetaError, SyncPointHook};
use crate::table::BlockCache;
use crate::table_set::{InstallInto, ManifestState, TableSet};
use background::{BackgroundSignal, Threads};

/// Beyond this many runs, committers merge some before they go on.
pub(crate) const RUNS_MAX: usize = 24;

/// Longest and shortest a table is meant to be.
const TABLE_BYTES_MAX: u64 = 16 << 20;
const TABLE_BYTES_MIN: u64 = 64 << 10;

/// Whether threads do the background work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Background {
    /// Callers of `background_step` do; and commits, when limits force it.
    Manual,
    /// One thread flushes, one merges and cleans. Without work they sleep.
    Threads,
}

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Bytes of keys, values and index that one memtable holds before it is frozen. There may be two.
    pub memtable_bytes: u64,
    /// Memory for decoded blocks of tables.
    pub block_cache_bytes: u64,
    /// Once the commit log is this long, the memtable is written and a checkpoint made.
    pub log_bytes_max: u64,
    /// Who does background work.
    pub background: Background,
}

/// Memtable and commit log take at most this part of a pool each: both are paid for out of the reserve.
const UPKEEP_POOL_PART: u64 = 32;

impl EngineOptions {
    /// The same, with what is too much for a pool of this size cut down.
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
        }
    }
}

/// After a failure that leaves it open what is on flash, nothing is written any more.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    reason: OnceLock<MetaError>,
}

impl Latch {
    pub(crate) fn check(&self) -> Result<(), MetaError> {
        self.reason.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    fn set(&self, reason: MetaError) {
        // The first reason is the one to tell.
        let _ = self.reason.set(reason);
    }

    /// Passes a result on, and latches if it is a failure.
    pub(crate) fn note<T>(&self, result: Result<T, LogError>) -> Result<T, MetaError> {
        result.map_err(|e| {
            self.set(MetaError::Log(e.clone()));
            MetaError::Log(e)
        })
    }
}

pub(crate) struct LoggedManifest {
    state: ManifestState,
    /// Commit records that recovery may still need: their places and last seqs, oldest first.
    records: VecDeque<(LogPos, Seq)>,
    edits_since_checkpoint: u64,
}

pub(crate) struct EngineInner<L: LogStore, S> {
    pub(crate) log: Arc<L>,
    pub(crate) schema: S,
    pub(crate) options: EngineOptions,
    pub(crate) shards: EngineShards<L>,
    /// The newest commit.
    pub(crate) seq: AtomicU64,
    pub(crate) snapshots: Arc<SnapshotRegistry>,
    pub(crate) locks: KeyLocks,
    pub(crate) cache: BlockCache,
    pub(crate) hook: Mutex<Option<SyncPointHook>>,
    pub(crate) order: Mutex<KeyOrder>,
    pub(crate) sync_point: Mutex<SyncPoint>,
    pub(crate) spare: Mutex<Option<Vec<MemtableShard>>>,
    /// Held while tables are written from memory, and while tables are rewritten; both by whoever works for space, who
    /// calls what takes them again.
    pub(crate) flushing: ReentrantMutex<()>,
    pub(crate) compacting: ReentrantMutex<()>,
    manifest: Mutex<LoggedManifest>,
    pub(crate) group_sync: GroupSync,
    /// Every commit up to here is durable.
    pub(crate) durable: AtomicU64,
    /// Writes of slices, and how many of them are durable.
    pub(crate) slices_written: AtomicU64,
    pub(crate) slices_durable: AtomicU64,
    pub(crate) usage: EngineUsage,
    /// How things stood when work for space last came to nothing: it is not tried again before they change.
    pub(crate) reclaim_failed_at: Mutex<Option<ReclaimState>>,
    /// Segments in which something can not be read or rebuilt: emptying them is not tried again.
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
    pub(crate) fn visible(&self) -> Vec<Seq> {
        self.snapshots.visible_to(|| self.newest())
    }

    /// How long a table is meant to be: never more than a quarter of a segment.
    pub(crate) fn table_bytes(&self) -> usize {
        let quarter = self.log.segment_bytes() / 4;
        usize::try_from(quarter.clamp(TABLE_BYTES_MIN, TABLE_BYTES_MAX)).expect("16 MiB fit")
    }

    /// Logs a commit record and remembers where it is.
    pub(crate) fn log_commits(&self, record: &[u8], last: Seq) -> Result<(), MetaError> {
        let mut manifest = self.manifest.lock();
        let place = self.log.log(record)?;
        manifest.records.push_back((place, last));
        Ok(())
    }

    /// Makes a change of the tables durable, then visible. `logged` is called once it can not be taken back.
    pub(crate) fn install(
        &self,
        into: &InstallInto,
        removed: Vec<u64>,
        moved: Vec<u64>,
        added: Vec<TableDescriptor>,
        logged: impl FnOnce(),
    ) -> Result<(), MetaError> {
        let mut manifest = self.manifest.lock();
        self.latch.check()?;
        let edit = manifest.state.plan(into, removed, moved, added);
        self.log.log(&edit.encode())?;
        logged();
        self.latch.note(self.log.sync())?;
        let old = self.table_set();
        manifest.state.apply(&edit)?;
        let table_set = Arc::new(manifest.state.table_set(&self.log, Some(&old))?);
        manifest.edits_since_checkpoint += 1;
        let flushed = manifest.state.flushed;
        while manifest.records.front().is_some_and(|(_, last)| *last <= flushed) {
            manifest.records.pop_front();
        }
        for (_, table) in old.tables() {
            if edit.removed.contains(&table.entry().id) {
                table.mark_removed();
            }
        }
        self.usage.runs.store(table_set.runs.len(), Ordering::Relaxed);
        for mut shard in self.shards.write_all() {
            shard.table_set = Arc::clone(&table_set);
            if matches!(into, InstallInto::Newest(_)) {
                shard.frozen = None;
            }
        }
        self.durable.fetch_max(flushed.0, Ordering::AcqRel);
        Ok(())
    }

    /// Makes the manifest the start of the next recovery.
    pub(crate) fn checkpoint(&self) -> Result<(), MetaError> {
        let mut manifest = self.manifest.lock();
        self.latch.check()?;
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

    /// What the values mean.
    #[must_use]
    pub fn schema(&self) -> &S {
        &self.inner.schema
    }

    /// Runs of tables, newest first, each as its number of tables and of bytes: for status and tests.
    #[must_use]
    pub fn runs(&self) -> Vec<(usize, u64)> {
        self.inner.table_set().runs.iter().map(|run| (run.tables.len(), run.bytes())).collect()
    }

    /// Verifies every block, parity too, of the next segment behind `after`, and says what it found; `None` behind the last.
    /// What is found damaged is moved out of by the background work.
    ///
    /// # Errors
    /// What the log says.
    pub fn scrub_step(&self, after: Option<SegmentId>) -> Result<Option<ScrubbedSegment>, LogError> {
        let scrubbed = self.inner.log.scrub(after);
        self.inner.repair_seen_damage();
        scrubbed
    }

    /// Writes what is in memory as tables.
    ///
    /// # Errors
    /// As of `sync`; `NoSpace` leaves everything as it was.
    pub fn flush(&self) -> Result<(), MetaError> {
        self.inner.flush_or_reclaim()?;
        self.inner.freeze()?;
        self.inner.flush_or_reclaim()
    }

    /// Merges all tables into one run, if all can be read.
    ///
    /// # Errors
    /// As of `sync`; `NoSpace` leaves everything as it was.
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
