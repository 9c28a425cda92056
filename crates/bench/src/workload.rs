//! The workloads: each prepares an empty target, and times one or two phases on it.

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

/// The workloads by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Workload {
    /// Make small files; one sync at the end.
    Create,
    /// Read small files whole, with cold caches.
    Read,
    /// List directories and read the attributes of each file, with cold caches.
    Stat,
    /// Read the attributes of files by name, at random: first with cold caches, then once more.
    Lookup,
    /// Read small files whole, at random: first with cold caches, then once more.
    Fetch,
    /// Remove small files, with cold caches; one sync at the end.
    Remove,
    /// Make small files, each durable before the next.
    Sync,
    /// Read 4 KiB blocks of one large file at random, with cold caches.
    Randread,
    /// Overwrite 4 KiB blocks of one large file at random; one sync at the end.
    Randwrite,
    /// Write one large file front to back and sync it; then read it with cold caches.
    Seq,
    /// The metadata engine alone: insert records, get them at random, scan them.
    Meta,
}

/// Size, width and order of a workload.
#[derive(Clone, Debug, Serialize)]
pub struct Shape {
    /// Number of small files, or of operations on the large file.
    pub count: u64,
    /// Bytes of a small file.
    pub size_bytes: u64,
    /// Bytes of the large file.
    pub large_bytes: u64,
    /// Threads that work at the same time; for random reads also the queue depth.
    pub threads: u64,
    /// Directories that share the small files.
    pub dirs: u64,
    /// Order of names.
    pub order: Order,
}

/// One timed phase of one run.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Its name in the report: `create`, `seq write` and so on.
    pub phase: &'static str,
    /// Operations.
    pub ops: u64,
    /// Bytes that the operations moved.
    pub bytes: u64,
    /// Wall time, the sync at the end included.
    pub nanos: u64,
    /// Processor time of all threads, if this process serves the target. Waiting for devices does not count.
    pub cpu_nanos: Option<u64>,
    /// Wall time of each operation, if operations are long enough to be timed one by one.
    pub latencies_nanos: Vec<u64>,
    /// What the devices did during the phase.
    pub devices: Option<Counters>,
    /// Peak memory of the serving process during the phase.
    pub peak_bytes: Option<u64>,
    /// Live bytes on devices after the phase, without parity and headers.
    pub stored_bytes: Option<u64>,
}

/// Bytes per call when the large file is written or read front to back.
const PIECE_BYTES: u64 = 1 << 20;

impl Shape {
    /// Calls that write the large file front to back.
    #[must_use]
    pub fn large_pieces(&self) -> u64 {
        self.large_bytes.div_ceil(PIECE_BYTES)
    }
}

