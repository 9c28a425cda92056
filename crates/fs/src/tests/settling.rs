//! Settling: what a rollback hides goes, in one pass for all rollbacks, across crashes, and in a full pool.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use warpfire_log::{MemLog, MemLogOptions, RecoveredLog};
use warpfire_meta::{SliceStore, SnapshotStore, Store};

use super::TestRandom;
use super::check::check;
use super::engine::{LogEngine, format, open};
use super::rollback::make_in;
use super::tree_model::listing;
use crate::acl::Caller;
use crate::{Fs, FsError, Invalidation, NewMode, Position, RenameMode, XattrMode};

const ROOT: Caller<'static> = Caller::ROOT;

/// The transaction begins while a rollback hides a file, which a second rollback shows again.
#[test]
fn a_transaction_between_two_rollbacks_ends_as_a_conflict_after_both_are_settled() {
    let fs = Arc::new(open(format(), Fs::format));
    fs.create_snapshot(b"s").unwrap();
    make_in(&fs, b"now", b"now");
    fs.create_snapshot(b"with").unwrap();
    fs.roll_back(b"s", b"first", &mut |_| ()).unwrap();
    let transaction = fs.begin().unwrap();
    let files = transaction.files();
    assert!(matches!(files.lookup(&ROOT, &files.root(), b"now"), Err(FsError::NotFound)));
    files.create_file(&ROOT, &files.root(), b"of the transaction", NewMode::exact(0o644), b"x").unwrap();
    fs.roll_back(b"with", b"second", &mut |_| ()).unwrap();
    fs.settle_rollbacks(&mut || true).unwrap();
    assert!(fs.engine().rollbacks().iter().all(|rollback| rollback.ended_at.is_some()));
    assert!(matches!(transaction.commit(), Err(FsError::Conflict { .. })));
    check(&**fs.engine(), "a transaction between two rollbacks");
}

#[test]
fn rollbacks_to_and_fro_are_settled_in_one_pass() {
    let fs = open(format(), Fs::format);
    make_in(&fs, b"kept", b"kept");
    fs.create_snapshot(b"s").unwrap();
    let without = listing(&fs);
    for n in 0..1000 {
        make_in(&fs, format!("{n}").as_bytes(), b"now");
    }
    let with = listing(&fs);
    let mut to = b"s".to_vec();
    for n in 0..10 {
        let kept = format!("kept {n}").into_bytes();
        fs.roll_back(&to, &kept, &mut |_| ()).unwrap();
        to = kept;
    }
    let mut commits = 0;
    fs.settle_rollbacks(&mut || {
        commits += 1;
        true
    })
    .unwrap();
    assert!((8..16).contains(&commits), "{commits} commits of 128 keys for 1,000 files");
    assert!(listing(&fs) == with);
    assert!(fs.engine().rollbacks().iter().all(|rollback| rollback.ended_at.is_some()));
    check(&**fs.engine(), "settled in one pass");
    // Snapshots from between, before and after the rollbacks show what they showed.
    for n in 0..10 {
        let shown = listing(&*fs.open_snapshot(format!("kept {n}").as_bytes()).unwrap());
        assert!(shown == if n % 2 == 0 { with.clone() } else { without.clone() }, "kept {n}");
    }
    fs.roll_back(b"kept 1", b"last", &mut |_| ()).unwrap();
    assert!(listing(&fs) == without);
    fs.settle_rollbacks(&mut || true).unwrap();
    assert!(listing(&fs) == without);
    for name in fs.snapshots().unwrap() {
        fs.delete_snapshot(&name.name).unwrap();
    }
    fs.engine().compact().unwrap();
    fs.settle_rollbacks(&mut || true).unwrap();
    assert!(fs.engine().rollbacks().is_empty(), "nobody knows of a rollback");
    assert!(listing(&fs) == without);
    check(&**fs.engine(), "without snapshots");
}

