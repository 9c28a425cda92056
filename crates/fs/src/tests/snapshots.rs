//! Snapshots: what they show, for how long, and that a crash leaves each of them whole or absent.

use std::collections::BTreeMap;

use rustix::io::Errno;
use warpfire_env::Timestamp;
use warpfire_meta::Store;

use super::check::check;
use super::engine::{LogEngine, format, open};
use super::tree_model::{Tree, listing, step, twin_of};
use super::{TestFs, TestRandom, Ticking, world, world_with};
use crate::acl::Caller;
use crate::{Fs, FsError, FsOptions, NewMode, NodeRef, Position, RenameMode, SetAttr, SnapshotInfo};

const ROOT: Caller<'static> = Caller::ROOT;

type Listing = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn make(fs: &TestFs, name: &[u8], bytes: &[u8]) -> NodeRef {
    fs.create_file(&ROOT, &fs.root(), name, NewMode::exact(0o644), bytes).unwrap();
    fs.lookup(&ROOT, &fs.root(), name).unwrap()
}

#[test]
fn a_snapshot_shows_what_was_there_and_later_changes_do_not_reach_it() {
    let fs = world();
    let small = make(&fs, b"small", b"then");
    let large = make(&fs, b"large", &[7; 3 << 20]);
    let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", NewMode::exact(0o750)).unwrap();
    make(&fs, b"gone", b"soon");
    let (attr, dir_attr) = (fs.getattr(&large), fs.getattr(&dir));
    let space = fs.statfs().unwrap();
    let made = fs.create_snapshot(b"monday").unwrap();
    assert_eq!((made.inodes, made.file_bytes), (space.inodes, space.file_bytes));

    fs.write(&ROOT, &small, Position::At(0), b"now!!").unwrap();
    fs.write(&ROOT, &large, Position::At(1 << 20), &[9; 100]).unwrap();
    fs.unlink(&ROOT, &fs.root(), b"gone").unwrap();
    fs.rename(&ROOT, (&fs.root(), b"dir"), (&fs.root(), b"other"), RenameMode::Replace).unwrap();
    fs.setattr(&ROOT, &large, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    make(&fs, b"new", b"");

    let then = fs.open_snapshot(b"monday").unwrap();
    let names: Vec<Vec<u8>> = then
        .readdir(&ROOT, &then.root(), None, usize::MAX)
        .unwrap()
        .into_iter()
        .map(|e| e.name.to_vec())
        .collect();
    assert_eq!(names, [&b"dir"[..], b"gone", b"large", b"small"]);
    assert_eq!(then.read_file(&ROOT, &then.root(), b"small").unwrap(), b"then");
    assert_eq!(then.read_file(&ROOT, &then.root(), b"large").unwrap(), vec![7; 3 << 20]);
    let large_then = then.lookup(&ROOT, &then.root(), b"large").unwrap();
    assert_eq!(then.getattr(&large_then), attr);
    assert_eq!(then.getattr(&then.lookup(&ROOT, &then.root(), b"dir").unwrap()), dir_attr);
    let space_then = then.statfs().unwrap();
    assert_eq!((space_then.inodes, space_then.file_bytes), (space.inodes, space.file_bytes));
}

#[test]
fn nothing_in_a_snapshot_changes() {
    let fs = world();
    let file = make(&fs, b"file", b"bytes");
    fs.create_snapshot(b"s").unwrap();
    let then = fs.open_snapshot(b"s").unwrap();
    let root = then.root();
    let node = then.lookup(&ROOT, &root, b"file").unwrap();
    let refused = [
        then.write(&ROOT, &node, Position::At(0), b"x").map(drop),
        then.write(&ROOT, &node, Position::At(0), &[1; 100_000]).map(drop),
        then.setattr(&ROOT, &node, &SetAttr { mode: Some(0), ..SetAttr::default() }).map(drop),
        then.create_file(&ROOT, &root, b"new", NewMode::exact(0o644), b"").map(drop),
        then.mkdir(&ROOT, &root, b"new", NewMode::exact(0o755)).map(drop),
        then.unlink(&ROOT, &root, b"file"),
        then.rename(&ROOT, (&root, b"file"), (&root, b"other"), RenameMode::Replace),
        then.link(&ROOT, &node, &root, b"other"),
    ];
    for (n, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().errno(), Errno::ROFS.raw_os_error(), "call {n}");
    }
    assert_eq!(then.read_file(&ROOT, &root, b"file").unwrap(), b"bytes");
    drop((node, file));
    then.sync().unwrap();
}

