//! The devices of an open pool: adding one.

use std::path::Path;

use warpfire_env::SystemRandom;

use crate::devices::{DeviceContent, NewDevices};
use crate::{Result, Warpfire};

/// How a device is added to a pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct AddDevice {
    size_bytes: Option<u64>,
    force: bool,
}

impl AddDevice {
    /// A device that holds nothing. A new image file is as large as the largest device of the pool.
    #[must_use]
    pub fn new() -> Self {
        AddDevice::default()
    }

    /// The size of a new image file.
    #[must_use]
    pub fn size_bytes(self, bytes: u64) -> Self {
        AddDevice { size_bytes: Some(bytes), ..self }
    }

    /// Whether to overwrite what the device holds.
    #[must_use]
    pub fn force(self, force: bool) -> Self {
        AddDevice { force, ..self }
    }
}

impl Warpfire {
    /// Adds a device or image file to the pool while it is in use, and returns its position there. New data
    /// goes to it too; the data that is there stays where it is. An image file that does not exist is made.
    /// Durable on return. After a crash the pool has the device or not; if not, it can be added again.
    ///
    /// From now on the device is named with the others when the pool is opened.
    ///
    /// ```
    /// use warpfire::{AddDevice, Pool};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let images = ["a", "b"].map(|name| dir.path().join(name));
    /// let fs = Pool::options().size_bytes(32 << 20).parity(1).create(&images)?;
    /// let free_bytes = fs.space()?.available_bytes;
    /// assert_eq!(fs.add_device(dir.path().join("c"), &AddDevice::new())?, 2);
    /// assert!(fs.space()?.available_bytes > free_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the device belongs to the pool already, is too small, or has zones of another size;
    /// `AlreadyExists` if it holds something and `force` is not set; `InUse`; `Device` if it fails;
    /// `ReadOnly` if the pool takes no changes.
    pub fn add_device(&self, path: impl AsRef<Path>, how: &AddDevice) -> Result<u16> {
        let path = path.as_ref();
        let largest = || self.stats().devices.iter().map(|device| device.size_bytes).max().unwrap_or(0);
        let size_bytes = how.size_bytes.unwrap_or_else(largest);
        // The pool knows its own devices: one that has left it, or joined it half, is added again.
        let may_hold = |content: DeviceContent| how.force || content == DeviceContent::Pool;
        let mut new = NewDevices::prepare(&[path.to_path_buf()], size_bytes, may_hold)?;
        let device = new.devices.pop().expect("one path is one device");
        match self.fs().engine().log().pool().add_device(device, how.force, &SystemRandom) {
            Ok(index) => Ok(index.0),
            Err(error) => {
                new.discard();
                Err(error.into())
            }
        }
    }
}
