//! Pools whose state does not fit a root.

mod rig;

use rig::{content, open, shape};
use warpfire_env::Timestamp;
use warpfire_format::log_state::LogState;
use warpfire_log::{Log, LogError, LogStore, Stream};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{DeviceSpec, DistinctNumbers, Fault, OpClass, SimRandom, SimWorld};
use warpfire_units::DeviceIndex;

fn create(world: &SimWorld, zone_bytes: u64) -> Log {
    let options = CreateOptions { data: 1, parity: 0, zone_bytes: Some(zone_bytes), force: false };
    let pool = Pool::create(world.devices(), &options, &*world.random(), Timestamp::default());
    Log::create(pool.expect("blank devices take a pool")).expect("it succeeds in this test").0
}

/// A root had to hold the whole state. Once that was longer than a zone, each checkpoint returned `NoSpace`,
/// and the pool was at its end with most of its zones free.
#[test]
fn a_state_that_no_root_holds_does_not_end_the_pool() {
    let world = SimWorld::of(1, 1, &DeviceSpec::append_only("flash", 64 << 20));
    let log = create(&world, 128 << 10);
    let piece = content(1, 40 << 10);
    let client = |n: usize| [content(1, 200_000), n.to_le_bytes().to_vec(), content(2, 100_000)].concat();
    let mut slices = Vec::new();
    let refused = loop {
        match log.append(Stream::Large, &piece).and_then(|s| log.log(b"a piece").map(|_| s)) {
            Ok(more) => slices.extend(more),
            Err(e) => break e,
        }
        if slices.len().is_multiple_of(8) {
            log.checkpoint(&client(slices.len()), log.position()).expect("a checkpoint needs no room");
        }
    };
    assert!(matches!(refused, LogError::NoSpace), "{refused}");
    log.checkpoint(&client(slices.len()), log.position()).expect("a checkpoint needs no room");
    let space = log.space();
    println!("{} pieces of 40 KiB, {space:?}", slices.len());
    assert!(space.free_bytes * 20 < space.total_bytes, "the pool was filled: {space:?}");
    drop(log);
    let (log, recovered) = open(&world).expect("it opens");
    assert!(recovered.state == client(slices.len()), "the last state comes back");
    for slice in slices.iter().step_by(97) {
        let mut bytes = vec![0; slice.len_bytes as usize];
        log.read(*slice, &mut bytes).expect("it is there");
    }
    rig::assert_append_only(&world, "a pool of many segments");
}

#[test]
fn every_state_of_a_client_comes_back_however_it_changes() {
    let world = shape(2, 1, 3).world(1);
    let mut log = shape(2, 1, 3).create(&world).expect("blank devices take a log");
    let random = SimRandom::new(3);
    let mut state = content(1, 30_000);
    for n in 0..200u64 {
        let at = usize::try_from(random.below(state.len() as u64)).expect("a length");
        let end = (at + usize::try_from(random.below(400)).expect("a length")).min(state.len());
        let more = usize::try_from(random.below(400)).expect("a length");
        state.splice(at..end, content(n, more));
        log.checkpoint(&state, log.position()).expect("nothing fails");
        if random.one_in(4) {
            drop(log);
            let (again, recovered) = open(&world).expect("it opens");
            assert_eq!(recovered.state, state, "after {n} changes");
            log = again;
        }
    }
    rig::assert_append_only(&world, "a client of many states");
}

/// Recovery finds the loss and writes the state log anew at once: the root that it makes may be the only
/// thing that leads to the state when the other device goes.
#[test]
fn a_state_log_that_lost_a_column_is_whole_after_the_next_opening() {
    let world = shape(1, 1, 2).world(1);
    let state = content(1, 60_000);
    let log = shape(1, 1, 2).create(&world).expect("blank devices take a log");
    log.checkpoint(&state, log.position()).expect("nothing fails");
    drop(log);
    let zeroes = vec![0; usize::try_from((rig::ZONES - 2) * rig::ZONE_BYTES).expect("a length")];
    world.sims()[0].poke(2 * rig::ZONE_BYTES, &zeroes);
    let (log, recovered) = open(&world).expect("one device has all of it");
    assert_eq!(recovered.state, state);
    drop(log);
    world.sims()[1].inject(Fault::Vanish { after: 0 });
    let (log, recovered) = open(&world).expect("the other device has all of it again");
    assert_eq!(recovered.state, state);
    drop(log);
}

