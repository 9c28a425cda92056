//! Deferred changes: sums and directory times that stay in memory until the next sync point commits them.
//!
//! A directory in which many names change would get one edit of its times for each of them. Here they become
//! one edit for each sync point.
//!
//! # Terms
//! The *pending times* of a directory ([`PendingTimes`]) are the times that its record does not have yet. To
//! *emit* them is to add their edit to the batch of a sync point. The *sums* count the inodes, the bytes of
//! files and their reserved bytes; each commit carries what it adds to them.
//!
//! ```text
//!              defer_times                 emit, mark_committed
//!   up to date ───────────► pending, in waiting ───────────► up to date
//!        ▲                        │  ▲
//!        │        mark_replaced   │  │ a name changes again: only the time moves
//!        └────────────────────────┘──┘
//! ```
//!
//! # Invariants
//! 1. A directory with pending times is in `waiting`, except between the two steps of `enqueue`. Pending
//!    times have a time to show (assert in `enqueue`).
//! 2. The sums in the store and in its memory cover exactly the commits that are there (`tests/check.rs`
//!    counts again after each random run).
//! 3. A directory that was emitted stays held until the next sync point. So no node is made from a record
//!    that lacks the times (the tests `times`).
//! 4. An emitted edit sets the time of the last change of content. It commutes with every commit that does
//!    not set that time. A commit that does set it commits the pending times first (`mark_committed`). If a
//!    name changed in between, the times are emitted once more (`mark_replaced`), so the record ends with the
//!    time that callers see (the tests `times`).

use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicI64, Ordering};

use warpfire_env::{RankedMutex, RankedMutexGuard};
use warpfire_format::fs::{CounterId, InodeTime, Key, VolumeId, encode_counter};
use warpfire_meta::{Batch, RESERVED, SUMS};

use crate::keys::inode_key;
use crate::lock_ranks::{EMITTED, PENDING_TIMES, WAITING};
use crate::node::{Node, NodeRef, PendingTimes};

/// The deferred changes of one volume.
pub(crate) struct Deferred {
    volume: VolumeId,
    /// Directories with pending times.
    waiting: RankedMutex<WAITING, Vec<NodeRef>>,
    /// Directories of the last sync point.
    emitted: RankedMutex<EMITTED, Vec<NodeRef>>,
    /// Inodes, bytes of files and reserved bytes as of now, the store's sums included.
    sums: [AtomicI64; SUMS],
}

/// Index of the running sum of inodes.
pub(crate) const INODES: usize = 0;

/// Index of the running sum of bytes of files.
pub(crate) const BYTES: usize = 1;

/// The counter of each sum, by its index.
const COUNTERS: [CounterId; SUMS] = [CounterId::Inodes, CounterId::Bytes, CounterId::Reserved];

const _: () = assert!(INODES == 0 && BYTES == 1 && RESERVED == 2, "each sum has its counter");

impl Deferred {
    /// `sums` are those in the store.
    pub(crate) fn new(volume: VolumeId, sums: [i64; SUMS]) -> Deferred {
        Deferred {
            volume,
            waiting: RankedMutex::default(),
            emitted: RankedMutex::default(),
            sums: sums.map(AtomicI64::new),
        }
    }

    /// Names in `dir` changed at `now`.
    pub(crate) fn defer_times(&self, dir: &NodeRef, now: InodeTime) {
        debug_assert!(dir.is_dir(), "only a directory has names");
        let mut pending_times = dir.pending_times.lock();
        // Calls on other processors may have taken their time earlier and arrive later.
        pending_times.shown = pending_times.shown.max(Some(now));
        pending_times.count += 1;
        self.enqueue(dir, pending_times);
    }

    /// A commit set the record to earlier times than the shown ones: the shown ones are emitted once more.
    pub(crate) fn emit_again(&self, dir: &NodeRef) {
        debug_assert!(dir.is_dir(), "only a directory has pending times");
        let mut pending_times = dir.pending_times.lock();
        pending_times.count += 1;
        self.enqueue(dir, pending_times);
    }

