//! `warpfire scrub`: read everything and repair damage from parity.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use warpfire::{ErrorKind, ScrubReport};
use warpfire_check::{CheckOptions, CheckReport, DamageReport, check};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{
    Failure, Size, counted, duration, grouped, is_json, note, per_second, print, print_json,
};

use super::damage::{self, DamageOutput};
use super::pool;
use crate::location::PoolName;
use crate::progress::WorkLine;

const EXAMPLES: &str = "\
Examples:
  warpfire scrub pool                a pool of the *.img files in a directory
  warpfire scrub /dev/nvme0n1,/dev/nvme1n1
  warpfire scrub --json a.img,b.img

A scrub reads all data, metadata and parity. It rebuilds every block with a wrong checksum and writes it \
elsewhere, and writes the root to devices that lack the newest one. It names the files that lose bytes. \
Scrub regularly, to find damage while there is parity left to repair it. The pool must not be \
mounted.

Exit codes, as fsck(8):
  0  nothing is damaged
  1  damage was found, and all of it is repaired
  4  damage is left: it exceeds parity, there is no space for repairs, or a
     device is missing
  8  the pool could not be scrubbed";

/// Arguments of `warpfire scrub`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, or a directory of *.img files [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,
}

/// fsck(8): errors corrected.
const EXIT_REPAIRED: u8 = 1;
/// fsck(8): errors left.
const EXIT_LEFT: u8 = 4;
/// fsck(8): operational error.
const EXIT_UNSCRUBBED: u8 = 8;

/// The result of a scrub.
#[derive(Debug)]
struct ScrubAnswer {
    scrub: ScrubReport,
    nanos: u64,
    /// Why the scrub ended early.
    stopped: Option<String>,
    /// The damage that is left, if there is some, as independent code reads it.
    left: Option<CheckReport>,
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
    /// Devices that are missing or have failed.
    lost_devices: usize,
    /// Why the scrub ended early; `null` if it read everything.
    stopped: Option<String>,
    /// The damage that is left, by file.
    damage: DamageOutput,
}

/// Scrubs the pool.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let answer = scrub(args).map_err(|failure| failure.exit_code(EXIT_UNSCRUBBED))?;
    if is_json() {
        print_json(&answer.output())?;
    } else {
        print(answer.in_words())?;
    }
    if let Some(reason) = &answer.stopped {
        note(format_args!("the scrub stopped: {reason}"));
    }
    if answer.damage().is_lost() {
        note(
            "some bytes are lost; reconnect missing devices, or restore the files named above from a backup",
        );
    } else if answer.unrepaired() > 0 {
        note("some damage is not repaired: free some space and scrub again");
    }
    if answer.scrub.lost_devices > 0 {
        note("devices are missing: reconnect them and scrub again; until then their data has less parity");
    }
    Ok(ExitCode::from(answer.exit_code()))
}

fn scrub(args: &Args) -> Result<ScrubAnswer, Failure> {
    let name = PoolName::new(&args.pool);
    let started_nanos = SystemClock.monotonic_nanos();
    let line = WorkLine::start();
    let mut last = ScrubReport::default();
    let attempt = pool::open_unless_damaged(&name)?.and_then(|fs| {
        let scrub = fs.scrub(|so_far| {
            last = so_far.clone();
            show(&line, so_far, started_nanos);
            ControlFlow::Continue(())
        });
        let closed = fs.close();
        let scrub = scrub?;
        closed.map(|()| scrub)
    });
    line.finish();
    let (scrub, stopped) = match attempt {
        Ok(scrub) => (scrub, None),
        Err(error) if error.kind() == ErrorKind::Damaged => (last, Some(error.to_string())),
        Err(error) => return Err(Failure::pool(&error)),
    };
    // Only what the scrub could not repair is read again, to name the files.
    let only = stopped.is_none().then(|| scrub.unrepaired.iter().copied().collect());
    let is_left = stopped.is_some() || !scrub.unrepaired.is_empty();
    let left = is_left.then(|| name_damage(&name, only)).transpose()?;
    if let Some(left) = left.as_ref().filter(|_| stopped.is_none()) {
        remember(&name, left, &scrub)?;
    }
    Ok(ScrubAnswer { scrub, nanos: SystemClock.monotonic_nanos() - started_nanos, stopped, left })
}

