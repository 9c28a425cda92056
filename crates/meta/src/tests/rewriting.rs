//! How often merges write a record again.

use std::collections::BTreeMap;

use warpfire_log::{MemLog, MemLogOptions};

use super::{PlainEngine, open, put};
use crate::{Background, Store};

/// Bytes of every table that the engine has had, by id.
#[derive(Default)]
struct WrittenTables(BTreeMap<u64, u64>);

impl WrittenTables {
    fn look(&mut self, engine: &PlainEngine) {
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
