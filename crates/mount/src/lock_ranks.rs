//! The order of this room's locks; debug builds check it. They come before every lock of a call of `fs`.

use warpfire_env::rank::MOUNT;

/// One commit of a transaction at a time.
pub(crate) const COMMITTING: u16 = MOUNT;
/// The invalidation gate of a mount.
pub(crate) const INVALIDATION_GATE: u16 = MOUNT + 10;
/// The bases of a file whose pages a commit has made stale.
pub(crate) const STALE_FILE: u16 = MOUNT + 20;
