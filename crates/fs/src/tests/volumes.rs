//! Volumes behind doors: what a clone shows, that neither side sees the other's changes, and that a crash
//! leaves each volume whole or absent.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use rustix::io::Errno;
use warpfire_meta::{ORIGINS_MAX, SnapshotStore, Storage, Store};

use super::check::check;
use super::engine::{LogEngine, format, open};
use super::tree_model::{Tree, listing_below, step_below, twin_below};
use super::{TestFs, TestRandom, world, world_with};
use crate::acl::Caller;
use crate::{
    AllocMode, CloneSource, Fs, FsError, FsOptions, NewMode, NodeRef, Position, RenameMode, SetAttr,
    VolumeInfo, VolumeOrder, XattrMode,
};

const ROOT: Caller<'static> = Caller::ROOT;
const MIB: u64 = 1 << 20;

fn dir<E: Storage>(fs: &Fs<E>, parent: &NodeRef, name: &[u8]) -> NodeRef {
    fs.mkdir(&ROOT, parent, name, NewMode::exact(0o755)).unwrap()
}

fn file(fs: &TestFs, parent: &NodeRef, name: &[u8], bytes: &[u8]) -> NodeRef {
    fs.create_file(&ROOT, parent, name, NewMode::exact(0o644), bytes).unwrap();
    fs.lookup(&ROOT, parent, name).unwrap()
}

fn read(fs: &TestFs, parent: &NodeRef, name: &[u8]) -> Vec<u8> {
    fs.read_file(&ROOT, parent, name).unwrap()
}

fn clone<E: Storage + SnapshotStore>(fs: &Fs<E>, source: &NodeRef, name: &[u8]) -> NodeRef {
    fs.clone_directory(CloneSource::Directory(source), &fs.root(), name).unwrap();
    fs.lookup(&ROOT, &fs.root(), name).unwrap()
}

fn delete(fs: &TestFs, name: &[u8]) -> Result<VolumeInfo, FsError> {
    fs.delete_volume(&fs.root(), name, &mut |_| ())
}

fn errno<T: std::fmt::Debug>(outcome: Result<T, FsError>) -> i32 {
    outcome.unwrap_err().errno()
}

#[test]
fn a_clone_shows_all_of_a_directory_and_neither_sees_the_changes_of_the_other() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    let sub = dir(&fs, &work, b"sub");
    file(&fs, &work, b"small", b"then");
    let large = file(&fs, &sub, b"large", &vec![7; 3 << 20]);
    fs.setxattr(&ROOT, &large, b"user.x", b"value", XattrMode::Either).unwrap();
    fs.link(&ROOT, &large, &work, b"also").unwrap();
    file(&fs, &fs.root(), b"outside", b"");
    let before = listing_below(&fs, &work);
    let seen = clone(&fs, &work, b"@try");
    assert_eq!(listing_below(&fs, &seen), before);
    let there = fs.lookup(&ROOT, &fs.lookup(&ROOT, &seen, b"sub").unwrap(), b"large").unwrap();
    assert_eq!(fs.lookup(&ROOT, &seen, b"also").unwrap().ino(), there.ino(), "two names of one file stay so");
    assert_eq!(fs.getxattr(&ROOT, &there, b"user.x").unwrap(), b"value");
    assert_ne!(there.ino(), large.ino(), "numbers are unique in the pool");
    assert_eq!(fs.lookup(&ROOT, &seen, b"..").unwrap().ino(), 1, "the parent is that of the door");

    fs.write(&ROOT, &there, Position::At(MIB), &[9; 100]).unwrap();
    fs.write(&ROOT, &fs.lookup(&ROOT, &seen, b"small").unwrap(), Position::At(0), b"now!").unwrap();
    fs.setattr(&ROOT, &there, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    fs.removexattr(&ROOT, &there, b"user.x").unwrap();
    file(&fs, &seen, b"new", b"n");
    fs.unlink(&ROOT, &seen, b"also").unwrap();
    assert_eq!(listing_below(&fs, &work), before);
    assert_eq!(fs.getxattr(&ROOT, &large, b"user.x").unwrap(), b"value");
    assert_eq!((fs.getattr(&large).mode & 0o777, fs.getattr(&large).links), (0o644, 2));
    assert_eq!((fs.getattr(&there).mode & 0o777, fs.getattr(&there).links), (0o600, 1));

    let changed = listing_below(&fs, &seen);
    fs.write(&ROOT, &large, Position::At(0), &[1; 100]).unwrap();
    fs.unlink(&ROOT, &work, b"small").unwrap();
    fs.rename(&ROOT, (&work, b"sub"), (&work, b"other"), RenameMode::Replace).unwrap();
    assert_eq!(listing_below(&fs, &seen), changed);
    fs.sync().unwrap();
    check(&**fs.engine(), "after changes on both sides");
}

