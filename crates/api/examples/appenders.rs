//! Many appenders to one file:
//! `appenders [--appenders 12] [--appends 10000] [--unit-bytes 4096] [--image FILE] [--host DIRECTORY]`.
//!
//! Each appender is a thread and appends each unit in a transaction of its own. The program checks that every
//! unit is in the file once and whole, and that the units of one appender keep their order. It prints the
//! time, beside that of one writer that appends as many units to another file with plain calls.
//!
//! With `--host`, a directory of the host or of a mounted pool, the appenders are processes that write with
//! O_APPEND, and the one writer does so too.

mod measure;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::thread;

use measure::{ExampleResult, Flags, measured};
use warpfire::{OpenOptions, Warpfire};

const USAGE: &str = "usage: appenders [--appenders COUNT] [--appends COUNT] [--unit-bytes BYTES] [--image FILE] \
                     [--host DIRECTORY]";
/// The first argument of a child process that is one of the appenders. Path, number and job follow.
const CHILD: &str = "append";
/// Space per byte of a unit: for both files, for the log until it is cleaned, and for the warm-up.
const ROOM: u64 = 6;
/// More bytes than a pool keeps in memory.
const WARM_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy)]
struct AppendJob {
    appenders: u64,
    appends: u64,
    unit_bytes: usize,
}

impl AppendJob {
    fn unit(self, appender: u64, number: u64) -> Vec<u8> {
        let mut unit = vec![(appender ^ number) as u8; self.unit_bytes];
        unit[..8].copy_from_slice(&appender.to_le_bytes());
        unit[8..16].copy_from_slice(&number.to_le_bytes());
        unit
    }

    fn bytes(self) -> u64 {
        self.appenders * self.appends * self.unit_bytes as u64
    }

    /// Checks that every unit is there once and whole, and that the units of each appender are in their
    /// order.
    fn check(self, mut read: impl FnMut(&mut [u8]) -> ExampleResult<()>) -> ExampleResult<()> {
        let mut next = vec![0; usize::try_from(self.appenders)?];
        let mut unit = vec![0; self.unit_bytes];
        for place in 0..self.appenders * self.appends {
            read(&mut unit)?;
            let (appender, rest) = unit.split_first_chunk::<8>().ok_or(USAGE)?;
            let (number, _) = rest.split_first_chunk::<8>().ok_or(USAGE)?;
            let (appender, number) = (u64::from_le_bytes(*appender), u64::from_le_bytes(*number));
            let expected = next.get_mut(usize::try_from(appender)?).ok_or("a unit names no appender")?;
            if number != *expected || unit != self.unit(appender, number) {
                return Err(
                    format!("unit {place} is torn, doubled, or not the next of appender {appender}").into()
                );
            }
            *expected += 1;
        }
        Ok(())
    }

    fn in_transactions(self, pool: &Warpfire) -> ExampleResult<()> {
        pool.write("/shared", b"")?;
        thread::scope(|scope| {
            let append = move |appender| -> warpfire::Result<()> {
                (0..self.appends).try_for_each(|number| {
                    let tx = pool.begin()?;
                    let file = OpenOptions::new().append(true).open(&tx, "/shared")?;
                    file.append_blindly(&self.unit(appender, number))?;
                    tx.commit()
                })
            };
            let appenders: Vec<_> =
                (0..self.appenders).map(|appender| scope.spawn(move || append(appender))).collect();
            appenders.into_iter().try_for_each(|appender| appender.join().expect("appenders do not panic"))
        })?;
        Ok(pool.sync()?)
    }

    fn in_order(self, pool: &Warpfire) -> ExampleResult<()> {
        let file = OpenOptions::new().append(true).create(true).open(pool, "/alone")?;
        for number in 0..self.appends {
            (0..self.appenders)
                .try_for_each(|appender| file.append(&self.unit(appender, number)).map(drop))?;
        }
        Ok(pool.sync()?)
    }

