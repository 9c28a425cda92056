//! Directory handles: open directories with numbers as positions, as `readdir` and `seekdir` need them.
//!
//! # Terms
//! A *cookie* is the position after an entry: 0 is the start, 1 is after `.`, 2 after `..`, 3 after the first
//! name. A *mark* is a cookie with the name before it.
//!
//! # Invariants
//! 1. Marked are the last [`RING`] cookies of the latest run of a listing, older ones at every `sparse`th
//!    cookie, and the ends of earlier runs until marks are many (`CookieMarks::add`).
//! 2. A listing that goes on from a marked cookie goes on after that name, so names that appear or disappear
//!    elsewhere do not shift it. From any other cookie it counts on from the nearest mark before
//!    (`name_before`; the tests `names`).
//! 3. A handle has at most [`MARKS_MAX`] marks: twice the distance of the old ones makes room (assert in
//!    `add`; `tests::marks_are_bounded_also_for_a_listing_that_goes_back`).
//! 4. A handle and its marks are charged to an account while it lives. A name without room for its mark is
//!    not listed: the listing ends before it, and goes on with an error (`add` comes before `visit`;
//!    `tests::memory::open_directories_are_charged_by_their_bytes`).

use std::collections::{BTreeMap, VecDeque};

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
const RING: usize = 4096;

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
    /// The names before the latest cookies, one after the other.
    ring: VecDeque<NameBuf>,
    /// The first cookie of the ring.
    ring_start: u64,
    /// Older cookies.
    older: BTreeMap<u64, NameBuf>,
    /// Memory of the handle and all marks.
    bytes: usize,
    charge: MemoryCharge,
    need: MemoryNeed,
    /// Distance of marks among older cookies.
    sparse: u64,
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
        let (ring, older) = (VecDeque::new(), BTreeMap::new());
        Ok(CookieMarks { ring, ring_start: 0, older, bytes, charge, need, sparse: SPARSE })
    }

    /// Forgets all marks.
    fn clear(&mut self) {
        self.ring.clear();
        self.older.clear();
        (self.bytes, self.sparse) = (HANDLE_BYTES, SPARSE);
        self.charge.shrink_to(self.bytes);
    }

    fn len(&self) -> usize {
        self.ring.len() + self.older.len()
    }

    /// Marks a cookie with the name before it.
    ///
    /// # Errors
    /// The limit that refuses it: there is no mark then.
    fn add(&mut self, cookie: u64, name: &[u8]) -> Result<(), MemoryRefused> {
        assert!(cookie > DOT_DOT, "'.' and '..' need no mark");
        let name = NameBuf::from_slice(name);
        self.charge.grow_to(self.bytes + bytes_of_mark(&name), self.need)?;
        self.bytes += bytes_of_mark(&name);
        let place = cookie.checked_sub(self.ring_start).filter(|place| *place <= self.ring.len() as u64);
        match place.map(|place| place as usize) {
            Some(place) if place < self.ring.len() => {
                let earlier = std::mem::replace(&mut self.ring[place], name);
                self.bytes -= bytes_of_mark(&earlier);
            }
            Some(_) if !self.ring.is_empty() => {
                self.ring.push_back(name);
                if self.ring.len() > RING {
                    self.leave_ring(false);
                }
            }
            // The listing goes on elsewhere.
            _ => {
                while !self.ring.is_empty() {
                    self.leave_ring(self.ring.len() == 1);
                }
                self.ring.push_back(name);
                self.ring_start = cookie;
            }
        }
        while self.len() > MARKS_MAX {
            self.sparse *= 2;
            let (sparse, bytes) = (self.sparse, &mut self.bytes);
            self.older.retain(|cookie, name| {
                let stays = cookie.is_multiple_of(sparse);
                *bytes -= if stays { 0 } else { bytes_of_mark(name) };
                stays
            });
            self.charge.shrink_to(self.bytes);
        }
        debug_assert!(self.len() <= MARKS_MAX, "a handle has a bounded number of marks");
        Ok(())
    }

    /// The first cookie of the ring is older from now on. Few older ones keep their marks, and the last one
    /// before a listing goes on elsewhere (`is_last`).
    fn leave_ring(&mut self, is_last: bool) {
        let Some(name) = self.ring.pop_front() else { return };
        let cookie = self.ring_start;
        self.ring_start += 1;
        let earlier = self.older.remove(&cookie);
        self.bytes -= earlier.as_ref().map_or(0, bytes_of_mark);
        if is_last || cookie.is_multiple_of(self.sparse) {
            self.older.insert(cookie, name);
        } else {
            self.bytes -= bytes_of_mark(&name);
        }
    }

    /// The nearest mark at or before the cookie.
    fn before(&self, cookie: u64) -> (u64, Option<NameBuf>) {
        let newest = self.ring_start + self.ring.len() as u64;
        let in_ring = cookie.min(newest.saturating_sub(1)).checked_sub(self.ring_start);
        let ring = in_ring.and_then(|place| {
            self.ring.get(usize::try_from(place).ok()?).map(|name| (self.ring_start + place, name))
        });
        let older = self.older.range(..=cookie).next_back().map(|(at, name)| (*at, name));
        // The ring has the newer name of a cookie that both have.
        let mark = older.filter(|(at, _)| ring.is_none_or(|(in_ring, _)| *at > in_ring)).or(ring);
        debug_assert!(mark.is_none_or(|(at, _)| at <= cookie), "a listing goes forward from its mark");
        mark.map_or((DOT_DOT, None), |(at, name)| (at, Some(name.clone())))
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

    fn marks() -> (std::sync::Arc<MemoryBudget>, CookieMarks) {
        let budget = MemoryBudget::new(MemoryLimits::default());
        let marks = CookieMarks::new(&budget.account(None)).unwrap();
        (budget, marks)
    }

    fn name(cookie: u64) -> Vec<u8> {
        format!("name {cookie}").into_bytes()
    }

    #[test]
    fn marks_are_bounded_also_for_a_listing_that_goes_back() {
        let (budget, mut marks) = marks();
        let far = 40_000_000;
        marks.add(far, b"far").unwrap();
        for cookie in DOT_DOT + 1..3 * MARKS_MAX as u64 {
            marks.add(cookie, &name(cookie)).unwrap();
            assert!(marks.len() <= MARKS_MAX);
        }
        assert_eq!(marks.before(far).0, far);
        let bytes = HANDLE_BYTES + marks.len() * MARK_BYTES;
        assert_eq!(marks.bytes, bytes, "short names take no memory of their own");
        assert!(budget.used_bytes() >= bytes);
        for turn in 0..4 * MARKS_MAX as u64 {
            // Each one is a run of its own.
            marks.add(far + 10 * turn, b"far").unwrap();
            assert!(marks.len() <= MARKS_MAX);
        }
        marks.clear();
        assert!(budget.used_bytes() <= 8192);
    }

    #[test]
    fn the_nearest_mark_has_the_name_before_its_cookie() {
        let (_budget, mut marks) = marks();
        assert_eq!(marks.before(9), (DOT_DOT, None));
        let end = 3 * RING as u64;
        for cookie in DOT_DOT + 1..end {
            marks.add(cookie, &name(cookie)).unwrap();
            assert_eq!(marks.before(cookie).0, cookie);
        }
        let check = |marks: &CookieMarks, cookie: u64, nearest: u64| {
            let (at, found) = marks.before(cookie);
            assert_eq!((at, found.as_deref()), (nearest, Some(name(nearest).as_slice())), "at {cookie}");
        };
        let newest = end - 1;
        for recent in newest + 1 - RING as u64..end {
            check(&marks, recent, recent);
        }
        check(&marks, u64::MAX, newest);
        check(&marks, SPARSE + 5, SPARSE);
        assert_eq!(marks.before(SPARSE - 1), (DOT_DOT, None));
        // Back by a little, where the ring goes on, and back by much, where a new one begins.
        for from in [newest - 100, 2000] {
            for cookie in from..from + 300 {
                marks.add(cookie, &name(cookie)).unwrap();
                check(&marks, cookie, cookie);
            }
        }
        check(&marks, newest + 199, newest + 199);
        check(&marks, u64::MAX, newest + 199);
        check(&marks, 2500, 2299);
        // A name that was listed again is the newer one, in the ring and after it has left the ring.
        marks.add(SPARSE, b"another").unwrap();
        assert_eq!(marks.before(SPARSE).1.as_deref(), Some(b"another".as_slice()));
        for cookie in SPARSE + 1..2 * end {
            marks.add(cookie, &name(cookie)).unwrap();
        }
        assert_eq!(marks.before(SPARSE).1.as_deref(), Some(b"another".as_slice()));
    }
}
