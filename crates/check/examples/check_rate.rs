//! Fills a 4+2 pool on six image files with files of 100 bytes, checks it, and prints rates and peak memory.
//!
//! `cargo run --release -p warpfire-check --example check_rate -- DIRECTORY FILES [random] [keep]`
//!
//! With `random` the names come in random order, so that the tables of all runs overlap. With `keep` the pool
//! stays. The next run then only checks it, and the peak memory is that of the check alone.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use warpfire_check::{CheckOptions, CheckReport, check};
use warpfire_env::{Clock, Device, FileDevice, SystemClock, SystemRandom};
use warpfire_fs::acl::Caller;
use warpfire_fs::{Fs, FsOptions, FsSchema, NewMode};
use warpfire_log::Log;
use warpfire_meta::{Engine, EngineOptions};
use warpfire_pool::{CreateOptions, Pool};

const DEVICES: usize = 6;

/// Flash for each file, with room for garbage that is not cleaned yet.
const BYTES_PER_FILE: u64 = 2048;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("which directory?")?;
    let files: u64 = arguments.next().ok_or("how many files?")?.parse()?;
    let words: Vec<String> = arguments.collect();
    let keep = words.iter().any(|w| w == "keep");
    let random = words.iter().any(|w| w == "random");
    let paths: Vec<_> = (0..DEVICES).map(|n| Path::new(&directory).join(format!("flash{n}"))).collect();
    let exists = paths.iter().all(|p| p.exists());
    // k = 4, so each device takes a quarter; the rest is for roots, the commit log and compaction.
    let size = ((files * BYTES_PER_FILE) / 4).next_multiple_of(64 << 20) + (256 << 20);
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for path in &paths {
        let device = if exists { FileDevice::open(path)? } else { FileDevice::create(path, size)? };
        devices.push(Arc::new(device));
    }
    if !exists {
        fill(devices.clone(), files, random)?;
    }
    let report = check(&devices, &CheckOptions::default())?;
    show(&report);
    if !keep {
        for path in &paths {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn fill(devices: Vec<Arc<dyn Device>>, files: u64, random: bool) -> Result<(), Box<dyn Error>> {
    let clock = Arc::new(SystemClock);
    let options = CreateOptions { data: 4, parity: 2, ..CreateOptions::default() };
    let pool = Pool::create(devices, &options, &SystemRandom, clock.now())?;
    let (log, recovered) = Log::create(pool)?;
    let engine = Arc::new(Engine::open(log, recovered, FsSchema, EngineOptions::default())?);
    Fs::format(&*engine, &*clock, 0, 0)?;
    let fs = Fs::open(engine, clock.clone(), FsOptions::default())?;
    let root = fs.root();
    let began = clock.monotonic_nanos();
    for n in 0..files {
        let number = if random { n.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { n };
        let name = format!("file{number:020}");
        fs.create_file(&Caller::ROOT, &root, name.as_bytes(), NewMode::exact(0o644), &[n as u8; 100])?;
    }
    fs.close()?;
    let nanos = clock.monotonic_nanos() - began;
    println!("filled: {files} files, {} ns each", nanos / files.max(1));
    Ok(())
}

fn show(report: &CheckReport) {
    let t = &report.totals;
    println!("checked: {} files, {} stripes, {} MB read", t.files, t.stripes, t.bytes_read >> 20);
    println!(
        "stripes {} ms, names {} ms, all {} ms",
        t.stripe_nanos / 1_000_000,
        t.name_nanos / 1_000_000,
        t.nanos / 1_000_000
    );
    println!("{} MB/s, {} keys/s, {} passes", t.bytes_per_second() >> 20, t.keys_per_second(), t.passes);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("peak unknown");
    println!("{peak}; facts {} KiB at most", t.ledger_bytes_max >> 10);
    println!("{} errors, {} repairable, {} notes", report.errors, report.repairable, report.notes);
    for finding in report.findings.iter().take(20) {
        println!("{finding}");
    }
}
