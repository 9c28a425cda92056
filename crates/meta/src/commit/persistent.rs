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
use crate::batch::Batch;
use crate::engine::EngineInner;
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
        let seq = self.newest();
        let mut batch = Batch::new();
        build(seq, &mut batch);
        let prepared = PreparedCommit::new(&batch, &self.schema).map_err(MetaError::from)?;
        assert!(prepared.pointers.is_empty(), "the record of a snapshot names no slice");
        debug_assert!(
            batch
                .iter()
                .any(|op| matches!(self.schema.snapshot_seq(op.key()), Ok(Some(named)) if named == seq)),
            "the batch has the record that names the seq"
        );
        // A record that is longer than expected is counted; the rest of the grant is left to later commits.
        shards[0].credit += granted.saturating_sub(prepared.bytes);
        self.usage.active_bytes.fetch_add(prepared.bytes.saturating_sub(granted), Ordering::Relaxed);
        if !is_planted(PlantedBug::SnapshotNotHeld) {
            self.snapshots.keep(seq);
        }
        let named_by = self.apply(&prepared, u32::MAX, &mut shards);
        assert!(seq < named_by, "a snapshot does not show its own record");
        drop((shards, sync_point));
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
