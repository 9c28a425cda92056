//! Rollbacks: what comes back, what stays, what refuses, and that a power cut leaves the tree as it was or
//! rolled back.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use warpfire_log::{MemLog, MemLogOptions, RecoveredLog};
use warpfire_meta::{MemoryLimits, SliceStore, SnapshotStore, Store};

use super::check::check;
use super::engine::{LogEngine, format, open};
use super::tree_model::{Tree, listing, step, twin_of};
use super::{TestFs, TestRandom, world, world_with};
use crate::acl::Caller;
use crate::{
    AllocMode, Fs, FsError, FsOptions, Invalidation, NewMode, Position, RenameMode, SetAttr, XattrMode,
};

const ROOT: Caller<'static> = Caller::ROOT;

fn make(fs: &TestFs, name: &[u8], bytes: &[u8]) {
    fs.create_file(&ROOT, &fs.root(), name, NewMode::exact(0o644), bytes).unwrap();
}

fn make_in(fs: &Fs<LogEngine>, name: &[u8], bytes: &[u8]) {
    fs.create_file(&ROOT, &fs.root(), name, NewMode::exact(0o644), bytes).unwrap();
}

fn names_of(fs: &TestFs) -> Vec<Vec<u8>> {
    fs.snapshots().unwrap().into_iter().map(|s| s.name).collect()
}

#[test]
fn the_tree_is_what_the_snapshot_shows_and_a_rollback_is_undone_by_another() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
    make(&fs, b"small", b"then");
    make(&fs, b"large", &[7; 3 << 20]);
    make(&fs, b"gone", &[5; 100_000]);
    let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", NewMode::exact(0o750)).unwrap();
    fs.create_file(&ROOT, &dir, b"inner", NewMode::exact(0o600), b"in").unwrap();
    fs.setxattr(&ROOT, &dir, b"user.a", b"then", XattrMode::Either).unwrap();
    drop(dir);
    fs.create_snapshot(b"monday").unwrap();
    let (then, root_then, space) = (listing(&fs), fs.getattr(&fs.root()), fs.statfs().unwrap());

    let root = fs.root();
    let small = fs.lookup(&ROOT, &root, b"small").unwrap();
    fs.write(&ROOT, &small, Position::At(0), b"now and longer").unwrap();
    fs.link(&ROOT, &small, &root, b"second").unwrap();
    let large = fs.lookup(&ROOT, &root, b"large").unwrap();
    fs.write(&ROOT, &large, Position::At(1 << 20), &[9; 100]).unwrap();
    fs.setattr(&ROOT, &large, &SetAttr { size_bytes: Some(2 << 20), ..SetAttr::default() }).unwrap();
    fs.unlink(&ROOT, &root, b"gone").unwrap();
    fs.rename(&ROOT, (&root, b"dir"), (&root, b"other"), RenameMode::Replace).unwrap();
    let other = fs.lookup(&ROOT, &root, b"other").unwrap();
    fs.setxattr(&ROOT, &other, b"user.a", b"now", XattrMode::Either).unwrap();
    fs.mkdir(&ROOT, &root, b"new", NewMode::exact(0o755)).unwrap();
    fs.create_file(&ROOT, &other, b"reserved", NewMode::exact(0o600), b"").unwrap();
    let reserved = fs.lookup(&ROOT, &other, b"reserved").unwrap();
    fs.fallocate(&ROOT, &reserved, AllocMode::Allocate, 0, 1 << 20).unwrap();
    drop((small, large, other, reserved));
    fs.create_snapshot(b"tuesday").unwrap();
    let (now, space_now) = (listing(&fs), fs.statfs().unwrap());
    assert!(then != now);

    let done = fs.roll_back(b"monday", b"before", &mut |_| ()).unwrap();
    assert_eq!((&done.to.name[..], &done.kept.name[..]), (&b"monday"[..], &b"before"[..]));
    let root = fs.getattr(&fs.root());
    assert_eq!((root.links, root.mtime, root.ctime), (root_then.links, root_then.mtime, root_then.ctime));
    assert!(listing(&fs) == then, "the tree of then");
    let rolled = fs.statfs().unwrap();
    assert_eq!(
        (rolled.inodes, rolled.file_bytes, rolled.reserved_bytes),
        (space.inodes, space.file_bytes, space.reserved_bytes)
    );
    assert_eq!(names_of(&fs), [&b"monday"[..], b"tuesday", b"before"], "no snapshot goes");
    assert!(listing(&*fs.open_snapshot(b"tuesday").unwrap()) == now);
    check(&*engine, "rolled back");
    drop(fs);
    let fs = Fs::open(engine.clone(), clock, FsOptions::default()).unwrap();
    assert!(listing(&fs) == then, "after a reopening");
    let diff = fs.diff_snapshots(&fs.snapshot(b"monday").unwrap(), None).unwrap();
    assert_eq!(diff.map(Result::unwrap).count(), 0, "nothing differs from the snapshot");

    // Undone, and rolled back again, and once more to where it is.
    fs.roll_back(b"before", b"undone", &mut |_| ()).unwrap();
    assert!(listing(&fs) == now, "the tree of now");
    assert_eq!(fs.statfs().unwrap().reserved_bytes, space_now.reserved_bytes);
    fs.roll_back(b"monday", b"again", &mut |_| ()).unwrap();
    fs.roll_back(b"monday", b"twice", &mut |_| ()).unwrap();
    assert!(listing(&fs) == then);
    // A file that is made now is none of those that were there.
    make(&fs, b"later", b"new");
    fs.sync().unwrap();
    check(&*engine, "at the end");
    for name in names_of(&fs) {
        fs.delete_snapshot(&name).unwrap();
    }
    while fs.engine().background_step().unwrap() {}
    assert_eq!(listing(&fs).len(), then.len() + 1, "nothing depends on a snapshot");
}

