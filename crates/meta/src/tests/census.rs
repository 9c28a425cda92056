//! Garbage between bytes that have two names: the census against a naive count.

use std::ops::Range;
use std::sync::Arc;

use warpfire_env::sync::atomic::{AtomicBool, Ordering};
use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_log::{Admit, CensusNeed, LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_units::{SegmentId, Seq, SlicePtr};

use super::small;
use crate::schema::Schema;
use crate::table::RunStream;
use crate::testing::{ListItem, ListSchema, Rng, items, pointer_item, text_item};
use crate::{Background, Batch, Engine, SliceStore, Store};
use warpfire_slices::HasSlices;

pub(super) type ListEngine = Engine<MemLog, ListSchema>;

const SEGMENT_BYTES: u64 = 128 << 10;

fn open(segments: u64, background: Background) -> ListEngine {
    let options = MemLogOptions { capacity_bytes: segments * SEGMENT_BYTES, segment_bytes: SEGMENT_BYTES };
    let log = MemLog::with_options(options);
    Engine::open(log, RecoveredLog::empty(), ListSchema, small(background)).unwrap()
}

/// The bytes of all references that memtables, tables and the tables' own bytes make, and those that they
/// name, each once. Nothing else may run, and nothing may be held.
pub(super) fn naive_count(engine: &ListEngine) -> (u64, u64) {
    let inner = engine.inner_for_tests();
    let mut named: Vec<(SegmentId, u64, u64)> = Vec::new();
    let mut add = |slice: SlicePtr| {
        named.push((slice.segment, slice.offset_bytes, slice.offset_bytes + u64::from(slice.len_bytes)));
    };
    let add_value = |entry: KeyVersion<'_>, add: &mut dyn FnMut(SlicePtr)| {
        if entry.kind != VersionKind::Delete {
            ListSchema.pointers(entry.key, entry.value, false, add).unwrap();
        }
    };
    for (_, table) in inner.table_set().tables() {
        table.entry().slices.iter().for_each(|slice| add(*slice));
        let mut stream = RunStream::new(vec![Arc::clone(table)]).unwrap();
        while let Some(entry) = stream.entry() {
            let bundle = stream.bundle().map(|bundle| bundle.slice);
            let mut add_whole = |slice: SlicePtr| match bundle {
                Some(bundle) if slice.is_end_of(bundle) => add(bundle),
                _ => add(slice),
            };
            add_value(entry, &mut add_whole);
            stream.next().unwrap();
        }
    }
    let frozen = inner.shards.frozen();
    for shard in frozen.iter().flat_map(|frozen| &frozen.shards) {
        (0..shard.len()).for_each(|slot| add_value(shard.entry(slot), &mut add));
    }
    for shard in inner.shards.read_all() {
        (0..shard.active.len()).for_each(|slot| add_value(shard.active.entry(slot), &mut add));
    }
    let references = named.iter().map(|(_, from, to)| to - from).sum();
    named.sort_unstable();
    let (mut distinct, mut end) = (0, (SegmentId::FIRST, 0));
    for (segment, from, to) in named {
        let from = if end.0 == segment { from.max(end.1) } else { from };
        distinct += to.saturating_sub(from);
        end = (segment, if end.0 == segment { to.max(end.1) } else { to });
    }
    (references, distinct)
}

/// Compares the log's counts with the naive ones: before a census they are bounds, after it they are exact.
pub(super) fn check_counts(engine: &ListEngine) {
    let (references, distinct) = naive_count(engine);
    let before = engine.log().space();
    assert!(before.live_bytes >= distinct, "{distinct} bytes are live and the log knows {before:?}");
    engine.count_live().unwrap();
    let counted = engine.log().space();
    assert_eq!((counted.live_bytes, counted.shared_bytes), (distinct, references - distinct));
    assert_eq!(counted.unsure_bytes, 0, "counted bytes are sure");
}

fn file(n: u64) -> Vec<u8> {
    format!("file {n:06}").into_bytes()
}

