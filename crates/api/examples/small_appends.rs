//! Very many small appends to one file: `small_appends IMAGE COUNT BYTES`.
//!
//! IMAGE is overwritten. The program prints how many appends one thread makes per second, with and without
//! the final sync, and the metadata that the file takes after compaction.

use std::error::Error;

use warpfire::{OpenOptions, Pool};
use warpfire_env::{Clock, SystemClock};

/// Space per byte that is appended: for the data, and for the log until it is cleaned.
const ROOM: u64 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, count, len] = words.as_slice() else {
        return Err("usage: small_appends IMAGE COUNT BYTES".into());
    };
    let (count, len): (u64, usize) = (count.parse()?, len.parse()?);
    let bytes = count * len as u64;
    // An old image would keep its size.
    if std::path::Path::new(image).is_file() {
        std::fs::remove_file(image)?;
    }
    let fs = Pool::options().size_bytes(ROOM * bytes + (1 << 30)).force(true).create([image])?;
    let log = OpenOptions::new().read(true).append(true).create(true).open(&fs, "/log")?;
    let mut record = vec![0x2e; len];
    let width = len.min(size_of::<u64>());
    let start = SystemClock.monotonic_nanos();
    for number in 0..count {
        record[..width].copy_from_slice(&number.to_le_bytes()[..width]);
        log.append(&record)?;
    }
    let appended = seconds_since(start);
    fs.sync()?;
    let synced = seconds_since(start);
    println!("{:.0} appends a second, {:.0} with the sync", count as f64 / appended, count as f64 / synced);
    fs.filesystem().engine().compact()?;
    let live_bytes = fs.stats().space.live_bytes;
    let kept = live_bytes.saturating_sub(bytes) as f64 / count as f64;
    println!(
        "{live_bytes} live bytes for {bytes} bytes of data: {kept:.2} bytes of metadata for each append"
    );
    let mut last = vec![0; len];
    log.read_exact_at(&mut last, bytes - len as u64)?;
    if last != record {
        return Err("the last append reads differently".into());
    }
    Ok(())
}

fn seconds_since(start: u64) -> f64 {
    (SystemClock.monotonic_nanos() - start) as f64 / 1e9
}
