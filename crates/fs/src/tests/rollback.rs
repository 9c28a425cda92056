//! Rollbacks: what comes back, what stays, what refuses, and that a power cut leaves the tree as it was or
//! rolled back.

use std::collections::BTreeMap;
use std::sync::Arc;

use warpfire_log::{MemLog, MemLogOptions, RecoveredLog};
use warpfire_meta::{MemoryLimits, Store};

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

pub(super) fn make_in(fs: &Fs<LogEngine>, name: &[u8], bytes: &[u8]) {
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
