//! As many devices as the pool has parity may be lost or rot. With one more the answer is an error.

use warpfire::{ErrorKind, Pool};
use warpfire_sim_env::{SimRandom, SimWorld};

use crate::rig::{Images, refused, simulated, whole};

const FILES: u64 = 60;

/// Every choice of `count` out of six.
fn choices(count: usize) -> Vec<Vec<usize>> {
    (0..64usize)
        .filter(|bits| bits.count_ones() as usize == count)
        .map(|bits| (0..6).filter(|device| bits >> device & 1 == 1).collect())
        .collect()
}

/// Overwrites everything on a device with random bytes, from an offset on.
fn ruin(world: &SimWorld, device: usize, from_bytes: u64) {
    let random = SimRandom::new(device as u64);
    let sim = &world.sims()[device];
    for at in (from_bytes..sim.spec().size_bytes).step_by(4096) {
        if sim.peek(at, 4096).iter().any(|byte| *byte != 0) {
            let bytes: Vec<u8> = (0..512).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect();
            sim.poke(at, &bytes);
        }
    }
}

fn lived() -> SimWorld {
    let (world, fs) = simulated(1, 4, 2);
    crate::rig::fill(&fs, 0..FILES);
    fs.close().expect("sound devices do not fail");
    world
}

#[test]
fn any_two_of_six_devices_may_be_overwritten_whole() {
    let world = lived();
    let pairs = choices(2);
    assert_eq!(pairs.len(), 15);
    for pair in pairs {
        let fork = world.fork();
        pair.iter().for_each(|&device| ruin(&fork, device, 0));
        let fs = Pool::options().background(false).open_on(fork.devices()).expect("two may be lost");
        assert_eq!(whole(&fs, 0..FILES), FILES, "{pair:?}");
    }
}

#[test]
fn any_two_of_six_devices_may_rot_behind_sound_roots() {
    let world = lived();
    for pair in choices(2) {
        let fork = world.fork();
        pair.iter().for_each(|&device| ruin(&fork, device, 2 << 20));
        let fs = Pool::options().background(false).open_on(fork.devices()).expect("two may be lost");
        assert_eq!(whole(&fs, 0..FILES), FILES, "{pair:?}");
        fs.sync().expect("and it can be written");
    }
}

#[test]
fn three_of_six_devices_overwritten_is_an_error_when_the_pool_is_opened() {
    let world = lived();
    for three in choices(3) {
        let fork = world.fork();
        three.iter().for_each(|&device| ruin(&fork, device, 0));
        let opened = Pool::options().background(false).open_on(fork.devices());
        refused(opened, ErrorKind::NotAPool);
    }
}

#[test]
fn three_of_six_devices_rotten_gives_errors_and_never_wrong_bytes() {
    let world = lived();
    for three in choices(3) {
        let fork = world.fork();
        three.iter().for_each(|&device| ruin(&fork, device, 2 << 20));
        match Pool::options().background(false).open_on(fork.devices()) {
            Ok(fs) => assert!(whole(&fs, 0..FILES) < FILES, "{three:?}"),
            Err(error) => {
                refused::<()>(Err(error), ErrorKind::Damaged);
            }
        }
    }
}

#[test]
fn eight_of_250_devices_may_go_and_the_ninth_is_named() {
    let images = Images::new(250);
    let options = Pool::options().data(242).parity(8).size_bytes(2 << 20).zone_bytes(64 << 10);
    let fs = options.create(&images.paths).expect("250 images make a pool");
    crate::rig::fill(&fs, 0..40);
    fs.close().expect("sound devices do not fail");

    let away = [0, 1, 77, 78, 120, 200, 248, 249];
    let fs = Pool::options().open(images.without(&away)).expect("eight may be away");
    assert_eq!(fs.stats().lost_devices(), 8);
    assert_eq!(whole(&fs, 0..40), 40);
    drop(fs);

    let away = [0, 1, 5, 77, 78, 120, 200, 248, 249];
    let said = refused(Pool::options().open(images.without(&away)), ErrorKind::NotAPool);
    assert!(said.contains("9 devices are missing, and some data cannot be read without: device 0"), "{said}");
}

#[test]
fn eight_of_250_devices_may_be_overwritten() {
    let images = Images::new(250);
    let options = Pool::options().data(242).parity(8).size_bytes(2 << 20).zone_bytes(64 << 10);
    let fs = options.create(&images.paths).expect("250 images make a pool");
    crate::rig::fill(&fs, 0..40);
    fs.close().expect("sound devices do not fail");

    for (number, overwritten) in [3, 4, 5, 6, 130, 131, 240, 245].into_iter().enumerate() {
        std::fs::write(&images.paths[overwritten], vec![number.to_le_bytes()[0] | 1; 2 << 20])
            .expect("written");
    }
    let fs = Pool::options().open(&images.paths).expect("eight may be lost");
    assert_eq!(whole(&fs, 0..40), 40);
}
