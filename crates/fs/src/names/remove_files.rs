//! Removal of all files of a directory, many names in a commit.
//!
//! A step reads a page of names. Most of its files have one name, no attributes and no regions, so the page
//! has their whole records, and their nodes cost no search. One commit removes them all. The other names of
//! the page go one by one, as by [`Fs::unlink`].
//!
//! # Invariants
//! 1. A step holds the key locks of all names that its commit removes, from the look at their version
//!    counters to the commit, and the states of all their nodes from the look at their locations
//!    (`remove_plain`).
//! 2. It takes the states by rising inode number, each once, also if a damaged directory names an inode twice
//!    (`tests::remove_files`).
//! 3. A failed commit leaves every name and every node as it was.
//! 4. A directory counts as emptied only if each of its names was removed by a step, and no other call has
//!    changed a name there since before the first step (`is_still_empty`). Then `rmdir` needs no scan, which
//!    would pass all the removed names.

use warpfire_format::fs::{Dentry, FileKind, Inode, Key, flag, volume_of};
use warpfire_meta::{Admit, Direction, KeyRange, ScanPage, Storage};

use super::departure::Departure;
use crate::acl::{Caller, Perm};
use crate::damage::WRONG_RANGE;
use crate::error::FsError;
use crate::fs::Fs;
use crate::keys::{dentry_key, dentry_range};
use crate::limits::{PAGE_BYTES, REMOVED_AT_ONCE};
use crate::node::{
    CounterSnapshot, Layout, NameBuf, NodeLookup, NodeRef, NodeState, RecordLocation, StateWriteGuard,
};
use crate::scratch::Scratch;
use crate::transfer::is_receive_directory;

/// The names that one step of [`Fs::remove_files`] has passed.
#[derive(Debug)]
pub struct RemovedFiles {
    /// The number of names that it removed.
    pub files: u64,
    /// The subdirectories, which it left.
    pub directories: Vec<NameBuf>,
    /// Whether no name comes after those of this step.
    pub is_end: bool,
    last: NameBuf,
    emptied: Option<Emptied>,
}

/// A directory of which all names so far were removed.
#[derive(Clone, Debug)]
struct Emptied {
    /// Its node counts the changes of names, as long as it is held.
    dir: NodeRef,
    /// That count after the last step, if nobody else has changed a name.
    changes: u64,
    /// The number of calls that had run alone, which change names without that count.
    calls_alone: u64,
}

impl RemovedFiles {
    fn begin(before: Option<&RemovedFiles>) -> RemovedFiles {
        let last = before.map_or_else(NameBuf::new, |before| before.last.clone());
        let emptied = before.and_then(|before| before.emptied.clone());
        RemovedFiles { files: 0, directories: Vec::new(), is_end: true, last, emptied }
    }

    /// Whether the steps have removed every name that they met.
    #[cfg(test)]
    pub(crate) fn has_emptied(&self) -> bool {
        self.emptied.is_some()
    }

    /// Counts files that were removed in so many changes of the directory.
    fn count(&mut self, files: u64, changes: u64) {
        self.files += files;
        if let Some(emptied) = &mut self.emptied {
            emptied.changes += changes;
        }
    }

