//! Replay: the calls of a transaction are made again over the newest version of the base.
//!
//! # Invariants
//! 1. Each call of a replay answers as it did in the transaction, or the replay ends in a conflict that names
//!    the first call that does not: digests are compared after each call
//!    (`tests::transactions::a_change_of_what_was_read_is_a_conflict_that_is_named`).
//! 2. A read is left out only if nobody has changed its file since it was made, neither others nor the
//!    transaction (`PendingCommit::replay`). A transaction that has made savepoints makes every call again:
//!    what it has undone left no trace in its changes.
//! 3. Others may change the base during a replay, because the replay has a snapshot of its own. What they
//!    change is found before the commit (`pending.rs`, invariant 1).
//!
//! ```text
//!   journal      call 1, digest    call 2, digest    call 3, digest
//!                   │                 │                 │
//!   new TxFs     call 1 ── same? ─ call 2 ── same? ─ call 3 ── same? ──► its changes are committed
//!                             │no              │no              │no
//!                             └────────────────┴────────────────┴──────► conflict: the call and its path
//! ```

use std::sync::Arc;
use warpfire_env::sync::atomic::Ordering;

use warpfire_format::fs::{Inode, InodeContent, number_from, volume_of};
use warpfire_meta::{Storage, TxStore};

use super::begin::{Transaction, TxFs};
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::inode_key;
use crate::limits::DEPTH_MAX;
use crate::node::{NodeRef, RecordLocation};
use crate::op::{CallJournal, PureRead, ReplayScene};
use crate::schema::FsSchema;

/// The filesystem that a replay has made its calls in. Dropping it ends its transaction.
pub(super) struct ReplayedFs<E: Storage> {
    pub(super) fs: TxFs<E>,
}

impl<E: Storage> Drop for ReplayedFs<E> {
    fn drop(&mut self) {
        self.fs.engine.end();
        // Nodes and inode cache refer to each other: see `Transaction`'s drop.
        self.fs.inode_cache.drop_tx_nodes();
    }
}

impl<E: Storage> Transaction<E> {
    /// Begins a replay over the newest version.
    ///
    /// # Errors
    /// Those of `tx_fs`.
    pub(super) fn begin_replay(&self) -> Result<ReplayedFs<E>, FsError> {
        let account = &self.tx_fs.memory;
        let store = || TxStore::begin(Arc::clone(&self.base.engine), FsSchema, account);
        // The replay draws the same inode numbers: the program has seen them.
        let journal = CallJournal::of_replay(account);
        let fs = self.base.tx_fs(store, self.tx_fs.numbers.drawn(), journal, account);
        Ok(ReplayedFs { fs })
    }

    /// Makes the calls of the journal again, except for reads that answer as before.
    ///
    /// # Errors
    /// `Conflict` if a call answers otherwise now, or the journal is incomplete. `Memory`.
    pub(super) fn make_calls_again(
        &self,
        journal: &CallJournal<TxFs<E>>,
        replayed: &ReplayedFs<E>,
        is_as_before: &dyn Fn(PureRead) -> bool,
    ) -> Result<(), FsError> {
        self.base.transactions.replays.fetch_add(1, Ordering::Relaxed);
        let conflict = |call, path: String| FsError::Conflict { call, path: path.into() };
        // Without all calls nobody knows whether an answer would change. A change of anything that was read
        // is a conflict then, if it matters.
        let Some(entries) = journal.entries() else { return Err(conflict("read", "/".into())) };
        tracing::debug!(calls = entries.len(), "transaction replay");
        let fs = &replayed.fs;
        let mut scene = ReplayScene::default();
        scene.add(fs.root());
        for entry in entries {
            if entry.is_unseen {
                continue;
            }
            // The node itself must be there: if no call answers it, the call that did so before conflicts.
            if entry
                .operation
                .pure_read()
                .is_some_and(|read| is_as_before(read) && scene.node(read.ino).is_ok())
            {
                continue;
            }
            // The call gets the time that it had, so times that it sets and returns are the same.
            fs.call_gate.set_next_time(entry.at);
            // The call's error is part of its digest. An error before the call, of a node that the scene
            // lacks, leaves no digest: that is a conflict too.
            let outcome = entry.operation.replay(fs, &mut scene);
            let mut guard = fs.call_gate.enter();
            let digest = guard.journal().and_then(CallJournal::take_last_digest);
            // A digest of a yanked value has its length only, so the scene notes whether the bytes differ.
            if digest != Some(entry.digest) || scene.has_other_bytes() {
                // The first time there was room: others have it now. That is no conflict with their changes.
                if let Err(e @ FsError::Memory(_)) = outcome {
                    return Err(e);
                }
                // The path is the one in the transaction's own filesystem: there the program knows it.
                let (ino, name) = entry.operation.subject();
                return Err(conflict(entry.operation.name(), self.path_inside(ino, name)));
            }
        }
        Ok(())
    }
}

