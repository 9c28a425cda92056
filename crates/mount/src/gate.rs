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
const KEEP: Duration = Duration::from_secs(1 << 30);

/// Given to those who answer.
#[derive(Default)]
pub(crate) struct Gate {
    announced: RwLock<Option<Announced>>,
    passes: AtomicU64,
}

struct Announced {
    /// Files that the commit changes; `None` until that is known.
    files: Option<BTreeSet<u64>>,
    noted: Mutex<Noted>,
}

/// What the kernel was told since its caches were emptied last, and keeps.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// Of these files data or permissions.
    pub(crate) files: BTreeSet<u64>,
    /// Names that were moved.
    pub(crate) names: bool,
}

impl Noted {
    /// Whether nothing was.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.names
    }
}

/// Held from before one looks at the filesystem until the answer is sent.
pub(crate) struct Pass<'a>(RwLockReadGuard<'a, Option<Announced>>);

/// Held by who commits: no pass is out.
pub(crate) struct Alone<'a>(RwLockWriteGuard<'a, Option<Announced>>);

impl Gate {
    /// A pass, once no commit is being made.
    pub(crate) fn pass(&self) -> Pass<'_> {
        self.passes.fetch_add(1, Ordering::Relaxed);
        Pass(self.announced.read())
    }

    /// How many passes have been given out.
    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// A commit comes. Until `changes` everything is noted.
    pub(crate) fn announce(&self) {
        *self.announced.write() = Some(Announced { files: None, noted: Mutex::default() });
    }

    /// The announced commit changes these files, and no others need to be noted.
    pub(crate) fn changes(&self, files: BTreeSet<u64>) {
        *self.announced.write() = Some(Announced { files: Some(files), noted: Mutex::default() });
    }

    /// Waits until no pass is out.
    pub(crate) fn alone(&self) -> Alone<'_> {
        Alone(self.announced.write())
    }
}

impl Pass<'_> {
    /// How long the kernel may keep what it is told of names and attributes.
    pub(crate) fn keep(&self) -> Duration {
        if self.0.is_some() { Duration::ZERO } else { KEEP }
    }

    /// The kernel is told, or told us, what it keeps of this file.
    pub(crate) fn note(&self, ino: u64) {
        if let Some(announced) = &*self.0
            && announced.files.as_ref().is_none_or(|files| files.contains(&ino))
        {
            announced.noted.lock().files.insert(ino);
        }
    }

    /// The kernel moves names by itself.
    pub(crate) fn note_names(&self) {
        if let Some(announced) = &*self.0 {
            announced.noted.lock().names = true;
        }
    }
}

impl Alone<'_> {
    /// Takes what was noted since last time.
    pub(crate) fn take_noted(&self) -> Noted {
        self.0.as_ref().map_or_else(Noted::default, |announced| std::mem::take(&mut *announced.noted.lock()))
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
    fn answers_are_kept_but_while_a_commit_is_announced() {
        let gate = Gate::default();
        assert_eq!(gate.pass().keep(), KEEP);
        gate.announce();
        assert_eq!(gate.pass().keep(), Duration::ZERO);
        gate.alone().finish();
        assert_eq!(gate.pass().keep(), KEEP);
    }

    #[test]
    fn only_what_the_commit_changes_is_noted() {
        let gate = Gate::default();
        gate.pass().note(1);
        gate.announce();
        gate.pass().note(2);
        gate.changes(BTreeSet::from([3, 4]));
        gate.pass().note(5);
        assert!(gate.alone().take_noted().is_empty());
        gate.pass().note(3);
        gate.pass().note_names();
        let alone = gate.alone();
        assert_eq!(alone.take_noted(), Noted { files: BTreeSet::from([3]), names: true });
        assert!(alone.take_noted().is_empty());
    }

    #[test]
    fn no_pass_is_given_while_someone_is_alone() {
        let gate = Gate::default();
        let alone = gate.alone();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(gate.pass()));
            assert!(gate.announced.try_read().is_none());
            alone.finish();
            waiting.join().unwrap();
        });
        assert_eq!(gate.passes(), 1);
    }
}
