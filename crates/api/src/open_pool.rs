//! Joins the layers of a pool: devices, a pool over them, a log over that, a metadata engine, the filesystem
//! on top.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_env::{Clock, Device, MachineMemory, SystemClock, SystemRandom};
use warpfire_format::log_state;
use warpfire_fs::{AtimeMode, Fs, FsOptions, FsSchema};
use warpfire_log::{Log, LogStore, RecoveredLog};
use warpfire_meta::{Background, EngineOptions, MemoryLimits};
use warpfire_pool::{CreateOptions, DeviceSetError, DeviceState, FrozenState, Pool, Root};
use warpfire_units::DeviceIndex;

use crate::cache_size;
use crate::stats::{DeviceStats, StateAge, Stats};
use crate::{Error, Identity, Result};

/// The metadata engine of a pool on this machine: it keeps its tables in the log of the pool.
pub type Engine = warpfire_meta::Engine<Log, FsSchema>;

/// How a pool is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenMode {
    pub background: Background,
    pub atime: AtimeMode,
    pub read_only: bool,
    pub degraded: bool,
    /// A device to use again that was kept offline.
    pub online: Option<u16>,
    pub memory: MemoryLimits,
    /// Most bytes of the metadata cache.
    pub cache_bytes: u64,
    pub cache_files: bool,
}

/// An open filesystem and the pool under it. Clones share it.
#[derive(Clone)]
pub(crate) struct OpenPool {
    pub fs: Arc<Fs<Engine>>,
    /// Whether threads of this process work on the pool without a call.
    pub has_background: bool,
    pool: Pool,
}

impl OpenPool {
    /// Makes a pool with an empty filesystem. `owner` owns the root directory.
    pub fn create(
        devices: Vec<Arc<dyn Device>>,
        options: &CreateOptions,
        owner: &Identity,
        mode: OpenMode,
    ) -> Result<Self> {
        let pool = Pool::create(devices, options, &SystemRandom, SystemClock.now())?;
        let (log, recovered) = Log::create(pool.clone())?;
        let engine = engine(log, recovered, mode)?;
        Fs::format(&*engine, &SystemClock, owner.uid, owner.gid)?;
        OpenPool::over(engine, pool, mode)
    }

    /// Opens a pool: recovery replays the commit log up to the last complete sync. To read only, it does so
    /// in memory and writes nothing.
    pub fn open(devices: Vec<Arc<dyn Device>>, mode: OpenMode) -> Result<Self> {
        OpenPool::open_layers(devices, mode).map_err(Error::unopened)
    }

    fn open_layers(devices: Vec<Arc<dyn Device>>, mode: OpenMode) -> Result<Self> {
        let opened = match mode {
            OpenMode { read_only: true, .. } => Pool::open_for_reading(devices),
            OpenMode { online: Some(index), .. } => {
                Pool::open_with_online(devices, &SystemRandom, &[DeviceIndex(index)])
            }
            OpenMode { degraded: true, .. } => Pool::open_degraded(devices, &SystemRandom),
            _ => Pool::open(devices, &SystemRandom),
        };
        let (pool, root) = opened?;
        if let Some(found) = log_state::unsupported(&root.payload) {
            let device = pool.status().devices.into_iter().find_map(|device| device.name);
            return Err(DeviceSetError::Unsupported { device: device.unwrap_or_default(), found }.into());
        }
        let opened = OpenPool::open_above(pool.clone(), &root, mode);
        // The devices that are missing say more than the first segment that needs them.
        if opened.is_err() {
            pool.check_covered()?;
        }
        opened
    }

    /// Opens all that lies above the devices.
    fn open_above(pool: Pool, root: &Root, mode: OpenMode) -> Result<Self> {
        let (log, recovered) = Log::open(pool.clone(), root)?;
        OpenPool::over(engine(log, recovered, mode)?, pool, mode)
    }

    fn over(engine: Arc<Engine>, pool: Pool, mode: OpenMode) -> Result<Self> {
        let OpenMode { atime, read_only, memory, cache_files, .. } = mode;
        let options = FsOptions { atime, read_only, memory, keeps_files: cache_files };
        let fs = Fs::open(engine, Arc::new(SystemClock), options)?;
        // A command that is short would end before the upkeep does it. What fails is tried again there.
        drop(fs.forget_volumes());
        let has_background = mode.background == Background::Threads;
        Ok(OpenPool { fs: Arc::new(fs), has_background, pool })
    }

