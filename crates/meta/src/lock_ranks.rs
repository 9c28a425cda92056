//! The order of the engine's locks; debug builds check it.

use warpfire_env::rank::{KEYS, META};

/// The slots of key locks: a group, in the order of their numbers. Callers hold them around calls.
pub(crate) const KEY_LOCKS: u16 = KEYS;
/// One compaction or cleaning at a time.
pub(crate) const COMPACTING: u16 = META;
/// One flush at a time.
pub(crate) const FLUSHING: u16 = META + 10;
/// The state of sync points.
pub(crate) const SYNC_POINT: u16 = META + 20;
/// The manifest as the log knows it.
pub(crate) const MANIFEST: u16 = META + 30;
/// The memtable shards: a group, in the order of their numbers.
pub(crate) const MEMTABLE_SHARDS: u16 = META + 40;
/// The sorted view of the active memtable.
pub(crate) const ORDER: u16 = META + 50;
/// The hook of sync points.
pub(crate) const HOOK: u16 = META + 60;
