//! A frozen memtable becomes a run of tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpfire_log::LogStore;

use super::fold::VersionGroup;
use super::job::{RewriteJob, SliceMoves};
use crate::engine::EngineInner;
use crate::memtable::FrozenMemtable;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::table_set::InstallInto;

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Writes the frozen memtable as tables, if there is one; waits if somebody else is at it. On failure it stays
    /// as it is, and nothing of the attempt is left.
    pub(crate) fn flush_frozen(&self) -> Result<bool, MetaError> {
        let _flushing = self.flushing.lock();
        self.latch.check()?;
        let Some(frozen) = self.shards.frozen() else { return Ok(false) };
        self.check_room_for(self.usage.frozen_bytes.load(Ordering::Relaxed))?;
        self.write_frozen(&frozen)?;
        self.usage.frozen_bytes.store(0, Ordering::Relaxed);
        // Readers let go soon; if one still holds it now, the memory is simply not kept.
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
        let first = frozen.first().expect("an empty memtable is not frozen");
        // Only a flush adds what is newer, and this is the one: if there is no table, there is nothing older.
        let bottom = self.table_set().runs.is_empty();
        let mut job = RewriteJob::new(self, first, references, &cleaning, &mut moves);
        let mut group = VersionGroup::default();
        for item in frozen.order() {
            let shard = &frozen.shards[item.shard()];
            let mut versions = shard.versions(item.slot()).peekable();
            if let Some(newest) = versions.peek() {
                group.begin(newest.key);
            }
            versions.for_each(|entry| group.push(entry));
            job.push(&group, bottom)?;
        }
        job.finish(&InstallInto::NewRun(frozen.last), Vec::new(), Vec::new())
    }
}
