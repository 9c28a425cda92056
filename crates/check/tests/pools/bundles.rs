//! Damage in bundles, which hold a copy of a record and the bytes of its file.

use std::collections::{BTreeMap, BTreeSet};

use warpfire_check::{FindingCode, Severity};
use warpfire_fs::NewMode;
use warpfire_fs::acl::Caller;
use warpfire_log::LogStore;
use warpfire_meta::Store;
use warpfire_sim_env::SimWorld;

use crate::rig::{PoolShape, SHAPES, TestFs, ZONE_BYTES, assert_clean, checked, make, reopen, world};

const FILES: usize = 120;
const BLOCK: usize = 4096;
/// Each part of a file says which file it is and where in it.
const CELL: usize = 16;

fn name(n: usize) -> Vec<u8> {
    format!("name {n:03}").into_bytes()
}

fn content(n: usize) -> Vec<u8> {
    let cells = 60 + n * 37 % 130;
    (0..cells).flat_map(|cell| format!("f{n:05} {cell:08}\n").into_bytes()).collect()
}

fn file_and_cell(bytes: &[u8]) -> Option<(usize, usize)> {
    let text = std::str::from_utf8(bytes).ok()?.strip_prefix('f')?.strip_suffix('\n')?;
    let (file, cell) = text.split_once(' ')?;
    Some((file.parse().ok()?, cell.parse().ok()?))
}

/// The parts of files in a block, whole ones and those that it begins or ends with.
fn cells_in(block: &[u8]) -> BTreeMap<usize, (usize, usize)> {
    let cell_at = |at: usize| Some((at, file_and_cell(block.get(at..at + CELL)?)?));
    (0..block.len()).filter_map(cell_at).collect()
}

/// The files that have bytes in a block.
fn files_in(block: &[u8]) -> BTreeSet<usize> {
    let cells = cells_in(block);
    let mut files: BTreeSet<usize> = cells.values().map(|(file, _)| *file).collect();
    // The block may end with the first bytes of a file.
    let of_next = block.windows(2).rposition(|pair| pair[0] == b'f' && pair[1] == b'0');
    if let Some(at) = of_next
        && at + CELL > block.len()
        && let Ok(text) = std::str::from_utf8(&block[at..])
    {
        let digits: String = text[1..].chars().take_while(char::is_ascii_digit).collect();
        let is_file = |file: &usize| format!("{file:05}").starts_with(&digits);
        files.extend((0..FILES).filter(is_file));
    }
    files
}

/// A pool with small files, all of which are in bundles, and the places of the blocks with their bytes.
fn pool(shape: PoolShape, seed: u64) -> (SimWorld, Vec<(usize, u64)>) {
    let world = world(shape, seed);
    let fs = make(&world, shape);
    let root = Caller::ROOT;
    for n in 0..FILES {
        fs.create_file(&root, &fs.root(), &name(n), NewMode::exact(0o644), &content(n))
            .expect("there is room");
    }
    fs.engine().compact().expect("sound devices do not fail");
    fs.sync().expect("sound devices do not fail");
    fs.close().expect("sound devices do not fail");
    let mut blocks = Vec::new();
    for (device, sim) in world.sims().iter().enumerate() {
        for at in (2 * ZONE_BYTES..96 * ZONE_BYTES).step_by(BLOCK) {
            if !cells_in(&sim.peek(at, BLOCK)).is_empty() {
                blocks.push((device, at));
            }
        }
    }
    (world, blocks)
}

/// The files that are not read. The others have their bytes.
fn unread(fs: &TestFs, context: &str) -> BTreeSet<usize> {
    let root = Caller::ROOT;
    let read = |n: &usize| match fs.read_file(&root, &fs.root(), &name(*n)) {
        Ok(bytes) => {
            assert!(bytes == content(*n), "{context}: file {n} has other bytes");
            false
        }
        Err(_) => true,
    };
    (0..FILES).filter(read).collect()
}

fn scrub_finds_damage(fs: &TestFs) -> bool {
    let log = fs.engine().log();
    let mut after = None;
    let mut is_found = false;
    while let Some(scrubbed) =
        log.scrub(after, warpfire_log::WorkFor::Caller).expect("damage is no error").verified()
    {
        is_found |= !scrubbed.is_whole;
        after = Some(scrubbed.segment);
    }
    is_found
}

/// A record whose copy is damaged is read from its data block; a file whose bytes are damaged is an error.
#[test]
fn without_parity_a_damaged_block_of_a_bundle_costs_the_files_in_it_and_no_other() {
    let (world, blocks) = pool(SHAPES[0], 21);
    let (mut lost, mut read_on) = (0, 0);
    for (turn, (device, at)) in blocks.into_iter().enumerate() {
        let context = format!("block at {at}");
        let fork = world.fork();
        let sim = &fork.sims()[device];
        let (block, next) = (sim.peek(at, BLOCK), sim.peek(at + BLOCK as u64, BLOCK));
        sim.rot(at, turn * 7919 % (8 * BLOCK));
        let fs = reopen(&fork);
        let errors = unread(&fs, &context);
        assert!(errors.is_subset(&files_in(&block)), "{context}: {errors:?} are not read");
        let report = checked(&fork.devices());
        let is_named =
            report.findings.iter().any(|f| f.severity == Severity::Error && f.code == FindingCode::RowsLost);
        // Blocks of the log that no root needs any more have bytes of files too.
        assert!(is_named || errors.is_empty(), "{context}: {:?}", report.findings);
        assert_eq!(scrub_finds_damage(&fs), is_named, "{context}");
        lost += errors.len();
        // The file that begins at the start of the next block has the copy of its record in this one.
        let first = cells_in(&next).into_iter().next();
        let has_copy_here =
            first.filter(|(at, (_, cell))| *at < CELL && *cell == 0).map(|(_, (file, _))| file);
        read_on += usize::from(is_named && has_copy_here.is_some_and(|file| !errors.contains(&file)));
    }
    assert!(
        lost > FILES / 2 && read_on > 0,
        "{lost} errors, {read_on} files without the copy of their record"
    );
}

#[test]
fn with_parity_a_damaged_block_of_a_bundle_is_read_and_repaired() {
    let (world, blocks) = pool(SHAPES[2], 22);
    let mut repaired = 0;
    for (turn, (device, at)) in blocks.into_iter().enumerate() {
        let context = format!("device {device}, block at {at}");
        let fork = world.fork();
        fork.sims()[device].rot(at, turn * 7919 % (8 * BLOCK));
        let report = checked(&fork.devices());
        assert_eq!(report.errors, 0, "{context}: {:?}", report.findings);
        let fs = reopen(&fork);
        assert_eq!(unread(&fs, &context), BTreeSet::new(), "{context}");
        // Reads do not meet a block of parity, which may look like data.
        assert_eq!(scrub_finds_damage(&fs), report.repairable > 0, "{context}");
        if report.repairable > 0 {
            repaired += 1;
            while fs.engine().background_step().unwrap() {}
            fs.sync().unwrap();
            assert_clean(&checked(&fork.devices()), &context);
        }
        fs.close().unwrap();
    }
    assert!(repaired > 10, "{repaired} blocks were repaired");
}
