//! Trim: free zones are discarded, and no others.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use warpfire_env::sync::{Condvar, Mutex};
use warpfire_env::{Device, DeviceError, DeviceInfo, Timestamp, ZoneReport};
use warpfire_pool::{CreateOptions, Pool, SegmentKind, Trimmed};
use warpfire_sim_env::{DeviceSpec, DiscardBehavior, Fault, OpClass, SimWorld};

use crate::rig::{
    DEVICE_BYTES, ZONE_BYTES, assert_reads, create, id, open_with, options, world, write_segment,
};

/// How long a discard of `SlowDiscards` lasts: enough for a thread that wants its zone to come to it.
const DISCARD_TIME: Duration = Duration::from_millis(2);

/// A device whose discards take time, and which notes whether another change meets the zone of one.
struct SlowDiscards {
    device: Arc<dyn Device>,
    /// Where the discard that is running begins.
    discarding: Mutex<Option<u64>>,
    met: Condvar,
    has_met: AtomicBool,
}

impl SlowDiscards {
    fn new(device: Arc<dyn Device>) -> SlowDiscards {
        SlowDiscards {
            device,
            discarding: Mutex::default(),
            met: Condvar::default(),
            has_met: AtomicBool::default(),
        }
    }

    /// Notes a change of the zone with this byte.
    fn change(&self, offset_bytes: u64) {
        let zone_start = offset_bytes - offset_bytes % ZONE_BYTES;
        if *self.discarding.lock() == Some(zone_start) {
            self.has_met.store(true, Ordering::Relaxed);
            self.met.notify_all();
        }
    }
}

impl Device for SlowDiscards {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.change(offset_bytes);
        self.device.write(offset_bytes, buf)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let mut discarding = self.discarding.lock();
        *discarding = Some(offset_bytes);
        self.met.wait_while_for(&mut discarding, |_| !self.has_met.load(Ordering::Relaxed), DISCARD_TIME);
        *discarding = None;
        drop(discarding);
        self.device.discard(offset_bytes, len_bytes)
    }

    fn reset_zone(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.change(offset_bytes);
        self.device.reset_zone(offset_bytes, len_bytes)
    }

    fn zone_report(&self, offset_bytes: u64) -> Result<Option<ZoneReport>, DeviceError> {
        self.device.zone_report(offset_bytes)
    }
}

/// A pool on devices on which nothing survives a discard.
fn harsh_world(seed: u64) -> (SimWorld, Pool) {
    let discard_behavior = DiscardBehavior::Zeros;
    let spec = DeviceSpec { discard_behavior, ..DeviceSpec::append_only("flash", DEVICE_BYTES) };
    let world = SimWorld::of(seed, 3, &spec);
    let pool = create(&world, &options(2, 1)).unwrap();
    (world, pool)
}

fn free_bytes(pool: &Pool) -> u64 {
    pool.status().devices.iter().map(|d| u64::from(d.free_zones) * ZONE_BYTES).sum()
}

#[test]
fn a_trim_discards_every_free_zone_and_no_other() {
    let (world, pool) = harsh_world(90);
    let kept = write_segment(&pool, id(1), &[50_000]);
    let gone = write_segment(&pool, id(2), &[50_000]);
    pool.write_root(b"a root").unwrap();
    pool.free(gone.descriptor.id).unwrap();
    let all = pool.free_segments(SegmentKind::Bulk);
    assert_eq!(
        pool.trim(|_| ControlFlow::Continue(())).unwrap(),
        Trimmed { bytes: free_bytes(&pool), refused: 0 }
    );
    assert_eq!(pool.trim(|_| ControlFlow::Continue(())).unwrap().bytes, 0, "all of it is discarded already");
    assert_eq!(pool.free_segments(SegmentKind::Bulk), all);
    // A zone that was written since is discarded again.
    write_segment(&pool, id(3), &[50_000]);
    pool.free(id(3)).unwrap();
    assert_eq!(pool.trim(|_| ControlFlow::Continue(())).unwrap().bytes, 3 * ZONE_BYTES);
    assert_reads(&pool, &kept);
    let again = open_with(world.devices(), &[&kept]);
    assert_reads(&again, &kept);
    assert_eq!(
        again.trim(|_| ControlFlow::Continue(())).unwrap().bytes,
        free_bytes(&again),
        "a new session knows of no discard"
    );
    assert_reads(&again, &kept);
}

#[test]
fn devices_that_refuse_discards_are_used_as_before() {
    let (world, pool) = world(91, 3, 2, 1);
    let kept = write_segment(&pool, id(1), &[50_000]);
    world.sims()[1].inject(Fault::Fail { op: OpClass::Discard, after: 2, lasting: true });
    let all = free_bytes(&pool);
    let trimmed = pool.trim(|_| ControlFlow::Continue(())).unwrap();
    assert_eq!(trimmed, Trimmed { bytes: all / 3 * 2 + 2 * ZONE_BYTES, refused: 1 });
    assert_eq!((pool.status().lost(), free_bytes(&pool)), (0, all));
    for n in 2..=40 {
        let written = write_segment(&pool, id(n), &[20_000]);
        assert_reads(&pool, &written);
        pool.free(id(n)).unwrap();
    }
    assert_reads(&pool, &kept);
}

#[test]
fn zoned_devices_and_pools_open_for_reading_are_left_alone() {
    let world = SimWorld::of(92, 3, &DeviceSpec::zoned("zns", DEVICE_BYTES, ZONE_BYTES));
    let pool = create(&world, &CreateOptions { zone_bytes: None, ..options(2, 1) }).unwrap();
    assert_eq!(pool.trim(|_| ControlFlow::Continue(())).unwrap(), Trimmed::default());
    let (reader, _) = Pool::open_for_reading(world.devices()).unwrap();
    reader.trim(|_| ControlFlow::Continue(())).unwrap_err();
}

/// The writers use every zone again and again, those that are being trimmed too.
#[test]
fn writers_beside_a_trim_find_all_zones_and_lose_no_byte() {
    let (world, pool) = harsh_world(93);
    drop(pool);
    let slow: Vec<Arc<SlowDiscards>> =
        world.devices().into_iter().map(|device| Arc::new(SlowDiscards::new(device))).collect();
    let devices = slow.iter().map(|device| Arc::clone(device) as Arc<dyn Device>);
    // Without parity, which would reconstruct lost bytes.
    let options = CreateOptions { force: true, ..options(3, 0) };
    let pool = Pool::create(devices.collect(), &options, &*world.random(), Timestamp::default()).unwrap();
    let all = pool.free_segments(SegmentKind::Bulk);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..5 {
                // All segments of the pool: none may be missing because a zone is being trimmed.
                let numbers: Vec<_> = (1..=all).map(|n| id(round * all + n)).collect();
                let written: Vec<_> = numbers.iter().map(|n| write_segment(&pool, *n, &[9_000])).collect();
                written.iter().for_each(|segment| assert_reads(&pool, segment));
                numbers.iter().for_each(|n| pool.free(*n).unwrap());
            }
        });
        while !writer.is_finished() {
            pool.trim(|_| ControlFlow::Continue(())).unwrap();
        }
    });
    assert_eq!(pool.free_segments(SegmentKind::Bulk), all);
    assert!(slow.iter().all(|device| !device.has_met.load(Ordering::Relaxed)), "a taken zone is discarded");
    assert!(world.sims().iter().all(|sim| sim.overwrites().is_empty()));
}
