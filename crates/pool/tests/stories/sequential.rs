//! Every write is aligned, begins at its zone's write pointer and overwrites nothing.

use warpfire_env::Device;
use warpfire_pool::{ACTIVE_ZONES_MIN, CreateOptions, SegmentStream};
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

/// The first zones of a drive that writes in shingles take writes anywhere. They hold roots and columns like
/// the others.
#[test]
fn zones_that_take_writes_anywhere_are_used_like_the_others() {
    for conventional in [1, 2, 5, 20] {
        let spec = DeviceSpec::zoned_drive("smr", DEVICE_BYTES, ZONE_BYTES, (conventional, 0));
        let world = SimWorld::of(73, 4, &spec);
        live(&world, &CreateOptions { data: 2, parity: 1, ..CreateOptions::default() });
    }
}

/// A drive refuses the first write to one zone more than its limit of zones that are written and not full.
/// Each short segment left such a zone, so after a few of them the drive was dropped.
#[test]
fn short_segments_leave_no_active_zone_behind() {
    let spec = DeviceSpec::zoned_drive("zns", DEVICE_BYTES, ZONE_BYTES, (0, ACTIVE_ZONES_MIN));
    let world = SimWorld::of(74, 3, &spec);
    let options = CreateOptions { data: 2, parity: 1, ..CreateOptions::default() };
    let pool = create(&world, &options).unwrap();
    let zones = u64::from(pool.status().devices[0].free_zones);
    assert!(zones > 2 * u64::from(ACTIVE_ZONES_MIN), "more short segments than active zones");
    for n in 1..zones {
        let written = write_segment(&pool, id(n), &[5]);
        assert_reads(&pool, &written);
    }
    assert_eq!(pool.status().lost(), 0, "no device was dropped");
}

/// A session that ends leaves its open segments half written. The next one ends these zones.
#[test]
fn an_opening_ends_the_zones_of_the_sessions_before() {
    let spec = DeviceSpec::zoned_drive("zns", 2 * DEVICE_BYTES, ZONE_BYTES, (0, ACTIVE_ZONES_MIN));
    let world = SimWorld::of(75, 1, &spec);
    let mut pool = create(&world, &CreateOptions::default()).unwrap();
    let mut descriptors = Vec::new();
    for session in 0..4 {
        for n in 1..=8 {
            let mut writer = pool.allocate(id(session * 8 + n), SegmentStream::Large).unwrap();
            let mut buf = writer.buffer();
            buf.append(b"a short stripe");
            writer.write_stripe(&mut buf, 1).unwrap();
            descriptors.push(writer.descriptor());
        }
        pool.flush().unwrap();
        pool.write_root(b"root").unwrap();
        pool = open(world.devices()).unwrap().0;
        descriptors.iter().for_each(|d| pool.adopt(d).unwrap());
        pool.finish_old_zones();
    }
    assert_eq!(pool.status().lost(), 0, "no device was dropped");
    let active = world.sims()[0].active_zones().unwrap();
    assert!(active.iter().all(|at| *at < 2 * ZONE_BYTES), "only roots are active: {active:?}");
}

#[test]
fn a_drive_that_allows_too_few_active_zones_is_refused() {
    let spec = DeviceSpec::zoned_drive("zns", DEVICE_BYTES, ZONE_BYTES, (0, ACTIVE_ZONES_MIN - 1));
    let refused = create(&SimWorld::of(76, 1, &spec), &CreateOptions::default()).err().unwrap().to_string();
    assert!(refused.contains("allows 13 zones that are written and not full"), "{refused}");
    let mut home = SimWorld::of(77, 1, &DeviceSpec::zoned("zns", DEVICE_BYTES, ZONE_BYTES));
    let pool = create(&home, &CreateOptions::default()).unwrap();
    let refused = pool.add_device(home.add(spec), false, &*home.random()).unwrap_err().to_string();
    assert!(refused.contains("allows 13 zones that are written and not full"), "{refused}");
}

#[test]
fn nothing_is_overwritten_that_was_not_discarded() {
    let world = SimWorld::of(72, 4, &DeviceSpec::append_only("flash", DEVICE_BYTES));
    live(&world, &CreateOptions { zone_bytes: Some(ZONE_BYTES), data: 3, parity: 1, force: false });
    for sim in world.sims() {
        assert_eq!(sim.overwrites(), []);
    }
}
