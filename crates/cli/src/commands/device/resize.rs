//! `warpfire device resize`: the pool uses more or less of a device.
//!
//! The server of a mounted pool does it; a pool that is not mounted is opened for it.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use warpfire::{Pool, Warpfire};
use warpfire_terminal::{Failure, Size, counted, is_json, print, print_json, shown};

use crate::commands::device::named;
use crate::commands::device::plan::PlannedDevices;
use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::commands::status;
use crate::location::PoolName;
use crate::progress::WorkLine;

// Arguments of `warpfire device resize`.
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

    /// The new size, or `max` for all that the device has. An image file gets this size; data behind it moves
    /// first.
    #[arg(value_name = "SIZE|max")]
    size: NewSize,

    /// Show the plan, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// The size that a device gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NewSize {
    /// All of it.
    Max,
    Of(Size),
}

impl FromStr for NewSize {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        if word == "max" { Ok(NewSize::Max) } else { word.parse().map(NewSize::Of) }
    }
}

/// A device to resize, as the server of a mounted pool is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResizeOrder {
    /// Its index.
    pub index: u16,
    /// The size; `None` for all that the device has.
    pub size_bytes: Option<u64>,
    /// Whether only to plan.
    pub is_dry_run: bool,
}

/// A device that has another size, or with `--dry-run` one that would have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResizedDevice {
    /// Its index in the pool.
    pub index: u16,
    /// Bytes that the pool used of it.
    pub before_bytes: u64,
    /// Bytes that the pool uses of it now: whole zones.
    pub size_bytes: u64,
    /// Bytes that are written to move the data behind its new end.
    pub moved_bytes: u64,
    /// Bytes that can be written to files after it; with `--dry-run` about so many.
    pub available_bytes: u64,
    /// With `--dry-run` about the bytes that the rest has too few for the data behind the new end.
    pub missing_bytes: u64,
}

/// Gives a device of an open pool another size, or plans it. `goes_on` is called with the segments that are
/// left behind the new end.
///
/// # Errors
/// The device keeps its size: the others have no room, or `goes_on` ended the work.
pub fn resize_in(
    pool: &Warpfire,
    order: ResizeOrder,
    goes_on: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<ResizedDevice, Failure> {
    let ResizeOrder { index, size_bytes, is_dry_run } = order;
    let plan = pool.plan_resize(index, size_bytes).map_err(|error| Failure::pool(&error))?;
    let mut resized = ResizedDevice {
        index,
        before_bytes: plan.used_bytes,
        size_bytes: plan.new_bytes,
        moved_bytes: plan.moved_bytes,
        available_bytes: plan.available_bytes,
        missing_bytes: plan.missing_bytes,
    };
    if is_dry_run {
        return Ok(resized);
    }
    if !pool.resize_device(index, size_bytes, goes_on).map_err(|error| Failure::pool(&error))? {
        return Err(Failure::new("the change of size was cancelled: the device has the size that it had"));
    }
    resized.available_bytes = pool.space().map_or(0, |space| space.available_bytes);
    Ok(ResizedDevice { missing_bytes: 0, ..resized })
}

/// Gives the device its size.
pub fn run(args: &Args) -> Result<(), Failure> {
    let report = status::report(&args.pool)?;
    let index = named(&report, &args.device)?.index;
    let size_bytes = match args.size {
        NewSize::Max => None,
        NewSize::Of(size) => Some(size.0),
    };
    let order = ResizeOrder { index, size_bytes, is_dry_run: args.dry_run };
    let line = WorkLine::start();
    let show = |left: u64| line.message(format_args!("{} left", counted(left, "segment", "segments")));
    let name = PoolName::new(&args.pool);
    let resized = match ServerConnection::of_pool(&name)? {
        Some(server) => resize_mounted(server, order, show),
        None => resize_unmounted(&name, order, show),
    };
    line.finish();
    let resized = resized?;
    if is_json() {
        return print_json(&resized);
    }
    let path = shown(&args.device);
    let (before, after) = (Size(resized.before_bytes), Size(resized.size_bytes));
    let moved = match resized.moved_bytes {
        0 => String::new(),
        bytes => format!("{} move, ", Size(bytes)),
    };
    let ResizedDevice { moved_bytes, available_bytes, missing_bytes, .. } = resized;
    if args.dry_run {
        let room = PlannedDevices { moved_bytes, available_bytes, missing_bytes }.room_in_words();
        return print(format!(
            "the pool would use {after} of {path}, where it uses {before}: {moved}{room}\n"
        ));
    }
    print(format!(
        "the pool uses {after} of {path}, where it used {before}: {} free for files\n",
        Size(available_bytes)
    ))
}

fn resize_mounted(
    server: ServerConnection,
    order: ResizeOrder,
    show: impl Fn(u64),
) -> Result<ResizedDevice, Failure> {
    let answer = server.ask(Request::ResizeDevice(order), |answer| {
        if let Answer::Removing(left) = answer {
            show(*left);
        }
    })?;
    match answer {
        Answer::DeviceResized(resized) => Ok(resized),
        _ => Err(foreign_answer()),
    }
}

fn resize_unmounted(
    name: &PoolName,
    order: ResizeOrder,
    show: impl Fn(u64),
) -> Result<ResizedDevice, Failure> {
    let pool = pool::open_as(&Pool::options(), name)?;
    let resized = resize_in(&pool, order, |left| {
        show(left);
        ControlFlow::Continue(())
    })?;
    pool.close().map_err(|error| Failure::pool(&error))?;
    Ok(resized)
}
