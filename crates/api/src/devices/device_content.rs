//! Recognises the content of a device or file, so that nothing is overwritten by mistake.

use std::fmt;
use std::path::Path;

use warpfire_env::{AlignedBuf, Device, FileDevice};
use warpfire_format::root::{RootHeader, unsupported};
use warpfire_pool::Pool;
use warpfire_units::BLOCK_BYTES;

use crate::Result;

/// The content of a device before it becomes part of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceContent {
    /// Zeros only, where filesystems and partition tables begin.
    Empty,
    /// A member of a Warpfire pool.
    Pool,
    /// Data of a Warpfire pool, and no root: the device was a member, and its roots were overwritten.
    PoolWithoutRoots,
    /// A filesystem or the like, recognised by its signature; its name with an article.
    Known(&'static str),
    /// Data without a known signature.
    Unknown,
}

/// A signature: name, offset in bytes, bytes.
type Signature = (&'static str, usize, &'static [u8]);

/// Where filesystems and the like keep their signatures. Partition tables come last, because they may stand
/// beside others.
const SIGNATURES: [Signature; 14] = [
    ("an XFS filesystem", 0, b"XFSB"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("a squashfs image", 0, b"hsqs"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an ext2, ext3 or ext4 filesystem", 0x438, b"\x53\xef"),
    ("an F2FS filesystem", 0x400, b"\x10\x20\xf5\xf2"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a member of a RAID array", 4096, b"\xfc\x4e\x2b\xa9"),
    ("an ISO 9660 image", 0x8001, b"CD001"),
    ("a btrfs filesystem", 0x1_0040, b"_BHRfS_M"),
    ("an NTFS filesystem", 3, b"NTFS    "),
    ("an exFAT filesystem", 3, b"EXFAT   "),
    ("a partition table", 512, b"EFI PART"),
    ("a partition table or boot sector", 510, b"\x55\xaa"),
];

/// Bytes at the front of the device in which signatures and other data are looked for.
const FRONT_BYTES: usize = 128 << 10;

impl fmt::Display for DeviceContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceContent::Empty => "nothing",
            DeviceContent::Pool => "a Warpfire pool",
            DeviceContent::PoolWithoutRoots => "data of a Warpfire pool that has lost its roots",
            DeviceContent::Known(name) => name,
            DeviceContent::Unknown => "data of an unknown kind",
        })
    }
}

/// The content of a device or file, and its size in bytes. Nothing is written.
///
/// # Errors
/// `NotFound`, `InUse` if another process has it open, `PermissionDenied`, `Device` if it cannot be read.
pub fn device_content(path: impl AsRef<Path>) -> Result<(DeviceContent, u64)> {
    let path = path.as_ref();
    if super::is_empty_file(path) {
        return Ok((DeviceContent::Empty, 0));
    }
    let device = FileDevice::open(path)?;
    Ok((content(&device)?, device.info().size_bytes))
}

pub(super) fn content(device: &dyn Device) -> Result<DeviceContent> {
    let size_bytes = device.info().size_bytes;
    let front_bytes = size_bytes.min(FRONT_BYTES as u64);
    let mut front = AlignedBuf::zeroed(usize::try_from(front_bytes).expect("at most FRONT_BYTES"));
    device.read(0, &mut front)?;
    let root = find_root(|at, block| {
        let is_inside = at + BLOCK_BYTES as u64 <= size_bytes;
        if is_inside {
            device.read(at, block)?;
        }
        Ok(is_inside)
    })?;
    let is_other_format = front.get(..BLOCK_BYTES).and_then(unsupported).is_some();
    if root.is_some() || is_other_format {
        return Ok(DeviceContent::Pool);
    }
    let known =
        SIGNATURES.iter().find(|(_, at, bytes)| front.get(*at..).is_some_and(|rest| rest.starts_with(bytes)));
    if let Some((name, _, _)) = known {
        return Ok(DeviceContent::Known(name));
    }
    // Whatever has overwritten the roots, zeros among it, has left the data behind them.
    if Pool::find_stripes(device).is_some() {
        return Ok(DeviceContent::PoolWithoutRoots);
    }
    let is_empty = front.iter().all(|&byte| byte == 0);
    Ok(if is_empty { DeviceContent::Empty } else { DeviceContent::Unknown })
}

/// The sizes that zone 1 may begin at. A pool writes its roots at the front of zones 0 and 1.
const ZONE_BYTES_RANGE: (u64, u64) = (64 << 10, 64 << 30);

/// Looks for a root at the front of a device and wherever its zone 1 can begin. `read` fills a block, or
/// returns `false` beyond the end of the device.
fn find_root(mut read: impl FnMut(u64, &mut [u8]) -> Result<bool>) -> Result<Option<RootHeader>> {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    let mut at = 0;
    while at <= ZONE_BYTES_RANGE.1 && read(at, &mut block)? {
        if let Ok(root) = RootHeader::decode(&block) {
            return Ok(Some(root));
        }
        at = if at == 0 { ZONE_BYTES_RANGE.0 } else { at * 2 };
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use warpfire_env::MemDevice;

    use super::*;

    fn with(at: usize, bytes: &[u8]) -> DeviceContent {
        let device = MemDevice::new("d", 1 << 20);
        let mut front = AlignedBuf::zeroed(FRONT_BYTES);
        front[at..at + bytes.len()].copy_from_slice(bytes);
        device.write(0, &front).expect("memory is written");
        content(&device).expect("memory is read")
    }

    #[test]
    fn zeros_are_nothing() {
        assert_eq!(with(0, &[0]), DeviceContent::Empty);
    }

    #[test]
    fn every_signature_is_recognised() {
        for (name, at, bytes) in SIGNATURES {
            assert_eq!(with(at, bytes), DeviceContent::Known(name));
        }
    }

    #[test]
    fn other_bytes_are_not_taken_for_nothing() {
        assert_eq!(with(70_000, b"a letter from home"), DeviceContent::Unknown);
    }
}
