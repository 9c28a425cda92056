//! `warpfire scrub`: read everything and repair damage from parity.
//!
//! The server of a mounted pool does it while the pool is in use. A pool that is not mounted is opened for
//! it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use warpfire::{ErrorKind, Pool, ScrubReport, Warpfire};
use warpfire_check::{CheckOptions, CheckReport, DamageReport, check};
use warpfire_env::{Clock, Device, SystemClock};
use warpfire_terminal::{
    Failure, Size, counted, duration, grouped, is_json, note, per_second, print, print_json,
};

use super::damage::{self, DamageOutput};
use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::upkeep::{self, ScheduleOrder, WishOrder};
use super::{pool, status};
use crate::location::PoolName;
use crate::progress::WorkLine;

const EXAMPLES: &str = "\
Examples:
  warpfire scrub pool                a pool of the *.img files in a directory
  warpfire scrub /mnt                the pool that is mounted on a directory
  warpfire scrub --rate 50M /dev/nvme0n1,/dev/nvme1n1
  warpfire scrub --json a.img,b.img
  warpfire scrub --every 30d --window 01:00-06:00 --rate 200M /mnt

A scrub reads all data, metadata and parity. It rebuilds every block with a wrong checksum and writes it \
elsewhere, and writes the root to devices that lack the newest one. Before the repair it names the files \
that lose bytes, and those that have less redundancy. \
Scrub regularly, to find damage while there is parity left to repair it. The server of a mounted pool scrubs \
it while it is in use, for the user that has mounted it and for root; Ctrl-C ends the scrub.

Exit codes, as fsck(8):
  0  nothing is damaged, and nothing has less redundancy than the devices allow
  1  something was, and all of it is repaired
  4  damage is left: it exceeds parity, there is no space for repairs, or a
     device is missing
  8  the pool could not be scrubbed";

// Arguments of `warpfire scrub`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,

    /// Most bytes to read in a second, on average over some segments [default: as fast as the devices].
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    rate: Option<NonZeroU64>,

    /// Go on without the missing devices even if they may hold a newer state, and for good.
    #[arg(long)]
    degraded: bool,

    /// Do not scrub now, but from now on each time after so long while the pool is mounted, as 30d, 12h or
    /// 2w; 'never' ends that. The pool keeps it, with the window and the rate.
    #[arg(long, value_name = "TIME", value_parser = parse_every, conflicts_with = "degraded")]
    every: Option<u64>,

    /// The times of day between which scrubs of a schedule read [default: all day].
    #[arg(long, value_name = "FROM-TO", value_parser = parse_window, requires = "every")]
    window: Option<(u16, u16)>,
}

/// fsck(8): errors corrected.
const EXIT_REPAIRED: u8 = 1;
/// fsck(8): errors left.
const EXIT_LEFT: u8 = 4;
/// fsck(8): operational error.
const EXIT_UNSCRUBBED: u8 = 8;

/// The smallest `--rate`.
const RATE_BYTES_MIN: u64 = 4096;

fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    let Size(bytes) = text.parse()?;
    let rate = NonZeroU64::new(bytes).filter(|rate| rate.get() >= RATE_BYTES_MIN);
    rate.ok_or_else(|| format!("use at least {}", Size(RATE_BYTES_MIN)))
}

/// The shortest interval between two scrubs of a schedule.
const EVERY_SECONDS_MIN: u64 = 60;

/// Seconds of an interval like 30d; 0 for 'never'.
fn parse_every(text: &str) -> Result<u64, String> {
    if text == "never" {
        return Ok(0);
    }
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86400), ('w', 7 * 86400)];
    let seconds = units.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*seconds)
    });
    let seconds = seconds.ok_or("use a number and a unit, as in 30d, 12h or 2w, or 'never'")?;
    if seconds < EVERY_SECONDS_MIN {
        return Err(format!("use at least {EVERY_SECONDS_MIN} seconds"));
    }
    Ok(seconds)
}

/// The minutes of the day between two times, as in 01:00-06:00.
fn parse_window(text: &str) -> Result<(u16, u16), String> {
    let minute = |time: &str| -> Option<u16> {
        let (hour, minute) = time.split_once(':')?;
        let number = |text: &str, below: u16| {
            let is_number = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>().ok().filter(|number| is_number && *number < below)
        };
        Some(number(hour, 24)? * 60 + number(minute, 60)?)
    };
    let window = text.split_once('-').and_then(|(from, to)| Some((minute(from)?, minute(to)?)));
    window.ok_or_else(|| "use two times of day, as in 01:00-06:00".to_owned())
}

