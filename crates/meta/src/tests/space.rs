//! Pools that fill up.

use std::time::Duration;

use warpfire_env::{Clock, SystemClock};
use warpfire_log::{Admit, LogError, LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_slices::SliceError;
use warpfire_units::SlicePtr;

use super::{PlainEngine, get, open, put, small};
use crate::testing::{ListSchema, pointer_item};
use crate::{Background, Batch, CommitError, Engine, MetaError, SliceStore, Store};

/// The number of records that fit. With threads a refusal may come while they still work for space: only
/// several in a row count.
fn full_by(engine: &PlainEngine, background: Background) -> u64 {
    let mut refusals_left = if background == Background::Threads { 30 } else { 0 };
    let mut count = 0u64;
    loop {
        match put(engine, &count.to_be_bytes(), &[count as u8; 1000]) {
            Ok(_) => count += 1,
            Err(CommitError::Failed(MetaError::Log(LogError::NoSpace))) if refusals_left == 0 => {
                return count;
            }
            Err(CommitError::Failed(MetaError::Log(LogError::NoSpace))) => {
                refusals_left -= 1;
                std::thread::park_timeout(Duration::from_millis(20));
            }
            Err(e) => panic!("{e}"),
        }
        assert!(count < 1_000_000, "the pool never fills");
    }
}

fn small_pool() -> MemLog {
    MemLog::with_options(MemLogOptions { capacity_bytes: 8 << 20, segment_bytes: 128 << 10 })
}

#[test]
fn a_full_pool_keeps_what_it_has_and_deletion_empties_it() {
    for background in [Background::Manual, Background::Threads] {
        let engine = open(small_pool(), background);
        let mut first_time = None;
        for _ in 0..3 {
            let count = full_by(&engine, background);
            assert!(count > 4000, "{count} records of 1000 bytes fill 8 MiB");
            assert!(count >= first_time.unwrap_or(count) * 8 / 10, "{count} after {first_time:?}");
            first_time.get_or_insert(count);
            for n in (0..count).step_by(97) {
                assert_eq!(get(&engine, &n.to_be_bytes()), Some(vec![n as u8; 1000]));
            }
            for n in 0..count {
                let mut batch = Batch::new();
                batch.delete(&n.to_be_bytes());
                engine.commit(&batch, None, Admit::Reserve).unwrap();
            }
            engine.sync(warpfire_units::Seq::MAX).unwrap();
        }
        engine.close().unwrap();
    }
}

/// No work for space is done in the call: it returns although the work cannot go on.
#[test]
fn a_full_pool_refuses_at_once() {
    let engine = open(small_pool(), Background::Threads);
    let count = full_by(&engine, Background::Threads);
    warpfire_env::sync::thread::scope(|scope| {
        let compacting = engine.inner_for_tests().compacting.lock();
        let caller = scope.spawn(|| {
            let begun = SystemClock.monotonic_nanos();
            let mut refused = 0;
            for n in 0..8u64 {
                // One of these commits may still fit the credit of its shard.
                let value = [n as u8; 1000];
                refused += u32::from(put(&engine, &(1 << 40 | n).to_be_bytes(), &value).is_err());
                let written = engine.write(Stream::Large, &[n as u8; 60_000], Admit::User);
                assert_eq!(written, Err(SliceError::NoSpace));
            }
            (refused, Duration::from_nanos(SystemClock.monotonic_nanos() - begun))
        });
        let (refused, time) = caller.join().unwrap();
        assert!(refused > 0);
        assert!(time < Duration::from_secs(12), "{time:?} for 16 calls");
        drop(compacting);
    });
    for n in 0..count {
        let mut batch = Batch::new();
        batch.delete(&n.to_be_bytes());
        engine.commit(&batch, None, Admit::Reserve).unwrap();
    }
    assert!(full_by(&engine, Background::Threads) >= count * 8 / 10, "deletions make room");
    engine.close().unwrap();
}

/// The thread that cleans is busy for longer than a caller waits on a full pool. Half of all bytes are
/// garbage.
#[test]
fn a_caller_waits_for_garbage_on_a_busy_machine() {
    let options = small(Background::Threads);
    let engine = Engine::open(small_pool(), RecoveredLog::empty(), ListSchema, options).unwrap();
    warpfire_env::sync::thread::scope(|scope| {
        let compacting = engine.inner_for_tests().compacting.lock();
        let writer = scope.spawn(|| {
            for n in 0..420u64 {
                write_half_of_it_garbage(&engine, n);
            }
        });
        std::thread::park_timeout(Duration::from_secs(1));
        drop(compacting);
        writer.join().unwrap();
    });
    engine.close().unwrap();
}

/// The thread that compacts is busy for longer than a caller waits on a full pool. Everything was deleted,
/// but nobody has counted that yet.
#[test]
fn a_caller_waits_for_deletions_on_a_busy_machine() {
    let engine = open(small_pool(), Background::Threads);
    let count = full_by(&engine, Background::Threads);
    warpfire_env::sync::thread::scope(|scope| {
        let compacting = engine.inner_for_tests().compacting.lock();
        for n in 0..count {
            let mut batch = Batch::new();
            batch.delete(&n.to_be_bytes());
            engine.commit(&batch, None, Admit::Reserve).unwrap();
        }
        let writer = scope.spawn(|| engine.write(Stream::Large, &[7; 60_000], Admit::User).map(drop));
        std::thread::park_timeout(Duration::from_secs(1));
        drop(compacting);
        writer.join().unwrap().expect("there is room again");
    });
    engine.close().unwrap();
}

/// A reader keeps everything that was emptied since it began. Half of all bytes are garbage.
#[test]
fn a_caller_waits_for_readers_that_keep_garbage() {
    let options = small(Background::Threads);
    let engine = Engine::open(small_pool(), RecoveredLog::empty(), ListSchema, options).unwrap();
    warpfire_env::sync::thread::scope(|scope| {
        let reader = engine.pin().expect("a new pin costs nothing");
        let writer = scope.spawn(|| {
            for n in 0..420u64 {
                write_half_of_it_garbage(&engine, n);
            }
        });
        std::thread::park_timeout(Duration::from_secs(1));
        drop(reader);
        writer.join().unwrap();
    });
    engine.close().unwrap();
}

/// Writes bytes. 420 of them are one and a half times the pool.
fn write_half_of_it_garbage(engine: &Engine<MemLog, ListSchema>, n: u64) {
    let slices = engine.write(Stream::Large, &[n as u8; 30_000], Admit::User).expect("there is garbage");
    if n.is_multiple_of(2) {
        let mut batch = Batch::new();
        batch.put_naming(&(n % 100).to_be_bytes(), &pointer_item(slices[0]), [slices[0]]);
        engine.commit(&batch, None, Admit::User).expect("there is garbage");
    }
    engine.release(&slices);
}

const SLICE_BYTES: usize = 30_000;

/// Writes a slice that a record names.
fn add_slice(engine: &Engine<MemLog, ListSchema>, n: u64) -> SlicePtr {
    let slices = engine.write(Stream::Large, &[n as u8; SLICE_BYTES], Admit::User).expect("it fits");
    let mut batch = Batch::new();
    batch.put_naming(&n.to_be_bytes(), &pointer_item(slices[0]), [slices[0]]);
    engine.commit(&batch, None, Admit::User).expect("it fits");
    engine.release(&slices);
    slices[0]
}

/// A quarter of each segment is garbage. At first callers take all that each step frees.
#[test]
fn space_is_gained_beside_callers_that_write() {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 32 << 20, segment_bytes: 128 << 10 });
    let options = small(Background::Manual);
    let engine = Engine::open(log, RecoveredLog::empty(), ListSchema, options).unwrap();
    let add = |n: u64| _ = add_slice(&engine, n);
    let mut count = 0;
    while engine.has_room(2 * SLICE_BYTES as u64, Admit::User) {
        add(count);
        count += 1;
    }
    for n in (0..count).step_by(4) {
        let mut batch = Batch::new();
        batch.delete(&n.to_be_bytes());
        engine.commit(&batch, None, Admit::Reserve).unwrap();
    }
    let inner = engine.inner_for_tests();
    assert!(inner.drop_deleted().unwrap());
    let victims = || engine.log().victims(256).len();
    let (before, mut steps) = (victims(), 0u32);
    assert!(before > 100, "{before} of 256 segments are worth cleaning");
    let reclaimed = inner.reclaim_here(|| -> Result<(), MetaError> {
        steps += 1;
        while steps <= 12 && engine.has_room(2 * SLICE_BYTES as u64, Admit::User) {
            add(count);
            count += 1;
        }
        Err(MetaError::Log(LogError::NoSpace))
    });
    assert!(reclaimed.is_err_and(|e| e.is_no_space()));
    let after = victims();
    assert!(after <= 4, "{after} of {before} segments are left to clean after {steps} steps");
    engine.close().unwrap();
}

