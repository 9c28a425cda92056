//! The command line, the targets that it selects, and the rounds of runs.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

use crate::backing::{Backing, PoolSpec};
use crate::engine;
use crate::kernel::{Kernel, Kind};
use crate::library::Library;
use crate::names::Order;
use crate::raw::Raw;
use crate::report::{Machine, Report, Row, Skipped};
use crate::rocksdb::Rocksdb;
use crate::served::{self, Empty, MountOptions, Mounted, Named};
use crate::target::Target;
use crate::workload::{Measure, Shape, Workload};
use warpfire_terminal::{Failure, Size, note, print, print_json};

const EXAMPLES: &str = "\
sync, seq, randread and randwrite fill all image files with zeros once before the runs, and the bare file too: a
write into a sparse file waits until the filesystem below has allocated its space. The others use sparse files.

Examples:
  warpfire-bench create --files 1M                                     a million files through the library
  warpfire-bench create --files 1M --peers mount,ext4,xfs,btrfs        the same on peers; needs root
  warpfire-bench create --peers mount,mount-shared,ext4 --awake        no processor halts during any run
  warpfire-bench create --peers mount,empty,mount-shared,empty-shared  beside servers without a filesystem
  warpfire-bench sync --files 10000 --threads 8 --peers raw            each file durable; a bare write beside it
  warpfire-bench lookup --files 8M --cache 64M                         attributes by name, mostly not in memory
  warpfire-bench randread --large 4G --files 500K --threads 32 --peers raw
  warpfire-bench lookup --files 1M --snapshots 1000                    the same with and without snapshots
  warpfire-bench meta --files 5M --order random                        the metadata engine alone
  warpfire-bench meta --files 2M --batch 100 --peers rocksdb           the engine alone, RocksDB beside it
  warpfire-bench stat --files 1M --mount /mnt --runs 5 --json          inside an existing directory";

/// Measures a pool, a mounted directory, and other filesystems in turn.
#[derive(Parser, Debug)]
#[command(name = "warpfire-bench", version, about, after_help = EXAMPLES, max_term_width = 110)]
pub struct Args {
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,

    /// The workload to measure.
    workload: Workload,

    /// Number of small files, or of operations on the large file: 5000, 100K, 1M (thousands).
    #[arg(long, default_value = "100K", value_parser = parse_count)]
    files: u64,

    /// Bytes of a small file.
    #[arg(long, default_value = "100")]
    size: Size,

    /// Bytes of the large file.
    #[arg(long, default_value = "1G")]
    large: Size,

    /// Threads that work at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,

    /// Directories that share the files.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    dirs: u64,

    /// Order of names.
    #[arg(long, value_enum, default_value = "in-order")]
    order: Order,

    /// Runs of each target. The report shows medians.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,

    /// Devices of a stripe that hold data, in a pool that the benchmark makes.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=250))]
    data: u16,

    /// Devices of a stripe that hold parity, in a pool that the benchmark makes.
    #[arg(long, value_name = "M", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=8))]
    parity: u8,

    /// Let the library work in the background with its own threads.
    #[arg(long)]
    background: bool,

    /// Memory of the library, of mounts and of the engine for metadata that they have read. RocksDB has as
    /// much [default: that of a pool].
    #[arg(long, value_name = "SIZE")]
    cache: Option<Size>,

    /// Directory for image files. Name one on the flash to measure.
    #[arg(long, value_name = "DIR", default_value = ".")]
    backing: PathBuf,

    /// Space for the files of one target [default: four times the space that they need, at least 2 GiB].
    #[arg(long, value_name = "SIZE")]
    capacity: Option<Size>,

    /// Measure inside this directory instead of the library.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,

    /// Measure the library once more in the same rounds, with so many snapshots. They are taken at equal
    /// distances while the files, or the large file, are first written.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    snapshots: Option<u64>,

    /// Other targets to measure in the same rounds.
    #[arg(long, value_enum, value_delimiter = ',')]
    peers: Vec<Peer>,

