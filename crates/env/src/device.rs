//! The interface of a device, and its errors.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use warpfire_units::BLOCK_BYTES;

use crate::batch::OpKind;

/// Zones that a device enforces itself: a zoned drive, or the simulator's model of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneInfo {
    /// Bytes from the start of one zone to the start of the next; all of them are writable. A drive whose
    /// zones have less capacity than size shows the capacity (`ZoneMap`).
    pub zone_bytes: u64,
    /// The first so many zones take writes anywhere. Drives that write in shingles have some.
    pub conventional_zones: u32,
    /// Most zones that may be active at once, that is written and not full; 0 if there is no limit. The
    /// device refuses the first write to one zone more.
    pub active_zones_max: u32,
}

impl ZoneInfo {
    /// Zones of one size that take writes at their write pointers only, without a limit.
    #[must_use]
    pub const fn sequential(zone_bytes: u64) -> Self {
        ZoneInfo { zone_bytes, conventional_zones: 0, active_zones_max: 0 }
    }

    /// Whether the zone at this byte takes writes anywhere.
    #[must_use]
    pub const fn is_conventional(&self, offset_bytes: u64) -> bool {
        offset_bytes / self.zone_bytes < self.conventional_zones as u64
    }
}

/// One zone's state, as a zoned device reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneReport {
    /// Bytes written since the last reset of the zone. A write must begin at this offset in the zone. All
    /// of it for a zone that was finished, or that takes writes anywhere.
    pub written_bytes: u64,
    /// Whether the zone takes part in the device's limit (`ZoneInfo::active_zones_max`).
    pub is_active: bool,
}

/// The constant properties of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Its name in messages: a path, or a name that the simulator chose.
    pub name: String,
    /// Usable bytes, a multiple of the block size.
    pub size_bytes: u64,
    /// `Some` if the device itself refuses writes that do not begin at a zone's write pointer.
    pub zones: Option<ZoneInfo>,
}

impl DeviceInfo {
    /// Checks that a range is whole blocks inside the device.
    ///
    /// # Errors
    /// `Invalid` if it is not.
    pub fn check_range(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let block = BLOCK_BYTES as u64;
        let fault = if !offset_bytes.is_multiple_of(block) || !len_bytes.is_multiple_of(block) {
            "is not whole blocks"
        } else if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > self.size_bytes) {
            "is not inside the device"
        } else {
            return Ok(());
        };
        let reason = format!("a range of {len_bytes} bytes at {offset_bytes} {fault}");
        Err(DeviceError::Invalid { device: self.name.clone(), reason })
    }
}

/// Why an operation on a device failed. The pool acts on the variant.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device reported an error for this range; other ranges may be readable and writable.
    #[error("{device}: {op} of {len_bytes} bytes at {offset_bytes} failed: {reason}")]
    Io {
        /// The device's name.
        device: String,
        /// `read`, `write`, `flush`, `discard` or `reset`.
        op: &'static str,
        /// First byte of the operation.
        offset_bytes: u64,
        /// Number of its bytes.
        len_bytes: u64,
        /// The system's error text.
        reason: String,
    },
    /// The device is gone; every later call fails in the same way.
    #[error("{device}: device is gone")]
    Gone {
        /// The device's name.
        device: String,
    },
    /// The device has not answered in time. The operation may still take place, or fail, at any later time.
    #[error("{device}: no answer to a {op} within {} seconds", limit.as_secs_f32())]
    Late {
        /// The device's name.
        device: String,
        /// `read`, `write`, `flush`, `discard` or `reset`.
        op: &'static str,
        /// How long the caller waited.
        limit: Duration,
    },
    /// The backing store has no room (a file on a full filesystem).
    #[error("{device}: no space left for a write of {len_bytes} bytes at {offset_bytes}")]
    NoSpace {
        /// The device's name.
        device: String,
        /// First byte of the write.
        offset_bytes: u64,
        /// Number of its bytes.
        len_bytes: u64,
    },
    /// A zoned device refused the call: the write was not at the write pointer, or passed the end of the
    /// zone.
    #[error("{device}: zone violation at {offset_bytes}: {reason}")]
    Zone {
        /// The device's name.
        device: String,
        /// First byte of the operation.
        offset_bytes: u64,
        /// The rule that it broke.
        reason: String,
    },
    /// The range was misaligned or outside the device: a bug in the caller.
    #[error("{device}: bad request: {reason}")]
    Invalid {
        /// The device's name.
        device: String,
        /// The fault of the range.
        reason: String,
    },
}

impl DeviceError {
    /// The name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        match self {
            DeviceError::Io { device, .. }
            | DeviceError::Gone { device }
            | DeviceError::Late { device, .. }
            | DeviceError::NoSpace { device, .. }
            | DeviceError::Zone { device, .. }
            | DeviceError::Invalid { device, .. } => device,
        }
    }

    /// The error for a failed system call, by its error code.
    pub(crate) fn from_errno(
        info: &DeviceInfo,
        op: &'static str,
        offset_bytes: u64,
        len_bytes: u64,
        errno: Errno,
    ) -> Self {
        let device = info.name.clone();
        // Only codes that mean that the whole device is gone become `Gone`: the pool never uses it again.
        match errno {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
                DeviceError::NoSpace { device, offset_bytes, len_bytes }
            }
            Errno::NODEV | Errno::NXIO | Errno::NOMEDIUM | Errno::SHUTDOWN => DeviceError::Gone { device },
            other => DeviceError::Io { device, op, offset_bytes, len_bytes, reason: other.to_string() },
        }
    }
}

