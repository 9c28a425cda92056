//! A work queue in one file. Appenders append units to it; consumers take units from its head and move them
//! into files of their own: `queue [--units 96] [--unit-kb 1000] [--appenders 12] [--consumers 4] [--image
//! FILE] [--mount DIRECTORY] [--host DIRECTORY]`.
//!
//! With `--mount`, a directory of a mounted pool, the workers are processes (`processes/mod.rs`), there and
//! in the host's directory. Without it they are threads that use the library.
//!
//! By pointers, an append finds the end by itself, and a consumer moves a unit into its own file in a
//! transaction: after a crash each unit has been taken once or is still in the queue. By copying, the workers
//! lock the ends of the queue, and a consumer writes the unit again: a crash may lose a unit or double it.
//! Both ways read each unit once. The program prints the time of each, with a sync at the end.

mod measure;
mod processes;
mod storage;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use measure::{ExampleResult, Flags, measured};
use parking_lot::Mutex;
use processes::Filing;
use storage::{Storage, make};
use warpfire::{ErrorKind, OpenOptions, Warpfire};

const USAGE: &str = "usage: queue [--units UNITS] [--unit-kb KILOBYTES] [--appenders WORKERS] [--consumers WORKERS] \
                     [--image FILE] [--mount DIRECTORY] [--host DIRECTORY]";
/// Space per byte of a unit: for the queue, for the files of the consumers, and for the log until it is
/// cleaned.
const ROOM: u64 = 6;
/// A consumer that finds the queue empty looks again after this time.
const PAUSE: Duration = Duration::from_micros(200);

#[derive(Clone, Copy)]
struct QueueJob {
    units: u64,
    unit_bytes: u64,
    appenders: u64,
    consumers: u64,
}

impl QueueJob {
    fn unit(self, number: u64) -> Vec<u8> {
        vec![number as u8; usize::try_from(self.unit_bytes).expect("a unit fits in memory")]
    }

    /// The numbers of the units that one appender appends.
    fn units_of(self, appender: u64) -> impl Iterator<Item = u64> {
        (0..self.units).filter(move |unit| unit % self.appenders == appender)
    }

    /// The work on a unit: it checks the bytes and returns the number in them.
    fn look(self, unit: &[u8]) -> ExampleResult<u64> {
        let first = *unit.first().ok_or("a unit is not empty")?;
        if unit.iter().any(|byte| *byte != first) {
            return Err("a unit is torn".into());
        }
        Ok(u64::from(first))
    }

    /// Checks by the sum of the numbers that each unit was worked on once.
    fn check(self, done: u64) -> ExampleResult<()> {
        let expected: u64 = (0..self.units).map(|unit| u64::from(unit as u8)).sum();
        if done == expected { Ok(()) } else { Err("a unit was lost, or taken twice".into()) }
    }

    /// Runs all workers and checks that each unit was worked on once.
    fn run(
        self,
        append: impl Fn(u64) -> ExampleResult<()> + Sync,
        consume: impl Fn(u64, &AtomicU64) -> ExampleResult<()> + Sync,
    ) -> ExampleResult<()> {
        let done = AtomicU64::new(0);
        thread::scope(|scope| {
            let (append, consume, done) = (&append, &consume, &done);
            let told = |outcome: ExampleResult<()>| outcome.map_err(|error| error.to_string());
            let appenders = (0..self.appenders).map(|worker| scope.spawn(move || told(append(worker))));
            let consumers =
                (0..self.consumers).map(|worker| scope.spawn(move || told(consume(worker, done))));
            let workers: Vec<_> = appenders.chain(consumers).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"))
        })?;
        self.check(done.into_inner())
    }

    fn by_pointers(self, pool: &Warpfire) -> ExampleResult<()> {
        let queue = make(pool, "queue")?;
        pool.write("/head", 0u64.to_le_bytes())?;
        let append = |worker| {
            self.units_of(worker).try_for_each(|unit| queue.append_blindly(&self.unit(unit)))?;
            Ok(())
        };
        let consume = |worker, done: &AtomicU64| {
            make(pool, &format!("done-{worker}"))?;
            let mut unit = self.unit(0);
            while let Some(head) = self.take(pool, worker)? {
                queue.read_exact_at(&mut unit, head * self.unit_bytes)?;
                done.fetch_add(self.look(&unit)?, Ordering::Relaxed);
            }
            Ok(())
        };
        self.run(append, consume)?;
        Ok(pool.sync()?)
    }

