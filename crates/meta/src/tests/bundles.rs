//! Bundles: one read brings a record and its bytes, whatever merges and cleaning have done.

use warpfire_log::{Admit, LogStore, MemLog, MemLogOptions, RecoveredLog};
use warpfire_units::Seq;

use super::model::domains::make_domain;
use super::small;
use crate::testing::{ListSchema, Rng, clear_item, resolved, text_item};
use crate::{Background, Batch, Engine, EngineOptions, SliceStore, Store, WantedBytes};

type ListEngine = Engine<MemLog, ListSchema>;

const FILES: u64 = 2000;

fn open() -> ListEngine {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 64 << 20, segment_bytes: 128 << 10 });
    // Lookups have three quarters of it.
    let options = EngineOptions { block_cache_bytes: 88 << 10, ..small(Background::Manual) };
    Engine::open(log, RecoveredLog::empty(), ListSchema, options).unwrap()
}

fn key(n: u64) -> Vec<u8> {
    format!("directory/file {n:06}").into_bytes()
}

fn text(n: u64) -> Vec<u8> {
    (0..300).map(|i| (n.wrapping_mul(31).wrapping_add(i) % 251) as u8).collect()
}

fn change(engine: &ListEngine, n: u64, change: impl FnOnce(&mut Batch, &[u8])) {
    let mut batch = Batch::new();
    change(&mut batch, &key(n));
    engine.commit(&batch, None, Admit::User).unwrap();
}

/// An engine with files that were made at random, some of them over older ones.
fn filled() -> ListEngine {
    let engine = open();
    let mut rng = Rng(7);
    let mut order: Vec<u64> = (0..FILES).collect();
    for n in (1..order.len()).rev() {
        order.swap(n, rng.below(n as u64 + 1) as usize);
    }
    for n in order {
        change(&engine, n, |batch, key| batch.put(key, &text_item(&text(n))));
        while engine.background_step().unwrap() {}
    }
    engine
}

/// Reads each file whole, in an order that hides nothing in caches. Returns the reads of the log.
fn read_all(engine: &ListEngine, expected: impl Fn(u64) -> Vec<u8>) -> u64 {
    read_as(engine, WantedBytes::Now, at_random(), expected)
}

/// All files in an order that hides nothing in caches.
fn at_random() -> impl Iterator<Item = u64> {
    (0..FILES).map(|turn| turn * 1237 % FILES)
}

/// Reads files whole, in this order. Returns the reads of the log.
fn read_as(
    engine: &ListEngine,
    wanted: WantedBytes,
    order: impl Iterator<Item = u64>,
    expected: impl Fn(u64) -> Vec<u8>,
) -> u64 {
    let _pin = engine.pin().unwrap();
    let before = engine.log().counters().reads;
    let mut value = Vec::new();
    for n in order {
        assert!(engine.get_with_bytes(&key(n), wanted, &mut value).unwrap());
        let read = resolved(&value, |slice, buf| engine.log().read(slice, buf)).unwrap();
        assert_eq!(read, expected(n), "file {n}");
    }
    engine.log().counters().reads - before
}

#[test]
fn one_read_brings_a_record_and_its_bytes_after_merges() {
    let engine = filled();
    engine.flush().unwrap();
    let reads = read_all(&engine, text);
    // The indexes are read too; the cache is far too small for the records.
    assert!(reads < FILES * 5 / 4, "{reads} reads for {FILES} files");
    engine.compact().unwrap();
    let reads = read_all(&engine, text);
    assert!(reads < FILES * 5 / 4, "{reads} reads for {FILES} files in one run");
}

