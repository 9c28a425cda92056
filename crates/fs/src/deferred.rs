//! Changes that fold in memory and are committed with the next cut: times of directories, and sums.
//!
//! # Invariants
//! 1. A directory whose touch is pending is in `waiting`, but for the moment between the two.
//! 2. The sums in the store and in its memory are of exactly the commits that are there: each commit carries what it adds.
//! 3. A directory that was emitted stays held until the cut after, so no node is made from a record that lacks the touch.
//! 4. What is emitted sets the time of the last change of content, so that a later time that someone set does not outlast
//!    it. It commutes with every commit but those that set that time too: these commit what waits first (`kept`), and if
//!    a name changed meanwhile let it be emitted once more (`replaced`), so that the record ends as what is shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use warpfire_format::fs::{CounterId, InodeTime, Key, VolumeId, encode_counter, inode_key};
use warpfire_meta::{Batch, SUMS};

use crate::node::{Node, NodeRef, PendingTimes};

pub(crate) struct Deferred {
    volume: VolumeId,
    waiting: Mutex<Vec<NodeRef>>,
    emitted: Mutex<Vec<NodeRef>>,
    /// Inodes and bytes of files as of now, the store's sums included.
    inodes: AtomicI64,
    bytes: AtomicI64,
}

/// Which of the store's running sums counts inodes.
pub(crate) const INODES: usize = 0;

/// Which counts bytes of files.
pub(crate) const BYTES: usize = 1;

impl Deferred {
    /// `inodes` and `bytes` as the store has them.
    pub(crate) fn new(volume: VolumeId, inodes: i64, bytes: i64) -> Deferred {
        Deferred {
            volume,
            waiting: Mutex::default(),
            emitted: Mutex::default(),
            inodes: AtomicI64::new(inodes),
            bytes: AtomicI64::new(bytes),
        }
    }

    /// Names in `dir` changed at `now`.
    pub(crate) fn defer_times(&self, dir: &NodeRef, now: InodeTime) {
        let mut pending_times = dir.pending_times.lock();
        pending_times.shown = pending_times.shown.max(Some(now));
        pending_times.count += 1;
        self.enqueue(dir, pending_times);
    }

    /// A commit gave the record earlier times than those that are shown: they are emitted once more.
    pub(crate) fn emit_again(&self, dir: &NodeRef) {
        let mut pending_times = dir.pending_times.lock();
        pending_times.count += 1;
        self.enqueue(dir, pending_times);
    }

    /// Has the touch emitted at the next cut.
    fn enqueue(&self, dir: &NodeRef, mut pending_times: MutexGuard<'_, PendingTimes>) {
        let waits_already = std::mem::replace(&mut pending_times.pending, true);
        drop(pending_times);
        if !waits_already {
            self.waiting.lock().push(Arc::clone(dir));
        }
    }

    /// A commit that added to the sums has succeeded.
    pub(crate) fn add_sums(&self, added: &[i64; SUMS]) {
        for (sum, added) in [(&self.inodes, added[INODES]), (&self.bytes, added[BYTES])] {
            if added != 0 {
                sum.fetch_add(added, Ordering::Relaxed);
            }
        }
    }

    /// Inodes and bytes of files, as of now.
    pub(crate) fn sums(&self) -> (i64, i64) {
        (self.inodes.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Inodes and bytes are these again.
    pub(crate) fn set_sums(&self, (inodes, bytes): (i64, i64)) {
        self.inodes.store(inodes, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The cut hook: adds everything that waits, and what commits added to the sums, to the batch.
    pub(crate) fn emit(&self, sums: &[i64; SUMS], batch: &mut Batch) {
        let dirs = std::mem::take(&mut *self.waiting.lock());
        let mut operand = Vec::new();
        for dir in &dirs {
            let mut pending_times = dir.pending_times.lock();
            let Some(edit) = pending_times.edit() else { continue };
            pending_times.pending = false;
            drop(pending_times);
            operand.clear();
            edit.encode(&mut operand);
            batch.merge_naming(&inode_key(self.volume, dir.ino()), &operand, []);
        }
        let before = std::mem::replace(&mut *self.emitted.lock(), dirs);
        for (id, delta) in [(CounterId::Inodes, sums[INODES]), (CounterId::Bytes, sums[BYTES])] {
            if delta != 0 {
                operand.clear();
                encode_counter(&mut operand, delta);
                batch.merge_naming(&Key::Counter(self.volume, id).encode(), &operand, []);
            }
        }
        // Letting nodes go takes only locks of the table.
        drop(before);
    }

    /// A commit put this touch into the record.
    pub(crate) fn mark_committed(dir: &Node, pending_times: PendingTimes) {
        let mut now = dir.pending_times.lock();
        now.pending &= now.count != pending_times.count;
    }

    /// The touch was taken for a commit that has failed.
    pub(crate) fn return_times(&self, dir: &NodeRef, pending_times: PendingTimes) {
        let mut now = dir.pending_times.lock();
        *now = PendingTimes { pending: now.pending, ..pending_times };
        if pending_times.pending {
            self.enqueue(dir, now);
        }
    }

    /// A commit set the directory's time of the last change of content, in place of what `pending_times` had shown.
    pub(crate) fn mark_replaced(&self, dir: &NodeRef, pending_times: PendingTimes) {
        let mut now = dir.pending_times.lock();
        now.was_set = true;
        if now.count == pending_times.count {
            now.shown = None;
        } else {
            // Whether the record took it before or after what was set is not known. After is as right as before.
            self.enqueue(dir, now);
        }
    }
}
