//! Damage has the names of files: the report names the ranges that a reader of the pool cannot read.
//!
//! The oracle is the engine. It opens the damaged pool for reading and reads every file in pieces. Bytes that
//! it cannot read are lost. Bytes that it can read, but not after the loss of as many devices as the pool has
//! parity, are weak. A scrub names the files of its damaged segments before it repairs them, and names the
//! same as the check of the whole pool. The tests take a few dozen random damages. All that is promised:
//! `WARPFIRE_DAMAGES=1000 cargo test --release -p warpfire-check --test pools by_file -- --nocapture`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpfire_check::{ByteRange, CheckOptions, CheckReport, check};
use warpfire_env::Device;
use warpfire_fs::acl::Caller;
use warpfire_fs::{FileKind, Fs, FsError, FsOptions, FsSchema, NewMode, NodeRef, Position};
use warpfire_log::{Log, LogStore};
use warpfire_meta::{Engine, EngineOptions, Store};
use warpfire_pool::Pool;
use warpfire_sim_env::SimWorld;
use warpfire_units::Seq;

use crate::rig::{PoolShape, RigRandom, SHAPES, TestFs, ZONE_BYTES, checked, live, make, options, world};

/// Opens the pool for reading. `None` if that is impossible.
fn look(world: &SimWorld, devices: Vec<Arc<dyn Device>>) -> Option<TestFs> {
    let (pool, root) = Pool::open_for_reading(devices).ok()?;
    let (log, recovered) = Log::open(pool, &root).ok()?;
    let options = EngineOptions { read_only: true, ..options() };
    let engine = Arc::new(Engine::open(log, recovered, FsSchema, options).ok()?);
    Fs::open(engine, world.clock(), FsOptions { read_only: true, ..FsOptions::default() }).ok()
}

type Listing = BTreeMap<Vec<u8>, NodeRef>;

/// All paths below a directory.
fn list(fs: &TestFs, dir: &NodeRef, at: &[u8], found: &mut Listing) -> Result<(), FsError> {
    for entry in fs.readdir(&Caller::ROOT, dir, None, usize::MAX)? {
        let path = [at, b"/", &entry.name[..]].concat();
        let node = fs.lookup(&Caller::ROOT, dir, &entry.name)?;
        if entry.kind == FileKind::Directory {
            list(fs, &node, &path, found)?;
        }
        found.insert(path, node);
    }
    Ok(())
}

/// Bytes that are read in one call.
const PIECE_BYTES: u64 = 64 << 10;

/// The ranges of a file that cannot be read, to the byte.
fn unreadable(fs: &TestFs, node: &NodeRef, size: u64) -> Vec<ByteRange> {
    let fails = |from: u64, to: u64| {
        let mut buf = vec![0; usize::try_from(to - from).expect("test files are small")];
        match fs.read(node, from, &mut buf) {
            Ok(_) => false,
            Err(FsError::Damaged { .. }) => true,
            Err(other) => panic!("a read of damaged bytes says {other}"),
        }
    };
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let piece = size.min(at + PIECE_BYTES);
        if !fails(at, piece) {
            at = piece;
            continue;
        }
        // The longest beginning that can be read ends at the first lost byte.
        let (mut good, mut bad) = (at, piece);
        while good + 1 < bad {
            let middle = good + (bad - good) / 2;
            if fails(at, middle) { bad = middle } else { good = middle }
        }
        let start = bad - 1;
        // Lost bytes come in blocks and slices, so a stretch with two lost ends is lost between them.
        let mut end = bad;
        for step in [4096, 512, 32, 1] {
            while end < size && fails(end, end + 1) && fails(size.min(end + step) - 1, size.min(end + step)) {
                end = size.min(end + step);
            }
        }
        match ranges.last_mut() {
            Some(ByteRange { end: last, .. }) if *last == start => *last = end,
            _ => ranges.push(ByteRange { start, end }),
        }
        at = end;
    }
    ranges
}

/// A pool with large files, small files, links and directories. Some bytes are overwritten and some removed.
fn filled(shape: PoolShape, seed: u64) -> SimWorld {
    let world = world(shape, seed);
    let fs = make(&world, shape);
    live(&fs, seed, 150);
    let root = Caller::ROOT;
    for n in 0..4u64 {
        let name = format!("large{n}").into_bytes();
        let file = fs.create(&root, &fs.root(), &name, NewMode::exact(0o644)).expect("a new name is made");
        let bytes: Vec<u8> = (0..1_300_000u64).map(|at| (at / 7 + n) as u8).collect();
        fs.write(&root, &file, Position::At(0), &bytes).expect("there is room");
        fs.link(&root, &file, &fs.root(), format!("link{n}").as_bytes()).expect("a link is made");
    }
    fs.close().expect("sound devices do not fail");
    world
}

