//! The cache of decoded blocks, bounded in bytes, which all tables share.
//!
//! A scan reads most blocks once. So the blocks that it steps to stay in a small part of the cache, long
//! enough for lookups of the keys that it returns. They take no room from the blocks of lookups, and the
//! listing of a large directory takes little memory.

use std::sync::Arc;

use foldhash::fast::FixedState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use warpfire_format::table::{BlockHandle, BundleIndex, DataBlock, Partition};
use warpfire_slices::ReadAhead;

use super::kept_bundles::KeptBundles;
use super::passing::PassingBlocks;
use crate::store::MetaError;

#[derive(Clone)]
pub(super) enum CachedBlock {
    Partition(Arc<Partition>),
    Data(Arc<DataBlock>),
    Bundles(Arc<BundleIndex>),
}

/// A table's id and the offset of a block in it. Ids are not reused, so blocks of removed tables need no
/// removal.
pub(super) type BlockKey = (u64, u32);

#[derive(Clone)]
struct BlockWeight;

/// How long a block stays in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stay {
    /// Until blocks that are used more often need its room.
    Long,
    /// While a scan is near.
    Short,
}

/// The part of the cache for blocks that stay short, and its bounds. A few blocks must fit.
const SHORT_PART: u64 = 8;
const SHORT_BYTES_MIN: u64 = 256 << 10;
const SHORT_BYTES_MAX: u64 = 32 << 20;

/// The bytes for blocks that stay long, and for those that stay short, in a cache of so many.
fn parts(bytes: u64) -> (u64, u64) {
    let short = (bytes / SHORT_PART).clamp(SHORT_BYTES_MIN, SHORT_BYTES_MAX).min(bytes / 4);
    (bytes - short, short)
}

/// Memory of an entry beside its block: key, pointer, counts and the cache's own lists.
const OVERHEAD_BYTES: usize = 128;

impl CachedBlock {
    /// Its memory in a cache, in bytes.
    pub(super) fn weight(&self) -> u64 {
        let bytes = match self {
            CachedBlock::Partition(partition) => partition.memory_bytes(),
            CachedBlock::Data(data) => data.memory_bytes(),
            CachedBlock::Bundles(bundles) => bundles.memory_bytes(),
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
    /// Blocks that stay short.
    passing: PassingBlocks,
    ahead: Arc<ReadAhead>,
    kept_bundles: KeptBundles,
}

impl BlockCache {
    /// A cache of `bytes`, for blocks that are read through `ahead`. Bundles that are kept have memory of
    /// their own.
    pub(crate) fn new(bytes: u64, ahead: Arc<ReadAhead>) -> Self {
        let (long, short) = parts(bytes);
        // About 8 KiB a decoded block.
        let items = usize::try_from(bytes / 8192).unwrap_or(usize::MAX).clamp(16, 1 << 24);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(long)
            .build()
            .expect("both capacities are given");
        let hasher = FixedState::with_seed(2);
        let blocks = Cache::with_options(options, BlockWeight, hasher, DefaultLifecycle::default());
        let passing = PassingBlocks::new(short);
        BlockCache { blocks, passing, ahead, kept_bundles: KeptBundles::new(bytes) }
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
        let (long, short) = parts(bytes);
        self.blocks.set_capacity(long);
        self.passing.limit(short);
    }

    pub(super) fn ahead(&self) -> &ReadAhead {
        &self.ahead
    }

    pub(super) fn kept_bundles(&self) -> &KeptBundles {
        &self.kept_bundles
    }

    /// Whether a block is in the cache.
    pub(super) fn holds(&self, table: u64, handle: BlockHandle) -> bool {
        let key = (table, handle.offset);
        self.blocks.contains_key(&key) || self.passing.holds(&key)
    }

    pub(super) fn get_or_read(
        &self,
        table: u64,
        handle: BlockHandle,
        stay: Stay,
        read: impl FnOnce() -> Result<CachedBlock, MetaError>,
    ) -> Result<CachedBlock, MetaError> {
        let key = (table, handle.offset);
        if let Some(block) = self.blocks.get(&key).or_else(|| self.passing.get(&key)) {
            return Ok(block);
        }
        let block = read()?;
        match stay {
            Stay::Long => self.blocks.insert(key, block.clone()),
            Stay::Short => self.passing.insert(key, block.clone()),
        }
        Ok(block)
    }
}
