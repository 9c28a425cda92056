//! Rollbacks in random histories. The twin writes all values of then again at once.

use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::{EngineAndTwin, HistoryStep};
use crate::domain::{DomainId, RollbackRecord, past_domain};
use crate::testing::{resolved, rollback_key, rollback_value, text_item};
use crate::{Admit, Batch, KeyRange, ReadSet, SeqRange, SliceStore, SnapshotStore, Store};

/// Most rollbacks with a record.
const ROLLBACKS_MAX: usize = 4;

/// Rolls a domain back to a persistent snapshot.
pub(in crate::tests) fn roll_back(store: &impl SnapshotStore, domain: DomainId, to: Seq) -> RollbackRecord {
    let mut made = None;
    let mut build = |at: Seq, batch: &mut Batch| {
        let record = made.insert(RollbackRecord { domain, to, at, ended_at: None });
        batch.put(&rollback_key(record), &rollback_value(record));
    };
    store.commit_rollback(&Batch::new(), 0, &mut build).unwrap();
    made.unwrap()
}

/// Ends rollbacks of which every hidden key has a later put or delete, in one commit. They are the oldest
/// ones of their domain.
pub(in crate::tests) fn end_rollbacks(store: &impl SnapshotStore, records: &[RollbackRecord]) -> Seq {
    let mut build = |at: Seq, batch: &mut Batch| {
        for record in records {
            let ended = RollbackRecord { ended_at: Some(at), ..*record };
            batch.put(&rollback_key(&ended), &rollback_value(&ended));
        }
    };
    store.commit_at_newest(Admit::User, &mut build).unwrap()
}

pub(in crate::tests) fn forget_rollback(store: &impl SnapshotStore, record: &RollbackRecord) {
    let mut batch = Batch::new();
    batch.delete(&rollback_key(record));
    assert!(store.forget_rollback(record, &batch).unwrap(), "every table can be read");
    store.sync(Seq::MAX).unwrap();
}

impl EngineAndTwin {
    /// Rolls a domain without an origin back to one of the persistent snapshots, if there is one.
    pub(super) fn roll_back(&mut self) {
        if self.engine.rollbacks().len() >= ROLLBACKS_MAX || self.kept.is_empty() {
            return;
        }
        let domain = *[b"dire", b"zzzz"][self.rng.below(2) as usize];
        let to = *self.kept.iter().nth(self.rng.below(self.kept.len() as u64) as usize).unwrap();
        let record = roll_back(&self.engine, domain, to);
        assert_eq!(record, roll_back(&self.twin, domain, to));
        self.history.push(HistoryStep::RollBack(domain, to));
    }

    /// Puts the values again that rollbacks hide, in some commits, and ends the oldest of a domain or all.
    pub(super) fn end_rollback(&mut self) {
        let mut records = self.engine.rollbacks();
        records.retain(|record| record.ended_at.is_none());
        // One may show what an older one hides: the first to be made is among the first to end.
        let Some(oldest) = records.first().copied() else { return };
        records.retain(|record| record.domain == oldest.domain);
        if self.rng.below(2) == 0 {
            records.truncate(1);
        }
        let past = past_domain(oldest.domain).unwrap();
        let mut start = oldest.domain.to_vec();
        let afters = records.iter().map(|record| self.engine.seqs_to_settle(record).after);
        let commits = SeqRange { after: afters.min().unwrap(), upto: records.last().unwrap().at };
        loop {
            let range = KeyRange { start: &start, end: Some(&past) };
            let max = [3, 10_000][self.rng.below(2) as usize];
            let keys = self.engine.changed_between(range, commits, max).unwrap();
            self.write_again(&keys);
            let Some(last) = keys.last().filter(|_| keys.len() == max) else { break };
            start = [&last[..], &[0]].concat();
        }
        let ended = end_rollbacks(&self.engine, &records);
        assert_eq!(ended, end_rollbacks(&self.twin, &records));
        self.history.push(HistoryStep::EndRollbacks(records));
    }

    /// Puts the values of these keys again.
    fn write_again(&mut self, keys: &[Box<[u8]>]) {
        let _pin = self.engine.pin().unwrap();
        let snapshot = self.engine.snapshot();
        let (mut batch, mut twin_batch, mut value) = (Batch::new(), Batch::new(), Vec::new());
        for key in keys {
            if self.engine.get(key, snapshot.seq(), &mut value).unwrap() {
                let texts = resolved(&value, |slice, buf| self.engine.log().read(slice, buf)).unwrap();
                batch.put(key, &value);
                twin_batch.put(key, &text_item(&texts));
            } else {
                batch.delete(key);
                twin_batch.delete(key);
            }
        }
        if batch.is_empty() {
            return;
        }
        let reads = ReadSet::new(snapshot.seq(), keys, []);
        let seq = self.engine.commit(&batch, Some(&reads), Admit::User).unwrap();
        assert_eq!(seq, self.twin.commit(&twin_batch, None, Admit::User).unwrap());
        self.history.push(HistoryStep::Commit(twin_batch));
    }

    /// Forgets a rollback that nobody knows of. `true`: there was one.
    pub(super) fn forget_rollback(&mut self) -> bool {
        let unneeded = self.engine.unneeded_rollbacks();
        assert_eq!(unneeded, self.twin.unneeded_rollbacks());
        let Some(record) = unneeded.first() else { return false };
        forget_rollback(&self.engine, record);
        forget_rollback(&self.twin, record);
        self.history.push(HistoryStep::ForgetRollback(*record));
        self.synced = Seq(self.history.len() as u64);
        true
    }

    /// Checks that each key with another value than at an older seq is among those that changed, also over a
    /// rollback: for a persistent snapshot `changed_between` lists it, for a live one `changed_keys`.
    pub(super) fn check_changed(&mut self) {
        let n = self.rng.below(self.kept.len().max(1) as u64) as usize;
        if let Some(&seq) = self.kept.iter().nth(n) {
            let newest = self.engine.snapshot();
            let commits = SeqRange { after: seq, upto: newest.seq() };
            for key in self.some_changed(seq) {
                let past = [&key[..], &[0]].concat();
                let range = KeyRange { start: &key, end: Some(&past) };
                let listed = self.engine.changed_between(range, commits, 1).unwrap();
                assert!(!listed.is_empty(), "{key:?} after {seq:?}");
            }
        }
        let n = self.rng.below(self.held.len().max(1) as u64) as usize;
        if let Some(seq) = self.held.get(n).map(|(live, _)| live.seq()) {
            let reads = ReadSet::new(seq, [] as [&[u8]; 0], [(Vec::new(), None)]);
            let changed = self.engine.changed_keys(&reads, usize::MAX).unwrap().unwrap();
            for key in self.some_changed(seq) {
                assert!(changed.iter().any(|other| **other == key), "{key:?} after {seq:?}");
            }
        }
    }

    /// Some keys with another value now than at a seq, of domains without an origin.
    fn some_changed(&mut self, seq: Seq) -> Vec<Vec<u8>> {
        let mut changed = Vec::new();
        for _ in 0..20 {
            let key = self.key();
            let (mut then, mut now) = (Vec::new(), Vec::new());
            let was = self.twin.get(&key, seq, &mut then).unwrap();
            let is = self.twin.get(&key, Seq::MAX, &mut now).unwrap();
            let of_record = key.first_chunk().is_some_and(|domain| self.domains.contains_key(domain));
            if !of_record && (was, then) != (is, now) {
                changed.push(key);
            }
        }
        changed
    }
}
