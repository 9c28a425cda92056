//! A clone of a large directory: what making it costs, what the first writes in it and a listing of it cost
//! beside the origin's, and what deleting a volume as large costs.
//!
//! `cargo run --release -p warpfire --example clones -- IMAGE [COUNT]` makes a pool in IMAGE, which it
//! overwrites, and a directory of COUNT files of 1,000 bytes (1,000,000 by default). It prints the time of
//! each step, and the reads, writes and bytes of the device. It ends with an error where the clone, the
//! origin or the space is not as it must be.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use warpfire::{DeviceCounters, Dir, OpenOptions, Pool, Warpfire};
use warpfire_env::{Clock, SystemClock};

/// Files of one directory.
const FILES: u64 = 1000;
const FILE_BYTES: u64 = 1000;
/// Files that are written for the first time.
const FIRST_WRITES: u64 = 1000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn content(number: u64) -> Vec<u8> {
    let mut state = number * 2 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..FILE_BYTES / 8).flat_map(|_| next()).collect()
}

fn path(top: &str, number: u64) -> String {
    format!("{top}/{}/{number}", number / FILES)
}

/// Does some work and prints what it cost. Returns its result and its seconds.
fn step<T>(fs: &Warpfire, what: &str, work: impl FnOnce() -> Outcome<T>) -> Outcome<(T, f64)> {
    let before: DeviceCounters = fs.stats().counters();
    let start_nanos = SystemClock.monotonic_nanos();
    let done = work()?;
    let seconds = (SystemClock.monotonic_nanos() - start_nanos) as f64 / 1e9;
    let after = fs.stats().counters();
    println!(
        "{what:52} {:12.3} ms; {:7} reads, {:9} KiB; {:6} writes, {:9} KiB",
        seconds * 1e3,
        after.reads - before.reads,
        (after.read_bytes - before.read_bytes) >> 10,
        after.writes - before.writes,
        (after.written_bytes - before.written_bytes) >> 10,
    );
    Ok((done, seconds))
}

/// Makes the files below a directory, durably and in tables.
fn fill(fs: &Warpfire, top: &str, count: u64) -> Outcome<()> {
    for number in 0..count {
        if number.is_multiple_of(FILES) {
            fs.create_dir(format!("{top}/{}", number / FILES))?;
        }
        fs.write(path(top, number), content(number))?;
    }
    fs.filesystem().engine().flush()?;
    Ok(fs.sync()?)
}

/// The files below a directory with their attributes, as `ls -lR` asks for them: their number and bytes.
fn list(dir: &Dir) -> Outcome<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in dir.read_dir()? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            let (more_files, more_bytes) = list(&entry.open_dir()?)?;
            (files, bytes) = (files + more_files, bytes + more_bytes);
        } else {
            (files, bytes) = (files + 1, bytes + metadata.len());
        }
    }
    Ok((files, bytes))
}

/// Opens the pool again, so that nothing of it is in memory.
fn reopen(fs: Warpfire, image: &Path) -> Outcome<Warpfire> {
    fs.close()?;
    Ok(Pool::options().open([image])?)
}

