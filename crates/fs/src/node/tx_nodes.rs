//! The nodes of a transaction.
//!
//! The commit of a transaction copies the states of changed nodes to the nodes of the base. So the
//! transaction keeps each node that it has changed. It keeps nodes that it has only read too, for their next
//! use and for the paths in messages, but drops those beyond some number.
//!
//! # Terms
//! A node is *clean* if the transaction has changed neither its record nor its times. It can be made again
//! from the record: the record is the same in the snapshot.
//!
//! # Invariants
//! 1. Every live node that the transaction has changed is in the list until the transaction ends, or until a
//!    replay makes its calls again in nodes of its own (`PendingCommit::replay`). Before that a node leaves
//!    the list only if it is clean and the list has its last hold. The cache forgets it at the same moment,
//!    under the lock of its shard, so nobody finds it and changes it afterwards (`evict`,
//!    `InodeCache::forget_unheld`; `tests::memory::nodes_that_were_only_read_are_made_again`).
//! 2. From the first savepoint on nothing leaves the list, and its order stays (`evict`).
//! 3. Every live node is charged, in the list or not, and nothing else is: a node that a mount still knows
//!    after the end of its transaction counts until the kernel forgets it (asserts in `TxNodeMemory`'s drop
//!    and `subtract`).
//! 4. A look-up that finds no room makes no node. The node of a file that was just made counts without room
//!    (`MemoryNeed::Taken`): then the next change is refused.

use std::sync::Arc;

use warpfire_env::sync::Mutex;
use warpfire_format::fs::NAME_BYTES_MAX;
use warpfire_meta::{MemoryAccount, MemoryCharge, MemoryNeed, MemoryRefused};

use super::inode_cache::InodeCache;
use super::{Node, NodeLookup, NodeRef, NodeState, RecordLocation};

/// Nodes that a transaction keeps in any case. Beyond these, clean nodes without another holder go.
pub(crate) const NODES_KEPT_MIN: usize = 8192;

/// Nodes that each new node looks at, to find some that can go.
const LOOKS_EACH: usize = 4;

/// Nodes that a call without room looks at: enough for several steps of the charge.
const LOOKS_WITHOUT_ROOM: usize = 1024;

/// Memory of a node beside the node itself and long names: its counts, its places in the list, in the cache
/// and in the table of a mount.
const PLACES_BYTES: usize = 144;

/// Whether the transaction has changed the record of this number with this state.
pub(crate) type HasChanged = Box<dyn Fn(u64, &NodeState) -> bool + Send + Sync>;

/// The nodes of one transaction.
pub(super) struct TxNodes {
    base: Arc<InodeCache>,
    has_changed: HasChanged,
    list: Mutex<TxNodeList>,
    memory: Mutex<TxNodeMemory>,
}

struct TxNodeList {
    /// Each node with the state that it was made with, if that is kept. The state is in a box because it is
    /// large and most transactions have no savepoint.
    nodes: Vec<(NodeRef, Option<Box<NodeState>>)>,
    /// The next node to look at.
    hand: usize,
    /// The charge for first states; `None` until they are kept, from the first savepoint on.
    first_states: Option<MemoryCharge>,
}

struct TxNodeMemory {
    bytes: usize,
    charge: MemoryCharge,
}

fn bytes_with(outside_bytes: u16) -> usize {
    size_of::<Node>() + PLACES_BYTES + usize::from(outside_bytes)
}

impl Drop for TxNodeMemory {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || self.bytes == 0, "each node has been subtracted at its drop");
    }
}

impl TxNodes {
    pub(super) fn new(base: &Arc<InodeCache>, has_changed: HasChanged, account: &MemoryAccount) -> TxNodes {
        TxNodes {
            base: Arc::clone(base),
            has_changed,
            list: Mutex::new(TxNodeList { nodes: Vec::new(), hand: 0, first_states: None }),
            memory: Mutex::new(TxNodeMemory { bytes: 0, charge: account.coarse_charge() }),
        }
    }

    /// Charges for one more node of a look-up, before it is made. Clean nodes make room for it.
    ///
    /// # Errors
    /// The limit that refuses it.
    pub(super) fn make_room(&self, cache: &InodeCache) -> Result<(), MemoryRefused> {
        self.evict(cache, LOOKS_EACH);
        let grow = || {
            let mut memory = self.memory.lock();
            let bytes = memory.bytes + size_of::<Node>() + PLACES_BYTES + 2 * NAME_BYTES_MAX;
            memory.charge.grow_to(bytes, MemoryNeed::Needed)
        };
        grow().or_else(|refused| if self.evict_many(cache) { grow() } else { Err(refused) })
    }

