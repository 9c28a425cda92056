//! The scrub by schedule of a mounted pool.
//!
//! ```text
//!                 due, and the window is open             all verified
//!   waiting ─────────────────────────────────▶ running ─────────────────▶ waiting
//!                          ▲    pause, or the window closes  │
//!                          └───────── standing ◀─────────────┘
//! ```
//!
//! # Invariants
//! 1. The pool keeps the schedule and how far the scrub is. So a new server goes on where the last one was
//!    (`warpfire::Warpfire::scrub_round_step`).
//! 2. A scrub stands while a segment waits for its redundancy: risk goes first (`next_step`).
//! 3. From the moment at which it begins or goes on, no more bytes are read than its rate allows, but for one
//!    segment.
//! 4. No step runs when it has been dropped.

use std::io;
use std::num::NonZeroU64;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use warpfire::{ScrubRound, Timestamp, Upkeep, UpkeepReason, UpkeepWishes, Warpfire};
use warpfire_env::{Clock, SystemClock};

use crate::commands::scrub::pause_nanos;
use crate::output::minute_of_day;

/// How often a scrub that is not running looks whether it should.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The thread that scrubs.
pub struct ScheduledScrub {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the scrub does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextStep {
    Wait,
    /// Verify a segment, at this rate.
    Verify(Option<NonZeroU64>),
}

impl ScheduledScrub {
    /// Scrubs the pool by its schedule from now on.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(pool: Warpfire) -> io::Result<ScheduledScrub> {
        let (stop, stopped) = mpsc::channel();
        let scrub = move || {
            while step(&pool, &stopped) {}
            // A pool that takes no more writes forgets the last seconds of the scrub.
            let _ = pool.store_scrub_round();
        };
        let thread = thread::Builder::new().name("warpfire-scrub".to_owned()).spawn(scrub)?;
        Ok(ScheduledScrub { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for ScheduledScrub {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed. The mount ends as without it.
            let _ = thread.join();
        }
    }
}

/// The next step of a scrub at this moment, which is in this minute of the day.
fn next_step(wishes: &UpkeepWishes, round: Option<ScrubRound>, now: Timestamp, minute: u16) -> NextStep {
    let Some(schedule) = wishes.scrub.filter(|_| !wishes.is_paused) else { return NextStep::Wait };
    if !schedule.is_open(minute) {
        return NextStep::Wait;
    }
    let is_due = round.is_none_or(|round| {
        // A clock that was set back by more than the interval does not end the scrubs.
        let since = now.seconds.saturating_sub(round.began.seconds).unsigned_abs();
        !round.has_ended || since >= schedule.every_seconds.get()
    });
    if is_due { NextStep::Verify(schedule.rate_bytes) } else { NextStep::Wait }
}

/// Whether a scrub waits for this work. It does not wait for work that waits itself.
fn waits_for(upkeep: &Upkeep) -> bool {
    let is_urgent = |reason| matches!(reason, UpkeepReason::Risk | UpkeepReason::Rot);
    upkeep.blocked.is_none() && upkeep.work.iter().any(|work| is_urgent(work.reason))
}

/// Verifies segments until the scrub stands or ends, or waits. `false`: the thread is to end.
fn step(pool: &Warpfire, stopped: &Receiver<()>) -> bool {
    let goes_on = |wait| matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
    let started_nanos = SystemClock.monotonic_nanos();
    let mut read_bytes = 0;
    loop {
        let now = SystemClock.now();
        let next = next_step(&pool.upkeep_wishes(), pool.scrub_round(), now, minute_of_day(now));
        let NextStep::Verify(rate) = next else { break };
        if waits_for(&pool.upkeep()) {
            break;
        }
        let now_nanos = SystemClock.monotonic_nanos();
        // Without a rate of its own it leaves to programs what they need, piece by piece, and a pause ends it
        // after one.
        let stepped = match rate {
            Some(_) => pool.scrub_round_step(now, now_nanos),
            None => pool.paced_scrub_round_step(now, now_nanos, &goes_on),
        };
        match stepped {
            Ok(step) => {
                read_bytes += step.read_bytes;
                if !goes_on(Duration::from_nanos(pause_nanos(rate, read_bytes, started_nanos))) {
                    return false;
                }
                if step.has_ended {
                    tracing::info!("the scrub by schedule has ended");
                    break;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the scrub by schedule does not go on");
                break;
            }
        }
    }
    goes_on(LOOK_INTERVAL)
}

#[cfg(test)]
mod tests {
    use warpfire::{Pool, ScrubSchedule};

    use super::*;

    const DAY: u64 = 86400;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    fn nightly() -> UpkeepWishes {
        let every_seconds = NonZeroU64::new(DAY).expect("not zero");
        let scrub = ScrubSchedule { every_seconds, window: (60, 360), rate_bytes: None };
        UpkeepWishes { scrub: Some(scrub), ..UpkeepWishes::default() }
    }

    #[test]
    fn a_scrub_begins_when_it_is_due_in_its_window_and_not_while_upkeep_is_paused() {
        let go = NextStep::Verify(None);
        assert_eq!(next_step(&nightly(), None, at(0), 60), go, "there was none so far");
        assert_eq!(next_step(&nightly(), None, at(0), 59), NextStep::Wait);
        assert_eq!(next_step(&nightly(), None, at(0), 360), NextStep::Wait);
        assert_eq!(next_step(&UpkeepWishes::default(), None, at(0), 60), NextStep::Wait, "no schedule");
        let paused = UpkeepWishes { is_paused: true, ..nightly() };
        assert_eq!(next_step(&paused, None, at(0), 60), NextStep::Wait);
    }

    /// The pool of a scrub in which the first step was made.
    fn begun() -> Warpfire {
        let pool = Pool::options().size_bytes(64 << 20).in_memory().expect("a pool");
        for n in 0..12 {
            pool.write(format!("/{n}"), vec![n; 2 << 20]).expect("there is room");
        }
        pool.scrub_round_step(at(1000), 0).expect("nothing fails");
        pool
    }

    #[test]
    fn a_scrub_goes_on_in_its_window_and_the_next_one_begins_a_day_later() {
        let pool = begun();
        let next = |now, minute| next_step(&nightly(), pool.scrub_round(), at(now), minute);
        assert_eq!(next(1001, 60), NextStep::Verify(None), "it has begun");
        assert_eq!(next(1001, 0), NextStep::Wait, "the window is closed");
        while !pool.scrub_round_step(at(2000), 0).expect("nothing fails").has_ended {}
        let day = i64::try_from(DAY).expect("a small number");
        assert_eq!(next(999 + day, 60), NextStep::Wait);
        assert_eq!(next(1000 + day, 60), NextStep::Verify(None));
        // The clock was set back: by an hour that changes nothing, by a day the scrubs go on.
        assert_eq!(next(1000 - 3600, 60), NextStep::Wait);
        assert_eq!(next(1000 - day, 60), NextStep::Verify(None));
    }

    /// It never reads faster. How much slower it is depends on the machine: half is far from what any does
    /// that has nothing else to do, and `scripts/online-check` measures it.
    #[test]
    fn a_scrub_reads_at_its_rate() {
        let pool = Pool::options().size_bytes(64 << 20).in_memory().expect("a pool");
        for n in 0..12 {
            pool.write(format!("/{n}"), vec![n; 2 << 20]).expect("there is room");
        }
        pool.sync().expect("nothing fails");
        let rate = NonZeroU64::new(16 << 20).expect("not zero");
        let scrub = ScrubSchedule { every_seconds: NonZeroU64::MAX, window: (0, 0), rate_bytes: Some(rate) };
        let wishes = UpkeepWishes { scrub: Some(scrub), ..UpkeepWishes::default() };
        pool.set_upkeep_wishes(&wishes).expect("nothing fails");
        let (_stop, stopped) = mpsc::channel();
        let read_before = pool.stats().counters().read_bytes;
        let started_nanos = SystemClock.monotonic_nanos();
        assert!(step(&pool, &stopped));
        let waited = LOOK_INTERVAL.as_secs_f64();
        let seconds = (SystemClock.monotonic_nanos() - started_nanos) as f64 / 1e9 - waited;
        let read = (pool.stats().counters().read_bytes - read_before) as f64;
        assert!(pool.scrub_round().is_some_and(|round| round.has_ended), "it has read everything");
        let kept = read / seconds / rate.get() as f64;
        println!("{read} bytes in {seconds:.2} s: {kept:.3} of the rate");
        assert!((0.5..=1.1).contains(&kept), "{kept} of the rate");
    }

    #[test]
    fn a_scrub_waits_for_segments_at_risk() {
        let directory = tempfile::tempdir().expect("a directory");
        let images = ["a", "b", "c", "d"].map(|name| directory.path().join(name));
        let options = Pool::options().data(2).parity(1).size_bytes(32 << 20).spare_after(Duration::ZERO);
        let pool = options.create(&images).expect("image files make a pool");
        pool.write("/a", vec![7; 4 << 20]).and_then(|()| pool.sync()).expect("there is room");
        assert!(!waits_for(&pool.upkeep()));
        let wishes = UpkeepWishes { is_paused: true, ..UpkeepWishes::default() };
        pool.set_upkeep_wishes(&wishes).expect("nothing fails");
        pool.take_offline(1).expect("parity covers it");
        let waits = (0..100).any(|_| {
            thread::park_timeout(Duration::from_millis(100));
            waits_for(&pool.upkeep())
        });
        assert!(waits, "{:?}", pool.upkeep());
        pool.regain_redundancy(|_| std::ops::ControlFlow::Continue(())).expect("three devices work");
        assert!(!waits_for(&pool.upkeep()), "{:?}", pool.upkeep());
    }

    #[test]
    fn the_thread_ends_at_once() {
        let scrub = ScheduledScrub::start(begun()).expect("started");
        drop(scrub);
    }
}