/// Refused with room before: no segment was worth cleaning, and a good part of a small pool was open.
#[test]
fn garbage_in_open_segments_is_room() {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 2 << 20, segment_bytes: 128 << 10 });
    let options = small(Background::Manual);
    let engine = Engine::open(log, RecoveredLog::empty(), ListSchema, options).unwrap();
    let slices: Vec<_> = (0..4).map(|n| add_slice(&engine, n)).collect();
    for n in 1..4u64 {
        let mut batch = Batch::new();
        batch.delete(&n.to_be_bytes());
        engine.commit(&batch, None, Admit::Reserve).unwrap();
    }
    let inner = engine.inner_for_tests();
    assert!(inner.drop_deleted().unwrap());
    assert!(engine.log().victims(9).is_empty(), "the segment with the garbage is open");
    let wanted_bytes = engine.log().space().free_bytes + 2 * SLICE_BYTES as u64;
    inner.reclaim_here(|| inner.check_free(wanted_bytes)).expect("the garbage is cleaned");
    let is_moved = |slice| engine.inner_for_tests().log.read(slice, &mut vec![0; SLICE_BYTES]).is_err();
    assert!(is_moved(slices[0]), "its segment is free");
    assert!(engine.get(&0u64.to_be_bytes(), warpfire_units::Seq::MAX, &mut Vec::new()).unwrap());
    engine.close().unwrap();
}

