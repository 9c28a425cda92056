//! The states that a power cut may leave, and recordings that reach all of them.

use std::collections::{BTreeMap, BTreeSet};

use warpfire_env::{Device, Random};
use warpfire_sim_env::{Cut, DeviceSpec, DiscardBehavior, Event, Grain, SimRandom, SimWorld, Survival, cuts};

const BLOCK: u64 = 4096;

fn block(fill: u8) -> Vec<u8> {
    vec![fill; 4096]
}

fn fills(world: &SimWorld, device: usize, n: usize) -> Vec<u8> {
    world.sims()[device].peek(0, n * 4096).chunks(4096).map(|b| b[0]).collect()
}

#[test]
fn a_flush_makes_earlier_writes_durable_and_no_later_ones() {
    let world = SimWorld::of(1, 2, &DeviceSpec::conventional("c", 8 * BLOCK));
    let device = &world.sims()[0];
    device.write(0, &block(1)).unwrap();
    world.sims()[1].write(0, &block(3)).unwrap();
    device.flush().unwrap();
    device.write(BLOCK, &block(2)).unwrap();
    let after = world.cut(&Cut::LoseAll);
    assert_eq!((fills(&after, 0, 2), fills(&after, 1, 1)), (vec![1, 0], vec![0]));
    assert_eq!(fills(&world.cut(&Cut::KeepAll), 0, 2), [1, 2]);
    assert_eq!(fills(&world, 1, 1), [3], "the world that was cut goes on");
}

#[test]
fn prefixes_and_subsets_count_over_all_devices_in_order() {
    let world = SimWorld::of(1, 2, &DeviceSpec::conventional("c", 8 * BLOCK));
    world.sims()[0].write(0, &block(1)).unwrap();
    world.sims()[1].write(0, &block(2)).unwrap();
    world.sims()[0].write(BLOCK, &block(3)).unwrap();
    let seen = |cut| {
        let after = world.cut(&cut);
        (fills(&after, 0, 2), fills(&after, 1, 1))
    };
    assert_eq!(seen(Cut::Prefix { whole: 2, last: Survival::Nothing }), (vec![1, 0], vec![2]));
    assert_eq!(seen(Cut::Subset(0b101)), (vec![1, 3], vec![0]));
    assert_eq!(seen(Cut::Subset(0b110)), (vec![0, 3], vec![2]));
}

#[test]
fn a_write_tears_at_its_end_front_or_middle_by_either_grain() {
    let world = SimWorld::of(1, 1, &DeviceSpec::conventional("c", 8 * BLOCK));
    world.sims()[0].write(0, &block(7).repeat(2)).unwrap();
    world.sims()[0].flush().unwrap();
    world.sims()[0].write(0, &block(9).repeat(2)).unwrap();
    for (grain, piece) in [(Grain::Sector, 512), (Grain::Block, 4096)] {
        let pieces = 8192 / piece;
        for missing in [0..1, 1..2, pieces - 1..usize::MAX, 0..pieces] {
            let torn = Survival::Without { grain, missing: missing.clone() };
            let after = world.cut(&Cut::Exactly(vec![vec![torn]]));
            let bytes = after.sims()[0].peek(0, 8192);
            for (n, bytes) in bytes.chunks(piece).enumerate() {
                let fill = if missing.contains(&n) { 7 } else { 9 };
                assert!(bytes.iter().all(|&b| b == fill), "{grain:?} {missing:?} piece {n}");
            }
        }
    }
}

#[test]
fn all_subsets_of_few_changes_and_all_prefixes_of_many_are_listed() {
    let few: BTreeSet<u64> =
        cuts(3, 0, 1).map(|cut| if let Cut::Subset(mask) = cut { mask } else { panic!("{cut:?}") }).collect();
    assert_eq!(few, (0..8).collect());
    let many: Vec<Cut> = cuts(11, 5, 1).collect();
    assert_eq!(many.len(), 12 + 5);
    assert_eq!(many[11], Cut::Prefix { whole: 11, last: Survival::Nothing });
    assert_eq!(cuts(0, 100, 1).count(), 1, "with nothing pending there is one state");
}

/// For each sector of a device, the fills that a cut may leave there.
type Allowed = BTreeMap<u64, BTreeSet<u8>>;

fn check_survivors(after: &SimWorld, device: usize, allowed: &Allowed, blocks: u64, seed: u64) {
    let bytes =
        after.sims()[device].peek(0, usize::try_from(blocks * BLOCK).expect("a small device fits memory"));
    for (sector, bytes) in (0u64..).zip(bytes.chunks(512)) {
        assert!(bytes.iter().all(|b| *b == bytes[0]), "seed {seed}: a sector is never torn");
        let may = allowed.get(&sector).map_or(bytes[0] == 0, |set| set.contains(&bytes[0]));
        assert!(may, "seed {seed}: sector {sector} holds {}, allowed {allowed:?}", bytes[0]);
    }
}