/// More devices are lost than parity covers: an older or a shorter state must not pass for the newest.
#[test]
fn a_state_log_that_is_lost_is_refused() {
    let world = shape(1, 0, 1).world(1);
    let log = shape(1, 0, 1).create(&world).expect("blank devices take a log");
    log.checkpoint(&content(1, 60_000), log.position()).expect("nothing fails");
    drop(log);
    let zeroes = vec![0; usize::try_from((rig::ZONES - 2) * rig::ZONE_BYTES).expect("a length")];
    world.sims()[0].poke(2 * rig::ZONE_BYTES, &zeroes);
    let refused = open(&world).err().expect("it is refused");
    assert!(refused.contains("state log"), "{refused}");
}

/// Each session begins a segment of the state log, because it writes none of an older session. A chain of
/// many short segments would take the pool's zones one after the other.
#[test]
fn a_state_log_of_many_sessions_has_few_segments() {
    let world = shape(1, 0, 1).world(1);
    let mut log = shape(1, 0, 1).create(&world).expect("blank devices take a log").with_state_tail_bytes(100);
    for session in 0..12 {
        let state = [content(1, 2000), content(session, 500)].concat();
        log.checkpoint(&state, log.position()).expect("nothing fails");
        drop(log);
        let (pool, root) = Pool::open(world.devices(), &DistinctNumbers).expect("it opens");
        let (saved, _) = LogState::decode(&root.payload).expect("the root is whole");
        assert!((1..=4).contains(&saved.state_chain.len()), "session {session}: {:?}", saved.state_chain);
        let (opened, recovered) = Log::open(pool, &root).expect("it opens");
        assert_eq!(recovered.state, state, "session {session}");
        log = opened.with_state_tail_bytes(100);
    }
}

/// The commit log keeps a spare segment too, and a root may name it already.
#[test]
fn a_spare_segment_of_the_commit_log_does_not_keep_a_device_in_the_pool() {
    for device in 0..6 {
        let world = shape(1, 1, 6).world(1);
        let log = shape(1, 1, 6).create(&world).expect("blank devices take a log");
        log.log(b"a record").and_then(|_| log.sync()).expect("nothing fails");
        log.checkpoint(b"state", log.position()).expect("nothing fails");
        log.pool().set_leaving(DeviceIndex(device), true).expect("five devices stay");
        // What the removal of a device does.
        for _ in 0..2 {
            log.renew_log().expect("nothing fails");
            log.checkpoint(b"state", log.position()).expect("nothing fails");
        }
        let removed = log.pool().remove_device(DeviceIndex(device));
        removed.unwrap_or_else(|e| panic!("device {device}: {e}"));
    }
}

/// A pool whose state log was on two devices of four said that another one may be lost, when one of the two
/// was lost already.
#[test]
fn the_losses_that_are_left_count_the_state_log() {
    let (mut last, mut others) = (0, 0);
    for away in 0..4 {
        let world = shape(1, 1, 4).world(2);
        let log = shape(1, 1, 4).create(&world).expect("blank devices take a log").with_state_tail_bytes(100);
        let state = content(1, 60_000);
        log.checkpoint(&state, log.position()).expect("nothing fails");
        log.pool().take_offline(DeviceIndex(away)).expect("no segment needs it alone");
        let left = log.losses_left();
        drop(log);
        let opens = |other: u16| {
            let world = world.fork();
            world.sims()[usize::from(other)].inject(Fault::Vanish { after: 0 });
            open(&world).is_ok_and(|(_, recovered)| recovered.state == state)
        };
        let survives = (0..4).filter(|other| *other != away).all(opens);
        assert_eq!(left, Some(u8::from(survives)), "without device {away}");
        *if survives { &mut others } else { &mut last } += 1;
    }
    assert_eq!((last, others), (2, 2), "the state log has two copies");
}

