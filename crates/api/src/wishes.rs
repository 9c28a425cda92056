//! Wishes: how upkeep goes on and when to scrub, as the pool keeps them, and the scrub by schedule.
//!
//! # Invariants
//! 1. A wish is durable when the call that changes it returns. A pool whose wishes cannot be read has none.
//! 2. The scrub by schedule verifies segments by rising id, and its cursor is the last one that it has
//!    verified. A segment that is newer than the scrub was verified when it was written, so the cursor is all
//!    that a scrub needs to go on where it was (`ScrubRound`).
//! 3. The cursor is stored once in [`STORE_NANOS_MIN`], at the beginning and the end of a scrub, and when the
//!    pool is closed. A crash repeats the segments that were verified since then.

use std::num::NonZeroU64;
use std::time::Duration;

use parking_lot::Mutex;
use warpfire_env::{SystemClock, Timestamp};
use warpfire_format::fs::{self as format, WishesRecord};
use warpfire_log::{ScrubStep, UpkeepLimit, WaitBy, WorkFor};
use warpfire_units::SegmentId;

use crate::open_pool::OpenPool;
use crate::scrub::ScrubReport;
use crate::{Error, Result, Warpfire};

/// Least time between two writes of the cursor, in nanoseconds.
const STORE_NANOS_MIN: u64 = 10_000_000_000;

/// How upkeep goes on, and when to scrub. The pool keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UpkeepWishes {
    /// Whether upkeep is paused. Then only the work goes on that a command asks for.
    pub is_paused: bool,
    /// Most bytes that upkeep reads and writes in a second. Without it, upkeep has no limit while the
    /// devices are idle, and takes a quarter of its rate while programs use them.
    pub rate_bytes: Option<NonZeroU64>,
    /// When to scrub while the pool is mounted.
    pub scrub: Option<ScrubSchedule>,
}

/// When to scrub, and how fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubSchedule {
    /// Seconds from the beginning of one scrub to the next.
    pub every_seconds: NonZeroU64,
    /// Minutes of the day, below 1440, at which the window opens and closes; always open if they are equal.
    pub window: (u16, u16),
    /// Most bytes to read in a second.
    pub rate_bytes: Option<NonZeroU64>,
}

/// How far the scrub by schedule is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ScrubRound {
    /// Its beginning.
    pub began: Timestamp,
    /// Segments that it has verified.
    pub segments: u64,
    /// Damaged segments among them.
    pub damaged_segments: u64,
    /// Whether it has verified all.
    pub has_ended: bool,
}

/// One step of the scrub by schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ScrubRoundStep {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Segments that are left.
    pub segments_left: u64,
    /// Whether the scrub has ended.
    pub has_ended: bool,
}

impl UpkeepWishes {
    /// Makes upkeep follow the wishes from now on.
    pub(crate) fn limit(&self, limit: &UpkeepLimit) {
        limit.pause(self.is_paused);
        limit.wish_rate(self.rate_bytes.map(NonZeroU64::get));
    }
}

impl ScrubSchedule {
    fn of(record: &format::ScrubSchedule) -> Option<ScrubSchedule> {
        let (window, rate_bytes) = (record.window, NonZeroU64::new(record.rate_bytes));
        Some(ScrubSchedule { every_seconds: NonZeroU64::new(record.every_seconds)?, window, rate_bytes })
    }

    fn record(&self) -> format::ScrubSchedule {
        let rate_bytes = self.rate_bytes.map_or(0, NonZeroU64::get);
        format::ScrubSchedule { every_seconds: self.every_seconds.get(), window: self.window, rate_bytes }
    }

    /// Whether the window is open in this minute of the day.
    #[must_use]
    pub fn is_open(&self, minute: u16) -> bool {
        let (opens, closes) = self.window;
        match opens.cmp(&closes) {
            std::cmp::Ordering::Equal => true,
            std::cmp::Ordering::Less => (opens..closes).contains(&minute),
            // Over midnight.
            std::cmp::Ordering::Greater => minute >= opens || minute < closes,
        }
    }
}

/// The wishes of an open pool.
pub(crate) struct WishBook {
    record: Mutex<WishesRecord>,
    /// The record as it is in the pool.
    stored: Mutex<WishesRecord>,
    /// Held during a step of the scrub by schedule.
    step: Mutex<RoundInSession>,
}