/// Overwrites a run of 1 to 64 blocks on some devices at the same place, in zones that hold something.
fn hurt(world: &SimWorld, draw: &mut RigRandom) {
    let sims = world.sims();
    let devices = 1 + draw.below(sims.len().min(4) as u64) as usize;
    let first = draw.below(sims.len() as u64) as usize;
    let blocks = 1 << draw.below(7);
    let zone = loop {
        let zone = 2 + draw.below(94);
        if sims[first].peek(zone * ZONE_BYTES, 4096).iter().any(|b| *b != 0) {
            break zone;
        }
    };
    let at = zone * ZONE_BYTES + draw.below(ZONE_BYTES / 4096) * 4096;
    let len = (blocks * 4096).min((zone + 1) * ZONE_BYTES - at);
    for n in 0..devices {
        sims[(first + n) % sims.len()].poke(at, &vec![0xA5; usize::try_from(len).expect("64 blocks")]);
    }
}

/// The report of a scrub on its damaged segments, and whether a check finds the pool clean after the repair.
/// `None` if the pool does not open.
fn scrubbed(world: &SimWorld) -> Option<(CheckReport, bool)> {
    let (pool, root) = Pool::open(world.devices(), &*world.random()).ok()?;
    let (log, recovered) = Log::open(pool, &root).ok()?;
    let engine = Engine::open(log, recovered, FsSchema, options()).ok()?;
    engine.flush().ok()?;
    let mut after = None;
    while let Some(step) = engine
        .scrub_step(after, warpfire_log::WorkFor::Caller)
        .expect("sound devices are readable")
        .verified()
    {
        after = Some(step.segment);
    }
    let damaged = engine.log().damaged().expect("there is room");
    let only = Some(damaged.iter().map(|segment| segment.get()).collect());
    let report = check(&world.devices(), &CheckOptions { only, ..CheckOptions::default() });
    while !engine.log().damaged().ok()?.is_empty() && engine.background_step().ok()? {}
    engine.sync(Seq::MAX).ok()?;
    drop(engine);
    Some((report.expect("there is a pool"), checked(&world.devices()).is_clean()))
}

/// Compares the report with what a reader meets. Returns the numbers of damaged files and of lost names.
fn compare(
    case: &str,
    world: &SimWorld,
    report: &CheckReport,
    sizes: &BTreeMap<Vec<u8>, u64>,
) -> (usize, usize) {
    let said = |path: &Vec<u8>, node: &NodeRef| -> Vec<ByteRange> {
        let Some(file) = report.damage.files.iter().find(|f| f.inode == node.ino()) else {
            return Vec::new();
        };
        assert!(file.more_paths > 0 || file.paths.contains(path), "{case}: {file:?}");
        file.lost.clone()
    };
    let all = || format!("{:#?}\n{:#?}", report.damage, report.findings);
    let Some(fs) = look(world, world.devices()) else {
        assert!(report.errors > 0, "{case}: the pool cannot be opened, and nothing says so\n{}", all());
        return (0, sizes.len());
    };
    let (mut hurt, mut nameless) = (BTreeSet::new(), 0);
    for (path, size) in sizes {
        let walked = path
            .split(|b| *b == b'/')
            .skip(1)
            .try_fold(fs.root(), |dir, name| fs.lookup(&Caller::ROOT, &dir, name));
        let Ok(node) = walked else {
            nameless += 1;
            continue;
        };
        let lost = unreadable(&fs, &node, *size);
        let shown = path.escape_ascii();
        assert_eq!(said(path, &node), lost, "{case}: {shown} of {size} bytes\n{}", all());
        if !lost.is_empty() {
            hurt.insert(node.ino());
        }
    }
    let named = report.damage.files.iter().filter(|f| !f.lost.is_empty() && !f.paths.is_empty());
    assert_eq!(named.map(|f| f.inode).collect::<BTreeSet<u64>>(), hurt, "{case}: none more\n{}", all());
    let hurt = hurt.len();
    if nameless > 0 {
        assert!(report.damage.metadata.iter().any(|m| m.is_lost), "{case}: names are lost\n{}", all());
        assert!(report.errors > 0, "{case}\n{}", all());
    }
    assert_eq!(hurt > 0 || nameless > 0, report.errors > 0, "{case}: {hurt}, {nameless}\n{}", all());
    (hurt, nameless)
}

