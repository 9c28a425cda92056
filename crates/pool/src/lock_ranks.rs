//! The order of this room's locks; debug builds check it.

use warpfire_env::rank::POOL;

/// Writing roots.
pub(crate) const ROOTS: u16 = POOL;
/// One flush at a time.
pub(crate) const FLUSHING: u16 = POOL + 10;
/// Segments with stripes that no flush has covered.
pub(crate) const UNFLUSHED: u16 = POOL + 20;
/// One zone trimmed at a time.
pub(crate) const TRIMMING: u16 = POOL + 25;
/// The map of segments.
pub(crate) const SEGMENTS: u16 = POOL + 30;
/// Free and used zones.
pub(crate) const ZONES: u16 = POOL + 40;
/// Segments that need repair.
pub(crate) const DAMAGED: u16 = POOL + 50;
/// Lost columns that the client has not taken yet.
pub(crate) const LOST: u16 = POOL + 60;
