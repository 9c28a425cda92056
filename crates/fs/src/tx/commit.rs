//! Making a transaction's changes the base's.
//!
//! ```text
//!   alone ──► expected versions hold? ──► commit with what was read ──► show ──► committed
//!                     │                        └─ conflict ─► repeat the calls ─► commit ─┘
//!                     └──────────► Conflict ◄───────────────────── answered otherwise
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpfire_format::fs::KeyBuf;
use warpfire_meta::{Admit, Batch, Changes, CommitError, ReadSet, SliceStore, Store};
use warpfire_units::Seq;

use super::begin::{Inside, Transaction};
use super::journal::Journal;
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{Home, NodeRef, Touch};

/// How a file was when someone looked: what [`Transaction::expect`] compares with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    key: KeyBuf,
    at: Seq,
    path: Arc<str>,
}

/// How transactions have ended since the filesystem was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransactionCounts {
    /// Committed.
    pub commits: u64,
    /// Whose calls were made again because something that they had read had changed.
    pub replays: u64,
    /// Not committed because a call would have answered otherwise, or a version was not the expected one.
    pub conflicts: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    commits: AtomicU64,
    pub(super) replays: AtomicU64,
    conflicts: AtomicU64,
}

impl<E: Store + SliceStore> Fs<E> {
    /// How transactions have ended.
    #[must_use]
    pub fn transaction_counts(&self) -> TransactionCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counters { commits, replays, conflicts } = &self.counters;
        TransactionCounts { commits: read(commits), replays: read(replays), conflicts: read(conflicts) }
    }

    /// How a file is now: any change of its content or attributes makes it another version, a renewed access time too. What was made in a directory
    /// does not.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    pub fn version(&self, node: &NodeRef) -> Result<Version, FsError> {
        let _turn = self.turn();
        // Who changes the record holds the state, so all its changes are in the newest version.
        let state = node.state.read();
        let key = state.home_key(self.volume, node.ino()).ok_or(FsError::NotFound)?;
        let snapshot = self.engine.snapshot();
        Ok(Version { key, at: self.engine.seq(&snapshot), path: self.path_of(node.ino(), b"").into() })
    }
}

impl<E: Store + SliceStore> Transaction<E> {
    /// Lets the commit succeed only if the file is still at this version.
    pub fn expect(&self, version: Version) {
        self.expected.lock().push(version);
    }

    /// Commits: all that was done inside becomes visible at once, and stays or is lost as a whole if a crash comes before the next sync.
    ///
    /// # Errors
    /// `Conflict` if a call would have answered otherwise now, or an expected version is past: nothing has changed then; begin again. `NoSpace`, `ReadOnly`,
    /// `Damaged`: nothing has changed either.
    pub fn commit(self) -> Result<(), FsError> {
        let outcome = self.try_commit();
        let counters = &self.base.counters;
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
        let mut turn = self.inside.turns.take();
        let journal = turn.journal().ok_or(FsError::Busy)?;
        let expected = self.expected.lock();
        if self.inside.engine.is_unchanged() && expected.is_empty() {
            self.inside.engine.end();
            return Ok(());
        }
        let _alone = self.base.turns.take_alone();
        for version in expected.iter() {
            self.base.check_version(version)?;
        }
        if !self.inside.engine.is_unchanged() {
            self.make_changes(journal)?;
        }
        // Before the turn ends: a call that comes after it finds that it is too late.
        self.inside.engine.end();
        Ok(())
    }

    fn make_changes(&self, journal: &Journal) -> Result<(), FsError> {
        let changes = self.inside.engine.seal()?;
        let checked = if cfg!(feature = "planted-bug-reads-unchecked") { None } else { Some(&changes.reads) };
        match self.base.commit_inside(&self.inside, &changes, checked) {
            Err(CommitError::Conflict) => {}
            other => return Ok(other?),
        }
        drop(changes);
        let again = self.repeat(journal)?;
        let changes = again.fs.engine.seal()?;
        // Since it was read nothing has been committed but by the cut hook, and that commutes with it: see `fs.rs`.
        Ok(self.base.commit_inside(&again.fs, &changes, None)?)
    }
}

impl<E: Store + SliceStore> Fs<E> {
    fn check_version(&self, version: &Version) -> Result<(), FsError> {
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

    /// Commits what was done inside. The caller is alone.
    fn commit_inside(
        &self,
        inside: &Inside<E>,
        changes: &Changes,
        reads: Option<&ReadSet>,
    ) -> Result<(), CommitError> {
        if changes.batch.is_empty() {
            return Ok(());
        }
        let nodes = inside.table.kept();
        // Times that were set inside take the place of those that wait: a cut must not bring these after them.
        let replaced: Vec<(NodeRef, Touch)> = nodes
            .iter()
            .filter(|node| node.touch.lock().was_set)
            .filter_map(|node| self.take_touch(node))
            .collect();
        if let Err(e) = self.engine.commit(&changes.batch, reads, changes.who) {
            replaced.into_iter().for_each(|(dir, touch)| self.dirty.give_back(&dir, touch));
            return Err(e);
        }
        self.dirty.count(changes.batch.sums());
        self.show(&nodes);
        Ok(())
    }

    /// Takes what waits to be emitted of the base's node of this directory.
    fn take_touch(&self, dir: &NodeRef) -> Option<(NodeRef, Touch)> {
        let held = self.held(dir.ino())?;
        let touch = std::mem::take(&mut *held.touch.lock());
        Some((held, touch))
    }

    /// What was done inside has been committed: what is in memory says so too.
    fn show(&self, nodes: &[NodeRef]) {
        for node in nodes {
            let ino = node.ino();
            let held = self.held(ino);
            let state = node.state.read();
            let touch = *node.touch.lock();
            match &held {
                Some(held) => {
                    *held.state.write() = state.clone();
                    let shown = held.touch.lock().shown;
                    if shown.is_some_and(|shown| shown > state.attrs.ctime) && !state.is_unlinked() {
                        self.dirty.emit_again(held);
                    }
                }
                None if matches!(state.home, Home::Orphan { .. }) => self.table.return_unheld_orphan(ino),
                None if !state.is_unlinked() => self.table.remember(ino, state.history),
                None => {}
            }
            if let Some(at) = touch.shown.filter(|_| touch.pending && !state.is_unlinked()) {
                // A record that can not be read any more takes no time; the next read of it says so.
                if let Some(dir) = held.or_else(|| self.directory(ino).ok().flatten()) {
                    self.touch(&dir, at);
                }
            }
        }
    }
}
