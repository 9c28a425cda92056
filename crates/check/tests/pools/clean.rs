//! A pool of the engine is clean at every stage of its life.

use warpfire_check::{CheckOptions, Severity, check};
use warpfire_fs::acl::Caller;
use warpfire_fs::{NewMode, Position};

use crate::rig::{SHAPES, assert_clean, checked, cut, live, make, rearrange, reopen, world};

#[test]
fn a_new_pool_is_clean() {
    for shape in SHAPES {
        let world = world(shape, 1);
        drop(make(&world, shape));
        let report = checked(&world.devices());
        assert_clean(&report, &format!("{shape:?}"));
        assert_eq!((report.totals.directories, report.totals.files), (1, 0));
        assert_eq!(report.findings.len(), 0, "{:?}", report.findings);
    }
}

#[test]
fn a_pool_with_a_life_behind_it_is_clean_when_closed_and_again_when_opened() {
    for (seed, shape) in (0..).zip(SHAPES) {
        let world = world(shape, seed);
        let fs = make(&world, shape);
        live(&fs, seed, 700);
        fs.close().unwrap();
        drop(fs);
        let closed = checked(&world.devices());
        assert_clean(&closed, &format!("{shape:?} closed, seed {seed}"));
        assert!(closed.totals.files > 10 && closed.totals.tables > 0, "{:?}", closed.totals);
        drop(reopen(&world));
        let opened = checked(&world.devices());
        assert_clean(&opened, &format!("{shape:?} opened, seed {seed}"));
        assert_eq!(opened.totals.names, closed.totals.names);
        assert_eq!(opened.totals.file_bytes, closed.totals.file_bytes);
    }
}

#[test]
fn a_pool_whose_files_were_rearranged_by_pointers_is_clean_also_after_a_power_cut() {
    for (seed, shape) in (0..).zip(SHAPES) {
        let world = world(shape, seed);
        let fs = make(&world, shape);
        rearrange(&fs, seed, 250);
        let after = cut(&world);
        assert_clean(&checked(&after.devices()), &format!("{shape:?} after a cut, seed {seed}"));
        fs.close().unwrap();
        drop(fs);
        assert_clean(&checked(&world.devices()), &format!("{shape:?} closed, seed {seed}"));
        let fs = reopen(&world);
        fs.sync().unwrap();
        drop(fs);
        assert_clean(&checked(&world.devices()), &format!("{shape:?} opened, seed {seed}"));
    }
}

/// The bytes of a file are in a bundle. A short addition stays in the record beside them, and is in the
/// bundle's edit.
#[test]
fn short_additions_to_files_whose_bytes_are_in_bundles_are_clean() {
    let shape = SHAPES[0];
    let world = world(shape, 3);
    let fs = make(&world, shape);
    let root = Caller::ROOT;
    fs.create_file(&root, &fs.root(), b"file", NewMode::exact(0o644), &[7; 3000]).unwrap();
    let node = fs.lookup(&root, &fs.root(), b"file").unwrap();
    fs.engine().compact().unwrap();
    for change in [Position::End, Position::At(0), Position::At(3500)] {
        fs.write(&root, &node, change, b"short").unwrap();
        fs.engine().compact().unwrap();
        fs.sync().unwrap();
        assert_clean(&checked(&world.devices()), &format!("{change:?}"));
    }
}

#[test]
fn a_power_cut_leaves_no_errors() {
    for seed in 0..6 {
        let shape = SHAPES[seed as usize % SHAPES.len()];
        let world = world(shape, seed);
        let fs = make(&world, shape);
        live(&fs, 100 + seed, 150 + 40 * seed);
        let after = cut(&world);
        let report = checked(&after.devices());
        assert_clean(&report, &format!("{shape:?} after a cut, seed {seed}"));
        drop(reopen(&after));
        assert_clean(&checked(&after.devices()), &format!("{shape:?} recovered, seed {seed}"));
    }
}

#[test]
fn little_memory_makes_more_passes_and_finds_the_same() {
    let shape = SHAPES[2];
    let world = world(shape, 9);
    let fs = make(&world, shape);
    live(&fs, 9, 700);
    fs.close().unwrap();
    let plenty = checked(&world.devices());
    let little = CheckOptions { max_memory_bytes: 9_000, ..CheckOptions::default() };
    let little = check(&world.devices(), &little).unwrap();
    assert!(little.totals.passes > plenty.totals.passes, "{:?}", little.totals);
    assert_clean(&little, "little memory");
    assert_eq!(little.totals.names, plenty.totals.names);
    assert!(little.findings.iter().all(|f| f.severity == Severity::Note));
}

/// A power cut loses no acknowledged data. Copies may be missing, and the next opening of the pool writes
/// them again.
#[test]
fn a_power_cut_at_any_boundary_loses_redundancy_at_most() {
    for (seed, shape) in (30..).zip([SHAPES[1], SHAPES[2]]) {
        let mut world = world(shape, seed);
        let fs = make(&world, shape);
        live(&fs, seed, 100);
        world.record();
        live(&fs, 1000 + seed, 60);
        drop(fs);
        let recording = world.take_recording().expect("recording was begun");
        let mut replay = recording.replay();
        let mut states = 0;
        loop {
            if replay.at_boundary() && replay.pending_changes() > 0 {
                for cut in replay.cuts(2, seed) {
                    let after = replay.cut(&cut);
                    let report = checked(&after.devices());
                    let context = format!("{shape:?}, seed {seed}, event {}, {cut:?}", replay.point());
                    assert_eq!(report.errors, 0, "{context}: {:?}", report.findings);
                    states += 1;
                    if states % 8 == 0 {
                        drop(reopen(&after));
                        let healed = checked(&after.devices());
                        assert_eq!(healed.errors, 0, "{context}, reopened: {:?}", healed.findings);
                    }
                }
            }
            if replay.advance().is_none() {
                break;
            }
        }
        assert!(states > 50, "{states} crash states");
    }
}
