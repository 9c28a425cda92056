//! Defragmenting while a file is read: through power cuts, and its costs as the counters show them.

use warpfire::{File, OpenOptions, Pool, PoolOptions, Slice, Warpfire};
use warpfire_check::{CheckOptions, check};
use warpfire_sim_env::{DeviceSpec, SimWorld};

const DEVICE_BYTES: u64 = 64 << 20;
const FILE_BYTES: usize = 3 << 19;
const PIECE_BYTES: usize = 4096;

/// Bytes from one piece to the next. Pieces that lie closer are read together.
const APART_BYTES: usize = 4 * PIECE_BYTES;

fn options() -> PoolOptions {
    Pool::options().zone_bytes(1 << 20).background(false)
}

/// A durable file that consists of pieces of another one, which lie apart, in reverse order. Returns it and
/// its bytes.
fn shredded(pool: &Warpfire) -> (File, Vec<u8>) {
    let open = |name| OpenOptions::new().read(true).write(true).create(true).open(pool, name);
    let (source, target) = (open("/source").expect("there is room"), open("/target").expect("there is room"));
    let source_bytes = FILE_BYTES / PIECE_BYTES * APART_BYTES;
    let bytes: Vec<u8> = (0..source_bytes).map(|i| (i / 251) as u8 ^ (i % 251) as u8).collect();
    source.write_all_at(&bytes, 0).expect("there is room");
    let starts = (0..source_bytes).step_by(APART_BYTES).rev();
    let piece = |at: usize| source.yank(at as u64..(at + PIECE_BYTES) as u64).expect("a range of the file");
    let pieces: Vec<Slice> = starts.clone().map(piece).collect();
    target.replace(&Slice::join(&pieces).expect("they are of one pool")).expect("there is room");
    pool.sync().expect("sound devices do not fail");
    (target, starts.flat_map(|at| bytes[at..at + PIECE_BYTES].to_vec()).collect())
}

#[test]
fn a_file_is_the_same_wherever_the_power_is_cut_while_it_is_defragmented() {
    let mut world = SimWorld::of(1, 1, &DeviceSpec::conventional("flash", DEVICE_BYTES));
    let pool = options().create_on(world.devices()).expect("a blank device makes a pool");
    let (file, bytes) = shredded(&pool);
    world.record();
    assert!(file.read_to_end().expect("sound devices do not fail") == bytes);
    assert_eq!(pool.stats().defragmented.bytes, FILE_BYTES as u64);
    pool.write("/after", b"defragmented").expect("there is room");
    pool.sync().expect("sound devices do not fail");
    let recording = world.take_recording().expect("it records");
    let (mut replay, mut seen) = (recording.replay(), [0, 0]);
    loop {
        if replay.at_boundary() {
            for cut in &replay.cuts(2, replay.point() as u64).collect::<Vec<_>>() {
                let world = replay.cut(cut);
                let after = options().open_on(world.devices()).expect("a power cut leaves the pool");
                let point = replay.point();
                assert!(
                    after.read("/target").expect("the file is there") == bytes,
                    "the file at point {point}"
                );
                seen[usize::from(after.exists("/after"))] += 1;
                after.close().expect("sound devices do not fail");
                let report = check(&world.devices(), &CheckOptions::default()).expect("it can be checked");
                assert!(report.is_clean(), "point {point}: {report:?}");
            }
        }
        if replay.advance().is_none() {
            break;
        }
    }
    assert!(
        seen.iter().all(|count| *count > 0),
        "{seen:?}: some cuts come before the last sync, some after it"
    );
}

#[test]
fn a_defragmented_file_costs_no_more_than_its_bytes_and_no_more_the_second_time() {
    let pool = options().size_bytes(DEVICE_BYTES).in_memory().expect("memory makes a pool");
    let (file, bytes) = shredded(&pool);
    let reads = || pool.stats().counters().reads;
    let read = || {
        let before = (reads(), pool.stats().payload_bytes);
        assert!(file.read_to_end().expect("sound devices do not fail") == bytes);
        pool.sync().expect("sound devices do not fail");
        (reads() - before.0, pool.stats().payload_bytes - before.1)
    };
    let (first, second) = (read(), read());
    assert!(first.1 >= FILE_BYTES as u64 && first.1 < FILE_BYTES as u64 * 11 / 10, "{first:?}");
    assert!(second.1 < 4096 && second.0 * 8 < first.0, "{first:?} {second:?}");
}