#[test]
fn names_of_snapshots_are_unique_and_checked() {
    let fs = world();
    fs.create_snapshot(b"one").unwrap();
    assert!(matches!(fs.create_snapshot(b"one"), Err(FsError::Exists)));
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", b"@2026"] {
        assert!(matches!(fs.create_snapshot(bad), Err(FsError::Invalid(_))), "{bad:?}");
    }
    assert!(matches!(fs.create_snapshot(&[b'x'; 256]), Err(FsError::NameTooLong)));
    fs.create_snapshot(&[b'x'; 255]).unwrap();
    fs.create_snapshot(b"\xff\n").unwrap();
    assert!(matches!(fs.open_snapshot(b"two").map(drop), Err(FsError::NotFound)));
    assert!(matches!(fs.delete_snapshot(b"two"), Err(FsError::NotFound)));
    let names: Vec<Vec<u8>> = fs.snapshots().unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, [b"one".to_vec(), vec![b'x'; 255], b"\xff\n".to_vec()], "from the oldest on");
    fs.delete_snapshot(b"one").unwrap();
    let again = fs.create_snapshot(b"one").unwrap();
    assert_eq!(fs.snapshots().unwrap().last(), Some(&again), "a new snapshot of an old name");
}

#[test]
fn a_snapshot_that_is_open_outlives_its_deletion() {
    let fs = world();
    let file = make(&fs, b"file", &[1; 100_000]);
    fs.create_snapshot(b"s").unwrap();
    let then = fs.open_snapshot(b"s").unwrap();
    fs.delete_snapshot(b"s").unwrap();
    fs.unlink(&ROOT, &fs.root(), b"file").unwrap();
    drop(file);
    fs.reap().unwrap();
    while fs.engine().background_step().unwrap() {}
    assert_eq!(then.read_file(&ROOT, &then.root(), b"file").unwrap(), vec![1; 100_000]);
    drop(then);
    assert!(matches!(fs.open_snapshot(b"s").map(drop), Err(FsError::NotFound)));
    let slices = fs.engine().slices_stored();
    while fs.engine().background_step().unwrap() {}
    assert!(fs.engine().slices_stored() < slices, "the bytes are free once nobody reads them");
}

#[test]
fn bytes_that_a_snapshot_may_need_are_not_called_free() {
    let fs = open(format(), Fs::format);
    fs.create_file(&ROOT, &fs.root(), b"file", NewMode::exact(0o644), &[1; 8 << 20]).unwrap();
    let before = fs.statfs().unwrap().free_bytes;
    fs.create_snapshot(b"s").unwrap();
    fs.unlink(&ROOT, &fs.root(), b"file").unwrap();
    fs.sync().unwrap();
    let held = fs.statfs().unwrap();
    assert!(held.free_bytes <= before, "{} bytes are free, {before} were", held.free_bytes);
    assert_eq!(held.file_bytes, 0);
    fs.delete_snapshot(b"s").unwrap();
    let after = fs.statfs().unwrap();
    assert!(after.free_bytes >= before + (8 << 20), "{} bytes are free, {before} were", after.free_bytes);
}

#[test]
fn snapshots_are_there_after_reopening() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
    make(&fs, b"file", b"then");
    let made = fs.create_snapshot(b"s").unwrap();
    assert_eq!(made.made.seconds, Ticking::START_SECONDS);
    drop(fs);
    let fs = Fs::open(engine.clone(), clock, FsOptions::default()).unwrap();
    assert_eq!(fs.snapshots().unwrap(), [made]);
    fs.delete_snapshot(b"s").unwrap();
    assert_eq!(fs.snapshots().unwrap(), []);
    check(&*engine, "after a deletion");
}

/// The listing that each snapshot must have, by name, and whether it is durable.
#[derive(Default)]
struct KnownSnapshots(BTreeMap<Vec<u8>, (Listing, bool)>);

impl KnownSnapshots {
    fn compare(&self, fs: &Fs<LogEngine>, what: &str) {
        for snapshot in fs.snapshots().unwrap() {
            let name = snapshot.name.escape_ascii().to_string();
            let (expected, _) = self.0.get(&snapshot.name).unwrap_or_else(|| panic!("{what}: {name} is new"));
            let then = fs.open_snapshot(&snapshot.name).unwrap();
            assert_eq!(&listing(&*then), expected, "{what}: snapshot {name}");
        }
    }
}

