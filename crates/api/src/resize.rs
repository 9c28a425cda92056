//! Changes the size of a device of an open pool.
//!
//! A device that grows is larger before the pool uses more of it, and a device that shrinks is smaller after
//! the pool uses less of it. So it has all zones of the pool's table at every moment, and another call goes
//! on after a crash.

use std::ops::ControlFlow;
use std::sync::Arc;

use warpfire_env::{Device, unanswered};
use warpfire_log::LeaveWork;
use warpfire_pool::{MembershipError, PlannedChange, PoolError};
use warpfire_units::{BLOCK_BYTES, DeviceIndex, ZoneIndex};

use crate::members::TURNS_MAX;
use crate::{Error, Result, Warpfire};

/// A change of the size of a device, before it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ResizePlan {
    /// Bytes that the pool uses of the device.
    pub used_bytes: u64,
    /// Bytes that it will use: whole zones.
    pub new_bytes: u64,
    /// Bytes of the device itself then. An image file is extended or cut off to this size.
    pub device_bytes: u64,
    /// Bytes that are written to move the data behind its new end.
    pub moved_bytes: u64,
    /// About the bytes that can be written to files then.
    pub available_bytes: u64,
    /// About the bytes that the rest of the devices has too few for that data; 0 if it has room.
    pub missing_bytes: u64,
}

impl Warpfire {
    /// What [`resize_device`](Warpfire::resize_device) would do. Nothing is written.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such device, it is not online, or it does not take the size.
    pub fn plan_resize(&self, index: u16, size_bytes: Option<u64>) -> Result<ResizePlan> {
        let (_, found) = self.measured(index)?;
        let pool = self.fs().engine().log().pool();
        let device_bytes = size_bytes.unwrap_or(found.info().size_bytes);
        let device_bytes = device_bytes - device_bytes % BLOCK_BYTES as u64;
        let (zone_bytes, zones) = (pool.status().zone_bytes, pool.zones_in(device_bytes));
        let used = self.stats().devices.into_iter().find(|device| device.index == index);
        let used_bytes = used.map_or(0, |device| device.size_bytes);
        let device = DeviceIndex(index);
        let work = match u64::from(zones) * zone_bytes < used_bytes {
            true => self.fs().engine().log().leave_work(device, ZoneIndex(zones)),
            false => LeaveWork::default(),
        };
        let plan = self.planned(work, &[PlannedChange::Resized { device, zones }])?;
        Ok(ResizePlan {
            used_bytes,
            new_bytes: u64::from(zones) * zone_bytes,
            device_bytes,
            moved_bytes: plan.written_bytes(),
            available_bytes: plan.available_bytes,
            missing_bytes: plan.missing_bytes,
        })
    }

    /// Gives a device another size while the pool is in use. An image file is extended or cut off; of a block
    /// device the pool uses more or less. Without a size the pool uses all of the device, which may have
    /// become larger. Data in the part that is cut off moves first, to the rest of the device or to others.
    /// Returns `false` if `progress` ended the work: the device keeps its size then. `progress` is called
    /// with the segments that still have data there.
    ///
    /// A crash leaves the old size or the new one; another call goes on.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use warpfire::Pool;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let image = dir.path().join("a");
    /// let fs = Pool::options().size_bytes(32 << 20).create([&image])?;
    /// let free_bytes = fs.space()?.available_bytes;
    /// assert!(fs.resize_device(0, Some(64 << 20), |_| ControlFlow::Continue(()))?);
    /// assert_eq!(image.metadata()?.len(), 64 << 20);
    /// assert!(fs.space()?.available_bytes > free_bytes + (30 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if there is no such device, it is not online, or it does not take the size; `NoSpace`
    /// if its data has no room elsewhere; `Device`; `ReadOnly`.
    pub fn resize_device(
        &self,
        index: u16,
        size_bytes: Option<u64>,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let plan = self.plan_resize(index, size_bytes)?;
        let (open, found) = self.measured(index)?;
        let device = DeviceIndex(index);
        let pool = self.fs().engine().log().pool();
        let zones = pool.zones_in(plan.device_bytes);
        if plan.new_bytes > plan.used_bytes {
            let is_long_enough = found.info().size_bytes >= plan.device_bytes;
            let larger = if is_long_enough { found } else { open.resized(Some(plan.device_bytes))? };
            pool.grow_device(device, zones, larger)?;
            return Ok(true);
        }
        if plan.new_bytes < plan.used_bytes {
            pool.set_end(device, Some(zones))?;
            let shrunk = self.shrink(device, zones, &mut progress);
            if !matches!(shrunk, Ok(true)) {
                pool.set_end(device, None)?;
                return shrunk;
            }
        }
        if size_bytes.is_some() && found.info().size_bytes > plan.device_bytes {
            pool.set_device(device, open.resized(Some(plan.device_bytes))?);
        }
        Ok(true)
    }

    /// Moves the columns behind the new end of a device, and uses fewer zones of it.
    fn shrink(
        &self,
        device: DeviceIndex,
        zones: u32,
        progress: &mut impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let engine = self.fs().engine();
        for turn in 0.. {
            if !self.empty_zones(device, ZoneIndex(zones), progress)? {
                return Ok(false);
            }
            match engine.log().pool().shrink_device(device, zones) {
                // A reader may hold a zone for a moment.
                Err(PoolError::Membership(MembershipError::InUse { .. })) if turn < TURNS_MAX => {
                    engine.checkpoint()?;
                    self.sync()?;
                }
                shrunk => {
                    shrunk?;
                    break;
                }
            }
        }
        Ok(true)
    }

    /// A device as it is open, and with the size that it has now.
    fn measured(&self, index: u16) -> Result<(Arc<dyn Device>, Arc<dyn Device>)> {
        let pool = self.fs().engine().log().pool();
        let Some(open) = pool.written_device(DeviceIndex(index)) else {
            return Err(Error::invalid(format!("device {index} is not online")));
        };
        if unanswered(&open) > 0 {
            return Err(
                PoolError::from(MembershipError::OwesAnswer { device: open.info().name.clone() }).into()
            );
        }
        let found = open.resized(None)?;
        Ok((open, found))
    }
}
