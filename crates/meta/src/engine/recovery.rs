//! Recovery: from the recovered log to a running engine.
//!
//! # Steps of a recovery
//! 1. `replay`: the manifest is the state of the checkpoint with all later edits applied. Commit records with
//!    commits that no table holds are kept.
//! 2. `open` inserts the commits of these records into a memtable.
//! 3. It counts all references anew: the tables' own bytes, the references in their descriptors, and the
//!    slices that replayed values name. `set_live` hands the counts to the log, which frees every segment
//!    without any.
//! 4. It builds the engine and registers the persistent snapshots of the map (`keep_snapshots`), and its
//!    domains (`keep_domains`).
//! 5. It writes the memtable as tables if there is space, and logs a checkpoint.
//! 6. It starts the threads.
//!
//! An engine that only reads (`EngineOptions::read_only`) keeps the memtable of step 2, and takes no part of
//! steps 5 and 6 that writes.
//!
//! A crash during steps 1 to 3 changes nothing. A crash in step 5 leaves the old manifest and the records, or
//! the new manifest.
//!
//! # Invariants
//! 1. The newest seq is the highest of all records and edits (assert in `replay`).
//! 2. Every record that is kept has a commit that no table holds (assert in `replay`).
//! 3. An engine that only reads is latched before any caller has it, so nothing is written or freed through
//!    it (`tests/over_log.rs: an_engine_that_only_reads_shows_the_same_and_writes_nothing`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use warpfire_env::sync::atomic::AtomicU64;

use warpfire_env::sync::Mutex;
use warpfire_env::{PlantedBug, RankedMutex, RankedReentrantMutex, is_planted};
use warpfire_format::commit::CommitRecord;
use warpfire_format::manifest::ManifestEdit;
use warpfire_format::table::VersionKind;
use warpfire_format::{Corrupt, key_hash};
use warpfire_log::{LogError, LogPos, LogStore, RecoveredLog};
use warpfire_slices::{HeldSlices, LocalSlices, ReadAhead, Upkeep};
use warpfire_units::{SegmentId, Seq, SlicePtr};

use super::background::{BackgroundSignal, Threads};
use super::{Engine, EngineInner, EngineOptions, EngineShards, Latch, LoggedManifest};
use crate::commit::{EngineUsage, GroupSync, PendingRemovals, SyncPoint};
use crate::compaction::{HiddenBytes, Reclaim};
use crate::domain::{DomainOrigin, Domains};
use crate::key_locks::KeyLocks;
use crate::memtable::{KeyOrder, MemtableShard, SHARDS, SLOT_BYTES, shard_of};
use crate::reserved::ReservedBytes;
use crate::schema::Schema;
use crate::snapshot::SnapshotRegistry;
use crate::store::{Direction, KeyRange, MetaError, ScanPage};
use crate::table::BlockCache;
use crate::table_set::ManifestState;

struct ReplayedLog {
    manifest: ManifestState,
    /// Commit records with a commit that is in no table: position, last seq and bytes.
    records: VecDeque<(LogPos, Seq, Vec<u8>)>,
    newest: Seq,
}

/// Persistent snapshots that an open reads at a time.
const SNAPSHOTS_A_PAGE: usize = 4096;

const SNAPSHOT_OF_THE_FUTURE: Corrupt = Corrupt::new(332, "a snapshot of a commit that does not exist");

/// The old versions that these snapshots show are not known, so none could be dropped.
const SNAPSHOTS_UNREADABLE: Corrupt = Corrupt::new(333, "the records of the snapshots cannot be read");

impl MetaError {
    /// Whether an engine that writes was not opened because it does not know all snapshots.
    #[must_use]
    pub fn is_of_snapshots(&self) -> bool {
        let codes = [SNAPSHOT_OF_THE_FUTURE.code, SNAPSHOTS_UNREADABLE.code, BAD_ORIGIN.code];
        matches!(self, MetaError::Corrupt { code, .. } if codes.contains(code))
    }
}

/// Takes the key and the value of a record.
type RecordVisitor<'v> = dyn FnMut(&[u8], &[u8]) -> Result<(), MetaError> + 'v;

const BAD_ORIGIN: Corrupt =
    Corrupt::new(334, "the origins of the volumes are too deep, in a circle or out of order");

