//! Making a transaction's calls again, over the newest version.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpfire_meta::{SliceStore, Store, TxStore};

use super::begin::{Inside, Transaction};
use super::call::Scene;
use super::journal::Journal;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::DEPTH_MAX;
use crate::node::{Home, NodeRef};
use crate::schema::FsSchema;

/// A transaction's inside made anew.
pub(super) struct Again<E: Store + SliceStore> {
    pub(super) fs: Inside<E>,
}

impl<E: Store + SliceStore> Drop for Again<E> {
    fn drop(&mut self) {
        self.fs.engine.end();
        self.fs.table.let_go();
    }
}

impl<E: Store + SliceStore> Transaction<E> {
    /// Makes all calls of the journal again. The caller is alone in the base.
    pub(super) fn repeat(&self, journal: &Journal) -> Result<Again<E>, FsError> {
        self.base.counters.replays.fetch_add(1, Ordering::Relaxed);
        let conflict = |call, path: String| FsError::Conflict { call, path: path.into() };
        let Some(entries) = journal.entries() else { return Err(conflict("read", "/".into())) };
        let store = || TxStore::begin(Arc::clone(&self.base.engine), FsSchema);
        let again =
            Again { fs: self.base.inside(store, self.inside.numbers.drawn(), Journal::of_repetition()) };
        let mut scene = Scene::default();
        scene.nodes.insert(again.fs.root().ino(), again.fs.root());
        for entry in entries {
            again.fs.turns.give_time(entry.at);
            entry.call.make(&again.fs, &mut scene);
            let mut turn = again.fs.turns.take();
            let answered = turn.journal().and_then(Journal::take_last);
            if answered != Some(entry.digest) || scene.has_other_bytes {
                let (ino, name) = entry.call.subject();
                return Err(conflict(entry.call.name(), self.inside.path_of(ino, name)));
            }
        }
        Ok(again)
    }
}

impl<E: Store + SliceStore> Fs<E> {
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
            let Some((parent, name)) = self.held(at).as_ref().and_then(place_of) else {
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
fn place_of(node: &NodeRef) -> Option<(u64, Vec<u8>)> {
    let state = node.state.read();
    match (&state.place, &state.home) {
        (Some((parent, name)), _) | (None, Home::Dentry(parent, name)) => Some((*parent, name.to_vec())),
        _ => None,
    }
}
