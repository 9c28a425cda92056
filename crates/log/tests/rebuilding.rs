//! Devices that stay away: their columns are rebuilt on the other devices, so that as many more devices may
//! be lost as parity covers.
//!
//! The tests begin with what went wrong: a device that failed or was missing was never rebuilt anywhere, so
//! that parity was a promise until the first failure.

mod rig;

use std::collections::BTreeSet;

use rig::{Client, Shape, assert_append_only, at_each_cut, open, shape};
use warpfire_log::{Blocked, DueWork, Log, LogError, LogStore, Stream, WorkFor};
use warpfire_pool::Pool;
use warpfire_sim_env::{Cut, DistinctNumbers, Fault, OpClass, Recording, SimRandom, SimWorld, mix};
use warpfire_units::{DeviceIndex, ZoneIndex};

/// Steps of a session, before and after the device is lost.
const STEPS: u64 = 30;

/// Pools with devices to spare.
const SPARE: [Shape; 4] =
    [shape(1, 1, 4), shape(2, 1, 5), shape(4, 2, 8), Shape { zoned: true, ..shape(2, 1, 5) }];

fn live(client: &mut Client, random: &SimRandom, context: &str) {
    for _ in 0..STEPS {
        client.step(random).unwrap_or_else(|e| panic!("{context}: {e}"));
    }
}

fn indexes(devices: &[usize]) -> BTreeSet<DeviceIndex> {
    devices.iter().map(|n| DeviceIndex(u16::try_from(*n).expect("few devices"))).collect()
}

fn lose(world: &SimWorld, devices: &[usize]) {
    devices.iter().for_each(|n| world.sims()[*n].inject(Fault::Vanish { after: 0 }));
}

/// Segments with due columns and the fewest columns left, and how many these are.
fn worst(upkeep: &DueWork) -> Option<(usize, u64)> {
    upkeep.at_risk.first().map(|risk| (risk.left, risk.segments))
}

/// Rebuilds what the given-up devices held. Each step works on a segment with the fewest columns left.
fn rebuild(client: &mut Client, context: &str) -> u64 {
    let mut mended = 0;
    loop {
        let before = client.log.due_work();
        if !client.log.mend(WorkFor::Caller).unwrap_or_else(|e| panic!("{context}: {e}")) {
            break;
        }
        mended += 1;
        let after = client.log.due_work();
        let Some((left, segments)) = worst(&before) else { continue };
        // An open segment is counted, and one that was just sealed may be as bad.
        let still = after.at_risk.iter().find(|risk| risk.left == left).map_or(0, |risk| risk.segments);
        assert!(still < segments, "{context}: {before:?} became {after:?}");
    }
    // A device that fails during that makes work again; few can.
    for _ in 0..3 {
        client.regain_redundancy().unwrap_or_else(|e| panic!("{context}: {e}"));
    }
    client.checkpoint(0).unwrap_or_else(|e| panic!("{context}: {e}"));
    assert_eq!(client.log.due_work(), DueWork::default(), "{context}");
    assert_eq!(client.log.weak_segments(), 0, "{context}");
    assert!(!client.log.is_log_at_risk(), "{context}: the checkpoint has moved the log");
    mended
}

/// A pool in which some devices fail one after the other, each in the middle of a session.
fn with_lost(shape: Shape, lost: &[usize], seed: u64, context: &str) -> (SimWorld, Client, SimRandom) {
    let world = shape.world(seed);
    let random = SimRandom::new(mix(seed));
    let mut client = Client::new(shape.create(&world).expect("blank devices take a log"));
    live(&mut client, &random, context);
    for (n, device) in lost.iter().enumerate() {
        let fault = match (seed + n as u64) % 3 {
            0 => Fault::Vanish { after: random.below(9) },
            1 => Fault::Fail { op: OpClass::Write, after: random.below(9), lasting: true },
            _ => Fault::Fail { op: OpClass::Flush, after: 0, lasting: true },
        };
        world.sims()[*device].inject(fault);
        live(&mut client, &random, context);
    }
    lose(&world, lost);
    // Now the pool knows of each of them.
    client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
    (world, client, random)
}

