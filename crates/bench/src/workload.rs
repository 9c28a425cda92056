//! What is measured: each workload prepares a fresh target, and times one or two phases on it.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use serde::Serialize;
use warpfire_env::{AlignedBuf, Clock, SystemClock};
use warpfire_terminal::Failure;
use warpfire_units::BLOCK_BYTES;

use crate::memory::PeakMemory;
use crate::names::{Name, Order, fill, mix};
use crate::target::{Counters, Directory, LargeFile, Target};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Workload {
    /// Make small files, one sync at the end.
    Create,
    /// Read small files whole, nothing cached.
    Read,
    /// Go through directories and look at each file, nothing cached.
    Stat,
    /// Remove small files, one sync at the end, nothing cached.
    Remove,
    /// Make small files, each durable before the next.
    Sync,
    /// Read blocks of 4 KiB of one large file at random, nothing cached.
    Randread,
    /// Overwrite blocks of 4 KiB of one large file at random, one sync at the end.
    Randwrite,
    /// Write one large file front to back and sync it; then read it, nothing cached.
    Seq,
    /// The metadata engine alone: insert records, get them at random, scan them.
    Meta,
}

/// How much, how wide and in what order.
#[derive(Clone, Debug, Serialize)]
pub struct Shape {
    /// Small files, or operations on the large file.
    pub count: u64,
    /// Bytes of a small file.
    pub size_bytes: u64,
    /// Bytes of the large file.
    pub large_bytes: u64,
    /// Threads that work at the same time; for random reads also the queue depth.
    pub threads: u64,
    /// Directories that the small files are spread over.
    pub dirs: u64,
    /// Order of names.
    pub order: Order,
}

/// One timed phase of one run.
#[derive(Clone, Debug)]
pub struct Measure {
    /// What was done: `create`, `write` …
    pub phase: &'static str,
    /// Operations.
    pub ops: u64,
    /// Bytes that a program moved.
    pub bytes: u64,
    /// Time for all of it, the sync at the end included.
    pub nanos: u64,
    /// Processor time of all threads, where the target is served by this process: less what waits for devices.
    pub cpu_nanos: Option<u64>,
    /// Time of each operation, where each is long enough to be timed.
    pub latencies_nanos: Vec<u64>,
    /// What the devices did.
    pub devices: Option<Counters>,
    /// The largest memory of the serving process, of the phase.
    pub peak_bytes: Option<u64>,
    /// Bytes on devices that something refers to after the phase, parity and headers not counted.
    pub stored_bytes: Option<u64>,
}

/// Pieces of the large file that are read and written front to back.
const PIECE_BYTES: u64 = 1 << 20;

impl Workload {
    /// The command's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::Create => "create",
            Workload::Read => "read",
            Workload::Stat => "stat",
            Workload::Remove => "remove",
            Workload::Sync => "sync",
            Workload::Randread => "randread",
            Workload::Randwrite => "randwrite",
            Workload::Seq => "seq",
            Workload::Meta => "meta",
        }
    }

    /// Whether it works on the large file.
    #[must_use]
    pub fn is_large(self) -> bool {
        matches!(self, Workload::Randread | Workload::Randwrite | Workload::Seq)
    }

    /// Whether it measures bytes to and from the devices, so that image files are written once before: a bare file is,
    /// and taking space from the filesystem below would be most of the time.
    #[must_use]
    pub fn is_prewritten(self) -> bool {
        self.needs_no_names()
    }

    /// Whether a bare file can do it, which has no names.
    #[must_use]
    pub fn needs_no_names(self) -> bool {
        self.is_large() || self == Workload::Sync
    }

    /// Runs it once on a fresh target.
    pub fn run(self, target: &mut dyn Target, shape: &Shape) -> Result<Vec<Measure>, Failure> {
        target.fresh()?;
        match self {
            Workload::Create => Ok(vec![create(target, shape, false)?]),
            Workload::Sync => Ok(vec![create(target, shape, true)?]),
            Workload::Read => {
                filled(target, shape)?;
                let bytes = shape.count * shape.size_bytes;
                Ok(vec![measure(target, "read", shape.count, bytes, |target| {
                    each_file(target, shape, &|directory, name, buffer, _| directory.read(name, buffer))
                })?])
            }
            Workload::Stat => {
                filled(target, shape)?;
                Ok(vec![measure(target, "stat", shape.count, 0, |target| walk(target, shape))?])
            }
            Workload::Remove => {
                filled(target, shape)?;
                Ok(vec![measure(target, "remove", shape.count, 0, |target| {
                    let times = each_file(target, shape, &|directory, name, _, _| directory.remove(name))?;
                    target.sync().map(|()| times)
                })?])
            }
            Workload::Randread => {
                written(target, shape)?;
                target.cold()?;
                let bytes = shape.count * BLOCK_BYTES as u64;
                Ok(vec![measure(target, "randread", shape.count, bytes, |target| {
                    random_blocks(target, shape, &|file, at, block| file.read(at, block))
                })?])
            }
            Workload::Randwrite => {
                written(target, shape)?;
                let bytes = shape.count * BLOCK_BYTES as u64;
                Ok(vec![measure(target, "randwrite", shape.count, bytes, |target| {
                    let times = random_blocks(target, shape, &|file, at, block| {
                        fill(&mut block[..8], at);
                        file.write(at, block)
                    })?;
                    target.large_file()?.sync().map(|()| times)
                })?])
            }
            Workload::Seq => {
                let pieces = shape.large_bytes.div_ceil(PIECE_BYTES);
                let write = measure(target, "seq write", pieces, shape.large_bytes, |target| {
                    written(target, shape).map(|()| Vec::new())
                })?;
                target.cold()?;
                let read = measure(target, "seq read", pieces, shape.large_bytes, |target| {
                    in_pieces(shape.large_bytes, |at, piece| target.large_file()?.read(at, piece))?;
                    Ok(Vec::new())
                })?;
                Ok(vec![write, read])
            }
            Workload::Meta => Err(Failure::new("only the engine itself can be measured as an engine")),
        }
    }
}

