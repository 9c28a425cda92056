//! A commit in progress: it catches up with the base beside running work, and is alone in the base only for
//! the last step.
//!
//! # Invariants
//! 1. `changes` are those of the calls made at `reads.at` or later: when `finish` commits them, nothing that
//!    matters has changed since (the engine's check under the base's gate, `finish`).
//! 2. No call is replayed while the commit is alone in the base, unless more than `ROUNDS_BESIDE_MIN` replays
//!    beside running work were outrun and the last one was short (`ALONE_NANOS_MAX`). A replay that is never
//!    short enough ends in a conflict, after `ROUNDS_MAX` rounds (`tests::conflicts`).
//! 3. A commit in progress takes place at most once: after `finish` has answered `true`, or after an error of
//!    either step, the transaction has ended (`finish`, `is_failed`).

use std::collections::BTreeSet;
use std::sync::Arc;
use warpfire_env::sync::atomic::Ordering;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::fs::{Key, number_in};
use warpfire_meta::{Admit, Batch, CommitError, Storage, TxChanges};
use warpfire_units::Seq;

use super::begin::{Transaction, TxFs};
use super::changes::ChangesByOthers;
use super::commit::FileVersion;
use super::replay::ReplayedFs;
use crate::error::FsError;
use crate::fs::ROOT_INO;
use crate::invalidation::Invalidation;
use crate::op::{CallJournal, PureRead};
use crate::snapshot::SnapshotInfo;
use crate::stamp::{settle_batch, stamp};

/// Changes by others that are looked at one by one. Beyond these all calls are replayed.
const CHANGES_MAX: usize = 100_000;

/// Changes by others that a commit looks at while it is alone in the base.
const CHANGES_ALONE_MAX: usize = 64;

/// Keys of a read set up to which the first check takes place alone in the base: it is shorter than a
/// millisecond.
const READS_ALONE_MAX: usize = 4096;

/// Replays beside running work before one may take place alone.
const ROUNDS_BESIDE_MIN: u32 = 2;

/// Rounds before a commit ends in a conflict.
const ROUNDS_MAX: u32 = 32;

/// The longest time of a replay that is made again alone in the base.
const ALONE_NANOS_MAX: u64 = 10_000_000;

/// A commit in progress; [`Transaction::begin_commit`] makes it. Dropping it aborts the transaction.
pub struct PendingCommit<E: Storage> {
    tx: Transaction<E>,
    journal: CallJournal<TxFs<E>>,
    expected: Vec<FileVersion>,
    /// `None` once it has been committed, or if there is nothing to commit.
    changes: Option<TxChanges>,
    replayed: Option<ReplayedFs<E>>,
    /// Keys that others have changed since they were read, tolerably.
    tolerated: BTreeSet<Box<[u8]>>,
    /// Attempts that others have outrun.
    rounds: u32,
    /// How long the last replay took; without one, for ever.
    replay_nanos: u64,
    is_done: bool,
    /// `catch_up` has failed: there is nothing left to commit.
    is_failed: bool,
    /// The snapshot that the commit has made.
    snapshot: Option<SnapshotInfo>,
}

impl<E: Storage> Transaction<E> {
    /// Begins a commit in two steps, for a caller that has to keep others out during the last one. The
    /// transaction takes no more calls. Call [`PendingCommit::catch_up`] and then [`PendingCommit::finish`]
    /// until the latter answers `true`.
    ///
    /// # Errors
    /// `Ended`; `Damaged` if a change does not decode.
    pub fn begin_commit(self) -> Result<PendingCommit<E>, FsError> {
        let expected = std::mem::take(&mut *self.expected.lock());
        // Its calls wait for this gate, and find the transaction sealed.
        let mut guard = self.tx_fs.call_gate.enter_to_end();
        let journal = guard.journal().ok_or(FsError::Busy)?.take();
        // Reads alone were all made of one snapshot: there is nothing to check, and no call has to wait.
        let is_done = self.tx_fs.engine.is_unchanged() && expected.is_empty();
        let changes = match self.tx_fs.engine.is_unchanged() {
            true => None,
            false => Some(self.tx_fs.engine.seal()?),
        };
        if changes.is_none() {
            self.tx_fs.engine.end();
        }
        drop(guard);
        Ok(PendingCommit {
            tx: self,
            journal,
            expected,
            changes,
            replayed: None,
            tolerated: BTreeSet::new(),
            rounds: 0,
            replay_nanos: u64::MAX,
            is_done,
            is_failed: false,
            snapshot: None,
        })
    }
}

impl<E: Storage> PendingCommit<E> {
    /// Catches up with the base beside running work: checks all reads, and replays the calls if something
    /// that matters has changed.
    ///
    /// # Errors
    /// `Conflict` if a call would answer otherwise now.
    pub fn catch_up(&mut self) -> Result<(), FsError> {
        // A short check is made once, alone.
        if self.rounds == 0 && self.has_short_check() {
            return Ok(());
        }
        self.catch_up_now()
    }

