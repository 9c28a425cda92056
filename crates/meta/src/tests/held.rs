//! Slices that no metadata names while cleaning runs: those of open transactions.

use std::sync::Arc;
use warpfire_env::sync::atomic::{AtomicBool, Ordering};

use warpfire_log::{Admit, LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_units::{Seq, SlicePtr};

use super::small;
use crate::testing::{ListItem, ListSchema, items, pointer_item, unlimited};
use crate::{Background, Batch, Engine, SliceStore, Store, TxStore};

type ListEngine = Engine<MemLog, ListSchema>;

fn open(segments: u64) -> Arc<ListEngine> {
    let options = MemLogOptions { capacity_bytes: segments * (256 << 10), segment_bytes: 256 << 10 };
    let log = MemLog::with_options(options);
    Arc::new(Engine::open(log, RecoveredLog::empty(), ListSchema, small(Background::Manual)).unwrap())
}

/// Writes bytes as slices and names them under a key.
fn put<E: Store + SliceStore>(store: &E, key: &[u8], bytes: &[u8]) {
    let slices = store.write(Stream::Large, bytes, Admit::User).unwrap();
    let named: Vec<Vec<u8>> = slices.iter().map(|slice| pointer_item(*slice)).collect();
    let mut batch = Batch::new();
    batch.put(key, &named.concat());
    store.commit(&batch, None, Admit::User).unwrap();
    store.release(&slices);
}

fn read<E: Store + SliceStore>(store: &E, key: &[u8]) -> Vec<u8> {
    let _pin = store.pin().unwrap();
    let mut value = Vec::new();
    assert!(store.get(key, Seq::MAX, &mut value).unwrap());
    let mut bytes = Vec::new();
    for item in items(&value).unwrap() {
        let ListItem::Pointer(slice) = item else { panic!("only slices are put") };
        let start = bytes.len();
        bytes.resize(start + slice.len_bytes as usize, 0);
        store.read(&mut [(slice, &mut bytes[start..])]).unwrap();
    }
    bytes
}

fn own(n: u64) -> Vec<u8> {
    [n.to_le_bytes(), (!n).to_le_bytes()].concat().repeat(100)
}

#[test]
fn a_transaction_has_the_number_at_which_it_began() {
    let engine = open(60);
    put(&*engine, b"a", b"1");
    let at = engine.snapshot().seq();
    let tx = TxStore::begin(Arc::clone(&engine), ListSchema, &unlimited());
    put(&*engine, b"a", b"2");
    assert!(at > Seq::default());
    assert_eq!(Store::seq(&tx, &()), at);
}

/// Each write of the transaction lies in a segment that others fill with what they overwrite at once.
#[test]
fn a_transaction_that_trickles_blocks_no_cleaning_and_commits_its_bytes() {
    let engine = open(60);
    let tx = TxStore::begin(Arc::clone(&engine), ListSchema, &unlimited());
    for n in 0..400u64 {
        put(&tx, format!("own {n}").as_bytes(), &own(n));
        // In all ten times what the pool holds.
        put(&*engine, &[n as u8 % 7 + 1], &vec![n as u8; 400 << 10]);
        if n % 10 == 0 {
            engine.sync(Seq::MAX).unwrap();
        }
    }
    assert!(engine.held_bytes() >= 400 * 1600);
    assert!(engine.inner_for_tests().held.has_moved());
    for n in 0..400 {
        assert_eq!(read(&tx, format!("own {n}").as_bytes()), own(n), "inside, {n}");
    }
    let changes = tx.seal().unwrap();
    engine.commit(&changes.batch, None, changes.admit).unwrap();
    tx.end();
    assert_eq!(engine.held_bytes(), 0);
    for round in 0..3 {
        for n in 0..400 {
            assert_eq!(read(&*engine, format!("own {n}").as_bytes()), own(n), "committed, {n}, {round}");
        }
        engine.compact().unwrap();
        while engine.background_step().unwrap() {}
    }
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let engine = Engine::open(log, recovered, ListSchema, small(Background::Manual)).unwrap();
    for n in 0..400 {
        assert_eq!(read(&engine, format!("own {n}").as_bytes()), own(n), "recovered, {n}");
    }
}

/// Commits of held slices beside cleaning. `MemLog` panics if a commit names a segment that is freed.
#[test]
fn a_commit_of_held_slices_beside_cleaning_names_bytes_that_stay() {
    let engine = open(200);
    let stopped = AtomicBool::new(false);
    warpfire_env::sync::thread::scope(|scope| {
        let cleaner = scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                engine.inner_for_tests().clean_step().unwrap();
            }
        });
        for round in 0..60u64 {
            let tx = TxStore::begin(Arc::clone(&engine), ListSchema, &unlimited());
            for n in 0..10 {
                put(&tx, format!("own {n}").as_bytes(), &own(round * 10 + n));
                put(&*engine, b"others", &vec![n as u8; 200 << 10]);
            }
            engine.flush().unwrap();
            let changes = tx.seal().unwrap();
            engine.commit(&changes.batch, None, changes.admit).unwrap();
            tx.end();
            for n in 0..10 {
                assert_eq!(read(&*engine, format!("own {n}").as_bytes()), own(round * 10 + n));
            }
        }
        stopped.store(true, Ordering::Relaxed);
        cleaner.join().unwrap();
    });
}

