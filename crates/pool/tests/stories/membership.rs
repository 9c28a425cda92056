//! Devices leave the pool and stay in it.

use std::collections::BTreeSet;

use warpfire_pool::{MembershipError, PoolError};
use warpfire_sim_env::Event;
use warpfire_units::DeviceIndex;

use crate::rig::{assert_reads, id, open, open_with, world, write_segment};

fn is_leaving(pool: &warpfire_pool::Pool) -> Vec<bool> {
    pool.status().devices.iter().map(|d| d.is_leaving).collect()
}

#[test]
fn a_device_that_leaves_is_read_and_gets_no_new_column_also_after_an_open() {
    let (world, pool) = world(1, 4, 2, 1);
    let leaver = DeviceIndex(1);
    let lies_on = |w: &crate::rig::WrittenSegment| w.descriptor.columns.iter().any(|c| c.0 == leaver);
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
