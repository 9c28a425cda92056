//! `warpfire device add`: devices join a pool.
//!
//! The plan is made by this process, of all devices. Then the server of a mounted pool adds them one by one;
//! a pool that is not mounted is opened for it.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warpfire::{
    AddDevice, DeviceContent, ErrorKind, Pool, Warpfire, ZONES_MIN, check_named_once, device_bytes_min,
    device_content, device_label,
};
use warpfire_terminal::{
    Exit, Failure, Size, counted, is_json, note, path_bytes, path_text, print, print_json, quoted, shown,
};

use crate::commands::confirmation::confirm;
use crate::commands::device::member_at;
use crate::commands::device::plan::{self, ChangeOrder};
use crate::commands::mkfs::{directory_of, refuse_too_large};
use crate::commands::mount::control::wire::{Answer, Request};
use crate::commands::mount::control::{ServerConnection, foreign_answer};
use crate::commands::pool;
use crate::commands::status::{self, StatusReport};
use crate::location::PoolName;

// Arguments of `warpfire device add`.
#[derive(clap::Args, Debug)]
#[command(after_help = super::EXAMPLES)]
pub struct Args {
    /// Devices or image files separated by commas, a directory of *.img files, or the directory that the pool
    /// is mounted on.
    #[arg(value_name = "POOL")]
    pool: OsString,

    /// Devices or image files to add; an image file that does not exist is made.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,

    /// Size of each new image file [default: that of the largest device of the pool].
    #[arg(long)]
    size: Option<Size>,

    /// Overwrite existing data: another pool, another filesystem, anything else.
    #[arg(long)]
    force: bool,

    /// Keep the devices as spares: one takes the place of a device that stays lost.
    #[arg(long)]
    spare: bool,

    /// Show the plan, and change nothing.
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation before overwriting data or a block device.
    #[arg(long, short)]
    yes: bool,
}

/// A device to add, as the server of a mounted pool is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AddOrder {
    /// The path, from the root.
    pub path: PathBuf,
    /// The size of a new image file.
    pub size_bytes: u64,
    /// Whether to overwrite what the device holds.
    pub force: bool,
    /// Whether it waits as a spare.
    #[serde(default)]
    pub spare: bool,
}

/// A device that was added to a pool, or with `--dry-run` one that would be.
#[derive(Debug, Serialize, Deserialize)]
pub struct AddedDevice {
    /// Its index in the pool; `null` with `--dry-run`.
    pub index: Option<u16>,
    /// The path.
    pub path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Its length.
    pub size_bytes: u64,
    /// Whether it is a new image file.
    pub is_new: bool,
    /// The content that the pool has overwritten; `null` if there was none.
    pub overwrites: Option<String>,
    /// Bytes that can be written to files after it; with `--dry-run` about so many.
    pub available_bytes: Option<u64>,
}

/// Adds a device to an open pool. Returns its index and the bytes that can be written then.
///
/// # Errors
/// The device cannot join, or the pool takes no changes.
pub fn add_to(pool: &Warpfire, order: &AddOrder) -> Result<(u16, u64), Failure> {
    let how = AddDevice::new().size_bytes(order.size_bytes).force(order.force).spare(order.spare);
    let index = pool.add_device(&order.path, &how).map_err(|error| Failure::pool(&error))?;
    let available_bytes = pool.space().map_or(0, |space| space.available_bytes);
    Ok((index, available_bytes))
}

/// Adds the devices.
pub fn run(args: &Args) -> Result<(), Failure> {
    let once = check_named_once(&args.devices);
    once.map_err(|error| Failure::pool(&error).exit_code(Exit::Usage as u8))?;
    let report = status::report(&args.pool)?;
    let mut plans: Vec<(AddOrder, AddedDevice)> = args
        .devices
        .iter()
        .map(|path| plan(path, args.size, args.force, &report))
        .map(|planned| planned.map(|(order, added)| (AddOrder { spare: args.spare, ..order }, added)))
        .collect::<Result<_, Failure>>()?;
    let name = PoolName::new(&args.pool);
    plan_room(&name, &mut plans)?;
    if !is_json() {
        print(in_words(&report, &plans))?;
    }
    if args.dry_run {
        return plans.iter().filter(|_| is_json()).try_for_each(|(_, planned)| print_json(planned));
    }
    if plans.iter().any(|(order, planned)| destroys(order, planned)) && !args.yes {
        confirm("overwrites everything on these devices")?;
    }
    let mut opened = None;
    for (order, planned) in plans {
        let added = match (ServerConnection::of_pool(&name)?, &opened) {
            (Some(server), None) => add_mounted(server, &order),
            (_, Some(pool)) => add_to(pool, &order),
            (None, None) => add_to(opened.insert(pool::open_as(&Pool::options(), &name)?), &order),
        };
        let (index, available_bytes) = added?;
        if is_json() {
            let (index, available_bytes) = (Some(index), Some(available_bytes));
            print_json(&AddedDevice { index, available_bytes, ..planned })?;
        } else {
            let path = quoted(order.path.as_os_str());
            print(format!("{path} is device {index}: {} free for files\n", Size(available_bytes)))?;
        }
    }
    if let Some(pool) = opened {
        pool.close().map_err(|error| Failure::pool(&error))?;
    }
    note("from now on, name it with the other devices of the pool; in a directory, *.img files are found");
    Ok(())
}

