//! Snapshots: the seqs that stay readable, because a live reader or a persistent snapshot holds them.
//!
//! # Terms
//! A *persistent snapshot* is a seq that a record in the map names (`Schema::snapshot_seq`). It stays
//! readable until the record is removed, also in later openings. A *visit* is a live snapshot of a persistent
//! one's seq. It reads the past too, so what it reads may go there.
//!
//! A *bookmark* is a seq that a record in the map names (`Schema::bookmark_seq`), and it is held as that of a
//! persistent snapshot. But a version that only bookmarks show *fades* (`Schema::fade`): it names no slice
//! any more. A *tour* is a live snapshot of a bookmark's seq. It holds no more than the bookmark does. A seq
//! is held *fully* by all others. It is *faded* if only bookmarks and tours hold it.
//!
//! # Invariants
//! 1. The registry counts the live snapshots of each seq (assert in `drop`).
//! 2. A version that a snapshot can see is not dropped: each rewrite job lists the seqs with `visible_to`
//!    first.
//! 3. A persistent snapshot is registered before its record is visible, and while no commit is in progress
//!    (`commit/persistent.rs`). An open registers those of the map before its first job
//!    (`engine/recovery.rs`).
//! 4. It is forgotten only once the removal of its record is durable. A crash that takes the removal back
//!    finds every version of the snapshot (`tests::snapshots`).
//! 5. A bookmark is registered while a persistent snapshot of its seq is, and it is forgotten as one is. So
//!    no version at its seq has gone, and whatever changed after it has a version with a later seq or a
//!    delete (`tests::bookmarks`).
//! 6. A faded seq is never held fully again: a snapshot has the newest seq, and a visit one of a persistent
//!    snapshot. So a faded version is never read as if it were whole.
//! 7. `released_below` errs on one side: it may say that an old seq was released where none was, and never
//!    that none was (`releases::tests`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::sync::{Mutex, MutexGuard};
use warpfire_units::Seq;

use crate::releases::Releases;

/// How a live snapshot holds its seq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LiveHold {
    /// It reads the present.
    Reader,
    /// It reads the past too.
    Visit,
    /// As a visit, and the versions that it reads may fade.
    Tour,
}

/// A seq that stays readable while the snapshot lives.
pub struct EngineSnapshot {
    seq: Seq,
    hold: LiveHold,
    registry: Arc<SnapshotRegistry>,
}

impl EngineSnapshot {
    /// The seq that it shows.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

impl Drop for EngineSnapshot {
    fn drop(&mut self) {
        let mut held = self.registry.held.lock();
        let seqs = held.seqs_of(self.hold);
        let count = seqs.get_mut(&self.seq).expect("a live snapshot is registered");
        assert!(*count > 0, "a registered seq has a live snapshot");
        *count -= 1;
        if *count == 0 {
            seqs.remove(&self.seq);
            self.registry.note_release(&held, self.seq, self.hold != LiveHold::Tour);
        }
    }
}

impl fmt::Debug for EngineSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.seq.0)
    }
}

/// Every seq that a snapshot holds.
#[derive(Default)]
pub(crate) struct SnapshotRegistry {
    held: Mutex<HeldSeqs>,
    /// Number of times that a seq lost its last snapshot.
    released: AtomicU64,
    releases: Mutex<Releases>,
}

#[derive(Default)]
struct HeldSeqs {
    /// Number of live snapshots of each seq, without visits.
    live: BTreeMap<Seq, usize>,
    /// Number of visits of each seq.
    visits: BTreeMap<Seq, usize>,
    /// The seqs of the persistent snapshots.
    persistent: BTreeSet<Seq>,
    /// Number of tours of each seq.
    tours: BTreeMap<Seq, usize>,
    /// Number of bookmarks of each seq.
    bookmarks: BTreeMap<Seq, usize>,
}

impl HeldSeqs {
    fn seqs_of(&mut self, hold: LiveHold) -> &mut BTreeMap<Seq, usize> {
        match hold {
            LiveHold::Reader => &mut self.live,
            LiveHold::Visit => &mut self.visits,
            LiveHold::Tour => &mut self.tours,
        }
    }

    fn holds_fully(&self, seq: Seq) -> bool {
        self.live.contains_key(&seq) || self.visits.contains_key(&seq) || self.persistent.contains(&seq)
    }

    fn holds(&self, seq: Seq) -> bool {
        self.holds_fully(seq) || self.tours.contains_key(&seq) || self.bookmarks.contains_key(&seq)
    }
}

/// The seqs that must stay readable.
pub(crate) struct VisibleSeqs {
    /// All of them, rising. The last one is the newest.
    pub(crate) all: Vec<Seq>,
    /// The lowest of those that read in the present only.
    pub(crate) lowest_reader: Seq,
    /// Those of `all` that are faded, rising.
    pub(crate) faded: Vec<Seq>,
}

