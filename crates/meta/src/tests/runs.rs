//! Runs of several tables, each of several partitions.

use warpfire_log::{MemLog, MemLogOptions};
use warpfire_units::Seq;

use super::{get, open, put};
use crate::{Background, Direction, KeyRange, ScanPage, Store};

/// A scan passes from block to block, partition to partition and table to table, in both directions.
#[test]
fn a_run_of_large_tables_is_scanned_forwards_and_backwards() {
    // Tables of 2 MiB: eight partitions each.
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 256 << 20, segment_bytes: 8 << 20 });
    let engine = open(log, Background::Manual);
    // In no order, so that the tables of all flushes overlap, and are written again as long ones.
    for n in 0..30_000u64 {
        put(&engine, &(n * 7919 % 30_000).to_be_bytes(), &[n as u8; 200]).unwrap();
    }
    engine.compact().unwrap();
    let table_set = engine.inner_for_tests().table_set();
    let runs = &table_set.runs;
    assert_eq!(runs.len(), 1, "everything is in one run");
    assert!(runs[0].tables.len() > 1, "of several tables");
    let long = runs[0].tables.iter().map(|table| table.entry().len_bytes).max().unwrap();
    assert!(long > 2 * 64 * 4096, "of several partitions: {long} bytes");

    for direction in [Direction::Forward, Direction::Backward] {
        let mut found = Vec::new();
        let (mut start, mut end) = (0u64.to_be_bytes().to_vec(), None::<Vec<u8>>);
        loop {
            let mut page = ScanPage::default();
            let range = KeyRange { start: &start, end: end.as_deref() };
            engine.scan(range, Seq::MAX, direction, 7000, 1 << 30, &mut page).unwrap();
            found.extend(page.iter().map(|entry| entry.key.to_vec()));
            if !page.more {
                break;
            }
            let last = found.last().expect("a page with more has some").clone();
            match direction {
                Direction::Forward => start = [&last[..], &[0]].concat(),
                Direction::Backward => end = Some(last),
            }
        }
        if direction == Direction::Backward {
            found.reverse();
        }
        assert!(found == (0..30_000u64).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>());
    }
}

/// The bytes of a page are those of its keys and values.
#[test]
fn a_page_counts_its_bytes() {
    let engine = open(MemLog::new(), Background::Manual);
    put(&engine, b"key", b"value").unwrap();
    put(&engine, b"other", b"").unwrap();
    let mut page = ScanPage::default();
    engine
        .scan(KeyRange { start: b"", end: None }, Seq::MAX, Direction::Forward, 9, 1 << 20, &mut page)
        .unwrap();
    assert_eq!(page.bytes(), 3 + 5 + 5);
}

/// Blocks that were read are in the cache, with their memory.
#[test]
fn the_cache_counts_the_memory_of_its_blocks() {
    let engine = open(MemLog::new(), Background::Manual);
    for n in 0..100u32 {
        put(&engine, &n.to_be_bytes(), &[7; 100]).unwrap();
    }
    engine.flush().unwrap();
    let before = engine.cache_memory();
    assert_eq!((before.used_bytes, before.limit_bytes), (0, 64 << 10));
    assert!(get(&engine, &7u32.to_be_bytes()).is_some());
    let used_bytes = engine.cache_memory().used_bytes;
    assert!(
        (10_000..64 << 10).contains(&used_bytes),
        "{used_bytes} bytes for blocks of 10,000 bytes of values"
    );
}
