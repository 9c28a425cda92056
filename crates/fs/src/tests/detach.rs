//! Detached clones: what they and their snapshots show, what comes back, and what a detach that is stopped,
//! refused or met by writers leaves.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use warpfire_log::{LogStore, MemLog, MemLogOptions, RecoveredLog};
use warpfire_meta::{ORIGINS_MAX, SnapshotStore, Storage, Store};

use super::check::check;
use super::engine::{LogEngine, format, open};
use super::tree_model::listing_below;
use super::{Ticking, world, world_with};
use crate::acl::Caller;
use crate::{
    CloneSource, DetachProgress, Fs, FsError, FsOptions, LimitChange, NewLimit, NewMode, NodeRef, Position,
    SetAttr, VolumeInfo, XattrMode,
};

const ROOT: Caller<'static> = Caller::ROOT;

fn dir<E: Storage>(fs: &Fs<E>, parent: &NodeRef, name: &[u8]) -> NodeRef {
    fs.mkdir(&ROOT, parent, name, NewMode::exact(0o755)).unwrap()
}

fn file<E: Storage>(fs: &Fs<E>, parent: &NodeRef, name: &[u8], bytes: &[u8]) -> NodeRef {
    fs.create_file(&ROOT, parent, name, NewMode::exact(0o644), bytes).unwrap();
    fs.lookup(&ROOT, parent, name).unwrap()
}

fn clone<E: Storage + SnapshotStore>(fs: &Fs<E>, source: &NodeRef, name: &[u8]) -> NodeRef {
    fs.clone_directory(CloneSource::Directory(source), &fs.root(), name).unwrap();
    fs.lookup(&ROOT, &fs.root(), name).unwrap()
}

fn detach<E: Storage + SnapshotStore>(fs: &Fs<E>, door: &[u8]) -> Result<VolumeInfo, FsError> {
    fs.detach_volume(door, &mut |_| ControlFlow::Continue(())).map(|info| info.expect("nobody stops it"))
}

fn info<E: Storage>(fs: &Fs<E>, door: &[u8]) -> VolumeInfo {
    fs.volumes().unwrap().into_iter().find(|volume| volume.path == door).unwrap()
}

/// A directory with every kind of record in it, and a large file beside it.
fn grow<E: Storage>(fs: &Fs<E>) -> NodeRef {
    let work = dir(fs, &fs.root(), b"work");
    let sub = dir(fs, &dir(fs, &work, b"sub"), b"deep");
    file(fs, &work, b"small", b"then");
    file(fs, &work, b"gone", b"soon");
    let large = file(fs, &sub, b"large", &vec![7; 3 << 20]);
    fs.setxattr(&ROOT, &large, b"user.x", b"value", XattrMode::Either).unwrap();
    fs.link(&ROOT, &large, &work, b"also").unwrap();
    let outside = file(fs, &fs.root(), b"outside", &vec![3; 2 << 20]);
    fs.link(&ROOT, &outside, &work, b"in and out").unwrap();
    work
}

