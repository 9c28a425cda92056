//! Devices are taken offline and online.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_env::Device;
use warpfire_pool::{
    DeviceSetError, DeviceState, LostColumn, MembershipError, Pool, PoolError, SegmentStream, Suspects,
    Vacated,
};
use warpfire_sim_env::{Cut, DeviceSpec, DistinctNumbers, Event, Fault, OpClass, SimWorld};
use warpfire_units::{BLOCK_BYTES, DeviceIndex};

use crate::rig::{
    DEVICE_BYTES, WrittenSegment, assert_reads, devices_without, id, open, open_with, pattern, read, world,
    write_segment,
};

const AWAY: DeviceIndex = DeviceIndex(1);

fn state(pool: &Pool) -> DeviceState {
    pool.status().devices[usize::from(AWAY.0)].state
}

fn lies_on_it(w: &WrittenSegment) -> bool {
    w.descriptor.columns.iter().any(|(device, _)| *device == AWAY)
}

fn device(world: &SimWorld) -> Arc<dyn Device> {
    Arc::clone(&world.devices()[usize::from(AWAY.0)])
}

fn fail_a_write(world: &SimWorld, pool: &Pool, segment: u64) -> WrittenSegment {
    world.sims()[1].inject(Fault::Fail { op: OpClass::Write, after: 0, lasting: true });
    let written = write_segment(pool, id(segment), &[90_000]);
    assert_eq!(state(pool), DeviceState::Failed);
    world.sims()[1].heal();
    written
}

#[test]
fn a_device_that_is_offline_is_not_used_until_it_is_online_also_after_an_open() {
    let (world, pool) = world(1, 4, 2, 1);
    let before: Vec<_> = (1..6).map(|n| write_segment(&pool, id(n), &[90_000])).collect();
    assert!(before.iter().any(lies_on_it));
    pool.take_offline(AWAY).unwrap();
    assert_eq!((state(&pool), pool.status().lost()), (DeviceState::Offline, 1));
    pool.take_offline(AWAY).unwrap();
    let used = || {
        let counters = world.sims()[1].counters();
        (counters.reads, counters.writes, counters.flushes, counters.discards)
    };
    let used_before = used();
    let mut all = before;
    all.extend((6..12).map(|n| write_segment(&pool, id(n), &[90_000])));
    all.iter().for_each(|w| assert_reads(&pool, w));
    pool.free(id(2)).unwrap();
    all.remove(1);
    assert!(!all.iter().skip(4).any(lies_on_it));
    assert_eq!(used(), used_before, "neither read nor written");
    drop(pool);

    let pool = open_with(world.devices(), &all.iter().collect::<Vec<_>>());
    assert_eq!((state(&pool), pool.status().lost()), (DeviceState::Offline, 1));
    assert_eq!(pool.status().devices[1].name.as_deref(), Some("flash1"), "its name is known");
    let used_before = used();
    all.push(write_segment(&pool, id(20), &[90_000]));
    all.iter().for_each(|w| assert_reads(&pool, w));
    assert_eq!(used(), used_before, "neither read nor written in the next session");
    pool.write_root(b"state").unwrap();
    assert_eq!(pool.take_online(device(&world)), Ok(AWAY));
    assert_eq!((state(&pool), pool.status().lost()), (DeviceState::Present, 0));
    let online = PoolError::Membership(MembershipError::Online(AWAY));
    assert_eq!(pool.take_online(device(&world)), Err(online));
    all.extend((21..26).map(|n| write_segment(&pool, id(n), &[90_000])));
    assert!(all.iter().skip(11).any(lies_on_it));
    drop(pool);
    for lost in 0..4 {
        let pool = open_with(devices_without(&world, &[lost]), &all.iter().collect::<Vec<_>>());
        all.iter().for_each(|w| assert_reads(&pool, w));
    }
    assert!(world.sims().iter().all(|sim| sim.overwrites().is_empty()));
}

