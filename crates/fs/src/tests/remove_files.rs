//! Removal of all files of a directory.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_format::fs::dentry_key;
use warpfire_meta::{Admit, Batch, Storage, Store};
use warpfire_units::Seq;

use super::check::check;
use super::{TestRandom, world_with};
use crate::acl::Caller;
use crate::limits::REMOVED_AT_ONCE;
use crate::{Fs, FsError, FsOptions, NewMode, NodeRef, Position, RemovedFiles, RenameMode, XattrMode};

const ROOT: Caller<'static> = Caller::ROOT;
const ALICE: Caller<'static> = Caller { uid: 10, gid: 20, groups: &[], checked: false };

/// Removes every file of a directory. Returns the names of its subdirectories and the number of steps.
fn empty<E: Storage>(fs: &Fs<E>, dir: &NodeRef) -> Result<(Vec<Vec<u8>>, usize), FsError> {
    let (mut directories, mut steps) = (Vec::new(), 0);
    empty_by(fs, dir, |step| {
        directories.extend(step.directories.iter().map(|name| name.to_vec()));
        steps += 1;
    })?;
    Ok((directories, steps))
}

/// As `empty`. Returns the answer of the last step.
fn empty_by<E: Storage>(
    fs: &Fs<E>,
    dir: &NodeRef,
    mut visit: impl FnMut(&RemovedFiles),
) -> Result<RemovedFiles, FsError> {
    let mut before = None;
    loop {
        let step = fs.remove_files(&ROOT, dir, before.as_ref())?;
        visit(&step);
        if step.is_end {
            return Ok(step);
        }
        before = Some(step);
    }
}

fn names<E: Storage>(fs: &Fs<E>, dir: &NodeRef) -> BTreeSet<Vec<u8>> {
    let entries = fs.readdir(&ROOT, dir, None, usize::MAX).unwrap();
    entries.into_iter().map(|entry| entry.name.to_vec()).collect()
}

fn make<E: Storage>(fs: &Fs<E>, dir: &NodeRef, name: &str) -> NodeRef {
    fs.create_file(&ROOT, dir, name.as_bytes(), NewMode::exact(0o644), b"bytes").unwrap();
    fs.lookup(&ROOT, dir, name.as_bytes()).unwrap()
}

/// Makes files of every kind among many plain ones. Returns a file that stays open, and one with a name
/// elsewhere.
fn make_all_kinds<E: Storage>(fs: &Fs<E>, dir: &NodeRef) -> (NodeRef, NodeRef) {
    let mode = NewMode::exact(0o755);
    for n in 0..3 * REMOVED_AT_ONCE {
        make(fs, dir, &format!("plain {n}"));
    }
    let open = make(fs, dir, "plain open");
    let linked = make(fs, dir, "plain linked");
    fs.link(&ROOT, &linked, &fs.root(), b"elsewhere").unwrap();
    let twice = make(fs, dir, "plain twice");
    fs.link(&ROOT, &twice, dir, b"plain again").unwrap();
    let attributes = make(fs, dir, "plain attributes");
    fs.setxattr(&ROOT, &attributes, b"user.a", b"value", XattrMode::Either).unwrap();
    let large = make(fs, dir, "plain large");
    fs.write(&ROOT, &large, Position::At(5 << 20), &[7; 100_000]).unwrap();
    fs.symlink(&ROOT, dir, b"plain symlink", b"/nowhere").unwrap();
    let sub = fs.mkdir(&ROOT, dir, b"a directory", mode).unwrap();
    make(fs, &sub, "kept");
    fs.mkdir(&ROOT, dir, b"plain directory", mode).unwrap();
    (open, linked)
}

