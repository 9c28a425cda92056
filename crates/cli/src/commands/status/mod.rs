//! `warpfire status`: devices, redundancy, space and counters.
//!
//! The server of a mounted pool sends the status. A pool that is not mounted is opened for it.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use warpfire::device_label;
use warpfire_terminal::{Failure, print, print_json};

use super::mount::control::ServerConnection;
use super::mount::mounted_pool::pool_mounted_at;
use super::pool;
use crate::location::PoolName;

mod report;

pub use report::StatusReport;

const EXAMPLES: &str = "\
Examples:
  warpfire status pool         a pool of the *.img files in a directory
  warpfire status a.img,b.img --json
  warpfire status /mnt         the pool that is mounted on a directory";

/// Arguments of `warpfire status`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or the directory that the pool
    /// is mounted on [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,
}

/// Prints the status.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let report = report(&args.pool)?;
    if json { print_json(&report) } else { print(report.in_words()) }
}

/// The status of a pool that the command line names.
pub fn report(name: &OsStr) -> Result<StatusReport, Failure> {
    if let Some(mounted) = pool_mounted_at(Path::new(name)) {
        return ServerConnection::of_mount(&mounted)
            .map_err(|reason| reason.failure(&mounted.mountpoint))?
            .status();
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
