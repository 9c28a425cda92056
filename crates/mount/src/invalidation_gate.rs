//! Keeps the kernel's caches right while the commit of a transaction changes the filesystem.
//!
//! The kernel may cache names, attributes and data for ever, because it makes every change itself. The
//! exception is the commit of a transaction: it changes the filesystem without the kernel. So such a commit
//! is *announced*, the kernel's caches are emptied, and the commit is made when nothing stale can be in them.
//! A *pass* is a guard that an answer to the kernel holds. A cache entry that the commit makes wrong is
//! *stale*; the gate *notes* files and names that the kernel may have cached again since its caches were
//! emptied.
//!
//! ```text
//!          announce()             something was noted          nothing was noted            finish()
//!   caching ─────────▶ announced ────────────────────▶ announced ───────────────▶ committing ──▶ caching
//!                  (caches are emptied)         (noted files emptied again)     (no pass exists)
//!
//!   The committer looks at the notes under `lock_exclusive()`.
//! ```
//!
//! # Invariants
//! 1. A serving thread that answers with something cacheable has a pass from before it reads the filesystem
//!    until the answer is sent.
//! 2. While a commit is announced, names and attributes are sent with a cache time of zero
//!    (`tests::the_kernel_may_cache_answers_unless_a_commit_is_announced`). Entries that the kernel caches
//!    regardless of that time are noted if the commit changes them: data, access control lists, names that
//!    were renamed (`tests::only_files_that_the_commit_changes_are_noted`).
//! 3. The commit is made while no pass exists (`tests::no_pass_is_given_under_an_exclusive_pass`), after a
//!    round of emptying during which nothing was noted. So after a commit the kernel holds no cached answer
//!    from before it. The rounds are bounded (`views/announce.rs`). If the last round ends with notes, the
//!    kernel may have the noted pages from before the commit until its caches are emptied once more. Until
//!    then no such page takes the commit back (`stale_pages.rs`).
//! 4. A thread with a pass does not wait for the kernel, and caches are emptied without the exclusive pass:
//!    the kernel may wait for answers while it empties them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use warpfire_env::{RankedReadGuard, RankedRwLock, RankedWriteGuard};

use crate::lock_ranks::INVALIDATION_GATE;
use crate::stale_pages::{PageSet, StalePages};

/// How long the kernel may cache names and attributes: for ever. It is notified of every change that it does
/// not make.
pub(crate) const CACHE_TIME: Duration = Duration::from_secs(1 << 30);

/// The gate of one mount. Answers pass through it; commits close it.
#[derive(Default)]
pub(crate) struct InvalidationGate {
    state: RankedRwLock<INVALIDATION_GATE, GateState>,
    passes: AtomicU64,
}

#[derive(Default)]
struct GateState {
    announced: Option<AnnouncedCommit>,
    /// Pages that the last commit has made stale, until the kernel has dropped them.
    stale_pages: Option<StalePages>,
}

struct AnnouncedCommit {
    /// Inode numbers of the files that the commit changes; `None` until they are known.
    files: Option<BTreeSet<u64>>,
    stale: Mutex<StaleEntries>,
}

/// Entries that the kernel may have cached since its caches were last emptied, although a commit is
/// announced.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct StaleEntries {
    /// Inode numbers of files with cached data or access control lists.
    pub(crate) files: BTreeSet<u64>,
    /// The pages that were sent, of files with cached data.
    pub(crate) pages: BTreeMap<u64, PageSet>,
    /// Whether the kernel has renamed something.
    pub(crate) names: bool,
}

impl StaleEntries {
    /// Whether nothing was noted.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.names
    }
}

/// Held by the committer while its commit is announced.
pub(crate) struct Announcement<'a>(&'a InvalidationGate);

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        // Otherwise no commit could be announced any more.
        if std::thread::panicking() {
            self.0.lock_exclusive().finish();
            self.0.forget_stale_pages();
        }
    }
}

/// Held from before the filesystem is read until the answer is sent.
pub(crate) struct GatePass<'a>(RankedReadGuard<'a, INVALIDATION_GATE, GateState>);

/// Held by the committer. No other pass exists at the same time.
pub(crate) struct ExclusivePass<'a>(RankedWriteGuard<'a, INVALIDATION_GATE, GateState>);

impl InvalidationGate {
    /// Waits while a commit is being made, then returns a pass.
    pub(crate) fn pass(&self) -> GatePass<'_> {
        self.passes.fetch_add(1, Ordering::Relaxed);
        GatePass(self.state.read())
    }

    /// How many passes there have been. It counts uses of a view, to find views that are idle.
    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Announces a commit. Until [`InvalidationGate::set_changed_files`] every file is noted. The committer
    /// ends the announcement by [`ExclusivePass::finish`]; if it panics, the drop of the guard ends it.
    pub(crate) fn announce(&self) -> Announcement<'_> {
        let mut state = self.state.write();
        let is_free = state.announced.is_none() && state.stale_pages.is_none();
        assert!(is_free, "one commit at a time is announced");
        state.announced = Some(AnnouncedCommit { files: None, stale: Mutex::default() });
        Announcement(self)
    }

    /// Sets the files that the announced commit changes. From now on only these are noted. Earlier notes are
    /// dropped: the caller empties the caches of all these files next.
    pub(crate) fn set_changed_files(&self, files: BTreeSet<u64>) {
        let announced = &mut self.state.write().announced;
        assert!(announced.is_some(), "only an announced commit has changed files");
        *announced = Some(AnnouncedCommit { files: Some(files), stale: Mutex::default() });
    }

    /// Waits until no pass exists, and keeps new ones waiting.
    pub(crate) fn lock_exclusive(&self) -> ExclusivePass<'_> {
        ExclusivePass(self.state.write())
    }

    /// Ends the time in which pages are merged: the kernel has dropped the stale ones.
    pub(crate) fn forget_stale_pages(&self) {
        let forgotten = self.state.write().stale_pages.take();
        // Dropped without the lock: the contents from before the commit release their slices.
        drop(forgotten);
    }
}