/// Writes bytes as one slice each, and names them under a key.
fn write(engine: &ListEngine, key: &[u8], parts: &[Vec<u8>]) {
    let written: Vec<_> =
        parts.iter().map(|bytes| engine.write(Stream::Large, bytes, Admit::User).unwrap()).collect();
    name(engine, key, &written.concat());
    written.iter().for_each(|slices| engine.release(slices));
}

fn name(engine: &ListEngine, key: &[u8], slices: &[SlicePtr]) {
    let named: Vec<Vec<u8>> = slices.iter().map(|slice| pointer_item(*slice)).collect();
    let mut batch = Batch::new();
    batch.put(key, &named.concat());
    engine.commit(&batch, None, Admit::User).unwrap();
}

fn slices_of(engine: &ListEngine, key: &[u8]) -> Vec<SlicePtr> {
    let mut value = Vec::new();
    assert!(engine.get(key, Seq::MAX, &mut value).unwrap());
    let pointer = |item| match item {
        ListItem::Pointer(slice) => slice,
        _ => panic!("only slices are named"),
    };
    items(&value).unwrap().into_iter().map(pointer).collect()
}

fn content(engine: &ListEngine, key: &[u8]) -> Vec<u8> {
    let _pin = engine.pin().unwrap();
    let mut bytes = Vec::new();
    for slice in slices_of(engine, key) {
        let start = bytes.len();
        bytes.resize(start + slice.len_bytes as usize, 0);
        engine.read(&mut [(slice, &mut bytes[start..])]).unwrap();
    }
    bytes
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    std::iter::repeat_with(|| rng.next() as u8).take(len).collect()
}

const BLOCK: usize = 4096;
/// Blocks of a file: half of one is overwritten in each segment.
const BLOCKS: u64 = 32;

/// The first half of each file is overwritten.
fn overwrite_half(engine: &ListEngine, keys: Range<u64>) {
    for key in keys {
        let mut slices = slices_of(engine, &file(key));
        let half = slices.len() / 2;
        let new: Vec<SlicePtr> = (0..half)
            .flat_map(|n| {
                engine
                    .write(Stream::Large, &bytes(key << 32 | 1 << 31 | n as u64, BLOCK), Admit::User)
                    .unwrap()
            })
            .collect();
        slices.splice(..half, new.iter().copied());
        name(engine, &file(key), &slices);
        engine.release(&new);
    }
}

/// Files 0 to `count`, and their copies behind them: by name only.
fn files_and_copies(engine: &ListEngine, count: u64) {
    for n in 0..count {
        let parts: Vec<Vec<u8>> = (0..BLOCKS).map(|block| bytes(n << 32 | block, BLOCK)).collect();
        write(engine, &file(n), &parts);
        let _pin = engine.pin().unwrap();
        name(engine, &file(count + n), &slices_of(engine, &file(n)));
    }
}

fn rest(engine: &ListEngine) {
    while engine.background_step().unwrap() {}
}

/// The old bytes of the overwritten halves have no name any more. Before, no segment seemed to have garbage:
/// as many bytes were referenced as were written.
#[test]
fn a_file_and_its_copy_that_lose_the_same_half_give_it_back() {
    let engine = open(400, Background::Manual);
    let count = 40;
    files_and_copies(&engine, count);
    engine.compact().unwrap();
    rest(&engine);
    let whole = count * BLOCKS * BLOCK as u64;
    let before = engine.log().space();
    assert!(before.live_bytes < whole + (whole / 20) && before.shared_bytes >= whole, "{before:?}");
    let all: Vec<Vec<u8>> = (0..2 * count).map(|n| content(&engine, &file(n))).collect();
    assert_eq!(all[3], all[3 + count as usize]);
    overwrite_half(&engine, 0..2 * count);
    engine.compact().unwrap();
    let written = engine.log().counters().appended_bytes;
    rest(&engine);
    let after = engine.log().space();
    // The common half, and a new half for each file.
    let live = whole / 2 + whole;
    assert!(after.live_bytes < live + live / 20, "{after:?} of {live}");
    check_counts(&engine);
    let moved = engine.log().counters().appended_bytes - written;
    assert!(moved < whole * 6 / 10, "cleaning moves each of the {whole} bytes once: {moved}");
    // A quarter of the pool is free at least, and so cleaning stopped.
    engine.reclaim_all().unwrap();
    let after = engine.log().space();
    let used = after.total_bytes - after.free_bytes;
    assert!(used < live + live / 5, "{after:?}: {used} of {live}");
    for (n, old) in (0..2 * count).zip(&all) {
        let new = content(&engine, &file(n));
        assert!(new[new.len() / 2..] == old[old.len() / 2..], "file {n}");
        assert!(new[..new.len() / 2] != old[..old.len() / 2], "file {n}");
    }
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let engine = Engine::open(log, recovered, ListSchema, small(Background::Manual)).unwrap();
    check_counts(&engine);
}

