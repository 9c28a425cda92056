//! Whose a device is, read without opening its pool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use warpfire_format::root::RootHeader;
use warpfire_units::BLOCK_BYTES;

use crate::{Error, Result};

/// What identifies a member of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceLabel {
    /// The pool's own number, in hexadecimal.
    pub pool: String,
    /// The device's place in the pool, from 0.
    pub device: u16,
    /// How many devices the pool has.
    pub devices: u16,
}

/// A pool's roots are at the front of a zone that is a power of two in this range, or at the front of the device.
const ZONE_BYTES_RANGE: (u64, u64) = (64 << 10, 256 << 20);

/// The label of a device or file, also while another process has its pool open. `None` if it is no member of a pool.
///
/// # Errors
/// It does not exist or can not be read.
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

/// A root at the front of a device, or at the front of what can be its zone 1. `read` fills a block, or says that the device is shorter.
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
