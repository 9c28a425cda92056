//! Pools that are filled with files and emptied, again and again.

use std::collections::BTreeSet;

use warpfire_log::{LogStore, MemLog, MemLogOptions, RecoveredLog};
use warpfire_meta::Store;

use super::TestRandom;
use super::check::check;
use super::engine::{LogEngine, open};
use crate::acl::Caller;
use crate::{Fs, FsError, NewMode};

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
