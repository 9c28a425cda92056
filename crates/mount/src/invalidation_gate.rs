//! What the kernel may keep of an answer, while the commit of a transaction changes what was answered.
//!
//! The kernel keeps names, attributes and data for good, because it makes all changes by itself; but for those that a commit of a transaction makes.
//!
//! ```text
//!              announce                    alone, noted                 alone, nothing noted
//!   keeping ─────────────▶ announcing ────────────────────▶ announcing ─────────────────────▶ committing ──▶ keeping
//!                          (caches are emptied)          (again, what was noted)          (no answers meanwhile)
//! ```
//!
//! # Invariants
//! 1. Who answers with something that the kernel may keep has a pass from before it looks until the answer is sent.
//! 2. While a commit is announced, names and attributes are answered as not to be kept. What the kernel keeps all the same, and the commit changes, is
//!    noted: data, lists of permissions, names that were moved.
//! 3. A commit is made while no pass is out, and after caches were emptied without anything being noted since. So an answer that the kernel has is of
//!    before the commit only if it may not be kept, and none that is kept is of before.
//! 4. Who has a pass does not wait for the kernel, and caches are emptied while passes are given out: emptying them may wait for answers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long the kernel may keep names and attributes: for good. It is told of every change that it does not make.
const CACHE_TIME: Duration = Duration::from_secs(1 << 30);

/// Given to those who answer.
#[derive(Default)]
pub(crate) struct InvalidationGate {
    announced: RwLock<Option<AnnouncedCommit>>,
    passes: AtomicU64,
}

struct AnnouncedCommit {
    /// Files that the commit changes; `None` until that is known.
    files: Option<BTreeSet<u64>>,
    stale: Mutex<StaleEntries>,
}

/// What the kernel was told since its caches were emptied last, and keeps.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct StaleEntries {
    /// Of these files data or permissions.
    pub(crate) files: BTreeSet<u64>,
    /// Names that were moved.
    pub(crate) names: bool,
}

impl StaleEntries {
    /// Whether nothing was.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.names
    }
}

/// Held from before one looks at the filesystem until the answer is sent.
pub(crate) struct GatePass<'a>(RwLockReadGuard<'a, Option<AnnouncedCommit>>);

/// Held by who commits: no pass is out.
pub(crate) struct ExclusivePass<'a>(RwLockWriteGuard<'a, Option<AnnouncedCommit>>);

impl InvalidationGate {
    /// A pass, once no commit is being made.
    pub(crate) fn pass(&self) -> GatePass<'_> {
        self.passes.fetch_add(1, Ordering::Relaxed);
        GatePass(self.announced.read())
    }

    /// How many passes have been given out.
    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// A commit comes. Until `changes` everything is noted.
    pub(crate) fn announce(&self) {
        *self.announced.write() = Some(AnnouncedCommit { files: None, stale: Mutex::default() });
    }

    /// The announced commit changes these files, and no others need to be noted.
    pub(crate) fn set_changed_files(&self, files: BTreeSet<u64>) {
        *self.announced.write() = Some(AnnouncedCommit { files: Some(files), stale: Mutex::default() });
    }

    /// Waits until no pass is out.
    pub(crate) fn lock_exclusive(&self) -> ExclusivePass<'_> {
        ExclusivePass(self.announced.write())
    }
}

impl GatePass<'_> {
    /// How long the kernel may keep what it is told of names and attributes.
    pub(crate) fn cache_time(&self) -> Duration {
        if self.0.is_some() { Duration::ZERO } else { CACHE_TIME }
    }

    /// The kernel is told, or told us, what it keeps of this file.
    pub(crate) fn note_file(&self, ino: u64) {
        if let Some(announced) = &*self.0
            && announced.files.as_ref().is_none_or(|files| files.contains(&ino))
        {
            announced.stale.lock().files.insert(ino);
        }
    }

    /// The kernel moves names by itself.
    pub(crate) fn note_names(&self) {
        if let Some(announced) = &*self.0 {
            announced.stale.lock().names = true;
        }
    }
}

impl ExclusivePass<'_> {
    /// Takes what was noted since last time.
    pub(crate) fn take_stale(&self) -> StaleEntries {
        self.0
            .as_ref()
            .map_or_else(StaleEntries::default, |announced| std::mem::take(&mut *announced.stale.lock()))
    }

    /// The commit has been made, or will not be.
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
