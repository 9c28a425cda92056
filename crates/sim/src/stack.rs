//! The whole product over simulated devices: one thread, a clock that stands still, everything from one seed.

use std::fmt;
use std::sync::Arc;

use warpfire_env::{Clock, Device};
use warpfire_fs::{Fs, FsError, FsOptions, FsSchema};
use warpfire_log::{Log, LogError};
use warpfire_meta::{Background, Engine, EngineOptions, MetaError};
use warpfire_pool::{ACTIVE_ZONES_MIN, CreateOptions, Pool, PoolError, Root};
use warpfire_recover::{RecoverError, find_pool};
use warpfire_sim_env::{DeviceSpec, DistinctNumbers, SimRandom, SimWorld, mix};
use warpfire_units::BLOCK_BYTES;

/// Bytes of saved state in a root, at most, while the state log has room: little, so that the small pools of
/// the simulation write the state log as large ones do.
const STATE_TAIL_BYTES: usize = 300;

/// The engine that the simulation runs.
pub type SimEngine = Engine<Log, FsSchema>;

/// The filesystem that the simulation runs.
pub type SimFs = Fs<SimEngine>;

/// Why the stack could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// An error of the pool.
    #[error("pool: {0}")]
    Pool(#[from] PoolError),
    /// An error of the log.
    #[error("log: {0}")]
    Log(#[from] LogError),
    /// An error of the engine.
    #[error("engine: {0}")]
    Meta(#[from] MetaError),
    /// An error of the filesystem.
    #[error("filesystem: {0}")]
    Fs(#[from] FsError),
    /// No pool was found on devices without roots.
    #[error("recovery of roots: {0}")]
    Recover(#[from] RecoverError),
}

/// The rules of the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediaKind {
    /// Any block may be written at any time.
    Conventional,
    /// Overwrites are recorded, and are violations.
    AppendOnly,
    /// Writes away from the write pointer are refused.
    Zoned,
}

/// The shape of a simulated product: its devices and the sizes in its engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Data columns.
    pub data: u16,
    /// Parity columns.
    pub parity: u8,
    /// Devices beyond data and parity.
    pub spare: u16,
    /// Zones on each device.
    pub zones: u64,
    /// Bytes in a zone.
    pub zone_bytes: u64,
    /// The devices' rules.
    pub kind: MediaKind,
    /// The engine's memtable.
    pub memtable_bytes: u64,
    /// Bytes of commit log at which the engine writes tables.
    pub log_bytes_max: u64,
}

impl Shape {
    /// Two devices, everything small: a state is cheap to open.
    pub const TINY: Shape = Shape {
        data: 1,
        parity: 1,
        spare: 0,
        zones: 40,
        zone_bytes: 256 << 10,
        kind: MediaKind::Conventional,
        memtable_bytes: 64 << 10,
        log_bytes_max: 16 << 10,
    };

    /// The number of devices.
    #[must_use]
    pub fn devices(&self) -> usize {
        usize::from(self.data) + usize::from(self.parity) + usize::from(self.spare)
    }

    /// Draws a shape: all geometries, kinds of device and sizes of memory.
    #[must_use]
    pub fn draw(random: &SimRandom) -> Shape {
        let pick = |n: usize| usize::try_from(random.below(n as u64)).expect("an index");
        let geometries =
            [(1, 0, 0), (1, 1, 0), (2, 1, 0), (1, 2, 1), (4, 2, 0), (3, 2, 2), (1, 1, 1), (10, 4, 0)];
        let (data, parity, spare) = geometries[pick(geometries.len())];
        let kinds = [MediaKind::Conventional, MediaKind::AppendOnly, MediaKind::Zoned];
        Shape {
            data,
            parity,
            spare,
            zones: 32 + random.below(64),
            zone_bytes: (256 << 10) << pick(3),
            kind: kinds[pick(kinds.len())],
            memtable_bytes: (32 << 10) << pick(6),
            log_bytes_max: (8 << 10) << pick(7),
        }
    }

    /// Small shapes for crash states, by number; `kind` overrides the kind of the devices.
    #[must_use]
    pub fn of_crash(number: u64, kind: Option<MediaKind>) -> Shape {
        let random = SimRandom::new(mix(number) ^ 0x5a9e);
        let drawn = Shape::draw(&random);
        let geometries = [(1, 1, 0), (1, 0, 0), (2, 1, 0), (1, 1, 1), (4, 2, 0)];
        let (data, parity, spare) =
            geometries[usize::try_from(random.below(geometries.len() as u64)).expect("an index")];
        let log_bytes_max = drawn.log_bytes_max.min(64 << 10);
        let kind = kind.unwrap_or(drawn.kind);
        Shape { data, parity, spare, kind, log_bytes_max, ..Shape::TINY }
    }

    /// Blank devices of this shape.
    #[must_use]
    pub fn world(&self, seed: u64) -> SimWorld {
        SimWorld::of(seed, self.devices(), &self.spec("dev"))
    }

    /// A blank device of this shape. A zoned drive is as those that one can buy: its first zones take writes
    /// anywhere, few others may be active at once, and its zones may have less capacity than size. What it is
    /// follows from the shape.
    #[must_use]
    pub fn spec(&self, name: &str) -> DeviceSpec {
        let size_bytes = self.zones * self.zone_bytes;
        match self.kind {
            MediaKind::Conventional => DeviceSpec::conventional(name, size_bytes),
            MediaKind::AppendOnly => DeviceSpec::append_only(name, size_bytes),
            MediaKind::Zoned => {
                let random = SimRandom::new(mix(size_bytes) ^ mix(self.memtable_bytes));
                let conventional_zones = u32::try_from(random.below(5)).expect("below 5");
                let unwritable_bytes = random.below(3) * 20 * BLOCK_BYTES as u64;
                let limits = (conventional_zones, ACTIVE_ZONES_MIN);
                let drive = DeviceSpec::zoned_drive(name, size_bytes, self.zone_bytes, limits);
                drive.with_larger_zones(unwritable_bytes)
            }
        }
    }

    fn options(&self) -> EngineOptions {
        EngineOptions {
            memtable_bytes: self.memtable_bytes,
            block_cache_bytes: 1 << 20,
            log_bytes_max: self.log_bytes_max,
            background: Background::Manual,
            read_only: false,
        }
    }

    /// Makes a pool and a filesystem on blank devices.
    ///
    /// # Errors
    /// The error of the crate that fails.
    pub fn make(&self, world: &SimWorld) -> Result<SimFs, StackError> {
        let options = CreateOptions {
            data: self.data,
            parity: self.parity,
            zone_bytes: Some(self.zone_bytes),
            force: false,
        };
        let clock = world.clock();
        let pool = Pool::create(world.devices(), &options, &*world.random(), clock.now())?;
        let (log, recovered) = Log::create(pool)?;
        let log = log.with_state_tail_bytes(STATE_TAIL_BYTES);
        let engine = Engine::open(log, recovered, FsSchema, self.options())?;
        Fs::format(&engine, &*clock, 0, 0)?;
        Ok(Fs::open(Arc::new(engine), clock, FsOptions::default())?)
    }

    /// Opens the filesystem on the world's devices.
    ///
    /// # Errors
    /// The error of the crate that fails.
    pub fn open(&self, world: &SimWorld) -> Result<SimFs, StackError> {
        self.open_devices(world.devices(), world.clock())
    }

    /// Opens the filesystem on these devices, which may be in any order and incomplete.
    ///
    /// # Errors
    /// The error of the crate that fails.
    pub fn open_devices(
        &self,
        devices: Vec<Arc<dyn Device>>,
        clock: Arc<dyn Clock>,
    ) -> Result<SimFs, StackError> {
        self.open_stack(Pool::open_degraded(devices, &DistinctNumbers)?, clock, false)
    }

    /// As `open_devices`, for reading only.
    ///
    /// # Errors
    /// The error of the crate that fails.
    pub fn open_for_reading(
        &self,
        devices: Vec<Arc<dyn Device>>,
        clock: Arc<dyn Clock>,
    ) -> Result<SimFs, StackError> {
        self.open_stack(Pool::open_for_reading(devices)?, clock, true)
    }

    /// Overwrites the zones of roots on all devices.
    pub fn lose_roots(&self, world: &SimWorld) {
        let zeroes = vec![0; usize::try_from(2 * self.zone_bytes).expect("zones are small")];
        world.sims().iter().for_each(|device| device.poke(0, &zeroes));
    }

    /// As `open_for_reading`, of devices that have lost their roots.
    ///
    /// # Errors
    /// The error of the crate that fails.
    pub fn open_without_roots(
        &self,
        devices: &[Arc<dyn Device>],
        clock: Arc<dyn Clock>,
    ) -> Result<SimFs, StackError> {
        self.open_for_reading(find_pool(devices, None)?.devices_with_roots(), clock)
    }

    fn open_stack(
        &self,
        (pool, root): (Pool, Root),
        clock: Arc<dyn Clock>,
        read_only: bool,
    ) -> Result<SimFs, StackError> {
        let (log, recovered) = Log::open(pool, &root)?;
        let log = log.with_state_tail_bytes(STATE_TAIL_BYTES);
        let options = EngineOptions { read_only, ..self.options() };
        let engine = Engine::open(log, recovered, FsSchema, options)?;
        Ok(Fs::open(Arc::new(engine), clock, FsOptions { read_only, ..FsOptions::default() })?)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}+{} over {} {:?} devices, {} zones of {} KiB, memtable {} KiB, log {} KiB",
            self.data,
            self.parity,
            self.devices(),
            self.kind,
            self.zones,
            self.zone_bytes >> 10,
            self.memtable_bytes >> 10,
            self.log_bytes_max >> 10
        )
    }
}

/// The first overwrite of bytes in use on any device, as text.
#[must_use]
pub fn overwrite(world: &SimWorld) -> Option<String> {
    world.sims().iter().find_map(|sim| {
        let violation = *sim.overwrites().first()?;
        Some(format!("{} was overwritten: {violation:?}", sim.spec().name))
    })
}
