//! The cache of decoded blocks, bounded in bytes, which all tables share.
//!
//! A scan reads most blocks once, and so do lookups of keys in their order. Their blocks *pass*: they stay in
//! a small part of the cache, long enough for lookups of the keys that a scan returns. They take no room from
//! the other blocks, and a walk over a large directory takes little memory.
//!
//! Bundles are in the cache too, by their places. A bundle is never stale: each byte of a segment is written
//! once, segment ids are not reused, and a place is asked for only while a table names it.

use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use warpfire_format::table::{BlockHandle, BundleIndex, DataBlock, Partition};
use warpfire_slices::ReadAhead;
use warpfire_units::SlicePtr;

use super::passing::PassingBlocks;
use crate::store::MetaError;

#[derive(Clone)]
pub(super) enum CachedBlock {
    Partition(Arc<Partition>),
    Data(Arc<DataBlock>),
    Bundles(Arc<BundleIndex>),
    Bundle(Arc<Vec<u8>>),
}

/// Each entry of the cache has one, and a lookup waits for the line of memory that it is in.
const _: () = assert!(size_of::<CachedBlock>() == 16, "a cached block is a pointer and its kind");

/// A table's id and the offset of a block in it. Ids are not reused, so blocks of removed tables need no
/// removal. Of a bundle it is its segment, marked, and its offset there.
pub(super) type BlockKey = (u64, u64);

/// Marks the segment of a bundle. No table has such an id.
const SEGMENT: u64 = 1 << 63;

fn bundle_key(slice: SlicePtr) -> BlockKey {
    (SEGMENT | slice.segment.get(), slice.offset_bytes)
}

#[derive(Clone)]
struct BlockWeight;

/// What a block is read for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockUse {
    /// To find other blocks.
    Index,
    /// For one key.
    Lookup,
    /// For the bytes of one key, which are not among the blocks of a table.
    Bytes,
    /// For the keys after those of the block before.
    Scan,
}

/// The part of the cache for blocks that pass, and its bounds. A few blocks must fit.
const PASSING_PART: u64 = 8;
const PASSING_BYTES_MIN: u64 = 256 << 10;
const PASSING_BYTES_MAX: u64 = 32 << 20;

/// The bytes for blocks that stay, and for those that pass, in a cache of so many.
fn parts(bytes: u64) -> (u64, u64) {
    let passing = (bytes / PASSING_PART).clamp(PASSING_BYTES_MIN, PASSING_BYTES_MAX).min(bytes / 4);
    (bytes - passing, passing)
}

/// A place in a table as one number. Two places with the same number cost a wrong guess.
fn place(table: u64, offset: u32) -> u64 {
    table << 32 | u64::from(offset)
}

/// Bytes between two blocks that lookups in order may find in the cache.
const NEAR_BYTES: u64 = 32 << 10;

/// No place in a table.
const NOWHERE: u64 = u64::MAX;

/// Memory of an entry beside its block: key, pointer, counts and the cache's own lists.
const OVERHEAD_BYTES: usize = 128;

impl CachedBlock {
    /// Its memory in a cache, in bytes.
    pub(super) fn weight(&self) -> u64 {
        let bytes = match self {
            CachedBlock::Partition(partition) => partition.memory_bytes(),
            CachedBlock::Data(data) => data.memory_bytes(),
            CachedBlock::Bundles(bundles) => bundles.memory_bytes(),
            CachedBlock::Bundle(bytes) => bytes.capacity(),
        };
        (bytes + OVERHEAD_BYTES) as u64
    }
}

impl Weighter<BlockKey, CachedBlock> for BlockWeight {
    fn weight(&self, _key: &BlockKey, block: &CachedBlock) -> u64 {
        block.weight()
    }
}

/// The memory of an engine's cache of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheMemory {
    /// Bytes of the blocks in it.
    pub used_bytes: u64,
    /// Most bytes that it may hold now.
    pub limit_bytes: u64,
}

/// The cache that all tables share.
pub(crate) struct BlockCache {
    blocks: Cache<BlockKey, CachedBlock, BlockWeight, FixedState>,
    passing: PassingBlocks,
    /// The end of the block that a lookup of any caller read last. If the next one begins there or soon
    /// after, somebody looks up keys in their order, as if by a scan.
    lookup_end: AtomicU64,
    /// The data block of the bundle that was read last for its bytes. If the next one is of that block or of
    /// one soon after, somebody reads files in the order of their keys.
    bytes_of: AtomicU64,
    ahead: Arc<ReadAhead>,
}

