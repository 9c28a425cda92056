//! The widest pool: 242+8 columns on 250 devices.

use warpfire_pool::{CreateOptions, PoolError, SegmentKind};
use warpfire_sim_env::{DeviceSpec, SimWorld};

use crate::rig::{assert_reads, create, devices_without, id, open, read, write_segment};

#[test]
fn any_eight_of_250_devices_may_be_lost_and_a_ninth_is_an_error() {
    let world = SimWorld::of(80, 250, &DeviceSpec::append_only("flash", 16 * (256 << 10)));
    let options = CreateOptions { data: 242, parity: 8, zone_bytes: Some(256 << 10), force: false };
    let pool = create(&world, &options).unwrap();
    assert_eq!(pool.geometry(SegmentKind::Bulk).stripe_payload_bytes, 242 * 31 * 4096);
    assert_eq!(pool.free_segments(SegmentKind::Bulk), 13);
    let written = write_segment(&pool, id(1), &[100, 2_000_000, usize::MAX]);
    pool.write_root(b"wide").unwrap();

    let lost = [0, 1, 2, 3, 4, 5, 6, 7];
    let scattered = [3, 40, 99, 100, 181, 230, 248, 249];
    for without in [lost, scattered] {
        let (pool, root) = open(devices_without(&world, &without)).unwrap();
        assert_eq!(root.payload, b"wide");
        pool.adopt(&written.descriptor).unwrap();
        assert_reads(&pool, &written);
        // New segments have one data column fewer for each lost device.
        assert_eq!(pool.geometry(SegmentKind::Bulk).data, 234);
    }
    let nine = [3, 40, 99, 100, 181, 230, 248, 249, 7];
    assert!(matches!(open(devices_without(&world, &nine)), Err(PoolError::Devices(_))));

    // A ninth device rots while eight are missing: a read of its blocks is an error, never wrong bytes.
    let (ninth, zone) = written.descriptor.columns[0];
    let without: Vec<usize> =
        scattered.iter().map(|d| if *d == usize::from(ninth.0) { 9 } else { *d }).collect();
    let rotten = world.fork();
    for block in 0..64 {
        rotten.sims()[usize::from(ninth.0)].rot(u64::from(zone.0) * (256 << 10) + block * 4096, 1);
    }
    let (pool, _) = open(devices_without(&rotten, &without)).unwrap();
    pool.adopt(&written.descriptor).unwrap();
    assert!(matches!(read(&pool, written.slice(0, 100)), Err(PoolError::Unreadable { .. })));
}
