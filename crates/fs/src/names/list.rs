//! Listings of a directory, in the order of the bytes of its names.
//!
//! # Invariants
//! 1. A name that exists throughout a listing is listed exactly once: each page goes on after the last name
//!    of the page before (the tests `names`).
//! 2. A node is made from a listed record only if its version counter has not moved since before the snapshot
//!    (`visit_nodes`).

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::fs::{Dentry, FileKind, Key, volume_of};
use warpfire_meta::{Direction, KeyRange, ScanPage, Storage};

use crate::acl::{Caller, Perm};
use crate::attrs::Attr;
use crate::damage::WRONG_RANGE;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{dentry_key, dentry_range};
use crate::limits::PAGE_BYTES;
use crate::node::{NameBuf, NodeLookup, NodeRef, NodeState, RecordLocation};
use crate::op::{Digestible, HeapBytes, Operation, RecordedCaller, ReplayScene, new_hasher};
use crate::transfer::is_receive_directory;

/// Names read ahead of a visit that is replayed.
const VISIT_AT_ONCE: usize = 256;

/// One name of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name; `.` and `..` are not listed.
    pub name: NameBuf,
    /// Inode number of its file.
    pub ino: u64,
    /// Kind of its file.
    pub kind: FileKind,
}

impl<E: Storage> Fs<E> {
    /// Up to `max` names after `after`, or from the first name on, in the order of their bytes. Fewer than
    /// `max` names are the end of the directory. A walk that passes the last name of each answer to the next
    /// call lists every name that exists throughout exactly once.
    ///
    /// # Errors
    /// `NotDirectory`; `AccessDenied` if the caller may not read the directory.
    pub fn readdir(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<DirEntry>, FsError> {
        let record = || ListNames {
            caller: RecordedCaller::of(caller),
            dir: dir.ino(),
            after: after.map(NameBuf::from_slice),
            max,
        };
        self.call(record, || {
            if !dir.is_dir() {
                return Err(FsError::NotDirectory);
            }
            self.access(caller, dir, Perm::READ)?;
            let entries = self.names_after(dir.ino(), after, max)?;
            self.renew_atime_if_due(dir)?;
            Ok(entries)
        })
    }

    /// As `readdir`, also past metadata that cannot be read. `true`: it has passed some, so names may be
    /// missing, and others may have been removed before.
    ///
    /// # Errors
    /// As `readdir`. Transactions do not pass damage.
    pub fn readdir_past_damage(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<(Vec<DirEntry>, bool), FsError> {
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        self.access(caller, dir, Perm::READ)?;
        self.names_by(dir.ino(), after, max, &mut ScanPage::past_damage())
    }

    /// As `readdir`, without a check of permissions: for handles, because `opendir` has checked them.
    pub(super) fn names_after(
        &self,
        dir: u64,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<DirEntry>, FsError> {
        self.names_by(dir, after, max, &mut ScanPage::default()).map(|(entries, _)| entries)
    }

    /// The names after `after`, read through this page, and whether the scan has passed damage.
    fn names_by(
        &self,
        dir: u64,
        after: Option<&[u8]>,
        max: usize,
        page: &mut ScanPage,
    ) -> Result<(Vec<DirEntry>, bool), FsError> {
        // A caller may ask for usize::MAX names.
        let mut entries = Vec::with_capacity(max.min(1024));
        let has_passed_damage = self.visit_names(dir, after, max, page, |_, name, dentry| {
            entries.push(DirEntry { name: name.into(), ino: dentry.ino(), kind: dentry.kind() });
        })?;
        debug_assert!(entries.len() <= max, "a scan returns at most the entries that were asked for");
        Ok((entries, has_passed_damage))
    }

    /// Visits up to `max` names after `after`, each with its key and its dentry, all of one snapshot. Returns
    /// whether the scan has passed damage.
    pub(super) fn visit_names(
        &self,
        dir: u64,
        after: Option<&[u8]>,
        max: usize,
        page: &mut ScanPage,
        mut visit: impl FnMut(&[u8], &[u8], &Dentry<'_>),
    ) -> Result<bool, FsError> {
        let (mut start, end) = dentry_range(dir);
        if let Some(name) = after {
            start = dentry_key(dir, name);
            start.push(0);
        }
        let snapshot = self.engine.snapshot();
        let mut at = self.engine.seq(&snapshot);
        if is_planted(PlantedBug::ListingOutdated) && !self.call_gate.is_transaction() {
            at.0 = at.0.saturating_sub(1);
        }
        let mut has_passed_damage = false;
        let mut wanted = max;
        while wanted > 0 {
            let range = KeyRange { start: &start, end: Some(&end) };
            self.engine.scan(range, at, Direction::Forward, wanted, PAGE_BYTES, page)?;
            has_passed_damage |= page.has_passed_damage;
            for entry in page.iter() {
                let Key::Dentry(_, _, name) = Key::decode(entry.key)? else {
                    return Err(WRONG_RANGE.into());
                };
                if is_receive_directory(dir, name) {
                    continue;
                }
                let dentry = Dentry::decode(entry.value)?.in_volume(volume_of(dir));
                if self.leaves_out(dir, &dentry) {
                    continue;
                }
                wanted -= 1;
                visit(entry.key, name, &dentry);
            }
            // A page ends early at PAGE_BYTES. The next key in order is the last one with a zero byte after
            // it.
            let Some(last) = page.iter().last().filter(|_| page.more) else { break };
            start = last.key.into();
            start.push(0);
        }
        Ok(has_passed_damage)
    }

    /// Visits the names after `after`, or from the first name on, each with its node, until there are no more
    /// or `visit` returns that it is full. A name that was removed since it was read has no node. `at_once`
    /// is the number of names in a page.
    pub(super) fn visit_nodes(
        &self,
        dir: u64,
        after: Option<&[u8]>,
        at_once: usize,
        visit: &mut dyn FnMut(&[u8], Option<&NodeRef>) -> bool,
    ) -> Result<(), FsError> {
        let (mut start, end) = dentry_range(dir);
        if let Some(name) = after {
            start = dentry_key(dir, name);
            start.push(0);
        }
        let mut page = ScanPage::default();
        loop {
            // Before the snapshot: the counter of a record that changes after the snapshot has moved.
            let counters_before = self.version_counters.snapshot();
            let snapshot = self.engine.snapshot();
            let at = self.engine.seq(&snapshot);
            let range = KeyRange { start: &start, end: Some(&end) };
            self.engine.scan(range, at, Direction::Forward, at_once, PAGE_BYTES, &mut page)?;
            drop(snapshot);
            for entry in page.iter() {
                let Key::Dentry(_, _, name) = Key::decode(entry.key)? else {
                    return Err(WRONG_RANGE.into());
                };
                if is_receive_directory(dir, name) {
                    continue;
                }
                // The page has the record of a file with one name, so its node costs no read. The record of
                // any other file is at another key.
                let dentry = Dentry::decode(entry.value)?.in_volume(volume_of(dir));
                if self.leaves_out(dir, &dentry) {
                    continue;
                }
                let node = match dentry {
                    Dentry::Embedded(inode) if inode.ino != dir => {
                        let is_current =
                            || self.version_counters.at(entry.key) == counters_before.at(entry.key);
                        let state = || NodeState::new(&inode, RecordLocation::Dentry(dir, name.into()));
                        match self.inode_cache.get_or_insert(inode.ino, is_current, state) {
                            NodeLookup::Node(node) => Some(node),
                            NodeLookup::Dying(_) | NodeLookup::Stale => self.find(dir, name)?,
                            NodeLookup::Refused(e) => return Err(e.into()),
                        }
                    }
                    _ => self.find(dir, name)?,
                };
                if visit(name, node.as_ref()) {
                    return Ok(());
                }
            }
            let Some(last) = page.iter().last().filter(|_| page.more) else { return Ok(()) };
            start = last.key.into();
            start.push(0);
        }
    }

    /// As `visit_nodes`. Inside a transaction the call is recorded, and the digest has the attributes of the
    /// nodes too, because the visitor may pass them to its caller.
    pub(crate) fn visit_recorded(
        &self,
        dir: &NodeRef,
        after: Option<&[u8]>,
        at_once: usize,
        visit: &mut dyn FnMut(&[u8], Option<&NodeRef>) -> bool,
    ) -> Result<(), FsError> {
        if !self.call_gate.is_transaction() {
            return self.visit_nodes(dir.ino(), after, at_once, visit);
        }
        // A visitor that is never full relies on the end of the directory, so a replay must find the same
        // end.
        let max = Cell::new(usize::MAX);
        let run = || {
            let mut visited = VisitDigest { state: new_hasher(), count: 0 };
            self.visit_nodes(dir.ino(), after, at_once, &mut |name, node| {
                let full = visit(name, node);
                match node {
                    _ if full => max.set(visited.count),
                    Some(node) => visited.add(name, node, &self.getattr(node)),
                    None => {}
                }
                full
            })?;
            Ok(visited)
        };
        let record = || VisitNames { dir: dir.ino(), after: after.map(NameBuf::from_slice), max: max.get() };
        self.call(record, run).map(drop)
    }
}

/// [`Fs::readdir`] as a journal keeps it.
struct ListNames {
    caller: RecordedCaller,
    dir: u64,
    after: Option<NameBuf>,
    max: usize,
}

impl<E: Storage> Operation<Fs<E>> for ListNames {
    fn name(&self) -> &'static str {
        "list"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.after.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.readdir(&self.caller.get(), scene.node(self.dir)?, self.after.as_deref(), self.max).map(drop)
    }
}

/// [`Fs::visit_recorded`] as a journal keeps it. It has no caller, because `opendir` has checked permissions.
struct VisitNames {
    dir: u64,
    after: Option<NameBuf>,
    /// The number of nodes that the visitor took; `usize::MAX` if it was never full.
    max: usize,
}

impl<E: Storage> Operation<Fs<E>> for VisitNames {
    fn name(&self) -> &'static str {
        "list"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.dir, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.after.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let dir = NodeRef::clone(scene.node(self.dir)?);
        let mut left = self.max;
        fs.visit_recorded(&dir, self.after.as_deref(), left.min(VISIT_AT_ONCE), &mut |_, node| {
            let full = left == 0;
            if let Some(node) = node.filter(|_| !full) {
                left -= 1;
                scene.add(NodeRef::clone(node));
            }
            full
        })
    }
}

/// The digest of visited names, with their nodes and attributes, and their number.
struct VisitDigest {
    state: DefaultHasher,
    count: usize,
}

impl VisitDigest {
    fn add(&mut self, name: &[u8], node: &NodeRef, attr: &Attr) {
        self.count += 1;
        name.hash(&mut self.state);
        node.add_to(&mut self.state);
        attr.add_to(&mut self.state);
    }
}

impl Digestible for VisitDigest {
    fn add_to(&self, state: &mut impl Hasher) {
        (self.state.finish(), self.count).hash(state);
    }
}

impl Digestible for Vec<DirEntry> {
    fn add_to(&self, state: &mut impl Hasher) {
        for entry in self {
            (entry.name.as_slice(), entry.ino, entry.kind as u8).hash(state);
        }
        self.len().hash(state);
    }
}