/// Loses as many devices as parity covers, rebuilds, loses as many again, and goes on until too few are left
/// for the shape.
fn lose_and_rebuild(shape: Shape, seed: u64) {
    let context = format!("{shape:?}, seed {seed}");
    let parity = usize::from(shape.parity);
    let spare = shape.devices - usize::from(shape.data) - parity;
    let lost: Vec<usize> = (0..parity.min(spare)).map(|n| (seed as usize + n) % shape.devices).collect();
    let (world, mut client, random) = with_lost(shape, &lost, seed, &context);
    client.check(&context);
    assert_eq!(
        client.log.due_work(),
        DueWork::default(),
        "{context}: nothing is due before the device is given up"
    );
    client.log.vacate(indexes(&lost));
    let mended = rebuild(&mut client, &context);
    assert!(mended > 0, "{context}: nothing was rebuilt");
    client.check(&context);
    live(&mut client, &random, &context);
    client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
    assert_append_only(&world, &context);

    // As many more devices fail in the session, and everything is readable.
    let next: Vec<usize> = (0..shape.devices).filter(|n| !lost.contains(n)).take(parity).collect();
    let context = format!("{context}, then {next:?}");
    let fork = world.fork();
    lose(&world, &next);
    client.check(&context);
    let (history, acked) = (client.history.clone(), client.acked);
    drop(client);
    // They are all missing at the next opening, more than parity covers.
    let opened = open(&world).unwrap_or_else(|e| panic!("{context}, opened: {e}"));
    let mut client = Client::recovered(opened, &history, acked, &context);
    live(&mut client, &random, &context);
    client.sync().unwrap_or_else(|e| panic!("{context}, opened: {e}"));
    drop(client);
    // Those that were rebuilt elsewhere are back, without a thing that the pool needs.
    fork.sims().iter().for_each(|sim| sim.heal());
    lose(&fork, &next);
    let context = format!("{context}, {lost:?} are back");
    let opened = open(&fork).unwrap_or_else(|e| panic!("{context}: {e}"));
    let mut client = Client::recovered(opened, &history, acked, &context);
    live(&mut client, &random, &context);
    client.check(&context);
    assert_append_only(&fork, &context);
}

#[test]
fn a_lost_device_is_rebuilt_on_others_and_as_many_again_may_be_lost() {
    for shape in SPARE {
        for seed in 0..6 {
            lose_and_rebuild(shape, seed);
        }
    }
}

/// Opens the pool without the lost devices, gives them up and rebuilds, while the devices record.
fn rebuild_and_record(
    world: &mut SimWorld,
    (history, acked): (&[Vec<u8>], usize),
    lost: &[usize],
    context: &str,
) -> (Recording, u64, Vec<Vec<u8>>) {
    world.record();
    lose(world, lost);
    let opened = open(world).unwrap_or_else(|e| panic!("{context}: {e}"));
    let mut client = Client::recovered(opened, history, acked, context);
    client.log.vacate(indexes(lost));
    let mended = rebuild(&mut client, context);
    client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
    client.check(context);
    assert_append_only(world, context);
    let recording = world.take_recording().expect("it was begun");
    // Then as many others fail.
    let next = (0..world.sims().len()).filter(|n| !lost.contains(n)).take(lost.len());
    lose(world, &next.collect::<Vec<_>>());
    client.check(context);
    (recording, mended, client.history)
}

/// Cuts the power at every boundary of device writes of a rebuild, and rebuilds what the cut leaves. One cut
/// in 20 is recorded and cut again.
fn cut_everywhere(
    recording: &Recording,
    history: (&[Vec<u8>], usize),
    lost: &[usize],
    depth: u32,
    random: &SimRandom,
    context: &str,
) -> u64 {
    let mut states = 0;
    at_each_cut(recording, random, context, |mut world, context| {
        // The lost device may be back, and others be gone.
        let back = world.fork();
        back.sims().iter().for_each(|sim| sim.heal());
        let others = (0..back.sims().len()).filter(|n| !lost.contains(n)).take(lost.len());
        if random.one_in(2) {
            let others: Vec<usize> = others.collect();
            lose(&back, &others);
        }
        let opened = open(&back).unwrap_or_else(|e| panic!("{context}, back: {e}"));
        Client::recovered(opened, history.0, history.1, &format!("{context}, back"));
        let (again, _, longer) = rebuild_and_record(&mut world, history, lost, context);
        states += 1;
        if depth > 0 && random.one_in(20) {
            let context = format!("{context} | again");
            states += cut_everywhere(&again, (&longer, history.1), lost, depth - 1, random, &context);
        }
    });
    states
}

/// A client that has lived for a while on a new pool.
fn lived(shape: Shape, world: &SimWorld, random: &SimRandom, context: &str) -> Client {
    let mut client = Client::new(shape.create(world).expect("blank devices take a log"));
    client.add(Stream::Large, 200 << 10, 0).expect("the pool is empty");
    live(&mut client, random, context);
    client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
    client
}