impl VisibleSeqs {
    /// Those that are held fully, rising.
    pub(crate) fn fully(mut self) -> Vec<Seq> {
        debug_assert!(self.faded.is_sorted(), "the seqs of bookmarks are in order");
        self.all.retain(|seq| self.faded.binary_search(seq).is_err());
        self.all
    }
}

impl SnapshotRegistry {
    /// Registers a snapshot of the seq that `newest` returns. The call runs under the registry's lock, so a
    /// list of `visible_to` misses no snapshot of an older seq.
    pub(crate) fn acquire(self: &Arc<Self>, newest: impl FnOnce() -> Seq) -> EngineSnapshot {
        let mut held = self.held.lock();
        let seq = newest();
        self.add_live(&mut held, seq, LiveHold::Reader)
    }

    /// A live snapshot of a persistent snapshot's seq; `None` if no persistent snapshot has it.
    pub(crate) fn acquire_persistent(self: &Arc<Self>, seq: Seq) -> Option<EngineSnapshot> {
        let mut held = self.held.lock();
        held.persistent.contains(&seq).then(|| self.add_live(&mut held, seq, LiveHold::Visit))
    }

    /// A live snapshot of a bookmark's seq; `None` if no bookmark has it.
    pub(crate) fn acquire_bookmark(self: &Arc<Self>, seq: Seq) -> Option<EngineSnapshot> {
        let mut held = self.held.lock();
        held.bookmarks.contains_key(&seq).then(|| self.add_live(&mut held, seq, LiveHold::Tour))
    }

    fn add_live(self: &Arc<Self>, held: &mut HeldSeqs, seq: Seq, hold: LiveHold) -> EngineSnapshot {
        *held.seqs_of(hold).entry(seq).or_insert(0) += 1;
        EngineSnapshot { seq, hold, registry: Arc::clone(self) }
    }

    /// Registers a persistent snapshot. Its versions must all be there still: the seq is the newest one, or
    /// one that every job since it was made has known.
    pub(crate) fn keep(&self, seq: Seq) {
        self.held.lock().persistent.insert(seq);
    }

    /// Takes back a registration: the removal of the snapshot's record is durable.
    pub(crate) fn forget(&self, seq: Seq) {
        let mut held = self.held.lock();
        if held.persistent.remove(&seq) {
            self.note_release(&held, seq, true);
        }
    }

    /// Whether a persistent snapshot has this seq.
    pub(crate) fn is_kept(&self, seq: Seq) -> bool {
        self.held.lock().persistent.contains(&seq)
    }

    /// Registers a bookmark. A persistent snapshot of its seq is registered, or every job since one was has
    /// known a bookmark of it.
    pub(crate) fn keep_bookmark(&self, seq: Seq) {
        *self.held.lock().bookmarks.entry(seq).or_insert(0) += 1;
    }

    /// Takes back a registration: the removal of the bookmark's record is durable, or nobody has seen it.
    pub(crate) fn forget_bookmark(&self, seq: Seq) {
        let mut held = self.held.lock();
        let count = held.bookmarks.get_mut(&seq).expect("a bookmark is registered");
        assert!(*count > 0, "a registered seq has a bookmark");
        *count -= 1;
        if *count == 0 {
            held.bookmarks.remove(&seq);
            self.note_release(&held, seq, false);
        }
    }

    /// Counts a release: versions may go that nobody reads any more, although no seq was released.
    pub(crate) fn note_removal(&self) {
        let held = self.held.lock();
        // Before the number, as in `note_release`.
        self.releases.lock().note(self.released.load(Ordering::Relaxed) + 1, Seq(0));
        self.released.fetch_add(1, Ordering::Relaxed);
        drop(held);
    }

    /// Whether a snapshot holds a seq after `after`, up to and with `upto`.
    pub(crate) fn holds_between(&self, after: Seq, upto: Seq) -> bool {
        let (held, between) = (self.held.lock(), (Bound::Excluded(after), Bound::Included(upto)));
        after < upto
            && (held.live.range(between).next().is_some()
                || held.visits.range(between).next().is_some()
                || held.persistent.range(between).next().is_some()
                || held.tours.range(between).next().is_some()
                || held.bookmarks.range(between).next().is_some())
    }

