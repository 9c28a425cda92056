//! The specification of a simulated device: its size, and its rules.

use warpfire_env::{ZoneInfo, ZoneMap};

use crate::device::BLOCK;
use crate::medium::Medium;

/// The rules of a simulated device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// Any block may be written at any time.
    Conventional,
    /// As conventional, and a write over a block that was written and not discarded since is recorded as an
    /// [`Overwrite`](crate::Overwrite). The write happens nevertheless.
    AppendOnly,
    /// Refuses a write that does not start at its zone's write pointer or runs past the zone.
    Zoned {
        /// Bytes of a zone that can be written; divides the size.
        zone_bytes: u64,
        /// Bytes from the start of a zone to the start of the next, on the flash. Callers see the writable
        /// ones only.
        stride_bytes: u64,
        /// The first so many zones take writes anywhere.
        conventional_zones: u32,
        /// Most zones that may be written and not full; 0 if there is no limit.
        active_zones_max: u32,
    },
}

/// The bytes that discards leave behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscardBehavior {
    /// Zeros, always.
    Zeros,
    /// The old bytes, always.
    Old,
    /// Zeros or the old bytes; each discard draws one from the world's seed.
    Either,
}

/// The specification of a simulated device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// The device's name in errors.
    pub name: String,
    /// Its size, a multiple of 4096 (and of the zone, if zoned). Unwritten blocks take no memory.
    pub size_bytes: u64,
    /// Its rules.
    pub kind: DeviceKind,
    /// The bytes that reads find in discarded blocks. A zone that was reset reads as zeros.
    pub discard_behavior: DiscardBehavior,
}

impl DeviceSpec {
    /// A conventional device.
    #[must_use]
    pub fn conventional(name: impl Into<String>, size_bytes: u64) -> Self {
        let kind = DeviceKind::Conventional;
        DeviceSpec { name: name.into(), size_bytes, kind, discard_behavior: DiscardBehavior::Either }
    }

    /// A conventional device that records overwrites.
    #[must_use]
    pub fn append_only(name: impl Into<String>, size_bytes: u64) -> Self {
        DeviceSpec { kind: DeviceKind::AppendOnly, ..Self::conventional(name, size_bytes) }
    }

    /// A zoned device.
    #[must_use]
    pub fn zoned(name: impl Into<String>, size_bytes: u64, zone_bytes: u64) -> Self {
        Self::zoned_drive(name, size_bytes, zone_bytes, (0, 0))
    }

    /// As `zoned`. The first `conventional` zones take writes anywhere, and at most `active` of the others
    /// are written and not full at once.
    #[must_use]
    pub fn zoned_drive(
        name: impl Into<String>,
        size_bytes: u64,
        zone_bytes: u64,
        (conventional_zones, active_zones_max): (u32, u32),
    ) -> Self {
        let kind =
            DeviceKind::Zoned { zone_bytes, stride_bytes: zone_bytes, conventional_zones, active_zones_max };
        DeviceSpec { kind, ..Self::conventional(name, size_bytes) }
    }

    /// As a zoned device whose zones are this much larger than their capacity. Others stay as they are.
    #[must_use]
    pub fn with_larger_zones(mut self, more_bytes: u64) -> Self {
        if let DeviceKind::Zoned { stride_bytes, .. } = &mut self.kind {
            *stride_bytes += more_bytes;
        }
        self
    }

    pub(crate) fn zones(&self) -> Option<ZoneInfo> {
        match self.kind {
            DeviceKind::Zoned { zone_bytes, conventional_zones, active_zones_max, .. } => {
                Some(ZoneInfo { zone_bytes, conventional_zones, active_zones_max })
            }
            DeviceKind::Conventional | DeviceKind::AppendOnly => None,
        }
    }

    /// Where the bytes lie that callers see.
    pub(crate) fn zone_map(&self) -> ZoneMap {
        match self.kind {
            DeviceKind::Zoned { zone_bytes, stride_bytes, .. } => ZoneMap::new(zone_bytes, stride_bytes),
            DeviceKind::Conventional | DeviceKind::AppendOnly => ZoneMap::PLAIN,
        }
    }

    /// A blank medium of this size.
    ///
    /// # Panics
    /// If the sizes are not multiples of each other as the fields say.
    pub(crate) fn blank_medium(&self) -> Medium {
        assert!(self.size_bytes > 0 && self.size_bytes.is_multiple_of(BLOCK), "sizes are whole blocks");
        let DeviceKind::Zoned { zone_bytes, stride_bytes, conventional_zones, .. } = self.kind else {
            return Medium::new(self.size_bytes / BLOCK, None, 0);
        };
        let is_whole = |bytes: u64| bytes > 0 && bytes.is_multiple_of(BLOCK);
        assert!(is_whole(zone_bytes) && is_whole(stride_bytes), "zones are whole blocks");
        assert!(self.size_bytes.is_multiple_of(zone_bytes), "a device is whole zones");
        let zone_blocks = stride_bytes / BLOCK;
        let zones = self.size_bytes / zone_bytes;
        Medium::new(zones * zone_blocks, Some(zone_blocks), u64::from(conventional_zones) * zone_blocks)
    }
}
