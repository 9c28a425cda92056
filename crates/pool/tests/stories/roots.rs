//! Roots: an open finds the newest whole root, whichever write was torn.

use warpfire_format::root::RootHeader;
use warpfire_pool::{CreateOptions, Pool, PoolError, Root};
use warpfire_sim_env::{Cut, DeviceSpec, DiscardBehavior, DistinctNumbers, SimWorld};
use warpfire_units::BLOCK_BYTES;

use crate::rig::{
    DEVICE_BYTES, ZONE_BYTES, create, devices_without, id, open, options, pattern, world, write_segment,
};

fn reopened(world: &SimWorld) -> Root {
    open(world.devices()).unwrap().1
}

#[test]
fn the_newest_root_comes_back_over_many_zone_switches() {
    for devices in [1, 3] {
        let (world, pool) = world(30, devices, 1, 0);
        assert_eq!(reopened(&world).payload, b"");
        for n in 0..200u64 {
            let payload = pattern(n, (n * 997 % 40_000) as usize);
            pool.write_root(&payload).unwrap();
            let root = reopened(&world);
            assert_eq!((root.sequence, root.epoch), (n + 2, 1));
            assert!(root.payload == payload, "root {n}");
        }
        assert!(world.sims().iter().all(|d| d.overwrites().is_empty()));
    }
}

#[test]
fn each_session_that_writes_has_its_own_epoch() {
    let (world, pool) = world(31, 2, 1, 1);
    assert_eq!(pool.epoch(), 1);
    for session in 2..20 {
        let (pool, root) = open(world.devices()).unwrap();
        assert_eq!((pool.epoch(), root.epoch), (session, session - 1));
        pool.write_root(b"x").unwrap();
    }
    assert_eq!(open(world.devices()).unwrap().0.epoch(), 20);
    assert_eq!(
        open(world.devices()).unwrap().0.epoch(),
        20,
        "an open that writes nothing does not use up an epoch"
    );
    assert!(world.sims().iter().all(|d| d.overwrites().is_empty()));
}

#[test]
fn a_cut_at_any_point_leaves_the_root_before_or_the_one_being_written() {
    let (mut world, pool) = world(32, 3, 2, 1);
    drop(pool);
    // Two sessions, so that power is cut during resets of both zones.
    let mut before = 0;
    for _ in 0..2 {
        let (pool, _) = open(world.devices()).unwrap();
        world.record();
        for n in before..before + 36 {
            pool.write_root(&pattern(n, 10_000)).unwrap();
            world.mark(n);
        }
        let recording = world.take_recording().unwrap();
        let mut replay = recording.replay();
        let mut durable = before.checked_sub(1);
        while let Some(event) = replay.advance() {
            if let warpfire_sim_env::Event::Mark(n) = event {
                durable = Some(*n);
            }
            for cut in replay.cuts(3, 7) {
                let root = reopened(&replay.cut(&cut));
                let allowed = [durable, durable.map_or(Some(0), |d| Some(d + 1))];
                let found = allowed.into_iter().flatten().any(|n| root.payload == pattern(n, 10_000));
                assert!(found || durable.is_none() && root.payload.is_empty(), "after {durable:?}: {cut:?}");
            }
        }
        before += 36;
    }
}

#[test]
fn rot_in_the_newest_root_leads_to_the_root_before_which_the_next_write_keeps() {
    let (world, pool) = world(33, 1, 1, 0);
    pool.write_root(&pattern(1, 20_000)).unwrap();
    pool.write_root(&pattern(2, 20_000)).unwrap();
    // The second root that `write_root` wrote: in zone 1, after a record of a header and five blocks.
    for block in 0..6 {
        for bit in [0, 20_000, 32_767] {
            let rotten = world.fork();
            let at = ZONE_BYTES + (6 + block) * BLOCK_BYTES as u64;
            rotten.sims()[0].rot(at, bit);
            let (pool, root) = open(rotten.devices()).unwrap();
            assert!(root.payload == pattern(1, 20_000), "block {block}, bit {bit}");
            let cut = rotten.cut(&Cut::LoseAll);
            assert!(reopened(&cut).payload == pattern(1, 20_000));
            pool.write_root(b"next").unwrap();
            assert_eq!(reopened(&rotten).payload, b"next");
        }
    }
}

