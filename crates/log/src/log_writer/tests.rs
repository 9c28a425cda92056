use warpfire_env::Timestamp;
use warpfire_pool::CreateOptions;
use warpfire_sim_env::{DeviceSpec, SimWorld};

use super::*;
use crate::pending::PendingRecords;

/// A new log in a pool on one device, and the next id of a segment.
fn new_log(device_bytes: u64, zone_bytes: u64) -> (Pool, LogWriter, impl FnMut() -> SegmentId) {
    new_log_of((1, 0), device_bytes, zone_bytes)
}

/// As `new_log`, with so many columns of data and parity, each on a device.
fn new_log_of(
    (data, parity): (u16, u8),
    device_bytes: u64,
    zone_bytes: u64,
) -> (Pool, LogWriter, impl FnMut() -> SegmentId) {
    let devices = usize::from(data) + usize::from(parity);
    let world = SimWorld::of(1, devices, &DeviceSpec::append_only("flash", device_bytes));
    let options = CreateOptions { data, parity, zone_bytes: Some(zone_bytes), force: false };
    let pool = Pool::create(world.devices(), &options, &*world.random(), Timestamp::default())
        .expect("a blank device takes a pool");
    let mut ids = (1..).map(|n| SegmentId::new(n).expect("it counts from 1"));
    let mut next_id = move || ids.next().expect("there are enough numbers");
    let current = allocate_log(&pool, &mut next_id).expect("the pool is empty");
    let origin = LogOrigin { sequence: 0, barrier: 0, checkpoint: 1, next: LogPos(1) };
    (pool, LogWriter::new(VecDeque::new(), current, origin), next_id)
}

/// A group is in several stripes here, so a mistake about its length is more than the rest of a stripe.
#[test]
fn a_group_that_the_last_segment_does_not_take_is_refused_where_no_other_is_free() {
    let (pool, mut log, mut next_id) = new_log(64 << 20, 4 << 20);
    let others: Vec<_> = std::iter::from_fn(|| allocate_log(&pool, &mut next_id).ok()).collect();
    let room_bytes = usize::try_from(log.current.remaining_bytes()).expect("a zone fits memory");
    let stripe_bytes = log.current.next_stripe_capacity();
    assert!(!others.is_empty() && room_bytes > 3 * stripe_bytes, "{room_bytes} in {stripe_bytes}");
    let mut takes = |bytes| match log.make_room(&pool, bytes, &mut next_id) {
        Ok(()) => true,
        Err(PoolError::NoSpace) => false,
        Err(e) => panic!("{e}"),
    };
    assert!(takes(room_bytes / 2));
    assert!(!takes(room_bytes) && !takes(room_bytes + 1), "nothing is left for its barrier");
    let longest = (0..room_bytes).step_by(4096).take_while(|bytes| takes(*bytes)).last();
    let longest = longest.expect("an empty group fits");
    assert!(longest + EDIT_MAX_BYTES < room_bytes, "the next segment is announced behind it");
    // Stripes may end with an eighth of the group unused, and with an eighth of the last one.
    let needed_bytes = |bytes: usize| bytes + bytes / 8 + stripe_bytes / 8 + EDIT_MAX_BYTES;
    assert!(needed_bytes(longest) < room_bytes && needed_bytes(longest + 4096) >= room_bytes, "{longest}");
}

/// A copy is one frame, and a frame lies in one stripe. The log took each copy that a segment holds, and
/// ended the process where it was longer than a stripe of the segment.
#[test]
fn a_copy_of_a_root_is_written_where_a_stripe_holds_it_and_refused_where_none_does() {
    let (pool, mut log, mut next_id) = new_log(256 << 20, 16 << 20);
    let stripe_bytes = pool.geometry(SegmentKind::Mirror).stripe_payload_bytes;
    let copy = |payload_bytes: usize| {
        pool.root_copy(Some(&vec![7; payload_bytes])).expect("a root zone holds so many bytes")
    };
    let beside_bytes = copy(0).len();
    // The frame's head, and before it the announcement of the next segment.
    let longest = stripe_bytes - FRAME_HEAD_BYTES - EDIT_MAX_BYTES;
    let mut written = 0;
    for copy_bytes in [beside_bytes, longest, longest, longest + 1, stripe_bytes, 2 * stripe_bytes] {
        let copy = copy(copy_bytes - beside_bytes);
        assert_eq!(copy.len(), copy_bytes);
        let has_room = log.make_room_for_root(&pool, copy_bytes, &mut next_id).expect("nothing fails");
        assert_eq!(has_room, copy_bytes <= longest, "{copy_bytes} bytes");
        if has_room {
            log.write_root_copy(&copy).expect("nothing fails");
            written += 1;
            assert_eq!(log.sequence(), written, "each copy is one stripe");
        }
    }
    assert_eq!(written, 3);
}