#[test]
fn nothing_is_renamed_or_linked_through_a_door() {
    let fs = world();
    let root = fs.root();
    let work = dir(&fs, &root, b"work");
    let node = file(&fs, &work, b"file", b"bytes");
    let seen = clone(&fs, &work, b"@try");
    let exdev = Errno::XDEV.raw_os_error();
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        assert_eq!(errno(fs.rename(&ROOT, (&work, b"file"), (&seen, b"moved"), mode)), exdev);
        assert_eq!(errno(fs.rename(&ROOT, (&seen, b"file"), (&root, b"moved"), mode)), exdev);
    }
    assert_eq!(errno(fs.exchange(&ROOT, (&work, b"file"), (&seen, b"file"))), exdev);
    assert_eq!(errno(fs.link(&ROOT, &node, &seen, b"also")), exdev);
    assert_eq!(errno(fs.rmdir(&ROOT, &root, b"@try")), Errno::NOTEMPTY.raw_os_error());
    fs.unlink(&ROOT, &seen, b"file").unwrap();
    assert_eq!(errno(fs.rmdir(&ROOT, &root, b"@try")), Errno::BUSY.raw_os_error());
    dir(&fs, &root, b"empty");
    let over = fs.rename(&ROOT, (&root, b"empty"), (&root, b"@try"), RenameMode::Replace);
    assert_eq!(errno(over), Errno::BUSY.raw_os_error());
    // The door itself moves within its volume.
    fs.rename(&ROOT, (&root, b"@try"), (&work, b"@door"), RenameMode::Replace).unwrap();
    assert_eq!(fs.volumes().unwrap()[0].path, b"/work/@door");
    assert_eq!(errno(fs.rename(&ROOT, (&root, b"work"), (&seen, b"x"), RenameMode::Replace)), exdev);
    fs.sync().unwrap();
    check(&**fs.engine(), "a moved door");
}

#[test]
fn a_snapshot_can_be_cloned_and_deleted_under_its_clone() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    file(&fs, &work, b"file", b"then");
    fs.create_snapshot(b"monday").unwrap();
    let then = listing_below(&fs, &work);
    fs.write(&ROOT, &fs.lookup(&ROOT, &work, b"file").unwrap(), Position::At(0), b"now!").unwrap();
    file(&fs, &work, b"new", b"");
    let order = VolumeOrder::Clone { snapshot: Some(b"monday"), source: b"/work", door: b"/@old" };
    fs.change_volume(&order, &mut |_| ()).unwrap();
    let seen = fs.lookup(&ROOT, &fs.root(), b"@old").unwrap();
    assert_eq!(listing_below(&fs, &seen), then);
    fs.delete_snapshot(b"monday").unwrap();
    while fs.engine().background_step().unwrap() {}
    assert_eq!(listing_below(&fs, &seen), then);
    assert_eq!(read(&fs, &work, b"file"), b"now!");
    fs.sync().unwrap();
    check(&**fs.engine(), "a clone of a snapshot that is gone");
}

