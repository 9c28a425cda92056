//! The work that is left until each segment has all its redundancy: which segments, why, how many bytes, and
//! what `mend` reads and writes for each.

mod rig;

use std::collections::BTreeSet;

use rig::filled::{BLOCK, Filled, checkpoint, lose};
use rig::{Shape, shape};
use warpfire_log::{Blocked, DueReason, DueWork, Log, LogStore, ReasonWork, SegmentsAtRisk, Stream, WorkFor};
use warpfire_sim_env::{Fault, SimWorld};
use warpfire_units::{DeviceIndex, SegmentId};

/// Segments of 2 + 1, with a device to spare and without one.
const SPARE: Shape = shape(2, 1, 4);
const TIGHT: Shape = shape(2, 1, 3);

fn create(shape: Shape) -> (SimWorld, Log) {
    let world = shape.world(7);
    let log = shape.create(&world).expect("blank devices take a log");
    (world, log)
}

/// Work of one reason, on segments with equally many columns left.
fn due(reason: DueReason, left: usize, segments: u64, due_bytes: u64) -> DueWork {
    DueWork {
        at_risk: vec![SegmentsAtRisk { left, segments, due_bytes }],
        reasons: vec![ReasonWork { reason, segments, due_bytes }],
        blocked: None,
    }
}

/// Mends one segment. Returns the bytes that it has read and written, as the limit of upkeep counts them.
fn mend(log: &Log) -> Option<(u64, u64)> {
    let (moved, written) = (log.upkeep_limit().moved_bytes(), log.upkeep_limit().written_bytes());
    let is_mended = log.mend(WorkFor::Caller).expect("nothing fails");
    let written = log.upkeep_limit().written_bytes() - written;
    let read = log.upkeep_limit().moved_bytes() - moved - written;
    assert!(is_mended || (read, written) == (0, 0), "a refusal costs nothing");
    is_mended.then_some((read, written))
}

/// A device that has a column of each segment.
fn shared(filled: &[&Filled]) -> DeviceIndex {
    let sets = filled.iter().map(|one| one.devices.clone());
    let shared = sets.reduce(|a, b| a.intersection(&b).copied().collect()).expect("there is a segment");
    *shared.first().expect("two of three columns on four devices meet")
}

/// Makes a block of the segment's column on this device rot, and lets the scrub find it.
fn rot(world: &SimWorld, log: &Log, device: DeviceIndex, segment: SegmentId) {
    let whole = |at: &u64| {
        let held = world.sims()[usize::from(device.0)].peek(*at, 4096);
        held.iter().filter(|byte| **byte != 0).count() > 4000
    };
    for at in (2 * rig::ZONE_BYTES..rig::ZONES * rig::ZONE_BYTES).step_by(4096).filter(whole) {
        let sim = &world.sims()[usize::from(device.0)];
        let before = sim.peek(at, 4096);
        sim.poke(at, &[0xA5; 4096]);
        let after = SegmentId::new(segment.get() - 1);
        let scrubbed = log
            .scrub(after, WorkFor::Caller)
            .expect("nothing fails")
            .verified()
            .expect("the segment is there");
        if scrubbed.segment == segment && !scrubbed.is_whole {
            return;
        }
        sim.poke(at, &before);
    }
    panic!("no block of {segment} is on {device:?}");
}

