//! `warpfire fsck`: read everything with independent code and report every inconsistency. Nothing is written.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use warpfire_check::{
    CheckError, CheckOptions, CheckPhase, CheckProgress, CheckReport, Finding, FindingCode, Severity, Totals,
    check,
};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{
    Failure, Size, counted, duration, grouped, is_json, note, per_second, print, print_json,
};

use super::damage::{self, DamageOutput};
use super::pool::{OTHER_VERSION, devices};
use crate::location::PoolName;
use crate::progress::WorkLine;

const EXAMPLES: &str = "\
Examples:
  warpfire fsck pool             check every stripe, table, name and count
  warpfire fsck --no-data a.img  check all except the contents of files
  warpfire fsck --memory 1G --json /dev/nvme0n1,/dev/nvme1n1

The report names the files that lose bytes, with the ranges, and the files that lose redundancy only. Damage \
in blocks that nothing needs is a note.

The pool must not be mounted, except with 'mount --read-only'. No crash makes a check necessary.

Exit codes, as fsck(8):
  0  the pool is clean
  4  damage was found: repairable from parity, or beyond parity (errors)
  8  the pool could not be checked";

/// Arguments of `warpfire fsck`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, or a directory of *.img files [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,

    /// Do not read the contents of files, only the metadata that refers to them.
    #[arg(long)]
    no_data: bool,

    /// Memory for names and inodes. With less memory the check makes more passes.
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    memory: Size,
}

/// An operational error of fsck(8).
const EXIT_UNCHECKED: u8 = 8;

/// The result of a check.
#[derive(Serialize)]
struct FsckOutput {
    /// Findings, worst first, at most 128 of each kind.
    findings: Vec<Finding>,
    /// Number of notes, listed or not.
    notes: u64,
    /// Number of repairable findings, listed or not.
    repairable: u64,
    /// Number of errors, listed or not.
    errors: u64,
    /// The damage that something needs, by file.
    damage: DamageOutput,
    /// Counts and rates.
    totals: Totals,
}

impl FsckOutput {
    fn new(report: &CheckReport) -> Self {
        FsckOutput {
            findings: report.findings.clone(),
            notes: report.notes,
            repairable: report.repairable,
            errors: report.errors,
            damage: DamageOutput::new(&report.damage),
            totals: report.totals.clone(),
        }
    }
}

/// Checks the pool.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let unchecked = |failure: Failure| failure.exit_code(EXIT_UNCHECKED);
    let devices = devices(&PoolName::new(&args.pool)).map_err(unchecked)?;
    let line = Arc::new(WorkLine::start());
    let progress = progress_on(Arc::clone(&line));
    let options = CheckOptions {
        data: !args.no_data,
        max_memory_bytes: args.memory.0,
        progress: Some(Arc::new(progress)),
        ..CheckOptions::default()
    };
    let named = if args.pool.is_empty() { "the pool".into() } else { args.pool.to_string_lossy() };
    let report = check(&devices, &options).map_err(|error| {
        let hint = match error {
            CheckError::OtherVersion(_) => OTHER_VERSION,
            _ => "'warpfire status' shows the devices of the pool",
        };
        unchecked(Failure::new(format_args!("cannot check {named}: {error}")).hint(hint))
    });
    // Before any output, also that of an error: the progress line must not mix with it.
    line.finish();
    let report = report?;
    if is_json() {
        print_json(&FsckOutput::new(&report))?;
    } else {
        print(in_words(&report))?;
    }
    let needs_devices =
        |finding: &Finding| (finding.code, finding.severity) == (FindingCode::DeviceMissing, Severity::Error);
    if report.findings.iter().any(needs_devices) {
        note("more devices are missing than parity covers; reconnect them and check again");
    } else if report.damage.is_lost() {
        note(
            "some bytes are lost; reconnect missing devices, or restore the files named above from a backup",
        );
    } else if report.errors > 0 {
        note("the pool contradicts itself; copy the files out of it, and make a new pool");
    } else if report.repairable > 0 {
        note("all data is readable; reconnect missing devices, then repair the damage with 'warpfire scrub'");
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// Shows progress on a line. Each stage has its own total, rate and time that is left.
fn progress_on(line: Arc<WorkLine>) -> impl Fn(CheckProgress) + Send + Sync {
    let stage = Mutex::new((CheckPhase::Log, SystemClock.monotonic_nanos()));
    move |progress| {
        let now_nanos = SystemClock.monotonic_nanos();
        let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
        if stage.0 != progress.phase {
            *stage = (progress.phase, now_nanos);
            line.begin_stage();
        }
        line.part(progress.done, progress.total, progress_in_words(progress, now_nanos - stage.1));
    }
}

/// `stripes: 1.5 GiB of 12 GiB read (420 MiB/s)`
fn progress_in_words(progress: CheckProgress, nanos: u64) -> String {
    let CheckProgress { phase, done, total } = progress;
    let rate = per_second(done, nanos);
    match phase {
        CheckPhase::Log => "commit log".to_owned(),
        CheckPhase::Stripes => format!("stripes: {} of {} read ({}/s)", Size(done), Size(total), Size(rate)),
        CheckPhase::Names => {
            format!("names: {} of {} keys checked ({}/s)", grouped(done), grouped(total), grouped(rate))
        }
    }
}

fn in_words(report: &CheckReport) -> String {
    let mut text: String = report.findings.iter().map(|finding| format!("{finding}\n")).collect();
    text += &damage::in_words(&report.damage);
    let totals = &report.totals;
    text += &format!(
        "{} in {} on {}, {} verified; bad blocks: {} that parity covers, {} lost, \
         {} that nothing needs\n",
        counted(totals.stripes, "stripe", "stripes"),
        counted(totals.segments, "segment", "segments"),
        counted(totals.devices, "device", "devices"),
        counted(totals.blocks_verified, "block", "blocks"),
        grouped(totals.blocks_repairable),
        grouped(totals.blocks_lost),
        grouped(totals.blocks_unneeded),
    );
    text += &format!(
        "{}, {}, {}, {} in {} and {}; {} in files\n",
        counted(totals.files, "file", "files"),
        counted(totals.directories, "directory", "directories"),
        counted(totals.symlinks, "link", "links"),
        counted(totals.names, "name", "names"),
        counted(totals.tables, "table", "tables"),
        counted(totals.log_records, "log record", "log records"),
        Size(totals.file_bytes),
    );
    text += &format!(
        "{} read in {} ({}/s, {}/s)\n{}: {}, {} repairable, {}\n",
        Size(totals.bytes_read),
        duration(totals.nanos),
        Size(totals.bytes_per_second()),
        counted(totals.keys_per_second(), "key", "keys"),
        if report.is_clean() { "clean" } else { "NOT CLEAN" },
        counted(report.errors, "error", "errors"),
        grouped(report.repairable),
        counted(report.notes, "note", "notes"),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_what_is_done_the_total_and_the_rate() {
        let words = |phase, done, total, seconds: u64| {
            progress_in_words(CheckProgress { phase, done, total }, seconds * 1_000_000_000)
        };
        let stripes = words(CheckPhase::Stripes, 3 << 30, 12 << 30, 8);
        assert_eq!(stripes, "stripes: 3 GiB of 12 GiB read (384 MiB/s)");
        assert_eq!(
            words(CheckPhase::Names, 20_000, 50_000, 2),
            "names: 20,000 of 50,000 keys checked (10,000/s)"
        );
        assert_eq!(words(CheckPhase::Log, 0, 1, 0), "commit log");
    }
}
