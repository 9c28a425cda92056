//! Removed domains: their bytes come back, also from tables that they share with other domains.

use warpfire_log::{Admit, MemLog, RecoveredLog};
use warpfire_units::Seq;

use super::model::domains::{make_domain, remove_domain};
use super::small;
use crate::testing::{ListSchema, text_item};
use crate::{Background, Batch, Engine, Store};

type ListEngine = Engine<MemLog, ListSchema>;

/// Few, so that the domains share a table: one ends before a long group of keys.
const KEYS: u64 = 60;

fn put_keys(engine: &ListEngine, domain: &[u8]) {
    for n in 0..KEYS {
        let mut batch = Batch::new();
        batch.put(&[domain, format!("/{n:06}").as_bytes()].concat(), &text_item(&[n as u8; 60]));
        engine.commit(&batch, None, Admit::User).unwrap();
    }
}

#[test]
fn a_removed_domain_leaves_the_tables_that_it_shares() {
    let log = MemLog::new();
    let options = crate::EngineOptions { memtable_bytes: 1 << 20, ..small(Background::Manual) };
    let engine: ListEngine = Engine::open(log, RecoveredLog::empty(), ListSchema, options).unwrap();
    let record = make_domain(&engine, *b"copy", *b"dire", None);
    for domain in [&b"base"[..], b"copy", b"zoos"] {
        put_keys(&engine, domain);
    }
    engine.flush().unwrap();
    while engine.background_step().unwrap() {}
    assert_eq!(engine.inner_for_tests().table_set().tables().count(), 1, "all domains share a table");
    let before = engine.table_bytes();
    remove_domain(&engine, record);
    while engine.background_step().unwrap() {}
    let after = engine.table_bytes();
    assert!(after < before * 3 / 4, "{after} bytes of {before} are left, of two domains of three");
    let mut value = Vec::new();
    for domain in ["base", "zoos"] {
        assert!(engine.get(format!("{domain}/000007").as_bytes(), Seq::MAX, &mut value).unwrap());
    }
}