#[test]
fn a_device_that_segments_need_stays_online() {
    let (world, pool) = world(2, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[90_000]);
    pool.take_offline(AWAY).unwrap();
    let needed = MembershipError::Needed { device: DeviceIndex(0), segments: 1 };
    assert_eq!(pool.take_offline(DeviceIndex(0)), Err(PoolError::Membership(needed)));
    let unknown = MembershipError::Unknown(DeviceIndex(7));
    assert_eq!(pool.take_offline(DeviceIndex(7)), Err(PoolError::Membership(unknown)));
    pool.take_online(device(&world)).unwrap();
    pool.take_offline(DeviceIndex(0)).unwrap();
    assert_reads(&pool, &written);

    // A column that missed a write counts as lost, wherever its device is.
    let (world, pool) = crate::rig::world(3, 3, 2, 1);
    let _written = fail_a_write(&world, &pool, 1);
    pool.take_online(device(&world)).unwrap();
    let needed = MembershipError::Needed { device: DeviceIndex(2), segments: 1 };
    assert_eq!(pool.take_offline(DeviceIndex(2)), Err(PoolError::Membership(needed)));
    pool.take_offline(AWAY).unwrap();

    // Without parity no device with data can be spared, and the last one never.
    let (_world, pool) = crate::rig::world(4, 2, 1, 0);
    let written = write_segment(&pool, id(1), &[9_000]);
    let (device, _) = written.descriptor.columns[0];
    let needed = MembershipError::Needed { device, segments: 1 };
    assert_eq!(pool.take_offline(device), Err(PoolError::Membership(needed)));
    pool.take_offline(DeviceIndex(1 - device.0)).unwrap();
    pool.free(id(1)).unwrap();
    let last = MembershipError::LastDevices { device, others: 0 };
    assert_eq!(pool.take_offline(device), Err(PoolError::Membership(last)));
}

/// A column that lacks a stripe must not get later ones: nothing would say that it lacks one.
#[test]
fn a_column_gets_no_stripe_behind_one_that_it_missed() {
    for op in [OpClass::Write, OpClass::Flush] {
        let (world, pool) = world(5, 3, 2, 1);
        let mut writer = pool.allocate(id(1), SegmentStream::Large).unwrap();
        let mut buf = writer.buffer();
        let mut slices = Vec::new();
        let mut write = |n: u64| {
            writer.begin(&mut buf);
            buf.append(&pattern(n, 9000));
            let offset_bytes = writer.write_stripe(&mut buf, n).unwrap();
            slices.push((n, warpfire_units::SlicePtr { segment: id(1), offset_bytes, len_bytes: 9000 }));
        };
        write(0);
        pool.flush().unwrap();
        world.sims()[1].inject(Fault::Fail { op, after: 0, lasting: true });
        write(1);
        if op == OpClass::Flush {
            pool.flush().unwrap();
        }
        assert_eq!(state(&pool), DeviceState::Failed);
        world.sims()[1].heal();
        pool.take_online(pool.failed_device(AWAY).expect("it has failed")).unwrap();
        write(2);
        pool.flush().unwrap();
        assert!(writer.is_outdated(), "a new segment has all columns");
        let descriptor = writer.seal();
        let column = descriptor.columns.iter().position(|(d, _)| *d == AWAY).unwrap() as u16;
        let lost = LostColumn { column, first_stripe: 1 };
        assert_eq!((descriptor.lost.as_slice(), pool.take_lost()), (&[lost][..], vec![(id(1), lost)]));
        assert_eq!(pool.losses_left(id(1)), Some(0));
        for (n, slice) in &slices {
            assert!(read(&pool, *slice).unwrap() == pattern(*n, 9000));
        }
        let mended = pool.resilver(id(1), Suspects::Recorded, &Vacated::default()).unwrap();
        assert_eq!((mended.moves.len(), mended.descriptor.lost.len()), (1, 0));
        assert_eq!(pool.losses_left(id(1)), Some(1));
        pool.free_old_zones(mended.old_zones);
        world.sims()[0].inject(Fault::Vanish { after: 0 });
        for (n, slice) in &slices {
            assert!(read(&pool, *slice).unwrap() == pattern(*n, 9000), "without another device");
        }
    }
}

