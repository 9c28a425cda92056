//! Pools that are filled with files and emptied, again and again.

use std::collections::BTreeSet;

use warpfire_log::{LogStore, MemLog, MemLogOptions, RecoveredLog};
use warpfire_meta::Store;

use super::TestRandom;
use super::check::check;
use super::engine::{LogEngine, open};
use crate::acl::Caller;
use crate::{Fs, FsError, InsertSource, NewMode, Position, RenameMode};

const ROOT: Caller<'static> = Caller::ROOT;

/// Refusals in a row after which a pool counts as full.
const REFUSALS: u32 = 8;

fn name(n: u64) -> Vec<u8> {
    format!("file {n}").into_bytes()
}

fn fill(fs: &Fs<LogEngine>, draw: &mut TestRandom, files: &mut BTreeSet<u64>, context: &str) -> usize {
    let mut refusals = 0;
    let mut bytes = 0;
    while refusals < REFUSALS {
        let n = draw.next();
        let most = [900, 9_000, 60_000][draw.below(3) as usize];
        let len = 100 + draw.below(most) as usize;
        match fs.create_file(&ROOT, &fs.root(), &name(n), NewMode::exact(0o644), &vec![n as u8; len]) {
            Ok(_) => {
                bytes += len;
                files.insert(n);
            }
            Err(FsError::NoSpace) => refusals += 1,
            Err(e) => panic!("{context}: {e}"),
        }
        if draw.below(20) == 0 {
            fs.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
        }
    }
    bytes
}

fn unlink_one_in(
    fs: &Fs<LogEngine>,
    draw: &mut TestRandom,
    files: &mut BTreeSet<u64>,
    one_in: u64,
    context: &str,
) {
    for n in files.clone() {
        if draw.below(one_in) == 0 {
            fs.unlink(&ROOT, &fs.root(), &name(n)).unwrap_or_else(|e| panic!("{context}: unlink: {e}"));
            files.remove(&n);
        }
    }
}

#[test]
fn files_fill_a_pool_and_deleting_them_empties_it_however_old_it_is() {
    for seed in 0..4 {
        let context = format!("seed {seed}");
        let options =
            MemLogOptions { capacity_bytes: (20 + 5 * seed) * (256 << 10), segment_bytes: 256 << 10 };
        let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
        let mut draw = TestRandom(seed);
        let mut files = BTreeSet::new();
        let first = fill(&fs, &mut draw, &mut files, &context);
        for _ in 0..5 {
            unlink_one_in(&fs, &mut draw, &mut files, 2, &context);
            fill(&fs, &mut draw, &mut files, &context);
        }
        unlink_one_in(&fs, &mut draw, &mut files, 1, &context);
        fs.sync().unwrap();
        while fs.engine().background_step().unwrap() {}
        fs.engine().compact().unwrap();
        let live_bytes = fs.engine().log().space().live_bytes;
        assert!(live_bytes < 64 << 10, "{context}: {live_bytes} bytes are live and nothing is left");
        let again = fill(&fs, &mut draw, &mut files, &context);
        assert!(again >= first * 3 / 4, "{context}: {first} bytes fitted at first, {again} at last");
        // The counters are deferred until a sync.
        fs.sync().unwrap();
        check(&**fs.engine(), &context);
    }
}

#[test]
fn deleted_bytes_show_as_free_before_compaction_finds_them() {
    let options = MemLogOptions { capacity_bytes: 16 << 20, segment_bytes: 256 << 10 };
    let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
    let before = fs.statfs().unwrap();
    for n in 0..100 {
        fs.create_file(&ROOT, &fs.root(), &name(n), NewMode::exact(0o644), &[n as u8; 80_000]).unwrap();
    }
    fs.sync().unwrap();
    let full = fs.statfs().unwrap();
    assert!(full.free_bytes <= before.free_bytes - 8_000_000, "{} of {}", full.free_bytes, before.free_bytes);
    for n in 0..100 {
        fs.unlink(&ROOT, &fs.root(), &name(n)).unwrap();
    }
    let after = fs.statfs().unwrap();
    assert!(fs.engine().log().space().live_bytes > 7_000_000, "compaction has not freed the bytes yet");
    assert!(
        after.free_bytes > before.free_bytes - (64 << 10),
        "{} of {}",
        after.free_bytes,
        before.free_bytes
    );
}

/// A call that must make room before its own commit, by its name.
type CallInNeed<'a> = (&'static str, &'a dyn Fn(&Fs<LogEngine>) -> Result<(), FsError>);

/// A pool on which a commit finds room only after cleaning: it was filled, and every second file is gone.
fn in_need_of_cleaning(seed: u64) -> Fs<LogEngine> {
    let options = MemLogOptions { capacity_bytes: 24 * (256 << 10), segment_bytes: 256 << 10 };
    let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
    for (name, len) in [("inline", 2_000), ("regions", 90_000), ("other", 50_000), ("linked", 9_000)] {
        let mode = NewMode::exact(0o644);
        fs.create_file(&ROOT, &fs.root(), name.as_bytes(), mode, &vec![7; len]).unwrap();
    }
    fs.sync().unwrap();
    let mut draw = TestRandom(seed);
    let mut files = BTreeSet::new();
    fill(&fs, &mut draw, &mut files, "fill");
    for n in files.iter().step_by(2) {
        fs.unlink(&ROOT, &fs.root(), &name(*n)).unwrap();
    }
    fs.sync().unwrap();
    fs
}

#[test]
fn a_call_does_not_keep_the_room_that_it_needs() {
    let node = |fs: &Fs<LogEngine>, name: &str| fs.lookup(&ROOT, &fs.root(), name.as_bytes()).unwrap();
    let calls: [CallInNeed<'_>; 6] = [
        ("write", &|fs| fs.write(&ROOT, &node(fs, "inline"), Position::At(100_000), b"far").map(drop)),
        ("copy", &|fs| {
            fs.copy_range(&ROOT, (&node(fs, "other"), 0), (&node(fs, "regions"), 90_000), 50_000).map(drop)
        }),
        ("insert", &|fs| fs.insert_range(&ROOT, &node(fs, "regions"), 1000, InsertSource::Hole(1000))),
        ("link", &|fs| fs.link(&ROOT, &node(fs, "linked"), &fs.root(), b"second")),
        ("rename", &|fs| {
            let (from, to) = ((&fs.root(), &b"linked"[..]), (&fs.root(), &b"renamed"[..]));
            fs.rename(&ROOT, from, to, RenameMode::Replace)
        }),
        ("paste", &|fs| {
            let slice = fs.yank(&node(fs, "other"), 0, 50_000)?;
            fs.paste(&ROOT, &node(fs, "regions"), Position::End, &slice).map(drop)
        }),
    ];
    for (what, call) in calls {
        for seed in 0..4 {
            let fs = in_need_of_cleaning(seed);
            call(&fs).unwrap_or_else(|e| panic!("{what}, seed {seed}: {e}"));
            fs.sync().unwrap();
            check(&**fs.engine(), what);
        }
    }
}
