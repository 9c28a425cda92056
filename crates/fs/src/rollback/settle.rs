//! Settling a rollback: the keys that it hides are written again, so that nobody needs to know of it.
//!
//! # Invariants
//! 1. To write a key again changes no answer: the value is the one that readers see. The commit of a page
//!    fails if a key has changed since it was read, and then its keys are read again while no call runs.
//! 2. All rollbacks are settled in one pass and end in one commit: each key that one of them hides from
//!    anybody is written again after the newest of them. So the cost does not follow their number. A pass can
//!    be broken off and cut anywhere. Another rollback, and a crash, begin it anew, and it writes the same
//!    keys again (`tests::settling::a_rollback_that_is_not_settled_goes_on_after_a_crash`,
//!    `tests::settling::rollbacks_to_and_fro_are_settled_in_one_pass`).
//! 3. While a rollback is under way, settling gives way to it, so that it waits neither for the processor nor
//!    for locks or the device (`tests::settling::settling_gives_way_to_a_rollback`). Settling cannot be put
//!    off for ever: a rollback that finds too many others unsettled settles them itself.
//! 4. A rollback that has ended is forgotten once no snapshot from before its end and after the rollback is
//!    left (`SnapshotStore::unneeded_rollbacks`).

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use warpfire_env::sync::Mutex;
use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::fs::{Key, KeyBuf, RolledBack, VolumeId, number_in};
use warpfire_meta::{
    Admit, Batch, CommitError, KeyRange, ReadSet, RollbackRecord, Schema, SeqRange, SnapshotStore, Storage,
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

/// What settling knows, in this opening.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    part: Mutex<SettledPart>,
    /// Rollbacks that are under way.
    under_way: AtomicU32,
}

/// A rollback that is under way: others do not settle until it is dropped.
pub(super) struct UnderWay<'s>(&'s Settling);

impl Settling {
    pub(super) fn rollback_begins(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Relaxed);
        UnderWay(self)
    }

    fn gives_way(&self) -> bool {
        self.under_way.load(Relaxed) > 0
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

/// How far a pass has come.
#[derive(Debug, Default)]
struct SettledPart {
    /// The seq of the newest rollback when it began.
    upto: Seq,
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
    /// Settles rollbacks until all are, or `goes_on` returns `false`, which is called after each commit, or
    /// until another thread calls [`roll_back`](Fs::roll_back). Then, and after an error, a later call goes
    /// on. Without a rollback it looks at nothing.
    ///
    /// # Errors
    /// `NoSpace` in a full pool; `ReadOnly`; `Damaged`.
    pub fn settle_rollbacks(&self, goes_on: &mut dyn FnMut() -> bool) -> Result<(), FsError> {
        if self.options.read_only {
            return Ok(());
        }
        let goes_on = &mut || goes_on() && !self.settling.gives_way();
        if self.settling.gives_way() || !self.settle(goes_on)? {
            return Ok(());
        }
        self.forget_rollbacks()
    }

    /// The rollbacks that are not settled, from the oldest on.
    fn unsettled_rollbacks(&self) -> Vec<RollbackRecord> {
        let mut all = self.engine.rollbacks();
        let volume = self.volume.0.to_be_bytes();
        all.retain(|rollback| rollback.domain == volume && rollback.ended_at.is_none());
        all
    }

    /// Settles all rollbacks, if there are so many.
    pub(super) fn settle_if_many(&self, count: usize) -> Result<(), FsError> {
        while self.unsettled_rollbacks().len() >= count {
            self.settle(&mut || true)?;
        }
        Ok(())
    }

    /// Writes the keys again that rollbacks hide, and ends these. `false`: `goes_on` has stopped it, or
    /// another rollback was made in between.
    fn settle(&self, goes_on: &mut dyn FnMut() -> bool) -> Result<bool, FsError> {
        let mut settled = self.settling.part.lock();
        let rollbacks = self.unsettled_rollbacks();
        let Some(newest) = rollbacks.last() else { return Ok(true) };
        // Of each, because each ends here, also one that a later one hides.
        let afters = rollbacks.iter().map(|rollback| self.engine.seqs_to_settle(rollback).after);
        let commits = SeqRange { after: afters.fold(newest.to, Seq::min), upto: newest.at };
        let (start, end) = volume_keys(self.volume);
        if settled.upto != newest.at {
            *settled = SettledPart { upto: newest.at, next: start.to_vec(), unsynced_bytes: 0 };
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
                settled.unsynced_bytes += match self.write_again(page) {
                    // Nobody else may clean: a caller that deletes cleans for itself. No call waits here, as
                    // one in the gate would wait for what settling gains.
                    Err(FsError::NoSpace) => {
                        self.engine.find_room(PAGE_BYTES as u64, Admit::Settling);
                        self.write_again(page)?
                    }
                    written => written?,
                };
                if settled.unsynced_bytes >= SYNC_BYTES {
                    self.engine.sync(Seq::MAX)?;
                    settled.unsynced_bytes = 0;
                }
                if let Some(last) = page.last() {
                    settled.next = [&last[..], &[0]].concat();
                }
                // A later rollback hides the keys that were written before it.
                if !goes_on() || self.unsettled_rollbacks() != rollbacks {
                    return Ok(false);
                }
            }
            let Some(next) = next else { break };
            settled.next = next;
        }
        self.end(&rollbacks)
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
        // Without a search for room, which under a pin frees nothing.
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
        if !self.engine.has_room(batch.bytes() as u64, Admit::Settling) {
            return Err(FsError::NoSpace);
        }
        // There is room, so this does not wait for any either.
        match self.engine.commit(&batch, Some(&ReadSet::new(at, keys, [])), Admit::Reserve) {
            Ok(_) => Ok(batch.bytes()),
            Err(CommitError::Conflict) => Err(FsError::Conflict { call: "settle", path: "/".into() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends rollbacks of which every hidden key was written again. `false`: there is a later one, which may
    /// hide the new versions.
    fn end(&self, rollbacks: &[RollbackRecord]) -> Result<bool, FsError> {
        // No rollback is made in here.
        let _guard = self.enter_unrecorded();
        if self.unsettled_rollbacks() != rollbacks {
            return Ok(false);
        }
        // From the reserve: until they have ended, deleting the snapshot that one went back to frees nothing.
        self.engine.commit_at_newest(Admit::Reserve, &mut |seq, batch| {
            for rollback in rollbacks {
                let mut value = Vec::new();
                RolledBack { to: rollback.to, ended_at: Some(seq) }.encode(&mut value);
                batch.put(&key_of(rollback), &value);
            }
        })?;
        Ok(true)
    }

    /// Removes the records of rollbacks that nobody needs to know of.
    ///
    /// # Errors
    /// `NoSpace`; `ReadOnly`; `Damaged`.
    pub(crate) fn forget_rollbacks(&self) -> Result<(), FsError> {
        if self.options.read_only {
            return Ok(());
        }
        let _one_at_a_time = self.settling.part.lock();
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
            self.engine.sync(Seq::MAX)?;
        }
    }
}
