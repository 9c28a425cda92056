//! Processes append to one file of a mounted pool, or of any directory.
//!
//! ```text
//! mounted_appenders DIRECTORY [--each write|slice|transaction|chained] [--appenders 12]
//!     [--appends 10000] [--unit-bytes 4096]
//! ```
//!
//! `--each` says how a process appends one unit:
//! - `write` (default): write(2) on a descriptor with O_APPEND, which is one commit;
//! - `slice`: the process writes the unit into a file of its own, and pastes the range at the end of the
//!   shared file, which is one commit;
//! - `transaction`: the process begins a transaction, appends in its view with write(2), and commits. It
//!   repeats a transaction that conflicts;
//! - `chained`: the same, but each commit begins the next transaction, in which the file is open already.
//!
//! One writer appends as many units to another file with write(2) beside it. The program checks that every
//! unit is in the shared file once and whole, and that the units of one appender keep their order.

#[path = "../../api/examples/append_job/mod.rs"]
mod append_job;

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use append_job::AppendJob;
use warpfire_env::{Clock, SystemClock};
use warpfire_mount::{MountedSlice, TransactionClient, TransactionState};

const USAGE: &str = "usage: mounted_appenders DIRECTORY [--each write|slice|transaction|chained] \
                     [--appenders COUNT] [--appends COUNT] [--unit-bytes BYTES]";
/// The first argument of a child process that is one of the appenders. Directory, manner, number and job
/// follow.
const CHILD: &str = "append";
/// Name of the file that all processes append to.
const SHARED: &str = "shared";

type ExampleResult<T> = Result<T, Box<dyn Error>>;

/// How a process appends one unit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Each {
    Write,
    Slice,
    Transaction,
    Chained,
}

const MANNERS: [(Each, &str); 4] = [
    (Each::Write, "write"),
    (Each::Slice, "slice"),
    (Each::Transaction, "transaction"),
    (Each::Chained, "chained"),
];

impl Each {
    fn named(name: &str) -> ExampleResult<Each> {
        Ok(MANNERS.iter().find(|(_, known)| *known == name).ok_or(USAGE)?.0)
    }

    fn name(self) -> &'static str {
        MANNERS.iter().find(|(each, _)| *each == self).expect("every manner has a name").1
    }
}

fn append_writing(path: &Path, job: AppendJob, appenders: std::ops::Range<u64>) -> ExampleResult<()> {
    let mut file = File::options().append(true).create(true).open(path)?;
    for number in 0..job.appends {
        appenders.clone().try_for_each(|appender| file.write_all(&job.unit(appender, number)))?;
    }
    Ok(())
}

fn append_slices(directory: &Path, job: AppendJob, appender: u64) -> ExampleResult<()> {
    let shared = File::options().append(true).open(directory.join(SHARED))?;
    let aside_path = directory.join(format!("aside-{appender}"));
    let aside = File::options().read(true).write(true).create(true).truncate(true).open(&aside_path)?;
    for number in 0..job.appends {
        aside.write_all_at(&job.unit(appender, number), 0)?;
        let slice = MountedSlice::yank(&aside, 0..job.unit_bytes as u64)?;
        slice.paste(&shared, None)?;
        slice.release(&shared)?;
    }
    Ok(fs::remove_file(aside_path)?)
}

fn append_transactions(directory: &Path, job: AppendJob, appender: u64) -> ExampleResult<()> {
    let client = TransactionClient::open(&mount_root(directory)?)?;
    let inside = directory.strip_prefix(mount_root(directory)?)?.join(SHARED);
    let mut conflicts = 0u64;
    for number in 0..job.appends {
        loop {
            let begun = client.begin(true)?;
            File::options()
                .append(true)
                .open(begun.path.join(&inside))?
                .write_all(&job.unit(appender, number))?;
            match client.commit(begun.id, false)?.state {
                TransactionState::Committed => break,
                TransactionState::Conflict => conflicts += 1,
                state => return Err(format!("a commit ended as {state:?}").into()),
            }
        }
    }
    if conflicts > 0 {
        println!("appender {appender}: {conflicts} conflicts");
    }
    Ok(())
}

