//! `Store` for the engine, and its services for the slice store (`Upkeep`).

use std::sync::Arc;

use warpfire_log::{LogStore, WorkFor};
use warpfire_slices::{Admit, HasSlices, LocalSlices, SliceError, Upkeep};
use warpfire_units::Seq;

use super::{Engine, EngineInner};
use crate::batch::Batch;
use crate::domain::{DomainId, RollbackRecord};
use crate::key_locks::KeyLockGuard;
use crate::read_set::ReadSet;
use crate::schema::Schema;
use crate::snapshot::EngineSnapshot;
use crate::snapshot_bytes::SnapshotBytes;
use crate::store::{
    CommitError, Direction, DomainPart, KeyRange, MetaError, ScanPage, SeqRange, SnapshotStore, Store,
    SyncPointHook, WantedBytes,
};

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
        // A read of damaged blocks succeeds by reconstruction; the repair is background work.
        self.inner.repair_seen_damage();
        found
    }

    fn get_with_bytes(&self, key: &[u8], wanted: WantedBytes, out: &mut Vec<u8>) -> Result<bool, MetaError> {
        let found = self.inner.get_with_bytes(key, wanted, out);
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

    fn add_reserved(&self, bytes: i64) {
        self.inner.reserved.add(bytes);
    }

    fn has_room(&self, bytes: u64, admit: Admit) -> bool {
        self.inner.log.admit(self.inner.with_kept(bytes, admit), admit).is_ok()
    }

    fn find_room(&self, bytes: u64, admit: Admit) {
        self.inner.find_room(bytes, admit);
    }

    fn has_unpinned(&self) -> bool {
        self.inner.log.has_unpinned()
    }

    fn changed_keys(&self, reads: &ReadSet, max: usize) -> Result<Option<Vec<Box<[u8]>>>, MetaError> {
        self.inner.changed_keys(reads, max)
    }

    fn table_bytes(&self) -> u64 {
        self.inner.table_set().bytes()
    }

    fn sync(&self, upto: Seq) -> Result<(), MetaError> {
        self.inner.sync(upto)
    }

    fn set_sync_point_hook(&self, hook: SyncPointHook) {
        *self.inner.hook.lock() = Some(hook);
    }

    fn background_step(&self) -> Result<bool, MetaError> {
        // Damage before merges: until it is repaired, one more lost device may lose bytes.
        Ok(self.inner.flush_step()?
            || self.inner.repair_step(WorkFor::Caller)?
            || self.inner.compaction_step()?)
    }

    fn close(&self) -> Result<(), MetaError> {
        // First: no step may run on a closed engine.
        self.threads.stop();
        self.inner.close()
    }
}

impl<L: LogStore, S: Schema> SnapshotStore for Engine<L, S> {
    fn commit_at_newest(
        &self,
        admit: Admit,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        self.inner.commit_at_newest(admit, build)
    }

    fn forget_domain(&self, domain: DomainId, batch: &Batch) -> Result<(), CommitError> {
        self.inner.forget_domain(domain, batch)
    }

    fn unneeded_domains(&self) -> Result<Vec<DomainId>, MetaError> {
        self.inner.unneeded_domains()
    }

    fn unneeded_origins(&self) -> Vec<DomainId> {
        let table = self.inner.domains.get();
        table.map_or_else(Vec::new, |table| table.unneeded_origins(&self.inner.snapshots))
    }

    fn forget_origin(&self, domain: DomainId, batch: &Batch) -> Result<(), CommitError> {
        self.inner.forget_origin(domain, batch)
    }

    fn commit_rollback(
        &self,
        changes: &Batch,
        reserved: i64,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        self.inner.commit_rollback(changes, reserved, build)
    }

    fn rollbacks(&self) -> Vec<RollbackRecord> {
        self.inner.domains.get().map_or_else(Vec::new, |table| table.rollbacks())
    }

    fn seqs_to_settle(&self, rollback: &RollbackRecord) -> SeqRange {
        self.inner.domains.get().unwrap_or_default().seqs_to_settle(rollback)
    }

    fn unneeded_rollbacks(&self) -> Vec<RollbackRecord> {
        let table = self.inner.domains.get();
        table.map_or_else(Vec::new, |table| table.unneeded_rollbacks(&self.inner.snapshots))
    }

    fn forget_rollback(&self, rollback: &RollbackRecord, batch: &Batch) -> Result<bool, CommitError> {
        self.inner.forget_rollback(rollback, batch)
    }

    fn scan_part(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        part: DomainPart,
        limits: (usize, usize),
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        let scanned = self.inner.scan_part(range, at, part, limits, page);
        self.inner.repair_seen_damage();
        scanned
    }

    fn commit_with_snapshot(
        &self,
        changes: &Batch,
        admit: Admit,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        self.inner.commit_with_snapshot(changes, admit, build)
    }

    fn drop_snapshot(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        self.inner.drop_snapshot(seq, batch)
    }

    fn keep_bookmark(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        self.inner.keep_bookmark(seq, batch)
    }

    fn drop_bookmark(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        self.inner.drop_bookmark(seq, batch)
    }

    fn bookmark_at(&self, seq: Seq) -> Option<EngineSnapshot> {
        self.inner.snapshots.acquire_bookmark(seq)
    }

    fn snapshot_at(&self, seq: Seq) -> Option<EngineSnapshot> {
        self.inner.snapshots.acquire_persistent(seq)
    }

    fn changed_between(
        &self,
        range: KeyRange<'_>,
        commits: SeqRange,
        max: usize,
    ) -> Result<Vec<Box<[u8]>>, MetaError> {
        self.inner.changed_between(range, commits, max)
    }

    fn snapshot_bytes(&self, snapshots: &[Seq]) -> Result<SnapshotBytes, MetaError> {
        self.inner.snapshot_bytes(snapshots)
    }
}

impl<L: LogStore, S: Schema> HasSlices for Engine<L, S> {
    type Slices = LocalSlices<L>;

    fn slices(&self) -> &Arc<LocalSlices<L>> {
        &self.slices
    }
}

impl<L: LogStore, S: Schema> Upkeep for EngineInner<L, S> {
    fn admit(&self, bytes: u64, admit: Admit) -> Result<(), SliceError> {
        let admitted = self.latch.check().and_then(|()| EngineInner::admit(self, bytes, admit));
        admitted.map_err(|e| match e {
            MetaError::Log(e) => e.into(),
            MetaError::Slices(e) => e,
            other => SliceError::ReadOnly(other.to_string().into()),
        })
    }

    fn note_written(&self, bytes: u64) {
        self.usage.note_written(bytes);
    }

    fn note_read(&self) {
        self.repair_seen_damage();
    }
}
