//! A cache of the CRC tables of shards that were read or written recently.
//!
//! The *CRC table* of a shard holds the checksum of each of its blocks; it is stored in the shard's header
//! block. With a cached table, a read of a shard need not read the header. A table has at most 1 KiB for a
//! shard of at most 1 MiB, so the cache covers some 30 GiB.

use std::sync::Arc;

use foldhash::fast::FixedState;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use warpfire_format::segment::ROWS_MAX;
use warpfire_units::{COLUMNS_MAX, SegmentId};

use crate::segment::pool_segment::PoolSegment;

/// Most bytes in the cache, bookkeeping included.
const CACHE_BYTES_MAX: u64 = 32 << 20;

/// Bytes of bookkeeping for one entry.
const ENTRY_BYTES: u64 = 64;

/// The CRC32C of each block of one shard.
pub(crate) type CrcTable = Arc<[u32]>;

/// Segment, epoch, stripe, column. A segment that no group names when the power fails leaves its number to a
/// segment of the next session, which has another epoch. So no two segments share an entry.
type CrcTableKey = (SegmentId, u32, u32, u16);

#[derive(Clone)]
struct TableWeight;

impl Weighter<CrcTableKey, CrcTable> for TableWeight {
    fn weight(&self, _: &CrcTableKey, table: &CrcTable) -> u64 {
        ENTRY_BYTES + 4 * table.len() as u64
    }
}

/// A bounded cache of CRC tables, shared by all readers.
pub(crate) struct Checksums(Cache<CrcTableKey, CrcTable, TableWeight, FixedState>);

impl Checksums {
    pub(crate) fn new() -> Self {
        // The cache sizes its own hash map by this number. Most entries are tables of full shards, of 1 KiB.
        let expected = CACHE_BYTES_MAX / (ENTRY_BYTES + 1024);
        let lifecycle = DefaultLifecycle::default();
        let hasher = FixedState::default();
        Checksums(Cache::with(expected as usize, CACHE_BYTES_MAX, TableWeight, hasher, lifecycle))
    }

    pub(crate) fn get(&self, segment: &PoolSegment, stripe: u32, column: usize) -> Option<CrcTable> {
        self.0.get(&key(segment, stripe, column))
    }

    /// Removes a table, so that the next reader of the shard reads and verifies its header.
    pub(crate) fn remove(&self, segment: &PoolSegment, stripe: u32, column: usize) {
        self.0.remove(&key(segment, stripe, column));
    }

    pub(crate) fn put(&self, segment: &PoolSegment, stripe: u32, column: usize, table: CrcTable) {
        debug_assert!(table.len() <= usize::from(ROWS_MAX), "a shard has no more rows than a header lists");
        self.0.insert(key(segment, stripe, column), table);
    }
}

fn key(segment: &PoolSegment, stripe: u32, column: usize) -> CrcTableKey {
    debug_assert!(column < COLUMNS_MAX, "a column number fits the key");
    (segment.id, segment.epoch, stripe, column as u16)
}