    /// Adds the outcome of `unlink` for a name that was a file's when it was listed. It may be a directory's
    /// by now, or gone.
    fn add(&mut self, name: &[u8], unlinked: Result<(), FsError>) -> Result<(), FsError> {
        match unlinked {
            Ok(()) => self.count(1, 1),
            Err(FsError::NotFound) => {}
            Err(FsError::IsDirectory) => self.directories.push(name.into()),
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

/// A name with the record of its file, as a page has them.
struct PlainName<'a> {
    key: &'a [u8],
    name: &'a [u8],
    inode: Inode<'a>,
}

/// The names of a page, by the way of their removal.
#[derive(Default)]
struct Sorted<'a> {
    /// Files whose whole record is in the page.
    plain: Vec<PlainName<'a>>,
    /// Other files.
    others: Vec<&'a [u8]>,
    directories: Vec<&'a [u8]>,
}

impl<E: Storage> Fs<E> {
    /// Removes the first files of a directory, and passes its subdirectories. Each call is a step: it removes
    /// at most [`REMOVED_AT_ONCE`] names, most of them in one commit, and gets the answer of the step before.
    /// [`Fs::rmdir_after`] takes the answer of the last one.
    ///
    /// # Errors
    /// `NotDirectory`; `AccessDenied` if the caller may not read, search or change the directory;
    /// `NotPermitted` for a file that a sticky directory does not give away. After an error, some files of
    /// the step may be removed.
    pub fn remove_files(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        before: Option<&RemovedFiles>,
    ) -> Result<RemovedFiles, FsError> {
        if self.call_gate.is_transaction() {
            return self.remove_files_recorded(caller, dir, before);
        }
        let _guard = self.call_gate.enter();
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        self.access(caller, dir, Perm::READ)?;
        let mut answer = RemovedFiles::begin(before);
        let (mut start, end) = dentry_range(dir.ino());
        if before.is_some() {
            start = dentry_key(dir.ino(), &answer.last);
            start.push(0);
        } else {
            // Once: each removal makes it due again.
            self.renew_atime_if_due(dir)?;
            // A call that adds a name holds the children until it has counted the change.
            drop(dir.children.write());
            let (changes, calls_alone) = (dir.pending_times.get().count, self.call_gate.calls_alone());
            answer.emptied = Some(Emptied { dir: NodeRef::clone(dir), changes, calls_alone });
        }
        // Before the snapshot: the counter of a record that changes after the snapshot has moved.
        let counters_before = self.version_counters.snapshot();
        let mut page = ScanPage::default();
        let snapshot = self.engine.snapshot();
        let range = KeyRange { start: &start, end: Some(&end) };
        let at = self.engine.seq(&snapshot);
        self.engine.scan(range, at, Direction::Forward, REMOVED_AT_ONCE, PAGE_BYTES, &mut page)?;
        drop(snapshot);
        let mut sorted = self.sort_page(dir.ino(), &page)?;
        let plain = std::mem::take(&mut sorted.plain);
        answer.directories.extend(sorted.directories.iter().map(|name| NameBuf::from_slice(name)));
        let files = self.remove_plain(caller, dir, &plain, &counters_before, &mut sorted.others)?;
        answer.count(files, u64::from(files > 0));
        for name in sorted.others {
            answer.add(name, self.unlink(caller, dir, name))?;
        }
        if answer.files != page.len() as u64 {
            // A name is left, or somebody else has removed it.
            answer.emptied = None;
        }
        if let Some(last) = page.iter().last().filter(|_| page.more) {
            answer.last = name_of(last.key)?.into();
            answer.is_end = false;
        }
        Ok(answer)
    }

    /// As `remove_files`, inside a transaction: its journal has each removal, and its commit is one anyway.
    fn remove_files_recorded(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        before: Option<&RemovedFiles>,
    ) -> Result<RemovedFiles, FsError> {
        let mut answer = RemovedFiles::begin(before);
        let after = before.map(|before| before.last.as_slice());
        let entries = self.readdir(caller, dir, after, REMOVED_AT_ONCE)?;
        for entry in &entries {
            if entry.kind == FileKind::Directory {
                answer.directories.push(entry.name.clone());
            } else {
                answer.add(&entry.name, self.unlink(caller, dir, &entry.name))?;
            }
        }
        if let Some(last) = entries.last().filter(|_| entries.len() == REMOVED_AT_ONCE) {
            answer.last = last.name.clone();
            answer.is_end = false;
        }
        Ok(answer)
    }

    /// Whether a directory is empty because these steps have removed all its names and no call has added one.
    /// The caller holds its children exclusively.
    pub(super) fn is_still_empty(&self, dir: &NodeRef, removed: &RemovedFiles) -> bool {
        debug_assert!(dir.children.is_locked_exclusive(), "a call that adds a name has counted it");
        removed.is_end
            && removed.emptied.as_ref().is_some_and(|emptied| {
                NodeRef::ptr_eq(dir, &emptied.dir)
                    && dir.pending_times.get().count == emptied.changes
                    && self.call_gate.calls_alone() == emptied.calls_alone
            })
    }

