//! How often merges write a record again.

use std::collections::BTreeMap;

use warpfire_log::{Admit, MemLog, MemLogOptions, RecoveredLog};

use super::{open, put, small};
use crate::schema::Schema;
use crate::testing::{ListSchema, text_item};
use crate::{Background, Batch, Engine, Store};

/// Bytes of every table that the engine has had, by id.
#[derive(Default)]
struct WrittenTables(BTreeMap<u64, u64>);

impl WrittenTables {
    fn look<S: Schema>(&mut self, engine: &Engine<MemLog, S>) {
        for table in engine.inner_for_tests().table_set().runs.iter().flat_map(|run| &run.tables) {
            self.0.insert(table.entry().id, u64::from(table.entry().len_bytes));
        }
    }

    fn bytes(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Each flush has the newest names of a directory and, far below them, the key of the directory itself. One
/// table over both overlapped all older names, so every merge wrote all of them again.
#[test]
fn keys_that_rise_are_not_rewritten_for_a_key_below_them() {
    // Tables of 64 KiB.
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 256 << 20, segment_bytes: 256 << 10 });
    let engine = open(log, Background::Manual);
    let mut written = WrittenTables::default();
    for number in 0..40_000_u32 {
        put(&engine, format!("name {number:08}").as_bytes(), &[number as u8; 100]).unwrap();
        if number % 100 == 0 {
            put(&engine, b"directory", &number.to_le_bytes()).unwrap();
        }
        while engine.background_step().unwrap() {
            written.look(&engine);
        }
    }
    let stored: u64 = engine.runs().iter().map(|(_, bytes)| bytes).sum();
    assert!(stored > 3_000_000, "{stored} bytes in tables");
    assert!(written.bytes() < stored * 3 / 2, "{} bytes written for {stored}", written.bytes());
}

/// Each flush has the newest names of a directory, the key of the directory below them, and keys above them,
/// as those of rules are. A table over names and keys above them overlapped the names that came next, so
/// every merge wrote all of them again. One over keys below them did so until four tables lay between.
#[test]
fn keys_that_rise_are_not_rewritten_for_keys_above_and_below_them() {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 256 << 20, segment_bytes: 256 << 10 });
    let engine = Engine::open(log, RecoveredLog::empty(), ListSchema, small(Background::Manual)).unwrap();
    let mut written = WrittenTables::default();
    for number in 0..40_000_u32 {
        let mut batch = Batch::new();
        let value = text_item(&[number as u8; 50]);
        batch.put(format!("name {number:08}").as_bytes(), &[value.as_slice(), &value].concat());
        if number % 100 == 0 {
            batch.put(format!("rule {number:08}").as_bytes(), &value);
            batch.put(b"directory", &value);
        }
        engine.commit(&batch, None, Admit::User).unwrap();
        while engine.background_step().unwrap() {
            written.look(&engine);
        }
    }
    let stored: u64 = engine.runs().iter().map(|(_, bytes)| bytes).sum();
    assert!(stored > 2_000_000, "{stored} bytes in tables");
    assert!(written.bytes() < stored * 3 / 2, "{} bytes written for {stored}", written.bytes());
}

/// A snapshot keeps deleted records. Each reader that ended let every merge at the bottom write these tables
/// again, without dropping anything.
#[test]
fn deletes_that_a_snapshot_keeps_are_not_rewritten_while_readers_come_and_go() {
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 256 << 20, segment_bytes: 256 << 10 });
    let engine = open(log, Background::Manual);
    let key = |number: u32| format!("name {number:08}").into_bytes();
    for number in 0..20_000 {
        put(&engine, &key(number), &[number as u8; 100]).unwrap();
    }
    let snapshot = engine.snapshot();
    for number in 0..20_000 {
        let mut batch = Batch::new();
        batch.delete(&key(number));
        engine.commit(&batch, None, Admit::Reserve).unwrap();
    }
    engine.compact().unwrap();
    let pinned: u64 = engine.runs().iter().map(|(_, bytes)| bytes).sum();
    assert!(pinned > 2_000_000, "the snapshot keeps everything: {pinned}");
    let before = engine.log().counters().appended_bytes;
    let mut new = 0;
    for round in 0..20u32 {
        drop(engine.snapshot());
        put(&engine, b"other", &round.to_le_bytes()).unwrap();
        new += 100;
        drop(engine.snapshot());
        engine.compact().unwrap();
    }
    let written = engine.log().counters().appended_bytes - before;
    assert!(written < pinned / 10 + 20 * new, "{written} bytes were written beside {pinned} that stay");
    drop(snapshot);
    engine.compact().unwrap();
    let rest: u64 = engine.runs().iter().map(|(_, bytes)| bytes).sum();
    assert!(rest < 10_000, "without the snapshot everything goes: {rest}");
}
