//! A clock that moves only when a test advances it or a device lets its caller wait.

use std::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::{Clock, Timestamp};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A clock that stands still until `advance`. A device that answers late moves the monotonic time alone: the
/// time of day, which files get, is then the same with and without the fault.
#[derive(Debug)]
pub struct SimClock {
    /// The monotonic time.
    nanos: AtomicU64,
    /// The part of it that callers waited for devices.
    waited_nanos: AtomicU64,
}

impl SimClock {
    /// The time at which every simulation begins, in seconds since 1970: in November 2023.
    pub const EPOCH_SECONDS: i64 = 1_700_000_000;

    /// A clock that has run for `nanos` already.
    #[must_use]
    pub fn new(nanos: u64) -> Self {
        SimClock { nanos: AtomicU64::new(nanos), waited_nanos: AtomicU64::new(0) }
    }

    /// Moves the time forward by `nanos`.
    pub fn advance(&self, nanos: u64) {
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Moves the monotonic time forward by `nanos`, and leaves the time of day.
    pub(crate) fn wait(&self, nanos: u64) {
        self.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// A clock that goes on from this one's time of day, as after a start of the machine.
    pub(crate) fn restarted(&self) -> Self {
        SimClock::new(self.day_nanos())
    }

    /// The time of day, in nanoseconds since `EPOCH_SECONDS`.
    fn day_nanos(&self) -> u64 {
        self.monotonic_nanos() - self.waited_nanos.load(Ordering::Relaxed)
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let nanos = self.day_nanos();
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

    #[test]
    fn waiting_for_a_device_leaves_the_time_of_day() {
        let clock = SimClock::new(1_000);
        let day = clock.now();
        clock.wait(2_500_000_000);
        assert_eq!((clock.now(), clock.monotonic_nanos()), (day, 2_500_001_000));
        assert_eq!((clock.restarted().now(), clock.restarted().monotonic_nanos()), (day, 1_000));
    }
}
