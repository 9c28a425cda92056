//! Reads the label of a device without opening its pool.

use std::path::Path;
use std::sync::Arc;

use warpfire_env::{FileDevice, OpenError};
use warpfire_pool::{DeviceSetError, Pool};

use crate::Result;

/// The label of a device: the pool that it belongs to and its position there, by its newest root.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceLabel {
    /// The number that identifies the pool, in hexadecimal.
    pub pool: String,
    /// The position of the device in the pool, from 0.
    pub device: u16,
    /// How many devices the pool has.
    pub devices: u16,
}

/// The label of a device or file; `None` if it belongs to no pool that this version reads. Works while
/// another process has the pool open.
///
/// # Errors
/// `NotFound`, `PermissionDenied`, or `Other` if it cannot be read.
pub fn device_label(path: impl AsRef<Path>) -> Result<Option<DeviceLabel>> {
    let device = match FileDevice::open_to_look(path.as_ref()) {
        // Too small for a root.
        Err(OpenError::TooSmall { .. }) => return Ok(None),
        opened => Arc::new(opened?),
    };
    let scanned = match Pool::scan_device(device) {
        Err(DeviceSetError::Unsupported { .. }) => None,
        scanned => scanned?,
    };
    Ok(scanned.map(|scanned| DeviceLabel {
        pool: scanned.pool().to_string(),
        device: scanned.index().0,
        devices: scanned.table_len(),
    }))
}