#[test]
fn a_column_that_missed_a_write_is_due_when_its_device_is_back() {
    let (world, log) = create(TIGHT);
    let whole = Filled::new(&log, Stream::Large, 9);
    // Six rows before the device is lost, and five after that.
    let append = |rows: u64| {
        let bytes = rig::content(rows, usize::try_from(2 * rows * BLOCK).expect("a short append"));
        let slices = log.append(Stream::Large, &bytes).expect("there is room");
        log.sync().expect("parity covers one device");
        slices[0].segment
    };
    let segment = append(6);
    world.sims()[2].inject(Fault::Vanish { after: 0 });
    assert_eq!(append(5), segment);
    let column_bytes = 11 * BLOCK;
    assert_eq!(log.missed_by(DeviceIndex(2)), (1, column_bytes));
    assert_eq!(log.missed_by(DeviceIndex(1)), (0, 0));
    assert_eq!(log.due_work(), DueWork::default(), "nothing can be done while the device is away");
    assert_eq!(mend(&log), None);

    world.sims()[2].heal();
    log.pool().take_online(world.devices().swap_remove(2)).expect("it is the device that left");
    assert_eq!(log.due_work(), due(DueReason::Risk, 0, 1, column_bytes), "{:?} is whole", whole.slice);
    assert!(!log.has_due_work(), "no device is vacated");
    assert_eq!(log.losses_left(), Some(0));
    assert_eq!(
        mend(&log),
        Some((6 * BLOCK + 2 * 5 * BLOCK, column_bytes)),
        "six rows are copied, and two columns make the rest"
    );
    assert_eq!(log.due_work(), DueWork::default());
    assert_eq!(log.missed_by(DeviceIndex(2)), (0, 0));
    assert_eq!(mend(&log), None);
}

#[test]
fn the_columns_of_a_lost_device_are_due_when_it_is_given_up() {
    let (world, log) = create(SPARE);
    let (small, large) = (Filled::new(&log, Stream::Large, 4), Filled::new(&log, Stream::Large, 13));
    let device = shared(&[&small, &large]);
    lose(&world, &log, device);
    assert_eq!(log.due_work(), DueWork::default());
    assert!(!log.has_due_work() && mend(&log).is_none(), "the device may come back");

    log.vacate(BTreeSet::from([device]));
    assert_eq!(log.due_work(), due(DueReason::Risk, 0, 2, small.column_bytes + large.column_bytes));
    assert!(log.has_due_work());
    assert_eq!(mend(&log), Some((2 * large.column_bytes, large.column_bytes)), "the most live bytes first");
    assert_eq!(log.due_work(), due(DueReason::Risk, 0, 1, small.column_bytes));
    assert_eq!(mend(&log), Some((2 * small.column_bytes, small.column_bytes)));
    assert_eq!(log.due_work(), DueWork::default());
    assert!(!log.has_due_work() && mend(&log).is_none());
    checkpoint(&log);
    assert_eq!(log.segments_on(device), 0);
    assert_eq!(log.losses_left(), Some(1));
}

#[test]
fn a_device_that_is_back_is_not_vacated() {
    let (world, log) = create(SPARE);
    let filled = Filled::new(&log, Stream::Large, 4);
    let device = shared(&[&filled]);
    lose(&world, &log, device);
    log.vacate(BTreeSet::from([device]));
    assert!(log.has_due_work());
    world.sims()[usize::from(device.0)].heal();
    let back = world.devices().swap_remove(usize::from(device.0));
    log.pool().take_online(back).expect("it is the device that left");
    assert!(!log.has_due_work(), "its column has missed nothing");
    assert_eq!(log.due_work(), DueWork::default());
}

#[test]
fn the_columns_of_a_device_that_leaves_are_copied_tables_first() {
    let (_world, log) = create(SPARE);
    let (data, table) = (Filled::new(&log, Stream::Large, 20), Filled::new(&log, Stream::Table, 6));
    let device = shared(&[&data, &table]);
    log.pool().set_leaving(device, true).expect("three devices stay");
    assert_eq!(log.due_work(), due(DueReason::Leave, 1, 2, data.column_bytes + table.column_bytes));
    assert!(log.has_due_work());
    assert_eq!(mend(&log), Some((table.column_bytes, table.column_bytes)), "the column is there to be read");
    assert_eq!(mend(&log), Some((data.column_bytes, data.column_bytes)));
    assert_eq!(log.due_work(), DueWork::default());
    assert!(!log.has_due_work());
    assert_eq!(mend(&log), None);
}

