//! The CRC tables of shards that were read or written lately.
//!
//! A table is at most 1 KiB for a shard of at most 1 MiB, so the cache holds the tables of some 30 GiB.

use std::sync::Arc;

use foldhash::fast::FixedState;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use warpfire_units::SegmentId;

/// Most bytes of tables kept, bookkeeping counted.
const CACHE_BYTES_MAX: u64 = 32 << 20;

/// Bytes that one entry costs beside its table.
const ENTRY_BYTES: u64 = 64;

/// The CRC32C of each block of one shard.
pub(crate) type CrcTable = Arc<[u32]>;

/// Segment, stripe, column. Segment numbers are never reused, so an entry never turns stale.
type CrcTableKey = (SegmentId, u32, u16);

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
        // Tables of full shards, the common case, decide how many entries to expect.
        let expected = CACHE_BYTES_MAX / (ENTRY_BYTES + 1024);
        let lifecycle = DefaultLifecycle::default();
        let hasher = FixedState::default();
        Checksums(Cache::with(expected as usize, CACHE_BYTES_MAX, TableWeight, hasher, lifecycle))
    }

    pub(crate) fn get(&self, segment: SegmentId, stripe: u32, column: usize) -> Option<CrcTable> {
        self.0.get(&(segment, stripe, column as u16))
    }

    /// Makes the next reader of the shard read and judge its header.
    pub(crate) fn remove(&self, segment: SegmentId, stripe: u32, column: usize) {
        self.0.remove(&(segment, stripe, column as u16));
    }

    pub(crate) fn put(&self, segment: SegmentId, stripe: u32, column: usize, table: CrcTable) {
        self.0.insert((segment, stripe, column as u16), table);
    }
}
