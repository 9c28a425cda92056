//! The inode cache: the nodes in use, by inode number.
//!
//! A file that is opened, changed and closed again and again gets a new node each time. Its edit history must
//! not begin anew with each node, or its reads would fold more and more edits. So the cache also remembers
//! the edit histories of some files that are not in use.
//!
//! # Invariants
//! 1. At most one live node stands for an inode number (`insert_made` looks and inserts under one lock).
//! 2. `histories` of a shard has a bounded number of files, none of them in use (asserts in
//!    `remember_history`).
//! 3. `unheld_count` is the length of `unheld_orphans`, except inside the two functions that change both.
//! 4. The cache of a transaction keeps its nodes as `tx_nodes.rs` says.

use std::sync::{Arc, Weak};
use warpfire_env::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use warpfire_env::{LockPlace, RankedMutex};
use warpfire_meta::{MemoryAccount, MemoryRefused};

use super::tx_nodes::{HasChanged, TxNodes};
use super::{EditHistory, Node, NodeRef, NodeState, RecordLocation};
use crate::lock_ranks::{INODE_CACHE, ORPHANS};

/// Shards of a base. Their number is a power of two.
const SHARDS: u64 = 64;

/// The inodes of one shard.
#[derive(Default)]
struct CacheShard {
    nodes: HashMap<u64, Weak<Node>, FixedState>,
    /// Edit histories of files that are not in use.
    histories: HashMap<u64, EditHistory, FixedState>,
}

/// Most histories in a shard: 64 shards of 64 remember 4096 files. A program that edits more files than that
/// in turn gives each of them few edits before the memtable becomes a table, which folds them.
const HISTORIES_MAX: usize = 64;

impl CacheShard {
    fn remember_history(&mut self, ino: u64, history: EditHistory) {
        if history.is_empty() {
            self.histories.remove(&ino);
            return;
        }
        // A history that is lost delays the next refold of one file, so a simple rule is enough.
        if self.histories.len() == HISTORIES_MAX {
            self.histories.clear();
        }
        self.histories.insert(ino, history);
        debug_assert!(self.histories.len() <= HISTORIES_MAX, "a shard remembers a bounded number of files");
    }
}

/// Shards of a transaction. Its calls run one by one.
const SHARDS_IN_TRANSACTION: u64 = 1;

/// All nodes of one filesystem, and the orphans without a holder.
pub(crate) struct InodeCache {
    shards: Box<[RankedMutex<INODE_CACHE, CacheShard>]>,
    tx_nodes: Option<TxNodes>,
    unheld_orphans: RankedMutex<ORPHANS, Vec<u64>>,
    /// Length of `unheld_orphans`: calls that find it 0 do not take the lock.
    unheld_count: AtomicUsize,
}

/// The answer of a search for a node.
pub(crate) enum NodeLookup {
    /// The node.
    Node(NodeRef),
    /// A node of a file that another call is removing. Wait for its state, then search again.
    Dying(NodeRef),
    /// The record has changed since it was read. Read it again.
    Stale,
    /// A transaction has no room for another node.
    Refused(MemoryRefused),
}

impl InodeCache {
    pub(crate) fn new() -> Arc<InodeCache> {
        Self::of_shards(SHARDS, None)
    }

    /// The cache of a transaction. It holds its nodes until `drop_tx_nodes`.
    /// `has_changed` says which records the transaction has changed, `account` has the memory of the nodes.
    pub(crate) fn for_transaction(
        base: &Arc<InodeCache>,
        has_changed: HasChanged,
        account: &MemoryAccount,
    ) -> Arc<InodeCache> {
        Self::of_shards(SHARDS_IN_TRANSACTION, Some(TxNodes::new(base, has_changed, account)))
    }

    fn of_shards(shards: u64, tx_nodes: Option<TxNodes>) -> Arc<InodeCache> {
        assert!(shards.is_power_of_two(), "a mask of the number selects a shard");
        Arc::new(InodeCache {
            shards: (0..shards).map(|_| RankedMutex::new(CacheShard::default())).collect(),
            tx_nodes,
            unheld_orphans: RankedMutex::default(),
            unheld_count: AtomicUsize::new(0),
        })
    }

    fn shard(&self, ino: u64) -> &RankedMutex<INODE_CACHE, CacheShard> {
        let index = (ino & (self.shards.len() as u64 - 1)) as usize;
        self.shards.get(index).expect("the remainder is below the count")
    }

