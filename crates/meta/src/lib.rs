//! One ordered map, many versions: the metadata engine.
//!
//! `Store` is the seam to the filesystem; a remote engine can implement it as well as the local one.

#![forbid(unsafe_code)]

mod batch;
mod commit;
mod compaction;
mod domain;
mod engine;
mod key_list;
mod key_locks;
mod lock_ranks;
#[cfg(any(test, feature = "twin"))]
mod map_store;
mod memory;
mod memtable;
mod read;
mod read_set;
mod releases;
mod reserved;
mod schema;
mod snapshot;
mod snapshot_bytes;
mod snapshot_view;
mod store;
mod table;
mod table_set;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tx;

pub use batch::{Batch, BatchOp, RESERVED, SUMS};
pub use domain::{DOMAIN_BYTES, DomainId, DomainOrigin, DomainRecord, ORIGINS_MAX, RollbackRecord};
pub use engine::{Background, Engine, EngineOptions};
pub use key_locks::KeyLockGuard;
#[cfg(any(test, feature = "twin"))]
pub use map_store::MapStore;
pub use memory::{MemoryAccount, MemoryBudget, MemoryCharge, MemoryLimits, MemoryNeed, MemoryRefused};
pub use memtable::KEY_BYTES_MAX;
pub use read_set::ReadSet;
pub use reserved::room_of_reserved;
pub use schema::{FoldResult, OlderValue, PlainSchema, RelocateError, Relocator, Schema, SchemaError};
pub use snapshot::EngineSnapshot;
pub use snapshot_bytes::SnapshotBytes;
pub use snapshot_view::SnapshotView;
pub use store::{
    CommitError, Direction, DomainPart, KeyRange, MetaError, ScanEntry, ScanPage, SeqRange, SnapshotStore,
    Storage, Store, SyncPointHook, WantedBytes,
};
pub use table::CacheMemory;
pub use tx::{TxChanges, TxMark, TxStore};
pub use warpfire_log::LogError;
pub use warpfire_slices::{Admit, Pin, SliceRead, SliceStore, Slices, Space, Stream};
