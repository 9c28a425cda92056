//! Calls that are durable on return, while the sync in them finds no room: what they have changed is changed,
//! and the next sync makes it durable.

use warpfire_log::{LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_meta::{SnapshotStore, Store};
use warpfire_units::Seq;

use super::engine::{LogEngine, open};
use crate::acl::Caller;
use crate::{CloneSource, Fs, FsError, NewMode};

const ROOT: Caller<'static> = Caller::ROOT;

fn world() -> Fs<LogEngine> {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 16 << 20, segment_bytes: 128 << 10 });
    let fs = open((log, RecoveredLog::empty()), Fs::format);
    fs.create_file(&ROOT, &fs.root(), b"file", NewMode::exact(0o644), b"then").unwrap();
    fs
}

/// Runs a call while the log takes no sync and has no room for a table. Asserts that it is refused for that.
fn refused<T: std::fmt::Debug>(fs: &Fs<LogEngine>, call: impl FnOnce() -> Result<T, FsError>) {
    let log = fs.engine().log();
    let mut slices = Vec::new();
    while let Ok(written) = log.append(Stream::Large, &[7; 4096]) {
        slices.extend(written);
    }
    log.refuse_syncs(u64::MAX);
    let error = call().unwrap_err();
    assert!(matches!(error, FsError::NoSpace), "{error}");
    log.refuse_syncs(0);
}

#[test]
fn a_snapshot_is_deleted_once_and_let_go_by_the_next_sync() {
    let fs = world();
    let monday = fs.create_snapshot(b"monday").unwrap();
    fs.sync().unwrap();
    refused(&fs, || fs.delete_snapshot(b"monday"));
    assert!(fs.snapshots().unwrap().is_empty());
    assert!(matches!(fs.delete_snapshot(b"monday"), Err(FsError::NotFound)));
    assert!(fs.engine().snapshot_at(monday.seq).is_some(), "a crash would bring it back");
    fs.engine().sync(Seq::MAX).unwrap();
    assert!(fs.engine().snapshot_at(monday.seq).is_none());
}

#[test]
fn a_bookmark_is_deleted_once_and_let_go_by_the_next_sync() {
    let fs = world();
    fs.create_snapshot(b"monday").unwrap();
    let mark = fs.create_bookmark(b"monday", b"mark").unwrap();
    fs.sync().unwrap();
    refused(&fs, || fs.delete_bookmark(b"mark"));
    assert!(fs.bookmarks().unwrap().is_empty());
    assert!(fs.engine().bookmark_at(mark.seq).is_some(), "a crash would bring it back");
    fs.engine().sync(Seq::MAX).unwrap();
    assert!(fs.engine().bookmark_at(mark.seq).is_none());
}

#[test]
fn a_volume_is_deleted_with_its_sums_and_its_door() {
    let fs = world();
    let work = fs.mkdir(&ROOT, &fs.root(), b"work", NewMode::exact(0o755)).unwrap();
    fs.create_file(&ROOT, &work, b"file", NewMode::exact(0o644), b"of the clone too").unwrap();
    let before = fs.statfs().unwrap();
    fs.clone_directory(CloneSource::Directory(&work), &fs.root(), b"@try").unwrap();
    fs.sync().unwrap();
    refused(&fs, || fs.delete_volume(&fs.root(), b"@try", &mut |_| ()));
    assert!(fs.volumes().unwrap().is_empty());
    assert!(matches!(fs.lookup(&ROOT, &fs.root(), b"@try"), Err(FsError::NotFound)));
    let after = fs.statfs().unwrap();
    assert_eq!((after.inodes, after.file_bytes), (before.inodes, before.file_bytes));
    fs.engine().sync(Seq::MAX).unwrap();
    while fs.forget_volumes().unwrap() {}
    assert!(fs.engine().unneeded_domains().unwrap().is_empty());
}

#[test]
fn a_rollback_stays_when_only_its_last_sync_is_refused() {
    let fs = world();
    fs.create_snapshot(b"monday").unwrap();
    fs.unlink(&ROOT, &fs.root(), b"file").unwrap();
    fs.sync().unwrap();
    refused(&fs, || fs.roll_back(b"monday", b"before", &mut |_| ()));
    assert_eq!(fs.read_file(&ROOT, &fs.root(), b"file").unwrap(), b"then");
    fs.open_snapshot(b"before").unwrap();
    fs.sync().unwrap();
    let fs = open(fs.engine().log().crash(), |_, _, _, _| Ok(()));
    assert_eq!(fs.read_file(&ROOT, &fs.root(), b"file").unwrap(), b"then");
}
