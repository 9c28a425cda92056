//! `warpfire device`: the devices of a pool, mounted or not.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use warpfire::check_named_once;
use warpfire_terminal::{Failure, is_json, print, print_json, shown};

use super::status::{self, DeviceReport, StatusReport};

mod add;
mod offline;
mod online;
mod plan;
mod remove;
mod replace;
mod resize;

pub use add::{AddOrder, add_to};
pub use offline::take_offline;
pub use online::{OnlineOrder, take_online};
pub use plan::{ChangeOrder, PlannedDevices, plan_in};
pub use remove::remove_from;
pub use replace::{ReplaceOrder, replace_in};
pub use resize::{ResizeOrder, ResizedDevice, resize_in};

const EXAMPLES: &str = "\
Examples:
  warpfire device list pool                show the devices of a pool
  warpfire device add pool pool/6.img      one more image file, in use at once
  warpfire device add /mnt /dev/nvme3n1    to a pool that is mounted
  warpfire device add --dry-run pool pool/new.img
  warpfire device add --spare /mnt /dev/sde  takes the place of one that is lost
  warpfire device remove /mnt pool/2.img   its data moves to the others
  warpfire device remove pool 3            device 3, which is missing
  warpfire device replace /mnt /dev/sdc /dev/sdd
  warpfire device replace pool 3 pool/new.img  device 3, which is dead
  warpfire device resize pool pool/0.img 2T  an image gets larger or smaller
  warpfire device resize /mnt /dev/sdc max all of a device that became larger
  warpfire device offline /mnt /dev/sdc    not used any more, until it is online
  warpfire device online /mnt /dev/sdc     it gets what it has missed";

// Arguments of `warpfire device`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: DeviceCommand,
}

#[derive(clap::Subcommand, Debug)]
#[command(defer = true)]
enum DeviceCommand {
    /// Add devices or image files to a pool.
    Add(add::Args),
    /// Remove a device from a pool: its data moves to the others.
    Remove(remove::Args),
    /// Replace a device by another one: its data moves there, or to the others.
    Replace(replace::Args),
    /// Use more or less of a device; an image file is extended or cut off.
    Resize(resize::Args),
    /// Stop using a device of a pool until it is taken online; its data stays on it.
    Offline(offline::Args),
    /// Use a device again that is offline or missing, or has failed: it gets what it has missed.
    Online(online::Args),
    /// Show the devices of a pool.
    List(ListArgs),
}

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
struct ListArgs {
    /// Devices or image files separated by commas, a directory of *.img files, or the directory that the pool
    /// is mounted on [default: $WARPFIRE_POOL].
    #[arg(value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: OsString,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        DeviceCommand::Add(args) => add::run(args),
        DeviceCommand::Remove(args) => remove::run(args),
        DeviceCommand::Replace(args) => replace::run(args),
        DeviceCommand::Resize(args) => resize::run(args),
        DeviceCommand::Offline(args) => offline::run(args),
        DeviceCommand::Online(args) => online::run(args),
        DeviceCommand::List(args) => list(args),
    }
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let report = status::report(&args.pool)?;
    if !is_json() {
        return print(report.device_columns().to_string());
    }
    report.devices.iter().try_for_each(print_json)
}

/// The device of the pool that a path leads to.
fn member_at<'a>(pool: &'a StatusReport, path: &Path) -> Option<&'a DeviceReport> {
    let is_same = |name: &String| check_named_once(&[PathBuf::from(name), path.to_path_buf()]).is_err();
    pool.devices.iter().find(|d| d.name.as_ref().is_some_and(is_same))
}

/// Whether the data of a device is reconstructed, because the device is not read.
fn is_away(device: &DeviceReport) -> bool {
    matches!(device.state.as_str(), "missing" | "gone" | "offline")
}

/// Bytes of a device in use, but for its roots.
fn used_bytes(pool: &StatusReport, device: &DeviceReport) -> u64 {
    // Two zones hold roots.
    device.size_bytes.saturating_sub(device.free_bytes + device.retired_bytes + 2 * pool.zone_bytes)
}

/// The device that the command line names.
fn named<'a>(pool: &'a StatusReport, device: &Path) -> Result<&'a DeviceReport, Failure> {
    let by_path = member_at(pool, device);
    let index: Option<u16> = device.to_str().and_then(|words| words.parse().ok());
    let by_index = || pool.devices.iter().find(|d| Some(d.index) == index);
    by_path.or_else(by_index).ok_or_else(|| {
        Failure::new(format_args!("{} is no device of the pool", shown(device)))
            .hint("'warpfire device list' shows the devices and their indexes")
            .of_path(device)
    })
}
