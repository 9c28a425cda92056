//! Recovery reads a bounded number of bytes, however many were written before the crash.

mod rig;

use rig::content;
use warpfire_env::Timestamp;
use warpfire_log::{Log, LogStore, Stream};
use warpfire_pool::{CreateOptions, Pool};
use warpfire_sim_env::{DeviceSpec, SimWorld};
use warpfire_units::SlicePtr;

const GROUP_BYTES: u64 = 2 << 20;
const PIECE_BYTES: usize = 100_000;

/// Payload bytes that may wait in the write queue when a group becomes due. The group lists them too.
const QUEUE_BYTES_MAX: u64 = 8 << 20;
/// Payload bytes of the longest stripe. The group also lists the stripe that was filling.
const STRIPE_BYTES_MAX: u64 = 4 << 20;
/// Bytes of the roots and of the log that an open reads beside the stripes.
const ROOTS_BYTES_MAX: u64 = 4 << 20;

/// Writes some MiB and then one sync, without any before it. Returns the bytes that an open reads.
fn read_by_an_open(mib: u64, group_bytes: u64) -> u64 {
    let world = SimWorld::of(1, 3, &DeviceSpec::conventional("flash", 64 << 20));
    let options = CreateOptions { data: 2, parity: 1, zone_bytes: Some(1 << 20), force: false };
    let pool = Pool::create(world.devices(), &options, &*world.random(), Timestamp::default())
        .expect("it succeeds in this test");
    let log = Log::create(pool)
        .expect("it succeeds in this test")
        .0
        .with_group_bytes(group_bytes)
        .with_writer_thread();
    let pieces = (mib << 20) / PIECE_BYTES as u64;
    let slices: Vec<(u64, SlicePtr)> = (0..pieces)
        .flat_map(|n| {
            let slices =
                log.append(Stream::Large, &content(n, PIECE_BYTES)).expect("it succeeds in this test");
            slices.into_iter().map(move |slice| (n, slice))
        })
        .collect();
    log.log(b"all of it").expect("it succeeds in this test");
    log.sync().expect("it succeeds in this test");
    drop(log);
    let read = || world.sims().iter().map(|d| d.counters().read_bytes).sum::<u64>();
    let before = read();
    let (log, recovered) = rig::open(&world).expect("it succeeds in this test");
    let read = read() - before;
    assert_eq!(recovered.records.count(), 1);
    for (n, slice) in slices {
        let mut bytes = vec![0; slice.len_bytes as usize];
        log.read(slice, &mut bytes).expect("it succeeds in this test");
        assert!(slice.len_bytes as usize != PIECE_BYTES || bytes == content(n, PIECE_BYTES), "piece {n}");
    }
    read
}

#[test]
fn an_open_reads_no_more_after_many_bytes_than_after_few() {
    let (few, many) = (read_by_an_open(8, GROUP_BYTES), read_by_an_open(64, GROUP_BYTES));
    println!("{few} bytes read after 8 MiB, {many} after 64 MiB");
    // Payload and parity, with two columns of data and one of parity.
    let most = (GROUP_BYTES + QUEUE_BYTES_MAX + STRIPE_BYTES_MAX) * 3 / 2 + ROOTS_BYTES_MAX;
    assert!(few <= most && many <= most, "{few} and {many} bytes read; at most {most}");
    let without = read_by_an_open(64, u64::MAX);
    assert!(without > 64 << 20, "{without} bytes: without a limit, recovery verifies everything");
}
