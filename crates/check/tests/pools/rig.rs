//! Filesystems on simulated devices, with random operations to fill them.

use std::sync::Arc;

use warpfire_check::{CheckOptions, CheckReport, check};
use warpfire_env::{Device, Timestamp};
use warpfire_fs::acl::Caller;
use warpfire_fs::{
    AllocMode, Fs, FsOptions, FsSchema, InsertSource, NewMode, NodeRef, Position, RenameMode, XattrMode,
};
use warpfire_log::Log;
use warpfire_meta::{Background, Engine, EngineOptions, Store};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{Cut, DeviceSpec, SimWorld, mix};

pub const ZONE_BYTES: u64 = 256 << 10;
pub const ZONES: u64 = 96;

pub type TestFs = Fs<Engine<Log, FsSchema>>;

/// Data columns, parity columns, devices.
pub type PoolShape = (u16, u8, usize);

pub const SHAPES: [PoolShape; 4] = [(1, 0, 1), (1, 1, 2), (2, 1, 4), (4, 2, 6)];

pub fn options() -> EngineOptions {
    EngineOptions {
        memtable_bytes: 192 << 10,
        block_cache_bytes: 1 << 20,
        log_bytes_max: 512 << 10,
        background: Background::Manual,
        read_only: false,
    }
}

/// New devices.
pub fn world(shape: PoolShape, seed: u64) -> SimWorld {
    SimWorld::of(seed, shape.2, &DeviceSpec::append_only("flash", ZONES * ZONE_BYTES))
}

/// An empty filesystem on new devices.
pub fn make(world: &SimWorld, (data, parity, _): PoolShape) -> TestFs {
    let make = CreateOptions { data, parity, zone_bytes: Some(ZONE_BYTES), force: false };
    let pool = Pool::create(world.devices(), &make, &*world.random(), Timestamp::default())
        .expect("blank devices take a pool");
    let (log, recovered) = Log::create(pool).expect("a new pool takes a log");
    let engine = Arc::new(Engine::open(log, recovered, FsSchema, options()).expect("the log opens"));
    Fs::format(&*engine, &*world.clock(), 0, 0).expect("an empty engine is formatted");
    Fs::open(engine, world.clock(), FsOptions::default()).expect("the filesystem opens")
}

/// The filesystem that the devices hold.
pub fn reopen(world: &SimWorld) -> TestFs {
    let (pool, root) = Pool::open_degraded(world.devices(), &*world.random()).expect("the pool opens");
    let (log, recovered) = Log::open(pool, &root).expect("the log opens");
    let engine = Arc::new(Engine::open(log, recovered, FsSchema, options()).expect("the log opens"));
    Fs::open(engine, world.clock(), FsOptions::default()).expect("the filesystem opens")
}

/// A deterministic sequence of numbers.
pub struct RigRandom(pub u64);

impl RigRandom {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % n
    }
}

fn bytes(draw: &mut RigRandom, len: u64) -> Vec<u8> {
    let seed = draw.below(u64::MAX);
    (0..len).map(|n| (mix(seed ^ (n / 8)) >> (8 * (n % 8))) as u8).collect()
}

/// Makes `steps` random calls. A call may fail, for example on a name that exists.
pub fn live(fs: &TestFs, seed: u64, steps: u64) {
    live_below(fs, fs.root(), seed, steps);
}

