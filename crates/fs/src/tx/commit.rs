//! Making a transaction's changes the base's.
//!
//! # Invariants
//! 1. A commit is alone in the base from its first check to its last node: `commit_changes` asserts it. So what was
//!    checked is still so when the changes are committed.
//! 2. The engine takes all changes in one commit, or none of them: an error leaves the base as it was
//!    (the test `a_change_of_what_was_read_is_a_conflict_that_is_named`).
//! 3. After the commit each node of the base equals its record: `show_changes`, and the test
//!    `files_that_are_open_outside_show_what_was_committed`.
//!
//! ```text
//!   alone ──► expected versions hold? ──► commit with what was read ──► show_changes ──► committed
//!                     │                        └─ conflict ─► replay the calls ─► commit ─┘
//!                     └──────────► Conflict ◄───────────────────── answered otherwise
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpfire_format::fs::KeyBuf;
use warpfire_meta::{Admit, Batch, CommitError, ReadSet, Storage, TxChanges};
use warpfire_units::Seq;

use super::begin::{Transaction, TxFs};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{NodeRef, PendingTimes, RecordLocation};
use crate::op::{CallJournal, TransactionCounts};

/// How a file was at some time: what [`Transaction::expect_version`] compares with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileVersion {
    key: KeyBuf,
    at: Seq,
    path: Arc<str>,
}

impl<E: Storage> Fs<E> {
    /// How transactions have ended.
    #[must_use]
    pub fn transaction_counts(&self) -> TransactionCounts {
        self.transactions.read()
    }

    /// How a file is now: any change of its content or attributes makes it another version, a renewed access
    /// time too. What was made in a directory does not.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    pub fn version(&self, node: &NodeRef) -> Result<FileVersion, FsError> {
        let _guard = self.enter_unrecorded();
        // A call changes the record only while it holds the state, so the snapshot has all changes of it.
        let state = node.state.read();
        let key = state.record_key(self.volume, node.ino()).ok_or(FsError::NotFound)?;
        let snapshot = self.engine.snapshot();
        Ok(FileVersion { key, at: self.engine.seq(&snapshot), path: self.path_of(node.ino(), b"").into() })
    }
}

impl<E: Storage> Transaction<E> {
    /// Lets the commit succeed only if the file is still at this version.
    pub fn expect_version(&self, version: FileVersion) {
        self.expected.lock().push(version);
    }

    /// Commits: all that was done inside becomes visible at once, and stays or is lost as a whole if a crash
    /// comes before the next sync.
    ///
    /// # Errors
    /// `Conflict` if a call would have answered otherwise now, or an expected version is past: nothing has
    /// changed then; begin again. `NoSpace`, `ReadOnly`, `Damaged`: nothing has changed either.
    pub fn commit(self) -> Result<(), FsError> {
        let outcome = self.try_commit();
        let counters = &self.base.transactions;
        match &outcome {
            Ok(()) => _ = counters.commits.fetch_add(1, Ordering::Relaxed),
            Err(FsError::Conflict { .. }) => _ = counters.conflicts.fetch_add(1, Ordering::Relaxed),
            Err(_) => {}
        }
        outcome?;
        // Files that lost their last name inside; what fails is tried again later.
        let _ = self.base.reap();
        Ok(())
    }

    /// As `commit`, and durable on return.
    ///
    /// # Errors
    /// As `commit`. `ReadOnly` too if the pool could not make it durable: then it is visible and may be lost.
    pub fn commit_durable(self) -> Result<(), FsError> {
        let base = Arc::clone(&self.base);
        self.commit()?;
        Ok(base.engine.sync(Seq::MAX)?)
    }

    fn try_commit(&self) -> Result<(), FsError> {
        let mut guard = self.tx_fs.call_gate.enter();
        let journal = guard.journal().ok_or(FsError::Busy)?;
        let expected = self.expected.lock();
        if self.tx_fs.engine.is_unchanged() && expected.is_empty() {
            self.tx_fs.engine.end();
            return Ok(());
        }
        let _exclusive = self.base.call_gate.enter_exclusive();
        for version in expected.iter() {
            self.base.check_version(version)?;
        }
        if !self.tx_fs.engine.is_unchanged() {
            self.commit_changes(journal)?;
        }
        // Under the guard: a call that comes after the commit finds the transaction ended.
        self.tx_fs.engine.end();
        Ok(())
    }

