//! Cases 8 and 9: what programs notice of upkeep. Threads read 4 KiB at random places, and one writes small
//! files and syncs each, in the same run beside nothing, beside a rebuild and beside a scrub. And the same
//! reads are counted with all devices, and with two of them lost.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use warpfire::{Pool, Timestamp, Warpfire};

use super::bench_pool::{FILE_MIB, MIB, Outcome, images, make, now_nanos, remove, seconds_since, show, wait};

const DEVICES: u64 = 8;
const READERS: u64 = 2;
const BLOCK: u64 = 4096;

/// Runs of case 8.
const RUNS: usize = 5;

/// Seconds of a measurement beside nothing.
const SECONDS_ALONE: f64 = 5.0;

/// Times of calls, in nanoseconds.
#[derive(Default)]
struct Latencies(Vec<u64>);

impl Latencies {
    /// Microseconds within which this part of the calls has ended, in hundredths.
    fn percentile(&self, hundredths: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * hundredths / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(f64::NAN, |nanos| *nanos as f64 / 1e3)
    }
}

/// The reads and the durable writes of a measurement.
struct Beside {
    reads: Latencies,
    writes: Latencies,
    seconds: f64,
}

fn timed(latencies: &mut Latencies, act: impl FnOnce() -> warpfire::Result<()>) -> warpfire::Result<()> {
    let began = now_nanos();
    act()?;
    latencies.0.push(now_nanos() - began);
    Ok(())
}

/// Reads a block at random places of the files, until the work has ended.
fn read(fs: &Warpfire, files: u64, seed: u64, ended: &AtomicBool) -> warpfire::Result<Latencies> {
    let opened = (0..files).map(|file| fs.open(format!("/{file}"))).collect::<warpfire::Result<Vec<_>>>()?;
    let (mut latencies, mut state, mut buf) = (Latencies::default(), seed, vec![0; BLOCK as usize]);
    while !ended.load(Ordering::Relaxed) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = (state >> 20) % (FILE_MIB * MIB / BLOCK);
        let file = &opened[usize::try_from((state >> 40) % files).unwrap_or(0)];
        timed(&mut latencies, || file.read_exact_at(&mut buf, block * BLOCK))?;
    }
    Ok(latencies)
}

/// Writes small files and makes each durable, until the work has ended.
fn write(fs: &Warpfire, ended: &AtomicBool) -> warpfire::Result<Latencies> {
    let mut latencies = Latencies::default();
    let block = vec![7; BLOCK as usize];
    for number in 0u64.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        timed(&mut latencies, || {
            fs.write(format!("/small{}", number % 100), &block).and_then(|()| fs.sync())
        })?;
    }
    Ok(latencies)
}

/// Runs readers and a writer beside `work`.
fn beside(fs: &Warpfire, files: u64, work: impl FnOnce() -> Outcome<()>) -> Outcome<Beside> {
    let (ended, reads) = (AtomicBool::new(false), Mutex::new(Latencies::default()));
    let began = now_nanos();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|seed| {
                let (ended, reads) = (&ended, &reads);
                scope.spawn(move || -> warpfire::Result<()> {
                    let mine = read(fs, files, seed + 1, ended)?;
                    reads.lock().expect("no reader panics").0.extend(mine.0);
                    Ok(())
                })
            })
            .collect();
        let writer = scope.spawn(|| write(fs, &ended));
        let worked = work();
        let seconds = seconds_since(began);
        ended.store(true, Ordering::Relaxed);
        worked?;
        for reader in readers {
            reader.join().expect("a reader does not panic")?;
        }
        let writes = writer.join().expect("the writer does not panic")?;
        let reads = std::mem::take(&mut *reads.lock().expect("no reader panics"));
        Ok(Beside { reads, writes, seconds })
    })
}

fn idle(seconds: f64) -> Outcome<()> {
    let began = now_nanos();
    // The end of another thread may wake this one early.
    while seconds_since(began) < seconds {
        std::thread::park_timeout(Duration::from_secs_f64(seconds));
    }
    Ok(())
}

/// Scrubs everything once, as the scrub by schedule of a mount does.
fn scrub() -> impl FnOnce(&Warpfire) -> Outcome<()> {
    |fs| {
        let goes_on = |wait| {
            std::thread::park_timeout(wait);
            true
        };
        let now = Timestamp { seconds: 1, nanos: 0 };
        while !fs.paced_scrub_round_step(now, now_nanos(), &goes_on)?.has_ended {}
        Ok(())
    }
}

/// How much longer the calls of programs took beside something, as parts of the times beside nothing.
struct Slowdown {
    text: String,
    p50: f64,
    p99: f64,
}

fn compare(name: &str, alone: &Beside, with: &Beside, slowdowns: &mut Vec<Slowdown>) {
    for (kind, alone, with) in
        [("4 KiB reads", &alone.reads, &with.reads), ("durable writes", &alone.writes, &with.writes)]
    {
        let (p50, p99) = (with.percentile(50), with.percentile(99));
        let slowdown = Slowdown {
            text: format!("{kind} beside {name}"),
            p50: p50 / alone.percentile(50),
            p99: p99 / alone.percentile(99),
        };
        println!(
            "8         {}: p50 {p50:.0} µs ({:.2} times), p99 {p99:.0} µs ({:.2} times), {} calls",
            slowdown.text,
            slowdown.p50,
            slowdown.p99,
            with.0.len(),
        );
        slowdowns.push(slowdown);
    }
}

