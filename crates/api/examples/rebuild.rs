//! Rebuilds a lost device of a 4+2 pool on eight image files, and compares the bytes that are read and
//! written with the bytes that were lost.
//!
//! `cargo run --release -p warpfire --example rebuild -- DIRECTORY [MIB [PART]]` writes files of MIB together
//! (256 by default), removes all but one in PART of them (1: none), and makes the images in DIRECTORY, which
//! must not hold any. The raw rate is that of a plain read of an image, after its pages were dropped.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use warpfire::{Pool, Warpfire};
use warpfire_env::{Clock, SystemClock};

const DEVICES: u64 = 8;
const DATA: u16 = 4;
const PARITY: u8 = 2;
const MIB: u64 = 1 << 20;
/// MiB of a file.
const FILE_MIB: u64 = 4;

fn seconds_since(start_nanos: u64) -> f64 {
    (SystemClock.monotonic_nanos() - start_nanos) as f64 / 1e9
}

/// Bytes that do not repeat.
fn content(file: u64) -> Vec<u8> {
    let mut state = file + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..FILE_MIB * MIB / 8).flat_map(|_| next()).collect()
}

/// MiB a second at which an image is read from its beginning to its end.
fn raw_rate(image: &Path) -> Result<f64, Box<dyn Error>> {
    let mut file = File::open(image)?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let (start_nanos, mut buf, mut bytes) = (SystemClock.monotonic_nanos(), vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buf)? {
            0 => return Ok(bytes as f64 / MIB as f64 / seconds_since(start_nanos)),
            read => bytes += read,
        }
    }
}

/// Waits until the condition holds. Returns whether it did so in that time.
fn wait(limit: Duration, holds: impl Fn() -> bool) -> bool {
    let start_nanos = SystemClock.monotonic_nanos();
    while !holds() {
        if seconds_since(start_nanos) > limit.as_secs_f64() {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    true
}

fn due_bytes(fs: &Warpfire) -> u64 {
    fs.upkeep().at_risk.iter().map(|risk| risk.bytes).sum()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("name a directory for the images")?);
    let mib: u64 = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let part: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let images: Vec<PathBuf> = (0..DEVICES).map(|n| directory.join(format!("{n}.img"))).collect();
    let device_bytes = (mib * MIB / 2).max(128 * MIB);
    let fs = Pool::options().data(DATA).parity(PARITY).size_bytes(device_bytes).create(&images)?;
    let files = mib.div_ceil(FILE_MIB);
    for file in 0..files {
        fs.write(format!("/{file}"), content(file))?;
    }
    fs.sync()?;
    for file in (0..files).filter(|file| file % part != 0) {
        fs.remove_file(format!("/{file}"))?;
    }
    fs.close()?;
    let raw = raw_rate(&images[1])?;
    std::fs::remove_file(&images[0])?;

    let fs = Pool::options().spare_after(Duration::ZERO).open(&images[1..])?;
    let before = fs.stats();
    if !wait(Duration::from_secs(10), || due_bytes(&fs) > 0) {
        return Err("nothing was lost".into());
    }
    let (due, start_nanos) = (due_bytes(&fs), SystemClock.monotonic_nanos());
    if !wait(Duration::from_mins(10), || due_bytes(&fs) == 0) {
        return Err(format!("the rebuild does not end: {:?}", fs.upkeep()).into());
    }
    let seconds = seconds_since(start_nanos);
    let after = fs.stats();
    let moved = after.devices.iter().zip(&before.devices).filter(|(device, _)| device.name.is_some());
    let moved: Vec<(u64, u64)> = moved
        .map(|(now, then)| {
            let (now, then) = (&now.counters, &then.counters);
            (now.read_bytes - then.read_bytes, now.written_bytes - then.written_bytes)
        })
        .collect();
    let read: u64 = moved.iter().map(|(read, _)| read).sum();
    let written: u64 = moved.iter().map(|(_, written)| written).sum();
    let mean = read as f64 / moved.len() as f64;
    let most = moved.iter().map(|(read, _)| *read).max().unwrap_or(0) as f64;
    let payload = due * u64::from(DATA);
    let in_mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!("lost     {:.1} MiB of columns, of segments with {:.1} MiB", in_mib(due), in_mib(payload));
    println!("read     {:.1} MiB, {:.2} times the segments", in_mib(read), read as f64 / payload as f64);
    println!("written  {:.1} MiB, {:.2} times the columns", in_mib(written), written as f64 / due as f64);
    println!("devices  the one that was read most: {:.2} times the mean", most / mean);
    println!("rate     {:.0} MiB/s read in {seconds:.2} s; raw {raw:.0} MiB/s", in_mib(read) / seconds);
    for file in (0..files).filter(|file| file % part == 0) {
        if fs.read(format!("/{file}"))? != content(file) {
            return Err(format!("file {file} has other bytes").into());
        }
    }
    fs.close()?;
    for image in &images[1..] {
        std::fs::remove_file(image)?;
    }
    Ok(())
}
