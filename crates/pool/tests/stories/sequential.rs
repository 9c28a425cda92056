//! Every write is aligned, begins at its zone's write pointer and overwrites nothing.

use warpfire_pool::{CreateOptions, SegmentStream};
use warpfire_sim_env::{DeviceSpec, SimWorld};

use crate::rig::{DEVICE_BYTES, ZONE_BYTES, assert_reads, create, id, open, pattern, write_segment};

/// A few sessions that fill, free and refill zones, with roots between.
fn live(world: &SimWorld, options: &CreateOptions) {
    let mut pool = create(world, options).unwrap();
    let mut next = 1;
    for session in 0..4 {
        let mut kept = Vec::new();
        for round in 0..40 {
            let written = write_segment(&pool, id(next), &[5, 40_000, usize::MAX, 12_000, usize::MAX]);
            let mut log = pool.allocate(id(next + 1), SegmentStream::CommitLog).unwrap();
            let mut buf = log.buffer();
            for n in 0..5 {
                log.begin(&mut buf);
                buf.append(&pattern(n, 3000 * n as usize + 1));
                log.write_stripe(&mut buf, n).unwrap();
            }
            pool.flush().unwrap();
            assert_reads(&pool, &written);
            pool.free(id(next + 1)).unwrap();
            kept.push(written);
            if kept.len() > 3 {
                let oldest = kept.remove(0);
                pool.free(oldest.descriptor.id).unwrap();
            }
            pool.write_root(&pattern(round, 3000)).unwrap();
            next += 2;
        }
        let (again, root) = open(world.devices()).unwrap();
        assert!(root.payload == pattern(39, 3000), "session {session}");
        for written in &kept {
            again.adopt(&written.descriptor).unwrap();
            assert_reads(&again, written);
            again.free(written.descriptor.id).unwrap();
        }
        pool = again;
    }
}

#[test]
fn zoned_devices_refuse_nothing() {
    let world = SimWorld::of(70, 4, &DeviceSpec::zoned("zns", DEVICE_BYTES, ZONE_BYTES));
    live(&world, &CreateOptions { data: 2, parity: 1, ..CreateOptions::default() });
}

#[test]
fn the_zone_size_of_a_zoned_device_need_not_be_a_power_of_two() {
    let world = SimWorld::of(71, 3, &DeviceSpec::zoned("zns", 20 * 77 * 4096, 77 * 4096));
    live(&world, &CreateOptions { data: 1, parity: 1, ..CreateOptions::default() });
}

#[test]
fn nothing_is_overwritten_that_was_not_discarded() {
    let world = SimWorld::of(72, 4, &DeviceSpec::append_only("flash", DEVICE_BYTES));
    live(&world, &CreateOptions { zone_bytes: Some(ZONE_BYTES), data: 3, parity: 1, force: false });
    for sim in world.sims() {
        assert_eq!(sim.overwrites(), []);
    }
}
