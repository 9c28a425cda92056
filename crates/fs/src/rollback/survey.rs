//! The survey before a rollback: the changed keys, as far as they are few, and the states that nodes in use
//! get.
//!
//! # Invariants
//! 1. The survey of a rollback lists changed keys while they are few, or few beside the nodes in use, and at
//!    most `KEYS_MAX`. With more changes it lists none, and everything counts as changed: the cost of a
//!    rollback follows the changes or the nodes in use, whichever are fewer.
//! 2. A file whose record is not where it was is looked for among all changed keys, unless its number is one
//!    that no inode of then had. So an inode never has two records
//!    (`tests::rollback::files_that_are_open_show_what_was_there`).

use std::collections::{BTreeMap, BTreeSet};

use warpfire_format::fs::{
    Dentry, FilesystemRecord, Inode, Key, KeyKind, PoolRecordId, is_of_kind, local_of, number_in,
};
use warpfire_meta::{KeyRange, SeqRange, SnapshotStore, Storage};
use warpfire_units::Seq;

use super::{ChangeDetail, volume_keys};
use crate::error::FsError;
use crate::fs::Fs;
use crate::invalidation::Invalidation;
use crate::limits::PAGE_ENTRIES;
use crate::node::{NodeRef, NodeState, RecordLocation};

/// Changed keys that a survey lists however few nodes are in use. A mount lists them twice for each rollback,
/// which takes a few hundred microseconds.
// Few in tests, so that their rollbacks are of both kinds.
const KEYS_MIN: usize = if cfg!(test) { 64 } else { 256 };

/// Most changed keys that a survey lists. They are some MiB.
const KEYS_MAX: usize = if cfg!(test) { 4096 } else { 1 << 16 };

/// Nodes in use for each key that a survey lists: a listed key is read some times, a node once.
const NODES_PER_KEY: usize = 4;

/// The keys that have changed and go back; `None`: they are many.
pub(super) struct ChangeSurvey(Option<Vec<Box<[u8]>>>);

/// What becomes of a node in use.
pub(super) enum NodeThen {
    /// It gets this state.
    Shown(Box<NodeState>),
    /// It has lost its name.
    Stays,
    /// It is a directory that was not there, or had lost its name before.
    Gone,
}

/// Where nodes had their records.
type RecordsThen = BTreeMap<u64, RecordLocation>;

/// Whether a rollback hides versions of this key.
pub(super) fn goes_back(key: &Key<'_>) -> bool {
    match key {
        Key::Inode(..) | Key::Orphan(..) | Key::Dentry(..) | Key::Xattr(..) | Key::Region(..) => true,
        // Counters go back too, but that is no change of the tree.
        Key::Counter(..) => false,
        Key::Pool(_)
        | Key::Snapshot(..)
        | Key::SnapshotName(..)
        | Key::SnapshotRule(..)
        | Key::Bookmark(..)
        | Key::Rollback(..)
        | Key::Volume(_) => false,
    }
}

/// The inode in a value at this key, and its place.
fn inode_at<'v>(key: &Key<'_>, value: &'v [u8]) -> Result<Option<(Inode<'v>, RecordLocation)>, FsError> {
    Ok(match *key {
        Key::Inode(volume, _) => Some((Inode::decode(value)?.in_volume(volume), RecordLocation::Own)),
        Key::Orphan(volume, _) => {
            Some((Inode::decode(value)?.in_volume(volume), RecordLocation::Orphan { linkable: false }))
        }
        Key::Dentry(volume, dir, name) => match Dentry::decode(value)?.in_volume(volume) {
            Dentry::Embedded(inode) => {
                Some((inode, RecordLocation::Dentry(number_in(volume, dir), name.into())))
            }
            Dentry::Reference(..) => None,
        },
        _ => None,
    })
}

impl<E: Storage + SnapshotStore> Fs<E> {
    /// Surveys the changed keys of the tree.
    pub(super) fn survey(&self, commits: SeqRange, detail: ChangeDetail) -> Result<ChangeSurvey, FsError> {
        let max = (self.inode_cache.count() / NODES_PER_KEY).clamp(KEYS_MIN, KEYS_MAX);
        let (mut listed, mut is_whole) = (Vec::new(), true);
        let page_keys = if detail == ChangeDetail::All { PAGE_ENTRIES } else { PAGE_ENTRIES.min(max + 1) };
        self.each_changed(commits, page_keys, &mut |key| {
            if goes_back(&Key::decode(&key)?) {
                listed.push(key);
            }
            is_whole = detail == ChangeDetail::All || listed.len() <= max;
            Ok(is_whole)
        })?;
        Ok(ChangeSurvey(is_whole.then_some(listed)))
    }

    /// Calls `visit` with each key of the volume that has changed, in order, until it returns `false`. It
    /// reads so many keys at a time.
    pub(super) fn each_changed(
        &self,
        commits: SeqRange,
        page_keys: usize,
        visit: &mut dyn FnMut(Box<[u8]>) -> Result<bool, FsError>,
    ) -> Result<(), FsError> {
        let (start, end) = volume_keys(self.volume);
        let mut start = start.to_vec();
        loop {
            let range = KeyRange { start: &start, end: Some(&end) };
            let changed = self.engine.changed_between(range, commits, page_keys)?;
            let next = changed.last().filter(|_| changed.len() == page_keys);
            // The smallest key past the last one.
            let next = next.map(|last| [&last[..], &[0]].concat());
            for key in changed {
                if !visit(key)? {
                    return Ok(());
                }
            }
            let Some(next) = next else { return Ok(()) };
            start = next;
        }
    }

