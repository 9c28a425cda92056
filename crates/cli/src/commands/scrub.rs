//! `warpfire scrub`: read everything and repair damage from parity.

use std::ffi::OsString;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use warpfire::ScrubReport;
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{Failure, Size, counted, duration, grouped, note, per_second, print, print_json};

use super::pool;
use crate::location::PoolName;

const EXAMPLES: &str = "\
Examples:
  warpfire scrub pool                a pool of the *.img files in a directory
  warpfire scrub /dev/nvme0n1,/dev/nvme1n1
  warpfire scrub --json a.img,b.img

A scrub reads all data, metadata and parity. It rebuilds every block with a wrong checksum and writes it \
elsewhere. Scrub regularly, to find damage while there is parity left to repair it. The pool must not be \
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
#[derive(Debug, Serialize)]
struct ScrubOutput {
    segments: u64,
    read_bytes: u64,
    nanos: u64,
    damaged_segments: u64,
    repaired_segments: u64,
    unrepaired_segments: u64,
    lost_devices: usize,
}

/// Scrubs the pool.
pub fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    let answer = scrub(args).map_err(|failure| failure.exit_code(EXIT_UNSCRUBBED))?;
    if json {
        print_json(&answer)?;
    } else {
        print(answer.in_words())?;
    }
    if answer.unrepaired_segments > 0 {
        note("some damage is not repaired: free some space and scrub again; 'warpfire fsck' lists lost data");
    }
    if answer.lost_devices > 0 {
        note("devices are missing: reconnect them and scrub again; until then their data has less parity");
    }
    Ok(ExitCode::from(answer.exit_code()))
}

fn scrub(args: &Args) -> Result<ScrubOutput, Failure> {
    let fs = pool::open(&PoolName::new(&args.pool))?;
    let started_nanos = SystemClock.monotonic_nanos();
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(5));
    bar.set_style(ProgressStyle::with_template("{msg} {percent} %").expect("the template is well formed"));
    let scrub = fs.scrub(|so_far| {
        let nanos = SystemClock.monotonic_nanos() - started_nanos;
        let rate = Size(per_second(so_far.read_bytes, nanos));
        bar.set_message(format!(
            "{} read ({rate}/s), {} of {} segments damaged,",
            Size(so_far.read_bytes),
            grouped(so_far.damaged_segments),
            grouped(so_far.segments),
        ));
        bar.set_length(so_far.segments + so_far.segments_left);
        bar.set_position(so_far.segments);
    });
    bar.finish_and_clear();
    let answer = ScrubOutput::new(&scrub?, SystemClock.monotonic_nanos() - started_nanos);
    fs.close()?;
    Ok(answer)
}

impl ScrubOutput {
    fn new(scrub: &ScrubReport, nanos: u64) -> ScrubOutput {
        ScrubOutput {
            segments: scrub.segments,
            read_bytes: scrub.read_bytes,
            nanos,
            damaged_segments: scrub.damaged_segments,
            repaired_segments: scrub.damaged_segments - scrub.unrepaired_segments,
            unrepaired_segments: scrub.unrepaired_segments,
            lost_devices: scrub.lost_devices,
        }
    }

    fn exit_code(&self) -> u8 {
        if self.unrepaired_segments > 0 || self.lost_devices > 0 {
            EXIT_LEFT
        } else if self.damaged_segments > 0 {
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
        let found = match self.damaged_segments {
            0 => "nothing damaged".to_owned(),
            damaged => format!(
                "{} damaged: {} repaired, {} NOT REPAIRED",
                counted(damaged, "segment", "segments"),
                grouped(self.repaired_segments),
                grouped(self.unrepaired_segments),
            ),
        };
        let away = match self.lost_devices {
            0 => String::new(),
            1 => "; one device MISSING, not read".to_owned(),
            away => format!("; {away} devices MISSING, not read"),
        };
        format!("{read}\n{found}{away}\n")
    }
}
