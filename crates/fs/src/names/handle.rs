//! Directory handles: open directories with numbers as positions, as `readdir` and `seekdir` need them.
//!
//! # Terms
//! A *cookie* is the position after an entry: 0 is the start, 1 is after `.`, 2 after `..`, 3 after the first
//! name. A *mark* is a cookie with the name before it.
//!
//! # Invariants
//! 1. Marked are the last [`RING`] cookies, and older ones at every `sparse`th cookie (`CookieMarks::add`).
//! 2. A listing that goes on from a marked cookie goes on after that name, so names that appear or disappear
//!    elsewhere do not shift it. From any other cookie it counts on from the nearest mark before
//!    (`name_before`; the tests `names`).
//! 3. A handle has at most [`MARKS_MAX`] marks: twice the distance of the old ones makes room (assert in
//!    `add`; `tests::marks_are_bounded_also_for_a_listing_that_goes_back`).
//! 4. A handle and its marks are charged to an account while it lives. A name without room for its mark is
//!    not listed: the listing ends before it, and goes on with an error (`add` comes before `visit`;
//!    `tests::memory::open_directories_are_charged_by_their_bytes`).

use std::collections::BTreeMap;

use warpfire_env::sync::Mutex;
use warpfire_format::fs::FileKind;
use warpfire_meta::{MemoryAccount, MemoryCharge, MemoryNeed, MemoryRefused, Storage};

use super::DirEntry;
use crate::acl::{Caller, Perm};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{NameBuf, NodeRef};
use crate::op::CallGuard;

/// The number of latest cookies that are all marked.
const RING: u64 = 4096;

/// The first distance of marks among older cookies. It doubles each time there are `MARKS_MAX` marks.
const SPARSE: u64 = 1024;

/// Marks of one handle: 2^15 names of some 40 bytes are about three megabytes.
const MARKS_MAX: usize = 1 << 15;

/// Memory of a handle without its marks, with its place in the table of a mount.
const HANDLE_BYTES: usize = 512;

/// Memory of a mark beside a long name, in a tree with half-full nodes.
const MARK_BYTES: usize = 2 * size_of::<(u64, NameBuf)>();

/// The cookie after `.`.
const DOT: u64 = 1;

/// The cookie after `..`.
const DOT_DOT: u64 = 2;

/// Receives an entry's cookie, name and node; returns whether it has no room for the entry.
pub type HandleVisitor<'v> = dyn FnMut(u64, &[u8], &NodeRef) -> bool + 'v;

/// An open directory.
#[derive(Debug)]
pub struct DirHandle {
    dir: NodeRef,
    marks: Mutex<CookieMarks>,
}

/// The marks of one handle.
#[derive(Debug)]
struct CookieMarks {
    names: BTreeMap<u64, NameBuf>,
    /// Memory of the handle and all marks.
    bytes: usize,
    charge: MemoryCharge,
    need: MemoryNeed,
    /// Distance of marks among older cookies.
    sparse: u64,
    /// The highest cookie that was marked.
    newest: u64,
}

fn bytes_of_mark(name: &NameBuf) -> usize {
    MARK_BYTES + if name.spilled() { name.capacity() } else { 0 }
}

impl CookieMarks {
    /// No marks yet.
    ///
    /// # Errors
    /// The limit that refuses another handle.
    fn new(account: &MemoryAccount) -> Result<CookieMarks, MemoryRefused> {
        let (bytes, mut charge) = (HANDLE_BYTES, account.fine_charge());
        let need = if account.has_share() { MemoryNeed::Needed } else { MemoryNeed::Taken };
        charge.grow_to(bytes, need)?;
        Ok(CookieMarks { names: BTreeMap::new(), bytes, charge, need, sparse: SPARSE, newest: 0 })
    }

    /// Forgets all marks.
    fn clear(&mut self) {
        self.names.clear();
        (self.bytes, self.sparse, self.newest) = (HANDLE_BYTES, SPARSE, 0);
        self.charge.shrink_to(self.bytes);
    }

    /// Marks a cookie with the name before it.
    ///
    /// # Errors
    /// The limit that refuses it: there is no mark then.
    fn add(&mut self, cookie: u64, name: &[u8]) -> Result<(), MemoryRefused> {
        assert!(cookie > DOT_DOT, "'.' and '..' need no mark");
        let name = NameBuf::from_slice(name);
        self.charge.grow_to(self.bytes + bytes_of_mark(&name), self.need)?;
        self.remove(cookie);
        self.bytes += bytes_of_mark(&name);
        self.names.insert(cookie, name);
        self.newest = self.newest.max(cookie);
        // One cookie leaves the ring for each that enters it.
        if let Some(old) = self.newest.checked_sub(RING)
            && !old.is_multiple_of(self.sparse)
        {
            self.remove(old);
        }
        // A listing that goes on from older cookies marks these too, so one doubling may not be enough. The
        // ring alone is shorter than the limit: cookies past the newest do not exist.
        while self.names.len() > MARKS_MAX {
            self.sparse *= 2;
            let sparse = self.sparse;
            let ring_start = self.newest.saturating_sub(RING);
            let bytes = &mut self.bytes;
            self.names.retain(|cookie, name| {
                let stays = *cookie > ring_start || cookie.is_multiple_of(sparse);
                *bytes -= if stays { 0 } else { bytes_of_mark(name) };
                stays
            });
            self.charge.shrink_to(self.bytes);
        }
        debug_assert!(self.names.len() <= MARKS_MAX, "a handle has a bounded number of marks");
        Ok(())
    }

    fn remove(&mut self, cookie: u64) {
        if let Some(name) = self.names.remove(&cookie) {
            self.bytes -= bytes_of_mark(&name);
        }
    }

