//! `warpfire device online`: a device that was away is used again.
//!
//! The server of a mounted pool takes it, and gives it in the background what it has missed. A pool that is
//! not mounted is opened with it, and closed when the device has everything.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use warpfire::{Pool, Warpfire, device_label};
use warpfire_terminal::{
    Failure, Size, counted, is_json, note, path_bytes, path_text, print, print_json, shown,
};

use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::commands::status::{self, StatusReport};
use crate::location::PoolName;
use crate::progress::WorkLine;

// Arguments of `warpfire device online`.
#[derive(clap::Args, Debug)]
#[command(after_help = super::EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or the directory that the pool
    /// is mounted on.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The path of the device.
    #[arg(value_name = "DEVICE")]
    device: PathBuf,

    /// Show the plan, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// A device to take online, as the server of a mounted pool is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OnlineOrder {
    /// Its index in the pool.
    pub index: u16,
    /// The path, from the root; empty to ask only for what the device has missed.
    pub path: PathBuf,
}

/// A device that was taken online, or with `--dry-run` one that would be.
#[derive(Debug, Serialize, Deserialize)]
pub struct OnlineDevice {
    /// Its index in the pool.
    pub index: u16,
    /// The path.
    pub path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Segments of which it lacks a part.
    pub missed_segments: u64,
    /// Bytes that it gets to have these parts again. The server of a mounted pool goes on with that; a pool
    /// that is not mounted has them before the command ends.
    pub missed_bytes: u64,
}

/// Takes a device of an open pool online. Returns the segments of which it lacks a part, and the bytes that
/// it gets.
///
/// # Errors
/// It is not the device that left, or the pool takes no changes.
pub fn take_online(pool: &Warpfire, order: &OnlineOrder) -> Result<(u64, u64), Failure> {
    let missed = pool.missed_by(order.index);
    if order.path.as_os_str().is_empty() {
        return Ok(missed);
    }
    pool.take_online(&order.path).map_err(|error| Failure::pool(&error))?;
    Ok(missed)
}

/// Takes the device online.
pub fn run(args: &Args) -> Result<(), Failure> {
    let pool_name = PoolName::new(&args.pool);
    let server = ServerConnection::of_pool(&pool_name)?;
    let is_mounted = server.is_some();
    let report = match status::report(&args.pool) {
        Err(failure) if is_mounted || args.dry_run => return Err(failure),
        // The pool may need the device to be opened.
        report => report.ok(),
    };
    let index = label_index(report.as_ref(), args)?;
    let path = match args.dry_run {
        true => PathBuf::new(),
        false => std::path::absolute(&args.device).map_err(|error| Failure::local(&args.device, &error))?,
    };
    let order = OnlineOrder { index, path };
    let (missed_segments, missed_bytes) = match server {
        Some(server) => match server.ask(Request::TakeOnline(order), |_| ())? {
            Answer::DeviceOnline { missed_segments, missed_bytes } => (missed_segments, missed_bytes),
            _ => return Err(foreign_answer()),
        },
        None if args.dry_run => {
            take_online(&pool::open_as(&Pool::options().read_only(true), &pool_name)?, &order)?
        }
        None => online_unmounted(&pool_name, args, index)?,
    };
    if is_json() {
        let (path, path_bytes) = (path_text(&args.device), path_bytes(&args.device));
        return print_json(&OnlineDevice { index, path, path_bytes, missed_segments, missed_bytes });
    }
    let path = shown(&args.device);
    let verb = if args.dry_run { "goes online" } else { "is online" };
    print(format!("{path} {verb} as device {index}: {}\n", in_words(missed_segments, missed_bytes)))?;
    if is_mounted && !args.dry_run && missed_segments > 0 {
        note("it gets them now; 'warpfire status' shows the rest");
    }
    Ok(())
}

fn in_words(missed_segments: u64, missed_bytes: u64) -> String {
    if missed_segments == 0 {
        return "it has missed nothing".to_owned();
    }
    let segments = counted(missed_segments, "segment", "segments");
    format!("it has missed parts of {segments}, at most {}", Size(missed_bytes))
}

/// Opens a pool with a device online, and gives the device what it has missed.
fn online_unmounted(name: &PoolName, args: &Args, index: u16) -> Result<(u64, u64), Failure> {
    let pool = pool::open_with(&Pool::options().online(index), name, &args.device)?;
    let missed = pool.missed_by(index);
    let line = WorkLine::start();
    let left = pool.regain_redundancy(|left| {
        line.message(format_args!("{} left", counted(left, "segment", "segments")));
        ControlFlow::Continue(())
    });
    line.finish();
    let left = left.map_err(|error| Failure::pool(&error))?;
    pool.close().map_err(|error| Failure::pool(&error))?;
    if left > 0 {
        let segments = counted(left, "segment has", "segments have");
        note(format_args!("{segments} less redundancy than the devices allow; 'warpfire status' says why"));
    }
    Ok(missed)
}

/// The index that the label of the device has, checked against the pool.
fn label_index(report: Option<&StatusReport>, args: &Args) -> Result<u16, Failure> {
    let path = &args.device;
    let refused = |reason: std::fmt::Arguments<'_>| Failure::new(reason).of_path(path);
    let is_number = path.to_str().is_some_and(|path| path.parse::<u16>().is_ok());
    if is_number && !path.exists() {
        let reason = format_args!("{} is no path of a device", shown(path)).to_string();
        return Err(Failure::usage(reason).hint(
            "a device that was away is found by its path, and not by its index; 'warpfire status' lists both",
        ));
    }
    let Some(label) = device_label(path).map_err(|error| Failure::pool(&error))? else {
        return Err(refused(format_args!("{} belongs to no pool", shown(path)))
            .hint("'warpfire device add' makes it a new device of the pool"));
    };
    let Some(report) = report else { return Ok(label.device) };
    if label.pool != report.pool {
        return Err(refused(format_args!(
            "{} belongs to pool {}, not to {}",
            shown(path),
            label.pool,
            report.pool
        ))
        .hint("name a device of this pool"));
    }
    let Some(device) = report.devices.iter().find(|device| device.index == label.device) else {
        return Err(refused(format_args!("{} has left the pool", shown(path)))
            .hint("'warpfire device add' makes it a new device of the pool"));
    };
    if matches!(device.state.as_str(), "present" | "slow" | "leaving" | "spare") {
        return Err(refused(format_args!("{} is online already", shown(path))));
    }
    Ok(label.device)
}
