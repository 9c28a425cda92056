//! Pools of which the root zones are overwritten: found again, read, and given their roots back.

use std::sync::Arc;

use warpfire_env::{AlignedBuf, Device, Timestamp};
use warpfire_format::Uuid;
use warpfire_log::{Log, LogPos, LogStore, RecoveredLog, Stream};
use warpfire_pool::{ACTIVE_ZONES_MIN, CreateOptions, Pool};
use warpfire_recover::{FoundPool, RecoverError, RootSource, find_pool};
use warpfire_sim_env::{DeviceSpec, DistinctNumbers, SimDevice, SimWorld};
use warpfire_units::{DeviceIndex, SlicePtr};

const ZONE_BYTES: u64 = 128 << 10;
const ZONES: u64 = 40;

/// A pool whose records name slices, in order.
struct Rig {
    world: SimWorld,
    slices: Vec<(Vec<SlicePtr>, Vec<u8>)>,
}

fn bytes(n: usize) -> Vec<u8> {
    (0..20_000 + 1000 * n).map(|i| (i * 31 + n * 7) as u8).collect()
}

impl Rig {
    fn make(data: u16, parity: u8, devices: usize, zoned: bool) -> (Rig, Log) {
        let spec = if zoned {
            DeviceSpec::zoned_drive("flash", ZONES * ZONE_BYTES, ZONE_BYTES, (3, ACTIVE_ZONES_MIN))
                .with_larger_zones(64 << 10)
        } else {
            DeviceSpec::conventional("flash", ZONES * ZONE_BYTES)
        };
        let world = SimWorld::of(7, devices, &spec);
        let options =
            CreateOptions { data, parity, zone_bytes: (!zoned).then_some(ZONE_BYTES), force: false };
        let pool = Pool::create(world.devices(), &options, &*world.random(), Timestamp::default());
        let (log, _) = Log::create(pool.expect("blank devices take a pool")).expect("a new log");
        (Rig { world, slices: Vec::new() }, log)
    }

    fn write(&mut self, log: &Log, count: usize) {
        for _ in 0..count {
            let bytes = bytes(self.slices.len());
            let slices = log.append(Stream::Small, &bytes).expect("there is room");
            log.log(&record(&slices)).expect("a record");
            self.slices.push((slices.to_vec(), bytes));
        }
        log.sync().expect("a sync");
    }

    fn open(&self) -> (Log, RecoveredLog) {
        let (pool, root) = Pool::open(self.world.devices(), &DistinctNumbers).expect("the pool opens");
        Log::open(pool, &root).expect("its log opens")
    }

    /// Overwrites the root zones of a device.
    fn lose_roots(&self, device: usize) {
        let device = &self.world.sims()[device];
        device.poke(0, &vec![0; usize::try_from(2 * ZONE_BYTES).expect("a small zone")]);
    }

    fn without(&self, missing: &[usize]) -> Vec<Arc<dyn Device>> {
        let devices = self.world.devices().into_iter().enumerate();
        devices.filter(|(n, _)| !missing.contains(n)).map(|(_, device)| device).collect()
    }

    /// Compares every record and every byte that it names.
    fn compare(&self, log: &Log, recovered: RecoveredLog) {
        let records: Vec<Vec<u8>> =
            recovered.records.map(|record| record.expect("a record can be read").1).collect();
        let wanted: Vec<Vec<u8>> = self.slices.iter().map(|(slices, _)| record(slices)).collect();
        assert_eq!(records, wanted);
        for (slices, bytes) in &self.slices {
            let mut found = Vec::new();
            for slice in slices {
                let mut part = vec![0; slice.len_bytes as usize];
                log.read(*slice, &mut part).expect("a slice can be read");
                found.extend(part);
            }
            assert_eq!(&found, bytes);
        }
    }

    fn compare_found(&self, found: &FoundPool) {
        let (pool, root) = Pool::open_for_reading(found.devices_with_roots()).expect("it opens");
        let (log, recovered) = Log::open(pool, &root).expect("its log opens");
        self.compare(&log, recovered);
    }
}

