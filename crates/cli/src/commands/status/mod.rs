//! `warpfire status`: devices, redundancy, space and counters.
//!
//! The server of a mounted pool sends the status. A pool that is not mounted is opened for it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use warpfire::device_label;
use warpfire_terminal::{Failure, note, print, print_json};

use super::mount::control::ServerConnection;
use super::mount::mounted_pool::{MountedPool, mounted_pools, pool_mounted_at};
use super::pool;
use super::tally::Tally;
use crate::location::{POOL_VARIABLE, PoolName};

mod errors;
mod report;

pub use errors::ErrorReport;
pub use report::StatusReport;

const EXAMPLES: &str = "\
Examples:
  warpfire status pool         a pool of the *.img files in a directory
  warpfire status a.img,b.img --json
  warpfire status /mnt         the pool that is mounted on a directory
  warpfire status              all pools that are mounted";

/// Arguments of `warpfire status`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or the directory that the pool
    /// is mounted on [default: $WARPFIRE_POOL, or all mounted pools].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,
}

/// Prints the status.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    if args.pool.is_empty() && std::env::var_os(POOL_VARIABLE).is_none_or(|pool| pool.is_empty()) {
        return run_all(json);
    }
    let report = report(&args.pool)?;
    if json { print_json(&report) } else { print(report.in_words()) }
}

/// Prints the status of every mounted pool.
fn run_all(json: bool) -> Result<(), Failure> {
    let tally = Tally::default();
    let mut texts = Vec::new();
    let mut seen = BTreeSet::new();
    for mounted in mounted_pools().iter().filter(|mounted| !mounted.is_view()) {
        if !seen.insert(mounted.device) {
            continue;
        }
        match tally.take(report_of_server(mounted))? {
            Some(report) if json => print_json(&report)?,
            report => texts.extend(report.map(|report| report.in_words())),
        }
    }
    if seen.is_empty() {
        note("no pool is mounted; name a pool to open it for its status");
    }
    print(texts.join("\n"))?;
    tally.finish()
}

fn report_of_server(mounted: &MountedPool) -> Result<StatusReport, Failure> {
    let server = ServerConnection::of_mount(mounted);
    server.map_err(|reason| reason.failure(&mounted.mountpoint))?.status()
}

/// The status of a pool that the command line names.
pub fn report(name: &OsStr) -> Result<StatusReport, Failure> {
    if let Some(mounted) = pool_mounted_at(Path::new(name)) {
        return report_of_server(&mounted);
    }
    let name = PoolName::new(name);
    let devices = name.devices()?;
    for device in &devices {
        // A device without a readable label is passed over: opening the pool reports its error.
        let Ok(Some(label)) = device_label(device) else { continue };
        if let Some(server) = ServerConnection::of_devices(&label.pool, &devices) {
            return server.status();
        }
    }
    let fs = pool::open_quietly(&name)?;
    Ok(StatusReport::new(&fs, None))
}