/// The naive twin: each sector on its own keeps its durable value or takes any value written since.
#[test]
fn seeded_cuts_leave_only_what_the_model_allows_and_reach_much_of_it() {
    const BLOCKS: u64 = 12;
    let mut torn = 0u32;
    for seed in 0..200 {
        let random = SimRandom::new(seed);
        let spec = DeviceSpec {
            discard_behavior: DiscardBehavior::Zeros,
            ..DeviceSpec::conventional("c", BLOCKS * BLOCK)
        };
        let world = SimWorld::of(seed, 2, &spec);
        let mut allowed = [Allowed::new(), Allowed::new()];
        let mut current = [BTreeMap::new(), BTreeMap::new()];
        for step in 1..40u8 {
            let d = usize::from(random.one_in(2));
            let device = &world.sims()[d];
            let start = random.below(BLOCKS);
            let len = 1 + random.below((BLOCKS - start).min(4));
            let sectors = start * 8..(start + len) * 8;
            // A flush leaves one allowed value for each sector; a write or discard adds one.
            match random.below(8) {
                0 => {
                    device.flush().unwrap();
                    allowed[d] = current[d].iter().map(|(&s, &v)| (s, BTreeSet::from([v]))).collect();
                }
                kind => {
                    let fill = if kind == 1 { 0 } else { step };
                    if kind == 1 {
                        device.discard(start * BLOCK, len * BLOCK).unwrap();
                    } else {
                        device
                            .write(start * BLOCK, &block(fill).repeat(usize::try_from(len).unwrap()))
                            .unwrap();
                    }
                    for sector in sectors {
                        allowed[d].entry(sector).or_insert_with(|| BTreeSet::from([0])).insert(fill);
                        current[d].insert(sector, fill);
                    }
                }
            }
            let after = world.cut(&Cut::Seeded(random.next_u64()));
            for (d, allowed) in allowed.iter().enumerate() {
                check_survivors(&after, d, allowed, BLOCKS, seed);
                let bytes = after.sims()[d].peek(0, usize::try_from(BLOCKS * BLOCK).unwrap());
                torn += u32::from(bytes.chunks(4096).any(|b| b.iter().any(|x| *x != b[0])));
            }
        }
    }
    assert!(torn > 500, "blocks torn at sectors are common among seeded cuts: {torn}");
}

#[test]
fn a_recording_replays_to_the_same_media_and_its_cuts_equal_live_ones() {
    for seed in 0..30 {
        let random = SimRandom::new(seed);
        let mut world = SimWorld::of(seed, 3, &DeviceSpec::conventional("c", 32 * BLOCK));
        world.sims()[0].write(0, &block(200)).unwrap();
        world.record();
        let mut live = Vec::new();
        for step in 0..60u8 {
            let device = &world.sims()[usize::try_from(random.below(3)).unwrap()];
            let at = random.below(32) * BLOCK;
            match random.below(10) {
                0 => device.flush().unwrap(),
                1 => device.discard(at, BLOCK).unwrap(),
                2 => device.rot(at, 77),
                3 => world.mark(u64::from(step)),
                _ => device.write(at, &block(step)).unwrap(),
            }
            let cut = Cut::Seeded(random.next_u64());
            live.push((cut.clone(), [0, 1, 2].map(|d| world.cut(&cut).sims()[d].peek(0, 32 * 4096))));
        }
        let recording = world.take_recording().expect("a recording was begun");
        assert!(world.take_recording().is_none());
        // The same cut of the replay, after the same event, must leave the same bytes.
        let mut replay = recording.replay();
        for (cut, images) in &live {
            replay.advance().expect("each step is one event");
            let after = replay.cut(cut);
            assert_eq!([0, 1, 2].map(|d| after.sims()[d].peek(0, 32 * 4096)), *images, "seed {seed}");
        }
        assert!(replay.advance().is_none());
    }
}

#[test]
fn a_faulty_run_replays_to_the_same_medium() {
    use warpfire_sim_env::Fault;
    let mut world = SimWorld::of(1, 1, &DeviceSpec::conventional("c", 8 * BLOCK));
    world.record();
    let device = world.sims()[0].clone();
    device.inject(Fault::LoseWrite { after: 0 });
    device.inject(Fault::MisdirectWrite { after: 1, to_offset_bytes: 5 * BLOCK });
    device.write(0, &block(1)).unwrap();
    device.write(BLOCK, &block(2)).unwrap();
    device.flush().unwrap();
    world.mark(4);
    let recording = world.take_recording().expect("a recording was begun");
    assert!(matches!(recording.events(), [Event::Change { .. }, Event::Flush { device: 0 }, Event::Mark(4)]));
    let mut replay = recording.replay();
    while replay.advance().is_some() {}
    assert_eq!(fills(&replay.cut(&Cut::LoseAll), 0, 8), [0, 0, 0, 0, 0, 2, 0, 0]);
}

#[test]
fn only_boundaries_need_cutting() {
    let mut world = SimWorld::of(1, 1, &DeviceSpec::conventional("c", 8 * BLOCK));
    world.record();
    let device = world.sims()[0].clone();
    device.write(0, &block(1)).unwrap();
    device.write(BLOCK, &block(2)).unwrap();
    device.flush().unwrap();
    device.flush().unwrap();
    world.mark(1);
    let recording = world.take_recording().expect("a recording was begun");
    let mut replay = recording.replay();
    let mut boundaries = Vec::new();
    loop {
        if replay.at_boundary() {
            boundaries.push((replay.point(), replay.cuts(0, 0).count()));
        }
        if replay.advance().is_none() {
            break;
        }
    }
    assert_eq!(boundaries, [(2, 4), (4, 1), (5, 1)]);
}

#[test]
fn a_fork_keeps_the_cache_and_goes_its_own_way() {
    let world = SimWorld::of(3, 1, &DeviceSpec::conventional("c", 8 * BLOCK));
    world.sims()[0].write(0, &block(1)).unwrap();
    world.random().next_u64();
    let fork = world.fork();
    assert_eq!(fork.random().next_u64(), world.random().next_u64());
    fork.sims()[0].write(0, &block(2)).unwrap();
    assert_eq!((fills(&world, 0, 1), fills(&fork, 0, 1)), (vec![1], vec![2]));
    assert_eq!(fills(&fork.cut(&Cut::Prefix { whole: 1, last: Survival::Nothing }), 0, 1), [1]);
}
