//! Devices leave the pool and stay in it.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_env::Device;
use warpfire_pool::{
    DeviceSetError, MembershipError, Pool, PoolError, PoolLabel, SegmentKind, SegmentStream, Suspects,
    Tuning, Vacated,
};
use warpfire_sim_env::{DeviceSpec, DistinctNumbers, Event, Fault, SimDevice, SimWorld};
use warpfire_units::DeviceIndex;

use crate::rig::{
    DEVICE_BYTES, WrittenSegment, ZONE_BYTES, assert_reads, create, devices_without, id, open, open_with,
    options, world, write_segment,
};

fn add(pool: &Pool, device: Arc<dyn Device>) -> Result<DeviceIndex, PoolError> {
    pool.add_device(device, false, &DistinctNumbers)
}

fn blank(world: &mut SimWorld) -> Arc<SimDevice> {
    world.add(DeviceSpec::append_only("new", DEVICE_BYTES))
}

fn lies_on(w: &WrittenSegment, device: DeviceIndex) -> bool {
    w.descriptor.columns.iter().any(|c| c.0 == device)
}

fn is_leaving(pool: &Pool) -> Vec<bool> {
    pool.status().devices.iter().map(|d| d.is_leaving).collect()
}

#[test]
fn a_device_that_leaves_is_read_and_gets_no_new_column_also_after_an_open() {
    let (world, pool) = world(1, 4, 2, 1);
    let leaver = DeviceIndex(1);
    let lies_on = |w: &WrittenSegment| lies_on(w, leaver);
    let before: Vec<_> = (1..6).map(|n| write_segment(&pool, id(n), &[90_000])).collect();
    assert!(before.iter().any(lies_on));
    pool.set_leaving(leaver, true).unwrap();
    assert_eq!(is_leaving(&pool), [false, true, false, false]);
    let after: Vec<_> = (6..12).map(|n| write_segment(&pool, id(n), &[90_000])).collect();
    assert!(!after.iter().any(lies_on));
    before.iter().chain(&after).for_each(|w| assert_reads(&pool, w));

    let (pool, _) = open(world.devices()).unwrap();
    assert_eq!(is_leaving(&pool), [false, true, false, false]);
    for w in before.iter().chain(&after) {
        pool.adopt(&w.descriptor).unwrap();
        assert_reads(&pool, w);
    }
    assert!(!lies_on(&write_segment(&pool, id(20), &[90_000])));
    // It stays after all.
    pool.set_leaving(leaver, false).unwrap();
    assert!((21..25).any(|n| lies_on(&write_segment(&pool, id(n), &[90_000]))));
}

#[test]
fn an_open_segment_learns_of_each_wish_that_makes_a_new_one_better() {
    let (_, pool) = world(1, 4, 2, 1);
    // Its zones are not the first ones: a device keeps some.
    (1..25).for_each(|n| _ = write_segment(&pool, id(n), &[90_000]));
    let writer = pool.allocate(id(30), SegmentStream::Large).unwrap();
    let (device, zone) = writer.descriptor().columns[0];
    assert!(!writer.is_outdated());
    pool.set_leaving(device, true).unwrap();
    assert!(writer.is_outdated(), "its device leaves");
    assert!(writer.is_outdated(), "a second question has the same answer");
    pool.set_leaving(device, false).unwrap();
    assert!(!writer.is_outdated(), "its device stays");
    pool.set_end(device, Some(zone.0)).unwrap();
    assert!(writer.is_outdated(), "its zone is behind the new end");
    pool.set_end(device, None).unwrap();
    assert!(!writer.is_outdated(), "its zone is kept");
    pool.tune(Tuning { parity: 2, ..pool.tuning() }, || id(31)).unwrap();
    assert!(writer.is_outdated(), "new segments have more parity");
}