/// A device: bytes on flash. All offsets and lengths are in bytes and multiples of the block size (4096).
///
/// Calls block. Many threads may call at once. A write is durable only after a later `flush` returned; until
/// then a power cut may keep all, a part or nothing of it.
pub trait Device: Send + Sync {
    /// The device's properties; constant for its life.
    fn info(&self) -> &DeviceInfo;

    /// Fills `buf` from `offset_bytes`.
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `buf` at `offset_bytes`. Not durable before a flush.
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError>;

    /// Makes every write durable that returned before this call.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Discards a range: its later content is undefined, and the device may reuse its space. Nothing on a
    /// device that cannot.
    fn discard(&self, _offset_bytes: u64, _len_bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Makes one zone of a zoned device empty. On a conventional block device it discards the range. A
    /// regular file keeps its space and its bytes.
    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.discard(offset_bytes, len_bytes)
    }

    /// The state of the zone that starts at `offset_bytes`; `None` on a conventional device.
    ///
    /// # Errors
    /// `Zone` if the device has taken the zone out of use, to be read only or not at all.
    fn zone_report(&self, _offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        Ok(None)
    }

    /// The zones that are active, by the byte at which each starts; none on a conventional device. Few calls
    /// of the device answer for all zones.
    fn active_zones(&self) -> Result<Vec<u64>, DeviceError> {
        Ok(Vec::new())
    }

    /// Ends a zone of a zoned device: it takes no writes until it is reset, and is not active any more. Its
    /// bytes stay. Nothing on a conventional device.
    fn finish_zone(&self, _offset_bytes: u64, _len_bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Does one operation of a batch that waits for it at most `limit`, where the device can bound its calls.
    /// After `Late` the operation may still take place. Most devices bound no call.
    fn run_within(&self, kind: &mut OpKind<'_>, _limit: Duration) -> Result<(), DeviceError> {
        match kind {
            OpKind::Read(at, buf) => self.read(*at, buf),
            OpKind::Write(at, buf) => self.write(*at, buf),
            OpKind::Flush => self.flush(),
        }
    }

    /// As `discard`, and waits at most `limit`, where the device can bound its calls. After `Late` it may
    /// still take place.
    fn discard_within(&self, offset_bytes: u64, len_bytes: u64, _limit: Duration) -> Result<(), DeviceError> {
        self.discard(offset_bytes, len_bytes)
    }

    /// As `reset_zone`, and waits at most `limit`, where the device can bound its calls. After `Late` the
    /// reset may still take place.
    fn reset_zone_within(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        _limit: Duration,
    ) -> Result<(), DeviceError> {
        self.reset_zone(offset_bytes, len_bytes)
    }

    /// Number of operations with a limit that ended with `Late` and have not taken place yet.
    fn unanswered(&self) -> usize {
        0
    }

    /// The device with another size, of whole blocks; with `None`, with the size that the file or block
    /// device has now. Only an image file takes any size: it is cut off or extended, durably. The answer
    /// shares the descriptor and the lock of this device, which stays usable as far as both reach.
    ///
    /// # Errors
    /// `Invalid` if the device does not take the size; `NoSpace` or `Io` if the file does not.
    fn resized(&self, _size_bytes: Option<u64>) -> Result<Arc<dyn Device>, DeviceError> {
        let (device, reason) = (self.info().name.clone(), "its size cannot be changed".to_owned());
        Err(DeviceError::Invalid { device, reason })
    }

    /// Whether operations of this device may run on a thread of their own, while the caller's thread and
    /// other devices work. For devices without a descriptor; simulated ones stay with the caller's thread.
    fn works_beside_others(&self) -> bool {
        false
    }

    /// A descriptor on which the kernel can do this device's reads, writes and flushes, many at once and in
    /// any order, with buffers aligned to 4096 bytes. It stays open as long as the device lives. With `None`,
    /// every operation uses the calls above.
    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> DeviceInfo {
        DeviceInfo { name: "d".to_owned(), size_bytes: 16384, zones: None }
    }

    #[test]
    fn ranges_are_whole_blocks_inside() {
        for (offset, len) in [(0, 0), (0, 16384), (12288, 4096), (16384, 0)] {
            assert_eq!(info().check_range(offset, len), Ok(()), "{len} at {offset}");
        }
        for (offset, len) in [(1, 4096), (0, 1), (16384, 4096), (0, 20480), (u64::MAX - 4095, 4096)] {
            let refused = info().check_range(offset, len);
            assert!(matches!(refused, Err(DeviceError::Invalid { .. })), "{len} at {offset}");
        }
    }

    #[test]
    fn each_error_code_becomes_the_variant_that_the_pool_acts_on() {
        let of = |errno| DeviceError::from_errno(&info(), "write", 4096, 8192, errno);
        assert!(matches!(of(Errno::NOSPC), DeviceError::NoSpace { offset_bytes: 4096, len_bytes: 8192, .. }));
        assert!(matches!(of(Errno::IO), DeviceError::Io { op: "write", .. }));
        assert_eq!(of(Errno::NODEV), DeviceError::Gone { device: "d".to_owned() });
        assert_eq!(of(Errno::NXIO), DeviceError::Gone { device: "d".to_owned() });
    }
}
