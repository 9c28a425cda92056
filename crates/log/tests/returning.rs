//! Devices that are away for a time and return. The columns that missed writes are recorded and rebuilt, so
//! that as many other devices may be lost afterwards as parity covers.
//!
//! The tests begin with what went wrong: a 1+1 pool whose one device was away during some writes and came
//! back lost these writes with the other device, while its status said that it was whole.

mod rig;

use rig::{Client, SHAPES, Shape, assert_append_only, at_each_cut, open};
use warpfire_log::{Log, LogStore, Stream, WorkFor};
use warpfire_pool::Pool;
use warpfire_sim_env::{Cut, DistinctNumbers, Fault, OpClass, SimRandom, SimWorld, mix};
use warpfire_units::DeviceIndex;

/// Steps of a session, before and after the device leaves.
const STEPS: u64 = 12;

/// How a device leaves.
#[derive(Clone, Copy, Debug)]
enum Leave {
    /// It fails the write with this number, and every operation after it that writes.
    Write(u64),
    /// It fails the next flush.
    Flush,
    /// It is gone.
    Vanish(u64),
    /// It is not there when the pool is opened, and stays away for a session.
    Closed,
}

const LEAVES: [Leave; 7] = [
    Leave::Write(0),
    Leave::Write(3),
    Leave::Write(17),
    Leave::Flush,
    Leave::Vanish(0),
    Leave::Vanish(9),
    Leave::Closed,
];

fn fault(leave: Leave) -> Fault {
    match leave {
        Leave::Write(after) => Fault::Fail { op: OpClass::Write, after, lasting: false },
        Leave::Flush => Fault::Fail { op: OpClass::Flush, after: 0, lasting: false },
        Leave::Vanish(after) => Fault::Vanish { after },
        Leave::Closed => Fault::Vanish { after: 0 },
    }
}

fn live(client: &mut Client, random: &SimRandom, context: &str) {
    for _ in 0..STEPS {
        client.step(random).unwrap_or_else(|e| panic!("{context}: {e}"));
    }
}

fn reopen(world: &SimWorld, client: Client, context: &str) -> Client {
    let (history, acked) = (client.history, client.acked);
    drop(client.log);
    let opened = open(world).unwrap_or_else(|e| panic!("{context}: {e}"));
    Client::recovered(opened, &history, acked, context)
}

/// Every set of `count` of the devices but `not`.
fn sets_without(devices: usize, not: usize, count: usize) -> Vec<Vec<usize>> {
    let set = |bits: u32| (0..devices).filter(|n| bits >> n & 1 == 1).collect::<Vec<_>>();
    let sets = (0u32..1 << devices).map(set);
    sets.filter(|set| set.len() == count && !set.contains(&not)).collect()
}

/// A session in which a device leaves, a session in which it is back, and one without as many others as
/// parity covers.
fn leave_and_return(shape: Shape, away: usize, leave: Leave, seed: u64) {
    let context = format!("{shape:?}, device {away}, {leave:?}, seed {seed}");
    let world = shape.world(seed);
    let random = SimRandom::new(mix(seed));
    let mut client = Client::new(shape.create(&world).expect("blank devices take a log"));
    live(&mut client, &random, &context);
    client.sync().expect("nothing fails yet");
    world.sims()[away].inject(fault(leave));
    if matches!(leave, Leave::Closed) {
        client = reopen(&world, client, &context);
    }
    live(&mut client, &random, &context);
    client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
    if random.one_in(2) {
        client.checkpoint(random.below(3)).unwrap_or_else(|e| panic!("{context}: {e}"));
    }

    world.sims()[away].heal();
    client = reopen(&world, client, &format!("{context}, back"));
    client.regain_redundancy().unwrap_or_else(|e| panic!("{context}, back: {e}"));
    client.check(&context);
    assert_eq!(client.log.weak_segments(), 0, "{context}");
    let (history, acked) = (client.history, client.acked);
    drop(client.log);

    for lost in sets_without(shape.devices, away, usize::from(shape.parity)) {
        let world = world.fork();
        lost.iter().for_each(|device| world.sims()[*device].inject(Fault::Vanish { after: 0 }));
        let context = format!("{context}, then without {lost:?}");
        let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
        Client::recovered(opened, &history, acked, &context);
    }
}

/// Opens a pool and mends it, while the devices record. Returns the number of mended segments too.
fn mend_and_record(
    world: &mut SimWorld,
    (history, acked): (&[Vec<u8>], usize),
    context: &str,
) -> (warpfire_sim_env::Recording, u64) {
    world.record();
    let opened = open(world).unwrap_or_else(|e| panic!("{context}: {e}"));
    let mut client = Client::recovered(opened, history, acked, context);
    client.checkpoint(0).unwrap_or_else(|e| panic!("{context}: {e}"));
    let (weak, mut mended) = (client.log.weak_segments() as u64, 0);
    while client.log.mend(WorkFor::Caller).unwrap_or_else(|e| panic!("{context}: {e}")) {
        mended += 1;
    }
    client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
    client.check(context);
    assert_append_only(world, context);
    assert!(mended <= weak, "{context}: {mended} segments were mended, and {weak} counted as weak");
    (world.take_recording().expect("it was begun"), mended)
}