#[test]
fn a_rollback_that_is_refused_changes_nothing() {
    let fs = world();
    make(&fs, b"file", b"then");
    fs.create_snapshot(b"s").unwrap();
    fs.unlink(&ROOT, &fs.root(), b"file").unwrap();
    make(&fs, b"open", b"now");
    let now = listing(&fs);
    assert!(matches!(fs.roll_back(b"none", b"kept", &mut |_| ()), Err(FsError::NotFound)));
    assert!(matches!(fs.roll_back(b"s", b"s", &mut |_| ()), Err(FsError::Exists)));
    assert!(matches!(fs.roll_back(b"s", b"a/b", &mut |_| ()), Err(FsError::Invalid(_))));
    assert_eq!((names_of(&fs), listing(&fs)), (vec![b"s".to_vec()], now));
}

#[test]
fn files_that_are_open_show_what_was_there() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine.clone(), clock, FsOptions::default()).unwrap();
    let root = fs.root();
    make(&fs, b"changed", b"then");
    make(&fs, b"moved", &[1; 3 << 20]);
    make(&fs, b"removed", &[2; 3 << 20]);
    let dir = fs.mkdir(&ROOT, &root, b"dir", NewMode::exact(0o700)).unwrap();
    let changed = fs.lookup(&ROOT, &root, b"changed").unwrap();
    let moved = fs.lookup(&ROOT, &root, b"moved").unwrap();
    let removed = fs.lookup(&ROOT, &root, b"removed").unwrap();
    fs.sync().unwrap();
    let then = [&changed, &moved, &removed, &dir, &root].map(|node| fs.getattr(node));
    fs.create_snapshot(b"s").unwrap();
    fs.write(&ROOT, &changed, Position::At(0), b"now and longer").unwrap();
    fs.rename(&ROOT, (&root, b"moved"), (&dir, b"elsewhere"), RenameMode::Replace).unwrap();
    fs.unlink(&ROOT, &root, b"removed").unwrap();
    make(&fs, b"new", &[3; 3 << 20]);
    let new = fs.lookup(&ROOT, &root, b"new").unwrap();
    fs.setxattr(&ROOT, &new, b"user.a", b"now", XattrMode::Either).unwrap();
    let new_dir = fs.mkdir(&ROOT, &root, b"new dir", NewMode::exact(0o755)).unwrap();
    make(&fs, b"gone already", &[4; 3 << 20]);
    let gone = fs.lookup(&ROOT, &root, b"gone already").unwrap();
    fs.unlink(&ROOT, &root, b"gone already").unwrap();

    let mut seen = Vec::new();
    fs.roll_back(b"s", b"kept", &mut |changed| match changed {
        Invalidation::Name(dir, name) => seen.push((dir, name.to_vec())),
        Invalidation::File(_) => {}
        Invalidation::Everything => unreachable!("few keys change"),
    })
    .unwrap();
    let names: [&[u8]; 6] = [b"moved", b"new", b"new dir", b"removed", b"elsewhere", b"gone already"];
    assert_eq!(seen.len(), 5, "{seen:?}");
    assert!(seen.iter().all(|(_, name)| names.contains(&&name[..])));
    let now = [&changed, &moved, &removed, &dir, &root].map(|node| fs.getattr(node));
    assert_eq!(now, then);
    for (name, node) in [(&b"changed"[..], &changed), (b"moved", &moved), (b"removed", &removed)] {
        assert!(Arc::ptr_eq(&fs.lookup(&ROOT, &root, name).unwrap(), node), "one node for one file");
    }
    let mut bytes = vec![0; 3 << 20];
    assert_eq!(fs.read(&changed, 0, &mut bytes).unwrap(), 4);
    assert_eq!(bytes[..4], *b"then");
    fs.read(&removed, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 2));
    // A file that the snapshot lacks stays for its users, as if it had been removed.
    for (node, byte) in [(&new, 3), (&gone, 4)] {
        assert_eq!(fs.getattr(node).links, 0);
        fs.read(node, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|there| *there == byte));
        fs.write(&ROOT, node, Position::At(0), b"more").unwrap();
    }
    assert!(matches!(
        fs.create_file(&ROOT, &new_dir, b"x", NewMode::exact(0o644), b""),
        Err(FsError::NotFound)
    ));
    fs.write(&ROOT, &moved, Position::At(5), b"works").unwrap();
    check(&*engine, "with files in use");
    drop((new, gone, new_dir));
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().inodes, 5);
    check(&*engine, "without them");
}

