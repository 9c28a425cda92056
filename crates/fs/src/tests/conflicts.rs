//! Conflicts: what others may change without one, what they may not, and commits beside running work.

use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::{Clock, Timestamp};
use warpfire_meta::{Direction, KeyRange, MapStore, ScanPage, Store};

use super::{Engine, TestFs, Ticking, world_with};
use crate::acl::Caller;
use crate::{Fs, FsError, FsOptions, FsSchema, NewMode, NodeRef, Position, SetAttr, SetTime, Transaction};

const ROOT: Caller<'static> = Caller::ROOT;
const MODE: NewMode = NewMode { mode: 0o644, umask: 0 };
const DIR: NewMode = NewMode { mode: 0o755, umask: 0 };

/// A filesystem with a file, a log and a directory, and its clock.
fn world() -> (Arc<Engine>, Arc<Ticking>, Arc<TestFs>) {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
    fs.create_file(&ROOT, &fs.root(), b"file", MODE, b"0123456789").unwrap();
    fs.create_file(&ROOT, &fs.root(), b"log", MODE, b"").unwrap();
    fs.mkdir(&ROOT, &fs.root(), b"dir", DIR).unwrap();
    (engine, clock, Arc::new(fs))
}

fn open<E: warpfire_meta::Storage>(fs: &Fs<E>, name: &[u8]) -> NodeRef {
    fs.lookup(&ROOT, &fs.root(), name).unwrap()
}

fn append<E: warpfire_meta::Storage>(fs: &Fs<E>, text: &[u8]) {
    fs.append(&ROOT, &open(fs, b"log"), text).unwrap();
}

fn call_of(outcome: Result<(), FsError>) -> &'static str {
    match outcome {
        Err(FsError::Conflict { call, .. }) => call,
        other => panic!("expected a conflict, got {other:?}"),
    }
}

/// The outcome of a transaction beside others, with its journal or with one that has ended, and the number of
/// replays. Afterwards all nodes equal their records.
fn outcome(
    keeps_journal: bool,
    ours: impl FnOnce(&Transaction<Engine>),
    others: impl FnOnce(&TestFs),
) -> (Result<(), FsError>, u64) {
    let (engine, clock, fs) = world();
    // In use throughout, so that the commit has nodes to bring up to date.
    let held = [&b"file"[..], b"log", b"dir"].map(|name| open(&fs, name));
    let tx = fs.begin().unwrap();
    if !keeps_journal {
        tx.files().version(&open(tx.files(), b"file")).unwrap();
    }
    ours(&tx);
    others(&fs);
    // Directory times become part of records.
    fs.sync().unwrap();
    let outcome = tx.commit();
    let replays = fs.transaction_counts().replays;
    let shown = super::tree_model::listing(&fs);
    let attrs = held.each_ref().map(|node| fs.getattr(node));
    fs.sync().unwrap();
    super::check::check(&*engine, "after the commit");
    drop((held, fs));
    let again = Fs::open(engine, clock, FsOptions::default()).unwrap();
    assert_eq!(super::tree_model::listing(&again), shown);
    for attr in attrs.iter().filter(|attr| attr.links > 0) {
        let name = if attr.ino == attrs[0].ino {
            &b"file"[..]
        } else if attr.ino == attrs[1].ino {
            b"log"
        } else {
            b"dir"
        };
        // A file that was renamed is part of the listing above.
        if let Ok(node) = again.lookup(&ROOT, &again.root(), name) {
            assert_eq!(again.getattr(&node), *attr, "the node equals its record");
        }
    }
    (outcome, replays)
}

/// As [`outcome`], in both ways: it commits without a replay.
fn commits(ours: impl Fn(&Transaction<Engine>), others: impl Fn(&TestFs), what: &str) {
    for keeps_journal in [true, false] {
        let (outcome, replays) = outcome(keeps_journal, &ours, &others);
        outcome.unwrap_or_else(|e| panic!("{what}, journal {keeps_journal}: {e}"));
        assert_eq!(replays, 0, "{what}, journal {keeps_journal}");
    }
}