#[test]
fn files_of_every_kind_go_and_directories_stay() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock, FsOptions::default()).unwrap();
    let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", NewMode::exact(0o755)).unwrap();
    let (open, linked) = make_all_kinds(&fs, &dir);
    let before = fs.getattr(&dir).mtime;
    let (directories, steps) = empty(&fs, &dir).unwrap();
    assert_eq!(directories, [b"a directory".to_vec(), b"plain directory".to_vec()]);
    assert_eq!(steps, 4, "{} names", 3 * REMOVED_AT_ONCE + 9);
    assert_eq!(names(&fs, &dir), directories.into_iter().collect());
    assert!(!empty_by(&fs, &dir, |_| ()).unwrap().has_emptied(), "directories are left");
    assert!(fs.getattr(&dir).mtime > before, "its names have changed");
    let mut bytes = [0; 10];
    assert_eq!(fs.read(&open, 0, &mut bytes).unwrap(), 5, "an open file can be read to its end");
    assert_eq!(fs.getattr(&open).links, 0);
    assert_eq!(fs.getattr(&linked).links, 1);
    drop(open);
    fs.sync().unwrap();
    check(&*engine, "after the removal");
    for name in [&b"a directory"[..], b"plain directory"] {
        let sub = fs.lookup(&ROOT, &dir, name).unwrap();
        empty(&fs, &sub).unwrap();
        fs.rmdir(&ROOT, &dir, name).unwrap();
    }
    fs.rmdir(&ROOT, &fs.root(), b"dir").unwrap();
    fs.unlink(&ROOT, &fs.root(), b"elsewhere").unwrap();
    drop((linked, dir));
    fs.reap().unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().inodes, 1, "the root alone is left");
    check(&*engine, "after everything");
}

#[test]
fn a_step_is_one_commit() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock, FsOptions::default()).unwrap();
    let newest = || -> Seq { engine.seq(&engine.snapshot()) };
    for n in 0..2 * REMOVED_AT_ONCE {
        make(&fs, &fs.root(), &format!("{n}"));
    }
    // The first one renews the access time too.
    let first = fs.remove_files(&ROOT, &fs.root(), None).unwrap();
    let before = newest();
    let second = fs.remove_files(&ROOT, &fs.root(), Some(&first)).unwrap();
    assert_eq!((first.files, second.files), (REMOVED_AT_ONCE as u64, REMOVED_AT_ONCE as u64));
    assert_eq!(newest().0 - before.0, 1);
}

/// A transaction has the same names at its end, and a replay of it too.
#[test]
fn a_transaction_removes_the_same_files() {
    let (engine, clock) = world_with();
    let fs = Arc::new(Fs::open(Arc::clone(&engine), clock, FsOptions::default()).unwrap());
    let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", NewMode::exact(0o755)).unwrap();
    drop(make_all_kinds(&fs, &dir));
    let aborted = fs.begin().unwrap();
    empty(aborted.files(), &aborted.files().lookup(&ROOT, &aborted.files().root(), b"dir").unwrap()).unwrap();
    aborted.abort();
    assert!(names(&fs, &dir).len() > REMOVED_AT_ONCE, "nothing has happened");
    let tx = fs.begin().unwrap();
    let files = tx.files();
    let in_tx = files.lookup(&ROOT, &files.root(), b"dir").unwrap();
    assert_eq!(empty(files, &in_tx).unwrap().0.len(), 2);
    drop(in_tx);
    // The commit replays: an attribute of a file that goes has changed since.
    fs.write(&ROOT, &fs.lookup(&ROOT, &dir, b"plain 7").unwrap(), Position::End, b"more").unwrap();
    tx.commit().unwrap();
    assert_eq!(names(&fs, &dir).len(), 2);
    fs.sync().unwrap();
    check(&*engine, "after the commit");
}

#[test]
fn a_step_that_cannot_commit_changes_nothing() {
    let (log, recovered) = super::engine::format();
    let fs = super::engine::open((log, recovered), Fs::format);
    let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", NewMode::exact(0o755)).unwrap();
    let (open, linked) = make_all_kinds(&fs, &dir);
    let before = names(&fs, &dir);
    fs.engine().log().fail_sync_after(0);
    fs.sync().expect_err("the device fails");
    let refused = fs.remove_files(&ROOT, &dir, None).expect_err("the pool takes no commit any more");
    assert!(matches!(refused, FsError::ReadOnly(_)), "{refused}");
    assert_eq!(names(&fs, &dir), before);
    assert_eq!((fs.getattr(&open).links, fs.getattr(&linked).links), (1, 2));
    for name in &before {
        assert!(!fs.lookup(&ROOT, &dir, name).unwrap().is_dying(), "{name:?} can be opened");
    }
}