fn add_mounted(server: ServerConnection, order: &AddOrder) -> Result<(u16, u64), Failure> {
    match server.ask(Request::AddDevice(order.clone()), |_| ())? {
        Answer::DeviceAdded { index, available_bytes } => Ok((index, available_bytes)),
        _ => Err(foreign_answer()),
    }
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Whether the device loses content, or may hold some that nobody sees.
pub(super) fn destroys(order: &AddOrder, planned: &AddedDevice) -> bool {
    planned.overwrites.is_some() || is_block_device(&order.path)
}

/// Looks at a device without changing it. A new image file gets `size`.
pub(super) fn plan(
    path: &Path,
    size: Option<Size>,
    force: bool,
    pool: &StatusReport,
) -> Result<(AddOrder, AddedDevice), Failure> {
    if path.to_str().is_none() {
        return Err(Failure::usage(format_args!("{} is no UTF-8", shown(path)))
            .hint("give the device a name that is")
            .of_path(path));
    }
    let absolute = std::path::absolute(path).map_err(|error| Failure::local(path, &error))?;
    let is_new = !path.exists();
    let largest = pool.devices.iter().map(|device| device.size_bytes).max().unwrap_or(0);
    let new_bytes = size.map_or(largest, |size| size.0);
    let label = if is_new { None } else { device_label(path).ok().flatten() };
    let is_of_pool = label.is_some_and(|label| label.pool == pool.pool);
    if is_of_pool && member_at(pool, path).is_some() {
        return Err(Failure::new(format_args!("{} belongs to the pool already", shown(path)))
            .hint("'warpfire device list' shows its devices")
            .of_path(path));
    }
    let (content, size_bytes) = if is_new {
        refuse_too_large(path, new_bytes)?;
        let directory = directory_of(path);
        directory
            .metadata()
            .map_err(|error| Failure::local(directory, &error).hint("make the directory first"))?;
        (DeviceContent::Empty, new_bytes)
    } else {
        device_content(path).map_err(|error| not_taken(path, &error))?
    };
    let size_bytes = if size_bytes == 0 { new_bytes } else { size_bytes };
    let least_bytes = device_bytes_min(Some(pool.zone_bytes));
    if size_bytes < least_bytes {
        return Err(Failure::new(format_args!(
            "{} is too small for this pool: it has {}, but {ZONES_MIN} zones of {} take {}",
            shown(path),
            Size(size_bytes),
            Size(pool.zone_bytes),
            Size(least_bytes)
        ))
        .hint(if is_new { "use a larger --size" } else { "choose a larger device" })
        .of_path(path));
    }
    let overwrites = match content {
        DeviceContent::Empty => None,
        // The pool decides whether the device has left it, or joined it half.
        DeviceContent::Pool if is_of_pool => None,
        content => Some(content.to_string()),
    };
    if let (Some(content), false) = (&overwrites, force) {
        return Err(Failure::new(format_args!("{} contains {content}", path.display()))
            .hint("name another device, or overwrite this one with --force")
            .of_path(path));
    }
    let order = AddOrder { path: absolute, size_bytes, force, spare: false };
    let (index, available_bytes) = (None, None);
    let (path, path_bytes) = (path_text(path), path_bytes(path));
    Ok((order, AddedDevice { index, path, path_bytes, size_bytes, is_new, overwrites, available_bytes }))
}

/// The failure to read a device that shall join.
fn not_taken(path: &Path, error: &warpfire::Error) -> Failure {
    match error.kind() {
        // It is smaller than a block.
        ErrorKind::InvalidInput if path.is_file() => Failure::pool(error).hint("choose a larger device"),
        _ => Failure::pool(error),
    }
}

/// Notes for each device what can be written to files after it. A spare brings no room.
fn plan_room(name: &PoolName, plans: &mut [(AddOrder, AddedDevice)]) -> Result<(), Failure> {
    let mut sizes_bytes = Vec::new();
    for (order, planned) in plans {
        sizes_bytes.extend((!order.spare).then_some(planned.size_bytes));
        let order = ChangeOrder::Add { sizes_bytes: sizes_bytes.clone() };
        planned.available_bytes = Some(plan::planned(name, order)?.available_bytes);
    }
    Ok(())
}

fn in_words(pool: &StatusReport, plans: &[(AddOrder, AddedDevice)]) -> String {
    let count = counted(plans.len() as u64, "device", "devices");
    let available = plans.last().and_then(|(_, planned)| planned.available_bytes);
    let room = Size(available.unwrap_or_default());
    let mut text = format!(
        "pool {} gets {count}; its files stay where they are, and about {room} will be free for files\n",
        pool.pool
    );
    for (order, planned) in plans {
        text += &line_of(order, planned);
    }
    text
}

/// The line of a plan for a device that is added.
pub(super) fn line_of(order: &AddOrder, planned: &AddedDevice) -> String {
    let kind = match (&planned.overwrites, planned.is_new) {
        (Some(content), _) => format!("OVERWRITES {content}"),
        (None, true) => "new image file".to_owned(),
        (None, false) if is_block_device(&order.path) => "block device".to_owned(),
        (None, false) => "image file".to_owned(),
    };
    let kind = if order.spare { format!("{kind}, a spare") } else { kind };
    format!("  {}  {}  {kind}\n", quoted(planned.path.as_ref()), Size(planned.size_bytes))
}