const UNKNOWN_RECORD: Corrupt = Corrupt::new(331, "a log record of no known kind");

/// Reads the recovered records in their order.
fn replay(recovered: RecoveredLog) -> Result<ReplayedLog, MetaError> {
    let mut manifest = ManifestState::decode(&recovered.state)?;
    let mut records = VecDeque::new();
    let mut newest = manifest.flushed;
    for record in recovered.records {
        let (place, bytes) = record?;
        if let Some(commits) = CommitRecord::decode(&bytes)? {
            newest = newest.max(commits.last);
            records.push_back((place, commits.last, bytes));
        } else if let Some(edit) = ManifestEdit::decode(&bytes)? {
            manifest.apply(&edit)?;
            newest = newest.max(manifest.flushed);
        } else {
            return Err(UNKNOWN_RECORD.into());
        }
        // At each record, not at the end: a long log's records need not be in memory together.
        records.retain(|(_, last, _)| *last > manifest.flushed);
    }
    assert!(newest >= manifest.flushed, "the newest commit is in a table or newer than all tables");
    debug_assert!(
        records.iter().all(|(_, last, _)| *last > manifest.flushed),
        "a kept record has a commit to replay"
    );
    Ok(ReplayedLog { manifest, records, newest })
}

fn count(live: &mut HashMap<SegmentId, u64>, slice: SlicePtr) {
    *live.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
}

