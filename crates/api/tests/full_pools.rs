//! A pool that was filled to the last byte and then lost power: it opens, and files can be deleted.
//!
//! The cuts are at the last 200 device writes of the filling. The test tries a sample;
//! `WARPFIRE_FULL_CUTS=all` tries every one.

use warpfire::{ErrorKind, Pool, PoolOptions, Warpfire};
use warpfire_sim_env::{Cut, DeviceSpec, Event, SimWorld};

/// Device writes before the end of the filling at which power is cut.
const LAST_WRITES: usize = 200;

fn options(data: u16, parity: u8) -> PoolOptions {
    Pool::options().data(data).parity(parity).zone_bytes(512 << 10).background(false)
}

fn name(number: u64) -> String {
    format!("/{number:06}")
}

/// Writes files until two in a row do not fit, with a sync after each one: so the commit log grows too.
fn fill(pool: &Warpfire) -> u64 {
    let (mut number, mut refused) = (0u64, 0);
    while refused < 2 {
        let len = if number % 4 == 0 { 60_000 } else { 900 };
        let bytes: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(len).collect();
        match pool.write(name(number), bytes).and_then(|_| pool.sync()) {
            Ok(()) => refused = 0,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                refused += 1;
            }
        }
        number += 1;
    }
    number
}

/// Opens the pool, deletes every file that is there, and writes a new one.
fn open_and_delete(world: &SimWorld, options: &PoolOptions, made: u64, context: &str) {
    let pool = options.open_on(world.devices()).unwrap_or_else(|e| panic!("{context}: open: {e}"));
    for number in 0..made {
        match pool.remove_file(name(number)) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{context}: file {number}: {error}"),
        }
        if number % 64 == 0 {
            pool.sync().unwrap_or_else(|e| panic!("{context}: sync after file {number}: {e}"));
        }
    }
    pool.sync().unwrap_or_else(|e| panic!("{context}: sync: {e}"));
    pool.write("/new", vec![7; 1 << 20]).unwrap_or_else(|e| panic!("{context}: a new file: {e}"));
    pool.sync().unwrap_or_else(|e| panic!("{context}: sync of the new file: {e}"));
}

fn cut_a_full_pool(data: u16, parity: u8) {
    let devices = usize::from(data) + usize::from(parity);
    let mut world = SimWorld::of(1, devices, &DeviceSpec::conventional("flash", 12 << 20));
    let options = options(data, parity);
    let pool = options.create_on(world.devices()).expect("blank devices make a pool");
    world.record();
    let made = fill(&pool);
    let recording = world.take_recording().expect("it records");
    let is_write = |event: &Event| matches!(event, Event::Change { .. });
    let (mut counting, mut writes) = (recording.replay(), 0);
    while let Some(event) = counting.advance() {
        writes += usize::from(is_write(event));
    }
    let all = std::env::var_os("WARPFIRE_FULL_CUTS").is_some();
    let step = if all { 1 } else { 9 };
    let (mut replay, mut seen, mut states) = (recording.replay(), 0, 0);
    while let Some(event) = replay.advance() {
        if !is_write(event) {
            continue;
        }
        seen += 1;
        if seen + LAST_WRITES >= writes && (writes - seen) % step == 0 {
            for cut in [Cut::KeepAll, Cut::LoseAll, Cut::Seeded(seen as u64)] {
                let context = format!("{data}+{parity}, write {seen} of {writes}, {cut:?}");
                open_and_delete(&replay.cut(&cut), &options, made, &context);
                states += 1;
            }
        }
    }
    println!("{data}+{parity}: {made} files, {writes} device writes, {states} states");
    assert!(states > 3 * LAST_WRITES / step, "the last writes were cut");
    drop(pool);
}

#[test]
fn a_full_pool_of_one_device_opens_after_any_cut() {
    cut_a_full_pool(1, 0);
}

#[test]
fn a_full_mirror_opens_after_any_cut() {
    cut_a_full_pool(1, 1);
}

#[test]
fn a_full_pool_with_parity_opens_after_any_cut() {
    cut_a_full_pool(2, 1);
}

