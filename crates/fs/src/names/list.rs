//! Listing a directory, in the order of its keys.

use std::cell::Cell;
use std::hash::{Hash, Hasher};

use foldhash::quality::FoldHasher;
use warpfire_format::fs::{Dentry, FileKind, Key, dentry_key, dentry_range};
use warpfire_meta::{Direction, KeyRange, ScanPage, Storage};

use crate::acl::{Caller, Perm};
use crate::attrs::Attr;
use crate::damage::WRONG_RANGE;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::PAGE_BYTES;
use crate::node::{NameBuf, NodeLookup, NodeRef, NodeState, RecordLocation};
use crate::op::{Digestible, HeapBytes, Operation, RecordedCaller, ReplayScene, new_hasher};

/// Names read ahead of a visit that is replayed.
const VISIT_AT_ONCE: usize = 256;

/// One name of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name; `.` and `..` are not listed.
    pub name: NameBuf,
    /// Number of the inode it leads to.
    pub ino: u64,
    /// Kind of file it leads to.
    pub kind: FileKind,
}

impl<E: Storage> Fs<E> {
    /// Up to `max` names, in the order of their bytes, after `after`, or from the first. Fewer than `max` only at the end.
    /// A name that is there all the time is listed exactly once by a walk that goes on after its last name, whatever else changes.
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

    /// As `readdir`, without asking who calls: for handles, which asked when they were opened.
    pub(super) fn names_after(
        &self,
        dir: u64,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<DirEntry>, FsError> {
        let (mut start, end) = dentry_range(self.volume, dir);
        if let Some(name) = after {
            start = dentry_key(self.volume, dir, name);
            start.push(0);
        }
        let mut entries = Vec::with_capacity(max.min(1024));
        let snapshot = self.engine.snapshot();
        let at = self.engine.seq(&snapshot);
        let mut page = ScanPage::default();
        while entries.len() < max {
            let range = KeyRange { start: &start, end: Some(&end) };
            let wanted = max - entries.len();
            self.engine.scan(range, at, Direction::Forward, wanted, PAGE_BYTES, &mut page)?;
            for entry in page.iter() {
                let Key::Dentry(_, _, name) = Key::decode(entry.key)? else {
                    return Err(WRONG_RANGE.into());
                };
                let dentry = Dentry::decode(entry.value)?;
                entries.push(DirEntry { name: name.into(), ino: dentry.ino(), kind: dentry.kind() });
            }
            let Some(last) = page.iter().last().filter(|_| page.more) else { break };
            start = last.key.into();
            start.push(0);
        }
        Ok(entries)
    }

    /// Visits names after `after`, or from the first, each with its node, until there are no more or `visit` says that it is full.
    /// A name that has gone meanwhile has no node. `at_once` names are read at a time.
    pub(super) fn visit_nodes(
        &self,
        dir: u64,
        after: Option<&[u8]>,
        at_once: usize,
        visit: &mut dyn FnMut(&[u8], Option<&NodeRef>) -> bool,
    ) -> Result<(), FsError> {
        let (mut start, end) = dentry_range(self.volume, dir);
        if let Some(name) = after {
            start = dentry_key(self.volume, dir, name);
            start.push(0);
        }
        let mut page = ScanPage::default();
        loop {
            // Before the snapshot, so that what changes after it is seen to have moved.
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
                let node = match Dentry::decode(entry.value)? {
                    Dentry::Embedded(inode) if inode.ino != dir => {
                        let is_current =
                            || self.version_counters.at(entry.key) == counters_before.at(entry.key);
                        let state = || NodeState::new(&inode, RecordLocation::Dentry(dir, name.into()));
                        match self.inode_cache.get_or_insert(inode.ino, is_current, state) {
                            NodeLookup::Node(node) => Some(node),
                            NodeLookup::Dying(_) | NodeLookup::Stale => self.find(dir, name)?,
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

    /// As `visit_nodes`, written down inside a transaction, with the attributes of the nodes that were taken: who visits a node may tell of them.
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
        // Who had room for all that there is relies on there being no more.
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

/// [`Fs::visit_recorded`] as a journal keeps it. It has no caller: permission was checked when the handle was opened.
struct VisitNames {
    dir: u64,
    after: Option<NameBuf>,
    /// How many names the visitor took; `usize::MAX` if it would have taken more.
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

/// Digest of names that were visited one by one, with their nodes and attributes.
struct VisitDigest {
    state: FoldHasher<'static>,
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
