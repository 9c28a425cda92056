//! The work that the departure of a device, or of a part of it, would make.

use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::log::Log;
use crate::look::Writable;

/// What moves when the zones of a device are given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaveWork {
    /// Segments of which the column there is rewritten as it is.
    pub moved_segments: u64,
    /// Bytes that are written for that.
    pub moved_bytes: u64,
    /// Segments of which the live bytes move to other segments: most of them is garbage, or they have more
    /// columns than devices would stay.
    pub cleaned_segments: u64,
    /// Bytes that are written for that, parity included.
    pub cleaned_bytes: u64,
    /// Bytes that are read for both.
    pub read_bytes: u64,
}

impl Log {
    /// What moves when this device gives up its zones from `first` on, and nothing else changes. All of it if
    /// `first` is zone 0: then its columns cannot stay on it. Nothing is read.
    #[must_use]
    pub fn leave_work(&self, device: DeviceIndex, first: ZoneIndex) -> LeaveWork {
        let leaves_whole = first == ZoneIndex(0);
        let mut staying = self.pool().allocatable_devices();
        staying.retain(|d| !leaves_whole || *d != device);
        // A device that takes no writes is read only where no other can stand in.
        let is_read = self.pool().takes_writes(device);
        let shape = self.pool().full_geometry();
        let with_parity = |bytes: u64| bytes + bytes * u64::from(shape.parity) / u64::from(shape.data.max(1));
        let writable = Writable::of(self.pool());
        let mut work = LeaveWork::default();
        self.look_at_each(&self.ids_on(device), |_, entry| {
            let is_there = entry.places().any(|(at, zone, _)| at == device && zone >= first);
            let live_bytes = entry.live_bytes();
            if live_bytes == 0 || !is_there {
                return;
            }
            let is_too_wide = leaves_whole && entry.places().count() > staying.len();
            if is_too_wide || (live_bytes * 2 < entry.written_bytes && writable.columns_left(entry) > 0) {
                work.cleaned_segments += 1;
                work.cleaned_bytes += with_parity(live_bytes);
                work.read_bytes += live_bytes;
            } else {
                let column_bytes = entry.written_bytes / u64::from(entry.data().max(1));
                work.moved_segments += 1;
                work.moved_bytes += column_bytes;
                work.read_bytes += if is_read { column_bytes } else { entry.written_bytes };
            }
        });
        work
    }
}