#[test]
fn a_caller_removes_what_unlink_would() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock, FsOptions::default()).unwrap();
    let mode = NewMode::exact(0o755);
    let closed = fs.mkdir(&ROOT, &fs.root(), b"closed", mode).unwrap();
    make(&fs, &closed, "file");
    let denied = fs.remove_files(&ALICE, &closed, None).expect_err("only root may write there");
    assert!(matches!(denied, FsError::AccessDenied), "{denied}");
    let sticky = fs.mkdir(&ROOT, &fs.root(), b"sticky", NewMode::exact(0o1777)).unwrap();
    fs.create_file(&ALICE, &sticky, b"a", NewMode::exact(0o644), b"x").unwrap();
    make(&fs, &sticky, "b");
    fs.create_file(&ALICE, &sticky, b"c", NewMode::exact(0o644), b"x").unwrap();
    let refused = fs.remove_files(&ALICE, &sticky, None).expect_err("root's file stays");
    assert!(matches!(refused, FsError::NotPermitted), "{refused}");
    let left = names(&fs, &sticky);
    assert!(left.contains(b"b".as_slice()) && !left.contains(b"a".as_slice()), "{left:?}");
    let file = make(&fs, &fs.root(), "file");
    assert!(matches!(fs.remove_files(&ROOT, &file, None), Err(FsError::NotDirectory)));
    fs.sync().unwrap();
    check(&*engine, "after the refusals");
}

/// A step subtracts what its files counted in their volume, and a snapshot keeps them.
#[test]
fn volumes_and_snapshots_count_what_is_removed() {
    let (engine, clock) = world_with();
    let fs = Arc::new(Fs::open(Arc::clone(&engine), clock, FsOptions::default()).unwrap());
    fs.create_volume(&fs.root(), b"v", (0, 0)).unwrap();
    let top = fs.lookup(&ROOT, &fs.root(), b"v").unwrap();
    for n in 0..3 * REMOVED_AT_ONCE / 2 {
        make(&fs, &top, &format!("{n}"));
    }
    fs.create_snapshot(b"all").unwrap();
    let counts = || {
        let volume = fs.volumes().unwrap().remove(0);
        (volume.inodes, volume.file_bytes)
    };
    let files = 3 * REMOVED_AT_ONCE as u64 / 2;
    assert_eq!(counts(), (files + 1, 5 * files));
    empty(&fs, &top).unwrap();
    assert_eq!(counts(), (1, 0));
    fs.sync().unwrap();
    check(&*engine, "a removal that a snapshot keeps");
}

/// A damaged directory names one inode twice, each time with its record. Nobody waits for a lock that it has.
#[test]
fn an_inode_that_is_named_twice_is_no_deadlock() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock.clone(), FsOptions::default()).unwrap();
    let root = fs.root();
    make(&fs, &root, "a");
    let mut record = Vec::new();
    let from = dentry_key(fs.volume, root.ino(), b"a");
    assert!(engine.get(&from, Seq::MAX, &mut record).unwrap());
    drop((root, fs));
    let fs = Fs::open(Arc::clone(&engine), clock, FsOptions::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(&dentry_key(fs.volume, fs.root().ino(), b"b"), &record);
    engine.commit(&batch, None, Admit::User).unwrap();
    _ = empty(&fs, &fs.root());
    assert_eq!(names(&fs, &fs.root()).len(), 0);
}

