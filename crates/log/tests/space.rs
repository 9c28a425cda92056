//! The figures of space: each zone of the devices is counted once, whatever it holds.

mod rig;

use rig::filled::Filled;
use rig::{Client, SHAPES, ZONES, content};
use warpfire_log::{Admit, CensusNeed, CountedSegment, LogError, LogStore, Stream};
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
        let (mut frozen, mut kept_zones) = (None, 0);
        for step in 0..400 {
            // A frozen state keeps the zones of freed segments for a while.
            match step {
                200 => frozen = Some(client.log.pool().freeze(|_| ()).0),
                300 => frozen = None,
                _ => {}
            }
            client.step(&random).unwrap();
            kept_zones = client.log.pool().kept_zones().max(kept_zones);
            let space = client.log.space();
            assert_eq!(space.total_bytes, all_bytes, "{shape:?}, step {step}: {space:?}");
            client.check(&format!("{shape:?}, step {step}"));
        }
        assert!(frozen.is_none() && kept_zones > 0);
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

#[test]
fn split_appends_fill_segments_to_their_ends() {
    let shape = SHAPES[0];
    let log = shape.create(&shape.world(6)).unwrap();
    let garbage_after = |append: &dyn Fn(u64)| {
        let before = log.space().garbage_bytes;
        (0..40).for_each(append);
        log.space().garbage_bytes - before
    };
    let split = garbage_after(&|n| drop(log.append_split(Stream::Large, &content(n, 20 << 10)).unwrap()));
    let whole = garbage_after(&|n| drop(log.append(Stream::Large, &content(n, 20 << 10)).unwrap()));
    assert_eq!(split, 0, "each block of each segment is taken");
    assert!(whole > 0, "appends that are not split leave the ends of segments");
}

/// Two names share the bytes of one slice, and the other slice has none left. References alone look as if
/// each slice had one name.
#[test]
fn a_census_finds_the_garbage_beside_bytes_with_two_names() {
    let shape = SHAPES[0];
    let log = shape.create(&shape.world(6)).unwrap();
    let len_bytes = 8 << 10;
    let [shared, dropped] = [1, 2].map(|n| log.append(Stream::Large, &content(n, len_bytes)).unwrap()[0]);
    assert_eq!(shared.segment, dropped.segment);
    log.sync().unwrap();
    let len_bytes = len_bytes as u64;
    log.retain(shared);
    log.release(dropped.segment, len_bytes);
    assert_eq!(log.space().live_bytes, 2 * len_bytes, "as far as the references say");
    let candidates = log.census_candidates(CensusNeed::Everything);
    assert_eq!(candidates.iter().map(|c| c.segment).collect::<Vec<_>>(), [shared.segment]);
    let marks = log.begin_census(&[shared.segment]);
    assert_eq!(marks.len(), 1, "the segment is there");
    let counted = marks.into_iter().map(|mark| CountedSegment {
        mark,
        named_bytes: 2 * len_bytes,
        live_bytes: len_bytes,
    });
    log.end_census(&counted.collect::<Vec<_>>());
    assert_eq!(log.space().live_bytes, len_bytes);
}

/// The names that are left may all be of the same bytes, or of others.
#[test]
fn bytes_that_a_census_may_find_to_be_garbage_are_unsure() {
    let (_world, log) = (SHAPES[0].world(6), SHAPES[0].create(&SHAPES[0].world(6)).unwrap());
    let filled = Filled::new(&log, Stream::Large, 31);
    assert_eq!((log.space().live_bytes, log.space().unsure_bytes), (filled.len_bytes(), 0));
    log.retain(filled.slice);
    log.release(filled.slice.segment, 50_000);
    assert_eq!((log.space().live_bytes, log.space().unsure_bytes), (filled.len_bytes(), 50_000));
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
