//! Changes that fold in memory and are committed with the next cut: times of directories, and sums.
//!
//! # Invariants
//! 1. A directory is in `waiting` if and only if its touch has `pending` set, but for the moment between the two.
//! 2. The sums in the store and in its memory are of exactly the commits that are there: each commit carries what it adds.
//! 3. A directory that was emitted stays held until the cut after, so no node is made from a record that lacks the touch.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use warpfire_format::fs::{CounterId, InodeEdit, Key, Stamp, VolumeId, encode_counter, inode_key};
use warpfire_meta::{Batch, SUMS};

use crate::node::{Node, NodeRef};

pub(crate) struct Dirty {
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

impl Dirty {
    /// `inodes` and `bytes` as the store has them.
    pub(crate) fn new(volume: VolumeId, inodes: i64, bytes: i64) -> Dirty {
        Dirty {
            volume,
            waiting: Mutex::default(),
            emitted: Mutex::default(),
            inodes: AtomicI64::new(inodes),
            bytes: AtomicI64::new(bytes),
        }
    }

    /// Names in `dir` changed at `now`.
    pub(crate) fn touch(&self, dir: &Arc<Node>, now: Stamp) {
        let mut touch = dir.touch.lock();
        let first = touch.pending.is_none();
        touch.pending = touch.pending.max(Some(now));
        touch.shown = touch.shown.max(Some(now));
        drop(touch);
        if first {
            self.waiting.lock().push(Arc::clone(dir));
        }
    }

    /// A commit that added to the sums has succeeded.
    pub(crate) fn count(&self, added: &[i64; SUMS]) {
        for (sum, added) in [(&self.inodes, added[INODES]), (&self.bytes, added[BYTES])] {
            if added != 0 {
                sum.fetch_add(added, Ordering::Relaxed);
            }
        }
    }

    /// Inodes and bytes of files, as of now.
    pub(crate) fn counts(&self) -> (i64, i64) {
        (self.inodes.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// The cut hook: adds everything that waits, and what commits added to the sums, to the batch.
    pub(crate) fn emit(&self, sums: &[i64; SUMS], batch: &mut Batch) {
        let dirs = std::mem::take(&mut *self.waiting.lock());
        let mut operand = Vec::new();
        for dir in &dirs {
            let Some(at) = dir.touch.lock().pending.take() else { continue };
            operand.clear();
            InodeEdit { mtime_max: Some(at), ctime_max: Some(at), ..InodeEdit::default() }
                .encode(&mut operand);
            batch.merge(&inode_key(self.volume, dir.ino()), &operand);
        }
        let before = std::mem::replace(&mut *self.emitted.lock(), dirs);
        for (id, delta) in [(CounterId::Inodes, sums[INODES]), (CounterId::Bytes, sums[BYTES])] {
            if delta != 0 {
                operand.clear();
                encode_counter(&mut operand, delta);
                batch.merge(&Key::Counter(self.volume, id).encode(), &operand);
            }
        }
        // Letting nodes go takes only locks of the table.
        drop(before);
    }

    /// The directory's times were set: what waited is part of what was set.
    pub(crate) fn forget(dir: &Node) {
        *dir.touch.lock() = crate::node::Touch::default();
    }
}