/// Overwrites the head of some files, spread over the directory, and makes that durable. With `odd` these are
/// others than without.
fn overwrite(fs: &Warpfire, top: &str, count: u64, odd: bool) -> Outcome<()> {
    let writes = FIRST_WRITES.min(count / 2);
    for number in 0..writes {
        let at = number * (count / 2 / writes) * 2 + u64::from(odd);
        let file = OpenOptions::new().write(true).open(fs, path(top, at))?;
        file.write_all_at(b"changed", 0)?;
    }
    Ok(fs.sync()?)
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, wanted: T, what: &str) -> Outcome<()> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?}, not {wanted:?}").into()) }
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (image, count): (&Path, u64) = match words.as_slice() {
        [image] => (Path::new(image), 1_000_000),
        [image, count] => (Path::new(image), count.parse()?),
        _ => return Err("usage: clones IMAGE [COUNT]".into()),
    };
    // An old image would keep its size.
    if image.is_file() {
        std::fs::remove_file(image)?;
    }
    let fs = Pool::options().size_bytes((1 << 30) + count * FILE_BYTES * 8).force(true).create([image])?;
    fs.create_dir("/work")?;
    step(&fs, &format!("a directory of {count} files"), || fill(&fs, "/work", count))?;

    step(&fs, "its clone", || Ok(fs.clone_directory("/work", "/try")?))?;
    step(&fs, "a sync after it", || Ok(fs.sync()?))?;
    let fs = reopen(fs, image)?;
    let ((), plain) =
        step(&fs, "first writes to files of the origin", || overwrite(&fs, "/work", count, false))?;
    let fs = reopen(fs, image)?;
    let ((), first) =
        step(&fs, "first writes to as many files of the clone", || overwrite(&fs, "/try", count, true))?;
    println!("    {:.2} times the plain ones", first / plain);
    let fs = reopen(fs, image)?;
    let (there, plain) = step(&fs, "a list of the origin with attributes", || list(&fs.dir("/work")?))?;
    let fs = reopen(fs, image)?;
    let (shown, read_on) = step(&fs, "a list of the clone with attributes", || list(&fs.dir("/try")?))?;
    println!("    {:.2} times that of the origin", read_on / plain);
    expect(there, (count, count * FILE_BYTES), "the origin")?;
    expect(shown, there, "the clone")?;
    let head = |top: &str, number: u64| Ok::<_, Box<dyn Error>>(fs.read(path(top, number))?[..7].to_vec());
    expect(head("/try", 1)?, b"changed".to_vec(), "a file of the clone")?;
    expect(head("/work", 1)?, content(1)[..7].to_vec(), "the same file of the origin")?;
    expect(head("/try", 0)?, content(0)[..7].to_vec(), "another file of the clone")?;
    step(&fs, "deleting the clone", || Ok(fs.delete_volume("/try")?))?;

    fs.create_volume("/volume")?;
    let before = fs.stats().space;
    step(&fs, &format!("a volume of {count} files"), || fill(&fs, "/volume", count))?;
    let full = (fs.space()?, fs.stats().space);
    step(&fs, "deleting the volume", || Ok(fs.delete_volume("/volume")?))?;
    let told = fs.space()?;
    // The threads of the pool drop the tables of the volume, and nobody asks for room.
    let dropped_bytes = before.live_bytes + count * FILE_BYTES / 20;
    let ((), seconds) = step(&fs, "its bytes have no names any more", || {
        let start_nanos = SystemClock.monotonic_nanos();
        while fs.stats().space.live_bytes > dropped_bytes {
            if SystemClock.monotonic_nanos() - start_nanos > 600_000_000_000 {
                return Err("bytes of the volume are still live after ten minutes".into());
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok(())
    })?;
    let dropped = fs.stats().space;
    step(&fs, "cleaning all that is worth it", || {
        fs.filesystem().engine().reclaim_all()?;
        Ok(fs.sync()?)
    })?;
    let after = fs.stats().space;
    println!(
        "    {:.0} files a second; {} MiB were live before the volume, {} with it, {} after; {} free then, {} when cleaned; \
         available: {} MiB with it, {} at once after, {} at the end",
        count as f64 / seconds,
        before.live_bytes >> 20,
        full.1.live_bytes >> 20,
        dropped.live_bytes >> 20,
        dropped.free_bytes >> 20,
        after.free_bytes >> 20,
        full.0.available_bytes >> 20,
        told.available_bytes >> 20,
        fs.space()?.available_bytes >> 20,
    );
    expect(list(&fs.dir("/work")?)?, (count, count * FILE_BYTES), "the origin at the end")?;
    Ok(fs.close()?)
}