/// The log is in several segments here, each in many stripes.
#[test]
fn a_root_has_room_for_every_segment_of_the_log() {
    let (pool, mut log, mut next_id) = new_log(64 << 20, 1 << 20);
    let mut pending = PendingRecords::new(LogPos(1));
    while log.past.len() < 5 {
        pending.push(&[7; 100_000], false);
        log.make_room(&pool, pending.bytes(), &mut next_id).expect("there is room");
        log.write_group(&pending.take(), &[]).expect("nothing fails");
    }
    log.make_room(&pool, 0, &mut next_id).expect("there is room");
    let log_chain = log.log_chain(LogPos(1));
    assert_eq!(log_chain.chain.len(), 7, "five of the past, one with the end, one announced");
    let mut encoded = Vec::new();
    log_chain.chain.iter().for_each(|descriptor| descriptor.encode(&mut encoded));
    let (least, most) = (128 + encoded.len(), log.root_bytes_max());
    assert!(least <= most && most < 2 * least + EDIT_MAX_BYTES, "{least} bytes, {most} at most");
}

/// Each copy is in one stripe, and the log goes on to the next segment when the present one takes no more.
#[test]
fn copies_of_roots_fill_one_segment_after_the_other() {
    let (pool, mut log, mut next_id) = new_log(256 << 20, 4 << 20);
    let beside_bytes = pool.root_copy(Some(&[])).expect("a root zone holds it").len();
    let mut write = |log: &mut LogWriter, copy_bytes: usize| {
        let copy = pool.root_copy(Some(&vec![7; copy_bytes - beside_bytes])).expect("a root zone holds it");
        assert!(log.make_room_for_root(&pool, copy_bytes, &mut next_id).expect("nothing fails"));
        let before = log.past.len();
        log.write_root_copy(&copy).expect("nothing fails");
        log.past.len() - before
    };
    let room = |log: &LogWriter| log.current.next_stripe_capacity().saturating_sub(EDIT_MAX_BYTES);
    for segment in 0..3 {
        let whole_bytes = room(&log);
        while room(&log) == whole_bytes {
            assert_eq!(write(&mut log, whole_bytes / 3), 0, "segment {segment} has room");
        }
        // The last stripe is shorter: a copy as long as it stays in the segment, a longer one goes on.
        let last_bytes = room(&log) - FRAME_HEAD_BYTES;
        if segment == 1 {
            assert_eq!(write(&mut log, last_bytes), 0);
            assert!(room(&log) < beside_bytes, "the segment is full");
            assert_eq!(write(&mut log, beside_bytes), 1);
        } else {
            assert_eq!(write(&mut log, last_bytes + 1), 1);
        }
    }
}

/// A full pool needs them for groups that free others.
#[test]
fn copies_of_roots_leave_segments_free() {
    let (pool, mut log, mut next_id) = new_log_of((2, 1), 64 << 20, 4 << 20);
    let free = || pool.free_segments(SegmentKind::Mirror);
    // Four for the commit log; a table and a victim take two mirrors each, with three columns.
    while free() > 9 {
        allocate_log(&pool, &mut next_id).expect("there are more");
    }
    assert!(log.make_room_for_root(&pool, 5000, &mut next_id).expect("nothing fails"));
    allocate_log(&pool, &mut next_id).expect("there are more");
    assert_eq!(free(), 8);
    assert!(!log.make_room_for_root(&pool, 5000, &mut next_id).expect("nothing fails"));
}
