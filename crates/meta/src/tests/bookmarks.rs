//! Bookmarks: what an engine keeps of the moment of a snapshot that is gone, and what it does not.

use std::collections::{BTreeMap, BTreeSet};

use warpfire_log::{Admit, MemLog, RecoveredLog, Stream};
use warpfire_units::Seq;

use super::model::bookmarks::{drop_bookmark, keep_bookmark};
use super::small;
use crate::testing::{
    FADED, ListSchema, Rng, bookmark_key, clear_item, pointer_item, snapshot_key, text_item,
};
use crate::{Background, Batch, Engine, KeyRange, SeqRange, SliceStore, SnapshotStore, Store};

type TestEngine = Engine<MemLog, ListSchema>;

fn open(log: MemLog, recovered: RecoveredLog) -> TestEngine {
    Engine::open(log, recovered, ListSchema, small(Background::Manual)).unwrap()
}

fn reopened(engine: &TestEngine) -> TestEngine {
    let (log, recovered) = engine.log().crash();
    open(log, recovered)
}

fn make_snapshot(engine: &TestEngine) -> Seq {
    engine
        .commit_at_newest(Admit::User, &mut |seq, batch| batch.put(&snapshot_key(seq), &text_item(b"mine")))
        .unwrap()
}

fn drop_snapshot(engine: &TestEngine, seq: Seq) {
    let mut batch = Batch::new();
    batch.delete(&snapshot_key(seq));
    engine.drop_snapshot(seq, &batch).unwrap();
    engine.sync(Seq::MAX).unwrap();
}

/// Makes a bookmark of the newest version.
fn bookmark(engine: &TestEngine, number: u64) -> Seq {
    let seq = make_snapshot(engine);
    keep_bookmark(engine, number, seq);
    drop_snapshot(engine, seq);
    seq
}

/// Puts a value that names a slice of so many bytes.
fn put_slice(engine: &TestEngine, key: &[u8], len: usize) {
    let slices = engine.write(Stream::Large, &vec![7; len], Admit::User).unwrap();
    let mut batch = Batch::new();
    batch.put(key, &slices.iter().flat_map(|slice| pointer_item(*slice)).collect::<Vec<u8>>());
    engine.commit(&batch, None, Admit::User).unwrap();
    SliceStore::release(engine, &slices);
}

fn put(engine: &TestEngine, key: &[u8], text: &[u8]) {
    let mut batch = Batch::new();
    batch.put(key, &text_item(text));
    engine.commit(&batch, None, Admit::User).unwrap();
}

fn delete(engine: &TestEngine, key: &[u8]) {
    let mut batch = Batch::new();
    batch.delete(key);
    engine.commit(&batch, None, Admit::User).unwrap();
}

fn value(engine: &TestEngine, key: &[u8], at: Seq) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    engine.get(key, at, &mut value).unwrap().then_some(value)
}

/// The keys that have changed since.
fn changed(engine: &TestEngine, since: Seq) -> BTreeSet<Vec<u8>> {
    let newest = engine.snapshot();
    let commits = SeqRange { after: since, upto: newest.seq() };
    let all = KeyRange { start: b"", end: None };
    let found = engine.changed_between(all, commits, usize::MAX).unwrap();
    found.iter().map(|key| key.to_vec()).collect()
}

#[test]
fn bytes_that_only_a_bookmark_would_show_come_back() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    // One key of each kind: it keeps that it was there, or says that it was.
    put_slice(&engine, b"file", 100_000);
    put_slice(&engine, b"file zz", 100_000);
    let seq = make_snapshot(&engine);
    keep_bookmark(&engine, 1, seq);
    put(&engine, b"file", b"short");
    delete(&engine, b"file zz");
    engine.compact().unwrap();
    engine.reclaim_all().unwrap();
    let live = || engine.space().unwrap().live_bytes;
    assert!(live() > 200_000, "the snapshot holds the bytes");
    drop_snapshot(&engine, seq);
    engine.reclaim_all().unwrap();
    assert!(live() < 10_000, "{} bytes are left", live());
    for key in [&b"file"[..], b"file zz"] {
        assert_eq!(value(&engine, key, seq).as_deref(), Some(FADED), "it was there");
        assert!(changed(&engine, seq).contains(key));
    }
    drop_bookmark(&engine, 1, seq);
    engine.reclaim_all().unwrap();
    assert_eq!(engine.past_runs(), [], "nobody reads the past");
}

