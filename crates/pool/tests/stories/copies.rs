//! An old copy of a device takes the place of the device.

use std::sync::Arc;

use warpfire_env::Device;
use warpfire_pool::{DeviceSetError, DeviceState, Pool, PoolError};
use warpfire_sim_env::{DistinctNumbers, SimWorld};
use warpfire_units::DeviceIndex;

use crate::rig::{WrittenSegment, assert_reads, id, open, open_with, world, write_segment};

/// The world's devices, those of `old` as they are in `copies`.
fn with_copies(world: &SimWorld, copies: &SimWorld, old: &[usize]) -> Vec<Arc<dyn Device>> {
    let devices = world.devices().into_iter().zip(copies.devices()).enumerate();
    devices.map(|(n, (own, copy))| if old.contains(&n) { copy } else { own }).collect()
}

/// A pool after two sessions that each wrote a segment, closed, and the devices as they were in between.
fn two_sessions(
    seed: u64,
    devices: usize,
    data: u16,
    parity: u8,
) -> (SimWorld, SimWorld, [WrittenSegment; 2]) {
    let (world, pool) = world(seed, devices, data, parity);
    let first = write_segment(&pool, id(1), &[90_000]);
    pool.write_root(b"first").expect("devices work");
    drop(pool);
    let copies = world.fork();
    let pool = open_with(world.devices(), &[&first]);
    let second = write_segment(&pool, id(2), &[90_000]);
    pool.write_root(b"second").expect("devices work");
    drop(pool);
    (world, copies, [first, second])
}

/// A copy of device 1 from before the second session was taken for the device: the pool was whole by its own
/// account, and the loss of another device then lost what the second session had written.
#[test]
fn an_old_copy_of_a_device_is_not_used_and_the_device_is_missing() {
    let (world, copies, [first, second]) = two_sessions(1, 4, 2, 2);
    let mixed = || with_copies(&world, &copies, &[1]);
    for is_reader in [false, true] {
        let asked = world.changes_asked();
        let opened = match is_reader {
            true => Pool::open_for_reading(mixed()),
            false => Pool::open(mixed(), &DistinctNumbers),
        };
        let (pool, root) = opened.unwrap();
        assert_eq!(root.payload, b"second");
        let status = pool.status();
        assert_eq!(
            status.devices.iter().map(|d| d.state == DeviceState::Missing).collect::<Vec<_>>(),
            [false, true, false, false]
        );
        assert!(status.devices[1].old_copy.is_some(), "{status:?}");
        assert_eq!(world.changes_asked(), asked, "an opening writes nothing");
        pool.adopt(&first.descriptor).unwrap();
        pool.adopt(&second.descriptor).unwrap();
        assert_reads(&pool, &first);
        assert_reads(&pool, &second);
        assert_eq!(pool.losses_left(id(2)), Some(1), "the device counts as lost");
    }
    // The session that goes on without the device does not part it from the pool.
    let pool = open_with(mixed(), &[&first, &second]);
    let third = write_segment(&pool, id(3), &[90_000]);
    pool.write_root(b"third").unwrap();
    drop(pool);
    let pool = open_with(world.devices(), &[&first, &second, &third]);
    assert_eq!(pool.status().lost(), 0, "the device itself is taken back");
    [first, second, third].iter().for_each(|w| assert_reads(&pool, w));
}

/// Later roots of a session are on eight devices only.
#[test]
fn an_old_copy_of_any_device_of_a_large_pool_is_left_out() {
    let (world, copies, _) = two_sessions(2, 12, 4, 2);
    for old in 0..12 {
        let (pool, root) = Pool::open_for_reading(with_copies(&world, &copies, &[old])).unwrap();
        assert_eq!(root.payload, b"second");
        assert!(pool.status().devices[old].old_copy.is_some(), "device {old}");
    }
}

#[test]
fn a_pool_with_too_many_old_copies_is_refused_and_names_them() {
    let (world, copies, [first, _]) = two_sessions(2, 4, 2, 2);
    let refused = open(with_copies(&world, &copies, &[1, 2, 3])).map(drop).unwrap_err();
    let PoolError::Devices(DeviceSetError::Missing { missing, old_copies, .. }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((missing.len(), old_copies.len()), (3, 3));
    let scanned: Vec<_> = with_copies(&world, &copies, &[1, 2, 3])
        .into_iter()
        .filter_map(|device| Pool::scan_device(device).unwrap())
        .collect();
    let scanned = Pool::scan(&scanned);
    assert_eq!(
        scanned.reading.unwrap_err(),
        match &refused {
            PoolError::Devices(error) => error.clone(),
            other => panic!("{other}"),
        }
    );
    assert_eq!(scanned.strangers, [1, 2, 3]);
    // The copies of one moment are a pool by themselves.
    let old = with_copies(&world, &copies, &[0, 1, 2, 3]);
    let pool = open_with(old, &[&first]);
    assert_eq!(pool.status().lost(), 0);
    assert_reads(&pool, &first);
}

/// The half of a mirror that is left does not know whether the other half went on.
#[test]
fn a_mirror_with_an_old_copy_is_not_written_unless_it_is_wished() {
    let (world, copies, [first, second]) = two_sessions(3, 2, 1, 1);
    let mixed = || with_copies(&world, &copies, &[1]);
    let refused = Pool::open(mixed(), &DistinctNumbers).map(drop).unwrap_err();
    let PoolError::Devices(DeviceSetError::MayBeOlder { missing, old_copies }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((missing[0].0, old_copies[0].0), (DeviceIndex(1), DeviceIndex(1)));
    assert!(refused.to_string().contains("it may be an old copy"), "{refused}");
    let pool = open_with(mixed(), &[&first, &second]);
    assert_reads(&pool, &second);
}
