//! Versions that only persistent snapshots and the origins of domains see: in runs of the past.

use std::error::Error;
use std::sync::Arc;

use warpfire_log::{Admit, MemLog, MemLogOptions, RecoveredLog};
use warpfire_units::Seq;

use super::model::domains::make_domain;
use super::small;
use crate::testing::{ListSchema, snapshot_key, text_item};
use crate::{Background, Batch, Direction, Engine, EngineOptions, KeyRange, ScanPage, SnapshotStore, Store};

type TestEngine = Engine<MemLog, ListSchema>;

fn open(log: MemLog, recovered: RecoveredLog) -> TestEngine {
    Engine::open(log, recovered, ListSchema, small(Background::Manual)).unwrap()
}

fn reopened(engine: &TestEngine) -> TestEngine {
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    open(log, recovered)
}

fn put(engine: &TestEngine, key: &[u8], text: &[u8]) {
    let mut batch = Batch::new();
    batch.put(key, &text_item(text));
    engine.commit(&batch, None, Admit::User).unwrap();
}

fn add(engine: &TestEngine, key: &[u8], text: &[u8]) {
    let mut batch = Batch::new();
    batch.merge(key, &text_item(text));
    engine.commit(&batch, None, Admit::User).unwrap();
}

fn delete(engine: &TestEngine, key: &[u8]) {
    let mut batch = Batch::new();
    batch.delete(key);
    engine.commit(&batch, None, Admit::Reserve).unwrap();
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

fn value(engine: &TestEngine, key: &[u8], at: Seq) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    engine.get(key, at, &mut value).unwrap().then_some(value)
}

/// All keys from `file` on with their values, in both directions alike.
fn listed(engine: &TestEngine, at: Seq) -> Vec<(Vec<u8>, Vec<u8>)> {
    let list = |direction| {
        let (range, mut page) = (KeyRange { start: b"file", end: Some(b"filf") }, ScanPage::default());
        engine.scan(range, at, direction, usize::MAX, usize::MAX, &mut page).unwrap();
        page.iter().map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect::<Vec<_>>()
    };
    let mut backward = list(Direction::Backward);
    backward.reverse();
    assert_eq!(list(Direction::Forward), backward);
    backward
}

/// Old versions that the present has below newer ones.
fn superseded(engine: &TestEngine) -> u64 {
    let table_set = engine.inner_for_tests().table_set();
    table_set.runs.iter().flat_map(|run| &run.tables).map(|table| table.entry().superseded).sum()
}

fn past_tables(engine: &TestEngine) -> usize {
    engine.past_runs().iter().map(|(tables, _)| tables).sum()
}

/// Whether any table of the past was opened.
fn has_opened_past(engine: &TestEngine) -> bool {
    let table_set = engine.inner_for_tests().table_set();
    table_set.past.iter().flat_map(|run| &run.tables).any(|table| table.is_open())
}

#[test]
fn a_reader_of_the_newest_version_opens_no_table_of_the_past() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    let key = |n: u32| format!("file {n:04}").into_bytes();
    (0..200).for_each(|n| put(&engine, &key(n), b"then"));
    let seq = make_snapshot(&engine);
    // A flush writes everything that is seen to the present. The merge of two runs retires.
    engine.flush().unwrap();
    (0..100).for_each(|n| put(&engine, &key(n), b"now"));
    (100..150).for_each(|n| delete(&engine, &key(n)));
    engine.compact().unwrap();
    assert_eq!(superseded(&engine), 0, "the present has one version of each key");
    assert!(past_tables(&engine) > 0);
    assert_eq!(listed(&engine, Seq::MAX).len(), 150);
    (0..300).for_each(|n| _ = value(&engine, &key(n), Seq::MAX));
    let newest = engine.snapshot();
    (0..300).for_each(|n| _ = value(&engine, &key(n), newest.seq()));
    assert_eq!(listed(&engine, newest.seq()).len(), 150);
    assert!(!has_opened_past(&engine), "reads of the newest version");
    let then: Vec<_> = (0..200).map(|n| (key(n), text_item(b"then"))).collect();
    assert_eq!(listed(&engine, seq), then);
    assert!(has_opened_past(&engine), "reads of the snapshot");
    assert!((0..200).all(|n| value(&engine, &key(n), seq) == Some(text_item(b"then"))));
}

