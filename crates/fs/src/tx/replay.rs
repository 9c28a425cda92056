//! Making a transaction's calls again, over the newest version.
//!
//! # Invariants
//! 1. A replay answers as the transaction did, call by call, or it is a conflict that names the first call
//!    that does not: the digests are compared after each (the test
//!    `a_change_of_what_was_read_is_a_conflict_that_is_named`).
//! 2. During a replay nothing else changes the base. `replay` asserts that its thread is in the base's gate;
//!    the caller entered it exclusively.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpfire_meta::{Storage, TxStore};

use super::begin::{Transaction, TxFs};
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::DEPTH_MAX;
use crate::node::{NodeRef, RecordLocation};
use crate::op::{CallJournal, ReplayScene};
use crate::schema::FsSchema;

/// A transaction's filesystem made anew by a replay. Dropping it ends it.
pub(super) struct ReplayedFs<E: Storage> {
    pub(super) fs: TxFs<E>,
}

impl<E: Storage> Drop for ReplayedFs<E> {
    fn drop(&mut self) {
        self.fs.engine.end();
        self.fs.inode_cache.drop_tx_nodes();
    }
}

impl<E: Storage> Transaction<E> {
    /// Makes all calls of the journal again. The caller is alone in the base.
    ///
    /// # Errors
    /// `Conflict` if a call answers otherwise now, or the journal is incomplete.
    pub(super) fn replay(&self, journal: &CallJournal<TxFs<E>>) -> Result<ReplayedFs<E>, FsError> {
        assert!(self.base.call_gate.is_entered(), "nothing else changes the base while calls are replayed");
        self.base.transactions.replays.fetch_add(1, Ordering::Relaxed);
        let conflict = |call, path: String| FsError::Conflict { call, path: path.into() };
        let Some(entries) = journal.entries() else { return Err(conflict("read", "/".into())) };
        let store = || TxStore::begin(Arc::clone(&self.base.engine), FsSchema);
        // The same inode numbers are drawn again: the program has seen them.
        let fs = self.base.tx_fs(store, self.tx_fs.numbers.drawn(), CallJournal::of_replay());
        let replayed = ReplayedFs { fs };
        let fs = &replayed.fs;
        let mut scene = ReplayScene::default();
        scene.add(fs.root());
        for entry in entries {
            fs.call_gate.set_next_time(entry.at);
            // The call's error is part of its digest. An error before the call, of a node that the scene
            // lacks, leaves no digest: that is a conflict too.
            let _ = entry.operation.replay(fs, &mut scene);
            let mut guard = fs.call_gate.enter();
            let digest = guard.journal().and_then(CallJournal::take_last_digest);
            if digest != Some(entry.digest) || scene.has_other_bytes() {
                let (ino, name) = entry.operation.subject();
                return Err(conflict(entry.operation.name(), self.tx_fs.path_of(ino, name)));
            }
        }
        Ok(replayed)
    }
}

impl<E: Storage> Fs<E> {
    /// The path of an inode in use, and of a name or path in it, for people to read.
    pub(super) fn path_of(&self, ino: u64, name: &[u8]) -> String {
        let shown = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        if name.first() == Some(&b'/') {
            return shown(name);
        }
        let mut names: Vec<String> = Vec::new();
        if !name.is_empty() {
            names.push(shown(name));
        }
        let (mut at, mut steps) = (ino, 0);
        while at != self.root().ino() && steps < DEPTH_MAX {
            let Some((parent, name)) = self.node_in_use(at).as_ref().and_then(dentry_of) else {
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

/// The directory that a node is in, and its name there, where the node knows.
fn dentry_of(node: &NodeRef) -> Option<(u64, Vec<u8>)> {
    let state = node.state.read();
    match (&state.dentry, &state.location) {
        (Some((parent, name)), _) | (None, RecordLocation::Dentry(parent, name)) => {
            Some((*parent, name.to_vec()))
        }
        _ => None,
    }
}