/// The scrub by schedule, as far as this session goes on with it.
#[derive(Default)]
struct RoundInSession {
    damaged: Vec<u64>,
    stored_nanos: u64,
}

impl WishBook {
    /// The wishes of a pool that was just opened.
    pub fn new(open_pool: &OpenPool) -> WishBook {
        let record = open_pool.fs.wishes().unwrap_or_default();
        WishBook { record: Mutex::new(record), stored: Mutex::new(record), step: Mutex::default() }
    }

    pub fn now(&self) -> UpkeepWishes {
        let record = self.record.lock();
        UpkeepWishes {
            is_paused: record.is_paused,
            rate_bytes: NonZeroU64::new(record.rate_bytes),
            scrub: record.schedule.as_ref().and_then(ScrubSchedule::of),
        }
    }

    /// Changes the record in the pool, and then here.
    fn change(&self, open_pool: &OpenPool, change: impl FnOnce(&mut WishesRecord)) -> Result<()> {
        let mut record = self.record.lock();
        let before = *record;
        change(&mut record);
        let mut stored = self.stored.lock();
        if *stored == *record {
            return Ok(());
        }
        match open_pool.fs.put_wishes(&record) {
            Ok(()) => *stored = *record,
            Err(error) => {
                *record = before;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Writes how far the scrub by schedule is, if the pool does not have it yet.
    pub fn store(&self, open_pool: &OpenPool) -> Result<()> {
        self.change(open_pool, |_| ())
    }
}

impl Warpfire {
    /// How upkeep goes on, and when to scrub.
    #[must_use]
    pub fn upkeep_wishes(&self) -> UpkeepWishes {
        self.shared.wishes.now()
    }

    /// Changes how upkeep goes on, and when to scrub. Durable on return.
    ///
    /// ```
    /// use warpfire::Pool;
    ///
    /// let fs = Pool::options().in_memory()?;
    /// let mut wishes = fs.upkeep_wishes();
    /// wishes.is_paused = true;
    /// fs.set_upkeep_wishes(&wishes)?;
    /// assert!(fs.upkeep_wishes().is_paused);
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the window of the scrub is not within a day; `NoSpace`, `ReadOnly`.
    pub fn set_upkeep_wishes(&self, wishes: &UpkeepWishes) -> Result<()> {
        let is_in_a_day = |(opens, closes): (u16, u16)| opens.max(closes) < format::DAY_MINUTES;
        if wishes.scrub.is_some_and(|scrub| !is_in_a_day(scrub.window)) {
            return Err(Error::invalid(
                "a window opens and closes at minutes of a day, below 1440".to_owned(),
            ));
        }
        let shared = &self.shared;
        shared.wishes.change(&shared.open_pool, |record| {
            record.is_paused = wishes.is_paused;
            record.rate_bytes = wishes.rate_bytes.map_or(0, NonZeroU64::get);
            record.schedule = wishes.scrub.as_ref().map(ScrubSchedule::record);
        })?;
        let engine = self.fs().engine();
        wishes.limit(engine.log().upkeep_limit());
        engine.wake();
        self.sync()
    }

    /// The last scrub by schedule.
    #[must_use]
    pub fn scrub_round(&self) -> Option<ScrubRound> {
        let round = self.shared.wishes.record.lock().round?;
        Some(ScrubRound {
            began: Timestamp { seconds: round.began_seconds, nanos: 0 },
            segments: round.segments,
            damaged_segments: round.damaged_segments,
            has_ended: round.has_ended,
        })
    }

    /// Stores how far the scrub by schedule is, which is stored about every ten seconds otherwise, and at the
    /// close. Durable after the next sync.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`.
    pub fn store_scrub_round(&self) -> Result<()> {
        self.shared.wishes.store(&self.shared.open_pool)
    }

    /// Verifies the next segment of the scrub by schedule, and begins one if none is running. After the last
    /// segment it repairs the damage that was found, as a [`scrub`](Warpfire::scrub) does. `now` is the time
    /// of the caller's clock, and `now_nanos` is monotonic.
    ///
    /// # Errors
    /// As [`scrub`](Warpfire::scrub).
    pub fn scrub_round_step(&self, now: Timestamp, now_nanos: u64) -> Result<ScrubRoundStep> {
        self.scrub_segment(now, now_nanos, WorkFor::Caller)
    }

    /// As [`scrub_round_step`](Warpfire::scrub_round_step), at the rate of upkeep: beside programs it reads
    /// slowly. `goes_on_after` waits for that long, and returns whether the step goes on. If it does not,
    /// or if upkeep is paused, the step ends within the segment, and the next step reads that segment from
    /// its beginning.
    ///
    /// # Errors
    /// As [`scrub`](Warpfire::scrub).
    pub fn paced_scrub_round_step(
        &self,
        now: Timestamp,
        now_nanos: u64,
        goes_on_after: &dyn Fn(Duration) -> bool,
    ) -> Result<ScrubRoundStep> {
        self.scrub_segment(now, now_nanos, WorkFor::Pool(&WaitBy(&SystemClock, goes_on_after)))
    }

    fn scrub_segment(&self, now: Timestamp, now_nanos: u64, work_for: WorkFor<'_>) -> Result<ScrubRoundStep> {
        let shared = &self.shared;
        let mut session = shared.wishes.step.lock();
        let running = shared.wishes.record.lock().round.filter(|round| !round.has_ended);
        let is_new = running.is_none();
        let mut round = running
            .unwrap_or(format::ScrubRound { began_seconds: now.seconds, ..format::ScrubRound::default() });
        let engine = self.fs().engine();
        if is_new {
            session.damaged.clear();
            self.sync()?;
            engine.flush()?;
        }
        let (read_bytes, segments_left) = match engine.scrub_step(SegmentId::new(round.cursor), work_for)? {
            ScrubStep::Verified(step) => {
                round.cursor = step.segment.get();
                round.segments += 1;
                if !step.is_whole {
                    round.damaged_segments += 1;
                    session.damaged.push(step.segment.get());
                }
                (step.read_bytes, step.left)
            }
            // The cursor stays in front of the segment.
            ScrubStep::Interrupted { left } => (0, left),
            ScrubStep::AtEnd => (0, 0),
        };
        round.has_ended = segments_left == 0;
        let is_due = now_nanos.saturating_sub(session.stored_nanos) >= STORE_NANOS_MIN;
        if is_new || round.has_ended || is_due {
            shared.wishes.change(&shared.open_pool, |record| record.round = Some(round))?;
            self.sync()?;
            session.stored_nanos = now_nanos;
        } else {
            shared.wishes.record.lock().round = Some(round);
        }
        if round.has_ended {
            let damaged = std::mem::take(&mut session.damaged);
            let found = ScrubReport {
                segments: round.segments,
                damaged_segments: round.damaged_segments,
                damaged,
                ..ScrubReport::default()
            };
            drop(session);
            self.repair(found)?;
        }
        Ok(ScrubRoundStep { read_bytes, segments_left, has_ended: round.has_ended })
    }
}

#[cfg(test)]
mod tests {
    use warpfire_sim_env::{Cut, DeviceSpec, SimWorld};

    use crate::Pool;

    use super::*;

    const NOW: Timestamp = Timestamp { seconds: 1_000_000, nanos: 0 };

    fn pool() -> (SimWorld, Warpfire) {
        let world = SimWorld::of(3, 3, &DeviceSpec::conventional("flash", 64 << 20));
        let options = Pool::options().data(2).parity(1).background(false);
        let fs = options.create_on(world.devices()).expect("blank devices make a pool");
        for n in 0..24u32 {
            let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 4096 * 7 + at + n) as u8).collect();
            fs.write(format!("/{n}"), bytes).expect("there is room");
        }
        fs.sync().expect("nothing fails");
        (world, fs)
    }

    fn opened(world: &SimWorld) -> Warpfire {
        Pool::options().background(false).open_on(world.devices()).expect("a pool opens")
    }

    #[test]
    fn wishes_are_there_after_a_power_cut() {
        let (world, fs) = pool();
        assert_eq!(fs.upkeep_wishes(), UpkeepWishes::default());
        let scrub = ScrubSchedule {
            every_seconds: NonZeroU64::MIN,
            window: (60, 360),
            rate_bytes: NonZeroU64::new(9),
        };
        let wishes =
            UpkeepWishes { is_paused: true, rate_bytes: NonZeroU64::new(200 << 20), scrub: Some(scrub) };
        fs.set_upkeep_wishes(&wishes).expect("nothing fails");
        let crashed = world.cut(&Cut::LoseAll);
        assert_eq!(opened(&crashed).upkeep_wishes(), wishes);
        let odd = UpkeepWishes { scrub: Some(ScrubSchedule { window: (0, 1440), ..scrub }), ..wishes };
        assert!(fs.set_upkeep_wishes(&odd).is_err(), "a day has 1440 minutes");
    }

    /// Runs steps until the scrub ends, at 4 s each. Returns the segments that each session verified.
    fn rest_of_round(fs: &Warpfire, mut nanos: u64) -> u64 {
        for steps in 1.. {
            nanos += 4_000_000_000;
            if fs.scrub_round_step(NOW, nanos).expect("nothing fails").has_ended {
                return steps;
            }
        }
        unreachable!("the steps end")
    }

    #[test]
    fn a_scrub_goes_on_at_its_cursor_after_a_power_cut_and_finds_rot_behind_it() {
        let (world, fs) = pool();
        let all = rest_of_round(&fs, 0);
        assert!(all > 12, "{all} segments are too few");
        assert!(fs.scrub_round().expect("one has ended").has_ended);
        // Another one, in the middle of which the power fails.
        let mut nanos = 1_000_000_000_000;
        for _ in 0..8 {
            nanos += 4_000_000_000;
            assert!(!fs.scrub_round_step(NOW, nanos).expect("nothing fails").has_ended);
        }
        let crashed = world.cut(&Cut::LoseAll);
        let fs = opened(&crashed);
        let round = fs.scrub_round().expect("it was stored");
        assert!(!round.has_ended && (6..=8).contains(&round.segments), "{round:?}");
        let rest = rest_of_round(&fs, 0);
        // The crash repeats at most the segments of ten seconds.
        assert!((all - 8..=all - 6).contains(&rest), "{rest} of {all} were left");
        let ended = fs.scrub_round().expect("it has ended");
        assert!(ended.has_ended && ended.segments == round.segments + rest, "{ended:?}");
        assert_eq!(fs.health().last_scrub.expect("the pool remembers it").damaged_segments, 0);
    }

    #[test]
    fn a_scrub_ends_within_a_segment_and_reads_that_segment_again() {
        let (_world, fs) = pool();
        let pause = |is_paused| fs.fs().engine().log().upkeep_limit().pause(is_paused);
        for (pauses, turns) in [(false, 1), (true, 1), (false, 2), (true, 3)] {
            let left = fs.scrub_round_step(NOW, 0).expect("nothing fails").segments_left;
            assert!(left > 8, "{left} segments are left");
            let before = fs.scrub_round().expect("one is running");
            let taken = std::cell::Cell::new(0);
            let goes_on = |_| {
                taken.set(taken.get() + 1);
                if pauses && taken.get() == turns {
                    pause(true);
                }
                pauses || taken.get() < turns
            };
            let step = fs.paced_scrub_round_step(NOW, 0, &goes_on).expect("nothing fails");
            pause(false);
            assert_eq!(taken.get(), turns, "no piece follows");
            assert_eq!((step.read_bytes, step.segments_left), (0, left), "{pauses} {turns}");
            assert_eq!(fs.scrub_round(), Some(before), "the segment does not count");
            assert_eq!(rest_of_round(&fs, 0), left);
        }
    }

    #[test]
    fn a_window_may_be_over_midnight() {
        let window = |opens, closes| ScrubSchedule {
            every_seconds: NonZeroU64::MIN,
            window: (opens, closes),
            rate_bytes: None,
        };
        let open = |opens, closes, minute| window(opens, closes).is_open(minute);
        assert!(open(60, 360, 60) && open(60, 360, 359) && !open(60, 360, 360) && !open(60, 360, 59));
        assert!(open(1320, 120, 1320) && open(1320, 120, 0) && !open(1320, 120, 120));
        assert!(open(5, 5, 5) && open(0, 0, 1439));
    }
}
