//! `warpfire trim`: release the space that a pool does not need.

use std::ffi::OsString;

use serde::Serialize;
use warpfire::Pool;
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{Failure, Size, counted, duration, is_json, note, print, print_json};

use super::pool;
use crate::location::PoolName;

const EXAMPLES: &str = "\
Examples:
  warpfire trim pool                 a pool of the *.img files in a directory
  warpfire trim /dev/nvme0n1,/dev/nvme1n1
  warpfire trim --json a.img,b.img

Removed files leave space that the pool uses again, and keeps until then. A trim cleans the pool and discards \
free zones: image files take less of their disk, and drives know which of their blocks are free. Images grow \
again when they are written: the disk must have room for that. Zoned drives need no trim. The pool must not be \
mounted.";

/// Arguments of `warpfire trim`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, or a directory of *.img files [default:
    /// $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,
}

/// The result of a trim.
#[derive(Serialize)]
struct TrimOutput {
    /// Bytes of free zones that the devices discarded.
    discarded_bytes: u64,
    /// Devices that refused a discard. They are used as before.
    refused_devices: usize,
    /// Devices that are missing or have failed. Nothing was discarded on them.
    lost_devices: usize,
    nanos: u64,
}

/// Trims the pool.
pub fn run(args: &Args) -> Result<(), Failure> {
    let started_nanos = SystemClock.monotonic_nanos();
    let fs = pool::open_as(&Pool::options(), &PoolName::new(&args.pool))?;
    let trimmed = fs.trim().map_err(|error| Failure::pool(&error))?;
    let lost_devices = fs.stats().lost_devices();
    fs.close().map_err(|error| Failure::pool(&error))?;
    let nanos = SystemClock.monotonic_nanos() - started_nanos;
    let output = TrimOutput {
        discarded_bytes: trimmed.discarded_bytes,
        refused_devices: trimmed.refused_devices,
        lost_devices,
        nanos,
    };
    if is_json() {
        print_json(&output)?;
    } else {
        print(format!("{} discarded in {}\n", Size(output.discarded_bytes), duration(nanos)))?;
    }
    if output.refused_devices > 0 {
        note(format_args!(
            "{} refused: free space there is not released; the pool uses it as before",
            counted(output.refused_devices as u64, "device", "devices")
        ));
    }
    Ok(())
}
