//! Released origins: what a crash may bring back of them.

use warpfire_log::{Admit, MemLog, RecoveredLog};
use warpfire_units::Seq;

use super::model::domains::{make_domain, release_origin};
use super::small;
use crate::domain::DomainRecord;
use crate::testing::{ListSchema, domain_key, domain_value, text_item};
use crate::{Background, Batch, Engine, SnapshotStore, Store};

type ListEngine = Engine<MemLog, ListSchema>;

fn open(log: MemLog, recovered: RecoveredLog) -> ListEngine {
    Engine::open(log, recovered, ListSchema, small(Background::Manual)).unwrap()
}

fn shows(engine: &ListEngine, key: &[u8]) -> bool {
    engine.get(key, Seq::MAX, &mut Vec::new()).unwrap()
}

/// A release and the loss of the origin may be undone by one crash. A delete of the domain must be there
/// then: without it the origin's value would be back.
#[test]
fn a_loss_of_an_origin_that_a_crash_takes_back_shows_nothing_of_it() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    let mut batch = Batch::new();
    batch.put(b"dire/name", &text_item(b"of the origin"));
    engine.commit(&batch, None, Admit::User).unwrap();
    let record = make_domain(&engine, *b"copy", *b"dire", None);
    assert!(shows(&engine, b"copy/name"));
    let mut batch = Batch::new();
    batch.delete(b"copy/name");
    // Two runs, so that there is something to merge.
    engine.flush().unwrap();
    engine.commit(&batch, None, Admit::User).unwrap();
    engine.flush().unwrap();

    let released = release_origin(&engine, record);
    let mut batch = Batch::new();
    let alone = DomainRecord { origin: None, ..released };
    batch.put(&domain_key(record.domain), &domain_value(&alone));
    // A compaction comes between the record without the origin and its sync.
    engine.forget_origin(record.domain, &batch).unwrap();
    assert!(engine.inner_for_tests().compact_all().unwrap());
    assert!(!shows(&engine, b"copy/name"));
    let (log, recovered) = engine.log().crash();
    let engine = open(log, recovered);
    let table = engine.inner_for_tests().domains.get().expect("the record of the domain is durable");
    assert!(table.may_hold_older(&record.domain, &ListSchema), "the loss of the origin was not durable");
    assert!(!shows(&engine, b"copy/name"), "the domain has deleted it");
    assert!(shows(&engine, b"dire/name"));
}