#[test]
fn overwriting_runs_for_ever_in_little_space() {
    let engine = open(small_pool(), Background::Manual);
    for n in 0..60_000u64 {
        put(&engine, &(n * 7919 % 1000).to_be_bytes(), &n.to_le_bytes().repeat(64)).unwrap();
        if n % 100 == 0 {
            engine.background_step().unwrap();
        }
    }
    for n in 59_000..60_000u64 {
        let key = (n * 7919 % 1000).to_be_bytes();
        assert_eq!(get(&engine, &key), Some(n.to_le_bytes().repeat(64)));
    }
    assert!(engine.log().space().live_bytes < 6 << 20);
}

#[test]
fn background_work_comes_to_an_end() {
    let engine = open(small_pool(), Background::Manual);
    for n in 0..20_000u64 {
        put(&engine, &(n * 7919 % 3000).to_be_bytes(), &n.to_le_bytes().repeat(64)).unwrap();
    }
    let steps = (0..1000).take_while(|_| engine.background_step().unwrap()).count();
    assert!(steps < 1000, "{steps} steps and still something to do");
    assert!(!engine.background_step().unwrap());
}

#[test]
fn a_small_record_costs_little_more_than_its_bytes() {
    let engine = open(MemLog::new(), Background::Manual);
    for n in 0..20_000u64 {
        // As a directory's entries: a long shared prefix, a name of its own.
        let key = format!("dir-0001-0001 name{n:012}");
        put(&engine, key.as_bytes(), &[n as u8; 35]).unwrap();
    }
    engine.compact().unwrap();
    let bytes = engine.log().space().live_bytes / 20_000;
    assert!(bytes <= 55, "{bytes} bytes for a record of 30 + 35");
}

/// Memory is work, and so are tables of which one is enough.
#[test]
fn dropping_what_deletes_hide_says_whether_there_was_work() {
    let engine = open(small_pool(), Background::Manual);
    let inner = engine.inner_for_tests();
    let drops = || inner.drop_deleted().unwrap();
    assert!(!drops(), "the engine is empty");
    put(&engine, b"a", b"first").unwrap();
    assert!(drops(), "memory becomes a table");
    assert!(!drops());
    put(&engine, b"a", b"second").unwrap();
    assert!(drops(), "memory becomes a table, and two tables one");
    assert!(!drops());
    put(&engine, b"a", b"third").unwrap();
    assert!(inner.freeze().unwrap() && inner.flush_frozen().unwrap());
    assert!(drops(), "two tables become one");
    assert!(!drops());
    assert_eq!(get(&engine, b"a"), Some(b"third".to_vec()));
}
