//! Runs concurrent code under one schedule of its threads after another.
//!
//! The threads of a schedule are tasks in one thread of the system. At each lock, atomic, wait and device
//! operation the scheduler chooses the task that goes on. A seed repeats all its choices. A schedule in which
//! no task can go on fails, so a lost wake-up is found.

mod device;
mod stack;

use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

pub use stack::{Stack, TestEngine, TestFs, TestLog, ZONE_BYTES};

/// Bytes of a task's stack.
const STACK_BYTES: usize = 1 << 20;

/// Steps of one schedule after which it counts as endless.
const STEPS_MAX: usize = 20_000_000;

/// Changes of priority in a schedule by priorities.
const PRIORITY_CHANGES: usize = 4;

/// The number in an environment variable, or else the usual one.
fn wanted(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(usual)
}

/// Runs a test under `usual` schedules. `WARPFIRE_SCHEDULES` sets another number and `WARPFIRE_SEED` another
/// seed. Half of the schedules choose at random; the other half give each task a priority that changes a few
/// times, which finds mistakes that need few choices at the right places.
pub fn explore(usual: usize, run: fn()) {
    let count = wanted("WARPFIRE_SCHEDULES", usual);
    let seed = wanted("WARPFIRE_SEED", 1) as u64;
    let explore_with = |scheduler: Box<dyn Scheduler + Send>| {
        let mut config = Config::new();
        config.stack_size = STACK_BYTES;
        config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
        config.silence_warnings = true;
        // The seed repeats a failure; its schedule would fill the screen.
        config.failure_persistence = FailurePersistence::None;
        Runner::new(scheduler, config).run(run);
    };
    explore_with(Box::new(RandomScheduler::new_from_seed(seed, count.div_ceil(2))));
    explore_with(Box::new(PctScheduler::new_from_seed(seed, PRIORITY_CHANGES, count / 2)));
}

/// A random number below `n`, which the schedule's seed determines.
#[must_use]
pub fn draw(n: u64) -> u64 {
    shuttle::rand::thread_rng().gen_range(0..n)
}

/// The bytes that belong to a key.
#[must_use]
pub fn content(key: u64, len: usize) -> Vec<u8> {
    let words = (0..=len as u64 / 8)
        .flat_map(|n| warpfire_sim_env::mix(key ^ warpfire_sim_env::mix(n)).to_le_bytes());
    words.take(len).collect()
}
