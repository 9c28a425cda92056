//! Devices that fail while the pool works.

use warpfire_pool::{
    CreateOptions, DeviceState, LostColumn, Pool, PoolError, SegmentKind, SegmentStream, SegmentWriter,
    Suspects, Vacated,
};
use warpfire_sim_env::{Fault, OpClass, SimWorld};
use warpfire_units::{DeviceIndex, SlicePtr};

use crate::rig::{
    DEVICE_BYTES, ZONE_BYTES, assert_reads, block_at, create, id, open, open_with, options, pattern, read,
    world, write_segment,
};

#[test]
fn a_device_that_fails_a_write_is_dropped_and_the_stripe_stands() {
    let (world, pool) = world(60, 6, 4, 2);
    world.sims()[3].inject(Fault::Fail { op: OpClass::Write, after: 0, lasting: true });
    let mut writer = pool.allocate(id(1), SegmentStream::Large).unwrap();
    let mut buf = writer.buffer();
    assert!(!writer.is_outdated());
    buf.append(&pattern(1, 100_000));
    writer.write_stripe(&mut buf, 1).unwrap();
    assert!(writer.is_outdated());
    pool.flush().unwrap();
    let d = writer.seal();
    assert_eq!(pool.status().devices[3].state, DeviceState::Failed);
    assert_eq!(
        pool.geometry(SegmentKind::Bulk).data,
        3,
        "new segments have fewer data columns, not less parity"
    );
    let next = write_segment(&pool, id(2), &[100_000]);
    assert!(next.descriptor.columns.iter().all(|(device, _)| device.0 != 3));
    pool.write_root(b"x").unwrap();
    let (pool, root) = open(world.devices()).unwrap();
    assert_eq!(root.payload, b"x");
    pool.adopt(&d).unwrap();
    let slice = warpfire_units::SlicePtr { segment: id(1), offset_bytes: 0, len_bytes: 100_000 };
    assert!(read(&pool, slice).unwrap() == pattern(1, 100_000));
}

#[test]
fn a_column_that_misses_a_write_or_a_flush_is_lost_from_there_on() {
    for (op, written_before) in [(OpClass::Write, 0), (OpClass::Write, 2), (OpClass::Flush, 2)] {
        let (world, pool) = world(63, 3, 2, 1);
        let mut writer = pool.allocate(id(1), SegmentStream::Large).unwrap();
        let mut buf = writer.buffer();
        let mut write = |n: u64| {
            writer.begin(&mut buf);
            buf.append(&pattern(n, 9000));
            writer.write_stripe(&mut buf, n).unwrap();
        };
        (0..written_before).for_each(&mut write);
        pool.flush().unwrap();
        assert_eq!(pool.take_lost(), []);
        world.sims()[1].inject(Fault::Fail { op, after: 0, lasting: false });
        write(2);
        write(3);
        pool.flush().unwrap();
        let d = writer.seal();
        let column = d.columns.iter().position(|(device, _)| device.0 == 1).unwrap();
        let first_stripe = u32::try_from(written_before).unwrap();
        let lost = LostColumn { column: u16::try_from(column).unwrap(), first_stripe };
        assert_eq!((pool.take_lost(), pool.take_lost()), (vec![(id(1), lost)], vec![]), "{op:?}");
        assert_eq!(d.lost, [lost]);

        // The device returns: the column is rewritten, to another zone.
        let (pool, _) = open(world.devices()).unwrap();
        pool.adopt(&d).unwrap();
        let resilvered = pool.resilver(id(1), Suspects::Recorded, &Vacated::default()).unwrap();
        assert_eq!((resilvered.moves.len(), resilvered.failure), (1, None));
        assert_eq!(resilvered.descriptor.lost, []);
        assert_ne!(resilvered.descriptor.columns[column], d.columns[column]);
        pool.free_old_zones(resilvered.old_zones);
        assert!(pool.verify(id(1)).unwrap().is_whole);
    }
}

