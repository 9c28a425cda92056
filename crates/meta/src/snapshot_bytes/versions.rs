//! All versions of all keys at one moment, key by key.
//!
//! # Invariants
//! 1. A version is met once. While `flushing` is locked no version moves from memory to a table, and the
//!    versions in memory are copied under it (`version_sources`).
//! 2. The versions of a key come from the newest to the oldest, whether they are in memory, in the present or
//!    in the past.

use std::sync::Arc;

use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_log::LogStore;
use warpfire_units::Seq;

use crate::compaction::VersionGroup;
use crate::domain::OriginTable;
use crate::engine::EngineInner;
use crate::memtable::{MemtableShard, SHARDS};
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table::RunStream;
use crate::table_set::{Run, TableSet};

/// A version in memory.
struct MemoryVersion {
    key: Box<[u8]>,
    seq: Seq,
    kind: VersionKind,
    value: Box<[u8]>,
}

impl MemoryVersion {
    fn entry(&self) -> KeyVersion<'_> {
        KeyVersion { key: &self.key, seq: self.seq, kind: self.kind, value: &self.value }
    }
}

/// Everything that has versions, and all that may read them.
pub(crate) struct VersionSources<L: LogStore> {
    /// In the order of keys, and of each key from the newest to the oldest.
    in_memory: Vec<MemoryVersion>,
    table_set: Arc<TableSet<L>>,
    pub(crate) domains: Option<Arc<OriginTable>>,
    /// The seqs at which every domain is read fully, rising: bookmarks need no slice. The last one is that of
    /// the present, which sees every version.
    pub(crate) visible: Vec<Seq>,
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    pub(crate) fn version_sources(&self) -> VersionSources<L> {
        let (mut in_memory, table_set) = {
            let _flushing = self.flushing.lock();
            let mut in_memory = Vec::new();
            let mut copy = |shard: &MemtableShard| {
                in_memory.extend((0..shard.len()).rev().map(|slot| {
                    let KeyVersion { key, seq, kind, value } = shard.entry(slot);
                    MemoryVersion { key: key.into(), seq, kind, value: value.into() }
                }));
            };
            // The newer memtable first: a stable sort leaves the versions of a key in their order.
            for number in 0..SHARDS {
                let shard = self.shards.read(number);
                copy(&shard.active);
                shard.frozen.iter().for_each(|frozen| copy(&frozen.shards[number]));
            }
            (in_memory, self.table_set())
        };
        in_memory.sort_by(|a, b| a.key.cmp(&b.key));
        debug_assert!(
            in_memory.windows(2).all(|pair| pair[0].key < pair[1].key || pair[0].seq >= pair[1].seq),
            "the versions of a key come from the newest to the oldest"
        );
        let (domains, visible) = self.readers();
        let mut visible = visible.fully();
        visible.push(Seq::MAX);
        VersionSources { in_memory, table_set, domains, visible }
    }
}

impl<L: LogStore> VersionSources<L> {
    /// Calls `visit` with all versions of each key, in the order of keys.
    pub(crate) fn each_key(
        &self,
        visit: &mut dyn FnMut(&mut VersionGroup) -> Result<(), MetaError>,
    ) -> Result<(), MetaError> {
        let streams = |runs: &[Run<L>]| -> Result<Vec<RunStream<L>>, MetaError> {
            runs.iter().map(|run| RunStream::new(run.tables.clone())).collect()
        };
        let (mut present, mut past) = (streams(&self.table_set.runs)?, streams(&self.table_set.past)?);
        let mut in_memory = self.in_memory.iter().peekable();
        let mut group = VersionGroup::default();
        loop {
            let keys = present.iter().chain(&past).filter_map(RunStream::entry).map(|entry| entry.key);
            let Some(smallest) = keys.chain(in_memory.peek().map(|version| &*version.key)).min() else {
                return Ok(());
            };
            group.begin(smallest);
            while let Some(version) = in_memory.next_if(|version| *version.key == *group.key()) {
                group.push(version.entry(), None);
            }
            let mut ended = take_key(&mut present, &mut group)?;
            let of_present = group.len();
            ended |= take_key(&mut past, &mut group)?;
            if group.len() > of_present {
                group.sort();
            }
            visit(&mut group)?;
            if ended {
                present.retain(|stream| stream.entry().is_some());
                past.retain(|stream| stream.entry().is_some());
            }
        }
    }
}

/// Moves the versions of the group's key to the group. `true`: a stream has ended.
fn take_key<L: LogStore>(streams: &mut [RunStream<L>], group: &mut VersionGroup) -> Result<bool, MetaError> {
    let mut ended = false;
    for stream in streams {
        while let Some(entry) = stream.entry().filter(|entry| entry.key == group.key()) {
            group.push(entry, stream.bundle());
            stream.next()?;
        }
        ended |= stream.entry().is_none();
    }
    Ok(ended)
}
