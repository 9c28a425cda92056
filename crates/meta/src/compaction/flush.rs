//! Flush: the frozen memtable becomes the newest run of tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use warpfire_env::sync::atomic::Ordering;

use warpfire_log::LogStore;

use super::fold::VersionGroup;
use super::job::{JobScope, RewriteJob};
use super::moves::SliceMoves;
use crate::engine::EngineInner;
use crate::memtable::FrozenMemtable;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table_set::InstallInto;

/// Keys after which a flush notes how far it is.
const KEYS_OF_A_NOTE: usize = 256;

/// Keys of one group (`Schema::group_key_bytes`) before which a table ends: a table over them and over keys
/// below them would overlap the earlier tables of the group. They take about a megabyte.
// Few in tests, so that their small memtables have such groups.
const LONG_GROUP_KEYS: usize = if cfg!(test) { 64 } else { 8192 };

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Writes the frozen memtable as tables, if there is one. Waits if another thread is flushing. A failed
    /// flush leaves the memtable frozen and releases everything that it has appended.
    pub(crate) fn flush_frozen(&self) -> Result<bool, MetaError> {
        let _flushing = self.flushing.lock();
        self.latch.check()?;
        let Some(frozen) = self.shards.frozen() else { return Ok(false) };
        self.check_room_for(self.usage.frozen_bytes.load(Ordering::Relaxed))?;
        self.write_frozen(&frozen)?;
        self.usage.frozen_bytes.store(0, Ordering::Relaxed);
        // Its memory is reused for the next memtable, unless a reader still holds the frozen one.
        if let Some(frozen) = Arc::into_inner(frozen) {
            *self.spare.lock() = Some(frozen.recycle());
        }
        Ok(true)
    }

    fn write_frozen(&self, frozen: &FrozenMemtable) -> Result<(), MetaError> {
        let mut references = BTreeMap::new();
        for (segment, bytes) in frozen.shards.iter().flat_map(|s| &s.references) {
            *references.entry(*segment).or_insert(0) += bytes;
        }
        let (cleaning, mut moves) = (BTreeSet::new(), SliceMoves::default());
        assert!(!frozen.order().is_empty(), "an empty memtable is not frozen");
        let first = frozen.first().expect("an empty memtable is not frozen");
        // Only flushes add runs, and this thread holds `flushing`: without a run now, no older version can
        // appear while the job runs.
        let scope =
            if self.table_set().runs.is_empty() { JobScope::BottomOfMemory } else { JobScope::Present };
        let mut job = RewriteJob::new(self, scope, first, references, &cleaning, &mut moves);
        let mut group = VersionGroup::default();
        let order = frozen.order();
        // Commits keep the pace of this loop.
        let progress = self.usage.pace.begin();
        let group_len = self.schema.group_key_bytes();
        let group_of = |at: usize| -> Option<&[u8]> {
            let item = order.get(at)?;
            let key = frozen.shards[item.shard()].entry(item.slot()).key;
            Some(&key[..key.len().min(group_len)])
        };
        for (done, item) in order.iter().enumerate() {
            if done % KEYS_OF_A_NOTE == 0 {
                progress.note(done, order.len());
            }
            let begins_group = done > 0 && group_of(done) != group_of(done - 1);
            if begins_group && group_of(done) == group_of(done + LONG_GROUP_KEYS - 1) {
                job.end_table()?;
            }
            let shard = &frozen.shards[item.shard()];
            let mut versions = shard.versions(item.slot()).peekable();
            if let Some(newest) = versions.peek() {
                group.begin(newest.key);
            }
            versions.for_each(|entry| {
                debug_assert!(entry.seq <= frozen.last, "a frozen memtable ends with its last seq");
                group.push(entry, None);
            });
            job.push(&mut group)?;
        }
        drop(progress);
        job.finish(&InstallInto::Newest(frozen.last), Vec::new(), Vec::new())
    }
}
