//! Thirty days of snapshots, one after each 20 minutes of load, each kept for a day. The days are counted,
//! and pass as fast as the device takes them.

use std::path::Path;
use std::time::Duration;

use warpfire::{File, OpenOptions, Pool, Warpfire};

use super::host::HostTree;
use super::{MIB, Outcome, Rng, fresh, now_nanos, seconds_since, show};

/// Steps of 20 minutes in 30 days.
pub const STEPS: u64 = 30 * 72;

/// Steps for which a snapshot is kept.
const KEPT: u64 = 72;

const FILES: u64 = 64;
const FILE_BYTES: u64 = 4 * MIB;
const BLOCK: u64 = 4096;

/// Blocks that are overwritten between two snapshots.
const BLOCKS_A_STEP: u64 = 64;

/// A tree of files under load, with snapshots.
pub(super) trait Tree {
    fn overwrite(&self, file: u64, at: u64, bytes: &[u8]) -> Outcome<()>;
    fn sync(&self) -> Outcome<()>;
    fn snapshot(&self, number: u64) -> Outcome<()>;
    fn delete(&self, number: u64) -> Outcome<()>;
}

/// Which snapshots there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Snapshots {
    None,
    KeptForADay,
    KeptForever,
}

/// The times of all overwrites, in nanoseconds, and of all snapshots and deletions.
#[derive(Default)]
struct Times {
    overwrites: Vec<u64>,
    snapshots: Vec<u64>,
    deletions: Vec<u64>,
    seconds: f64,
}

fn percentile_us(times: &[u64], thousandths: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * thousandths / 1000).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |nanos| *nanos as f64 / 1e3)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn timed(times: &mut Vec<u64>, act: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
    let start_nanos = now_nanos();
    act()?;
    times.push(now_nanos() - start_nanos);
    Ok(())
}

/// The load of all steps.
fn live(tree: &dyn Tree, steps: u64, which: Snapshots) -> Outcome<Times> {
    let (mut times, mut rng, start_nanos) = (Times::default(), Rng(7), now_nanos());
    for step in 0..steps {
        for _ in 0..BLOCKS_A_STEP {
            let (file, block) = (rng.below(FILES), rng.below(FILE_BYTES / BLOCK));
            let bytes = rng.bytes(BLOCK);
            timed(&mut times.overwrites, || tree.overwrite(file, block * BLOCK, &bytes))?;
        }
        if which == Snapshots::None {
            tree.sync()?;
            continue;
        }
        timed(&mut times.snapshots, || tree.snapshot(step))?;
        if which == Snapshots::KeptForADay && step >= KEPT {
            timed(&mut times.deletions, || tree.delete(step - KEPT))?;
        }
    }
    times.seconds = seconds_since(start_nanos);
    Ok(times)
}

fn report(name: &str, times: &Times) {
    println!(
        "{name}: {:.1} s; an overwrite {:.1} us at p50, {:.1} at p99; a snapshot {:.0} us at p50, a deletion {:.0}",
        times.seconds,
        percentile_us(&times.overwrites, 500),
        percentile_us(&times.overwrites, 990),
        percentile_us(&times.snapshots, 500),
        percentile_us(&times.deletions, 500),
    );
}

struct PoolTree {
    fs: Warpfire,
    files: Vec<File>,
}

impl PoolTree {
    fn make(image: &Path, times_the_files: u64) -> Outcome<PoolTree> {
        fresh(image)?;
        let size_bytes = times_the_files * FILES * FILE_BYTES;
        let fs = Pool::options().size_bytes(size_bytes).force(true).create([image])?;
        let mut rng = Rng(1);
        let mut files = Vec::new();
        for number in 0..FILES {
            let options = OpenOptions::new().read(true).write(true).create(true);
            let file = options.open(&fs, format!("/{number}"))?;
            file.write_all_at(&rng.bytes(FILE_BYTES), 0)?;
            files.push(file);
        }
        fs.sync()?;
        Ok(PoolTree { fs, files })
    }

    fn written_bytes(&self) -> u64 {
        self.fs.stats().counters().written_bytes
    }
}

impl Tree for PoolTree {
    fn overwrite(&self, file: u64, at: u64, bytes: &[u8]) -> Outcome<()> {
        Ok(self.files[file as usize].write_all_at(bytes, at)?)
    }

    fn sync(&self) -> Outcome<()> {
        Ok(self.fs.sync()?)
    }

    fn snapshot(&self, number: u64) -> Outcome<()> {
        self.fs.create_snapshot(number.to_string())?;
        self.sync()
    }

    fn delete(&self, number: u64) -> Outcome<()> {
        self.fs.delete_snapshot(number.to_string())?;
        Ok(())
    }
}

/// How long the background has after the last step, of which each stands for 20 minutes.
const REST: Duration = Duration::from_secs(10);