#[test]
fn a_column_behind_the_new_end_of_a_device_moves_to_its_beginning() {
    let (_world, log) = create(TIGHT);
    let device = DeviceIndex(1);
    let filled: Vec<Filled> = (1..24).map(|rows| Filled::new(&log, Stream::Large, rows)).collect();
    let end = rig::ZONES as u32 / 2;
    let behind = log.segments_behind(device, warpfire_units::ZoneIndex(end));
    assert!(0 < behind && behind < filled.len() as u64, "{behind} segments");
    // Those before the end go, so that there is room.
    let first = filled.len() - usize::try_from(behind).expect("a few");
    filled[..first].iter().for_each(|old| old.keep(&log, 0));
    checkpoint(&log);
    checkpoint(&log);
    log.pool().set_end(device, Some(end)).expect("half of the device is enough");
    let column_bytes: u64 = filled[first..].iter().map(|one| one.column_bytes).sum();
    assert_eq!(log.due_work(), due(DueReason::Leave, 1, behind, column_bytes), "zones are taken in turn");
    let costs: Vec<_> = std::iter::from_fn(|| mend(&log)).collect();
    let wanted: Vec<_> =
        filled[first..].iter().rev().map(|one| (one.column_bytes, one.column_bytes)).collect();
    assert_eq!(costs, wanted, "the largest first, and each column is copied");
    assert_eq!(log.due_work(), DueWork::default());
}

#[test]
fn rot_costs_all_columns_of_its_segment_and_goes_before_leaving() {
    let (world, log) = create(SPARE);
    let (rotten, sound) = (Filled::new(&log, Stream::Large, 5), Filled::new(&log, Stream::Large, 17));
    let device = shared(&[&rotten, &sound]);
    let other = *rotten.devices.iter().find(|other| **other != device).expect("it has three columns");
    rot(&world, &log, other, rotten.slice.segment);
    assert_eq!(log.due_work(), due(DueReason::Rot, 1, 1, rotten.column_bytes), "at least one column");
    assert!(!log.has_due_work(), "no device is vacated");
    log.pool().set_leaving(device, true).expect("three devices stay");
    let columns_bytes = rotten.column_bytes + sound.column_bytes;
    let mut wanted = due(DueReason::Rot, 1, 1, rotten.column_bytes);
    wanted.at_risk[0] = SegmentsAtRisk { left: 1, segments: 2, due_bytes: columns_bytes };
    wanted.reasons.push(ReasonWork { reason: DueReason::Leave, segments: 1, due_bytes: sound.column_bytes });
    assert_eq!(log.due_work(), wanted);
    assert_eq!(
        mend(&log),
        Some((7 * rotten.column_bytes, 2 * rotten.column_bytes)),
        "all three to find the rot, two to copy whole blocks, and two to make the rest"
    );
    assert_eq!(mend(&log), Some((sound.column_bytes, sound.column_bytes)));
    assert_eq!(log.due_work(), DueWork::default());
}

#[test]
fn what_a_lost_column_leaves_at_risk_goes_before_rot() {
    let (world, log) = create(shape(2, 2, 5));
    let (rotten, lost) = (Filled::new(&log, Stream::Large, 17), Filled::new(&log, Stream::Large, 5));
    let only_lost = lost.devices.difference(&rotten.devices).next();
    let device = *only_lost.expect("the second segment takes the device that the first one left");
    rot(&world, &log, shared(&[&rotten]), rotten.slice.segment);
    lose(&world, &log, device);
    log.vacate(BTreeSet::from([device]));
    let risk = |left, one: &Filled| SegmentsAtRisk { left, segments: 1, due_bytes: one.column_bytes };
    let of = |reason, one: &Filled| ReasonWork { reason, segments: 1, due_bytes: one.column_bytes };
    let wanted = DueWork {
        at_risk: vec![risk(1, &lost), risk(2, &rotten)],
        reasons: vec![of(DueReason::Risk, &lost), of(DueReason::Rot, &rotten)],
        blocked: None,
    };
    assert_eq!(log.due_work(), wanted);
    assert_eq!(mend(&log), Some((2 * lost.column_bytes, lost.column_bytes)));
    assert_eq!(
        mend(&log),
        Some((7 * rotten.column_bytes, rotten.column_bytes)),
        "four to find the rot, one to copy, and two to make the rest"
    );
}

