//! The snapshots that the kernel knows: each directory by which programs have entered one has a *slot*.
//!
//! ```text
//!   number of an inode                 bits 44 to 60          bits 0 to 43
//!     of the filesystem                0                      its own
//!     below a directory of a snapshot  the slot               its own
//!     of `.snapshots` in a directory   bit 61                 that of the directory
//! ```
//!
//! The kernel knows a directory by one path only. So a directory of a snapshot has another number for each
//! way into it: from `.snapshots` of the root, of the directory itself, or of one between; by the name of the
//! snapshot, or by a moment. No program moves the working directory of another one.
//!
//! # Invariants
//! 1. Two files of the mount have different numbers, also if one is in a snapshot of the other
//!    (`tests/mount/snapshots.rs`).
//! 2. A slot has one server at a time, and is free only when the kernel knows no inode in it: both are
//!    decided under the lock of the slots (`MainServer::enter`, `MainServer::forget`).
//! 3. `by_way` and `slots` name each other (assert in `remove`).

use std::collections::BTreeMap;
use std::sync::Arc;

use warpfire_fs::{Seq, SnapshotFs};
use warpfire_fuse::INodeNo;
use warpfire_meta::{SnapshotView, Storage};

use super::Server;

/// Bits of an inode's own number.
pub(super) const INO_BITS: u32 = 44;

/// The bit in the number of a directory `.snapshots`: above those of all slots.
const SNAPSHOTS_BIT: u32 = 61;

/// Slots: so many ways can be in use at a time, less one.
const SLOTS: u64 = 1 << (SNAPSHOTS_BIT - INO_BITS);

/// Slots from which on the kernel is asked to forget those that nobody uses. Each costs the server some
/// kilobytes.
const SLOTS_KEPT: usize = 1024;

/// Slots that the kernel is asked to forget at a time, after as many were added.
const FORGOTTEN_AT_ONCE: usize = SLOTS_KEPT / 8;

pub(super) type SnapshotServer<E> = Server<SnapshotView<E>>;

/// A way into a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Way {
    pub(super) seq: Seq,
    /// The number of the directory with the `.snapshots` that was passed.
    pub(super) directory: u64,
    /// Whether it was entered by a moment, and not by its name.
    pub(super) by_moment: bool,
}

/// The slots in use.
pub(super) struct ShownSnapshots<E: Storage> {
    slots: BTreeMap<u64, (Way, Arc<SnapshotServer<E>>)>,
    by_way: BTreeMap<Way, u64>,
    /// The slot that was taken last.
    last: u64,
    /// The last slot that the kernel was asked to forget.
    hand: u64,
}

impl<E: Storage> Default for ShownSnapshots<E> {
    fn default() -> Self {
        ShownSnapshots { slots: BTreeMap::new(), by_way: BTreeMap::new(), last: 0, hand: 0 }
    }
}

impl<E: Storage> ShownSnapshots<E> {
    /// The server of a slot.
    pub(super) fn server(&self, slot: u64) -> Option<&Arc<SnapshotServer<E>>> {
        self.slots.get(&slot).map(|(_, server)| server)
    }

    /// The server of a way that has a slot.
    pub(super) fn server_of(&self, way: Way) -> Option<&Arc<SnapshotServer<E>>> {
        self.by_way.get(&way).and_then(|slot| self.server(*slot))
    }

    /// A snapshot that is open for any way into it.
    pub(super) fn open_snapshot(&self, seq: Seq) -> Option<Arc<SnapshotFs<E>>> {
        let first = Way { seq, directory: 0, by_moment: false };
        let (way, slot) = self.by_way.range(first..).next()?;
        self.server(*slot).filter(|_| way.seq == seq).map(|server| Arc::clone(&server.fs))
    }

    /// A free slot; `None` if all are taken.
    pub(super) fn next_slot(&mut self) -> Option<u64> {
        let mut slots = (self.last + 1..SLOTS).chain(1..=self.last);
        self.last = slots.find(|slot| !self.slots.contains_key(slot))?;
        Some(self.last)
    }

    /// Gives a free slot to a way.
    pub(super) fn add(&mut self, slot: u64, way: Way, server: Arc<SnapshotServer<E>>) {
        let before = (self.slots.insert(slot, (way, server)), self.by_way.insert(way, slot));
        assert!(matches!(before, (None, None)), "a slot and a way are taken once");
    }

    /// Frees a slot. The caller drops the server without the lock: it may end the snapshot.
    pub(super) fn remove(&mut self, slot: u64) -> Option<Arc<SnapshotServer<E>>> {
        let (way, server) = self.slots.remove(&slot)?;
        assert_eq!(self.by_way.remove(&way), Some(slot), "the slot of a way leads to it");
        Some(server)
    }

    /// Frees all slots.
    pub(super) fn take_all(&mut self) -> Vec<Arc<SnapshotServer<E>>> {
        self.by_way.clear();
        std::mem::take(&mut self.slots).into_values().map(|(_, server)| server).collect()
    }

    /// If many slots are in use, some that the kernel should forget, with the numbers of their entered
    /// directories: the older ones first, and in turn.
    pub(super) fn choose_forgotten(&mut self) -> Vec<(INodeNo, Arc<SnapshotServer<E>>)> {
        if self.slots.len() < SLOTS_KEPT || !self.slots.len().is_multiple_of(FORGOTTEN_AT_ONCE) {
            return Vec::new();
        }
        let in_turn = self.slots.range(self.hand + 1..).chain(self.slots.range(..=self.hand));
        let number = |slot: u64, way: &Way| INodeNo((slot << INO_BITS) + way.directory);
        let chosen: Vec<_> = in_turn
            .take(FORGOTTEN_AT_ONCE)
            .map(|(slot, (way, server))| (number(*slot, way), Arc::clone(server)))
            .collect();
        self.hand = chosen.last().map_or(0, |(entered, _)| slot_of_number(*entered));
        chosen
    }
}

/// The slot of an inode of a snapshot.
pub(super) fn slot_of_number(ino: INodeNo) -> u64 {
    ino.0 >> INO_BITS
}

/// Whether an inode is one of the filesystem.
pub(super) fn is_main(ino: INodeNo) -> bool {
    slot_of_number(ino) == 0
}

/// The number of the directory `.snapshots` in a directory of the filesystem.
pub(super) fn snapshots_number(directory: INodeNo) -> INodeNo {
    debug_assert!(is_main(directory), "a snapshot has no directory of snapshots");
    INodeNo(1 << SNAPSHOTS_BIT | directory.0)
}

/// The number of the directory that a directory `.snapshots` is in; `None` for any other inode.
pub(super) fn directory_of_snapshots(ino: INodeNo) -> Option<u64> {
    (ino.0 >> SNAPSHOTS_BIT == 1).then_some(ino.0 & ((1 << INO_BITS) - 1))
}
