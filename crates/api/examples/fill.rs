//! Fills a pool with very many small files and waits to be killed: `fill IMAGE FILES`.
//!
//! All but the last thousand are synced together, the last thousand one by one, so that a commit log is left to replay; then
//! ten thousand more are made that nobody syncs. `scripts/scale` kills it then, and times how the pool comes back.

use std::error::Error;

use warpfire::Pool;

const SYNCED_ALONE: u64 = 1000;
const UNSYNCED: u64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, files] = words.as_slice() else { return Err("usage: fill IMAGE FILES".into()) };
    let files: u64 = files.parse()?;
    let fs = Pool::options().open([image])?;
    fs.create_dir_all("/files")?;
    let folder = fs.dir("/files")?;
    let make = |number: u64| {
        let mut bytes = [0x2e; 100];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        folder.write(format!("{number:010}"), bytes)
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