    /// Keep idle processors from halting during all runs, for every target alike. Root's server of a mount
    /// does so on its own while requests flow. Needs root.
    #[arg(long)]
    awake: bool,

    /// Mount so that the server never keeps idle processors from halting.
    #[arg(long, conflicts_with = "awake")]
    let_halt: bool,

    /// The program that mounts the pool for the peers `mount` and `mount-shared` [default: `warpfire` beside
    /// this program].
    #[arg(long, value_name = "PROGRAM")]
    warpfire: Option<PathBuf>,

    /// Records per commit in the workload `meta`. The default of 1 resembles new files, each of which is a
    /// commit.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,

    /// The program that runs the workload `meta` on RocksDB. benches/peers/rocksdb/build.sh builds it.
    #[arg(long, value_name = "PROGRAM", default_value = "target/peers/rocksdb-load")]
    rocksdb: PathBuf,
}

/// Targets beside the first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Peer {
    /// The same pool, mounted for its own user.
    Mount,
    /// The same pool, mounted with `--allow-other`: the kernel checks permissions on each call.
    MountShared,
    /// A server without a filesystem, mounted for its own user, for the workload `create`.
    Empty,
    /// The same, mounted with `--allow-other`.
    EmptyShared,
    /// ext4 on a loop device.
    Ext4,
    /// XFS on a loop device.
    Xfs,
    /// btrfs on a loop device.
    Btrfs,
    /// A bare file, without the page cache.
    Raw,
    /// RocksDB, for the workload `meta`.
    Rocksdb,
}

/// Parses a count. `1M` is a million and not 2^20, because it counts files and not bytes.
fn parse_count(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a count; write for example 5000, 100K or 1M");
    let (digits, scale) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(scale).filter(|&count| count > 0).ok_or_else(wrong)
}

/// Runs the benchmark and prints the report.
///
/// # Errors
/// A target fails, or cannot be set up.
pub fn run(args: &Args) -> Result<(), Failure> {
    let shape = Shape {
        count: args.files,
        size_bytes: args.size.0,
        large_bytes: args.large.0,
        threads: args.threads,
        dirs: args.dirs.min(args.files),
        order: args.order,
    };
    let backing = Backing::new(&args.backing)?;
    let _awake = args.awake.then(keep_awake).transpose()?;
    let mut skipped = Vec::new();
    if args.workload == Workload::Meta {
        let rows = measure_engine(args, &shape, &backing, &mut skipped)?;
        return show(args, shape, rows, skipped);
    }
    let mut targets = targets(args, &shape, &backing, &mut skipped)?;
    let mut measures: Vec<Vec<Vec<Measure>>> = targets.iter().map(|_| Vec::new()).collect();
    for round in 1..=args.runs {
        for (target, measured) in targets.iter_mut().zip(&mut measures) {
            let phases = args.workload.run(target.as_mut(), &shape)?;
            for (at, phase) in phases.into_iter().enumerate() {
                let micros = phase.nanos as f64 / 1e3 / phase.ops.max(1) as f64;
                note(format_args!("run {round}: {} {} {micros:.3} µs/op", target.name(), phase.phase));
                if measured.len() == at {
                    measured.push(Vec::new());
                }
                measured[at].push(phase);
            }
        }
    }
    let rows = targets.iter().zip(measures).flat_map(|(target, phases)| {
        phases.into_iter().map(|runs| Row::of_runs(target.name(), runs)).collect::<Vec<_>>()
    });
    let rows = rows.collect();
    show(args, shape, rows, skipped)
}

/// Bounds the wake-up latency of all processors to 0 µs for as long as the returned file is open, see
/// <https://docs.kernel.org/power/pm_qos_interface.html>.
fn keep_awake() -> Result<File, Failure> {
    let device = Path::new("/dev/cpu_dma_latency");
    let failed = |error| Failure::local(device, &error);
    let mut file = File::options().write(true).open(device).map_err(failed)?;
    file.write_all(&0i32.to_ne_bytes()).map_err(failed)?;
    Ok(file)
}