    /// Makes a short check that `catch_up` has left to `finish`. For a caller that lets no other transaction
    /// commit from now until `finish`: then this check mostly finds all that others change, and `finish`
    /// answers `true` at once.
    ///
    /// # Errors
    /// As `catch_up`.
    pub fn catch_up_before_the_last_step(&mut self) -> Result<(), FsError> {
        if self.rounds > 0 || !self.has_short_check() {
            return Ok(());
        }
        self.catch_up_now()
    }

    /// Whether a check of all reads is shorter than a millisecond.
    fn has_short_check(&self) -> bool {
        self.changes.as_ref().is_none_or(|changes| {
            changes.reads.key_count() <= READS_ALONE_MAX && changes.reads.ranges().is_empty()
        })
    }

    fn catch_up_now(&mut self) -> Result<(), FsError> {
        let outcome = self.try_catch_up();
        self.is_failed |= outcome.is_err();
        self.tx.base.count_conflict(&outcome);
        outcome
    }

    fn try_catch_up(&mut self) -> Result<(), FsError> {
        if self.changes.is_none() {
            return Ok(());
        }
        let newest = self.tx.base.engine.snapshot();
        let at = self.tx.base.engine.seq(&newest);
        let changes = self.changes_by_others(at, CHANGES_MAX)?;
        if changes.are_tolerable() {
            self.go_on_over(changes, at);
            return Ok(());
        }
        drop(newest);
        self.replay()
    }