#[test]
fn each_moment_of_a_key_is_found_wherever_its_versions_are() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    let mut moments = Vec::new();
    let mut note = |engine: &TestEngine, expected: Option<Vec<u8>>| {
        moments.push((make_snapshot(engine), expected));
    };
    let both = |a: &[u8], b: &[u8]| Some([text_item(a), text_item(b)].concat());
    note(&engine, None);
    put(&engine, b"file", b"1");
    note(&engine, Some(text_item(b"1")));
    add(&engine, b"file", b"2");
    note(&engine, both(b"1", b"2"));
    engine.compact().unwrap();
    delete(&engine, b"file");
    note(&engine, None);
    engine.compact().unwrap();
    add(&engine, b"file", b"3");
    note(&engine, Some(text_item(b"3")));
    engine.compact().unwrap();
    // Two versions that no snapshot sees.
    put(&engine, b"file", b"4");
    delete(&engine, b"file");
    engine.compact().unwrap();
    note(&engine, None);
    put(&engine, b"file", b"5");
    engine.compact().unwrap();
    note(&engine, Some(text_item(b"5")));
    delete(&engine, b"file");
    engine.compact().unwrap();
    note(&engine, None);
    let shows_all = |engine: &TestEngine, moments: &[(Seq, Option<Vec<u8>>)]| {
        for (seq, expected) in moments {
            assert_eq!(value(engine, b"file", *seq), *expected, "at {seq:?}");
            let listed = listed(engine, *seq).into_iter().next().map(|(_, value)| value);
            assert_eq!(listed, *expected, "listed at {seq:?}");
        }
    };
    shows_all(&engine, &moments);
    assert_eq!(value(&engine, b"file", Seq::MAX), None);
    let engine = reopened(&engine);
    shows_all(&engine, &moments);
    // In any order, and each time the others stay whole.
    while !moments.is_empty() {
        let (seq, _) = moments.remove(moments.len() * 5 / 8);
        drop_snapshot(&engine, seq);
        engine.compact().unwrap();
        shows_all(&engine, &moments);
    }
    assert_eq!(past_tables(&engine), 0, "nobody needs the past");
}

#[test]
fn an_engine_that_only_reads_shows_the_past() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"file", b"then");
    let seq = make_snapshot(&engine);
    delete(&engine, b"file");
    engine.compact().unwrap();
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let options = EngineOptions { read_only: true, ..small(Background::Manual) };
    let engine = Engine::open(log, recovered, ListSchema, options).unwrap();
    assert_eq!(value(&engine, b"file", seq), Some(text_item(b"then")));
    assert_eq!(value(&engine, b"file", Seq::MAX), None);
    assert_eq!(past_tables(&engine), 1);
}

#[test]
fn what_a_live_snapshot_sees_stays_in_the_present() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"file", b"1");
    let first = make_snapshot(&engine);
    put(&engine, b"file", b"2");
    let live = engine.snapshot();
    put(&engine, b"file", b"3");
    engine.compact().unwrap();
    assert_eq!(value(&engine, b"file", live.seq()), Some(text_item(b"2")));
    assert!(!has_opened_past(&engine), "a live snapshot is a reader of the present");
    assert_eq!(superseded(&engine), 1);
    assert_eq!(value(&engine, b"file", first), Some(text_item(b"1")));
    // A visit of the persistent snapshot keeps nothing in the present.
    drop(live);
    let visit = engine.snapshot_at(first).unwrap();
    put(&engine, b"file", b"4");
    engine.compact().unwrap();
    assert_eq!(superseded(&engine), 0);
    drop_snapshot(&engine, first);
    engine.compact().unwrap();
    assert_eq!(value(&engine, b"file", visit.seq()), Some(text_item(b"1")), "the visit goes on");
    drop(visit);
    engine.compact().unwrap();
    assert_eq!(past_tables(&engine), 0);
}