/// Case 8: programs beside a rebuild, and beside a scrub, in several runs.
pub fn programs(directory: &Path, mib: u64) -> Outcome<()> {
    let runs = (0..RUNS).map(|_| programs_once(directory, mib)).collect::<Outcome<Vec<_>>>()?;
    for (n, Slowdown { text, .. }) in runs[0].iter().enumerate() {
        let median_of = |part: fn(&Slowdown) -> f64| median(runs.iter().map(|run| part(&run[n])).collect());
        let (p50, p99) = (median_of(|run| run.p50), median_of(|run| run.p99));
        let text =
            format!("{text}: p50 {p50:.2} times, p99 {p99:.2} times, medians of {RUNS} runs (bound: 2)");
        show(8, p99 <= 2.0, &text);
    }
    Ok(())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn programs_once(directory: &Path, mib: u64) -> Outcome<Vec<Slowdown>> {
    let images = images(directory, DEVICES);
    let files = mib.div_ceil(FILE_MIB);
    let options =
        Pool::options().data(4).parity(2).size_bytes((mib * MIB).max(256 * MIB)).zone_bytes(4 * MIB);
    make(&options, &images, files)?;
    let fs = Pool::options().spare_after(Duration::ZERO).open(&images)?;
    let alone = beside(&fs, files, || idle(SECONDS_ALONE))?;
    for (kind, latencies) in [("4 KiB reads", &alone.reads), ("durable writes", &alone.writes)] {
        let (p50, p99) = (latencies.percentile(50), latencies.percentile(99));
        println!("8         {kind} alone: p50 {p50:.0} µs, p99 {p99:.0} µs, {} calls", latencies.0.len());
    }
    let scrubbed = beside(&fs, files, || scrub()(&fs))?;
    let mut slowdowns = Vec::new();
    compare("a scrub", &alone, &scrubbed, &mut slowdowns);
    let read = (mib as f64) * 1.5 / scrubbed.seconds;
    println!("8         the scrub read {read:.0} MiB/s beside them");
    let started = now_nanos();
    scrub()(&fs)?;
    println!("8         and {:.0} MiB/s beside nothing", mib as f64 * 1.5 / seconds_since(started));

    // The same programs with a device away, for the part of the slowdown that is not the rebuild's.
    let mut wishes = fs.upkeep_wishes();
    wishes.is_paused = true;
    fs.set_upkeep_wishes(&wishes)?;
    fs.take_offline(0)?;
    wait("the device is given up", || !fs.upkeep().at_risk.is_empty())?;
    let degraded = beside(&fs, files, || idle(SECONDS_ALONE))?;
    compare("nothing, one device away", &alone, &degraded, &mut slowdowns);
    let due: u64 = fs.upkeep().at_risk.iter().map(|risk| risk.bytes).sum();
    wishes.is_paused = false;
    fs.set_upkeep_wishes(&wishes)?;
    let rebuilt =
        beside(&fs, files, || wait("everything is rebuilt", || fs.upkeep().at_risk.is_empty()).map(drop))?;
    compare("a rebuild", &alone, &rebuilt, &mut slowdowns);
    let rate = due as f64 / MIB as f64 / rebuilt.seconds;
    println!(
        "8         {} MiB of columns were rebuilt in {:.1} s: {rate:.0} MiB/s",
        due / MIB,
        rebuilt.seconds
    );
    fs.close()?;
    remove(&images);
    Ok(slowdowns)
}

/// Case 9: random reads of 4 KiB with all devices, and with two lost.
pub fn degraded(directory: &Path, mib: u64) -> Outcome<()> {
    let images = images(directory, 6);
    let files = mib.div_ceil(FILE_MIB);
    make(&Pool::options().data(4).parity(2).size_bytes((mib * MIB).max(256 * MIB)), &images, files)?;
    let rate = |images: &[std::path::PathBuf]| -> Outcome<f64> {
        let fs = Pool::options().read_only(true).degraded(true).open(images)?;
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(&fs, files, 1, &ended));
            idle(SECONDS_ALONE / 5.0)?;
            ended.store(true, Ordering::Relaxed);
            Ok(reader.join().expect("the reader does not panic")?.0.len() as f64 / SECONDS_ALONE * 5.0)
        })
    };
    // In turns, so that both meet the same machine.
    let (mut whole, mut lost) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        whole.push(rate(&images)?);
        lost.push(rate(&images[2..])?);
    }
    let (whole, lost) = (median(whole), median(lost));
    let text = format!(
        "{whole:.0} reads of 4 KiB a second with all devices, {lost:.0} with two of six lost: {:.2} of it (bound: 0.6)",
        lost / whole
    );
    show(9, lost >= 0.6 * whole, &text);
    remove(&images);
    Ok(())
}
