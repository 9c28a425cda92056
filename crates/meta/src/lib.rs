//! One ordered map, many versions: the metadata engine.
//!
//! `Store` is the seam to the filesystem; a remote engine can implement it as well as the local one.

#![forbid(unsafe_code)]

mod batch;
mod commit;
mod compaction;
mod engine;
mod keys;
mod lock;
mod map_store;
mod memtable;
mod read;
mod schema;
mod snapshot;
mod store;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tx;
mod version;

pub use batch::{Batch, BatchOp, SUMS};
pub use engine::{Background, Engine, EngineOptions};
pub use keys::Keys;
pub use lock::KeyGuard;
pub use map_store::MapStore;
pub use memtable::KEY_BYTES_MAX;
pub use schema::{Base, Folded, PlaceError, Placer, PlainSchema, Schema, SchemaError};
pub use snapshot::Snapshot;
pub use store::{
    CommitError, CutHook, Direction, Holder, KeyRange, MetaError, Page, PageEntry, ReadSet, SliceRead,
    SliceStore, Store,
};
pub use tx::{Changes, Mark, TxStore};
pub use warpfire_log::{Admit, LogError, Pin, Slices, Space, Stream};