fn create(target: &mut dyn Target, shape: &Shape, synced: bool) -> Result<Measure, Failure> {
    let phase = if synced { "sync" } else { "create" };
    measure(target, phase, shape.count, shape.count * shape.size_bytes, |target| {
        let times = make_files(target, shape, synced)?;
        target.sync().map(|()| times)
    })
}

/// Small files, synced and forgotten by the caches.
fn filled(target: &mut dyn Target, shape: &Shape) -> Result<(), Failure> {
    make_files(target, shape, false)?;
    target.sync()?;
    target.cold()
}

fn make_files(target: &dyn Target, shape: &Shape, synced: bool) -> Result<Vec<u64>, Failure> {
    let timed = synced;
    each_file_timed(target, shape, timed, &|directory, name, buffer, number| {
        buffer.resize(usize::try_from(shape.size_bytes).expect("a small file fits in memory"), 0);
        // One word tells the files apart; the rest is filled once a thread, to measure the target and not the filling.
        let word = buffer.len().min(8);
        fill(&mut buffer[..word], number);
        if synced { directory.create_synced(name, buffer) } else { directory.create(name, buffer) }
    })
}

/// The large file, written and synced.
fn written(target: &dyn Target, shape: &Shape) -> Result<(), Failure> {
    let file = target.large_file()?;
    in_pieces(shape.large_bytes, |at, piece| {
        fill(&mut piece[..8], at);
        file.write(at, piece)
    })?;
    file.sync()
}

/// Calls `each` with every piece of a file of so many bytes, and a buffer of its length.
fn in_pieces(bytes: u64, mut each: impl FnMut(u64, &mut [u8]) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut piece = AlignedBuf::zeroed(usize::try_from(PIECE_BYTES).expect("a piece fits in memory"));
    fill(&mut piece, bytes);
    for at in (0..bytes).step_by(usize::try_from(PIECE_BYTES).expect("a piece fits in memory")) {
        let len = usize::try_from(PIECE_BYTES.min(bytes - at)).expect("a piece fits in memory");
        each(at, &mut piece[..len])?;
    }
    Ok(())
}

/// What is done to one file: its directory, its name, a buffer to reuse, its number.
type OnFile<'a> = &'a (dyn Fn(&mut dyn Directory, &str, &mut Vec<u8>, u64) -> Result<(), Failure> + Sync);

fn each_file(target: &dyn Target, shape: &Shape, on_file: OnFile<'_>) -> Result<Vec<u64>, Failure> {
    each_file_timed(target, shape, false, on_file)
}