#[test]
fn a_column_moves_to_another_device_when_its_own_has_no_free_zone() {
    let (world, pool) = world(64, 4, 2, 1);
    let written = write_segment(&pool, id(1), &[9000, 20_000]);
    // The device of the first column has no free zone when segments go that have no column on it.
    let own = written.descriptor.columns[0].0;
    let spare =
        (0..4).map(DeviceIndex).find(|d| written.descriptor.columns.iter().all(|(c, _)| c != d)).unwrap();
    let mut others = Vec::new();
    while let Ok(writer) = pool.allocate(id(2 + others.len() as u64), SegmentStream::Large) {
        others.push(writer.descriptor());
    }
    // The last zone of each device is for mirrors.
    let mirrors = (1001..).take_while(|n| pool.allocate(id(*n), SegmentStream::CommitLog).is_ok()).count();
    assert!(mirrors > 0);
    assert_eq!(pool.status().devices[usize::from(own.0)].free_zones, 0);
    let without_own = others.iter().filter(|d| d.columns.iter().all(|(device, _)| *device != own));
    without_own.for_each(|d| pool.free(d.id).unwrap());
    let (device, at) = block_at(&written, 1, 0, Some(1));
    world.sims()[device].rot(at, 3);
    let resilvered = pool.resilver(id(1), Suspects::Unverified, &Vacated::default()).unwrap();
    assert_eq!(resilvered.failure, None);
    assert_eq!(resilvered.descriptor.columns[0].0, spare, "no two columns on one device");
    assert_reads(&pool, &written);
    assert!(pool.verify(id(1)).unwrap().is_whole);
}

#[test]
fn a_column_whose_device_fails_the_flush_stays_where_it_was() {
    let (world, pool) = world(65, 3, 2, 1);
    let written = write_segment(&pool, id(1), &[9000, 20_000]);
    let (device, at) = block_at(&written, 1, 0, Some(1));
    world.sims()[device].rot(at, 3);
    pool.write_root(b"").unwrap();
    let free = pool.status().devices[device].free_zones;
    world.sims()[device].inject(Fault::Fail { op: OpClass::Flush, after: 0, lasting: false });
    let resilvered = pool.resilver(id(1), Suspects::Unverified, &Vacated::default()).unwrap();
    assert!(resilvered.failure.is_some() && resilvered.moves.is_empty());
    assert_eq!(resilvered.descriptor.columns, written.descriptor.columns);
    assert_eq!(resilvered.descriptor.lost, [LostColumn { column: 0, first_stripe: 1 }]);
    assert_eq!(pool.status().devices[device].free_zones, free, "the fresh zone is free again");
    assert_reads(&pool, &written);
}

#[test]
fn beyond_parity_a_write_or_flush_is_an_error_and_flushed_bytes_stay() {
    for op in [OpClass::Write, OpClass::Flush] {
        let (world, pool) = world(61, 3, 2, 1);
        let safe = write_segment(&pool, id(1), &[50_000]);
        for sim in &world.sims()[..2] {
            sim.inject(Fault::Fail { op, after: 0, lasting: true });
        }
        let mut writer = pool.allocate(id(2), SegmentStream::Large).unwrap();
        let mut buf = writer.buffer();
        buf.append(&[7; 9000]);
        let result = writer.write_stripe(&mut buf, 1).and_then(|_| pool.flush());
        assert!(matches!(result, Err(PoolError::Failed { .. })), "{result:?}");
        assert_reads(&pool, &safe);
        assert!(matches!(pool.write_root(b"x"), Err(PoolError::Failed { .. })));
        world.sims().iter().for_each(|sim| sim.heal());
        let again = open_with(world.devices(), &[&safe]);
        assert_reads(&again, &safe);
    }
}

#[test]
fn a_writer_that_failed_stays_failed() {
    let (world, pool) = world(62, 1, 1, 0);
    let mut writer = pool.allocate(id(1), SegmentStream::Large).unwrap();
    world.sims()[0].inject(Fault::Fail { op: OpClass::Write, after: 0, lasting: false });
    let mut buf = writer.buffer();
    for _ in 0..2 {
        writer.begin(&mut buf);
        buf.append(b"bytes");
        assert!(matches!(writer.write_stripe(&mut buf, 1), Err(PoolError::Failed { .. })));
    }
    assert_eq!(writer.stripe_count(), 0);
}

