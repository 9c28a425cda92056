//! `warpfire device`: the devices of a pool, mounted or not.

use std::ffi::OsString;

use warpfire_terminal::{Failure, is_json, print, print_json};

use super::status;

mod add;
mod remove;

pub use add::{AddOrder, add_to};
pub use remove::remove_from;

const EXAMPLES: &str = "\
Examples:
  warpfire device list pool                show the devices of a pool
  warpfire device add pool pool/6.img      one more image file, in use at once
  warpfire device add /mnt /dev/nvme3n1    to a pool that is mounted
  warpfire device add --dry-run pool new.img
  warpfire device remove /mnt pool/2.img   its data moves to the others
  warpfire device remove pool 3            device 3, which is missing";

/// Arguments of `warpfire device`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: DeviceCommand,
}

#[derive(clap::Subcommand, Debug)]
enum DeviceCommand {
    /// Add devices or image files to a pool.
    Add(add::Args),
    /// Remove a device from a pool: its data moves to the others.
    Remove(remove::Args),
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
