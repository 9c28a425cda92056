//! Times and other attributes that calls set: their values after later changes, and after reopening.

use std::sync::Arc;
use std::thread;

use warpfire_env::{Clock, Timestamp};
use warpfire_meta::Store;

use super::{Engine, TestFs, TestRandom, Ticking, world_with};
use crate::acl::Caller;
use crate::{Attr, Fs, FsError, FsOptions, NewMode, NodeRef, SetAttr, SetTime};

const ROOT: Caller<'static> = Caller::ROOT;

const PAST: Timestamp = Timestamp { seconds: Ticking::START_SECONDS - 1000, nanos: 1 };
const FUTURE: Timestamp = Timestamp { seconds: Ticking::START_SECONDS + 1000, nanos: 1 };

/// A filesystem with the directory `d`.
fn with_dir() -> (Arc<Engine>, Arc<Ticking>, TestFs, NodeRef) {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
    let d = fs.mkdir(&ROOT, &fs.root(), b"d", NewMode::exact(0o755)).unwrap();
    (engine, clock, fs, d)
}

fn set_mtime(fs: &TestFs, node: &NodeRef, at: Timestamp) {
    let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
    fs.setattr(&ROOT, node, &set).unwrap();
}

fn make(fs: &TestFs, dir: &NodeRef, name: &[u8]) {
    fs.create_file(&ROOT, dir, name, NewMode::exact(0o644), b"").unwrap();
}

/// The attributes of `d`, which must be the same after a sync and reopening.
fn shown_and_kept(engine: Arc<Engine>, clock: Arc<Ticking>, fs: TestFs, d: NodeRef, story: &str) -> Attr {
    let shown = fs.getattr(&d);
    fs.sync().unwrap();
    drop((d, fs));
    let fs = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let d = fs.lookup(&ROOT, &fs.root(), b"d").unwrap();
    assert_eq!(fs.getattr(&d), shown, "{story}");
    shown
}

#[test]
fn a_new_name_ends_a_time_set_into_the_future() {
    let (engine, clock, fs, d) = with_dir();
    set_mtime(&fs, &d, FUTURE);
    fs.sync().unwrap();
    make(&fs, &d, b"a");
    let shown = shown_and_kept(engine, clock, fs, d, "future, then a name");
    assert!(shown.mtime < FUTURE, "{:?}", shown.mtime);
}

#[test]
fn a_time_that_was_set_stays_though_names_changed_before() {
    for (at, story) in [(PAST, "past"), (FUTURE, "future")] {
        let (engine, clock, fs, d) = with_dir();
        make(&fs, &d, b"a");
        set_mtime(&fs, &d, at);
        let shown = shown_and_kept(engine, clock, fs, d, story);
        assert_eq!(shown.mtime, at);
        assert!(shown.ctime > PAST && shown.ctime < FUTURE, "{:?}", shown.ctime);
    }
}