fn record(slices: &[SlicePtr]) -> Vec<u8> {
    slices
        .iter()
        .flat_map(|s| [s.segment.get(), s.offset_bytes, s.len_bytes.into()])
        .flat_map(u64::to_le_bytes)
        .collect()
}

fn newest(devices: &[Arc<dyn Device>]) -> FoundPool {
    find_pool(devices, None).expect("the pool is found")
}

fn indexes(found: &FoundPool) -> Vec<Option<u16>> {
    found.devices.iter().map(|device| device.index.map(|index| index.0)).collect()
}

#[test]
fn a_pool_without_any_root_is_found_whole_and_with_m_devices_missing() {
    for (data, parity, devices, zoned) in
        [(1, 0, 1, false), (1, 1, 2, false), (2, 1, 3, true), (4, 2, 6, false), (2, 1, 5, false)]
    {
        let (mut rig, log) = Rig::make(data, parity, devices, zoned);
        rig.write(&log, 30);
        log.checkpoint(b"client", LogPos(1)).expect("a checkpoint");
        rig.write(&log, 5);
        drop(log);
        (0..devices).for_each(|device| rig.lose_roots(device));
        let shape = format!("{data}+{parity} on {devices}");
        let found = newest(&rig.world.devices());
        assert_eq!(found.source, RootSource::Copy);
        let all: Vec<_> = (0..devices).map(|n| Some(u16::try_from(n).expect("few devices"))).collect();
        assert_eq!(indexes(&found), all, "{shape}");
        rig.compare_found(&found);
        for missing in 0..devices.min(usize::from(parity) * devices) {
            let missing: Vec<usize> = (0..usize::from(parity)).map(|n| (missing + n) % devices).collect();
            let found = newest(&rig.without(&missing));
            assert_eq!(found.missing().len(), missing.len(), "{shape}, without {missing:?}");
            rig.compare_found(&found);
        }
    }
}

#[test]
fn rebuilt_roots_open_for_writing_and_no_byte_was_written_before() {
    let (mut rig, log) = Rig::make(2, 1, 4, false);
    rig.write(&log, 40);
    drop(log);
    (0..4).for_each(|device| rig.lose_roots(device));
    let writes = |sim: &Arc<SimDevice>| sim.counters().writes;
    let before: Vec<u64> = rig.world.sims().iter().map(writes).collect();
    let found = newest(&rig.world.devices());
    rig.compare_found(&found);
    assert_eq!(rig.world.sims().iter().map(writes).collect::<Vec<_>>(), before);
    assert!(Pool::open(rig.world.devices(), &DistinctNumbers).is_err(), "nothing is rebuilt yet");
    assert_eq!(found.rebuild_roots(), Ok(4));
    let (log, recovered) = rig.open();
    rig.compare(&log, recovered);
    rig.write(&log, 10);
    drop(log);
    let (log, recovered) = rig.open();
    rig.compare(&log, recovered);
    // Rebuilt roots can be lost again.
    drop(log);
    (0..4).for_each(|device| rig.lose_roots(device));
    rig.compare_found(&newest(&rig.world.devices()));
}

#[test]
fn devices_that_lost_their_roots_come_back_beside_devices_that_have_them() {
    let (mut rig, log) = Rig::make(3, 0, 3, false);
    rig.write(&log, 30);
    drop(log);
    rig.lose_roots(1);
    assert!(
        Pool::open(rig.world.devices(), &DistinctNumbers).is_err(),
        "without parity no device may be missing"
    );
    let mut devices = rig.world.devices();
    devices.rotate_left(1);
    let found = newest(&devices);
    assert_eq!((found.source, indexes(&found)), (RootSource::Root, vec![Some(1), Some(2), Some(0)]));
    rig.compare_found(&found);
    assert_eq!(found.rebuild_roots(), Ok(1));
    let (log, recovered) = rig.open();
    rig.compare(&log, recovered);
}

