//! Runs many cases on a few threads. Each case has its own seed, so the number of threads does not change its
//! result.
//!
//! # Invariants
//! 1. A case runs on one thread from beginning to end, but for its mends: while one runs, that thread waits.
//! 2. A panic is a violation like any other. A case that runs for too long ends the process, after its seed
//!    is printed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use warpfire_env::{Clock, SystemClock};

use crate::session::Violation;

const NANOS: u64 = 1_000_000_000;

/// Violations after which no new case is begun.
const VIOLATIONS_MAX: usize = 5;

/// The limits of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// First seed.
    pub first: u64,
    /// Most cases to run.
    pub cases: u64,
    /// No new case begins once the cases have counted so much.
    pub count_max: u64,
    /// No new case begins after so many seconds.
    pub seconds_max: u64,
    /// Threads.
    pub threads: usize,
    /// Seconds after which a case counts as hanging.
    pub case_seconds_max: u64,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct RunReport {
    /// Cases done.
    pub cases: u64,
    /// The sum of the cases' counts.
    pub counted: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Seeds of failed cases and their violations, in the order of the seeds.
    pub violations: Vec<(u64, Violation)>,
}

impl RunReport {
    /// The count for each second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.counted as f64 / self.seconds.max(1e-9)
    }
}

/// Seed and start of the case that a thread is running.
type AtWork = Option<(u64, u64)>;

struct RunShared {
    next: AtomicU64,
    counted: AtomicU64,
    done: AtomicU64,
    /// The case of each thread, and the number of threads that have ended.
    at_work: Mutex<(Vec<AtWork>, usize)>,
    ended: Condvar,
    violations: Mutex<Vec<(u64, Violation)>>,
}

/// Runs `case` for each seed and adds up what the cases count.
///
/// # Panics
/// If a case hangs: there is no other way to stop it.
pub fn run(limits: Limits, case: impl Fn(u64) -> Result<u64, Violation> + Sync) -> RunReport {
    let clock = SystemClock;
    let start = clock.monotonic_nanos();
    let shared = RunShared {
        next: AtomicU64::new(0),
        counted: AtomicU64::new(0),
        done: AtomicU64::new(0),
        at_work: Mutex::new((vec![None; limits.threads], 0)),
        ended: Condvar::new(),
        violations: Mutex::new(Vec::new()),
    };
    // This thread watches the others: a case that hangs never returns, so a scope alone would wait for ever.
    std::thread::scope(|scope| {
        for thread in 0..limits.threads {
            let (shared, case) = (&shared, &case);
            scope.spawn(move || work(thread, limits, start, shared, case));
        }
        watch(&limits, &shared);
    });
    let mut violations = shared.violations.into_inner().unwrap_or_else(PoisonError::into_inner);
    violations.sort_by_key(|(seed, _)| *seed);
    RunReport {
        cases: shared.done.into_inner(),
        counted: shared.counted.into_inner(),
        seconds: (clock.monotonic_nanos() - start) as f64 / NANOS as f64,
        violations,
    }
}

/// One thread: runs cases until a limit is reached.
fn work(
    thread: usize,
    limits: Limits,
    start: u64,
    shared: &RunShared,
    case: &(impl Fn(u64) -> Result<u64, Violation> + Sync),
) {
    // No case runs under this lock, so even a poisoned one holds whole values.
    let lock = || shared.at_work.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let now = SystemClock.monotonic_nanos();
        let nth = shared.next.fetch_add(1, Ordering::Relaxed);
        let failed = shared.violations.lock().unwrap_or_else(PoisonError::into_inner).len();
        if nth >= limits.cases
            || shared.counted.load(Ordering::Relaxed) >= limits.count_max
            || (now - start) / NANOS >= limits.seconds_max
            || failed >= VIOLATIONS_MAX
        {
            break;
        }
        let seed = limits.first.wrapping_add(nth);
        lock().0[thread] = Some((seed, now));
        let outcome = catch_unwind(AssertUnwindSafe(|| case(seed)));
        let judged =
            outcome.unwrap_or_else(|panic| Err(Violation(format!("panic: {}", panic_message(&*panic)))));
        match judged {
            Ok(counted) => drop(shared.counted.fetch_add(counted, Ordering::Relaxed)),
            Err(v) => {
                shared.violations.lock().unwrap_or_else(PoisonError::into_inner).push((seed, v));
            }
        }
        shared.done.fetch_add(1, Ordering::Relaxed);
    }
    let mut at_work = lock();
    at_work.0[thread] = None;
    at_work.1 += 1;
    shared.ended.notify_all();
}

/// Waits for the threads to end, and ends the process if a case hangs.
fn watch(limits: &Limits, shared: &RunShared) {
    let mut at_work = shared.at_work.lock().unwrap_or_else(PoisonError::into_inner);
    while at_work.1 < limits.threads {
        let waited = shared.ended.wait_timeout(at_work, Duration::from_secs(1));
        at_work = waited.map_or_else(|e| e.into_inner().0, |(guard, _)| guard);
        let now = SystemClock.monotonic_nanos();
        for (seed, since) in at_work.0.iter().flatten() {
            if now.saturating_sub(*since) / NANOS > limits.case_seconds_max {
                eprintln!("seed {seed} hangs: it has run for more than {} seconds", limits.case_seconds_max);
                std::process::abort();
            }
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
