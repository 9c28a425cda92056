//! Settling a rollback: the keys that it hides are written again, so that nobody needs to know of it.
//!
//! # Invariants
//! 1. To write a key again changes no answer: the value is the one that readers see. The commit of a page
//!    fails if a key has changed since it was read, and then its keys are read again while no call runs.
//! 2. The rollbacks are settled from the oldest on, because a later one may show what an earlier one hides. A
//!    rollback ends once every key that it hides was written since. That can be broken off and cut anywhere:
//!    after a crash it begins anew, and writes again what it wrote before
//!    (`tests::rollback::a_rollback_that_is_not_settled_goes_on_after_a_crash`).
//! 3. A rollback that has ended is forgotten once no snapshot from before its end and after the rollback is
//!    left (`SnapshotStore::unneeded_rollbacks`).

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::fs::{Key, KeyBuf, RolledBack, VolumeId, number_in};
use warpfire_meta::{
    Admit, Batch, CommitError, KeyRange, ReadSet, RollbackRecord, Schema, SnapshotStore, Storage,
};
use warpfire_units::Seq;

use super::volume_keys;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::{PAGE_BYTES, PAGE_ENTRIES};
use crate::schema::FsSchema;

/// Keys of one commit: a call that must be alone waits for it.
const COMMIT_KEYS: usize = 128;

/// Bytes of keys and values that are written again between two syncs. So the sync of another caller, and that
/// of another rollback, has little more to write than its own changes.
const SYNC_BYTES: usize = 256 << 10;

/// How far the oldest rollback is settled, in this opening.
#[derive(Debug, Default)]
pub(crate) struct SettledPart {
    /// The seq of the rollback.
    of: Seq,
    /// The first key that is not settled.
    next: Vec<u8>,
    /// Bytes that were written again since the last sync here.
    unsynced_bytes: usize,
}

