//! A frozen memtable becomes a run of tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpfire_log::LogStore;

use super::fold::Group;
use super::job::{Job, Moves};
use crate::engine::Inner;
use crate::memtable::Frozen;
use crate::schema::Schema;
use crate::store::MetaError;
use crate::version::Into;

impl<L: LogStore, S: Schema> Inner<L, S> {
    /// Writes the frozen memtable as tables, if there is one; waits if somebody else is at it. On failure it stays
    /// as it is, and nothing of the attempt is left.
    pub(crate) fn flush_frozen(&self) -> Result<bool, MetaError> {
        let _flushing = self.flushing.lock();
        self.latch.check()?;
        let Some(frozen) = self.shards.frozen() else { return Ok(false) };
        self.has_room_for(self.usage.frozen_bytes.load(Ordering::Relaxed))?;
        self.write_frozen(&frozen)?;
        self.usage.frozen_bytes.store(0, Ordering::Relaxed);
        // Readers let go soon; if one still holds it now, the memory is simply not kept.
        if let Some(frozen) = Arc::into_inner(frozen) {
            *self.spare.lock() = Some(frozen.recycle());
        }
        Ok(true)
    }

    fn write_frozen(&self, frozen: &Frozen) -> Result<(), MetaError> {
        let mut references = BTreeMap::new();
        for (segment, bytes) in frozen.shards.iter().flat_map(|s| &s.references) {
            *references.entry(*segment).or_insert(0) += bytes;
        }
        let (cleaning, mut moves) = (BTreeSet::new(), Moves::default());
        let first = frozen.first().expect("an empty memtable is not frozen");
        // Only a flush adds what is newer, and this is the one: if there is no table, there is nothing older.
        let bottom = self.version().runs.is_empty();
        let mut job = Job::new(self, first, references, &cleaning, &mut moves);
        let mut group = Group::default();
        for item in frozen.order() {
            let shard = &frozen.shards[item.shard()];
            let mut versions = shard.versions(item.slot()).peekable();
            if let Some(newest) = versions.peek() {
                group.begin(newest.key);
            }
            versions.for_each(|entry| group.push(entry));
            job.push(&group, bottom)?;
        }
        job.finish(&Into::Flushed(frozen.last), Vec::new(), Vec::new())
    }
}
