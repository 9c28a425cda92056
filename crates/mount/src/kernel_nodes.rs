//! The inodes that the kernel remembers: a node for each inode number that an answer has named.
//!
//! The kernel counts the answers that name an inode (*lookups*) and sends FORGET with a number of them when
//! it drops the inode from its cache.
//!
//! Invariants
//! 1. The count of an inode is its lookups less those forgotten, and an inode with count zero has no entry
//!    (assert in `get`; `tests::a_node_is_kept_from_the_first_lookup_until_all_are_forgotten`). The root of
//!    the main mount has an entry from the start: the kernel knows it without a lookup.
//! 2. A node here is in use, so its inode stays readable after it loses its last name. An open file is one
//!    that the kernel has not forgotten: there is no OPEN and no RELEASE.
//! 3. Each inode number in `known` is in `order` of the same shard, once or more. So every inode is offered
//!    to the kernel for forgetting at some time (`tests::the_inodes_that_nobody_asks_for_are_offered_first`).
//!
//! The kernel would remember inodes until it is short of memory, and each costs the server some hundred
//! bytes. So when they are many, the server asks the kernel to drop some (`prune`): those that no request has
//! named for long. The kernel keeps those that are in use.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;

/// Number of locks of the main mount, a power of two. Inode numbers are spread over them.
const SHARDS: usize = 64;

/// Number of locks of a transaction in a view, a power of two. Making them is a part of each BEGIN.
const VIEW_SHARDS: usize = 4;

/// Inode numbers in one request to forget some.
const PRUNED_AT_ONCE: usize = 1024;

struct NodeShard<N> {
    known: HashMap<u64, KnownNode<N>, FixedState>,
    /// Inode numbers in the order in which they are offered to the kernel for forgetting. It also has numbers
    /// that the kernel has forgotten.
    order: VecDeque<u64>,
}

struct KnownNode<N> {
    node: N,
    lookups: u64,
    /// Whether a request has named the inode since it was last looked at for forgetting.
    is_named: bool,
    /// Whether a request has filled pages of the kernel with content of the file.
    has_pages: bool,
}

/// Nodes by inode number, with their lookup counts.
pub(crate) struct KernelNodes<N> {
    shards: Box<[Mutex<NodeShard<N>>]>,
    /// Number of inodes in all shards.
    count: AtomicUsize,
    /// Number of inodes beyond which the kernel is asked to forget some.
    max: usize,
    /// How many inodes were added since the mount began.
    added: AtomicUsize,
    /// The value of `added` from which on the kernel is asked next.
    next_prune: AtomicUsize,
}

impl<N> Default for NodeShard<N> {
    fn default() -> Self {
        NodeShard { known: HashMap::with_hasher(FixedState::with_seed(0)), order: VecDeque::new() }
    }
}

impl<N> NodeShard<N> {
    /// Moves up to `wanted` inodes to the end of the order and lists them: at first those that no request has
    /// named since they were last looked at.
    fn offer(&mut self, wanted: usize, offered: &mut Vec<u64>) {
        let mut left = wanted;
        for _ in 0..2 * self.order.len() {
            if left == 0 {
                break;
            }
            let Some(ino) = self.order.pop_front() else { break };
            let Some(known) = self.known.get_mut(&ino) else { continue };
            if !std::mem::take(&mut known.is_named) {
                offered.push(ino);
                left -= 1;
            }
            self.order.push_back(ino);
        }
    }
}

impl<N: Clone> KernelNodes<N> {
    /// The nodes of a new mount: the root.
    pub(crate) fn new(root_ino: u64, root: N, max: usize) -> KernelNodes<N> {
        let nodes = KernelNodes::with_shards(SHARDS, max);
        nodes.count_lookup(root_ino, &root);
        nodes
    }

    /// The nodes of a transaction in a view: the kernel looks its root up like any other directory.
    pub(crate) fn empty(max: usize) -> KernelNodes<N> {
        KernelNodes::with_shards(VIEW_SHARDS, max)
    }

    fn with_shards(count: usize, max: usize) -> KernelNodes<N> {
        assert!(count.is_power_of_two(), "`shard` masks the inode number");
        KernelNodes {
            shards: (0..count).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            max,
            added: AtomicUsize::new(0),
            next_prune: AtomicUsize::new(0),
        }
    }

    /// All nodes with their inode numbers, if there are at most `max`; otherwise none.
    pub(crate) fn list_few(&self, max: usize) -> Vec<(u64, N)> {
        if self.len() > max {
            return Vec::new();
        }
        let mut listed = Vec::new();
        for shard in &*self.shards {
            listed.extend(shard.lock().known.iter().map(|(ino, known)| (*ino, known.node.clone())));
        }
        listed
    }

