//! Segments of another shape than the pool wishes for: which ones are converted, when, and what that costs.

mod rig;

use rig::filled::{BLOCK, Filled, checkpoint};
use rig::{Shape, content, shape};
use warpfire_log::{
    Blocked, DueReason, DueWork, Guarantee, Log, LogStore, OtherShapes, ReasonWork, Stream, WorkFor,
};
use warpfire_pool::Tuning;
use warpfire_sim_env::SimWorld;
use warpfire_units::{DeviceIndex, SegmentId};

const SHAPE: Shape = shape(2, 1, 6);

fn create() -> (SimWorld, Log) {
    let world = SHAPE.world(11);
    let log = SHAPE.create(&world).expect("blank devices take a log");
    (world, log)
}

fn tune(log: &Log, data: u16, parity: u8, converts: bool) {
    log.tune(Tuning { data, parity, converts, spare_space: 0 }).expect("six devices are enough");
}

fn misshapen(segments: u64, due_bytes: u64) -> DueWork {
    let reasons = vec![ReasonWork { reason: DueReason::Shape, segments, due_bytes }];
    DueWork { reasons, ..DueWork::default() }
}

fn damaged(log: &Log) -> Vec<SegmentId> {
    log.damaged().expect("nothing fails")
}

/// Moves bytes of a segment to a new one, as cleaning does.
fn clean(log: &Log, filled: &Filled, live_bytes: u64) {
    let bytes = content(1, usize::try_from(live_bytes).expect("a short segment"));
    log.append(Stream::Cold, &bytes).expect("there is room");
    log.release(filled.slice.segment, live_bytes);
    log.sync().expect("nothing fails");
}

#[test]
fn older_segments_of_another_shape_are_converted_where_the_pool_wishes_that() {
    let (_world, log) = create();
    let older: Vec<Filled> = [3, 8, 5].map(|rows| Filled::new(&log, Stream::Large, rows)).into();
    older[2].keep(&log, 1000);
    tune(&log, 3, 2, false);
    assert_eq!(log.due_work(), DueWork::default(), "the pool does not wish it");
    assert_eq!(damaged(&log), []);
    tune(&log, 3, 2, true);
    let newer = Filled::new(&log, Stream::Large, 4);
    assert_eq!(log.pool().losses_left(newer.slice.segment), Some(2));
    // With two columns of parity for three of data, rounded down for each segment.
    let written = |live_bytes: u64| live_bytes + live_bytes * 2 / 3;
    let live = [older[0].len_bytes(), older[1].len_bytes(), 1000];
    assert_eq!(log.due_work(), misshapen(3, live.into_iter().map(written).sum()));
    assert!(!log.has_due_work(), "no device is vacated");
    assert!(!log.mend(WorkFor::Caller).expect("nothing fails"), "no column is rewritten");
    let ids: Vec<SegmentId> = older.iter().map(|one| one.slice.segment).collect();
    assert_eq!(damaged(&log), ids, "oldest first");

    let limit = log.upkeep_limit();
    clean(&log, &older[1], live[1]);
    assert_eq!(damaged(&log), [ids[0], ids[2]]);
    assert_eq!((limit.written_bytes(), limit.moved_bytes()), (written(live[1]), live[1] + written(live[1])));
    // A part of one.
    clean(&log, &older[0], 6000);
    assert_eq!(log.due_work(), misshapen(2, written(live[0] - 6000) + written(1000)));
    assert_eq!(damaged(&log), [ids[0], ids[2]]);
    assert_eq!(limit.written_bytes(), written(live[1]) + written(6000));
    assert_eq!(damaged(&log), [ids[0], ids[2]]);
    assert_eq!(limit.written_bytes(), written(live[1]) + written(6000), "nothing has moved since");
    clean(&log, &older[0], live[0] - 6000);
    clean(&log, &older[2], 1000);
    assert_eq!(damaged(&log), []);
    assert_eq!(log.due_work(), DueWork::default());
}

#[test]
fn a_wish_for_the_shape_that_segments_have_makes_no_work() {
    let (_world, log) = create();
    let first = Filled::new(&log, Stream::Large, 3);
    tune(&log, 3, 1, false);
    let second = Filled::new(&log, Stream::Large, 4);
    tune(&log, 2, 1, true);
    assert_eq!(damaged(&log), [second.slice.segment], "{first:?} has the shape");
    // As many data columns, and another parity.
    tune(&log, 2, 2, true);
    assert_eq!(damaged(&log), [first.slice.segment, second.slice.segment]);
    tune(&log, 3, 1, true);
    assert_eq!(damaged(&log), [first.slice.segment]);
}

#[test]
fn an_open_segment_is_converted_when_it_is_sealed() {
    let (_world, log) = create();
    let slices = log.append(Stream::Small, &content(3, 5000)).expect("there is room");
    log.sync().expect("nothing fails");
    tune(&log, 2, 2, true);
    assert_eq!(log.due_work(), DueWork::default());
    assert_eq!(damaged(&log), []);
    log.seal_all().expect("nothing fails");
    assert_eq!(log.due_work(), misshapen(1, 10_000));
    assert_eq!(damaged(&log), [slices[0].segment]);
}

