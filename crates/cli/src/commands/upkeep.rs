//! `warpfire upkeep`: what the pool has to do for its redundancy, how fast it does that, and pauses.
//!
//! The server of a mounted pool answers. A pool that is not mounted is opened: its wishes hold for later
//! mounts.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use warpfire::{Pool, ScrubSchedule, Warpfire};
use warpfire_terminal::{Failure, Size, is_json, print, print_json};

use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::{pool, status};
use crate::location::PoolName;
use crate::progress::WorkLine;

const EXAMPLES: &str = "\
Examples:
  warpfire upkeep /mnt               the work that is left, and its speed
  warpfire upkeep /mnt pause         until 'resume', also at the next mount
  warpfire upkeep /mnt resume
  warpfire upkeep /mnt wait          until there is nothing left to do
  warpfire upkeep /mnt --rate 200M   read and write at most 200 MiB/s
  warpfire upkeep /mnt --rate auto   slower while programs use the pool

Upkeep gives segments their redundancy back: columns that a device missed, that are on a lost device, on one \
that leaves, or damaged. The segments that can lose the fewest devices come first. A pause keeps the space that \
cleaning frees for writers, and commands such as 'device remove', coming. 'warpfire scrub --every' has the \
schedule of scrubs.";

// Arguments of `warpfire upkeep`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// Show the work that is left, pause it, let it go on, or wait for its end.
    #[arg(value_name = "ACTION", value_enum, default_value_t = Action::Status)]
    action: Action,

    /// Most bytes to read and write in a second, or 'auto'. The pool keeps it.
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    rate: Option<Rate>,
}

/// What to do.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// Show the work that is left.
    Status,
    /// Begin no more work.
    Pause,
    /// Go on.
    Resume,
    /// Wait until nothing is left to do, or until the work that is left waits itself.
    Wait,
}

/// How often `wait` looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A rate on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate(Option<NonZeroU64>);

/// The slowest rate of upkeep: a slower one would take years for a drive.
const RATE_BYTES_MIN: u64 = 1 << 20;

fn parse_rate(text: &str) -> Result<Rate, String> {
    if text == "auto" {
        return Ok(Rate(None));
    }
    let Size(bytes) = text.parse()?;
    let rate = NonZeroU64::new(bytes).filter(|rate| rate.get() >= RATE_BYTES_MIN);
    let refused = || format!("use at least {}, or 'upkeep pause'", Size(RATE_BYTES_MIN));
    rate.map(|rate| Rate(Some(rate))).ok_or_else(refused)
}

/// A change of the wishes. A field that is `None` stays as it is; a rate of 0 is `auto`, and a schedule with
/// 0 seconds is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WishOrder {
    is_paused: Option<bool>,
    rate_bytes: Option<u64>,
    schedule: Option<ScheduleOrder>,
}

/// A schedule of scrubs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScheduleOrder {
    /// Seconds from the beginning of one scrub to the next; 0 ends the schedule.
    pub every_seconds: u64,
    /// Minutes of the day at which the window opens and closes.
    pub window: (u16, u16),
    /// Most bytes to read in a second; 0 without a limit.
    pub rate_bytes: u64,
}

impl WishOrder {
    /// Changes the schedule of scrubs.
    #[must_use]
    pub fn schedule(schedule: ScheduleOrder) -> WishOrder {
        WishOrder { schedule: Some(schedule), ..WishOrder::default() }
    }
}

/// Shows or changes the upkeep of a pool.
pub fn run(args: &Args) -> Result<(), Failure> {
    let is_paused = match args.action {
        Action::Status | Action::Wait => None,
        Action::Pause => Some(true),
        Action::Resume => Some(false),
    };
    let rate_bytes = args.rate.map(|Rate(rate)| rate.map_or(0, NonZeroU64::get));
    let order = WishOrder { is_paused, rate_bytes, schedule: None };
    if order != WishOrder::default() {
        wish(&args.pool, order)?;
    }
    if args.action == Action::Wait {
        wait(&args.pool)?;
    }
    let status = status::report(&args.pool)?;
    if is_json() { print_json(&status.upkeep) } else { print(status.upkeep.in_full()) }
}

/// Waits until upkeep has nothing left to do, or waits itself. A pool that is not mounted is opened, and does
/// its work during the wait.
fn wait(pool: &OsString) -> Result<(), Failure> {
    let name = PoolName::new(pool);
    let line = WorkLine::start();
    let show = |left: u64| line.message(format_args!("{} left to write", Size(left)));
    // The devices may be asked for work that nobody has begun yet: two looks in a row must find none.
    let mut idle = 0;
    let mut is_done = |left: u64, waits: bool| {
        show(left);
        idle = if left == 0 || waits { idle + 1 } else { 0 };
        idle == 2
    };
    if ServerConnection::of_pool(&name)?.is_some() {
        loop {
            let upkeep = status::report(pool)?.upkeep;
            if is_done(upkeep.left_bytes, upkeep.blocked.is_some() || upkeep.paused) {
                break;
            }
            std::thread::park_timeout(LOOK_INTERVAL);
        }
        line.finish();
        return Ok(());
    }
    let opened = pool::open_as(&Pool::options(), &name)?;
    loop {
        let upkeep = opened.upkeep();
        if is_done(upkeep.left_bytes, upkeep.blocked.is_some() || upkeep.is_paused) {
            break;
        }
        std::thread::park_timeout(LOOK_INTERVAL);
    }
    line.finish();
    opened.close().map_err(|error| Failure::pool(&error))
}

/// Changes the wishes of a pool, mounted or not.
///
/// # Errors
/// The pool cannot be opened for writing, or its server refuses.
pub fn wish(pool: &OsString, order: WishOrder) -> Result<(), Failure> {
    let name = PoolName::new(pool);
    if let Some(server) = ServerConnection::of_pool(&name)? {
        return match server.ask(Request::Wish(order), |_| ())? {
            Answer::Wished => Ok(()),
            _ => Err(foreign_answer()),
        };
    }
    let opened = pool::open_as(&Pool::options(), &name)?;
    wish_in(&opened, order)?;
    opened.close().map_err(|error| Failure::pool(&error))
}

/// Changes the wishes of an open pool.
///
/// # Errors
/// The pool takes no changes.
pub fn wish_in(pool: &Warpfire, order: WishOrder) -> Result<(), Failure> {
    let mut wishes = pool.upkeep_wishes();
    wishes.is_paused = order.is_paused.unwrap_or(wishes.is_paused);
    if let Some(rate_bytes) = order.rate_bytes {
        wishes.rate_bytes = NonZeroU64::new(rate_bytes);
    }
    if let Some(ScheduleOrder { every_seconds, window, rate_bytes }) = order.schedule {
        wishes.scrub = NonZeroU64::new(every_seconds).map(|every_seconds| ScrubSchedule {
            every_seconds,
            window,
            rate_bytes: NonZeroU64::new(rate_bytes),
        });
    }
    pool.set_upkeep_wishes(&wishes).map_err(|error| Failure::pool(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_size_or_auto() {
        assert_eq!(parse_rate("auto"), Ok(Rate(None)));
        assert_eq!(parse_rate("200M"), Ok(Rate(NonZeroU64::new(200 << 20))));
        for wrong in ["", "0", "1K", "fast", "-1"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