fn cut_while_rebuilding(shape: Shape, seed: u64) {
    let lost: Vec<usize> = vec![usize::try_from(seed).expect("small") % shape.devices];
    let context = format!("{shape:?}, {lost:?}, seed {seed}");
    let mut world = shape.world(seed);
    let random = SimRandom::new(mix(seed));
    let client = lived(shape, &world, &random, &context);
    let (history, acked) = (client.history, client.acked);
    drop(client.log);
    let (recording, mended, longer) = rebuild_and_record(&mut world, (&history, acked), &lost, &context);
    let states = cut_everywhere(&recording, (&longer, acked), &lost, 1, &random, &context);
    assert!(mended > 0, "{context}: no segment was rebuilt");
    assert!(states > 20, "{states} states are too few to mean anything");
}

#[test]
fn the_power_fails_at_each_moment_of_a_rebuild() {
    for seed in 0..3 {
        cut_while_rebuilding(SPARE[1], seed);
    }
    cut_while_rebuilding(SPARE[0], 1);
    cut_while_rebuilding(SPARE[3], 1);
    cut_while_rebuilding(SPARE[2], 3);
}

#[test]
fn another_device_fails_at_any_operation_of_a_rebuild() {
    let shape = SPARE[2];
    for after in (0..60).step_by(3) {
        for failing in [1, 4, 7] {
            let context = format!("device {failing} fails at operation {after}");
            let (world, mut client, random) = with_lost(shape, &[0], after, &context);
            client.log.vacate(indexes(&[0]));
            world.sims()[failing].inject(match after % 4 {
                0 => Fault::Vanish { after },
                1 => Fault::Fail { op: OpClass::Read, after, lasting: true },
                2 => Fault::Fail { op: OpClass::Write, after: after / 4, lasting: true },
                _ => Fault::Fail { op: OpClass::Flush, after: after / 8, lasting: true },
            });
            rebuild(&mut client, &context);
            live(&mut client, &random, &context);
            client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
            lose(&world, &[failing]);
            client.add(Stream::Small, 9, 0).and_then(|()| client.sync()).expect("within parity");
            client.log.vacate(indexes(&[0, failing]));
            rebuild(&mut client, &context);
            lose(&world, &[2, 3]);
            client.check(&context);
        }
    }
}

/// A column with one bad block moves. Until the move is durable the old zone is needed, should another device
/// be lost.
#[test]
fn the_old_zone_stays_as_it_is_until_the_move_is_durable() {
    // A reset of a zoned device erases the zone.
    let shape = Shape { zoned: true, ..shape(2, 1, 3) };
    let mut world = shape.world(5);
    let mut client = Client::new(shape.create(&world).unwrap());
    (0..10).for_each(|_| client.add(Stream::Large, 20 << 10, 0).unwrap());
    client.sync().unwrap();
    client.checkpoint(0).unwrap();
    let slices: Vec<_> = client.entries.values().flatten().copied().collect();
    let unreadable = |log: &warpfire_log::Log| {
        let is_lost =
            |s: &&warpfire_units::SlicePtr| log.read(**s, &mut vec![0; s.len_bytes as usize]).is_err();
        slices.iter().filter(is_lost).count()
    };
    let held = |at: &u64| world.sims()[0].peek(*at, 4096).iter().filter(|byte| **byte != 0).count() > 4000;
    let block = (2 * rig::ZONE_BYTES..rig::ZONES * rig::ZONE_BYTES).step_by(4096).find(held).unwrap();
    world.sims()[0].poke(block, &[0xA5; 4096]);
    while client
        .log
        .scrub(None, WorkFor::Caller)
        .unwrap()
        .verified()
        .is_some_and(|scrubbed| scrubbed.is_whole)
    {}
    assert_eq!(client.log.due_work().at_risk.len(), 1, "the scrub has found the bad block");
    let written = client.log.pool().counters().devices;
    world.record();
    assert!(client.log.mend(WorkFor::Caller).unwrap());
    let recording = world.take_recording().unwrap();
    let now = client.log.pool().counters().devices;
    let bulk = |n: usize| now[n].written_bytes - written[n].written_bytes;
    assert!(bulk(0) > bulk(1) + 10 * 4096, "one bad block costs one column");
    let mut replay = recording.replay();
    loop {
        for subset in 0..1u64 << replay.pending_changes().min(6) {
            let cut = replay.cut(&Cut::Subset(subset));
            lose(&cut, &[1]);
            let (log, _) = open(&cut).unwrap();
            let lost = unreadable(&log);
            assert!(lost <= 1, "event {}, subset {subset:b}: {lost} entries are lost", replay.point());
        }
        if replay.advance().is_none() {
            break;
        }
    }
}

