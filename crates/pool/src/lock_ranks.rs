//! The order of this room's locks; debug builds check it.

use warpfire_env::rank::POOL;

/// Writing roots.
pub(crate) const ROOTS: u16 = POOL;
/// Writing stripes and resetting zones, or freezing the state of the devices.
pub(crate) const WRITING: u16 = POOL + 5;
/// One flush at a time.
pub(crate) const FLUSHING: u16 = POOL + 10;
/// Segments with stripes that no flush has covered.
pub(crate) const UNFLUSHED: u16 = POOL + 20;
/// One zone trimmed at a time.
pub(crate) const TRIMMING: u16 = POOL + 25;
/// The map of segments.
pub(crate) const SEGMENTS: u16 = POOL + 30;
/// Zones that frozen states keep.
pub(crate) const KEPT: u16 = POOL + 35;
/// Free and used zones.
pub(crate) const ZONES: u16 = POOL + 40;
/// Segments that need repair.
pub(crate) const DAMAGED: u16 = POOL + 50;
/// Lost columns that the client has not taken yet.
pub(crate) const LOST: u16 = POOL + 60;
/// The wishes of the newest root.
pub(crate) const WISHES: u16 = POOL + 70;