/// One device fails its nth read, write or flush, once or from then on, or vanishes. Parity covers all of it.
#[test]
fn one_device_failing_at_any_operation_loses_nothing_within_parity() {
    for after in 0..24 {
        for lasting in [false, true] {
            for class in [Some(OpClass::Read), Some(OpClass::Write), Some(OpClass::Flush), None] {
                let (world, pool) = world(63, 4, 2, 1);
                let fault = match class {
                    Some(op) => Fault::Fail { op, after, lasting },
                    None => Fault::Vanish { after },
                };
                world.sims()[(after % 4) as usize].inject(fault.clone());
                let mut segments = Vec::new();
                for n in 1..=6 {
                    let written = write_segment(&pool, id(n), &[10, 90_000, 5000]);
                    assert_reads(&pool, &written);
                    pool.write_root(&pattern(n, 5000)).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
                    segments.push(written);
                }
                world.sims().iter().for_each(|sim| sim.heal());
                let (again, root) = open(world.devices()).unwrap();
                assert!(root.payload == pattern(6, 5000));
                for written in &segments {
                    again.adopt(&written.descriptor).unwrap();
                    assert_reads(&again, written);
                }
            }
        }
    }
}

#[test]
fn new_segments_have_one_copy_when_one_of_two_devices_is_gone() {
    let (world, pool) = world(64, 2, 1, 1);
    world.sims()[1].inject(Fault::Vanish { after: 0 });
    let written = write_segment(&pool, id(1), &[9000]);
    let narrow = write_segment(&pool, id(2), &[9000]);
    assert_eq!(narrow.descriptor.parity, 0);
    pool.write_root(b"alone").unwrap();
    assert_reads(&pool, &written);
    assert_eq!(pool.status().devices[1].state, DeviceState::Gone);
}

#[test]
fn a_freed_segment_is_gone_and_its_zones_are_used_again() {
    let (world, pool) = world(65, 2, 1, 1);
    let all = pool.free_segments(SegmentKind::Bulk);
    for n in 1..=3 * all {
        let written = write_segment(&pool, id(n), &[20_000]);
        assert_reads(&pool, &written);
        pool.free(id(n)).unwrap();
        assert_eq!(read(&pool, written.slice(0, 1)), Err(PoolError::UnknownSegment(id(n))));
        assert_eq!(pool.free(id(n)), Err(PoolError::UnknownSegment(id(n))));
    }
    assert_eq!(pool.free_segments(SegmentKind::Bulk), all);
    assert!(world.sims().iter().all(|d| d.overwrites().is_empty()));
}

/// A discard is advice to a device that can be written anywhere.
#[test]
fn a_discard_that_fails_costs_nothing() {
    let (world, _) = world(66, 3, 2, 1);
    for sim in world.sims() {
        sim.inject(Fault::Fail { op: OpClass::Discard, after: 0, lasting: true });
    }
    let pool = create(&world, &CreateOptions { force: true, ..options(2, 1) }).unwrap();
    for n in 1..=40 {
        let written = write_segment(&pool, id(n), &[20_000]);
        assert_reads(&pool, &written);
        pool.write_root(&pattern(n, 5000)).unwrap();
        pool.free(id(n)).unwrap();
    }
    let status = pool.status();
    assert_eq!(status.lost(), 0);
    assert!(status.devices.iter().all(|d| d.retired_zones == 0 && d.counters.errors > 0), "{status:?}");
}

#[test]
fn a_zone_that_cannot_be_reset_is_retired_and_the_device_stays() {
    let spec = warpfire_sim_env::DeviceSpec::zoned("flash", DEVICE_BYTES, ZONE_BYTES);
    let world = SimWorld::of(67, 3, &spec);
    let pool = create(&world, &CreateOptions { zone_bytes: None, ..options(2, 1) }).unwrap();
    let written = write_segment(&pool, id(1), &[20_000]);
    let free = pool.free_segments(SegmentKind::Bulk);
    for (device, zone) in &written.descriptor.columns[..1] {
        let offset_bytes = u64::from(zone.0) * ZONE_BYTES;
        let dead = Fault::DeadZone { offset_bytes, len_bytes: ZONE_BYTES, is_offline: false };
        world.sims()[usize::from(device.0)].inject(dead);
    }
    pool.free(id(1)).unwrap();
    // More than once round all zones: none of them is the dead one.
    for n in 2..=80 {
        let written = write_segment(&pool, id(n), &[20_000]);
        assert_reads(&pool, &written);
        pool.free(id(n)).unwrap();
    }
    let status = pool.status();
    assert_eq!(status.lost(), 0, "{status:?}");
    assert_eq!(status.devices.iter().map(|d| d.retired_zones).sum::<u32>(), 1);
    assert_eq!(pool.free_segments(SegmentKind::Bulk), free + 1, "the last one has a data column fewer");
    // Found dead when it is taken, not when it was freed.
    let (again, _) = open(world.devices()).unwrap();
    for n in 101..=180 {
        let written = write_segment(&again, id(n), &[20_000]);
        assert_reads(&again, &written);
        again.free(id(n)).unwrap();
    }
    assert_eq!(again.status().lost(), 0);
    assert_eq!(again.status().devices.iter().map(|d| d.retired_zones).sum::<u32>(), 1);
}