    /// Sorts the names of a page of this directory.
    fn sort_page<'a>(&self, dir: u64, page: &'a ScanPage) -> Result<Sorted<'a>, FsError> {
        let mut sorted = Sorted::default();
        sorted.plain.reserve(REMOVED_AT_ONCE);
        for entry in page.iter() {
            let name = name_of(entry.key)?;
            if is_receive_directory(dir, name) {
                continue;
            }
            let dentry = Dentry::decode(entry.value)?.in_volume(volume_of(dir));
            if self.leaves_out(dir, &dentry) {
                continue;
            }
            match dentry {
                _ if dentry.kind() == FileKind::Directory => sorted.directories.push(name),
                Dentry::Embedded(inode) if inode.ino != dir => {
                    sorted.plain.push(PlainName { key: entry.key, name, inode });
                }
                _ => sorted.others.push(name),
            }
        }
        Ok(sorted)
    }

    /// Removes names of files by the records in a page, in one commit. Returns their number. Those that it
    /// cannot remove so join the `others`.
    fn remove_plain<'a>(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        names: &[PlainName<'a>],
        counters_before: &CounterSnapshot,
        others: &mut Vec<&'a [u8]>,
    ) -> Result<u64, FsError> {
        let keys: Vec<&[u8]> = names.iter().map(|name| name.key).collect();
        let guard = self.engine.lock(&keys);
        // A record that becomes an orphan takes its slices along, as in `unlink`.
        let pin = self.engine.pin()?;
        let now = self.now();
        let mut files = Vec::with_capacity(names.len());
        let (mut permitted, mut refused) = (None, None);
        for name in names {
            let is_current = || self.version_counters.at(name.key) == counters_before.at(name.key);
            let state = || NodeState::new(&name.inode, RecordLocation::Dentry(dir.ino(), name.name.into()));
            let node = match self.inode_cache.get_or_insert(name.inode.ino, is_current, state) {
                NodeLookup::Node(node) => node,
                NodeLookup::Dying(_) | NodeLookup::Stale => {
                    others.push(name.name);
                    continue;
                }
                NodeLookup::Refused(e) => return Err(e.into()),
            };
            let uid = node.state.read().attrs.uid;
            if permitted != Some(uid) {
                if let Err(e) = self.permit_removal(caller, dir, uid) {
                    refused = Some(e);
                    break;
                }
                permitted = Some(uid);
            }
            files.push((name, node));
        }
        files.sort_unstable_by_key(|(_, node)| node.ino());
        let mut scratch = Scratch::take();
        let mut leaving: Vec<(&NodeRef, StateWriteGuard<'_>, Departure)> = Vec::with_capacity(files.len());
        let mut last_ino = None;
        for (name, node) in &files {
            if last_ino.replace(node.ino()) == Some(node.ino()) {
                others.push(name.name);
                continue;
            }
            let state = node.state.write();
            if !is_plain_at(&state, dir.ino(), name.name) {
                others.push(name.name);
                continue;
            }
            match self.plan_departure(node, &state, now, &mut scratch.batch) {
                Ok(departure) => leaving.push((node, state, departure)),
                Err(e) => {
                    leaving.iter().for_each(|(node, ..)| Self::cancel_departure(node));
                    return Err(e);
                }
            }
            scratch.batch.delete(name.key);
        }
        if !leaving.is_empty()
            && let Err(e) = self.commit(&scratch.batch, Admit::Reserve)
        {
            leaving.iter().for_each(|(node, ..)| Self::cancel_departure(node));
            return Err(e);
        }
        let mut orphans = false;
        for (node, state, departure) in &mut leaving {
            // The key of the record is the key of the name, so this moves the counter of both.
            self.finish_departure(node, state, *departure, now);
            orphans |= *departure == Departure::Orphaned;
        }
        let removed = leaving.len() as u64;
        drop(leaving);
        if removed > 0 {
            self.defer_times(dir, now);
        }
        drop((files, pin, guard));
        if orphans {
            self.reap_after_commit();
        }
        refused.map_or(Ok(removed), Err)
    }
}

/// Whether a file's record lies at this name and has everything that its removal needs.
fn is_plain_at(state: &NodeState, dir: u64, name: &[u8]) -> bool {
    let is_here =
        matches!(&state.location, RecordLocation::Dentry(at, here) if *at == dir && here.as_slice() == name);
    is_here && state.layout == Layout::Inline && state.attrs.flags & flag::XATTRS == 0
}

/// The name in the key of a dentry.
fn name_of(key: &[u8]) -> Result<&[u8], FsError> {
    match Key::decode(key)? {
        Key::Dentry(_, _, name) => Ok(name),
        _ => Err(WRONG_RANGE.into()),
    }
}