    /// The last step, to be made while the caller keeps others out: commits, unless others have changed
    /// something since `catch_up`. `false` then: the caller lets others in, and begins again with `catch_up`.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn finish(&mut self) -> Result<bool, FsError> {
        let outcome = self.try_finish();
        if !matches!(outcome, Ok(false)) {
            self.tx.tx_fs.engine.end();
            self.is_done = true;
            self.changes = None;
        }
        match &outcome {
            Ok(true) => _ = self.tx.base.transactions.commits.fetch_add(1, Ordering::Relaxed),
            other => self.tx.base.count_conflict(other),
        }
        outcome
    }

    fn try_finish(&mut self) -> Result<bool, FsError> {
        if self.is_failed {
            return Err(FsError::Ended);
        }
        if self.is_done {
            return Ok(true);
        }
        let base = Arc::clone(&self.tx.base);
        let _exclusive = base.call_gate.enter_exclusive();
        // Before the changes, because these may set the file to another version.
        for version in &self.expected {
            base.check_version(version)?;
        }
        if self.commit_now(true)? {
            return Ok(true);
        }
        let changes = self.changes_by_others(Seq::MAX, CHANGES_ALONE_MAX)?;
        if changes.are_tolerable() {
            self.go_on_over(changes, Seq(0));
            return self.commit_now(false);
        }
        self.rounds += 1;
        if self.rounds > ROUNDS_BESIDE_MIN && self.replay_nanos <= ALONE_NANOS_MAX {
            // A short replay, once more, over the changes of others. Nothing else changes, so
            // its reads need no check: the batches of the sync point hook commute with it (`fs.rs`,
            // invariant 3).
            self.replay()?;
            return self.commit_now(false);
        }
        if self.rounds == ROUNDS_MAX {
            let path = changes.first_key().map_or_else(|| "/".to_owned(), |key| self.path_of_key(key));
            return Err(FsError::Conflict { call: "keep up with changes", path: path.into() });
        }
        Ok(false)
    }

    /// Commits in the base; with `checked`, only if nothing that was read has changed. `false` if it has.
    fn commit_now(&mut self, checked: bool) -> Result<bool, FsError> {
        let base = Arc::clone(&self.tx.base);
        assert!(base.call_gate.is_entered(), "a transaction is committed alone in the base");
        let Some(changes) = &mut self.changes else { return Ok(true) };
        if checked && !changes.batch.is_empty() && !is_planted(PlantedBug::ReadsUnchecked) {
            match base.engine.commit(&Batch::new(), Some(&changes.reads), Admit::Reserve) {
                Ok(_) => {}
                Err(CommitError::Conflict) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        // Once: the commit takes place now, or fails.
        let check = self.tx.check.lock().take();
        if let Some(check) = check {
            check()?;
        }
        // Here and not when the calls were made: nobody may see these changes with an earlier time than one
        // that was shown without them. Once, because what follows ends the commit.
        let at = stamp(base.clock.now());
        settle_batch(&mut changes.batch, at)?;
        let tx_fs = self.replayed.as_ref().map_or(&*self.tx.tx_fs, |replayed| &replayed.fs);
        let wanted = self.tx.snapshot.lock();
        self.snapshot = base.commit_inside(tx_fs, changes, &self.tolerated, at, wanted.as_ref())?;
        Ok(true)
    }

    /// The changes by others of what the transaction has read, up to `now`.
    fn changes_by_others(&self, now: Seq, max: usize) -> Result<ChangesByOthers, FsError> {
        let Some(changes) = &self.changes else { return Ok(ChangesByOthers::default()) };
        let base = &self.tx.base;
        let Some(keys) = base.engine.changed_keys(&changes.reads, max)? else {
            return Ok(ChangesByOthers::unknown());
        };
        let tx_fs = self.replayed.as_ref().map_or(&*self.tx.tx_fs, |replayed| &replayed.fs);
        ChangesByOthers::of(keys, &changes.batch, |key, old, new| {
            Ok((tx_fs.engine.peek_below(key, old)?, base.engine.get(key, now, new)?))
        })
    }

    /// Notes that all changes by others up to `at` are tolerable.
    fn go_on_over(&mut self, mut changes: ChangesByOthers, at: Seq) {
        debug_assert!(changes.are_tolerable(), "a change that matters is replayed");
        self.tolerated.extend(changes.take_tolerable());
        if let Some(own) = &mut self.changes {
            own.reads.at = own.reads.at.max(at);
        }
    }

    /// Makes the calls of the journal again over the newest version. The reads of files that nobody has
    /// changed are not made again.
    fn replay(&mut self) -> Result<(), FsError> {
        let base = Arc::clone(&self.tx.base);
        let began = base.clock.monotonic_nanos();
        let next = self.tx.begin_replay()?;
        // After the snapshot of the replay was taken: so these are all changes that the replay sees.
        let changes = self.changes_by_others(next.fs.engine.at(), CHANGES_MAX)?;
        let own = self.own_files()?;
        let rolled_back = !self.tx.savepoints.lock().is_empty();
        let is_as_before =
            |read: PureRead| !rolled_back && !own.contains(&read.ino) && !changes.affects(read);
        // The earlier changes and nodes are freed before: both may be large, and the replay needs their room.
        self.replayed = None;
        self.tx.tx_fs.inode_cache.drop_many_tx_nodes();
        let earlier = self.changes.take().map(|changes| (changes.reads, changes.reads_charge));
        self.tx.make_calls_again(&self.journal, &next, &is_as_before)?;
        let mut again = next.fs.engine.seal()?;
        // The reads that were left out still count.
        if let Some((mut reads, charge)) = earlier {
            reads.go_on_with(&again.reads);
            again.reads = reads;
            again.reads_charge.join(charge);
        }
        self.changes = Some(again);
        self.tolerated.clear();
        self.replayed = Some(next);
        self.replay_nanos = base.clock.monotonic_nanos().saturating_sub(began);
        Ok(())
    }

    /// The snapshot that `finish` has made: see [`Transaction::snapshot_at_commit`].
    #[must_use]
    pub fn snapshot(&self) -> Option<&SnapshotInfo> {
        self.snapshot.as_ref()
    }

    /// The filesystem and the changes to commit; `None` if there is nothing to commit.
    pub(super) fn changes(&self) -> Option<(&TxFs<E>, &Batch)> {
        let tx_fs = self.replayed.as_ref().map_or(&*self.tx.tx_fs, |replayed| &replayed.fs);
        self.changes.as_ref().map(|changes| (tx_fs, &changes.batch))
    }

    /// The engine of the base.
    pub(super) fn base_engine(&self) -> &E {
        &self.tx.base.engine
    }

    /// Inode numbers of the files and directories that the transaction itself has changed.
    fn own_files(&self) -> Result<BTreeSet<u64>, FsError> {
        let mut files = BTreeSet::new();
        self.visit_changed(&mut |changed| match changed {
            Invalidation::File(ino) => _ = files.insert(ino),
            Invalidation::Name(..) => {}
            Invalidation::Everything => unreachable!("the changes of a transaction are known"),
        })?;
        Ok(files)
    }

    /// A path for a message about the key of a record.
    fn path_of_key(&self, key: &[u8]) -> String {
        let (ino, name) = match Key::decode(key) {
            Ok(Key::Dentry(volume, dir, name)) => (number_in(volume, dir), name),
            Ok(
                Key::Inode(volume, ino)
                | Key::Orphan(volume, ino)
                | Key::Xattr(volume, ino, _)
                | Key::Region(volume, ino, _),
            ) => (number_in(volume, ino), &b""[..]),
            Ok(
                Key::Pool(_)
                | Key::Counter(..)
                | Key::Snapshot(..)
                | Key::SnapshotName(..)
                | Key::SnapshotRule(..)
                | Key::Bookmark(..)
                | Key::Rollback(..)
                | Key::Volume(_),
            )
            | Err(_) => (ROOT_INO, &b""[..]),
        };
        self.tx.path_inside(ino, name)
    }
}

impl<E: Storage> std::fmt::Debug for PendingCommit<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "commit of {:?} in round {}", self.tx, self.rounds)
    }
}