#[test]
fn a_root_is_on_eight_devices_or_one_more_than_parity() {
    for (devices, k, m, copies) in [(1, 1, 0, 1), (3, 2, 1, 3), (12, 10, 2, 8), (12, 4, 8, 9)] {
        let (_world, pool) = world(34, devices, k, m);
        let before = pool.counters();
        pool.write_root(b"state").unwrap();
        assert_eq!(pool.counters().total.writes - before.total.writes, copies);
        assert_eq!(pool.counters().total.flushes - before.total.flushes, copies);
    }
}

#[test]
fn a_root_that_does_not_fit_is_refused_and_the_largest_fits() {
    let (world, pool) = world(35, 2, 1, 1);
    let max = pool.root_payload_bytes_max();
    let largest = pattern(1, max as usize);
    for _ in 0..3 {
        pool.write_root(&largest).unwrap();
        assert!(reopened(&world).payload == largest);
        assert!(pool.root_copy(Some(&largest)).is_some());
    }
    let more = vec![0; max as usize + 1];
    assert_eq!(pool.write_root(&more), Err(PoolError::RootTooLarge { bytes: max + 1, max }));
    assert_eq!(pool.root_copy(Some(&more)), None);
}

/// Each device has an entry in the root, so a device more leaves less room for the rest.
#[test]
fn a_device_joins_only_if_the_root_still_fits() {
    let (mut world, pool) = world(39, 2, 1, 1);
    let max = pool.root_payload_bytes_max();
    pool.write_root(&pattern(1, max as usize)).unwrap();
    let add = |world: &mut SimWorld| {
        let device = world.add(DeviceSpec::append_only("new", DEVICE_BYTES));
        pool.add_device(device, false, &DistinctNumbers).map(drop)
    };
    let refused = add(&mut world).unwrap_err();
    let PoolError::RootTooLarge { bytes, max: with_three } = refused else { panic!("{refused:?}") };
    assert!(bytes == max && with_three < max);
    pool.write_root(&pattern(2, with_three as usize)).unwrap();
    add(&mut world).unwrap();
    assert_eq!(pool.root_payload_bytes_max(), with_three);
}

#[test]
fn a_root_may_fill_a_root_zone_of_any_size() {
    let zone_bytes = 64 << 20;
    let world = SimWorld::of(38, 2, &DeviceSpec::append_only("flash", 32 * zone_bytes));
    let options = CreateOptions { zone_bytes: Some(zone_bytes), ..options(1, 1) };
    let pool = create(&world, &options).unwrap();
    // One block for the header, and less than one for the devices.
    assert!(pool.root_payload_bytes_max() > zone_bytes - 2 * BLOCK_BYTES as u64);
}

#[test]
fn a_pool_made_over_an_old_one_with_other_zones_is_never_taken_for_it() {
    for leaves in [DiscardBehavior::Old, DiscardBehavior::Zeros, DiscardBehavior::Either] {
        let spec = DeviceSpec { discard_behavior: leaves, ..DeviceSpec::append_only("flash", DEVICE_BYTES) };
        let world = SimWorld::of(36, 1, &spec);
        let small = warpfire_pool::CreateOptions { zone_bytes: Some(128 << 10), ..options(1, 0) };
        let old = create(&world, &small).unwrap();
        for n in 0..100 {
            old.write_root(&pattern(n, 9000)).unwrap();
        }
        let pool = create(&world, &warpfire_pool::CreateOptions { force: true, ..options(1, 0) }).unwrap();
        // 32 records of two blocks fill zone 1; three more begin zone 0 again.
        for n in 0..35 {
            pool.write_root(&pattern(n, 100)).unwrap();
        }
        // The state after a crash between the reset of zone 0 and its first root.
        let torn = world.fork();
        torn.sims()[0].poke(0, &[0; 4096]);
        let (found, root) = open(torn.devices()).unwrap();
        assert_eq!(found.uuid(), pool.uuid(), "{leaves:?}");
        assert!(root.epoch == 1);
    }
}