impl Workload {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::Create => "create",
            Workload::Read => "read",
            Workload::Stat => "stat",
            Workload::Lookup => "lookup",
            Workload::Fetch => "fetch",
            Workload::Remove => "remove",
            Workload::Sync => "sync",
            Workload::Randread => "randread",
            Workload::Randwrite => "randwrite",
            Workload::Seq => "seq",
            Workload::Meta => "meta",
        }
    }

    /// Whether it uses the large file.
    #[must_use]
    pub fn is_large(self) -> bool {
        matches!(self, Workload::Randread | Workload::Randwrite | Workload::Seq)
    }

    /// Whether it measures the bytes to and from the devices. Then files are prewritten: otherwise most of
    /// the time would go into the allocation of space in the filesystem below.
    #[must_use]
    pub fn is_prewritten(self) -> bool {
        self.needs_no_names()
    }

    /// Whether a bare file can run it, which has no names.
    #[must_use]
    pub fn needs_no_names(self) -> bool {
        self.is_large() || self == Workload::Sync
    }

    /// Runs it once on an emptied target.
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
            Workload::Lookup => {
                filled(target, shape)?;
                twice_at_random(
                    target,
                    shape,
                    ["lookup cold", "lookup again"],
                    0,
                    &|directory, name, _, _| directory.stat(name),
                )
            }
            Workload::Fetch => {
                filled(target, shape)?;
                let bytes = shape.count * shape.size_bytes;
                let phases = ["fetch cold", "fetch again"];
                twice_at_random(target, shape, phases, bytes, &|directory, name, buffer, _| {
                    directory.read(name, buffer)
                })
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
                let pieces = shape.large_pieces();
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
            Workload::Meta => Err(Failure::new("the workload meta runs on the engine only")),
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

/// Runs an operation on files drawn at random, as often as there are files, and then on the same ones again.
fn twice_at_random(
    target: &mut dyn Target,
    shape: &Shape,
    phases: [&'static str; 2],
    bytes: u64,
    on_file: OnFile<'_>,
) -> Result<Vec<Measure>, Failure> {
    let drawn = |number| mix(number) % shape.count;
    phases
        .into_iter()
        .map(|phase| {
            measure(target, phase, shape.count, bytes, |target| {
                each_file_timed(target, shape, false, &drawn, on_file)
            })
        })
        .collect()
}

/// Makes small files, syncs them and drops the caches.
fn filled(target: &mut dyn Target, shape: &Shape) -> Result<(), Failure> {
    make_files(target, shape, false)?;
    target.sync()?;
    target.cold()
}

fn make_files(target: &dyn Target, shape: &Shape, synced: bool) -> Result<Vec<u64>, Failure> {
    let timed = synced;
    each_file_timed(target, shape, timed, &|number| number, &|directory, name, buffer, number| {
        buffer.resize(usize::try_from(shape.size_bytes).expect("a small file fits in memory"), 0);
        // The first word differs from file to file. The rest is filled once per thread, so that the target is
        // measured and not the filling.
        let word = buffer.len().min(8);
        fill(&mut buffer[..word], number);
        if synced { directory.create_synced(name, buffer) } else { directory.create(name, buffer) }
    })
}

/// Writes the large file and syncs it.
fn written(target: &dyn Target, shape: &Shape) -> Result<(), Failure> {
    let file = target.large_file()?;
    in_pieces(shape.large_bytes, |at, piece| {
        fill(&mut piece[..8], at);
        file.write(at, piece)
    })?;
    file.sync()
}

/// Calls `each` for every piece of a file with `bytes` bytes, with the offset and a buffer of the piece's
/// length.
fn in_pieces(bytes: u64, mut each: impl FnMut(u64, &mut [u8]) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut piece = AlignedBuf::zeroed(usize::try_from(PIECE_BYTES).expect("a piece fits in memory"));
    fill(&mut piece, bytes);
    for at in (0..bytes).step_by(usize::try_from(PIECE_BYTES).expect("a piece fits in memory")) {
        let len = usize::try_from(PIECE_BYTES.min(bytes - at)).expect("a piece fits in memory");
        each(at, &mut piece[..len])?;
    }
    Ok(())
}

/// One operation on a file. Its arguments are the directory, the name, a buffer to reuse, and the number of
/// the file.
type OnFile<'a> = &'a (dyn Fn(&mut dyn Directory, &str, &mut Vec<u8>, u64) -> Result<(), Failure> + Sync);

fn each_file(target: &dyn Target, shape: &Shape, on_file: OnFile<'_>) -> Result<Vec<u64>, Failure> {
    each_file_timed(target, shape, false, &|number| number, on_file)
}

/// Runs an operation once for each file, spread over all threads. `chosen` maps the numbers from 0 on to the
/// files.
fn each_file_timed(
    target: &dyn Target,
    shape: &Shape,
    timed: bool,
    chosen: &(dyn Fn(u64) -> u64 + Sync),
    on_file: OnFile<'_>,
) -> Result<Vec<u64>, Failure> {
    in_threads(shape, |files| {
        let mut times =
            Vec::with_capacity(if timed { usize::try_from(files.end - files.start).unwrap_or(0) } else { 0 });
        let mut name = Name::new();
        let mut buffer = vec![0; usize::try_from(shape.size_bytes).expect("a small file fits in memory")];
        fill(&mut buffer, files.start);
        let mut open: Option<(u64, Box<dyn Directory + '_>)> = None;
        for number in files.map(chosen) {
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

/// The directory of a file. Files with consecutive numbers share one.
fn directory_of(number: u64, shape: &Shape) -> u64 {
    let of = u128::from(number) * u128::from(shape.dirs) / u128::from(shape.count);
    u64::try_from(of).expect("less than the number of directories")
}

/// Lists all directories. Each thread takes the next one when it is done with its last.
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

/// One operation on a block of the large file. Its arguments are the file, the offset and the block.
type OnBlock<'a> = &'a (dyn Fn(&dyn LargeFile, u64, &mut [u8]) -> Result<(), Failure> + Sync);

/// Runs an operation on random blocks of the large file, spread over all threads.
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

/// Splits the numbers below `count` into one range per thread, and collects the times that the threads
/// return.
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

/// Times a phase and counts the work of the devices in it.
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

/// Processor time that all threads of this process have used.
pub fn processor_nanos() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec.cast_unsigned() * 1_000_000_000 + used.tv_nsec.cast_unsigned()
}
