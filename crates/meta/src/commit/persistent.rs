//! Commits that make and drop persistent snapshots, bookmarks and domains.
//!
//! # Invariants
//! 1. A snapshot's seq is the newest one while no commit is in progress, the changes of the sync point hook
//!    included. Its record has the next seq. So every later opening that finds the record finds all commits
//!    of the snapshot too, and recovery never reuses a seq below it.
//! 2. The seq is registered before its record is applied, under the same locks. A job that listed the readers
//!    before has no version newer than the snapshot.
//! 3. The registration ends after the sync that covers the removal of the record (`removals.rs`).
//! 4. The same holds for the seq of a domain's origin, and a domain counts as removed only once the record
//!    that says so is durable. Until then a crash could bring back the domain without the versions that
//!    compaction has dropped. A domain loses its origin in the same way (`forget_origin`,
//!    `tests::released`).
//! 5. The release of an origin counts at once. It changes what readers pass, and no compaction depends on it:
//!    a crash that takes it back finds the same values through the origin (`domain.rs`, invariant 6).
//!    The end of a rollback counts at once too, and a rollback is forgotten as an origin is.
//! 6. A bookmark is registered before its record is applied, while a persistent snapshot of its seq is. Both
//!    removals come later in the log than the record. So whenever a crash takes the bookmark's record back,
//!    the snapshot's is there. The registration ends after the sync that covers the removal of the record.

use warpfire_env::sync::atomic::Ordering;
use warpfire_env::{PlantedBug, is_planted};
use warpfire_log::{Admit, LogStore};
use warpfire_units::Seq;

use super::PreparedCommit;
use super::removals::Removal;
use crate::batch::{Batch, BatchOp, RESERVED, SUMS};
use crate::domain::{DomainId, DomainRecord, RollbackRecord};
use crate::engine::{EngineInner, ShardWriteGuard};
use crate::schema::Schema;
use crate::store::{CommitError, MetaError};

/// Room that a snapshot or a domain asks for: more than its records take.
const SNAPSHOT_BYTES: u64 = 1024;

/// The records of snapshots and domains that a batch puts.
#[derive(Default)]
struct NamedInBatch {
    snapshots: Vec<Seq>,
    domains: Vec<DomainRecord>,
    rollbacks: Vec<RollbackRecord>,
}

/// Records of snapshots and domains in the memtable.
struct AppliedRecords {
    /// The newest seq before them.
    seq: Seq,
    /// The seq of their commit.
    named_by: Seq,
    /// The domains that they remove.
    removed: Vec<DomainRecord>,
}

impl NamedInBatch {
    fn find(batch: &Batch, schema: &impl Schema) -> Result<NamedInBatch, MetaError> {
        let mut named = NamedInBatch::default();
        let (snapshots, domains) = (schema.snapshot_range(), schema.domain_range());
        let rollbacks = schema.rollback_range();
        for op in batch.iter() {
            let BatchOp::Put(key, value) = op else { continue };
            let is_in = |range: &Option<(Vec<u8>, Vec<u8>)>| {
                range.as_ref().is_some_and(|(start, end)| *start.as_slice() <= *key && key < end.as_slice())
            };
            if is_in(&snapshots) {
                named.snapshots.extend(schema.snapshot_seq(key)?);
            }
            if is_in(&domains) {
                named.domains.extend(schema.domain(key, value)?);
            }
            if is_in(&rollbacks) {
                named.rollbacks.extend(schema.rollback(key, value)?);
            }
        }
        Ok(named)
    }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Makes persistent snapshots and domains; see `SnapshotStore::commit_at_newest`.
    pub(crate) fn commit_at_newest(
        &self,
        admit: Admit,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        // Under the locks below nobody may wait for room.
        let granted = self.make_room(SNAPSHOT_BYTES, admit)?;
        let sync_point = self.sync_point.lock();
        let mut shards = self.shards.write_all();
        self.latch.check()?;
        self.run_hook(&mut shards)?;
        shards[0].credit += granted;
        let applied = self.apply_records(build, &mut shards)?;
        drop((shards, sync_point));
        Ok(self.finish_removal(applied))
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
        let applied = self.apply_records(build, &mut shards)?;
        drop((shards, sync_point));
        Ok(self.finish_removal(applied))
    }

