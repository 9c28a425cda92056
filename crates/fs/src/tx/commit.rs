//! Commits of transactions: the changes of one become changes of the base.
//!
//! # Terms
//! A commit is *alone* in the base while it has entered the base's call gate exclusively. No call of the base
//! runs then; only the sync point hook may commit. A *read set* is the keys and ranges that the transaction
//! has read.
//!
//! # Invariants
//! 1. A commit is alone in the base from its first check to its last node (asserts in `check_version`,
//!    `commit_changes`, `commit_inside` and `show_changes`). So its checks still hold when it commits.
//! 2. The engine takes all changes in one commit, or none of them. An error leaves the base as it was
//!    (`tests::transactions::a_change_of_what_was_read_is_a_conflict_that_is_named`, and `transaction_model`
//!    under power cuts).
//! 3. After the commit each node of the base equals its record
//!    (`tests::transactions::files_that_are_open_outside_show_what_was_committed`).
//! 4. A transaction commits at most once: `commit` consumes it, and a sealed transaction takes no more calls.
//!
//! ```text
//!   0. announce  by the mount, before it calls: the kernel caches no new answers         `visit_changed`
//!   1. enter     the transaction's gate, then the base's, exclusively: other calls wait  `try_commit`
//!   2. validate  the expected versions                                                   `check_version`
//!   3. apply     seal the transaction; commit its changes with its read set              `commit_inside`
//!                  │ nothing that was read         │ something that was read
//!                  │ has changed                   │ has changed
//!                  │                               ▼
//!                  │    4. replay  the calls over the newest version, in a new `TxFs`    `replay`
//!                  │                 │ all answers are the same     │ an answer is another
//!                  │                 ▼                              ▼
//!                  │               apply the replay's changes     conflict: the base is unchanged
//!                  ▼                 ▼
//!   5. show      the base's nodes get the new states                                     `show_changes`
//!   6. leave     the base's gate, then the transaction's
//!   7. drop      by the mount: the kernel drops cached answers that have changed
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::fs::KeyBuf;
use warpfire_meta::{Admit, Batch, CommitError, ReadSet, Storage, TxChanges};
use warpfire_units::Seq;

use super::begin::{Transaction, TxFs};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{NodeRef, PendingTimes, RecordLocation};
use crate::op::{CallJournal, TransactionCounts};

/// The version of a file at some time, for [`Transaction::expect_version`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileVersion {
    key: KeyBuf,
    at: Seq,
    path: Arc<str>,
}

impl<E: Storage> Fs<E> {
    /// Counts of the ways in which transactions have ended.
    #[must_use]
    pub fn transaction_counts(&self) -> TransactionCounts {
        self.transactions.read()
    }

    /// The file's version now. Any change of its content or attributes makes another version, and so does a
    /// renewed access time. A name made in a directory does not change the directory's version.
    ///
    /// # Errors
    /// `NotFound` if the file is removed.
    pub fn version(&self, node: &NodeRef) -> Result<FileVersion, FsError> {
        let _guard = self.enter_unrecorded();
        // A call changes the record only while it holds the node's state. So no change is half done here, and
        // the snapshot has all changes so far.
        let state = node.state.read();
        let key = state.record_key(self.volume, node.ino()).ok_or(FsError::NotFound)?;
        let snapshot = self.engine.snapshot();
        let at = self.engine.seq(&snapshot);
        // The path needs the states of this node and of its ancestors, one at a time.
        drop(state);
        Ok(FileVersion { key, at, path: self.path_of(node.ino(), b"").into() })
    }
}

impl<E: Storage> Transaction<E> {
    /// Lets the commit succeed only if the file is still at this version.
    pub fn expect_version(&self, version: FileVersion) {
        self.expected.lock().push(version);
    }