/// A file is looked up, and its bytes are read by another call. Both together cost one read.
#[test]
fn bytes_that_are_wanted_soon_are_kept() {
    let engine = filled();
    engine.compact().unwrap();
    let _pin = engine.pin().unwrap();
    let resolve = |n: u64, wanted| {
        let mut value = Vec::new();
        assert!(engine.get_with_bytes(&key(n), wanted, &mut value).unwrap());
        let read = resolved(&value, |slice, buf| engine.log().read(slice, buf)).unwrap();
        assert_eq!(read, text(n), "file {n}");
    };
    for second in [WantedBytes::Now, WantedBytes::Soon, WantedBytes::IfKept] {
        let before = engine.log().counters().reads;
        for turn in 0..FILES {
            let n = turn * 1237 % FILES;
            let mut value = Vec::new();
            assert!(engine.get_with_bytes(&key(n), WantedBytes::Soon, &mut value).unwrap());
            resolve(n, second);
        }
        let reads = engine.log().counters().reads - before;
        assert!(reads < FILES * 5 / 4, "{second:?}: {reads} reads for {FILES} files");
    }
    // A change of the bytes is seen at once.
    resolve(5, WantedBytes::Soon);
    change(&engine, 5, |batch, key| batch.put(key, &text_item(&[3; 8])));
    let mut value = Vec::new();
    assert!(engine.get_with_bytes(&key(5), WantedBytes::IfKept, &mut value).unwrap());
    let read = resolved(&value, |slice, buf| engine.log().read(slice, buf)).unwrap();
    assert_eq!(read, [3; 8]);
}

/// An engine whose cache has room for all files.
fn filled_in_memory() -> ListEngine {
    let engine = filled();
    engine.compact().unwrap();
    engine.limit_cache(2 << 20);
    engine
}

#[test]
fn a_file_that_is_wanted_again_is_read_once() {
    let engine = filled_in_memory();
    read_as(&engine, WantedBytes::Again, at_random(), text);
    assert_eq!(read_as(&engine, WantedBytes::Again, at_random(), text), 0);
    assert_eq!(read_as(&engine, WantedBytes::Soon, at_random(), text), 0);
    // Also if its record has been looked up before.
    let engine = filled_in_memory();
    let mut value = Vec::new();
    for n in at_random() {
        assert!(engine.get(&key(n), Seq::MAX, &mut value).unwrap());
    }
    read_as(&engine, WantedBytes::Again, at_random(), text);
    assert_eq!(read_as(&engine, WantedBytes::Again, at_random(), text), 0);
}

#[test]
fn files_that_are_read_once_take_no_room_from_others() {
    let reads = [(WantedBytes::Now, false), (WantedBytes::Soon, false), (WantedBytes::Again, true)];
    for (wanted, is_in_order) in reads {
        let engine = filled_in_memory();
        let order: Vec<u64> = if is_in_order { (0..FILES).collect() } else { at_random().collect() };
        read_as(&engine, wanted, order.into_iter(), text);
        let used_bytes = engine.cache_memory().used_bytes;
        // A part of an eighth is for blocks that pass.
        let bytes = FILES * text(0).len() as u64;
        assert!(used_bytes < (256 << 10) + bytes / 4, "{wanted:?}: {used_bytes} bytes are in the cache");
    }
}

#[test]
fn a_short_change_of_a_record_keeps_its_bundle() {
    let engine = filled();
    for round in 0..2u8 {
        for n in 0..FILES {
            change(&engine, n, |batch, key| batch.merge(key, &text_item(&[round; 3])));
        }
        engine.compact().unwrap();
        let expected = |n| [text(n), vec![0; 3], if round == 1 { vec![1; 3] } else { vec![] }].concat();
        let reads = read_all(&engine, expected);
        assert!(reads < FILES * 5 / 4, "round {round}: {reads} reads for {FILES} files");
    }
}

#[test]
fn a_change_of_the_bytes_or_a_long_one_ends_a_bundle() {
    let engine = filled();
    for n in 0..FILES {
        let with_clear = [clear_item(), text_item(&text(n + 1))].concat();
        match n % 4 {
            0 => change(&engine, n, |batch, key| batch.merge(key, &text_item(&[9; 15]))),
            1 => change(&engine, n, |batch, key| batch.merge(key, &with_clear)),
            2 => change(&engine, n, |batch, key| batch.merge(key, &text_item(&[9; 100]))),
            _ => {}
        }
    }
    let expected = |n| match n % 4 {
        0 => [text(n), vec![9; 15]].concat(),
        1 => text(n + 1),
        2 => [text(n), vec![9; 100]].concat(),
        _ => text(n),
    };
    read_all(&engine, expected);
    engine.compact().unwrap();
    read_all(&engine, expected);
    for n in (0..FILES).filter(|n| n % 4 == 0) {
        change(&engine, n, |batch, key| batch.merge(key, &text_item(&[8; 15])));
    }
    engine.compact().unwrap();
    read_all(&engine, |n| if n % 4 == 0 { [expected(n), vec![8; 15]].concat() } else { expected(n) });
}

