//! Transactions: the state that they see, the moment at which others see their changes, and conflicts.

use std::sync::Arc;

use warpfire_meta::{Storage, Store};

use super::check::check;
use super::{Engine, TestFs, Ticking, world_with};
use crate::acl::Caller;
use crate::limits::EDITS_MAX;
use crate::{
    Fs, FsError, FsOptions, Invalidation, NewMode, NodeRef, Position, RenameMode, SetAttr, SetTime,
    Transaction, TxFs,
};

const ROOT: Caller<'static> = Caller::ROOT;
const MODE: NewMode = NewMode { mode: 0o644, umask: 0 };

fn shared() -> (Arc<Engine>, Arc<Ticking>, Arc<TestFs>) {
    let (engine, clock) = world_with();
    let fs = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
    (engine, clock, Arc::new(fs))
}

fn make<E: Storage>(fs: &Fs<E>, name: &str, bytes: &[u8]) {
    fs.create_file(&ROOT, &fs.root(), name.as_bytes(), MODE, bytes).unwrap();
}

fn open<E: Storage>(fs: &Fs<E>, name: &str) -> NodeRef {
    fs.lookup(&ROOT, &fs.root(), name.as_bytes()).unwrap()
}

fn read<E: Storage>(fs: &Fs<E>, name: &str) -> Result<Vec<u8>, FsError> {
    fs.read_file(&ROOT, &fs.root(), name.as_bytes())
}

fn overwrite<E: Storage>(fs: &Fs<E>, name: &str, bytes: &[u8]) {
    fs.write(&ROOT, &open(fs, name), Position::At(0), bytes).unwrap();
}

fn names<E: Storage>(fs: &Fs<E>) -> Vec<String> {
    let entries = fs.readdir(&ROOT, &fs.root(), None, 1000).unwrap();
    entries.iter().map(|e| String::from_utf8(e.name.to_vec()).unwrap()).collect()
}

fn conflict_of(outcome: Result<(), FsError>) -> (&'static str, String) {
    match outcome {
        Err(FsError::Conflict { call, path }) => (call, path.to_string()),
        other => panic!("expected a conflict, got {other:?}"),
    }
}

/// Ends a test: all records agree, in memory and after reopening.
fn agree(engine: &Arc<Engine>, clock: &Arc<Ticking>, fs: Arc<TestFs>, what: &str) {
    let shown = super::tree_model::listing(&fs);
    fs.sync().unwrap();
    check(&**engine, what);
    drop(fs);
    let again = Fs::open(engine.clone(), clock.clone(), FsOptions::default()).unwrap();
    assert_eq!(super::tree_model::listing(&again), shown, "{what}");
}

#[test]
fn others_see_nothing_before_the_commit_and_everything_after() {
    let (engine, clock, fs) = shared();
    make(&fs, "old", b"1");
    make(&fs, "gone", b"2");
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    make(tx_fs, "new", b"3");
    overwrite(tx_fs, "old", b"one");
    tx_fs.unlink(&ROOT, &tx_fs.root(), b"gone").unwrap();
    let dir = tx_fs.mkdir(&ROOT, &tx_fs.root(), b"dir", MODE).unwrap();
    tx_fs.rename(&ROOT, (&tx_fs.root(), b"new"), (&dir, b"moved"), RenameMode::Replace).unwrap();
    assert_eq!(names(tx_fs), ["dir", "old"]);
    assert_eq!(read(tx_fs, "old").unwrap(), b"one");
    assert_eq!(names(&fs), ["gone", "old"]);
    assert_eq!(read(&fs, "old").unwrap(), b"1");
    tx.commit().unwrap();
    assert_eq!(names(&fs), ["dir", "old"]);
    assert_eq!(read(&fs, "old").unwrap(), b"one");
    assert_eq!(fs.read_file(&ROOT, &open(&fs, "dir"), b"moved").unwrap(), b"3");
    agree(&engine, &clock, fs, "committed");
}