    /// Rolls a domain back, and commits changes that its later readers see; see
    /// `SnapshotStore::commit_rollback`.
    pub(crate) fn commit_rollback(
        &self,
        changes: &Batch,
        reserved: i64,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        if reserved > 0 {
            self.reserve(reserved)?;
        }
        let committed = self.roll_back_then_change(changes, build);
        match &committed {
            Ok(_) => self.reserved.add(reserved.min(0)),
            Err(_) => self.reserved.add(-reserved.max(0)),
        }
        committed
    }

    fn roll_back_then_change(
        &self,
        changes: &Batch,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        let prepared = PreparedCommit::new(changes, &self.schema).map_err(MetaError::from)?;
        let granted = self.make_room(prepared.bytes + SNAPSHOT_BYTES, Admit::Reserve)?;
        let sync_point = self.sync_point.lock();
        let mut shards = self.shards.write_all();
        self.latch.check()?;
        self.run_hook(&mut shards)?;
        shards[0].credit += granted.saturating_sub(prepared.bytes);
        self.usage.active_bytes.fetch_add(prepared.bytes.saturating_sub(granted), Ordering::Relaxed);
        // Nothing fails from here on: until the changes are applied no sync point is made, so a crash keeps
        // the rollback and the changes, or neither.
        let applied = self.apply_records(build, &mut shards)?;
        if !changes.is_empty() || *changes.sums() != [0; SUMS] {
            self.apply_in_place(prepared, u32::MAX, &mut shards)?;
        }
        drop((shards, sync_point));
        debug_assert!(applied.removed.is_empty(), "a rollback removes no domain");
        Ok(applied.seq)
    }

    /// Forgets a rollback that nobody knows of any more; see `SnapshotStore::forget_rollback`.
    pub(crate) fn forget_rollback(
        &self,
        record: &RollbackRecord,
        batch: &Batch,
    ) -> Result<bool, CommitError> {
        debug_assert!(
            self.domains.get().is_some_and(|t| t.unneeded_rollbacks(&self.snapshots).contains(record)),
            "nobody knows of a rollback that is forgotten, and nobody can begin to"
        );
        // An operand from before the end stands above a hidden value, onto which it must never fold. Below
        // the put or delete that was written since it goes.
        if !is_planted(PlantedBug::RollbackNotJoined) && !self.join_versions_after(record.at)? {
            return Ok(false);
        }
        let committed = self.commit(batch, None, Admit::Reserve)?;
        self.remove_when_durable(committed, Removal::Rollback(*record));
        Ok(true)
    }

