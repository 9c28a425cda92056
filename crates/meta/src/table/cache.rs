//! The cache of decoded blocks, bounded in bytes, which all tables share.

use std::sync::Arc;

use foldhash::fast::FixedState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use warpfire_format::table::{BlockHandle, BundleIndex, DataBlock, Partition};
use warpfire_slices::ReadAhead;

use super::kept_bundles::KeptBundles;
use crate::store::MetaError;

#[derive(Clone)]
pub(super) enum CachedBlock {
    Partition(Arc<Partition>),
    Data(Arc<DataBlock>),
    Bundles(Arc<BundleIndex>),
}

/// A table's id and the offset of a block in it. Ids are not reused, so blocks of removed tables need no
/// removal.
type BlockKey = (u64, u32);

#[derive(Clone)]
struct BlockWeight;

/// Memory of an entry beside its block: key, pointer, counts and the cache's own lists.
const OVERHEAD_BYTES: usize = 128;

impl Weighter<BlockKey, CachedBlock> for BlockWeight {
    fn weight(&self, _key: &BlockKey, block: &CachedBlock) -> u64 {
        let bytes = match block {
            CachedBlock::Partition(partition) => partition.memory_bytes(),
            CachedBlock::Data(data) => data.memory_bytes(),
            CachedBlock::Bundles(bundles) => bundles.memory_bytes(),
        };
        (bytes + OVERHEAD_BYTES) as u64
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
    ahead: Arc<ReadAhead>,
    kept_bundles: KeptBundles,
}

impl BlockCache {
    /// A cache of `bytes`, for blocks that are read through `ahead`. Bundles that are kept have memory of
    /// their own.
    pub(crate) fn new(bytes: u64, ahead: Arc<ReadAhead>) -> Self {
        // About 8 KiB a decoded block.
        let items = usize::try_from(bytes / 8192).unwrap_or(usize::MAX).clamp(16, 1 << 24);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are given");
        let hasher = FixedState::with_seed(2);
        let blocks = Cache::with_options(options, BlockWeight, hasher, DefaultLifecycle::default());
        BlockCache { blocks, ahead, kept_bundles: KeptBundles::new(bytes) }
    }

    /// The memory of the cache.
    pub(crate) fn memory(&self) -> CacheMemory {
        CacheMemory { used_bytes: self.blocks.weight(), limit_bytes: self.blocks.capacity() }
    }

    /// Changes the limit. Blocks beyond it are dropped before the call returns.
    pub(crate) fn limit(&self, bytes: u64) {
        self.blocks.set_capacity(bytes);
    }

    pub(super) fn ahead(&self) -> &ReadAhead {
        &self.ahead
    }

    pub(super) fn kept_bundles(&self) -> &KeptBundles {
        &self.kept_bundles
    }

    /// Whether a block is in the cache.
    pub(super) fn holds(&self, table: u64, handle: BlockHandle) -> bool {
        self.blocks.contains_key(&(table, handle.offset))
    }

    pub(super) fn get_or_read(
        &self,
        table: u64,
        handle: BlockHandle,
        read: impl FnOnce() -> Result<CachedBlock, MetaError>,
    ) -> Result<CachedBlock, MetaError> {
        let key = (table, handle.offset);
        if let Some(block) = self.blocks.get(&key) {
            return Ok(block);
        }
        let block = read()?;
        self.blocks.insert(key, block.clone());
        Ok(block)
    }
}