#[test]
fn a_transaction_knows_the_files_that_it_has_made() {
    let fs = Arc::new(super::world());
    fs.create_file(&ROOT, &fs.root(), b"theirs", MODE, b"").unwrap();
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let seen = tx_fs.lookup(&ROOT, &tx_fs.root(), b"theirs").unwrap();
    let made = tx_fs.create(&ROOT, &tx_fs.root(), b"made", MODE).unwrap();
    assert!(tx_fs.is_made_here(&made) && !tx_fs.is_made_here(&seen));
}

#[test]
fn an_aborted_transaction_leaves_nothing() {
    let (engine, clock, fs) = shared();
    make(&fs, "a", b"1");
    let counts = |fs: &TestFs| fs.statfs().map(|space| (space.inodes, space.file_bytes)).unwrap();
    let before = counts(&fs);
    let tx = fs.begin().unwrap();
    make(tx.files(), "b", &[7; 100_000]);
    overwrite(tx.files(), "a", &[8; 100_000]);
    let kept = tx.files().clone();
    drop(tx);
    assert_eq!(names(&fs), ["a"]);
    while engine.background_step().unwrap() {}
    assert_eq!(engine.slices_stored(), 0, "its bytes are released");
    assert_eq!(counts(&fs), before);
    assert!(matches!(read(&kept, "a"), Err(FsError::Ended)));
    agree(&engine, &clock, fs, "aborted");
}

#[test]
fn files_that_are_open_outside_show_what_was_committed() {
    let (engine, clock, fs) = shared();
    for name in ["grown", "moved", "unlinked", "linked"] {
        make(&fs, name, b"before");
    }
    let [grown, moved, unlinked, linked] =
        ["grown", "moved", "unlinked", "linked"].map(|name| open(&fs, name));
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    overwrite(tx_fs, "grown", &[9; 200_000]);
    tx_fs
        .rename(&ROOT, (&tx_fs.root(), b"moved"), (&tx_fs.root(), b"elsewhere"), RenameMode::Replace)
        .unwrap();
    tx_fs.unlink(&ROOT, &tx_fs.root(), b"unlinked").unwrap();
    tx_fs.link(&ROOT, &open(tx_fs, "linked"), &tx_fs.root(), b"second").unwrap();
    tx.commit().unwrap();
    assert_eq!(fs.getattr(&grown).size_bytes, 200_000);
    fs.write(&ROOT, &moved, Position::End, b" and after").unwrap();
    assert_eq!(read(&fs, "elsewhere").unwrap(), b"before and after");
    let mut bytes = [0; 6];
    assert_eq!(fs.read(&unlinked, 0, &mut bytes).unwrap(), 6);
    assert_eq!((&bytes, fs.getattr(&unlinked).links), (b"before", 0), "open, and without a name");
    assert_eq!(fs.getattr(&linked).links, 2);
    fs.unlink(&ROOT, &fs.root(), b"linked").unwrap();
    assert_eq!(read(&fs, "second").unwrap(), b"before");
    drop((grown, moved, unlinked, linked));
    fs.reap().unwrap();
    agree(&engine, &clock, fs, "open files");
}

#[test]
fn an_exchange_is_replayed_and_named_like_any_call() {
    let (engine, clock, fs) = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"d", NewMode::exact(0o755)).unwrap();
    make(&fs, "a", b"1");
    fs.create_file(&ROOT, &dir, b"b", MODE, b"2").unwrap();
    let swapped = |fs: &TestFs| {
        (read(fs, "a").unwrap(), fs.read_file(&ROOT, &open(fs, "d"), b"b").unwrap())
            == (b"2".into(), b"1".into())
    };
    let exchange_in = |tx: &Transaction<Engine>| {
        let tx_fs = tx.files();
        tx_fs.exchange(&ROOT, (&tx_fs.root(), b"a"), (&open(tx_fs, "d"), b"b")).unwrap();
    };
    // A write changes a record that the call has read, and not what the call answers.
    let tx = fs.begin().unwrap();
    exchange_in(&tx);
    fs.write(&ROOT, &open(&fs, "a"), Position::At(0), b"1").unwrap();
    assert!(!swapped(&fs), "nothing outside before the commit");
    tx.commit().unwrap();
    assert!(swapped(&fs));
    assert_eq!(fs.transaction_counts().replays, 1);
    // The other name has gone: it would answer `NotFound` now.
    let tx = fs.begin().unwrap();
    exchange_in(&tx);
    fs.unlink(&ROOT, &dir, b"b").unwrap();
    assert_eq!(conflict_of(tx.commit()), ("exchange", "/a".to_owned()));
    assert!(matches!(fs.exchange(&ROOT, (&fs.root(), b"a"), (&dir, b"b")), Err(FsError::NotFound)));
    agree(&engine, &clock, fs, "exchanged");
}