/// Changes of every kind in a clone of `work`.
fn change<E: Storage>(fs: &Fs<E>, seen: &NodeRef) {
    let also = fs.lookup(&ROOT, seen, b"also").unwrap();
    fs.write(&ROOT, &also, Position::At(1 << 20), &[9; 100]).unwrap();
    fs.setattr(&ROOT, &also, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    fs.unlink(&ROOT, seen, b"gone").unwrap();
    file(fs, seen, b"own", b"of the clone");
    fs.write(&ROOT, &fs.lookup(&ROOT, seen, b"small").unwrap(), Position::End, b" and now").unwrap();
}

#[test]
fn a_detached_clone_shows_what_it_showed_and_the_bytes_of_its_origin_come_back() {
    let fs = open(format(), Fs::format);
    let work = grow(&fs);
    file(&fs, &fs.root(), b"beside", &vec![5; 8 << 20]);
    let seen = clone(&fs, &work, b"@try");
    change(&fs, &seen);
    let (shown, of_origin) = (listing_below(&fs, &seen), listing_below(&fs, &work));
    fs.engine().flush().unwrap();
    let detached = detach(&fs, b"/@try").unwrap();
    assert_eq!((detached.origin, detached.former_origin), (None, None), "nobody reads on");
    assert_eq!(listing_below(&fs, &seen), shown);
    assert_eq!(listing_below(&fs, &work), of_origin);
    let large = fs.lookup(&ROOT, &seen, b"also").unwrap();
    assert_eq!(fs.getxattr(&ROOT, &large, b"user.x").unwrap(), b"value");
    assert_eq!((fs.getattr(&large).mode & 0o777, fs.getattr(&large).links), (0o600, 2));
    // The root, two directories, "small", "also", "in and out" and "own".
    assert_eq!(detached.inodes, 7, "the sums have nothing from outside");
    fs.sync().unwrap();
    check(&**fs.engine(), "after the detach");

    // A file beside the cloned directory is not kept for the clone.
    fs.engine().compact().unwrap();
    let live_before = fs.engine().log().space().live_bytes;
    for name in [&b"beside"[..], b"outside"] {
        fs.unlink(&ROOT, &fs.root(), name).unwrap();
    }
    fs.sync().unwrap();
    while fs.engine().background_step().unwrap() {}
    fs.engine().compact().unwrap();
    let freed = live_before - fs.engine().log().space().live_bytes;
    // A segment that has shared bytes beside them may count these twice until a census.
    assert!(freed >= 6 << 20, "{freed} bytes came back, of 8 MiB");
    assert_eq!(listing_below(&fs, &seen), shown);
    let fs = open(fs.engine().log().crash(), |_, _, _, _| Ok(()));
    let seen = fs.lookup(&ROOT, &fs.root(), b"@try").unwrap();
    assert_eq!(listing_below(&fs, &seen), shown);
    check(&**fs.engine(), "in another opening");
}

#[test]
fn snapshots_from_before_a_detach_read_on_and_the_last_of_them_frees_the_origin() {
    let fs = open(format(), Fs::format);
    let work = grow(&fs);
    let seen = clone(&fs, &work, b"@try");
    let origin = info(&fs, b"/@try").origin;
    change(&fs, &seen);
    fs.create_snapshot(b"before").unwrap();
    let then = listing_below(&fs, &seen);
    // What the origin showed is in no other snapshot.
    fs.write(&ROOT, &fs.lookup(&ROOT, &work, b"also").unwrap(), Position::At(0), &[1; 4096]).unwrap();
    let detached = detach(&fs, b"/@try").unwrap();
    assert_eq!((detached.origin, detached.former_origin), (None, origin));
    file(&fs, &seen, b"later", b"after the detach");
    fs.unlink(&ROOT, &seen, b"also").unwrap();
    fs.create_snapshot(b"after").unwrap();
    let now = listing_below(&fs, &seen);
    for _ in 0..2 {
        fs.engine().flush().unwrap();
        fs.engine().compact().unwrap();
        while fs.engine().background_step().unwrap() {}
        for (name, expected) in [(&b"before"[..], &then), (b"after", &now)] {
            let shown = fs.open_snapshot(name).unwrap();
            let there = shown.lookup(&ROOT, &shown.root(), b"@try").unwrap();
            assert_eq!(&listing_below(&*shown, &there), expected, "{}", name.escape_ascii());
        }
        fs.forget_volumes().unwrap();
        assert_eq!(info(&fs, b"/@try").former_origin, origin, "a snapshot reads on");
    }
    fs.delete_snapshot(b"before").unwrap();
    assert_eq!(info(&fs, b"/@try").former_origin, None, "nobody reads on");
    fs.engine().compact().unwrap();
    assert_eq!(listing_below(&fs, &seen), now);
    let shown = fs.open_snapshot(b"after").unwrap();
    let there = shown.lookup(&ROOT, &shown.root(), b"@try").unwrap();
    assert_eq!(listing_below(&*shown, &there), now);
    fs.sync().unwrap();
    check(&**fs.engine(), "without the snapshot");
}

#[test]
fn a_clone_between_is_detached_and_clones_on_both_sides_of_it_stay() {
    let fs = open(format(), Fs::format);
    let work = grow(&fs);
    let seen = clone(&fs, &work, b"@try");
    change(&fs, &seen);
    let early = clone(&fs, &seen, b"@early");
    let then = listing_below(&fs, &early);
    file(&fs, &seen, b"between", b"1");
    assert!(detach(&fs, b"/@try").unwrap().former_origin.is_some(), "an earlier clone reads on through it");
    let late = clone(&fs, &seen, b"@late");
    let now = listing_below(&fs, &late);
    drop(seen);
    let check_both = |what: &str| {
        fs.engine().flush().unwrap();
        while fs.engine().background_step().unwrap() {}
        fs.engine().compact().unwrap();
        fs.forget_volumes().unwrap();
        assert_eq!(listing_below(&fs, &early), then, "{what}");
        assert_eq!(listing_below(&fs, &late), now, "{what}");
        fs.sync().unwrap();
        check(&**fs.engine(), what);
    };
    check_both("both read on");
    detach(&fs, b"/@early").unwrap();
    check_both("the earlier one is detached");
    assert_eq!(info(&fs, b"/@try").former_origin, None, "nobody reads on through it");
    fs.delete_volume(&fs.root(), b"@try", &mut |_| ()).unwrap();
    check_both("what they were made of is gone");
    detach(&fs, b"/@late").unwrap();
    check_both("both are detached");
    assert_eq!(fs.volumes().unwrap().len(), 2);
}

#[test]
fn a_clone_whose_origin_is_deleted_is_detached_and_the_origin_is_forgotten() {
    let fs = open(format(), Fs::format);
    let work = grow(&fs);
    let first = clone(&fs, &work, b"@first");
    let second = clone(&fs, &first, b"@second");
    let shown = listing_below(&fs, &second);
    drop(first);
    fs.delete_volume(&fs.root(), b"@first", &mut |_| ()).unwrap();
    detach(&fs, b"/@second").unwrap();
    while fs.engine().background_step().unwrap() {}
    fs.engine().compact().unwrap();
    fs.forget_volumes().unwrap();
    assert!(fs.engine().unneeded_domains().unwrap().is_empty());
    assert_eq!(listing_below(&fs, &second), shown);
    fs.sync().unwrap();
    check(&**fs.engine(), "the origin is forgotten");
}

#[test]
fn a_detached_clone_can_be_cloned_eight_deep_again() {
    let fs = world();
    let mut below = grow(&fs);
    for n in 1..=ORIGINS_MAX {
        below = clone(&fs, &below, format!("@{n}").as_bytes());
    }
    let shown = listing_below(&fs, &below);
    fs.create_snapshot(b"before").unwrap();
    let refused = fs.clone_directory(CloneSource::Directory(&below), &fs.root(), b"@9");
    assert_eq!(refused.unwrap_err().errno(), Errno::INVAL.raw_os_error());
    detach(&fs, format!("/@{ORIGINS_MAX}").as_bytes()).unwrap();
    let root = below.ino();
    for n in 9..9 + ORIGINS_MAX {
        below = clone(&fs, &below, format!("@{n}").as_bytes());
        assert_eq!(listing_below(&fs, &below), shown, "{n}");
    }
    let refused = fs.clone_directory(CloneSource::Directory(&below), &fs.root(), b"@17");
    assert_eq!(refused.unwrap_err().errno(), Errno::INVAL.raw_os_error());
    // As the snapshot shows it, it is as deep as it was.
    let then = CloneSource::Snapshot { name: b"before", root };
    assert!(matches!(fs.clone_directory(then, &fs.root(), b"@then"), Err(FsError::Invalid(_))));
    fs.sync().unwrap();
    check(&**fs.engine(), "sixteen clones");
}

#[test]
fn a_copy_that_is_stopped_goes_on_when_it_is_called_again() {
    let fs = open(format(), Fs::format);
    let work = dir(&fs, &fs.root(), b"work");
    for n in 0..3000 {
        file(&fs, &work, format!("file {n}").as_bytes(), b"bytes");
    }
    let seen = clone(&fs, &work, b"@try");
    let shown = listing_below(&fs, &seen);
    let copied = |stop_after: u64| {
        let mut last = DetachProgress::default();
        let outcome = fs.detach_volume(b"/@try", &mut |done| {
            last = *done;
            if done.records >= stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (outcome.unwrap().is_some(), last.records)
    };
    let (is_done, first) = copied(1);
    assert!(!is_done && first > 0);
    assert!(info(&fs, b"/@try").origin.is_some(), "it is a clone as before");
    fs.sync().unwrap();
    check(&**fs.engine(), "stopped");
    let fs_again = open(fs.engine().log().crash(), |_, _, _, _| Ok(()));
    assert_eq!(listing_below(&fs_again, &fs_again.lookup(&ROOT, &fs_again.root(), b"@try").unwrap()), shown);
    let (is_done, second) = copied(u64::MAX);
    assert!(is_done);
    assert_eq!(first + second, 3001, "no record is copied twice");
    assert_eq!(listing_below(&fs, &seen), shown);
    fs.sync().unwrap();
    check(&**fs.engine(), "done");
}

#[test]
fn a_volume_without_an_origin_is_not_detached() {
    let fs = world();
    let work = grow(&fs);
    fs.create_volume(&fs.root(), b"@empty", (0, 0)).unwrap();
    clone(&fs, &work, b"@try");
    let refused = |door: &[u8]| detach(&fs, door).unwrap_err();
    assert!(matches!(refused(b"/@empty"), FsError::Invalid(_)));
    assert!(matches!(refused(b"/work"), FsError::Invalid(_)), "no door");
    assert!(matches!(refused(b"/none"), FsError::NotFound));
    assert!(matches!(refused(b"/"), FsError::Exists));
    fs.create_snapshot(b"before").unwrap();
    assert!(detach(&fs, b"/@try").unwrap().former_origin.is_some());
    assert!(matches!(refused(b"/@try"), FsError::Invalid(_)), "its origin is released");
    fs.delete_snapshot(b"before").unwrap();
    assert!(matches!(refused(b"/@try"), FsError::Invalid(_)), "it has none");

    clone(&fs, &work, b"@other");
    let options = FsOptions { read_only: true, ..FsOptions::default() };
    let reading = Fs::open(Arc::clone(fs.engine()), Arc::new(Ticking::default()), options).unwrap();
    assert!(matches!(detach(&reading, b"/@other"), Err(FsError::OpenForReading)));
}

#[test]
fn a_full_pool_refuses_a_detach_and_leaves_the_clone_whole() {
    let options = MemLogOptions { capacity_bytes: 24 << 20, segment_bytes: 256 << 10 };
    let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
    let work = dir(&fs, &fs.root(), b"work");
    for n in 0..5000 {
        file(&fs, &work, format!("file {n}").as_bytes(), &[n as u8; 400]);
    }
    let seen = clone(&fs, &work, b"@try");
    let shown = listing_below(&fs, &seen);
    let fill = file(&fs, &work, b"full", b"");
    for piece in [60_000, 1000, 10] {
        while fs.write(&ROOT, &fill, Position::End, &vec![1; piece]).is_ok() {}
    }
    drop(fill);
    assert!(matches!(detach(&fs, b"/@try"), Err(FsError::NoSpace)));
    assert!(info(&fs, b"/@try").origin.is_some());
    assert_eq!(listing_below(&fs, &seen), shown);
    fs.sync().unwrap();
    check(&**fs.engine(), "a full pool");
    fs.unlink(&ROOT, &work, b"full").unwrap();
    fs.sync().unwrap();
    while fs.engine().background_step().unwrap() {}
    detach(&fs, b"/@try").unwrap();
    assert_eq!(listing_below(&fs, &seen), shown);
    fs.sync().unwrap();
    check(&**fs.engine(), "with room again");
}

#[test]
fn a_limit_counts_a_detached_clone_exactly() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    file(&fs, &work, b"file", &[1; 1000]);
    file(&fs, &fs.root(), b"outside", &[2; 50_000]);
    let seen = clone(&fs, &work, b"@try");
    let change = LimitChange { bytes: NewLimit::Max(2000), files: NewLimit::Max(3) };
    fs.limit_volume(&fs.root(), b"@try", change).unwrap();
    let add =
        |name: &[u8], len| fs.create_file(&ROOT, &seen, name, NewMode::exact(0o644), &vec![3; len]).map(drop);
    assert!(matches!(add(b"new", 1), Err(FsError::VolumeFull(_))), "it counts the file outside");
    let detached = detach(&fs, b"/@try").unwrap();
    assert_eq!((detached.inodes, detached.file_bytes), (2, 1000));
    assert!(matches!(add(b"new", 1001), Err(FsError::VolumeFull("bytes"))));
    add(b"new", 1000).unwrap();
    assert!(matches!(add(b"more", 0), Err(FsError::VolumeFull("files"))));
    fs.sync().unwrap();
    check(&**fs.engine(), "at the limit");
}

#[test]
fn a_transaction_that_read_the_clone_commits_after_the_detach() {
    let (engine, clock) = world_with();
    let fs = Arc::new(Fs::open(engine, clock, FsOptions::default()).unwrap());
    let work = grow(&fs);
    let seen = clone(&fs, &work, b"@try");
    let tx = fs.begin().unwrap();
    let files = tx.files();
    let there = files.lookup(&ROOT, &files.root(), b"@try").unwrap();
    assert_eq!(files.read_file(&ROOT, &there, b"small").unwrap(), b"then");
    let node = files.lookup(&ROOT, &there, b"small").unwrap();
    files.write(&ROOT, &node, Position::At(0), b"in a").unwrap();
    drop((node, there));
    assert!(detach(&fs, b"/@try").unwrap().former_origin.is_some(), "the transaction reads on");
    tx.commit().unwrap();
    assert_eq!(fs.read_file(&ROOT, &seen, b"small").unwrap(), b"in a");
    fs.forget_volumes().unwrap();
    assert_eq!(info(&fs, b"/@try").former_origin, None);
    fs.sync().unwrap();
    check(&**fs.engine(), "after the transaction");
}

/// Appends to its own files, and changes the modes of all, until told to stop.
fn write_until(fs: &Fs<LogEngine>, seen: &NodeRef, writer: usize, stop: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) || rounds < 20 {
        for n in (writer..60).step_by(2) {
            let name = format!("file {n}");
            let node = fs.lookup(&ROOT, seen, name.as_bytes()).unwrap();
            fs.write(&ROOT, &node, Position::End, &[n as u8]).unwrap();
            fs.setattr(&ROOT, &node, &SetAttr { mode: Some(rounds as u32 % 512), ..SetAttr::default() })
                .unwrap();
        }
        fs.create_file(&ROOT, seen, format!("{writer} {rounds}").as_bytes(), NewMode::exact(0o644), b"new")
            .unwrap();
        rounds += 1;
    }
    rounds
}

#[test]
fn writers_lose_nothing_while_their_clone_is_copied() {
    for round in 0..6 {
        let fs = open(format(), Fs::format);
        let work = dir(&fs, &fs.root(), b"work");
        for n in 0..3000_u32 {
            let len = if n < 60 && n % 7 == 0 { 100_000 } else { 3 };
            file(&fs, &work, format!("file {n}").as_bytes(), &vec![n as u8; len]);
        }
        let seen = clone(&fs, &work, b"@try");
        if round & 1 == 0 {
            fs.engine().flush().unwrap();
        }
        let stop = AtomicBool::new(false);
        let rounds: Vec<u64> = std::thread::scope(|scope| {
            let (fs, seen, stop) = (&fs, &seen, &stop);
            let writers = [0, 1].map(|writer| scope.spawn(move || write_until(fs, seen, writer, stop)));
            detach(fs, b"/@try").unwrap();
            stop.store(true, Ordering::Relaxed);
            writers.map(|writer| writer.join().unwrap()).to_vec()
        });
        for n in 0..60_usize {
            let name = format!("file {n}");
            let node = fs.lookup(&ROOT, &seen, name.as_bytes()).unwrap();
            let before = if n % 7 == 0 { 100_000 } else { 3 };
            let bytes = fs.read_file(&ROOT, &seen, name.as_bytes()).unwrap();
            assert_eq!(bytes, vec![n as u8; before + rounds[n % 2] as usize], "{name}");
            assert_eq!(u64::from(fs.getattr(&node).mode & 0o777), (rounds[n % 2] - 1) % 512, "{name}");
        }
        let entries = fs.readdir(&ROOT, &seen, None, usize::MAX).unwrap().len() as u64;
        assert_eq!(entries, 3000 + rounds.iter().sum::<u64>());
        fs.sync().unwrap();
        check(&**fs.engine(), "after the writers");
        let fs = open(fs.engine().log().crash(), |_, _, _, _| Ok(()));
        check(&**fs.engine(), "after a crash");
    }
}

#[test]
fn a_pool_with_room_for_the_records_alone_is_enough() {
    let options = MemLogOptions { capacity_bytes: 12 << 20, segment_bytes: 256 << 10 };
    let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
    let work = dir(&fs, &fs.root(), b"work");
    for n in 0..6 {
        file(&fs, &work, format!("file {n}").as_bytes(), &vec![n; 1 << 20]);
    }
    let seen = clone(&fs, &work, b"@try");
    fs.sync().unwrap();
    detach(&fs, b"/@try").unwrap();
    assert_eq!(listing_below(&fs, &seen), listing_below(&fs, &work));
    fs.sync().unwrap();
    check(&**fs.engine(), "six of twelve MiB");
}
