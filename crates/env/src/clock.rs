//! Time and randomness.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Wall-clock time as a filesystem stores it: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01T00:00:00Z; negative before.
    pub seconds: i64,
    /// Nanoseconds past `seconds`, below 1,000,000,000.
    pub nanos: u32,
}

const NANOS_PER_SECOND: u32 = 1_000_000_000;

impl Timestamp {
    /// This time plus `time`. A sum past the last second of `i64` stays in that second.
    #[must_use]
    pub fn saturating_add(self, time: Duration) -> Timestamp {
        debug_assert!(self.nanos < NANOS_PER_SECOND, "nanoseconds are less than a second");
        let nanos = self.nanos + time.subsec_nanos();
        let whole = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let seconds = self.seconds.saturating_add(whole).saturating_add((nanos / NANOS_PER_SECOND).into());
        Timestamp { seconds, nanos: nanos % NANOS_PER_SECOND }
    }
}

/// The source of time for all other crates.
pub trait Clock: Send + Sync {
    /// The wall-clock time.
    fn now(&self) -> Timestamp;
    /// Nanoseconds since some fixed moment; never decreases.
    fn monotonic_nanos(&self) -> u64;
}

/// The source of random bits for all other crates.
pub trait Random: Send + Sync {
    /// 64 random bits.
    fn next_u64(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the ban sends all other crates to this method")]
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => Timestamp { seconds: d.as_secs().cast_signed(), nanos: d.subsec_nanos() },
            // Before 1970: seconds round down, so that nanoseconds count forward from them.
            Err(e) => {
                let before = e.duration();
                let up = i64::from(before.subsec_nanos() > 0);
                let nanos = (NANOS_PER_SECOND - before.subsec_nanos()) % NANOS_PER_SECOND;
                Timestamp { seconds: -before.as_secs().cast_signed() - up, nanos }
            }
        }
    }

    fn monotonic_nanos(&self) -> u64 {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
    }
}

/// The system's random number generator.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        let mut bytes = [0u8; 8];
        let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        assert_eq!(filled, Ok(8), "the kernel fills eight bytes at once");
        u64::from_le_bytes(bytes)
    }
}
