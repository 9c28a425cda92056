//! The nodes in use, by inode number.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::{Node, NodeRef, State};

const SHARDS: u64 = 64;

type Shard = HashMap<u64, Weak<Node>, FixedState>;

/// All nodes, and the orphans that no one holds any more.
pub(crate) struct Table {
    shards: Box<[Mutex<Shard>]>,
    unheld_orphans: Mutex<Vec<u64>>,
    unheld_count: AtomicUsize,
}

/// What looking for a node found.
pub(crate) enum Found {
    /// The node.
    Node(NodeRef),
    /// A node whose file is being removed right now: wait for its state, then look again.
    Dying(NodeRef),
    /// What the record was read for has changed meanwhile: read again.
    Stale,
}

impl Table {
    pub(crate) fn new() -> Arc<Table> {
        Arc::new(Table {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
            unheld_orphans: Mutex::default(),
            unheld_count: AtomicUsize::new(0),
        })
    }

    fn shard(&self, ino: u64) -> &Mutex<Shard> {
        let index = (ino % SHARDS) as usize;
        self.shards.get(index).expect("the remainder is below the count")
    }

    /// The node, if there is one.
    pub(crate) fn get(&self, ino: u64) -> Option<Found> {
        let node = self.shard(ino).lock().get(&ino).and_then(Weak::upgrade)?;
        Some(if node.is_dying() { Found::Dying(node) } else { Found::Node(node) })
    }

    /// The node, made from `state` if there is none and the record that `state` came from `is_current` still.
    pub(crate) fn get_or_insert(
        self: &Arc<Self>,
        ino: u64,
        is_current: impl FnOnce() -> bool,
        state: impl FnOnce() -> State,
    ) -> Found {
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.get(&ino).and_then(Weak::upgrade) {
            drop(shard);
            return if node.is_dying() { Found::Dying(node) } else { Found::Node(node) };
        }
        if !is_current() {
            return Found::Stale;
        }
        let node = Arc::new(Node::new(self, ino, state()));
        shard.insert(ino, Arc::downgrade(&node));
        Found::Node(node)
    }

    /// Marks the node as dying unless someone else holds it. The caller holds its state for writing.
    pub(crate) fn claim(&self, node: &NodeRef) -> bool {
        let _shard = self.shard(node.ino).lock();
        let alone = Arc::strong_count(node) == 1;
        node.dying.store(alone, Ordering::Release);
        alone
    }

    /// A node is gone: called by its drop.
    pub(super) fn forget(&self, ino: u64, node: *const Node, orphan: bool) {
        let mut shard = self.shard(ino).lock();
        if shard.get(&ino).is_some_and(|there| std::ptr::eq(there.as_ptr(), node)) {
            shard.remove(&ino);
        }
        drop(shard);
        if orphan {
            self.return_unheld_orphan(ino);
        }
    }

    /// An orphan has no holder and is still to be removed.
    pub(crate) fn return_unheld_orphan(&self, ino: u64) {
        self.unheld_orphans.lock().push(ino);
        self.unheld_count.fetch_add(1, Ordering::Release);
    }

    /// Takes the orphans that no one holds any more.
    pub(crate) fn take_unheld_orphans(&self) -> Vec<u64> {
        if self.unheld_count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let orphans = std::mem::take(&mut *self.unheld_orphans.lock());
        self.unheld_count.fetch_sub(orphans.len(), Ordering::AcqRel);
        orphans
    }
}