/// Cuts a recording at every boundary of device writes and flushes, and mends the pool that each cut leaves.
/// One cut in 20 is recorded and cut again. Then another device is lost.
fn cut_everywhere(
    recording: &warpfire_sim_env::Recording,
    history: (&[Vec<u8>], usize),
    (shape, away, depth): (Shape, usize, u32),
    random: &SimRandom,
    context: &str,
) -> u64 {
    let mut states = 0;
    at_each_cut(recording, random, context, |mut world, context| {
        let (again, _) = mend_and_record(&mut world, history, context);
        states += 1;
        if depth > 0 && random.one_in(20) {
            let (below, context) = ((shape, away, depth - 1), format!("{context} | again"));
            states += cut_everywhere(&again, history, below, random, &context);
        }
        let lost = sets_without(shape.devices, away, usize::from(shape.parity)).swap_remove(0);
        lost.iter().for_each(|device| world.sims()[*device].inject(Fault::Vanish { after: 0 }));
        let context = format!("{context}, then without {lost:?}");
        let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
        Client::recovered(opened, history.0, history.1, &context);
    });
    states
}

/// A device misses a write and returns. The power fails at each moment of the session in which it gets back
/// its columns, and in the sessions after that.
fn cut_while_mending(shape: Shape, seed: u64) {
    let away = usize::try_from(seed).expect("a small seed") % shape.devices;
    let context = format!("{shape:?}, device {away}, seed {seed}");
    let mut world = shape.world(seed);
    let random = SimRandom::new(mix(seed));
    let mut client = Client::new(shape.create(&world).expect("blank devices take a log"));
    live(&mut client, &random, &context);
    world.sims()[away].inject(fault(Leave::Write(random.below(9))));
    live(&mut client, &random, &context);
    client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
    world.sims()[away].heal();
    // Segments that were opened without the device have less parity, so their entries go.
    client = reopen(&world, client, &context);
    let narrow = |client: &Client| {
        let weak = client.log.damaged().expect("the devices work");
        client.entries.values().position(|slices| slices.iter().any(|slice| weak.contains(&slice.segment)))
    };
    world.sims()[away].inject(fault(Leave::Write(0)));
    live(&mut client, &random, &context);
    while let Some(nth) = narrow(&client) {
        client.drop_entry(nth).expect("the devices work");
    }
    client.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
    world.sims()[away].heal();
    let (history, acked) = (client.history, client.acked);
    drop(client.log);
    let (recording, mended) = mend_and_record(&mut world, (&history, acked), &context);
    let states = cut_everywhere(&recording, (&history, acked), (shape, away, 1), &random, &context);
    assert!(mended > 0, "{context}: no segment was mended");
    assert!(states > 20, "{states} states are too few to mean anything");
}

fn every_device_leaves(shape: Shape, seeds: u64) {
    for seed in 0..seeds {
        for away in 0..shape.devices {
            for leave in LEAVES {
                leave_and_return(shape, away, leave, seed);
            }
        }
    }
}

#[test]
fn a_device_of_a_mirror_returns_and_the_other_one_may_be_lost() {
    every_device_leaves(SHAPES[1], 6);
}

#[test]
fn a_device_of_two_and_one_returns_and_another_one_may_be_lost() {
    every_device_leaves(SHAPES[2], 4);
}

#[test]
fn a_device_of_four_and_two_returns_and_two_others_may_be_lost() {
    every_device_leaves(SHAPES[3], 1);
}

#[test]
fn the_power_fails_at_each_moment_of_mending() {
    for seed in 0..3 {
        cut_while_mending(SHAPES[2], seed);
        cut_while_mending(SHAPES[4], seed);
    }
    cut_while_mending(SHAPES[3], 2);
}

#[test]
fn a_zoned_device_returns_and_another_one_may_be_lost() {
    every_device_leaves(SHAPES[4], 2);
}