fn read(fs: &Fs<impl warpfire_meta::Storage>) {
    assert_eq!(fs.read_file(&ROOT, &fs.root(), b"file").unwrap(), b"0123456789");
}

#[test]
fn access_times_and_what_a_directory_keeps_are_no_conflict() {
    let make = |fs: &TestFs| _ = fs.create_file(&ROOT, &fs.root(), b"theirs", MODE, b"").unwrap();
    let mkdir = |fs: &TestFs| _ = fs.mkdir(&ROOT, &fs.root(), b"theirs", DIR).unwrap();
    let ours = |tx: &Transaction<Engine>| {
        let tx_fs = tx.files();
        read(tx_fs);
        let _ = tx_fs.getattr(&tx_fs.root());
        tx_fs.create_file(&ROOT, &tx_fs.root(), b"mine", MODE, b"1").unwrap();
    };
    commits(ours, read, "an access time");
    commits(ours, make, "a name beside a name");
    commits(ours, mkdir, "a directory beside a name");
    commits(
        |tx| {
            let tx_fs = tx.files();
            let _ = tx_fs.getattr(&tx_fs.root());
            tx_fs.mkdir(&ROOT, &tx_fs.root(), b"mine", DIR).unwrap();
        },
        mkdir,
        "mkdir beside mkdir",
    );
    commits(
        |tx| {
            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            tx.files().setattr(&ROOT, &open(tx.files(), b"dir"), &set).unwrap();
        },
        |fs| _ = fs.mkdir(&ROOT, &open(fs, b"dir"), b"x", DIR).unwrap(),
        "chmod of a directory beside mkdir in it",
    );
    commits(
        |tx| {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            tx.files().setattr(&ROOT, &open(tx.files(), b"file"), &set).unwrap();
        },
        read,
        "chmod of a file beside a read of it",
    );
}

/// A read set beyond its limit is the range of all keys, those of the base's own records included.
#[test]
fn the_counters_of_the_base_are_no_conflict_for_a_read_of_everything() {
    let ours = |tx: &Transaction<Engine>| {
        let (store, all) = (tx.files().engine(), KeyRange { start: b"", end: None });
        let mut page = ScanPage::default();
        store.scan(all, store.at(), Direction::Forward, 10_000, 1 << 20, &mut page).unwrap();
        append(tx.files(), b"read it all");
    };
    // The sync behind it commits the counters of the files that were made before.
    commits(ours, |_| {}, "counters");
}

#[test]
fn a_change_of_what_was_read_is_a_conflict_with_a_journal_and_without() {
    for keeps_journal in [true, false] {
        let ours = |tx: &Transaction<Engine>| {
            read(tx.files());
            append(tx.files(), b"read it");
        };
        let others = |fs: &TestFs| _ = fs.write(&ROOT, &open(fs, b"file"), Position::At(0), b"X").unwrap();
        assert_eq!(call_of(outcome(keeps_journal, ours, others).0), "read");
    }
    // A record that the transaction writes whole would undo what others have changed in it. With its journal
    // it makes the calls again.
    let ours = |tx: &Transaction<Engine>| {
        let (from, to) = ((&tx.files().root(), &b"file"[..]), (&tx.files().root(), &b"moved"[..]));
        tx.files().rename(&ROOT, from, to, crate::RenameMode::Replace).unwrap();
    };
    let (done, replays) = outcome(true, ours, read);
    assert!(done.is_ok() && replays == 1);
    assert_eq!(call_of(outcome(false, ours, read).0), "read");
}

