//! Persistent snapshots: what an engine keeps for them, over crashes and openings.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpfire_log::{Admit, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_sim_env::mix;
use warpfire_units::Seq;

use super::small;
use crate::testing::{ListSchema, pointer_item, snapshot_key, text_item};
use crate::{
    Background, Batch, Direction, Engine, EngineOptions, KeyRange, MetaError, ScanPage, SeqRange, SliceStore,
    SnapshotStore, SnapshotView, Store,
};

type TestEngine = Engine<MemLog, ListSchema>;

pub(super) fn open(log: MemLog, recovered: RecoveredLog) -> TestEngine {
    Engine::open(log, recovered, ListSchema, small(Background::Manual)).unwrap()
}

fn put(engine: &TestEngine, key: &[u8], text: &[u8]) {
    let mut batch = Batch::new();
    batch.put(key, &text_item(text));
    engine.commit(&batch, None, Admit::User).unwrap();
}

pub(super) fn make_snapshot(engine: &TestEngine) -> Seq {
    engine
        .commit_at_newest(Admit::User, &mut |seq, batch| batch.put(&snapshot_key(seq), &text_item(b"mine")))
        .unwrap()
}

fn removal(seq: Seq) -> Batch {
    let mut batch = Batch::new();
    batch.delete(&snapshot_key(seq));
    batch
}

fn drop_snapshot(engine: &TestEngine, seq: Seq) {
    engine.drop_snapshot(seq, &removal(seq)).unwrap();
    engine.sync(Seq::MAX).unwrap();
}

fn value(engine: &TestEngine, key: &[u8], at: Seq) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    engine.get(key, at, &mut value).unwrap().then_some(value)
}

fn reopened(engine: &TestEngine) -> TestEngine {
    let (log, recovered) = engine.log().crash();
    open(log, recovered)
}

#[test]
fn the_view_of_a_snapshot_has_the_space_of_the_pool() {
    let engine = Arc::new(open(MemLog::new(), RecoveredLog::empty()));
    put(&engine, b"key", b"then");
    let seq = make_snapshot(&engine);
    put(&engine, b"key", b"now");
    let view = SnapshotView::open(&engine, seq).unwrap();
    let (shown, space) = (view.space().unwrap(), engine.space().unwrap());
    assert_eq!((shown.total_bytes, shown.free_bytes), (space.total_bytes, space.free_bytes));
    assert!(space.total_bytes > 0);
}

#[test]
fn a_removal_that_a_crash_takes_back_finds_every_version() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"key", b"then");
    let seq = make_snapshot(&engine);
    put(&engine, b"key", b"now");
    engine.flush().unwrap();
    put(&engine, b"key", b"later");
    engine.flush().unwrap();
    // A compaction comes between the removal of the record and its sync.
    engine.drop_snapshot(seq, &removal(seq)).unwrap();
    assert!(engine.inner_for_tests().compact_all().unwrap());
    let engine = reopened(&engine);
    assert!(engine.snapshot_at(seq).is_some(), "the removal was not durable");
    assert_eq!(value(&engine, b"key", seq), Some(text_item(b"then")));
    assert_eq!(value(&engine, b"key", Seq::MAX), Some(text_item(b"later")));
}

#[test]
fn a_snapshot_that_was_not_synced_leaves_nothing() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"key", b"then");
    engine.sync(Seq::MAX).unwrap();
    let seq = make_snapshot(&engine);
    let engine = reopened(&engine);
    assert!(engine.snapshot_at(seq).is_none());
    put(&engine, b"key", b"now");
    engine.sync(Seq::MAX).unwrap();
    assert_eq!(reopened(&engine).inner_for_tests().visible().all.len(), 1, "only the newest version is read");
}

#[test]
fn what_only_a_dropped_snapshot_needed_is_freed() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    let slices = engine.write(Stream::Large, &[7; 100_000], Admit::User).unwrap();
    let mut batch = Batch::new();
    slices.iter().for_each(|slice| batch.merge(b"file", &pointer_item(*slice)));
    engine.commit(&batch, None, Admit::User).unwrap();
    SliceStore::release(&engine, &slices);
    let seqs = [make_snapshot(&engine), make_snapshot(&engine)];
    // Replaced, not deleted: nothing but the old version is there to drop.
    put(&engine, b"file", b"short");
    engine.compact().unwrap();
    engine.reclaim_all().unwrap();
    let live = || engine.space().unwrap().live_bytes;
    assert!(live() > 100_000, "snapshots hold the bytes");
    for seq in seqs {
        assert!(live() > 100_000, "a snapshot holds the bytes");
        drop_snapshot(&engine, seq);
        engine.reclaim_all().unwrap();
    }
    assert!(live() < 10_000, "{} bytes are left", live());
    assert_eq!(value(&engine, b"file", Seq::MAX), Some(text_item(b"short")));
}

