//! The limit of upkeep: whether the work that makes segments whole goes on by itself now, and how fast.
//!
//! Background work looks at the limit after each piece (`look`), and waits as long as that says. Without
//! programs a piece is a stripe. Beside them it is so short (`piece_bytes`) that a read of theirs which meets
//! it waits about as long as for another read.
//!
//! ```text
//!   look
//!     a rate is wished ───────────────────▶ wait while more was moved than that rate allows
//!     none, programs have used the devices
//!     in the last 50 ms ──────────────────▶ the same, with a quarter of the best rate; half of it for data
//!                                           that has no redundancy left
//!     none, and they have not ────────────▶ go on
//! ```
//!
//! The *best rate* is the bytes that the work itself has moved, over the time that it has worked. It is
//! measured while programs do not use the devices, or from the first pieces if they always do.
//!
//! # Invariants
//! 1. While upkeep is paused, no step begins by itself (`may_work`), and one that is under way ends after its
//!    piece (`must_end`). A command that asks for the work goes on (`LogStore::mend` with `WorkFor::Caller`),
//!    and background work that it waits for does not wait (`command`).
//! 2. Only operations that programs wait for slow the work down. Its own never do, however long a step is
//!    (`tests::a_step_without_programs_never_waits`).
//! 3. Over any time longer than `BURST_NANOS`, the work moves what its rate allows, and one piece more.
//! 4. The count of written bytes never falls.
//! 5. Beside programs no piece takes the devices for longer than `PIECE_NANOS` at the best rate, but for
//!    those of `PIECE_BYTES_MIN`.

use std::sync::atomic::Ordering::Relaxed;

use warpfire_env::sync::Mutex;
use warpfire_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// How long the devices count as used by programs after an operation of theirs.
const BUSY_NANOS: u64 = 50_000_000;

/// Unused bytes may be used later, at most as many as come in this time.
const BURST_NANOS: u64 = 50_000_000;

/// The same beside programs, if no rate is wished: what the work did not use is theirs.
const BURST_BESIDE_NANOS: u64 = 2_000_000;

/// How long a piece takes the devices beside programs, at the best rate.
const PIECE_NANOS: u64 = 150_000;

/// The shortest piece beside programs, in bytes. Shorter ones would cost more than they move.
const PIECE_BYTES_MIN: u64 = 128 << 10;

/// The longest wait until the next look: programs may have ended by then.
const WAIT_NANOS_MAX: u64 = 50_000_000;

/// The shortest wait: the work sleeps, and does not look again and again.
const WAIT_NANOS_MIN: u64 = 100_000;

/// How long the work is measured for a rate.
const MEASURED_NANOS: u64 = 50_000_000;

/// A longer time between two looks was not spent on a piece.
const WORKED_NANOS_MAX: u64 = 1_000_000_000;

/// The slowest rate that upkeep gives itself, in bytes a second.
const LEAST_BYTES: u64 = 16 << 20;

const SECOND_NANOS: u64 = 1_000_000_000;

/// Whether upkeep goes on by itself, and how fast.
#[derive(Debug, Default)]
pub struct UpkeepLimit {
    is_paused: AtomicBool,
    /// Bytes a second that are wished; 0 for a rate that follows programs.
    wished_bytes: AtomicU64,
    moved_bytes: AtomicU64,
    written_bytes: AtomicU64,
    /// Commands that do the work, or wait for it.
    commands: AtomicUsize,
    pace: Mutex<Pace>,
}

/// A moment at which the work looks at the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    /// Monotonic nanoseconds.
    pub now_nanos: u64,
    /// Device operations so far that programs wait for.
    pub program_ops: u64,
    /// Whether the work is on data that has no redundancy left.
    pub is_urgent: bool,
}

#[derive(Debug, Default)]
struct Pace {
    looked_nanos: u64,
    program_ops: u64,
    /// Programs count as using the devices until then.
    busy_until_nanos: u64,
    /// Bytes that may be moved now; negative if a piece has taken more than there were.
    credit_bytes: i64,
    moved_bytes: u64,
    /// Whether the last look said to go on.
    is_working: bool,
    was_busy: bool,
    measured_bytes: u64,
    measured_nanos: u64,
    best_bytes: u64,
}