/// All that is left of three files in four is garbage, so their segments are cleaned. Bundles move whole.
#[test]
fn cleaning_moves_bundles_whole() {
    let engine = filled();
    engine.compact().unwrap();
    for n in (0..FILES).filter(|n| n % 4 != 0) {
        change(&engine, n, |batch, key| batch.delete(key));
    }
    engine.reclaim_all().unwrap();
    let before = engine.log().counters().reads;
    let _pin = engine.pin().unwrap();
    let mut value = Vec::new();
    for n in (0..FILES).filter(|n| n % 4 == 0) {
        assert!(engine.get_with_bytes(&key(n), WantedBytes::Now, &mut value).unwrap());
        let read = resolved(&value, |_, _| unreachable!("its bytes came with the record")).unwrap();
        assert_eq!(read, text(n));
    }
    let reads = engine.log().counters().reads - before;
    assert!(reads < FILES / 4 * 5 / 4, "{reads} reads for {} files", FILES / 4);
    assert!(!engine.get(&key(1), Seq::MAX, &mut value).unwrap());
}

/// A bundle of the origin may be newer than what a clone shows, and operands of the clone have none below.
#[test]
fn a_domain_reads_on_past_the_bundles_of_its_origin() {
    let engine = filled();
    engine.compact().unwrap();
    make_domain(&engine, *b"copy", *b"dire", None);
    let in_copy = |n: u64| [b"copy", &key(n)[4..]].concat();
    let change_copy = |n: u64, change: &dyn Fn(&mut Batch, &[u8])| {
        let mut batch = Batch::new();
        change(&mut batch, &in_copy(n));
        engine.commit(&batch, None, Admit::User).unwrap();
    };
    for n in 0..FILES {
        change(&engine, n, |batch, key| batch.put(key, &text_item(&text(n + 7))));
        match n % 4 {
            0 => change_copy(n, &|batch, key| batch.merge(key, &text_item(&[9; 3]))),
            1 => change_copy(n, &|batch, key| batch.put(key, &text_item(&text(n + 1)))),
            2 => change_copy(n, &|batch, key| batch.delete(key)),
            _ => {}
        }
    }
    let expected = |n| match n % 4 {
        0 => Some([text(n), vec![9; 3]].concat()),
        1 => Some(text(n + 1)),
        2 => None,
        _ => Some(text(n)),
    };
    let check = |engine: &ListEngine| {
        let _pin = engine.pin().unwrap();
        let mut value = Vec::new();
        for n in 0..FILES {
            let found = engine.get_with_bytes(&in_copy(n), WantedBytes::Now, &mut value).unwrap();
            let read = found.then(|| resolved(&value, |slice, buf| engine.log().read(slice, buf)).unwrap());
            assert_eq!(read, expected(n), "file {n} of the copy");
        }
        read_all(engine, |n| text(n + 7));
    };
    check(&engine);
    engine.compact().unwrap();
    check(&engine);
    // An operand that was kept folds onto a later one, still with nothing below in its own domain.
    for n in (0..FILES).step_by(4) {
        change_copy(n, &|batch, key| {
            batch.merge(key, &text_item(&[]));
        });
    }
    engine.compact().unwrap();
    engine.reclaim_all().unwrap();
    check(&engine);
    // What the clone has itself has bundles, too.
    let before = engine.log().counters().reads;
    let _pin = engine.pin().unwrap();
    let mut value = Vec::new();
    for n in (0..FILES).map(|turn| turn * 1237 % FILES).filter(|n| n % 4 == 1) {
        assert!(engine.get_with_bytes(&in_copy(n), WantedBytes::Now, &mut value).unwrap());
        let read = resolved(&value, |slice, buf| engine.log().read(slice, buf)).unwrap();
        assert_eq!(read, text(n + 1));
    }
    let reads = engine.log().counters().reads - before;
    assert!(reads < FILES / 4 * 5 / 4, "{reads} reads for {} files", FILES / 4);
}
