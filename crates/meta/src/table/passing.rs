//! The last blocks of scans and of lookups in the order of keys: a queue of bounded memory.
//!
//! A partition that was used while it was in the queue goes through it once more. So it stays while a scan is
//! in its data blocks, of which there are more than a small queue has room for.
//!
//! # Invariants
//! 1. The blocks have at most `bytes_max` bytes, or there is one (assert in `drop_oldest`).
//! 2. Each block in the queue is found by its key, and none else is.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use warpfire_env::sync::RwLock;
use warpfire_env::sync::atomic::{AtomicBool, Ordering};

use super::cache::{BlockKey, CachedBlock};

struct PassingBlock {
    block: CachedBlock,
    /// Whether it is a partition that was used since it was put at the end of the queue.
    is_used: AtomicBool,
}

#[derive(Default)]
struct Queue {
    by_key: HashMap<BlockKey, PassingBlock, FixedState>,
    /// Oldest first.
    order: VecDeque<BlockKey>,
    bytes: u64,
    bytes_max: u64,
}

impl Queue {
    fn drop_oldest(&mut self) {
        while self.bytes > self.bytes_max && self.order.len() > 1 {
            let oldest = self.order.pop_front().expect("the queue has two blocks");
            let Entry::Occupied(mut there) = self.by_key.entry(oldest) else {
                unreachable!("each key in the queue has a block")
            };
            if std::mem::take(there.get_mut().is_used.get_mut()) {
                self.order.push_back(oldest);
            } else {
                self.bytes -= there.remove().block.weight();
            }
        }
        debug_assert_eq!(self.by_key.len(), self.order.len(), "each block is in the queue");
        debug_assert!(self.bytes <= self.bytes_max || self.order.len() == 1, "the memory is bounded");
    }
}

/// Blocks that leave in the order in which they came.
pub(super) struct PassingBlocks {
    queue: RwLock<Queue>,
}

impl PassingBlocks {
    pub(super) fn new(bytes_max: u64) -> Self {
        PassingBlocks { queue: RwLock::new(Queue { bytes_max, ..Queue::default() }) }
    }

    /// The bytes of its blocks, and the most that they may have.
    pub(super) fn memory(&self) -> (u64, u64) {
        let queue = self.queue.read();
        (queue.bytes, queue.bytes_max)
    }

    pub(super) fn limit(&self, bytes_max: u64) {
        let mut queue = self.queue.write();
        queue.bytes_max = bytes_max;
        queue.drop_oldest();
    }

    pub(super) fn get(&self, key: &BlockKey) -> Option<CachedBlock> {
        let queue = self.queue.read();
        let passing = queue.by_key.get(key)?;
        // Most uses are of a partition that was used before: they write nothing.
        if matches!(passing.block, CachedBlock::Partition(_)) && !passing.is_used.load(Ordering::Relaxed) {
            passing.is_used.store(true, Ordering::Relaxed);
        }
        Some(passing.block.clone())
    }

    pub(super) fn holds(&self, key: &BlockKey) -> bool {
        self.queue.read().by_key.contains_key(key)
    }

    /// Adds a block as the newest. One that is there already stays where it is.
    pub(super) fn insert(&self, key: BlockKey, block: CachedBlock) {
        let mut queue = self.queue.write();
        let bytes = block.weight();
        if let Entry::Vacant(place) = queue.by_key.entry(key) {
            place.insert(PassingBlock { block, is_used: AtomicBool::new(false) });
            queue.order.push_back(key);
            queue.bytes += bytes;
            queue.drop_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use warpfire_format::table::{
        DataBlock, DataBlockBuilder, KeyVersion, Partition, PartitionBuilder, TopBuilder, VersionKind,
    };
    use warpfire_units::Seq;

    use super::*;

    fn block() -> CachedBlock {
        let (mut builder, mut bytes) = (DataBlockBuilder::new(Seq(1)), Vec::new());
        builder.push(KeyVersion { key: b"key", seq: Seq(1), kind: VersionKind::Put, value: &[7; 1000] });
        builder.finish(&mut bytes);
        CachedBlock::Data(Arc::new(DataBlock::decode(&bytes).unwrap()))
    }

    fn partition() -> CachedBlock {
        let (mut builder, mut table) = (PartitionBuilder::default(), vec![0; 100]);
        builder.add_key(1);
        builder.add_block(b"", b"key", table.len());
        builder.finish(&mut table, 0, &mut TopBuilder::default());
        CachedBlock::Partition(Arc::new(Partition::decode(&table[100..]).unwrap()))
    }

    #[test]
    fn a_partition_stays_while_it_is_used() {
        let passing = PassingBlocks::new(3 * block().weight() + partition().weight());
        passing.insert((1, 0), partition());
        for n in 1..100 {
            passing.insert((1, n), block());
            assert!(n < 4 || !passing.holds(&(1, n - 3)), "three data blocks fit");
            assert!(passing.get(&(1, n)).is_some() && passing.get(&(1, 0)).is_some());
        }
        for n in 100..110 {
            passing.insert((1, n), block());
        }
        assert!(!passing.holds(&(1, 0)), "it is used no more");
    }

    #[test]
    fn the_last_blocks_stay_in_bounded_memory() {
        let weight = block().weight();
        let passing = PassingBlocks::new(10 * weight);
        for n in 0..100 {
            passing.insert((1, n), block());
            passing.insert((1, n), block());
            assert!(passing.holds(&(1, n)));
        }
        assert_eq!((0..100).filter(|n| passing.holds(&(1, *n))).collect::<Vec<_>>(), Vec::from_iter(90..100));
        assert_eq!(passing.memory(), (10 * weight, 10 * weight));
        passing.limit(3 * weight);
        assert_eq!((0..100).filter(|n| passing.holds(&(1, *n))).collect::<Vec<_>>(), Vec::from_iter(97..100));
        // A scan goes on in the block where its last page ended.
        passing.limit(0);
        assert!(passing.holds(&(1, 99)) && !passing.holds(&(1, 98)));
    }
}