impl<L: LogStore, S: Schema> Engine<L, S> {
    /// Opens the map that the log holds. It is as it was after some commit no older than the last `sync` that
    /// returned. The replayed commits are written as tables before this returns, if there is space for them.
    /// With `read_only` they stay in memory, and nothing is written.
    ///
    /// # Errors
    /// `Corrupt` if the manifest or a record does not decode; otherwise the errors of the log.
    pub fn open(
        log: impl Into<Arc<L>>,
        recovered: RecoveredLog,
        schema: S,
        options: EngineOptions,
    ) -> Result<Self, MetaError> {
        let log: Arc<L> = log.into();
        let options = options.clamped_to(log.space().total_bytes);
        let replayed = replay(recovered)?;
        let flushed = replayed.manifest.flushed;
        // Counts before the crash may include garbage of unfinished jobs: only names that are read here
        // count.
        let mut live = HashMap::new();
        for table in replayed.manifest.tables() {
            table.slices.iter().for_each(|slice| count(&mut live, *slice));
            for (segment, bytes) in &table.references {
                *live.entry(*segment).or_insert(0) += bytes;
            }
        }
        let mut memtable: Vec<MemtableShard> = (0..SHARDS).map(|_| MemtableShard::default()).collect();
        let mut bytes = 0;
        for (_, _, record) in &replayed.records {
            let mut bad_value = Ok(());
            let Some(commits) = CommitRecord::decode(record)? else { continue };
            commits.for_each(|entry| {
                // A record may span the last flush: its older commits are in tables.
                if entry.seq <= flushed {
                    return;
                }
                let hash = key_hash(entry.key);
                let shard = &mut memtable[shard_of(hash)];
                shard.insert(hash, entry);
                bytes += (entry.key.len() + entry.value.len() + SLOT_BYTES) as u64;
                if entry.kind != VersionKind::Delete {
                    let visited = schema.pointers(
                        entry.key,
                        entry.value,
                        entry.kind == VersionKind::Merge,
                        &mut |slice| {
                            count(&mut live, slice);
                            *shard.references.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
                        },
                    );
                    // `for_each` cannot stop early; the first error counts.
                    if bad_value.is_ok() {
                        bad_value = visited;
                    }
                }
            })?;
            bad_value?;
        }
        // Complete counts only: the log frees each segment that has none.
        log.set_live(&live);
        let table_set = Arc::new(replayed.manifest.table_set(&log, None)?);
        let usage = EngineUsage::default();
        usage.runs.store(table_set.runs.len(), warpfire_env::sync::atomic::Ordering::Relaxed);
        usage.active_bytes.store(bytes, warpfire_env::sync::atomic::Ordering::Relaxed);
        let records = replayed.records.iter().map(|(place, last, _)| (*place, *last)).collect();
        let sync_point = SyncPoint::all_of(&memtable);
        let ahead = Arc::new(ReadAhead::new(options.block_cache_bytes));
        let inner = Arc::new(EngineInner {
            shards: EngineShards::new(memtable, &table_set),
            seq: AtomicU64::new(replayed.newest.0),
            snapshots: Arc::new(SnapshotRegistry::default()),
            domains: Domains::default(),
            removals_done: AtomicU64::new(0),
            past_looked_at: AtomicU64::new(0),
            locks: KeyLocks::default(),
            cache: BlockCache::new(options.block_cache_bytes, Arc::clone(&ahead)),
            hook: RankedMutex::new(None),
            order: RankedMutex::new(KeyOrder::default()),
            sync_point: RankedMutex::new(sync_point),
            spare: Mutex::new(None),
            flushing: RankedReentrantMutex::new(()),
            compacting: RankedReentrantMutex::new(()),
            manifest: RankedMutex::new(LoggedManifest {
                state: replayed.manifest,
                records,
                edits_since_checkpoint: 0,
            }),
            group_sync: GroupSync::default(),
            durable: AtomicU64::new(replayed.newest.0),
            removals: PendingRemovals::default(),
            usage,
            reserved: ReservedBytes::default(),
            reclaim: Reclaim::default(),
            hidden: HiddenBytes::default(),
            unrecoverable: Mutex::default(),
            damage_handled: AtomicU64::new(0),
            latch: Latch::default(),
            signal: BackgroundSignal::default(),
            held: Arc::new(HeldSlices::new(Arc::clone(&log))),
            log,
            schema,
            options,
        });
        tracing::debug!(
            name: "engine_opened",
            records = replayed.records.len(),
            replayed_bytes = bytes,
            newest = replayed.newest.0,
            runs = inner.usage.runs.load(warpfire_env::sync::atomic::Ordering::Relaxed),
            "the metadata engine is open"
        );
        // The memtable has copies: a flush needs the memory.
        drop(replayed.records);
        // Before the first job: it must not drop a version that a snapshot shows.
        if !is_planted(PlantedBug::SnapshotsUnreadAtOpen) {
            inner.keep_snapshots()?;
        }
        inner.keep_bookmarks()?;
        inner.keep_domains()?;
        inner.keep_rollbacks()?;
        if inner.options.read_only {
            inner.latch.read_only();
        } else {
            inner.write_replayed()?;
        }
        let threads = Threads::start(&inner)?;
        inner.repair_seen_damage();
        let slices = Arc::new(LocalSlices::new(
            Arc::clone(&inner.log),
            Arc::clone(&inner.held),
            ahead,
            Arc::clone(&inner) as Arc<dyn Upkeep>,
        ));
        Ok(Engine { inner, slices, threads })
    }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Registers the persistent snapshots that the map names. An engine that only reads drops no version, so
    /// it goes on without the snapshots of which the record cannot be read.
    fn keep_snapshots(&self) -> Result<(), MetaError> {
        let Some(range) = self.schema.snapshot_range() else { return Ok(()) };
        let newest = self.newest();
        let unknown = self.each_record(range, &mut |key, _| match self.schema.snapshot_seq(key)? {
            // The record has a later seq than the snapshot, so the snapshot is in the past.
            Some(seq) if seq < newest => {
                self.snapshots.keep(seq);
                Ok(())
            }
            _ => Err(SNAPSHOT_OF_THE_FUTURE.into()),
        })?;
        if unknown > 0 {
            tracing::warn!(name: "snapshots_unknown", "records of snapshots are damaged; these are not shown");
        }
        Ok(())
    }

    /// Registers the bookmarks that the map names. As `keep_snapshots` for records that cannot be read.
    fn keep_bookmarks(&self) -> Result<(), MetaError> {
        let Some(range) = self.schema.bookmark_range() else { return Ok(()) };
        let newest = self.newest();
        let unknown =
            self.each_record(range, &mut |key, value| match self.schema.bookmark_seq(key, value)? {
                // The record has a later seq than the snapshot had.
                Some(seq) if seq < newest => {
                    self.snapshots.keep_bookmark(seq);
                    Ok(())
                }
                _ => Err(SNAPSHOT_OF_THE_FUTURE.into()),
            })?;
        if unknown > 0 {
            tracing::warn!(name: "bookmarks_unknown", "records of bookmarks are damaged; these are not shown");
        }
        Ok(())
    }