/// A scrub names the same files and ranges as a check of the whole pool, and leaves a pool that is clean if
/// parity covers the damage.
fn scrub_names_the_same(case: &str, world: &SimWorld, whole: &CheckReport, sizes: &BTreeMap<Vec<u8>, u64>) {
    let scrub = world.fork();
    let Some((report, is_clean)) = scrubbed(&scrub) else {
        return assert!(whole.errors > 0, "{case}: the pool does not open, and nothing says so");
    };
    let all = || format!("{:#?}\n{:#?}", report.damage, whole.damage);
    assert_eq!(report.damage.files, whole.damage.files, "{case}: {}", all());
    if whole.errors == 0 {
        assert!(is_clean, "{case}: parity covers the damage\n{}", all());
        assert_eq!(compare(case, &scrub, &checked(&scrub.devices()), sizes), (0, 0), "{case}");
    }
}

/// Bytes of each file that the loss of as many devices as the pool has parity makes unreadable, and whether
/// all names could be read in each case.
fn fragile(
    world: &SimWorld,
    parity: usize,
    sizes: &BTreeMap<Vec<u8>, u64>,
) -> (BTreeMap<Vec<u8>, Vec<ByteRange>>, bool) {
    let devices = world.devices();
    let (mut found, mut all_read) = (BTreeMap::<Vec<u8>, Vec<ByteRange>>::new(), true);
    for away in (0..1_u32 << devices.len()).filter(|set| set.count_ones() as usize == parity) {
        let here = devices.iter().enumerate().filter(|(n, _)| away >> n & 1 == 0);
        let Some(fs) = look(world, here.map(|(_, device)| Arc::clone(device)).collect()) else {
            all_read = false;
            continue;
        };
        for (path, size) in sizes {
            let mut names = path.split(|b| *b == b'/').skip(1);
            match names.try_fold(fs.root(), |dir, name| fs.lookup(&Caller::ROOT, &dir, name)) {
                Ok(node) => {
                    let ranges = unreadable(&fs, &node, *size);
                    found.entry(path.clone()).or_default().extend(ranges);
                }
                Err(_) => all_read = false,
            }
        }
    }
    (found.into_iter().map(|(path, ranges)| (path, joined(ranges))).collect(), all_read)
}