/// A device fails, some syncs follow without it, and the power fails. The device is back at the next opening,
/// and another one is not there. Either what the syncs covered is there, or the opening is refused. Returns
/// whether it was refused.
fn return_while_another_is_missing(shape: Shape, (away, missing): (usize, usize), seed: u64) -> bool {
    let world = shape.world(seed);
    let random = SimRandom::new(mix(seed));
    let leave = LEAVES[usize::try_from(random.below(6)).expect("an index")];
    let context = format!("{shape:?}, device {away}, {leave:?}, then without {missing}, seed {seed}");
    let mut client = Client::new(shape.create(&world).expect("blank devices take a log"));
    live(&mut client, &random, &context);
    client.sync().expect("nothing fails yet");
    world.sims()[away].inject(fault(leave));
    for _ in 0..1 + random.below(5) {
        client.step(&random).unwrap_or_else(|e| panic!("{context}: {e}"));
        client.sync_records().unwrap_or_else(|e| panic!("{context}: {e}"));
    }
    let (history, acked) = (client.history, client.acked);
    drop(client.log);
    let world = world.cut(&Cut::Seeded(random.below(u64::MAX)));
    world.sims()[away].heal();
    let whole = open(&world.fork()).unwrap_or_else(|e| panic!("{context}, all back: {e}"));
    Client::recovered(whole, &history, acked, &format!("{context}, all back"));
    world.sims()[missing].inject(Fault::Vanish { after: 0 });
    let opened = Pool::open(world.devices(), &DistinctNumbers).map_err(|e| e.to_string());
    match opened.and_then(|(pool, root)| Log::open(pool, &root).map_err(|e| e.to_string())) {
        Ok(opened) => Client::recovered(opened, &history, acked, &context).check(&context),
        Err(_) => return true,
    }
    false
}

#[test]
fn a_device_that_returns_does_not_stand_for_one_that_had_the_last_syncs() {
    for shape in [Shape { devices: 3, ..SHAPES[1] }, SHAPES[2], Shape { devices: 5, ..SHAPES[2] }] {
        let mut opened = 0;
        for seed in 0..40 {
            for away in 0..shape.devices {
                let missing =
                    (away + 1 + usize::try_from(seed).expect("small") % (shape.devices - 1)) % shape.devices;
                opened += u64::from(!return_while_another_is_missing(shape, (away, missing), seed));
            }
        }
        assert!(opened > 0, "{shape:?}: no pool was opened");
    }
}

/// Which ways of leaving end in a session that goes on.
const IN_SESSION: [Option<Leave>; 5] =
    [None, Some(Leave::Write(0)), Some(Leave::Write(5)), Some(Leave::Flush), Some(Leave::Vanish(2))];

/// A device leaves, by a fault or because it is taken offline, and is taken back while the pool is open.
fn leave_and_come_online(shape: Shape, away: usize, leave: Option<Leave>, seed: u64) {
    let context = format!("{shape:?}, device {away}, {leave:?}, seed {seed}");
    let mut world = shape.world(seed);
    let device = world.devices().swap_remove(away);
    let random = SimRandom::new(mix(seed));
    let mut client = Client::new(shape.create(&world).expect("blank devices take a log"));
    live(&mut client, &random, &context);
    client.sync().expect("nothing fails yet");
    let index = DeviceIndex(u16::try_from(away).expect("few devices"));
    match leave {
        None => client.log.pool().take_offline(index).unwrap_or_else(|e| panic!("{context}: {e}")),
        Some(leave) => world.sims()[away].inject(fault(leave)),
    }
    live(&mut client, &random, &context);
    let has_left = !client.log.pool().takes_writes(index);
    world.sims()[away].heal();
    let acked = client.acked;
    world.record();
    if has_left {
        // With whatever is buffered, queued or not flushed.
        client.log.pool().take_online(device).unwrap_or_else(|e| panic!("{context}: {e}"));
    }
    live(&mut client, &random, &context);
    client.log.renew_log().unwrap_or_else(|e| panic!("{context}: {e}"));
    client.regain_redundancy().unwrap_or_else(|e| panic!("{context}: {e}"));
    client.checkpoint(0).unwrap_or_else(|e| panic!("{context}: {e}"));
    assert_eq!(client.log.weak_segments(), 0, "{context}");
    assert_eq!(client.log.losses_left(), Some(shape.parity), "{context}");
    client.check(&context);
    let recording = world.take_recording().expect("it was begun");
    assert_append_only(&world, &context);
    let history = client.history.clone();
    drop(client);

    for lost in sets_without(shape.devices, away, usize::from(shape.parity)) {
        let world = world.fork();
        lost.iter().for_each(|device| world.sims()[*device].inject(Fault::Vanish { after: 0 }));
        let context = format!("{context}, then without {lost:?}");
        let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
        Client::recovered(opened, &history, history.len(), &context);
    }
    at_each_cut(&recording, &random, &context, |world, context| {
        let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
        let mut client = Client::recovered(opened, &history, acked, context);
        // The crash may have come before the root that takes it back.
        if !client.log.pool().takes_writes(index) {
            let device = world.devices().swap_remove(away);
            client.log.pool().take_online(device).unwrap_or_else(|e| panic!("{context}: {e}"));
            client.log.renew_log().unwrap_or_else(|e| panic!("{context}: {e}"));
        }
        client.regain_redundancy().unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_append_only(&world, context);
        let (history, acked) = (client.history, client.acked);
        drop(client.log);
        let lost = sets_without(shape.devices, away, usize::from(shape.parity)).swap_remove(0);
        lost.iter().for_each(|device| world.sims()[*device].inject(Fault::Vanish { after: 0 }));
        let context = format!("{context}, then without {lost:?}");
        let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
        Client::recovered(opened, &history, acked, &context);
    });
}