#[test]
fn a_pool_keeps_as_many_devices_as_its_stripes_need() {
    let (_world, pool) = world(2, 4, 2, 1);
    pool.set_leaving(DeviceIndex(0), true).unwrap();
    let too_few = PoolError::Membership(MembershipError::TooFew { staying: 2, width: 3 });
    assert_eq!(pool.set_leaving(DeviceIndex(3), true), Err(too_few));
    let unknown = PoolError::Membership(MembershipError::Unknown(DeviceIndex(4)));
    assert_eq!(pool.set_leaving(DeviceIndex(4), true), Err(unknown));
    assert_eq!(is_leaving(&pool), [true, false, false, false]);
}

#[test]
fn a_cut_at_any_moment_of_the_mark_leaves_the_table_before_or_after_it() {
    let (mut world, pool) = world(3, 4, 2, 1);
    let written = write_segment(&pool, id(1), &[90_000]);
    drop(pool);
    let pool = open_with(world.devices(), &[&written]);
    world.record();
    pool.set_leaving(DeviceIndex(2), true).unwrap();
    world.mark(0);
    let recording = world.take_recording().unwrap();
    let mut replay = recording.replay();
    let (mut is_durable, mut found) = (false, BTreeSet::new());
    while let Some(event) = replay.advance() {
        is_durable |= matches!(event, Event::Mark(_));
        for cut in replay.cuts(8, 7) {
            let crashed = replay.cut(&cut);
            let pool = open_with(crashed.devices(), &[&written]);
            assert_reads(&pool, &written);
            let is_marked = is_leaving(&pool)[2];
            assert!(is_marked || !is_durable, "the mark is durable when the call returns: {cut:?}");
            found.insert(is_marked);
            pool.set_leaving(DeviceIndex(2), true).unwrap();
            assert!(is_leaving(&open_with(crashed.devices(), &[])).as_slice()[2]);
        }
    }
    assert_eq!(found.len(), 2, "cuts before the root and after it");
}

#[test]
fn a_cut_at_any_moment_of_a_change_of_name_leaves_the_old_name_or_the_new_one() {
    let (mut world, pool) = world(33, 3, 2, 1);
    let name = |text: &str| PoolLabel::new(text).unwrap();
    pool.set_label(name("old")).unwrap();
    pool.write_root(b"state").unwrap();
    drop(pool);
    let (pool, _) = open(world.devices()).unwrap();
    world.record();
    pool.set_label(name("new")).unwrap();
    world.mark(0);
    let recording = world.take_recording().unwrap();
    let mut replay = recording.replay();
    let (mut is_durable, mut found) = (false, BTreeSet::new());
    while let Some(event) = replay.advance() {
        is_durable |= matches!(event, Event::Mark(_));
        for cut in replay.cuts(8, 7) {
            let (pool, root) = open(replay.cut(&cut).devices()).unwrap();
            let label = pool.label().as_str().to_owned();
            assert!(label == "new" || label == "old" && !is_durable, "{label} after {cut:?}");
            assert_eq!(root.payload, b"state");
            found.insert(label);
        }
    }
    assert_eq!(found.len(), 2, "cuts before the root and after it");
}

#[test]
fn an_added_device_takes_segments_and_belongs_to_the_pool_from_then_on() {
    let (mut world, pool) = world(4, 3, 2, 1);
    let before = write_segment(&pool, id(1), &[90_000]);
    let free_before = pool.free_segments(SegmentKind::Bulk);
    let added = blank(&mut world);
    assert_eq!(add(&pool, added), Ok(DeviceIndex(3)));
    assert_eq!(pool.status().devices.len(), 4);
    assert!(pool.free_segments(SegmentKind::Bulk) > free_before);
    let after: Vec<_> = (2..6).map(|n| write_segment(&pool, id(n), &[90_000])).collect();
    assert!(after.iter().any(|w| lies_on(w, DeviceIndex(3))));
    let all: Vec<_> = std::iter::once(&before).chain(&after).collect();
    for lost in 0..4 {
        let pool = open_with(devices_without(&world, &[lost]), &all);
        all.iter().for_each(|w| assert_reads(&pool, w));
        assert_eq!(pool.status().lost(), 1);
    }
    assert!(world.sims().iter().all(|d| d.overwrites().is_empty()));
}