    /// Counts the release of a seq that is not held any more, or not fully any more (`was_full`).
    fn note_release(&self, held: &MutexGuard<'_, HeldSeqs>, seq: Seq, was_full: bool) {
        if !held.holds_fully(seq) && (was_full || !held.holds(seq)) {
            // Before the number: whoever reads the number finds the release.
            let mut releases = self.releases.lock();
            releases.note(self.released.load(Ordering::Relaxed) + 1, seq);
            self.released.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a seq below `seq` may have lost its last snapshot since `released` was `since`.
    pub(crate) fn released_below(&self, since: u64, seq: Seq) -> bool {
        self.releases.lock().any_below(since, seq)
    }

    /// Number of times that a seq lost its last snapshot since the engine was opened.
    pub(crate) fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// The seqs that must stay readable: those of snapshots, and the newest (which `newest` returns).
    pub(crate) fn visible_to(&self, newest: impl FnOnce() -> Seq) -> VisibleSeqs {
        let held = self.held.lock();
        let newest = newest();
        let lowest_reader = held.live.keys().next().copied().unwrap_or(newest);
        let mut seqs: Vec<Seq> =
            held.live.keys().chain(held.visits.keys()).chain(&held.persistent).copied().collect();
        let of_bookmarks = held.bookmarks.keys().chain(held.tours.keys()).copied();
        let mut faded: Vec<Seq> =
            of_bookmarks.filter(|seq| *seq != newest && !held.holds_fully(*seq)).collect();
        drop(held);
        faded.sort_unstable();
        faded.dedup();
        seqs.extend(&faded);
        seqs.push(newest);
        seqs.sort_unstable();
        seqs.dedup();
        debug_assert!(faded.is_sorted(), "the seqs of bookmarks are in order");
        debug_assert_eq!(seqs.last(), Some(&newest), "no snapshot is newer than the newest commit");
        VisibleSeqs { all: seqs, lowest_reader, faded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seq_is_held_until_its_last_snapshot_is_dropped() {
        let registry = Arc::new(SnapshotRegistry::default());
        let a = registry.acquire(|| Seq(3));
        let b = registry.acquire(|| Seq(3));
        let c = registry.acquire(|| Seq(7));
        assert_eq!(registry.visible_to(|| Seq(9)).all, [Seq(3), Seq(7), Seq(9)]);
        drop(a);
        assert_eq!(registry.visible_to(|| Seq(7)).all, [Seq(3), Seq(7)]);
        drop(b);
        assert_eq!(registry.visible_to(|| Seq(9)).all, [Seq(7), Seq(9)]);
        assert_eq!(c.seq(), Seq(7));
    }
    #[test]
    fn a_persistent_snapshot_is_held_until_it_is_forgotten() {
        let registry = Arc::new(SnapshotRegistry::default());
        registry.keep(Seq(3));
        assert!(registry.acquire_persistent(Seq(4)).is_none());
        let live = registry.acquire_persistent(Seq(3)).unwrap();
        registry.forget(Seq(3));
        assert_eq!(registry.released(), 0, "a reader still holds it");
        assert!(registry.acquire_persistent(Seq(3)).is_none(), "no new reader finds it");
        assert_eq!(registry.visible_to(|| Seq(9)).all, [Seq(3), Seq(9)]);
        drop(live);
        assert_eq!((registry.released(), registry.visible_to(|| Seq(9)).all), (1, vec![Seq(9)]));
    }

    #[test]
    fn a_seq_is_faded_when_only_bookmarks_hold_it() {
        let registry = Arc::new(SnapshotRegistry::default());
        registry.keep(Seq(3));
        registry.keep_bookmark(Seq(3));
        registry.keep_bookmark(Seq(3));
        assert!(registry.visible_to(|| Seq(9)).faded.is_empty(), "a snapshot has it too");
        let visit = registry.acquire_persistent(Seq(3)).unwrap();
        registry.forget(Seq(3));
        assert!(registry.visible_to(|| Seq(9)).faded.is_empty(), "it is read");
        assert_eq!(registry.released(), 0);
        drop(visit);
        let visible = registry.visible_to(|| Seq(9));
        assert_eq!((visible.all, visible.faded), (vec![Seq(3), Seq(9)], vec![Seq(3)]));
        assert_eq!(registry.released(), 1, "versions may fade now");
        let tour = registry.acquire_bookmark(Seq(3)).unwrap();
        assert!(registry.acquire_persistent(Seq(3)).is_none());
        registry.forget_bookmark(Seq(3));
        registry.forget_bookmark(Seq(3));
        assert_eq!(registry.visible_to(|| Seq(9)).faded, [Seq(3)], "the tour holds it");
        assert!(registry.acquire_bookmark(Seq(3)).is_none() && registry.holds_between(Seq(2), Seq(3)));
        drop(tour);
        assert_eq!((registry.released(), registry.visible_to(|| Seq(9)).all), (2, vec![Seq(9)]));
    }

    #[test]
    fn a_visit_of_a_persistent_snapshot_is_no_reader_of_the_present() {
        let registry = Arc::new(SnapshotRegistry::default());
        registry.keep(Seq(3));
        let visit = registry.acquire_persistent(Seq(3)).unwrap();
        assert_eq!(registry.visible_to(|| Seq(9)).lowest_reader, Seq(9));
        let live = registry.acquire(|| Seq(5));
        assert_eq!(registry.visible_to(|| Seq(9)).lowest_reader, Seq(5));
        registry.forget(Seq(3));
        assert_eq!(registry.visible_to(|| Seq(9)).all, [Seq(3), Seq(5), Seq(9)], "the visit holds it");
        drop((visit, live));
        assert_eq!(registry.visible_to(|| Seq(9)).all, [Seq(9)]);
    }
}
