//! Conflicts: every place in which a newer version can be is compared, and from both sides.

use std::collections::BTreeSet;

use warpfire_log::{Admit, MemLog};

use super::{PlainEngine, open, put};
use crate::testing::Rng;
use crate::{Background, Batch, CommitError, ReadSet, Store};

fn delete(engine: &PlainEngine, key: &[u8]) {
    let mut batch = Batch::new();
    batch.delete(key);
    engine.commit(&batch, None, Admit::User).unwrap();
}

/// Whether a commit with this read set conflicts.
fn conflicts(engine: &PlainEngine, reads: &ReadSet) -> bool {
    match engine.commit(&Batch::new(), Some(reads), Admit::User) {
        Ok(_) => false,
        Err(CommitError::Conflict) => true,
        Err(e) => panic!("{e}"),
    }
}

/// A deletion is a version like any other: a table of deletions alone is as new as they are.
#[test]
fn a_deletion_conflicts_in_memory_frozen_and_in_a_table() {
    let engine = open(MemLog::new(), Background::Manual);
    put(&engine, b"k", b"1").unwrap();
    engine.flush().unwrap();
    let snapshot = engine.snapshot();
    let by_key = ReadSet::new(snapshot.seq(), [b"k"], []);
    let by_range = ReadSet::new(snapshot.seq(), [] as [&[u8]; 0], [(b"a".to_vec(), Some(b"z".to_vec()))]);
    assert!(!conflicts(&engine, &by_key) && !conflicts(&engine, &by_range));
    delete(&engine, b"k");
    for stage in ["in the memtable", "in the frozen memtable", "in a table"] {
        assert!(conflicts(&engine, &by_key), "{stage}");
        assert!(conflicts(&engine, &by_range), "{stage}");
        assert_eq!(engine.changed_keys(&by_key, 9).unwrap(), Some(vec![b"k"[..].into()]), "{stage}");
        match stage {
            "in the memtable" => assert!(engine.inner_for_tests().freeze().unwrap()),
            _ => engine.flush().unwrap(),
        }
    }
}

/// Few new versions are looked up in the read set, and few keys in the memtable: both find the same.
#[test]
fn the_changed_keys_are_those_that_were_read_and_written_since() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let engine = open(MemLog::new(), Background::Manual);
        let name = |n: u64| format!("k{n:03}").into_bytes();
        for n in 0..100 {
            put(&engine, &name(n), b"1").unwrap();
        }
        engine.flush().unwrap();
        let snapshot = engine.snapshot();
        let keys: Vec<Vec<u8>> = (0..[3, 60][seed as usize % 2]).map(|_| name(rng.below(110))).collect();
        let range = (name(rng.below(50)), Some(name(50 + rng.below(50))));
        let ranges = if seed % 4 < 2 { vec![range.clone()] } else { Vec::new() };
        let reads = ReadSet::new(snapshot.seq(), &keys, ranges.clone());
        let mut expected = BTreeSet::new();
        for _ in 0..[2, 90][seed as usize / 2 % 2] {
            let key = name(rng.below(110));
            if rng.below(2) == 0 {
                delete(&engine, &key)
            } else {
                _ = put(&engine, &key, b"2").unwrap()
            }
            let in_range =
                |(start, end): &(Vec<u8>, Option<Vec<u8>>)| key >= *start && Some(&key) < end.as_ref();
            if keys.contains(&key) || ranges.iter().any(in_range) {
                expected.insert(key);
            }
            if rng.below(20) == 0 {
                engine.flush().unwrap();
            }
        }
        let changed = engine.changed_keys(&reads, 1000).unwrap().unwrap();
        let changed: BTreeSet<Vec<u8>> = changed.into_iter().map(|key| key.to_vec()).collect();
        assert_eq!(changed, expected, "seed {seed}");
        assert_eq!(conflicts(&engine, &reads), !expected.is_empty(), "seed {seed}");
        let all = engine.changed_keys(&reads, expected.len()).unwrap();
        assert_eq!(all.map(|keys| keys.len()), Some(expected.len()), "seed {seed}: no more than the most");
        if expected.len() > 1 {
            assert!(engine.changed_keys(&reads, 1).unwrap().is_none(), "seed {seed}");
        }
        let mut later = reads;
        later.at = engine.snapshot().seq();
        assert!(!conflicts(&engine, &later), "seed {seed}");
    }
}

/// A commit with a large read set beside threads that flush without a pause comes to an end.
#[test]
fn a_commit_of_many_reads_ends_although_others_flush() {
    let engine = open(MemLog::new(), Background::Manual);
    let reads: Vec<Vec<u8>> = (0..20_000u32).map(|n| [b"read", &n.to_be_bytes()[..]].concat()).collect();
    put(&engine, b"other", b"0").unwrap();
    let at = engine.snapshot().seq();
    let reads = ReadSet::new(at, &reads, [(b"x".to_vec(), None)]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    warpfire_env::sync::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(warpfire_env::sync::atomic::Ordering::Relaxed) {
                put(&engine, b"other", &[1; 500]).unwrap();
                engine.flush().unwrap();
            }
        });
        for _ in 0..20 {
            assert!(!conflicts(&engine, &reads));
        }
        stop.store(true, warpfire_env::sync::atomic::Ordering::Relaxed);
    });
}

/// The end of a range is not read, in memory or in tables.
#[test]
fn a_change_at_the_end_of_a_range_is_no_conflict() {
    let engine = open(MemLog::new(), Background::Manual);
    put(&engine, b"a", b"1").unwrap();
    let none: [Vec<u8>; 0] = [];
    let reads = ReadSet::new(engine.snapshot().seq(), &none, vec![(b"a".to_vec(), Some(b"c".to_vec()))]);
    put(&engine, b"c", b"2").unwrap();
    for stage in ["in memory", "in a table"] {
        assert!(!conflicts(&engine, &reads), "{stage}");
        assert_eq!(engine.changed_keys(&reads, 9).unwrap(), Some(Vec::new()), "{stage}");
        engine.flush().unwrap();
    }
    put(&engine, b"b", b"2").unwrap();
    assert!(conflicts(&engine, &reads));
}
