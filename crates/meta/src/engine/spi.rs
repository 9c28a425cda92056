//! The engine as `Store` and `SliceStore`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpfire_log::{Admit, LogError, LogStore, Pin, Slices, Space, Stream};
use warpfire_units::{Seq, SlicePtr};

use super::Engine;
use crate::batch::Batch;
use crate::lock::KeyGuard;
use crate::schema::Schema;
use crate::snapshot::Snapshot;
use crate::store::{
    CommitError, CutHook, Direction, Holder, KeyRange, MetaError, Page, ReadSet, SliceRead, SliceStore, Store,
};
use crate::version::Run;

impl<L: LogStore, S: Schema> Store for Engine<L, S> {
    type Snapshot = Snapshot;
    type KeyGuard<'a> = KeyGuard<'a>;

    fn snapshot(&self) -> Snapshot {
        self.inner.snapshots.take(|| self.inner.newest())
    }

    fn seq(&self, snapshot: &Snapshot) -> Seq {
        snapshot.seq()
    }

    fn get(&self, key: &[u8], at: Seq, out: &mut Vec<u8>) -> Result<bool, MetaError> {
        let found = self.inner.get(key, at, out);
        self.inner.answer_damage();
        found
    }

    fn scan(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        direction: Direction,
        max_entries: usize,
        max_bytes: usize,
        page: &mut Page,
    ) -> Result<(), MetaError> {
        let scanned = self.inner.scan(range, at, direction, max_entries, max_bytes, page);
        self.inner.answer_damage();
        scanned
    }

    fn lock<'a>(&'a self, keys: &[&[u8]]) -> KeyGuard<'a> {
        self.inner.locks.lock(keys)
    }

    fn commit(&self, batch: &Batch, reads: Option<&ReadSet>, who: Admit) -> Result<Seq, CommitError> {
        self.inner.commit(batch, reads, who)
    }

    fn sync(&self, upto: Seq) -> Result<(), MetaError> {
        self.inner.sync(upto)
    }

    fn set_cut_hook(&self, hook: CutHook) {
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

impl<L: LogStore, S: Schema> Holder for Engine<L, S> {
    fn hold(&self, slices: &[SlicePtr]) {
        slices.iter().for_each(|slice| self.inner.log.hold(*slice));
    }

    fn let_go(&self, slices: &[SlicePtr]) {
        slices.iter().for_each(|slice| self.inner.log.let_go(*slice));
    }
}

impl<L: LogStore, S: Schema> SliceStore for Engine<L, S> {
    fn write(&self, stream: Stream, bytes: &[u8], who: Admit) -> Result<Slices, LogError> {
        let as_log_error = |e| match e {
            MetaError::Log(e) => e,
            other => LogError::ReadOnly(other.to_string().into()),
        };
        self.inner.latch.check().map_err(as_log_error)?;
        let in_memory = self.inner.usage.in_memory_bytes();
        self.inner.admit(in_memory + bytes.len() as u64, who).map_err(as_log_error)?;
        let slices = self.inner.log.append(stream, bytes)?;
        self.inner.slices_written.fetch_add(1, Ordering::AcqRel);
        Ok(slices)
    }

    fn release(&self, slices: &[SlicePtr]) {
        for slice in slices {
            self.inner.log.release(slice.segment, u64::from(slice.len_bytes));
        }
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn Holder> {
        Arc::clone(self) as Arc<dyn Holder>
    }

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), LogError> {
        let done = match reads {
            [] => Ok(()),
            [(slice, buf)] => self.inner.cache.ahead.read(self.log(), *slice, buf),
            reads => self.inner.log.read_many(reads),
        };
        self.inner.answer_damage();
        done
    }

    fn pin(&self) -> Pin {
        self.inner.log.pin()
    }

    fn space(&self) -> Space {
        self.inner.log.space()
    }

    fn table_bytes(&self) -> u64 {
        self.inner.version().runs.iter().map(Run::bytes).sum()
    }
}