/// Runs the workload `meta` on the engine and, in turn with it, on RocksDB. The phases of a run use the same
/// records.
fn measure_engine(
    args: &Args,
    shape: &Shape,
    backing: &Backing,
    skipped: &mut Vec<Skipped>,
) -> Result<Vec<Row>, Failure> {
    let spec = PoolSpec::new(
        backing.subdirectory("engine")?,
        args.data,
        args.parity,
        capacity_bytes(args, shape),
        false,
    );
    let mut rocksdb = None;
    if args.snapshots.is_some() {
        let reason = "the workload meta has no files of which to take snapshots".to_owned();
        skipped.push(Skipped { target: "snapshots".to_owned(), reason });
    }
    for peer in &args.peers {
        let found = match peer {
            Peer::Rocksdb => Rocksdb::find(&args.rocksdb, backing.subdirectory("rocksdb")?),
            _ => Err("it keeps files and no records; the only peer of meta is rocksdb".to_owned()),
        };
        match found {
            Ok(found) => rocksdb = Some(found),
            Err(reason) => skipped.push(Skipped { target: format!("{peer:?}").to_lowercase(), reason }),
        }
    }
    let mut names = vec!["engine".to_owned()];
    names.extend(rocksdb.iter().map(Rocksdb::name));
    let cache_bytes = args.cache.map_or_else(warpfire::default_cache_bytes, |Size(bytes)| bytes);
    let mut measured: Vec<Vec<Measure>> = (0..3 * names.len()).map(|_| Vec::new()).collect();
    for round in 1..=args.runs {
        let mut phases = engine::measure(&spec, shape, args.batch, cache_bytes)?;
        if let Some(rocksdb) = &rocksdb {
            phases.extend(rocksdb.measure(shape, args.batch, cache_bytes)?);
        }
        for (at, (runs, measure)) in measured.iter_mut().zip(phases).enumerate() {
            let micros = measure.nanos as f64 / 1e3 / measure.ops.max(1) as f64;
            note(format_args!("run {round}: {} {} {micros:.3} µs/op", names[at / 3], measure.phase));
            runs.push(measure);
        }
    }
    let row = |(at, runs): (usize, Vec<Measure>)| Row::of_runs(names[at / 3].clone(), runs);
    Ok(measured.into_iter().enumerate().map(row).collect())
}

fn show(args: &Args, shape: Shape, rows: Vec<Row>, skipped: Vec<Skipped>) -> Result<(), Failure> {
    let report = Report {
        command: std::env::args().collect::<Vec<_>>().join(" "),
        machine: Machine::this(),
        workload: args.workload.name(),
        shape,
        runs: args.runs,
        prewritten: args.workload.is_prewritten(),
        rows,
        skipped,
    };
    if args.json { print_json(&report) } else { print(report.in_words()) }
}

/// Space for the files, several times over: kernel filesystems round each file up to blocks and keep an inode
/// for it.
fn capacity_bytes(args: &Args, shape: &Shape) -> u64 {
    const SLACK: u64 = 4;
    const BLOCK_AND_INODE: u64 = 4096 + 1024;
    const LEAST: u64 = 2 << 30;
    let need = if args.workload.is_large() {
        shape.large_bytes
    } else {
        shape.count.saturating_mul(shape.size_bytes.next_multiple_of(4096).max(BLOCK_AND_INODE))
    };
    args.capacity.map_or_else(|| need.saturating_mul(SLACK).max(LEAST), |size| size.0)
}

