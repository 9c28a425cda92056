//! `warpfire mkfs`: make a pool.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::Serialize;
use warpfire::{
    COLUMNS_MAX, DeviceContent, ErrorKind, PARITY_MAX, Pool, ZONES_MIN, check_named_once, device_bytes_min,
    device_content, prefilled,
};
use warpfire_terminal::{
    Exit, Failure, Size, counted, is_json, note, path_bytes, path_text, print, print_json, quoted, shown,
};

use super::confirmation::confirm;
use super::label::parse_label;
use crate::progress::WorkLine;

const EXAMPLES: &str = "\
Examples:
  warpfire mkfs a.img                            one file, no redundancy
  warpfire mkfs --size 1G --data 4 --parity 2 p/{0..5}.img
                                                 six files; any two may be lost
  warpfire mkfs --prefill --size 64G fast.img    one file, all space allocated
  warpfire mkfs --label photos --size 1G a.img   with a name, which status shows
  warpfire mkfs --yes /dev/nvme0n1 /dev/nvme1n1  two drives, mirrored";

/// Most data devices of a stripe by default. With more devices, each stripe uses some of them.
const DATA_DEFAULT_MAX: usize = 16;

/// Size of a new image file, unless its directory has less than twice that free.
const IMAGE_BYTES_DEFAULT: u64 = 8 << 30;

/// `mkfs` prints a note if less than this part of the space is left for files.
const FILE_PERCENT_MIN: u64 = 60;

// Arguments of `warpfire mkfs`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Devices or image files; an image file that does not exist is made.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,

    /// Data devices in each stripe [default: all devices but the parity devices, at most 16].
    #[arg(long, value_name = "K")]
    data: Option<u16>,

    /// Parity devices in each stripe: the pool survives the loss of this many devices [default: 0 for 1
    /// device, 1 for 2 to 4, 2 for more].
    #[arg(long, value_name = "M")]
    parity: Option<u8>,

    /// Name of the pool: at most 64 bytes without control characters.
    #[arg(long, value_name = "NAME", value_parser = parse_label)]
    label: Option<String>,

    /// Size of each new image file, such as 512M or 1.5G, at least 16 zones [default: 8G; all together at
    /// most half of the free space].
    #[arg(long)]
    size: Option<Size>,

    /// Write new image files once, which allocates all their space. mkfs takes longer; later writes are
    /// faster, and do not fail when the filesystem that holds the files is full.
    #[arg(long)]
    prefill: bool,

    /// Size of a zone, the unit of erasing: a power of two from 1M to 1G [default: 1/256 of the device].
    #[arg(long, value_name = "SIZE")]
    zone: Option<Size>,

    /// Overwrite existing data: a pool, another filesystem, anything else.
    #[arg(long)]
    force: bool,

    /// Do not ask for confirmation before overwriting data or a block device.
    #[arg(long, short)]
    yes: bool,
}

/// The pool to make.
#[derive(Debug, Serialize)]
struct PoolPlan {
    /// The devices, in their order in the pool.
    devices: Vec<DevicePlan>,
    /// Data devices of a stripe.
    data: u16,
    /// Parity devices of a stripe.
    parity: u8,
}

/// A pool that was made, as JSON.
#[derive(Debug, Serialize)]
struct MadePool<'a> {
    /// The id of the pool.
    pool: &'a str,
    /// Its name; empty if it has none.
    label: &'a str,
    /// Bytes of a zone.
    zone_bytes: u64,
    /// Bytes that files can take.
    file_bytes: u64,
    #[serde(flatten)]
    plan: &'a PoolPlan,
}

#[derive(Debug, Serialize)]
struct DevicePlan {
    #[serde(skip)]
    file: PathBuf,
    /// The path.
    path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    /// Its length.
    size_bytes: u64,
    /// Whether it is a block device, and not an image file.
    is_block_device: bool,
    /// Whether it is a new image file.
    is_new: bool,
    /// The content that the pool has overwritten; `null` if there was none.
    overwrites: Option<String>,
}

impl DevicePlan {
    fn new(file: &Path, size_bytes: u64) -> Self {
        let (path, path_bytes) = (path_text(file), path_bytes(file));
        let file = file.to_path_buf();
        let (is_block_device, is_new, overwrites) = (false, false, None);
        DevicePlan { file, path, path_bytes, size_bytes, is_block_device, is_new, overwrites }
    }
}

