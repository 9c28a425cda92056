//! Listing a directory, in the order of its keys.

use std::cell::Cell;

use warpfire_format::fs::{Dentry, FileKind, Key, dentry_key, dentry_range};
use warpfire_meta::{Direction, KeyRange, Page, SliceStore, Store};

use crate::acl::{Caller, Perm};
use crate::damage::WRONG_RANGE;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::PAGE_BYTES;
use crate::node::{Found, Home, Name, NodeRef, State};
use crate::tx::{Call, Shown, Who};

/// One name of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name; `.` and `..` are not listed.
    pub name: Name,
    /// Number of the inode it leads to.
    pub ino: u64,
    /// Kind of file it leads to.
    pub kind: FileKind,
}

impl<E: Store + SliceStore> Fs<E> {
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
        self.call(
            || Call::List { who: Who::of(caller), dir: dir.ino(), after: after.map(Name::from_slice), max },
            || self.readdir_in_turn(caller, dir, after, max),
        )
    }

    fn readdir_in_turn(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<DirEntry>, FsError> {
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        self.access(caller, dir, Perm::READ)?;
        let entries = self.names_after(dir.ino(), after, max)?;
        self.was_read(dir)?;
        Ok(entries)
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
        let mut page = Page::default();
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
        let mut page = Page::default();
        loop {
            // Before the snapshot, so that what changes after it is seen to have moved.
            let stood = self.stripes.all();
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
                        let is_current = || self.stripes.at(entry.key) == stood.at(entry.key);
                        let state = || State::new(&inode, Home::Dentry(dir, name.into()));
                        match self.table.get_or_insert(inode.ino, is_current, state) {
                            Found::Node(node) => Some(node),
                            Found::Dying(_) | Found::Stale => self.find(dir, name)?,
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
    pub(crate) fn visit_told(
        &self,
        dir: &NodeRef,
        after: Option<&[u8]>,
        at_once: usize,
        visit: &mut dyn FnMut(&[u8], Option<&NodeRef>) -> bool,
    ) -> Result<(), FsError> {
        if !self.turns.are_inside() {
            return self.visit_nodes(dir.ino(), after, at_once, visit);
        }
        // Who had room for all that there is relies on there being no more.
        let max = Cell::new(usize::MAX);
        let run = || {
            let mut shown = Shown::default();
            self.visit_nodes(dir.ino(), after, at_once, &mut |name, node| {
                let full = visit(name, node);
                match node {
                    _ if full => max.set(shown.count()),
                    Some(node) => shown.add(name, node, &self.getattr(node)),
                    None => {}
                }
                full
            })?;
            Ok(shown)
        };
        let call = || Call::Visit { dir: dir.ino(), after: after.map(Name::from_slice), max: max.get() };
        self.call(call, run).map(drop)
    }
}