#[test]
fn a_transaction_that_has_read_what_goes_back_ends_as_a_conflict() {
    let fs = Arc::new(world());
    make(&fs, b"file", b"then");
    fs.create_snapshot(b"s").unwrap();
    fs.unlink(&ROOT, &fs.root(), b"file").unwrap();
    make(&fs, b"file", b"now");
    let transaction = fs.begin().unwrap();
    let files = transaction.files();
    assert_eq!(files.read_file(&ROOT, &files.root(), b"file").unwrap(), b"now");
    files.create_file(&ROOT, &files.root(), b"made", NewMode::exact(0o644), b"").unwrap();
    fs.roll_back(b"s", b"kept", &mut |_| ()).unwrap();
    assert!(matches!(transaction.commit(), Err(FsError::Conflict { .. })));
    assert_eq!(fs.read_file(&ROOT, &fs.root(), b"file").unwrap(), b"then");
    assert!(matches!(fs.lookup(&ROOT, &fs.root(), b"made"), Err(FsError::NotFound)));
}

/// Files without a name: one that the snapshot has, and one of now.
#[test]
fn files_without_a_name_do_not_come_back() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine.clone(), clock, FsOptions::default()).unwrap();
    make(&fs, b"then", &[1; 3 << 20]);
    let open_then = fs.lookup(&ROOT, &fs.root(), b"then").unwrap();
    fs.unlink(&ROOT, &fs.root(), b"then").unwrap();
    fs.create_snapshot(b"s").unwrap();
    drop(open_then);
    fs.reap().unwrap();
    make(&fs, b"now", &[2; 3 << 20]);
    let open_now = fs.lookup(&ROOT, &fs.root(), b"now").unwrap();
    fs.unlink(&ROOT, &fs.root(), b"now").unwrap();
    drop(open_now);
    fs.roll_back(b"s", b"kept", &mut |_| ()).unwrap();
    fs.settle_rollbacks(&mut || true).unwrap();
    assert_eq!(fs.statfs().unwrap().inodes, 1, "the root alone");
    assert_eq!(fs.statfs().unwrap().file_bytes, 0);
    check(&*engine, "without orphans");
}

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

