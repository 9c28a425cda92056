//! What would move if a device left, or a part of it: the plan counts what `mend` and cleaning then do.

mod rig;

use std::collections::BTreeSet;

use rig::filled::{BLOCK, Filled, lose};
use rig::shape;
use warpfire_log::{LeaveWork, LogStore, Stream, WorkFor};
use warpfire_units::{DeviceIndex, ZoneIndex};

const FIRST: ZoneIndex = ZoneIndex(0);

/// Segments with a column on the device, of different lengths and with different live bytes: all, half, one
/// byte less than that, and none.
#[test]
fn a_segment_moves_as_it_is_or_by_its_live_bytes_whichever_is_cheaper() {
    // 4 + 2 with a device to spare.
    let shape = shape(4, 2, 7);
    for is_lost in [false, true] {
        let world = shape.world(3);
        let log = shape.create(&world).expect("blank devices take a log");
        let filled: Vec<Filled> = (1..=4).map(|rows| Filled::new(&log, Stream::Large, rows)).collect();
        let shared = |device: &DeviceIndex| filled.iter().all(|one| one.devices.contains(device));
        let device = (0..7).map(DeviceIndex).find(shared).expect("four segments miss four devices");
        let other = (0..7).map(DeviceIndex).find(|device| !shared(device)).expect("each misses one");
        let on_other = filled.iter().filter(|one| one.devices.contains(&other)).count() as u64;
        let live = [4 * BLOCK, 4 * BLOCK, 6 * BLOCK - 1, 0];
        filled.iter().zip(live).for_each(|(one, live)| one.keep(&log, live));
        if is_lost {
            lose(&world, &log, device);
        }
        let cleaned = LeaveWork {
            moved_segments: 2,
            moved_bytes: BLOCK + 2 * BLOCK,
            cleaned_segments: 1,
            // Two of parity for four of data, rounded down.
            cleaned_bytes: (6 * BLOCK - 1) * 3 / 2,
            // Columns that can be read are copied; of a lost device they are made of four others.
            read_bytes: if is_lost { 4 * (BLOCK + 2 * BLOCK) } else { BLOCK + 2 * BLOCK } + 6 * BLOCK - 1,
        };
        assert_eq!(log.leave_work(device, FIRST), cleaned, "lost: {is_lost}");
        let moved = log.leave_work(other, FIRST);
        assert!(moved.moved_segments + moved.cleaned_segments <= on_other, "{moved:?}");
        assert!(moved.moved_segments + moved.cleaned_segments < 3, "{moved:?}: {other:?} is not in all");
        assert_eq!(log.leave_work(DeviceIndex(99), FIRST), LeaveWork::default());
    }
}

/// A segment without a column to lose keeps its column count, whatever its garbage: a copy is not put off
/// until cleaning comes to it.
#[test]
fn a_segment_that_may_lose_no_column_is_not_cleaned() {
    let shape = shape(2, 1, 4);
    let world = shape.world(3);
    let log = shape.create(&world).expect("blank devices take a log");
    let filled = Filled::new(&log, Stream::Large, 6);
    filled.keep(&log, 1);
    let device = *filled.devices.first().expect("it has columns");
    let cleaned = LeaveWork { cleaned_segments: 1, cleaned_bytes: 1, read_bytes: 1, ..LeaveWork::default() };
    assert_eq!(log.leave_work(device, FIRST), cleaned);
    lose(&world, &log, device);
    let (moved_bytes, read_bytes) = (6 * BLOCK, 12 * BLOCK);
    let moved = LeaveWork { moved_segments: 1, moved_bytes, read_bytes, ..LeaveWork::default() };
    assert_eq!(log.leave_work(device, FIRST), moved);
    log.vacate(BTreeSet::from([device]));
    assert_eq!(log.due_work().reasons[0].due_bytes, moved_bytes, "the plan is the work");
    assert!(log.mend(WorkFor::Caller).expect("nothing fails"));
    let limit = log.upkeep_limit();
    assert_eq!(
        (limit.written_bytes(), limit.moved_bytes() - limit.written_bytes()),
        (moved_bytes, read_bytes)
    );
}

/// Without a device to spare the live bytes go to narrower segments if a whole device leaves. If a part of it
/// goes, the rest of the device takes the columns.
#[test]
fn the_columns_behind_an_end_stay_on_the_device_and_those_of_a_whole_device_cannot() {
    let shape = shape(2, 1, 3);
    let world = shape.world(5);
    let log = shape.create(&world).expect("blank devices take a log");
    let filled: Vec<Filled> = (1..=8).map(|rows| Filled::new(&log, Stream::Large, rows)).collect();
    let device = DeviceIndex(1);
    let whole = log.leave_work(device, FIRST);
    let live_bytes: u64 = filled.iter().map(Filled::len_bytes).sum();
    // On two devices a segment has one data column and one of parity.
    let geometry = log.pool().full_geometry();
    assert_eq!((geometry.data, geometry.parity), (2, 1));
    let wanted = LeaveWork {
        cleaned_segments: 8,
        cleaned_bytes: live_bytes + live_bytes / 2,
        read_bytes: live_bytes,
        ..LeaveWork::default()
    };
    assert_eq!(whole, wanted);
    let mut counts = BTreeSet::new();
    for zone in (1..rig::ZONES as u32).map(ZoneIndex) {
        let work = log.leave_work(device, zone);
        let behind = log.segments_behind(device, zone);
        counts.insert(behind);
        assert_eq!((work.moved_segments, work.cleaned_segments), (behind, 0), "{zone:?}");
        // Zones are taken in turn, so the segments behind a zone are the last ones.
        let last = &filled[filled.len() - usize::try_from(behind).expect("a few")..];
        let column_bytes: u64 = last.iter().map(|one| one.column_bytes).sum();
        assert_eq!((work.moved_bytes, work.read_bytes, work.cleaned_bytes), (column_bytes, column_bytes, 0));
    }
    assert!(counts.iter().copied().eq(0..=8), "each column has a zone of its own: {counts:?}");
}