/// Shows how far a scrub is.
fn show(line: &WorkLine, so_far: &ScrubReport, started_nanos: u64) {
    let nanos = SystemClock.monotonic_nanos() - started_nanos;
    let words = format!(
        "{} read ({}/s), {} of {} segments damaged",
        Size(so_far.read_bytes),
        Size(per_second(so_far.read_bytes, nanos)),
        grouped(so_far.damaged_segments),
        grouped(so_far.segments),
    );
    line.part(so_far.segments, so_far.segments + so_far.segments_left, words);
}

/// Stores in the pool which files have lost bytes, for `warpfire status`.
fn remember(name: &PoolName, left: &CheckReport, scrub: &ScrubReport) -> Result<(), Failure> {
    let lost = left.damage.files.iter().filter(|file| !file.lost.is_empty());
    let paths: Vec<&Path> =
        lost.filter_map(|file| file.paths.first()).map(|path| Path::new(OsStr::from_bytes(path))).collect();
    let more = left.damage.files_lost.saturating_sub(paths.len() as u64);
    let is_needed = left.errors > 0 || left.damage != NO_DAMAGE;
    let unrepaired = if is_needed { scrub.unrepaired_segments } else { 0 };
    let Ok(fs) = pool::open_unless_damaged(name)? else { return Ok(()) };
    fs.remember_damaged_files(&paths, more, unrepaired).map_err(|error| Failure::pool(&error))?;
    fs.close().map_err(|error| Failure::pool(&error))
}

fn name_damage(name: &PoolName, only: Option<BTreeSet<u64>>) -> Result<CheckReport, Failure> {
    let options = CheckOptions { only, ..CheckOptions::default() };
    check(&pool::devices(name)?, &options)
        .map_err(|error| Failure::new(format_args!("cannot name the damaged files: {error}")))
}

static NO_DAMAGE: DamageReport =
    DamageReport { files: Vec::new(), files_lost: 0, files_weak: 0, metadata: Vec::new() };

impl ScrubAnswer {
    fn damage(&self) -> &DamageReport {
        self.left.as_ref().map_or(&NO_DAMAGE, |left| &left.damage)
    }

    /// Damaged segments that are left and that something needs.
    fn unrepaired(&self) -> u64 {
        let needed = self.left.as_ref().is_none_or(|left| left.errors > 0 || left.damage != NO_DAMAGE);
        if needed { self.scrub.unrepaired_segments } else { 0 }
    }

    fn output(&self) -> ScrubOutput {
        let scrub = &self.scrub;
        ScrubOutput {
            segments: scrub.segments,
            read_bytes: scrub.read_bytes,
            nanos: self.nanos,
            damaged_segments: scrub.damaged_segments,
            repaired_segments: scrub.damaged_segments - scrub.unrepaired_segments,
            unrepaired_segments: self.unrepaired(),
            lost_devices: scrub.lost_devices,
            stopped: self.stopped.clone(),
            damage: DamageOutput::new(self.damage()),
        }
    }

    fn exit_code(&self) -> u8 {
        if self.stopped.is_some() || self.unrepaired() > 0 || self.scrub.lost_devices > 0 {
            EXIT_LEFT
        } else if self.scrub.damaged_segments > self.scrub.unrepaired_segments {
            EXIT_REPAIRED
        } else {
            0
        }
    }

    fn in_words(&self) -> String {
        let scrub = &self.scrub;
        let read = format!(
            "{} read in {} in {} ({}/s)",
            Size(scrub.read_bytes),
            counted(scrub.segments, "segment", "segments"),
            duration(self.nanos),
            Size(per_second(scrub.read_bytes, self.nanos)),
        );
        let unneeded = scrub.unrepaired_segments - self.unrepaired();
        let mut found = match scrub.damaged_segments {
            0 if self.stopped.is_some() => "not all was read".to_owned(),
            0 => "nothing damaged".to_owned(),
            damaged => format!(
                "{} damaged: {} repaired, {} NOT REPAIRED",
                counted(damaged, "segment", "segments"),
                grouped(damaged - scrub.unrepaired_segments),
                grouped(self.unrepaired()),
            ),
        };
        if unneeded > 0 {
            found += &format!(", {} with damage that nothing needs", grouped(unneeded));
        }
        let away = match scrub.lost_devices {
            0 => String::new(),
            1 => "; one device MISSING, not read".to_owned(),
            away => format!("; {away} devices MISSING, not read"),
        };
        format!("{}{read}\n{found}{away}\n", damage::in_words(self.damage()))
    }
}