impl<E: Storage> Transaction<E> {
    /// A path for messages, as [`Fs::path_of`], as it is inside the transaction. A node that the transaction
    /// has dropped is clean, so its directory and name are those of the snapshot, or of the base.
    pub(super) fn path_inside(&self, ino: u64, name: &[u8]) -> String {
        let of_record = |ino| {
            let mut value = Vec::new();
            let found = self.tx_fs.engine.peek_below(&inode_key(ino), &mut value);
            match Inode::decode(&value).ok().filter(|_| matches!(found, Ok(true)))?.content {
                InodeContent::Directory(parent, name) => {
                    Some((number_from(volume_of(ino), parent), name.to_vec()))
                }
                _ => None,
            }
        };
        self.tx_fs.path_through(ino, name, &|ino| {
            let inside = self.tx_fs.node_in_use(ino).as_ref().and_then(dentry_of);
            let outside = || self.base.node_in_use(ino).as_ref().and_then(dentry_of);
            inside.or_else(|| of_record(ino)).or_else(outside)
        })
    }
}

impl<E: Storage> Fs<E> {
    /// A path of the file with this inode number, for messages. Where the way to the root is not known, the
    /// path begins with the inode number.
    #[must_use]
    pub fn shown_path(&self, ino: u64) -> String {
        self.path_of(ino, b"")
    }

    /// A path for messages: of a name in the directory with this inode number, or of the inode itself if
    /// `name` is empty. A `name` that begins with `/` is a path already. Where the way to the root is not
    /// known, the path begins with the inode number.
    pub(super) fn path_of(&self, ino: u64, name: &[u8]) -> String {
        self.path_through(ino, name, &|ino| self.node_in_use(ino).as_ref().and_then(dentry_of))
    }

    /// As `path_of`. `dentry_of` answers the parent directory and the name of an inode, if it knows them.
    fn path_through(
        &self,
        ino: u64,
        name: &[u8],
        dentry_of: &dyn Fn(u64) -> Option<(u64, Vec<u8>)>,
    ) -> String {
        let shown = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        if name.first() == Some(&b'/') {
            return shown(name);
        }
        let mut names: Vec<String> = Vec::new();
        if !name.is_empty() {
            names.push(shown(name));
        }
        // Upwards. The bound ends a cycle of damaged records.
        let mut at = ino;
        let mut steps = 0;
        while at != self.root().ino() && steps < DEPTH_MAX {
            let Some((parent, name)) = dentry_of(at) else {
                names.push(format!("<inode {at}>"));
                break;
            };
            names.push(shown(&name));
            at = parent;
            steps += 1;
        }
        names.push(String::new());
        names.reverse();
        if names.len() == 1 { "/".into() } else { names.join("/") }
    }
}

/// The parent directory of a node, and its name there, if the node knows them.
fn dentry_of(node: &NodeRef) -> Option<(u64, Vec<u8>)> {
    let state = node.state.read();
    match (state.dentry.as_deref(), &state.location) {
        (Some((parent, name)), _) | (None, RecordLocation::Dentry(parent, name)) => {
            Some((*parent, name.to_vec()))
        }
        _ => None,
    }
}
