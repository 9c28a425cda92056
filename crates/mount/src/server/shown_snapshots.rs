//! The snapshots that the kernel knows: each directory by which programs have entered one has a *slot*.
//!
//! ```text
//!   number of an inode                 bits 60, 61   bits 44 to 59      bits 0 to 43
//!     of the filesystem                0, 0          its volume         its local number
//!     below a directory of a snapshot  1, 0          the slot           its local number
//!     of `.snapshots` in a directory   0, 1          those of the directory
//!     of the file that is opened once  1, 0          0              0
//! ```
//!
//! Everything below a directory of a snapshot is in the volume of that directory, because snapshots are shown
//! without the doors of volumes. So the slot can have the bits of the volume.
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

use warpfire_fs::limits::INO_MAX;
use warpfire_fs::{Seq, SnapshotFs};
use warpfire_fuse::INodeNo;
use warpfire_meta::{SnapshotView, Storage};

use super::Server;

/// Bits of an inode's local number.
const LOCAL_BITS: u32 = 44;

/// Set in the numbers of inodes in snapshots. Volumes and slots have the bits below.
const IN_SNAPSHOT: u64 = 1 << 60;

/// Set in the number of a directory `.snapshots`.
const OF_SNAPSHOTS: u64 = 1 << 61;

const _: () = assert!(INO_MAX < IN_SNAPSHOT, "no inode of the filesystem looks like one in a snapshot");

/// Slots: so many ways can be in use at a time, less one.
const SLOTS: u64 = IN_SNAPSHOT >> LOCAL_BITS;

/// Slots from which on the kernel is asked to forget those that nobody uses. Each costs the server some
/// kilobytes.
const SLOTS_KEPT: usize = 1024;

/// Slots that the kernel is asked to forget at a time, after as many were added.
const FORGOTTEN_AT_ONCE: usize = SLOTS_KEPT / 8;

/// The number of the file that the server opens itself, once (`main_server::OPENED_ONCE_NAME`). No snapshot
/// has slot 0.
pub(super) const OPENED_ONCE: INodeNo = INodeNo(IN_SNAPSHOT);

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
        let number = |slot: u64, way: &Way| INodeNo(number_in_slot(slot, way.directory));
        let chosen: Vec<_> = in_turn
            .take(FORGOTTEN_AT_ONCE)
            .map(|(slot, (way, server))| (number(*slot, way), Arc::clone(server)))
            .collect();
        self.hand = chosen.last().map_or(0, |(entered, _)| slot_of_number(*entered));
        chosen
    }
}

/// The number of an inode of a snapshot in a slot.
pub(super) fn number_in_slot(slot: u64, ino: u64) -> u64 {
    debug_assert!(0 < slot && slot < SLOTS, "slots have the bits of volumes");
    IN_SNAPSHOT | slot << LOCAL_BITS | ino & ((1 << LOCAL_BITS) - 1)
}

/// The slot of an inode of a snapshot.
pub(super) fn slot_of_number(ino: INodeNo) -> u64 {
    (ino.0 & !IN_SNAPSHOT) >> LOCAL_BITS
}

/// Whether an inode is one of the filesystem.
pub(super) fn is_main(ino: INodeNo) -> bool {
    ino.0 < IN_SNAPSHOT
}

/// The number of the directory `.snapshots` in a directory of the filesystem.
pub(super) fn snapshots_number(directory: INodeNo) -> INodeNo {
    debug_assert!(is_main(directory), "a snapshot has no directory of snapshots");
    INodeNo(OF_SNAPSHOTS | directory.0)
}

/// The number of the directory that a directory `.snapshots` is in; `None` for any other inode.
pub(super) fn directory_of_snapshots(ino: INodeNo) -> Option<u64> {
    (ino.0 & !INO_MAX == OF_SNAPSHOTS).then_some(ino.0 & INO_MAX)
}