    /// Registers the domains that the map describes. As `keep_snapshots`
    /// for records that cannot be read.
    fn keep_domains(&self) -> Result<(), MetaError> {
        let Some(range) = self.schema.domain_range() else { return Ok(()) };
        let newest = self.newest();
        let unknown = self.each_record(range, &mut |key, value| {
            let Some(record) = self.schema.domain(key, value)? else { return Ok(()) };
            let is_future =
                |origin: DomainOrigin| origin.seq.max(origin.released_at.unwrap_or_default()) >= newest;
            if record.origin.is_some_and(is_future) {
                return Err(SNAPSHOT_OF_THE_FUTURE.into());
            }
            let before = self.domains.set(record);
            if !self.domains.get().is_none_or(|table| table.check()) {
                match before {
                    Some(before) => self.domains.set(before),
                    None => self.domains.remove(record.domain),
                };
                return Err(BAD_ORIGIN.into());
            }
            Ok(())
        })?;
        if unknown > 0 {
            tracing::warn!(name: "volumes_unknown", "records of volumes are damaged; parts of these are not shown");
        }
        Ok(())
    }

    /// Registers the rollbacks that the map describes. As `keep_snapshots` for records that cannot be read.
    fn keep_rollbacks(&self) -> Result<(), MetaError> {
        if is_planted(PlantedBug::RollbacksUnreadAtOpen) {
            return Ok(());
        }
        let Some(range) = self.schema.rollback_range() else { return Ok(()) };
        let newest = self.newest();
        let unknown = self.each_record(range, &mut |key, value| {
            let Some(record) = self.schema.rollback(key, value)? else { return Ok(()) };
            if record.at.max(record.ended_at.unwrap_or_default()) >= newest {
                return Err(SNAPSHOT_OF_THE_FUTURE.into());
            }
            self.domains.set_rollback(record);
            Ok(())
        })?;
        if unknown > 0 {
            tracing::warn!(
                name: "rollbacks_unknown",
                "records of rollbacks are damaged; files are shown as they were before these"
            );
        }
        Ok(())
    }

    /// Visits the records of a range at the newest version. An engine that only reads passes those that
    /// cannot be read or that `visit` refuses, and returns their number.
    fn each_record(
        &self,
        (mut from, end): (Vec<u8>, Vec<u8>),
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64, MetaError> {
        let (newest, passes_damage) = (self.newest(), self.options.read_only);
        let mut page = if passes_damage { ScanPage::past_damage() } else { ScanPage::default() };
        let mut unknown = 0_u64;
        loop {
            let range = KeyRange { start: &from, end: Some(&end) };
            let scanned =
                self.scan(range, newest, Direction::Forward, SNAPSHOTS_A_PAGE, usize::MAX, &mut page);
            scanned.map_err(|error| match error.is_damage() && self.reads_first_key() {
                true => SNAPSHOTS_UNREADABLE.into(),
                false => error,
            })?;
            unknown += u64::from(page.has_passed_damage);
            for entry in page.iter() {
                match visit(entry.key, entry.value) {
                    Ok(()) => {}
                    Err(_) if passes_damage => unknown += 1,
                    Err(error) => return Err(error),
                }
            }
            let Some(last) = page.iter().next_back().filter(|_| page.more) else { break };
            // The smallest key past the last one.
            from = [last.key, &[0]].concat();
        }
        Ok(unknown)
    }

    /// Whether the first key of the map can be read. Where it cannot, more is lost than snapshots.
    fn reads_first_key(&self) -> bool {
        let (all, mut page) = (KeyRange { start: &[], end: None }, ScanPage::default());
        self.scan(all, self.newest(), Direction::Forward, 1, usize::MAX, &mut page).is_ok()
    }

    /// Writes the replayed commits as tables and logs a checkpoint, so that the next recovery is short.
    fn write_replayed(&self) -> Result<(), MetaError> {
        match self.freeze().and_then(|_| self.flush_or_reclaim()) {
            // The replayed commits stay in memory and in the log, so a full pool still opens.
            Ok(()) | Err(MetaError::Log(LogError::NoSpace)) => {}
            Err(e) => return Err(e),
        }
        self.checkpoint()
    }
}