/// Random calls, snapshots, deletions and power cuts over the real engine: after each cut every snapshot
/// shows its own moment, and those that were synced are there.
#[test]
fn a_power_cut_leaves_each_snapshot_whole_or_absent() {
    for seed in 0..25 {
        let mut draw = TestRandom(7000 + seed);
        let mut tree = Tree::new();
        let mut fs = open(format(), Fs::format);
        let mut known = KnownSnapshots::default();
        let mut next = 0;
        for round in 0..6 {
            for n in 0..draw.below(80) {
                step(&fs, &mut tree, &mut draw, &format!("seed {seed} round {round} step {n}"));
                match draw.below(24) {
                    0 => {
                        fs.sync().unwrap();
                        known.0.values_mut().for_each(|(_, durable)| *durable = true);
                    }
                    1 | 2 => _ = fs.engine().background_step().unwrap(),
                    3 => fs.engine().flush().unwrap(),
                    4 => fs.engine().compact().unwrap(),
                    5 | 6 => {
                        let name = format!("snapshot {next}").into_bytes();
                        next += 1;
                        fs.create_snapshot(&name).unwrap();
                        known.0.insert(name, (tree.listing(), false));
                    }
                    7 if !known.0.is_empty() => {
                        let which = draw.below(known.0.len() as u64) as usize;
                        let name = known.0.keys().nth(which).unwrap().clone();
                        fs.delete_snapshot(&name).unwrap();
                        known.0.remove(&name);
                        known.0.values_mut().for_each(|(_, durable)| *durable = true);
                    }
                    _ => {}
                }
            }
            let what = format!("seed {seed} round {round}");
            known.compare(&fs, &format!("{what}, before the cut"));
            let recovered = fs.engine().log().crash_seeded(draw.next());
            fs = open(recovered, |_, _, _, _| Ok(()));
            known.compare(&fs, &what);
            let there: Vec<Vec<u8>> = fs.snapshots().unwrap().into_iter().map(|s| s.name).collect();
            for (name, (_, durable)) in &known.0 {
                assert!(!durable || there.contains(name), "{what}: the cut lost a durable snapshot");
            }
            known.0.retain(|name, _| there.contains(name));
            tree = twin_of(&fs);
            fs.sync().unwrap();
            known.0.values_mut().for_each(|(_, durable)| *durable = true);
            check(&**fs.engine(), &what);
        }
    }
}

#[test]
fn a_directory_is_found_in_a_snapshot_by_its_number_wherever_it_was() {
    let fs = world();
    let root = fs.root();
    let a = fs.mkdir(&ROOT, &root, b"a", NewMode::exact(0o700)).unwrap();
    let b = fs.mkdir(&ROOT, &a, b"b", NewMode::exact(0o755)).unwrap();
    fs.create_file(&ROOT, &b, b"file", NewMode::exact(0o644), b"then").unwrap();
    let before = fs.create_snapshot(b"before").unwrap();
    let new = fs.mkdir(&ROOT, &root, b"new", NewMode::exact(0o755)).unwrap();
    fs.rename(&ROOT, (&a, b"b"), (&new, b"c"), RenameMode::Replace).unwrap();
    let after = fs.create_snapshot(b"after").unwrap();
    fs.rename(&ROOT, (&new, b"c"), (&root, b"d"), RenameMode::Replace).unwrap();

    let shown = |snapshot, dir: &NodeRef| fs.shows_directory(snapshot, dir.ino()).unwrap();
    assert!(shown(&before, &b) && shown(&after, &b) && shown(&before, &root));
    assert!(!shown(&before, &new) && shown(&after, &new));
    let then = fs.open_snapshot(b"before").unwrap();
    assert_eq!(then.path_then(b.ino()).unwrap(), b"/a/b");
    assert_eq!(then.path_then(root.ino()).unwrap(), b"/");
    assert!(matches!(then.path_then(new.ino()), Err(FsError::NotFound)));
    let found = then.directory_then(&ROOT, b.ino()).unwrap();
    assert_eq!(then.read_file(&ROOT, &found, b"file").unwrap(), b"then");
    assert_eq!(fs.open_snapshot(b"after").unwrap().path_then(b.ino()).unwrap(), b"/new/c");
    // The directory was below one that admitted nobody else.
    let user = Caller { uid: 1000, gid: 1000, checked: false, ..ROOT };
    assert!(matches!(then.directory_then(&user, b.ino()), Err(FsError::AccessDenied)));
    assert!(fs.open_snapshot(b"after").unwrap().directory_then(&user, b.ino()).is_ok());
    fs.delete_snapshot(b"before").unwrap();
    assert!(!shown(&before, &b), "a deleted snapshot shows nothing");
}

#[test]
fn a_moment_and_a_second_lead_to_the_newest_snapshot_also_if_the_clock_was_set_back() {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine, clock.clone(), FsOptions::default()).unwrap();
    let mut now = 0;
    for (name, second) in [("a", 100), ("b", 100), ("c", 300), ("d", 50), ("e", 60), ("f", 400)] {
        clock.skip_seconds(second - now);
        now = second;
        fs.create_snapshot(name.as_bytes()).unwrap();
    }
    let named = |found: Result<SnapshotInfo, FsError>| found.map(|found| found.name).unwrap_or_default();
    // The clock said less than 300 when later ones than c were made.
    for (second, name) in [(49, ""), (50, "d"), (99, "e"), (100, "e"), (399, "e"), (400, "f"), (9999, "f")] {
        let moment = Timestamp { seconds: Ticking::START_SECONDS + second, nanos: 999_999_999 };
        assert_eq!(named(fs.snapshot_at(moment)), name.as_bytes(), "{second}");
    }
    for (second, name) in [(100, "b"), (300, "c"), (50, "d"), (101, ""), (400, "f")] {
        let found = fs.snapshot_in_second(Ticking::START_SECONDS + second);
        assert_eq!(named(found), name.as_bytes(), "{second}");
    }
}