/// The report of a conflict names the file of the call that answers differently, whatever was called before.
#[test]
fn a_conflict_names_the_file_of_the_call() {
    let (_, _, fs) = shared();
    for name in ["renamed", "removed", "copied", "pasted", "marked", "source"] {
        make(&fs, name, b"12345");
    }
    let mark = |fs: &TestFs| {
        fs.setxattr(&ROOT, &open(fs, "marked"), b"user.a", b"1", crate::XattrMode::Either).unwrap();
    };
    mark(&fs);
    let conflict = |inside: &dyn Fn(&crate::TxFs<Engine>), outside: &dyn Fn()| {
        let tx = fs.begin().unwrap();
        inside(tx.files());
        outside();
        conflict_of(tx.commit())
    };
    let renamed = conflict(
        &|tx_fs| {
            let root = tx_fs.root();
            let mode = crate::RenameMode::Replace;
            tx_fs.rename(&ROOT, (&root, b"renamed"), (&root, b"other"), mode).unwrap();
        },
        &|| fs.unlink(&ROOT, &fs.root(), b"renamed").unwrap(),
    );
    assert_eq!(renamed, ("rename", "/renamed".to_owned()));
    let removed = conflict(&|tx_fs| tx_fs.unlink(&ROOT, &tx_fs.root(), b"removed").unwrap(), &|| {
        fs.unlink(&ROOT, &fs.root(), b"removed").unwrap()
    });
    assert_eq!(removed, ("unlink", "/removed".to_owned()));
    let pasted = conflict(
        &|tx_fs| {
            let slice = tx_fs.yank(&open(tx_fs, "source"), 0, 3).unwrap();
            tx_fs.paste(&ROOT, &open(tx_fs, "pasted"), Position::End, &slice).unwrap();
        },
        &|| _ = fs.write(&ROOT, &open(&fs, "pasted"), Position::End, b"more").unwrap(),
    );
    assert_eq!(pasted, ("paste", "/pasted".to_owned()));
    let copied = conflict(
        &|tx_fs| {
            let (from, to) = (open(tx_fs, "source"), open(tx_fs, "copied"));
            tx_fs.copy_range(&ROOT, (&from, 0), (&to, 0), 100).unwrap();
        },
        &|| _ = fs.write(&ROOT, &open(&fs, "source"), Position::End, b"more").unwrap(),
    );
    assert_eq!(copied, ("copy a range", "/copied".to_owned()));
    let unmarked =
        conflict(&|tx_fs| tx_fs.removexattr(&ROOT, &open(tx_fs, "marked"), b"user.a").unwrap(), &|| {
            fs.removexattr(&ROOT, &open(&fs, "marked"), b"user.a").unwrap()
        });
    assert_eq!(unmarked, ("set extended attributes", "/marked".to_owned()));
}

#[test]
fn a_change_of_what_was_read_is_a_conflict_that_is_named() {
    let (engine, clock, fs) = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"d", NewMode::exact(0o755)).unwrap();
    fs.create_file(&ROOT, &dir, b"x", MODE, b"1").unwrap();
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let x = tx_fs.resolve(&ROOT, &tx_fs.root(), b"/d/x", crate::Follow::Yes).unwrap();
    let mut byte = [0];
    tx_fs.read(&x, 0, &mut byte).unwrap();
    make(tx_fs, "copy", &byte);
    let outside = fs.resolve(&ROOT, &fs.root(), b"/d/x", crate::Follow::Yes).unwrap();
    fs.write(&ROOT, &outside, Position::At(0), b"2").unwrap();
    assert_eq!(conflict_of(tx.commit()), ("read", "/d/x".to_owned()));
    assert_eq!(names(&fs), ["d"], "nothing of it is there");
    let counts = fs.transaction_counts();
    assert_eq!((counts.commits, counts.replays, counts.conflicts), (0, 1, 1));
    drop(outside);
    agree(&engine, &clock, fs, "conflict");
}

