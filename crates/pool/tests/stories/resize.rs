//! Devices get another size.

use std::collections::BTreeSet;

use warpfire_pool::{DeviceSetError, MembershipError, Pool, PoolError, SegmentKind, Suspects};
use warpfire_sim_env::{Event, SimWorld};
use warpfire_units::{DeviceIndex, ZoneIndex};

use crate::rig::{
    WrittenSegment, ZONE_BYTES, assert_reads, devices_without, id, open, open_with, world, write_segment,
};

const SIZED: DeviceIndex = DeviceIndex(1);
/// Its zones before and after.
const MANY: u32 = 32;
const FEW: u32 = 18;

fn zones(pool: &Pool) -> u32 {
    pool.status().devices[usize::from(SIZED.0)].zones
}

fn is_behind((device, zone): &(DeviceIndex, ZoneIndex)) -> bool {
    *device == SIZED && zone.0 >= FEW
}

/// A pool with segments on most of its zones.
fn filled(seed: u64) -> (SimWorld, Pool, Vec<WrittenSegment>) {
    let (world, pool) = world(seed, 4, 2, 1);
    let written: Vec<_> = (1..25).map(|n| write_segment(&pool, id(n), &[90_000])).collect();
    assert!(written.iter().any(|w| w.descriptor.columns.iter().any(is_behind)));
    (world, pool, written)
}

/// Moves the columns behind the new end.
fn empty_end(pool: &Pool, written: &mut [WrittenSegment]) {
    for w in written.iter_mut().filter(|w| w.descriptor.columns.iter().any(is_behind)) {
        let vacated = pool.vacated_with(BTreeSet::new());
        let moved = pool.resilver(w.descriptor.id, Suspects::Recorded, &vacated).unwrap();
        assert_eq!(moved.moves.len(), 1, "{:?}", moved.failure);
        w.descriptor = moved.descriptor;
        pool.free_old_zones(moved.old_zones);
    }
}

fn grow(pool: &Pool, world: &SimWorld, zones: u32) -> Result<(), PoolError> {
    pool.grow_device(SIZED, zones, world.devices()[usize::from(SIZED.0)].clone())
}

#[test]
fn a_device_gets_fewer_zones_and_more_and_keeps_its_data() {
    let (world, pool, mut written) = filled(1);
    pool.set_end(SIZED, Some(FEW)).unwrap();
    let after = write_segment(&pool, id(40), &[90_000]);
    assert!(!after.descriptor.columns.iter().any(is_behind), "no zone is taken behind the new end");
    let places = || written.iter().flat_map(|w| &w.descriptor.columns);
    let used_behind = places().filter(|place| is_behind(place)).count();
    assert!(used_behind < places().filter(|(device, _)| *device == SIZED).count());
    assert_eq!(pool.used_zones_from(SIZED, FEW) as usize, used_behind);
    assert!(matches!(
        pool.shrink_device(SIZED, FEW),
        Err(PoolError::Membership(MembershipError::InUse { segments: 1.., .. }))
    ));
    empty_end(&pool, &mut written);
    written.push(after);
    pool.write_root(b"state").unwrap();
    pool.shrink_device(SIZED, FEW).unwrap();
    assert_eq!(zones(&pool), FEW);
    let all: Vec<_> = written.iter().collect();
    all.iter().for_each(|w| assert_reads(&pool, w));
    drop(pool);
    for lost in 0..4 {
        let pool = open_with(devices_without(&world, &[lost]), &all);
        all.iter().for_each(|w| assert_reads(&pool, w));
    }
    let pool = open_with(world.devices(), &all);
    assert_eq!(zones(&pool), FEW);
    let free_before = pool.free_segments(SegmentKind::Bulk);
    grow(&pool, &world, MANY).unwrap();
    assert_eq!(zones(&pool), MANY);
    assert!(pool.free_segments(SegmentKind::Bulk) > free_before);
    let more: Vec<_> = (50..62).map(|n| write_segment(&pool, id(n), &[90_000])).collect();
    assert!(more.iter().any(|w| w.descriptor.columns.iter().any(is_behind)), "its new zones are used");
    drop(pool);
    let all: Vec<_> = written.iter().chain(&more).collect();
    let pool = open_with(world.devices(), &all);
    all.iter().for_each(|w| assert_reads(&pool, w));
    // What lay in the zones that it lost is reset before they are written.
    assert!(world.sims().iter().all(|sim| sim.overwrites().is_empty()));
}

