//! The product over simulated devices, with its threads.

use std::sync::Arc;

use warpfire_env::{Clock, Device, Timestamp};
use warpfire_fs::{Fs, FsOptions, FsSchema};
use warpfire_log::{Log, RecoveredLog};
use warpfire_meta::{Background, Engine, EngineOptions, PlainSchema, Schema};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{Cut, DeviceSpec, SimWorld};

use crate::device::ScheduledDevice;
use crate::draw;

/// The log under test.
pub type TestLog = Log;
/// The engine under test, with keys of no special kind.
pub type TestEngine = Engine<Log, PlainSchema>;
/// The filesystem under test.
pub type TestFs = Fs<Engine<Log, FsSchema>>;

/// Bytes of a zone. Segments of this size fill within a few appends.
pub const ZONE_BYTES: u64 = 128 << 10;
/// Zones of a device, if the test does not choose them.
const ZONES: u64 = 48;

/// Simulated devices, and the way to make and open the product on them.
pub struct Stack {
    world: SimWorld,
    data: u16,
    parity: u8,
}

impl Stack {
    /// Blank devices: one, or two data devices and one of parity.
    #[must_use]
    pub fn draw() -> Stack {
        Stack::of(ZONES)
    }

    /// Blank devices of so many zones.
    #[must_use]
    pub fn of(zones: u64) -> Stack {
        let (data, parity) = if draw(2) == 0 { (1, 0) } else { (2, 1) };
        let spec = DeviceSpec::conventional("flash", zones * ZONE_BYTES);
        let world = SimWorld::of(draw(1 << 32), usize::from(data) + usize::from(parity), &spec);
        Stack { world, data, parity }
    }

    /// The simulated devices, for faults.
    #[must_use]
    pub fn world(&self) -> &SimWorld {
        &self.world
    }

    /// The devices after a power cut now. This stack goes on without a cut.
    #[must_use]
    pub fn cut(&self) -> Stack {
        let cut = match draw(4) {
            0 => Cut::LoseAll,
            1 => Cut::KeepAll,
            _ => Cut::Seeded(draw(1 << 32)),
        };
        Stack { world: self.world.cut(&cut), data: self.data, parity: self.parity }
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.world.devices().into_iter().map(|device| Arc::new(ScheduledDevice(device)) as _).collect()
    }

    fn engine_options(background: Background) -> EngineOptions {
        EngineOptions {
            memtable_bytes: 32 << 10,
            block_cache_bytes: 4 << 10,
            log_bytes_max: 16 << 10,
            background,
            read_only: false,
        }
    }

    fn create(&self) -> (Log, RecoveredLog) {
        let shape = CreateOptions {
            data: self.data,
            parity: self.parity,
            zone_bytes: Some(ZONE_BYTES),
            force: false,
        };
        let pool = Pool::create(self.devices(), &shape, &*self.world.random(), Timestamp::default());
        Log::create(pool.expect("blank devices take a pool")).expect("a new pool takes a log")
    }

    fn open(&self) -> (Log, RecoveredLog) {
        let (pool, root) = Pool::open(self.devices(), &*self.world.random()).expect("the pool opens");
        Log::open(pool, &root).expect("the log opens")
    }

    /// A log on blank devices, with its writer thread.
    #[must_use]
    pub fn create_log(&self) -> TestLog {
        self.create().0.with_writer_thread()
    }

    /// An engine on blank devices, with its background threads.
    #[must_use]
    pub fn create_engine(&self) -> TestEngine {
        let (log, recovered) = self.create();
        open_engine(log.with_writer_thread(), recovered, PlainSchema, Background::Threads)
    }

    /// The log of these devices, and what it recovered.
    #[must_use]
    pub fn open_log(&self) -> (TestLog, RecoveredLog) {
        self.open()
    }

    /// The engine of these devices, without threads.
    #[must_use]
    pub fn open_engine(&self) -> TestEngine {
        let (log, recovered) = self.open();
        open_engine(log, recovered, PlainSchema, Background::Manual)
    }

    /// A filesystem on blank devices, whose engine has background threads.
    #[must_use]
    pub fn create_fs(&self) -> Arc<TestFs> {
        let (log, recovered) = self.create();
        let engine = open_engine(log.with_writer_thread(), recovered, FsSchema, Background::Threads);
        Fs::format(&engine, &*self.world.clock(), 0, 0).expect("an empty engine takes a filesystem");
        self.open_fs_over(engine)
    }

    /// The filesystem of these devices, without threads.
    #[must_use]
    pub fn open_fs(&self) -> Arc<TestFs> {
        let (log, recovered) = self.open();
        self.open_fs_over(open_engine(log, recovered, FsSchema, Background::Manual))
    }

    fn open_fs_over(&self, engine: Engine<Log, FsSchema>) -> Arc<TestFs> {
        let clock: Arc<dyn Clock> = self.world.clock();
        Arc::new(Fs::open(Arc::new(engine), clock, FsOptions::default()).expect("the filesystem opens"))
    }
}

fn open_engine<S: Schema>(
    log: Log,
    recovered: RecoveredLog,
    schema: S,
    background: Background,
) -> Engine<Log, S> {
    Engine::open(log, recovered, schema, Stack::engine_options(background)).expect("the engine opens")
}