/// Makes the pool.
pub fn run(args: &Args) -> Result<(), Failure> {
    let plan = plan(args)?;
    if !is_json() {
        print(plan.in_words())?;
    }
    plan.warn_if_larger_than_its_disk();
    if plan.destroys() && !args.yes {
        confirm("overwrites everything on these devices")?;
    }
    let mut options = Pool::options().data(plan.data).parity(plan.parity).force(args.force);
    if let Some(zone) = args.zone {
        options = options.zone_bytes(zone.0);
    }
    if let Some(new) = plan.new_files().next() {
        options = options.size_bytes(new.size_bytes);
    }
    let filled = if args.prefill { prefill(&plan) } else { Ok(()) };
    let made = filled.and_then(|()| options.create(&args.devices).map_err(not_made));
    if made.is_err() {
        for device in plan.new_files() {
            // An error here is ignored: the user gets the error that came first.
            let _ = std::fs::remove_file(&device.file);
        }
    }
    let pool = made?;
    if let Some(label) = &args.label {
        pool.set_label(label)?;
    }
    let stats = pool.stats();
    pool.close()?;
    let file_bytes = stats.space.free_bytes - stats.space.reserve_bytes;
    if is_json() {
        let (pool, label, zone_bytes) = (stats.pool.as_str(), stats.label.as_str(), stats.zone_bytes);
        print_json(&MadePool { pool, label, zone_bytes, file_bytes, plan: &plan })?;
    } else {
        print(format!("pool {} made: {} free for files\n", stats.pool, Size(file_bytes)))?;
    }
    plan.warn_if_little_is_left(file_bytes);
    Ok(())
}

fn not_made(error: warpfire::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound => Failure::pool(&error).hint("make the directory first"),
        ErrorKind::PermissionDenied => {
            Failure::pool(&error).hint("name a device or directory that this user may write to")
        }
        ErrorKind::InvalidInput => misused(&error),
        _ => Failure::pool(&error),
    }
}

/// The options or the devices do not allow a pool.
fn misused(error: &warpfire::Error) -> Failure {
    Failure::pool(error).exit_code(Exit::Usage as u8)
}

fn plan(args: &Args) -> Result<PoolPlan, Failure> {
    check_named_once(&args.devices).map_err(|error| misused(&error))?;
    if let Some(zone) = args.zone
        && !zone.0.is_power_of_two()
    {
        return Err(Failure::usage(format_args!("the zone size {zone} is not a power of two"))
            .hint("choose one such as 1M, 4M or 16M"));
    }
    let (data, parity) = geometry(args.devices.len(), args.data, args.parity)?;
    let new_files = args.devices.iter().filter(|path| becomes_image(path)).count();
    let devices =
        args.devices.iter().map(|path| device_plan(path, args, new_files)).collect::<Result<_, Failure>>()?;
    let plan = PoolPlan { devices, data, parity };
    plan.refuse_too_small(args.zone)?;
    Ok(plan)
}

/// Data and parity devices of a stripe: the options, with defaults for those that are missing.
fn geometry(devices: usize, data: Option<u16>, parity: Option<u8>) -> Result<(u16, u8), Failure> {
    // A missing --parity follows from --data if that is there, a missing --data from the parity.
    let parity = parity.unwrap_or(match (devices, data) {
        (1, _) => 0,
        (2..=4, None) => 1,
        (_, None) => 2,
        (_, Some(data)) => {
            let rest = devices.saturating_sub(usize::from(data));
            u8::try_from(rest.min(2)).expect("at most two")
        }
    });
    let rest = devices.saturating_sub(usize::from(parity)).clamp(1, DATA_DEFAULT_MAX);
    let data = data.unwrap_or(u16::try_from(rest).expect("at most DATA_DEFAULT_MAX"));
    let columns = usize::from(data) + usize::from(parity);
    if data == 0 {
        return Err(Failure::usage("--data must be at least 1"));
    }
    if usize::from(parity) > PARITY_MAX {
        return Err(Failure::usage(format_args!("--parity is at most {PARITY_MAX}, not {parity}")));
    }
    if columns > COLUMNS_MAX {
        return Err(Failure::usage(format_args!(
            "--data and --parity together are at most {COLUMNS_MAX}, not {columns}"
        )));
    }
    if columns > devices {
        return Err(Failure::usage(format_args!(
            "{data} data and {parity} parity devices are {columns} devices, but only {devices} {} named",
            if devices == 1 { "is" } else { "are" }
        ))
        .hint("name more devices, or lower --data or --parity"));
    }
    Ok((data, parity))
}

