//! Opens devices by path. For a new pool it also makes image files, and protects devices that hold data.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use warpfire_env::{Device, FileDevice};

mod device_content;
mod device_label;
mod prefill;
mod scan;

pub use device_content::{DeviceContent, device_content};
pub use device_label::{DeviceLabel, device_label};
pub use prefill::prefilled;
pub use scan::{FoundDevice, FoundPool, Opens, Scan, block_devices, scan};

use crate::{Error, ErrorKind, Result};

/// Devices for a new pool, and the image files made for it.
pub(crate) struct NewDevices {
    pub devices: Vec<Arc<dyn Device>>,
    made: Vec<PathBuf>,
}

impl NewDevices {
    /// Opens existing devices and makes image files of `size_bytes` for the missing ones. Existing devices
    /// must be empty, or hold what `may_hold` allows to overwrite.
    pub fn prepare(
        paths: &[PathBuf],
        size_bytes: u64,
        may_hold: impl Fn(DeviceContent) -> bool,
    ) -> Result<Self> {
        check_named_once(paths)?;
        let mut new = NewDevices { devices: Vec::with_capacity(paths.len()), made: Vec::new() };
        for path in paths {
            match new.add(path, size_bytes, &may_hold) {
                Ok(device) => new.devices.push(Arc::new(device)),
                Err(error) => {
                    new.discard();
                    return Err(error);
                }
            }
        }
        Ok(new)
    }

    fn add(
        &mut self,
        path: &Path,
        size_bytes: u64,
        may_hold: &impl Fn(DeviceContent) -> bool,
    ) -> Result<FileDevice> {
        if !path.exists() {
            let device = FileDevice::create(path, size_bytes)?;
            self.made.push(path.to_path_buf());
            return Ok(device);
        }
        if is_empty_file(path) {
            let file = std::fs::OpenOptions::new().write(true).open(path);
            file.and_then(|file| file.set_len(size_bytes)).map_err(|error| Error::of_path(path, &error))?;
        }
        let device = FileDevice::open(path)?;
        match device_content::content(&device)? {
            DeviceContent::Empty => Ok(device),
            content if may_hold(content) => Ok(device),
            content => Err(Error::new(
                ErrorKind::AlreadyExists,
                Errno::EXIST.raw_os_error(),
                format!("{} holds {content}", path.display()),
            )
            .with_hint("choose another device, or force overwriting it")),
        }
    }

    /// Removes the image files that were made, after they could not become part of a pool.
    pub fn discard(self) {
        drop(self.devices);
        for path in self.made {
            // The caller gets the error that stopped the pool. A file that stays behind is the lesser
            // problem.
            let _ = std::fs::remove_file(path);
        }
    }
}

const READABLE: &str = "make the devices readable for this user, or run the command as their owner";

/// Opens existing devices, for reading only or for writing too. A path that does not exist is an error: to
/// open without a device, do not name it.
pub(crate) fn open_all(paths: &[PathBuf], read_only: bool) -> Result<Vec<Arc<dyn Device>>> {
    check_named_once(paths)?;
    let open = |path: &PathBuf| -> Result<Arc<dyn Device>> {
        if !read_only {
            return Ok(Arc::new(FileDevice::open(path)?));
        }
        let device = FileDevice::open_for_reading(path).map_err(|error| match Error::from(error) {
            denied if denied.kind() == ErrorKind::PermissionDenied => denied.with_hint(READABLE),
            other => other,
        })?;
        Ok(Arc::new(device))
    };
    paths.iter().map(open).collect()
}

/// Whether a list of devices for a pool names each file or block device once, by whatever path.
///
/// # Errors
/// `InvalidInput` if two paths lead to one file or block device.
pub fn check_named_once(paths: &[PathBuf]) -> Result<()> {
    let mut named: Vec<(DeviceIdentity, &Path)> = Vec::with_capacity(paths.len());
    for path in paths {
        let identity = DeviceIdentity::of(path);
        let Some((_, first)) = named.iter().find(|(other, _)| *other == identity) else {
            named.push((identity, path));
            continue;
        };
        let message = if *first == path {
            format!("{} is named twice", first.display())
        } else {
            format!("{} and {} are the same device", first.display(), path.display())
        };
        return Err(Error::invalid(message).with_hint("name each device once").of_device(path));
    }
    Ok(())
}

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum DeviceIdentity {
    /// Filesystem and inode number.
    File(u64, u64),
    /// Number of the block device.
    Block(u64),
    /// Nothing yet: the path, from the root if its directory exists.
    Missing(PathBuf),
}

impl DeviceIdentity {
    fn of(path: &Path) -> DeviceIdentity {
        if let Ok(metadata) = path.metadata() {
            return if metadata.file_type().is_block_device() {
                DeviceIdentity::Block(metadata.rdev())
            } else {
                DeviceIdentity::File(metadata.dev(), metadata.ino())
            };
        }
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new(".")).canonicalize();
        DeviceIdentity::Missing(match (directory, path.file_name()) {
            (Ok(directory), Some(name)) => directory.join(name),
            _ => path.to_path_buf(),
        })
    }
}

fn is_empty_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}