/// Does something to every file, over all threads.
fn each_file_timed(
    target: &dyn Target,
    shape: &Shape,
    timed: bool,
    on_file: OnFile<'_>,
) -> Result<Vec<u64>, Failure> {
    in_threads(shape, |files| {
        let mut times =
            Vec::with_capacity(if timed { usize::try_from(files.end - files.start).unwrap_or(0) } else { 0 });
        let mut name = Name::new();
        let mut buffer = vec![0; usize::try_from(shape.size_bytes).expect("a small file fits in memory")];
        fill(&mut buffer, files.start);
        let mut open: Option<(u64, Box<dyn Directory + '_>)> = None;
        for number in files {
            let dir = directory_of(number, shape);
            if open.as_ref().is_none_or(|(other, _)| *other != dir) {
                open = Some((dir, target.directory(dir)?));
            }
            let (_, directory) = open.as_mut().expect("opened above");
            let name = name.of(number, shape.order);
            if timed {
                let began = SystemClock.monotonic_nanos();
                on_file(directory.as_mut(), name, &mut buffer, number)?;
                times.push(SystemClock.monotonic_nanos() - began);
            } else {
                on_file(directory.as_mut(), name, &mut buffer, number)?;
            }
        }
        Ok(times)
    })
}

/// Files of consecutive numbers share a directory.
fn directory_of(number: u64, shape: &Shape) -> u64 {
    let of = u128::from(number) * u128::from(shape.dirs) / u128::from(shape.count);
    u64::try_from(of).expect("less than the number of directories")
}

/// Goes through all directories, dealt to the threads as they come.
fn walk(target: &dyn Target, shape: &Shape) -> Result<Vec<u64>, Failure> {
    let next = AtomicU64::new(0);
    let seen = AtomicU64::new(0);
    in_threads(shape, |_| {
        loop {
            let dir = next.fetch_add(1, Ordering::Relaxed);
            if dir >= shape.dirs {
                return Ok(Vec::new());
            }
            seen.fetch_add(target.directory(dir)?.list_and_stat()?, Ordering::Relaxed);
        }
    })?;
    match seen.into_inner() {
        seen if seen == shape.count => Ok(Vec::new()),
        seen => Err(Failure::new(format_args!("{} lists {seen} files of {}", target.name(), shape.count))),
    }
}

/// What is done to one block of the large file: the offset and the block.
type OnBlock<'a> = &'a (dyn Fn(&dyn LargeFile, u64, &mut [u8]) -> Result<(), Failure> + Sync);

/// Does something to blocks of the large file at random, over all threads.
fn random_blocks(target: &dyn Target, shape: &Shape, on_block: OnBlock<'_>) -> Result<Vec<u64>, Failure> {
    let file = target.large_file()?;
    let blocks = (shape.large_bytes / BLOCK_BYTES as u64).max(1);
    in_threads(shape, |numbers| {
        let mut times = Vec::with_capacity(usize::try_from(numbers.end - numbers.start).unwrap_or(0));
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        for number in numbers {
            let at = mix(number) % blocks * BLOCK_BYTES as u64;
            let began = SystemClock.monotonic_nanos();
            on_block(file.as_ref(), at, &mut block)?;
            times.push(SystemClock.monotonic_nanos() - began);
        }
        Ok(times)
    })
}

/// Deals the numbers below `count` to the threads in ranges and gathers what each measured.
fn in_threads(
    shape: &Shape,
    work: impl Fn(Range<u64>) -> Result<Vec<u64>, Failure> + Sync,
) -> Result<Vec<u64>, Failure> {
    if shape.threads == 1 {
        return work(0..shape.count);
    }
    let gate = Barrier::new(usize::try_from(shape.threads).expect("threads fit in memory"));
    std::thread::scope(|scope| {
        let start_of = |thread: u64| shape.count * thread / shape.threads;
        let threads: Vec<_> = (0..shape.threads)
            .map(|thread| {
                let (work, gate) = (&work, &gate);
                scope.spawn(move || {
                    gate.wait();
                    work(start_of(thread)..start_of(thread + 1))
                })
            })
            .collect();
        let mut times = Vec::new();
        for thread in threads {
            times.extend(thread.join().expect("a worker of a benchmark does not panic")?);
        }
        Ok(times)
    })
}

/// Times a phase and counts what the devices did in it.
fn measure(
    target: &mut dyn Target,
    phase: &'static str,
    ops: u64,
    bytes: u64,
    work: impl FnOnce(&dyn Target) -> Result<Vec<u64>, Failure>,
) -> Result<Measure, Failure> {
    let before = target.counters();
    let memory = target.server().map(PeakMemory::begin);
    let cpu_before = processor_nanos();
    let began = SystemClock.monotonic_nanos();
    let latencies_nanos = work(target)?;
    let nanos = SystemClock.monotonic_nanos() - began;
    let is_served_here = target.server() == Some(std::process::id());
    let cpu_nanos = is_served_here.then(|| processor_nanos() - cpu_before);
    let devices = target.counters().zip(before).map(|(after, before)| after.since(before));
    let peak_bytes = memory.and_then(|memory| memory.peak_bytes());
    let stored_bytes = target.stored_bytes();
    Ok(Measure { phase, ops, bytes, nanos, cpu_nanos, latencies_nanos, devices, peak_bytes, stored_bytes })
}

/// Processor time that this process has used, all threads together.
pub fn processor_nanos() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec.cast_unsigned() * 1_000_000_000 + used.tv_nsec.cast_unsigned()
}