/// Commits the transaction of `ours` after calls of others. The commit succeeds, because no call of the
/// transaction would answer otherwise then.
fn commits_despite(ours: impl FnOnce(&Transaction<Engine>), others: impl FnOnce(&TestFs), what: &str) {
    let (engine, clock, fs) = shared();
    make(&fs, "log", b"");
    make(&fs, "file", b"0123456789");
    let tx = fs.begin().unwrap();
    ours(&tx);
    others(&fs);
    fs.sync().unwrap();
    tx.commit().unwrap_or_else(|e| panic!("{what}: {e}"));
    agree(&engine, &clock, fs, what);
}

#[test]
fn appends_that_do_not_ask_where_do_not_conflict() {
    let append = |fs: &TestFs, text: &[u8]| fs.append(&ROOT, &open(fs, "log"), text).unwrap();
    let (engine, clock, fs) = shared();
    make(&fs, "log", b"");
    let txs: Vec<_> = (0..5).map(|_| fs.begin().unwrap()).collect();
    for tx in &txs {
        tx.files().append(&ROOT, &open(tx.files(), "log"), b"inside ").unwrap();
    }
    append(&fs, b"outside ");
    txs.into_iter().for_each(|tx| tx.commit().unwrap());
    assert_eq!(read(&fs, "log").unwrap(), b"outside inside inside inside inside inside ");
    assert_eq!(fs.transaction_counts().replays, 5);
    agree(&engine, &clock, fs, "appends");
}

#[test]
fn permissions_that_a_call_saw_are_kind_owner_and_mode_and_nothing_else() {
    let sees = |tx: &Transaction<Engine>| {
        let tx_fs = tx.files();
        _ = tx_fs.permissions(&open(tx_fs, "file"));
        make(tx_fs, "mine", b"1");
    };
    commits_despite(sees, |fs| overwrite(fs, "file", b"theirs"), "other bytes");
    let changes = [
        SetAttr { mode: Some(0o600), ..SetAttr::default() },
        SetAttr { uid: Some(7), ..SetAttr::default() },
        SetAttr { gid: Some(7), ..SetAttr::default() },
    ];
    for change in changes {
        let (_, _, fs) = shared();
        make(&fs, "file", b"0123456789");
        let tx = fs.begin().unwrap();
        sees(&tx);
        fs.setattr(&ROOT, &open(&fs, "file"), &change).unwrap();
        assert_eq!(conflict_of(tx.commit()), ("read permissions", "/file".to_owned()), "{change:?}");
    }
}

#[test]
fn changes_that_no_call_saw_do_not_conflict() {
    let set_time = |fs: &TestFs| {
        let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        fs.setattr(&ROOT, &open(fs, "file"), &set).unwrap();
    };
    commits_despite(|tx| make(tx.files(), "mine", b"1"), |fs| make(fs, "theirs", b"2"), "different names");
    commits_despite(
        |tx| overwrite(tx.files(), "file", b"mine"),
        |fs| overwrite(fs, "file", b"theirs"),
        "blind writes",
    );
    commits_despite(|tx| overwrite(tx.files(), "file", b"mine"), set_time, "a write and a new time");
    commits_despite(
        |tx| _ = tx.files().write(&ROOT, &open(tx.files(), "file"), Position::At(9), &[1; 90_000]).unwrap(),
        |fs| _ = fs.write(&ROOT, &open(fs, "file"), Position::End, &[2; 80_000]).unwrap(),
        "long data is written once and placed again",
    );
    commits_despite(
        |tx| {
            let tx_fs = tx.files();
            let node = tx_fs.create(&ROOT, &tx_fs.root(), b"draft", MODE).unwrap();
            tx_fs.append(&ROOT, &node, b"text").unwrap();
            assert_eq!(tx_fs.getattr(&node).size_bytes, 4);
            tx_fs
                .rename(&ROOT, (&tx_fs.root(), b"draft"), (&tx_fs.root(), b"done"), RenameMode::Replace)
                .unwrap();
            tx_fs.append(&ROOT, &open(tx_fs, "log"), b"made done\n").unwrap();
        },
        |fs| fs.append(&ROOT, &open(fs, "log"), b"else\n").unwrap(),
        "calls on what it made itself",
    );
}