/// A name that is added between two steps or after the last keeps its directory, however it is added.
#[test]
fn a_directory_that_was_emptied_goes_if_it_is_still_empty() {
    let (engine, clock) = world_with();
    let fs = Arc::new(Fs::open(Arc::clone(&engine), clock, FsOptions::default()).unwrap());
    let root = fs.root();
    let elsewhere = make(&fs, &root, "elsewhere");
    for way in ["create", "create the first name", "link", "rename", "transaction"] {
        for is_between in [true, false] {
            let path = format!("{way} {is_between}");
            let dir = fs.mkdir(&ROOT, &root, path.as_bytes(), NewMode::exact(0o755)).unwrap();
            for n in 0..2 * REMOVED_AT_ONCE {
                make(&fs, &dir, &format!("file {n}"));
            }
            let add = || match way {
                "create" => drop(make(&fs, &dir, "z")),
                "create the first name" => drop(make(&fs, &dir, "a")),
                "link" => fs.link(&ROOT, &elsewhere, &dir, b"a").unwrap(),
                "rename" => {
                    make(&fs, &root, "moved");
                    fs.rename(&ROOT, (&root, b"moved"), (&dir, b"a"), RenameMode::NoReplace).unwrap();
                }
                _ => {
                    let tx = fs.begin().unwrap();
                    let files = tx.files();
                    make(files, &files.lookup(&ROOT, &files.root(), path.as_bytes()).unwrap(), "a");
                    tx.commit().unwrap();
                }
            };
            let mut steps = 0;
            let removed = empty_by(&fs, &dir, |_| {
                steps += 1;
                if is_between && steps == 1 {
                    add();
                }
            });
            if !is_between {
                add();
            }
            let removed = removed.unwrap();
            assert!(removed.has_emptied(), "{path}: what a step met, it has removed");
            // A later step removes the name that comes last.
            let is_empty = is_between && way == "create";
            assert_eq!(names(&fs, &dir).is_empty(), is_empty, "{path}");
            let outcome = fs.rmdir_after(&ROOT, &root, path.as_bytes(), &removed);
            assert!(outcome.is_ok() == is_empty, "{path}: {outcome:?}");
        }
    }
    fs.sync().unwrap();
    check(&*engine, "after all ways");
}

/// Threads empty a directory while others make, rename, open and remove its names.
#[test]
fn threads_that_change_names_meanwhile_leave_a_sound_directory() {
    for seed in 0..6 {
        let (engine, clock) = world_with();
        let fs = Fs::open(Arc::clone(&engine), clock, FsOptions::default()).unwrap();
        let dir = fs.mkdir(&ROOT, &fs.root(), b"dir", NewMode::exact(0o755)).unwrap();
        std::thread::scope(|scope| {
            let (fs, dir) = (&fs, &dir);
            for thread in 0..3 {
                scope.spawn(move || {
                    let mut draw = TestRandom(seed * 10 + thread);
                    let mut held = Vec::new();
                    for _ in 0..400 {
                        let mut name = || [b'a' + draw.below(24) as u8];
                        let (name, other) = (name(), name());
                        let outcome = match draw.below(8) {
                            0..=2 => fs.create_file(&ROOT, dir, &name, NewMode::exact(0o644), b"x").map(drop),
                            3 => fs.rename(&ROOT, (dir, &name), (dir, &other), RenameMode::Replace),
                            4 => fs.lookup(&ROOT, dir, &name).map(|node| held.push(node)),
                            5 => fs
                                .lookup(&ROOT, dir, &name)
                                .and_then(|node| fs.write(&ROOT, &node, Position::End, b"more").map(drop)),
                            6 => fs.unlink(&ROOT, dir, &name),
                            _ => fs
                                .lookup(&ROOT, dir, &name)
                                .and_then(|node| fs.link(&ROOT, &node, dir, &other)),
                        };
                        if draw.below(20) == 0 {
                            held.clear();
                        }
                        if let Err(FsError::Damaged { reason, .. }) = outcome {
                            panic!("seed {seed}: {reason}");
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(move || {
                    for _ in 0..60 {
                        empty(fs, dir).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                    }
                });
            }
        });
        empty(&fs, &dir).unwrap();
        assert_eq!(names(&fs, &dir).len(), 0);
        fs.reap().unwrap();
        fs.sync().unwrap();
        check(&*engine, &format!("seed {seed}"));
    }
}
