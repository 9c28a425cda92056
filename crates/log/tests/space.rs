//! The figures of space: each zone of the devices is counted once, whatever it holds.

mod rig;

use rig::{Client, SHAPES, ZONES, content};
use warpfire_log::{Admit, LogError, LogStore, Stream};
use warpfire_sim_env::SimRandom;
use warpfire_units::SlicePtr;

/// On a pool with as many devices as columns, each segment takes a zone of each device. So the sum is the
/// payload of all zones but the two for roots and the last free one, which is for the commit log.
#[test]
fn live_garbage_and_free_bytes_are_those_of_all_zones() {
    for shape in [SHAPES[0], SHAPES[1]] {
        let world = shape.world(5);
        let mut client = Client::new(shape.create(&world).unwrap());
        let all_bytes = (ZONES - 3) * client.log.segment_bytes();
        let random = SimRandom::new(5);
        for step in 0..400 {
            client.step(&random).unwrap();
            let space = client.log.space();
            assert_eq!(space.total_bytes, all_bytes, "{shape:?}, step {step}: {space:?}");
            client.check(&format!("{shape:?}, step {step}"));
        }
    }
}

#[test]
fn garbage_between_live_bytes_is_stuck_until_the_segment_is_worth_cleaning() {
    let shape = SHAPES[0];
    let log = shape.create(&shape.world(6)).unwrap();
    let slices: Vec<SlicePtr> =
        (0..40).map(|n| log.append(Stream::Large, &content(n, 8 << 10)).unwrap()[0]).collect();
    log.sync().unwrap();
    let full = log.space();
    let first = slices[0].segment;
    let in_first: Vec<&SlicePtr> = slices.iter().filter(|s| s.segment == first).collect();
    assert!(in_first.len() >= 10, "a tenth of the segment is less than the limit");

    log.release(first, 8 << 10);
    let space = log.space();
    assert!(log.victims(9).is_empty());
    assert_eq!(space.garbage_bytes - full.garbage_bytes, 8 << 10);
    assert_eq!(space.stuck_bytes - full.stuck_bytes, 8 << 10);

    in_first[5..].iter().for_each(|s| log.release(first, u64::from(s.len_bytes)));
    let space = log.space();
    assert_eq!(log.victims(9), [first]);
    assert!(space.garbage_bytes > full.garbage_bytes && space.stuck_bytes <= full.stuck_bytes, "{space:?}");
}

/// Two segments each for deletions, tables and cleaning, and three for the commit log.
#[test]
fn the_reserve_of_a_small_pool_is_nine_segments() {
    let shape = SHAPES[0];
    let log = shape.create(&shape.world(6)).unwrap();
    assert_eq!(log.space().reserve_bytes, 9 * log.segment_bytes());
}

/// Upkeep asks for no admission, so deletions leave it four of the reserve's six segments.
#[test]
fn deletions_leave_two_thirds_of_the_reserve_to_upkeep() {
    let shape = SHAPES[0];
    let log = shape.create(&shape.world(6)).unwrap();
    let space = log.space();
    for (caller, kept) in [(Admit::User, space.reserve_bytes), (Admit::Reserve, space.reserve_bytes / 3 * 2)]
    {
        let room = space.free_bytes - kept;
        log.admit(room, caller).unwrap();
        let beyond = log.admit(room + 1, caller);
        assert!(matches!(beyond, Err(LogError::NoSpace)), "{caller:?}: {beyond:?}");
    }
}

#[test]
fn the_readable_bytes_of_a_segment_reach_to_its_last_byte() {
    let shape = SHAPES[1];
    let log = shape.create(&shape.world(6)).unwrap();
    let slices = log.append(Stream::Large, &content(1, 20_000)).unwrap();
    log.sync().unwrap();
    let last = slices.last().unwrap();
    assert_eq!(log.readable_bytes(last.segment), last.offset_bytes + u64::from(last.len_bytes));
}
