//! `warpfire trim`: release the space that a pool does not need.
//!
//! The server of a mounted pool does it. A pool that is not mounted is opened for it.

use std::ffi::OsString;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use warpfire::{Pool, TrimReport, Warpfire};
use warpfire_env::{Clock, SystemClock};
use warpfire_terminal::{Failure, Size, counted, duration, is_json, note, print, print_json};

use super::mount::control::wire::{Answer, Request};
use super::mount::control::{ServerConnection, foreign_answer};
use super::pool;
use crate::location::PoolName;
use crate::progress::WorkLine;

const EXAMPLES: &str = "\
Examples:
  warpfire trim pool                 a pool of the *.img files in a directory
  warpfire trim /mnt                 the pool that is mounted on a directory
  warpfire trim /dev/nvme0n1,/dev/nvme1n1
  warpfire trim --json a.img,b.img

Removed files leave space that the pool uses again, and keeps until then. A trim cleans the pool and discards \
free zones: image files take less of their disk, and drives know which of their blocks are free. Images grow \
again when they are written: the disk must have room for that. Zoned drives need no trim. The server of a \
mounted pool trims it while it is in use, for the user that has mounted it and for root; Ctrl-C ends the trim.";

// Arguments of `warpfire trim`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or a directory of the mounted
    /// pool [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,
}

/// The result of a trim.
#[derive(Debug, Serialize, Deserialize)]
pub struct TrimOutput {
    /// Bytes of free zones that the devices discarded.
    discarded_bytes: u64,
    /// Devices that refused a discard. They are used as before.
    refused_devices: usize,
    /// Devices that are missing or have failed. Nothing was discarded on them.
    lost_devices: usize,
    nanos: u64,
}

impl TrimOutput {
    /// The result of a trim of this pool.
    pub fn new(trimmed: &TrimReport, pool: &Warpfire, nanos: u64) -> TrimOutput {
        TrimOutput {
            discarded_bytes: trimmed.discarded_bytes,
            refused_devices: trimmed.refused_devices,
            lost_devices: pool.stats().lost_devices(),
            nanos,
        }
    }
}

/// Trims the pool.
pub fn run(args: &Args) -> Result<(), Failure> {
    let name = PoolName::new(&args.pool);
    let line = WorkLine::start();
    let show = |discarded_bytes| line.message(format_args!("{} discarded", Size(discarded_bytes)));
    let output = match ServerConnection::of_pool(&name)? {
        Some(server) => trim_mounted(server, show),
        None => trim_unmounted(&name, show),
    };
    line.finish();
    let output = output?;
    if is_json() {
        print_json(&output)?;
    } else {
        print(format!("{} discarded in {}\n", Size(output.discarded_bytes), duration(output.nanos)))?;
    }
    if output.refused_devices > 0 {
        note(format_args!(
            "{} refused: free space there is not released; the pool uses it as before",
            counted(output.refused_devices as u64, "device", "devices")
        ));
    }
    Ok(())
}

fn trim_mounted(server: ServerConnection, show: impl Fn(u64)) -> Result<TrimOutput, Failure> {
    let answer = server.ask(Request::Trim, |answer| {
        if let Answer::Trimming(discarded_bytes) = answer {
            show(*discarded_bytes);
        }
    })?;
    match answer {
        Answer::Trimmed(output) => Ok(output),
        _ => Err(foreign_answer()),
    }
}

fn trim_unmounted(name: &PoolName, show: impl Fn(u64)) -> Result<TrimOutput, Failure> {
    let started_nanos = SystemClock.monotonic_nanos();
    let fs = pool::open_as(&Pool::options(), name)?;
    let trimmed = fs.trim(|so_far| {
        show(so_far.discarded_bytes);
        ControlFlow::Continue(())
    });
    let trimmed = trimmed.map_err(|error| Failure::pool(&error))?;
    let mut output = TrimOutput::new(&trimmed, &fs, 0);
    fs.close().map_err(|error| Failure::pool(&error))?;
    output.nanos = SystemClock.monotonic_nanos() - started_nanos;
    Ok(output)
}
