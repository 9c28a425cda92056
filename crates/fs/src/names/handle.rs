//! Directories as `readdir` and `seekdir` see them: positions are numbers.
//!
//! # Invariants
//! 1. A cookie is one more than the number of entries before it: 1 is `.`, 2 is `..`, 3 is the first name.
//! 2. `marks` holds, by cookie, the name that came right before: for the last `RING` cookies each, before them for every `SPARSE`th.
//! 3. Reading on from the last cookie, or from one that is marked, is exact by name: names that come or go elsewhere do not shift it.
//!    From any other cookie the walk counts on from the nearest mark before it.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use warpfire_format::fs::FileKind;
use warpfire_meta::Storage;

use super::DirEntry;
use crate::acl::{Caller, Perm};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{NameBuf, NodeRef};
use crate::op::CallGuard;

/// Latest cookies that are all marked.
const RING: u64 = 4096;

/// Older cookies are marked once in so many, twice as many each time there are `MARKS_MAX`.
const SPARSE: u64 = 1024;

/// Marks of one handle: 2^15 names of some 40 bytes are about a megabyte.
const MARKS_MAX: usize = 1 << 15;

/// Cookie of `.`; 0 is before it.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// Takes an entry's cookie, name and node; says whether it has no room for it.
pub type HandleVisitor<'v> = dyn FnMut(u64, &[u8], &NodeRef) -> bool + 'v;

/// An open directory.
#[derive(Debug)]
pub struct DirHandle {
    dir: NodeRef,
    marks: Mutex<CookieMarks>,
}

#[derive(Debug)]
struct CookieMarks {
    names: BTreeMap<u64, NameBuf>,
    sparse: u64,
    newest: u64,
}

impl CookieMarks {
    fn new() -> CookieMarks {
        CookieMarks { names: BTreeMap::new(), sparse: SPARSE, newest: 0 }
    }

    fn add(&mut self, cookie: u64, name: &NameBuf) {
        self.names.insert(cookie, name.clone());
        self.newest = self.newest.max(cookie);
        if let Some(old) = self.newest.checked_sub(RING)
            && !old.is_multiple_of(self.sparse)
        {
            self.names.remove(&old);
        }
        if self.names.len() > MARKS_MAX {
            self.sparse *= 2;
            let (sparse, ring_start) = (self.sparse, self.newest.saturating_sub(RING));
            self.names.retain(|cookie, _| *cookie > ring_start || cookie.is_multiple_of(sparse));
        }
    }

    /// The nearest mark at or before the cookie.
    fn before(&self, cookie: u64) -> (u64, Option<NameBuf>) {
        let mark = self.names.range(..=cookie).next_back();
        mark.map_or((DOT_DOT, None), |(at, name)| (*at, Some(name.clone())))
    }
}

impl DirHandle {
    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &NodeRef {
        &self.dir
    }

    fn rewind(&self) {
        *self.marks.lock() = CookieMarks::new();
    }
}

impl<E: Storage> Fs<E> {
    /// Opens a directory for reading.
    ///
    /// # Errors
    /// `NotDirectory`, `AccessDenied`.
    pub fn opendir(&self, caller: &Caller<'_>, dir: &NodeRef) -> Result<DirHandle, FsError> {
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        self.access(caller, dir, Perm::READ)?;
        Ok(DirHandle { dir: NodeRef::clone(dir), marks: Mutex::new(CookieMarks::new()) })
    }

