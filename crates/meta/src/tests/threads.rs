//! Threads that commit at once, while threads flush and compact.

use warpfire_env::sync::atomic::{AtomicBool, Ordering};

use warpfire_log::{Admit, MemLog};
use warpfire_units::Seq;

use super::{PlainEngine, get, open, put};
use crate::testing::Rng;
use crate::{Background, Batch, CommitError, Direction, KeyRange, ReadSet, ScanPage, Store};

const ACCOUNTS: u64 = 64;

fn account(n: u64) -> Vec<u8> {
    format!("account {n:04}").into_bytes()
}

fn balance(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

fn transfer(engine: &PlainEngine, rng: &mut Rng) {
    let (from, to) = (account(rng.below(ACCOUNTS)), account(rng.below(ACCOUNTS)));
    if from == to {
        return;
    }
    let _guard = engine.lock(&[&from, &to]);
    let (a, b) = (balance(&get(engine, &from).unwrap()), balance(&get(engine, &to).unwrap()));
    let amount = rng.below(a + 1);
    let mut batch = Batch::new();
    // Padding makes memtables turn over.
    batch.put(&from, &[&(a - amount).to_le_bytes()[..], &[0; 100]].concat());
    batch.put(&to, &[&(b + amount).to_le_bytes()[..], &[0; 100]].concat());
    engine.commit(&batch, None, Admit::User).unwrap();
}

#[test]
fn every_snapshot_sees_whole_commits_only() {
    let engine = open(MemLog::new(), Background::Threads);
    for n in 0..ACCOUNTS {
        put(&engine, &account(n), &100u64.to_le_bytes()).unwrap();
    }
    let done = AtomicBool::new(false);
    warpfire_env::sync::thread::scope(|scope| {
        let (engine, done) = (&engine, &done);
        let writers: Vec<_> = (0..3)
            .map(|seed| {
                scope.spawn(move || {
                    let mut rng = Rng(seed);
                    (0..5000).for_each(|_| transfer(engine, &mut rng));
                })
            })
            .collect();
        scope.spawn(move || {
            let mut page = ScanPage::default();
            while !done.load(Ordering::Relaxed) {
                let snapshot = engine.snapshot();
                for direction in [Direction::Forward, Direction::Backward] {
                    let all = KeyRange { start: b"", end: None };
                    engine.scan(all, snapshot.seq(), direction, 1000, 1 << 20, &mut page).unwrap();
                    assert_eq!(page.len() as u64, ACCOUNTS);
                    assert_eq!(page.iter().map(|e| balance(e.value)).sum::<u64>(), ACCOUNTS * 100);
                }
                engine.sync(snapshot.seq()).unwrap();
            }
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    assert!(!engine.runs().is_empty(), "memtables were written during the test");
    engine.close().unwrap();
}

#[test]
fn increments_with_read_sets_are_never_lost() {
    let engine = open(MemLog::new(), Background::Threads);
    warpfire_env::sync::thread::scope(|scope| {
        for thread in 0..3u64 {
            let engine = &engine;
            scope.spawn(move || {
                for i in 0..700 {
                    loop {
                        let snapshot = engine.snapshot();
                        let mut value = Vec::new();
                        let found = engine.get(b"counter", snapshot.seq(), &mut value).unwrap();
                        let old = if found { balance(&value) } else { 0 };
                        let mut batch = Batch::new();
                        batch.put(b"counter", &(old + 1).to_le_bytes());
                        batch.put(&account(thread * 1000 + i), &[0; 200]);
                        let reads = ReadSet::new(snapshot.seq(), [b"counter"], []);
                        match engine.commit(&batch, Some(&reads), Admit::User) {
                            Ok(_) => break,
                            Err(CommitError::Conflict) => {}
                            Err(e) => panic!("{e}"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(balance(&get(&engine, b"counter").unwrap()), 2100);
    engine.close().unwrap();
}

#[test]
fn a_range_that_was_read_admits_no_phantom() {
    let engine = open(MemLog::new(), Background::Manual);
    let snapshot = engine.snapshot();
    let reads = ReadSet::new(snapshot.seq(), [] as [&[u8]; 0], [(b"a".to_vec(), Some(b"c".to_vec()))]);
    let mut batch = Batch::new();
    batch.put(b"elsewhere", b"");
    put(&engine, b"c", b"just outside").unwrap();
    engine.commit(&batch, Some(&reads), Admit::User).unwrap();
    put(&engine, b"b", b"inside").unwrap();
    for stage in ["in the memtable", "in a table"] {
        let outcome = engine.commit(&batch, Some(&reads), Admit::User);
        assert!(matches!(outcome, Err(CommitError::Conflict)), "{stage}");
        engine.flush().unwrap();
    }
    let reads = ReadSet::new(snapshot.seq(), [b"b"], []);
    assert!(matches!(engine.commit(&batch, Some(&reads), Admit::User), Err(CommitError::Conflict)));
    let reads = ReadSet::new(engine.snapshot().seq(), [b"b"], []);
    assert!(engine.commit(&batch, Some(&reads), Admit::User).is_ok());
    assert!(engine.commit(&Batch::new(), None, Admit::User).unwrap() > Seq(0));
}
