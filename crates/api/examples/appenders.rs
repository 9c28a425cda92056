//! Many appenders to one file:
//! `appenders [--appenders 12] [--appends 10000] [--unit-bytes 4096] [--image FILE]`.
//!
//! Each appender is a thread and appends each unit in a transaction of its own. The program checks that every
//! unit is in the file once and whole, and that the units of one appender keep their order. It prints the
//! time, beside that of one writer that appends as many units to another file with plain calls.
//!
//! `mounted_appenders`, an example of the crate `warpfire-mount`, does the same job with processes on a
//! mounted pool.

mod append_job;
mod measure;

use std::thread;

use append_job::AppendJob;
use measure::{ExampleResult, Flags, measured};
use warpfire::{OpenOptions, Warpfire};

const USAGE: &str =
    "usage: appenders [--appenders COUNT] [--appends COUNT] [--unit-bytes BYTES] [--image FILE]";
/// Space per byte of a unit: for both files, for the log until it is cleaned, and for the warm-up.
const ROOM: u64 = 6;
/// More bytes than a pool keeps in memory.
const WARM_BYTES: u64 = 256 << 20;

fn in_transactions(job: AppendJob, pool: &Warpfire) -> ExampleResult<()> {
    pool.write("/shared", b"")?;
    thread::scope(|scope| {
        let append = move |appender| -> warpfire::Result<()> {
            (0..job.appends).try_for_each(|number| {
                let tx = pool.begin()?;
                let file = OpenOptions::new().append(true).open(&tx, "/shared")?;
                file.append_blindly(&job.unit(appender, number))?;
                tx.commit()
            })
        };
        let appenders: Vec<_> =
            (0..job.appenders).map(|appender| scope.spawn(move || append(appender))).collect();
        appenders.into_iter().try_for_each(|appender| appender.join().expect("appenders do not panic"))
    })?;
    Ok(pool.sync()?)
}

fn in_order(job: AppendJob, pool: &Warpfire) -> ExampleResult<()> {
    let file = OpenOptions::new().append(true).create(true).open(pool, "/alone")?;
    for number in 0..job.appends {
        (0..job.appenders).try_for_each(|appender| file.append(&job.unit(appender, number)).map(drop))?;
    }
    Ok(pool.sync()?)
}

fn on_pool(job: AppendJob, pool: &Warpfire) -> ExampleResult<()> {
    // The first writes wait for memory that the pool allocates once. Both timed runs should find it
    // allocated.
    let warm = WARM_BYTES.div_ceil(job.appenders * job.unit_bytes as u64);
    in_order(AppendJob { appends: job.appends.min(warm), ..job }, pool)?;
    pool.remove_file("/alone")?;
    let many = measured(Some(pool), "appending threads, transactions", || in_transactions(job, pool))?;
    let one = measured(Some(pool), "one writer, plain", || in_order(job, pool))?;
    let (file, mut at) = (pool.open("/shared")?, 0);
    job.check(|unit| {
        file.read_exact_at(unit, at)?;
        at += unit.len() as u64;
        Ok(())
    })?;
    job.report(many, one);
    println!("{:?}", pool.stats().transactions);
    Ok(())
}

fn main() -> ExampleResult<()> {
    let flags = Flags::parse(&["appenders", "appends", "unit-bytes"], USAGE)?;
    let job = AppendJob {
        appenders: flags.number("appenders", 12)?,
        appends: flags.number("appends", 10_000)?,
        unit_bytes: usize::try_from(flags.number("unit-bytes", 4096)?)?.max(16),
    };
    on_pool(job, &flags.pool(ROOM * job.bytes())?)
}