/// Whether mkfs makes an image file there. An empty file counts: a mkfs that was killed leaves one.
fn becomes_image(path: &Path) -> bool {
    !path.exists() || path.metadata().is_ok_and(|found| found.is_file() && found.len() == 0)
}

fn device_plan(path: &Path, args: &Args, new_files: usize) -> Result<DevicePlan, Failure> {
    if becomes_image(path) {
        let size_bytes = match args.size {
            Some(size) => size.0,
            None => default_image_bytes(path, new_files)?,
        };
        refuse_too_large(path, size_bytes)?;
        return Ok(DevicePlan { is_new: true, ..DevicePlan::new(path, size_bytes) });
    }
    let (content, size_bytes) = device_content(path).map_err(|error| Failure::pool(&error))?;
    let overwrites = match content {
        DeviceContent::Empty => None,
        content => Some(content.to_string()),
    };
    if let (Some(content), false) = (&overwrites, args.force) {
        return Err(Failure::new(format_args!("{} contains {content}", path.display()))
            .hint("name another device, or overwrite this one with --force")
            .of_path(path));
    }
    let file_type = std::fs::metadata(path).map_err(|error| Failure::local(path, &error))?.file_type();
    let is_block_device = file_type.is_block_device();
    Ok(DevicePlan { is_block_device, overwrites, ..DevicePlan::new(path, size_bytes) })
}

/// Refuses an image that no file can be.
///
/// # Errors
/// The image has 8 EiB or more.
pub fn refuse_too_large(path: &Path, size_bytes: u64) -> Result<(), Failure> {
    if i64::try_from(size_bytes).is_ok() {
        return Ok(());
    }
    Err(Failure::usage(format_args!(
        "{} would have {}, and a file has less than 8 EiB",
        shown(path),
        Size(size_bytes)
    ))
    .hint("use a smaller --size")
    .of_path(path))
}

/// The directory of a path.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn default_image_bytes(path: &Path, new_files: usize) -> Result<u64, Failure> {
    let directory = directory_of(path);
    let free = rustix::fs::statvfs(directory).map_err(|error| {
        let failure = Failure::local(directory, &error.into());
        if error == Errno::NOENT { failure.hint("make the directory first") } else { failure }
    })?;
    let free_bytes = free.f_bavail.saturating_mul(free.f_frsize);
    let share = free_bytes / 2 / new_files.max(1) as u64;
    Ok(IMAGE_BYTES_DEFAULT.min(share) & !((1 << 20) - 1))
}

/// Writes the new image files once, so that their space is allocated.
fn prefill(plan: &PoolPlan) -> Result<(), Failure> {
    let total_bytes: u64 = plan.new_files().map(|device| device.size_bytes).sum();
    let mut done_bytes = 0;
    let line = WorkLine::start();
    let filled = plan.new_files().try_for_each(|device| {
        let made = prefilled(&device.file, device.size_bytes, |bytes| {
            done_bytes += bytes;
            line.part(done_bytes, total_bytes, format_args!("{} prefilled", Size(done_bytes)));
        });
        made.map(drop).map_err(|error| Failure::local(&device.file, &error))
    });
    line.finish();
    filled
}

impl PoolPlan {
    fn refuse_too_small(&self, zone: Option<Size>) -> Result<(), Failure> {
        let least_bytes = device_bytes_min(zone.map(|zone| zone.0));
        let Some(device) = self.devices.iter().find(|device| device.size_bytes < least_bytes) else {
            return Ok(());
        };
        let least = Size(least_bytes);
        let hint = match (device.is_new, zone) {
            (true, _) => format!("use --size {}M or more", least_bytes.div_ceil(1 << 20)),
            (false, None) => "choose a larger device".to_owned(),
            (false, Some(_)) => "choose a larger device, or a smaller --zone".to_owned(),
        };
        Err(Failure::usage(format_args!(
            "{} is too small for a pool: it has {}, but {ZONES_MIN} zones of {} take {least}",
            shown(&device.file),
            Size(device.size_bytes),
            Size(least_bytes / ZONES_MIN),
        ))
        .hint(hint)
        .of_path(&device.file))
    }