#[test]
fn a_thousand_snapshots_each_show_their_version_after_reopening() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    let mut seqs = Vec::new();
    for n in 0..1000u32 {
        put(&engine, b"key", &n.to_le_bytes());
        seqs.push(make_snapshot(&engine));
    }
    engine.compact().unwrap();
    let engine = reopened(&engine);
    for (n, seq) in (0..1000u32).zip(&seqs) {
        assert_eq!(value(&engine, b"key", *seq), Some(text_item(&n.to_le_bytes())));
    }
    // All but one in a hundred go.
    for (_, seq) in seqs.iter().enumerate().filter(|(n, _)| n % 100 != 0) {
        engine.drop_snapshot(*seq, &removal(*seq)).unwrap();
    }
    engine.sync(Seq::MAX).unwrap();
    engine.compact().unwrap();
    let engine = reopened(&engine);
    for (n, seq) in (0..1000u32).zip(&seqs).step_by(100) {
        assert!(engine.snapshot_at(*seq).is_some());
        assert_eq!(value(&engine, b"key", *seq), Some(text_item(&n.to_le_bytes())));
    }
    assert!(engine.snapshot_at(seqs[1]).is_none());
}

#[test]
fn a_snapshot_of_a_commit_that_does_not_exist_is_refused() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"key", b"value");
    put(&engine, &snapshot_key(Seq(500)), b"forged");
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let refused = Engine::open(log, recovered, ListSchema, small(Background::Manual)).unwrap_err();
    assert!(matches!(refused, MetaError::Corrupt { code: 332, .. }), "{refused}");
    // Reading drops nothing that the snapshot could show.
    let (log, recovered) = engine.log().crash();
    let options = EngineOptions { read_only: true, ..small(Background::Manual) };
    let reader = Engine::open(log, recovered, ListSchema, options).unwrap();
    assert_eq!(value(&reader, b"key", Seq::MAX), Some(text_item(b"value")));
    assert!(reader.snapshot_at(Seq(500)).is_none());
}

#[test]
fn an_engine_that_only_reads_shows_snapshots_and_makes_none() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"key", b"then");
    let seq = make_snapshot(&engine);
    put(&engine, b"key", b"now");
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let options = EngineOptions { read_only: true, ..small(Background::Manual) };
    let engine = Engine::open(log, recovered, ListSchema, options).unwrap();
    assert_eq!(value(&engine, b"key", seq), Some(text_item(b"then")));
    assert!(
        engine.commit_at_newest(Admit::User, &mut |seq, batch| batch.put(&snapshot_key(seq), b"")).is_err()
    );
    assert!(engine.drop_snapshot(seq, &removal(seq)).is_err());
    assert!(engine.snapshot_at(seq).is_some());
}

#[test]
fn tables_go_on_holding_what_snapshots_need_without_being_rewritten() {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 64 << 20, segment_bytes: 128 << 10 });
    let engine = open(log, RecoveredLog::empty());
    let key = |n: u32| format!("file {n:06}").into_bytes();
    // Too short to be packed into slices.
    let written = |n: u32| text_item(&[n as u8; 15]);
    (0..9000).for_each(|n| put(&engine, &key(n), &[n as u8; 15]));
    let seq = make_snapshot(&engine);
    (0..9000).for_each(|n| put(&engine, &key(n), b"now"));
    engine.compact().unwrap();
    let ids = || {
        let tables = engine.inner_for_tests().table_set();
        tables.tables().map(|(_, table)| table.entry().id).collect::<Vec<_>>()
    };
    let before = ids();
    assert!(before.len() > 1, "the test needs several tables");
    // Nothing may go, so nothing is rewritten.
    engine.compact().unwrap();
    assert_eq!(ids(), before);
    (0..9000).step_by(37).for_each(|n| assert_eq!(value(&engine, &key(n), seq), Some(written(n))));
    let bytes = engine.table_bytes();
    drop_snapshot(&engine, seq);
    engine.compact().unwrap();
    assert!(
        engine.table_bytes() < bytes * 3 / 4,
        "{} bytes of tables are left of {bytes}",
        engine.table_bytes()
    );
    assert!(engine.inner_for_tests().table_set().tables().all(|(_, table)| table.entry().superseded == 0));
}

