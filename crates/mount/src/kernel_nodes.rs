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

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;

/// Number of locks. Inode numbers are spread over them.
const SHARDS: usize = 64;

type NodeShard<N> = HashMap<u64, KnownNode<N>, FixedState>;

struct KnownNode<N> {
    node: N,
    lookups: u64,
    /// Whether a request has filled pages of the kernel with content of the file.
    has_pages: bool,
}

/// Nodes by inode number, with their lookup counts.
pub(crate) struct KernelNodes<N> {
    shards: [Mutex<NodeShard<N>>; SHARDS],
}

impl<N: Clone> KernelNodes<N> {
    /// The nodes of a new mount: the root.
    pub(crate) fn new(root_ino: u64, root: N) -> KernelNodes<N> {
        let nodes = KernelNodes::empty();
        nodes.count_lookup(root_ino, &root);
        nodes
    }

    /// The nodes of a transaction in a view: the kernel looks its root up like any other directory.
    pub(crate) fn empty() -> KernelNodes<N> {
        KernelNodes {
            shards: std::array::from_fn(|_| Mutex::new(NodeShard::with_hasher(FixedState::with_seed(0)))),
        }
    }

    /// Whether the kernel has forgotten all of them.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    /// The node with this inode number; `None` if the kernel has forgotten it.
    pub(crate) fn get(&self, ino: u64) -> Option<N> {
        self.shard(ino).lock().get(&ino).map(|known| {
            debug_assert!(known.lookups > 0, "an entry has a lookup that is not forgotten");
            known.node.clone()
        })
    }

    /// The node of a request on content, and whether an earlier request has filled pages of the kernel with
    /// the file's content; `fills_pages` says whether this one does.
    pub(crate) fn get_content(&self, ino: u64, fills_pages: bool) -> Option<(N, bool)> {
        self.shard(ino).lock().get_mut(&ino).map(|known| {
            let had_pages = known.has_pages;
            known.has_pages |= fills_pages;
            (known.node.clone(), had_pages)
        })
    }

    /// Counts an answer that names `node`.
    pub(crate) fn count_lookup(&self, ino: u64, node: &N) {
        let mut shard = self.shard(ino).lock();
        shard
            .entry(ino)
            .or_insert_with(|| KnownNode { node: node.clone(), lookups: 0, has_pages: false })
            .lookups += 1;
    }

    /// Subtracts `lookups` from the count. Returns the node if none is left; the caller drops it without the
    /// lock.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) -> Option<N> {
        let mut shard = self.shard(ino).lock();
        let Entry::Occupied(mut entry) = shard.entry(ino) else { return None };
        let known = entry.get_mut();
        // Saturating: a count that the kernel gets wrong must not stop the server.
        known.lookups = known.lookups.saturating_sub(lookups);
        (known.lookups == 0).then(|| entry.remove().node)
    }

    /// Forgets everything, as the kernel does when a mount ends.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            // Dropped without the lock: the drop of a node locks the filesystem's inode cache.
            let nodes =
                std::mem::replace(&mut *shard.lock(), NodeShard::with_hasher(FixedState::with_seed(0)));
            drop(nodes);
        }
    }

    fn shard(&self, ino: u64) -> &Mutex<NodeShard<N>> {
        &self.shards[(ino % SHARDS as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_node_is_kept_from_the_first_lookup_until_all_are_forgotten() {
        let nodes = KernelNodes::new(1, Arc::new("root"));
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
        let nodes = KernelNodes::new(1, ());
        let has_pages = |fills| nodes.get_content(1, fills).unwrap().1;
        assert!(!has_pages(false) && !has_pages(true) && has_pages(false) && has_pages(true));
        assert!(nodes.get_content(2, true).is_none());
    }

    #[test]
    fn forgetting_an_unknown_inode_does_nothing() {
        assert!(KernelNodes::new(1, ()).forget(9, 1).is_none());
    }

    #[test]
    fn the_end_of_a_mount_drops_every_node() {
        let node = Arc::new(());
        let nodes = KernelNodes::new(1, Arc::clone(&node));
        for ino in 2..500 {
            nodes.count_lookup(ino, &node);
        }
        nodes.clear();
        assert_eq!(Arc::strong_count(&node), 1);
    }
}
