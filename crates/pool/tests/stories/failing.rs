//! Devices that fail while the pool works.

use warpfire_pool::{DeviceState, Pool, PoolError, SegmentKind};
use warpfire_sim_env::{Fault, OpClass};

use crate::rig::{assert_reads, id, open_with, pattern, read, world, write_segment};

#[test]
fn a_device_that_fails_a_write_is_dropped_and_the_stripe_stands() {
    let (world, pool) = world(60, 6, 4, 2);
    world.sims()[3].inject(Fault::Fail { op: OpClass::Write, after: 0, lasting: true });
    let mut writer = pool.allocate(id(1), SegmentKind::Bulk).unwrap();
    let mut buf = writer.buffer();
    assert!(!writer.is_degraded());
    buf.append(&pattern(1, 100_000));
    writer.write_stripe(&mut buf, 1).unwrap();
    assert!(writer.is_degraded());
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
    let (pool, root) = Pool::open(world.devices()).unwrap();
    assert_eq!(root.payload, b"x");
    pool.adopt(&d).unwrap();
    let slice = warpfire_units::SlicePtr { segment: id(1), offset_bytes: 0, len_bytes: 100_000 };
    assert!(read(&pool, slice).unwrap() == pattern(1, 100_000));
}

#[test]
fn beyond_parity_a_write_or_flush_is_an_error_and_flushed_bytes_stay() {
    for op in [OpClass::Write, OpClass::Flush] {
        let (world, pool) = world(61, 3, 2, 1);
        let safe = write_segment(&pool, id(1), &[50_000]);
        for sim in &world.sims()[..2] {
            sim.inject(Fault::Fail { op, after: 0, lasting: true });
        }
        let mut writer = pool.allocate(id(2), SegmentKind::Bulk).unwrap();
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
    let mut writer = pool.allocate(id(1), SegmentKind::Bulk).unwrap();
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
                let (again, root) = Pool::open(world.devices()).unwrap();
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