#[test]
fn keys_changed_between_snapshots_are_those_with_a_commit_between_whatever_was_compacted() {
    for seed in 0..6u64 {
        let engine = open(MemLog::new(), RecoveredLog::empty());
        let key = |n: u64| format!("key/{:03}", n % 300).into_bytes();
        // The keys of each commit, by seq.
        let mut commits: Vec<(Seq, Vec<u8>)> = Vec::new();
        let mut snapshots = Vec::new();
        for step in 0..600u64 {
            let drawn = mix(seed << 32 | step);
            let (key, mut batch) = (key(drawn), Batch::new());
            if drawn >> 40 & 3 == 0 {
                batch.delete(&key);
            } else {
                batch.put(&key, &text_item(&drawn.to_le_bytes()));
            }
            commits.push((engine.commit(&batch, None, Admit::User).unwrap(), key));
            match step % 150 {
                40 => engine.flush().unwrap(),
                90 => _ = engine.inner_for_tests().compact_all().unwrap(),
                100 => snapshots.push(make_snapshot(&engine)),
                _ => {}
            }
        }
        let newest = engine.snapshot();
        snapshots.push(engine.seq(&newest));
        for (from, after) in snapshots.iter().enumerate() {
            for upto in &snapshots[from..] {
                let range = KeyRange { start: b"key/050", end: Some(b"key/250") };
                let between = SeqRange { after: *after, upto: *upto };
                let mut found: Vec<Box<[u8]>> = Vec::new();
                // In pages, each after the last key of the one before.
                loop {
                    let mut start = range.start.to_vec();
                    if let Some(last) = found.last() {
                        start.clear();
                        start.extend_from_slice(last);
                        start.push(0);
                    }
                    let page =
                        engine.changed_between(KeyRange { start: &start, ..range }, between, 7).unwrap();
                    let is_last = page.len() < 7;
                    found.extend(page);
                    if is_last {
                        break;
                    }
                }
                let touched: BTreeSet<Box<[u8]>> = (commits.iter())
                    .filter(|(seq, key)| {
                        between.contains(*seq) && range.start <= &key[..] && &key[..] < b"key/250"
                    })
                    .map(|(_, key)| key.as_slice().into())
                    .collect();
                assert!(found.is_sorted(), "keys come in order");
                let found: BTreeSet<_> = found.into_iter().collect();
                assert!(found.is_subset(&touched), "seed {seed}: {between:?}");
                for key in touched.difference(&found) {
                    // Made and removed in between, and compacted away.
                    let values = [value(&engine, key, *after), value(&engine, key, *upto)];
                    assert_eq!(values, [None, None], "seed {seed}: {between:?} lacks {key:?}");
                }
            }
        }
    }
}

/// A piece of a scan ends after keys that are new since, too: nobody waits while a reader of then passes a
/// whole memtable of them. What it shows is all the same.
#[test]
fn readers_of_a_snapshot_pass_more_new_keys_than_a_piece_takes() {
    const KEYS: u64 = 20_000;
    let options = EngineOptions { memtable_bytes: 64 << 20, ..small(Background::Manual) };
    let engine = Engine::open(MemLog::new(), RecoveredLog::empty(), ListSchema, options).unwrap();
    let key = |n: u64| format!("file {n:06}").into_bytes();
    // Few keys of then, between very many that are new.
    let then: Vec<u64> = (0..KEYS).filter(|n| mix(*n).is_multiple_of(500)).collect();
    let nothing = engine.snapshot();
    for n in &then {
        put(&engine, &key(*n), b"then");
    }
    let seq = make_snapshot(&engine);
    let expected: Vec<Vec<u8>> = then.iter().map(|n| key(*n)).collect();
    let check = |what: &str| {
        let range = KeyRange { start: b"file", end: Some(b"filf") };
        for direction in [Direction::Forward, Direction::Backward] {
            let mut page = ScanPage::default();
            engine.scan(range, seq, direction, usize::MAX, usize::MAX, &mut page).unwrap();
            let mut listed: Vec<Vec<u8>> = page.iter().map(|entry| entry.key.to_vec()).collect();
            if direction == Direction::Backward {
                listed.reverse();
            }
            assert!(listed == expected, "{what}, {direction:?}");
        }
        let commits = SeqRange { after: engine.seq(&nothing), upto: seq };
        let changed = engine.changed_between(range, commits, usize::MAX).unwrap();
        assert!(changed.iter().map(|key| key.to_vec()).eq(expected.iter().cloned()), "{what}");
    };
    check("no new key");
    for n in (0..KEYS).filter(|n| then.binary_search(n).is_err()) {
        put(&engine, &key(n), b"now");
    }
    check("new keys in the active memtable");
    assert!(engine.inner_for_tests().freeze().unwrap());
    check("new keys in the frozen one");
    for n in (0..KEYS).step_by(3).filter(|n| then.binary_search(n).is_err()) {
        put(&engine, &key(n), b"later");
    }
    check("new keys in both");
    engine.flush().unwrap();
    check("new keys in tables");
}
