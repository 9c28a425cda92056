//! `warpfire fsck`: read everything with independent code and report every inconsistency. Nothing is written.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use warpfire_check::{
    CheckError, CheckOptions, CheckPhase, CheckProgress, CheckReport, Finding, FindingCode, Severity, Totals,
    check,
};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{
    Failure, Size, counted, duration, grouped, is_json, note, per_second, print, print_json,
};

use super::damage::{self, DamageOutput};
use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::pool::{OTHER_VERSION, devices};
use crate::location::PoolName;
use crate::progress::WorkLine;

const EXAMPLES: &str = "\
Examples:
  warpfire fsck pool             check every stripe, table, name and count
  warpfire fsck /mnt             the pool that is mounted on a directory
  warpfire fsck --no-data a.img  check all except the contents of files
  warpfire fsck --memory 1G --json /dev/nvme0n1,/dev/nvme1n1

The report names the files that lose bytes, with the ranges, and the files that lose redundancy only. Damage \
in blocks that nothing needs is a note, and so is a file beside the devices that is none of them.

The server of a mounted pool checks it while it is in use, as it is at the beginning, for the user that has \
mounted it and for root. Space that is freed until the end is not used again; if the pool needs it, the check \
ends with exit code 8. No crash makes a check necessary.

Exit codes, as fsck(8):
  0  the pool is clean
  4  damage was found: repairable from parity, or beyond parity (errors)
  8  the pool could not be checked";

// Arguments of `warpfire fsck`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool [default: $WARPFIRE_POOL].
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

/// What to check, and with how much memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckOrder {
    data: bool,
    memory_bytes: u64,
}

impl CheckOrder {
    /// The options of the check.
    pub fn options(&self) -> CheckOptions {
        CheckOptions { data: self.data, max_memory_bytes: self.memory_bytes, ..CheckOptions::default() }
    }
}

/// The result of a check, as it is printed.
#[derive(Debug, Serialize, Deserialize)]
pub struct CheckAnswer {
    json: serde_json::Value,
    words: String,
    /// What to do next.
    next: Option<String>,
    exit_code: u8,
}

impl CheckAnswer {
    /// The result of this check.
    pub fn new(report: &CheckReport) -> CheckAnswer {
        let json = serde_json::to_value(FsckOutput::new(report)).expect("a report has string keys only");
        CheckAnswer {
            json,
            words: in_words(report),
            next: next_step(report).map(str::to_owned),
            exit_code: report.exit_code(),
        }
    }
}

/// Checks the pool.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let line = Arc::new(WorkLine::start());
    let answer = check_pool(args, &line);
    // Before any output, also that of an error: the progress line must not mix with it.
    line.finish();
    let answer = answer.map_err(|failure| failure.exit_code(EXIT_UNCHECKED))?;
    if is_json() {
        print_json(&answer.json)?;
    } else {
        print(answer.words)?;
    }
    if let Some(next) = &answer.next {
        note(next);
    }
    Ok(ExitCode::from(answer.exit_code))
}

/// Checks a pool, or lets the server check that has it mounted.
fn check_pool(args: &Args, line: &Arc<WorkLine>) -> Result<CheckAnswer, Failure> {
    let name = PoolName::new(&args.pool);
    let order = CheckOrder { data: !args.no_data, memory_bytes: args.memory.0 };
    let progress = progress_on(Arc::clone(line));
    if let Some(server) = ServerConnection::of_pool(&name)? {
        let answer = server.ask(Request::Check(order), |answer| {
            if let Answer::Checking(so_far) = answer {
                // The answer goes on as long as this process does.
                let _ = progress(*so_far);
            }
        });
        return match answer? {
            Answer::Checked(answer) => Ok(*answer),
            _ => Err(foreign_answer()),
        };
    }
    let devices = devices(&name)?;
    let options = CheckOptions { progress: Some(Arc::new(progress)), ..order.options() };
    let named = if args.pool.is_empty() { "the pool".into() } else { args.pool.to_string_lossy() };
    let report = check(&devices, &options).map_err(|error| {
        let hint = match error {
            CheckError::OtherVersion(_) => OTHER_VERSION,
            _ => "'warpfire status' shows the devices of the pool",
        };
        Failure::new(format_args!("cannot check {named}: {error}")).hint(hint)
    });
    Ok(CheckAnswer::new(&report?))
}

/// What to do after a check that has found something.
fn next_step(report: &CheckReport) -> Option<&'static str> {
    let needs_devices =
        |finding: &Finding| (finding.code, finding.severity) == (FindingCode::DeviceMissing, Severity::Error);
    let has_lost_roots = |finding: &Finding| {
        (finding.code, finding.severity) == (FindingCode::DeviceForeign, Severity::Repairable)
    };
    let errors = || report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    let is_of_set =
        |finding: &Finding| matches!(finding.code, FindingCode::DeviceForeign | FindingCode::DeviceTwice);
    let needs = report.findings.iter().any(needs_devices);
    if needs && report.findings.iter().any(has_lost_roots) {
        Some(
            "more devices are missing than parity covers; reconnect them, or if their roots are lost, let \
             'warpfire recover rebuild-roots' write these again",
        )
    } else if needs {
        Some("more devices are missing than parity covers; reconnect them and check again")
    } else if report.damage.is_lost() {
        Some("some bytes are lost; reconnect missing devices, or restore the files named above from a backup")
    } else if report.errors > 0 && errors().all(is_of_set) {
        Some("the devices that are named above do not belong here; leave them out, and check again")
    } else if report.errors > 0 {
        Some("the pool contradicts itself; copy the files out of it, and make a new pool")
    } else if report.findings.iter().any(has_lost_roots) {
        Some(
            "all data is readable; reconnect missing devices; where the roots of a device are lost, 'warpfire \
             recover rebuild-roots' writes them again",
        )
    } else if report.repairable > 0 {
        Some("all data is readable; reconnect missing devices, then repair the damage with 'warpfire scrub'")
    } else {
        None
    }
}

/// Shows progress on a line. Each stage has its own total, rate and time that is left.
fn progress_on(line: Arc<WorkLine>) -> impl Fn(CheckProgress) -> ControlFlow<()> + Send + Sync {
    let stage = Mutex::new((CheckPhase::Log, SystemClock.monotonic_nanos()));
    move |progress| {
        let now_nanos = SystemClock.monotonic_nanos();
        let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
        if stage.0 != progress.phase {
            *stage = (progress.phase, now_nanos);
            line.begin_stage();
        }
        line.part(progress.done, progress.total, progress_in_words(progress, now_nanos - stage.1));
        ControlFlow::Continue(())
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
