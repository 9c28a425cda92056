//! The nodes in use, by inode number.
//!
//! A file that is opened, changed and closed again and again is another node each time. So that what its reads fold stays short all the same, the
//! table remembers the histories of some files that no one uses. One that it forgot begins anew.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::{EditHistory, Node, NodeRef, NodeState, RecordLocation};

const SHARDS: u64 = 64;

#[derive(Default)]
struct CacheShard {
    nodes: HashMap<u64, Weak<Node>, FixedState>,
    /// Of files that are not in use.
    histories: HashMap<u64, EditHistory, FixedState>,
}

/// Histories in a shard: 64 shards of 64 are of 4096 files. More files than that take so many edits in turn that each has few before they become
/// a table, which folds them.
const HISTORIES_MAX: usize = 64;

impl CacheShard {
    fn remember_history(&mut self, ino: u64, history: EditHistory) {
        if history.is_empty() {
            self.histories.remove(&ino);
            return;
        }
        if self.histories.len() == HISTORIES_MAX {
            self.histories.clear();
        }
        self.histories.insert(ino, history);
    }
}

/// Inside a transaction calls follow each other.
const SHARDS_IN_TRANSACTION: u64 = 1;

/// All nodes, and the orphans that no one holds any more.
pub(crate) struct InodeCache {
    shards: Box<[Mutex<CacheShard>]>,
    tx_nodes: Option<TxNodes>,
    unheld_orphans: Mutex<Vec<u64>>,
    unheld_count: AtomicUsize,
}

/// What a transaction's inside keeps besides: every node that was made there, because a commit brings their states to the base's nodes.
struct TxNodes {
    base: Arc<InodeCache>,
    nodes: Mutex<TxNodeList>,
}

#[derive(Default)]
struct TxNodeList {
    /// In a box, for it is long, and kept only from the first savepoint on.
    nodes: Vec<(NodeRef, Option<Box<NodeState>>)>,
    /// Whether the states that nodes were made with are kept too.
    keeps_first_states: bool,
}

/// What looking for a node found.
pub(crate) enum NodeLookup {
    /// The node.
    Node(NodeRef),
    /// A node whose file is being removed right now: wait for its state, then look again.
    Dying(NodeRef),
    /// What the record was read for has changed meanwhile: read again.
    Stale,
}

impl TxNodes {
    fn keep(&self, node: &NodeRef) {
        // Times of a directory that wait in the base are not in the record that was read.
        if node.is_dir()
            && let Some(NodeLookup::Node(held)) = self.base.get(node.ino)
        {
            node.pending_times.lock().shown = held.pending_times.lock().shown;
        }
        if !node.is_dir() {
            node.state.write().history = self.base.history(node.ino);
        }
        let mut list = self.nodes.lock();
        let first = list.keeps_first_states.then(|| Box::new(node.state.read().clone()));
        list.nodes.push((Arc::clone(node), first));
    }
}

impl InodeCache {
    pub(crate) fn new() -> Arc<InodeCache> {
        Self::of_shards(SHARDS, None)
    }

    /// Of a transaction's inside. It keeps its nodes until it is told to let go.
    pub(crate) fn for_transaction(base: &Arc<InodeCache>) -> Arc<InodeCache> {
        Self::of_shards(
            SHARDS_IN_TRANSACTION,
            Some(TxNodes { base: Arc::clone(base), nodes: Mutex::default() }),
        )
    }

    fn of_shards(shards: u64, tx_nodes: Option<TxNodes>) -> Arc<InodeCache> {
        Arc::new(InodeCache {
            shards: (0..shards).map(|_| Mutex::new(CacheShard::default())).collect(),
            tx_nodes,
            unheld_orphans: Mutex::default(),
            unheld_count: AtomicUsize::new(0),
        })
    }

    fn shard(&self, ino: u64) -> &Mutex<CacheShard> {
        let index = (ino & (self.shards.len() as u64 - 1)) as usize;
        self.shards.get(index).expect("the remainder is below the count")
    }

    /// The node, if there is one.
    pub(crate) fn get(&self, ino: u64) -> Option<NodeLookup> {
        let node = self.shard(ino).lock().nodes.get(&ino).and_then(Weak::upgrade)?;
        Some(if node.is_dying() { NodeLookup::Dying(node) } else { NodeLookup::Node(node) })
    }