    /// Prints a note if so little is left for files that the user may want other devices or zones.
    fn warn_if_little_is_left(&self, file_bytes: u64) {
        let least = self.devices.iter().map(|device| device.size_bytes).min().unwrap_or(0);
        let (data, parity) = (u64::from(self.data), u64::from(self.parity));
        let data_bytes = least * self.devices.len() as u64 / (data + parity) * data;
        let percent = file_bytes * 100 / data_bytes.max(1);
        if percent < FILE_PERCENT_MIN {
            note(format_args!(
                "only {percent} % of the space is left for files, because the devices have few zones; \
                 larger devices, or a smaller --zone, leave more"
            ));
        }
    }

    /// Prints a note for each disk that cannot hold the new image files on it when they are full.
    fn warn_if_larger_than_its_disk(&self) {
        let mut disks: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for device in self.new_files() {
            let directory = directory_of(&device.file);
            // A directory that cannot be asked fails below, when the image is made.
            let Ok((metadata, disk)) =
                std::fs::metadata(directory).and_then(|found| Ok((found, rustix::fs::statvfs(directory)?)))
            else {
                continue;
            };
            let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
            let (taken, _) = disks.entry(metadata.dev()).or_insert((0, free_bytes));
            *taken = taken.saturating_add(device.size_bytes);
        }
        for (taken, free) in disks.into_values().filter(|(taken, free)| taken > free) {
            note(format_args!(
                "the new image files take {} when they are full, but their disk has {} free; writes fail when \
                 it is full",
                Size(taken),
                Size(free)
            ));
        }
    }

    fn destroys(&self) -> bool {
        self.devices.iter().any(|device| device.is_block_device || device.overwrites.is_some())
    }

    fn new_files(&self) -> impl Iterator<Item = &DevicePlan> {
        self.devices.iter().filter(|device| device.is_new)
    }

    fn in_words(&self) -> String {
        let mut text = format!(
            "pool of {}: each stripe has {} data and {} parity; {}\n",
            counted(self.devices.len() as u64, "device", "devices"),
            self.data,
            self.parity,
            match self.parity {
                0 => "no device may be lost".to_owned(),
                1 => "any one device may be lost".to_owned(),
                parity => format!("any {parity} devices may be lost"),
            }
        );
        for device in &self.devices {
            let kind = match (&device.overwrites, device.is_new, device.is_block_device) {
                (Some(content), _, _) => format!("OVERWRITES {content}"),
                (None, true, _) => "new image file".to_owned(),
                (None, false, true) => "block device".to_owned(),
                (None, false, false) => "empty image file".to_owned(),
            };
            text += &format!("  {}  {}  {kind}\n", quoted(device.file.as_os_str()), Size(device.size_bytes));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(devices: usize, data: Option<u16>, parity: Option<u8>) -> (u16, u8) {
        geometry(devices, data, parity).expect("a possible geometry")
    }

    #[test]
    fn the_default_geometry_uses_all_devices_and_survives_losses() {
        assert_eq!(chosen(1, None, None), (1, 0));
        assert_eq!(chosen(2, None, None), (1, 1));
        assert_eq!(chosen(4, None, None), (3, 1));
        assert_eq!(chosen(6, None, None), (4, 2));
        assert_eq!(chosen(250, None, None), (16, 2));
    }

    #[test]
    fn options_are_used_and_missing_ones_follow_from_them() {
        assert_eq!(chosen(6, Some(5), None), (5, 1));
        assert_eq!(chosen(6, None, Some(3)), (3, 3));
        assert_eq!(chosen(6, Some(2), Some(1)), (2, 1));
        assert_eq!(chosen(3, Some(3), None), (3, 0));
    }

    #[test]
    fn an_impossible_geometry_is_refused() {
        for (devices, data, parity) in
            [(3, Some(4), None), (3, Some(2), Some(2)), (12, Some(2), Some(9)), (1, Some(0), None)]
        {
            assert!(geometry(devices, data, parity).is_err(), "{devices} {data:?} {parity:?}");
        }
    }
}
