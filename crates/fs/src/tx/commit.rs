//! Commits of transactions: the changes of one become changes of the base.
//!
//! # Terms
//! A commit is *alone* in the base while it has entered the base's call gate exclusively. No call of the base
//! runs then; only the sync point hook may commit. A *read set* is the keys and ranges that the transaction
//! has read.
//!
//! # Invariants
//! 1. A commit is alone in the base from its last check to its last node (asserts in `check_version`,
//!    `commit_now`, `commit_inside` and `show_changes`). So its checks still hold when it commits.
//! 2. The engine takes all changes in one commit, or none of them. An error leaves the base as it was
//!    (`tests::transactions::a_change_of_what_was_read_is_a_conflict_that_is_named`, and `transaction_model`
//!    under power cuts).
//! 3. After the commit each node of the base equals its record
//!    (`tests::transactions::files_that_are_open_outside_show_what_was_committed`).
//! 4. A transaction commits at most once: `begin_commit` consumes it, and a sealed transaction takes no more
//!    calls.
//! 5. Every time that a commit writes, and that the program has not set, is the time of the commit
//!    (`tests::times`).
//!
//! ```text
//!   0. announce  by the mount, before it calls: the kernel caches no new answers     `visit_changed`
//!   1. seal      the transaction takes no more calls; its times are settled          `begin_commit`
//!   2. catch up  beside running work: check all reads. A short check is left to step 4,
//!                or made here while no other transaction commits                     `catch_up`
//!                  │ nothing that matters          │ something that matters
//!                  │ has changed                   │ has changed
//!                  │                               ▼
//!                  │    replay the calls over the newest version, in a new `TxFs`
//!                  │                 │ all answers are the same     │ an answer is another
//!                  ▼                 ▼                              ▼
//!   3. enter     the base's gate, exclusively: other calls wait    conflict: the base is unchanged
//!   4. check     the expected versions, and what others have changed since step 2    `finish`
//!                  │ nothing that matters          │ something: leave the gate, back to step 2;
//!                  ▼                               ▼ after some rounds, a short replay here
//!   5. apply     the changes                                                         `commit_inside`
//!   6. show      the base's nodes get the new states                                 `show_changes`
//!   7. leave     the base's gate
//!   8. drop      by the mount: the kernel drops cached answers that have changed
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use warpfire_env::sync::atomic::Ordering;

use warpfire_format::fs::{Attrs, Dentry, Inode, InodeTime, KeyBuf};
use warpfire_meta::{Admit, Batch, CommitError, ReadSet, Storage, TxChanges};
use warpfire_units::Seq;

use super::begin::{Transaction, TxFs};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{InodeCache, NodeRef, PendingTimes, RecordLocation};
use crate::op::TransactionCounts;
use crate::snapshot::{CommitSnapshot, SnapshotInfo};
use crate::stamp::settle_attrs;
use crate::volume::Claim;

/// The version of a file at some time, for [`Transaction::expect_version`].
#[derive(Clone, Debug)]
pub struct FileVersion {
    key: KeyBuf,
    at: Seq,
    path: Arc<str>,
    /// That of its filesystem.
    inode_cache: Weak<InodeCache>,
}

impl PartialEq for FileVersion {
    fn eq(&self, other: &FileVersion) -> bool {
        (&self.key, self.at, &self.path) == (&other.key, other.at, &other.path)
            && Weak::ptr_eq(&self.inode_cache, &other.inode_cache)
    }
}

impl Eq for FileVersion {}

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
        let key = state.record_key(node.ino()).ok_or(FsError::NotFound)?;
        let snapshot = self.engine.snapshot();
        let at = self.engine.seq(&snapshot);
        // The path needs the states of this node and of its ancestors, one at a time.
        drop(state);
        let path = self.path_of(node.ino(), b"").into();
        Ok(FileVersion { key, at, path, inode_cache: Arc::downgrade(&self.inode_cache) })
    }
}

impl<E: Storage> Transaction<E> {
    /// Lets the commit succeed only if the file is still at this version. A version of another pool, or of an
    /// earlier open of this one, makes the commit fail as `ForeignFile`.
    pub fn expect_version(&self, version: FileVersion) {
        self.expected.lock().push(version);
    }

    /// Commits: all changes become visible at once. A crash before the next sync keeps all of them or none.
    ///
    /// # Errors
    /// `Conflict` if a call would answer otherwise now, or a file is no longer at an expected version; the
    /// base is unchanged, and the program may begin again. `ForeignFile` for an expected version of another
    /// pool; `VolumeFull`, `NoSpace`, `ReadOnly`, `Damaged`: the base is unchanged too.
    pub fn commit(self) -> Result<(), FsError> {
        let base = Arc::clone(&self.base);
        let mut commit = self.begin_commit()?;
        loop {
            commit.catch_up()?;
            if commit.finish()? {
                break;
            }
        }
        drop(commit);
        // Removes files that lost their last name in the transaction and that nobody holds.
        base.reap_after_commit();
        Ok(())
    }

    /// As `commit`, and durable on return.
    ///
    /// # Errors
    /// As `commit`. `NoSpace` and `ReadOnly` also if the pool cannot make the commit durable: it is visible
    /// then, and a crash may lose it. After `NoSpace` the next sync makes it durable.
    pub fn commit_durable(self) -> Result<(), FsError> {
        let base = Arc::clone(&self.base);
        self.commit()?;
        Ok(base.engine.sync(Seq::MAX)?)
    }
}