/// Live bytes of files against those that the present and the snapshots need: at the end of the days, which
/// have passed in seconds; after a rest; and once all that can be dropped is dropped.
fn compare_space(tree: &PoolTree) -> Outcome<()> {
    let engine = tree.fs.filesystem().engine();
    let start_nanos = now_nanos();
    let held = tree.fs.snapshot_space()?.last().map_or(0, |newest| newest.with_older_bytes);
    let counted_ms = seconds_since(start_nanos) * 1e3;
    let needed = FILES * FILE_BYTES + held;
    println!(
        "the present needs {} MiB, and {} snapshots hold {:.1} beside; counted in {counted_ms:.0} ms",
        FILES * FILE_BYTES / MIB,
        tree.fs.snapshots()?.len(),
        held as f64 / MIB as f64,
    );
    let segment = tree.fs.stats().zone_bytes * u64::from(tree.fs.stats().data);
    let look = |moment: &str| -> Outcome<(bool, String)> {
        engine.count_live()?;
        let tables: u64 = engine.runs().iter().chain(&engine.past_runs()).map(|(_, bytes)| bytes).sum();
        let used = tree.fs.stats().space.live_bytes.saturating_sub(tables);
        let text = format!(
            "{moment} {:.1} MiB more of files are live; a segment has {} MiB; tables have {:.1}",
            used.saturating_sub(needed) as f64 / MIB as f64,
            segment / MIB,
            tables as f64 / MIB as f64,
        );
        Ok((used <= needed + 2 * segment, text))
    };
    println!("{}", look("at the end of the days")?.1);
    std::thread::park_timeout(REST);
    let (holds, text) = look("10 s later, a hundredth of a step,")?;
    show(holds, &text);
    let start_nanos = now_nanos();
    engine.reclaim_all()?;
    println!("dropping and cleaning all that can be took {:.2} s", seconds_since(start_nanos));
    let (holds, text) = look("when space is asked for")?;
    show(holds, &text);
    Ok(())
}

/// Runs the days on a new pool, and then `after`. Returns the times, and the bytes that were written to the
/// device until then.
fn run_then(
    image: &Path,
    times_the_files: u64,
    steps: u64,
    which: Snapshots,
    after: impl FnOnce(&PoolTree) -> Outcome<()>,
) -> Outcome<(Times, u64)> {
    let tree = PoolTree::make(image, times_the_files)?;
    let before = tree.written_bytes();
    let times = live(&tree, steps, which)?;
    let written = tree.written_bytes() - before;
    after(&tree)?;
    tree.fs.close()?;
    Ok((times, written))
}

fn run(image: &Path, times_the_files: u64, steps: u64, which: Snapshots) -> Outcome<(Times, u64)> {
    run_then(image, times_the_files, steps, which, |_| Ok(()))
}

/// p99 of a run follows what else the machine does, so it is the median of several, with snapshots and
/// without in turn.
const TURNS: usize = 5;

/// A pool that is cleaned in these days, and one that is not.
const SMALL: u64 = 4;
const LARGE: u64 = 256;

/// The days on a pool, with the bounds of its costs.
pub fn of_pool(image: &Path, steps: u64) -> Outcome<()> {
    let (with, with_bytes) = run_then(image, SMALL, steps, Snapshots::KeptForADay, compare_space)?;
    let (without, without_bytes) = run(image, SMALL, steps, Snapshots::None)?;
    report("snapshots kept for a day", &with);
    report("no snapshots", &without);
    let p99 = |times: &Times| percentile_us(&times.overwrites, 990);
    let (mut p99_with, mut p99_without) = (vec![p99(&with)], vec![p99(&without)]);
    for _ in 1..TURNS {
        p99_with.push(p99(&run(image, SMALL, steps, Snapshots::KeptForADay)?.0));
        p99_without.push(p99(&run(image, SMALL, steps, Snapshots::None)?.0));
    }
    let (with, without) = (median(&mut p99_with), median(&mut p99_without));
    let ratio = with / without;
    show(
        ratio <= 2.0,
        &format!(
            "p99 of an overwrite is {ratio:.2} times that without snapshots: {with:.1} and {without:.1} us, medians of {TURNS} turns"
        ),
    );
    let user = steps * BLOCKS_A_STEP * BLOCK;
    println!(
        "written for {} MiB of users, cleaning included: {} MiB with snapshots, {} without",
        user / MIB,
        with_bytes / MIB,
        without_bytes / MIB
    );
    let (_, deleted_bytes) = run(image, LARGE, steps, Snapshots::KeptForADay)?;
    let (_, kept_bytes) = run(image, LARGE, steps, Snapshots::KeptForever)?;
    let (_, none_bytes) = run(image, LARGE, steps, Snapshots::None)?;
    let for_deletion = deleted_bytes.saturating_sub(kept_bytes);
    show(
        for_deletion * 20 <= user,
        &format!(
            "in a pool that is not cleaned: {} MiB with snapshots that stay, {} with deletions, {} without snapshots: {:.1} MiB for \
             deletions",
            kept_bytes / MIB,
            deleted_bytes / MIB,
            none_bytes / MIB,
            for_deletion as f64 / MIB as f64
        ),
    );
    Ok(())
}

/// The same on btrfs.
pub fn of_host(directory: &Path, steps: u64) -> Outcome<()> {
    for which in [Snapshots::KeptForADay, Snapshots::None] {
        let tree = HostTree::make(directory, FILES, FILE_BYTES)?;
        let times = live(&tree, steps, which)?;
        let kept = which == Snapshots::KeptForADay;
        report(if kept { "btrfs, snapshots kept for a day" } else { "btrfs, no snapshots" }, &times);
        if kept {
            (steps.saturating_sub(KEPT)..steps).try_for_each(|number| tree.delete(number))?;
        }
        tree.remove()?;
    }
    Ok(())
}
