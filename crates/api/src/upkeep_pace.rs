//! The pace of upkeep, and how far it is: what it has moved in the last minute, and what it may move next.
//!
//! ```text
//!   each tick (`UpkeepPace::tick`)
//!     a rate is wished ──────────────▶ the work gets that rate, times the length of the tick
//!     none, programs use the devices ─▶ a quarter of its best rate; half while some data has no redundancy
//!     none, the devices are idle ────▶ no limit
//! ```
//!
//! # Invariants
//! 1. Progress is the bytes written of the bytes written and left. So it cannot exceed the whole
//!    (`Progress::of`).
//! 2. The bytes that are done count from the last moment at which nothing was left (`tick`).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use warpfire_log::UpkeepLimit;

/// Ticks over which rates are taken: a minute.
const SAMPLES_MAX: usize = 61;

/// Bytes in a second that programs move at least while they count as using the devices.
const BUSY_BYTES: u64 = 4 << 20;

/// The slowest rate that upkeep gives itself, in bytes a second.
const LEAST_BYTES: u64 = 16 << 20;

const SECOND_NANOS: u128 = 1_000_000_000;

/// The counters at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sample {
    pub now_nanos: u64,
    /// Bytes that upkeep has read and written.
    pub moved_bytes: u64,
    /// Bytes of columns that it has written.
    pub written_bytes: u64,
    /// Bytes that all devices have read and written.
    pub device_bytes: u64,
}

/// What upkeep moved lately.
#[derive(Default)]
pub(crate) struct UpkeepPace(Mutex<PaceState>);

#[derive(Default)]
struct PaceState {
    samples: VecDeque<Sample>,
    /// The best rate of a tick in which no program used the devices.
    best_bytes: u64,
    /// The bytes written when nothing was left the last time.
    begun_at_bytes: u64,
    is_limited: bool,
}

/// How far upkeep is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    pub done_bytes: u64,
    pub left_bytes: u64,
    /// Bytes of columns written in a second, over the last minute.
    pub rate_bytes: u64,
}

impl Progress {
    /// The share that is done, in hundredths, rounded down; `None` if there was nothing to do.
    pub fn percent(self) -> Option<u8> {
        let all = u128::from(self.done_bytes) + u128::from(self.left_bytes);
        let percent = (u128::from(self.done_bytes) * 100).checked_div(all)?;
        (self.left_bytes > 0).then(|| u8::try_from(percent).expect("a part of the whole"))
    }

    /// The time until nothing is left at this rate; `None` while the rate is not known.
    pub fn time_left(self) -> Option<Duration> {
        let seconds = self.left_bytes.checked_div(self.rate_bytes)?;
        (self.left_bytes > 0).then(|| Duration::from_secs(seconds))
    }
}

impl UpkeepPace {
    /// Takes the counters and grants what upkeep may move until the next tick. `wished_bytes` is the wished
    /// rate, 0 without one. `is_urgent` returns whether some data has no redundancy left; it is asked only
    /// while programs use the devices. Returns whether work may have waited for this.
    pub fn tick(
        &self,
        sample: Sample,
        limit: &UpkeepLimit,
        wished_bytes: u64,
        is_urgent: impl FnOnce() -> bool,
    ) -> bool {
        let mut pace = self.0.lock();
        let last = *pace.samples.back().unwrap_or(&sample);
        let elapsed_nanos = u128::from(sample.now_nanos.saturating_sub(last.now_nanos)).max(1);
        let per_second =
            |bytes: u64| u64::try_from(u128::from(bytes) * SECOND_NANOS / elapsed_nanos).unwrap_or(u64::MAX);
        let moved_bytes = sample.moved_bytes.saturating_sub(last.moved_bytes);
        let all_bytes = sample.device_bytes.saturating_sub(last.device_bytes);
        let is_busy = per_second(all_bytes.saturating_sub(moved_bytes)) > BUSY_BYTES;
        if !is_busy && !pace.is_limited {
            pace.best_bytes = pace.best_bytes.max(per_second(moved_bytes));
        }
        let rate_bytes = match (wished_bytes, is_busy) {
            (0, false) => None,
            (0, true) => Some((pace.best_bytes / if is_urgent() { 2 } else { 4 }).max(LEAST_BYTES)),
            (wished, _) => Some(wished),
        };
        let granted = |rate: u64| u128::from(rate) * elapsed_nanos / SECOND_NANOS;
        limit.grant(rate_bytes.map(|rate| u64::try_from(granted(rate)).unwrap_or(u64::MAX)));
        let was_limited = std::mem::replace(&mut pace.is_limited, rate_bytes.is_some());
        pace.samples.push_back(sample);
        if pace.samples.len() > SAMPLES_MAX {
            pace.samples.pop_front();
        }
        (was_limited || pace.is_limited) && limit.may_work()
    }

