//! The engine: commits, group syncs, flushes, installs, cleaning and pins beside each other.

use std::collections::BTreeMap;
use std::sync::Mutex;

use shuttle::thread;
use warpfire_log::{Admit, LogError};
use warpfire_meta::{Batch, CommitError, Direction, KeyRange, MetaError, ReadSet, ScanPage, Store};
use warpfire_schedules::{Stack, TestEngine, draw, explore};
use warpfire_units::Seq;

/// So few zones that freed ones are soon used again.
const SCARCE_ZONES: u64 = 16;

const WRITERS: u64 = 3;
const EACH: u64 = 12;
/// Bytes behind each number, so that memtables fill.
const PADDING: [u8; 3000] = [0; 3000];

fn name(n: u64) -> Vec<u8> {
    format!("account {n:02}").into_bytes()
}

fn put(batch: &mut Batch, key: &[u8], number: u64) {
    batch.put(key, &[&number.to_le_bytes()[..], &PADDING].concat());
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("a value begins with its number"))
}

fn get(engine: &TestEngine, key: &[u8], at: Seq) -> Option<u64> {
    let mut value = Vec::new();
    engine.get(key, at, &mut value).expect("nothing is damaged").then(|| number(&value))
}

#[test]
fn what_a_sync_covers_survives_a_power_cut_right_after_it() {
    explore(200, || {
        let stack = Stack::draw();
        let engine = stack.create_engine();
        // The newest number of each writer that a sync has covered. A plain lock: no task switches under it.
        let synced = Mutex::new(BTreeMap::new());
        let cuts = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (engine, synced, stack, cuts) = (&engine, &synced, &stack, &cuts);
                scope.spawn(move || {
                    for n in 1..=EACH {
                        let mut batch = Batch::new();
                        put(&mut batch, &name(writer), n);
                        let seq = engine.commit(&batch, None, Admit::User).expect("there is room");
                        if draw(2) == 0 {
                            engine.sync(if draw(4) == 0 { Seq::MAX } else { seq }).expect("no device fails");
                            synced.lock().expect("nobody panics under it").insert(writer, n);
                            if draw(8) == 0 {
                                let promised = synced.lock().expect("nobody panics under it").clone();
                                cuts.lock().expect("nobody panics under it").push((promised, stack.cut()));
                            }
                        }
                    }
                });
            }
        });
        engine.close().expect("no device fails");
        for (promised, after) in cuts.into_inner().expect("nobody panicked under it") {
            let engine = after.open_engine();
            for (writer, n) in promised {
                let found = get(&engine, &name(writer), Seq::MAX);
                assert!(found >= Some(n), "writer {writer} synced {n}, and {found:?} is there");
            }
        }
    });
}

#[test]
fn a_snapshot_stays_the_same_while_tables_are_written_installed_and_cleaned() {
    const ACCOUNTS: u64 = 8;
    explore(200, || {
        let stack = Stack::of(SCARCE_ZONES);
        let engine = stack.create_engine();
        let mut batch = Batch::new();
        (0..ACCOUNTS).for_each(|n| put(&mut batch, &name(n), 100));
        engine.commit(&batch, None, Admit::User).expect("there is room");
        thread::scope(|scope| {
            let engine = &engine;
            for _ in 0..WRITERS {
                scope.spawn(move || (0..4 * EACH).for_each(|_| transfer(engine, ACCOUNTS)));
            }
            scope.spawn(move || {
                for _ in 0..EACH {
                    let snapshot = engine.snapshot();
                    let sums = [(); 4].map(|()| sum(engine, snapshot.seq(), ACCOUNTS));
                    assert_eq!(sums, [ACCOUNTS * 100; 4]);
                }
            });
        });
        engine.close().expect("no device fails");
    });
}

/// Moves an amount from one account to another.
fn transfer(engine: &TestEngine, accounts: u64) {
    let (from, to) = (draw(accounts), draw(accounts));
    if from == to {
        return;
    }
    let (from, to) = (name(from), name(to));
    let _guard = engine.lock(&[&from, &to]);
    let balance = |key: &[u8]| get(engine, key, Seq::MAX).expect("every account exists");
    let amount = draw(balance(&from) + 1);
    let mut batch = Batch::new();
    put(&mut batch, &from, balance(&from) - amount);
    put(&mut batch, &to, balance(&to) + amount);
    // A reader whose snapshot keeps every freed segment may come last in this schedule: then the pool is full
    // until it goes on.
    while let Err(e) = engine.commit(&batch, None, Admit::User) {
        assert!(matches!(e, CommitError::Failed(MetaError::Log(LogError::NoSpace))), "{e}");
        thread::yield_now();
    }
}

/// The sum of all accounts, by a scan in a direction that is drawn.
fn sum(engine: &TestEngine, at: Seq, accounts: u64) -> u64 {
    let direction = if draw(2) == 0 { Direction::Forward } else { Direction::Backward };
    let mut page = ScanPage::default();
    let all = KeyRange { start: b"", end: None };
    engine.scan(all, at, direction, 1000, 1 << 20, &mut page).expect("nothing is damaged");
    assert_eq!(page.len() as u64, accounts);
    page.iter().map(|entry| number(entry.value)).sum()
}

#[test]
fn an_increment_with_a_read_set_is_never_lost() {
    explore(200, || {
        let stack = Stack::draw();
        let engine = stack.create_engine();
        thread::scope(|scope| {
            for _ in 0..WRITERS {
                let engine = &engine;
                scope.spawn(move || (0..EACH).for_each(|_| increment(engine)));
            }
        });
        assert_eq!(get(&engine, b"count", Seq::MAX), Some(WRITERS * EACH));
        engine.close().expect("no device fails");
    });
}

/// Adds one, without a lock: again and again until nobody else came between.
fn increment(engine: &TestEngine) {
    loop {
        let snapshot = engine.snapshot();
        let before = get(engine, b"count", snapshot.seq()).unwrap_or(0);
        let reads = ReadSet::new(snapshot.seq(), [b"count"], []);
        let mut batch = Batch::new();
        put(&mut batch, b"count", before + 1);
        match engine.commit(&batch, Some(&reads), Admit::User) {
            Ok(_) => return,
            Err(CommitError::Conflict) => {}
            Err(e) => panic!("{e}"),
        }
    }
}
