//! Fills a pool with very many small files and waits to be killed: `fill IMAGE FILES ORDER`.
//!
//! ORDER is the order of the names: `sorted`, or `random`, which scatters them as hashes would.
//!
//! One sync covers all files but the last thousand. Those are synced one by one, so that recovery has a
//! commit log to replay. Then ten thousand more are made without a sync. `scripts/scale` kills the program
//! there and times how long the pool takes to open.

use std::error::Error;

use warpfire::Pool;

const SYNCED_ALONE: u64 = 1000;
const UNSYNCED: u64 = 10_000;
/// Multiplying by an odd number permutes the numbers, so each file gets a name of its own anywhere among the
/// others.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, files, order] = words.as_slice() else { return Err("usage: fill IMAGE FILES ORDER".into()) };
    let files: u64 = files.parse()?;
    let spread = match order.as_str() {
        "sorted" => 1,
        "random" => ODD,
        _ => return Err(format!("'{order}' is not an order: write sorted or random").into()),
    };
    let fs = Pool::options().open([image])?;
    fs.create_dir_all("/files")?;
    let directory = fs.dir("/files")?;
    let make = |number: u64| {
        let mut bytes = [0x2e; 100];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        directory.write(format!("{:020}", number.wrapping_mul(spread)), bytes)
    };
    let together = files.saturating_sub(SYNCED_ALONE);
    for number in 0..together {
        make(number)?;
    }
    fs.sync()?;
    for number in together..files {
        make(number)?;
        fs.sync()?;
    }
    println!("synced {files} files");
    for number in files..files + UNSYNCED {
        make(number)?;
    }
    println!("unsynced {UNSYNCED} more");
    loop {
        std::thread::park();
    }
}