/// A replay compares the answers of calls. Attributes of a file are compared whole but for its access time,
/// those of a directory without what every name in it changes.
#[test]
fn a_replay_compares_links_and_times_of_files_and_not_of_directories() {
    let look = |tx: &Transaction<Engine>| {
        let links = tx.files().getattr(&open(tx.files(), b"file")).links;
        append(tx.files(), &[links as u8]);
    };
    let link = |fs: &TestFs| fs.link(&ROOT, &open(fs, b"file"), &fs.root(), b"second").unwrap();
    assert_eq!(call_of(outcome(true, look, link).0), "read attributes");
    let touch = |fs: &TestFs| {
        let mtime = Some(SetTime::At(Timestamp { seconds: 7, nanos: 0 }));
        fs.setattr(&ROOT, &open(fs, b"file"), &SetAttr { mtime, ..SetAttr::default() }).unwrap();
    };
    assert_eq!(call_of(outcome(true, look, touch).0), "read attributes");
    let rename = |tx: &Transaction<Engine>| {
        let _ = tx.files().getattr(&tx.files().root());
        let (from, to) = ((&tx.files().root(), &b"file"[..]), (&tx.files().root(), &b"moved"[..]));
        tx.files().rename(&ROOT, from, to, crate::RenameMode::Replace).unwrap();
    };
    let read_and_mkdir = |fs: &TestFs| {
        read(fs);
        fs.mkdir(&ROOT, &fs.root(), b"theirs", DIR).unwrap();
    };
    let (done, replays) = outcome(true, rename, read_and_mkdir);
    assert!(done.is_ok() && replays == 1, "{done:?} after {replays} replays");
}

#[test]
fn a_listing_conflicts_with_another_name_in_the_place_of_one() {
    let list = |tx: &Transaction<Engine>| {
        let names = tx.files().readdir(&ROOT, &tx.files().root(), None, 100).unwrap();
        append(tx.files(), &[names.len() as u8]);
    };
    let exchange = |fs: &TestFs| {
        fs.unlink(&ROOT, &fs.root(), b"file").unwrap();
        fs.create_file(&ROOT, &fs.root(), b"filf", MODE, b"").unwrap();
    };
    assert_eq!(call_of(outcome(true, list, exchange).0), "list");
}

/// A clock that stands still, except for the monotonic time: each look at it costs 20 ms.
#[derive(Default)]
struct Slow(AtomicU64);

impl Clock for Slow {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: 1_000_000, nanos: 0 }
    }

    fn monotonic_nanos(&self) -> u64 {
        self.0.fetch_add(20_000_000, Ordering::Relaxed)
    }
}

fn over_a_slow_clock() -> Arc<TestFs> {
    let engine = Arc::new(MapStore::new(FsSchema));
    let clock = Arc::new(Slow::default());
    Fs::format(&*engine, &*clock, 0, 0).unwrap();
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    fs.create_file(&ROOT, &fs.root(), b"file", MODE, b"0123456789").unwrap();
    fs.create_file(&ROOT, &fs.root(), b"log", MODE, b"").unwrap();
    Arc::new(fs)
}

#[test]
fn a_size_that_was_asked_for_is_part_of_the_answer_though_no_time_has_changed() {
    let fs = over_a_slow_clock();
    let tx = fs.begin().unwrap();
    let size = tx.files().getattr(&open(tx.files(), b"file")).size_bytes;
    append(tx.files(), &[size as u8]);
    fs.append(&ROOT, &open(&fs, b"file"), b"more").unwrap();
    assert_eq!(call_of(tx.commit()), "read attributes");
}

/// Others change something in each pause of a commit. It makes its calls again beside them, and ends alone
/// once that is known to be short.
#[test]
fn a_commit_that_others_outrun_makes_a_short_replay_alone() {
    let (_, _, fs) = world();
    let tx = fs.begin().unwrap();
    append(tx.files(), b"inside ");
    append(&fs, b"outside ");
    let mut commit = tx.begin_commit().unwrap();
    let mut rounds = 0;
    loop {
        commit.catch_up().unwrap();
        // Nobody is kept out here.
        append(&fs, b"outside ");
        if commit.finish().unwrap() {
            break;
        }
        rounds += 1;
    }
    assert_eq!(rounds, 2, "rounds beside others before the replay alone");
    let log = fs.read_file(&ROOT, &fs.root(), b"log").unwrap();
    assert_eq!(log, b"outside outside outside outside inside ");
}

