//! Changes of the shape of new segments, and of the wishes for older ones and for free space.

use std::cell::Cell;

use warpfire_pool::{DeviceSetError, MembershipError, Pool, PoolError, RootWishes, SegmentKind, Tuning};
use warpfire_units::DeviceIndex;

use crate::rig::{id, open, world, write_segment};

fn wish(data: u16, parity: u8) -> Tuning {
    Tuning { data, parity, converts: false, spare_space: 0 }
}

/// Tunes the pool. Returns the wishes, and whether the call asked for the id of the next segment.
fn tune(pool: &Pool, tuning: Tuning, next_segment: u64) -> (RootWishes, bool) {
    let is_asked = Cell::new(false);
    let next_segment = || {
        is_asked.set(true);
        id(next_segment)
    };
    pool.tune(tuning, next_segment).expect("the devices allow it");
    assert_eq!(pool.tuning(), tuning);
    (pool.wishes(), is_asked.get())
}

#[test]
fn a_shape_that_the_devices_do_not_allow_is_refused() {
    let (_world, pool) = world(1, 5, 2, 1);
    let too_few = |staying, width| Err(MembershipError::TooFew { staying, width }.into());
    for (data, parity) in [(1, 0), (1, 1), (3, 2), (4, 1), (5, 0)] {
        assert_eq!(pool.check_tuning(wish(data, parity)), Ok(()), "{data}+{parity}");
    }
    assert_eq!(pool.check_tuning(wish(5, 1)), too_few(5, 6));
    pool.set_leaving(DeviceIndex(4), true).unwrap();
    assert_eq!(pool.check_tuning(wish(3, 1)), Ok(()));
    assert_eq!(pool.check_tuning(wish(3, 2)), too_few(4, 5));
    let is_impossible = |tuning| {
        let refused = pool.check_tuning(tuning);
        matches!(refused, Err(PoolError::Devices(DeviceSetError::Impossible(_))))
    };
    assert!(is_impossible(wish(0, 2)));
    for (spare_space, is_refused) in [(3, false), (4, true)] {
        assert_eq!(is_impossible(Tuning { spare_space, ..wish(2, 1) }), is_refused, "{spare_space}");
    }
}

/// Segments before a change of the shape are older. Of the redundancy they had, only a part may be left that
/// all of them have.
#[test]
fn only_a_change_of_the_shape_or_of_the_wish_to_convert_makes_older_segments() {
    let (world, pool) = world(2, 6, 2, 2);
    let wishes = |shape_since, older_parity| RootWishes { shape_since, older_parity, ..RootWishes::NONE };
    assert_eq!(pool.wishes(), RootWishes::NONE);
    assert!(!tune(&pool, Tuning { spare_space: 1, ..wish(2, 2) }, 5).1, "the shape is the same");
    assert_eq!(tune(&pool, wish(3, 1), 7), (wishes(7, 1), true));
    let spare = Tuning { spare_space: 1, ..wish(3, 1) };
    assert_eq!(tune(&pool, spare, 8), (RootWishes { spare_space: 1, ..wishes(7, 1) }, false));
    assert_eq!(tune(&pool, wish(3, 3), 9), (wishes(9, 1), true), "some of the older ones have one");
    let converting = Tuning { converts: true, ..wish(3, 3) };
    let wished = RootWishes { converts: true, ..wishes(11, 1) };
    assert_eq!(tune(&pool, converting, 11), (wished, true));
    assert_eq!(tune(&pool, converting, 12), (wished, false));
    drop(pool);
    let (pool, _) = open(world.devices()).unwrap();
    assert_eq!((pool.tuning(), pool.wishes()), (converting, wished), "as the root has them");
}

/// The pool is empty, so all of its capacity is free.
#[test]
fn the_capacity_of_a_shape_is_the_free_space_that_it_gives() {
    let (_world, pool) = world(3, 6, 2, 1);
    let mut capacities = Vec::new();
    for (data, parity, spare_space) in [(2, 1, 0), (4, 2, 0), (1, 0, 0), (2, 1, 1), (2, 1, 2), (4, 1, 1)] {
        let tuning = Tuning { spare_space, ..wish(data, parity) };
        let capacity_bytes = pool.capacity_of(tuning);
        tune(&pool, tuning, 9);
        assert_eq!(pool.free_bytes(), capacity_bytes, "{tuning:?}");
        capacities.push(capacity_bytes);
    }
    assert!(capacities[3] < capacities[0] && capacities[4] < capacities[3], "{capacities:?}");
}

#[test]
fn space_is_kept_for_the_columns_of_a_lost_device_that_are_in_use() {
    let (_world, pool) = world(4, 6, 2, 1);
    tune(&pool, Tuning { spare_space: 1, ..wish(2, 1) }, 9);
    let written: Vec<_> = (1..9).map(|n| write_segment(&pool, id(n), &[1000])).collect();
    assert_eq!(pool.bytes_kept_for_lost(), 0, "nothing is lost");
    let (lost, _) = written[0].descriptor.columns[0];
    pool.take_offline(lost).expect("parity covers it");
    let kept_bytes = pool.bytes_kept_for_lost();
    let columns = written.iter().flat_map(|w| &w.descriptor.columns).filter(|(at, _)| *at == lost).count();
    // The other five keep a zone each for so few columns.
    assert!(columns > 0 && columns <= 5, "{columns}");
    let one_segment_bytes = pool.geometry(SegmentKind::Bulk).segment_payload_bytes;
    assert!((1..=2 * one_segment_bytes).contains(&kept_bytes), "{kept_bytes}, a segment {one_segment_bytes}");
}
