//! The memory that transactions and open directories keep: limits, and that all of it comes back.

use std::sync::Arc;

use warpfire_meta::{MemoryLimits, MemoryRefused, Storage};

use super::check::check;
use super::{Engine, TestFs, world_with};
use crate::acl::Caller;
use crate::node::NODES_KEPT_MIN;
use crate::{Diff, Fs, FsError, FsOptions, NewMode, NodeRef, RenameMode, SetAttr, Transaction};

const ROOT: Caller<'static> = Caller::ROOT;
const MODE: NewMode = NewMode { mode: 0o644, umask: 0 };
const USER: Option<u32> = Some(1000);
const MIB: usize = 1 << 20;

fn world(user_bytes: usize) -> (Arc<Engine>, Arc<TestFs>) {
    let (engine, clock) = world_with();
    let options = FsOptions { memory: MemoryLimits::of_total(16 * user_bytes), ..FsOptions::default() };
    (engine.clone(), Arc::new(Fs::open(engine, clock, options).unwrap()))
}

fn make<E: Storage>(fs: &Fs<E>, name: &str) -> Result<NodeRef, FsError> {
    fs.mknod(&ROOT, &fs.root(), name.as_bytes(), crate::FileKind::Regular, MODE, 0)
}

fn open<E: Storage>(fs: &Fs<E>, name: &str) -> Result<NodeRef, FsError> {
    fs.lookup(&ROOT, &fs.root(), name.as_bytes())
}

fn used(fs: &TestFs) -> usize {
    fs.memory.budget().used_bytes()
}

/// Makes files until that is refused; returns how many.
fn fill(tx: &Transaction<Engine>, prefix: &str) -> usize {
    let refusal = |n: usize| match make(tx.files(), &format!("{prefix}{n}")) {
        Ok(_) => None,
        Err(FsError::Memory(refused)) => Some(refused),
        other => panic!("expected room or a refusal, got {other:?}"),
    };
    let count = (0..1_000_000).take_while(|n| refusal(*n).is_none()).count();
    assert!(count < 1_000_000, "it is refused at some time");
    count
}

