//! The pace of upkeep: what slows a step of mending or scrubbing down, what it keeps while it waits, and how
//! a caller ends it.
//!
//! The tests begin with what went wrong: a step counted its bytes at its end, so that its own reads looked
//! like programs at work, and upkeep slowed itself down.

mod rig;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use rig::filled::{Filled, checkpoint, lose};
use rig::{Shape, shape};
use warpfire_env::Clock;
use warpfire_log::{Log, LogStore, Stream, WaitBy, WorkFor};
use warpfire_sim_env::{SimClock, SimWorld};
use warpfire_units::DeviceIndex;

const SPARE: Shape = shape(2, 1, 4);

/// A log with segments of which each has lost a column with this device.
fn hurt(segments: u64) -> (SimWorld, Log, Vec<Filled>, DeviceIndex) {
    let world = SPARE.world(7);
    let log = SPARE.create(&world).expect("blank devices take a log");
    let filled: Vec<Filled> = (0..segments).map(|_| Filled::new(&log, Stream::Large, 9)).collect();
    let device = *filled[0].devices.first().expect("it has columns");
    lose(&world, &log, device);
    log.vacate(BTreeSet::from([device]));
    (world, log, filled, device)
}

fn nanos(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).expect("a short wait")
}

#[test]
fn only_programs_count_as_programs() {
    let (_world, log, filled, _) = hurt(3);
    let ops = || log.pool().program_ops();
    let before = ops();
    assert!(log.mend(WorkFor::Caller).expect("nothing fails"));
    assert!(log.scrub(None, WorkFor::Caller).expect("nothing fails").verified().is_some());
    assert_eq!(ops(), before, "a rebuild and a scrub are none");
    log.read(filled[0].slice, &mut vec![0; filled[0].slice.len_bytes as usize]).expect("it is whole");
    let read = ops();
    assert!(read > before, "a read is one");
    for (stream, is_program) in
        [(Stream::Table, false), (Stream::Cold, false), (Stream::Small, true), (Stream::Large, true)]
    {
        let log = SPARE.create(&SPARE.world(3)).expect("blank devices take a log").with_writer_thread();
        let before = log.pool().program_ops();
        // Longer than the queue: the append waits for the writer thread.
        let long = vec![7; 256 << 10];
        log.append(stream, &long).expect("there is room");
        while log.pool().counters().payload_bytes < 128 << 10 {
            std::thread::yield_now();
        }
        assert_eq!(log.pool().program_ops() > before, is_program, "{stream:?}");
    }
}

#[test]
fn a_step_that_its_caller_ends_leaves_the_segment_as_it_was() {
    let (_world, log, _, device) = hurt(2);
    log.upkeep_limit().wish_rate(Some(1000));
    let (due, free_bytes) = (log.due_work(), log.space().free_bytes);
    let segments = log.segments_on(device);
    let waits = Cell::new(0);
    let ends = |wait: Duration| {
        waits.set(waits.get() + u32::from(!wait.is_zero()));
        wait.is_zero()
    };
    assert!(!log.mend(WorkFor::Pool(&WaitBy(&SimClock::new(0), ends))).expect("nothing fails"));
    assert_eq!(waits.get(), 1, "a thousand bytes a second are less than a stripe");
    checkpoint(&log);
    assert_eq!((log.due_work(), log.space().free_bytes), (due, free_bytes));
    assert_eq!(log.segments_on(device), segments);
    // A command does not wait.
    while log.mend(WorkFor::Caller).expect("nothing fails") {}
    assert!(log.due_work().at_risk.is_empty());
}

/// A pin would keep all that was retired later.
#[test]
fn a_step_that_waits_keeps_its_segment_and_no_other() {
    let (_world, log, filled, device) = hurt(3);
    log.upkeep_limit().wish_rate(Some(1000));
    let (had, clock) = (Cell::new(false), SimClock::new(0));
    let while_it_waits = |wait: Duration| {
        clock.advance(nanos(wait));
        if !wait.is_zero() && !had.replace(true) {
            let free_bytes = log.space().free_bytes;
            filled.iter().for_each(|one| one.keep(&log, 0));
            (0..3).for_each(|_| checkpoint(&log));
            let freed = (log.space().free_bytes - free_bytes) / log.segment_bytes();
            assert_eq!(freed, 2, "the others are free");
            log.upkeep_limit().wish_rate(None);
        }
        true
    };
    assert!(log.mend(WorkFor::Pool(&WaitBy(&clock, while_it_waits))).expect("nothing fails"));
    assert!(had.get(), "it has waited");
    (0..3).for_each(|_| checkpoint(&log));
    assert_eq!(log.segments_on(device), 0, "the third is free too");
}

#[test]
fn a_step_keeps_its_rate_in_the_time_of_its_caller() {
    let (_world, log, filled, _) = hurt(3);
    log.upkeep_limit().wish_rate(Some(1000));
    let clock = SimClock::new(1 << 40);
    let waits = |wait: Duration| {
        clock.advance(nanos(wait));
        true
    };
    let start_nanos = clock.monotonic_nanos();
    while log.mend(WorkFor::Pool(&WaitBy(&clock, waits))).expect("nothing fails") {}
    assert!(log.due_work().at_risk.is_empty());
    let moved_bytes = log.upkeep_limit().moved_bytes();
    assert!(moved_bytes >= 3 * filled[0].column_bytes, "two columns are read, and one is written");
    let seconds = (clock.monotonic_nanos() - start_nanos) / 1_000_000_000;
    assert!(seconds.abs_diff(moved_bytes / 1000) <= 1, "{moved_bytes} bytes in {seconds} s");
}

#[test]
fn a_pause_ends_a_step_that_is_under_way() {
    let (_world, log, _, device) = hurt(2);
    log.upkeep_limit().wish_rate(Some(1000));
    let (due, free_bytes) = (log.due_work(), log.space().free_bytes);
    let segments = log.segments_on(device);
    let pauses = |wait: Duration| {
        log.upkeep_limit().pause(!wait.is_zero() || log.upkeep_limit().is_paused());
        true
    };
    let clock = SimClock::new(0);
    assert!(!log.mend(WorkFor::Pool(&WaitBy(&clock, pauses))).expect("nothing fails"));
    assert!(log.upkeep_limit().is_paused(), "it has waited");
    checkpoint(&log);
    assert_eq!((log.due_work(), log.space().free_bytes), (due, free_bytes));
    assert_eq!(log.segments_on(device), segments);
    while log.mend(WorkFor::Caller).expect("nothing fails") {}
    assert!(log.due_work().at_risk.is_empty(), "a command works while upkeep is paused");
}
