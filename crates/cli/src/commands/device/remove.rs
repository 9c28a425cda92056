//! `warpfire device remove`: a device leaves a pool.
//!
//! The server of a mounted pool moves the data of the device; a pool that is not mounted is opened for it.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;
use warpfire::{Pool, Warpfire};
use warpfire_terminal::{Failure, Size, counted, is_json, print, print_json, shown};

use crate::commands::device::plan::{self, ChangeOrder, PlannedDevices};
use crate::commands::device::{is_away, named, used_bytes};
use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::commands::status::{self, DeviceReport, StatusReport};
use crate::location::PoolName;
use crate::progress::WorkLine;

// Arguments of `warpfire device remove`.
#[derive(clap::Args, Debug)]
#[command(after_help = super::EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or the directory that the pool
    /// is mounted on.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The device: its path, or its index in the pool if it is missing.
    #[arg(value_name = "DEVICE")]
    device: PathBuf,

    /// Show the plan, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// A device that was removed from a pool, or with `--dry-run` one that would be.
#[derive(Debug, Serialize)]
struct RemovedDevice {
    /// The index that it has in the pool. No other device gets it.
    index: u16,
    /// Its path, unless it is missing.
    name: Option<String>,
    /// Bytes that are written to other devices to move its data.
    moved_bytes: u64,
    /// Bytes that can be written to files after it; with `--dry-run` about so many.
    available_bytes: u64,
}

/// Removes a device from an open pool. Returns the bytes that can be written then. `goes_on` is called with
/// the segments that are left on the device.
///
/// # Errors
/// The device stays: the others have no room, or `goes_on` ended the work.
pub fn remove_from(
    pool: &Warpfire,
    index: u16,
    goes_on: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<u64, Failure> {
    if pool.remove_device(index, goes_on).map_err(|error| Failure::pool(&error))? {
        return Ok(pool.space().map_or(0, |space| space.available_bytes));
    }
    Err(Failure::new("the removal was cancelled: the device stays in the pool"))
}

/// Removes the device.
pub fn run(args: &Args) -> Result<(), Failure> {
    let report = status::report(&args.pool)?;
    let device = named(&report, &args.device)?;
    refuse_too_few(&report, &args.device)?;
    let (index, name) = (device.index, device.name.clone());
    let pool_name = PoolName::new(&args.pool);
    let plan = plan::planned(&pool_name, ChangeOrder::Remove { index })?;
    let PlannedDevices { moved_bytes, available_bytes, .. } = plan;
    if !is_json() {
        let rest = counted(report.devices.len() as u64 - 1, "device", "devices");
        let how = if is_away(device) { "reconstructed on" } else { "moved to" };
        let (path, room) = (shown(&args.device), plan.room_in_words());
        print(format!("{path} leaves the pool: {} are {how} the other {rest}, {room}\n", Size(moved_bytes)))?;
    }
    if args.dry_run {
        let planned = RemovedDevice { index, name, moved_bytes, available_bytes };
        return if is_json() { print_json(&planned) } else { Ok(()) };
    }
    let line = WorkLine::start();
    let show = |left: u64| line.message(format_args!("{} left", counted(left, "segment", "segments")));
    let removed = match ServerConnection::of_pool(&pool_name)? {
        Some(server) => remove_mounted(server, index, show),
        None => remove_unmounted(&pool_name, index, show),
    };
    line.finish();
    let available_bytes = removed?;
    if is_json() {
        return print_json(&RemovedDevice { index, name, moved_bytes, available_bytes });
    }
    print(format!("{} is removed: {} free for files\n", shown(&args.device), Size(available_bytes)))
}

fn remove_mounted(server: ServerConnection, index: u16, show: impl Fn(u64)) -> Result<u64, Failure> {
    let answer = server.ask(Request::RemoveDevice { index }, |answer| {
        if let Answer::Removing(left) = answer {
            show(*left);
        }
    })?;
    match answer {
        Answer::DeviceRemoved { available_bytes } => Ok(available_bytes),
        _ => Err(foreign_answer()),
    }
}

fn remove_unmounted(name: &PoolName, index: u16, show: impl Fn(u64)) -> Result<u64, Failure> {
    let pool = pool::open_as(&Pool::options(), name)?;
    let available_bytes = remove_from(&pool, index, |left| {
        show(left);
        ControlFlow::Continue(())
    })?;
    pool.close().map_err(|error| Failure::pool(&error))?;
    Ok(available_bytes)
}

fn refuse_too_few(pool: &StatusReport, device: &Path) -> Result<(), Failure> {
    let width = usize::from(pool.data) + usize::from(pool.parity);
    let takes_data = |d: &&DeviceReport| !matches!(d.state.as_str(), "leaving" | "spare");
    let is_it = named(pool, device).is_ok_and(|it| takes_data(&it));
    let stays = pool.devices.iter().filter(takes_data).count() - usize::from(is_it);
    if stays >= width {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "{} cannot leave: {} would stay, and stripes of {} data and {} parity need {width}",
        shown(device),
        counted(stays as u64, "device", "devices"),
        pool.data,
        pool.parity
    ))
    .hint(ways_out(pool, device, stays)))
}

/// What to do where too few devices would stay, with the bytes that each way writes.
fn ways_out(pool: &StatusReport, device: &Path, stays: usize) -> String {
    let narrower = u64::try_from(stays).map_or(0, |stays| stays.saturating_sub(pool.parity.into()));
    if narrower == 0 {
        return "add another device first with 'warpfire device add'".to_owned();
    }
    let moved = Size(named(pool, device).map_or(0, |device| used_bytes(pool, device)));
    let live = pool.space.live_bytes;
    let rewritten = Size(live + live * u64::from(pool.parity) / narrower);
    format!(
        "put another one in its place with 'warpfire device replace' (at most {moved} are written), add one first with \
         'warpfire device add', or run 'warpfire tune POOL --data {narrower} --parity {}' and this command again \
         (all data is rewritten, {rewritten})",
        pool.parity
    )
}
