//! The devices of an open pool, adding and removing them, and its name.

use std::ops::ControlFlow;
use std::path::Path;

use rustix::io::Errno;
use warpfire_env::SystemRandom;
use warpfire_meta::Store;
use warpfire_pool::PoolLabel;
use warpfire_units::DeviceIndex;

use crate::devices::{DeviceContent, NewDevices};
use crate::error::ErrorKind;
use crate::{Error, Result, Warpfire};

/// Turns without success after which a device counts as one that cannot be emptied. Background work and
/// readers may hold a segment for a moment.
const TURNS_MAX: u32 = 8;

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
    /// Names the pool, or takes its name if `label` is empty. Durable on return.
    /// [`stats`](Warpfire::stats) and the labels of the devices show the name.
    ///
    /// ```
    /// let fs = warpfire::Pool::options().in_memory()?;
    /// fs.set_label("tank")?;
    /// assert_eq!(fs.stats().label, "tank");
    /// # Ok::<(), warpfire::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the name is longer than 64 bytes or has a control character; `ReadOnly` if the pool
    /// takes no changes.
    pub fn set_label(&self, label: &str) -> Result<()> {
        let Some(label) = PoolLabel::new(label) else {
            return Err(Error::invalid("a pool's name has at most 64 bytes and no control characters"));
        };
        Ok(self.fs().engine().log().pool().set_label(label)?)
    }

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

    /// Removes a device from the pool while it is in use: moves its data to the other devices, then forgets
    /// it and closes it. `index` is its position. The device may be missing; its data is then reconstructed.
    /// Returns `false` if `progress` ended the work: the device stays then, with the data that was not moved.
    ///
    /// `progress` is called with the segments that still have data on the device, again and again while they
    /// become fewer.
    ///
    /// A crash leaves the device leaving: its data goes on to move, and another call removes it.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use warpfire::Pool;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let images = ["a", "b", "c"].map(|name| dir.path().join(name));
    /// let fs = Pool::options().size_bytes(32 << 20).parity(1).create(&images)?;
    /// fs.write("/kept", vec![7; 1 << 20])?;
    /// assert!(fs.remove_device(0, |_| ControlFlow::Continue(()))?);
    /// assert_eq!(fs.read("/kept")?, vec![7; 1 << 20]);
    /// fs.close()?;
    /// let fs = Pool::options().open(&images[1..])?;
    /// assert_eq!(fs.read("/kept")?, vec![7; 1 << 20]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if there is no such device, or if fewer than data and parity devices would stay;
    /// `NoSpace` if the other devices have no room for its data: the device stays; `ReadOnly`.
    pub fn remove_device(
        &self,
        index: u16,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let device = DeviceIndex(index);
        let engine = self.fs().engine();
        let log = engine.log();
        log.pool().set_leaving(device, true)?;
        let emptied = self.empty_device(device, &mut progress);
        if !matches!(emptied, Ok(true)) {
            log.pool().set_leaving(device, false)?;
            return emptied;
        }
        log.pool().remove_device(device)?;
        Ok(true)
    }

    /// Moves all columns of a device that leaves. Returns whether `progress` let it.
    fn empty_device(
        &self,
        device: DeviceIndex,
        progress: &mut impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let engine = self.fs().engine();
        let log = engine.log();
        self.sync()?;
        // Ends: after some turns that leave as many segments on the device the work ends with an error.
        let (mut fewest, mut turns) = (u64::MAX, 0);
        loop {
            while log.has_due_work() {
                if progress(log.segments_on(device)).is_break() {
                    return Ok(false);
                }
                if !engine.background_step()? {
                    break;
                }
            }
            // The log segments and those without live bytes go with a checkpoint.
            engine.checkpoint()?;
            self.sync()?;
            let left = log.segments_on(device);
            if left == 0 {
                // No root but the newest is read, and it names no column on the device.
                engine.checkpoint()?;
                return Ok(log.segments_on(device) == 0);
            }
            turns = if left < fewest { 0 } else { turns + 1 };
            if turns >= TURNS_MAX {
                let reason = self.upkeep().blocked.unwrap_or_else(|| format!("{left} segments do not move"));
                let message = format!("the device cannot be emptied: {reason}");
                return Err(Error::new(ErrorKind::NoSpace, Errno::NOSPC.raw_os_error(), message));
            }
            fewest = fewest.min(left);
        }
    }
}
