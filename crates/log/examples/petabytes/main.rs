//! A pool of 250 devices of 64 TB, full: the time and memory of its opening, the time to find zones for a
//! segment, and the bytes of a checkpoint. And a pool whose segments have many runs of stripes.
//!
//! `cargo run --release -p warpfire-log --example petabytes`
//!
//! The devices' blocks lie in an unlinked file of 1 GiB in `$TMPDIR`. The segment table is fabricated
//! (`fabricate.rs`).

mod fabricate;
mod sparse_device;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fabricate::{Shape, fabricate, live_bytes};
use sparse_device::{Backing, SparseDevice};
use warpfire_env::{Clock, Device, SystemClock, SystemRandom};
use warpfire_log::{Log, LogStore, Stream};
use warpfire_pool::{Pool, SegmentStream};
use warpfire_units::{DeviceIndex, SegmentId};

const GIB: u64 = 1 << 30;

/// 242+8 on 250 devices: a segment is 250 GiB, and the pool 16 PB.
const PETABYTES: Shape =
    Shape { devices: 250, data: 242, parity: 8, zone_bytes: GIB, segments: 65_536, runs: 1 };

/// A sparse pool of 1 TiB: each sync made a short stripe.
const MANY_RUNS: Shape =
    Shape { devices: 1, data: 1, parity: 0, zone_bytes: GIB / 4, segments: 4_000, runs: 1_000 };

/// Peak memory of the process since the last call, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux");
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak of this process can be reset");
    kib / 1024
}

fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let began = SystemClock.monotonic_nanos();
    let done = act();
    (done, Duration::from_nanos(SystemClock.monotonic_nanos() - began))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The longest time for which a caller of the segment table waited while another thread did this again and
/// again for a second, and the mean time of once.
fn beside_callers(log: &Log, act: impl Fn() + Sync) -> (Duration, Duration) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !ended.load(Relaxed) {
                // It takes the table's lock, and no device.
                let ((), took) = timed(|| _ = log.readable_bytes(SegmentId::new(7).expect("not zero")));
                longest = longest.max(took);
                std::thread::park_timeout(Duration::from_micros(50));
            }
            longest
        });
        let (mut times, mut all) = (0, Duration::ZERO);
        while all < Duration::from_secs(1) {
            all += timed(&act).1;
            times += 1;
        }
        ended.store(true, Relaxed);
        (caller.join().expect("it does not panic"), all / times)
    })
}

/// The questions of the watch, of the status and of mending, with all devices and with one lost.
fn upkeep(log: &Log) {
    let show = |name: &str, act: &(dyn Fn() + Sync)| {
        let (waited, once) = beside_callers(log, act);
        println!("  {name}: {once:.1?}; a caller of the table waited {waited:.1?} at most");
    };
    let show_all = |what: &str| {
        show(&format!("losses left, {what}"), &|| _ = log.losses_left());
        show(&format!("guarantees, {what}"), &|| _ = log.guarantees());
        show(&format!("due work, {what}"), &|| _ = log.due_work());
        show(&format!("segments on a device, {what}"), &|| _ = log.segments_on(DeviceIndex(1)));
        show(&format!("weak segments, {what}"), &|| _ = log.weak_segments());
    };
    show_all("all devices there");
    let devices = log.pool().status().devices.len();
    if devices > 1 {
        log.pool().take_offline(DeviceIndex(1)).expect("parity covers it");
        log.vacate([DeviceIndex(1)].into());
        show_all("one lost");
    }
}

fn measure(name: &str, shape: Shape) {
    let backing = Backing::new().expect("$TMPDIR takes a file");
    let size_bytes = shape.zones(64) * shape.zone_bytes;
    let devices: Vec<Arc<SparseDevice>> = (0..usize::from(shape.devices))
        .map(|number| Arc::new(SparseDevice::new(number, size_bytes, &backing)))
        .collect();
    let as_devices = || devices.iter().map(|d| Arc::clone(d) as Arc<dyn Device>).collect::<Vec<_>>();
    let written = || -> Vec<u64> { devices.iter().map(|d| d.written_bytes.load(Relaxed)).collect() };
    let table_bytes = fabricate(as_devices(), shape);
    println!("{name}: {} segments, a table of {} MB", shape.segments, table_bytes / 1_000_000);

    let before = peak_mib();
    let reads = || devices.iter().map(|d| d.reads.load(Relaxed)).sum::<u64>();
    let (reads_before, written_before) = (reads(), written());
    let (log, took) = timed(|| {
        let (pool, root) = Pool::open(as_devices(), &SystemRandom).expect("the pool is there");
        Log::open(pool, &root).expect("the log is there").0
    });
    println!(
        "  open: {took:.2?}, peak memory {} MiB (before {before} MiB), {} reads, {} KB written",
        peak_mib(),
        reads() - reads_before,
        written().iter().zip(&written_before).map(|(after, before)| after - before).sum::<u64>() / 1000,
    );
    let ((), took) = timed(|| log.set_live(&live_bytes(shape).collect()));
    println!("  count of references: {took:.2?}");

    let pool = log.pool();
    let id = |n: u64| SegmentId::new(1_000_000 + n).expect("not zero");
    let allocations = (0..20).map(|n| timed(|| pool.allocate(id(n), SegmentStream::Large).map(drop)).1);
    println!("  allocation of a segment: {:.1?} (median of 20)", median(allocations.collect()));
    (0..20).for_each(|n| pool.free(id(n)).expect("it was just made"));
    let spaces = (0..100).map(|_| timed(|| log.space()).1);
    println!("  count of space: {:.1?}", median(spaces.collect()));
    let victims = (0..100).map(|_| timed(|| assert_eq!(log.victims(4).len(), 4)).1);
    println!("  choice of four victims: {:.1?}", median(victims.collect()));

    // Each stream begins a segment of its own.
    for (round, stream) in (0u8..).zip([Stream::Large, Stream::Small, Stream::Table, Stream::Cold]) {
        log.append(stream, &[round; 100_000]).expect("there is room");
        log.sync().expect("no device fails");
        let before = written();
        let (done, took) = timed(|| log.checkpoint(&[round; 100], log.position()));
        done.expect("no device fails");
        let copies = written().into_iter().zip(before).map(|(after, before)| after - before);
        let copies: Vec<u64> = copies.filter(|bytes| *bytes > 0).collect();
        println!(
            "  checkpoint after a new segment: {took:.2?}, at most {} KiB on each of {} devices; the table has {} KiB",
            copies.iter().max().copied().unwrap_or_default() / 1024,
            copies.len(),
            table_bytes / 1024,
        );
    }
    upkeep(&log);
}

fn main() {
    measure("16 PB on 250 devices, 242+8", PETABYTES);
    measure("1 TiB, 1,000 runs in each segment", MANY_RUNS);
}