/// A hold beside a name in metadata: cleaning copies the bytes once, and both go on with the same copy.
#[test]
fn held_bytes_that_metadata_names_too_are_copied_once() {
    let engine = open(60);
    let bytes: Vec<u8> = (0..200u32 << 10).map(|n| (n / 31) as u8).collect();
    let kept: Vec<SlicePtr> = (0..8u8)
        .map(|n| {
            let bytes = &bytes[n as usize * 1000..][..40_000];
            let slice = engine.log().append(Stream::Large, bytes).unwrap()[0];
            let mut batch = Batch::new();
            batch.put(&[n], &pointer_item(slice));
            engine.commit(&batch, None, Admit::User).unwrap();
            engine.holder().hold(&[slice]).unwrap();
            engine.release(&[slice]);
            // Garbage beside it, so that its segment is worth cleaning.
            put(&*engine, b"garbage", &[n; 160_000]);
            slice
        })
        .collect();
    put(&*engine, b"garbage", &[0; 300_000]);
    engine.flush().unwrap();
    engine.compact().unwrap();
    let live_before = engine.log().space().live_bytes;
    let appended_before = engine.log().counters().appended_bytes;
    for _ in 0..8 {
        engine.inner_for_tests().clean_step().unwrap();
    }
    assert!(engine.inner_for_tests().held.has_moved());
    let copied = engine.log().counters().appended_bytes - appended_before;
    assert!(copied < 8 * 40_000 + (200 << 10), "{copied} bytes were copied");
    assert!(engine.log().space().live_bytes <= live_before + (64 << 10));
    for (n, slice) in kept.iter().enumerate() {
        let mut held = vec![0; 40_000];
        engine.read(&mut [(*slice, &mut held)]).unwrap();
        assert!(held == bytes[n * 1000..][..40_000] && read(&*engine, &[n as u8]) == held, "{n}");
    }
    engine.holder().release_hold(&kept);
    assert_eq!(engine.held_bytes(), 0);
}

/// An older run has the key, so the operand stays one when its table is rewritten. Its pointer must move.
#[test]
fn cleaning_empties_a_segment_that_only_operands_name() {
    let engine = open(60);
    put(&*engine, b"key", &own(1));
    engine.flush().unwrap();
    let slice = engine.write(Stream::Large, &own(2), Admit::User).unwrap()[0];
    let mut batch = Batch::new();
    batch.merge(b"key", &pointer_item(slice));
    engine.commit(&batch, None, Admit::User).unwrap();
    engine.release(&[slice]);
    // Garbage fills the rest of the segment, and the next one, so that it is sealed and worth cleaning.
    for _ in 0..3 {
        let garbage = engine.write(Stream::Large, &vec![7; 200 << 10], Admit::User).unwrap();
        engine.release(&garbage);
    }
    engine.flush().unwrap();
    assert_eq!(engine.runs().len(), 2, "the operand lies above the put");
    assert!(engine.log().readable_bytes(slice.segment) > 0);
    for _ in 0..8 {
        engine.inner_for_tests().clean_step().unwrap();
    }
    assert_eq!(engine.runs().len(), 2, "the operand is still one");
    engine.sync(Seq::MAX).unwrap();
    assert_eq!(engine.log().readable_bytes(slice.segment), 0, "the segment is free");
    assert_eq!(read(&*engine, b"key"), [own(1), own(2)].concat());
}

