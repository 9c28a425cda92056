//! Devices that are away for a time and return. The columns that missed writes are recorded and rebuilt, so
//! that as many other devices may be lost afterwards as parity covers.
//!
//! The tests begin with what went wrong: a 1+1 pool whose one device was away during some writes and came
//! back lost these writes with the other device, while its status said that it was whole.

mod rig;

use rig::{Client, SHAPES, Shape, open};
use warpfire_sim_env::{Fault, OpClass, SimRandom, SimWorld, mix};

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
fn a_zoned_device_returns_and_another_one_may_be_lost() {
    every_device_leaves(SHAPES[4], 2);
}