    /// All nodes, each with its inode number and its lookups.
    pub(crate) fn list(&self) -> Vec<(u64, N, u64)> {
        let mut listed = Vec::new();
        for shard in &*self.shards {
            let shard = shard.lock();
            listed.extend(shard.known.iter().map(|(ino, known)| (*ino, known.node.clone(), known.lookups)));
        }
        listed
    }

    /// Whether the kernel remembers the inode.
    pub(crate) fn has(&self, ino: u64) -> bool {
        self.shard(ino).lock().known.contains_key(&ino)
    }

    /// Whether the kernel has forgotten all of them.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of inodes that the kernel remembers.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The node with this inode number; `None` if the kernel has forgotten it.
    pub(crate) fn get(&self, ino: u64) -> Option<N> {
        self.shard(ino).lock().known.get_mut(&ino).map(|known| {
            debug_assert!(known.lookups > 0, "an entry has a lookup that is not forgotten");
            known.is_named = true;
            known.node.clone()
        })
    }

    /// The node of a request on content, and whether an earlier request has filled pages of the kernel with
    /// the file's content; `fills_pages` says whether this one does.
    pub(crate) fn get_content(&self, ino: u64, fills_pages: bool) -> Option<(N, bool)> {
        self.shard(ino).lock().known.get_mut(&ino).map(|known| {
            known.is_named = true;
            let had_pages = known.has_pages;
            known.has_pages |= fills_pages;
            (known.node.clone(), had_pages)
        })
    }

    /// Counts an answer that names `node`.
    pub(crate) fn count_lookup(&self, ino: u64, node: &N) {
        self.count_lookups(ino, node, 1);
    }

    /// Counts several answers that name `node`.
    pub(crate) fn count_lookups(&self, ino: u64, node: &N, lookups: u64) {
        assert!(lookups > 0, "an entry has a lookup that is not forgotten");
        let mut shard = self.shard(ino).lock();
        let NodeShard { known, order } = &mut *shard;
        match known.entry(ino) {
            Entry::Occupied(mut known) => known.get_mut().lookups += lookups,
            Entry::Vacant(entry) => {
                entry.insert(KnownNode { node: node.clone(), lookups, is_named: false, has_pages: false });
                self.count.fetch_add(1, Ordering::AcqRel);
                self.added.fetch_add(1, Ordering::Relaxed);
                // Without pruning nothing takes numbers out of the order, so forgotten ones would pile up.
                if order.len() > 2 * known.len() + 16 {
                    order.retain(|ino| known.contains_key(ino));
                }
                order.push_back(ino);
            }
        }
    }

