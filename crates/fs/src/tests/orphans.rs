//! Orphans whose removal fails.

use std::sync::Arc;

use warpfire_env::sync::Mutex;
use warpfire_env::{Clock, Timestamp};
use warpfire_format::fs::Key;
use warpfire_meta::{Admit, Batch, Storage, Store};

use super::{Engine, TestFs, Ticking, engine, world_with};
use crate::acl::Caller;
use crate::{Fs, FsError, FsOptions, NewMode, NodeRef, RenameMode};

const ROOT: Caller<'static> = Caller::ROOT;

/// Files that have lost their names and are still held.
fn unlinked<E: Storage>(fs: &Fs<E>, count: usize) -> Vec<NodeRef> {
    let root = fs.root();
    let node = |n: usize| {
        let name = n.to_string();
        let node = fs.create(&ROOT, &root, name.as_bytes(), NewMode::exact(0o644)).expect("the name is free");
        fs.unlink(&ROOT, &root, name.as_bytes()).expect("the name is there");
        node
    };
    (0..count).map(node).collect()
}

/// `reap` took all orphans from their list, and put back only the one at which it failed: the next call did
/// not know the others.
#[test]
fn orphans_that_cannot_be_removed_stay_for_the_next_call() {
    let fs = engine::open(engine::format(), Fs::format);
    let nodes = unlinked(&fs, 3);
    fs.engine().log().fail_sync_after(0);
    assert!(matches!(fs.sync(), Err(FsError::ReadOnly(_))));
    drop(nodes);
    for _ in 0..2 {
        assert!(matches!(fs.reap(), Err(FsError::ReadOnly(_))));
    }
    assert_eq!(fs.inode_cache.take_unheld_orphans().len(), 3);
}

/// Replaces the record of an orphan by one that does not decode.
fn damage(fs: &TestFs, orphan: &NodeRef) {
    let mut batch = Batch::new();
    batch.put(&Key::Orphan(fs.volume, orphan.ino()).encode(), b"no inode");
    fs.engine().commit(&batch, None, Admit::User).unwrap();
}

/// A damaged orphan failed each `reap`, and so each `sync` before it came to the engine; and the next open.
#[test]
fn a_damaged_orphan_stops_no_sync_and_no_open() {
    let (engine, clock) = world_with();
    let fs = Fs::open(Arc::clone(&engine), clock.clone(), FsOptions::default()).unwrap();
    let nodes = unlinked(&fs, 4);
    damage(&fs, &nodes[1]);
    let left = nodes.into_iter().nth(3).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().inodes, 3, "the root, the damaged file and the held one");
    // The crash: the last file is not dropped in order.
    std::mem::forget(left);
    let again = Fs::open(engine, clock, FsOptions::default()).unwrap();
    assert_eq!(again.statfs().unwrap().inodes, 2);
    again.sync().unwrap();
}

/// A clock that closes the engine at the next look at the time of leases, which is the first step of `reap`.
struct ClosingClock {
    ticking: Ticking,
    closes: Mutex<Option<Arc<Engine>>>,
}

impl Clock for ClosingClock {
    fn now(&self) -> Timestamp {
        self.ticking.now()
    }

    fn monotonic_nanos(&self) -> u64 {
        let closes = self.closes.lock().take();
        if let Some(engine) = closes {
            engine.close().expect("it was open");
        }
        self.ticking.monotonic_nanos()
    }
}

/// The removal of another caller's orphan failed, and calls whose name was gone answered that error.
#[test]
fn a_call_whose_commit_is_visible_does_not_fail_with_an_orphan_of_others() {
    type Call = fn(&TestFs) -> Result<(), FsError>;
    let calls: [Call; 3] = [
        |fs| fs.unlink(&ROOT, &fs.root(), b"held"),
        |fs| {
            let (from, to) = ((&fs.root(), &b"new"[..]), (&fs.root(), &b"held"[..]));
            fs.rename(&ROOT, from, to, RenameMode::Replace)
        },
        |fs| fs.remove_files(&ROOT, &fs.root(), None).map(drop),
    ];
    for (number, call) in calls.iter().enumerate() {
        let (engine, _) = world_with();
        let clock = Arc::new(ClosingClock { ticking: Ticking::default(), closes: Mutex::default() });
        let fs = Fs::open(Arc::clone(&engine), clock.clone(), FsOptions::default()).unwrap();
        drop(unlinked(&fs, 1));
        let root = fs.root();
        fs.create(&ROOT, &root, b"new", NewMode::exact(0o644)).unwrap();
        let held = fs.create(&ROOT, &root, b"held", NewMode::exact(0o644)).unwrap();
        *clock.closes.lock() = Some(engine);
        let outcome = call(&fs);
        assert!(clock.closes.lock().is_none(), "call {number} has not come to the orphans");
        assert!(outcome.is_ok(), "call {number}: {outcome:?}");
        assert_eq!(fs.getattr(&held).links, 0, "call {number}");
        assert!(matches!(fs.reap(), Err(FsError::ReadOnly(_))), "the orphan is left");
    }
}