/// The last step of a commit finds nothing new, if no other transaction commits after the check before it.
#[test]
fn a_short_commit_catches_up_before_its_last_step() {
    let (_, _, fs) = world();
    for is_checked in [false, true] {
        let tx = fs.begin().unwrap();
        append(tx.files(), b"inside ");
        append(&fs, b"outside ");
        let mut commit = tx.begin_commit().unwrap();
        commit.catch_up().unwrap();
        if is_checked {
            commit.catch_up_before_the_last_step().unwrap();
        }
        assert_eq!(commit.finish().unwrap(), is_checked, "a short check is left to the last step");
    }
    let log = fs.read_file(&ROOT, &fs.root(), b"log").unwrap();
    assert_eq!(log, b"outside outside inside ");
    // A conflict ends the commit there, too.
    let tx = fs.begin().unwrap();
    assert!(tx.files().getattr(&open(tx.files(), b"log")).size_bytes > 0);
    append(tx.files(), b"inside ");
    append(&fs, b"outside ");
    let mut commit = tx.begin_commit().unwrap();
    commit.catch_up().unwrap();
    assert_eq!(call_of(commit.catch_up_before_the_last_step()), "read attributes");
    assert!(matches!(commit.finish(), Err(FsError::Ended)));
}

/// Replays that take long are never made while others wait. If others change something during each of them,
/// the commit ends in a conflict.
#[test]
fn a_long_replay_is_never_made_alone() {
    let fs = over_a_slow_clock();
    let tx = fs.begin().unwrap();
    append(tx.files(), b"inside ");
    append(&fs, b"outside ");
    let mut commit = tx.begin_commit().unwrap();
    let ended = loop {
        commit.catch_up().unwrap();
        append(&fs, b"outside ");
        match commit.finish() {
            Ok(done) => assert!(!done),
            Err(e) => break e,
        }
    };
    assert_eq!(call_of(Err(ended)), "keep up with changes");
    assert!(!fs.read_file(&ROOT, &fs.root(), b"log").unwrap().windows(6).any(|text| text == b"inside"));
    // Once others pause, it is committed.
    let tx = fs.begin().unwrap();
    append(tx.files(), b"inside ");
    append(&fs, b"outside ");
    tx.commit().unwrap();
}

#[test]
fn the_version_of_a_file_that_is_gone_is_not_expected_any_more() {
    let (engine, _, fs) = world();
    let version = fs.version(&open(&fs, b"file")).unwrap();
    fs.unlink(&ROOT, &fs.root(), b"file").unwrap();
    fs.sync().unwrap();
    // The deletion itself leaves no trace either.
    while engine.background_step().unwrap() {}
    let tx = fs.begin().unwrap();
    tx.expect_version(version);
    append(tx.files(), b"x");
    assert_eq!(call_of(tx.commit()), "expect a version");
}

#[test]
fn a_commit_counts_inodes_and_bytes_at_once() {
    let (engine, clock, fs) = world();
    let tx = fs.begin().unwrap();
    tx.files().create_file(&ROOT, &tx.files().root(), b"new", MODE, &[7; 5000]).unwrap();
    tx.files().unlink(&ROOT, &tx.files().root(), b"file").unwrap();
    tx.commit().unwrap();
    let counts = |fs: &TestFs| fs.statfs().map(|space| (space.inodes, space.file_bytes)).unwrap();
    let shown = counts(&fs);
    fs.sync().unwrap();
    drop(fs);
    assert_eq!(counts(&Fs::open(engine, clock, FsOptions::default()).unwrap()), shown);
}

/// The removal of a file with very many regions takes several steps, also after a crash.
#[test]
fn an_orphan_of_very_many_regions_is_removed_whole_at_the_next_opening() {
    let (engine, clock, fs) = world();
    let node = fs.create(&ROOT, &fs.root(), b"sparse", MODE).unwrap();
    let regions = crate::limits::ORPHAN_STEP_REGIONS as u64 + 10;
    for index in 0..regions {
        fs.write(&ROOT, &node, Position::At(index << 20), b"x").unwrap();
    }
    fs.unlink(&ROOT, &fs.root(), b"sparse").unwrap();
    fs.sync().unwrap();
    // The crash: nobody releases the file.
    std::mem::forget((node, fs));
    let fs = Fs::open(engine.clone(), clock, FsOptions::default()).unwrap();
    assert_eq!(fs.statfs().unwrap().file_bytes, 10, "only the bytes of the other file are left");
    fs.sync().unwrap();
    super::check::check(&*engine, "many regions");
}
