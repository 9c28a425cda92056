//! Reads the label of a device without opening its pool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use warpfire_format::root::RootHeader;
use warpfire_units::BLOCK_BYTES;

use crate::{Error, Result};

/// The label of a device: the pool that it belongs to and its position there.
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

/// The sizes that zone 1 may begin at. A pool writes its roots at the front of zones 0 and 1.
const ZONE_BYTES_RANGE: (u64, u64) = (64 << 10, 256 << 20);

/// The label of a device or file; `None` if it belongs to no pool. Works while another process has the pool
/// open.
///
/// # Errors
/// `NotFound`, `PermissionDenied`, or `Other` if it cannot be read.
pub fn device_label(path: impl AsRef<Path>) -> Result<Option<DeviceLabel>> {
    let path = path.as_ref();
    let failed = |error: &io::Error| Error::of_path(path, error);
    let file = File::open(path).map_err(|error| failed(&error))?;
    let read = |at: u64, block: &mut [u8]| match file.read_exact_at(block, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(failed(&error)),
        Ok(()) => Ok(true),
    };
    Ok(find_root(read)?.map(|root| DeviceLabel {
        pool: root.pool.to_string(),
        device: root.device.0,
        devices: root.device_count,
    }))
}

/// Looks for a root at the front of a device and wherever its zone 1 can begin. `read` fills a block, or
/// returns `false` beyond the end of the device.
pub(super) fn find_root(mut read: impl FnMut(u64, &mut [u8]) -> Result<bool>) -> Result<Option<RootHeader>> {
    let mut block = warpfire_env::AlignedBuf::zeroed(BLOCK_BYTES);
    let mut at = 0;
    while at <= ZONE_BYTES_RANGE.1 && read(at, &mut block)? {
        if let Ok(root) = RootHeader::decode(&block) {
            return Ok(Some(root));
        }
        at = if at == 0 { ZONE_BYTES_RANGE.0 } else { at * 2 };
    }
    Ok(None)
}