#[test]
fn a_clone_reads_the_past_of_its_origin() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    put(&engine, b"file a", b"then");
    put(&engine, b"file b", b"then");
    let clone = *b"copy";
    make_domain(&engine, clone, *b"file", None);
    put(&engine, b"file a", b"now");
    delete(&engine, b"file b");
    engine.compact().unwrap();
    assert_eq!((superseded(&engine), past_tables(&engine)), (0, 1));
    add(&engine, b"copy a", b"mine");
    let engine = reopened(&engine);
    let mine = [text_item(b"then"), text_item(b"mine")].concat();
    assert_eq!(value(&engine, b"copy a", Seq::MAX), Some(mine));
    assert_eq!(value(&engine, b"copy b", Seq::MAX), Some(text_item(b"then")));
    assert_eq!(value(&engine, b"file b", Seq::MAX), None);
}

/// A key with many versions was one block, which each read of any of them had to decode.
#[test]
fn a_key_with_many_versions_takes_many_short_tables() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    let mut seqs = Vec::new();
    for n in 0..5000u32 {
        put(&engine, b"file", &n.to_le_bytes());
        // Operands too: the oldest version of a span is a whole value.
        if n % 3 == 0 {
            put(&engine, b"file other", b"first");
        }
        add(&engine, b"file other", &[n as u8]);
        seqs.push(make_snapshot(&engine));
        while engine.background_step().unwrap() {}
    }
    engine.compact().unwrap();
    while engine.background_step().unwrap() {}
    let engine = reopened(&engine);
    let table_set = engine.inner_for_tests().table_set();
    let longest = table_set.past.iter().flat_map(|run| &run.tables).map(|t| t.entry().entries).max().unwrap();
    assert!(longest < 600, "a table with {longest} versions");
    for (n, seq) in (0..5000u32).zip(&seqs).step_by(7) {
        assert_eq!(value(&engine, b"file", *seq), Some(text_item(&n.to_le_bytes())));
        let mut other = text_item(b"first");
        (n / 3 * 3..=n).for_each(|n| other.extend(text_item(&[n as u8])));
        assert_eq!(value(&engine, b"file other", *seq), Some(other), "{n}");
    }
    // A read opens the tables of its seq, not those of all.
    let opened =
        table_set.past.iter().flat_map(|run| &run.tables).filter(|t| t.is_read_at(seqs[2500])).count();
    assert!(opened < 30, "{opened} of {} tables may have a version for one seq", past_tables(&engine));
}

#[test]
fn tables_that_nobody_reads_any_more_go_unread() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    let key = |n: u32| format!("file {n:04}").into_bytes();
    let mut seqs = Vec::new();
    for round in 0..10u8 {
        (0..500).for_each(|n| put(&engine, &key(n), &[round; 15]));
        seqs.push(make_snapshot(&engine));
        engine.compact().unwrap();
    }
    let tables = past_tables(&engine);
    let last = seqs.pop().unwrap();
    for seq in seqs {
        drop_snapshot(&engine, seq);
        while engine.background_step().unwrap() {}
    }
    assert!(!has_opened_past(&engine), "no table of the past was read for it");
    assert!(past_tables(&engine) < tables / 2, "{} of {tables} tables are left", past_tables(&engine));
    assert!((0..500).all(|n| value(&engine, &key(n), last) == Some(text_item(&[9; 15]))));
}

