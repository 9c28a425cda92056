//! One large transaction.
//! - `large IMAGE files COUNT` makes files of 100 bytes.
//! - `large IMAGE opened COUNT` makes them as programs do: by a path, a handle and a write.
//! - `large IMAGE bytes COUNT` writes one file in pieces of 1 MiB.
//!
//! IMAGE must not exist. The program prints the time of the calls and of the durable commit, the bytes
//! written to the device, and the peak memory of the process. Then it reopens the pool and reads the
//! committed data.

use std::error::Error;

use warpfire::{Pool, Tx, Warpfire};
use warpfire_env::{Clock, SystemClock};

type ExampleResult<T = ()> = Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: large IMAGE files|opened|bytes COUNT";
const FILE_BYTES: u64 = 100;
const FILES_PER_DIRECTORY: u64 = 10_000;
const PIECE_BYTES: u64 = 1 << 20;
/// Space per byte that is committed: for the data, and for the log until it is cleaned.
const ROOM: u64 = 2;
const ROOM_PER_FILE: u64 = 1024;

fn main() -> ExampleResult {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, what, count] = words.as_slice() else { return Err(USAGE.into()) };
    let count: u64 = count.parse()?;
    let (bytes, files) = match what.as_str() {
        "files" | "opened" => (count * ROOM_PER_FILE, true),
        "bytes" => (count, false),
        _ => return Err(USAGE.into()),
    };
    let pool = Pool::options().size_bytes(ROOM * bytes + (1 << 30)).create([image])?;
    let start = SystemClock.monotonic_nanos();
    let tx = pool.begin()?;
    match what.as_str() {
        "files" => make(&tx, count)?,
        "opened" => make_opened(&tx, count)?,
        _ => write(&tx, count)?,
    }
    let called = seconds_since(start);
    println!("{called:8.2} s  calls; peak memory {} MiB", most_memory_mib()?);
    if pool.exists("/0") {
        return Err("a change of the transaction is visible before its commit".into());
    }
    tx.commit_durable()?;
    println!("{:8.2} s  commit; peak memory {} MiB", seconds_since(start) - called, most_memory_mib()?);
    println!("{:8.2} GB to the device", pool.stats().counters().written_bytes as f64 / 1e9);
    pool.close()?;
    let start = SystemClock.monotonic_nanos();
    let pool = Pool::options().open([image])?;
    if files {
        check_files(&pool, count)?
    } else {
        check_bytes(&pool, count)?
    }
    println!("{:8.2} s  reopened and read; peak memory {} MiB", seconds_since(start), most_memory_mib()?);
    Ok(())
}

fn content(number: u64) -> [u8; FILE_BYTES as usize] {
    let mut bytes = [0x2e; FILE_BYTES as usize];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn make(tx: &Tx, count: u64) -> ExampleResult {
    for directory in 0..count.div_ceil(FILES_PER_DIRECTORY) {
        tx.create_dir(directory.to_string())?;
        let dir = tx.dir(directory.to_string())?;
        for number in directory * FILES_PER_DIRECTORY..count.min((directory + 1) * FILES_PER_DIRECTORY) {
            dir.write(number.to_string(), content(number))?;
        }
    }
    Ok(())
}

fn make_opened(tx: &Tx, count: u64) -> ExampleResult {
    for directory in 0..count.div_ceil(FILES_PER_DIRECTORY) {
        tx.create_dir(directory.to_string())?;
    }
    for number in 0..count {
        let file = tx.create(format!("{}/{number}", number / FILES_PER_DIRECTORY))?;
        file.write_all_at(&content(number), 0)?;
    }
    Ok(())
}

fn check_files(pool: &Warpfire, count: u64) -> ExampleResult {
    for number in 0..count {
        if pool.read(format!("{}/{number}", number / FILES_PER_DIRECTORY))? != content(number) {
            return Err(format!("file {number} differs from the committed one").into());
        }
    }
    Ok(())
}

fn piece(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat((PIECE_BYTES / 8) as usize)
}

fn write(tx: &Tx, count: u64) -> ExampleResult {
    let file = tx.create("/0")?;
    for number in 0..count / PIECE_BYTES {
        file.write_all_at(&piece(number), number * PIECE_BYTES)?;
    }
    Ok(())
}

fn check_bytes(pool: &Warpfire, count: u64) -> ExampleResult {
    let file = pool.open("/0")?;
    let mut bytes = vec![0; PIECE_BYTES as usize];
    for number in 0..count / PIECE_BYTES {
        file.read_exact_at(&mut bytes, number * PIECE_BYTES)?;
        if bytes != piece(number) {
            return Err(format!("piece {number} differs from the committed one").into());
        }
    }
    Ok(())
}

fn most_memory_mib() -> ExampleResult<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024)
}

fn seconds_since(start: u64) -> f64 {
    (SystemClock.monotonic_nanos() - start) as f64 / 1e9
}