/// The key of a rollback's record.
fn key_of(rollback: &RollbackRecord) -> KeyBuf {
    Key::Rollback(rollback.at, VolumeId(u32::from_be_bytes(rollback.domain))).encode()
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Settles rollbacks until all are, or `goes_on` returns `false`, which is called after each page. Then,
    /// and after an error, a later call goes on. Without a rollback it looks at nothing.
    ///
    /// # Errors
    /// `NoSpace` in a full pool; `ReadOnly`; `Damaged`.
    pub fn settle_rollbacks(&self, goes_on: &mut dyn FnMut() -> bool) -> Result<(), FsError> {
        if self.options.read_only {
            return Ok(());
        }
        while let Some(rollback) = self.unsettled_rollbacks().first() {
            if !self.settle(rollback, goes_on)? {
                return Ok(());
            }
        }
        self.forget_rollbacks()
    }

    /// The rollbacks that are not settled, from the oldest on.
    fn unsettled_rollbacks(&self) -> Vec<RollbackRecord> {
        let mut all = self.engine.rollbacks();
        all.retain(|rollback| rollback.ended_at.is_none());
        all
    }

    /// Settles the oldest rollbacks, until fewer than so many are not.
    pub(super) fn settle_oldest(&self, count: usize) -> Result<(), FsError> {
        while let Some(oldest) = self.unsettled_rollbacks().first_chunk::<1>().map(|[oldest]| *oldest)
            && self.unsettled_rollbacks().len() >= count
        {
            self.settle(&oldest, &mut || true)?;
        }
        Ok(())
    }

    /// Writes the keys again that a rollback hides, and ends it. `false`: `goes_on` has stopped it.
    fn settle(&self, rollback: &RollbackRecord, goes_on: &mut dyn FnMut() -> bool) -> Result<bool, FsError> {
        let mut settled = self.settled.lock();
        // Another thread may have settled it.
        if !self.unsettled_rollbacks().contains(rollback) {
            return Ok(true);
        }
        let commits = self.engine.seqs_to_settle(rollback);
        let (start, end) = volume_keys(self.volume);
        if settled.of != rollback.at {
            *settled = SettledPart { of: rollback.at, next: start.to_vec(), unsynced_bytes: 0 };
            self.return_orphans_of_then();
            self.reap()?;
        }
        loop {
            let range = KeyRange { start: &settled.next, end: Some(&end) };
            let mut keys = self.engine.changed_between(range, commits, PAGE_ENTRIES)?;
            let next = keys.last().filter(|_| keys.len() == PAGE_ENTRIES);
            let next = next.map(|last| [&last[..], &[0]].concat());
            keys.retain(|key| FsSchema.goes_back(key));
            if is_planted(PlantedBug::RollbackEndsEarly) {
                keys.pop();
            }
            for page in self.pages(&keys)? {
                settled.unsynced_bytes += self.write_again(page)?;
                if settled.unsynced_bytes >= SYNC_BYTES {
                    self.engine.sync(Seq::MAX)?;
                    settled.unsynced_bytes = 0;
                }
            }
            let Some(next) = next else { break };
            settled.next = next;
            if !goes_on() {
                return Ok(false);
            }
        }
        self.end_rollback(rollback)?;
        Ok(true)
    }

    /// Has the files without a name that the snapshot shows removed, except for those in use.
    fn return_orphans_of_then(&self) {
        let mut first = number_in(self.volume, 1);
        // After an error they are left to the next opening, as those of a crash are.
        while let Ok(orphans) = self.some_orphans(first)
            && let Some(last) = orphans.last()
        {
            first = last + 1;
            for ino in orphans.into_iter().filter(|ino| self.node_in_use(*ino).is_none()) {
                self.inode_cache.return_unheld_orphan(ino);
            }
        }
    }

    /// The keys in parts of which the values are about a page.
    fn pages<'k>(&self, keys: &'k [Box<[u8]>]) -> Result<Vec<&'k [Box<[u8]>]>, FsError> {
        let (mut pages, mut from, mut bytes, mut value) = (Vec::new(), 0, 0, Vec::new());
        for (place, key) in keys.iter().enumerate() {
            self.engine.get(key, Seq::MAX, &mut value)?;
            bytes += key.len() + value.len();
            if bytes >= PAGE_BYTES || place + 1 - from == COMMIT_KEYS {
                pages.push(&keys[from..=place]);
                (from, bytes) = (place + 1, 0);
            }
        }
        if from < keys.len() {
            pages.push(&keys[from..]);
        }
        Ok(pages)
    }

    /// Writes what readers see of these keys. Returns the bytes of keys and values.
    fn write_again(&self, keys: &[Box<[u8]>]) -> Result<usize, FsError> {
        // Twice beside other calls: one that waits for room would wait for this one, if this waited for it.
        for _ in 0..2 {
            let committed = {
                let _guard = self.enter_unrecorded();
                self.commit_again(keys)
            };
            match committed {
                Err(FsError::Conflict { .. }) => {}
                committed => return committed,
            }
        }
        // Others change them again and again.
        let _exclusive = self.call_gate.enter_exclusive();
        loop {
            match self.commit_again(keys) {
                // A sync point has added the times of directories, which are few and come once.
                Err(FsError::Conflict { .. }) => {}
                committed => return committed,
            }
        }
    }

    fn commit_again(&self, keys: &[Box<[u8]>]) -> Result<usize, FsError> {
        // Without a search for room, as a user would have it: that would wait for what settling gains.
        let _pin = self.engine.pin()?;
        let snapshot = self.engine.snapshot();
        let at = self.engine.seq(&snapshot);
        let (mut batch, mut value) = (Batch::new(), Vec::new());
        for key in keys {
            if self.engine.get(key, at, &mut value)? {
                batch.put(key, &value);
            } else {
                batch.delete(key);
            }
        }
        if !self.has_room_to_settle(batch.bytes() as u64)? {
            return Err(FsError::NoSpace);
        }
        // Not as a user, for the same reason.
        match self.engine.commit(&batch, Some(&ReadSet::new(at, keys, [])), Admit::Reserve) {
            Ok(_) => Ok(batch.bytes()),
            Err(CommitError::Conflict) => Err(FsError::Conflict { call: "settle", path: "/".into() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether some bytes may be written again now. Reclaim is for the writes of callers: settling comes
    /// again and again. In a full pool it takes half of what the reserve has for deletions, because without
    /// it deletions free nothing.
    fn has_room_to_settle(&self, bytes: u64) -> Result<bool, FsError> {
        if self.engine.has_room(bytes, Admit::User) {
            return Ok(true);
        }
        // Deletions have a third of the reserve.
        let kept_bytes = self.engine.space()?.reserve_bytes / 6;
        Ok(self.engine.has_room(bytes.saturating_add(kept_bytes), Admit::Reserve))
    }

    /// Ends a rollback of which every hidden key was written again.
    fn end_rollback(&self, rollback: &RollbackRecord) -> Result<(), FsError> {
        // From the reserve: until it has ended, deleting the snapshot that it went back to frees nothing.
        self.engine.commit_at_newest(Admit::Reserve, &mut |seq, batch| {
            let mut value = Vec::new();
            RolledBack { to: rollback.to, ended_at: Some(seq) }.encode(&mut value);
            batch.put(&key_of(rollback), &value);
        })?;
        Ok(())
    }

    /// Removes the records of rollbacks that nobody needs to know of.
    ///
    /// # Errors
    /// `NoSpace`; `ReadOnly`; `Damaged`.
    pub(crate) fn forget_rollbacks(&self) -> Result<(), FsError> {
        if self.options.read_only {
            return Ok(());
        }
        let _one_at_a_time = self.settled.lock();
        // One that goes may have been the last reader of another.
        loop {
            let unneeded = self.engine.unneeded_rollbacks();
            if unneeded.is_empty() {
                return Ok(());
            }
            for rollback in &unneeded {
                let mut batch = Batch::new();
                batch.delete(&key_of(rollback));
                // Damage keeps the record: readers of the newest version do not look at it.
                if !self.engine.forget_rollback(rollback, &batch)? {
                    return Ok(());
                }
            }
        }
    }
}
