//! The order of this room's locks; debug builds check it. The write queue's lock comes between the streams'
//! and the segment table's. It is not ranked, because threads wait under it for a condition.

use warpfire_env::rank::LOG;

/// A sync or a checkpoint.
pub(crate) const SYNC_STATE: u16 = LOG;
/// The open segments of the streams: a group, in the order of `STREAMS`. `write_group` takes all of them.
pub(crate) const STREAM: u16 = LOG + 10;
/// The segment table.
pub(crate) const SEGMENT_TABLE: u16 = LOG + 30;
/// Records that no group has taken.
pub(crate) const PENDING: u16 = LOG + 40;