/// Calls that pin the bytes which they name, right after the removal of half of the files of a full pool: the
/// pool has room for them once it is cleaned, and their own pins must not stand in the way.
#[test]
fn calls_that_name_bytes_find_the_room_that_cleaning_gains() {
    for background in [false, true] {
        let options = Pool::options().zone_bytes(1 << 20).background(background);
        let pool = options.size_bytes(64 << 20).in_memory().unwrap();
        for name in ["linked", "renamed"] {
            pool.write(format!("/{name}"), name).unwrap();
        }
        let bytes = vec![7; 20_000];
        let mut files = 0;
        while pool.write(format!("/{files}"), &bytes).is_ok() {
            files += 1;
        }
        for n in (0..files).step_by(2) {
            pool.remove_file(format!("/{n}")).unwrap();
        }
        for n in 0..200 {
            let done = pool
                .hard_link("/linked", format!("/link-{n}"))
                .and_then(|()| pool.rename("/renamed", "/other"))
                .and_then(|()| pool.rename("/other", "/renamed"))
                .and_then(|()| pool.copy("/1", format!("/copy-{n}")));
            done.unwrap_or_else(|e| panic!("background {background}, call {n}: {e}"));
        }
    }
}

/// A pool is full to the last byte, and what filled it was a mistake: the way back needs no room, and gives
/// room back.
#[test]
fn a_full_pool_is_rolled_back_and_has_room_again() {
    for background in [false, true] {
        let options = Pool::options().zone_bytes(1 << 20).background(background);
        let pool = options.size_bytes(96 << 20).in_memory().unwrap();
        let kept_bytes: Vec<u8> = (0..16u32 << 18).flat_map(u32::to_le_bytes).collect();
        pool.write("/keep", &kept_bytes).unwrap();
        pool.create_snapshot("good").unwrap();
        let fill = |name: &str, len: usize| {
            let mut files = 0;
            while let Ok(()) = pool.write(format!("/{name}-{files}"), vec![7; len]).map(drop) {
                files += 1;
            }
            files
        };
        let files = fill("large", 1 << 20) + fill("small", 5_000) + fill("tiny", 10);
        pool.remove_file("/keep").unwrap();
        pool.sync().unwrap();

        let rolled_back = pool.roll_back_to_snapshot("good", "bad");
        rolled_back.unwrap_or_else(|e| panic!("background {background}, {files} files: {e}"));
        assert_eq!(pool.read("/keep").unwrap(), kept_bytes);
        // The mistake itself can be looked at, and then it goes.
        let bad = pool.open_snapshot("bad").unwrap();
        assert_eq!(bad.read("/large-0").unwrap().len(), 1 << 20);
        drop(bad);
        pool.delete_snapshot("bad").unwrap();
        for n in 0..40 {
            let written = pool.write(format!("/after-{n}"), vec![9; 1 << 20]);
            written.unwrap_or_else(|e| panic!("background {background}, file {n} afterwards: {e}"));
        }
        assert_eq!(pool.read("/keep").unwrap(), kept_bytes);
        assert!(pool.read("/large-0").is_err(), "what filled the pool is gone");
    }
}

/// A full pool goes to and fro between two trees, and then everything is deleted. Rollbacks that are not
/// settled hold the bytes of both trees, which count as free: callers wait until they are.
#[test]
fn a_full_pool_that_was_rolled_back_many_times_has_room_once_everything_is_deleted() {
    for background in [false, true] {
        let options = Pool::options().zone_bytes(1 << 20).background(background);
        let pool = options.size_bytes(96 << 20).in_memory().unwrap();
        pool.write("/keep", vec![8; 8 << 20]).unwrap();
        pool.create_snapshot("0").unwrap();
        let mut files = 0;
        while pool.write(format!("/{files}"), vec![7; 1 << 20]).is_ok() {
            files += 1;
        }
        pool.remove_file("/keep").unwrap();
        let mut rollbacks = 0;
        for n in 0..40 {
            match pool.roll_back_to_snapshot(n.to_string(), (n + 1).to_string()) {
                Ok(_) => rollbacks += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    break;
                }
            }
        }
        assert!(rollbacks > 4, "only {rollbacks} rollbacks");
        for n in 0..=rollbacks {
            pool.delete_snapshot(n.to_string()).unwrap();
        }
        for entry in pool.read_dir("/").unwrap() {
            pool.remove_file(format!("/{}", entry.unwrap().file_name().to_str().unwrap())).unwrap();
        }
        pool.sync().unwrap();
        let free_bytes = pool.space().unwrap().available_bytes;
        assert!(free_bytes > 64 << 20, "{free_bytes} bytes are free");
        for n in 0..64 {
            let written = pool.write(format!("/after-{n}"), vec![9; 1 << 20]);
            written
                .unwrap_or_else(|e| panic!("background {background}, {rollbacks} rollbacks, file {n}: {e}"));
        }
    }
}
