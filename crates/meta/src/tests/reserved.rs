//! Room for reserved bytes: commits that reserve, and writes that claim.

use warpfire_log::{Admit, LogError, LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_units::Seq;

use crate::read_set::ReadSet;
use crate::testing::{ListSchema, text_item};
use crate::{
    Background, Batch, CommitError, Engine, EngineOptions, MetaError, RESERVED, SliceStore, Store,
    room_of_reserved,
};

type ListEngine = Engine<MemLog, ListSchema>;

fn open() -> ListEngine {
    let options = EngineOptions {
        memtable_bytes: 64 << 10,
        block_cache_bytes: 64 << 10,
        log_bytes_max: 64 << 10,
        background: Background::Manual,
        read_only: false,
    };
    let log = MemLog::with_options(MemLogOptions { capacity_bytes: 8 << 20, segment_bytes: 128 << 10 });
    Engine::open(log, RecoveredLog::empty(), ListSchema, options).unwrap()
}

/// Commits a text that adds to the sum of reserved bytes.
fn reserve(
    engine: &ListEngine,
    added: i64,
    reads: Option<&ReadSet>,
    admit: Admit,
) -> Result<Seq, CommitError> {
    let mut batch = Batch::new();
    batch.put(b"key", &text_item(b"text"));
    batch.add(RESERVED, added);
    engine.commit(&batch, reads, admit)
}

fn is_full(committed: &Result<Seq, CommitError>) -> bool {
    matches!(committed, Err(CommitError::Failed(MetaError::Log(LogError::NoSpace))))
}

#[test]
fn two_commits_do_not_reserve_the_same_room_and_a_failed_one_returns_it() {
    let engine = open();
    let space = engine.log().space();
    let most = ((space.free_bytes - space.reserve_bytes) / 10).cast_signed();
    let snapshot = engine.snapshot();
    reserve(&engine, 6 * most, None, Admit::User).unwrap();
    for _ in 0..3 {
        assert!(is_full(&reserve(&engine, 6 * most, None, Admit::User)));
    }
    let before = ReadSet::new(engine.seq(&snapshot), [b"key"], []);
    let conflict = reserve(&engine, 2 * most, Some(&before), Admit::User);
    assert!(matches!(conflict, Err(CommitError::Conflict)), "{conflict:?}");
    assert_eq!(engine.inner_for_tests().reserved.room(), room_of_reserved(6 * most.unsigned_abs()));
    reserve(&engine, 2 * most, None, Admit::User).unwrap();
    reserve(&engine, -8 * most, None, Admit::Reserve).unwrap();
    assert_eq!(engine.inner_for_tests().reserved.room(), 0);
}

#[test]
fn only_a_write_with_a_claim_takes_reserved_room() {
    let engine = open();
    let space = engine.log().space();
    let most = ((space.free_bytes - space.reserve_bytes) / 10).cast_signed();
    reserve(&engine, 7 * most, None, Admit::User).unwrap();
    let bytes = vec![1; usize::try_from(5 * most).unwrap()];
    assert!(!engine.has_room(bytes.len() as u64, Admit::User));
    assert!(engine.write(Stream::Large, &bytes, Admit::User).is_err());
    let claimed = 5 * most.unsigned_abs();
    engine.add_reserved(-5 * most);
    let slices = engine.write(Stream::Large, &bytes, Admit::Reserved(claimed)).unwrap();
    // The commit returns the claim, which its own sum ends.
    reserve(&engine, -5 * most, None, Admit::Reserved(claimed)).unwrap();
    assert_eq!(engine.inner_for_tests().reserved.room(), room_of_reserved(2 * most.unsigned_abs()));
    engine.release(&slices);
}