#[test]
fn snapshots_show_volumes_that_are_deleted() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    file(&fs, &work, b"file", b"bytes");
    let seen = clone(&fs, &work, b"@try");
    file(&fs, &seen, b"own", b"of the clone");
    let (shown, space) = (listing_below(&fs, &seen), fs.statfs().unwrap());
    fs.create_snapshot(b"monday").unwrap();
    drop(seen);
    delete(&fs, b"@try").unwrap();
    while fs.engine().background_step().unwrap() {}
    fs.forget_volumes().unwrap();
    let then = fs.open_snapshot(b"monday").unwrap();
    let there = then.lookup(&ROOT, &then.root(), b"@try").unwrap();
    assert_eq!(listing_below(&*then, &there), shown);
    assert_eq!(then.statfs().unwrap().inodes, space.inodes);
    fs.delete_snapshot(b"monday").unwrap();
}

#[test]
fn a_directory_of_a_volume_is_found_in_the_snapshots_that_show_the_volume() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    let sub = dir(&fs, &work, b"sub");
    file(&fs, &sub, b"file", b"then");
    let before = fs.create_snapshot(b"before").unwrap();
    let seen = clone(&fs, &work, b"@try");
    let sub_seen = fs.lookup(&ROOT, &seen, b"sub").unwrap();
    let own = dir(&fs, &seen, b"own");
    let with = fs.create_snapshot(b"with").unwrap();
    file(&fs, &sub_seen, b"later", b"");
    fs.rename(&ROOT, (&fs.root(), b"@try"), (&work, b"moved"), RenameMode::Replace).unwrap();
    let (root, inside) = (seen.ino(), sub_seen.ino());

    let shown = |snapshot, ino| fs.shows_directory(snapshot, ino).unwrap();
    // The keys of the clone read on to versions of then, but there was no such volume.
    assert!(!shown(&before, root) && !shown(&before, inside) && !shown(&before, own.ino()));
    assert!(shown(&with, root) && shown(&with, inside) && shown(&with, own.ino()));
    assert!(shown(&before, sub.ino()));
    let then = fs.open_snapshot(b"before").unwrap();
    assert!(matches!(then.directory_then(&ROOT, inside), Err(FsError::NotFound)));
    assert!(matches!(then.path_then(inside), Err(FsError::NotFound)));
    let info = fs.snapshot(b"with").unwrap();
    let without_doors = fs.open_snapshot_without_doors(&info).unwrap();
    for then in [fs.open_snapshot(b"with").unwrap(), without_doors] {
        assert_eq!(then.path_then(inside).unwrap(), b"/@try/sub");
        assert_eq!(then.path_then(own.ino()).unwrap(), b"/@try/own");
        let found = then.directory_then(&ROOT, inside).unwrap();
        assert_eq!(then.read_file(&ROOT, &found, b"file").unwrap(), b"then");
        assert!(matches!(then.lookup(&ROOT, &found, b"later"), Err(FsError::NotFound)));
    }
    drop((seen, sub_seen, own));
    fs.delete_volume(&work, b"moved", &mut |_| ()).unwrap();
    assert!(shown(&with, inside), "the snapshot goes on showing it");
    let gone = fs.create_snapshot(b"gone").unwrap();
    assert!(!shown(&gone, root) && !shown(&gone, inside));
}

#[test]
fn a_clone_of_a_clone_is_eight_deep_at_most_and_origins_may_go() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    file(&fs, &work, b"file", b"0");
    let mut below = work;
    for n in 1..=ORIGINS_MAX {
        let name = format!("@{n}");
        below = clone(&fs, &below, name.as_bytes());
        fs.write(&ROOT, &fs.lookup(&ROOT, &below, b"file").unwrap(), Position::End, name.as_bytes()).unwrap();
        file(&fs, &below, format!("of {n}").as_bytes(), b"");
    }
    let shown = listing_below(&fs, &below);
    assert_eq!(shown.len(), 2 + ORIGINS_MAX);
    assert_eq!(shown[&b"/file"[..]].as_deref(), Some(&b"0@1@2@3@4@5@6@7@8"[..]));
    let refused = fs.clone_directory(CloneSource::Directory(&below), &fs.root(), b"@9");
    assert_eq!(errno(refused), Errno::INVAL.raw_os_error());
    for n in 1..ORIGINS_MAX {
        delete(&fs, format!("@{n}").as_bytes()).unwrap();
        while fs.engine().background_step().unwrap() {}
        fs.forget_volumes().unwrap();
        assert_eq!(listing_below(&fs, &below), shown, "without {n} of its origins");
    }
    fs.sync().unwrap();
    check(&**fs.engine(), "without origins");
}