    /// Applies the records of snapshots and domains at the newest version. The caller has run the hook, and
    /// holds the locks of all shards.
    fn apply_records(
        &self,
        build: &mut dyn FnMut(Seq, &mut Batch),
        shards: &mut [ShardWriteGuard<'_, L>],
    ) -> Result<AppliedRecords, MetaError> {
        let seq = self.newest();
        let mut batch = Batch::new();
        build(seq, &mut batch);
        let prepared = PreparedCommit::new(&batch, &self.schema)?;
        assert!(prepared.pointers.is_empty(), "the record of a snapshot or domain names no slice");
        let named = NamedInBatch::find(&batch, &self.schema)?;
        debug_assert!(
            named.snapshots.iter().all(|named| *named == seq),
            "a snapshot is made of the newest version"
        );
        // The record is counted; the grant for it is left to later commits.
        self.usage.active_bytes.fetch_add(prepared.bytes, Ordering::Relaxed);
        if !is_planted(PlantedBug::SnapshotNotHeld) {
            named.snapshots.iter().for_each(|named| self.snapshots.keep(*named));
        }
        let removed = self.register_domains(named.domains);
        for record in named.rollbacks {
            debug_assert!(
                record.ended_at.unwrap_or(record.at) == seq,
                "a rollback is made and ended at the newest version"
            );
            debug_assert!(
                record.ended_at.is_none()
                    || self.domains.get().is_none_or(|t| t.have_ended_before(record.domain, record.at)),
                "the oldest rollback of a domain ends first: a later one may show what it hides"
            );
            // Before its record is visible: no job folds what it parts, and no reader misses it.
            match record.ended_at {
                None => self.domains.add_rollback(record),
                Some(_) => self.domains.set_rollback(record),
            }
        }
        let named_by = self.apply(&prepared, u32::MAX, shards);
        assert!(seq < named_by, "a snapshot does not show its own record");
        Ok(AppliedRecords { seq, named_by, removed })
    }

    /// Hands over the domains that a commit removes: until it is durable, compaction keeps all of them.
    fn finish_removal(&self, applied: AppliedRecords) -> Seq {
        debug_assert!(applied.seq < applied.named_by, "a record has a later seq than its subject");
        for record in applied.removed {
            self.remove_when_durable(applied.named_by, Removal::Domain(record));
        }
        applied.seq
    }

    /// Registers the domains that a commit makes or changes, with the seqs of their origins. Returns those
    /// that it removes: they are still registered as they were.
    fn register_domains(&self, records: Vec<DomainRecord>) -> Vec<DomainRecord> {
        let mut removed = Vec::new();
        for record in records {
            let before = self.domains.set_live(record).and_then(|before| before.origin);
            debug_assert!(
                match (before, record.origin) {
                    (Some(before), Some(now)) => (before.domain, before.seq) == (now.domain, now.seq),
                    // The loss of the origin waits to be durable.
                    (Some(before), None) => before.released_at.is_some(),
                    (None, _) => true,
                },
                "a domain keeps its origin until that is forgotten"
            );
            if record.removed_at.is_some() {
                removed.push(record);
            }
        }
        removed
    }

    /// Forgets a removed domain; see `SnapshotStore::forget_domain`.
    pub(crate) fn forget_domain(&self, domain: DomainId, batch: &Batch) -> Result<(), CommitError> {
        let committed = self.commit(batch, None, Admit::Reserve)?;
        self.remove_when_durable(committed, Removal::DomainRecord(domain));
        Ok(())
    }

    /// Forgets an origin that nobody needs; see `SnapshotStore::forget_origin`. A crash may bring back the
    /// record with the origin, also from before its release: then the deletes that hide the origin's values
    /// must be there.
    pub(crate) fn forget_origin(&self, domain: DomainId, batch: &Batch) -> Result<(), CommitError> {
        debug_assert!(
            self.domains.get().is_some_and(|t| t.unneeded_origins(&self.snapshots).contains(&domain)),
            "nobody reads on in an origin that is forgotten, and nobody can begin to"
        );
        if is_planted(PlantedBug::OriginForgottenEarly) {
            self.domains.forget_origin(domain);
        }
        let committed = self.commit(batch, None, Admit::Reserve)?;
        self.remove_when_durable(committed, Removal::Origin(domain));
        Ok(())
    }

    /// See `SnapshotStore::unneeded_domains`.
    pub(crate) fn unneeded_domains(&self) -> Result<Vec<DomainId>, MetaError> {
        let Some(table) = self.domains.get() else { return Ok(Vec::new()) };
        let mut unneeded = Vec::new();
        for record in table.removed_leaves() {
            if !record.is_read_by(&self.snapshots) && !self.has_versions(record.keys().as_range())? {
                unneeded.push(record.domain);
            }
        }
        Ok(unneeded)
    }

    /// Drops a persistent snapshot; see `SnapshotStore::drop_snapshot`.
    pub(crate) fn drop_snapshot(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        if is_planted(PlantedBug::SnapshotForgottenEarly) {
            self.snapshots.forget(seq);
        }
        let committed = self.commit(batch, None, Admit::Reserve)?;
        self.remove_when_durable(committed, Removal::Snapshot(seq));
        Ok(())
    }

    /// Makes a bookmark; see `SnapshotStore::keep_bookmark`.
    pub(crate) fn keep_bookmark(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        self.latch.check()?;
        assert!(self.snapshots.is_kept(seq), "a bookmark is made of a persistent snapshot");
        self.snapshots.keep_bookmark(seq);
        match self.commit(batch, None, Admit::User) {
            // Nothing was written.
            Err(error @ CommitError::Failed(_)) => {
                self.snapshots.forget_bookmark(seq);
                Err(error)
            }
            done => done.map(drop),
        }
    }

    /// Drops a bookmark; see `SnapshotStore::drop_bookmark`.
    pub(crate) fn drop_bookmark(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        debug_assert!(!batch.is_empty(), "the record of the bookmark is removed");
        let committed = self.commit(batch, None, Admit::Reserve)?;
        self.remove_when_durable(committed, Removal::Bookmark(seq));
        Ok(())
    }
}