#[test]
fn nothing_is_converted_while_upkeep_may_not_work() {
    let (_world, log) = create();
    let older = Filled::new(&log, Stream::Large, 3);
    tune(&log, 3, 1, true);
    log.upkeep_limit().pause(true);
    assert_eq!(damaged(&log), []);
    log.upkeep_limit().pause(false);
    assert_eq!(damaged(&log), [older.slice.segment]);
}

/// Segments with less redundancy than they could have go first.
#[test]
fn nothing_is_converted_while_a_segment_is_to_be_cleaned() {
    let (_world, log) = create();
    let (garbage, whole) = (Filled::new(&log, Stream::Large, 3), Filled::new(&log, Stream::Large, 6));
    garbage.keep(&log, 1);
    tune(&log, 2, 2, true);
    let device = *garbage.devices.first().expect("it has columns");
    log.pool().set_leaving(device, true).expect("five devices stay");
    assert_eq!(damaged(&log), [garbage.slice.segment]);
    log.pool().set_leaving(device, false).expect("nothing fails");
    assert_eq!(damaged(&log), [garbage.slice.segment, whole.slice.segment]);
}

#[test]
fn a_conversion_waits_for_room_beside_the_reserve() {
    let (_world, log) = create();
    let missing_bytes = |log: &Log| {
        let space = log.space();
        (space.reserve_bytes + log.segment_bytes()).saturating_sub(space.free_bytes)
    };
    let mut filled = Vec::new();
    while missing_bytes(&log) == 0 {
        filled.push(Filled::new(&log, Stream::Large, 31));
    }
    tune(&log, 2, 2, true);
    let live_bytes = filled.len() as u64 * 62 * BLOCK;
    let mut wanted = misshapen(filled.len() as u64, 2 * live_bytes);
    assert!(missing_bytes(&log) > 0);
    wanted.blocked = Some(Blocked::Space { bytes: missing_bytes(&log) });
    assert_eq!(log.due_work(), wanted);
    assert_eq!(damaged(&log), []);
    for _ in 0..filled.len() / 2 {
        filled.pop().expect("there are some").keep(&log, 0);
    }
    checkpoint(&log);
    checkpoint(&log);
    assert_eq!(missing_bytes(&log), 0);
    assert_eq!(log.due_work(), misshapen(filled.len() as u64, 2 * filled.len() as u64 * 62 * BLOCK));
    assert_eq!(damaged(&log).len(), filled.len());
}

#[test]
fn live_bytes_are_counted_by_the_losses_and_by_the_shape_of_their_segments() {
    let (world, log) = create();
    let one = Filled::new(&log, Stream::Large, 3);
    tune(&log, 2, 2, false);
    let two = Filled::new(&log, Stream::Large, 5);
    let dead = Filled::new(&log, Stream::Large, 9);
    dead.keep(&log, 0);
    two.keep(&log, 7000);
    let guarantee = |left, live_bytes| Guarantee { left, live_bytes };
    let (one_bytes, two_bytes) = (one.len_bytes(), 7000);
    assert_eq!(log.guarantees(), [guarantee(Some(1), one_bytes), guarantee(Some(2), two_bytes)]);
    let others = |segments, live_bytes| OtherShapes { segments, live_bytes };
    assert_eq!(log.other_shapes(2, 2), others(1, one_bytes));
    assert_eq!(log.other_shapes(2, 1), others(1, two_bytes));
    assert_eq!(log.other_shapes(3, 1), others(2, one_bytes + two_bytes));
    let both: Vec<DeviceIndex> = one.devices.intersection(&two.devices).copied().collect();
    rig::filled::lose(&world, &log, both[0]);
    assert_eq!(log.guarantees(), [guarantee(Some(0), one_bytes), guarantee(Some(1), two_bytes)]);
    // A second device is lost that both use: more than the parity of the older segment.
    if let Some(second) = both.get(1) {
        rig::filled::lose(&world, &log, *second);
        assert_eq!(log.guarantees(), [guarantee(None, one_bytes), guarantee(Some(0), two_bytes)]);
    }
}

/// The pool counts from the first segment that is made after the wish. With a device less, that one is
/// narrower than the pool wishes.
#[test]
fn the_first_segment_after_a_wish_is_not_converted_whatever_its_shape() {
    let (world, log) = create();
    tune(&log, 4, 2, true);
    rig::filled::lose(&world, &log, DeviceIndex(5));
    let slices = log.append(Stream::Large, &content(1, 50_000)).expect("there is room");
    assert_eq!(log.pool().wishes().shape_since, slices[0].segment.get());
    log.seal_all().expect("nothing fails");
    assert_eq!(log.other_shapes(4, 2), OtherShapes { segments: 1, live_bytes: 50_000 });
    assert_eq!(log.due_work(), DueWork::default());
    assert_eq!(damaged(&log), []);
}