#[test]
fn a_directory_with_a_door_in_it_is_not_cloned() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    let deep = dir(&fs, &dir(&fs, &work, b"a"), b"b");
    fs.create_volume(&deep, b"@door", (1, 2)).unwrap();
    for source in [&work, &fs.root()] {
        let refused = fs.clone_directory(CloneSource::Directory(source), &fs.root(), b"@try");
        assert_eq!(errno(refused), Errno::INVAL.raw_os_error());
    }
    // Behind the door and beside it.
    let inside = fs.lookup(&ROOT, &deep, b"@door").unwrap();
    assert_eq!((fs.getattr(&inside).uid, fs.getattr(&inside).gid), (1, 2));
    file(&fs, &inside, b"file", b"bytes");
    let seen = clone(&fs, &inside, b"@try");
    assert_eq!(read(&fs, &seen, b"file"), b"bytes");
    let refused = fs.delete_volume(&fs.root(), b"work", &mut |_| ());
    assert_eq!(errno(refused), Errno::INVAL.raw_os_error());
    fs.create_volume(&seen, b"@within", (0, 0)).unwrap();
    assert_eq!(errno(delete(&fs, b"@try")), Errno::INVAL.raw_os_error(), "another door is in it");
    fs.delete_volume(&seen, b"@within", &mut |_| ()).unwrap();
    delete(&fs, b"@try").unwrap();
    fs.sync().unwrap();
    check(&**fs.engine(), "volumes in volumes");
}

/// The time once came with a later sync, so a power cut left a directory without the door and with the old
/// time.
#[test]
fn a_durable_deletion_has_the_time_of_the_directory_with_the_door() {
    let fs = open(format(), Fs::format);
    let work = dir(&fs, &fs.root(), b"work");
    clone(&fs, &work, b"@try");
    fs.delete_volume(&fs.root(), b"@try", &mut |_| ()).unwrap();
    let (shown, cut) = (fs.getattr(&fs.root()), open(fs.engine().log().crash(), |_, _, _, _| Ok(())));
    let left = cut.getattr(&cut.root());
    assert_eq!((left.links, left.mtime, left.ctime), (shown.links, shown.mtime, shown.ctime));
}

#[test]
fn what_is_open_in_a_volume_that_is_deleted_is_gone() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    dir(&fs, &work, b"sub");
    file(&fs, &work, b"small", b"bytes");
    file(&fs, &work, b"large", &vec![5; 2 << 20]);
    let seen = clone(&fs, &work, b"@try");
    let find = |name: &[u8]| fs.lookup(&ROOT, &seen, name).unwrap();
    let (sub, small, large) = (find(b"sub"), find(b"small"), find(b"large"));
    let orphan = file(&fs, &seen, b"orphan", b"x");
    fs.unlink(&ROOT, &seen, b"orphan").unwrap();
    let space = fs.statfs().unwrap();
    let volume = delete(&fs, b"@try").unwrap();
    assert_eq!(volume.path, b"/@try");
    for node in [&small, &large, &orphan] {
        assert_eq!(errno(fs.read(node, 0, &mut [0; 10])), Errno::STALE.raw_os_error());
        assert!(fs.write(&ROOT, node, Position::At(0), b"x").is_err());
        assert!(fs.setattr(&ROOT, node, &SetAttr { mode: Some(0), ..SetAttr::default() }).is_err());
    }
    for dir in [&seen, &sub] {
        assert!(fs.create_file(&ROOT, dir, b"new", NewMode::exact(0o644), b"").is_err());
    }
    assert!(fs.lookup(&ROOT, &fs.root(), b"@try").is_err());
    let after = fs.statfs().unwrap();
    assert_eq!(space.inodes - after.inodes, volume.inodes);
    drop((sub, small, large, orphan, seen));
    fs.reap().unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().inodes, after.inodes);
    check(&**fs.engine(), "with nothing of the volume");
    assert!(fs.volumes().unwrap().is_empty());
}