/// The pool becomes full of zones that do not come back. It asks the devices less and less, and uses the
/// zones when they can be reset again.
#[test]
fn zones_come_back_when_their_devices_can_reset_them_again() {
    let spec = warpfire_sim_env::DeviceSpec::zoned("flash", DEVICE_BYTES, ZONE_BYTES);
    let world = SimWorld::of(70, 3, &spec);
    let pool = create(&world, &CreateOptions { zone_bytes: None, ..options(2, 1) }).unwrap();
    let all = pool.free_segments(SegmentKind::Bulk);
    let kept = write_segment(&pool, id(1000), &[20_000]);
    let refuse = || Fault::Fail { op: OpClass::Discard, after: 0, lasting: true };
    let written: Vec<_> = (1..all).map(|n| write_segment(&pool, id(n), &[20_000])).collect();
    world.sims().iter().for_each(|sim| sim.inject(refuse()));
    (1..all).for_each(|n| pool.free(id(n)).unwrap());
    assert_eq!(written.len() as u64, all - 1);
    assert!(matches!(pool.allocate(id(2000), SegmentStream::Large), Err(PoolError::NoSpace)));
    let retired = |pool: &Pool| pool.status().devices.iter().map(|d| u64::from(d.retired_zones)).sum::<u64>();
    assert_eq!((retired(&pool), pool.status().lost()), (3 * (all - 1), 0));
    let resets = || world.sims().iter().map(|sim| sim.counters().discards).sum::<u64>();
    let before = resets();
    assert!((0..1000).all(|_| !pool.find_free_zones()));
    assert!(resets() - before <= 3 * 10, "{} resets", resets() - before);
    assert_reads(&pool, &kept);
    world.sims().iter().for_each(|sim| sim.heal());
    assert!((0..1000).any(|_| pool.find_free_zones()));
    assert_eq!((retired(&pool), pool.free_segments(SegmentKind::Bulk)), (0, all - 1));
    let again = write_segment(&pool, id(3000), &[20_000]);
    assert_reads(&pool, &again);
}

/// An image file on a full filesystem. Parity could cover it; the pool stops instead, because the other
/// images probably lie there too.
#[test]
fn a_full_host_costs_no_device() {
    for (data, parity) in [(1, 0), (1, 1), (2, 1)] {
        let (world, pool) = world(68, usize::from(data) + usize::from(parity), data, parity);
        let safe = write_segment(&pool, id(1), &[50_000]);
        world.sims()[0].inject(Fault::Full { after_bytes: 0 });
        let mut writer = pool.allocate(id(2), SegmentStream::Large).unwrap();
        let mut buf = writer.buffer();
        buf.append(&[7; 9000]);
        let refused = writer.write_stripe(&mut buf, 1);
        let Err(PoolError::Failed { reason }) = refused else { panic!("{refused:?}") };
        assert!(reason.contains("no space left"), "{reason}");
        assert!(matches!(pool.write_root(b"x"), Err(PoolError::Failed { .. })) || parity > 0);
        assert_eq!(pool.status().lost(), 0);
        assert_reads(&pool, &safe);
        world.sims().iter().for_each(|sim| sim.heal());
        let again = open_with(world.devices(), &[&safe]);
        assert_eq!(again.status().lost(), 0);
        assert_reads(&again, &safe);
        again.write_root(b"going on").unwrap();
    }
}