    /// Has the pending times emitted at the next sync point.
    fn enqueue(&self, dir: &NodeRef, mut pending_times: RankedMutexGuard<'_, PENDING_TIMES, PendingTimes>) {
        debug_assert!(pending_times.shown.is_some(), "pending times have a time to show");
        let waits_already = std::mem::replace(&mut pending_times.pending, true);
        drop(pending_times);
        // One entry for each directory, however many names change in it.
        if !waits_already {
            self.waiting.lock().push(Arc::clone(dir));
        }
    }

    /// A commit that adds this to the sums has succeeded.
    pub(crate) fn add_sums(&self, added: &[i64; SUMS]) {
        for (sum, added) in self.sums.iter().zip(added) {
            if *added != 0 {
                sum.fetch_add(*added, Ordering::Relaxed);
            }
        }
    }

    /// Inodes, bytes of files and reserved bytes, as of now.
    pub(crate) fn sums(&self) -> [i64; SUMS] {
        self.sums.each_ref().map(|sum| sum.load(Ordering::Relaxed))
    }

    /// Whether a file has reserved bytes.
    pub(crate) fn has_reserved(&self) -> bool {
        self.sums[RESERVED].load(Ordering::Relaxed) > 0
    }

    /// Sets the sums: a transaction went back to a savepoint.
    pub(crate) fn set_sums(&self, sums: [i64; SUMS]) {
        self.sums.iter().zip(sums).for_each(|(sum, then)| sum.store(then, Ordering::Relaxed));
    }

    /// The sync point hook: adds all pending times, and the `sums` of the commits since the last sync point,
    /// to the batch.
    pub(crate) fn emit(&self, sums: &[i64; SUMS], batch: &mut Batch) {
        // A directory that begins to wait after this line is emitted at the next sync point.
        let dirs = std::mem::take(&mut *self.waiting.lock());
        let mut operand = Vec::new();
        for dir in &dirs {
            let mut pending_times = dir.pending_times.lock();
            // A commit has put the times into the record since.
            let Some(edit) = pending_times.edit() else { continue };
            pending_times.pending = false;
            drop(pending_times);
            operand.clear();
            edit.encode(&mut operand);
            batch.merge_naming(&inode_key(dir.ino()), &operand, []);
        }
        // Held until the next sync point: until this one is committed, a read of the record lacks the times.
        let before = std::mem::replace(&mut *self.emitted.lock(), dirs);
        for (id, delta) in COUNTERS.into_iter().zip(sums) {
            if *delta != 0 {
                operand.clear();
                encode_counter(&mut operand, *delta);
                batch.merge_naming(&Key::Counter(self.volume, id).encode(), &operand, []);
            }
        }
        // The drop of a node takes locks of the inode cache: those are leaf locks, which a hook may take.
        drop(before);
    }

    /// A commit put these pending times into the record.
    pub(crate) fn mark_committed(dir: &Node, pending_times: PendingTimes) {
        let mut now = dir.pending_times.lock();
        debug_assert!(pending_times.count <= now.count, "changes of names are counted upwards");
        // A name that changed since then has a time that the commit did not have.
        now.pending &= now.count != pending_times.count;
    }

    /// The pending times were taken for a commit that has failed: they wait again.
    pub(crate) fn return_times(&self, dir: &NodeRef, pending_times: PendingTimes) {
        let mut now = dir.pending_times.lock();
        debug_assert_eq!(now.count, 0, "no name changes while a commit is alone in the base");
        *now = PendingTimes { pending: now.pending, ..pending_times };
        if pending_times.pending {
            self.enqueue(dir, now);
        }
    }

    /// A commit set the directory's time of the last change of content, which replaces the time that
    /// `pending_times` shows.
    pub(crate) fn mark_replaced(&self, dir: &NodeRef, pending_times: PendingTimes) {
        let mut now = dir.pending_times.lock();
        debug_assert!(pending_times.count <= now.count, "changes of names are counted upwards");
        now.was_set = true;
        if now.count == pending_times.count {
            now.shown = None;
        } else {
            // A name changed during the commit. Either order of the two is right, and the record may have the
            // other one: the emitted time decides.
            self.enqueue(dir, now);
        }
    }
}