    /// The nearest mark at or before the cookie.
    fn before(&self, cookie: u64) -> (u64, Option<NameBuf>) {
        let mark = self.names.range(..=cookie).next_back();
        debug_assert!(mark.is_none_or(|(at, _)| *at <= cookie), "a listing goes forward from its mark");
        mark.map_or((DOT_DOT, None), |(at, name)| (*at, Some(name.clone())))
    }
}

impl DirHandle {
    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &NodeRef {
        &self.dir
    }

    /// Forgets all marks: cookies count anew from the start.
    fn rewind(&self) {
        self.marks.lock().clear();
    }
}

impl<E: Storage> Fs<E> {
    /// Opens a directory for reading. Its memory is charged to the account of this filesystem.
    ///
    /// # Errors
    /// `NotDirectory`, `AccessDenied`, `Memory`.
    pub fn opendir(&self, caller: &Caller<'_>, dir: &NodeRef) -> Result<DirHandle, FsError> {
        self.opendir_charged(caller, dir, &self.memory)
    }

    /// As `opendir`, charged to this account. Only a user with a share is refused: a server opens directories
    /// to end transactions, which frees memory.
    ///
    /// # Errors
    /// As `opendir`.
    pub fn opendir_charged(
        &self,
        caller: &Caller<'_>,
        dir: &NodeRef,
        account: &MemoryAccount,
    ) -> Result<DirHandle, FsError> {
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        self.access(caller, dir, Perm::READ)?;
        Ok(DirHandle { dir: NodeRef::clone(dir), marks: Mutex::new(CookieMarks::new(account)?) })
    }

    /// Up to `max` entries after a cookie, each with the cookie after it; cookie 0 is the start. `.` and `..`
    /// come first. No entries are the end.
    ///
    /// # Errors
    /// `Damaged`, `Ended`; `Memory` if there is no room for the mark of the first entry.
    pub fn read_handle(
        &self,
        handle: &DirHandle,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<(u64, DirEntry)>, FsError> {
        let _guard = self.enter_handle();
        // A caller may ask for usize::MAX entries.
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
        // A directory that was removed while it is open still has its two dots, as on Linux.
        if entries.len() == max || handle.dir.state.read().is_unlinked() {
            return Ok(entries);
        }
        let Some((mut at, after)) = self.name_before(handle, cookie)? else { return Ok(entries) };
        let names = self.list_recorded(&handle.dir, after.as_deref(), max - entries.len())?;
        let mut marks = handle.marks.lock();
        for entry in names {
            at += 1;
            match marks.add(at, &entry.name) {
                Ok(()) => entries.push((at, entry)),
                // The next call is about this entry.
                Err(_) if !entries.is_empty() => break,
                Err(e) => return Err(e.into()),
            }
        }
        debug_assert!(entries.len() <= max, "an answer has at most the entries that were asked for");
        Ok(entries)
    }

    /// Visits the entries after a cookie, each with the cookie after it, its name and its node, until there
    /// are no more or `visit` has no room; cookie 0 is the start. `.` and `..` come first. `at_once` is the
    /// number of names that are read ahead of the visits.
    ///
    /// # Errors
    /// `Damaged`, `Ended`; `Memory` if there is no room for the mark of the first entry.
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
        let (mut refused, mut has_shown) = (None, cookie < DOT_DOT);
        self.visit_recorded(&handle.dir, after.as_deref(), at_once, &mut |name, node| {
            at += 1;
            // Before the visit, because the caller cannot take back an entry. A mark of an entry for which it
            // has no room is replaced by the next listing.
            if let Err(e) = handle.marks.lock().add(at, name) {
                refused = Some(e);
                return true;
            }
            // A name that was removed since it was read keeps its cookie, so the next ones do not shift.
            let full = node.is_some_and(|node| visit(at, name, node));
            has_shown |= node.is_some() && !full;
            full
        })?;
        // After other entries the next call has this error: an answer without any would be the end.
        match refused {
            Some(e) if !has_shown => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// One guard for a whole call on a handle. Inside a transaction there is none: the parts of the call are
    /// calls of their own, so that they are recorded.
    fn enter_handle(&self) -> Option<CallGuard<'_, Fs<E>>> {
        (!self.call_gate.is_transaction()).then(|| self.enter_unrecorded())
    }

    /// As `names_after`, and recorded inside a transaction. `opendir` has checked the caller's permissions.
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

    /// The cookie to list from, and the name before it; no name means `..`. `None` if the directory ends
    /// before the cookie.
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
        debug_assert_eq!(at, first, "the walk from a mark ends at the cookie");
        Ok(Some((at, after)))
    }
}

#[cfg(test)]
mod tests {
    use warpfire_meta::{MemoryBudget, MemoryLimits};

    use super::*;

    #[test]
    fn marks_are_bounded_also_for_a_listing_that_goes_back() {
        let budget = MemoryBudget::new(MemoryLimits::default());
        let mut marks = CookieMarks::new(&budget.account(None)).unwrap();
        let far = 40_000_000;
        marks.add(far, b"far").unwrap();
        for cookie in DOT_DOT + 1..3 * MARKS_MAX as u64 {
            marks.add(cookie, b"name").unwrap();
            assert!(marks.names.len() <= MARKS_MAX);
        }
        assert_eq!(marks.before(far).0, far);
        let bytes = HANDLE_BYTES + marks.names.len() * MARK_BYTES;
        assert_eq!(marks.bytes, bytes, "short names take no memory of their own");
        assert!(budget.used_bytes() >= bytes);
        marks.clear();
        assert!(budget.used_bytes() <= 8192);
    }
}