impl BlockCache {
    /// A cache of `bytes`, for blocks that are read through `ahead`.
    pub(crate) fn new(bytes: u64, ahead: Arc<ReadAhead>) -> Self {
        let (staying, passing) = parts(bytes);
        // About 8 KiB a decoded block.
        let items = usize::try_from(bytes / 8192).unwrap_or(usize::MAX).clamp(16, 1 << 24);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(staying)
            .build()
            .expect("both capacities are given");
        let hasher = FixedState::with_seed(2);
        let blocks = Cache::with_options(options, BlockWeight, hasher, DefaultLifecycle::default());
        let passing = PassingBlocks::new(passing);
        BlockCache {
            blocks,
            passing,
            lookup_end: AtomicU64::new(NOWHERE),
            bytes_of: AtomicU64::new(NOWHERE),
            ahead,
        }
    }

    /// The memory of the cache.
    pub(crate) fn memory(&self) -> CacheMemory {
        let (passing_bytes, passing_limit) = self.passing.memory();
        CacheMemory {
            used_bytes: self.blocks.weight() + passing_bytes,
            limit_bytes: self.blocks.capacity() + passing_limit,
        }
    }

    /// Changes the limit. Blocks beyond it are dropped before the call returns.
    pub(crate) fn limit(&self, bytes: u64) {
        let (staying, passing) = parts(bytes);
        self.blocks.set_capacity(staying);
        self.passing.limit(passing);
    }

    pub(super) fn ahead(&self) -> &ReadAhead {
        &self.ahead
    }

    /// Whether a block is in the cache.
    pub(super) fn holds(&self, table: u64, handle: BlockHandle) -> bool {
        let key = (table, u64::from(handle.offset));
        self.blocks.contains_key(&key) || self.passing.holds(&key)
    }

    /// Whether a block that was not in the cache is likely to be used by one pass over the keys only.
    fn passes(&self, table: u64, handle: BlockHandle, used: BlockUse) -> bool {
        let (place, len) = (place(table, handle.offset), u64::from(handle.len));
        let (last, now, near_bytes) = match used {
            BlockUse::Index => return false,
            BlockUse::Scan => return true,
            BlockUse::Lookup => (&self.lookup_end, place + len, NEAR_BYTES),
            BlockUse::Bytes => (&self.bytes_of, place, 2 * len),
        };
        let before = last.swap(now, Ordering::Relaxed);
        place.checked_sub(before).is_some_and(|gap| gap < near_bytes)
    }

    fn get(&self, key: &BlockKey) -> Option<CachedBlock> {
        self.blocks.get(key).or_else(|| self.passing.get(key))
    }

    fn insert(&self, key: BlockKey, block: CachedBlock, passes: bool) {
        if passes {
            self.passing.insert(key, block);
        } else {
            self.blocks.insert(key, block);
        }
    }

    /// The bundle at a place, if it is kept.
    pub(super) fn bundle(&self, slice: SlicePtr) -> Option<Arc<Vec<u8>>> {
        match self.get(&bundle_key(slice))? {
            // It has the same length, unless a forged table says otherwise.
            CachedBlock::Bundle(bytes) => Some(bytes).filter(|bytes| bytes.len() == slice.len_bytes as usize),
            _ => None,
        }
    }

    /// Keeps a bundle that was read for its bytes or in passing. Its record is in a data block of `table`.
    pub(super) fn keep_bundle(
        &self,
        slice: SlicePtr,
        bytes: Arc<Vec<u8>>,
        (table, data): (u64, BlockHandle),
        used: BlockUse,
    ) {
        self.insert(bundle_key(slice), CachedBlock::Bundle(bytes), self.passes(table, data, used));
    }

    pub(super) fn get_or_read(
        &self,
        table: u64,
        handle: BlockHandle,
        used: BlockUse,
        read: impl FnOnce() -> Result<CachedBlock, MetaError>,
    ) -> Result<CachedBlock, MetaError> {
        let key = (table, u64::from(handle.offset));
        if let Some(block) = self.get(&key) {
            return Ok(block);
        }
        let block = read()?;
        self.insert(key, block.clone(), self.passes(table, handle, used));
        Ok(block)
    }
}