    /// The node, made from `state` if there is none and the record that `state` came from `is_current` still.
    pub(crate) fn get_or_insert(
        self: &Arc<Self>,
        ino: u64,
        is_current: impl FnOnce() -> bool,
        state: impl FnOnce() -> NodeState,
    ) -> NodeLookup {
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.nodes.get(&ino).and_then(Weak::upgrade) {
            drop(shard);
            return if node.is_dying() { NodeLookup::Dying(node) } else { NodeLookup::Node(node) };
        }
        if !is_current() {
            return NodeLookup::Stale;
        }
        let mut state = state();
        if !shard.histories.is_empty() {
            state.history = shard.histories.remove(&ino).unwrap_or_default();
        }
        let node = Arc::new(Node::new(self, ino, state));
        shard.nodes.insert(ino, Arc::downgrade(&node));
        drop(shard);
        if let Some(tx_nodes) = &self.tx_nodes {
            tx_nodes.keep(&node);
        }
        NodeLookup::Node(node)
    }

    /// Marks the node as dying unless someone else holds it. The caller holds its state for writing.
    pub(crate) fn claim(&self, node: &NodeRef) -> bool {
        if self.tx_nodes.is_some() {
            // Whether someone holds the file is for the base to know.
            return false;
        }
        let _shard = self.shard(node.ino).lock();
        let alone = Arc::strong_count(node) == 1;
        node.dying.store(alone, Ordering::Release);
        alone
    }

    /// Every node that was made inside a transaction, in that order.
    pub(crate) fn tx_nodes(&self) -> Vec<NodeRef> {
        let list = self.tx_nodes.as_ref().map(|tx_nodes| tx_nodes.nodes.lock());
        list.map_or_else(Vec::new, |list| list.nodes.iter().map(|(node, _)| Arc::clone(node)).collect())
    }

    /// As `list`, each with the state that it was made with, if that was kept.
    pub(crate) fn tx_nodes_with_first_state(&self) -> Vec<(NodeRef, Option<Box<NodeState>>)> {
        self.tx_nodes.as_ref().map_or_else(Vec::new, |tx_nodes| tx_nodes.nodes.lock().nodes.clone())
    }

    /// What `look` says of each kept node. From now on the states that nodes are made with are kept.
    pub(crate) fn keep_first_states<T>(&self, look: impl Fn(&NodeRef) -> T) -> Vec<T> {
        let Some(tx_nodes) = &self.tx_nodes else { return Vec::new() };
        let mut list = tx_nodes.nodes.lock();
        list.keeps_first_states = true;
        list.nodes.iter().map(|(node, _)| look(node)).collect()
    }

    /// Lets go of the nodes that were made inside a transaction.
    pub(crate) fn drop_tx_nodes(&self) {
        if let Some(tx_nodes) = &self.tx_nodes {
            // Nodes that go use the table: not under its lock.
            let nodes = std::mem::take(&mut tx_nodes.nodes.lock().nodes);
            drop(nodes);
        }
    }

    /// The history of a file, in use or not.
    fn history(&self, ino: u64) -> EditHistory {
        match self.get(ino) {
            Some(NodeLookup::Node(node) | NodeLookup::Dying(node)) => node.state.read().history,
            Some(NodeLookup::Stale) | None => {
                self.shard(ino).lock().histories.get(&ino).copied().unwrap_or_default()
            }
        }
    }

    /// A transaction has changed a file that no one uses.
    pub(crate) fn remember_history(&self, ino: u64, history: EditHistory) {
        self.shard(ino).lock().remember_history(ino, history);
    }

    /// A node is gone: called by its drop.
    pub(super) fn remove_node(&self, ino: u64, node: *const Node, state: &NodeState) {
        let mut shard = self.shard(ino).lock();
        if shard.nodes.get(&ino).is_some_and(|there| std::ptr::eq(there.as_ptr(), node)) {
            shard.nodes.remove(&ino);
            if self.tx_nodes.is_none() && !state.is_unlinked() {
                shard.remember_history(ino, state.history);
            }
        }
        drop(shard);
        if matches!(state.location, RecordLocation::Orphan { .. }) {
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