/// To rewrite the column of a segment that is mostly garbage costs more than to move its live bytes.
#[test]
fn a_segment_that_is_mostly_garbage_is_cleaned_instead_unless_it_is_at_risk() {
    for (live_less, leaves) in [(0, true), (1, true), (1, false)] {
        let context = format!("{live_less} bytes less than half, leaves: {leaves}");
        let (world, log) = create(SPARE);
        let filled = Filled::new(&log, Stream::Large, 10);
        let device = shared(&[&filled]);
        filled.keep(&log, filled.len_bytes() / 2 - live_less);
        let is_cleaned = live_less > 0 && leaves;
        let wanted = if leaves {
            log.pool().set_leaving(device, true).expect("three devices stay");
            due(DueReason::Leave, 1, 1, filled.column_bytes)
        } else {
            lose(&world, &log, device);
            log.vacate(BTreeSet::from([device]));
            due(DueReason::Risk, 0, 1, filled.column_bytes)
        };
        assert_eq!(log.due_work(), wanted, "{context}");
        assert!(log.has_due_work(), "{context}");
        let to_clean: &[SegmentId] = if is_cleaned { &[filled.slice.segment] } else { &[] };
        assert_eq!(log.damaged().expect("nothing fails"), to_clean, "{context}");
        assert_eq!(log.mend(WorkFor::Caller).expect("nothing fails"), !is_cleaned, "{context}");
        filled.keep(&log, filled.len_bytes() / 2 + live_less);
        assert_eq!(log.due_work(), DueWork::default(), "{context}: nothing refers to it");
    }
}

#[test]
fn segments_that_use_all_devices_wait_for_another_one() {
    let (world, log) = create(TIGHT);
    let filled: Vec<Filled> = [5, 8].map(|rows| Filled::new(&log, Stream::Large, rows)).into();
    lose(&world, &log, DeviceIndex(1));
    log.vacate(BTreeSet::from([DeviceIndex(1)]));
    let mut wanted = due(DueReason::Risk, 0, 2, filled.iter().map(|one| one.column_bytes).sum());
    let mut found = log.due_work();
    if let Some(Blocked::Device { used, .. }) = &mut found.blocked {
        used.sort_unstable();
    }
    wanted.blocked = Some(Blocked::Device { used: (0..3).map(DeviceIndex).collect(), segments: 2 });
    assert_eq!(found, wanted);
    assert!(!log.has_due_work(), "nothing can be done now");
    assert_eq!(mend(&log), None);
    assert_eq!(log.damaged().expect("nothing fails"), [], "its data stays where it is");
    assert_eq!(log.weak_segments(), 2);
}

/// With four columns on three devices that stay, no room would help.
#[test]
fn segments_with_more_columns_than_devices_stay_are_cleaned() {
    let (_world, log) = create(shape(3, 1, 4));
    let wide = Filled::new(&log, Stream::Large, 5);
    let tuning = warpfire_pool::Tuning { data: 2, ..log.pool().tuning() };
    log.tune(tuning).expect("four devices are enough");
    let narrow = Filled::new(&log, Stream::Large, 8);
    let device = shared(&[&narrow, &wide]);
    log.pool().set_leaving(device, true).expect("three devices stay");
    assert_eq!(log.due_work(), due(DueReason::Leave, 1, 2, wide.column_bytes + narrow.column_bytes));
    assert_eq!(log.damaged().expect("nothing fails"), [wide.slice.segment]);
    assert_eq!(mend(&log), Some((narrow.column_bytes, narrow.column_bytes)));
    assert_eq!(mend(&log), None);
    assert!(log.has_due_work(), "the wide one is to be cleaned");
    wide.keep(&log, 0);
    assert!(!log.has_due_work());
}

