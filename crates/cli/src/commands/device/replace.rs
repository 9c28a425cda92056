//! `warpfire device replace`: a device joins a pool, and another one leaves it.
//!
//! The plan is made by this process. Then the server of a mounted pool adds the one and removes the other; a
//! pool that is not mounted is opened for it. If that is interrupted, the same command goes on.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warpfire::{AddDevice, Pool, Warpfire, device_label};
use warpfire_terminal::{Failure, Size, counted, is_json, note, print, print_json, shown};

use crate::commands::confirmation::confirm;
use crate::commands::device::add::{self, AddOrder, AddedDevice};
use crate::commands::device::plan::{self, ChangeOrder};
use crate::commands::device::{is_away, member_at, named};
use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::commands::status::{self, DeviceReport, StatusReport};
use crate::location::PoolName;
use crate::progress::WorkLine;

// Arguments of `warpfire device replace`.
#[derive(clap::Args, Debug)]
#[command(after_help = super::EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or the directory that the pool
    /// is mounted on.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// The device that leaves: its path, or its index in the pool if it is missing.
    #[arg(value_name = "OLD")]
    old: PathBuf,

    /// The device or image file that takes its place; an image file that does not exist is made. It may be a
    /// device of the pool already.
    #[arg(value_name = "NEW")]
    new: PathBuf,

    /// Size of a new image file [default: that of the device that leaves].
    #[arg(long)]
    size: Option<Size>,

    /// Overwrite existing data on the new device: another pool, another filesystem, anything else.
    #[arg(long)]
    force: bool,

    /// Show the plan, and change nothing.
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation before overwriting data or a block device.
    #[arg(long, short)]
    yes: bool,
}

/// A device to replace, as the server of a mounted pool is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplaceOrder {
    /// The index of the device that leaves.
    pub index: u16,
    /// The device that takes its place.
    pub new: AddOrder,
}

/// A device that was replaced, or with `--dry-run` one that would be.
#[derive(Debug, Serialize)]
struct ReplacedDevice {
    /// The index that it has in the pool. No other device gets it. `null` if it had left before.
    index: Option<u16>,
    /// Its path, unless it is missing.
    name: Option<String>,
    /// Bytes that are written to the new device or to others to move its data.
    moved_bytes: u64,
    /// The index of the new device; `null` with `--dry-run`, unless it belongs to the pool already.
    new_index: Option<u16>,
    /// The path of the new device.
    new_path: String,
    /// Its length.
    new_size_bytes: u64,
    /// The content that the pool has overwritten on it; `null` if there was none.
    overwrites: Option<String>,
    /// Bytes that can be written to files after it; with `--dry-run` about so many. `null` if the device had
    /// left before.
    available_bytes: Option<u64>,
}