impl<E: Storage> Fs<E> {
    /// Checks that a file is still at a version, by a commit that changes nothing and has read only its
    /// record.
    pub(super) fn check_version(&self, version: &FileVersion) -> Result<(), FsError> {
        assert!(self.call_gate.is_entered(), "a version is checked alone in the base");
        if !std::ptr::eq(version.inode_cache.as_ptr(), Arc::as_ptr(&self.inode_cache)) {
            return Err(FsError::ForeignFile);
        }
        let reads = ReadSet::new(version.at, [&version.key], []);
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

    /// Counts a conflict.
    pub(super) fn count_conflict<T>(&self, outcome: &Result<T, FsError>) {
        if let Err(FsError::Conflict { call, path }) = outcome {
            self.transactions.conflicts.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(call, path = %path, "transaction conflict");
        }
    }

    /// Commits the changes of a transaction. The caller is alone in the base, and has checked the reads.
    /// Others have changed the records of the keys in `tolerated` since the transaction read them. `at` is
    /// the time of the commit. Returns the snapshot of the changes, if one is wanted.
    pub(super) fn commit_inside(
        &self,
        tx_fs: &TxFs<E>,
        changes: &TxChanges,
        tolerated: &BTreeSet<Box<[u8]>>,
        at: InodeTime,
        snapshot: Option<&CommitSnapshot<E>>,
    ) -> Result<Option<SnapshotInfo>, FsError> {
        assert!(self.call_gate.is_entered(), "a transaction's changes are committed alone in the base");
        if changes.batch.is_empty() {
            return Ok(None);
        }
        let claims = self.claim_for_transaction(&changes.batch)?;
        let nodes = tx_fs.inode_cache.tx_nodes();
        // A directory's time that the transaction set replaces the pending times of the base's node. These
        // are taken first, so that no sync point commits them after the time that was set.
        let replaced: Vec<(NodeRef, PendingTimes)> = nodes
            .iter()
            .filter(|node| node.pending_times.get().was_set)
            .filter_map(|node| self.take_pending_times(node))
            .collect();
        let committed = match snapshot {
            Some(wanted) => self.commit_with_snapshot(wanted, &changes.batch, changes.admit).map(Some),
            None => match self.engine.commit(&changes.batch, None, changes.admit) {
                Ok(_) => Ok(None),
                Err(e) => Err(e.into()),
            },
        };
        let made = committed.inspect_err(|_| {
            // Nothing has changed: the times are pending again.
            for (dir, pending_times) in &replaced {
                self.deferred.return_times(dir, *pending_times);
            }
        })?;
        // The point of no return: from here on nothing may fail.
        claims.into_iter().for_each(Claim::keep);
        self.deferred.add_sums(changes.batch.sums());
        // Without tolerated changes, the nodes that the transaction has only read equal those of the base.
        let own: Option<BTreeSet<&[u8]>> =
            (!tolerated.is_empty()).then(|| changes.batch.iter().map(|op| op.key()).collect());
        self.show_changes(&nodes, own.as_ref(), tolerated, at);
        Ok(made)
    }

    /// Takes the pending times of the base's node of this directory, if it is in use.
    fn take_pending_times(&self, dir: &NodeRef) -> Option<(NodeRef, PendingTimes)> {
        let held = self.node_in_use(dir.ino())?;
        let pending_times = std::mem::take(&mut *held.pending_times.lock());
        Some((held, pending_times))
    }

    /// Brings the changes that the engine has committed to the nodes that the base holds. No call of the base
    /// runs, so none sees a part of them. `nodes` are all nodes of the transaction, changed or only read;
    /// with `own`, only those with a record in it were changed. `at` is the time of the commit.
    fn show_changes(
        &self,
        nodes: &[NodeRef],
        own: Option<&BTreeSet<&[u8]>>,
        tolerated: &BTreeSet<Box<[u8]>>,
        at: InodeTime,
    ) {
        assert!(self.call_gate.is_entered(), "nodes change under the commit's guard");
        for node in nodes {
            let ino = node.ino();
            let held = self.node_in_use(ino);
            let mut state = node.state.read().clone();
            settle_attrs(&mut state.attrs, at);
            let pending_times = node.pending_times.get();
            let key = state.record_key(ino);
            let is_changed = match (own, &key) {
                (Some(own), Some(key)) => own.contains(&**key),
                _ => true,
            };
            if let Some(key) = key.filter(|key| is_changed && tolerated.contains(&**key)) {
                self.take_over_tolerated(&key, held.as_ref(), &mut state.attrs);
            }
            match &held {
                Some(_) if !is_changed => {}
                Some(held) => {
                    *held.state.write() = state.clone();
                    let shown = held.pending_times.get().shown;
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
            if pending_times.shown.is_some() && pending_times.pending && !state.is_unlinked() {
                // A record that cannot be read takes no time; the next read of it reports the damage.
                if let Some(dir) = held.or_else(|| self.directory(ino).ok().flatten()) {
                    self.defer_times(&dir, at);
                }
            }
        }
    }

    /// The transaction has edited a record that others have edited too, tolerably. The record now has both
    /// edits, and the attributes of its node become those of the record.
    fn take_over_tolerated(&self, key: &[u8], held: Option<&NodeRef>, attrs: &mut Attrs) {
        let mut value = Vec::new();
        let read = self.get(key, &mut value).ok().filter(|found| *found).and_then(|_| {
            match Dentry::decode(&value) {
                Ok(Dentry::Embedded(inode)) => Some(inode.attrs),
                _ => Inode::decode(&value).ok().map(|inode| inode.attrs),
            }
        });
        // A record that cannot be read back: the node keeps what others have changed.
        let others = held.map(|held| held.state.read().attrs);
        *attrs = read.unwrap_or(Attrs { atime: others.map_or(attrs.atime, |a| a.atime), ..*attrs });
    }
}