/// Random calls, snapshots, rollbacks and power cuts over the real engine, and a cut after each rollback that
/// was not synced by anything later.
#[test]
fn a_rollback_is_whole_or_not_there_after_any_crash() {
    for seed in 0..20 {
        let mut draw = TestRandom(9000 + seed);
        let mut tree = Tree::new();
        let mut fs = open(format(), Fs::format);
        let mut known = BTreeMap::<Vec<u8>, BTreeMap<_, _>>::new();
        let mut next = 0;
        for round in 0..6 {
            for n in 0..draw.below(60) {
                let what = format!("seed {seed} round {round} step {n}");
                step(&fs, &mut tree, &mut draw, &what);
                match draw.below(20) {
                    0 => fs.sync().unwrap(),
                    1 | 2 => _ = fs.engine().background_step().unwrap(),
                    3 => fs.engine().compact().unwrap(),
                    8 => {
                        let mut pages = draw.below(4);
                        fs.settle_rollbacks(&mut || {
                            pages = pages.saturating_sub(1);
                            pages > 0
                        })
                        .unwrap();
                    }
                    4 | 5 => {
                        let name = format!("snapshot {next}").into_bytes();
                        next += 1;
                        fs.create_snapshot(&name).unwrap();
                        known.insert(name, tree.listing());
                    }
                    6 | 7 if !known.is_empty() => {
                        let which = draw.below(known.len() as u64) as usize;
                        let (name, then) = known.iter().nth(which).unwrap();
                        let (name, then) = (name.clone(), then.clone());
                        let kept = format!("before {next}").into_bytes();
                        next += 1;
                        let before = tree.listing();
                        fs.roll_back(&name, &kept, &mut |_| ()).unwrap();
                        known.insert(kept, before);
                        assert_eq!(listing(&fs), then, "{what}");
                        tree = twin_of(&fs);
                        check(&**fs.engine(), &what);
                    }
                    _ => {}
                }
            }
            let what = format!("seed {seed} round {round}");
            let compare = |fs: &Fs<LogEngine>| {
                for snapshot in fs.snapshots().unwrap() {
                    let then = fs.open_snapshot(&snapshot.name).unwrap();
                    assert_eq!(&listing(&*then), &known[&snapshot.name], "{what}: {snapshot:?}");
                }
            };
            compare(&fs);
            fs = open(fs.engine().log().crash_seeded(draw.next()), |_, _, _, _| Ok(()));
            compare(&fs);
            let there: Vec<Vec<u8>> = fs.snapshots().unwrap().into_iter().map(|s| s.name).collect();
            known.retain(|name, _| there.contains(name));
            tree = twin_of(&fs);
            fs.sync().unwrap();
            check(&**fs.engine(), &what);
        }
    }
}

