//! What callers have overwritten goes without a call for room, while they write little.

use warpfire_log::{Admit, LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};

use super::small;
use crate::compaction::QUIET_LOOKS;
use crate::testing::{ListSchema, Rng, pointer_item, text_item};
use crate::{Background, Batch, Engine, SliceStore, Store};

const VALUE_BYTES: usize = 4096;
const KEYS: u32 = 512;

/// Bytes of tables and of commit records, at most.
const METADATA_BYTES: u64 = 64 << 10;

type TestEngine = Engine<MemLog, ListSchema>;

fn open() -> TestEngine {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 64 << 20, segment_bytes: 128 << 10 });
    Engine::open(log, RecoveredLog::empty(), ListSchema, small(Background::Manual)).unwrap()
}

fn put(engine: &TestEngine, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(key, value);
    engine.commit(&batch, None, Admit::User).unwrap();
}

/// Gives some keys a new slice each. Returns the bytes of the slices.
fn overwrite(engine: &TestEngine, keys: std::ops::Range<u32>) -> u64 {
    for n in keys.clone() {
        let slices = engine.write(Stream::Large, &[n as u8; VALUE_BYTES], Admit::User).unwrap();
        put(engine, &n.to_be_bytes(), &pointer_item(slices[0]));
        engine.release(&slices);
    }
    keys.len() as u64 * VALUE_BYTES as u64
}

/// Looks as often as a pass needs, and then does all background work.
fn be_quiet(engine: &TestEngine) {
    (0..QUIET_LOOKS).for_each(|_| engine.look_for_quiet());
    while engine.background_step().unwrap() {}
}

fn hardly_compressible(n: u32) -> Vec<u8> {
    let mut random = Rng(n.into());
    (0..100).map(|_| random.next() as u8).collect()
}

fn live_bytes(engine: &TestEngine) -> u64 {
    engine.log().space().live_bytes
}

#[test]
fn overwritten_bytes_go_once_callers_write_little() {
    let engine = open();
    let needed_bytes = overwrite(&engine, 0..KEYS);
    engine.compact().unwrap();
    // One run that is smaller than the oldest, and some versions in memory.
    let hidden_bytes = overwrite(&engine, 0..300);
    engine.flush().unwrap();
    let hidden_bytes = hidden_bytes + overwrite(&engine, 100..200);
    be_quiet(&engine);
    assert!(live_bytes(&engine) >= needed_bytes + hidden_bytes, "one of the looks saw many writes");
    be_quiet(&engine);
    let live_bytes = live_bytes(&engine);
    assert!(
        live_bytes <= needed_bytes + METADATA_BYTES,
        "{live_bytes} bytes are live, {needed_bytes} needed"
    );
    assert_eq!(engine.runs().len(), 1);
}

#[test]
fn a_pass_has_no_follower_before_callers_have_written_again() {
    let engine = open();
    overwrite(&engine, 0..KEYS);
    overwrite(&engine, 0..KEYS);
    (0..2).for_each(|_| be_quiet(&engine));
    let appended_bytes = engine.log().counters().appended_bytes;
    // Less than two segments.
    let bytes = overwrite(&engine, 0..32);
    engine.flush().unwrap();
    let flushed_bytes = engine.log().counters().appended_bytes;
    assert!(flushed_bytes >= appended_bytes + bytes);
    (0..10).for_each(|_| be_quiet(&engine));
    assert_eq!(engine.log().counters().appended_bytes, flushed_bytes, "nothing pays");
    assert_eq!(engine.runs().len(), 2);
}

#[test]
fn no_pass_rewrites_more_than_an_eighth_of_what_callers_wrote() {
    let engine = open();
    // Tables of more than two MiB, and two MiB of slices.
    (KEYS..KEYS + 20_000).for_each(|n| put(&engine, &n.to_be_bytes(), &text_item(&hardly_compressible(n))));
    overwrite(&engine, 0..256);
    engine.compact().unwrap();
    overwrite(&engine, 0..256);
    engine.flush().unwrap();
    let runs = engine.runs();
    let tables_bytes: u64 = runs.iter().map(|(_, bytes)| bytes).sum();
    (0..10).for_each(|_| be_quiet(&engine));
    let written_bytes = || engine.inner_for_tests().usage.written_bytes();
    assert!(written_bytes() < 8 * tables_bytes, "the test is right");
    assert_eq!(engine.runs(), runs, "{} bytes do not pay for {tables_bytes} of tables", written_bytes());
    while engine.runs() == runs {
        // In memory, so that no other merge has a reason.
        overwrite(&engine, 0..64);
        (0..2).for_each(|_| be_quiet(&engine));
        assert!(written_bytes() < 9 * tables_bytes, "no pass after {} bytes", written_bytes());
    }
    assert!(written_bytes() >= 8 * tables_bytes, "a pass after {} bytes", written_bytes());
}