    /// Whether upkeep has written something in the last tick.
    pub fn has_moved(&self) -> bool {
        let pace = self.0.lock();
        let mut newest = pace.samples.iter().rev().map(|sample| sample.written_bytes);
        newest.next() != newest.next()
    }

    /// How far upkeep is that has written so many bytes, with so many left.
    pub fn progress(&self, written_bytes: u64, left_bytes: u64) -> Progress {
        let mut pace = self.0.lock();
        if left_bytes == 0 {
            pace.begun_at_bytes = written_bytes;
        }
        let done_bytes = written_bytes.saturating_sub(pace.begun_at_bytes);
        let (Some(first), Some(last)) = (pace.samples.front(), pace.samples.back()) else {
            return Progress { done_bytes, left_bytes, rate_bytes: 0 };
        };
        let nanos = u128::from(last.now_nanos.saturating_sub(first.now_nanos));
        let bytes = u128::from(last.written_bytes.saturating_sub(first.written_bytes));
        let rate = (bytes * SECOND_NANOS).checked_div(nanos).unwrap_or(0);
        Progress { done_bytes, left_bytes, rate_bytes: u64::try_from(rate).unwrap_or(u64::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn second(n: u64, moved: u64, others: u64) -> Sample {
        let moved_bytes = moved * MIB;
        Sample {
            now_nanos: n * 1_000_000_000,
            moved_bytes,
            written_bytes: moved_bytes / 4,
            device_bytes: moved_bytes + others * MIB,
        }
    }

    #[test]
    fn without_a_wish_upkeep_takes_what_is_idle_and_a_quarter_beside_programs() {
        let (pace, limit) = (UpkeepPace::default(), UpkeepLimit::default());
        let calm = || panic!("asked only while programs use the devices");
        assert!(!pace.tick(second(0, 0, 0), &limit, 0, calm));
        assert!(!pace.tick(second(1, 200, 1), &limit, 0, calm), "nothing has waited");
        assert!(limit.may_work());
        // A program writes 50 MiB a second.
        assert!(pace.tick(second(2, 400, 51), &limit, 0, || false), "50 MiB are granted");
        assert!(limit.may_work());
        assert!(pace.tick(second(3, 400, 101), &limit, 0, || true), "100 MiB, because it is urgent");
        // The programs rest. The limit ends, and the work that waited for it goes on.
        assert!(pace.tick(second(4, 500, 101), &limit, 0, || false));
        assert!(!pace.tick(second(5, 500, 101), &limit, 0, || false));
    }

    #[test]
    fn a_wished_rate_is_kept_over_ticks_of_any_length() {
        let (pace, limit) = (UpkeepPace::default(), UpkeepLimit::default());
        let at = |nanos| Sample { now_nanos: nanos, ..Sample::default() };
        pace.tick(at(0), &limit, 1000, || false);
        assert!(!pace.tick(at(1), &limit, 1000, || false), "a nanosecond grants nothing");
        assert!(pace.tick(at(500_000_001), &limit, 1000, || false));
        assert!(limit.may_work());
    }

    #[test]
    fn progress_never_exceeds_the_whole_and_begins_anew_when_nothing_was_left() {
        let pace = UpkeepPace::default();
        assert_eq!(pace.progress(700, 0).percent(), None);
        let limit = UpkeepLimit::default();
        for (n, moved) in [(1, 0), (2, 400), (3, 800)] {
            pace.tick(second(n, moved, 0), &limit, 0, || false);
        }
        let progress = pace.progress(700 + 300, 100);
        assert_eq!((progress.done_bytes, progress.percent()), (300, Some(75)));
        assert_eq!(progress.rate_bytes, 100 * MIB);
        assert_eq!(pace.progress(2000, 500 * MIB).time_left(), Some(Duration::from_secs(5)));
        // More work comes: the share falls, and is still a share.
        assert_eq!(pace.progress(1000, 2700).percent(), Some(10));
        assert_eq!(pace.progress(5000, 0).percent(), None);
        assert_eq!(pace.progress(5000, 7).percent(), Some(0));
    }
}