#[test]
fn a_name_that_both_make_goes_to_the_first() {
    let (engine, clock, fs) = shared();
    let one = fs.begin().unwrap();
    let two = fs.begin().unwrap();
    make(one.files(), "n", b"1");
    make(two.files(), "n", b"2");
    one.commit().unwrap();
    assert_eq!(conflict_of(two.commit()), ("create", "/n".to_owned()));
    assert_eq!(read(&fs, "n").unwrap(), b"1");
    agree(&engine, &clock, fs, "both made it");
}

#[test]
fn a_listing_conflicts_with_a_new_name_in_it() {
    let (_, _, fs) = shared();
    let tx = fs.begin().unwrap();
    assert!(names(tx.files()).is_empty());
    make(tx.files(), "was empty", b"");
    make(&fs, "x", b"");
    assert_eq!(conflict_of(tx.commit()), ("list", "/".to_owned()));
}

#[test]
fn a_directory_that_another_call_fills_is_not_removed() {
    let (engine, clock, fs) = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"d", NewMode::exact(0o755)).unwrap();
    let tx = fs.begin().unwrap();
    tx.files().rmdir(&ROOT, &tx.files().root(), b"d").unwrap();
    fs.create_file(&ROOT, &dir, b"x", MODE, b"").unwrap();
    assert_eq!(conflict_of(tx.commit()), ("remove a directory", "/d".to_owned()));
    let tx = fs.begin().unwrap();
    fs.unlink(&ROOT, &dir, b"x").unwrap();
    tx.files().unlink(&ROOT, &open(tx.files(), "d"), b"x").unwrap();
    conflict_of(tx.commit());
    let tx = fs.begin().unwrap();
    tx.files().rmdir(&ROOT, &tx.files().root(), b"d").unwrap();
    tx.commit().unwrap();
    assert!(
        matches!(fs.create_file(&ROOT, &dir, b"x", MODE, b""), Err(FsError::NotFound)),
        "the held node is of a removed directory"
    );
    drop(dir);
    agree(&engine, &clock, fs, "directories");
}

#[test]
fn a_read_only_transaction_never_conflicts_and_sees_one_moment() {
    let (_, _, fs) = shared();
    make(&fs, "a", b"1");
    let view = fs.begin_read_only().unwrap();
    overwrite(&fs, "a", b"2");
    assert_eq!(read(view.files(), "a").unwrap(), b"1");
    let refused = view.files().unlink(&ROOT, &view.files().root(), b"a");
    assert!(matches!(refused, Err(FsError::ReadOnlyTransaction)));
    view.commit().unwrap();
}

