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
//! 3. The hand of a shard passes all its inodes in turn, so every inode is offered to the kernel for
//!    forgetting at some time (`tests::the_inodes_that_nobody_asks_for_are_offered_first`).
//! 4. The memory follows the number of inodes down as well as up: a shard has room for at most
//!    `SPARE_PLACES` times its inodes (`tests::the_room_shrinks_with_the_inodes`), and `have_become_few` says
//!    when the allocator has much to return.
//!
//! The kernel would remember inodes until it is short of memory, and each costs the server some hundred
//! bytes. So when they are many, the server asks the kernel to drop some (`prune`): those that no request has
//! named for long. The kernel keeps those that are in use.

use std::hash::BuildHasher;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::Mutex;

/// Number of locks of the main mount, a power of two. Inode numbers are spread over them.
const SHARDS: usize = 64;

/// Number of locks of a transaction in a view, a power of two. Making them is a part of each BEGIN.
const VIEW_SHARDS: usize = 4;

/// Inode numbers in one request to forget some.
const PRUNED_AT_ONCE: usize = 1024;

/// A shard gives room back when it has more than this many places for each inode.
const SPARE_PLACES: usize = 8;

/// Places that a shard keeps in any case.
const PLACES_MIN: usize = 64;

/// Inodes whose memory is worth a call of the allocator.
const FEWER_MIN: usize = 16_384;

struct NodeShard<N> {
    known: HashTable<KnownNode<N>>,
    /// The next place in the table from which an inode is offered to the kernel for forgetting.
    hand: usize,
}

/// A quarter of the places of a shard may be free, so each byte here counts.
struct KnownNode<N> {
    ino: u64,
    node: N,
    marks: KnownMarks,
}

/// Lookups and flags in one word.
#[derive(Clone, Copy)]
struct KnownMarks(u64);

impl KnownMarks {
    /// A request has named the inode since it was last looked at for forgetting.
    const NAMED: u64 = 1 << 63;
    /// A request has filled pages of the kernel with content of the file.
    const PAGES: u64 = 1 << 62;
    const LOOKUPS: u64 = KnownMarks::PAGES - 1;

    fn of(lookups: u64) -> KnownMarks {
        KnownMarks(lookups.min(KnownMarks::LOOKUPS))
    }

    fn lookups(self) -> u64 {
        self.0 & KnownMarks::LOOKUPS
    }

    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    fn set(&mut self, flag: u64) {
        self.0 |= flag;
    }

    /// Clears a flag, and returns whether it was set.
    fn take(&mut self, flag: u64) -> bool {
        let had = self.has(flag);
        self.0 &= !flag;
        had
    }

    fn set_lookups(&mut self, lookups: u64) {
        self.0 = (self.0 & !KnownMarks::LOOKUPS) | KnownMarks::of(lookups).0;
    }
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
    /// The most inodes since `have_become_few` last said so.
    most: AtomicUsize,
    /// The value of `added` from which on the kernel is asked next.
    next_prune: AtomicUsize,
}

impl<N> Default for NodeShard<N> {
    fn default() -> Self {
        NodeShard { known: HashTable::new(), hand: 0 }
    }
}

fn hash(ino: u64) -> u64 {
    FixedState::with_seed(0).hash_one(ino)
}

impl<N> NodeShard<N> {
    fn get(&self, ino: u64) -> Option<&KnownNode<N>> {
        self.known.find(hash(ino), |known| known.ino == ino)
    }

    fn get_mut(&mut self, ino: u64) -> Option<&mut KnownNode<N>> {
        self.known.find_mut(hash(ino), |known| known.ino == ino)
    }

