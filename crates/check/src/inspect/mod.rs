//! Dumps of what is on flash, for people and programs.
//!
//! Each function reads the pool as [`crate::check`] does and returns a [`DumpValue`]: `Display` shows it as indented text, `Serialize`
//! as JSON. What is damaged on the way is left out or said in place; run a check to hear of all of it.

mod dump;
mod map;
mod media;

pub use dump::DumpValue;
pub use map::{inode, key, table, tables};
pub use media::{root, segment, segments, stripe};