    /// The name of the pool.
    pub fn uuid(&self) -> warpfire_format::Uuid {
        self.pool.status().uuid
    }

    /// Whether the pool is open for reading.
    pub fn is_read_only(&self) -> bool {
        self.pool.is_for_reading()
    }

    /// As [`Pool::freeze`].
    pub fn freeze<T>(&self, load: impl FnOnce(&[Arc<dyn Device>]) -> T) -> (FrozenState, T) {
        self.pool.freeze(load)
    }

    /// The devices that take no writes.
    pub fn lost_devices(&self) -> BTreeSet<DeviceIndex> {
        let devices = self.pool.status().devices.into_iter();
        devices.filter(|device| device.state != DeviceState::Present).map(|device| device.index).collect()
    }

    /// Makes durable which columns lack stripes, and goes on in log segments with all the redundancy that the
    /// devices allow.
    pub fn settle_devices(&self) -> Result<()> {
        let engine = self.fs.engine();
        engine.log().renew_log()?;
        // The log segments from before, with fewer copies, are not needed any more.
        engine.checkpoint()?;
        engine.wake();
        Ok(self.fs.sync()?)
    }

    /// The name of a device, or its number if it is missing.
    pub fn device_name(&self, index: DeviceIndex) -> String {
        let device = self.pool.status().devices.into_iter().find(|device| device.index == index);
        device.and_then(|device| device.name).unwrap_or_else(|| format!("device {}", index.0))
    }

    pub fn stats(&self) -> Stats {
        let status = self.pool.status();
        let counters = self.pool.counters();
        let stranded = self.pool.stranded();
        let stranded_zones =
            |index| stranded.zones.iter().find(|(d, _)| *d == index).map_or(0, |(_, zones)| *zones);
        let device = |device: warpfire_pool::DeviceStatus| DeviceStats {
            index: device.index.0,
            uuid: device.uuid.to_string(),
            name: device.name,
            state: device.state,
            old_copy: device.old_copy,
            is_leaving: device.is_leaving,
            is_spare: device.is_spare,
            is_slow: device.is_slow,
            size_bytes: u64::from(device.zones) * status.zone_bytes,
            free_bytes: u64::from(device.free_zones) * status.zone_bytes,
            retired_bytes: u64::from(device.retired_zones) * status.zone_bytes,
            stranded_bytes: stranded_zones(device.index) * status.zone_bytes,
            counters: device.counters,
            life: device.life,
        };
        Stats {
            pool: status.uuid.to_string(),
            label: self.pool.label().as_str().to_owned(),
            data: status.data,
            parity: status.parity,
            state_age: match (self.pool.newer_session(), self.pool.may_be_older()) {
                (Some(_), _) => StateAge::Older,
                (None, true) => StateAge::MayBeOlder,
                (None, false) => StateAge::Newest,
            },
            losses_left: self.fs.engine().log().losses_left(),
            zone_bytes: status.zone_bytes,
            devices: status.devices.into_iter().map(device).collect(),
            more_devices: stranded.cure.map(|more| (more.count, more.zones * status.zone_bytes)),
            space: self.fs.engine().log().space(),
            payload_bytes: counters.payload_bytes,
            stripes: counters.stripes,
            rebuilt_blocks: counters.rebuilt_blocks,
            damaged_segments: self.fs.engine().log().weak_segments(),
            cache: self.fs.engine().cache_memory(),
            transactions: self.fs.transaction_counts(),
            defragmented: self.fs.defragment_counts(),
        }
    }
}

fn engine(log: Log, recovered: RecoveredLog, mode: OpenMode) -> Result<Arc<Engine>> {
    let OpenMode { background, read_only, cache_bytes, .. } = mode;
    let block_cache_bytes = cache_size::limit_bytes(cache_bytes, 0, MachineMemory::read());
    let log = if background == Background::Threads { log.with_writer_thread() } else { log };
    let memtable_bytes = cache_size::memtable_bytes(cache_bytes);
    let options = EngineOptions {
        background,
        read_only,
        block_cache_bytes,
        memtable_bytes,
        ..EngineOptions::default()
    };
    Ok(Arc::new(Engine::open(log, recovered, FsSchema, options)?))
}
