//! The engine as `Store` and `SliceStore`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpfire_log::{Admit, LogError, LogStore, Pin, Slices, Space, Stream};
use warpfire_units::{Seq, SlicePtr};

use super::Engine;
use crate::batch::Batch;
use crate::key_locks::KeyLockGuard;
use crate::schema::Schema;
use crate::snapshot::EngineSnapshot;
use crate::store::{
    CommitError, Direction, KeyRange, MetaError, ReadSet, ScanPage, SliceHolder, SliceRead, SliceStore,
    Store, SyncPointHook,
};
use crate::table_set::Run;

impl<L: LogStore, S: Schema> Store for Engine<L, S> {
    type Snapshot = EngineSnapshot;
    type KeyGuard<'a> = KeyLockGuard<'a>;

    fn snapshot(&self) -> EngineSnapshot {
        self.inner.snapshots.acquire(|| self.inner.newest())
    }

    fn seq(&self, snapshot: &EngineSnapshot) -> Seq {
        snapshot.seq()
    }

    fn get(&self, key: &[u8], at: Seq, out: &mut Vec<u8>) -> Result<bool, MetaError> {
        let found = self.inner.get(key, at, out);
        self.inner.repair_seen_damage();
        found
    }

    fn scan(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        direction: Direction,
        max_entries: usize,
        max_bytes: usize,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        let scanned = self.inner.scan(range, at, direction, max_entries, max_bytes, page);
        self.inner.repair_seen_damage();
        scanned
    }

    fn lock<'a>(&'a self, keys: &[&[u8]]) -> KeyLockGuard<'a> {
        self.inner.locks.lock(keys)
    }

    fn commit(&self, batch: &Batch, reads: Option<&ReadSet>, admit: Admit) -> Result<Seq, CommitError> {
        self.inner.commit(batch, reads, admit)
    }

    fn sync(&self, upto: Seq) -> Result<(), MetaError> {
        self.inner.sync(upto)
    }

    fn set_sync_point_hook(&self, hook: SyncPointHook) {
        *self.inner.hook.lock() = Some(hook);
    }

    fn background_step(&self) -> Result<bool, MetaError> {
        Ok(self.inner.flush_step()? || self.inner.compaction_step()?)
    }

    fn close(&self) -> Result<(), MetaError> {
        self.threads.stop();
        self.inner.close()
    }
}

impl<L: LogStore, S: Schema> SliceHolder for Engine<L, S> {
    fn hold(&self, slices: &[SlicePtr]) {
        slices.iter().for_each(|slice| self.inner.log.hold(*slice));
    }

    fn release_hold(&self, slices: &[SlicePtr]) {
        slices.iter().for_each(|slice| self.inner.log.release_hold(*slice));
    }
}

impl<L: LogStore, S: Schema> SliceStore for Engine<L, S> {
    fn write(&self, stream: Stream, bytes: &[u8], admit: Admit) -> Result<Slices, LogError> {
        let as_log_error = |e| match e {
            MetaError::Log(e) => e,
            other => LogError::ReadOnly(other.to_string().into()),
        };
        self.inner.latch.check().map_err(as_log_error)?;
        let in_memory = self.inner.usage.in_memory_bytes();
        self.inner.admit(in_memory + bytes.len() as u64, admit).map_err(as_log_error)?;
        let slices = self.inner.log.append(stream, bytes)?;
        self.inner.slices_written.fetch_add(1, Ordering::AcqRel);
        Ok(slices)
    }

    fn release(&self, slices: &[SlicePtr]) {
        for slice in slices {
            self.inner.log.release(slice.segment, u64::from(slice.len_bytes));
        }
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        Arc::clone(self) as Arc<dyn SliceHolder>
    }

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), LogError> {
        let done = match reads {
            [] => Ok(()),
            [(slice, buf)] => self.inner.cache.ahead.read(self.log(), *slice, buf),
            reads => self.inner.log.read_many(reads),
        };
        self.inner.repair_seen_damage();
        done
    }

    fn pin(&self) -> Pin {
        self.inner.log.pin()
    }

    fn space(&self) -> Space {
        self.inner.log.space()
    }

    fn table_bytes(&self) -> u64 {
        self.inner.table_set().runs.iter().map(Run::bytes).sum()
    }
}