#[test]
fn a_snapshot_beside_a_bookmark_keeps_its_own_version_only() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put_slice(&engine, b"file", 100_000);
    let kept = make_snapshot(&engine);
    put_slice(&engine, b"file", 100_000);
    let marked = bookmark(&engine, 1);
    put(&engine, b"file", b"short");
    engine.compact().unwrap();
    engine.reclaim_all().unwrap();
    let live = engine.space().unwrap().live_bytes;
    assert!((100_000..110_000).contains(&live), "{live}");
    assert_eq!(value(&engine, b"file", marked).as_deref(), Some(FADED));
    assert_ne!(value(&engine, b"file", kept).as_deref(), Some(FADED));
}

/// What a snapshot sees through operands is read fully, although the next reader below is a bookmark.
#[test]
fn an_operand_reads_what_a_bookmark_alone_would_show() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"list", b"one ");
    let marked = bookmark(&engine, 1);
    let mut batch = Batch::new();
    batch.merge(b"list", &text_item(b"two"));
    engine.commit(&batch, None, Admit::User).unwrap();
    let kept = make_snapshot(&engine);
    put(&engine, b"list", b"other");
    engine.flush().unwrap();
    put(&engine, b"list", b"last");
    engine.compact().unwrap();
    let both = [text_item(b"one "), text_item(b"two")].concat();
    assert_eq!(value(&engine, b"list", kept), Some(both));
    assert!(value(&engine, b"list", marked).is_some());
}

#[test]
fn an_open_tour_holds_a_bookmark_that_is_dropped() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"key", b"then");
    let seq = bookmark(&engine, 1);
    let tour = engine.bookmark_at(seq).unwrap();
    drop_bookmark(&engine, 1, seq);
    delete(&engine, b"key");
    engine.compact().unwrap();
    engine.compact().unwrap();
    assert!(changed(&engine, seq).contains(&b"key"[..]));
    assert!(engine.bookmark_at(seq).is_none());
    drop(tour);
    engine.reclaim_all().unwrap();
    assert_eq!(engine.past_runs(), []);
}

#[test]
fn a_bookmark_is_there_after_a_crash_or_its_snapshot_is() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"key", b"then");
    let seq = make_snapshot(&engine);
    engine.sync(Seq::MAX).unwrap();
    keep_bookmark(&engine, 1, seq);
    let lost = reopened(&engine);
    assert!(lost.bookmark_at(seq).is_none() && lost.snapshot_at(seq).is_some());
    drop_snapshot(&engine, seq);
    let engine = reopened(&engine);
    assert!(engine.bookmark_at(seq).is_some() && engine.snapshot_at(seq).is_none());
    put(&engine, b"key", b"now");
    engine.compact().unwrap();
    assert_eq!(value(&engine, b"key", seq).as_deref(), Some(FADED));
    drop_bookmark(&engine, 1, seq);
    assert!(reopened(&engine).bookmark_at(seq).is_none());
}

#[test]
fn a_removal_that_a_crash_takes_back_finds_every_change() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"key", b"then");
    let seq = bookmark(&engine, 1);
    delete(&engine, b"key");
    engine.sync(Seq::MAX).unwrap();
    // A compaction comes between the removal of the record and its sync.
    let mut batch = Batch::new();
    batch.delete(&bookmark_key(1));
    engine.commit(&batch, None, Admit::User).unwrap();
    engine.inner_for_tests().compact_all().unwrap();
    let engine = reopened(&engine);
    assert!(engine.bookmark_at(seq).is_some(), "the removal was not durable");
    assert!(changed(&engine, seq).contains(&b"key"[..]));
    assert!(value(&engine, b"key", seq).is_some());
}

/// The keys with a value, and the values of those that keep them.
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(engine: &TestEngine, keys: &[Vec<u8>], at: Seq) -> Contents {
    keys.iter().filter_map(|key| Some((key.clone(), value(engine, key, at)?))).collect()
}

