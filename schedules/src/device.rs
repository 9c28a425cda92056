//! A device whose operations are steps of a schedule.

use std::sync::Arc;

use shuttle::thread::yield_now;
use warpfire_env::{Device, DeviceError, DeviceInfo, ZoneReport};

/// A simulated device before whose operations other tasks may run.
pub(crate) struct ScheduledDevice(pub(crate) Arc<dyn Device>);

impl Device for ScheduledDevice {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        yield_now();
        self.0.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        yield_now();
        self.0.write(offset_bytes, buf)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        yield_now();
        self.0.flush()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        yield_now();
        self.0.discard(offset_bytes, len_bytes)
    }

    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        yield_now();
        self.0.reset_zone(offset_bytes, len_bytes)
    }

    fn zone_report(&self, offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        self.0.zone_report(offset_bytes)
    }
}