    fn in_processes(self, path: &Path) -> ExampleResult<()> {
        let start = |appender: u64| {
            let numbers = [appender, self.appenders, self.appends, self.unit_bytes as u64];
            let numbers = numbers.map(|number| number.to_string());
            Command::new(std::env::current_exe()?).arg(CHILD).arg(path).args(numbers).spawn()
        };
        let appenders: Vec<_> = (0..self.appenders).map(start).collect::<Result<_, _>>()?;
        for mut appender in appenders {
            if !appender.wait()?.success() {
                return Err("an appender failed".into());
            }
        }
        Ok(File::open(path)?.sync_all()?)
    }

    /// Appends the units of some appenders, in turn, to a file of the host.
    fn to_host(self, path: &Path, appenders: std::ops::Range<u64>) -> ExampleResult<()> {
        let mut file = File::options().append(true).create(true).open(path)?;
        for number in 0..self.appends {
            appenders.clone().try_for_each(|appender| file.write_all(&self.unit(appender, number)))?;
        }
        Ok(())
    }

    fn on_host(self, host: &Path) -> ExampleResult<()> {
        let (shared, alone) = (host.join("shared"), host.join("alone"));
        File::create_new(&shared)?;
        let many = measured(None, "appending processes", || self.in_processes(&shared))?;
        let one = measured(None, "one writer", || {
            self.to_host(&alone, 0..self.appenders)?;
            Ok(File::open(&alone)?.sync_all()?)
        })?;
        let mut file = File::open(&shared)?;
        self.check(|unit| Ok(file.read_exact(unit)?))?;
        self.report(many, one);
        Ok([shared, alone].iter().try_for_each(fs::remove_file)?)
    }

    fn on_pool(self, pool: &Warpfire) -> ExampleResult<()> {
        // The first writes wait for memory that the pool allocates once. Both timed runs should find it
        // allocated.
        let warm = WARM_BYTES.div_ceil(self.appenders * self.unit_bytes as u64);
        AppendJob { appends: self.appends.min(warm), ..self }.in_order(pool)?;
        pool.remove_file("/alone")?;
        let many = measured(Some(pool), "appending threads, transactions", || self.in_transactions(pool))?;
        let one = measured(Some(pool), "one writer, plain", || self.in_order(pool))?;
        let (file, mut at) = (pool.open("/shared")?, 0);
        self.check(|unit| {
            file.read_exact_at(unit, at)?;
            at += unit.len() as u64;
            Ok(())
        })?;
        self.report(many, one);
        println!("{:?}", pool.stats().transactions);
        Ok(())
    }

    fn report(self, many: f64, one: f64) {
        let rate = |seconds: f64| self.bytes() as f64 / 1e6 / seconds;
        println!(
            "{} units of {} appenders: each once, whole, in order",
            self.appenders * self.appends,
            self.appenders
        );
        println!("{:.0} MB/s together, {:.0} MB/s alone: {:.0} %", rate(many), rate(one), 100.0 * one / many);
    }
}

fn main() -> ExampleResult<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [child, path, appender, appenders, appends, unit_bytes] = words.as_slice()
        && child == CHILD
    {
        let job = AppendJob {
            appenders: appenders.parse()?,
            appends: appends.parse()?,
            unit_bytes: unit_bytes.parse()?,
        };
        let appender = appender.parse()?;
        return job.to_host(Path::new(path), appender..appender + 1);
    }
    let flags = Flags::parse(&["appenders", "appends", "unit-bytes"], USAGE)?;
    let job = AppendJob {
        appenders: flags.number("appenders", 12)?,
        appends: flags.number("appends", 10_000)?,
        unit_bytes: usize::try_from(flags.number("unit-bytes", 4096)?)?.max(16),
    };
    match flags.directory("host") {
        Some(host) => job.on_host(&host),
        None => job.on_pool(&flags.pool(ROOM * job.bytes())?),
    }
}