#[test]
fn settling_gives_way_to_a_rollback() {
    let fs = open(format(), Fs::format);
    make_in(&fs, b"then", b"then");
    fs.create_snapshot(b"s").unwrap();
    let then = listing(&fs);
    for n in 0..300 {
        make_in(&fs, format!("{n}").as_bytes(), b"now");
    }
    fs.roll_back(b"s", b"first", &mut |_| ()).unwrap();
    let (begun, waits) = mpsc::channel();
    let (rolls_back, may_go_on) = mpsc::channel();
    let (broken_off, settles) = mpsc::channel();
    let settles_in = &fs;
    std::thread::scope(|threads| {
        threads.spawn(move || {
            settles_in
                .settle_rollbacks(&mut || {
                    let _ = begun.send(());
                    // An error only once the other thread has ended.
                    let _ = may_go_on.recv();
                    true
                })
                .unwrap();
            broken_off.send(()).unwrap();
        });
        waits.recv().unwrap();
        let mut has_given_way = false;
        fs.roll_back(b"s", b"second", &mut |_| {
            if !has_given_way {
                rolls_back.send(()).unwrap();
                // Settling would wait for the end of this call.
                settles.recv_timeout(Duration::from_secs(60)).expect("settling has not given way");
                has_given_way = true;
            }
        })
        .unwrap();
        drop(rolls_back);
    });
    assert_eq!(fs.engine().rollbacks().iter().filter(|rollback| rollback.ended_at.is_none()).count(), 2);
    fs.settle_rollbacks(&mut || true).unwrap();
    assert!(listing(&fs) == then, "only the file of then");
    check(&**fs.engine(), "settled in two parts");
}

/// More changes than a rollback looks at: they are hidden, and settled later in pages, with power cuts
/// between.
#[test]
fn a_rollback_that_is_not_settled_goes_on_after_a_crash() {
    const FILES: u32 = 3000;
    let mut fs = open(format(), Fs::format);
    let root = fs.root();
    let dir = fs.mkdir(&ROOT, &root, b"dir", NewMode::exact(0o755)).unwrap();
    for n in 0..FILES {
        let bytes = vec![n as u8; 1 + n as usize % 300];
        fs.create_file(&ROOT, &dir, format!("{n}").as_bytes(), NewMode::exact(0o644), &bytes).unwrap();
    }
    fs.create_file(&ROOT, &root, b"large", NewMode::exact(0o644), &[7; 3 << 20]).unwrap();
    let large = fs.lookup(&ROOT, &root, b"large").unwrap();
    fs.sync().unwrap();
    fs.create_snapshot(b"s").unwrap();
    let (then, space) = (listing(&fs), fs.statfs().unwrap());
    for n in 0..FILES {
        let name = format!("{n}");
        match n % 3 {
            0 => fs.unlink(&ROOT, &dir, name.as_bytes()).unwrap(),
            1 => {
                let file = fs.lookup(&ROOT, &dir, name.as_bytes()).unwrap();
                fs.write(&ROOT, &file, Position::At(3), b"now").unwrap();
            }
            _ => {
                let to = format!("moved {n}");
                let places = ((&dir, name.as_bytes()), (&root, to.as_bytes()));
                fs.rename(&ROOT, places.0, places.1, RenameMode::Replace).unwrap();
            }
        }
    }
    // Files in use: one that has moved, one that has lost its name, and two that the snapshot does not have.
    let moved = fs.lookup(&ROOT, &root, b"moved 2").unwrap();
    fs.unlink(&ROOT, &root, b"large").unwrap();
    fs.create_file(&ROOT, &root, b"new", NewMode::exact(0o644), &[9; 2 << 20]).unwrap();
    let new = fs.lookup(&ROOT, &root, b"new").unwrap();
    fs.setxattr(&ROOT, &new, b"user.a", b"now", XattrMode::Either).unwrap();
    let new_dir = fs.mkdir(&ROOT, &root, b"new dir", NewMode::exact(0o755)).unwrap();
    let now = listing(&fs);
    let mut seen = Vec::new();
    fs.roll_back(b"s", b"kept", &mut |changed| seen.push(matches!(changed, Invalidation::Everything)))
        .unwrap();
    assert_eq!(seen, [true], "they are too many to be named");
    assert_eq!(fs.engine().rollbacks().len(), 1);
    assert!(listing(&fs) == then);
    assert!(listing(&*fs.open_snapshot(b"kept").unwrap()) == now, "the old tree is kept");
    assert!(Arc::ptr_eq(&moved, &fs.lookup(&ROOT, &dir, b"2").unwrap()), "one node for one file");
    let mut bytes = vec![0; 3 << 20];
    fs.read(&large, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "a file that was removed has its name again");
    fs.read(&new, 0, &mut bytes[..2 << 20]).unwrap();
    assert!(bytes[..2 << 20].iter().all(|byte| *byte == 9), "for its user");
    assert_eq!((fs.getattr(&new).links, fs.getattr(&new_dir).links), (0, 0));
    assert_eq!(fs.getxattr(&ROOT, &new, b"user.a").unwrap(), b"now");
    check(&**fs.engine(), "not settled");
    // Changes above the hidden versions.
    fs.write(&ROOT, &moved, Position::At(0), b"later").unwrap();
    fs.unlink(&ROOT, &dir, b"5").unwrap();
    drop((root, dir, large, moved, new, new_dir));
    let mut tree = then.clone();
    let changed = tree.get_mut(&b"/dir/2"[..]).unwrap().as_mut().unwrap();
    changed.resize(changed.len().max(5), 0);
    changed[..5].copy_from_slice(b"later");
    tree.remove(&b"/dir/5"[..]);
    fs.sync().unwrap();
    let inodes = fs.statfs().unwrap().inodes;
    assert_eq!(inodes, space.inodes - 1);
    let mut pages = 0;
    for seed in 0.. {
        fs.sync().unwrap();
        fs = open(fs.engine().log().crash_seeded(seed), |_, _, _, _| Ok(()));
        assert!(listing(&fs) == tree, "after crash {seed}");
        assert_eq!(fs.statfs().unwrap().inodes, inodes);
        check(&**fs.engine(), "partly settled");
        if fs.engine().rollbacks().is_empty() {
            break;
        }
        // One page more each time: a crash loses the place, not the work.
        let mut left = seed + 1;
        fs.settle_rollbacks(&mut || {
            pages += 1;
            left -= 1;
            left > 0
        })
        .unwrap();
        match seed % 3 {
            0 => fs.engine().compact().unwrap(),
            1 => while fs.engine().background_step().unwrap() {},
            _ => {}
        }
    }
    assert!(pages > 3, "{pages} pages");
    assert!(listing(&*fs.open_snapshot(b"kept").unwrap()) == now, "the old tree is kept");
    for name in [&b"s"[..], b"kept"] {
        fs.delete_snapshot(name).unwrap();
    }
    fs.engine().compact().unwrap();
    while fs.engine().background_step().unwrap() {}
    assert!(listing(&fs) == tree, "nothing depends on a snapshot");
    assert_eq!(fs.engine().past_runs(), [], "nothing is kept for a rollback");
    check(&**fs.engine(), "at the end");
}