    /// Commits: all changes become visible at once. A crash before the next sync keeps all of them or none.
    ///
    /// # Errors
    /// `Conflict` if a call would answer otherwise now, or a file is no longer at an expected version; the
    /// base is unchanged, and the program may begin again. `NoSpace`, `ReadOnly`, `Damaged`: the base is
    /// unchanged too.
    pub fn commit(self) -> Result<(), FsError> {
        let outcome = self.try_commit();
        let counters = &self.base.transactions;
        match &outcome {
            Ok(()) => _ = counters.commits.fetch_add(1, Ordering::Relaxed),
            Err(FsError::Conflict { call, path }) => {
                counters.conflicts.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(call, path = %path, "transaction conflict");
            }
            Err(_) => {}
        }
        outcome?;
        // Removes files that lost their last name in the transaction and that nobody holds. The commit has
        // succeeded, so an error here is not its answer: the next call that reaps tries again.
        let _ = self.base.reap();
        Ok(())
    }

    /// As `commit`, and durable on return.
    ///
    /// # Errors
    /// As `commit`. `ReadOnly` also if the pool cannot make the commit durable: it is visible then, and a
    /// crash may lose it.
    pub fn commit_durable(self) -> Result<(), FsError> {
        let base = Arc::clone(&self.base);
        self.commit()?;
        Ok(base.engine.sync(Seq::MAX)?)
    }

    fn try_commit(&self) -> Result<(), FsError> {
        // 1. The transaction's gate comes first: calls of a transaction enter the base's gate under it too,
        //    for inode numbers. Its calls wait from here on, so the journal and the changes stay as they are.
        let mut guard = self.tx_fs.call_gate.enter();
        let journal = guard.journal().ok_or(FsError::Busy)?;
        let expected = self.expected.lock();
        if self.tx_fs.engine.is_unchanged() && expected.is_empty() {
            // Reads alone were all made of one snapshot: there is nothing to check, and no call has to wait.
            self.tx_fs.engine.end();
            return Ok(());
        }
        let _exclusive = self.base.call_gate.enter_exclusive();
        // 2. Before the changes, because these may set the file to another version.
        for version in expected.iter() {
            self.base.check_version(version)?;
        }
        // 3. to 5.
        if !self.tx_fs.engine.is_unchanged() {
            self.commit_changes(journal)?;
        }
        // Under the guard: a call that waited for it finds the transaction ended.
        self.tx_fs.engine.end();
        Ok(())
    }

    fn commit_changes(&self, journal: &CallJournal<TxFs<E>>) -> Result<(), FsError> {
        assert!(self.base.call_gate.is_entered(), "a transaction is committed alone in the base");
        assert!(self.tx_fs.call_gate.is_entered(), "no call of the transaction runs while it commits");
        // Sealing takes the changes and the read set out. The transaction takes no further calls, also if the
        // commit fails.
        let changes = self.tx_fs.engine.seal()?;
        let checked = if is_planted(PlantedBug::ReadsUnchecked) { None } else { Some(&changes.reads) };
        match self.base.commit_inside(&self.tx_fs, &changes, checked) {
            Err(CommitError::Conflict) => {}
            other => return Ok(other?),
        }
        // Something that was read has changed. That matters only if a call would answer otherwise now, so the
        // calls are made again. The first run's changes are freed before: both may be large.
        drop(changes);
        let replayed = self.replay(journal)?;
        let changes = replayed.fs.engine.seal()?;
        // Nothing that the replay has read can have changed since, so its reads are not checked: this commit
        // is alone in the base, and the batches of the sync point hook commute with it (`fs.rs`, invariant
        // 3).
        Ok(self.base.commit_inside(&replayed.fs, &changes, None)?)
    }
}