/// The tail of the newest root is torn on its only device, and the root before it lies in the other zone. The
/// next root must not go to that zone.
#[test]
fn a_torn_root_does_not_cost_the_whole_one_before_it() {
    let spec = DeviceSpec {
        discard_behavior: DiscardBehavior::Zeros,
        ..DeviceSpec::append_only("flash", DEVICE_BYTES)
    };
    let mut world = SimWorld::of(37, 1, &spec);
    let pool = create(&world, &options(1, 0)).unwrap();
    let long = |n| pattern(n, 3 * BLOCK_BYTES);
    // The number of the first root in each zone.
    let firsts = |world: &SimWorld| {
        [0, 1].map(|zone| {
            let block = world.sims()[0].peek(zone * ZONE_BYTES, BLOCK_BYTES);
            RootHeader::decode(&block).map_or(0, |header| header.sequence)
        })
    };
    // Until a long root behind another one is the first of its zone.
    let mut number = 0;
    let zone = loop {
        let newest = firsts(&world).into_iter().max();
        number += 1;
        pool.write_root(&long(number)).unwrap();
        let zone = (0..2).find(|zone| Some(firsts(&world)[*zone as usize]) > newest);
        if let Some(zone) = zone.filter(|_| number > 1) {
            break zone;
        }
    };
    drop(pool);
    world.sims()[0].poke(zone * ZONE_BYTES + 2 * BLOCK_BYTES as u64, &[0; BLOCK_BYTES]);
    let whole = long(number - 1);
    let (pool, root) = open(world.devices()).unwrap();
    assert!(root.payload == whole, "the root before the torn one");
    world.record();
    pool.write_root(b"next").unwrap();
    let recording = world.take_recording().unwrap();
    let mut replay = recording.replay();
    loop {
        for cut in [Cut::KeepAll, Cut::LoseAll] {
            let (_, root) = open(replay.cut(&cut).devices()).unwrap();
            assert!(root.payload == whole || root.payload == b"next", "{:?}", root.sequence);
        }
        if replay.advance().is_none() {
            break;
        }
    }
}

#[test]
fn the_wear_of_root_zones_spreads_over_all_devices() {
    let (world, pool) = world(39, 24, 1, 1);
    let written = |n: usize| world.sims()[n].counters().writes;
    let before: Vec<u64> = (0..24).map(written).collect();
    for _ in 0..64 * 24 {
        pool.write_root(b"x").unwrap();
    }
    let writes: Vec<u64> = (0..24).map(|n| written(n) - before[n]).collect();
    let (least, most) = (writes.iter().min().unwrap(), writes.iter().max().unwrap());
    assert!(most - least <= 2 * 64, "{writes:?}");
    assert_eq!(reopened(&world).payload, b"x");
    assert!(world.sims().iter().all(|d| d.overwrites().is_empty()));
}

/// Writes and resets of a device are counted from session to session, also while it is away. A crash loses
/// what followed the last root, and nothing else.
#[test]
fn a_device_s_life_goes_on_from_session_to_session() {
    let (world, pool) = world(70, 4, 2, 1);
    let lives = |pool: &Pool| pool.status().devices.iter().map(|d| d.life).collect::<Vec<_>>();
    write_segment(&pool, id(1), &[300_000]);
    pool.write_root(b"first").unwrap();
    let first = lives(&pool);
    drop(pool);
    // A root does not count the blocks of itself, and no reset for it.
    let root_bytes = 2 * BLOCK_BYTES as u64;
    let (pool, _) = open(devices_without(&world, &[3])).unwrap();
    let second = lives(&pool);
    for (now, before) in second.iter().zip(&first) {
        assert!((before.resets - 1..=before.resets).contains(&now.resets));
        assert!((before.written_bytes - root_bytes..=before.written_bytes).contains(&now.written_bytes));
    }
    write_segment(&pool, id(2), &[300_000]);
    pool.write_root(b"second").unwrap();
    let third = lives(&pool);
    assert_eq!(third[3], second[3], "nothing was done to a device that is away");
    assert!((0..3).all(|n| third[n].written_bytes > second[n].written_bytes));
    assert!((0..3).any(|n| third[n].resets > second[n].resets));
    // Not recorded: no root follows.
    write_segment(&pool, id(3), &[300_000]);
    drop(pool);
    let (pool, _) = open(world.devices()).unwrap();
    let fourth = lives(&pool);
    for (now, before) in fourth.iter().zip(&third) {
        assert!((before.written_bytes - root_bytes..=before.written_bytes).contains(&now.written_bytes));
    }
    // A device begins its life when it joins.
    let blank = SimWorld::of(71, 1, &DeviceSpec::append_only("flash", DEVICE_BYTES)).devices().remove(0);
    let index = pool.add_device(blank, false, &DistinctNumbers).unwrap();
    let life = lives(&pool)[usize::from(index.0)];
    assert!(life.written_bytes > 0 && life.written_bytes < third[0].written_bytes, "{life:?}");
}