    /// Up to `max` entries after a cookie, 0 for the start, each with the cookie after it. `.` and `..` come first. Empty at the end.
    ///
    /// # Errors
    /// What reading the store says.
    pub fn read_handle(
        &self,
        handle: &DirHandle,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<(u64, DirEntry)>, FsError> {
        let _guard = self.enter_handle();
        let mut entries = Vec::with_capacity(max.min(1024));
        let own = |name: &[u8], ino| DirEntry { name: name.into(), ino, kind: FileKind::Directory };
        if cookie == 0 {
            handle.rewind();
            self.renew_atime_if_due(&handle.dir)?;
        }
        if cookie < DOT && entries.len() < max {
            entries.push((DOT, own(b".", handle.dir.ino())));
        }
        if cookie < DOT_DOT && entries.len() < max {
            let parent = self.parent(&handle.dir).map_or(handle.dir.ino(), |p| p.ino());
            entries.push((DOT_DOT, own(b"..", parent)));
        }
        if entries.len() == max || handle.dir.state.read().is_unlinked() {
            return Ok(entries);
        }
        let Some((mut at, after)) = self.name_before(handle, cookie)? else { return Ok(entries) };
        let names = self.list_recorded(&handle.dir, after.as_deref(), max - entries.len())?;
        let mut marks = handle.marks.lock();
        for entry in names {
            at += 1;
            marks.add(at, &entry.name);
            entries.push((at, entry));
        }
        Ok(entries)
    }

    /// Visits entries after a cookie, 0 for the start, each as the cookie after it, its name and its node, until there are no more or
    /// `visit` says that it has no room for this one. `.` and `..` come first. `at_once` is how many names are read ahead of the visits.
    ///
    /// # Errors
    /// What reading the store says.
    pub fn visit_handle(
        &self,
        handle: &DirHandle,
        cookie: u64,
        at_once: usize,
        visit: &mut HandleVisitor<'_>,
    ) -> Result<(), FsError> {
        let _guard = self.enter_handle();
        if cookie == 0 {
            handle.rewind();
            self.renew_atime_if_due(&handle.dir)?;
        }
        if cookie < DOT && visit(DOT, b".", &handle.dir) {
            return Ok(());
        }
        if cookie < DOT_DOT {
            let parent = self.parent(&handle.dir).unwrap_or_else(|_| NodeRef::clone(&handle.dir));
            if visit(DOT_DOT, b"..", &parent) {
                return Ok(());
            }
        }
        if handle.dir.state.read().is_unlinked() {
            return Ok(());
        }
        let Some((mut at, after)) = self.name_before(handle, cookie)? else { return Ok(()) };
        self.visit_recorded(&handle.dir, after.as_deref(), at_once, &mut |name, node| {
            at += 1;
            // A name that went while it was read has its number all the same.
            let full = node.is_some_and(|node| visit(at, name, node));
            if !full {
                handle.marks.lock().add(at, &name.into());
            }
            full
        })
    }

    /// One guard for all that a call on a handle does. Inside a transaction its parts are calls of their own, so that they are written down.
    fn enter_handle(&self) -> Option<CallGuard<'_, Fs<E>>> {
        (!self.call_gate.is_transaction()).then(|| self.enter_unrecorded())
    }

    /// As `names_after`, written down inside a transaction. Who asks was asked when the handle was opened.
    fn list_recorded(
        &self,
        dir: &NodeRef,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<DirEntry>, FsError> {
        if self.call_gate.is_transaction() {
            self.readdir(&Caller::ROOT, dir, after, max)
        } else {
            self.names_after(dir.ino(), after, max)
        }
    }

    /// The number of the last entry at or before a cookie, and its name if it is not `..`; `None` if the directory ends before.
    fn name_before(
        &self,
        handle: &DirHandle,
        cookie: u64,
    ) -> Result<Option<(u64, Option<NameBuf>)>, FsError> {
        let first = cookie.max(DOT_DOT);
        let (mut at, mut after) = handle.marks.lock().before(first);
        while at < first {
            let skip = usize::try_from(first - at).unwrap_or(usize::MAX).min(1024);
            let skipped = self.list_recorded(&handle.dir, after.as_deref(), skip)?;
            let Some(last) = skipped.last() else { return Ok(None) };
            at += skipped.len() as u64;
            after = Some(last.name.clone());
        }
        Ok(Some((at, after)))
    }
}