fn append_chained(directory: &Path, job: AppendJob, appender: u64) -> ExampleResult<()> {
    let client = TransactionClient::open(&mount_root(directory)?)?;
    let inside = directory.strip_prefix(mount_root(directory)?)?.join(SHARED);
    let begun = client.begin(true)?;
    let mut file = File::options().append(true).open(begun.path.join(&inside))?;
    let (mut id, mut number, mut conflicts) = (begun.id, 0, 0u64);
    while number < job.appends {
        file.write_all(&job.unit(appender, number))?;
        let report = client.commit_and_chain(id, false)?;
        id = report.id;
        match report.state {
            TransactionState::Committed => number += 1,
            TransactionState::Conflict => conflicts += 1,
            state => return Err(format!("a commit ended as {state:?}").into()),
        }
    }
    if conflicts > 0 {
        println!("appender {appender}: {conflicts} conflicts");
    }
    drop(file);
    client.abort(id)?;
    Ok(())
}

/// The root of the mount that a directory lies on: its last ancestor with the same device number.
fn mount_root(directory: &Path) -> ExampleResult<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(directory)?.dev();
    let same = |path: &&Path| fs::metadata(path).is_ok_and(|metadata| metadata.dev() == device);
    Ok(directory.ancestors().take_while(same).last().ok_or(USAGE)?.to_path_buf())
}

fn run_processes(directory: &Path, each: Each, job: AppendJob) -> ExampleResult<()> {
    let start = |appender: u64| {
        let numbers = [appender, job.appenders, job.appends, job.unit_bytes as u64];
        let numbers = numbers.map(|number| number.to_string());
        Command::new(std::env::current_exe()?)
            .arg(CHILD)
            .arg(directory)
            .arg(each.name())
            .args(numbers)
            .spawn()
    };
    let appenders: Vec<_> = (0..job.appenders).map(start).collect::<Result<_, _>>()?;
    for mut appender in appenders {
        if !appender.wait()?.success() {
            return Err("an appender failed".into());
        }
    }
    Ok(File::open(directory.join(SHARED))?.sync_all()?)
}

/// Runs a step, prints its time, and returns the seconds.
fn measured(what: &str, step: impl FnOnce() -> ExampleResult<()>) -> ExampleResult<f64> {
    let start = SystemClock.monotonic_nanos();
    step()?;
    let seconds = (SystemClock.monotonic_nanos() - start) as f64 / 1e9;
    println!("{what:34} {:9.1} ms", seconds * 1000.0);
    Ok(seconds)
}

fn main() -> ExampleResult<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [child, directory, each, appender, appenders, appends, unit_bytes] = words.as_slice()
        && child == CHILD
    {
        let (directory, appender) = (Path::new(directory), appender.parse()?);
        let job = AppendJob {
            appenders: appenders.parse()?,
            appends: appends.parse()?,
            unit_bytes: unit_bytes.parse()?,
        };
        return match Each::named(each)? {
            Each::Write => append_writing(&directory.join(SHARED), job, appender..appender + 1),
            Each::Slice => append_slices(directory, job, appender),
            Each::Transaction => append_transactions(directory, job, appender),
            Each::Chained => append_chained(directory, job, appender),
        };
    }
    let (directory, flags) = words.split_first().ok_or(USAGE)?;
    let directory = fs::canonicalize(directory)?;
    let mut job = AppendJob { appenders: 12, appends: 10_000, unit_bytes: 4096 };
    let mut each = Each::Write;
    for flag in flags.chunks(2) {
        let [name, value] = flag else { return Err(USAGE.into()) };
        match name.as_str() {
            "--each" => each = Each::named(value)?,
            "--appenders" => job.appenders = value.parse()?,
            "--appends" => job.appends = value.parse()?,
            "--unit-bytes" => job.unit_bytes = value.parse::<usize>()?.max(16),
            _ => return Err(USAGE.into()),
        }
    }
    let (shared, alone) = (directory.join(SHARED), directory.join("alone"));
    File::create_new(&shared)?;
    let many = measured(&format!("appending processes, each {}", each.name()), || {
        run_processes(&directory, each, job)
    })?;
    let one = measured("one writer", || {
        append_writing(&alone, job, 0..job.appenders)?;
        Ok(File::open(&alone)?.sync_all()?)
    })?;
    let mut file = File::open(&shared)?;
    job.check(|unit| Ok(file.read_exact(unit)?))?;
    job.report(many, one);
    Ok([shared, alone].iter().try_for_each(fs::remove_file)?)
}