#[test]
fn a_size_that_a_device_cannot_have_is_refused_and_its_end_can_stay_as_it_was() {
    let (world, pool, written) = filled(2);
    let asked = world.changes_asked();
    let membership = |refused: Result<(), PoolError>| match refused {
        Err(PoolError::Membership(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(membership(pool.set_end(SIZED, Some(15))), MembershipError::TooSmall { .. }));
    let unknown = DeviceIndex(9);
    assert_eq!(membership(pool.set_end(unknown, Some(20))), MembershipError::Unknown(unknown));
    let too_large = grow(&pool, &world, MANY + 1);
    assert!(matches!(too_large, Err(PoolError::Devices(DeviceSetError::Shrunk { .. }))), "{too_large:?}");
    let free = pool.free_segments(SegmentKind::Mirror);
    pool.set_end(SIZED, Some(FEW)).unwrap();
    assert!(!pool.vacated_with(BTreeSet::new()).is_empty());
    pool.set_end(SIZED, None).unwrap();
    assert!(pool.vacated_with(BTreeSet::new()).is_empty());
    grow(&pool, &world, MANY).unwrap();
    assert_eq!((pool.free_segments(SegmentKind::Mirror), zones(&pool)), (free, MANY));
    assert_eq!(world.changes_asked(), asked, "nothing was written");
    pool.take_offline(SIZED).unwrap();
    assert_eq!(membership(pool.set_end(SIZED, Some(FEW))), MembershipError::Away(SIZED));
    assert_eq!(membership(grow(&pool, &world, MANY)), MembershipError::Away(SIZED));
    written.iter().for_each(|w| assert_reads(&pool, w));
}

#[test]
fn a_cut_at_any_moment_of_a_change_of_size_leaves_the_old_or_the_new_one() {
    for grows in [false, true] {
        let (mut home, pool, mut written) = filled(3);
        pool.set_end(SIZED, Some(FEW)).unwrap();
        empty_end(&pool, &mut written);
        pool.write_root(b"state").unwrap();
        if grows {
            pool.shrink_device(SIZED, FEW).unwrap();
        }
        home.record();
        if grows {
            grow(&pool, &home, MANY).unwrap()
        } else {
            pool.shrink_device(SIZED, FEW).unwrap()
        }
        home.mark(0);
        let recording = home.take_recording().unwrap();
        let all: Vec<_> = written.iter().collect();
        let mut replay = recording.replay();
        let (mut is_durable, mut found) = (false, BTreeSet::new());
        while let Some(event) = replay.advance() {
            is_durable |= matches!(event, Event::Mark(_));
            for cut in replay.cuts(8, 7) {
                let crashed = replay.cut(&cut);
                let (pool, root) = open(crashed.devices()).unwrap();
                assert_eq!(root.payload, b"state");
                for w in &all {
                    pool.adopt(&w.descriptor).unwrap();
                    assert_reads(&pool, w);
                }
                let is_done = zones(&pool) == if grows { MANY } else { FEW };
                assert!(is_done || !is_durable, "it is durable when the call returns: {cut:?}");
                found.insert(is_done);
                if !is_done && grows {
                    grow(&pool, &crashed, MANY).unwrap();
                } else if !is_done {
                    pool.set_end(SIZED, Some(FEW)).unwrap();
                    pool.shrink_device(SIZED, FEW).unwrap();
                }
                let next = write_segment(&pool, id(90), &[40_000]);
                pool.write_root(b"next").unwrap();
                drop(pool);
                let pool = open_with(crashed.devices(), &all);
                assert_eq!(zones(&pool), if grows { MANY } else { FEW });
                pool.adopt(&next.descriptor).unwrap();
                assert_reads(&pool, &next);
            }
        }
        assert_eq!(found.len(), 2, "cuts before the root and after it");
    }
    assert_eq!(ZONE_BYTES * u64::from(MANY), crate::rig::DEVICE_BYTES);
}

#[test]
fn a_part_of_a_zone_at_the_end_of_a_device_is_none() {
    let (_world, pool) = world(79, 1, 1, 0);
    for (size_bytes, zones) in [(0, 0), (ZONE_BYTES - 1, 0), (5 * ZONE_BYTES, 5), (6 * ZONE_BYTES - 1, 5)] {
        assert_eq!(pool.zones_in(size_bytes), zones, "{size_bytes} bytes");
    }
}