fn random_change(engine: &TestEngine, rng: &mut Rng, key: &[u8]) {
    let mut batch = Batch::new();
    match rng.below(6) {
        0 => return put_slice(engine, key, 300 + rng.below(3000) as usize),
        1 => batch.delete(key),
        2 => batch.merge(key, &clear_item()),
        3 => batch.merge(key, &text_item(&[rng.next() as u8; 90])),
        _ => {
            let slices = engine.write(Stream::Large, &[rng.next() as u8; 700], Admit::User).unwrap();
            slices.iter().for_each(|slice| batch.merge(key, &pointer_item(*slice)));
            engine.commit(&batch, None, Admit::User).unwrap();
            return SliceStore::release(engine, &slices);
        }
    }
    engine.commit(&batch, None, Admit::User).unwrap();
}

/// Changes keys with bookmarks and snapshots that come and go, and demands that bookmarks keep what they are
/// for and no bytes.
fn histories(seed: u64) {
    let mut rng = Rng(seed);
    let mut engine = open(MemLog::new(), RecoveredLog::empty());
    let keys: Vec<Vec<u8>> =
        (0..40).map(|n| format!("key {n}{}", if n % 2 == 0 { "" } else { " zz" }).into_bytes()).collect();
    let (mut marked, mut next): (BTreeMap<u64, (Seq, Contents)>, u64) = (BTreeMap::new(), 0);
    let mut kept: BTreeMap<Seq, Contents> = BTreeMap::new();
    for _ in 0..1500 {
        let key = &keys[rng.below(keys.len() as u64) as usize];
        match rng.below(100) {
            0..80 => random_change(&engine, &mut rng, key),
            80..83 => {
                let then = contents(&engine, &keys, Seq::MAX);
                next += 1;
                marked.insert(next, (bookmark(&engine, next), then));
            }
            83..86 => {
                let then = contents(&engine, &keys, Seq::MAX);
                kept.insert(make_snapshot(&engine), then);
            }
            86 => {
                if let Some((number, (seq, _))) = marked.pop_first() {
                    drop_bookmark(&engine, number, seq);
                }
            }
            87..90 => {
                if let Some((seq, _)) = kept.pop_first() {
                    drop_snapshot(&engine, seq);
                }
            }
            90..95 => engine.flush().unwrap(),
            95..98 => _ = engine.background_step().unwrap(),
            98 => engine.compact().unwrap(),
            _ => {
                engine.sync(Seq::MAX).unwrap();
                engine = reopened(&engine);
            }
        }
    }
    let is_whole = |key: &[u8]| !key.ends_with(b"zz");
    let now = contents(&engine, &keys, Seq::MAX);
    for (seq, then) in marked.values() {
        let (listed, left) = (changed(&engine, *seq), contents(&engine, &keys, *seq));
        for key in &keys {
            assert!(listed.contains(key) || then.contains_key(key) == now.contains_key(key));
            assert!(left.contains_key(key) == then.contains_key(key) || !is_whole(key), "{key:?} at {seq:?}");
            assert!(left.contains_key(key) || !then.contains_key(key), "{key:?} at {seq:?}");
        }
    }
    // With nothing but bookmarks no slice is referenced but those of the tables.
    while let Some((seq, _)) = kept.pop_first() {
        drop_snapshot(&engine, seq);
    }
    keys.iter().for_each(|key| delete(&engine, key));
    engine.compact().unwrap();
    engine.reclaim_all().unwrap();
    let tables: u64 = engine.inner_for_tests().table_set().bytes();
    assert_eq!(engine.space().unwrap().live_bytes, tables, "a bookmark keeps bytes");
    for (number, (seq, then)) in std::mem::take(&mut marked) {
        let listed = changed(&engine, seq);
        assert!(then.keys().all(|key| listed.contains(key)), "all of them are deleted since {seq:?}");
        drop_bookmark(&engine, number, seq);
    }
}

#[test]
fn random_histories_keep_changes_and_no_bytes() {
    for seed in 0..40 {
        let outcome = std::panic::catch_unwind(|| histories(seed));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}
