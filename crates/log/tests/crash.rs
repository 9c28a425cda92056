//! Power cuts: at each boundary of a recorded session, in the recovery after it, and in the recovery after
//! that.
//!
//! `WARPFIRE_CRASH_SEEDS=n` tries seeds 0 to n-1 of each shape instead of a few.
//! `scripts/planted` demands that these tests find several planted bugs.

mod rig;

use rig::{Client, SHAPES, Shape, assert_append_only, open};
use warpfire_sim_env::{Cut, Event, Fault, Recording, Replay, SimRandom, SimWorld, Survival, mix};

/// Steps of one recorded session.
const STEPS: u64 = 40;

/// Recoveries that follow each other, each cut in turn.
const DEPTH: u32 = 3;

fn seeds(quick: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("WARPFIRE_CRASH_SEEDS").ok().and_then(|n| n.parse().ok());
    0..asked.unwrap_or(quick)
}

/// Cuts to try at one boundary: no change kept, all kept, a prefix, every subset of few changes, and draws
/// that tear and reorder.
fn cuts(replay: &Replay<'_>, samples: u64, random: &SimRandom) -> Vec<Cut> {
    let pending = replay.pending_changes();
    if pending == 0 {
        return vec![Cut::LoseAll];
    }
    let prefix = || Cut::Prefix {
        whole: usize::try_from(random.below(pending as u64)).expect("below a length"),
        last: Survival::Nothing,
    };
    let mut cuts = vec![Cut::LoseAll, Cut::KeepAll, prefix()];
    if pending <= 3 {
        cuts.extend((1..(1u64 << pending) - 1).map(Cut::Subset));
    }
    cuts.extend((0..samples).map(|_| Cut::Seeded(random.below(u64::MAX))));
    cuts
}

/// The states that a cut of a recording may leave. Before the first mark that is a state of the `old`
/// history, from `acked` on; after it, a state of the `new` history, from the mark on. They differ where
/// recovery dropped records and the client went on with others.
struct Story<'a> {
    old: &'a [Vec<u8>],
    new: &'a [Vec<u8>],
    acked: usize,
    /// Devices that may be missing when the pool is opened, and return the next time. Parity covers them.
    may_miss: &'a [usize],
    context: &'a str,
}

/// Walks a recording, opens the states that cuts leave, and returns their number.
fn try_cuts(recording: &Recording, story: &Story<'_>, samples: u64, depth: u32, random: &SimRandom) -> u64 {
    let mut replay = recording.replay();
    let (mut history, mut acked) = (story.old, story.acked);
    let mut states = 0;
    loop {
        if replay.at_boundary() {
            for cut in cuts(&replay, samples, random) {
                let context = format!("{}, event {}, {cut:?}", story.context, replay.point());
                let found = Story { old: history, new: history, acked, context: &context, ..*story };
                states += recover_and_go_on(replay.cut(&cut), &found, depth, random);
            }
        }
        match replay.advance() {
            Some(Event::Mark(n)) => {
                acked = usize::try_from(*n).expect("a number of records");
                history = story.new;
            }
            Some(_) => {}
            None => return states,
        }
    }
}

/// Opens the state that a cut left, and checks it against the story. One in 40 times it records this, goes on
/// for some steps, and cuts the new recording too. Returns the number of states seen.
fn recover_and_go_on(mut world: SimWorld, found: &Story<'_>, depth: u32, random: &SimRandom) -> u64 {
    let missing = if random.one_in(4) { found.may_miss } else { &[] };
    let context = &format!("{}, without {missing:?}", found.context);
    for device in missing {
        world.sims()[*device].inject(Fault::Vanish { after: 0 });
    }
    // Recorded before the open, so that the recovery itself is cut too.
    let deeper = depth > 0 && random.one_in(40);
    if deeper {
        world.record();
    }
    let opened = open(&world).unwrap_or_else(|e| panic!("{context}: {e}"));
    let mut client = Client::recovered(opened, found.old, found.acked, context);
    let mut states = 1;
    if deeper {
        world.mark(client.acked as u64);
        for _ in 0..random.below(6) {
            client.step(random).unwrap_or_else(|e| panic!("{context}, going on: {e}"));
            world.mark(client.acked as u64);
        }
        client.check(context);
        let recording = world.take_recording().expect("it was begun");
        let again = format!("{context} | again");
        let story = Story { new: &client.history, context: &again, ..*found };
        states += try_cuts(&recording, &story, 1, depth - 1, random);
    }
    assert_append_only(&world, context);
    states
}

fn live_and_record(shape: Shape, seed: u64) -> (Recording, Vec<Vec<u8>>) {
    let mut world = shape.world(seed);
    let random = SimRandom::new(mix(seed));
    let mut client = Client::new(shape.create(&world).expect("blank devices take a log"));
    world.record();
    for _ in 0..STEPS {
        client.step(&random).expect("nothing fails");
        world.mark(client.acked as u64);
    }
    assert_append_only(&world, "the recorded life");
    (world.take_recording().expect("it was begun"), client.history)
}

fn cut_everywhere(shape: Shape, quick: u64) {
    let mut states = 0;
    for seed in seeds(quick) {
        let (recording, history) = live_and_record(shape, seed);
        let random = SimRandom::new(mix(!seed));
        let context = format!("{shape:?}, seed {seed}");
        let first = usize::try_from(random.below(shape.devices as u64)).expect("below a length");
        let may_miss: Vec<usize> =
            (first..).map(|n| n % shape.devices).take(usize::from(shape.parity)).collect();
        let story = Story { old: &history, new: &history, acked: 0, may_miss: &may_miss, context: &context };
        states += try_cuts(&recording, &story, 2, DEPTH, &random);
    }
    assert!(states > 100, "{states} states are too few to mean anything");
    println!("{shape:?}: {states} crash states");
}

#[test]
fn every_cut_of_one_device_recovers() {
    cut_everywhere(SHAPES[0], 2);
}

#[test]
fn every_cut_of_a_mirror_recovers() {
    cut_everywhere(SHAPES[1], 2);
}

#[test]
fn every_cut_of_two_and_one_recovers() {
    cut_everywhere(SHAPES[2], 6);
}

#[test]
fn every_cut_of_four_and_two_recovers() {
    cut_everywhere(SHAPES[3], 1);
}

#[test]
fn every_cut_of_zoned_devices_recovers() {
    cut_everywhere(SHAPES[4], 1);
}
