//! What a pool says of itself.

use std::fmt;

pub use warpfire_fs::{DefragmentCounts, TransactionCounts};
pub use warpfire_meta::Space;
pub use warpfire_pool::{DeviceCounters, DeviceState};

/// A pool at a glance.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The pool's own number, in hexadecimal.
    pub pool: String,
    /// Devices of a stripe that hold data.
    pub data: u16,
    /// Devices of a stripe that hold parity: as many may be lost.
    pub parity: u8,
    /// Bytes of a zone.
    pub zone_bytes: u64,
    /// All devices of the pool, in order, missing ones too.
    pub devices: Vec<DeviceStats>,
    /// Where the space is. Parity and headers are taken off.
    pub space: Space,
    /// Bytes that were given to devices for keeping since the pool was opened, parity, headers and padding not counted.
    pub payload_bytes: u64,
    /// Stripes that were written since the pool was opened.
    pub stripes: u64,
    /// Blocks that were rebuilt for a read since the pool was opened.
    pub rebuilt_blocks: u64,
    /// Segments in which damage was seen since the pool was opened.
    pub damaged_segments: usize,
    /// How transactions have ended since the pool was opened, and how often their calls were made again.
    pub transactions: TransactionCounts,
    /// Pieces of files that were written next to each other since the pool was opened, because they were read together.
    pub defragmented: DefragmentCounts,
}

/// One device of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Its place in the pool, from 0.
    pub index: u16,
    /// Its own number, in hexadecimal.
    pub uuid: String,
    /// Its path; `None` while it is missing.
    pub name: Option<String>,
    /// How it is doing.
    pub state: DeviceState,
    /// Bytes of it that the pool uses.
    pub size_bytes: u64,
    /// Bytes of its free zones.
    pub free_bytes: u64,
    /// What was done to it since the pool was opened.
    pub counters: DeviceCounters,
}

impl Stats {
    /// What was done to all devices together since the pool was opened.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        let mut total = DeviceCounters::default();
        for device in &self.devices {
            total += device.counters;
        }
        total
    }

    /// How many devices are missing or have failed.
    #[must_use]
    pub fn lost_devices(&self) -> usize {
        self.devices.iter().filter(|device| !device.is_present()).count()
    }
}

impl DeviceStats {
    /// Whether it is there and works.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.state == DeviceState::Present
    }
}

impl fmt::Display for DeviceStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "device {}", self.index),
        }
    }
}