impl<E: Storage> Fs<E> {
    /// Checks that a file is still at a version, by a commit that changes nothing and has read only its
    /// record.
    fn check_version(&self, version: &FileVersion) -> Result<(), FsError> {
        assert!(self.call_gate.is_entered(), "a version is checked alone in the base");
        let reads =
            ReadSet { at: version.at, keys: [&version.key].into_iter().collect(), ranges: Vec::new() };
        let conflict = || FsError::Conflict { call: "expect a version", path: Arc::clone(&version.path) };
        // Compaction drops an old deletion, and the commit below would not see it.
        if !self.get(&version.key, &mut Vec::new())? {
            return Err(conflict());
        }
        match self.engine.commit(&Batch::new(), Some(&reads), Admit::Reserve) {
            Ok(_) => Ok(()),
            Err(CommitError::Conflict) => Err(conflict()),
            Err(e) => Err(e.into()),
        }
    }

    /// Commits the changes of a transaction, if nothing in `reads` has changed; without `reads`, always. The
    /// caller is alone in the base.
    fn commit_inside(
        &self,
        tx_fs: &TxFs<E>,
        changes: &TxChanges,
        reads: Option<&ReadSet>,
    ) -> Result<(), CommitError> {
        assert!(self.call_gate.is_entered(), "a transaction's changes are committed alone in the base");
        if changes.batch.is_empty() {
            return Ok(());
        }
        let nodes = tx_fs.inode_cache.tx_nodes();
        // A directory's time that the transaction set replaces the pending times of the base's node. These
        // are taken first, so that no sync point commits them after the time that was set.
        let replaced: Vec<(NodeRef, PendingTimes)> = nodes
            .iter()
            .filter(|node| node.pending_times.lock().was_set)
            .filter_map(|node| self.take_pending_times(node))
            .collect();
        if let Err(e) = self.engine.commit(&changes.batch, reads, changes.admit) {
            // Nothing has changed: the times are pending again.
            replaced
                .into_iter()
                .for_each(|(dir, pending_times)| self.deferred.return_times(&dir, pending_times));
            return Err(e);
        }
        // The point of no return: from here on nothing may fail.
        self.deferred.add_sums(changes.batch.sums());
        self.show_changes(&nodes);
        Ok(())
    }

    /// Takes the pending times of the base's node of this directory, if it is in use.
    fn take_pending_times(&self, dir: &NodeRef) -> Option<(NodeRef, PendingTimes)> {
        let held = self.node_in_use(dir.ino())?;
        let pending_times = std::mem::take(&mut *held.pending_times.lock());
        Some((held, pending_times))
    }

    /// Brings the changes that the engine has committed to the nodes that the base holds. No call of the base
    /// runs, so none sees a part of them. `nodes` are all nodes of the transaction, changed or only read.
    fn show_changes(&self, nodes: &[NodeRef]) {
        assert!(self.call_gate.is_entered(), "nodes change under the commit's guard");
        for node in nodes {
            let ino = node.ino();
            let held = self.node_in_use(ino);
            let state = node.state.read();
            let pending_times = *node.pending_times.lock();
            match &held {
                Some(held) => {
                    *held.state.write() = state.clone();
                    let shown = held.pending_times.lock().shown;
                    // The record may now have an earlier time than callers of the base have seen: the later
                    // one is committed again at the next sync point.
                    if shown.is_some_and(|shown| shown > state.attrs.ctime) && !state.is_unlinked() {
                        self.deferred.emit_again(held);
                    }
                }
                // The base does not hold the file, and it has no name: `reap` removes it.
                None if matches!(state.location, RecordLocation::Orphan { .. }) => {
                    self.inode_cache.return_unheld_orphan(ino)
                }
                None if !state.is_unlinked() => self.inode_cache.remember_history(ino, state.history),
                None => {}
            }
            // The transaction changed names in the directory: its time is pending in the base, as after any
            // other call.
            if let Some(at) = pending_times.shown.filter(|_| pending_times.pending && !state.is_unlinked()) {
                // A record that cannot be read takes no time; the next read of it reports the damage.
                if let Some(dir) = held.or_else(|| self.directory(ino).ok().flatten()) {
                    self.defer_times(&dir, at);
                }
            }
        }
    }
}
