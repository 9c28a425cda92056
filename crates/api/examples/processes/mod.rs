//! The workers of the queue as processes, in a directory of a mounted pool or of the host.
//!
//! They share two files. Appenders append units to `queue`. `head` holds the number of the next unit to take;
//! a lock protects it. A consumer moves its units into `done-N`: by pointers with copy_file_range(2), or by
//! writing the bytes that it read.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::fs::{Advice, FlockOperation, copy_file_range, fadvise, flock};

use crate::measure::ExampleResult;
use crate::{PAUSE, QueueJob};

/// How a consumer moves a unit into its own file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Filing {
    Pointers,
    Copying,
}

/// The first argument of a child process: its role. Directory, number and job follow.
const APPEND: &str = "append";
const CONSUME: [(Filing, &str); 2] =
    [(Filing::Pointers, "consume-by-pointers"), (Filing::Copying, "consume-by-copying")];

/// Runs the job in a directory, from the start of the first process to the end of the last one, and checks
/// that each unit was worked on once.
pub fn run(job: QueueJob, directory: &Path, filing: Filing) -> ExampleResult<()> {
    fs::write(directory.join("queue"), [])?;
    fs::write(directory.join("head"), 0u64.to_le_bytes())?;
    let numbers = [job.units, job.unit_bytes, job.appenders, job.consumers].map(|n| n.to_string());
    let start = |what: &str, worker: u64| -> ExampleResult<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(what).arg(directory).arg(worker.to_string()).args(&numbers);
        Ok(command.stdout(Stdio::piped()).spawn()?)
    };
    let consume = CONSUME.iter().find(|(known, _)| *known == filing).ok_or("no such filing")?.1;
    let appenders = (0..job.appenders).map(|worker| start(APPEND, worker));
    let consumers = (0..job.consumers).map(|worker| start(consume, worker));
    let mut done = 0;
    for worker in appenders.chain(consumers).collect::<ExampleResult<Vec<_>>>()? {
        let output = worker.wait_with_output()?;
        if !output.status.success() {
            return Err("a worker failed".into());
        }
        done += String::from_utf8(output.stdout)?.trim().parse::<u64>()?;
    }
    fs::remove_file(directory.join("queue"))?;
    fs::remove_file(directory.join("head"))?;
    (0..job.consumers).try_for_each(|worker| fs::remove_file(directory.join(format!("done-{worker}"))))?;
    job.check(done)
}

/// The role of this process, if it is one of the workers. It prints the sum of the numbers of its units.
pub fn work(words: &[String]) -> Option<ExampleResult<()>> {
    let [what, directory, worker, units, unit_bytes, appenders, consumers] = words else { return None };
    let filing = CONSUME.iter().find(|(_, name)| name == what).map(|(filing, _)| *filing);
    if filing.is_none() && what != APPEND {
        return None;
    }
    let work = || -> ExampleResult<()> {
        let [units, unit_bytes, appenders, consumers] =
            [units.parse()?, unit_bytes.parse()?, appenders.parse()?, consumers.parse()?];
        let job = QueueJob { units, unit_bytes, appenders, consumers };
        let (directory, worker) = (Path::new(directory), worker.parse()?);
        let done = match filing {
            Some(filing) => consume(job, directory, worker, filing)?,
            None => append(job, directory, worker)?,
        };
        println!("{done}");
        Ok(())
    };
    Some(work())
}

fn append(job: QueueJob, directory: &Path, worker: u64) -> ExampleResult<u64> {
    let mut queue = File::options().append(true).open(directory.join("queue"))?;
    job.units_of(worker).try_for_each(|unit| queue.write_all(&job.unit(unit)))?;
    queue.sync_all()?;
    Ok(0)
}

fn consume(job: QueueJob, directory: &Path, worker: u64, filing: Filing) -> ExampleResult<u64> {
    let queue = File::open(directory.join("queue"))?;
    let head = File::options().read(true).write(true).open(directory.join("head"))?;
    let file = File::create(directory.join(format!("done-{worker}")))?;
    let (mut unit, mut filed, mut done) = (job.unit(0), 0, 0);
    while let Some(number) = take(job, &queue, &head)? {
        queue.read_exact_at(&mut unit, number * job.unit_bytes)?;
        done += job.look(&unit)?;
        match filing {
            Filing::Copying => file.write_all_at(&unit, filed)?,
            Filing::Pointers => {
                let (mut from, mut to) = (number * job.unit_bytes, filed);
                while to < filed + job.unit_bytes {
                    let left = usize::try_from(filed + job.unit_bytes - to)?;
                    if copy_file_range(&queue, Some(&mut from), &file, Some(&mut to), left)? == 0 {
                        return Err("the queue ends inside a unit".into());
                    }
                }
            }
        }
        filed += job.unit_bytes;
    }
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(done)
}

/// Takes the unit at the head for this worker and returns its number; `None` when all are taken.
fn take(job: QueueJob, queue: &File, head: &File) -> ExampleResult<Option<u64>> {
    loop {
        flock(head, FlockOperation::LockExclusive)?;
        let mut bytes = [0; 8];
        head.read_exact_at(&mut bytes, 0)?;
        let number = u64::from_le_bytes(bytes);
        // On a mount, stat may report a length before other processes can read up to it. So a read asks for
        // the last byte.
        let last = (number + 1) * job.unit_bytes - 1;
        let is_there = number < job.units && queue.read_at(&mut [0], last)? == 1;
        if is_there {
            head.write_all_at(&(number + 1).to_le_bytes(), 0)?;
        }
        flock(head, FlockOperation::Unlock)?;
        if is_there || number == job.units {
            return Ok(is_there.then_some(number));
        }
        thread::park_timeout(PAUSE);
    }
}