/// No table names the bytes, so no job makes their segment free: the cleaning itself does.
#[test]
fn a_segment_with_bytes_of_a_transaction_alone_is_free_after_its_cleaning() {
    let engine = open(60);
    let tx = TxStore::begin(Arc::clone(&engine), ListSchema, &unlimited());
    let slice = tx.write(Stream::Large, &own(1), Admit::User).unwrap()[0];
    let mut batch = Batch::new();
    batch.put(b"own", &pointer_item(slice));
    tx.commit(&batch, None, Admit::User).unwrap();
    tx.release(&[slice]);
    for _ in 0..3 {
        let garbage = engine.write(Stream::Large, &vec![7; 200 << 10], Admit::User).unwrap();
        engine.release(&garbage);
    }
    engine.sync(Seq::MAX).unwrap();
    assert!(engine.log().readable_bytes(slice.segment) > 0);
    assert!(engine.inner_for_tests().clean_step().unwrap(), "it has moved bytes");
    assert_eq!(engine.log().readable_bytes(slice.segment), 0, "the segment is free");
    assert_eq!(read(&tx, b"own"), own(1));
}

/// Each table lists the segments that its own values name: cleaning rewrites the tables that list a victim.
#[test]
fn each_table_of_a_job_has_the_references_of_its_own_values() {
    let engine = open(60);
    for n in 0..2000u64 {
        put(&*engine, format!("{n:0100}").as_bytes(), &n.to_le_bytes());
    }
    engine.compact().unwrap();
    let table_set = engine.inner_for_tests().table_set();
    let referred: Vec<u64> = table_set
        .tables()
        .map(|(_, table)| table.entry().references.iter().map(|(_, bytes)| *bytes).sum())
        .collect();
    assert!(referred.len() > 1, "the keys fill several tables");
    assert_eq!(referred.iter().sum::<u64>(), 2000 * 8);
    assert!(referred.iter().all(|bytes| *bytes > 0), "{referred:?}");
}

/// Cleaning copies the bytes once. The copy has as many references as it has names, and stays until the last
/// one goes.
#[test]
fn bytes_with_two_names_that_were_moved_stay_when_one_name_goes() {
    let engine = open(60);
    let slice = engine.write(Stream::Large, &own(1), Admit::User).unwrap()[0];
    let mut batch = Batch::new();
    batch.put(b"a", &pointer_item(slice));
    batch.put(b"b", &pointer_item(slice));
    engine.commit(&batch, None, Admit::User).unwrap();
    engine.release(&[slice]);
    for _ in 0..3 {
        let garbage = engine.write(Stream::Large, &vec![7; 200 << 10], Admit::User).unwrap();
        engine.release(&garbage);
    }
    engine.flush().unwrap();
    let before = engine.log().counters().appended_bytes;
    for _ in 0..8 {
        engine.inner_for_tests().clean_step().unwrap();
    }
    engine.sync(Seq::MAX).unwrap();
    assert_eq!(engine.log().readable_bytes(slice.segment), 0, "the bytes have moved");
    let copied = engine.log().counters().appended_bytes - before;
    assert!(copied < 2 * own(1).len() as u64, "{copied} bytes were written: one copy and a table");

    let mut batch = Batch::new();
    batch.delete(b"a");
    engine.commit(&batch, None, Admit::User).unwrap();
    engine.compact().unwrap();
    engine.sync(Seq::MAX).unwrap();
    assert!(engine.log().space().live_bytes >= own(1).len() as u64);
    assert_eq!(read(&*engine, b"b"), own(1));
}