/// The same, with the pool reopened between the copy and the loss.
#[test]
fn a_reopened_pool_finds_garbage_that_comes_after_and_on_demand_all_of_it() {
    for loses_before in [false, true] {
        let engine = open(400, Background::Manual);
        let count = 40;
        files_and_copies(&engine, count);
        if loses_before {
            overwrite_half(&engine, 0..2 * count);
        }
        engine.compact().unwrap();
        engine.sync(Seq::MAX).unwrap();
        let (log, recovered) = engine.log().crash();
        let engine = Engine::open(log, recovered, ListSchema, small(Background::Manual)).unwrap();
        if !loses_before {
            overwrite_half(&engine, 0..2 * count);
            engine.compact().unwrap();
        }
        rest(&engine);
        let (_, distinct) = naive_count(&engine);
        let seen = engine.log().space().live_bytes;
        if loses_before {
            assert!(seen > distinct * 6 / 5, "nothing has shown the garbage yet: {seen} and {distinct}");
            engine.reclaim_all().unwrap();
        }
        let (_, distinct) = naive_count(&engine);
        let space = engine.log().space();
        assert!(space.live_bytes <= distinct * 21 / 20, "{space:?} and {distinct}");
        let used = space.total_bytes - space.free_bytes - space.garbage_bytes;
        assert!(used <= distinct * 6 / 5, "{space:?} and {distinct}");
    }
}

#[test]
fn without_a_change_no_table_is_read_again() {
    let engine = open(400, Background::Manual);
    files_and_copies(&engine, 40);
    overwrite_half(&engine, 0..80);
    engine.compact().unwrap();
    rest(&engine);
    let reads = engine.log().counters().read_bytes;
    let inner = engine.inner_for_tests();
    for _ in 0..50 {
        engine.background_step().unwrap();
        assert!(!inner.census_step(CensusNeed::Gain).unwrap());
    }
    assert_eq!(engine.log().counters().read_bytes, reads);
    // Values that no slice belongs to, and new slices, change nothing about it.
    for n in 0..200u64 {
        let mut batch = Batch::new();
        batch.put(&n.to_be_bytes(), &text_item(b"short"));
        engine.commit(&batch, None, Admit::User).unwrap();
        write(&engine, &file(1000 + n), &[bytes(n, BLOCK)]);
    }
    engine.flush().unwrap();
    assert_eq!(engine.log().space().unsure_bytes, 0);
    // Without shared bytes there is no census, however many names go.
    let engine = open(400, Background::Manual);
    for n in 0..40 {
        let parts: Vec<Vec<u8>> = (0..BLOCKS).map(|block| bytes(block, BLOCK)).collect();
        write(&engine, &file(n), &parts);
    }
    for round in 0..10u64 {
        for n in 0..20 {
            let parts = (0..BLOCKS).map(|block| bytes(round << 32 | block, BLOCK)).collect::<Vec<_>>();
            write(&engine, &file(n), &parts);
        }
        engine.compact().unwrap();
        let space = engine.log().space();
        assert_eq!((space.unsure_bytes, inner_census(&engine)), (0, false), "{space:?}");
        rest(&engine);
    }
}

