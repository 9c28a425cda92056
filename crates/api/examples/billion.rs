//! One stage of the life of a pool with very many files: `billion IMAGE FILES ORDER STAGE`.
//!
//! `scripts/billion` runs the stages one after the other, each in a process of its own:
//! - `fill` makes the pool and its files. An interrupted fill goes on behind its last sync.
//! - `crash` makes some files more without a sync, says so, and waits to be killed.
//! - `open` opens the pool and lists the root.
//! - `walk` counts all names; `backup` also reads the attributes of each, as a backup does.
//! - `empty` removes everything. An interrupted one goes on with the rest.
//!
//! A tenth of the files is in one directory, the others are in directories of a million. One file of 16 has
//! 100 bytes, the others are empty. ORDER is the order of names: `sorted`, or `random`, which scatters them
//! within their directory.
//!
//! A stage prints one line of JSON at its end, and its progress to stderr.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warpfire::{Dir, Pool, Warpfire};
use warpfire_env::{Clock, SystemClock};

type Failure = Box<dyn Error>;

const DIRECTORY_FILES: u64 = 1_000_000;
const SMALL_BYTES: u64 = 100;
const SMALL_ONE_IN: u64 = 16;
/// Files of `crash`, which no sync covers.
const UNSYNCED: u64 = 100_000;
/// Multiplying by an odd number permutes the numbers, so each file gets a name of its own.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The files to make.
struct Plan {
    image: PathBuf,
    files: u64,
    is_random: bool,
}

impl Plan {
    fn options_for_size(&self) -> u64 {
        // What the records and bytes take at most, what merges need beside it, and the parts of a pool that
        // do not depend on its files. The image is sparse.
        (self.files * 400).next_multiple_of(1 << 30) + (2 << 30)
    }

    fn directory_of(&self, number: u64) -> String {
        let in_one = self.files / 10;
        match number.checked_sub(in_one) {
            None => "/one".to_owned(),
            Some(rest) => format!("/{:06}", rest / DIRECTORY_FILES),
        }
    }

    fn name_of(&self, number: u64) -> String {
        if self.is_random { format!("{:016x}", number.wrapping_mul(ODD)) } else { format!("{number:012}") }
    }

    fn is_small(number: u64) -> bool {
        number % SMALL_ONE_IN == SMALL_ONE_IN / 2
    }

    fn small_files(&self) -> u64 {
        (self.files + SMALL_ONE_IN / 2 - 1) / SMALL_ONE_IN
    }

    /// The file that says how many files are durable.
    fn mark(&self) -> PathBuf {
        self.image.with_extension("filled")
    }

    fn filled(&self) -> u64 {
        std::fs::read_to_string(self.mark()).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn note_filled(&self, files: u64) -> Result<(), Failure> {
        let new = self.mark().with_extension("new");
        std::fs::write(&new, files.to_string())?;
        Ok(std::fs::rename(new, self.mark())?)
    }
}

/// The time since some moment before the program began.
fn now() -> Duration {
    Duration::from_nanos(SystemClock.monotonic_nanos())
}

/// The run of a stage: its progress, and the figures at its end.
struct Stage {
    name: String,
    total: u64,
    done: u64,
    /// Items that an earlier run of this stage had done.
    before: u64,
    began: Duration,
    told: Duration,
    last: Duration,
    longest_gap: Duration,
}

impl Stage {
    fn begin(name: &str, total: u64, before: u64) -> Stage {
        let now = now();
        let longest_gap = Duration::ZERO;
        Stage {
            name: name.to_owned(),
            total,
            done: before,
            before,
            began: now,
            told: now,
            last: now,
            longest_gap,
        }
    }

    /// Counts one more item.
    fn step(&mut self) {
        self.done += 1;
        let now = now();
        self.longest_gap = self.longest_gap.max(now - self.last);
        self.last = now;
        if now - self.told >= TELL_EVERY {
            self.told = now;
            let seconds = (now - self.began).as_secs_f64();
            let rate = (self.done - self.before) as f64 / seconds;
            let left = self.total.saturating_sub(self.done) as f64 / rate;
            let (name, done, total) = (&self.name, self.done, self.total);
            eprintln!("{name}: {done} of {total}, {rate:.0} a second, {left:.0} s left");
        }
    }

    /// The next item begins now: what came before is no gap between two items.
    fn resume(&mut self) {
        self.last = now();
    }

