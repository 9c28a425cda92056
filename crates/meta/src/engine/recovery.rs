//! From what the log recovered to a running engine.
//!
//! The manifest is the checkpoint's state and the edits after it; commits that no table holds are replayed into
//! the memtable. References are then counted anew, exactly: by the tables, by the replayed values, by the tables' own bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, ReentrantMutex};
use warpfire_format::commit::CommitRecord;
use warpfire_format::manifest::ManifestEdit;
use warpfire_format::table::EntryKind;
use warpfire_format::{Corrupt, key_hash};
use warpfire_log::{LogError, LogPos, LogStore, Recovered};
use warpfire_units::{SegmentId, Seq, SlicePtr};

use super::background::{Signal, Threads};
use super::{Engine, EngineOptions, Inner, Latch, Manifest, Shards};
use crate::commit::{Cut, SyncTurns, Usage};
use crate::lock::KeyLocks;
use crate::memtable::{MemShard, Order, SHARDS, SLOT_BYTES, shard_of};
use crate::schema::Schema;
use crate::snapshot::Registry;
use crate::store::MetaError;
use crate::table::BlockCache;
use crate::version::ManifestState;

struct Replayed {
    manifest: ManifestState,
    /// Commit records with changes that are in no table.
    records: VecDeque<(LogPos, Seq, Vec<u8>)>,
    newest: Seq,
}

const UNKNOWN_RECORD: Corrupt = Corrupt::new(331, "a log record of no known kind");

fn replay(recovered: Recovered) -> Result<Replayed, MetaError> {
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
        // What has become a table does not have to be kept while the rest is read.
        records.retain(|(_, last, _)| *last > manifest.flushed);
    }
    Ok(Replayed { manifest, records, newest })
}

fn count(live: &mut HashMap<SegmentId, u64>, slice: SlicePtr) {
    *live.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
}

impl<L: LogStore, S: Schema> Engine<L, S> {
    /// Opens the map that the log holds, as it was after some commit no older than the last `sync` that returned. What was
    /// replayed is written as tables before this returns, if there is space for them.
    ///
    /// # Errors
    /// `Corrupt` if the manifest or a record does not decode; what the log says otherwise.
    pub fn open(
        log: impl std::convert::Into<Arc<L>>,
        recovered: Recovered,
        schema: S,
        options: EngineOptions,
    ) -> Result<Self, MetaError> {
        let log: Arc<L> = log.into();
        let options = options.fitted(log.space().total_bytes);
        let replayed = replay(recovered)?;
        let flushed = replayed.manifest.flushed;
        let mut live = HashMap::new();
        for table in replayed.manifest.tables() {
            table.slices.iter().for_each(|slice| count(&mut live, *slice));
            for (segment, bytes) in &table.references {
                *live.entry(*segment).or_insert(0) += bytes;
            }
        }
        let mut memtable: Vec<MemShard> = (0..SHARDS).map(|_| MemShard::default()).collect();
        let mut bytes = 0;
        for (_, _, record) in &replayed.records {
            let mut bad_value = Ok(());
            let Some(commits) = CommitRecord::decode(record)? else { continue };
            commits.for_each(|entry| {
                if entry.seq <= flushed {
                    return;
                }
                let hash = key_hash(entry.key);
                let shard = &mut memtable[shard_of(hash)];
                shard.insert(hash, entry);
                bytes += (entry.key.len() + entry.value.len() + SLOT_BYTES) as u64;
                if entry.kind != EntryKind::Delete {
                    let visited = schema.pointers(
                        entry.key,
                        entry.value,
                        entry.kind == EntryKind::Merge,
                        &mut |slice| {
                            count(&mut live, slice);
                            *shard.references.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
                        },
                    );
                    if bad_value.is_ok() {
                        bad_value = visited;
                    }
                }
            })?;
            bad_value?;
        }
        log.set_live(&live);
        let version = Arc::new(replayed.manifest.version(&log, None)?);
        let usage = Usage::default();
        usage.runs.store(version.runs.len(), std::sync::atomic::Ordering::Relaxed);
        usage.active_bytes.store(bytes, std::sync::atomic::Ordering::Relaxed);
        let records = replayed.records.iter().map(|(place, last, _)| (*place, *last)).collect();
        let gathered = Cut::all_of(&memtable);
        let inner = Arc::new(Inner {
            shards: Shards::new(memtable, &version),
            seq: AtomicU64::new(replayed.newest.0),
            snapshots: Arc::new(Registry::default()),
            locks: KeyLocks::default(),
            cache: BlockCache::new(options.block_cache_bytes),
            hook: Mutex::new(None),
            order: Mutex::new(Order::default()),
            cut: Mutex::new(gathered),
            spare: Mutex::new(None),
            flushing: ReentrantMutex::new(()),
            compacting: ReentrantMutex::new(()),
            manifest: Mutex::new(Manifest { state: replayed.manifest, records, edits_since_checkpoint: 0 }),
            turns: SyncTurns::default(),
            durable: AtomicU64::new(replayed.newest.0),
            slices_written: AtomicU64::new(0),
            slices_durable: AtomicU64::new(0),
            usage,
            gave_up: Mutex::new(None),
            lossy: Mutex::default(),
            damage_answered: AtomicU64::new(0),
            latch: Latch::default(),
            signal: Signal::default(),
            log,
            schema,
            options,
        });
        drop(replayed.records);
        let written = inner.freeze().and_then(|_| inner.flush_or_reclaim());
        match written {
            // The replayed commits stay in memory and in the log.
            Ok(()) | Err(MetaError::Log(LogError::NoSpace)) => {}
            Err(e) => return Err(e),
        }
        inner.checkpoint()?;
        let threads = Threads::start(&inner);
        inner.answer_damage();
        Ok(Engine { inner, threads })
    }
}
