//! Transactions are serialisable: their outcome is one that they could have one after the other.
//!
//! Threads read lists in files and append to them, in transactions. Every append has a number of its own. So
//! a list shows the order of its writers, and the list that a transaction read shows which of them came
//! before it. Each such pair is an edge from the earlier transaction to the later. A history is serialisable
//! if its edges have no cycle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use warpfire_env::sync::atomic::{AtomicU32, Ordering};

use warpfire_env::sync::Mutex;
use warpfire_env::{Clock, SystemClock};
use warpfire_meta::{Storage, Store};

use super::{TestRandom, histories, world_with};
use crate::acl::Caller;
use crate::{Fs, FsError, FsOptions, NewMode, Position};

const ROOT: Caller<'static> = Caller::ROOT;
const LISTS: u64 = 5;

type List = Vec<u32>;

/// A committed transaction: the lists that it read before it appended, and the lists to which it appended.
#[derive(Clone, Debug, Default)]
struct CallDone {
    id: u32,
    reads: Vec<(usize, List)>,
    appends: Vec<usize>,
}

/// Judges a history.
///
/// # Errors
/// The first fault, in words.
fn judge(lists: &[List], done: &[CallDone]) -> Result<(), String> {
    let mut expected: BTreeMap<(usize, u32), u32> = BTreeMap::new();
    for tx in done {
        tx.appends.iter().for_each(|list| *expected.entry((*list, tx.id)).or_default() += 1);
    }
    for (number, list) in lists.iter().enumerate() {
        for id in list {
            let left = expected.get_mut(&(number, *id)).filter(|left| **left > 0);
            *left.ok_or(format!("{id} is in list {number} twice, or was never committed"))? -= 1;
        }
    }
    if let Some(((list, id), _)) = expected.iter().find(|(_, left)| **left > 0) {
        return Err(format!("{id} was committed and is lost from list {list}"));
    }
    let mut after: BTreeMap<u32, Vec<u32>> = done.iter().map(|tx| (tx.id, Vec::new())).collect();
    let mut edge = |from: u32, to: u32| {
        if from != to {
            after.get_mut(&from).expect("only committed transactions are in a list").push(to);
        }
    };
    for list in lists {
        list.windows(2).for_each(|pair| edge(pair[0], pair[1]));
    }
    for tx in done {
        for (number, read) in &tx.reads {
            let list = &lists[*number];
            if !list.starts_with(read) {
                return Err(format!("{} read list {number} as it never was", tx.id));
            }
            if let Some(seen) = read.last() {
                edge(*seen, tx.id);
            }
            if let Some(unseen) = list.get(read.len()) {
                edge(tx.id, *unseen);
            }
        }
    }
    let mut waits: BTreeMap<u32, usize> = after.keys().map(|id| (*id, 0)).collect();
    for to in after.values().flatten() {
        *waits.get_mut(to).expect("every end of an edge is a transaction") += 1;
    }
    let mut free: Vec<u32> = waits.iter().filter(|(_, n)| **n == 0).map(|(id, _)| *id).collect();
    let mut placed = 0;
    while let Some(id) = free.pop() {
        placed += 1;
        for to in &after[&id] {
            let left = waits.get_mut(to).expect("every end of an edge is a transaction");
            *left -= 1;
            if *left == 0 {
                free.push(*to);
            }
        }
    }
    if placed < after.len() {
        Err(format!("{} transactions are in cycles", after.len() - placed))
    } else {
        Ok(())
    }
}

fn name(list: u64) -> [u8; 1] {
    [b'a' + list as u8]
}

fn read<E: Storage>(fs: &Fs<E>, list: u64) -> Result<List, FsError> {
    let bytes = fs.read_file(&ROOT, &fs.root(), &name(list))?;
    Ok(bytes.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect())
}

