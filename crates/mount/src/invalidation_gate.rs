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
//!    from before it. The rounds are bounded: see `views/announce.rs`.
//! 4. A thread with a pass does not wait for the kernel, and caches are emptied without the exclusive pass:
//!    the kernel may wait for answers while it empties them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use warpfire_env::{RankedReadGuard, RankedRwLock, RankedWriteGuard};

use crate::lock_ranks::INVALIDATION_GATE;

/// How long the kernel may cache names and attributes: for ever. It is notified of every change that it does
/// not make.
const CACHE_TIME: Duration = Duration::from_secs(1 << 30);

/// The gate of one mount. Answers pass through it; commits close it.
#[derive(Default)]
pub(crate) struct InvalidationGate {
    announced: RankedRwLock<INVALIDATION_GATE, Option<AnnouncedCommit>>,
    passes: AtomicU64,
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
    /// Whether the kernel has renamed something.
    pub(crate) names: bool,
}

impl StaleEntries {
    /// Whether nothing was noted.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.names
    }
}

/// Held from before the filesystem is read until the answer is sent.
pub(crate) struct GatePass<'a>(RankedReadGuard<'a, INVALIDATION_GATE, Option<AnnouncedCommit>>);

/// Held by the committer. No other pass exists at the same time.
pub(crate) struct ExclusivePass<'a>(RankedWriteGuard<'a, INVALIDATION_GATE, Option<AnnouncedCommit>>);

impl InvalidationGate {
    /// Waits while a commit is being made, then returns a pass.
    pub(crate) fn pass(&self) -> GatePass<'_> {
        self.passes.fetch_add(1, Ordering::Relaxed);
        GatePass(self.announced.read())
    }

    /// How many passes there have been. It counts uses of a view, to find views that are idle.
    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Announces a commit. Until [`InvalidationGate::set_changed_files`] every file is noted.
    pub(crate) fn announce(&self) {
        let mut announced = self.announced.write();
        assert!(announced.is_none(), "one commit at a time is announced");
        *announced = Some(AnnouncedCommit { files: None, stale: Mutex::default() });
    }

    /// Sets the files that the announced commit changes. From now on only these are noted. Earlier notes are
    /// dropped: the caller empties the caches of all these files next.
    pub(crate) fn set_changed_files(&self, files: BTreeSet<u64>) {
        let mut announced = self.announced.write();
        assert!(announced.is_some(), "only an announced commit has changed files");
        *announced = Some(AnnouncedCommit { files: Some(files), stale: Mutex::default() });
    }

    /// Waits until no pass exists, and keeps new ones waiting.
    pub(crate) fn lock_exclusive(&self) -> ExclusivePass<'_> {
        ExclusivePass(self.announced.write())
    }
}

impl GatePass<'_> {
    /// How long the kernel may cache names and attributes of this answer.
    pub(crate) fn cache_time(&self) -> Duration {
        if self.0.is_some() { Duration::ZERO } else { CACHE_TIME }
    }

    /// Notes that this request puts data or an access control list of the file into the kernel's cache.
    pub(crate) fn note_file(&self, ino: u64) {
        if let Some(announced) = &*self.0
            && announced.files.as_ref().is_none_or(|files| files.contains(&ino))
        {
            announced.stale.lock().files.insert(ino);
        }
    }

    /// Notes that the kernel moves a cached name: by a rename, after which it does not look the name up
    /// again.
    pub(crate) fn note_names(&self) {
        if let Some(announced) = &*self.0 {
            announced.stale.lock().names = true;
        }
    }
}

impl ExclusivePass<'_> {
    /// Takes the entries that were noted since the last call.
    pub(crate) fn take_stale(&self) -> StaleEntries {
        self.0
            .as_ref()
            .map_or_else(StaleEntries::default, |announced| std::mem::take(&mut *announced.stale.lock()))
    }

    /// Ends the announcement: the commit has been made, or has failed.
    pub(crate) fn finish(mut self) {
        *self.0 = None;
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
        gate.pass().note_file(1);
        gate.announce();
        gate.pass().note_file(2);
        gate.set_changed_files(BTreeSet::from([3, 4]));
        gate.pass().note_file(5);
        assert!(gate.lock_exclusive().take_stale().is_empty());
        gate.pass().note_file(3);
        gate.pass().note_names();
        let exclusive = gate.lock_exclusive();
        assert_eq!(exclusive.take_stale(), StaleEntries { files: BTreeSet::from([3]), names: true });
        assert!(exclusive.take_stale().is_empty());
    }

    #[test]
    fn no_pass_is_given_under_an_exclusive_pass() {
        let gate = InvalidationGate::default();
        let exclusive = gate.lock_exclusive();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(gate.pass()));
            assert!(gate.announced.try_read().is_none());
            exclusive.finish();
            waiting.join().unwrap();
        });
        assert_eq!(gate.passes(), 1);
    }
}