    fn commit_changes(&self, journal: &CallJournal<TxFs<E>>) -> Result<(), FsError> {
        assert!(self.base.call_gate.is_entered(), "a transaction is committed alone in the base");
        let changes = self.tx_fs.engine.seal()?;
        let checked = if cfg!(feature = "planted-bug-reads-unchecked") { None } else { Some(&changes.reads) };
        match self.base.commit_inside(&self.tx_fs, &changes, checked) {
            Err(CommitError::Conflict) => {}
            other => return Ok(other?),
        }
        drop(changes);
        let replayed = self.replay(journal)?;
        let changes = replayed.fs.engine.seal()?;
        // Nothing that the replay read has changed since, so reads are not checked again: this commit is
        // alone in the base, and what the cut hook commits meanwhile commutes with it (`fs.rs`, invariant 3).
        Ok(self.base.commit_inside(&replayed.fs, &changes, None)?)
    }
}

impl<E: Storage> Fs<E> {
    fn check_version(&self, version: &FileVersion) -> Result<(), FsError> {
        let reads =
            ReadSet { at: version.at, keys: [&version.key].into_iter().collect(), ranges: Vec::new() };
        let conflict = || FsError::Conflict { call: "expect a version", path: Arc::clone(&version.path) };
        // A deletion leaves no trace once it is old.
        if !self.get(&version.key, &mut Vec::new())? {
            return Err(conflict());
        }
        match self.engine.commit(&Batch::new(), Some(&reads), Admit::Reserve) {
            Ok(_) => Ok(()),
            Err(CommitError::Conflict) => Err(conflict()),
            Err(e) => Err(e.into()),
        }
    }

    /// Commits what was done inside, if nothing of `reads` has changed. The caller is alone in the base.
    fn commit_inside(
        &self,
        tx_fs: &TxFs<E>,
        changes: &TxChanges,
        reads: Option<&ReadSet>,
    ) -> Result<(), CommitError> {
        if changes.batch.is_empty() {
            return Ok(());
        }
        let nodes = tx_fs.inode_cache.tx_nodes();
        // A directory's time that the transaction set replaces the times that wait in the base for the next
        // cut. Those are taken first, so that no cut commits them after the time that was set.
        let replaced: Vec<(NodeRef, PendingTimes)> = nodes
            .iter()
            .filter(|node| node.pending_times.lock().was_set)
            .filter_map(|node| self.take_pending_times(node))
            .collect();
        if let Err(e) = self.engine.commit(&changes.batch, reads, changes.admit) {
            // Nothing has changed: the times wait again.
            replaced
                .into_iter()
                .for_each(|(dir, pending_times)| self.deferred.return_times(&dir, pending_times));
            return Err(e);
        }
        self.deferred.add_sums(changes.batch.sums());
        self.show_changes(&nodes);
        Ok(())
    }

    /// Takes what waits to be emitted of the base's node of this directory.
    fn take_pending_times(&self, dir: &NodeRef) -> Option<(NodeRef, PendingTimes)> {
        let held = self.node_in_use(dir.ino())?;
        let pending_times = std::mem::take(&mut *held.pending_times.lock());
        Some((held, pending_times))
    }

    /// The engine has committed the changes: brings them to the nodes that the base holds. No call of the base
    /// runs, so none sees a part of them.
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
                    // The record may now have an earlier time than the base has shown to its callers: the
                    // later one is committed again with the next cut.
                    if shown.is_some_and(|shown| shown > state.attrs.ctime) && !state.is_unlinked() {
                        self.deferred.emit_again(held);
                    }
                }
                // Nobody outside holds the file, and it has no name: `reap` removes it.
                None if matches!(state.location, RecordLocation::Orphan { .. }) => {
                    self.inode_cache.return_unheld_orphan(ino)
                }
                None if !state.is_unlinked() => self.inode_cache.remember_history(ino, state.history),
                None => {}
            }
            // Names in the directory changed inside: its time waits in the base as after any other call.
            if let Some(at) = pending_times.shown.filter(|_| pending_times.pending && !state.is_unlinked()) {
                // A record that cannot be read takes no time; the next read of it reports the damage.
                if let Some(dir) = held.or_else(|| self.directory(ino).ok().flatten()) {
                    self.defer_times(&dir, at);
                }
            }
        }
    }
}
