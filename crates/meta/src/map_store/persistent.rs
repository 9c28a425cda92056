//! Snapshots, bookmarks, domains and rollbacks of the twin.

use std::ops::Bound;

use warpfire_units::Seq;

use super::{MapState, MapStore};
use crate::Admit;
use crate::batch::{Batch, BatchOp, SUMS};
use crate::domain::{DomainId, DomainRecord, RollbackRecord, domain_of};
use crate::schema::Schema;
use crate::snapshot::EngineSnapshot;
use crate::snapshot_bytes::{SnapshotBytes, naive_bytes};
use crate::store::{CommitError, DomainPart, KeyRange, MetaError, ScanPage, SeqRange, SnapshotStore, Store};

impl<S: Schema> MapStore<S> {
    /// The values that a rollback changes back, each as a put or a delete.
    fn restored(&self, state: &MapState, rollback: &RollbackRecord) -> Result<Batch, MetaError> {
        let mut batch = Batch::new();
        for (key, versions) in &state.map {
            let is_hidden = versions.last().is_some_and(|(newest, _)| *newest > rollback.to);
            if domain_of(key) == Some(rollback.domain) && is_hidden && self.schema.goes_back(key) {
                match self.fold(state, key, rollback.to)? {
                    Some(value) => batch.put(key, &value),
                    None => batch.delete(key),
                }
            }
        }
        Ok(batch)
    }
}

impl<S: Schema> SnapshotStore for MapStore<S> {
    fn commit_at_newest(
        &self,
        admit: Admit,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        let mut state = self.state.lock();
        self.admit(&state, 0, admit)?;
        self.sync_point(&mut state);
        let (seq, mut batch) = (state.newest, Batch::new());
        build(seq, &mut batch);
        for op in batch.iter() {
            let BatchOp::Put(key, value) = op else { continue };
            let is_in = |range: Option<(Vec<u8>, Vec<u8>)>| {
                range.is_some_and(|(start, end)| *start.as_slice() <= *key && key < end.as_slice())
            };
            if is_in(self.schema.snapshot_range())
                && let Some(named) = self.schema.snapshot_seq(key).map_err(MetaError::from)?
            {
                self.registry.keep(named);
            }
            if is_in(self.schema.domain_range())
                && let Some(record) = self.schema.domain(key, value).map_err(MetaError::from)?
            {
                self.domains.set(record);
            }
            if is_in(self.schema.rollback_range())
                && let Some(record) = self.schema.rollback(key, value).map_err(MetaError::from)?
            {
                self.domains.set_rollback(record);
            }
        }
        Self::apply(&mut state, &batch);
        Ok(seq)
    }

    fn commit_with_snapshot(
        &self,
        changes: &Batch,
        admit: Admit,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        self.commit(changes, None, admit)?;
        self.commit_at_newest(admit, build)
    }

    fn forget_domain(&self, domain: DomainId, batch: &Batch) -> Result<(), CommitError> {
        self.commit(batch, None, Admit::Reserve)?;
        self.domains.remove(domain);
        Ok(())
    }

    fn unneeded_domains(&self) -> Result<Vec<DomainId>, MetaError> {
        let Some(table) = self.domains.get() else { return Ok(Vec::new()) };
        let state = self.state.lock();
        let has_keys = |d: &DomainRecord| state.map.keys().any(|key| domain_of(key) == Some(d.domain));
        let leaves = table.removed_leaves().into_iter();
        let unneeded = leaves.filter(|d| !d.is_read_by(&self.registry) && !has_keys(d));
        Ok(unneeded.map(|d| d.domain).collect())
    }

    fn unneeded_origins(&self) -> Vec<DomainId> {
        self.domains.get().map_or_else(Vec::new, |table| table.unneeded_origins(&self.registry))
    }

    fn forget_origin(&self, domain: DomainId, batch: &Batch) -> Result<(), CommitError> {
        debug_assert!(self.unneeded_origins().contains(&domain), "nobody reads on in it");
        self.commit(batch, None, Admit::Reserve)?;
        self.domains.forget_origin(domain);
        Ok(())
    }