/// As `live`, in a directory.
pub fn live_below(fs: &TestFs, top: NodeRef, seed: u64, steps: u64) {
    let mut draw = RigRandom(seed << 32);
    let root = Caller::ROOT;
    let mut dirs: Vec<NodeRef> = vec![top];
    let mut files: Vec<NodeRef> = Vec::new();
    for step in 0..steps {
        let dir = Arc::clone(&dirs[draw.below(dirs.len() as u64) as usize]);
        let other = Arc::clone(&dirs[draw.below(dirs.len() as u64) as usize]);
        let name = format!("n{}", draw.below(60)).into_bytes();
        let name_b = format!("n{}", draw.below(60)).into_bytes();
        let file = (!files.is_empty()).then(|| Arc::clone(&files[draw.below(files.len() as u64) as usize]));
        match (draw.below(20), file) {
            (0, _) => dirs.extend(fs.mkdir(&root, &dir, &name, NewMode::exact(0o755)).ok()),
            (1, _) => _ = fs.symlink(&root, &dir, &name, b"../target"),
            (2, _) => {
                let len = draw.below(200_000);
                let data = bytes(&mut draw, len);
                _ = fs.create_file(&root, &dir, &name, NewMode::exact(0o644), &data);
            }
            (3 | 4, _) => {
                let len = draw.below(300);
                let data = bytes(&mut draw, len);
                _ = fs.create_file(&root, &dir, &name, NewMode::exact(0o644), &data);
            }
            (5, _) => files.extend(fs.create(&root, &dir, &name, NewMode::exact(0o600)).ok()),
            (6, _) => _ = fs.unlink(&root, &dir, &name),
            (7, _) => _ = fs.rmdir(&root, &dir, &name),
            (8, _) => _ = fs.rename(&root, (&dir, &name), (&other, &name_b), RenameMode::Replace),
            (9, _) => _ = fs.rename(&root, (&dir, &name), (&other, &name_b), RenameMode::Exchange),
            (10, Some(file)) => _ = fs.link(&root, &file, &dir, &name),
            (11, Some(file)) => {
                let value = bytes(&mut draw, 20);
                _ = fs.setxattr(&root, &file, b"user.k", &value, XattrMode::Either);
            }
            (12, Some(file)) => {
                let acl = [
                    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 10, 0, 0, 0, 4, 0, 5, 0, 255,
                    255, 255, 255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 1, 0, 255, 255, 255, 255,
                ];
                _ = fs.setxattr(&root, &file, b"system.posix_acl_access", &acl, XattrMode::Either);
            }
            (13, Some(file)) => _ = fs.truncate(&root, &file, draw.below(3_000_000)),
            (14, Some(file)) => {
                let (at, len) = (draw.below(3_000_000), draw.below(100_000) + 1);
                let mode = [
                    AllocMode::PunchHole,
                    AllocMode::Allocate,
                    AllocMode::Insert,
                    AllocMode::Collapse,
                    AllocMode::ZeroRange { keep_size: true },
                    AllocMode::KeepSize,
                ][draw.below(6) as usize];
                _ = fs.fallocate(&root, &file, mode, at, len);
            }
            (15, Some(file)) => {
                let to = Arc::clone(&files[draw.below(files.len() as u64) as usize]);
                let (from, at, len) = (draw.below(1_000_000), draw.below(1_000_000), draw.below(500_000));
                _ = fs.copy_range(&root, (&file, from), (&to, at), len);
            }
            (16..=18, Some(file)) => {
                let (at, len) = (draw.below(2_500_000), draw.below(60_000));
                let data = bytes(&mut draw, len);
                let position = if draw.below(3) == 0 { Position::End } else { Position::At(at) };
                _ = fs.write(&root, &file, position, &data);
            }
            _ => _ = fs.sync(),
        }
        if step % 7 == 0 {
            while fs.engine().background_step().expect("sound devices do not fail") {}
        }
    }
}

/// Writes files and rearranges them by pointers, `steps` times. Yanked slices outlive the bytes of their
/// files.
pub fn rearrange(fs: &TestFs, seed: u64, steps: u64) {
    let mut draw = RigRandom(seed << 32);
    let root = Caller::ROOT;
    let make = |n: u64| fs.create(&root, &fs.root(), format!("s{n}").as_bytes(), NewMode::exact(0o644));
    let files: Vec<NodeRef> = (0..5).map(|n| make(n).expect("a new name is made")).collect();
    let mut taken = vec![fs.yank(&files[0], 0, 0).expect("nothing is taken from an empty file")];
    for _ in 0..steps {
        let [from, to] = [0, 1].map(|_| &files[draw.below(5) as usize]);
        let (at, len) = (draw.below(600_000), 1 + draw.below(300_000));
        let place = draw.below(fs.getattr(to).size_bytes + 1);
        let slice = taken[draw.below(taken.len() as u64) as usize].clone();
        match draw.below(9) {
            0 | 1 => {
                let data = bytes(&mut draw, len);
                _ = fs.write(&root, to, Position::At(place), &data);
            }
            2 => taken.push(fs.yank(from, at, len).expect("files are readable")),
            3 => _ = fs.paste(&root, to, Position::At(place), &slice),
            4 => _ = fs.paste(&root, to, Position::End, &slice),
            5 => _ = fs.insert_range(&root, to, place, InsertSource::Slice(&slice)),
            6 => _ = fs.remove_range(&root, to, place, 3 * len),
            7 => _ = fs.concat(&root, to, &[Arc::clone(from), Arc::clone(to)]),
            _ => taken.truncate(5),
        }
        if fs.getattr(to).size_bytes > 3_000_000 {
            fs.truncate(&root, to, 0).expect("truncating works on a full pool too");
        }
        if draw.below(5) == 0 {
            _ = fs.sync();
        }
        while fs.engine().background_step().expect("sound devices do not fail") {}
    }
}

/// The report of a check of these devices.
pub fn checked(devices: &[Arc<dyn Device>]) -> CheckReport {
    check(devices, &CheckOptions::default()).expect("there is a pool")
}

/// Fails with all findings unless the report is clean.
pub fn assert_clean(report: &CheckReport, context: &str) {
    let all: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{context}: {} errors\n{}", report.errors, all.join("\n"));
}

/// The world after a power cut that loses every write that was not flushed.
pub fn cut(world: &SimWorld) -> SimWorld {
    world.cut(&Cut::LoseAll)
}