    /// Subtracts `lookups` from the count. Returns the node if none is left; the caller drops it without the
    /// lock.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) -> Option<N> {
        let mut shard = self.shard(ino).lock();
        let Entry::Occupied(mut entry) = shard.known.entry(ino) else { return None };
        let known = entry.get_mut();
        // Saturating: a count that the kernel gets wrong must not stop the server.
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return None;
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
        Some(entry.remove().node)
    }

    /// Whether there are so many inodes that the kernel should forget some. Returns `true` to one of several
    /// callers, which then calls `prune`.
    pub(crate) fn are_many(&self) -> bool {
        let next = self.next_prune.load(Ordering::Relaxed);
        let busy = usize::MAX;
        self.count.load(Ordering::Relaxed) > self.max
            && self.added.load(Ordering::Relaxed) >= next
            && self.next_prune.compare_exchange(next, busy, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Asks the kernel to forget all inodes beyond seven eighths of `max`: first those that no request has
    /// named for long. It is asked again after an eighth of `max` more were added, or never if it does not
    /// know the request.
    pub(crate) fn prune(&self, mut ask: impl FnMut(&[u64]) -> io::Result<()>) {
        let next = loop {
            let (count, added) = (self.len(), self.added.load(Ordering::Relaxed));
            let offered = self.offered();
            match offered.chunks(PRUNED_AT_ONCE).try_for_each(&mut ask) {
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                    tracing::debug!(inodes = count, "the kernel drops no inodes when asked");
                    return;
                }
                Err(e) => tracing::debug!(error = %e, "inodes not dropped"),
                Ok(()) => {
                    tracing::debug!(inodes = count, offered = offered.len(), "inodes offered for dropping")
                }
            }
            // Requests may have added more in the time.
            let next = added + (self.max / 8).max(1);
            if self.len() <= self.max || self.added.load(Ordering::Relaxed) < next {
                break next;
            }
        };
        self.next_prune.store(next, Ordering::Release);
    }

    fn offered(&self) -> Vec<u64> {
        let wanted = self.len().saturating_sub(self.max / 8 * 7).div_ceil(self.shards.len());
        let mut offered = Vec::with_capacity(wanted * self.shards.len());
        self.shards.iter().for_each(|shard| shard.lock().offer(wanted, &mut offered));
        offered
    }

    /// Forgets everything, as the kernel does when a mount ends.
    pub(crate) fn clear(&self) {
        for shard in &*self.shards {
            // Dropped without the lock: the drop of a node locks the filesystem's inode cache.
            let nodes = std::mem::take(&mut *shard.lock());
            self.count.fetch_sub(nodes.known.len(), Ordering::AcqRel);
            drop(nodes);
        }
    }

    fn shard(&self, ino: u64) -> &Mutex<NodeShard<N>> {
        &self.shards[ino as usize & (self.shards.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_node_is_kept_from_the_first_lookup_until_all_are_forgotten() {
        let nodes = KernelNodes::new(1, Arc::new("root"), 10);
        let node = Arc::new("file");
        for _ in 0..3 {
            nodes.count_lookup(7, &node);
        }
        assert_eq!(Arc::strong_count(&node), 2);
        assert!(nodes.forget(7, 2).is_none());
        assert!(nodes.get(7).is_some());
        assert!(nodes.forget(7, 1).is_some());
        assert!(nodes.get(7).is_none());
        assert!(!nodes.is_empty() && nodes.forget(1, 1).is_some() && nodes.is_empty());
        assert_eq!(Arc::strong_count(&node), 1);
    }

    #[test]
    fn a_file_has_pages_from_the_first_request_that_fills_one() {
        let nodes = KernelNodes::new(1, (), 10);
        let has_pages = |fills| nodes.get_content(1, fills).unwrap().1;
        assert!(!has_pages(false) && !has_pages(true) && has_pages(false) && has_pages(true));
        assert!(nodes.get_content(2, true).is_none());
    }

    #[test]
    fn the_inodes_that_nobody_asks_for_are_offered_first() {
        let inodes = 1..=SHARDS as u64 * 16;
        let nodes = KernelNodes::with_shards(SHARDS, SHARDS * 16);
        inodes.clone().for_each(|ino| nodes.count_lookup(ino, &()));
        let named = |ino: u64| (ino / SHARDS as u64).is_multiple_of(2);
        inodes.clone().filter(|ino| named(*ino)).for_each(|ino| nodes.get(ino).unwrap());
        let first: Vec<u64> = nodes.offered();
        assert!(first.len() == SHARDS * 2 && !first.iter().any(|ino| named(*ino)), "{first:?}");
        // The kernel keeps them, and nobody asks for any inode: each is offered at some time.
        let mut offered: Vec<u64> = (0..16).flat_map(|_| nodes.offered()).collect();
        offered.sort_unstable();
        offered.dedup();
        assert!(offered.into_iter().eq(inodes));
    }

    #[test]
    fn forgotten_inodes_do_not_pile_up_in_the_order() {
        let nodes = KernelNodes::empty(10);
        for ino in 1..100_000 {
            nodes.count_lookup(ino, &());
            nodes.forget(ino, 1).unwrap();
        }
        let longest = nodes.shards.iter().map(|shard| shard.lock().order.len()).max().unwrap();
        assert!(longest <= 17, "{longest}");
        assert!(nodes.is_empty() && nodes.offered().is_empty());
    }

    #[test]
    fn few_nodes_are_listed_and_many_are_not() {
        let nodes = KernelNodes::empty(10);
        assert!(nodes.list_few(2).is_empty());
        [1 << 62, 5].iter().for_each(|ino| nodes.count_lookup(*ino, &()));
        let mut listed = nodes.list_few(2);
        listed.sort_unstable();
        assert_eq!(listed, [(5, ()), (1 << 62, ())]);
        nodes.count_lookup(6, &());
        assert!(nodes.list_few(2).is_empty());
    }

    #[test]
    fn forgetting_an_unknown_inode_does_nothing() {
        assert!(KernelNodes::new(1, (), 10).forget(9, 1).is_none());
    }

    #[test]
    fn the_end_of_a_mount_drops_every_node() {
        let node = Arc::new(());
        let nodes = KernelNodes::new(1, Arc::clone(&node), 10);
        for ino in 2..500 {
            nodes.count_lookup(ino, &node);
        }
        nodes.clear();
        assert_eq!(Arc::strong_count(&node), 1);
    }
}
