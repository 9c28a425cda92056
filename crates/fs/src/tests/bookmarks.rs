//! Bookmarks: names, limits, crashes and damaged records.

use warpfire_format::fs::{BookmarkRecord, FilesystemRecord, InodeTime, Key, PoolRecordId, VolumeId};
use warpfire_meta::{Admit, Batch, Engine, SnapshotStore, Store};
use warpfire_units::Seq;

use super::engine::{LogEngine, format, open};
use super::world;
use crate::acl::Caller;
use crate::limits::BOOKMARKS_MAX;
use crate::{Fs, FsError, FsSchema, NewMode};

const ROOT: Caller<'static> = Caller::ROOT;

fn reopened(fs: &Fs<LogEngine>) -> Fs<LogEngine> {
    open(fs.engine().log().crash(), |_, _, _, _| Ok(()))
}

#[test]
fn a_name_is_of_a_snapshot_or_of_a_bookmark() {
    let fs = world();
    let monday = fs.create_snapshot(b"monday").unwrap();
    assert!(matches!(fs.create_bookmark(b"monday", b"monday"), Err(FsError::Exists)));
    assert!(matches!(fs.create_bookmark(b"tuesday", b"mark"), Err(FsError::NotFound)));
    let longest = [b'x'; 255];
    let marked = fs.create_bookmark(b"monday", &longest).unwrap();
    assert_eq!((marked.seq, marked.made, &marked.snapshot[..]), (monday.seq, monday.made, &b"monday"[..]));
    assert!(matches!(fs.create_bookmark(b"monday", &longest), Err(FsError::Exists)));
    assert!(matches!(fs.create_snapshot(&longest), Err(FsError::Exists)));
    assert!(matches!(fs.create_bookmark(&longest, b"of a bookmark"), Err(FsError::NotFound)));
    assert!(matches!(fs.create_bookmark(b"monday", &[b'x'; 256]), Err(FsError::NameTooLong)));
    for bad in [&b""[..], b".", b"..", b"a/b", b"@monday"] {
        assert!(matches!(fs.create_bookmark(b"monday", bad), Err(FsError::Invalid(_))), "{bad:?}");
    }
    // The name of a snapshot that is gone is free.
    fs.delete_snapshot(b"monday").unwrap();
    fs.create_snapshot(b"tuesday").unwrap();
    fs.create_bookmark(b"tuesday", b"monday").unwrap();
    let names: Vec<Vec<u8>> = fs.bookmarks().unwrap().into_iter().map(|found| found.name).collect();
    assert_eq!(names, [longest.to_vec(), b"monday".to_vec()], "from the oldest to the newest");
    assert!(matches!(fs.delete_bookmark(b"tuesday"), Err(FsError::NotFound)));
    fs.delete_bookmark(b"monday").unwrap();
    assert!(matches!(fs.bookmark(b"monday"), Err(FsError::NotFound)));
    assert!(matches!(fs.open_snapshot(&longest), Err(FsError::NotFound)), "a bookmark cannot be opened");
}

#[test]
fn a_pool_has_so_many_bookmarks_at_most() {
    let fs = world();
    fs.create_snapshot(b"monday").unwrap();
    for n in 0..BOOKMARKS_MAX {
        fs.create_bookmark(b"monday", n.to_string().as_bytes()).unwrap();
    }
    assert!(matches!(fs.create_bookmark(b"monday", b"one more"), Err(FsError::NoSpace)));
    fs.delete_bookmark(b"7").unwrap();
    fs.create_bookmark(b"monday", b"one more").unwrap();
    assert_eq!(fs.bookmarks().unwrap().len() as u64, BOOKMARKS_MAX);
}

/// A version without bookmarks would drop the deletes that a bookmark needs.
#[test]
fn the_first_bookmark_gives_the_pool_a_version_that_says_so() {
    let fs = open(format(), Fs::format);
    let record = |fs: &Fs<LogEngine>| {
        let mut value = Vec::new();
        let key = Key::Pool(PoolRecordId::Filesystem).encode();
        assert!(fs.engine().get(&key, Seq::MAX, &mut value).unwrap());
        (FilesystemRecord::decode(&value).unwrap(), value[1])
    };
    let make = |fs: &Fs<LogEngine>, name: &[u8]| {
        fs.create_file(&ROOT, &fs.root(), name, NewMode::exact(0o644), b"").unwrap();
    };
    make(&fs, b"a");
    fs.create_snapshot(b"monday").unwrap();
    assert_eq!(record(&fs).1, 1);
    fs.create_bookmark(b"monday", b"mark").unwrap();
    let (of_first, version) = record(&fs);
    assert!(of_first.has_bookmarks && version == 3, "{of_first:?}");
    fs.sync().unwrap();
    let fs = reopened(&fs);
    fs.delete_bookmark(b"mark").unwrap();
    let fs = reopened(&fs);
    // A new block of numbers is reserved.
    make(&fs, b"b");
    let (later, version) = record(&fs);
    assert!(later.next_ino > of_first.next_ino && version == 3, "{later:?}");
    assert_eq!(fs.bookmarks().unwrap(), []);
}

#[test]
fn a_damaged_record_of_a_bookmark_keeps_the_pool_from_being_changed() {
    for damage in [&b"\x0a\x00"[..], b"\x0a\xff\xff\x03\x06\x07\x00\x00\x00a", b""] {
        let fs = open(format(), Fs::format);
        let mut batch = Batch::new();
        batch.put(&Key::Bookmark(VolumeId::FIRST, b"mark").encode(), damage);
        fs.engine().commit(&batch, None, Admit::User).unwrap();
        fs.sync().unwrap();
        assert!(matches!(fs.bookmark(b"mark"), Err(FsError::Damaged { .. })) || damage.len() > 2);
        let (log, recovered) = fs.engine().log().crash();
        let mut options = warpfire_meta::EngineOptions {
            memtable_bytes: 256 << 10,
            block_cache_bytes: 1 << 20,
            log_bytes_max: 1 << 20,
            background: warpfire_meta::Background::Manual,
            read_only: true,
        };
        let read_only = Engine::open(log, recovered, FsSchema, options.clone()).unwrap();
        let (log, recovered) = read_only.log().crash();
        options.read_only = false;
        assert!(Engine::open(log, recovered, FsSchema, options).is_err(), "changes that it needs could go");
    }
}

/// The engine of a pool that is open for reading only makes none.
#[test]
fn a_snapshot_makes_no_bookmark() {
    let fs = open(format(), Fs::format);
    let snapshot = fs.create_snapshot(b"monday").unwrap();
    fs.create_bookmark(b"monday", b"mark").unwrap();
    fs.create_snapshot(b"tuesday").unwrap();
    let then = fs.open_snapshot(b"tuesday").unwrap();
    assert_eq!(then.bookmark(b"mark").unwrap(), fs.bookmark(b"mark").unwrap());
    fs.engine().close().unwrap();
    let made = InodeTime::default();
    let mut value = Vec::new();
    BookmarkRecord { seq: snapshot.seq, made, snapshot: b"monday" }.encode(&mut value);
    let mut batch = Batch::new();
    batch.put(&Key::Bookmark(VolumeId::FIRST, b"late").encode(), &value);
    assert!(fs.engine().keep_bookmark(snapshot.seq, &batch).is_err());
}