#[test]
fn room_that_a_clone_reserves_is_kept_beside_that_of_its_origin() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    let node = file(&fs, &work, b"file", b"");
    fs.fallocate(&ROOT, &node, AllocMode::Allocate, 0, MIB).unwrap();
    let seen = clone(&fs, &work, b"@try");
    assert_eq!(fs.statfs().unwrap().reserved_bytes, 2 * MIB);
    let there = fs.lookup(&ROOT, &seen, b"file").unwrap();
    fs.write(&ROOT, &there, Position::At(0), &vec![1; 1 << 20]).unwrap();
    assert_eq!(fs.statfs().unwrap().reserved_bytes, MIB);
    fs.write(&ROOT, &node, Position::At(0), &vec![2; 1 << 20]).unwrap();
    assert_eq!(fs.statfs().unwrap().reserved_bytes, 0);
    fs.sync().unwrap();
    check(&**fs.engine(), "without reserved bytes");
    drop((there, seen));
    delete(&fs, b"@try").unwrap();
    assert_eq!(fs.statfs().unwrap().reserved_bytes, 0);
}

#[test]
fn a_transaction_works_in_volumes_and_ends_as_a_conflict_when_one_goes() {
    let (engine, clock) = world_with();
    let fs = std::sync::Arc::new(Fs::open(engine, clock, FsOptions::default()).unwrap());
    let work = dir(&fs, &fs.root(), b"work");
    file(&fs, &work, b"file", b"then");
    let seen = clone(&fs, &work, b"@try");
    let change = |tx: &crate::Transaction<super::Engine>, bytes: &[u8]| {
        let files = tx.files();
        let there = files.lookup(&ROOT, &files.root(), b"@try").unwrap();
        let node = files.lookup(&ROOT, &there, b"file").unwrap();
        files.write(&ROOT, &node, Position::At(0), bytes).unwrap();
        files.create_file(&ROOT, &there, b"new", NewMode::exact(0o644), b"in a transaction").unwrap();
    };
    let tx = fs.begin().unwrap();
    change(&tx, b"once");
    assert_eq!(read(&fs, &seen, b"file"), b"then");
    tx.commit().unwrap();
    assert_eq!((read(&fs, &seen, b"file"), read(&fs, &work, b"file")), (b"once".to_vec(), b"then".to_vec()));
    assert_eq!(read(&fs, &seen, b"new"), b"in a transaction");
    fs.unlink(&ROOT, &seen, b"new").unwrap();
    fs.sync().unwrap();
    check(&**fs.engine(), "after a transaction in a clone");

    let tx = fs.begin().unwrap();
    change(&tx, b"late");
    drop(seen);
    delete(&fs, b"@try").unwrap();
    assert!(matches!(tx.commit(), Err(FsError::Conflict { .. })));
    fs.sync().unwrap();
    check(&**fs.engine(), "after a transaction in a volume that is gone");
}

/// It finds its files by their numbers, and looks up no door.
#[test]
fn a_chained_transaction_in_a_volume_that_goes_ends_as_a_conflict() {
    for is_forgotten in [false, true] {
        let (engine, clock) = world_with();
        let fs = std::sync::Arc::new(Fs::open(engine, clock, FsOptions::default()).unwrap());
        let work = dir(&fs, &fs.root(), b"work");
        file(&fs, &work, b"file", b"then");
        drop(clone(&fs, &work, b"@try"));
        let tx = fs.begin().unwrap();
        let files = tx.files();
        let there = files.lookup(&ROOT, &files.root(), b"@try").unwrap();
        let places = [files.lookup(&ROOT, &there, b"file").unwrap().place(), there.place()];
        drop(there);
        tx.commit().unwrap();
        let tx = fs.begin().unwrap();
        let files = tx.files();
        let [node, there] = places.each_ref().map(|place| files.find_again(place).unwrap());
        files.write(&ROOT, &node, Position::At(0), b"late").unwrap();
        files.create_file(&ROOT, &there, b"new", NewMode::exact(0o644), b"late").unwrap();
        delete(&fs, b"@try").unwrap();
        if is_forgotten {
            fs.sync().unwrap();
            fs.forget_volumes().unwrap();
        }
        assert!(matches!(tx.commit(), Err(FsError::Conflict { .. })));
        fs.sync().unwrap();
        check(&**fs.engine(), "after a chained transaction in a volume that is gone");
    }
}

