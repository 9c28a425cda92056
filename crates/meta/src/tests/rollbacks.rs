//! Rollbacks beside the random histories of `model`: what one of these finds is named here.

use warpfire_log::{Admit, MemLog, RecoveredLog};
use warpfire_units::Seq;

use super::model::rollbacks::roll_back;
use super::snapshots::{make_snapshot, open};
use crate::testing::text_item;
use crate::{Batch, ReadSet, Store};

/// Compaction moves a delete to the past when every reader sees it. A rollback takes it back for later
/// readers.
#[test]
fn a_key_that_was_deleted_and_comes_back_is_among_the_changed() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    let key = b"zzzz key";
    let mut batch = Batch::new();
    batch.put(key, &text_item(b"value"));
    engine.commit(&batch, None, Admit::User).unwrap();
    let then = make_snapshot(&engine);
    batch.clear();
    batch.delete(key);
    engine.commit(&batch, None, Admit::User).unwrap();
    engine.compact().unwrap();
    assert_eq!(engine.past_runs().len(), 1, "the value and its end are in the past");

    let reader = engine.snapshot();
    let mut value = Vec::new();
    assert!(!engine.get(key, reader.seq(), &mut value).unwrap());
    roll_back(&engine, *b"zzzz", then);
    assert!(engine.get(key, Seq::MAX, &mut value).unwrap(), "it is back");
    let everything = ReadSet::new(reader.seq(), [] as [&[u8]; 0], [(Vec::new(), None)]);
    let one = ReadSet::new(reader.seq(), [&key[..]], []);
    for (reads, what) in [(everything, "of a range"), (one, "of one key")] {
        let changed = engine.changed_keys(&reads, 10).unwrap().unwrap();
        assert!(changed.iter().any(|other| **other == key[..]), "{what}");
    }
}