#[test]
fn transactions_of_one_user_share_its_memory_and_leave_the_rest() {
    let (engine, fs) = world(MIB);
    let first = fs.begin_for(USER).unwrap();
    let second = fs.begin_for(USER).unwrap();
    let made = fill(&first, "first");
    assert!(made > 500, "{made}");
    assert!(fill(&second, "second") < made / 4, "both are charged to one user");
    assert!(used(&fs) <= MIB + 256 * 1024, "{}", used(&fs));
    let more = make(second.files(), "more").map(|node| node.ino());
    assert!(matches!(more, Err(FsError::Memory(MemoryRefused::Share))), "{more:?}");
    assert_eq!(more.err().map(|e| e.errno()), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    let other = fs.begin_for(Some(1001)).unwrap();
    assert!(fill(&other, "other") > made / 2, "another user has a share of its own");
    let own = fs.begin().unwrap();
    assert!(fill(&own, "own") > 5 * made, "the store's own user has what users leave");
    drop((other, own, second));
    // The changes before the refusal can be committed.
    first.commit().unwrap();
    assert_eq!(used(&fs), 0);
    assert_eq!(fs.readdir(&ROOT, &fs.root(), None, 100_000).unwrap().len(), made);
    fs.sync().unwrap();
    check(&*engine, "committed");
}

#[test]
fn every_way_to_end_returns_the_memory() {
    let (_, fs) = world(MIB);
    make(&fs, "outside").unwrap();
    for way in ["commit", "abort", "conflict", "replay", "read-only", "savepoint"] {
        let tx = if way == "read-only" { fs.begin_read_only() } else { fs.begin_for(USER) }.unwrap();
        if way == "read-only" {
            open(tx.files(), "outside").unwrap();
        } else {
            let start = tx.savepoint();
            fill(&tx, way);
            if way == "savepoint" {
                tx.roll_back(&start).unwrap();
                assert!(fill(&tx, "again") > 100, "undone changes leave their room");
                drop(start);
            }
        }
        match way {
            "commit" => tx.commit().unwrap(),
            "conflict" => {
                let size = |fs: &TestFs| open(fs, "outside").map(|node| fs.getattr(&node).size_bytes);
                let _ = tx.files().read_file(&ROOT, &tx.files().root(), b"outside");
                fs.setattr(
                    &ROOT,
                    &open(&fs, "outside").unwrap(),
                    &SetAttr { size_bytes: Some(size(&fs).unwrap() + 1), ..SetAttr::default() },
                )
                .unwrap();
                let _ = tx.commit();
            }
            "replay" => {
                make(&fs, "replay-beside").unwrap();
                let _ = tx.commit();
            }
            _ => drop(tx),
        }
        assert_eq!(used(&fs), 0, "{way}");
    }
}

#[test]
fn a_savepoint_is_charged_by_the_nodes_that_it_keeps() {
    let (_engine, fs) = world(16 * MIB);
    let tx = fs.begin_for(USER).unwrap();
    let made: Vec<_> = (0..2000).map(|n| make(tx.files(), &format!("made {n}")).unwrap()).collect();
    let before = used(&fs);
    let savepoint = tx.savepoint();
    let with = used(&fs);
    // Memory is charged in steps of 64 KiB.
    let kept = made.len() * size_of::<crate::node::NodeState>();
    assert!(with - before + (64 << 10) > kept, "{before} and {with}, {kept} kept");
    drop(savepoint);
    assert!(used(&fs) < with);
}

#[test]
fn a_node_that_outlives_its_transaction_is_charged_until_it_is_dropped() {
    let (_, fs) = world(MIB);
    let tx = fs.begin_for(USER).unwrap();
    let nodes: Vec<NodeRef> = (0..1000).map_while(|n| make(tx.files(), &format!("{n}")).ok()).collect();
    let kept = tx.files().clone();
    drop(tx);
    let of_nodes = used(&fs);
    assert!(of_nodes > 200 * nodes.len(), "{of_nodes}");
    drop(nodes);
    drop(kept);
    assert_eq!(used(&fs), 0);
}

/// The commit copies the state of each changed node to the node of the same file outside.
#[test]
fn a_changed_node_is_kept_for_the_commit_however_many_are_read_after_it() {
    let (engine, fs) = world(64 * MIB);
    let count = 2 * NODES_KEPT_MIN;
    (0..count).for_each(|n| drop(make(&fs, &format!("file {n}")).unwrap()));
    let outside = open(&fs, "file 0").unwrap();
    let tx = fs.begin_for(USER).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    tx.files().setattr(&ROOT, &open(tx.files(), "file 0").unwrap(), &set).unwrap();
    for _ in 0..2 {
        (1..count).for_each(|n| drop(open(tx.files(), &format!("file {n}")).unwrap()));
    }
    tx.commit().unwrap();
    assert_eq!(fs.getattr(&outside).mode & 0o777, 0o600);
    fs.sync().unwrap();
    check(&*engine, "committed");
}

#[test]
fn nodes_that_were_only_read_are_made_again() {
    let (engine, fs) = world(64 * MIB);
    let count = 2 * NODES_KEPT_MIN;
    let name = |n: usize| format!("file with a name that is long enough for memory of its own {n}");
    let (dir, other) = (fs.mkdir(&ROOT, &fs.root(), b"dir", MODE).unwrap(), name(count + 1));
    for n in 0..count {
        fs.create_file(&ROOT, &fs.root(), name(n).as_bytes(), MODE, b"content").unwrap();
    }
    make(&fs, &other).unwrap();
    let tx = fs.begin_for(USER).unwrap();
    let files = tx.files();
    let held = open(files, &name(0)).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    files.setattr(&ROOT, &open(files, &name(1)).unwrap(), &set).unwrap();
    let to = open(files, "dir").unwrap();
    files.rename(&ROOT, (&files.root(), name(2).as_bytes()), (&to, b"moved"), RenameMode::Replace).unwrap();
    files.unlink(&ROOT, &files.root(), name(3).as_bytes()).unwrap();
    let first_ino = open(files, &name(4)).unwrap().ino();
    for _ in 0..2 {
        for n in 4..count {
            open(files, &name(n)).unwrap();
        }
    }
    let kept = files.inode_cache.tx_nodes().len();
    assert!(kept < NODES_KEPT_MIN + 100, "{kept} of {count} nodes are kept");
    assert!(used(&fs) < 2 * kept * 1024 + 8 * MIB, "{}", used(&fs));
    // A node that was dropped is made again, the same file with the same state.
    assert_eq!(open(files, &name(4)).unwrap().ino(), first_ino);
    assert!(Arc::ptr_eq(&held, &open(files, &name(0)).unwrap()), "a node with a holder stays");
    assert_eq!(files.getattr(&open(files, &name(1)).unwrap()).mode & 0o777, 0o600);
    assert!(matches!(open(files, &name(3)), Err(FsError::NotFound)));
    // A node that was dropped, made again and then changed.
    files.setattr(&ROOT, &open(files, &name(5)).unwrap(), &set).unwrap();
    let outside = [1, 5, 6].map(|n| open(&fs, &name(n)).unwrap());
    // A change that the transaction has not seen makes it repeat its calls.
    make(&fs, "beside").unwrap();
    tx.commit().unwrap();
    assert_eq!(outside.map(|node| fs.getattr(&node).mode & 0o777), [0o600, 0o600, 0o644]);
    assert!(fs.lookup(&ROOT, &dir, b"moved").is_ok());
    assert!(matches!(open(&fs, &name(2)), Err(FsError::NotFound)));
    drop(held);
    assert_eq!(used(&fs), 0);
    fs.sync().unwrap();
    check(&*engine, "committed");
}

#[test]
fn a_conflict_over_a_node_that_was_dropped_names_its_path() {
    let (_, fs) = world(64 * MIB);
    let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", MODE).unwrap();
    let inner = fs.mkdir(&ROOT, &dir, b"inner", MODE).unwrap();
    fs.create_file(&ROOT, &inner, b"read", MODE, b"before").unwrap();
    let many = fs.mkdir(&ROOT, &fs.root(), b"many", MODE).unwrap();
    for n in 0..2 * NODES_KEPT_MIN {
        fs.create_file(&ROOT, &many, format!("{n}").as_bytes(), MODE, b"").unwrap();
    }
    let tx = fs.begin_for(USER).unwrap();
    let files = tx.files();
    let inside = |names: [&str; 2]| {
        names.iter().fold(files.root(), |dir, name| files.lookup(&ROOT, &dir, name.as_bytes()).unwrap())
    };
    files.read_file(&ROOT, &inside(["dir", "inner"]), b"read").unwrap();
    let ino = inside(["dir", "inner"]).ino();
    let many = open(files, "many").unwrap();
    for n in 0..2 * NODES_KEPT_MIN {
        files.lookup(&ROOT, &many, format!("{n}").as_bytes()).unwrap();
    }
    assert!(files.node_in_use(ino).is_none(), "the directory's node was dropped");
    make(files, "own").unwrap();
    fs.unlink(&ROOT, &inner, b"read").unwrap();
    match tx.commit() {
        Err(FsError::Conflict { path, .. }) => assert_eq!(&*path, "/dir/inner/read"),
        other => panic!("expected a conflict, got {other:?}"),
    }
}

#[test]
fn a_look_up_without_room_is_refused_and_has_room_after_others_are_dropped() {
    let (_, fs) = world(8 * MIB);
    let count = 3 * NODES_KEPT_MIN;
    for n in 0..count {
        fs.create_file(&ROOT, &fs.root(), format!("{n}").as_bytes(), MODE, b"").unwrap();
    }
    let tx = fs.begin_for(USER).unwrap();
    let files = tx.files();
    let mut held = Vec::new();
    let refused = (0..count).find_map(|n| match open(files, &format!("{n}")) {
        Ok(node) => {
            held.push(node);
            None
        }
        Err(e) => Some(e),
    });
    assert!(matches!(refused, Some(FsError::Memory(MemoryRefused::Share))), "{refused:?} at {}", held.len());
    assert!(used(&fs) <= 8 * MIB);
    assert!(open(files, "0").is_ok(), "a node in use needs no room");
    held.truncate(NODES_KEPT_MIN / 2);
    let next = held.len() * 2;
    assert!((next..count).all(|n| open(files, &format!("{n}")).is_ok()), "nodes without a holder make room");
    drop((tx, held));
    assert_eq!(used(&fs), 0);
}

#[test]
fn open_directories_are_charged_by_their_bytes() {
    let (_, fs) = world(MIB);
    let count = 8000;
    for n in 0..count {
        let name = format!("{n:05} {}", "a long name ".repeat(15));
        fs.create_file(&ROOT, &fs.root(), name.as_bytes(), MODE, b"").unwrap();
    }
    let account = fs.memory_account(USER);
    let opened = || fs.opendir_charged(&ROOT, &fs.root(), &account);
    let mut listed = Vec::new();
    let names = fs.opendir(&ROOT, &fs.root()).unwrap();
    let whole = fs.read_handle(&names, 0, usize::MAX).unwrap();
    assert_eq!(whole.len(), count + 2, "the store's own user has more room");
    drop(names);
    // Each call returns what there is room for, until the first entry of one has none.
    let first = opened().unwrap();
    let refused = loop {
        let from = listed.last().map_or(0, |(cookie, _)| *cookie);
        match fs.read_handle(&first, from, 1000) {
            Ok(more) if more.is_empty() => break None,
            Ok(more) => listed.extend(more),
            Err(e) => break Some(e),
        }
    };
    assert!(matches!(refused, Some(FsError::Memory(MemoryRefused::Share))), "{refused:?}");
    assert!((2000..count).contains(&listed.len()), "{}", listed.len());
    assert!(listed.iter().zip(&whole).all(|(one, other)| one.0 == other.0 && one.1.name == other.1.name));
    let mut shown = 0;
    let from = listed.last().map_or(0, |(cookie, _)| *cookie);
    let visited = fs.visit_handle(&first, from, 100, &mut |_, _, _| {
        shown += 1;
        false
    });
    assert!(matches!(visited, Err(FsError::Memory(_))) && shown == 0, "no entries would be the end");
    drop(first);
    let many: Vec<_> = (0..).map_while(|_: u32| opened().ok()).collect();
    assert_eq!(many.len(), MIB / 4096, "a directory that is only opened takes a step");
    assert_eq!(used(&fs), MIB);
    drop(many);
    assert_eq!(used(&fs), 0);
}

#[test]
fn a_replay_has_the_room_that_the_calls_had() {
    let (engine, fs) = world(16 * MIB);
    let seen = make(&fs, "seen").unwrap();
    let tx = fs.begin_for(USER).unwrap();
    open(tx.files(), "seen").unwrap();
    let mut made = 0;
    while used(&fs) < 11 * MIB {
        make(tx.files(), &format!("{made}")).unwrap();
        made += 1;
    }
    assert!(made > NODES_KEPT_MIN, "{made}");
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.setattr(&ROOT, &seen, &set).unwrap();
    tx.commit().unwrap();
    assert_eq!(fs.transaction_counts().replays, 1);
    assert_eq!(used(&fs), 0);
    fs.sync().unwrap();
    check(&*engine, "committed");
}

#[test]
fn a_diff_is_charged_until_it_is_dropped() {
    let (_, fs) = world(MIB);
    let name = |kind: &str, n: usize| format!("{kind}{n:0200}");
    (0..3000).for_each(|n| _ = make(&fs, &name("old", n)).unwrap());
    let rename = |tx: &Transaction<Engine>, n: usize| {
        let (root, from, to) = (tx.files().root(), name("old", n), name("new", n));
        tx.files().rename(&ROOT, (&root, from.as_bytes()), (&root, to.as_bytes()), RenameMode::Replace)
    };
    let tx = fs.begin_for(USER).unwrap();
    (0..300).for_each(|n| rename(&tx, n).unwrap());
    let before = used(&fs);
    let mut diff = Diff::of(Arc::clone(tx.files())).unwrap();
    assert!(diff.next().is_some() && used(&fs) > before);
    drop(diff);
    assert_eq!(used(&fs), before);
    let renamed = (300..3000).take_while(|n| rename(&tx, *n).is_ok()).count();
    assert!(renamed < 2700, "there is no more room at some time");
    let refused = Diff::of(Arc::clone(tx.files())).err();
    assert!(matches!(refused, Some(FsError::Memory(MemoryRefused::Share))), "{refused:?}");
    // The transaction itself goes on.
    tx.commit().unwrap();
    assert_eq!(used(&fs), 0);
}
