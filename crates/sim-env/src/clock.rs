//! A clock that moves only when a test advances it.

use std::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::{Clock, Timestamp};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A clock that stands still until `advance`.
#[derive(Debug)]
pub struct SimClock {
    nanos: AtomicU64,
}

impl SimClock {
    /// The time at which every simulation begins, in seconds since 1970: in November 2023.
    pub const EPOCH_SECONDS: i64 = 1_700_000_000;

    /// A clock that has run for `nanos` already.
    #[must_use]
    pub fn new(nanos: u64) -> Self {
        SimClock { nanos: AtomicU64::new(nanos) }
    }

    /// Moves the time forward by `nanos`.
    pub fn advance(&self, nanos: u64) {
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let nanos = self.monotonic_nanos();
        let seconds = i64::try_from(nanos / NANOS_PER_SECOND).expect("2^64 nanoseconds are 2^34 seconds");
        let below = u32::try_from(nanos % NANOS_PER_SECOND).expect("a remainder below 10^9");
        Timestamp { seconds: Self::EPOCH_SECONDS + seconds, nanos: below }
    }

    fn monotonic_nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_until_it_is_advanced() {
        let clock = SimClock::new(0);
        assert_eq!(clock.now(), clock.now());
        clock.advance(2_500_000_000);
        assert_eq!(clock.now(), Timestamp { seconds: SimClock::EPOCH_SECONDS + 2, nanos: 500_000_000 });
        assert_eq!(clock.monotonic_nanos(), 2_500_000_000);
    }
}