#[test]
fn stripes_that_a_column_missed_are_not_read_from_it() {
    let (world, pool) = world(6, 3, 2, 1);
    let written = fail_a_write(&world, &pool, 1);
    pool.take_online(pool.failed_device(AWAY).expect("it has failed")).unwrap();
    let column = written.descriptor.columns.iter().position(|(d, _)| *d == AWAY).unwrap() as u16;
    assert_eq!(written.descriptor.lost, [LostColumn { column, first_stripe: 0 }]);
    let read_bytes = || world.sims()[1].counters().read_bytes;
    let before = read_bytes();
    let mended = pool.resilver(id(1), Suspects::Recorded, &Vacated::default()).unwrap();
    assert_eq!((mended.moves.len(), mended.descriptor.lost.len()), (1, 0));
    // The search for a header that verifies asks every column of the one stripe.
    assert_eq!(read_bytes() - before, BLOCK_BYTES as u64);
    pool.free_old_zones(mended.old_zones);
    assert_reads(&pool, &WrittenSegment { descriptor: mended.descriptor, ..written });
}

/// A reset is as volatile as a write: a device that lost its power holds the old stripes again.
#[test]
fn a_zone_of_a_device_that_was_away_is_reset_before_it_is_written() {
    let (world, pool) = world(6, 3, 2, 1);
    let [first, _second] = [1, 2].map(|n| write_segment(&pool, id(n), &[90_000]));
    pool.write_root(b"state").unwrap();
    pool.free(id(1)).unwrap();
    pool.free(id(2)).unwrap();
    let back = world.cut(&Cut::LoseAll);
    world.sims()[1].inject(Fault::Vanish { after: 0 });
    let _without_it = write_segment(&pool, id(3), &[90_000]);
    assert_eq!(state(&pool), DeviceState::Gone);
    pool.take_online(device(&back)).unwrap();
    let zones = first.descriptor.columns.iter().find(|(d, _)| *d == AWAY).unwrap();
    let written: Vec<_> = (4..34)
        .map_while(|n| {
            let has_room = pool.free_segments(warpfire_pool::SegmentKind::Bulk) > 0;
            has_room.then(|| write_segment(&pool, id(n), &[90_000]))
        })
        .collect();
    let is_reused = |w: &WrittenSegment| w.descriptor.columns.contains(zones);
    assert!(written.iter().any(is_reused), "the zone of the first segment is written again");
    assert_eq!(back.sims()[1].overwrites(), []);
    written.iter().for_each(|w| assert_reads(&pool, w));
}

#[test]
fn only_the_device_that_left_is_taken_back() {
    let (mut home, pool) = world(7, 3, 1, 2);
    let copy = home.fork();
    drop(pool);
    // A session that the copy has not seen.
    let (pool, _) = open(home.devices()).unwrap();
    let written = write_segment(&pool, id(1), &[90_000]);
    pool.write_root(b"state").unwrap();
    pool.take_offline(AWAY).unwrap();
    let (other, _other_pool) = world(8, 3, 2, 1);
    let blank = home.add(DeviceSpec::append_only("blank", DEVICE_BYTES));
    let membership = |refused: Result<DeviceIndex, PoolError>| match refused {
        Err(PoolError::Membership(error)) => error,
        other => panic!("{other:?}"),
    };
    let set = |refused: Result<DeviceIndex, PoolError>| match refused {
        Err(PoolError::Devices(error)) => error,
        other => panic!("{other:?}"),
    };
    // Of another pool, without a pool, in use, and older than when it left.
    let asked = home.changes_asked();
    assert!(matches!(set(pool.take_online(device(&other))), DeviceSetError::Foreign { .. }));
    assert!(matches!(set(pool.take_online(blank)), DeviceSetError::NoPool { .. }));
    let in_use = membership(pool.take_online(Arc::clone(&home.devices()[2])));
    assert_eq!(in_use, MembershipError::Online(DeviceIndex(2)));
    assert!(matches!(membership(pool.take_online(device(&copy))), MembershipError::OldCopy { .. }));
    // Written elsewhere, in whichever kind of session.
    for writes_root in [false, true] {
        let elsewhere = home.fork();
        let (alone, _) = open(vec![device(&elsewhere)]).unwrap();
        let _first_root = alone.allocate(id(40), SegmentStream::Large).unwrap();
        if writes_root {
            alone.write_root(b"elsewhere").unwrap();
        }
        let apart = set(pool.take_online(device(&elsewhere)));
        assert!(
            matches!(&apart, DeviceSetError::Diverged { one, other } if one.len() == 2 && other.len() == 1),
            "{apart:?}"
        );
    }
    assert_eq!(home.changes_asked(), asked, "nothing was written");
    assert_eq!(state(&pool), DeviceState::Offline);
    let with_copy = vec![Arc::clone(&home.devices()[0]), device(&copy), Arc::clone(&home.devices()[2])];
    let opened = Pool::open_with_online(with_copy, &DistinctNumbers, &[AWAY]).map(drop);
    assert!(matches!(opened, Err(PoolError::Membership(MembershipError::OldCopy { .. }))), "{opened:?}");
    pool.take_online(device(&home)).unwrap();
    assert_reads(&pool, &written);

    // One that was removed is added as any other device.
    pool.free(id(1)).unwrap();
    let added = home.add(DeviceSpec::append_only("more", DEVICE_BYTES));
    pool.add_device(added, false, &DistinctNumbers).unwrap();
    pool.set_leaving(AWAY, true).unwrap();
    pool.remove_device(AWAY).unwrap();
    assert!(matches!(membership(pool.take_online(device(&home))), MembershipError::NotMember { .. }));
}