#[test]
fn a_rollback_leaves_volumes_as_they_are() {
    let fs = world();
    let work = dir(&fs, &fs.root(), b"work");
    file(&fs, &work, b"file", b"then");
    let seen = clone(&fs, &work, b"@try");
    fs.create_snapshot(b"monday").unwrap();
    file(&fs, &seen, b"own", b"later");
    file(&fs, &work, b"gone", b"soon");
    fs.roll_back(b"monday", b"before", &mut |_| ()).unwrap();
    assert_eq!(read(&fs, &seen, b"own"), b"later");
    assert!(fs.lookup(&ROOT, &work, b"gone").is_err());
    fs.sync().unwrap();
    check(&**fs.engine(), "after a rollback");
    // Doors that differ cannot go back.
    let other = clone(&fs, &work, b"@other");
    assert_eq!(errno(fs.roll_back(b"monday", b"again", &mut |_| ())), Errno::INVAL.raw_os_error());
    drop(other);
    delete(&fs, b"@other").unwrap();
    fs.roll_back(b"monday", b"again", &mut |_| ()).unwrap();
    fs.sync().unwrap();
    check(&**fs.engine(), "after another rollback");
}

/// The listings that each volume had, by the name of its door.
type Moments = BTreeMap<Vec<u8>, Vec<BTreeMap<Vec<u8>, Option<Vec<u8>>>>>;

/// A volume as a test knows it.
struct KnownVolume {
    tree: Tree,
    /// Whether a cut keeps it.
    durable: bool,
}