    /// Visits the names and files in the changed keys, and returns the files; `None`: all may have changed.
    pub(super) fn visit_changed(
        &self,
        survey: &ChangeSurvey,
        then: Seq,
        visit: &mut dyn FnMut(Invalidation<'_>),
    ) -> Result<Option<BTreeSet<u64>>, FsError> {
        let ChangeSurvey(Some(keys)) = survey else {
            visit(Invalidation::Everything);
            return Ok(None);
        };
        let (mut files, mut before, mut now) = (BTreeSet::new(), Vec::new(), Vec::new());
        for key in keys {
            match Key::decode(key)? {
                Key::Inode(volume, ino)
                | Key::Orphan(volume, ino)
                | Key::Xattr(volume, ino, _)
                | Key::Region(volume, ino, _) => {
                    files.insert(number_in(volume, ino));
                }
                Key::Dentry(volume, dir, name) => {
                    let dir = number_in(volume, dir);
                    let ino = |dentry: Dentry<'_>| dentry.in_volume(volume).ino();
                    let was = self.engine.get(key, then, &mut before)?;
                    let was = was.then(|| Dentry::decode(&before)).transpose()?.map(ino);
                    let is = self.get(key, &mut now)?;
                    let is = is.then(|| Dentry::decode(&now)).transpose()?.map(ino);
                    files.extend(was);
                    files.extend(is);
                    if was != is {
                        files.insert(dir);
                        visit(Invalidation::Name(dir, name));
                    }
                }
                _ => {}
            }
        }
        files.iter().for_each(|ino| visit(Invalidation::File(*ino)));
        Ok(Some(files))
    }

    /// What becomes of nodes in use.
    pub(super) fn nodes_then(
        &self,
        nodes: Vec<NodeRef>,
        survey: &ChangeSurvey,
        commits: SeqRange,
    ) -> Result<Vec<(NodeRef, NodeThen)>, FsError> {
        let then = commits.after;
        let mut found = Vec::with_capacity(nodes.len());
        let mut missing = Vec::new();
        for node in nodes {
            match self.node_then(&node, None, then)? {
                Some(shown) => found.push((node, shown)),
                None => missing.push(node),
            }
        }
        // Numbers from this one on had no inode then.
        let mut value = Vec::new();
        let filesystem = Key::Pool(PoolRecordId::Filesystem).encode();
        let past = match self.engine.get(&filesystem, then, &mut value)? {
            true => FilesystemRecord::decode(&value)?.next_ino,
            false => u64::MAX,
        };
        // The record of a directory is at its own key, wherever its name is.
        let files = missing.iter().filter(|node| !node.is_dir()).map(|node| node.ino());
        let mut sought: BTreeSet<u64> = files.filter(|ino| local_of(*ino) < past).collect();
        let none_is_sought = sought.is_empty();
        let mut records = RecordsThen::new();
        let mut look = |key: &[u8]| {
            // An inode of another kind has a key by its number.
            if is_of_kind(key, KeyKind::Dentry) && self.engine.get(key, then, &mut value)? {
                let found = inode_at(&Key::decode(key)?, &value)?;
                if let Some((inode, location)) = found.filter(|(inode, _)| sought.remove(&inode.ino)) {
                    records.insert(inode.ino, location);
                }
            }
            Ok::<bool, FsError>(!sought.is_empty())
        };
        match &survey.0 {
            _ if none_is_sought => {}
            Some(keys) => {
                for key in keys {
                    if !look(key)? {
                        break;
                    }
                }
            }
            None => self.each_changed(commits, PAGE_ENTRIES, &mut |key| look(&key))?,
        }
        for node in missing {
            let shown = match records.get(&node.ino()) {
                Some(location) => self.node_then(&node, Some(location), then)?,
                None => None,
            };
            let is_gone = || node.is_dir() || node.state.read().location == RecordLocation::Gone;
            let shown = shown.unwrap_or_else(|| if is_gone() { NodeThen::Gone } else { NodeThen::Stays });
            found.push((node, shown));
        }
        Ok(found)
    }

    /// The state of a node then, if its record was at this location, where it is now, or at its own key.
    fn node_then(
        &self,
        node: &NodeRef,
        location: Option<&RecordLocation>,
        then: Seq,
    ) -> Result<Option<NodeThen>, FsError> {
        let state = node.state.read();
        let mut value = Vec::new();
        let orphan = RecordLocation::Orphan { linkable: false };
        let places = location.into_iter().chain([&state.location, &RecordLocation::Own, &orphan]);
        for place in places {
            let at = NodeState { location: place.clone(), ..state.clone() };
            let Some(key) = at.record_key(node.ino()) else { continue };
            if !self.engine.get(&key, then, &mut value)? {
                continue;
            }
            let Some((inode, location)) = inode_at(&Key::decode(&key)?, &value)? else { continue };
            if inode.ino == node.ino() {
                let found = NodeState::new(&inode, location);
                let dentry = found.dentry.clone().or_else(|| state.dentry.clone());
                return Ok(Some(NodeThen::Shown(Box::new(NodeState { dentry, ..found }))));
            }
        }
        Ok(None)
    }
}