/// Makes random calls in a transaction and commits it. `None` if it ended in a conflict.
fn try_one<E: Storage>(fs: &Arc<Fs<E>>, id: u32, draw: &mut TestRandom) -> Result<Option<CallDone>, FsError> {
    let mut done = CallDone { id, ..CallDone::default() };
    let bytes = id.to_le_bytes();
    if draw.below(8) == 0 {
        let list = draw.below(LISTS);
        let node = fs.lookup(&ROOT, &fs.root(), &name(list))?;
        fs.append(&ROOT, &node, &bytes)?;
        done.appends.push(list as usize);
        return Ok(Some(done));
    }
    let tx = fs.begin()?;
    let tx_fs = tx.files();
    let first = draw.below(LISTS);
    for list in (0..=draw.below(3)).map(|n| (first + n) % LISTS) {
        let node = tx_fs.lookup(&ROOT, &tx_fs.root(), &name(list))?;
        let point = tx.savepoint();
        match draw.below(6) {
            0 => tx_fs.append(&ROOT, &node, &bytes)?,
            1 => {
                tx_fs.append(&ROOT, &node, &[0; 4])?;
                tx.roll_back(&point)?;
                continue;
            }
            kind => {
                let seen = read(tx_fs, list)?;
                let end = seen.len() as u64 * 4;
                done.reads.push((list as usize, seen));
                if kind < 4 {
                    tx_fs.write(&ROOT, &node, Position::At(end), &bytes)?;
                } else {
                    continue;
                }
            }
        }
        done.appends.push(list as usize);
    }
    match tx.commit() {
        Ok(()) => Ok(Some(done)),
        Err(FsError::Conflict { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Runs random transactions of several threads and judges the history. Returns the number of conflicts.
/// `upkeep` is called between the transactions.
fn run<E: Storage>(
    fs: &Arc<Fs<E>>,
    seed: u64,
    (threads, each): (u64, u64),
    upkeep: &(dyn Fn(u64) + Sync),
) -> u64 {
    for list in 0..LISTS {
        fs.create_file(&ROOT, &fs.root(), &name(list), NewMode::exact(0o644), b"").unwrap();
    }
    let ids = AtomicU32::new(1);
    let all = Mutex::new(Vec::new());
    thread::scope(|s| {
        for thread in 0..threads {
            let ids = &ids;
            let all = &all;
            s.spawn(move || {
                let mut draw = TestRandom(seed * 1000 + thread);
                let mut mine = Vec::new();
                for _ in 0..each {
                    let id = ids.fetch_add(1, Ordering::Relaxed);
                    mine.extend(try_one(fs, id, &mut draw).unwrap());
                    upkeep(draw.next());
                }
                all.lock().extend(mine);
            });
        }
    });
    let lists: Vec<List> = (0..LISTS).map(|list| read(fs, list).unwrap()).collect();
    let done = all.into_inner();
    if let Err(wrong) = judge(&lists, &done) {
        panic!("not serialisable, seed {seed}: {wrong}");
    }
    threads * each - done.len() as u64
}

/// Runs a history and judges it: of lists, or of names, attributes and data.
type RunHistory<E> = fn(&Arc<Fs<E>>, u64, (u64, u64), &(dyn Fn(u64) + Sync)) -> u64;

/// A history over the naive engine.
fn over_a_map(run: RunHistory<super::Engine>, seed: u64, work: (u64, u64)) -> u64 {
    let (engine, clock) = world_with();
    let fs = Arc::new(Fs::open(engine.clone(), clock, FsOptions::default()).unwrap());
    let conflicts = run(&fs, seed, work, &|draw| {
        if draw % 50 == 0 {
            fs.sync().unwrap();
            engine.background_step().unwrap();
        }
    });
    fs.sync().unwrap();
    super::check::check(&*engine, &format!("seed {seed}"));
    conflicts
}

/// A history over the engine, which writes tables and cleans at the same time.
fn over_the_engine(run: RunHistory<super::engine::LogEngine>, seed: u64, work: (u64, u64)) -> u64 {
    let fs = Arc::new(super::engine::open(super::engine::format(), Fs::format));
    let conflicts = run(&fs, seed, work, &|draw| match draw % 40 {
        0 => fs.sync().unwrap(),
        1 => fs.engine().flush().unwrap(),
        2 => _ = fs.engine().background_step().unwrap(),
        _ => {}
    });
    fs.sync().unwrap();
    super::check::check(&**fs.engine(), &format!("seed {seed}"));
    conflicts
}

/// The number in an environment variable, or else the usual one.
fn wanted(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

#[test]
fn concurrent_transactions_are_serialisable() {
    for seed in 0..8 {
        over_a_map(run, seed, (8, 60));
        over_a_map(histories::run, seed, (8, 60));
    }
}

#[test]
fn transactions_are_serialisable_while_the_engine_writes_tables_and_cleans() {
    for seed in 0..4 {
        over_the_engine(run, 100 + seed, (4, 120));
        over_the_engine(histories::run, 100 + seed, (4, 120));
    }
}

/// As `scripts/transactions` runs it: histories of 2,000 events of 8 threads, of lists and of names,
/// attributes and data, over one engine and the other.
#[test]
#[ignore = "takes minutes: scripts/transactions"]
fn very_many_concurrent_transactions_are_serialisable() {
    const THREADS: u64 = 8;
    const EACH: u64 = 250;
    let count = wanted("WARPFIRE_TRANSACTIONS", 1_000_000);
    let start = SystemClock.monotonic_nanos();
    let (mut begun, mut conflicts, mut seed) = (0, 0, 0);
    while begun < count {
        let work = (THREADS, EACH);
        conflicts += match seed % 4 {
            0 => over_a_map(run, seed, work),
            1 => over_the_engine(run, seed, work),
            2 => over_a_map(histories::run, seed, work),
            _ => over_the_engine(histories::run, seed, work),
        };
        begun += THREADS * EACH;
        seed += 1;
    }
    let seconds = (SystemClock.monotonic_nanos() - start) / 1_000_000_000;
    println!(
        "{begun} transactions of {THREADS} threads in {seed} histories, each serialisable; \
         {conflicts} ended in a conflict; {seconds} s"
    );
}

#[test]
fn the_judge_finds_lost_and_doubled_appends_and_cycles() {
    let tx = |id, reads: &[(usize, &[u32])], appends: &[usize]| CallDone {
        id,
        reads: reads.iter().map(|(list, read)| (*list, read.to_vec())).collect(),
        appends: appends.to_vec(),
    };
    let two = [tx(1, &[(0, &[])], &[0]), tx(2, &[(0, &[1])], &[0])];
    assert_eq!(judge(&[vec![1, 2]], &two), Ok(()));
    assert!(judge(&[vec![1]], &two).unwrap_err().contains("lost"));
    assert!(judge(&[vec![1, 2, 2]], &two).unwrap_err().contains("twice"));
    assert!(judge(&[vec![2, 1]], &two).unwrap_err().contains("never was"));
    let skew = [tx(1, &[(0, &[])], &[1]), tx(2, &[(1, &[])], &[0])];
    assert!(judge(&[vec![2], vec![1]], &skew).unwrap_err().contains("cycles"));
}