#[test]
fn a_new_pool_and_a_device_without_any_column_are_found() {
    let (rig, log) = Rig::make(1, 1, 2, false);
    drop(log);
    (0..2).for_each(|device| rig.lose_roots(device));
    let found = newest(&rig.world.devices());
    assert!(found.missing().is_empty());
    rig.compare_found(&found);

    // Four devices, of which the first log takes one: the others hold nothing.
    let (rig, log) = Rig::make(1, 0, 4, false);
    drop(log);
    (0..4).for_each(|device| rig.lose_roots(device));
    let found = newest(&rig.world.devices());
    assert!(found.missing().is_empty());
    rig.compare_found(&found);
    assert_eq!(found.rebuild_roots(), Ok(4));
    rig.open();
}

#[test]
fn devices_of_two_pools_have_to_be_chosen_from() {
    let (mut one, log) = Rig::make(1, 0, 1, false);
    one.write(&log, 3);
    drop(log);
    let spec = DeviceSpec::conventional("other", ZONES * ZONE_BYTES);
    let other = SimWorld::of(8, 1, &spec);
    let options = CreateOptions { data: 1, parity: 0, zone_bytes: Some(ZONE_BYTES), force: false };
    let pool = Pool::create(other.devices(), &options, &*other.random(), Timestamp::default());
    drop(Log::create(pool.expect("a pool")).expect("a log"));
    one.lose_roots(0);
    other.sims()[0].poke(0, &vec![0; usize::try_from(2 * ZONE_BYTES).expect("a small zone")]);
    let all = [one.world.devices(), other.devices()].concat();
    let third = SimWorld::of(9, 1, &DeviceSpec::conventional("third", ZONES * ZONE_BYTES));
    Pool::create(third.devices(), &options, &*third.random(), Timestamp::default()).expect("a pool");
    let Err(RecoverError::Several { pools }) = find_pool(&all, None) else { panic!("two pools") };
    let of_one = newest(&one.world.devices()).uuid();
    assert!(pools.contains(&of_one) && pools.len() == 2);
    let found = find_pool(&all, Some(of_one)).expect("the chosen pool");
    assert_eq!(indexes(&found), [Some(0), None]);
    one.compare_found(&found);
    let unknown = find_pool(&all, Uuid::new(1));
    assert!(matches!(unknown, Err(RecoverError::NothingFound { .. })));
    // The third has its roots, and nothing else: it is no device of the first, even if one is missing there.
    let (mut pair, log) = Rig::make(1, 1, 2, false);
    pair.write(&log, 3);
    drop(log);
    (0..2).for_each(|device| pair.lose_roots(device));
    let with_third = [pair.without(&[1]), third.devices()].concat();
    let found = find_pool(&with_third, Some(newest(&pair.world.devices()).uuid())).expect("the chosen pool");
    assert_eq!(indexes(&found).last(), Some(&None));
    pair.compare_found(&found);
    let fourth = SimWorld::of(10, 1, &DeviceSpec::conventional("fourth", ZONES * ZONE_BYTES));
    Pool::create(fourth.devices(), &options, &*fourth.random(), Timestamp::default()).expect("a pool");
    let with_roots = [third.devices(), fourth.devices()].concat();
    assert!(matches!(find_pool(&with_roots, None), Err(RecoverError::Several { .. })));
}

#[test]
fn blank_devices_are_no_pool_and_a_second_copy_is_left_out() {
    let blank = SimWorld::of(1, 2, &DeviceSpec::conventional("blank", 8 << 20));
    let refused = find_pool(&blank.devices(), None).map(|_| ());
    assert_eq!(refused, Err(RecoverError::NothingFound { devices: vec!["blank0".into(), "blank1".into()] }));

    let (mut rig, log) = Rig::make(2, 0, 2, false);
    rig.write(&log, 20);
    drop(log);
    (0..2).for_each(|device| rig.lose_roots(device));
    let copy = rig.world.fork();
    let devices =
        vec![rig.world.devices()[0].clone(), rig.world.devices()[1].clone(), copy.devices()[1].clone()];
    let found = newest(&devices);
    assert_eq!(indexes(&found), [Some(0), Some(1), None]);
    rig.compare_found(&found);
}