/// Random calls in the first volume and in clones, clones of all of them, deletions, detaches that are whole
/// or stopped, and power cuts over the real engine. Before each cut every volume shows its own tree. After
/// it, a volume that was synced is there. What a volume shows is a tree that it had since the last sync.
#[test]
fn a_power_cut_leaves_each_volume_whole_or_absent() {
    for seed in 0..20 {
        let mut draw = TestRandom(9000 + seed);
        let mut fs = open(format(), Fs::format);
        let mut main = Tree::new();
        let mut known: BTreeMap<Vec<u8>, KnownVolume> = BTreeMap::new();
        let mut next = 0;
        for round in 0..5 {
            let what = format!("seed {seed} round {round}");
            // Every state of each tree since the last sync.
            let mut moments: BTreeMap<Vec<u8>, Vec<_>> = BTreeMap::new();
            let states = |main: &Tree, known: &BTreeMap<Vec<u8>, KnownVolume>| {
                let mut all = BTreeMap::from([(Vec::new(), main.listing())]);
                all.extend(known.iter().map(|(name, volume)| (name.clone(), volume.tree.listing())));
                all
            };
            let note = |moments: &mut BTreeMap<Vec<u8>, Vec<_>>, name: &[u8], listing| {
                moments.entry(name.to_vec()).or_default().push(listing);
            };
            states(&main, &known).into_iter().for_each(|(name, now)| note(&mut moments, &name, now));
            for n in 0..draw.below(90) {
                let what = format!("{what} step {n}");
                let which = draw.below(known.len() as u64 + 1) as usize;
                let root = fs.root();
                match known.iter_mut().nth(which) {
                    Some((name, volume)) => {
                        let top = fs.lookup(&ROOT, &root, name).unwrap();
                        step_below(&fs, &top, &mut volume.tree, &mut draw, &what);
                        note(&mut moments, name, volume.tree.listing());
                    }
                    None => {
                        step_below(&fs, &root, &mut main, &mut draw, &what);
                        note(&mut moments, b"", main.listing());
                    }
                }
                match draw.below(24) {
                    0 => {
                        fs.sync().unwrap();
                        known.values_mut().for_each(|volume| volume.durable = true);
                        moments.clear();
                        states(&main, &known)
                            .into_iter()
                            .for_each(|(name, now)| note(&mut moments, &name, now));
                    }
                    1 | 2 => _ = fs.engine().background_step().unwrap(),
                    3 => fs.engine().flush().unwrap(),
                    4 => fs.engine().compact().unwrap(),
                    5 | 6 if known.len() < 5 => {
                        let source = known.keys().nth(draw.below(known.len() as u64 + 1) as usize).cloned();
                        // The first volume has doors in its root: a directory of it is cloned.
                        let top = match &source {
                            Some(name) => fs.lookup(&ROOT, &root, name),
                            None => fs.lookup(&ROOT, &root, b"a"),
                        };
                        let Ok(top) = top
                            .and_then(|top| if top.is_dir() { Ok(top) } else { Err(FsError::NotDirectory) })
                        else {
                            continue;
                        };
                        let name = format!("@{next}").into_bytes();
                        next += 1;
                        match fs.clone_directory(CloneSource::Directory(&top), &root, &name) {
                            Ok(_) => {}
                            Err(FsError::Invalid(_)) => continue,
                            Err(e) => panic!("{what}: {e}"),
                        }
                        let made = fs.lookup(&ROOT, &root, &name).unwrap();
                        let shown = listing_below(&fs, &made);
                        assert_eq!(shown, listing_below(&fs, &top), "{what}");
                        note(&mut moments, &name, shown);
                        known.insert(name, KnownVolume { tree: twin_below(&fs, &made), durable: false });
                    }
                    7 if !known.is_empty() => {
                        let name = known.keys().nth(draw.below(known.len() as u64) as usize).unwrap().clone();
                        fs.delete_volume(&root, &name, &mut |_| ()).unwrap();
                        known.remove(&name);
                        known.values_mut().for_each(|volume| volume.durable = true);
                        moments.clear();
                        states(&main, &known)
                            .into_iter()
                            .for_each(|(name, now)| note(&mut moments, &name, now));
                    }
                    8 => _ = fs.forget_volumes().unwrap(),
                    9 if !known.is_empty() => {
                        let name = known.keys().nth(draw.below(known.len() as u64) as usize).unwrap();
                        let door = [b"/", &name[..]].concat();
                        let mut pages = draw.below(12);
                        let detached = fs.detach_volume(&door, &mut |_| {
                            pages = pages.saturating_sub(1);
                            if pages == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                        });
                        assert!(matches!(detached, Ok(_) | Err(FsError::Invalid(_))), "{what}: {detached:?}");
                    }
                    _ => {}
                }
            }
            for (name, volume) in &known {
                let top = fs.lookup(&ROOT, &fs.root(), name).unwrap();
                assert_eq!(listing_below(&fs, &top), volume.tree.listing(), "{what}, before the cut");
            }
            let recovered = fs.engine().log().crash_seeded(draw.next());
            fs = open(recovered, |_, _, _, _| Ok(()));
            compare_after_cut(&fs, &mut known, &moments, &what);
            main = twin_below(&fs, &fs.root());
            fs.sync().unwrap();
            check(&**fs.engine(), &what);
        }
    }
}

fn compare_after_cut(
    fs: &Fs<LogEngine>,
    known: &mut BTreeMap<Vec<u8>, KnownVolume>,
    moments: &Moments,
    what: &str,
) {
    let there: Vec<Vec<u8>> = fs.volumes().unwrap().into_iter().map(|v| v.path[1..].to_vec()).collect();
    for name in &there {
        assert!(known.contains_key(name), "{what}: a volume that is deleted is back");
    }
    known.retain(|name, volume| {
        let is_there = there.contains(name);
        assert!(is_there || !volume.durable, "{what}: the cut lost a durable volume");
        is_there
    });
    assert!(moments[&Vec::new()].contains(&listing_below(fs, &fs.root())), "{what}: the first volume");
    for (name, volume) in known {
        let top = fs.lookup(&ROOT, &fs.root(), name).unwrap();
        let shown = listing_below(fs, &top);
        assert!(moments[name].contains(&shown), "{what}: {} shows {shown:?}", name.escape_ascii());
        *volume = KnownVolume { tree: twin_below(fs, &top), durable: true };
    }
}