    /// Writes the values of then again at once: the plainest rollback.
    fn commit_rollback(
        &self,
        changes: &Batch,
        reserved: i64,
        build: &mut dyn FnMut(Seq, &mut Batch),
    ) -> Result<Seq, CommitError> {
        let mut state = self.state.lock();
        self.reserved.add(reserved.max(0));
        if let Err(e) = self.admit(&state, changes.bytes(), Admit::Reserve) {
            self.reserved.add(-reserved.max(0));
            return Err(e.into());
        }
        self.reserved.add(reserved.min(0));
        self.sync_point(&mut state);
        let (seq, mut batch) = (state.newest, Batch::new());
        build(seq, &mut batch);
        let mut restored = Batch::new();
        for op in batch.iter() {
            if let BatchOp::Put(key, value) = op
                && let Some(record) = self.schema.rollback(key, value).map_err(MetaError::from)?
            {
                restored = self.restored(&state, &record)?;
                self.domains.set_rollback(record);
            }
        }
        restored.iter().for_each(|op| batch.push_op(op, &[]));
        Self::apply(&mut state, &batch);
        if !changes.is_empty() || *changes.sums() != [0; SUMS] {
            Self::apply(&mut state, changes);
        }
        Ok(seq)
    }

    fn rollbacks(&self) -> Vec<RollbackRecord> {
        self.domains.get().map_or_else(Vec::new, |table| table.rollbacks())
    }

    fn seqs_to_settle(&self, rollback: &RollbackRecord) -> SeqRange {
        self.domains.get().unwrap_or_default().seqs_to_settle(rollback)
    }

    fn unneeded_rollbacks(&self) -> Vec<RollbackRecord> {
        self.domains.get().map_or_else(Vec::new, |table| table.unneeded_rollbacks(&self.registry))
    }

    fn forget_rollback(&self, rollback: &RollbackRecord, batch: &Batch) -> Result<bool, CommitError> {
        debug_assert!(self.unneeded_rollbacks().contains(rollback), "nobody knows of it");
        self.commit(batch, None, Admit::Reserve)?;
        self.domains.remove_rollback(rollback.domain, rollback.at);
        Ok(true)
    }

    fn scan_part(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        part: DomainPart,
        limits: (usize, usize),
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        page.clear();
        let state = self.state.lock();
        let reads_on = self.domains.get().is_some_and(|table| table.origin_at(range.start, at).is_some());
        let of_part = |key: &Vec<u8>| match part {
            DomainPart::Settled => !reads_on || self.is_settled(&state, key, at),
            DomainPart::ReadOn => reads_on && !self.is_settled(&state, key, at),
        };
        let keys: Vec<Vec<u8>> = self.keys_in(&state, range).into_iter().filter(of_part).collect();
        let mut keys = keys.iter();
        self.fill(&state, at, limits, page, || keys.next())
    }

    fn drop_snapshot(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        self.commit(batch, None, Admit::Reserve)?;
        self.registry.forget(seq);
        Ok(())
    }

    fn keep_bookmark(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        assert!(self.registry.is_kept(seq), "a bookmark is made of a persistent snapshot");
        self.registry.keep_bookmark(seq);
        self.commit(batch, None, Admit::User).map(drop).inspect_err(|_| self.registry.forget_bookmark(seq))
    }

    fn drop_bookmark(&self, seq: Seq, batch: &Batch) -> Result<(), CommitError> {
        self.commit(batch, None, Admit::Reserve)?;
        self.registry.forget_bookmark(seq);
        Ok(())
    }

    fn bookmark_at(&self, seq: Seq) -> Option<EngineSnapshot> {
        self.registry.acquire_bookmark(seq)
    }

    fn snapshot_at(&self, seq: Seq) -> Option<EngineSnapshot> {
        self.registry.acquire_persistent(seq)
    }

    fn changed_between(
        &self,
        range: KeyRange<'_>,
        commits: SeqRange,
        max: usize,
    ) -> Result<Vec<Box<[u8]>>, MetaError> {
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(Vec::new());
        }
        let state = self.state.lock();
        let bounds = (Bound::Included(range.start), range.end.map_or(Bound::Unbounded, Bound::Excluded));
        let keys = state.map.range::<[u8], _>(bounds);
        let changed = keys.filter(|(_, versions)| versions.iter().any(|(seq, _)| commits.contains(*seq)));
        Ok(changed.take(max).map(|(key, _)| key.as_slice().into()).collect())
    }

    fn snapshot_bytes(&self, snapshots: &[Seq]) -> Result<SnapshotBytes, MetaError> {
        let (keys, newest) = {
            let state = self.state.lock();
            (state.map.keys().cloned().collect(), state.newest)
        };
        let domains = self.domains.get().unwrap_or_default();
        let visible = self.registry.visible_to(|| newest).fully();
        naive_bytes(self, &self.schema, keys, snapshots, &domains, &visible)
    }
}