#[test]
fn a_change_of_mode_leaves_the_time_of_the_last_new_name() {
    let (engine, clock, fs, d) = with_dir();
    set_mtime(&fs, &d, FUTURE);
    make(&fs, &d, b"a");
    let before = fs.getattr(&d);
    fs.setattr(&ROOT, &d, &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
    let shown = shown_and_kept(engine, clock, fs, d, "future, a name, chmod");
    assert_eq!(shown.mtime, before.mtime);
    assert!(shown.ctime > before.ctime);
}

#[test]
fn a_file_is_made_with_its_attributes_in_one_commit() {
    let (engine, _, fs, d) = with_dir();
    let set = SetAttr {
        mode: Some(0o4751),
        uid: Some(7),
        gid: Some(8),
        mtime: Some(SetTime::At(PAST)),
        ..SetAttr::default()
    };
    let newest = || engine.seq(&engine.snapshot()).0;
    let before = newest();
    fs.create_file_with(&ROOT, &d, b"a", NewMode::exact(0o644), b"bytes", &set).unwrap();
    assert_eq!(newest() - before, 1);
    let attr = fs.getattr(&fs.lookup(&ROOT, &d, b"a").unwrap());
    assert_eq!((attr.mode & 0o7777, attr.uid, attr.gid, attr.mtime), (0o4751, 7, 8, PAST));
    let alice = Caller { uid: 10, gid: 20, groups: &[0u32; 0], checked: false };
    fs.setattr(&ROOT, &d, &SetAttr { mode: Some(0o777), ..SetAttr::default() }).unwrap();
    let refused = fs.create_file_with(&alice, &d, b"b", NewMode::exact(0o644), b"", &set);
    assert!(matches!(refused, Err(FsError::NotPermitted)), "only root gives files away");
    assert!(fs.lookup(&ROOT, &d, b"b").is_err());
}

/// Names are made and times are set while another thread syncs: memory and flash agree, whichever came last.
#[test]
fn racing_names_syncs_and_set_times_end_as_the_times_that_are_shown() {
    for seed in 0..40 {
        let (engine, clock, fs, d) = with_dir();
        thread::scope(|s| {
            s.spawn(|| (0..60).for_each(|n| make(&fs, &d, format!("{n}").as_bytes())));
            s.spawn(|| (0..60).for_each(|_| fs.sync().unwrap()));
            let mut draw = TestRandom(seed);
            for _ in 0..60 {
                set_mtime(&fs, &d, if draw.below(2) == 0 { PAST } else { FUTURE });
            }
        });
        shown_and_kept(engine, clock, fs, d, &format!("seed {seed}"));
    }
}

/// A commit in two steps has the time of the last one: what others have changed in between is not newer.
#[test]
fn a_commit_in_two_steps_has_the_time_of_the_last_one() {
    let (_engine, clock, fs, d) = with_dir();
    make(&fs, &d, b"own");
    make(&fs, &d, b"theirs");
    let fs = Arc::new(fs);
    let tx = fs.begin().unwrap();
    let inside = tx.files().lookup(&ROOT, &tx.files().root(), b"d").unwrap();
    let own = tx.files().lookup(&ROOT, &inside, b"own").unwrap();
    tx.files().append(&ROOT, &own, b"more").unwrap();
    let mut pending = tx.begin_commit().unwrap();
    pending.catch_up().unwrap();
    clock.skip_seconds(1000);
    fs.append(&ROOT, &fs.lookup(&ROOT, &d, b"theirs").unwrap(), b"more").unwrap();
    assert!(pending.finish().unwrap());
    let mtime = |name: &[u8]| fs.getattr(&fs.lookup(&ROOT, &d, name).unwrap()).mtime;
    assert!(mtime(b"own") > mtime(b"theirs"), "{:?} and {:?}", mtime(b"own"), mtime(b"theirs"));
}

/// Committed changes carry the time of the commit. With the time of the call, `make` would not build what the
/// transaction has changed, and a backup by change time would miss it.
#[test]
fn a_commit_gives_its_changes_its_own_time() {
    let (engine, clock, fs, d) = with_dir();
    make(&fs, &d, b"old");
    make(&fs, &d, b"touched");
    let fs = Arc::new(fs);
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let inside = tx_fs.lookup(&ROOT, &tx_fs.root(), b"d").unwrap();
    tx_fs.create_file(&ROOT, &inside, b"new", NewMode::exact(0o644), b"1").unwrap();
    let new = tx_fs.lookup(&ROOT, &inside, b"new").unwrap();
    let old = tx_fs.lookup(&ROOT, &inside, b"old").unwrap();
    tx_fs.append(&ROOT, &old, b"more").unwrap();
    let touched = tx_fs.lookup(&ROOT, &inside, b"touched").unwrap();
    let set = SetAttr { mtime: Some(SetTime::At(PAST)), ..SetAttr::default() };
    tx_fs.setattr(&ROOT, &touched, &set).unwrap();
    assert!(tx_fs.getattr(&old).mtime.seconds < Ticking::START_SECONDS + 100, "inside, the time of the call");
    assert!(tx_fs.getattr(&new).btime.seconds < Ticking::START_SECONDS + 100);
    clock.skip_seconds(1000);
    make(&fs, &d, b"by others");
    let others = fs.getattr(&d).mtime;
    clock.skip_seconds(1000);
    let before = clock.now();
    tx.commit().unwrap();
    let times = |fs: &TestFs| {
        let d = fs.lookup(&ROOT, &fs.root(), b"d").unwrap();
        let attr = |name: &[u8]| fs.getattr(&fs.lookup(&ROOT, &d, name).unwrap());
        let (new, old, touched, dir) = (attr(b"new"), attr(b"old"), attr(b"touched"), fs.getattr(&d));
        for (time, what) in [
            (new.btime, "birth of the new file"),
            (new.mtime, "content of the new file"),
            (new.ctime, "change of the new file"),
            (old.mtime, "content of the changed file"),
            (old.ctime, "change of the changed file"),
            (touched.ctime, "change of the file with a time that was set"),
            (dir.mtime, "content of the directory"),
            (dir.ctime, "change of the directory"),
        ] {
            assert!(time > before, "{what}: {time:?} is before the commit at {before:?}");
            assert!(time > others && time <= clock.now(), "{what}: {time:?}");
        }
        assert_eq!(touched.mtime, PAST, "a time that the program has set stays");
    };
    times(&fs);
    fs.sync().unwrap();
    drop((d, fs));
    super::check::check(&*engine, "times of a commit");
    times(&Fs::open(engine, clock.clone(), FsOptions::default()).unwrap());
}
