//! The promise of a sync, and its cost.

use warpfire_log::MemLog;
use warpfire_units::Seq;

use super::{get, open, put, small};
use crate::schema::PlainSchema;
use crate::{Background, Engine, Store};

#[test]
fn a_sync_of_a_small_commit_is_one_record() {
    let engine = open(MemLog::new(), Background::Manual);
    let before = engine.log().counters();
    for n in 0..10u8 {
        let seq = put(&engine, &[n + 1], b"value").unwrap();
        engine.sync(seq).unwrap();
        engine.sync(seq).unwrap();
    }
    let after = engine.log().counters();
    assert_eq!((after.records - before.records, after.syncs - before.syncs), (10, 10));
    assert_eq!(after.appends, before.appends);
}

#[test]
fn what_no_sync_asked_for_is_never_logged() {
    let engine = open(MemLog::new(), Background::Manual);
    let before = engine.log().counters();
    for n in 0..5000u64 {
        put(&engine, &n.to_be_bytes(), &[7; 100]).unwrap();
    }
    let record_bytes = engine.log().counters().record_bytes - before.record_bytes;
    assert!(record_bytes < 50_000, "{record_bytes} bytes of records");
}

#[test]
fn what_the_hook_adds_is_part_of_the_sync_point() {
    let engine = open(MemLog::new(), Background::Manual);
    engine.set_sync_point_hook(Box::new(|_, batch| batch.put(b"deferred", b"until now")));
    put(&engine, b"key", b"value").unwrap();
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let engine = Engine::open(log, recovered, PlainSchema, small(Background::Manual)).unwrap();
    assert_eq!(get(&engine, b"deferred"), Some(b"until now".to_vec()));
}

#[test]
fn after_a_failed_sync_nothing_is_taken_and_reads_go_on() {
    let engine = open(MemLog::new(), Background::Manual);
    put(&engine, b"old", b"1").unwrap();
    engine.sync(Seq::MAX).unwrap();
    let seq = put(&engine, b"new", b"2").unwrap();
    engine.log().fail_sync_after(0);
    assert!(engine.sync(seq).is_err());
    assert!(engine.sync(seq).is_err());
    assert!(put(&engine, b"newer", b"3").is_err());
    assert_eq!(get(&engine, b"old"), Some(b"1".to_vec()));
    assert!(engine.background_step().is_err());
    let (log, recovered) = engine.log().crash();
    let engine = Engine::open(log, recovered, PlainSchema, small(Background::Manual)).unwrap();
    assert_eq!(get(&engine, b"old"), Some(b"1".to_vec()));
}

/// Otherwise each crash would leave the next opening as many commits to replay as the one before.
#[test]
fn an_opening_writes_the_commits_that_it_replays() {
    let engine = open(MemLog::new(), Background::Manual);
    put(&engine, b"key", b"value").unwrap();
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let reopened = Engine::open(log, recovered, PlainSchema, small(Background::Manual)).unwrap();
    assert!(reopened.table_bytes() > 0);
    let (_, recovered) = reopened.log().crash();
    assert_eq!(recovered.records.count(), 0, "nothing is left to replay");
}

#[test]
fn a_checkpoint_shortens_a_long_log() {
    let engine = open(MemLog::new(), Background::Manual);
    for n in 0..2000u64 {
        let seq = put(&engine, &(n % 10 + 1).to_be_bytes(), &[n as u8; 500]).unwrap();
        engine.sync(seq).unwrap();
        engine.background_step().unwrap();
    }
    assert!(engine.log().counters().checkpoints > 2);
    let log_bytes = warpfire_log::LogStore::log_bytes(engine.log());
    assert!(log_bytes <= 512 << 10, "{log_bytes}");
}

#[test]
fn much_that_was_not_synced_becomes_a_table_and_not_a_record() {
    let engine = Engine::open(
        MemLog::new(),
        warpfire_log::RecoveredLog::empty(),
        PlainSchema,
        crate::EngineOptions { background: Background::Manual, ..crate::EngineOptions::default() },
    )
    .unwrap();
    for n in 0..6000u64 {
        put(&engine, &n.to_be_bytes(), &[7; 1000]).unwrap();
    }
    engine.sync(Seq::MAX).unwrap();
    assert_eq!(engine.runs().len(), 1);
    let (log, recovered) = engine.log().crash();
    let engine = Engine::open(log, recovered, PlainSchema, small(Background::Manual)).unwrap();
    assert_eq!(get(&engine, &5999u64.to_be_bytes()), Some(vec![7; 1000]));
}

#[test]
fn a_commit_log_without_room_delays_a_sync_and_does_not_latch() {
    let engine = open(MemLog::new(), Background::Manual);
    put(&engine, b"in a record", b"1").unwrap();
    engine.sync(Seq::MAX).unwrap();
    for refused in [1, 2, 1000] {
        let seq = put(&engine, format!("{refused}").as_bytes(), b"2").unwrap();
        engine.log().refuse_syncs(refused);
        engine.sync(seq).unwrap();
        let (log, recovered) = engine.log().crash();
        let reopened = Engine::open(log, recovered, PlainSchema, small(Background::Manual)).unwrap();
        assert_eq!(get(&reopened, format!("{refused}").as_bytes()), Some(b"2".to_vec()));
        assert_eq!(get(&reopened, b"in a record"), Some(b"1".to_vec()));
    }
    put(&engine, b"later", b"3").unwrap();
    engine.compact().unwrap();
    engine.log().refuse_syncs(0);
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let engine = Engine::open(log, recovered, PlainSchema, small(Background::Manual)).unwrap();
    assert_eq!(get(&engine, b"later"), Some(b"3".to_vec()));
    assert_eq!(get(&engine, b"1000"), Some(b"2".to_vec()));
}

/// So many records wait for room that the commit log takes no more: neither a record of commits nor the edit
/// of a flush.
#[test]
fn a_commit_log_that_takes_no_record_delays_a_sync_and_does_not_latch() {
    let engine = open(MemLog::new(), Background::Manual);
    put(&engine, b"in a record", b"1").unwrap();
    engine.sync(Seq::MAX).unwrap();
    for refused in [1, 2, 1000] {
        let seq = put(&engine, format!("{refused}").as_bytes(), b"2").unwrap();
        engine.log().refuse_records(refused);
        engine.log().refuse_syncs(refused);
        engine.sync(seq).unwrap_or_else(|e| panic!("{refused}: {e}"));
        let (log, recovered) = engine.log().crash();
        let reopened = Engine::open(log, recovered, PlainSchema, small(Background::Manual)).unwrap();
        assert_eq!(get(&reopened, format!("{refused}").as_bytes()), Some(b"2".to_vec()));
        assert_eq!(get(&reopened, b"in a record"), Some(b"1".to_vec()));
    }
    // Compaction too, which turns deletions into space.
    engine.compact().unwrap();
    assert_eq!(engine.runs().len(), 1);
    engine.log().refuse_records(0);
    engine.log().refuse_syncs(0);
    put(&engine, b"later", b"3").unwrap();
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let engine = Engine::open(log, recovered, PlainSchema, small(Background::Manual)).unwrap();
    assert_eq!(get(&engine, b"later"), Some(b"3".to_vec()));
    assert_eq!(get(&engine, b"1000"), Some(b"2".to_vec()));
}