#[test]
fn a_full_pool_says_what_it_needs_and_goes_on_when_space_comes() {
    let shape = SPARE[1];
    let world = shape.world(3);
    let mut client = Client::new(shape.create(&world).unwrap());
    let admitted = |client: &Client| client.log.admit(64 << 10, warpfire_log::Admit::User).is_ok();
    while admitted(&client) {
        client.add(Stream::Large, 60 << 10, 0).unwrap();
    }
    client.sync().unwrap();
    lose(&world, &[1]);
    client.log.vacate(indexes(&[1]));
    match client.add(Stream::Small, 9, 0).and_then(|()| client.sync()) {
        Ok(()) | Err(LogError::NoSpace) => {}
        Err(e) => panic!("{e}"),
    }
    while client.log.mend(WorkFor::Caller).unwrap() {}
    let upkeep = client.log.due_work();
    assert!(matches!(upkeep.blocked, Some(Blocked::Space { bytes: 1.. })), "{upkeep:?}");
    assert!(!client.log.mend(WorkFor::Caller).unwrap(), "nothing happens while it is blocked");
    let entries = client.entries.len();
    (0..entries / 2).for_each(|_| client.drop_entry(0).unwrap());
    client.checkpoint(0).unwrap();
    client.checkpoint(0).unwrap();
    rebuild(&mut client, "space has come");
    lose(&world, &[3]);
    client.check("another device is lost");
}

#[test]
fn a_pool_without_a_device_to_spare_names_the_devices_that_cannot_help() {
    let shape = shape(2, 1, 3);
    let world = shape.world(3);
    let mut client = Client::new(shape.create(&world).unwrap());
    client.add(Stream::Large, 60 << 10, 0).unwrap();
    client.sync().unwrap();
    lose(&world, &[2]);
    client.add(Stream::Large, 9 << 10, 0).unwrap();
    client.sync().unwrap();
    client.log.vacate(indexes(&[2]));
    assert!(!client.log.mend(WorkFor::Caller).unwrap());
    let upkeep = client.log.due_work();
    let Some(Blocked::Device { mut used, segments: 1 }) = upkeep.blocked else { panic!("{upkeep:?}") };
    used.sort();
    assert_eq!(used, indexes(&[0, 1, 2]).into_iter().collect::<Vec<_>>());
}

/// A device that leaves is emptied while it works. At each moment as many other devices may be lost as parity
/// covers.
fn empty_a_leaving_device(shape: Shape, seed: u64) {
    let leaving = usize::try_from(seed).expect("small") % shape.devices;
    let context = format!("{shape:?}, device {leaving} leaves, seed {seed}");
    let mut world = shape.world(seed);
    let random = SimRandom::new(mix(seed));
    let mut client = lived(shape, &world, &random, &context);
    let device = DeviceIndex(u16::try_from(leaving).expect("few devices"));
    client.log.pool().set_leaving(device, true).unwrap_or_else(|e| panic!("{context}: {e}"));
    world.record();
    let before = client.log.pool().counters().devices;
    let mended = rebuild(&mut client, &context);
    client.checkpoint(0).unwrap_or_else(|e| panic!("{context}: {e}"));
    let recording = world.take_recording().expect("it was begun");
    assert!(mended > 0, "{context}: nothing was moved");
    let read = |n: usize| client.log.pool().counters().devices[n].read_bytes - before[n].read_bytes;
    let others = (0..shape.devices).filter(|n| *n != leaving).map(read).max();
    assert!(others < Some(read(leaving)), "{context}: columns are copied, and not rebuilt");
    live(&mut client, &random, &context);
    client.sync().and_then(|()| client.checkpoint(0)).unwrap_or_else(|e| panic!("{context}: {e}"));
    assert_eq!(client.log.segments_on(device), 0, "{context}");
    lose(&world, &[leaving]);
    client.check(&context);

    at_each_cut(&recording, &random, &context, |world, context| {
        let others = (0..shape.devices).filter(|n| *n != leaving).skip(usize::from(random.one_in(2)));
        lose(&world, &others.take(usize::from(shape.parity)).collect::<Vec<_>>());
        let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
        Client::recovered(opened, &client.history, 0, context);
    });
}

#[test]
fn a_device_that_leaves_is_emptied_and_others_may_be_lost_at_any_moment() {
    for seed in 0..4 {
        empty_a_leaving_device(SPARE[1], seed);
        empty_a_leaving_device(SPARE[3], seed);
    }
    empty_a_leaving_device(SPARE[0], 2);
    empty_a_leaving_device(SPARE[2], 3);
}