/// A command that does upkeep, or waits for it. Background work does not wait while there is one.
#[derive(Debug)]
pub(crate) struct UpkeepCommand<'a>(&'a UpkeepLimit);

impl Drop for UpkeepCommand<'_> {
    fn drop(&mut self) {
        self.0.commands.fetch_sub(1, Relaxed);
    }
}

fn per_second(bytes: u64, nanos: u64) -> u64 {
    let rate = u128::from(bytes) * u128::from(SECOND_NANOS) / u128::from(nanos.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn bytes_in(rate: u64, nanos: u64) -> i64 {
    let bytes = u128::from(rate) * u128::from(nanos) / u128::from(SECOND_NANOS);
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Pace {
    /// The rate in bytes a second; `None` without a limit.
    fn rate_bytes(&self, wished_bytes: u64, look: Look) -> Option<u64> {
        match wished_bytes {
            0 if look.now_nanos >= self.busy_until_nanos => None,
            0 => Some((self.best_rate() / if look.is_urgent { 2 } else { 4 }).max(LEAST_BYTES)),
            wished => Some(wished),
        }
    }

    fn best_rate(&self) -> u64 {
        match self.best_bytes {
            0 => per_second(self.measured_bytes, self.measured_nanos),
            best => best,
        }
    }

    /// Most bytes of the next piece.
    fn piece_bytes(&self) -> u64 {
        if self.looked_nanos >= self.busy_until_nanos {
            return u64::MAX;
        }
        bytes_in(self.best_rate(), PIECE_NANOS).unsigned_abs().max(PIECE_BYTES_MIN)
    }

    /// Measures the work since the last look. Programs that use the devices make it slower, and so do short
    /// pieces: a rate that was measured beside programs is too low, and never too high.
    fn measure(&mut self, bytes: u64, nanos: u64, is_busy: bool) {
        if is_busy != self.was_busy {
            self.was_busy = is_busy;
            (self.measured_bytes, self.measured_nanos) = (0, 0);
        }
        let has_worked = self.is_working && bytes > 0 && nanos < WORKED_NANOS_MAX;
        if !has_worked {
            return;
        }
        self.measured_bytes += bytes;
        self.measured_nanos += nanos;
        if self.measured_nanos >= MEASURED_NANOS {
            self.best_bytes = self.best_bytes.max(per_second(self.measured_bytes, self.measured_nanos));
            (self.measured_bytes, self.measured_nanos) = (0, 0);
        }
    }

    /// How long the work waits, in nanoseconds.
    fn look(&mut self, look: Look, wished_bytes: u64, moved_bytes: u64) -> u64 {
        if look.program_ops != self.program_ops {
            self.program_ops = look.program_ops;
            self.busy_until_nanos = look.now_nanos + BUSY_NANOS;
        }
        let elapsed_nanos = look.now_nanos.saturating_sub(self.looked_nanos);
        let spent_bytes = moved_bytes - self.moved_bytes;
        self.measure(spent_bytes, elapsed_nanos, look.now_nanos < self.busy_until_nanos);
        (self.looked_nanos, self.moved_bytes) = (look.now_nanos, moved_bytes);
        let Some(rate) = self.rate_bytes(wished_bytes, look) else {
            self.credit_bytes = 0;
            return 0;
        };
        let spent_bytes = i64::try_from(spent_bytes).unwrap_or(i64::MAX);
        let credit = self.credit_bytes.saturating_sub(spent_bytes);
        let credit = credit.saturating_add(bytes_in(rate, elapsed_nanos));
        let burst_nanos = if wished_bytes == 0 { BURST_BESIDE_NANOS } else { BURST_NANOS };
        self.credit_bytes = credit.min(bytes_in(rate, burst_nanos));
        if self.credit_bytes >= 0 {
            return 0;
        }
        let owed = u128::from(self.credit_bytes.unsigned_abs()) * u128::from(SECOND_NANOS);
        let wait = owed.div_ceil(u128::from(rate));
        u64::try_from(wait).unwrap_or(u64::MAX).clamp(WAIT_NANOS_MIN, WAIT_NANOS_MAX)
    }
}

impl UpkeepLimit {
    /// Pauses the work, or lets it go on.
    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Relaxed);
    }

    /// Whether the work is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Relaxed)
    }

    /// Sets the wished rate, in bytes a second. `None`: the work takes what programs leave.
    pub fn wish_rate(&self, bytes: Option<u64>) {
        self.wished_bytes.store(bytes.unwrap_or(0), Relaxed);
    }

    /// Whether a step may begin by itself.
    #[must_use]
    pub fn may_work(&self) -> bool {
        !self.is_paused()
    }

    /// Whether a step that is under way is to end: upkeep is paused, and no command waits for the step.
    pub(crate) fn must_end(&self) -> bool {
        self.is_paused() && self.commands.load(Relaxed) == 0
    }

    /// Begins a command that does the work, or waits for it.
    #[must_use]
    pub(crate) fn command(&self) -> UpkeepCommand<'_> {
        self.commands.fetch_add(1, Relaxed);
        UpkeepCommand(self)
    }

    /// How long the work is to wait before its next piece, in nanoseconds. It looks again after that, and
    /// goes on at 0.
    pub(crate) fn look(&self, look: Look) -> u64 {
        let mut pace = self.pace.lock();
        let wait = pace.look(look, self.wished_bytes.load(Relaxed), self.moved_bytes());
        let wait = if self.commands.load(Relaxed) > 0 { 0 } else { wait };
        pace.is_working = wait == 0;
        wait
    }

    /// Most bytes that the work may read or write at once now.
    pub(crate) fn piece_bytes(&self) -> u64 {
        if self.commands.load(Relaxed) > 0 { u64::MAX } else { self.pace.lock().piece_bytes() }
    }

    /// Takes note of bytes of columns that were read and written.
    pub(crate) fn spend(&self, read_bytes: u64, written_bytes: u64) {
        self.written_bytes.fetch_add(written_bytes, Relaxed);
        self.moved_bytes.fetch_add(read_bytes.saturating_add(written_bytes), Relaxed);
    }

    /// Bytes that the work has read and written since the pool was opened.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Relaxed)
    }

    /// Bytes of columns that it has written.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MILLI: u64 = 1_000_000;

    /// Upkeep whose pieces take `nanos_of_work` and move a mebibyte, beside programs with an operation at
    /// every `program_nanos`.
    struct Life {
        limit: UpkeepLimit,
        now_nanos: u64,
        nanos_of_work: u64,
        program_nanos: u64,
        is_urgent: bool,
    }

    impl Life {
        fn new(program_nanos: u64) -> Life {
            Life {
                limit: UpkeepLimit::default(),
                now_nanos: 7 * SECOND_NANOS,
                nanos_of_work: MILLI,
                program_nanos,
                is_urgent: false,
            }
        }

        /// Mebibytes moved, and the milliseconds waited, in so many milliseconds.
        fn live(&mut self, millis: u64) -> (u64, u64) {
            let (until, moved) = (self.now_nanos + millis * MILLI, self.limit.moved_bytes());
            let mut waited = 0;
            while self.now_nanos < until {
                let program_ops = self.now_nanos / self.program_nanos;
                let look = Look { now_nanos: self.now_nanos, program_ops, is_urgent: self.is_urgent };
                match self.limit.look(look) {
                    0 => {
                        self.limit.spend(MIB * 3 / 4, MIB / 4);
                        self.now_nanos += self.nanos_of_work;
                    }
                    wait => {
                        waited += wait;
                        self.now_nanos += wait;
                    }
                }
            }
            ((self.limit.moved_bytes() - moved) / MIB, waited / MILLI)
        }
    }

    fn assert_near(found: u64, expected: u64) {
        assert!(found.abs_diff(expected) * 20 <= expected, "{found} is not about {expected}");
    }

    #[test]
    fn a_step_without_programs_never_waits() {
        let mut life = Life::new(u64::MAX);
        assert_eq!(life.live(10_000), (10_000, 0));
    }

    #[test]
    fn beside_programs_the_work_has_a_quarter_of_its_best_rate_and_half_if_it_is_urgent() {
        let mut life = Life::new(u64::MAX);
        life.live(200);
        life.program_nanos = 5 * MILLI;
        assert_near(life.live(2_000).0, 500);
        life.is_urgent = true;
        assert_near(life.live(2_000).0, 1_000);
        // From 50 ms after the last operation on, nothing waits.
        life.program_nanos = u64::MAX;
        life.live(51);
        assert_eq!(life.live(1_000), (1_000, 0));
    }

    #[test]
    fn work_that_has_never_been_alone_is_measured_too() {
        let mut life = Life::new(5 * MILLI);
        life.live(500);
        assert_near(life.live(2_000).0, 500);
    }

    #[test]
    fn programs_that_use_the_devices_now_and_then_slow_the_work_down_for_50_milliseconds() {
        let mut life = Life::new(u64::MAX);
        life.live(200);
        life.program_nanos = 200 * MILLI;
        // A quarter of the time at a quarter of the rate.
        assert_near(life.live(4_000).0, 4_000 * 13 / 16);
    }

    #[test]
    fn a_wished_rate_is_kept_from_the_first_moment_on_beside_programs_and_without() {
        for program_nanos in [5 * MILLI, u64::MAX] {
            let mut life = Life::new(program_nanos);
            life.limit.wish_rate(Some(10 * MIB));
            // A piece and what comes in 50 ms, and then the rate.
            assert!(life.live(10).0 <= 2, "no burst");
            assert_near(life.live(10_000).0, 100);
            life.limit.wish_rate(None);
        }
    }

    #[test]
    fn what_was_not_used_is_not_saved() {
        let mut life = Life::new(u64::MAX);
        life.limit.wish_rate(Some(100 * MIB));
        life.live(1_000);
        life.now_nanos += 3_600 * SECOND_NANOS;
        assert!(life.live(100).0 <= 10 + 5 + 1, "what comes in 50 ms, and a piece");
    }

    #[test]
    fn background_work_does_not_wait_while_a_command_waits_for_it() {
        let mut life = Life::new(5 * MILLI);
        life.limit.wish_rate(Some(MIB));
        life.live(1_000);
        let command = UpkeepLimit::command(&life.limit);
        let look = Look { now_nanos: life.now_nanos, program_ops: 1, is_urgent: false };
        life.limit.spend(MIB, MIB);
        assert_eq!(life.limit.look(look), 0);
        drop(command);
        assert!(life.limit.look(look) > 0, "the debt is still there");
    }

    #[test]
    fn a_piece_is_short_beside_programs_and_has_no_bound_without() {
        let mut life = Life::new(u64::MAX);
        life.live(200);
        assert_eq!(life.limit.piece_bytes(), u64::MAX);
        life.program_nanos = 5 * MILLI;
        life.live(20);
        // A mebibyte took a millisecond.
        assert_near(life.limit.piece_bytes(), MIB * 15 / 100);
        let command = UpkeepLimit::command(&life.limit);
        assert_eq!(life.limit.piece_bytes(), u64::MAX, "a command waits for the work");
        drop(command);
        life.program_nanos = u64::MAX;
        life.live(110);
        assert_eq!(life.limit.piece_bytes(), u64::MAX);
        let mut slow = Life::new(5 * MILLI);
        slow.live(1);
        assert_eq!(slow.limit.piece_bytes(), PIECE_BYTES_MIN, "nothing is known yet");
    }

    #[test]
    fn beside_programs_nothing_is_saved_for_later() {
        let mut life = Life::new(u64::MAX);
        life.live(200);
        life.program_nanos = 5 * MILLI;
        life.live(100);
        // The work was kept from looking for a while, as by a full machine.
        life.now_nanos += 40 * MILLI;
        assert!(life.live(4).0 <= 2, "what comes in 6 ms, and a piece");
    }

    #[test]
    fn the_rate_is_that_of_the_best_moment_also_for_work_that_is_never_alone() {
        let mut life = Life::new(5 * MILLI);
        life.nanos_of_work = 4 * MILLI;
        life.live(1_000);
        life.nanos_of_work = MILLI;
        life.live(1_000);
        assert_near(life.live(2_000).0, 500);
        life.nanos_of_work = 2 * MILLI;
        assert_near(life.live(2_000).0, 500);
    }

    #[test]
    fn a_pause_keeps_steps_from_beginning() {
        let limit = UpkeepLimit::default();
        assert!(limit.may_work());
        limit.pause(true);
        assert!(!limit.may_work() && limit.is_paused());
        limit.pause(false);
        assert!(limit.may_work());
    }
}
