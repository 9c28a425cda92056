//! Very many snapshots: what making the first and the last ones costs, and what opening the pool costs.
//!
//! `cargo run --release -p warpfire --example many_snapshots -- IMAGE [COUNT]` makes a pool in IMAGE, which
//! it overwrites, and COUNT snapshots (1,000,000 by default) with a change of a file before each. It prints
//! the time and the bytes on the device for a thousand of them at the beginning and at the end, the time of
//! a snapshot with its sync beside that of a synced file, the time and the memory of an opening with no
//! snapshot and with all, and the time of finding, listing and deleting.

use std::error::Error;
use std::fs;
use std::path::Path;

use warpfire::{Pool, Warpfire};
use warpfire_env::{Clock, SystemClock};

/// Snapshots that are measured together.
const GROUP: u64 = 1000;

/// Synced files, and synced snapshots, that are measured in turn.
const SYNCED: u64 = 301;

/// Bytes of the process that are in memory.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    Ok(pages.split(' ').nth(1).ok_or("no number of pages")?.parse::<u64>()? * 4096)
}

/// Microseconds that this thread has run, and those of the whole process. A busy machine does not change
/// them.
fn run_us() -> Result<(f64, f64), Box<dyn Error>> {
    let ran = |path: &Path| -> Result<f64, Box<dyn Error>> {
        let text = fs::read_to_string(path)?;
        Ok(text.split(' ').next().ok_or("no run time")?.parse::<f64>()? / 1e3)
    };
    let mut all = 0.0;
    for thread in fs::read_dir("/proc/self/task")? {
        // A thread that has just ended is not counted.
        all += ran(&thread?.path().join("schedstat")).unwrap_or(0.0);
    }
    Ok((ran(Path::new("/proc/thread-self/schedstat"))?, all))
}

fn timed<T>(work: impl FnOnce() -> Result<T, Box<dyn Error>>) -> Result<(T, f64), Box<dyn Error>> {
    let start = SystemClock.monotonic_nanos();
    let done = work()?;
    Ok((done, (SystemClock.monotonic_nanos() - start) as f64 / 1e9))
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Writes a file and syncs it, and makes a snapshot and syncs that, in turn.
fn synced(fs: &Warpfire) -> Result<(), Box<dyn Error>> {
    let (mut files, mut snapshots) = (Vec::new(), Vec::new());
    for number in 0..SYNCED {
        files.push(timed(|| Ok((fs.write(format!("/synced{number}"), b"0")?, fs.sync()?)))?.1);
        snapshots.push(timed(|| Ok((fs.create_snapshot(format!("synced{number}"))?, fs.sync()?)))?.1);
    }
    for number in 0..SYNCED {
        fs.delete_snapshot(format!("synced{number}"))?;
    }
    let (file, snapshot) = (median(files), median(snapshots));
    println!(
        "a file and its sync: {:.1} us; a snapshot and its sync: {:.1} us, {:.2} times that",
        file * 1e6,
        snapshot * 1e6,
        snapshot / file
    );
    Ok(())
}

fn reopen(fs: Warpfire, image: &Path, what: &str) -> Result<Warpfire, Box<dyn Error>> {
    fs.close()?;
    let before = resident_bytes()?;
    let (own_us, _) = run_us()?;
    let (fs, seconds) = timed(|| Ok(Pool::options().open([image])?))?;
    let counters = fs.stats().counters();
    println!(
        "opening with {what}: {:.1} ms, {:.1} of them running, {} KiB read in {} reads, {} KiB more in memory",
        seconds * 1e3,
        (run_us()?.0 - own_us) / 1e3,
        counters.read_bytes >> 10,
        counters.reads,
        resident_bytes()?.saturating_sub(before) >> 10
    );
    Ok(fs)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (image, count): (&Path, u64) = match words.as_slice() {
        [image] => (Path::new(image), 1_000_000),
        [image, count] => (Path::new(image), count.parse()?),
        _ => return Err("usage: many_snapshots IMAGE [COUNT]".into()),
    };
    // An old image would keep its size.
    if image.is_file() {
        std::fs::remove_file(image)?;
    }
    let fs = Pool::options().size_bytes(2 << 30).force(true).create([image])?;
    fs.write("/file", b"0")?;
    let fs = reopen(fs, image, "no snapshot")?;
    synced(&fs)?;
    for group in 0..count.div_ceil(GROUP) {
        let before = fs.stats().counters();
        let (own_us, all_us) = run_us()?;
        let mut calls = Vec::new();
        let ((), seconds) = timed(|| {
            for number in group * GROUP..count.min((group + 1) * GROUP) {
                fs.write("/file", number.to_string())?;
                calls.push(timed(|| Ok(fs.create_snapshot(format!("s{number}"))?))?.1);
            }
            fs.sync()?;
            Ok(())
        })?;
        if group == 0 || (group + 1) * GROUP >= count || (group + 1).is_multiple_of(100) {
            let after = fs.stats().counters();
            let (own_us_after, all_us_after) = run_us()?;
            println!(
                "{:8} snapshots: {:6.1} us the median call; with the change {:6.1} us on average, {:6.1} us of \
                 them running, {:6.1} us in all threads; {:6} KiB written, {:6} KiB read",
                count.min((group + 1) * GROUP),
                median(calls) * 1e6,
                seconds * 1e6 / GROUP as f64,
                (own_us_after - own_us) / GROUP as f64,
                (all_us_after - all_us) / GROUP as f64,
                (after.written_bytes - before.written_bytes) >> 10,
                (after.read_bytes - before.read_bytes) >> 10,
            );
        }
    }
    let fs = reopen(fs, image, &format!("{count} snapshots"))?;
    let name = format!("s{}", count / 2);
    let (then, seconds) = timed(|| Ok(fs.open_snapshot(&name)?.read("/file")?))?;
    assert_eq!(then, (count / 2).to_string().into_bytes(), "the snapshot shows its moment");
    println!("a file in one of them: {:.1} us", seconds * 1e6);
    let (found, seconds) = timed(|| Ok(fs.snapshot_at(SystemClock.now())?))?;
    println!("the newest one by its moment, {}: {:.1} us", found.name.display(), seconds * 1e6);
    let (listed, seconds) = timed(|| Ok(fs.snapshots()?.len()))?;
    println!("a list of {listed}: {:.1} ms", seconds * 1e3);
    let ((), seconds) = timed(|| Ok(fs.delete_snapshot(&name).map(drop)?))?;
    println!("a deletion: {:.1} us", seconds * 1e6);
    fs.close()?;
    Ok(())
}
