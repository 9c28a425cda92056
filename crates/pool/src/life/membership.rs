//! Membership: which devices belong to the pool, as its roots say it.
//!
//! # Invariants
//! 1. A change of membership is done once a root with the new table is durable, as any root
//!    (`Inner::write_table`). A crash leaves the table before the change or the one after it.
//! 2. The root repeats the payload of the newest root, so a change of membership changes nothing else.
//! 3. No zone of a device that leaves is taken, from before the root is written that says so (`set_leaving`).

use warpfire_format::root::{DeviceEntry, DeviceUse};
use warpfire_units::DeviceIndex;

use crate::error::{MembershipError, PoolError};
use crate::life::roots::Roots;
use crate::pool::{Inner, Pool};

impl Pool {
    /// Marks a device as leaving, or as staying again. A device that leaves gets no new columns; those that
    /// it has stay readable until the caller has moved them. Durable on return.
    ///
    /// # Errors
    /// `Membership` if the pool has no such device, or if too few devices would stay; `OpenForReading`;
    /// `Failed` if the root could not be written.
    pub fn set_leaving(&self, device: DeviceIndex, is_leaving: bool) -> Result<(), PoolError> {
        let inner = &self.inner;
        inner.check_writable()?;
        let mut roots = inner.roots.lock();
        let mut table = roots.table.clone();
        let entry = member_mut(&mut table, device).ok_or(MembershipError::Unknown(device))?;
        if entry.is_leaving == is_leaving {
            return Ok(());
        }
        entry.is_leaving = is_leaving;
        let staying = table.iter().filter(|e| e.state != DeviceUse::Gone && !e.is_leaving).count();
        let width = usize::from(inner.data) + usize::from(inner.parity);
        if is_leaving && staying < width {
            return Err(MembershipError::TooFew { staying, width }.into());
        }
        // Before the root: of the segments that are allocated from now on none is on the device.
        inner.devices.set_leaving(device, is_leaving);
        let written = inner.write_table(&mut roots, table);
        if written.is_err() {
            inner.devices.set_leaving(device, !is_leaving);
        }
        written
    }
}

impl Inner {
    /// Writes a root with this device table and the payload of the newest root. If that fails, the next root
    /// has the table from before.
    fn write_table(&self, roots: &mut Roots, table: Vec<DeviceEntry>) -> Result<(), PoolError> {
        // The first root of a session has the table that the session began with.
        self.repeat_inherited(roots)?;
        let before = std::mem::replace(&mut roots.table, table);
        roots.config_version += 1;
        let payload = roots.payload.clone();
        let written = self.append_root(roots, payload, false);
        if written.is_err() {
            roots.table = before;
        }
        written
    }
}

/// The entry of a device that was not removed.
fn member_mut(table: &mut [DeviceEntry], device: DeviceIndex) -> Option<&mut DeviceEntry> {
    table.get_mut(usize::from(device.0)).filter(|entry| entry.state != DeviceUse::Gone)
}
