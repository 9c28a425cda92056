//! The bytes that `space` calls available can be written, within one segment: over random sizes of devices,
//! widths and fills.
//!
//! `WARPFIRE_SPACE_SETS` sets how many of each kind (default 6).

use std::time::Duration;

use warpfire::{ErrorKind, Pool, Warpfire};
use warpfire_sim_env::{DeviceSpec, SimRandom, SimWorld};

const ZONE_BYTES: u64 = 1 << 20;

/// Bytes of each file that fills a pool.
const FILE_BYTES: usize = 256 << 10;

/// Refusals in a row after which a pool is full, and the pause after each, in which the pool cleans.
const REFUSALS_MAX: u64 = 25;
const PAUSE: Duration = Duration::from_millis(20);

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(FILE_BYTES).collect()
}

/// Writes files until one does not fit even after pauses for cleaning, or `most` of them. Returns how many.
fn fill(pool: &Warpfire, directory: &str, most: u64) -> u64 {
    pool.create_dir(directory).expect("a directory fits into the reserve");
    let (mut number, mut refused) = (0, 0);
    while number < most && refused < REFUSALS_MAX {
        match pool.write(format!("{directory}/{number}"), content(number)) {
            Ok(()) => (number, refused) = (number + 1, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                pool.sync().expect("a full pool syncs");
                std::thread::park_timeout(PAUSE);
                refused += 1;
            }
        }
    }
    number
}

/// Writes one file in pieces, until one is refused: programs stop then. Returns its bytes.
fn append(pool: &Warpfire, path: &str, piece_bytes: usize) -> u64 {
    let file = pool.create(path).expect("a file fits into the reserve");
    let piece = vec![7; piece_bytes];
    loop {
        if let Err(error) = file.append(&piece) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            return file.metadata().expect("it is open").len();
        }
    }
}

/// A pool of random shape, and the payload bytes of its segments.
fn random_pool(seed: u64, random: &SimRandom) -> (Warpfire, u64, String) {
    let mut world = SimWorld::new(seed);
    let (data, parity) = (1 + random.below(4) as u16, random.below(3) as u8);
    for n in 0..u64::from(data) + u64::from(parity) + random.below(3) {
        world.add(DeviceSpec::conventional(format!("flash{n}"), (24 + random.below(72)) * ZONE_BYTES));
    }
    let options = Pool::options().data(data).parity(parity).zone_bytes(ZONE_BYTES);
    let pool = options.create_on(world.devices()).expect("blank devices make a pool");
    let context = format!("seed {seed}, {data}+{parity} on {} devices", world.sims().len());
    (pool, u64::from(data) * ZONE_BYTES, context)
}

/// Checks that the bytes called available were written, within one segment.
fn judge(pool: &Warpfire, available_bytes: u64, written_bytes: u64, segment_bytes: u64, context: &str) {
    pool.sync().expect("written files have their room");
    // Bytes of removed files in segments that are too full to be worth cleaning do not come back.
    let stuck_bytes = pool.stats().space.stuck_bytes;
    assert!(
        available_bytes.abs_diff(written_bytes) <= segment_bytes + stuck_bytes,
        "{context}: {available_bytes} bytes are called available, {written_bytes} were written, \
         {stuck_bytes} are stuck",
    );
}

/// Fills a pool with files, some of them removed, and compares what it then calls available with the files
/// that can be written.
fn compare(seed: u64, removes: bool) {
    let random = SimRandom::new(seed);
    let (pool, segment_bytes, context) = random_pool(seed, &random);
    let files = pool.space().expect("it is open").available_bytes / FILE_BYTES as u64;
    let made = fill(&pool, "/before", files * random.below(80) / 100);
    for number in (0..made).filter(|_| removes && random.below(3) == 0) {
        pool.remove_file(format!("/before/{number}")).expect("it was made");
    }
    pool.sync().expect("nothing fails");
    let available_bytes = pool.space().expect("it is open").available_bytes;
    let written_bytes = fill(&pool, "/after", u64::MAX) * FILE_BYTES as u64;
    judge(&pool, available_bytes, written_bytes, segment_bytes, &context);
}

/// Compares what an empty pool calls available with the length of one file that is written in pieces.
fn compare_pieces(seed: u64, piece_bytes: usize) {
    let (pool, segment_bytes, context) = random_pool(seed, &SimRandom::new(seed));
    let available_bytes = pool.space().expect("it is open").available_bytes;
    let written_bytes = append(&pool, "/file", piece_bytes);
    let context = format!("{context}, pieces of {piece_bytes}");
    judge(&pool, available_bytes, written_bytes, segment_bytes, &context);
}

fn sets() -> u64 {
    std::env::var("WARPFIRE_SPACE_SETS").map_or(6, |sets| sets.parse().expect("a number"))
}

#[test]
fn what_is_called_available_can_be_written() {
    (0..sets()).for_each(|seed| compare(seed, false));
}

#[test]
fn what_is_called_available_after_removals_can_be_written() {
    (0..sets()).for_each(|seed| compare(seed, true));
}

/// Four threads meet the end of the pool together, each with a file of its own.
#[test]
fn threads_together_write_what_is_called_available() {
    for seed in 0..sets() {
        let (pool, segment_bytes, context) = random_pool(seed, &SimRandom::new(seed));
        let available_bytes = pool.space().expect("it is open").available_bytes;
        let written_bytes = std::thread::scope(|scope| {
            let writers: Vec<_> = [4 << 10, 20_000, 48 << 10, 256 << 10]
                .into_iter()
                .map(|bytes| {
                    scope.spawn({
                        let pool = &pool;
                        move || append(pool, &format!("/{bytes}"), bytes)
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().expect("a refusal is no panic")).sum::<u64>()
        });
        judge(&pool, available_bytes, written_bytes, segment_bytes, &format!("{context}, four threads"));
    }
}

#[test]
fn what_is_called_available_can_be_written_in_pieces() {
    for seed in 0..sets() {
        for piece_bytes in [4 << 10, 20_000, 48 << 10, 1 << 20] {
            compare_pieces(seed, piece_bytes);
        }
    }
}