    /// Moves the unit at the head to the file of a worker and returns its number; `None` when all units are
    /// taken.
    fn take(self, pool: &Warpfire, worker: u64) -> ExampleResult<Option<u64>> {
        loop {
            let taken = pool.transact(|tx| {
                let head: [u8; 8] = tx.read("/head")?.try_into().expect("the head is a number");
                let head = u64::from_le_bytes(head);
                let queue = tx.open("/queue")?;
                if head == self.units || queue.metadata()?.len() <= head * self.unit_bytes {
                    return Ok((head, false));
                }
                let unit = queue.yank(head * self.unit_bytes..(head + 1) * self.unit_bytes)?;
                let file = OpenOptions::new().append(true).open(tx, format!("/done-{worker}"))?;
                file.append_slice(&unit)?;
                tx.write("/head", (head + 1).to_le_bytes())?;
                Ok((head, true))
            });
            match taken {
                Ok((head, true)) => return Ok(Some(head)),
                Ok((head, false)) if head == self.units => return Ok(None),
                Ok(_) => thread::park_timeout(PAUSE),
                // Other consumers committed first, each time.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn by_copying(self, place: &Storage) -> ExampleResult<()> {
        let queue = place.make("plain-queue")?;
        let (tail, head, filled) = (Mutex::new(0), Mutex::new(0), AtomicU64::new(0));
        let append = |worker| {
            self.units_of(worker).try_for_each(|unit| {
                let bytes = self.unit(unit);
                let mut tail = tail.lock();
                queue.write(&bytes, *tail * self.unit_bytes)?;
                *tail += 1;
                filled.store(*tail, Ordering::Release);
                Ok(())
            })
        };
        let consume = |worker, done: &AtomicU64| {
            let file = place.make(&format!("plain-done-{worker}"))?;
            let mut unit = self.unit(0);
            let mut filed = 0;
            loop {
                let mut next = head.lock();
                let number = *next;
                if number == self.units {
                    return file.settle();
                }
                if filled.load(Ordering::Acquire) == number {
                    drop(next);
                    thread::park_timeout(PAUSE);
                    continue;
                }
                *next += 1;
                drop(next);
                queue.read(&mut unit, number * self.unit_bytes)?;
                done.fetch_add(self.look(&unit)?, Ordering::Relaxed);
                file.write(&unit, filed)?;
                filed += self.unit_bytes;
            }
        };
        self.run(append, consume)?;
        queue.settle()
    }

    /// Runs the job by threads on the library, in a new pool.
    fn in_threads(self, flags: &Flags) -> ExampleResult<()> {
        println!("--mount is not given: the workers are threads on the library");
        let pool = flags.pool(ROOM * self.units * self.unit_bytes)?;
        let by_pointers = measured(Some(&pool), "queue by pointers", || self.by_pointers(&pool))?;
        for place in Storage::all(&pool, flags.path("host")) {
            let what = format!("queue by copying, in {}", place.name());
            let by_copying = measured(place.pool(), &what, || self.by_copying(&place))?;
            println!("{:34} {:9.1} times as long", "", by_copying / by_pointers);
            place.remove("plain-queue")?;
            (0..self.consumers).try_for_each(|worker| place.remove(&format!("plain-done-{worker}")))?;
        }
        Ok(())
    }

    /// Runs the job by processes, in a mounted pool and on the host.
    fn in_processes(self, mount: &Path, host: Option<&Path>) -> ExampleResult<()> {
        let run = |directory: &Path, filing| processes::run(self, directory, filing);
        let by_pointers = measured(None, "mounted, by pointers", || run(mount, Filing::Pointers))?;
        let places = [(mount, "mounted, by copying")]
            .into_iter()
            .chain(host.map(|host| (host, "on the host, by copying")));
        for (directory, what) in places {
            let by_copying = measured(None, what, || run(directory, Filing::Copying))?;
            println!("{:34} {:9.1} times as long", "", by_copying / by_pointers);
        }
        Ok(())
    }
}

fn main() -> ExampleResult<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(outcome) = processes::work(&words) {
        return outcome;
    }
    let flags = Flags::parse(&["units", "unit-kb", "appenders", "consumers", "mount"], USAGE)?;
    let job = QueueJob {
        units: flags.number("units", 96)?,
        unit_bytes: flags.number("unit-kb", 1000)? * 1000,
        appenders: flags.number("appenders", 12)?,
        consumers: flags.number("consumers", 4)?,
    };
    match flags.path("mount") {
        Some(mount) => job.in_processes(&mount, flags.path("host").as_deref()),
        None => job.in_threads(&flags),
    }
}