#[test]
fn a_device_leaves_and_returns_again_and_again() {
    let (world, pool) = world(9, 4, 2, 1);
    let mut all = Vec::new();
    for n in 0..12 {
        match n % 4 {
            0 => pool.take_offline(AWAY).unwrap(),
            1 => all.push(fail_a_write(&world, &pool, 100 + n)),
            2 => {
                world.sims()[1].inject(Fault::Vanish { after: 0 });
                all.push(write_segment(&pool, id(200 + n), &[90_000]));
                world.sims()[1].heal();
            }
            // The server of the pool is restarted without it.
            _ => {}
        }
        let missed = write_segment(&pool, id(300 + n), &[90_000]);
        pool.take_online(device(&world)).or_else(|e| if n % 4 == 3 { Ok(AWAY) } else { Err(e) }).unwrap();
        all.extend([missed, write_segment(&pool, id(400 + n), &[90_000])]);
        for w in &mut all {
            let mended = pool.resilver(w.descriptor.id, Suspects::Recorded, &Vacated::default()).unwrap();
            w.descriptor = mended.descriptor;
            pool.free_old_zones(mended.old_zones);
        }
        if n % 4 == 3 {
            pool.free(all.remove(0).descriptor.id).unwrap();
        }
    }
    pool.write_root(b"state").unwrap();
    drop(pool);
    let narrow = |w: &&WrittenSegment| w.descriptor.parity == 1;
    for lost in [0, 2, 3] {
        let pool = open_with(devices_without(&world, &[lost]), &all.iter().collect::<Vec<_>>());
        all.iter().filter(narrow).for_each(|w| assert_reads(&pool, w));
    }
    assert!(world.sims().iter().all(|sim| sim.overwrites().is_empty()));
}