/// A snapshot that is made before a rollback is settled shows what it showed, also after that.
#[test]
fn a_snapshot_of_a_rollback_that_is_not_settled_shows_the_same_for_ever() {
    let mut fs = open(format(), Fs::format);
    for n in 0..200 {
        let name = format!("{n}");
        fs.create_file(&ROOT, &fs.root(), name.as_bytes(), NewMode::exact(0o644), b"then").unwrap();
    }
    fs.create_snapshot(b"s").unwrap();
    let then = listing(&fs);
    for n in 0..200 {
        fs.unlink(&ROOT, &fs.root(), format!("{n}").as_bytes()).unwrap();
    }
    fs.roll_back(b"s", b"kept", &mut |_| ()).unwrap();
    fs.unlink(&ROOT, &fs.root(), b"7").unwrap();
    fs.create_snapshot(b"between").unwrap();
    let between = listing(&fs);
    assert_eq!(between.len(), then.len() - 1);
    fs.settle_rollbacks(&mut || true).unwrap();
    assert_eq!(fs.engine().rollbacks().len(), 1, "a snapshot knows of it");
    for name in [&b"s"[..], b"kept"] {
        fs.delete_snapshot(name).unwrap();
    }
    for round in 0..3 {
        fs.engine().compact().unwrap();
        while fs.engine().background_step().unwrap() {}
        assert!(listing(&*fs.open_snapshot(b"between").unwrap()) == between, "round {round}");
        fs.unlink(&ROOT, &fs.root(), format!("{}", 100 + round).as_bytes()).unwrap();
        fs.sync().unwrap();
        fs = open(fs.engine().log().crash_seeded(round), |_, _, _, _| Ok(()));
    }
    fs.roll_back(b"between", b"undone", &mut |_| ()).unwrap();
    assert!(listing(&fs) == between);
    for name in [&b"between"[..], b"undone"] {
        fs.delete_snapshot(name).unwrap();
    }
    fs.settle_rollbacks(&mut || true).unwrap();
    assert!(fs.engine().rollbacks().is_empty(), "nobody knows of one");
    assert!(listing(&fs) == between);
    check(&**fs.engine(), "at the end");
}