#[test]
fn rolling_back_to_a_savepoint_undoes_names_bytes_and_attributes() {
    let (engine, clock, fs) = shared();
    make(&fs, "kept", b"0");
    make(&fs, "late", b"late");
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let early = tx_fs.create(&ROOT, &tx_fs.root(), b"early", MODE).unwrap();
    tx_fs.append(&ROOT, &early, b"1").unwrap();
    let point = tx.savepoint();
    tx_fs.append(&ROOT, &early, &[2; 100_000]).unwrap();
    let new = tx_fs.create(&ROOT, &tx_fs.root(), b"new", MODE).unwrap();
    tx_fs.unlink(&ROOT, &tx_fs.root(), b"kept").unwrap();
    let late = open(tx_fs, "late");
    tx_fs.rename(&ROOT, (&tx_fs.root(), b"late"), (&tx_fs.root(), b"later"), RenameMode::Replace).unwrap();
    let void = tx.savepoint();
    for _ in 0..2 {
        tx.roll_back(&point).unwrap();
        assert_eq!(names(tx_fs), ["early", "kept", "late"]);
        assert_eq!(tx_fs.getattr(&early).size_bytes, 1, "an open file rolls back too");
        tx_fs.append(&ROOT, &late, b"!").unwrap();
        assert_eq!(tx_fs.getattr(&early).allocated_bytes, 1);
        assert!(tx_fs.append(&ROOT, &new, b"x").is_err(), "the file was made after the savepoint");
    }
    assert!(tx.roll_back(&void).is_err(), "the savepoint is later than the one rolled back to");
    assert!(fs.begin().unwrap().roll_back(&point).is_err(), "the savepoint is of another transaction");
    make(tx_fs, "new", b"again");
    // A concurrent append makes a replay, of the calls and of rolling back.
    fs.append(&ROOT, &open(&fs, "late"), b"?").unwrap();
    tx.commit().unwrap();
    assert_eq!(names(&fs), ["early", "kept", "late", "new"]);
    assert_eq!(
        (read(&fs, "late").unwrap(), read(&fs, "early").unwrap()),
        (b"late?!".to_vec(), b"1".to_vec())
    );
    agree(&engine, &clock, fs, "savepoints");
}

#[test]
fn a_commit_can_expect_versions() {
    let (_, _, fs) = shared();
    make(&fs, "a", b"1");
    let node = open(&fs, "a");
    let seen = fs.version(&node).unwrap();
    let tx = fs.begin().unwrap();
    tx.expect_version(seen.clone());
    make(tx.files(), "b", b"");
    tx.commit().unwrap();
    fs.write(&ROOT, &node, Position::At(0), b"2").unwrap();
    let tx = fs.begin().unwrap();
    tx.expect_version(seen);
    make(tx.files(), "c", b"");
    assert_eq!(conflict_of(tx.commit()), ("expect a version", "/a".to_owned()));
    let gone = fs.version(&node).unwrap();
    fs.unlink(&ROOT, &fs.root(), b"a").unwrap();
    let tx = fs.begin().unwrap();
    tx.expect_version(gone);
    conflict_of(tx.commit());
    assert_eq!(names(&fs), ["b"]);
}

/// Numbers of inodes mean other files in another pool.
#[test]
fn files_and_versions_of_another_pool_or_transaction_are_foreign() {
    let ((_, _, fs), (_, _, other)) = (shared(), shared());
    for (fs, content) in [(&fs, b"here"), (&other, b"else")] {
        make(fs, "from", content);
        make(fs, "to", b"");
    }
    let refused = |copied| assert!(matches!(copied, Err(FsError::ForeignFile)), "{copied:?}");
    let (from, to) = (open(&fs, "from"), open(&fs, "to"));
    refused(fs.copy_range(&ROOT, (&open(&other, "from"), 0), (&to, 0), 4));
    refused(fs.copy_range(&ROOT, (&from, 0), (&open(&other, "to"), 0), 4));
    let tx = fs.begin().unwrap();
    refused(tx.files().copy_range(&ROOT, (&from, 0), (&open(tx.files(), "to"), 0), 4));
    refused(fs.copy_range(&ROOT, (&open(tx.files(), "from"), 0), (&to, 0), 4));
    assert_eq!(fs.copy_range(&ROOT, (&from, 0), (&to, 0), 4).unwrap(), 4);
    drop(tx);
    let tx = fs.begin().unwrap();
    tx.expect_version(other.version(&open(&other, "from")).unwrap());
    make(tx.files(), "new", b"");
    let outcome = tx.commit();
    assert!(matches!(outcome, Err(FsError::ForeignFile)), "{outcome:?}");
    assert_eq!(names(&fs), ["from", "to"]);
}