    fn entry(&mut self, ino: u64) -> Entry<'_, KnownNode<N>> {
        self.known.entry(hash(ino), |known| known.ino == ino, |known| hash(known.ino))
    }

    /// Moves the hand over up to `wanted` inodes and lists them: at first those that no request has named
    /// since they were last looked at.
    fn offer(&mut self, wanted: usize, offered: &mut Vec<u64>) {
        let places = self.known.num_buckets();
        let mut left = wanted.min(self.known.len());
        for _ in 0..2 * places {
            if left == 0 {
                break;
            }
            self.hand = (self.hand + 1) % places;
            let Some(known) = self.known.get_bucket_mut(self.hand) else { continue };
            if !known.marks.take(KnownMarks::NAMED) {
                offered.push(known.ino);
                left -= 1;
            }
        }
    }

    /// Releases room that the inodes do not need any more. Afterwards half of the room is free, so the next
    /// release comes after many more forgotten inodes.
    fn shrink(&mut self) {
        let places = self.known.num_buckets();
        if places > PLACES_MIN && places / SPARE_PLACES > self.known.len() {
            self.known.shrink_to(2 * self.known.len(), |known| hash(known.ino));
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
            most: AtomicUsize::new(0),
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
            listed.extend(shard.lock().known.iter().map(|known| (known.ino, known.node.clone())));
        }
        listed
    }

    /// All nodes, each with its inode number and its lookups.
    pub(crate) fn list(&self) -> Vec<(u64, N, u64)> {
        let mut listed = Vec::new();
        for shard in &*self.shards {
            let shard = shard.lock();
            let each = |known: &KnownNode<N>| (known.ino, known.node.clone(), known.marks.lookups());
            listed.extend(shard.known.iter().map(each));
        }
        listed
    }

    /// Whether the kernel remembers the inode.
    pub(crate) fn has(&self, ino: u64) -> bool {
        self.shard(ino).lock().get(ino).is_some()
    }

    /// Whether the kernel has forgotten all of them.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of inodes that the kernel remembers.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The numbers of all inodes that the kernel remembers.
    pub(crate) fn known(&self) -> Vec<u64> {
        let mut known = Vec::with_capacity(self.len());
        self.shards.iter().for_each(|shard| known.extend(shard.lock().known.iter().map(|node| node.ino)));
        known
    }

    /// The node with this inode number; `None` if the kernel has forgotten it.
    pub(crate) fn get(&self, ino: u64) -> Option<N> {
        self.shard(ino).lock().get_mut(ino).map(|known| {
            debug_assert!(known.marks.lookups() > 0, "an entry has a lookup that is not forgotten");
            known.marks.set(KnownMarks::NAMED);
            known.node.clone()
        })
    }

    /// The node of a request on content, and whether an earlier request has filled pages of the kernel with
    /// the file's content; `fills_pages` says whether this one does.
    pub(crate) fn get_content(&self, ino: u64, fills_pages: bool) -> Option<(N, bool)> {
        self.shard(ino).lock().get_mut(ino).map(|known| {
            known.marks.set(KnownMarks::NAMED);
            let had_pages = known.marks.has(KnownMarks::PAGES);
            if fills_pages {
                known.marks.set(KnownMarks::PAGES);
            }
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
        match shard.entry(ino) {
            Entry::Occupied(mut known) => {
                let marks = &mut known.get_mut().marks;
                marks.set_lookups(marks.lookups().saturating_add(lookups));
            }
            Entry::Vacant(entry) => {
                entry.insert(KnownNode { ino, node: node.clone(), marks: KnownMarks::of(lookups) });
                let count = self.count.fetch_add(1, Ordering::AcqRel) + 1;
                self.added.fetch_add(1, Ordering::Relaxed);
                // A look before the change: it is rarely the most there has been, except while they grow.
                if count > self.most.load(Ordering::Relaxed) {
                    self.most.fetch_max(count, Ordering::Relaxed);
                }
            }
        }
    }

    /// Subtracts `lookups` from the count. Returns the node if none is left; the caller drops it without the
    /// lock.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) -> Option<N> {
        let mut shard = self.shard(ino).lock();
        let Entry::Occupied(mut entry) = shard.entry(ino) else { return None };
        let marks = &mut entry.get_mut().marks;
        // Saturating: a count that the kernel gets wrong must not stop the server.
        marks.set_lookups(marks.lookups().saturating_sub(lookups));
        if marks.lookups() > 0 {
            return None;
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
        let (forgotten, _) = entry.remove();
        shard.shrink();
        Some(forgotten.node)
    }

    /// Whether at most half of the inodes are left of the most that there were since this last was so, and
    /// the others were many: then the allocator has memory to return. Returns `true` to one of several
    /// callers.
    pub(crate) fn have_become_few(&self) -> bool {
        let (count, most) = (self.len(), self.most.load(Ordering::Relaxed));
        most / 2 >= count
            && most - count >= FEWER_MIN
            && self.most.compare_exchange(most, count, Ordering::AcqRel, Ordering::Relaxed).is_ok()
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
    fn the_room_shrinks_with_the_inodes() {
        let nodes = KernelNodes::empty(10);
        let places = || nodes.shards.iter().map(|shard| shard.lock().known.num_buckets()).max().unwrap();
        let inodes = 1..100_001;
        inodes.clone().for_each(|ino| nodes.count_lookup(ino, &()));
        assert!(places() >= 25_000 && !nodes.have_become_few());
        for ino in inodes {
            nodes.forget(ino, 1).unwrap();
            let most = (nodes.len().div_ceil(VIEW_SHARDS) + 1) * SPARE_PLACES;
            assert!(places() <= most.max(PLACES_MIN), "{} places for {} inodes", places(), nodes.len());
        }
        assert!(nodes.is_empty() && nodes.offered().is_empty());
    }

    #[test]
    fn many_inodes_become_few_once_for_each_halving() {
        let nodes = KernelNodes::empty(10);
        let count = 4 * FEWER_MIN as u64;
        (1..=count).for_each(|ino| nodes.count_lookup(ino, &()));
        let became_few = |ino: &u64| {
            nodes.forget(*ino, 1).unwrap();
            nodes.have_become_few()
        };
        let at: Vec<u64> = (1..=count).filter(became_few).collect();
        assert_eq!(at, [count / 2, count / 4 * 3, count]);
    }

    #[test]
    fn lookups_are_counted_beside_the_flags() {
        let nodes = KernelNodes::new(1, (), 10);
        nodes.count_lookups(7, &(), u64::MAX);
        assert!(!nodes.get_content(7, true).unwrap().1 && nodes.get_content(7, false).unwrap().1);
        assert!(nodes.forget(7, 5).is_none() && nodes.get_content(7, false).unwrap().1);
        assert!(nodes.forget(7, u64::MAX).is_some(), "a count that is too large ends all the same");
        assert!(size_of::<KnownNode<Arc<()>>>() <= 24);
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
