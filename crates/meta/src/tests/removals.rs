//! Removals of which the sync fails: nothing is lost of them, and a later sync ends them.

use warpfire_log::{Admit, LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_units::Seq;

use super::model::bookmarks::keep_bookmark;
use super::model::domains::{make_domain, release_origin};
use super::small;
use crate::domain::DomainRecord;
use crate::testing::{ListSchema, bookmark_key, domain_key, domain_value, snapshot_key, text_item};
use crate::{Background, Batch, Engine, SnapshotStore, Store};

type ListEngine = Engine<MemLog, ListSchema>;

fn open(log: MemLog, recovered: RecoveredLog) -> ListEngine {
    Engine::open(log, recovered, ListSchema, small(Background::Manual)).unwrap()
}

fn put(engine: &ListEngine, key: &[u8], text: &[u8]) {
    let mut batch = Batch::new();
    batch.put(key, &text_item(text));
    engine.commit(&batch, None, Admit::User).unwrap();
}

fn make_snapshot(engine: &ListEngine) -> Seq {
    let text = text_item(b"a snapshot");
    engine.commit_at_newest(Admit::User, &mut |seq, batch| batch.put(&snapshot_key(seq), &text)).unwrap()
}

fn deletion(key: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.delete(key);
    batch
}

fn remove_domain(engine: &ListEngine, mut record: DomainRecord) {
    let mut build = |newest: Seq, batch: &mut Batch| {
        record.removed_at = Some(newest);
        batch.put(&domain_key(record.domain), &domain_value(&record));
    };
    engine.commit_at_newest(Admit::User, &mut build).unwrap();
}

/// An engine with a snapshot, a bookmark, a domain that is to lose its origin, and one that is to be removed.
struct Held {
    engine: ListEngine,
    snapshot: Seq,
    bookmark: Seq,
    released: DomainRecord,
    removed: DomainRecord,
}

impl Held {
    fn new() -> Held {
        let log = MemLog::with_options(MemLogOptions { capacity_bytes: 8 << 20, segment_bytes: 128 << 10 });
        let engine = open(log, RecoveredLog::empty());
        put(&engine, b"dire/name", b"of the origin");
        let bookmark = make_snapshot(&engine);
        keep_bookmark(&engine, 1, bookmark);
        engine.drop_snapshot(bookmark, &deletion(&snapshot_key(bookmark))).unwrap();
        put(&engine, b"key", b"then");
        let snapshot = make_snapshot(&engine);
        put(&engine, b"key", b"now");
        let released = make_domain(&engine, *b"copy", *b"dire", None);
        engine.commit(&deletion(b"copy/name"), None, Admit::User).unwrap();
        let released = release_origin(&engine, released);
        let removed = make_domain(&engine, *b"gone", *b"dire", None);
        engine.sync(Seq::MAX).unwrap();
        Held { engine, snapshot, bookmark, released, removed }
    }

    /// Removes all of them, without a sync.
    fn remove(&self) {
        let engine = &self.engine;
        engine.drop_snapshot(self.snapshot, &deletion(&snapshot_key(self.snapshot))).unwrap();
        engine.drop_bookmark(self.bookmark, &deletion(&bookmark_key(1))).unwrap();
        let mut batch = Batch::new();
        let alone = DomainRecord { origin: None, ..self.released };
        batch.put(&domain_key(alone.domain), &domain_value(&alone));
        engine.forget_origin(alone.domain, &batch).unwrap();
        remove_domain(engine, self.removed);
    }

    /// Which of the four are held: the snapshot, the bookmark, the origin, and the domain as a live one.
    fn held(&self) -> [bool; 4] {
        let table = self.engine.inner_for_tests().domains.get().unwrap();
        [
            self.engine.snapshot_at(self.snapshot).is_some(),
            self.engine.bookmark_at(self.bookmark).is_some(),
            table.origin_at(&self.released.domain, self.snapshot).is_some(),
            table.removed_at(&self.removed.domain).is_none(),
        ]
    }

    /// Takes all room of the log, for records and for tables.
    fn fill(&self) {
        let log = self.engine.log();
        while log.append(Stream::Large, &[7; 4096]).is_ok() {}
        log.refuse_syncs(u64::MAX);
        let refused = self.engine.sync(Seq::MAX).unwrap_err();
        assert!(refused.is_no_space(), "{refused}");
    }
}

#[test]
fn what_is_removed_is_held_until_a_sync_has_room() {
    let held = Held::new();
    assert_eq!(held.held(), [true; 4]);
    held.remove();
    held.fill();
    assert_eq!(held.held(), [true; 4], "a crash would bring all of it back");
    held.engine.log().refuse_syncs(0);
    held.engine.sync(Seq::MAX).unwrap();
    assert_eq!(held.held(), [false; 4]);
}

#[test]
fn a_crash_before_the_sync_brings_back_what_is_removed() {
    let held = Held::new();
    held.remove();
    let (log, recovered) = held.engine.log().crash();
    let held = Held { engine: open(log, recovered), ..held };
    assert_eq!(held.held(), [true; 4]);
}

#[test]
fn a_removal_that_is_repeated_before_its_sync_counts_once() {
    let held = Held::new();
    held.remove();
    assert_eq!(held.engine.unneeded_origins(), [held.released.domain], "until the sync");
    let mut batch = Batch::new();
    let alone = DomainRecord { origin: None, ..held.released };
    batch.put(&domain_key(alone.domain), &domain_value(&alone));
    held.engine.forget_origin(alone.domain, &batch).unwrap();
    held.engine.sync(Seq::MAX).unwrap();
    assert_eq!(held.held(), [false; 4]);
    assert!(held.engine.unneeded_origins().is_empty());
}

/// The removal of a domain comes while the loss of its origin waits for a sync.
#[test]
fn a_domain_that_has_lost_its_origin_can_be_removed_at_once() {
    let held = Held::new();
    held.remove();
    remove_domain(&held.engine, DomainRecord { origin: None, ..held.released });
    assert_eq!(held.held(), [true; 4]);
    held.engine.sync(Seq::MAX).unwrap();
    assert_eq!(held.held(), [false; 4]);
    let table = held.engine.inner_for_tests().domains.get().unwrap();
    assert!(table.removed_at(&held.released.domain).is_some());
}