#[test]
fn a_cut_at_any_moment_of_taking_a_device_offline_or_online_leaves_it_so_or_so() {
    for goes_online in [false, true] {
        let (mut home, pool) = world(10, 3, 2, 1);
        let written = write_segment(&pool, id(1), &[90_000]);
        if goes_online {
            pool.take_offline(AWAY).unwrap();
        }
        drop(pool);
        let pool = open_with(home.devices(), &[&written]);
        home.record();
        if goes_online {
            pool.take_online(device(&home)).map(drop).unwrap();
        } else {
            pool.take_offline(AWAY).unwrap();
        }
        home.mark(0);
        let recording = home.take_recording().unwrap();
        let mut replay = recording.replay();
        let (mut is_durable, mut found) = (false, BTreeSet::new());
        while let Some(event) = replay.advance() {
            is_durable |= matches!(event, Event::Mark(_));
            for cut in replay.cuts(8, 7) {
                let crashed = replay.cut(&cut);
                let pool = open_with(crashed.devices(), &[&written]);
                assert_reads(&pool, &written);
                let is_done = (state(&pool) == DeviceState::Offline) != goes_online;
                assert!(is_done || !is_durable, "it is durable when the call returns: {cut:?}");
                found.insert(is_done);
                // Another call ends as wished.
                if !goes_online {
                    pool.take_offline(AWAY).unwrap();
                } else if !is_done {
                    pool.take_online(device(&crashed)).map(drop).unwrap();
                }
                let next = write_segment(&pool, id(9), &[40_000]);
                pool.write_root(b"next").unwrap();
                drop(pool);
                let pool = open_with(crashed.devices(), &[&written, &next]);
                assert_eq!(state(&pool) == DeviceState::Offline, !goes_online);
                assert_reads(&pool, &written);
                assert_reads(&pool, &next);
                assert!(crashed.sims().iter().all(|sim| sim.overwrites().is_empty()));
            }
        }
        assert_eq!(found.len(), 2, "cuts before the root and after it");
    }
}

/// Another device is lost while one is kept offline. The pool opens only with the first one online.
#[test]
fn a_pool_that_needs_a_device_that_is_kept_offline_opens_when_it_is_named_online() {
    let (world, pool) = world(11, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[90_000]);
    pool.take_offline(AWAY).unwrap();
    drop(pool);
    let devices = || devices_without(&world, &[0]);
    assert!(matches!(open(devices()), Err(PoolError::Devices(DeviceSetError::Missing { .. }))));
    let asked = world.changes_asked();
    let (pool, _) = Pool::open_with_online(devices(), &DistinctNumbers, &[AWAY]).unwrap();
    assert_eq!(world.changes_asked(), asked, "an opening writes nothing");
    pool.adopt(&written.descriptor).unwrap();
    assert_eq!(state(&pool), DeviceState::Present);
    assert_reads(&pool, &written);
    pool.write_root(b"state").unwrap();
    drop(pool);
    assert_eq!(state(&open(devices()).unwrap().0), DeviceState::Present);
}

/// The entry of the removed device said that it is gone and kept offline, which no opening accepts. So the
/// newest root could not be read.
#[test]
fn a_device_that_is_offline_leaves_the_pool() {
    let (world, pool) = world(61, 4, 2, 1);
    pool.take_offline(AWAY).unwrap();
    let written = write_segment(&pool, id(1), &[90_000]);
    pool.set_leaving(AWAY, true).unwrap();
    pool.remove_device(AWAY).unwrap();
    pool.write_root(b"state").unwrap();
    drop(pool);
    let (pool, root) = open(world.devices()).unwrap();
    assert_eq!((root.payload.as_slice(), pool.status().devices.len()), (&b"state"[..], 3));
    pool.adopt(&written.descriptor).unwrap();
    assert_reads(&pool, &written);
}

/// An open segment without stripes loses nothing, and neither does one on other devices.
#[test]
fn a_device_is_needed_by_the_stripes_that_it_holds() {
    let (world, pool) = world(67, 3, 1, 0);
    let mut writer = pool.allocate(id(1), SegmentStream::Large).unwrap();
    let (device, _) = writer.descriptor().columns[0];
    assert_eq!(pool.check_spared(device), Ok(()), "the segment is empty");
    let mut buf = writer.buffer();
    buf.append(&[7; 5000]);
    writer.write_stripe(&mut buf, 1).unwrap();
    pool.flush().unwrap();
    let needed = MembershipError::Needed { device, segments: 1 };
    assert_eq!(pool.check_spared(device), Err(needed.into()));
    world.sims()[usize::from(device.0)].inject(Fault::Vanish { after: 0 });
    pool.write_root(b"state").expect("two devices take it");
    assert!(!pool.takes_writes(device));
    let other = DeviceIndex((device.0 + 1) % 3);
    assert_eq!(pool.check_spared(other), Ok(()), "the other one has lost its stripes already");
}