/// What a rollback takes of the budget is the metadata of files in use that the snapshot does not have.
#[test]
fn a_rollback_takes_no_more_memory_than_its_budget() {
    const FILES: u32 = 3000;
    let (engine, clock) = world_with();
    let options = |total| FsOptions { memory: MemoryLimits::of_total(total), ..FsOptions::default() };
    let fs = Arc::new(Fs::open(engine.clone(), clock.clone(), options(2 << 20)).unwrap());
    let root = fs.root();
    for n in 0..FILES {
        fs.create_file(&ROOT, &root, format!("file{n}").as_bytes(), NewMode::exact(0o644), b"then").unwrap();
    }
    fs.create_snapshot(b"s").unwrap();
    for n in 0..FILES {
        fs.unlink(&ROOT, &root, format!("file{n}").as_bytes()).unwrap();
    }
    // Attributes of 600 KB.
    make(&fs, b"new", b"now");
    let new = fs.lookup(&ROOT, &root, b"new").unwrap();
    for n in 0..10 {
        let name = format!("user.{n}");
        fs.setxattr(&ROOT, &new, name.as_bytes(), &[n; 60_000], XattrMode::Create).unwrap();
    }
    let now = listing(&*fs);
    // A transaction has what the rollback needs.
    let tx = fs.begin().unwrap();
    let file = vec![1; 30_000];
    for n in 0..62 {
        let name = format!("of the transaction {n}");
        tx.files()
            .create_file(&ROOT, &tx.files().root(), name.as_bytes(), NewMode::exact(0o644), &file)
            .unwrap();
    }
    let refused = fs.roll_back(b"s", b"kept", &mut |_| ()).unwrap_err();
    assert!(matches!(refused, FsError::Memory(_)), "{refused}");
    assert_eq!((names_of(&fs), listing(&*fs)), (vec![b"s".to_vec()], now.clone()));
    tx.abort();
    fs.roll_back(b"s", b"kept", &mut |_| ()).unwrap();
    assert_eq!(listing(&*fs).len(), FILES as usize + 1);
    assert_eq!(fs.getxattr(&ROOT, &new, b"user.3").unwrap(), [3; 60_000], "for its user");
    assert_eq!(fs.memory_account(None).budget().used_bytes(), 0, "everything is returned");
    drop((root, new, fs));
    // The files take nothing of the budget, and the attributes are too much for a smaller one.
    let fs = Fs::open(engine, clock, options(256 << 10)).unwrap();
    fs.roll_back(b"kept", b"again", &mut |_| ()).unwrap();
    let new = fs.lookup(&ROOT, &fs.root(), b"new").unwrap();
    let refused = fs.roll_back(b"s", b"once more", &mut |_| ()).unwrap_err();
    assert!(matches!(refused, FsError::Invalid(_)), "{refused}");
    assert!(listing(&fs) == now);
    drop(new);
    fs.roll_back(b"s", b"once more", &mut |_| ()).unwrap();
    assert_eq!(fs.memory_account(None).budget().used_bytes(), 0);
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

/// The pool is filled behind the snapshot. A rollback then succeeds or leaves everything as it is, and when
/// room is made it succeeds.
#[test]
fn a_rollback_in_a_full_pool_is_whole_or_refused_and_works_once_there_is_room() {
    let (mut refusals, mut done_at_once) = (0, 0);
    for seed in 0..8 {
        let what = format!("seed {seed}");
        let mut draw = TestRandom(700 + seed);
        let options = MemLogOptions { capacity_bytes: 24 * (256 << 10), segment_bytes: 256 << 10 };
        let mut fs = open((MemLog::with_options(options), RecoveredLog::empty()), Fs::format);
        let root = fs.root();
        let put = |fs: &Fs<LogEngine>, name: &str, len: u64| {
            let bytes = vec![len as u8; len as usize];
            fs.create_file(&ROOT, &fs.root(), name.as_bytes(), NewMode::exact(0o644), &bytes)
        };
        let then_files = 20 + draw.below(40);
        for n in 0..then_files {
            put(&fs, &format!("then {n}"), 100 + draw.below(40_000)).unwrap();
        }
        fs.create_snapshot(b"s").unwrap();
        let then = listing(&fs);
        for n in 0..then_files {
            fs.unlink(&ROOT, &root, format!("then {n}").as_bytes()).unwrap();
        }
        // Small files last, so that less and less room is left.
        let mut files = 0;
        for longest in [60_000, 5_000, 300] {
            let mut refused = 0;
            while refused < 4 {
                match put(&fs, &format!("now {files}"), 1 + draw.below(longest)) {
                    Ok(_) => files += 1,
                    Err(FsError::NoSpace) => refused += 1,
                    Err(e) => panic!("{what}: {e}"),
                }
            }
        }
        let now = listing(&fs);
        let mut removed = 0;
        drop(root);
        loop {
            match fs.roll_back(b"s", b"kept", &mut |_| ()) {
                Ok(_) => break,
                Err(FsError::NoSpace) => {
                    refusals += 1;
                    let names: Vec<Vec<u8>> = fs.snapshots().unwrap().into_iter().map(|s| s.name).collect();
                    assert_eq!(names, [b"s".to_vec()], "{what}: the snapshot of the present is gone again");
                    assert_eq!(listing(&fs).len(), now.len() - removed, "{what}: nothing has changed");
                    check(&**fs.engine(), &what);
                    assert!(removed < files as usize, "{what}: there is room, and it is refused");
                    for _ in 0..files / 3 + 1 {
                        let name = format!("now {removed}");
                        if fs.unlink(&ROOT, &fs.root(), name.as_bytes()).is_ok() {
                            removed += 1;
                        }
                    }
                }
                Err(e) => panic!("{what}: {e}"),
            }
        }
        done_at_once += u32::from(removed == 0);
        assert!(listing(&fs) == then, "{what}: the tree of then");
        fs = open(fs.engine().log().crash_seeded(draw.next()), |_, _, _, _| Ok(()));
        assert!(listing(&fs) == then, "{what}: it is durable");
        check(&**fs.engine(), &what);
    }
    println!("{refusals} refusals, {done_at_once} of 8 rollbacks at once");
}