/// The log fails at each sync of the merges in turn, and then the power goes.
#[test]
fn a_cut_at_any_sync_of_a_merge_that_retires_keeps_every_moment() {
    let base = open(MemLog::new(), RecoveredLog::empty());
    let key = |n: u8| format!("file {n:03}").into_bytes();
    let mut moments = Vec::new();
    for round in 0..8u8 {
        for n in (0..60).filter(|n| (n + round).is_multiple_of(3)) {
            match (n ^ round) % 4 {
                0 => delete(&base, &key(n)),
                1 => add(&base, &key(n), &[round]),
                _ => put(&base, &key(n), &[round; 15]),
            }
        }
        let seq = make_snapshot(&base);
        moments.push((seq, listed(&base, seq)));
        base.flush().unwrap();
    }
    base.sync(Seq::MAX).unwrap();
    let newest = listed(&base, Seq::MAX);
    let dropped = moments.remove(3).0;
    let work = |engine: &TestEngine| -> Result<(), Box<dyn Error>> {
        engine.compact()?;
        if value(engine, &snapshot_key(dropped), Seq::MAX).is_some() {
            let mut batch = Batch::new();
            batch.delete(&snapshot_key(dropped));
            engine.drop_snapshot(dropped, &batch)?;
            engine.sync(Seq::MAX)?;
        }
        while engine.background_step()? {}
        engine.compact()?;
        engine.sync(Seq::MAX)?;
        Ok(())
    };
    let mut has_retired = [false; 2];
    let mut syncs = 0;
    loop {
        let (log, recovered) = base.log().crash();
        let engine = open(log, recovered);
        engine.log().fail_sync_after(syncs);
        let is_done = work(&engine).is_ok();
        for seed in 0..4 {
            let (log, recovered) = engine.log().crash_seeded(seed);
            let engine = open(log, recovered);
            has_retired[usize::from(past_tables(&engine) > 0)] = true;
            let shows_all = || {
                for (seq, expected) in &moments {
                    assert_eq!(listed(&engine, *seq), *expected, "at {seq:?} after {syncs} syncs");
                }
                assert_eq!(listed(&engine, Seq::MAX), newest, "after {syncs} syncs");
            };
            shows_all();
            work(&engine).unwrap();
            shows_all();
        }
        if is_done {
            break;
        }
        syncs += 1;
    }
    assert!(syncs > 3 && has_retired == [true; 2], "{syncs} syncs, {has_retired:?}");
}

/// A pool that is too full for a rewrite goes on, and the rewrite is done once there is room.
#[test]
fn a_full_pool_puts_the_past_off() {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 8 << 20, segment_bytes: 128 << 10 });
    let engine = open(log, RecoveredLog::empty());
    let key = |n: u32| format!("file {n:05}").into_bytes();
    let mut seqs = Vec::new();
    for round in 0..6u8 {
        (0..3000).for_each(|n| put(&engine, &key(n), &[round; 15]));
        seqs.push(make_snapshot(&engine));
        engine.compact().unwrap();
    }
    // Other bytes fill the pool.
    let mut filler = 0u32;
    while engine.has_room(4096, Admit::User) && filler < 4000 {
        let mut batch = Batch::new();
        batch.put(format!("more {filler:05}").as_bytes(), &text_item(&[filler as u8; 3000]));
        if engine.commit(&batch, None, Admit::User).is_err() {
            break;
        }
        filler += 1;
    }
    for seq in seqs.drain(..4) {
        drop_snapshot(&engine, seq);
        // Without room a step may do nothing. It does not fail.
        while engine.background_step().unwrap() {}
    }
    put(&engine, &key(1), b"goes on");
    (0..filler).for_each(|n| delete(&engine, format!("more {n:05}").as_bytes()));
    engine.reclaim_all().unwrap();
    assert!((2..3000).all(|n| value(&engine, &key(n), seqs[0]) == Some(text_item(&[4; 15]))));
    let engine = reopened(&engine);
    assert!((2..3000).all(|n| value(&engine, &key(n), seqs[1]) == Some(text_item(&[5; 15]))));
}

/// With a thousand snapshots merges write less than twice as much as without.
#[test]
fn merges_write_old_versions_once_or_twice() {
    let written = |is_snapped: bool| {
        let log = MemLog::with_options(MemLogOptions { capacity_bytes: 512 << 20, segment_bytes: 256 << 10 });
        let engine = Arc::new(open(log, RecoveredLog::empty()));
        let key = |n: u32| format!("file {n:06}").into_bytes();
        (0..20_000).for_each(|n| put(&engine, &key(n), &[n as u8; 15]));
        while engine.background_step().unwrap() {}
        let before = engine.log().counters().appended_bytes;
        for round in 0..1000 {
            for n in 0..20 {
                put(&engine, &key((round * 20 + n) * 7919 % 20_000), &[round as u8; 15]);
                while engine.background_step().unwrap() {}
            }
            if is_snapped {
                make_snapshot(&engine);
            }
        }
        engine.log().counters().appended_bytes - before
    };
    let (without, with) = (written(false), written(true));
    println!("{without} bytes written without snapshots, {with} with a thousand");
    assert!(with < without * 2, "{with} bytes written with a thousand snapshots, {without} without");
}