fn inner_census(engine: &ListEngine) -> bool {
    engine.inner_for_tests().census_step(CensusNeed::Gain).unwrap()
}

/// Slices that begin and end anywhere in bytes that other slices name too.
#[test]
fn cleaning_keeps_bytes_shared_wherever_their_names_begin_and_end() {
    let engine = open(100, Background::Manual);
    let mut rng = Rng(3);
    let whole = bytes(1, SEGMENT_BYTES as usize);
    let slice = engine.write(Stream::Large, &whole, Admit::User).unwrap()[0];
    // A third of the segment lives, under two hundred names.
    let lives = 40_000u32;
    let mut wanted = Vec::new();
    for n in 0..200u64 {
        let from = rng.below(u64::from(lives) - 1) as u32;
        let len = 1 + rng.below(u64::from(lives - from)) as u32;
        name(&engine, &file(n), &[slice.part(from, len)]);
        wanted.push(whole[from as usize..(from + len) as usize].to_vec());
    }
    engine.release(&[slice]);
    // Seals the segment.
    write(&engine, b"other", &[bytes(2, SEGMENT_BYTES as usize)]);
    engine.compact().unwrap();
    let (_, distinct) = naive_count(&engine);
    let tables = || engine.runs().iter().map(|(_, bytes)| bytes).sum::<u64>();
    let tables_before = tables();
    let before = engine.log().counters();
    // The references are fifty times as many bytes as the segment has.
    engine.count_live().unwrap();
    assert!(engine.inner_for_tests().clean_step().unwrap());
    let after = engine.log().counters();
    let moved = after.appended_bytes - before.appended_bytes;
    // Besides the bytes it writes the tables, in which a name may have become several.
    assert!(moved <= u64::from(lives) + tables(), "{moved} bytes written to move {lives}");
    assert!(tables() <= 4 * tables_before, "{} bytes of tables, {tables_before} before", tables());
    let read = after.read_bytes - before.read_bytes;
    assert!(read <= u64::from(lives) + 2 * tables_before, "{read} bytes read to move {lives}");
    let (_, now) = naive_count(&engine);
    assert!(now <= distinct + tables(), "{now} bytes are live, {distinct} before");
    for (n, wanted) in (0..).zip(&wanted) {
        assert!(content(&engine, &file(n)) == *wanted, "file {n}");
    }
    check_counts(&engine);
}

/// Held bytes count, and writers between their write and their commit make a segment look fuller and never
/// emptier.
#[test]
fn held_bytes_and_bytes_that_have_no_name_yet_count_as_live() {
    let engine = open(100, Background::Manual);
    let unnamed = engine.write(Stream::Large, &bytes(1, 10_000), Admit::User).unwrap()[0];
    let held = engine.write(Stream::Large, &bytes(2, 20_000), Admit::User).unwrap()[0];
    let holder = engine.slices().holder();
    holder.hold(&[held.part(0, 15_000)]).unwrap();
    holder.hold(&[held.part(5000, 10_000)]).unwrap();
    name(&engine, b"named", &[held.part(10_000, 10_000)]);
    engine.release(&[held]);
    engine.count_live().unwrap();
    let space = engine.log().space();
    assert_eq!((space.live_bytes, space.shared_bytes), (10_000 + 20_000, 5000));
    name(&engine, b"later", &[unnamed]);
    assert!(engine.log().space().live_bytes >= 30_000);
    engine.release(&[unnamed]);
    holder.release_hold(&[held.part(0, 5000)]);
    holder.release_hold(&[held.part(5000, 10_000)]);
    holder.release_hold(&[held.part(5000, 10_000)]);
    check_counts(&engine);
}