    /// Takes a new node into the list.
    pub(super) fn keep(&self, node: &NodeRef) {
        // The pending times of a directory are not in the record that the transaction has read.
        if node.is_dir()
            && let Some(NodeLookup::Node(held)) = self.base.get(node.ino)
        {
            node.pending_times.lock().shown = held.pending_times.get().shown;
        }
        if !node.is_dir() {
            node.state.write().history = self.base.history(node.ino);
        }
        {
            let mut memory = self.memory.lock();
            memory.bytes += bytes_with(node.outside_bytes);
            let bytes = memory.bytes;
            memory.charge.count(bytes);
        }
        let mut list = self.list.lock();
        let first = list.first_states.is_some().then(|| Box::new(node.state.read().clone()));
        list.nodes.push((Arc::clone(node), first));
        list.charge_first_states();
    }

    /// Subtracts a node with so many bytes outside of it. Its drop calls this.
    pub(super) fn subtract(&self, outside_bytes: u16) {
        let mut memory = self.memory.lock();
        let left = memory.bytes.checked_sub(bytes_with(outside_bytes));
        memory.bytes = left.expect("a node was added before its drop");
        let bytes = memory.bytes;
        memory.charge.shrink_to(bytes);
    }

    /// Drops clean nodes without another holder, for a call without room. Whether there was one.
    pub(super) fn evict_many(&self, cache: &InodeCache) -> bool {
        self.evict(cache, LOOKS_WITHOUT_ROOM)
    }

    /// Drops clean nodes without another holder, of the next few at the hand. Whether there was one.
    fn evict(&self, cache: &InodeCache, looks: usize) -> bool {
        let mut evicted = Vec::new();
        let mut list = self.list.lock();
        if list.first_states.is_some() {
            return false;
        }
        for _ in 0..looks {
            if list.nodes.len() <= NODES_KEPT_MIN {
                break;
            }
            let at = if list.hand < list.nodes.len() { list.hand } else { 0 };
            let node = &list.nodes[at].0;
            if self.is_clean(node) && cache.forget_unheld(node) {
                evicted.push(list.nodes.swap_remove(at));
            }
            // The newest node may be there now: the hand goes on to older ones.
            list.hand = at + 1;
        }
        drop(list);
        // The drop of a node uses the cache, so it happens without the lock of the list.
        !evicted.is_empty()
    }

    fn is_clean(&self, node: &NodeRef) -> bool {
        // The cheap question first: a call or a mount holds most nodes that are in use.
        if Arc::strong_count(node) > 1 {
            return false;
        }
        let times = node.pending_times.get();
        let state = node.state.read();
        matches!(state.location, RecordLocation::Dentry(..) | RecordLocation::Own)
            && times.count == 0
            && !times.pending
            && !times.was_set
            && !(self.has_changed)(node.ino, &state)
    }

    pub(super) fn are_many(&self) -> bool {
        self.list.lock().nodes.len() > NODES_KEPT_MIN
    }

    pub(super) fn all(&self) -> Vec<NodeRef> {
        self.list.lock().nodes.iter().map(|(node, _)| Arc::clone(node)).collect()
    }

    pub(super) fn all_with_first_state(&self) -> Vec<(NodeRef, Option<Box<NodeState>>)> {
        self.list.lock().nodes.clone()
    }

    /// The answers of `look` for all nodes. From now on first states are kept.
    pub(super) fn keep_first_states<T>(&self, look: impl Fn(&NodeRef) -> T) -> Vec<T> {
        let mut list = self.list.lock();
        if list.first_states.is_none() {
            list.first_states = Some(self.memory.lock().charge.account().coarse_charge());
        }
        list.nodes.iter().map(|(node, _)| look(node)).collect()
    }

    pub(super) fn drop_all(&self) {
        // The drop of a node uses the cache, so it happens without the lock of the list.
        let nodes = std::mem::take(&mut self.list.lock().nodes);
        drop(nodes);
        self.list.lock().first_states = None;
    }
}

impl TxNodeList {
    fn charge_first_states(&mut self) {
        let bytes = self.nodes.len() * size_of::<NodeState>();
        if let Some(charge) = &mut self.first_states {
            charge.count(bytes);
        }
    }
}