/// A rollback that is not settled holds the versions that it shows, and no others.
#[test]
fn the_snapshot_of_the_old_tree_frees_its_bytes_before_a_rollback_is_settled() {
    let mut fs = open(format(), Fs::format);
    let live = |fs: &Fs<LogEngine>| {
        fs.engine().compact().unwrap();
        while fs.engine().background_step().unwrap() {}
        fs.engine().space().unwrap().live_bytes
    };
    make_in(&fs, b"large", &[1; 4 << 20]);
    fs.create_snapshot(b"s").unwrap();
    let large = fs.lookup(&ROOT, &fs.root(), b"large").unwrap();
    fs.write(&ROOT, &large, Position::At(0), &[2; 4 << 20]).unwrap();
    drop(large);
    fs.roll_back(b"s", b"kept", &mut |_| ()).unwrap();
    // It is there for long, and was made before the rollback is settled.
    fs.create_snapshot(b"between").unwrap();
    let both = live(&fs);
    fs.delete_snapshot(b"kept").unwrap();
    let one = live(&fs);
    assert!(both > (8 << 20) && one < (5 << 20), "{both} bytes, then {one}");
    for round in 0..2 {
        let then = fs.open_snapshot(b"between").unwrap();
        let is_old = |bytes: Vec<u8>| bytes.len() == 4 << 20 && bytes.iter().all(|byte| *byte == 1);
        assert!(is_old(fs.read_file(&ROOT, &fs.root(), b"large").unwrap()), "round {round}");
        assert!(is_old(then.read_file(&ROOT, &then.root(), b"large").unwrap()), "round {round}");
        drop(then);
        fs.settle_rollbacks(&mut || true).unwrap();
        fs.sync().unwrap();
        fs = open(fs.engine().log().crash_seeded(round), |_, _, _, _| Ok(()));
        assert!(live(&fs) < (5 << 20), "round {round}");
    }
    check(&**fs.engine(), "at the end");
}

/// No caller asks for room here, and no background work runs.
#[test]
fn settling_finds_its_own_room_in_a_full_pool() {
    for seed in 0..8 {
        let what = format!("seed {seed}");
        let mut draw = TestRandom(900 + seed);
        let options = MemLogOptions { capacity_bytes: 24 * (256 << 10), segment_bytes: 256 << 10 };
        let fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
        let name = |n: u64| format!("{n}").into_bytes();
        let put = |n: u64, len: u64| {
            let bytes = vec![len as u8; len as usize];
            fs.create_file(&ROOT, &fs.root(), &name(n), NewMode::exact(0o644), &bytes)
        };
        let then_files = 500 + draw.below(500);
        for n in 0..then_files {
            put(n, 100 + draw.below(2000)).unwrap();
        }
        fs.create_snapshot(b"s").unwrap();
        for n in 0..then_files {
            fs.unlink(&ROOT, &fs.root(), &name(n)).unwrap();
        }
        let mut files = then_files;
        for longest in [60_000, 5_000, 300] {
            while put(files, 1 + draw.below(longest)).is_ok() {
                files += 1;
            }
        }
        // Rollbacks and deletions take what they may of the reserve.
        let mut kept = Vec::new();
        let mut refused = false;
        while !refused {
            let name_kept = format!("kept {}", kept.len()).into_bytes();
            match fs.roll_back(b"s", &name_kept, &mut |_| ()) {
                Ok(_) => kept.push(name_kept),
                Err(FsError::NoSpace) => refused = true,
                Err(e) => panic!("{what}: {e}"),
            }
            refused |= (0..then_files).any(|n| fs.unlink(&ROOT, &fs.root(), &name(n)).is_err());
        }
        let now = listing(&fs);
        for name in kept.iter().map(Vec::as_slice).chain([&b"s"[..]]) {
            fs.delete_snapshot(name).unwrap();
        }
        for _ in 0..3 {
            match fs.settle_rollbacks(&mut || true) {
                Ok(_) | Err(FsError::NoSpace) => {}
                Err(e) => panic!("{what}: {e}"),
            }
        }
        assert_eq!(fs.engine().rollbacks().len(), 0, "{what}: {:?}", fs.engine().space());
        assert!(listing(&fs) == now, "{what}: the tree is the same");
        check(&**fs.engine(), &what);
    }
}