#[test]
fn times_of_directories_go_on_through_a_transaction() {
    let (engine, clock, fs) = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"d", NewMode::exact(0o755)).unwrap();
    fs.create_file(&ROOT, &dir, b"x", MODE, b"").unwrap();
    let waits = fs.getattr(&dir).mtime;
    let tx = fs.begin().unwrap();
    let tx_fs = open(tx.files(), "d");
    assert_eq!(tx.files().getattr(&tx_fs).mtime, waits, "a pending time is seen");
    tx.files().create_file(&ROOT, &tx_fs, b"y", MODE, b"").unwrap();
    let later = tx.files().getattr(&tx_fs).mtime;
    assert!(later > waits);
    tx.commit().unwrap();
    assert!(fs.getattr(&dir).mtime > later, "the time is that of the commit");
    fs.create_file(&ROOT, &dir, b"z", MODE, b"").unwrap();
    let tx = fs.begin().unwrap();
    let then = warpfire_env::Timestamp { seconds: 5, nanos: 5 };
    let set = SetAttr { mtime: Some(SetTime::At(then)), ..SetAttr::default() };
    tx.files().setattr(&ROOT, &open(tx.files(), "d"), &set).unwrap();
    tx.commit().unwrap();
    assert_eq!(fs.getattr(&dir).mtime, then, "the pending time does not replace the time that was set");
    drop(dir);
    fs.sync().unwrap();
    drop(fs);
    let again = Fs::open(engine, clock, FsOptions::default()).unwrap();
    assert_eq!(again.getattr(&open(&again, "d")).mtime, then);
}

/// The root's node is made without a read of its record. A change of it is a conflict all the same.
#[test]
fn a_concurrent_change_of_the_roots_permissions_is_a_conflict() {
    let (_, _, fs) = shared();
    make(&fs, "file", b"1");
    fs.setattr(&ROOT, &fs.root(), &SetAttr { mode: Some(0o755), ..SetAttr::default() }).unwrap();
    let tx = fs.begin().unwrap();
    let tx_fs = tx.files();
    let someone = Caller { uid: 7, gid: 7, groups: &[0u32; 0], checked: false };
    tx_fs.lookup(&someone, &tx_fs.root(), b"file").unwrap();
    overwrite(tx_fs, "file", b"2");
    fs.setattr(&ROOT, &fs.root(), &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
    assert_eq!(conflict_of(tx.commit()).0, "look up");
}

/// The commit gave the record the earlier time at which the transaction had set the owner. After a crash the
/// directory had that time, although callers had seen a later one.
#[test]
fn the_time_of_a_new_name_outlasts_the_commit_of_an_earlier_change() {
    let (engine, clock, fs) = shared();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"d", NewMode::exact(0o755)).unwrap();
    let tx = fs.begin().unwrap();
    let set = SetAttr { uid: Some(7), ..SetAttr::default() };
    tx.files().set_attributes(&ROOT, &open(tx.files(), "d"), &set).unwrap();
    fs.create_file(&ROOT, &dir, b"x", MODE, b"").unwrap();
    fs.sync().unwrap();
    tx.commit().unwrap();
    let shown = fs.getattr(&dir);
    drop(dir);
    fs.sync().unwrap();
    drop(fs);
    let again = Fs::open(engine, clock, FsOptions::default()).unwrap();
    let found = again.getattr(&open(&again, "d"));
    assert_eq!((found.uid, found.ctime, found.mtime), (7, shown.ctime, shown.mtime));
}

/// The count of an inline file's edits was lost with its node. So a file that was opened for each change, or
/// changed by one transaction after the other, was never written whole, and reading it took ever longer.
#[test]
fn edit_histories_stay_short_though_each_change_opens_the_file() {
    let (engine, clock, fs) = shared();
    make(&*fs, "f", &[0; 512]);
    let mut most = [0, 0];
    for n in 0..600u64 {
        overwrite(&*fs, "f", &[n as u8; 8]);
        most[0] = most[0].max(open(&*fs, "f").state.read().history.edits);
        let tx = fs.begin().unwrap();
        overwrite(tx.files(), "f", &[n as u8; 8]);
        most[1] = most[1].max(open(tx.files(), "f").state.read().history.edits);
        tx.commit().unwrap();
    }
    for most in most {
        assert!((EDITS_MAX / 2..2 * EDITS_MAX).contains(&most), "{most} edits at most");
    }
    make(&*fs, "long", &[0; 100_000]);
    let mut most = 0;
    for _ in 0..600 {
        fs.append(&ROOT, &open(&*fs, "long"), b"more").unwrap();
        most = most.max(open(&*fs, "long").state.read().history.record_edits);
    }
    assert_eq!(most, EDITS_MAX - 1, "the edits of the record are counted apart from those of regions");
    agree(&engine, &clock, fs, "after many changes");
}