impl GatePass<'_> {
    /// How long the kernel may cache names and attributes of this answer.
    pub(crate) fn cache_time(&self) -> Duration {
        if self.0.announced.is_some() { Duration::ZERO } else { CACHE_TIME }
    }

    /// Notes that this request puts an access control list of the file into the kernel's cache.
    pub(crate) fn note_acl(&self, ino: u64) {
        self.note_file(ino, 0..0);
    }

    /// Notes that this request puts this range of bytes of the file into the kernel's cache.
    pub(crate) fn note_data(&self, ino: u64, range: Range<u64>) {
        self.note_file(ino, range);
    }

    fn note_file(&self, ino: u64, range: Range<u64>) {
        if let Some(announced) = &self.0.announced
            && announced.files.as_ref().is_none_or(|files| files.contains(&ino))
        {
            let mut stale = announced.stale.lock();
            stale.files.insert(ino);
            if !range.is_empty() {
                stale.pages.entry(ino).or_default().add_bytes(range);
            }
        }
    }

    /// The pages that the kernel may still have from before a commit.
    pub(crate) fn stale_pages(&self) -> Option<&StalePages> {
        self.0.stale_pages.as_ref()
    }

    /// Notes that the kernel moves a cached name: by a rename, after which it does not look the name up
    /// again.
    pub(crate) fn note_names(&self) {
        if let Some(announced) = &self.0.announced {
            announced.stale.lock().names = true;
        }
    }
}

impl ExclusivePass<'_> {
    /// Takes the entries that were noted since the last call.
    pub(crate) fn take_stale(&self) -> StaleEntries {
        self.0
            .announced
            .as_ref()
            .map_or_else(StaleEntries::default, |announced| std::mem::take(&mut *announced.stale.lock()))
    }

    /// Ends the announcement: the commit has been made, or has failed.
    pub(crate) fn finish(mut self) {
        self.0.announced = None;
    }

    /// As `finish`, after a commit that has made pages stale. Until `forget_stale_pages` they are merged.
    pub(crate) fn finish_with(mut self, stale_pages: StalePages) {
        self.0.announced = None;
        self.0.stale_pages = Some(stale_pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_may_cache_answers_unless_a_commit_is_announced() {
        let gate = InvalidationGate::default();
        assert_eq!(gate.pass().cache_time(), CACHE_TIME);
        gate.announce();
        assert_eq!(gate.pass().cache_time(), Duration::ZERO);
        gate.lock_exclusive().finish();
        assert_eq!(gate.pass().cache_time(), CACHE_TIME);
    }

    #[test]
    fn an_announcement_ends_with_its_committer_also_by_a_panic() {
        let gate = InvalidationGate::default();
        std::thread::scope(|scope| {
            let committer = scope.spawn(|| {
                let _announcement = gate.announce();
                panic!("on purpose");
            });
            assert!(committer.join().is_err());
        });
        assert_eq!(gate.pass().cache_time(), CACHE_TIME);
        gate.announce();
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_thread_with_a_pass_does_not_ask_for_another() {
        let thread = std::thread::spawn(|| {
            let gate = InvalidationGate::default();
            let _pass = gate.pass();
            drop(gate.pass());
        });
        assert!(thread.join().is_err(), "a committer may wait between the two passes");
    }

    #[test]
    fn only_files_that_the_commit_changes_are_noted() {
        let gate = InvalidationGate::default();
        gate.pass().note_acl(1);
        gate.announce();
        gate.pass().note_data(2, 0..1);
        gate.set_changed_files(BTreeSet::from([3, 4]));
        gate.pass().note_data(5, 0..1);
        assert!(gate.lock_exclusive().take_stale().is_empty());
        gate.pass().note_acl(4);
        gate.pass().note_data(3, 4096..8192);
        gate.pass().note_data(3, 100..101);
        gate.pass().note_names();
        let exclusive = gate.lock_exclusive();
        let stale = exclusive.take_stale();
        assert_eq!(stale.files, BTreeSet::from([3, 4]));
        assert!(stale.names);
        let mut both = PageSet::default();
        both.add_bytes(0..8192);
        assert_eq!(stale.pages, BTreeMap::from([(3, both)]));
        assert!(exclusive.take_stale().is_empty());
    }

    #[test]
    fn no_pass_is_given_under_an_exclusive_pass() {
        let gate = InvalidationGate::default();
        let exclusive = gate.lock_exclusive();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(gate.pass()));
            assert!(gate.state.try_read().is_none());
            exclusive.finish();
            waiting.join().unwrap();
        });
        assert_eq!(gate.passes(), 1);
    }
}
