//! Conversion between times of the clock and times of records.

use warpfire_env::Timestamp;
use warpfire_format::fs::InodeTime;

/// A time for a record. A record takes fewer than 10^9 nanoseconds, and a caller may pass more.
pub(crate) fn stamp(t: Timestamp) -> InodeTime {
    InodeTime { seconds: t.seconds, nanos: t.nanos.min(999_999_999) }
}

/// A time of a record, for callers.
pub(crate) fn timestamp(t: InodeTime) -> Timestamp {
    Timestamp { seconds: t.seconds, nanos: t.nanos }
}