/// More devices are missing than parity covers, and nothing was rebuilt.
#[test]
fn a_pool_that_misses_more_than_parity_covers_opens_only_if_no_segment_needs_them() {
    for shape in SPARE {
        let parity = usize::from(shape.parity);
        let context = format!("{shape:?}");
        let (world, mut client, _) = with_lost(shape, &[0], 4, &context);
        client.checkpoint(0).unwrap_or_else(|e| panic!("{context}: {e}"));
        let (history, acked) = (client.history, client.acked);
        drop(client.log);
        let mut refused = 0;
        for first in 1..=shape.devices - parity {
            let world = world.fork();
            lose(&world, &[0]);
            lose(&world, &(first..first + parity).collect::<Vec<_>>());
            let opened = Pool::open(world.devices(), &DistinctNumbers).map_err(|e| e.to_string());
            match opened.and_then(|(pool, root)| Log::open(pool, &root).map_err(|e| e.to_string())) {
                Ok(opened) => drop(Client::recovered(opened, &history, acked, &context)),
                Err(error) => {
                    let few = error.contains("missing and parity covers");
                    assert!(few || error.contains("some data cannot be read without"), "{context}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0, "{context}: no segment needs one of the devices");
    }
}

/// A device shrinks while the pool is in use: the columns behind its new end move, to the rest of the device
/// too. At each moment as many devices may be lost as parity covers.
fn shrink_a_device(shape: Shape, seed: u64) {
    let shrinking = usize::try_from(seed).expect("small") % shape.devices;
    let context = format!("{shape:?}, device {shrinking} shrinks, seed {seed}");
    let mut world = shape.world(seed);
    let random = SimRandom::new(mix(seed));
    let mut client = lived(shape, &world, &random, &context);
    // The log takes the zones of a device in turn, so that some lie behind the new end.
    while client.log.segments_behind(index_of(shrinking), NEW_END) == 0 {
        client.add(Stream::Large, 60 << 10, 0).unwrap_or_else(|e| panic!("{context}: {e}"));
        client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
    }
    // Half of the entries go, so that zones before it are free.
    (0..client.entries.len() / 2).for_each(|_| client.drop_entry(0).expect("an entry is there"));
    for _ in 0..2 {
        client.sync().and_then(|()| client.checkpoint(0)).unwrap_or_else(|e| panic!("{context}: {e}"));
    }
    let device = index_of(shrinking);
    let pool = client.log.pool().clone();
    world.record();
    pool.set_end(device, Some(NEW_END.0)).unwrap_or_else(|e| panic!("{context}: {e}"));
    let mended = rebuild(&mut client, &context);
    client.log.renew_log().unwrap_or_else(|e| panic!("{context}: {e}"));
    for _ in 0..3 {
        client.checkpoint(0).unwrap_or_else(|e| panic!("{context}: {e}"));
    }
    assert_eq!(client.log.segments_behind(device, NEW_END), 0, "{context}");
    pool.shrink_device(device, NEW_END.0).unwrap_or_else(|e| panic!("{context}: {e}"));
    let recording = world.take_recording().expect("it was begun");
    live(&mut client, &random, &context);
    client.sync().and_then(|()| client.checkpoint(0)).unwrap_or_else(|e| panic!("{context}: {e}"));
    assert_append_only(&world, &context);
    client.check(&context);
    assert_eq!(client.log.segments_behind(device, NEW_END), 0, "{context}: no zone is taken there");
    assert!(mended > 0, "{context}: nothing was moved");
    at_each_cut(&recording, &random, &context, |world, context| {
        let lost = (0..shape.devices).skip(usize::from(random.one_in(2)));
        lose(&world, &lost.take(usize::from(shape.parity)).collect::<Vec<_>>());
        let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
        Client::recovered(opened, &client.history, 0, context);
    });
}

/// Half of the zones of a device.
const NEW_END: ZoneIndex = ZoneIndex(20);

fn index_of(device: usize) -> DeviceIndex {
    DeviceIndex(u16::try_from(device).expect("few devices"))
}

#[test]
fn a_device_that_shrinks_is_emptied_and_devices_may_be_lost_at_any_moment() {
    for seed in 0..2 {
        shrink_a_device(SPARE[1], seed);
        shrink_a_device(SPARE[3], seed);
        // Its columns have no other device to go to.
        shrink_a_device(shape(2, 1, 3), seed);
    }
    shrink_a_device(SPARE[0], 2);
}