/// A stripe of the state log missed a device, which came back. The state was then on one device until the
/// next opening, and lost with that.
#[test]
fn a_state_log_that_misses_a_write_is_whole_again_when_the_device_is_back() {
    for away in 0..2u16 {
        let world = shape(1, 1, 2).world(3);
        let log = shape(1, 1, 2).create(&world).expect("blank devices take a log").with_state_tail_bytes(100);
        log.checkpoint(&content(1, 60_000), log.position()).expect("nothing fails");
        // The first write of a checkpoint of another state is one of the state log.
        let write = Fault::Fail { op: OpClass::Write, after: 0, lasting: true };
        world.sims()[usize::from(away)].inject(write);
        let state = [content(1, 60_000), content(2, 9_000)].concat();
        log.checkpoint(&state, log.position()).expect("parity covers one device");
        assert!(!log.pool().takes_writes(DeviceIndex(away)));
        world.sims()[usize::from(away)].heal();
        let device = world.devices().swap_remove(usize::from(away));
        log.pool().take_online(device).expect("it is the device that left");
        assert_eq!(log.losses_left(), Some(0), "device {away} lacks a stripe");
        log.renew_log().expect("nothing fails");
        log.checkpoint(&state, log.position()).expect("nothing fails");
        assert_eq!(log.losses_left(), Some(1));
        drop(log);
        world.sims()[usize::from(1 - away)].inject(Fault::Vanish { after: 0 });
        let (_, recovered) = open(&world).unwrap_or_else(|e| panic!("device {away} alone: {e}"));
        assert_eq!(recovered.state, state, "device {away} alone");
    }
}

/// The log ended the process in the first checkpoint of such a state.
#[test]
fn a_root_longer_than_a_stripe_of_the_commit_log_has_no_copy_and_comes_back() {
    for (state_bytes, copies) in [(900_000, 1), (2_000_000, 0)] {
        let world = SimWorld::of(1, 1, &DeviceSpec::append_only("flash", 256 << 20));
        let log = create(&world, 16 << 20).with_state_tail_bytes(3_000_000);
        let state = content(1, state_bytes);
        let before = world.sims()[0].counters().written_bytes;
        log.checkpoint(&state, log.position()).expect("nothing fails");
        let written_bytes = world.sims()[0].counters().written_bytes - before;
        assert_eq!(written_bytes / state_bytes as u64, 1 + copies, "the root, and its copies");
        drop(log);
        let (_, recovered) = open(&world).expect("it opens");
        assert!(recovered.state == state, "the state comes back");
    }
}

/// The log knows how long a state is that it has opened. So it does not write the chain anew.
#[test]
fn a_change_of_a_long_state_is_written_alone_after_an_opening() {
    let world = SimWorld::of(1, 1, &DeviceSpec::append_only("flash", 256 << 20));
    let log = create(&world, 16 << 20);
    let state = content(1, 2_000_000);
    log.checkpoint(&state, log.position()).expect("nothing fails");
    drop(log);
    let (log, _) = open(&world).expect("it opens");
    let checkpoint = |state: &[u8]| {
        let before = world.sims()[0].counters().written_bytes;
        log.checkpoint(state, log.position()).expect("nothing fails");
        world.sims()[0].counters().written_bytes - before
    };
    let longer = [state, content(2, 50_000)].concat();
    let written_bytes = checkpoint(&longer);
    assert!((50_000..100_000).contains(&written_bytes), "{written_bytes} for 50,000");
    // A short one is in the root and in the copy of the root.
    let longer = [longer, content(3, 10_000)].concat();
    let written_bytes = checkpoint(&longer);
    assert!((20_000..50_000).contains(&written_bytes), "{written_bytes} for 10,000");
    drop(log);
    let (_, recovered) = open(&world).expect("it opens");
    assert!(recovered.state == longer, "the state comes back");
}
