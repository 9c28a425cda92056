//! Transactions that are larger than a segment, the memtable, one record of the commit log, or the pool.

use warpfire::{Error, ErrorKind, Pool, PoolOptions, Tx, Warpfire};
use warpfire_check::{CheckOptions, check};
use warpfire_meta::Store;
use warpfire_sim_env::{DeviceSpec, SimWorld};

const DEVICE_BYTES: u64 = 64 << 20;

fn options() -> PoolOptions {
    Pool::options().zone_bytes(256 << 10).background(false)
}

fn world_and_pool(seed: u64) -> (SimWorld, Warpfire) {
    let world = SimWorld::of(seed, 1, &DeviceSpec::conventional("flash", DEVICE_BYTES));
    let pool = options().create_on(world.devices()).expect("a blank device makes a pool");
    (world, pool)
}

fn content(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Makes files of `len` bytes.
fn make(tx: &Tx, count: u64, len: usize) -> Result<(), Error> {
    tx.create_dir("/made")?;
    let dir = tx.dir("/made")?;
    (0..count).try_for_each(|number| dir.write(number.to_string(), content(number, len)))
}

/// Checks that every `step`-th file has its content. Returns how many files there are.
fn made(pool: &Warpfire, len: usize, step: usize) -> u64 {
    let Ok(dir) = pool.dir("/made") else { return 0 };
    let names: Vec<_> = dir
        .read_dir()
        .expect("sound devices do not fail")
        .map(|entry| entry.expect("sound devices do not fail").file_name().to_owned())
        .collect();
    for name in names.iter().step_by(step) {
        let number = name.to_str().and_then(|name| name.parse().ok()).expect("names are numbers");
        assert_eq!(dir.read(name).expect("sound devices do not fail"), content(number, len), "file {number}");
    }
    names.len() as u64
}

/// Cuts the power at the device writes of a commit and of the calls before it: the pool has all files of it
/// or none.
fn cut_everywhere(count: u64, len: usize, steps: usize) {
    let (mut world, pool) = world_and_pool(1);
    pool.write("/before", b"kept").expect("sound devices do not fail");
    pool.sync().expect("sound devices do not fail");
    world.record();
    let tx = pool.begin().expect("sound devices do not fail");
    make(&tx, count, len).expect("sound devices do not fail");
    tx.commit_durable().expect("sound devices do not fail");
    let recording = world.take_recording().expect("it records");
    let (mut replay, mut seen) = (recording.replay(), [0, 0]);
    loop {
        if replay.at_boundary() {
            let cuts: Vec<_> = replay.cuts(2, replay.point() as u64).collect();
            // Very many cuts: a sample of them, and always the last ones, where the outcome is decided.
            let step = cuts.len().div_ceil(steps);
            for (n, cut) in cuts.iter().rev().enumerate().filter(|(n, _)| *n < steps / 2 || n % step == 0) {
                let world = replay.cut(cut);
                let after = options().open_on(world.devices()).expect("a power cut leaves the pool");
                assert_eq!(after.read("/before").expect("sound devices do not fail"), b"kept");
                let found = made(&after, len, 97);
                assert!(
                    found == 0 || found == count,
                    "{found} of {count} files, point {} cut {n}",
                    replay.point()
                );
                seen[usize::from(found > 0)] += 1;
            }
        }
        if replay.advance().is_none() {
            break;
        }
    }
    assert!(seen[0] > 1 && seen[1] > 0, "{seen:?}: some cuts come before the commit, some after it");
    assert_eq!(made(&pool, len, 1), count);
}

#[test]
fn a_record_longer_than_a_segment_of_the_log_is_there_whole_or_not_at_all() {
    cut_everywhere(4000, 100, 40);
}

#[test]
fn a_commit_too_long_for_a_record_is_there_whole_or_not_at_all() {
    cut_everywhere(20_000, 100, 24);
}

#[test]
fn data_that_went_to_the_log_before_the_commit_is_there_whole_or_not_at_all() {
    cut_everywhere(1200, 15_000, 24);
}

#[test]
fn the_space_of_an_aborted_transaction_is_free_again() {
    let (world, pool) = world_and_pool(2);
    pool.sync().unwrap();
    let live_bytes = pool.stats().space.live_bytes;
    for _ in 0..5 {
        // Half of the pool each time: the next transaction needs the space of the one before.
        let tx = pool.begin().unwrap();
        make(&tx, 2000, 15_000).unwrap();
        assert!(
            pool.stats().space.live_bytes > live_bytes + (15 << 20),
            "data is in the pool before the commit"
        );
        tx.abort();
        pool.sync().unwrap();
        assert!(pool.stats().space.live_bytes < live_bytes + (1 << 20));
    }
    assert!(!pool.exists("/made"));
    pool.close().unwrap();
    let report = check(&world.devices(), &CheckOptions::default()).expect("the pool can be checked");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn other_writers_continue_and_space_is_cleaned_while_a_large_transaction_is_open() {
    let (world, pool) = world_and_pool(3);
    pool.write("/long", content(3, 700_000)).unwrap();
    pool.write("/short", content(4, 20_000)).unwrap();
    pool.sync().unwrap();
    let tx = pool.begin().unwrap();
    make(&tx, 1000, 15_000).unwrap();
    // The pool also keeps bytes that others wrote and that the transaction names.
    tx.copy("/long", "/long-copy").unwrap();
    tx.rename("/short", "/moved").unwrap();
    // The same files again and again, many times the size of the pool: this needs cleaning.
    for round in 0..40 {
        for number in 0..8 {
            pool.write(format!("/other-{number}"), content(round, 600_000)).unwrap();
        }
        pool.sync().unwrap();
    }
    tx.commit_durable().unwrap();
    assert_eq!(made(&pool, 15_000, 1), 1000);
    assert_eq!(pool.read("/other-7").unwrap(), content(39, 600_000));
    assert_eq!(pool.read("/long-copy").unwrap(), content(3, 700_000));
    assert_eq!(pool.read("/moved").unwrap(), content(4, 20_000));
    pool.close().unwrap();
    let report = check(&world.devices(), &CheckOptions::default()).expect("the pool can be checked");
    assert!(report.is_clean(), "{report:?}");
}

/// The copies of the transaction name bytes of other files. Cleaning wants their segments, because their
/// neighbours are removed.
#[test]
fn cleaning_does_not_move_bytes_that_a_transaction_names() {
    const FILES: u64 = 400;
    const BYTES: usize = 40_000;
    let (world, pool) = world_and_pool(5);
    for dir in ["/kept", "/doomed", "/copies", "/other"] {
        pool.create_dir(dir).unwrap();
    }
    let dir_of = |number: u64| if number.is_multiple_of(4) { "kept" } else { "doomed" };
    for number in 0..FILES {
        pool.write(format!("/{}/{number}", dir_of(number)), content(number, BYTES)).unwrap();
    }
    pool.filesystem().engine().compact().unwrap();
    let tx = pool.begin().unwrap();
    for number in (0..FILES).step_by(4) {
        tx.copy(format!("/kept/{number}"), format!("/copies/{number}")).unwrap();
    }
    for number in (0..FILES).filter(|number| number % 4 != 0) {
        pool.remove_file(format!("/doomed/{number}")).unwrap();
    }
    for round in 0..40 {
        for number in 0..8 {
            pool.write(format!("/other/{number}"), content(round, 600_000)).unwrap();
        }
        pool.filesystem().engine().compact().unwrap();
        while pool.filesystem().engine().background_step().unwrap() {}
    }
    tx.commit_durable().unwrap();
    assert_eq!(
        pool.stats().transactions.replays,
        0,
        "the transaction commits its own changes and not those of a replay"
    );
    for number in (0..FILES).step_by(4) {
        assert_eq!(pool.read(format!("/copies/{number}")).unwrap(), content(number, BYTES), "file {number}");
    }
    pool.close().unwrap();
    let report = check(&world.devices(), &CheckOptions::default()).expect("the pool can be checked");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_large_transaction_that_fills_the_pool_gets_no_space_and_other_writers_continue() {
    let (_world, pool) = world_and_pool(4);
    pool.write("/other", content(1, 600_000)).unwrap();
    let tx = pool.begin().unwrap();
    let full = make(&tx, 100_000, 15_000).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert_eq!(pool.write("/late", content(2, 600_000)).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(pool.read("/other").unwrap(), content(1, 600_000));
    tx.abort();
    pool.write("/late", content(2, 600_000)).unwrap();
    let tx = pool.begin().unwrap();
    make(&tx, 100, 15_000).unwrap();
    tx.commit_durable().unwrap();
    assert_eq!(made(&pool, 15_000, 1), 100);
}