#[test]
fn a_device_that_cannot_join_is_refused_and_nothing_is_written() {
    let (mut home, pool) = world(5, 3, 2, 1);
    let small = home.add(DeviceSpec::append_only("small", 8 * ZONE_BYTES));
    let zoned = home.add(DeviceSpec::zoned("zoned", DEVICE_BYTES, 2 * ZONE_BYTES));
    let (other, _other_pool) = world(6, 3, 2, 1);
    let member = home.devices()[1].clone();
    let foreign = other.devices()[0].clone();
    let changes = || home.changes_asked() + other.changes_asked();
    let before = changes();
    let membership = |refused: Result<DeviceIndex, PoolError>| match refused {
        Err(PoolError::Membership(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(membership(add(&pool, small)), MembershipError::TooSmall { .. }));
    assert!(matches!(membership(add(&pool, zoned)), MembershipError::OtherZones { .. }));
    let forced = pool.add_device(Arc::clone(&member), true, &DistinctNumbers);
    assert!(matches!(membership(forced), MembershipError::Member { .. }));
    let in_use = add(&pool, Arc::clone(&foreign));
    assert!(matches!(in_use, Err(PoolError::Devices(DeviceSetError::InUse { .. }))), "{in_use:?}");
    assert_eq!(changes(), before);
    assert_eq!(pool.add_device(foreign, true, &DistinctNumbers), Ok(DeviceIndex(3)));
}

#[test]
fn a_cut_at_any_moment_of_an_add_leaves_the_pool_with_or_without_the_device() {
    let mut home = SimWorld::of(7, 3, &DeviceSpec::append_only("flash", DEVICE_BYTES));
    drop(create(&home, &options(2, 1)).unwrap());
    let (pool, _) = open(home.devices()).unwrap();
    let written = write_segment(&pool, id(1), &[90_000]);
    drop(pool);
    let pool = open_with(home.devices(), &[&written]);
    let added = blank(&mut home);
    home.record();
    add(&pool, added).unwrap();
    home.mark(0);
    let recording = home.take_recording().unwrap();
    let mut replay = recording.replay();
    let (mut is_durable, mut found) = (false, BTreeSet::new());
    while let Some(event) = replay.advance() {
        is_durable |= matches!(event, Event::Mark(_));
        for cut in replay.cuts(8, 7) {
            let crashed = replay.cut(&cut);
            // Without the new device the pool goes on too, and takes it in later.
            for without in [&[][..], &[3], &[0]] {
                let crashed = crashed.fork();
                let pool = open_with(devices_without(&crashed, without), &[&written]);
                assert_reads(&pool, &written);
                let devices = pool.status().devices.len();
                let knows = devices == 4;
                assert!(knows || !is_durable, "an add is durable when it returns: {without:?} {cut:?}");
                found.insert((without.contains(&3), knows));
                if without.is_empty() && !knows {
                    add(&pool, crashed.devices()[3].clone()).unwrap();
                }
                let next = write_segment(&pool, id(9), &[40_000]);
                // As any client does before it relies on what it wrote.
                pool.write_root(b"of the next session").unwrap();
                drop(pool);
                if without == [3] && !knows {
                    // The device is half added, or blank.
                    let pool = open_with(crashed.devices(), &[&written, &next]);
                    assert_eq!(pool.status().devices.len(), 3);
                    assert_eq!(add(&pool, crashed.devices()[3].clone()), Ok(DeviceIndex(3)));
                    drop(pool);
                }
                let pool = open_with(crashed.devices(), &[&written, &next]);
                assert_reads(&pool, &written);
                assert_reads(&pool, &next);
            }
        }
    }
    assert_eq!(found.len(), 4, "with and without the device, named and not: {found:?}");
}

#[test]
fn a_device_that_fails_while_it_joins_leaves_the_pool_as_it_was() {
    for failing in 0..6 {
        let (mut home, pool) = world(8, 3, 2, 1);
        let written = write_segment(&pool, id(1), &[90_000]);
        let added = blank(&mut home);
        added.inject(Fault::Vanish { after: failing });
        let joined = add(&pool, added);
        let devices = if joined.is_ok() { 4 } else { 3 };
        assert_eq!(pool.status().devices.len(), devices, "{joined:?}");
        assert!(joined.is_ok() || pool.status().lost() == 0, "{joined:?}");
        assert_reads(&pool, &written);
        let next = write_segment(&pool, id(2), &[40_000]);
        drop(pool);
        let pool = open_with(home.devices(), &[&written, &next]);
        assert_reads(&pool, &next);
    }
}

/// Moves the columns of these segments off a device that leaves.
fn empty(pool: &Pool, written: &mut [WrittenSegment], device: DeviceIndex) {
    for w in written.iter_mut().filter(|w| lies_on(w, device)) {
        let vacated = Vacated::from(BTreeSet::from([device]));
        let moved = pool.resilver(w.descriptor.id, Suspects::Recorded, &vacated).unwrap();
        assert_eq!(moved.moves.len(), 1, "{:?}", moved.failure);
        w.descriptor = moved.descriptor;
        pool.free_old_zones(moved.old_zones);
    }
}

#[test]
fn a_column_moves_off_a_device_where_no_parity_could_reconstruct_it() {
    let (_world, pool) = world(12, 3, 1, 0);
    let leaver = DeviceIndex(1);
    let mut written: Vec<_> = (1..9).map(|n| write_segment(&pool, id(n), &[90_000])).collect();
    assert!(written.iter().any(|w| lies_on(w, leaver)));
    pool.set_leaving(leaver, true).unwrap();
    empty(&pool, &mut written, leaver);
    assert!(!written.iter().any(|w| lies_on(w, leaver)));
    pool.remove_device(leaver).unwrap();
    written.iter().for_each(|w| assert_reads(&pool, w));
}

#[test]
fn a_cut_at_any_moment_of_a_removal_leaves_the_device_leaving_or_removed() {
    let leaver = DeviceIndex(1);
    for is_missing in [false, true] {
        let (mut home, pool) = world(9, 4, 2, 1);
        let mut written: Vec<_> = (1..5).map(|n| write_segment(&pool, id(n), &[90_000])).collect();
        drop(pool);
        let without: &[usize] = if is_missing { &[1] } else { &[] };
        let pool = open_with(devices_without(&home, without), &written.iter().collect::<Vec<_>>());
        let in_use = pool.remove_device(leaver);
        assert!(matches!(in_use, Err(PoolError::Membership(MembershipError::InUse { .. }))), "{in_use:?}");
        pool.set_leaving(leaver, true).unwrap();
        assert!(pool.remove_device(leaver).is_err(), "it has columns");
        empty(&pool, &mut written, leaver);
        pool.write_root(b"state").unwrap();
        home.record();
        pool.remove_device(leaver).unwrap();
        home.mark(0);
        assert_eq!((pool.status().devices.len(), pool.status().lost()), (3, 0));
        let recording = home.take_recording().unwrap();
        written.iter().for_each(|w| assert_reads(&pool, w));
        let all: Vec<_> = written.iter().collect();
        let mut replay = recording.replay();
        let (mut is_durable, mut found) = (false, BTreeSet::new());
        while let Some(event) = replay.advance() {
            is_durable |= matches!(event, Event::Mark(_));
            for cut in replay.cuts(8, 7) {
                for without in [without, &[1], &[2]] {
                    let crashed = replay.cut(&cut);
                    let opened = open(devices_without(&crashed, without));
                    if is_missing && without == [2] && !is_durable {
                        continue;
                    }
                    let (pool, root) = opened.unwrap();
                    assert_eq!(root.payload, b"state");
                    for w in &all {
                        pool.adopt(&w.descriptor).unwrap();
                        assert_reads(&pool, w);
                    }
                    let is_removed = pool.status().devices.len() == 3;
                    assert!(is_removed || !is_durable, "a removal is durable when it returns: {cut:?}");
                    found.insert(is_removed);
                    if !is_removed {
                        pool.remove_device(leaver).unwrap();
                        assert_eq!(pool.status().devices.len(), 3);
                    }
                    let next = write_segment(&pool, id(9), &[40_000]);
                    pool.write_root(b"of the next session").unwrap();
                    drop(pool);
                    let pool = open_with(crashed.devices(), &all);
                    assert_eq!(pool.status().devices.len(), 3);
                    pool.adopt(&next.descriptor).unwrap();
                    assert_reads(&pool, &next);
                    // It may come back, as a device like any other.
                    assert_eq!(add(&pool, crashed.devices()[1].clone()), Ok(DeviceIndex(4)));
                }
            }
        }
        assert_eq!(found.len(), 2, "cuts before the root and after it");
    }
}

fn is_spare(pool: &Pool) -> Vec<bool> {
    pool.status().devices.iter().map(|d| d.is_spare).collect()
}

#[test]
fn a_spare_gets_no_column_before_it_takes_the_place_of_another_device() {
    let (mut world, pool) = world(51, 3, 2, 1);
    let free_before = pool.free_bytes();
    let added = blank(&mut world);
    let spare = pool.add_spare(added, false, &DistinctNumbers).unwrap();
    assert_eq!((is_spare(&pool), pool.free_bytes()), (vec![false, false, false, true], free_before));
    assert_eq!(pool.spares().len(), 1);
    let before: Vec<_> = (1..8).map(|n| write_segment(&pool, id(n), &[90_000])).collect();
    assert!(!before.iter().any(|w| lies_on(w, spare)));
    let refused = pool.set_leaving(DeviceIndex(0), true).unwrap_err();
    let too_few = MembershipError::TooFew { staying: 2, width: 3 };
    assert_eq!(refused, PoolError::Membership(too_few), "a spare does not count for a width");
    pool.write_root(b"state").unwrap();
    drop(pool);

    let all: Vec<_> = before.iter().collect();
    let pool = open_with(devices_without(&world, &[1]), &all);
    assert_eq!(is_spare(&pool), [false, false, false, true]);
    let lost = DeviceIndex(1);
    for (spare, lost) in [(DeviceIndex(0), lost), (spare, spare), (spare, DeviceIndex(9))] {
        assert!(matches!(pool.use_spare(spare, Some(lost)), Err(PoolError::Membership(_))), "{spare} {lost}");
    }
    assert_eq!(is_spare(&pool), [false, false, false, true]);
    pool.use_spare(spare, Some(lost)).unwrap();
    assert_eq!((is_spare(&pool), is_leaving(&pool)), (vec![false; 4], vec![false, true, false, false]));
    let after = write_segment(&pool, id(20), &[90_000]);
    assert!(lies_on(&after, spare), "it is one of the three that are left");
    pool.write_root(b"state").unwrap();
    drop(pool);
    let (pool, _) = open(world.devices()).unwrap();
    assert_eq!((is_spare(&pool), is_leaving(&pool)), (vec![false; 4], vec![false, true, false, false]));
}

#[test]
fn a_cut_at_any_moment_in_which_a_spare_is_taken_leaves_it_waiting_or_in_place() {
    let (mut world, pool) = world(52, 3, 2, 1);
    let added = blank(&mut world);
    let spare = pool.add_spare(added, false, &DistinctNumbers).unwrap();
    let written = write_segment(&pool, id(1), &[90_000]);
    pool.write_root(b"state").unwrap();
    drop(pool);
    let pool = open_with(devices_without(&world, &[1]), &[&written]);
    world.record();
    pool.use_spare(spare, Some(DeviceIndex(1))).unwrap();
    let recording = world.take_recording().unwrap();
    let mut replay = recording.replay();
    let mut found = BTreeSet::new();
    while replay.advance().is_some() {
        for cut in replay.cuts(8, 7) {
            let crashed = replay.cut(&cut);
            let pool = open_with(devices_without(&crashed, &[1]), &[&written]);
            assert_reads(&pool, &written);
            let state = (is_spare(&pool)[3], is_leaving(&pool)[1]);
            assert!(state == (true, false) || state == (false, true), "{state:?} after {cut:?}");
            found.insert(state);
        }
    }
    assert_eq!(found.len(), 2, "cuts before the root and after it");
}
