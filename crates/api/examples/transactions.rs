//! The cost of a transaction beside plain calls: `transactions COUNT`, on a pool in memory.
//!
//! Prints microseconds per operation. A file of 100 bytes is made by a plain call, in a transaction of its
//! own, and in one with many others. 64 bytes are written into one file by plain calls and in transactions of
//! their own.

use std::error::Error;

use warpfire::{Pool, Warpfire};
use warpfire_env::{Clock, SystemClock};

type ExampleResult = Result<(), Box<dyn Error>>;

fn main() -> ExampleResult {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [count] = words.as_slice() else { return Err("usage: transactions COUNT".into()) };
    let count: u64 = count.parse()?;
    let fs = Pool::options().size_bytes(4 << 30).in_memory()?;
    for dir in ["/plain", "/each", "/many"] {
        fs.create_dir(dir)?;
    }
    time(&fs, "make, plain", count, |n| Ok(fs.write(format!("/plain/{n}"), [7; 100])?))?;
    time(&fs, "make, a transaction each", count, |n| {
        let tx = fs.begin()?;
        tx.write(format!("/each/{n}"), [7; 100])?;
        Ok(tx.commit()?)
    })?;
    let mut tx = fs.begin()?;
    time(&fs, "make, 10,000 a transaction", count, |n| {
        tx.write(format!("/many/{n}"), [7; 100])?;
        if (n + 1) % 10_000 == 0 || n + 1 == count {
            std::mem::replace(&mut tx, fs.begin()?).commit()?;
        }
        Ok(())
    })?;
    fs.write("/file", [0; 4096])?;
    time(&fs, "open and write 64 bytes, plain", count, |n| {
        Ok(open(&fs)?.write_all_at(&[n as u8; 64], n % 64 * 64)?)
    })?;
    time(&fs, "open and write 64 bytes, a transaction each", count, |n| {
        let tx = fs.begin()?;
        open(&tx)?.write_all_at(&[n as u8; 64], n % 64 * 64)?;
        Ok(tx.commit()?)
    })?;
    println!("{:?}", fs.stats().transactions);
    Ok(())
}

fn open<E: warpfire_meta::Storage>(fs: &Warpfire<E>) -> warpfire::Result<warpfire::File<E>> {
    warpfire::OpenOptions::new().write(true).open(fs, "/file")
}

fn time(fs: &Warpfire, what: &str, count: u64, mut each: impl FnMut(u64) -> ExampleResult) -> ExampleResult {
    let start = SystemClock.monotonic_nanos();
    for n in 0..count {
        each(n)?;
    }
    let micros = (SystemClock.monotonic_nanos() - start) as f64 / 1e3 / count as f64;
    fs.sync()?;
    println!("{micros:8.2} us  {what}");
    Ok(())
}