/// Sorted, and without overlaps.
fn joined(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.sort_unstable();
    let mut all: Vec<ByteRange> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// Cases of one pool in `redundancy`.
const CASES_OF_POOL: u64 = 20;

/// Bytes that lose redundancy, or are lost, are those that the loss of further devices would cost.
fn redundancy(shape: PoolShape, damages: u64) {
    let next = AtomicU64::new(0);
    let threads =
        if damages > CASES_OF_POOL { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    let (mut exact, mut weak) = (0, 0);
    std::thread::scope(|scope| {
        let work = || {
            let (mut exact, mut weak) = (0, 0);
            loop {
                let pool = next.fetch_add(1, Ordering::Relaxed);
                let cases = damages.saturating_sub(pool * CASES_OF_POOL).min(CASES_OF_POOL);
                if cases == 0 {
                    return (exact, weak);
                }
                let found = redundancy_of_pool(shape, pool, cases);
                (exact, weak) = (exact + found.0, weak + found.1);
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let found = worker.join().expect("no case panics");
            (exact, weak) = (exact + found.0, weak + found.1);
        }
    });
    println!("{damages} damages of a pool {shape:?}: {weak} files lost redundancy, {exact} cases exact");
    assert!(weak > 0 && exact > 0, "no damage hit a file");
}

/// Returns the number of cases in which only bytes of files were hit, and of files with less redundancy.
fn redundancy_of_pool(shape: PoolShape, pool: u64, cases: u64) -> (u64, usize) {
    let mut draw = RigRandom(shape.2 as u64 * 2000 + pool * 1_000_000);
    let (mut exact, mut weak) = (0, 0);
    let world = filled(shape, 90 + pool);
    let sizes = sizes(&world);
    let undamaged = look(&world, world.devices()).expect("an undamaged pool opens");
    let mut listing = Listing::new();
    list(&undamaged, &undamaged.root(), b"", &mut listing).expect("an undamaged pool is listed");
    for case in 0..cases {
        let fork = world.fork();
        hurt(&fork, &mut draw);
        let report = checked(&fork.devices());
        let (fragile, all_read) = fragile(&fork, usize::from(shape.1), &sizes);
        // Where metadata has lost redundancy too, a further loss costs more than the bytes of files.
        let is_exact = report.damage.metadata.is_empty();
        let all = || format!("{:#?}\n{:#?}", report.damage, report.findings);
        assert!(all_read || !is_exact, "pool {pool} case {case}: metadata is fragile\n{}", all());
        for (path, expected) in fragile {
            let file = report.damage.files.iter().find(|file| file.inode == listing[&path].ino());
            let said = file.map(|file| joined([&file.lost[..], &file.weak[..]].concat()));
            let said = said.unwrap_or_default();
            let is_expected = |range: &ByteRange| {
                expected.iter().any(|all| all.start <= range.start && range.end <= all.end)
            };
            let is_right =
                if is_exact { said == expected } else { !all_read || said.iter().all(is_expected) };
            let case = format!("pool {pool} case {case}: {}", path.escape_ascii());
            assert!(is_right, "{case}: {said:?}, not {expected:?}\n{}", all());
            weak += usize::from(!expected.is_empty());
        }
        exact += u64::from(is_exact);
    }
    (exact, weak)
}

/// The sizes of all regular files by path, and the sum of them.
fn sizes(world: &SimWorld) -> BTreeMap<Vec<u8>, u64> {
    let fs = look(world, world.devices()).expect("an undamaged pool opens");
    let mut found = Listing::new();
    list(&fs, &fs.root(), b"", &mut found).expect("an undamaged pool is listed");
    let regular = found.iter().filter(|(_, node)| node.kind() == FileKind::Regular);
    regular.map(|(path, node)| (path.clone(), fs.getattr(node).size_bytes)).collect()
}

fn random_damages(shape: PoolShape, damages: u64) {
    let mut draw = RigRandom(shape.2 as u64 * 1000);
    let (mut files, mut names) = (0, 0);
    for pool in 0..damages.div_ceil(50) {
        let world = filled(shape, 40 + pool);
        let sizes = sizes(&world);
        for case in 0..damages.min(50) {
            let fork = world.fork();
            hurt(&fork, &mut draw);
            let name = format!("pool {pool} case {case}");
            let report = checked(&fork.devices());
            let found = compare(&name, &fork, &report, &sizes);
            (files, names) = (files + found.0, names + found.1);
            scrub_names_the_same(&name, &fork, &report, &sizes);
        }
    }
    println!("{damages} damages of a pool {shape:?}: {files} files lost bytes, {names} lost their names");
    assert!(files > 0, "no damage hit a file");
}

fn damages(few: u64) -> u64 {
    std::env::var("WARPFIRE_DAMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

#[test]
fn without_parity_the_report_names_exactly_the_bytes_that_cannot_be_read() {
    random_damages(SHAPES[0], damages(40));
}

#[test]
fn with_parity_the_report_names_exactly_the_bytes_that_cannot_be_read() {
    random_damages(SHAPES[3], damages(20));
}

#[test]
fn bytes_with_less_redundancy_are_exactly_those_that_a_further_loss_would_cost() {
    redundancy(SHAPES[2], damages(8));
}

#[test]
fn bytes_of_two_parities_with_less_redundancy_are_those_that_two_further_losses_would_cost() {
    redundancy(SHAPES[3], damages(3));
}

/// With little memory the ledger of damaged rows is emptied several times.
#[test]
fn little_memory_names_the_same_files() {
    let world = filled(SHAPES[0], 70);
    let sim = &world.sims()[0];
    for zone in 2..90 {
        for block in (1..ZONE_BYTES / 4096).step_by(3) {
            let at = zone * ZONE_BYTES + block * 4096;
            let bytes = sim.peek(at, 4096);
            // Only what looks like the content of the large files: metadata stays whole.
            if bytes.windows(2).take(3000).filter(|pair| pair[1].wrapping_sub(pair[0]) <= 1).count() == 3000 {
                sim.poke(at, &[0xA5; 4096]);
            }
        }
    }
    let plenty = checked(&world.devices());
    assert!(plenty.damage.files_lost >= 4, "{:?}", plenty.damage);
    let options = CheckOptions { max_memory_bytes: 128 << 10, ..CheckOptions::default() };
    let little = check(&world.devices(), &options).expect("the facts of these files fit");
    assert_eq!(little.damage.files_lost, plenty.damage.files_lost);
    assert_eq!(little.totals.blocks_lost, plenty.totals.blocks_lost);
    assert_eq!(little.damage.files, plenty.damage.files);
}