    /// The place of the locks of a node among those of all nodes.
    pub(super) fn lock_place(&self, ino: u64) -> LockPlace {
        if self.tx_nodes.is_some() { LockPlace::UNCONTENDED } else { LockPlace::at(ino) }
    }

    /// The node of this number, if it is in use.
    pub(crate) fn get(&self, ino: u64) -> Option<NodeLookup> {
        let node = self.shard(ino).lock().nodes.get(&ino).and_then(Weak::upgrade)?;
        Some(if node.is_dying() { NodeLookup::Dying(node) } else { NodeLookup::Node(node) })
    }

    /// The node of this number. If none is in use, it is made from `state`, as long as `is_current` says that
    /// the record of `state` has not changed, and a transaction has room for it. Both are called under the
    /// lock of a shard.
    pub(crate) fn get_or_insert(
        self: &Arc<Self>,
        ino: u64,
        is_current: impl FnOnce() -> bool,
        state: impl FnOnce() -> NodeState,
    ) -> NodeLookup {
        if let Some(tx_nodes) = &self.tx_nodes
            && self.get(ino).is_none()
            && let Err(refused) = tx_nodes.make_room(self)
        {
            return NodeLookup::Refused(refused);
        }
        self.insert_made(ino, is_current, state)
    }

    /// As `get_or_insert`, for a file that the caller has just made: a transaction cannot refuse its node.
    pub(crate) fn insert_made(
        self: &Arc<Self>,
        ino: u64,
        is_current: impl FnOnce() -> bool,
        state: impl FnOnce() -> NodeState,
    ) -> NodeLookup {
        let mut guard = self.shard(ino).lock();
        let CacheShard { nodes, histories } = &mut *guard;
        let place = nodes.entry(ino);
        if let Entry::Occupied(there) = &place
            && let Some(node) = there.get().upgrade()
        {
            // The drop of the last hold takes the lock of the shard, and `node` may become the last one.
            drop(guard);
            return if node.is_dying() { NodeLookup::Dying(node) } else { NodeLookup::Node(node) };
        }
        // Under the lock of the shard: a call that changes the record from now on finds this node first.
        if !is_current() {
            return NodeLookup::Stale;
        }
        let mut state = state();
        if !histories.is_empty() {
            state.history = histories.remove(&ino).unwrap_or_default();
        }
        let node = Arc::new(Node::new(self, ino, state));
        // A node that is there has no hold any more: it was looked at above, under the same lock.
        place.insert(Arc::downgrade(&node));
        drop(guard);
        if let Some(tx_nodes) = &self.tx_nodes {
            tx_nodes.keep(&node);
        }
        NodeLookup::Node(node)
    }

    /// Marks the node as dying if the caller has the only hold of it. The caller holds its state for writing.
    /// Returns whether it is dying now.
    pub(crate) fn claim(&self, node: &NodeRef) -> bool {
        debug_assert!(node.state.is_locked_exclusive(), "a node dies under its state");
        if self.tx_nodes.is_some() {
            // The file may be open in the base, so the base decides after the commit.
            return false;
        }
        // Under the lock no search upgrades the weak reference, so the count cannot rise from 1.
        let _shard = self.shard(node.ino).lock();
        let alone = Arc::strong_count(node) == 1;
        node.dying.store(alone, Ordering::Release);
        alone
    }

    /// All nodes in use. The caller is alone in the base.
    pub(crate) fn nodes_in_use(&self) -> Vec<NodeRef> {
        let mut nodes = Vec::new();
        for shard in &self.shards {
            nodes.extend(shard.lock().nodes.values().filter_map(Weak::upgrade));
        }
        nodes
    }