/// Replaces a device of an open pool. Returns the index of the new one, and the bytes that can be written
/// then. `goes_on` is called with the segments that are left on the old one.
///
/// # Errors
/// The new device cannot join; the old one stays: the others have no room, or `goes_on` ended the work.
pub fn replace_in(
    pool: &Warpfire,
    order: &ReplaceOrder,
    goes_on: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(u16, u64), Failure> {
    let how = AddDevice::new().size_bytes(order.new.size_bytes).force(order.new.force);
    let replaced = pool.replace_device(order.index, &order.new.path, &how, goes_on);
    match replaced.map_err(|error| Failure::pool(&error))? {
        Some(index) => Ok((index, pool.space().map_or(0, |space| space.available_bytes))),
        None => Err(Failure::new("the replacement was cancelled: both devices are in the pool")
            .hint("the same command goes on with it")),
    }
}

/// Replaces the device.
pub fn run(args: &Args) -> Result<(), Failure> {
    let report = status::report(&args.pool)?;
    let member = member_at(&report, &args.new);
    let Some(old) = old_device(&report, args, member)? else { return done_before(args, member) };
    let (order, planned) = match member {
        Some(member) if member.index == old.index => {
            return Err(Failure::usage("a device cannot replace itself").of_path(&args.new));
        }
        Some(member) => in_pool(args, member)?,
        None => {
            let size = args.size.or(Some(Size(old.size_bytes)));
            add::plan(&args.new, size, args.force, &report)?
        }
    };
    let (index, size_bytes) = (old.index, planned.size_bytes);
    // A device that the pool uses already brings no more room.
    let change = match member {
        Some(member) if member.state != "spare" => ChangeOrder::Remove { index },
        _ => ChangeOrder::Replace { index, size_bytes },
    };
    let plan = plan::planned(&PoolName::new(&args.pool), change)?;
    let mut replaced = ReplacedDevice {
        index: Some(old.index),
        name: old.name.clone(),
        moved_bytes: plan.moved_bytes,
        new_index: member.map(|member| member.index),
        new_path: planned.path.clone(),
        new_size_bytes: planned.size_bytes,
        overwrites: planned.overwrites.clone(),
        available_bytes: Some(plan.available_bytes),
    };
    if !is_json() {
        let how = if is_away(old) { "are reconstructed" } else { "move" };
        let (old, room) = (shown(&args.old), plan.room_in_words());
        let bytes = Size(replaced.moved_bytes);
        print(format!("{old} is replaced: {bytes} {how}, to this device first, {room}\n"))?;
        print(add::line_of(&order, &planned))?;
    }
    if args.dry_run {
        return if is_json() { print_json(&replaced) } else { Ok(()) };
    }
    if member.is_none() && add::destroys(&order, &planned) && !args.yes {
        confirm("overwrites everything on this device")?;
    }
    let (new_index, available_bytes) = replace(args, ReplaceOrder { index: old.index, new: order })?;
    (replaced.new_index, replaced.available_bytes) = (Some(new_index), Some(available_bytes));
    if is_json() {
        return print_json(&replaced);
    }
    print(format!(
        "{} has left, {} is device {new_index}: {} free for files\n",
        shown(&args.old),
        shown(&args.new),
        Size(available_bytes)
    ))?;
    note(
        "from now on, name the new device with the others of the pool; in a directory, *.img files are found",
    );
    Ok(())
}

/// Replaces the device, mounted or not.
fn replace(args: &Args, order: ReplaceOrder) -> Result<(u16, u64), Failure> {
    let line = WorkLine::start();
    let show = |left: u64| line.message(format_args!("{} left", counted(left, "segment", "segments")));
    let name = PoolName::new(&args.pool);
    let replaced = match ServerConnection::of_pool(&name)? {
        Some(server) => replace_mounted(server, order, show),
        None => replace_unmounted(&name, &order, show),
    };
    line.finish();
    replaced
}

fn replace_mounted(
    server: ServerConnection,
    order: ReplaceOrder,
    show: impl Fn(u64),
) -> Result<(u16, u64), Failure> {
    let answer = server.ask(Request::ReplaceDevice(order), |answer| {
        if let Answer::Removing(left) = answer {
            show(*left);
        }
    })?;
    match answer {
        Answer::DeviceAdded { index, available_bytes } => Ok((index, available_bytes)),
        _ => Err(foreign_answer()),
    }
}

fn replace_unmounted(
    name: &PoolName,
    order: &ReplaceOrder,
    show: impl Fn(u64),
) -> Result<(u16, u64), Failure> {
    let pool = pool::open_as(&Pool::options(), name)?;
    let replaced = replace_in(&pool, order, |left| {
        show(left);
        ControlFlow::Continue(())
    })?;
    pool.close().map_err(|error| Failure::pool(&error))?;
    Ok(replaced)
}

/// The device that leaves; `None` if it has left the pool, and the new one is in it.
fn old_device<'a>(
    pool: &'a StatusReport,
    args: &Args,
    new: Option<&DeviceReport>,
) -> Result<Option<&'a DeviceReport>, Failure> {
    let unknown = match named(pool, &args.old) {
        Ok(device) => return Ok(Some(device)),
        Err(unknown) => unknown,
    };
    let has_left = || {
        let label = device_label(&args.old).ok().flatten();
        let of_label = label.filter(|label| label.pool == pool.pool).map(|label| label.device);
        let index = of_label.or_else(|| args.old.to_str()?.parse().ok());
        index.is_some_and(|index| pool.devices.iter().any(|device| device.index > index))
    };
    if new.is_some() && has_left() { Ok(None) } else { Err(unknown) }
}

/// An earlier command has replaced the device.
fn done_before(args: &Args, new: Option<&DeviceReport>) -> Result<(), Failure> {
    if is_json() {
        return print_json(&ReplacedDevice {
            index: None,
            name: None,
            moved_bytes: 0,
            new_index: new.map(|new| new.index),
            new_path: args.new.display().to_string(),
            new_size_bytes: new.map_or(0, |new| new.size_bytes),
            overwrites: None,
            available_bytes: None,
        });
    }
    print(format!("{} has left the pool, and {} belongs to it\n", shown(&args.old), shown(&args.new)))
}

/// The plan for a new device that belongs to the pool already.
fn in_pool(args: &Args, member: &DeviceReport) -> Result<(AddOrder, AddedDevice), Failure> {
    let path: &Path = &args.new;
    let absolute = std::path::absolute(path).map_err(|error| Failure::local(path, &error))?;
    let order = AddOrder { path: absolute, size_bytes: member.size_bytes, force: false, spare: false };
    let planned = AddedDevice {
        index: Some(member.index),
        path: path.display().to_string(),
        path_bytes: None,
        size_bytes: member.size_bytes,
        is_new: false,
        overwrites: None,
        available_bytes: None,
    };
    Ok((order, planned))
}