#[test]
fn of_two_devices_with_the_same_columns_the_one_with_all_stripes_is_taken() {
    let (mut rig, log) = Rig::make(2, 1, 3, false);
    rig.write(&log, 1);
    let older = rig.world.fork();
    // More stripes of the same segment, and none of another.
    rig.write(&log, 1);
    drop(log);
    (0..3).for_each(|device| rig.lose_roots(device));
    let newer = rig.world.devices();
    older.sims()[1].poke(0, &vec![0; usize::try_from(2 * ZONE_BYTES).expect("a small zone")]);
    let copy = older.devices()[1].clone();
    for (devices, wanted) in [
        ([&newer[0], &copy, &newer[1], &newer[2]], [Some(0), None, Some(1), Some(2)]),
        ([&newer[0], &newer[1], &newer[2], &copy], [Some(0), Some(1), Some(2), None]),
    ] {
        let found = newest(&devices.map(Arc::clone));
        assert_eq!(indexes(&found), wanted);
        rig.compare_found(&found);
    }
}

/// The other devices have lost their roots, and the old copy has some.
#[test]
fn an_old_copy_with_roots_is_not_taken_for_the_device_without() {
    let (mut rig, log) = Rig::make(2, 1, 3, false);
    rig.write(&log, 10);
    log.checkpoint(b"client", LogPos(1)).expect("a checkpoint");
    drop(log);
    let older = rig.world.fork();
    for _ in 0..2 {
        let (log, _) = rig.open();
        rig.write(&log, 10);
        log.checkpoint(b"client", LogPos(1)).expect("a checkpoint");
    }
    (0..3).for_each(|device| rig.lose_roots(device));
    let newer = rig.world.devices();
    let found = newest(&[newer[0].clone(), older.devices()[1].clone(), newer[1].clone(), newer[2].clone()]);
    assert_eq!(indexes(&found), [Some(0), None, Some(1), Some(2)]);
    rig.compare_found(&found);
}

/// A partitioning tool overwrites the first zone only. The other one has roots of the session before.
#[test]
fn devices_that_have_lost_their_newest_roots_only_are_found() {
    let (mut rig, log) = Rig::make(2, 1, 3, false);
    rig.write(&log, 10);
    drop(log);
    for _ in 0..2 {
        let (log, _) = rig.open();
        rig.write(&log, 10);
        log.checkpoint(b"client", LogPos(1)).expect("a checkpoint");
        drop(log);
        for zone in 0..2 {
            let world = rig.world.fork();
            let zeroes = vec![0; usize::try_from(ZONE_BYTES).expect("a small zone")];
            world.sims().iter().for_each(|device| device.poke(zone * ZONE_BYTES, &zeroes));
            let found = newest(&world.devices());
            assert_eq!(indexes(&found), [Some(0), Some(1), Some(2)], "zone {zone}");
            rig.compare_found(&found);
        }
    }
}

