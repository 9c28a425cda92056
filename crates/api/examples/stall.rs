//! How long a commit with a conflict makes others wait: `stall GIB ROUNDS`, on a pool in memory.
//!
//! A transaction reads a sparse file of so many GiB, and appends a line to a log to which others append all
//! the time. So every commit finds a change of something that it has read, and replays its calls. At the same
//! time a thread asks for attributes and another one appends. Prints the time of the commits, and the 50th,
//! 99.9th and last percentile of the others' calls during them.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use warpfire::Pool;
use warpfire_env::{Clock, SystemClock};

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// The pause between two appends of others.
const PAUSE: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [gib, rounds] = words[..] else { return Err("usage: stall GIB ROUNDS".into()) };
    let fs = Pool::options().size_bytes(1 << 30).in_memory()?;
    let open = || warpfire::OpenOptions::new().read(true).write(true).create(true).open(&fs, "/big");
    open()?.set_len(gib << 30)?;
    // A file like others: it has some data too.
    for at in 0..gib {
        open()?.write_all_at(b"data", at << 30)?;
    }
    fs.write("/log", b"")?;
    let log = || warpfire::OpenOptions::new().append(true).open(&fs, "/log");
    let (committing, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let measure = |pause: Option<Duration>, call: &dyn Fn() -> warpfire::Result<()>| -> Vec<u64> {
        let mut times = Vec::new();
        while !ended.load(Ordering::Relaxed) {
            let start = SystemClock.monotonic_nanos();
            call().expect("a plain call succeeds");
            let took = SystemClock.monotonic_nanos() - start;
            if committing.load(Ordering::Relaxed) {
                times.push(took);
            }
            pause.into_iter().for_each(std::thread::park_timeout);
        }
        times
    };
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let asks =
            scope.spawn(|| measure(Some(Duration::from_micros(100)), &|| fs.metadata("/big").map(drop)));
        let appends = scope.spawn(|| measure(Some(PAUSE), &|| log()?.append_blindly(b"others\n")));
        for _ in 0..rounds {
            let tx = fs.begin()?;
            let file = warpfire::OpenOptions::new().read(true).open(&tx, "/big")?;
            let mut buffer = vec![0; READ_BYTES];
            let start = SystemClock.monotonic_nanos();
            for at in 0..gib << 10 {
                file.read_at(&mut buffer, at << 20)?;
            }
            warpfire::OpenOptions::new().append(true).open(&tx, "/log")?.append_blindly(b"inside\n")?;
            drop(file);
            let read = SystemClock.monotonic_nanos() - start;
            committing.store(true, Ordering::Relaxed);
            let start = SystemClock.monotonic_nanos();
            let outcome = tx.commit();
            let took = SystemClock.monotonic_nanos() - start;
            committing.store(false, Ordering::Relaxed);
            let (read, took) = (read as f64 / 1e9, took as f64 / 1e6);
            println!("read {gib} GiB in {read:.1} s, commit in {took:.1} ms: {outcome:?}");
        }
        ended.store(true, Ordering::Relaxed);
        for (what, times) in [("attributes", asks.join()), ("appends", appends.join())] {
            report(what, times.map_err(|_| "a thread panicked")?);
        }
        Ok(())
    })?;
    println!("{:?}", fs.stats().transactions);
    Ok(())
}

fn report(what: &str, mut times: Vec<u64>) {
    times.sort_unstable();
    let at = |share: f64| {
        let number = (times.len().saturating_sub(1)) as f64 * share;
        times.get(number as usize).map_or(0.0, |nanos| *nanos as f64 / 1e6)
    };
    println!(
        "{what}: {} calls, 50 % {:.3} ms, 99.9 % {:.3} ms, longest {:.3} ms",
        times.len(),
        at(0.5),
        at(0.999),
        at(1.0)
    );
}