/// How far a scrub is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ScrubProgress {
    segments: u64,
    segments_left: u64,
    read_bytes: u64,
    damaged_segments: u64,
}

/// The result of a scrub, as the process that has the pool open finds it.
#[derive(Debug, Serialize, Deserialize)]
pub struct ScrubAnswer {
    segments: u64,
    read_bytes: u64,
    nanos: u64,
    damaged_segments: u64,
    /// Other segments with less redundancy than the devices allow.
    weak_segments: u64,
    /// Damaged segments that are left.
    unrepaired_segments: u64,
    /// Those among them that something needs.
    needed_segments: u64,
    /// Weak segments that are left.
    weak_segments_left: u64,
    lost_devices: usize,
    /// Why the scrub ended early.
    stopped: Option<String>,
    /// The damage before the repair.
    damage: DamageReport,
    /// Why the damaged files could not be named.
    unnamed: Option<String>,
}

/// The result of a scrub.
#[derive(Serialize)]
struct ScrubOutput {
    /// Segments that were read.
    segments: u64,
    read_bytes: u64,
    nanos: u64,
    /// Segments in which something did not verify.
    damaged_segments: u64,
    repaired_segments: u64,
    /// Damaged segments that are left, and that something needs.
    unrepaired_segments: u64,
    /// Other segments with less redundancy than the devices allow.
    weak_segments: u64,
    /// Those among them that are left.
    weak_segments_left: u64,
    /// Devices that are missing or have failed.
    lost_devices: usize,
    /// Why the scrub ended early; `null` if it read everything.
    stopped: Option<String>,
    /// The damage before the repair, by file. Lost bytes stay lost.
    damage: DamageOutput,
    /// Why the damaged files could not be named; `null` if they are.
    unnamed: Option<String>,
}

/// Scrubs the pool.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(every_seconds) = args.every {
        return schedule(args, every_seconds).map_err(|failure| failure.exit_code(EXIT_UNSCRUBBED));
    }
    let answer = scrub(args).map_err(|failure| failure.exit_code(EXIT_UNSCRUBBED))?;
    if is_json() {
        print_json(&answer.output())?;
    } else {
        print(answer.in_words())?;
    }
    if let Some(reason) = &answer.stopped {
        note(format_args!("the scrub stopped: {reason}"));
    }
    if let Some(reason) = &answer.unnamed {
        note(format_args!("the damaged files could not be named: {reason}"));
    }
    if answer.damage.is_lost() {
        note(
            "some bytes are lost; reconnect missing devices, or restore the files named above from a backup",
        );
    } else if answer.needed_segments > 0 || answer.weak_segments_left > 0 {
        note("some damage is not repaired: free some space and scrub again");
    }
    if answer.lost_devices > 0 {
        note("devices are missing: reconnect them and scrub again; until then their data has less parity");
    }
    Ok(ExitCode::from(answer.exit_code()))
}

/// Changes the schedule, and shows it.
fn schedule(args: &Args, every_seconds: u64) -> Result<ExitCode, Failure> {
    let window = args.window.unwrap_or_default();
    let rate_bytes = args.rate.map_or(0, NonZeroU64::get);
    upkeep::wish(&args.pool, WishOrder::schedule(ScheduleOrder { every_seconds, window, rate_bytes }))?;
    let upkeep = status::report(&args.pool)?.upkeep;
    if is_json() { print_json(&upkeep) } else { print(upkeep.schedule_in_words()) }?;
    Ok(ExitCode::SUCCESS)
}

fn scrub(args: &Args) -> Result<ScrubAnswer, Failure> {
    let name = PoolName::new(&args.pool);
    let started_nanos = SystemClock.monotonic_nanos();
    let line = WorkLine::start();
    let answer = match ServerConnection::of_pool(&name)? {
        Some(server) => {
            let request = Request::Scrub { rate_bytes: args.rate };
            let answer = server.ask(request, |answer| {
                if let Answer::Scrubbing(so_far) = answer {
                    so_far.show(&line, started_nanos);
                }
            });
            match answer {
                Ok(Answer::Scrubbed(answer)) => Ok(*answer),
                Ok(_) => Err(foreign_answer()),
                Err(failure) => Err(failure),
            }
        }
        None => scrub_unmounted(&name, args, &line),
    };
    line.finish();
    answer
}

