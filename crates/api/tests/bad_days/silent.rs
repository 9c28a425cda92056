//! Silent corruption: 400 files, 200 damaged blocks.

use std::collections::BTreeSet;

use warpfire::{ErrorKind, Pool};
use warpfire_sim_env::{SimRandom, SimWorld};

use crate::rig::{checked, fill, refused, simulated, whole};

const FILES: u64 = 400;
const BLOCKS: usize = 200;

fn lived() -> SimWorld {
    let (world, fs) = simulated(4, 4, 2);
    fill(&fs, 0..FILES);
    fs.close().expect("sound devices do not fail");
    world
}

/// Overwrites `count` blocks with random bytes, chosen from all blocks of these devices that hold data.
fn damage(world: &SimWorld, seed: u64, devices: &[usize], count: usize) {
    let mut held = Vec::new();
    for &device in devices {
        let sim = &world.sims()[device];
        let blocks = (0..sim.spec().size_bytes).step_by(4096);
        held.extend(
            blocks.filter(|&at| sim.peek(at, 4096).iter().any(|byte| *byte != 0)).map(|at| (device, at)),
        );
    }
    let random = SimRandom::new(seed);
    let mut chosen = BTreeSet::new();
    while chosen.len() < count.min(held.len()) {
        chosen.insert(held[usize::try_from(random.below(held.len() as u64)).expect("an index")]);
    }
    for (device, at) in chosen {
        let bytes: Vec<u8> = (0..512).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect();
        world.sims()[device].poke(at, &bytes);
    }
}

#[test]
fn with_200_damaged_blocks_on_any_two_devices_400_of_400_files_are_whole() {
    let world = lived();
    for (seed, devices) in [[0, 1], [1, 4], [2, 5], [3, 4], [0, 5]].into_iter().enumerate() {
        let fork = world.fork();
        damage(&fork, seed as u64, &devices, BLOCKS);
        let fs = Pool::options().background(false).open_on(fork.devices()).expect("two may rot");
        assert_eq!(whole(&fs, 0..FILES), FILES, "{devices:?}");
        drop(fs);
        let report = checked(&fork.devices());
        assert_eq!(report.errors, 0, "{devices:?}: {:?}", report.findings);
    }
}

#[test]
fn beyond_parity_there_are_errors_and_never_wrong_bytes() {
    let world = lived();
    let mut lost = 0;
    for seed in 0..12 {
        let fork = world.fork();
        damage(&fork, seed, &[0, 1, 2, 3, 4, 5], BLOCKS * 8);
        match Pool::options().background(false).open_on(fork.devices()) {
            Ok(fs) => lost += FILES - whole(&fs, 0..FILES),
            // A device without a readable root counts as missing.
            Err(error) if error.kind() == ErrorKind::NotAPool => lost += FILES,
            Err(error) => {
                refused::<()>(Err(error), ErrorKind::Damaged);
                lost += FILES;
            }
        }
        assert!(checked(&fork.devices()).errors > 0, "seed {seed}: the check finds it too");
    }
    assert!(lost > 0, "so much damage must cost some file");
}

#[test]
fn without_parity_damage_gives_errors_and_never_wrong_bytes() {
    let (world, fs) = simulated(5, 1, 0);
    fill(&fs, 0..FILES);
    fs.close().expect("sound devices do not fail");
    for seed in 0..8 {
        let fork = world.fork();
        damage(&fork, seed, &[0], BLOCKS);
        match Pool::options().background(false).open_on(fork.devices()) {
            Ok(fs) => assert!(whole(&fs, 0..FILES) < FILES, "seed {seed}"),
            Err(error) => {
                refused::<()>(Err(error), ErrorKind::Damaged);
            }
        }
    }
}
