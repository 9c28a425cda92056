//! How far upkeep is: the bytes that it has written in the last minute, and those that are left.
//!
//! # Invariants
//! 1. Progress is the bytes written of the bytes written and left. So it cannot exceed the whole
//!    (`Progress::percent`).
//! 2. The bytes that are done count from the last moment at which nothing was left (`progress`).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// Ticks over which rates are taken: a minute.
const SAMPLES_MAX: usize = 61;

const SECOND_NANOS: u128 = 1_000_000_000;

/// The counters at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sample {
    pub now_nanos: u64,
    /// Bytes of columns that upkeep has written.
    pub written_bytes: u64,
}

/// What upkeep has written lately.
#[derive(Default)]
pub(crate) struct UpkeepProgress(Mutex<ProgressState>);

#[derive(Default)]
struct ProgressState {
    samples: VecDeque<Sample>,
    /// The bytes written when nothing was left the last time.
    begun_at_bytes: u64,
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

impl UpkeepProgress {
    /// Takes a sample. Returns whether upkeep has written something since the last one.
    pub fn tick(&self, sample: Sample) -> bool {
        let mut pace = self.0.lock();
        let has_moved = pace.samples.back().is_some_and(|last| last.written_bytes != sample.written_bytes);
        pace.samples.push_back(sample);
        if pace.samples.len() > SAMPLES_MAX {
            pace.samples.pop_front();
        }
        has_moved
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

    #[test]
    fn progress_never_exceeds_the_whole_and_begins_anew_when_nothing_was_left() {
        let pace = UpkeepProgress::default();
        assert_eq!(pace.progress(700, 0).percent(), None);
        for (n, written) in [(1, 0), (2, 100), (3, 200)] {
            let has_moved = pace.tick(Sample { now_nanos: n * 1_000_000_000, written_bytes: written * MIB });
            assert_eq!(has_moved, n > 1);
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