#[test]
fn a_device_comes_online_in_use_and_another_one_may_be_lost_at_any_moment() {
    for seed in 0..2 {
        for (shape, away) in [(SHAPES[1], 0), (SHAPES[1], 1), (SHAPES[2], 1), (SHAPES[4], 2)] {
            IN_SESSION.iter().for_each(|leave| leave_and_come_online(shape, away, *leave, seed));
        }
    }
    IN_SESSION.iter().for_each(|leave| leave_and_come_online(SHAPES[3], 4, *leave, 3));
}

/// The columns of a device that is away are counted by the bytes that it missed, and so is the work to bring
/// them back.
#[test]
fn the_missed_bytes_of_a_device_are_counted() {
    const BYTES: u64 = 120_000;
    let shape = Shape { data: 2, parity: 1, devices: 3, ..SHAPES[0] };
    let away = DeviceIndex(2);
    let world = shape.world(71);
    let mut client = Client::new(shape.create(&world).unwrap());
    client.add(Stream::Large, BYTES as usize, 0).unwrap();
    client.sync().unwrap();
    assert_eq!(client.log.missed_by(away), (0, 0));
    world.sims()[2].inject(Fault::Vanish { after: 0 });
    client.add(Stream::Large, BYTES as usize, 0).unwrap();
    client.sync().unwrap();
    let (segments, bytes) = client.log.missed_by(away);
    // A column has half of the bytes of its segment: two appends of data, and some rows that are not full.
    assert_eq!(segments, 1, "the segment that was open");
    assert!((BYTES / 2..BYTES + BYTES / 4).contains(&bytes), "{bytes}");
    assert_eq!(client.log.missed_by(DeviceIndex(0)), (0, 0));
    client.log.vacate([away].into());
    let due = client.log.due_work();
    let due_bytes: u64 = due.reasons.iter().map(|work| work.due_bytes).sum();
    assert!((BYTES / 2..2 * BYTES).contains(&due_bytes), "{due:?}");
    assert_eq!(due_bytes, due.at_risk.iter().map(|risk| risk.due_bytes).sum::<u64>());
}

/// The columns of the commit log count as those of segments do, until a checkpoint lets the next recovery do
/// without them.
#[test]
fn the_commit_log_is_counted_on_its_devices_until_a_checkpoint() {
    let shape = Shape { data: 1, parity: 1, devices: 4, ..SHAPES[0] };
    let world = shape.world(72);
    let mut client = Client::new(shape.create(&world).unwrap());
    let columns = |client: &Client| (0..4).map(|n| client.log.segments_on(DeviceIndex(n))).sum::<u64>();
    client.add(Stream::Small, 500, 0).unwrap();
    client.checkpoint(0).unwrap();
    let without = columns(&client);
    // Into the same segment.
    client.add(Stream::Small, 500, 0).unwrap();
    client.sync().unwrap();
    assert_eq!(columns(&client), without + 2, "the log has two columns");
    client.checkpoint(0).unwrap();
    assert_eq!(columns(&client), without);
}

/// A device that is away counts for each segment with a column on it, whether or not the column missed a
/// write.
#[test]
fn a_device_that_is_away_takes_a_loss_from_the_segments_that_it_holds() {
    let shape = Shape { data: 2, parity: 1, devices: 5, zoned: false };
    let left_without = |device: u16| {
        let world = shape.world(3);
        let log = shape.create(&world).unwrap();
        log.append(Stream::Large, &rig::content(1, 90_000)).unwrap();
        log.sync().unwrap();
        log.checkpoint(&[], warpfire_log::LogPos(1)).unwrap();
        assert_eq!(log.losses_left(), Some(1));
        world.sims()[usize::from(device)].inject(Fault::Vanish { after: 0 });
        // The pool notices by a root, which writes no column of the segment.
        log.pool().set_label(warpfire_pool::PoolLabel::new("x").unwrap()).unwrap();
        assert!(!log.pool().takes_writes(DeviceIndex(device)));
        log.losses_left()
    };
    let left: Vec<Option<u8>> = (0..5).map(left_without).collect();
    assert_eq!(left.iter().filter(|left| **left == Some(0)).count(), 3, "three columns: {left:?}");
}