#[test]
fn a_failed_device_is_read_only_where_no_other_can_stand_in() {
    let (world, pool) = world(69, 4, 2, 1);
    let written = write_segment(&pool, id(1), &[90_000, 5000]);
    let failing = usize::from(written.descriptor.columns[0].0.0);
    world.sims()[failing].inject(Fault::Fail { op: OpClass::Write, after: 0, lasting: false });
    (2..=4).for_each(|n| drop(write_segment(&pool, id(n), &[1000])));
    assert_eq!(pool.status().devices[failing].state, DeviceState::Failed);
    let before = world.sims()[failing].counters().reads;
    assert_reads(&pool, &written);
    assert_eq!(world.sims()[failing].counters().reads, before, "the others stand in");
    assert_eq!(pool.damaged_segments(), [], "nothing is damaged");
    // With one more column lost, the failed device is the only one that can stand in.
    let other = usize::from(written.descriptor.columns[1].0.0);
    world.sims()[other].inject(Fault::Vanish { after: 0 });
    assert_reads(&pool, &written);
    assert!(world.sims()[failing].counters().reads > before);
}

/// A zoned drive makes a zone read-only, or takes it offline, and goes on itself. Only that column misses the
/// later writes; it is rewritten in another zone.
#[test]
fn a_zone_dies_and_its_device_goes_on() {
    for is_offline in [false, true] {
        let spec = warpfire_sim_env::DeviceSpec::zoned("flash", DEVICE_BYTES, ZONE_BYTES);
        let world = SimWorld::of(72, 3, &spec);
        let pool = create(&world, &CreateOptions { zone_bytes: None, ..options(2, 1) }).unwrap();
        let mut writer = pool.allocate(id(1), SegmentStream::Large).unwrap();
        let write = |n: u64, writer: &mut SegmentWriter| {
            let mut buf = writer.buffer();
            let bytes = pattern(n, 20_000);
            buf.append(&bytes);
            (writer.write_stripe(&mut buf, n).unwrap(), bytes)
        };
        let mut written = vec![write(1, &mut writer)];
        pool.flush().unwrap();
        let (device, zone) = writer.descriptor().columns[1];
        let offset_bytes = u64::from(zone.0) * ZONE_BYTES;
        let dead = Fault::DeadZone { offset_bytes, len_bytes: ZONE_BYTES, is_offline };
        world.sims()[usize::from(device.0)].inject(dead);
        assert!(!writer.is_outdated());
        written.push(write(2, &mut writer));
        assert!(writer.is_outdated(), "a new segment is better");
        written.push(write(3, &mut writer));
        pool.flush().unwrap();
        let assert_written = |pool: &Pool, written: &[(u64, Vec<u8>)]| {
            for (offset_bytes, bytes) in written {
                let slice = SlicePtr { segment: id(1), offset_bytes: *offset_bytes, len_bytes: 20_000 };
                let mut read = vec![0; bytes.len()];
                pool.read(slice, &mut read).unwrap();
                assert!(read == *bytes, "offline {is_offline}");
            }
        };
        assert_eq!(pool.status().lost(), 0, "the device goes on");
        let lost = pool.take_lost();
        assert_eq!(lost.iter().map(|(at, l)| (*at, l.column)).collect::<Vec<_>>(), [(id(1), 1)]);
        assert_eq!(pool.losses_left(id(1)), Some(0));
        assert_written(&pool, &written);
        // A segment without the zone has all its redundancy.
        let other = write_segment(&pool, id(2), &[20_000]);
        assert_eq!(pool.losses_left(id(2)), Some(1));
        drop(writer.seal());
        let resilvered = pool.resilver(id(1), Suspects::Unverified, &Vacated::default()).unwrap();
        assert_eq!(resilvered.failure, None);
        assert_eq!(resilvered.moves.iter().map(|m| m.column).collect::<Vec<_>>(), [1]);
        assert_eq!(pool.losses_left(id(1)), Some(1));
        pool.free_old_zones(resilvered.old_zones);
        assert_eq!(pool.status().devices[usize::from(device.0)].retired_zones, 1, "it is not taken again");
        assert_written(&pool, &written);
        assert_reads(&pool, &other);
        for n in 3..60 {
            assert_reads(&pool, &write_segment(&pool, id(n), &[20_000]));
            assert_eq!(pool.losses_left(id(n)), Some(1));
            pool.free(id(n)).unwrap();
        }
        assert_eq!(pool.status().lost(), 0);
        pool.write_root(b"state").unwrap();
    }
}
