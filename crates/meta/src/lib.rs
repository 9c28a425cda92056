//! One ordered map, many versions: the metadata engine.
//!
//! `Store` is the seam to the filesystem; a remote engine can implement it as well as the local one.

#![forbid(unsafe_code)]

mod batch;
mod schema;
mod store;

pub use batch::{Batch, BatchOp};
pub use schema::{Base, Folded, PlaceError, Placer, Schema, SchemaError};
pub use store::{
    CommitError, Direction, KeyRange, MetaError, Page, PageEntry, ReadSet, SliceRead, SliceStore, Store,
};
pub use warpfire_log::{Admit, Pin, Slices, Space, Stream};
