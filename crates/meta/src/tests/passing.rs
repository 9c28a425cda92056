//! Scans and the cache of blocks: what a scan meets takes no room from what lookups use.

use warpfire_log::{Admit, MemLog, RecoveredLog};

use super::{PlainEngine, get, small};
use crate::schema::PlainSchema;
use crate::{Background, Batch, Direction, Engine, EngineOptions, KeyRange, ScanPage, Store};

const KEYS: u64 = 40_000;
const CACHE_BYTES: u64 = 2 << 20;
/// The part of the cache for blocks that pass.
const PASSING_BYTES: u64 = CACHE_BYTES / 8;

fn key(n: u64) -> Vec<u8> {
    format!("a directory of many/file {n:08}").into_bytes()
}

/// An engine whose cache has room for a part of its records only.
fn filled() -> PlainEngine {
    let log = MemLog::default();
    let options = EngineOptions {
        memtable_bytes: 1 << 20,
        block_cache_bytes: CACHE_BYTES,
        ..small(Background::Manual)
    };
    let engine = Engine::open(log, RecoveredLog::empty(), PlainSchema, options).unwrap();
    for n in 0..KEYS {
        let mut batch = Batch::new();
        batch.put(&key(n), &[n as u8; 60]);
        engine.commit(&batch, None, Admit::User).unwrap();
        while engine.background_step().unwrap() {}
    }
    engine.compact().unwrap();
    engine
}

/// Scans all keys, in pages. `each` is called with the number of the first key of a page, and that after its
/// last.
fn scan(engine: &PlainEngine, mut each: impl FnMut(u64, u64)) {
    let snapshot = engine.snapshot();
    let (mut page, mut start, mut seen) = (ScanPage::default(), Vec::new(), 0);
    loop {
        let range = KeyRange { start: &start, end: None };
        engine.scan(range, snapshot.seq(), Direction::Forward, 1000, 1 << 20, &mut page).unwrap();
        each(seen, seen + page.len() as u64);
        seen += page.len() as u64;
        let Some(last) = page.iter().next_back().filter(|_| page.more) else { break };
        start = last.key.to_vec();
        start.push(0);
    }
    assert_eq!(seen, KEYS);
}

fn reads(engine: &PlainEngine, work: impl FnOnce()) -> u64 {
    let before = engine.log().counters().reads;
    work();
    engine.log().counters().reads - before
}

fn look_up(engine: &PlainEngine, keys: impl Iterator<Item = u64>) {
    keys.for_each(|n| assert_eq!(get(engine, &key(n)), Some(vec![n as u8; 60])));
}

/// `pass` meets all keys in their order, after some were looked up.
fn passes(pass: impl Fn(&PlainEngine)) {
    let engine = filled();
    let some = || look_up(&engine, (0..50).map(|n| n * 37 % 50 * 800));
    some();
    assert_eq!(reads(&engine, some), 0, "the blocks of fifty keys fit the cache");
    let before = engine.cache_memory().used_bytes;
    for _ in 0..2 {
        pass(&engine);
    }
    assert_eq!(reads(&engine, some), 0, "blocks that pass take room from each other");
    let added = engine.cache_memory().used_bytes - before;
    assert!(added < CACHE_BYTES / 4, "{added} bytes of the cache were taken");
}

#[test]
fn a_scan_leaves_the_blocks_of_lookups_in_the_cache() {
    passes(|engine| scan(engine, |_, _| ()));
}

/// The index of a pool of a thousand million files has some gigabytes, and a walk needs each part of it once.
#[test]
fn a_scan_leaves_its_part_of_the_index_in_no_cache() {
    let engine = filled();
    scan(&engine, |_, _| ());
    let used_bytes = engine.cache_memory().used_bytes;
    assert!(used_bytes < PASSING_BYTES + (32 << 10), "{used_bytes} bytes are in the cache");
}

#[test]
fn lookups_in_the_order_of_keys_are_like_a_scan() {
    passes(|engine| look_up(engine, 0..KEYS));
}

#[test]
fn lookups_in_another_order_fill_the_cache() {
    let engine = filled();
    look_up(&engine, (0..KEYS).map(|n| n * 7919 % KEYS));
    let memory = engine.cache_memory();
    assert!(memory.used_bytes > CACHE_BYTES / 2 && memory.used_bytes <= memory.limit_bytes, "{memory:?}");
}

#[test]
fn a_key_that_a_scan_has_just_returned_costs_no_read() {
    let engine = filled();
    let mut after_scan = 0;
    let all = reads(&engine, || {
        scan(&engine, |from, to| {
            let look_up = || (from..to).for_each(|n| assert!(get(&engine, &key(n)).is_some()));
            after_scan += reads(&engine, look_up);
        });
    });
    assert!(after_scan * 20 < all, "{after_scan} of {all} reads were for keys that had just been returned");
}
