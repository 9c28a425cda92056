//! The state of a pool and of its devices, and counts of their work.

use std::fmt;

pub use warpfire_fs::{DefragmentCounts, TransactionCounts};
pub use warpfire_meta::{CacheMemory, Space};
pub use warpfire_pool::{DeviceCounters, DeviceLife, DeviceState};

/// A pool at a glance. Counts begin when the pool is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The number that identifies the pool, in hexadecimal.
    pub pool: String,
    /// The name of the pool; empty if it has none.
    pub label: String,
    /// Devices of a stripe that hold data.
    pub data: u16,
    /// Devices of a stripe that hold parity: so many may be lost.
    pub parity: u8,
    /// How many more devices may be lost: the least over all segments. `None` if data can be lost already.
    pub losses_left: Option<u8>,
    /// Whether the state that was opened is the newest, as far as the devices say.
    pub state_age: StateAge,
    /// Bytes of a zone, the unit in which the pool frees space.
    pub zone_bytes: u64,
    /// All devices of the pool in their order, missing ones too.
    pub devices: Vec<DeviceStats>,
    /// Devices that would make the stranded bytes of all devices usable: their number, and bytes of each.
    /// `None` if no bytes are stranded.
    pub more_devices: Option<(u64, u64)>,
    /// Capacity and its use, in bytes of files and tables: without parity and headers.
    pub space: Space,
    /// Bytes of files and metadata that were written, without parity, headers and padding.
    pub payload_bytes: u64,
    /// Stripes that were written.
    pub stripes: u64,
    /// Blocks that were reconstructed from parity for a read.
    pub rebuilt_blocks: u64,
    /// Segments with less redundancy than the present devices allow: a block of them did not verify, a device
    /// was away when they were written, or a column missed a write.
    pub damaged_segments: usize,
    /// Memory of the cache of metadata and small files.
    pub cache: CacheMemory,
    /// Commits, conflicts, aborts and replays of transactions.
    pub transactions: TransactionCounts,
    /// Regions of fragmented files that reads had written anew, piece next to piece.
    pub defragmented: DefragmentCounts,
}

/// Whether the state that was opened is the newest, as far as the devices say.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StateAge {
    /// Nothing speaks against it.
    #[default]
    Newest,
    /// The missing devices may hold a newer state: they are enough to go on by themselves.
    MayBeOlder,
    /// The devices hold data of a later session than that of every root that can be read. So newer roots are
    /// lost, and with them later changes.
    Older,
}

/// One device of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Its position in the pool, from 0.
    pub index: u16,
    /// The number that identifies the device, in hexadecimal.
    pub uuid: String,
    /// Its path; `None` while it is missing.
    pub name: Option<String>,
    /// Whether it works, is missing, has failed, or is kept offline.
    pub state: DeviceState,
    /// The path of an old copy of it that was named instead of it. The copy is not used.
    pub old_copy: Option<String>,
    /// Whether it leaves the pool: it gets no new data, and its data moves to other devices.
    pub is_leaving: bool,
    /// Whether it is a spare, which takes the place of a device that is lost for long.
    pub is_spare: bool,
    /// Whether it has not answered for seconds. Reads go round it until it answers.
    pub is_slow: bool,
    /// Bytes of it that the pool uses.
    pub size_bytes: u64,
    /// Bytes of its free zones.
    pub free_bytes: u64,
    /// Bytes of its zones that it could not reset. They are out of use until it can.
    pub retired_bytes: u64,
    /// Bytes of it that no stripe can use, because too few other devices are as large.
    pub stranded_bytes: u64,
    /// Reads, writes and flushes of this device, with their bytes.
    pub counters: DeviceCounters,
    /// Bytes written to this device, and zones of it that were reset, since it joined the pool. Of a session
    /// that ended in a crash, what followed its last checkpoint is not counted.
    pub life: DeviceLife,
}

impl Stats {
    /// The sum of the counters of all devices.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        let mut total = DeviceCounters::default();
        for device in &self.devices {
            total += device.counters;
        }
        total
    }

    /// How many devices are missing, have failed or are offline.
    #[must_use]
    pub fn lost_devices(&self) -> usize {
        self.devices.iter().filter(|device| !device.is_present()).count()
    }
}

impl DeviceStats {
    /// Whether the device is there and works.
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
