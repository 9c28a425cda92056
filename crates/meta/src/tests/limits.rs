//! Limits of memory and space: what counts towards them, and what happens at them.

use std::sync::Arc;

use warpfire_env::sync::atomic::Ordering;
use warpfire_log::{Admit, LogError, LogStore, MemLog, MemLogOptions};
use warpfire_units::Seq;

use super::{get, open, put, small};
use crate::compaction::WAIT;
use crate::schema::PlainSchema;
use crate::testing::unlimited;
use crate::{Background, Batch, CommitError, Engine, EngineOptions, MetaError, Store, TxStore};

fn is_no_space<T>(result: &Result<T, MetaError>) -> bool {
    matches!(result, Err(MetaError::Log(LogError::NoSpace)))
}

/// The memtable and the commit log come out of the reserve of a small pool.
#[test]
fn a_small_pool_has_a_small_memtable_and_a_short_log() {
    let options = EngineOptions { background: Background::Manual, ..EngineOptions::default() };
    let opened = |capacity_bytes| {
        let log = MemLog::with_options(MemLogOptions { capacity_bytes, segment_bytes: 256 << 10 });
        Engine::open(log, warpfire_log::RecoveredLog::empty(), PlainSchema, options.clone()).unwrap()
    };
    let limits = |capacity_bytes| {
        let engine = opened(capacity_bytes);
        let options = &engine.inner_for_tests().options;
        (options.memtable_bytes, options.log_bytes_max)
    };
    assert_eq!(limits(64 << 20), (2 << 20, 2 << 20));
    assert_eq!(limits(1 << 40), (64 << 20, 64 << 20));
}

/// Commits smaller than a memtable freeze it in time, whatever is frozen already.
#[test]
fn a_memtable_stays_within_its_bytes() {
    let engine = open(MemLog::new(), Background::Manual);
    let usage = &engine.inner_for_tests().usage;
    for n in 0..2000u64 {
        put(&engine, &n.to_be_bytes(), &[n as u8; 300]).unwrap();
        let active = usage.active_bytes.load(Ordering::Relaxed);
        assert!(active <= 64 << 10, "{active} bytes after commit {n}");
    }
    assert!(!engine.runs().is_empty(), "memtables were written");
}

#[test]
fn what_recovery_takes_back_into_memory_counts_as_memory() {
    let engine = open(MemLog::new(), Background::Manual);
    for n in 0..100u64 {
        put(&engine, &n.to_be_bytes(), &[n as u8; 200]).unwrap();
    }
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    // For reading only: an opening for writing writes what it finds into tables at once.
    let options = EngineOptions { read_only: true, ..small(Background::Manual) };
    let engine = Engine::open(log, recovered, PlainSchema, options).unwrap();
    let bytes = engine.inner_for_tests().usage.in_memory_bytes();
    assert!(bytes >= 100 * 208, "{bytes} bytes for 100 records of 208");
    assert_eq!(get(&engine, &7u64.to_be_bytes()), Some(vec![7; 200]));
}

#[test]
fn all_free_bytes_are_free_and_one_more_is_not() {
    let engine = open(MemLog::new(), Background::Manual);
    let free_bytes = engine.log().space().free_bytes;
    assert!(engine.inner_for_tests().check_free(free_bytes).is_ok());
    assert!(is_no_space(&engine.inner_for_tests().check_free(free_bytes + 1)));
}

#[test]
fn a_table_leaves_a_third_of_the_reserve_to_cleaning() {
    let engine = open(MemLog::new(), Background::Manual);
    let space = engine.log().space();
    let room = space.free_bytes - space.reserve_bytes / 3;
    assert!(engine.inner_for_tests().check_room_for(room).is_ok());
    assert!(is_no_space(&engine.inner_for_tests().check_room_for(room + 1)));
}

/// No step of the background can gain anything here, and each ends with a gain that the caller looks at.
#[test]
fn a_caller_goes_on_waiting_while_the_background_gains() {
    let engine = open(MemLog::new(), Background::Threads);
    let mut looks = 0;
    let found = engine.inner_for_tests().reclaim(1, || {
        looks += 1;
        if looks < 8 { Err(MetaError::Log(LogError::NoSpace)) } else { Ok(looks) }
    });
    assert_eq!(found.unwrap(), 8);
    engine.close().unwrap();
}

#[test]
fn a_wait_for_a_gain_says_whether_there_was_one() {
    let engine = open(MemLog::new(), Background::Manual);
    let reclaim = &engine.inner_for_tests().reclaim;
    let seen = reclaim.gains();
    assert!(!reclaim.wait_for_gain(seen, WAIT), "nobody works here");
    reclaim.note_gain();
    assert!(reclaim.wait_for_gain(seen, WAIT), "the gain was before the wait");
    assert!(!reclaim.wait_for_gain(reclaim.gains(), WAIT));
}

/// Tables cannot be written any more. Deletions go on in memory, for some memtables.
#[test]
fn deletions_go_on_in_memory_while_no_table_can_be_written() {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 8 << 20, segment_bytes: 128 << 10 });
    let engine = open(log, Background::Manual);
    // Others take all space.
    let log = engine.log();
    while log.append(warpfire_log::Stream::Cold, &[7; 60_000]).is_ok() {}
    while log.append(warpfire_log::Stream::Cold, &[7; 100]).is_ok() {}
    let mut count = 0u64;
    let refused = loop {
        let mut batch = Batch::new();
        batch.delete(&count.to_be_bytes().repeat(20));
        match engine.commit(&batch, None, Admit::Reserve) {
            Ok(_) => count += 1,
            Err(CommitError::Failed(e)) => break Err::<(), _>(e),
            Err(e) => panic!("{e}"),
        }
        assert!(count < 1_000_000, "there is a limit");
    };
    assert!(is_no_space(&refused));
    let memtables = engine.inner_for_tests().usage.in_memory_bytes() / (64 << 10);
    assert!((3..=4).contains(&memtables), "{memtables} memtables' worth of bytes");
}

#[test]
fn a_transaction_reports_the_tables_below_it() {
    let engine = Arc::new(open(MemLog::new(), Background::Manual));
    put(&engine, b"key", &[7; 5000]).unwrap();
    engine.flush().unwrap();
    let tx = TxStore::begin(Arc::clone(&engine), PlainSchema, &unlimited());
    assert!(engine.table_bytes() > 5000);
    assert_eq!(tx.table_bytes(), engine.table_bytes());
}
