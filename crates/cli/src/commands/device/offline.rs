//! `warpfire device offline`: the pool stops using a device, and does not forget it.
//!
//! The server of a mounted pool does it; a pool that is not mounted is opened for it.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::Serialize;
use warpfire::{Pool, Warpfire};
use warpfire_terminal::{Failure, counted, is_json, note, print, print_json, shown};

use crate::commands::device::named;
use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::commands::status;
use crate::location::PoolName;

// Arguments of `warpfire device offline`.
#[derive(clap::Args, Debug)]
#[command(after_help = super::EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or the directory that the pool
    /// is mounted on.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The device: its path, or its index in the pool.
    #[arg(value_name = "DEVICE")]
    device: PathBuf,

    /// Check that the pool can go on without the device, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// A device that was taken offline, or with `--dry-run` one that would be.
#[derive(Debug, Serialize)]
struct OfflineDevice {
    /// Its index in the pool.
    index: u16,
    /// Its path, unless it is missing.
    name: Option<String>,
    /// How many more devices may be lost then, for the data with the least redundancy; `null` with
    /// `--dry-run`.
    losses_left: Option<u8>,
}

/// Takes a device of an open pool offline, or checks that it could be. Returns how many more devices may be
/// lost now.
///
/// # Errors
/// Data needs the device, or the pool takes no changes.
pub fn take_offline(pool: &Warpfire, index: u16, is_dry_run: bool) -> Result<Option<u8>, Failure> {
    let done = if is_dry_run { pool.check_spared(index) } else { pool.take_offline(index) };
    done.map_err(|error| Failure::pool(&error))?;
    Ok(pool.stats().losses_left)
}

/// Takes the device offline.
pub fn run(args: &Args) -> Result<(), Failure> {
    let report = status::report(&args.pool)?;
    let device = named(&report, &args.device)?;
    let (index, name) = (device.index, device.name.clone());
    let pool_name = PoolName::new(&args.pool);
    let is_dry_run = args.dry_run;
    let losses_left = match ServerConnection::of_pool(&pool_name)? {
        Some(server) => match server.ask(Request::TakeOffline { index, is_dry_run }, |_| ())? {
            Answer::DeviceOffline { losses_left } => losses_left,
            _ => return Err(foreign_answer()),
        },
        None => {
            let pool = pool::open_as(&Pool::options().read_only(is_dry_run), &pool_name)?;
            let losses_left = take_offline(&pool, index, is_dry_run)?;
            pool.close().map_err(|error| Failure::pool(&error))?;
            losses_left
        }
    };
    let losses_left = losses_left.filter(|_| !is_dry_run);
    if is_json() {
        return print_json(&OfflineDevice { index, name, losses_left });
    }
    let path = shown(&args.device);
    if is_dry_run {
        return print(format!("the pool can go on without {path}\n"));
    }
    let more = counted(u64::from(losses_left.unwrap_or(0)), "more device", "more devices");
    print(format!("{path} is offline: {more} may be lost\n"))?;
    note("'warpfire device online' takes it back; if it stays away, its data is rebuilt on the others");
    Ok(())
}