    /// Prints the figures. `pool` is open if the stage has used one.
    fn end(&self, pool: &Warpfire) {
        let seconds = (now() - self.began).as_secs_f64();
        let devices = pool.stats().devices;
        let sum = |of: fn(&warpfire::DeviceCounters) -> u64| -> u64 {
            devices.iter().map(|device| of(&device.counters)).sum()
        };
        let mut line = String::new();
        let mut put = |key: &str, value: String| {
            let comma = if line.is_empty() { "{" } else { ", " };
            write!(line, "{comma}\"{key}\": {value}").expect("a string takes everything");
        };
        put("stage", format!("\"{}\"", self.name));
        put("files", (self.done - self.before).to_string());
        put("seconds", format!("{seconds:.3}"));
        put("longest_gap_ms", format!("{:.1}", self.longest_gap.as_secs_f64() * 1e3));
        put("peak_bytes", peak_bytes().map_or("null".to_owned(), |bytes| bytes.to_string()));
        put("device_reads", sum(|c| c.reads).to_string());
        put("read_bytes", sum(|c| c.read_bytes).to_string());
        put("device_writes", sum(|c| c.writes).to_string());
        put("written_bytes", sum(|c| c.written_bytes).to_string());
        put("live_bytes", pool.stats().space.live_bytes.to_string());
        println!("{line}}}");
    }
}

/// The most memory that this process has had, as the kernel counts it.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

fn fill(plan: &Plan) -> Result<(), Failure> {
    let first = plan.filled();
    let pool = if first == 0 {
        _ = std::fs::remove_file(&plan.image);
        Pool::options().size_bytes(plan.options_for_size()).create([&plan.image])?
    } else {
        Pool::options().open([&plan.image])?
    };
    let sync_every = (plan.files / 20).clamp(10_000, 5_000_000);
    let mut stage = Stage::begin("fill", plan.files, first);
    let mut open: Option<(String, Dir)> = None;
    for number in first..plan.files {
        let path = plan.directory_of(number);
        if open.as_ref().is_none_or(|(opened, _)| *opened != path) {
            pool.create_dir_all(&path)?;
            open = Some((path.clone(), pool.dir(&path)?));
        }
        let (_, dir) = open.as_ref().expect("it was opened");
        let bytes = [number as u8; SMALL_BYTES as usize];
        dir.write(plan.name_of(number), if Plan::is_small(number) { &bytes[..] } else { &[] })?;
        stage.step();
        if stage.done.is_multiple_of(sync_every) {
            pool.sync()?;
            plan.note_filled(stage.done)?;
            stage.resume();
        }
    }
    pool.sync()?;
    plan.note_filled(plan.files)?;
    stage.end(&pool);
    Ok(pool.close()?)
}

fn crash(plan: &Plan) -> Result<(), Failure> {
    let pool = Pool::options().open([&plan.image])?;
    let dir = pool.dir("/one")?;
    for number in 0..UNSYNCED {
        dir.write(format!("unsynced-{number:06}"), b"")?;
    }
    println!("unsynced {UNSYNCED} more");
    loop {
        std::thread::park();
    }
}

/// Opens the pool and lists the root. Returns its directories.
fn open(plan: &Plan, stage: &mut Stage) -> Result<(Warpfire, Vec<PathBuf>), Failure> {
    let pool = Pool::options().open([&plan.image])?;
    let mut directories = Vec::new();
    for entry in pool.read_dir("/")? {
        directories.push(Path::new("/").join(entry?.file_name()));
        if stage.name == "open" {
            stage.step();
        }
    }
    Ok((pool, directories))
}

fn walk(plan: &Plan, with_attributes: bool) -> Result<(), Failure> {
    let mut stage = Stage::begin(if with_attributes { "backup" } else { "walk" }, plan.files, 0);
    let (pool, directories) = open(plan, &mut stage)?;
    let (mut names, mut unsynced, mut bytes) = (0, 0, 0);
    for path in directories {
        for entry in pool.read_dir(&path)? {
            let entry = entry?;
            let is_unsynced = entry.file_name().as_encoded_bytes().starts_with(b"unsynced-");
            unsynced += u64::from(is_unsynced);
            names += u64::from(!is_unsynced);
            if with_attributes {
                bytes += entry.metadata()?.len();
            }
            stage.step();
        }
    }
    if names != plan.files || unsynced > UNSYNCED {
        return Err(format!(
            "{names} files are there and {unsynced} unsynced ones, {} were made",
            plan.files
        )
        .into());
    }
    if with_attributes && bytes != plan.small_files() * SMALL_BYTES {
        return Err(format!("the files have {bytes} bytes").into());
    }
    stage.end(&pool);
    Ok(pool.close()?)
}

fn empty(plan: &Plan) -> Result<(), Failure> {
    let mut stage = Stage::begin("empty", plan.files, 0);
    let (pool, directories) = open(plan, &mut stage)?;
    for path in directories {
        // The directory itself is one removal more.
        pool.remove_dir_all_with(&path, || stage.step())?;
    }
    pool.sync()?;
    if pool.read_dir("/")?.next().is_some() {
        return Err("something is left".into());
    }
    stage.end(&pool);
    Ok(pool.close()?)
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, files, order, stage] = words.as_slice() else {
        return Err("usage: billion IMAGE FILES sorted|random fill|crash|open|walk|backup|empty".into());
    };
    let plan = Plan { image: image.into(), files: files.parse()?, is_random: order == "random" };
    match stage.as_str() {
        "fill" => fill(&plan),
        "crash" => crash(&plan),
        "open" => {
            let mut stage = Stage::begin("open", 1, 0);
            let (pool, _) = open(&plan, &mut stage)?;
            stage.end(&pool);
            Ok(pool.close()?)
        }
        "walk" => walk(&plan, false),
        "backup" => walk(&plan, true),
        "empty" => empty(&plan),
        _ => Err(format!("'{stage}' is no stage").into()),
    }
}
