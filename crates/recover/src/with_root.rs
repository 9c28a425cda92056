//! A device with a root in its place, in memory only.

use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, DeviceError, DeviceInfo, ZoneReport};
use warpfire_format::root::{RootHeader, encode_body};
use warpfire_format::root_copy::RootCopy;
use warpfire_format::{Uuid, crc32c};
use warpfire_units::{BLOCK_BYTES, DeviceIndex};

use crate::scan::zone_bytes_of;

/// Zones that hold roots.
const ROOT_ZONES: u64 = 2;

/// A root as a device holds it: a header block and the padded body.
pub(crate) fn record(copy: &RootCopy, device: DeviceIndex, device_uuid: Uuid) -> AlignedBuf {
    let body = encode_body(&copy.table, &copy.payload);
    let body_crc = crc32c(&body);
    let header = RootHeader { device, device_uuid, body_crc, ..copy.header.clone() };
    let mut record = AlignedBuf::zeroed(BLOCK_BYTES + body.len().next_multiple_of(BLOCK_BYTES));
    let (first, rest) = record.split_at_mut(BLOCK_BYTES);
    header.encode(first);
    rest[..body.len()].copy_from_slice(&body);
    record
}

/// A device, to read only, that seems to begin with a root.
pub(crate) struct WithRoot {
    device: Arc<dyn Device>,
    record: AlignedBuf,
    /// The root zones, of which nothing but the record is shown.
    hidden_bytes: u64,
}

impl WithRoot {
    pub fn new(device: Arc<dyn Device>, record: AlignedBuf, zone_blocks: u32) -> Self {
        let hidden_bytes = ROOT_ZONES * zone_bytes_of(zone_blocks);
        assert!(record.len() as u64 <= hidden_bytes / ROOT_ZONES, "a root lies in its zone");
        WithRoot { device, record, hidden_bytes }
    }

    fn refused(&self) -> DeviceError {
        let reason = "the roots of the pool are not rebuilt".to_owned();
        DeviceError::Invalid { device: self.device.info().name.clone(), reason }
    }
}

impl Device for WithRoot {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if offset_bytes >= self.hidden_bytes {
            return self.device.read(offset_bytes, buf);
        }
        self.info().check_range(offset_bytes, buf.len() as u64)?;
        let at = usize::try_from(offset_bytes).map_err(|_| self.refused())?;
        let hidden = usize::try_from(self.hidden_bytes - offset_bytes).unwrap_or(usize::MAX).min(buf.len());
        let (root, behind) = buf.split_at_mut(hidden);
        root.fill(0);
        if let Some(rest) = self.record.get(at..) {
            let shown = rest.len().min(root.len());
            root[..shown].copy_from_slice(&rest[..shown]);
        }
        if behind.is_empty() { Ok(()) } else { self.device.read(self.hidden_bytes, behind) }
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(self.refused())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Err(self.refused())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Err(self.refused())
    }

    fn reset_zone(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Err(self.refused())
    }

    /// It hides the descriptor, which would show the zones of the roots as they are. Without threads, a read
    /// of several columns would wait for one device after the other.
    fn works_beside_others(&self) -> bool {
        self.device.raw_fd().is_some() || self.device.works_beside_others()
    }

    fn zone_report(&self, offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        self.device.zone_report(offset_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;

    use super::*;

    /// A device without bytes, with a descriptor or without.
    struct Empty(DeviceInfo, Option<RawFd>);

    impl Device for Empty {
        fn info(&self) -> &DeviceInfo {
            &self.0
        }

        fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
            self.0.check_range(offset_bytes, buf.len() as u64)
        }

        fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
            self.0.check_range(offset_bytes, buf.len() as u64)
        }

        fn flush(&self) -> Result<(), DeviceError> {
            Ok(())
        }

        fn raw_fd(&self) -> Option<RawFd> {
            self.1
        }
    }

    /// A read of a large file without roots waited for four devices one after the other.
    #[test]
    fn real_devices_are_read_side_by_side_and_simulated_ones_are_not() {
        for descriptor in [Some(7), None] {
            let info = DeviceInfo { name: "empty".to_owned(), size_bytes: 0, zones: None };
            let record = AlignedBuf::zeroed(BLOCK_BYTES);
            let device = WithRoot::new(Arc::new(Empty(info, descriptor)), record, 4);
            assert_eq!(device.raw_fd(), None, "it would show the zones of the roots");
            assert_eq!(device.works_beside_others(), descriptor.is_some());
        }
    }
}