fn scrub_unmounted(name: &PoolName, args: &Args, line: &WorkLine) -> Result<ScrubAnswer, Failure> {
    let started_nanos = SystemClock.monotonic_nanos();
    let (devices, opened) = pool::open_to_scrub(&Pool::options().degraded(args.degraded), name)?;
    let mut last = ScrubReport::default();
    let read = opened.and_then(|fs| {
        let found = fs.find_damage(|so_far| {
            last = so_far.clone();
            ScrubProgress::from(so_far).show(line, started_nanos);
            let pause_nanos = pause_nanos(args.rate, so_far.read_bytes, started_nanos);
            if pause_nanos > 0 {
                std::thread::park_timeout(Duration::from_nanos(pause_nanos));
            }
            ControlFlow::Continue(())
        })?;
        Ok((fs, found))
    });
    let answer = match read {
        Ok((fs, found)) => repair(&devices, fs, found)?,
        Err(error) if error.kind() == ErrorKind::Damaged => {
            ScrubAnswer::new(&last, Some(error.to_string()), name_damage(&devices, None)?.damage)
        }
        Err(error) => return Err(Failure::pool(&error)),
    };
    Ok(answer.taking(SystemClock.monotonic_nanos() - started_nanos))
}

/// Names the files that the damage hits, then repairs it, then looks again at the segments that are left.
fn repair(devices: &[Arc<dyn Device>], fs: Warpfire, found: ScrubReport) -> Result<ScrubAnswer, Failure> {
    let named = |segments: &[u64]| -> Result<Option<CheckReport>, Failure> {
        let only = (!segments.is_empty()).then(|| segments.iter().copied().collect());
        only.map(|only| name_damage(devices, Some(only))).transpose()
    };
    let hit = [&found.damaged[..], &found.weak].concat();
    let damage = named(&hit)?.unwrap_or_default().damage;
    let scrub = fs.repair(found).map_err(|error| Failure::pool(&error))?;
    let mut answer = ScrubAnswer::new(&scrub, None, damage);
    if let Some(left) = named(&scrub.unrepaired)? {
        answer = answer.left(&left);
        answer.remember(&fs).map_err(|error| Failure::pool(&error))?;
    }
    fs.close().map_err(|error| Failure::pool(&error))?;
    Ok(answer)
}

/// The time to wait so that these bytes have taken as long as the rate says.
pub fn pause_nanos(rate: Option<NonZeroU64>, read_bytes: u64, started_nanos: u64) -> u64 {
    let Some(rate) = rate else { return 0 };
    let due_nanos = u128::from(read_bytes) * 1_000_000_000 / u128::from(rate.get());
    let taken_nanos = SystemClock.monotonic_nanos() - started_nanos;
    u64::try_from(due_nanos).unwrap_or(u64::MAX).saturating_sub(taken_nanos)
}

fn name_damage(devices: &[Arc<dyn Device>], only: Option<BTreeSet<u64>>) -> Result<CheckReport, Failure> {
    let options = CheckOptions { only, ..CheckOptions::default() };
    check(devices, &options)
        .map_err(|error| Failure::new(format_args!("cannot name the damaged files: {error}")))
}

impl From<&ScrubReport> for ScrubProgress {
    fn from(scrub: &ScrubReport) -> Self {
        ScrubProgress {
            segments: scrub.segments,
            segments_left: scrub.segments_left,
            read_bytes: scrub.read_bytes,
            damaged_segments: scrub.damaged_segments,
        }
    }
}

impl ScrubProgress {
    fn show(&self, line: &WorkLine, started_nanos: u64) {
        let nanos = SystemClock.monotonic_nanos() - started_nanos;
        let words = format!(
            "{} read ({}/s), {} of {} segments damaged",
            Size(self.read_bytes),
            Size(per_second(self.read_bytes, nanos)),
            grouped(self.damaged_segments),
            grouped(self.segments),
        );
        line.part(self.segments, self.segments + self.segments_left, words);
    }
}

