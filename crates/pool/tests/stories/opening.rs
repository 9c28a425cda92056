//! Opening: devices are identified by their labels, and wrong sets of devices are refused.

use warpfire_pool::{
    CreateOptions, DeviceSetError, DeviceState, LostColumn, Pool, PoolError, SegmentKind, SegmentStream,
    Suspects, Vacated,
};
use warpfire_sim_env::{DeviceSpec, DistinctNumbers, Fault, SimWorld};
use warpfire_units::DeviceIndex;

use crate::rig::{
    DEVICE_BYTES, assert_reads, create, devices_without, id, open, open_with, options, read, world,
    write_segment,
};

pub fn refusal(result: Result<(Pool, warpfire_pool::Root), PoolError>) -> DeviceSetError {
    match result.map(|_| ()) {
        Err(PoolError::Devices(e)) => e,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn devices_are_known_by_their_labels_in_any_order() {
    let (world, pool) = world(40, 5, 3, 1);
    let written = write_segment(&pool, id(1), &[100_000]);
    let mut devices = world.devices();
    devices.reverse();
    devices.swap(1, 3);
    let pool = open_with(devices, &[&written]);
    assert_reads(&pool, &written);
    let names: Vec<_> = pool.status().devices.into_iter().map(|d| d.name.unwrap()).collect();
    assert_eq!(names, ["flash0", "flash1", "flash2", "flash3", "flash4"]);
}

#[test]
fn up_to_m_may_be_missing_and_one_more_is_named() {
    let (world, pool) = world(41, 6, 4, 2);
    let written = write_segment(&pool, id(1), &[300_000]);
    let uuids: Vec<_> = pool.status().devices.iter().map(|d| d.uuid).collect();
    for a in 0..6 {
        for b in 0..6 {
            let pool = open_with(devices_without(&world, &[a, b]), &[&written]);
            assert_reads(&pool, &written);
            assert_eq!(pool.status().devices[a].state, DeviceState::Missing);
            assert_eq!(pool.damaged_segments(), [], "a missing device is no damage");
        }
    }
    let error = refusal(open(devices_without(&world, &[1, 2, 5])));
    let missing: Vec<_> = [1u16, 2, 5].map(|n| (DeviceIndex(n), uuids[usize::from(n)])).to_vec();
    let (offline, old_copies) = Default::default();
    assert_eq!(error, DeviceSetError::Missing { missing, parity: 2, offline, old_copies });
    let named = [1, 2, 5].map(|n| format!("device {n} ({})", uuids[n])).join(", ");
    assert!(error.to_string().ends_with(&format!(": {named}")), "{error}");
}

#[test]
fn a_device_with_only_rotten_roots_counts_as_missing() {
    let (world, pool) = world(42, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[50_000]);
    let sim = &world.sims()[0];
    for block in 0..2 * crate::rig::ZONE_BYTES / 4096 {
        sim.poke(block * 4096, &[0xAA; 4096]);
    }
    let pool = open_with(world.devices(), &[&written]);
    assert_eq!(pool.status().devices[0].state, DeviceState::Missing);
    assert_reads(&pool, &written);
}

#[test]
fn foreign_blank_and_doubled_devices_are_refused() {
    let (ours, pool) = world(43, 2, 1, 1);
    let (theirs, other) = world(44, 2, 1, 1);
    let mixed = vec![ours.devices()[0].clone(), theirs.devices()[1].clone()];
    let (device, found, expected) = ("flash1".to_owned(), other.uuid(), pool.uuid());
    let foreign = refusal(open(mixed));
    assert_eq!(foreign.device(), Some("flash1"));
    assert_eq!(foreign, DeviceSetError::Foreign { device, found, expected });

    let copy = ours.fork();
    let doubled = vec![ours.devices()[1].clone(), copy.devices()[1].clone()];
    let duplicate = refusal(open(doubled));
    assert!(matches!(duplicate, DeviceSetError::Duplicate { index: DeviceIndex(1), .. }));
    assert_eq!(duplicate.device(), Some("flash1"), "the second one");

    let blank = SimWorld::of(45, 2, &DeviceSpec::conventional("blank", DEVICE_BYTES));
    let devices = vec!["blank0".to_owned(), "blank1".to_owned()];
    let none = refusal(open(blank.devices()));
    assert_eq!(none.device(), None, "no device alone is the reason");
    assert_eq!(none, DeviceSetError::NoPool { devices });
    assert_eq!(refusal(open(blank.devices()[..1].to_vec())).device(), Some("blank0"));
    assert_eq!(refusal(open(Vec::new())), DeviceSetError::NoPool { devices: Vec::new() });

    let with_blank = vec![ours.devices()[0].clone(), blank.devices()[0].clone()];
    let (degraded, _) = open(with_blank).unwrap();
    assert_eq!(degraded.status().lost(), 1);
}

#[test]
fn devices_that_have_lost_their_roots_are_told_from_blank_ones() {
    for (seed, overwritten_with) in [(451, 0), (452, 0xAA)] {
        let (world, pool) = world(seed, 2, 1, 1);
        for device in world.devices() {
            assert_eq!(Pool::find_stripes(device.as_ref()), None, "a new pool has no data");
        }
        write_segment(&pool, id(1), &[70_000]);
        let uuid = pool.uuid();
        drop(pool);
        let overwrite = |device: usize| {
            for block in 0..2 * crate::rig::ZONE_BYTES / 4096 {
                world.sims()[device].poke(block * 4096, &[overwritten_with; 4096]);
            }
        };
        overwrite(1);
        let (one_root_is_enough, _) = open(world.devices()).unwrap();
        assert_eq!(one_root_is_enough.status().lost(), 1);
        overwrite(0);
        let before: Vec<_> = world.sims().iter().map(|sim| sim.counters().writes).collect();
        let blank = SimWorld::of(45, 1, &DeviceSpec::conventional("blank", DEVICE_BYTES));
        let devices = [blank.devices(), world.devices()].concat();
        let lost = DeviceSetError::RootsLost { device: "flash0".to_owned(), pool: uuid };
        assert_eq!(refusal(open(devices.clone())), lost);
        assert_eq!(refusal(Pool::open_for_reading(devices)), lost);
        let after: Vec<_> = world.sims().iter().map(|sim| sim.counters().writes).collect();
        assert_eq!(before, after, "nothing was written");
    }
}

/// Its roots are lost, and the place where zone 1 of the older pool began is not among them.
#[test]
fn a_device_of_a_pool_with_smaller_zones_than_before_is_not_taken_for_one_of_the_older_pool() {
    let world = SimWorld::of(461, 2, &DeviceSpec::conventional("flash", 64 << 20));
    let mut options = CreateOptions { data: 1, parity: 1, zone_bytes: Some(4 << 20), force: true };
    let older = create(&world, &options).unwrap();
    for n in 0..3 {
        older.write_root(format!("older {n}").as_bytes()).unwrap();
    }
    drop(older);
    options.zone_bytes = Some(crate::rig::ZONE_BYTES);
    let newer = create(&world, &options).unwrap();
    newer.write_root(b"newer").unwrap();
    drop(newer);
    let zeroes = vec![0; usize::try_from(2 * crate::rig::ZONE_BYTES).unwrap()];
    world.sims()[1].poke(0, &zeroes);
    let (pool, root) = open(world.devices()).unwrap();
    assert_eq!(root.payload, b"newer");
    assert_eq!(pool.status().lost(), 1);
}

#[test]
fn a_device_that_was_away_joins_again_and_its_columns_are_reconstructed() {
    let (world, pool) = world(47, 4, 2, 1);
    let before = write_segment(&pool, id(1), &[70_000]);
    let (pool, _) = open(devices_without(&world, &[2])).unwrap();
    pool.adopt(&before.descriptor).unwrap();
    let while_away = write_segment(&pool, id(2), &[70_000]);
    pool.write_root(b"went on").unwrap();
    let (pool, root) = open(world.devices()).unwrap();
    assert_eq!(root.payload, b"went on");
    for w in [&before, &while_away] {
        pool.adopt(&w.descriptor).unwrap();
        assert_reads(&pool, w);
    }
    pool.write_root(b"together").unwrap();
    let (_, root) = open(devices_without(&world, &[0])).unwrap();
    assert_eq!(root.payload, b"together");
}

#[test]
fn a_device_in_use_is_only_taken_by_force() {
    let (world, pool) = world(48, 2, 1, 1);
    let error = create(&world, &options(1, 1)).map(|_| ()).unwrap_err();
    let in_use = DeviceSetError::InUse { device: "flash0".to_owned(), pool: pool.uuid() };
    assert_eq!(error, PoolError::Devices(in_use));
    let forced = create(&world, &CreateOptions { force: true, ..options(1, 1) }).unwrap();
    assert_ne!(forced.uuid(), pool.uuid());
    assert_eq!(open(world.devices()).unwrap().0.uuid(), forced.uuid());
}

#[test]
fn impossible_pools_are_refused_with_the_reason() {
    let world = SimWorld::of(49, 3, &DeviceSpec::conventional("flash", DEVICE_BYTES));
    let zones = |zone_bytes| CreateOptions { zone_bytes: Some(zone_bytes), ..options(1, 0) };
    for bad in [options(0, 1), options(1, 9), options(249, 2), options(3, 1)] {
        assert!(
            matches!(create(&world, &bad), Err(PoolError::Devices(DeviceSetError::Impossible(_)))),
            "{bad:?}"
        );
    }
    for bad in [0, 4096, 100_000, DEVICE_BYTES, 1 << 50] {
        let result = create(&world, &zones(bad));
        assert!(matches!(result, Err(PoolError::Devices(DeviceSetError::Impossible(_)))), "{bad}");
    }
    assert!(world.sims().iter().all(|d| d.counters().writes == 0), "nothing was written");
}

#[test]
fn devices_of_different_sizes_make_one_pool_with_declustered_segments() {
    let mut world = SimWorld::new(50);
    for (n, zones) in [20, 30, 25, 40].into_iter().enumerate() {
        world.add(DeviceSpec::append_only(format!("flash{n}"), zones * crate::rig::ZONE_BYTES + 4096));
    }
    let pool = create(&world, &options(1, 1)).unwrap();
    let promised = pool.free_segments(SegmentKind::Bulk);
    // The last free zone of each device is kept.
    assert_eq!(promised, (17 + 27 + 22 + 37) / 2);
    for n in 1..=promised {
        write_segment(&pool, id(n), &[10]);
    }
    assert!(matches!(pool.allocate(id(promised + 1), SegmentStream::Large), Err(PoolError::NoSpace)));
    pool.free(id(3)).unwrap();
    assert_eq!(pool.free_segments(SegmentKind::Bulk), 1);
    write_segment(&pool, id(promised + 1), &[10]);
    assert!(world.sims().iter().all(|d| d.overwrites().is_empty()));
}

#[test]
fn a_segment_that_contradicts_the_pool_is_not_adopted() {
    let (world, pool) = world(51, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[10]);
    let (pool, _) = open(world.devices()).unwrap();
    let d = &written.descriptor;
    pool.adopt(d).unwrap();
    let code = |d: &warpfire_pool::SegmentDescriptor| match pool.adopt(d) {
        Err(PoolError::Misfit { source, .. }) => source.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(d), 212);
    let mut overlapping = d.clone();
    overlapping.id = id(2);
    assert_eq!(code(&overlapping), 210);
    let mut outside = overlapping.clone();
    outside.columns[0].1.0 = 1 << 30;
    assert_eq!(code(&outside), 210);
    let mut long = overlapping;
    long.stripes[0].count = u32::MAX;
    assert_eq!(code(&long), 211);
}

/// The log never splits an append of 64 KiB, so a segment holds as many bytes on any devices that are left.
#[test]
fn zones_too_small_for_an_unsplit_append_are_refused() {
    let world = SimWorld::of(46, 3, &DeviceSpec::append_only("flash", DEVICE_BYTES));
    let with = |data, parity, zone_bytes| {
        create(&world, &CreateOptions { zone_bytes: Some(zone_bytes), force: true, ..options(data, parity) })
    };
    for (data, parity) in [(1, 0), (1, 1), (2, 1)] {
        let refused = with(data, parity, 64 << 10).map(|_| ());
        let Err(PoolError::Devices(DeviceSetError::Impossible(reason))) = refused else {
            panic!("{data}+{parity}: {refused:?}");
        };
        assert!(reason.contains("make it 131072"), "{reason}");
        with(data, parity, 128 << 10).unwrap();
    }
    with(3, 0, 64 << 10).unwrap();
}

#[test]
fn a_pool_that_is_open_for_reading_refuses_every_call_that_writes() {
    let (world, pool) = world(52, 4, 2, 1);
    let written = write_segment(&pool, id(1), &[100_000]);
    pool.write_root(b"the last").unwrap();
    let before = world.changes_asked();
    let (pool, root) = Pool::open_for_reading(devices_without(&world, &[0])).unwrap();
    assert!(pool.is_for_reading());
    assert_eq!(root.payload, b"the last");
    assert_eq!(pool.epoch(), root.epoch, "a reader takes no epoch");
    pool.adopt(&written.descriptor).unwrap();
    assert_reads(&pool, &written);
    assert_eq!(pool.write_root(b"x"), Err(PoolError::OpenForReading));
    assert!(matches!(pool.allocate(id(2), SegmentStream::Large), Err(PoolError::OpenForReading)));
    assert!(matches!(
        pool.resilver(id(1), Suspects::Unverified, &Vacated::default()),
        Err(PoolError::OpenForReading)
    ));
    assert_eq!(pool.free(id(1)), Err(PoolError::OpenForReading));
    pool.flush().unwrap();
    assert_reads(&pool, &written);
    // The loss of a device is in no root then.
    world.sims()[1..].iter().for_each(|device| device.inject(Fault::Vanish { after: 0 }));
    assert!(read(&pool, written.slices()[0]).is_err());
    assert!(pool.status().lost() > 1);
    pool.flush().unwrap();
    assert_eq!(world.changes_asked(), before);
    world.sims()[1..].iter().for_each(|device| device.heal());
    assert_eq!(open(world.devices()).unwrap().1, root);
}

#[test]
fn a_zoned_device_decides_the_size_of_zones_and_a_wish_may_agree() {
    let world = SimWorld::of(53, 2, &DeviceSpec::zoned("flash", DEVICE_BYTES, crate::rig::ZONE_BYTES));
    let wished = |zone_bytes| CreateOptions { zone_bytes, ..options(1, 1) };
    let other = create(&world, &wished(Some(2 * crate::rig::ZONE_BYTES)));
    assert!(matches!(other, Err(PoolError::Devices(DeviceSetError::Impossible(_)))));
    let pool = create(&world, &wished(Some(crate::rig::ZONE_BYTES))).unwrap();
    let free = pool.free_segments(SegmentKind::Bulk);
    drop(pool);
    let again = create(&world, &CreateOptions { force: true, ..wished(None) }).unwrap();
    assert_eq!(again.free_segments(SegmentKind::Bulk), free);
}

#[test]
fn a_scan_says_what_a_pool_is() {
    let (world, pool) = world(54, 6, 4, 2);
    assert_eq!(pool.full_geometry().width(), 6);
    let devices = world.devices();
    let scanned: Vec<_> =
        devices.iter().filter_map(|device| Pool::scan_device(device.clone()).unwrap()).collect();
    let scanned = Pool::scan(&scanned);
    assert_eq!((scanned.uuid, scanned.data, scanned.parity), (pool.uuid(), 4, 2));
    assert_eq!((scanned.zone_bytes, scanned.members.len()), (crate::rig::ZONE_BYTES, 6));
    assert_eq!((scanned.reading, scanned.writing), (Ok(()), Ok(())));
}

/// A reader of few devices is warned that they may not have the newest state, and a reader of all is not.
#[test]
fn a_reader_knows_whether_its_state_may_be_older() {
    let (world, pool) = world(55, 2, 1, 1);
    pool.write_root(b"state").unwrap();
    drop(pool);
    let may_be_older = |without: &[usize]| {
        Pool::open_for_reading(devices_without(&world, without)).unwrap().0.may_be_older()
    };
    assert!(!may_be_older(&[]));
    assert!(may_be_older(&[1]));
}

/// More devices than parity may be missing, if no segment lacks more columns than it has parity.
#[test]
fn the_segments_decide_whether_the_missing_devices_are_too_many() {
    let (world, pool) = world(56, 5, 1, 1);
    let written: Vec<_> = (1..30).map(|n| write_segment(&pool, id(n), &[50_000])).collect();
    pool.write_root(b"state").unwrap();
    drop(pool);
    let lies_on = |w: &crate::rig::WrittenSegment, device: u16| {
        w.descriptor.columns.iter().any(|(at, _)| *at == DeviceIndex(device))
    };
    let on_both = written.iter().find(|w| lies_on(w, 3) && lies_on(w, 4)).unwrap();
    let elsewhere = written.iter().find(|w| !lies_on(w, 3) && !lies_on(w, 4)).unwrap();
    let on_one = written.iter().find(|w| lies_on(w, 3) && !lies_on(w, 4)).unwrap();
    // A session goes on without one of them.
    let pool = open(devices_without(&world, &[4])).unwrap().0;
    pool.adopt(&on_both.descriptor).unwrap();
    assert_eq!(pool.check_covered(), Ok(()), "one missing device is within parity");
    pool.write_root(b"state").unwrap();
    drop(pool);
    let pool = open(devices_without(&world, &[3, 4])).unwrap().0;
    pool.adopt(&elsewhere.descriptor).unwrap();
    assert_eq!(pool.check_covered(), Ok(()));
    pool.adopt(&on_one.descriptor).unwrap();
    assert_eq!(pool.check_covered(), Ok(()));
    pool.adopt(&on_both.descriptor).unwrap();
    let refused = pool.check_covered().unwrap_err();
    assert!(
        matches!(refused, DeviceSetError::Uncovered { ref missing, segments: 1, .. } if missing.len() == 2)
    );
    drop(pool);

    // The refusal says which of the missing devices are kept offline.
    let pool = open(devices_without(&world, &[4])).unwrap().0;
    pool.take_offline(DeviceIndex(3)).unwrap();
    drop(pool);
    let pool = open(devices_without(&world, &[4])).unwrap().0;
    pool.adopt(&on_both.descriptor).unwrap();
    let DeviceSetError::Uncovered { missing, offline, .. } = pool.check_covered().unwrap_err() else {
        panic!("devices are missing");
    };
    assert_eq!(missing.iter().map(|(index, _)| index.0).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(offline, [DeviceIndex(3)]);
}

/// A segment that has not got back what a device missed has less parity left than the pool. To read the rest
/// needs no question, to write does.
#[test]
fn columns_that_missed_writes_count_with_those_of_missing_devices() {
    let (world, pool) = world(57, 5, 2, 1);
    let written = write_segment(&pool, id(1), &[50_000]);
    pool.write_root(b"state").unwrap();
    drop(pool);
    let columns = &written.descriptor.columns;
    let mut descriptor = written.descriptor.clone();
    descriptor.lost.push(LostColumn { column: 0, first_stripe: 0 });
    let away = usize::from(columns[1].0.0);
    let with_all = open(world.devices()).unwrap().0;
    with_all.adopt(&descriptor).unwrap();
    assert_eq!(with_all.check_covered(), Ok(()), "no missing device would bring more");
    drop(with_all);
    let writing = Pool::open(devices_without(&world, &[away]), &DistinctNumbers).unwrap().0;
    writing.adopt(&descriptor).unwrap();
    assert!(matches!(writing.refuse_uncovered(), Err(DeviceSetError::Uncovered { segments: 1, .. })));
    let others = || devices_without(&world, &[away]);
    let reading = Pool::open_for_reading(others()).unwrap().0;
    let degraded = Pool::open_degraded(others(), &DistinctNumbers).unwrap().0;
    for pool in [reading, degraded] {
        pool.adopt(&descriptor).unwrap();
        assert_eq!(pool.refuse_uncovered(), Ok(()));
        assert!(pool.check_covered().is_err());
    }
    // A segment that was written whole is enough without the device, and so is one that only a refused group
    // names.
    let pool = Pool::open(others(), &DistinctNumbers).unwrap().0;
    pool.adopt(&written.descriptor).unwrap();
    pool.note_tail(&written.descriptor);
    assert_eq!(pool.refuse_uncovered(), Ok(()));
    pool.note_tail(&descriptor);
    assert!(matches!(pool.refuse_uncovered(), Err(DeviceSetError::Uncovered { segments: 1, .. })));
}