/// No column takes the space that deletions and recovery need.
#[test]
fn without_room_beside_the_reserve_the_missing_bytes_are_named() {
    let (world, log) = create(SPARE);
    let mut filled = Vec::new();
    let missing_bytes = |log: &Log| {
        let space = log.space();
        (space.reserve_bytes + log.segment_bytes()).saturating_sub(space.free_bytes)
    };
    while missing_bytes(&log) == 0 {
        filled.push(Filled::new(&log, Stream::Large, 31));
    }
    let device = shared(&[&filled[0]]);
    let there = || filled.iter().filter(|one| one.devices.contains(&device));
    log.pool().set_leaving(device, true).expect("three devices stay");
    let mut wanted =
        due(DueReason::Leave, 1, there().count() as u64, there().map(|one| one.column_bytes).sum());
    let missing = missing_bytes(&log);
    assert!(missing > 0);
    wanted.blocked = Some(Blocked::Space { bytes: missing });
    assert_eq!(log.due_work(), wanted);
    assert!(!log.has_due_work());
    assert_eq!(mend(&log), None);
    drop(world);
}

/// A column that has moved moves again when its next device leaves.
#[test]
fn a_segment_is_mended_as_often_as_a_device_of_it_leaves() {
    let (_world, log) = create(shape(2, 1, 5));
    let filled = Filled::new(&log, Stream::Large, 5);
    for device in filled.devices.iter().take(2) {
        log.pool().set_leaving(*device, true).expect("three devices stay");
        assert_eq!(mend(&log), Some((filled.column_bytes, filled.column_bytes)));
        assert_eq!(mend(&log), None);
    }
    checkpoint(&log);
    assert!(filled.devices.iter().take(2).all(|device| log.segments_on(*device) == 0));
    assert_eq!(log.damaged().expect("nothing fails"), []);
}

/// More columns rot than parity covers: the segment is tried once, and left to cleaning.
#[test]
fn a_segment_that_cannot_be_mended_is_cleaned_until_the_devices_change() {
    let (world, log) = create(SPARE);
    let filled = Filled::new(&log, Stream::Large, 5);
    let segment = filled.slice.segment;
    let mut devices = filled.devices.iter();
    let (first, second) = (devices.next().expect("three"), devices.next().expect("three"));
    rot(&world, &log, *first, segment);
    rot(&world, &log, *second, segment);
    assert_eq!(mend(&log), Some((3 * filled.column_bytes, 0)), "it was read, and nothing was written");
    assert_eq!(mend(&log), None);
    assert_eq!(log.damaged().expect("nothing fails"), [segment]);
    assert_eq!(log.due_work(), due(DueReason::Risk, 0, 1, 2 * filled.column_bytes), "it found both columns");
}

/// The columns of lost devices may take the space that is kept free for them.
#[test]
fn the_spare_space_is_room_for_the_columns_of_a_lost_device() {
    let (world, log) = create(SPARE);
    let wish = warpfire_pool::Tuning { spare_space: 1, ..log.pool().tuning() };
    log.tune(wish).expect("there is room");
    let mut filled = Vec::new();
    let is_full = |log: &Log| {
        let space = log.space();
        space.free_bytes < space.reserve_bytes + log.segment_bytes()
    };
    while !is_full(&log) {
        filled.push(Filled::new(&log, Stream::Large, 31));
    }
    let device = shared(&[&filled[0]]);
    lose(&world, &log, device);
    log.vacate(BTreeSet::from([device]));
    let kept_bytes = log.pool().bytes_kept_for_lost();
    assert!(kept_bytes > log.segment_bytes(), "{kept_bytes}");
    assert_eq!(log.due_work().blocked, None);
    assert!(log.has_due_work());
    let costs: Vec<_> = std::iter::from_fn(|| mend(&log)).collect();
    assert_eq!(costs.len(), filled.iter().filter(|one| one.devices.contains(&device)).count());
    assert_eq!(log.due_work(), DueWork::default());
}