/// Lists by a handle: all nodes, or the first `max`.
fn visit<E: Storage>(fs: &Fs<E>, max: usize) -> Vec<NodeRef> {
    let handle = fs.opendir(&ROOT, &fs.root()).unwrap();
    let mut nodes = Vec::new();
    let take = &mut |_: u64, name: &[u8], node: &NodeRef| {
        let full = nodes.len() == max;
        if !full && name != b"." && name != b".." {
            nodes.push(NodeRef::clone(node));
        }
        full
    };
    fs.visit_handle(&handle, 0, 2, take).unwrap();
    nodes
}

#[test]
fn listing_by_a_handle_is_repeated_as_far_as_it_went() {
    let (engine, clock, fs) = shared();
    ["a", "b", "c"].iter().for_each(|name| make(&fs, name, b"1"));
    let tx = fs.begin().unwrap();
    let nodes = visit(tx.files(), 2);
    // This node comes from the listing alone.
    tx.files().write(&ROOT, &nodes[0], Position::At(0), b"2").unwrap();
    // The access time is in a record that was read but in no answer. The new name comes after those that were
    // listed.
    read(&fs, "b").unwrap();
    make(&fs, "bb", b"new");
    tx.commit().unwrap();
    assert_eq!(fs.transaction_counts().replays, 1);
    assert_eq!(read(&fs, "a").unwrap(), b"2");
    agree(&engine, &clock, fs, "listed in part");
}

#[test]
fn a_new_name_in_a_directory_that_was_listed_by_a_handle_conflicts() {
    let (engine, clock, fs) = shared();
    ["a", "b", "c"].iter().for_each(|name| make(&fs, name, b"1"));
    let tx = fs.begin().unwrap();
    assert_eq!(visit(tx.files(), usize::MAX).len(), 3);
    make(tx.files(), "mine", b"x");
    make(&fs, "theirs", b"x");
    assert_eq!(conflict_of(tx.commit()), ("list", "/".to_owned()));
    agree(&engine, &clock, fs, "listed to the end");
}

/// A kernel that drops the name of a file also detaches the mounts on it.
#[test]
fn a_name_that_keeps_its_file_is_not_invalidated() {
    let (_, _, fs) = shared();
    let changed = |change: &dyn Fn(&TxFs<Engine>)| -> Vec<String> {
        let tx = fs.begin().unwrap();
        change(tx.files());
        let mut names = Vec::new();
        let mut commit = tx.begin_commit().unwrap();
        commit.catch_up().unwrap();
        commit
            .visit_changed(&mut |changed| match changed {
                Invalidation::Name(_, name) => names.push(String::from_utf8(name.to_vec()).unwrap()),
                Invalidation::File(_) | Invalidation::Everything => {}
            })
            .unwrap();
        assert!(commit.finish().unwrap());
        names
    };
    assert_eq!(changed(&|fs| make(fs, "made", b"x")), ["made"]);
    assert_eq!(changed(&|fs| fs.append(&ROOT, &open(fs, "made"), b"y").unwrap()), [""; 0]);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(changed(&|fs| _ = fs.setattr(&ROOT, &open(fs, "made"), &set).unwrap()), [""; 0]);
    let replace = |fs: &TxFs<Engine>| {
        make(fs, "other", b"x");
        fs.rename(&ROOT, (&fs.root(), b"other"), (&fs.root(), b"made"), RenameMode::Replace).unwrap();
    };
    assert!(changed(&replace).contains(&"made".to_owned()));
    assert_eq!(changed(&|fs| fs.unlink(&ROOT, &fs.root(), b"made").unwrap()), ["made"]);
}
