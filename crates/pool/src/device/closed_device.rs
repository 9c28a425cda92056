//! The place of a device that the pool has closed.

use warpfire_env::{Device, DeviceError, DeviceInfo, ZoneReport};

/// Stands in the slot of a device that the pool has closed. Operations that began before end on the device
/// itself, and no other can begin.
pub(crate) struct ClosedDevice {
    info: DeviceInfo,
}

impl ClosedDevice {
    /// In place of this device.
    pub(crate) fn of(device: &dyn Device) -> Self {
        ClosedDevice { info: device.info().clone() }
    }

    fn gone(&self) -> DeviceError {
        DeviceError::Gone { device: self.info.name.clone() }
    }
}

impl Device for ClosedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        Err(self.gone())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(self.gone())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Err(self.gone())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Err(self.gone())
    }

    fn reset_zone(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Err(self.gone())
    }

    fn zone_report(&self, _: u64) -> Result<Option<ZoneReport>, DeviceError> {
        Err(self.gone())
    }
}
