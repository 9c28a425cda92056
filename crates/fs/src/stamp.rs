//! Times as the clock gives them and as records have them.

use warpfire_env::Timestamp;
use warpfire_format::fs::InodeTime;

pub(crate) fn stamp(t: Timestamp) -> InodeTime {
    InodeTime { seconds: t.seconds, nanos: t.nanos.min(999_999_999) }
}

pub(crate) fn timestamp(t: InodeTime) -> Timestamp {
    Timestamp { seconds: t.seconds, nanos: t.nanos }
}
