//! `warpfire status`: devices, redundancy, space and counters.
//!
//! A pool that is mounted answers through its server; one that is not is opened for the answer.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use warpfire::device_label;
use warpfire_terminal::{Failure, print, print_json};

use super::mount::control;
use super::pool;
use crate::location::PoolName;

mod report;

pub use report::StatusReport;

const EXAMPLES: &str = "\
Examples:
  warpfire status pool               the pool on the image files in a directory
  warpfire status a.img,b.img --json
  warpfire status /mnt               the pool that is mounted there";

/// Arguments of `warpfire status`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or where the pool is mounted
    /// [default: what WARPFIRE_POOL names].
    #[arg(value_name = "POOL", default_value = "")]
    pool: OsString,
}

/// Shows the pool.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let report = report(&args.pool)?;
    if json { print_json(&report) } else { print(report.in_words()) }
}

fn report(name: &OsStr) -> Result<StatusReport, Failure> {
    if let Some(pool) = control::pool_mounted_at(Path::new(name)) {
        return control::ServerConnection::find(&pool)
            .ok_or_else(|| Failure::new(format_args!("the server of {} does not answer", name.display())))?
            .status();
    }
    let name = PoolName::new(name);
    for device in name.devices()? {
        // A device whose label cannot be read says nothing here; opening the pool says what is wrong with it.
        let Ok(Some(label)) = device_label(&device) else { continue };
        if let Some(server) = control::ServerConnection::find(&label.pool) {
            return server.status();
        }
    }
    let fs = pool::open_quietly(&name)?;
    Ok(StatusReport::new(&fs.stats(), None))
}