impl ScrubAnswer {
    /// The result of a scrub that has found this damage. Something needs each damaged segment.
    pub fn new(scrub: &ScrubReport, stopped: Option<String>, damage: DamageReport) -> ScrubAnswer {
        let weak_left = scrub.unrepaired.iter().filter(|segment| scrub.weak.contains(segment)).count() as u64;
        let unrepaired = scrub.unrepaired_segments - weak_left;
        ScrubAnswer {
            segments: scrub.segments,
            read_bytes: scrub.read_bytes,
            nanos: 0,
            // Damage that was met after the segment had been read is in none of the two lists.
            damaged_segments: scrub.damaged_segments.max(unrepaired),
            weak_segments: scrub.weak_segments,
            unrepaired_segments: unrepaired,
            needed_segments: unrepaired,
            weak_segments_left: weak_left,
            lost_devices: scrub.lost_devices,
            stopped,
            damage,
            unnamed: None,
        }
    }

    /// Sets why the damaged files could not be named.
    #[must_use]
    pub fn unnamed(self, unnamed: Option<String>) -> ScrubAnswer {
        ScrubAnswer { unnamed, ..self }
    }

    /// Takes the report of a check of the segments that could not be repaired.
    #[must_use]
    pub fn left(self, left: &CheckReport) -> ScrubAnswer {
        let is_unneeded = left.errors == 0 && left.damage == DamageReport::default();
        if is_unneeded { ScrubAnswer { needed_segments: 0, ..self } } else { self }
    }

    /// Sets the time that the scrub has taken.
    #[must_use]
    pub fn taking(self, nanos: u64) -> ScrubAnswer {
        ScrubAnswer { nanos, ..self }
    }

    /// Stores in the pool which files have lost bytes.
    ///
    /// # Errors
    /// As [`Warpfire::remember_damaged_files`].
    pub fn remember(&self, pool: &Warpfire) -> Result<(), warpfire::Error> {
        let lost = self.damage.files.iter().filter(|file| !file.lost.is_empty());
        let paths: Vec<&Path> = lost
            .filter_map(|file| file.paths.first())
            .map(|path| Path::new(OsStr::from_bytes(path)))
            .collect();
        let more = self.damage.files_lost.saturating_sub(paths.len() as u64);
        pool.remember_damaged_files(&paths, more, self.needed_segments + self.weak_segments_left)
    }

    fn output(&self) -> ScrubOutput {
        ScrubOutput {
            segments: self.segments,
            read_bytes: self.read_bytes,
            nanos: self.nanos,
            damaged_segments: self.damaged_segments,
            repaired_segments: self.damaged_segments.saturating_sub(self.unrepaired_segments),
            unrepaired_segments: self.needed_segments,
            weak_segments: self.weak_segments,
            weak_segments_left: self.weak_segments_left,
            lost_devices: self.lost_devices,
            stopped: self.stopped.clone(),
            damage: DamageOutput::new(&self.damage),
            unnamed: self.unnamed.clone(),
        }
    }

    fn exit_code(&self) -> u8 {
        let left = self.needed_segments + self.weak_segments_left;
        if self.stopped.is_some() || left > 0 || self.lost_devices > 0 {
            EXIT_LEFT
        } else if self.damaged_segments > self.unrepaired_segments || self.weak_segments > 0 {
            EXIT_REPAIRED
        } else {
            0
        }
    }

    fn in_words(&self) -> String {
        let read = format!(
            "{} read in {} in {} ({}/s)",
            Size(self.read_bytes),
            counted(self.segments, "segment", "segments"),
            duration(self.nanos),
            Size(per_second(self.read_bytes, self.nanos)),
        );
        let unneeded = self.unrepaired_segments.saturating_sub(self.needed_segments);
        let mut found = match self.damaged_segments {
            0 if self.stopped.is_some() => "not all was read".to_owned(),
            0 => "nothing damaged".to_owned(),
            damaged => format!(
                "{} damaged: {} repaired, {} NOT REPAIRED",
                counted(damaged, "segment", "segments"),
                grouped(damaged.saturating_sub(self.unrepaired_segments)),
                grouped(self.needed_segments),
            ),
        };
        if unneeded > 0 {
            found += &format!(", {} with damage that nothing needs", grouped(unneeded));
        }
        if self.weak_segments > 0 {
            found += &format!(
                "; {} had less redundancy than the devices allow: {} rewritten, {} NOT REWRITTEN",
                counted(self.weak_segments, "segment", "segments"),
                grouped(self.weak_segments - self.weak_segments_left),
                grouped(self.weak_segments_left),
            );
        }
        let away = match self.lost_devices {
            0 => String::new(),
            1 => "; one device MISSING, not read".to_owned(),
            away => format!("; {away} devices MISSING, not read"),
        };
        format!("{}{read}\n{found}{away}\n", damage::in_words(&self.damage))
    }
}
