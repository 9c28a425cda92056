//! Dumps of structures on flash, for people and programs.
//!
//! Each function reads the pool like [`crate::check`] and returns a [`DumpValue`]. `Display` shows it as
//! indented text, `Serialize` as JSON. Damaged structures are left out or marked in place; a check reports
//! all of them.

mod dump;
mod map;
mod media;

pub use dump::DumpValue;
pub use map::{inode, key, table, tables};
pub use media::{root, segment, segments, stripe};
