//! Commits that make and drop persistent snapshots.
//!
//! # Invariants
//! 1. A snapshot's seq is the newest one while no commit is in progress, the changes of the sync point hook
//!    included. Its record has the next seq. So every later opening that finds the record finds all commits
//!    of the snapshot too, and recovery never reuses a seq below it.
//! 2. The seq is registered before its record is applied, under the same locks. A job that listed the readers
//!    before has no version newer than the snapshot.
//! 3. The registration ends after the sync that covers the removal of the record.

use warpfire_env::sync::atomic::Ordering;
use warpfire_env::{PlantedBug, is_planted};
use warpfire_log::{Admit, LogStore};
use warpfire_units::Seq;

use super::PreparedCommit;
use crate::batch::{Batch, RESERVED};
use crate::engine::{EngineInner, ShardWriteGuard};
use crate::schema::Schema;
use crate::store::{CommitError, MetaError};

/// Room that a snapshot asks for: more than its record takes.
const SNAPSHOT_BYTES: u64 = 1024;

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Makes a persistent snapshot; see `SnapshotStore::commit_snapshot`.
    pub(crate) fn commit_snapshot(&self, build: &mut dyn FnMut(Seq, &mut Batch)) -> Result<Seq, CommitError> {
        // Under the locks below nobody may wait for room.
        let granted = self.make_room(SNAPSHOT_BYTES, Admit::User)?;
        let sync_point = self.sync_point.lock();
        let mut shards = self.shards.write_all();
        self.latch.check()?;
        self.run_hook(&mut shards)?;
        shards[0].credit += granted;
        let seq = self.apply_snapshot(build, &mut shards)?;
        drop((shards, sync_point));
        Ok(seq)
    }

    /// Commits changes and makes a snapshot that shows them; see `SnapshotStore::commit_with_snapshot`.
    pub(crate) fn commit_with_snapshot(
        &self,
        changes: &Batch,
        admit: Admit,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        let added = changes.sums()[RESERVED];
        if added > 0 {
            self.reserve(added)?;
        }
        let committed = self.commit_then_snapshot(changes, admit, build);
        self.settle_reserved(added, admit, committed.is_ok());
        committed
    }

    fn commit_then_snapshot(
        &self,
        changes: &Batch,
        admit: Admit,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        let prepared = PreparedCommit::new(changes, &self.schema).map_err(MetaError::from)?;
        let granted = self.make_room(prepared.bytes + SNAPSHOT_BYTES, admit)?;
        let sync_point = self.sync_point.lock();
        let mut shards = self.shards.write_all();
        self.latch.check()?;
        shards[0].credit += granted.saturating_sub(prepared.bytes);
        shards[0].deletions += u64::from(admit == Admit::Reserve);
        self.usage.active_bytes.fetch_add(prepared.bytes.saturating_sub(granted), Ordering::Relaxed);
        // Until the record is applied no sync point is made: a crash keeps the changes and the snapshot, or
        // neither.
        self.apply_in_place(prepared, u32::MAX, &mut shards)?;
        self.run_hook(&mut shards)?;
        let seq = self.apply_snapshot(build, &mut shards)?;
        drop((shards, sync_point));
        Ok(seq)
    }

    /// Applies the record of a snapshot of the newest version. The caller has run the hook, and holds the
    /// locks of all shards.
    fn apply_snapshot(
        &self,
        build: &mut dyn FnMut(Seq, &mut Batch),
        shards: &mut [ShardWriteGuard<'_, L>],
    ) -> Result<Seq, MetaError> {
        let seq = self.newest();
        let mut batch = Batch::new();
        build(seq, &mut batch);
        let prepared = PreparedCommit::new(&batch, &self.schema)?;
        assert!(prepared.pointers.is_empty(), "the record of a snapshot names no slice");
        debug_assert!(
            batch
                .iter()
                .any(|op| matches!(self.schema.snapshot_seq(op.key()), Ok(Some(named)) if named == seq)),
            "the batch has the record that names the seq"
        );
        // The record is counted; the grant for it is left to later commits.
        self.usage.active_bytes.fetch_add(prepared.bytes, Ordering::Relaxed);
        if !is_planted(PlantedBug::SnapshotNotHeld) {
            self.snapshots.keep(seq);
        }
        let named_by = self.apply(&prepared, u32::MAX, shards);
        assert!(seq < named_by, "a snapshot does not show its own record");
        Ok(seq)
    }

    /// Drops a persistent snapshot; see `SnapshotStore::drop_snapshot`.
    pub(crate) fn drop_snapshot(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        let removed = self.remove_snapshot_record(seq, batch)?;
        // A crash before this is durable brings the record back, and its versions must be there then.
        self.sync(removed)?;
        self.snapshots.forget(seq);
        // Work that came to nothing before may gain space now.
        self.wake_background();
        Ok(())
    }

    /// Removes the record of a persistent snapshot, which stays held.
    pub(crate) fn remove_snapshot_record(&self, seq: Seq, batch: &Batch) -> Result<Seq, CommitError> {
        if is_planted(PlantedBug::SnapshotForgottenEarly) {
            self.snapshots.forget(seq);
        }
        self.commit(batch, None, Admit::Reserve)
    }
}