    /// About how many nodes are in use.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().nodes.len()).sum()
    }

    /// Forgets the edit histories of all files: their records are others now.
    pub(crate) fn forget_histories(&self) {
        self.shards.iter().for_each(|shard| shard.lock().histories.clear());
    }

    /// Every node of a transaction that is kept. None in the base.
    pub(crate) fn tx_nodes(&self) -> Vec<NodeRef> {
        self.tx_nodes.as_ref().map_or_else(Vec::new, TxNodes::all)
    }

    /// As `tx_nodes`, each with the state that it was made with, if that was kept.
    pub(crate) fn tx_nodes_with_first_state(&self) -> Vec<(NodeRef, Option<Box<NodeState>>)> {
        self.tx_nodes.as_ref().map_or_else(Vec::new, TxNodes::all_with_first_state)
    }

    /// The answers of `look` for all nodes of a transaction. From now on it keeps every node, in this order,
    /// and the states that nodes are made with.
    pub(crate) fn keep_first_states<T>(&self, look: impl Fn(&NodeRef) -> T) -> Vec<T> {
        self.tx_nodes.as_ref().map_or_else(Vec::new, |tx_nodes| tx_nodes.keep_first_states(look))
    }

    /// Drops the nodes of a transaction.
    pub(crate) fn drop_tx_nodes(&self) {
        if let Some(tx_nodes) = &self.tx_nodes {
            tx_nodes.drop_all();
        }
    }

    /// Drops nodes of a transaction that can be made again, to make room. Whether there was one.
    pub(crate) fn evict_tx_nodes(&self) -> bool {
        self.tx_nodes.as_ref().is_some_and(|tx_nodes| tx_nodes.evict_many(self))
    }

    /// As `drop_tx_nodes`, if they take much memory. Few of them stay, for the paths in messages.
    pub(crate) fn drop_many_tx_nodes(&self) {
        if self.tx_nodes.as_ref().is_some_and(TxNodes::are_many) {
            self.drop_tx_nodes();
        }
    }

    /// Forgets a node of a transaction if the caller has its only hold: no search finds it from now on.
    pub(super) fn forget_unheld(&self, node: &NodeRef) -> bool {
        debug_assert!(self.tx_nodes.is_some(), "the base keeps a node exactly as long as it is held");
        // Under the lock no search upgrades the weak reference, so the count cannot rise from 1.
        let mut shard = self.shard(node.ino).lock();
        let alone = Arc::strong_count(node) == 1;
        if alone {
            shard.nodes.remove(&node.ino);
        }
        alone
    }

    /// The edit history of a file, in use or not.
    pub(super) fn history(&self, ino: u64) -> EditHistory {
        match self.get(ino) {
            Some(NodeLookup::Node(node) | NodeLookup::Dying(node)) => node.state.read().history,
            Some(NodeLookup::Stale | NodeLookup::Refused(_)) | None => {
                self.shard(ino).lock().histories.get(&ino).copied().unwrap_or_default()
            }
        }
    }

    /// Remembers the edit history of a file that is not in use and that a transaction has changed.
    pub(crate) fn remember_history(&self, ino: u64, history: EditHistory) {
        self.shard(ino).lock().remember_history(ino, history);
    }

    /// Removes a node from the cache. Only the drop of the node calls it.
    pub(super) fn remove_node(&self, ino: u64, outside_bytes: u16, node: *const Node, state: &NodeState) {
        if let Some(tx_nodes) = &self.tx_nodes {
            tx_nodes.subtract(outside_bytes);
        }
        let mut shard = self.shard(ino).lock();
        // Between the last release and this lock another call may have made a new node of the same number.
        if let Entry::Occupied(there) = shard.nodes.entry(ino)
            && std::ptr::eq(there.get().as_ptr(), node)
        {
            there.remove();
            if self.tx_nodes.is_none() && !state.is_unlinked() {
                shard.remember_history(ino, state.history);
            }
        }
        drop(shard);
        if matches!(state.location, RecordLocation::Orphan { .. }) {
            self.return_unheld_orphan(ino);
        }
    }

    /// Adds an orphan without a holder to those that `take_unheld_orphans` takes.
    pub(crate) fn return_unheld_orphan(&self, ino: u64) {
        debug_assert_ne!(ino, 0, "no inode has the number 0");
        // First the list, then the count: a positive count has an entry behind it.
        self.unheld_orphans.lock().push(ino);
        self.unheld_count.fetch_add(1, Ordering::Release);
    }

    /// Takes the orphans without a holder.
    pub(crate) fn take_unheld_orphans(&self) -> Vec<u64> {
        // The common case: every unlink asks.
        if self.unheld_count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let orphans = std::mem::take(&mut *self.unheld_orphans.lock());
        self.unheld_count.fetch_sub(orphans.len(), Ordering::AcqRel);
        orphans
    }
}
