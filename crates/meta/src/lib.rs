//! One ordered map, many versions: the metadata engine.
//!
//! `Store` is the seam to the filesystem; a remote engine can implement it as well as the local one.

#![forbid(unsafe_code)]

mod batch;
mod lock;
mod map_store;
mod schema;
mod snapshot;
mod store;
#[cfg(test)]
mod testing;

pub use batch::{Batch, BatchOp};
pub use lock::KeyGuard;
pub use map_store::MapStore;
pub use schema::{Base, Folded, PlaceError, Placer, Schema, SchemaError};
pub use snapshot::Snapshot;
pub use store::{
    CommitError, Direction, KeyRange, MetaError, Page, PageEntry, ReadSet, SliceRead, SliceStore, Store,
};
pub use warpfire_log::{Admit, Pin, Slices, Space, Stream};