/// An older pool had larger zones. Its log is still there.
#[test]
fn a_pool_is_found_beside_the_remains_of_an_older_one_with_larger_zones() {
    const OLDER_ZONE_BYTES: u64 = 1 << 20;
    let world = SimWorld::of(3, 2, &DeviceSpec::conventional("flash", 64 << 20));
    let mut pools = Vec::new();
    let mut first_log_zones = Vec::new();
    for zone_bytes in [OLDER_ZONE_BYTES, ZONE_BYTES] {
        let options = CreateOptions { data: 1, parity: 1, zone_bytes: Some(zone_bytes), force: true };
        let pool = Pool::create(world.devices(), &options, &DistinctNumbers, Timestamp::default());
        let pool = pool.expect("the devices take a pool");
        pools.push(pool.uuid());
        let (log, _) = Log::create(pool).expect("a new log");
        let mut rig = Rig { world: world.fork(), slices: Vec::new() };
        rig.write(&log, 2);
        log.checkpoint(b"client", LogPos(1)).expect("a checkpoint");
        first_log_zones.extend(world.devices().into_iter().map(|device| {
            let mut zone = AlignedBuf::zeroed(usize::try_from(zone_bytes).expect("a small zone"));
            device.read(2 * zone_bytes, &mut zone).expect("the device works");
            zone
        }));
    }
    let zeroes = vec![0; usize::try_from(2 * ZONE_BYTES).expect("a small zone")];
    for (device, older) in world.sims().iter().zip(&first_log_zones) {
        device.poke(0, &zeroes);
        // As if the log had been in a zone of which the maker of the newer pool clears nothing.
        device.poke(3 * OLDER_ZONE_BYTES, older);
    }
    let found = find_pool(&world.devices(), Some(pools[1])).expect("the newer pool is found");
    assert_eq!(found.uuid(), pools[1]);
    match find_pool(&world.devices(), None) {
        Err(RecoverError::Several { pools: found }) => assert_eq!(found.len(), 2),
        other => panic!("{:?}", other.map(|found| found.uuid())),
    }
}

/// Opens devices for writing although others are away, and writes.
fn write_without_the_others(rig: &mut Rig, devices: Vec<Arc<dyn Device>>, count: usize, checkpoint: bool) {
    let (pool, root) = Pool::open_degraded(devices, &DistinctNumbers).expect("the half opens");
    let (log, _) = Log::open(pool, &root).expect("its log opens");
    rig.write(&log, count);
    if checkpoint {
        log.checkpoint(b"half", LogPos(1)).expect("a checkpoint");
    }
}

#[test]
fn parts_that_were_written_apart_are_refused_together_and_open_alone() {
    for (sessions, checkpoint) in [([1, 1], false), ([1, 1], true), ([3, 1], true), ([1, 4], false)] {
        for lost in [&[0, 1][..], &[0], &[1]] {
            let (mut left, log) = Rig::make(1, 1, 2, false);
            left.write(&log, 10);
            drop(log);
            let mut right = Rig { world: left.world.fork(), slices: left.slices.clone() };
            let (first, second) = (left.without(&[1]), right.without(&[0]));
            for (rig, half, sessions) in
                [(&mut left, first.clone(), sessions[0]), (&mut right, second.clone(), sessions[1])]
            {
                for _ in 0..sessions {
                    write_without_the_others(rig, half.clone(), 4, checkpoint);
                }
            }
            for device in lost {
                [&left, &right][*device].lose_roots(*device);
            }
            let case = format!("{sessions:?}, checkpoints {checkpoint}, without the roots of {lost:?}");
            let found = find_pool(&[&first[..], &second].concat(), None).map(|_| ());
            assert!(matches!(found, Err(RecoverError::Apart { .. })), "{case}: {found:?}");
            for (rig, half) in [(&left, &first), (&right, &second)] {
                rig.compare_found(&newest(half));
            }
        }
    }
}

/// A device that was away for some sessions is no part that was written apart.
#[test]
fn a_device_that_missed_sessions_is_found_with_the_others() {
    for checkpoint in [false, true] {
        let (mut rig, log) = Rig::make(1, 1, 2, false);
        rig.write(&log, 10);
        drop(log);
        for _ in 0..5 {
            let half = rig.without(&[0]);
            write_without_the_others(&mut rig, half, 4, checkpoint);
        }
        (0..2).for_each(|device| rig.lose_roots(device));
        rig.compare_found(&newest(&rig.world.devices()));
    }
}

/// A removed device is no member: its index is of nobody else.
#[test]
fn members_are_those_of_the_table() {
    let (mut rig, log) = Rig::make(1, 1, 3, false);
    rig.write(&log, 10);
    drop(log);
    (0..3).for_each(|device| rig.lose_roots(device));
    let found = newest(&rig.world.devices());
    assert_eq!(found.missing(), []);
    let found = newest(&rig.without(&[0]));
    assert_eq!(found.missing().iter().map(|(index, _)| *index).collect::<Vec<_>>(), [DeviceIndex(0)]);
}
