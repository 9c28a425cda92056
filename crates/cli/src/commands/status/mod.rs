//! `warpfire status`: devices, redundancy, space and counters.
//!
//! The server of a mounted pool sends the status. A pool that is not mounted is opened for it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use warpfire::{ErrorKind, device_label};
use warpfire_terminal::{Failure, counted, is_json, note, print, print_json, shown};

use super::mount::control::ServerConnection;
use super::mount::mounted_pool::{MountedPool, mounted_pools};
use super::pool;
use super::tally::Tally;
use crate::location::{POOL_VARIABLE, PoolName};

mod drive;
mod errors;
mod health;
mod report;
mod upkeep;

pub use errors::ErrorReport;
pub use report::{DeviceReport, StatusReport};

const EXAMPLES: &str = "\
Examples:
  warpfire status pool         a pool of the *.img files in a directory
  warpfire status a.img,b.img --json
  warpfire status /mnt         the pool that is mounted on a directory
  warpfire status              all pools that are mounted
  warpfire status --check pool || mail -s 'the pool needs help' admin";

// Arguments of `warpfire status`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool [default: $WARPFIRE_POOL, or all mounted pools].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,

    /// Print nothing on stdout, and end with 0 if the pool is good, 1 if it is degraded or damaged within
    /// parity, 2 if bytes are lost or it cannot be opened.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// The failure, with the exit code of `--check` if that is asked for. Code 1 would say that a pool is
    /// degraded.
    fn as_asked(&self, failure: Failure) -> Failure {
        if self.check { failure.exit_code(EXIT_LOST) } else { failure }
    }
}

/// Exit code of `--check` for a pool that has lost bytes or cannot be opened.
const EXIT_LOST: u8 = 2;

/// Prints the status.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.pool.is_empty() && std::env::var_os(POOL_VARIABLE).is_none_or(|pool| pool.is_empty()) {
        return run_all(args.check).map_err(|failure| args.as_asked(failure));
    }
    let report = match report(&args.pool) {
        Ok(report) => report,
        Err(failure) => return unopened(args, failure).map_err(|failure| args.as_asked(failure)),
    };
    if args.check {
        return Ok(ExitCode::from(report.health.exit_code()));
    }
    let report = report.with_drives();
    if is_json() { print_json(&report) } else { print(report.in_words()) }?;
    Ok(ExitCode::SUCCESS)
}

/// Reports what the labels of the devices say about a pool that cannot be opened. Without a label there is no
/// pool to speak of.
fn unopened(args: &Args, failure: Failure) -> Result<ExitCode, Failure> {
    // A pool that is in use, or that this user may not read, can be in the best of health.
    if ![ErrorKind::Damaged, ErrorKind::NotAPool, ErrorKind::Device].iter().any(|kind| failure.is_of(*kind)) {
        return Err(failure);
    }
    let devices = PoolName::new(&args.pool).devices().unwrap_or_default();
    let labels: Vec<_> = devices.iter().map(|path| (path, device_label(path).ok().flatten())).collect();
    let Some(first) = labels.iter().find_map(|(_, label)| label.clone()) else { return Err(failure) };
    if args.check {
        return Ok(ExitCode::from(EXIT_LOST));
    }
    let devices = counted(u64::from(first.devices), "device", "devices");
    note(format_args!("LOST: pool {} of {devices} cannot be opened", first.pool));
    for (path, label) in &labels {
        let said = match label {
            Some(label) if label.pool == first.pool => format!("device {} of the pool", label.device),
            Some(label) => format!("a device of another pool, {}", label.pool),
            None => "has no readable root".to_owned(),
        };
        note(format_args!("{}: {said}", shown(path)));
    }
    let is_there = |index: &u16| {
        let mut labels = labels.iter().filter_map(|(_, label)| label.as_ref());
        labels.any(|label| label.pool == first.pool && label.device == *index)
    };
    let missing: Vec<String> =
        (0..first.devices).filter(|index| !is_there(index)).map(|index| index.to_string()).collect();
    if !missing.is_empty() {
        let devices = if missing.len() == 1 { "device" } else { "devices" };
        note(format_args!("not found: {devices} {}; name or reconnect the missing ones", missing.join(", ")));
    }
    note("'warpfire fsck' says which part is damaged");
    Err(failure)
}

/// Prints the status of every mounted pool. With `check` it prints nothing, and the exit code is that of the
/// worst pool.
fn run_all(check: bool) -> Result<ExitCode, Failure> {
    let tally = Tally::default();
    let mut worst = 0;
    let mut texts = Vec::new();
    let mut seen = BTreeSet::new();
    for mounted in mounted_pools().iter().filter(|mounted| !mounted.is_view()) {
        if !seen.insert(mounted.device) {
            continue;
        }
        match tally.take(report_of_server(mounted))? {
            Some(report) if check => worst = report.health.exit_code().max(worst),
            Some(report) if is_json() => print_json(&report)?,
            report => texts.extend(report.map(|report| report.in_words())),
        }
    }
    if seen.is_empty() && !check {
        note("no pool is mounted; name a pool to open it for its status");
    }
    print(texts.join("\n"))?;
    tally.finish()?;
    Ok(ExitCode::from(worst))
}

fn report_of_server(mounted: &MountedPool) -> Result<StatusReport, Failure> {
    let server = ServerConnection::of_mount(mounted);
    server.map_err(|reason| reason.failure(&mounted.mountpoint))?.status()
}

/// The status of a pool that the command line names.
pub fn report(name: &OsStr) -> Result<StatusReport, Failure> {
    let name = PoolName::new(name);
    if let Some(server) = ServerConnection::of_pool(&name)? {
        return server.status();
    }
    let fs = pool::open_quietly(&name)?;
    Ok(StatusReport::new(&fs, None))
}