fn targets(
    args: &Args,
    shape: &Shape,
    backing: &Backing,
    skipped: &mut Vec<Skipped>,
) -> Result<Vec<Box<dyn Target>>, Failure> {
    let capacity = capacity_bytes(args, shape);
    let prewritten = args.workload.is_prewritten();
    let pool = |name: &str| -> Result<PoolSpec, Failure> {
        Ok(PoolSpec::new(backing.subdirectory(name)?, args.data, args.parity, capacity, prewritten))
    };
    let mut targets: Vec<Box<dyn Target>> = Vec::new();
    match &args.mount {
        Some(directory) => targets.push(Box::new(Named::new(directory)?)),
        None => targets.push(Box::new(Library::new(pool("library")?, args.background, args.cache))),
    }
    if let Some(count) = args.snapshots {
        let writes = if args.workload.is_large() { shape.large_pieces() } else { shape.count };
        let library = Library::new(pool("snapshots")?, args.background, args.cache);
        targets.push(Box::new(library.with_snapshots(count, writes)));
    }
    for &peer in &args.peers {
        let mut kernel = |kind: Kind| -> Result<(), Failure> {
            match kind.unavailable() {
                Some(reason) => {
                    let target = kind.mkfs(0, false)[0].trim_start_matches("mkfs.").to_owned();
                    skipped.push(Skipped { target, reason });
                }
                None => {
                    let name = format!("{kind:?}").to_lowercase();
                    let (image, mountpoint) =
                        (backing.path(&format!("{name}.img")), backing.subdirectory(&name)?);
                    targets.push(Box::new(Kernel::new(
                        kind,
                        image,
                        mountpoint,
                        capacity,
                        shape.count,
                        prewritten,
                    )));
                }
            }
            Ok(())
        };
        match peer {
            Peer::Ext4 => kernel(Kind::Ext4)?,
            Peer::Xfs => kernel(Kind::Xfs)?,
            Peer::Btrfs => kernel(Kind::Btrfs)?,
            Peer::Mount | Peer::MountShared => {
                let program = match &args.warpfire {
                    Some(program) => program.clone(),
                    None => served::program()?,
                };
                let allow_other = peer == Peer::MountShared;
                let name = if allow_other { "shared" } else { "mounted" };
                let mountpoint = backing.subdirectory(&format!("{name}-mountpoint"))?;
                let options = MountOptions { allow_other, let_halt: args.let_halt, cache: args.cache };
                targets.push(Box::new(Mounted::new(program, pool(name)?, mountpoint, options)));
            }
            Peer::Empty | Peer::EmptyShared => {
                let allow_other = peer == Peer::EmptyShared;
                let name = if allow_other { "empty-shared" } else { "empty" };
                match empty_is_unavailable(args.workload) {
                    Some(reason) => {
                        skipped.push(Skipped { target: name.to_owned(), reason: reason.to_owned() })
                    }
                    None => targets.push(Box::new(Empty::new(backing.subdirectory(name)?, allow_other)?)),
                }
            }
            Peer::Raw if args.workload.needs_no_names() => {
                let bytes = if args.workload.is_large() { shape.large_bytes } else { 1 << 28 };
                targets.push(Box::new(Raw::new(backing.path("raw"), bytes)));
            }
            Peer::Rocksdb => {
                let reason = "it keeps records and no files; its workload is meta".to_owned();
                skipped.push(Skipped { target: "rocksdb".to_owned(), reason });
            }
            Peer::Raw => {
                let reason = format!("a bare file has no names to {}", args.workload.name());
                skipped.push(Skipped { target: "raw".to_owned(), reason });
            }
        }
    }
    Ok(targets)
}

/// The reason why the empty server cannot take part; `None` if it can.
fn empty_is_unavailable(workload: Workload) -> Option<&'static str> {
    match workload {
        Workload::Create if !rustix::process::geteuid().is_root() => Some("mounting it needs root"),
        Workload::Create if !Path::new("/dev/fuse").exists() => Some("mounting it needs /dev/fuse"),
        Workload::Create => None,
        _ => Some("it keeps no files; its workload is create"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_table_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn counts_are_in_thousands() {
        assert_eq!(parse_count("5000"), Ok(5_000));
        assert_eq!(parse_count("100K"), Ok(100_000));
        assert_eq!(parse_count("8M"), Ok(8_000_000));
        for wrong in ["", "M", "0", "-1", "1.5M", "99999999999999G"] {
            assert!(parse_count(wrong).is_err(), "{wrong}");
        }
    }
}