/// A memtable is frozen and its flush has not begun: names are in it and in the active one.
#[test]
fn names_in_a_frozen_memtable_and_in_the_active_one_count() {
    let engine = open(100, Background::Manual);
    // More names in the frozen memtable than in the active one, and of other bytes.
    for n in 0..30 {
        write(&engine, &file(n), &[bytes(n, 3000)]);
    }
    assert!(engine.inner_for_tests().freeze().unwrap());
    for n in 20..40 {
        write(&engine, &file(n), &[bytes(n, 5000)]);
    }
    let copied = slices_of(&engine, &file(25));
    name(&engine, &file(100), &copied);
    check_counts(&engine);
    rest(&engine);
    check_counts(&engine);
}

/// Copies and overwrites by several threads, beside flushes, compaction, cleaning and one census after the
/// other.
#[test]
fn a_census_beside_commits_flushes_and_cleaning_counts_no_byte_too_few() {
    let engine = open(300, Background::Threads);
    files_and_copies(&engine, 20);
    for round in 0..4 {
        let done = AtomicBool::new(false);
        warpfire_env::sync::thread::scope(|scope| {
            let (engine, done) = (&engine, &done);
            let writers: Vec<_> = (0..3u64)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut rng = Rng(round * 10 + thread);
                        for _ in 0..150 {
                            let (from, to) = (file(rng.below(40)), file(rng.below(40)));
                            let _guard = engine.lock(&[&from, &to]);
                            let _pin = engine.pin().unwrap();
                            let mut slices = slices_of(engine, &from);
                            // A part of the slices, some of them cut, and a new one.
                            let keeps = rng.below(slices.len() as u64 + 1) as usize;
                            slices.truncate(keeps);
                            for slice in &mut slices {
                                if rng.below(4) == 0 && slice.len_bytes > 1 {
                                    *slice =
                                        slice.part(0, 1 + rng.below(u64::from(slice.len_bytes) - 1) as u32);
                                }
                            }
                            let new =
                                engine.write(Stream::Large, &bytes(rng.next(), 9000), Admit::User).unwrap();
                            slices.extend(new.iter().copied());
                            name(engine, &to, &slices);
                            engine.release(&new);
                        }
                    })
                })
                .collect();
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    engine.count_live().unwrap();
                }
            });
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    engine.flush().unwrap();
                    engine.inner_for_tests().clean_step().unwrap();
                }
            });
            writers.into_iter().for_each(|w| w.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        // No thread of the engine may release anything during the naive count.
        let inner = engine.inner_for_tests();
        let _compacting = inner.compacting.lock();
        let _flushing = inner.flushing.lock();
        check_counts(&engine);
    }
    engine.close().unwrap();
}

/// Every table names every segment. A cleaning of four segments wrote all tables for them.
#[test]
fn cleaning_of_data_that_was_overwritten_at_random_writes_fewer_tables_than_it_frees() {
    let engine = open(700, Background::Manual);
    let files = 6000u64;
    let mut rng = Rng(8);
    let put = |engine: &ListEngine, n: u64, seed: u64| {
        // A long key: the tables are a tenth of the data.
        let key = [file(n), vec![b'x'; 300]].concat();
        write(engine, &key, &[bytes(seed, BLOCK)]);
    };
    for n in 0..files {
        put(&engine, n * 7919 % files, n);
    }
    engine.compact().unwrap();
    for n in 0..files / 2 {
        put(&engine, rng.below(files), files + n);
    }
    engine.compact().unwrap();
    let tables: u64 = engine.runs().iter().map(|(_, bytes)| bytes).sum();
    let before = (engine.log().counters().appended_bytes, engine.log().space());
    assert!(engine.inner_for_tests().clean_step().unwrap());
    engine.sync(Seq::MAX).unwrap();
    let after = (engine.log().counters().appended_bytes, engine.log().space());
    let freed = after.1.free_bytes.saturating_sub(before.1.free_bytes);
    let written = after.0 - before.0;
    assert!(freed > tables / 4, "{written} bytes written, {tables} of them tables, to free {freed}");
    check_counts(&engine);
}
