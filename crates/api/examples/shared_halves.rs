//! A file and its copy by pointers lose the same half: what comes back, and what that costs.
//!
//! `cargo run --release -p warpfire --example shared_halves -- IMAGE [MIB]` makes a pool in IMAGE, which it
//! overwrites, writes a file of MIB (4,096 by default), copies it by pointers, and overwrites every second
//! 64 KiB of both. Half of the file's first bytes has no name then. The program prints the space before and
//! after, and the bytes that the device read and wrote for it.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use warpfire::{OpenOptions, Pool, Warpfire};
use warpfire_env::{Clock, SystemClock};

const MIB: u64 = 1 << 20;
const PART_BYTES: u64 = 64 << 10;

/// Bytes that do not repeat.
fn content(seed: u64, bytes: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| next()).collect()
}

fn report(fs: &Warpfire, moment: &str) {
    let (space, counters) = (fs.stats().space, fs.stats().counters());
    println!(
        "{moment:44} {:6} MiB live, {:6} garbage, {:6} free, {:6} shared; device: {:6} read, {:6} written",
        space.live_bytes / MIB,
        space.garbage_bytes / MIB,
        space.free_bytes / MIB,
        space.shared_bytes / MIB,
        counters.read_bytes / MIB,
        counters.written_bytes / MIB,
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (image, mib) = match words.as_slice() {
        [image] => (image, 4096),
        [image, mib] => (image, mib.parse()?),
        _ => return Err("usage: shared_halves IMAGE [MIB]".into()),
    };
    let bytes = mib * MIB;
    // An old image would keep its size.
    if Path::new(image).is_file() {
        std::fs::remove_file(image)?;
    }
    let fs = Pool::options().size_bytes(4 * bytes + (1 << 30)).force(true).create([image])?;
    let open = |path: &str| OpenOptions::new().read(true).write(true).create(true).open(&fs, path);
    let (a, b) = (open("/a")?, open("/b")?);
    for at in (0..bytes).step_by(MIB as usize) {
        a.write_all_at(&content(at + 1, MIB), at)?;
    }
    let mut copied = 0;
    while copied < bytes {
        copied += b.copy_range_from(&a, copied, bytes - copied, copied)?;
    }
    fs.sync()?;
    report(&fs, "a file and its copy");
    for (number, file) in (1u64..).zip([&a, &b]) {
        for at in (0..bytes).step_by(2 * PART_BYTES as usize) {
            file.write_all_at(&content(number << 50 | at, PART_BYTES), at)?;
        }
    }
    fs.filesystem().engine().flush()?;
    fs.sync()?;
    report(&fs, "the same half of both is overwritten");
    let start_nanos = SystemClock.monotonic_nanos();
    fs.filesystem().engine().reclaim_all()?;
    fs.sync()?;
    report(&fs, "census and cleaning");
    println!("took {:.2} s", (SystemClock.monotonic_nanos() - start_nanos) as f64 / 1e9);
    fs.trim(|_| ControlFlow::Continue(()))?;
    let mut found = vec![0; PART_BYTES as usize];
    for (number, file) in (1u64..).zip([&a, &b]) {
        for at in (0..bytes).step_by(PART_BYTES as usize) {
            file.read_exact_at(&mut found, at)?;
            let within = (at % MIB) as usize;
            let wanted = match at % (2 * PART_BYTES) {
                0 => content(number << 50 | at, PART_BYTES),
                _ => content(at - at % MIB + 1, MIB).split_off(within)[..PART_BYTES as usize].to_vec(),
            };
            if found != wanted {
                return Err(format!("file {number} reads differently at {at}").into());
            }
        }
    }
    println!("both files read as written");
    Ok(())
}
