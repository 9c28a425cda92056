//! Transactions against their naive twin: a map in which the changes were simply made.

use warpfire_log::{Admit, Stream};
use warpfire_units::Seq;

use super::{INLINE_ALWAYS_BYTES, INLINE_MEMORY_BYTES_MAX, TxMark, TxStore};
use crate::testing::{ListSchema, Rng, clear_item, pointer_item, text_item, unlimited};
use crate::{
    Batch, CommitError, Direction, KeyRange, MapStore, MemoryBudget, MemoryLimits, MemoryRefused, MetaError,
    ScanPage, SliceStore, Store,
};
use std::sync::Arc;

type Below = MapStore<ListSchema>;

fn key(rng: &mut Rng) -> Vec<u8> {
    format!("k{:02}", rng.below(40)).into_bytes()
}

fn change(rng: &mut Rng) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..=rng.below(4) {
        let (key, text) = (key(rng), text_item(&[rng.next() as u8; 3]));
        match rng.below(6) {
            0 | 1 => batch.put(&key, &text),
            2 => batch.delete(&key),
            3 => batch.merge(&key, &clear_item()),
            _ => batch.merge(&key, &text),
        }
    }
    batch
}

fn apply(store: &impl Store, batch: &Batch) {
    store.commit(batch, None, Admit::User).unwrap();
}

/// A store that holds these changes and no others.
fn twin_of(batches: &[Batch]) -> Below {
    let twin = MapStore::new(ListSchema);
    batches.iter().for_each(|batch| apply(&twin, batch));
    twin
}

#[test]
fn a_transaction_knows_which_keys_it_has_changed() {
    let tx = TxStore::begin(Arc::new(twin_of(&[])), ListSchema, &unlimited());
    let mut batch = Batch::new();
    batch.put(b"put", &text_item(b"1"));
    batch.merge(b"merged", &text_item(b"2"));
    batch.delete(b"deleted");
    apply(&tx, &batch);
    for changed in [&b"put"[..], b"merged", b"deleted"] {
        assert!(tx.has_changed(changed), "{changed:?}");
    }
    tx.note_read(b"read");
    assert!(!tx.has_changed(b"read"));
}

/// Bytes in values take memory until the commit, so a transaction with many writes the others as slices.
#[test]
fn a_transaction_with_many_changes_in_memory_takes_no_more_bytes_into_values() {
    let tx = TxStore::begin(Arc::new(twin_of(&[])), ListSchema, &unlimited());
    let text = text_item(&[7; 200]);
    let mut number = 0u64;
    while tx.may_inline(INLINE_ALWAYS_BYTES + 1) {
        let mut batch = Batch::new();
        for _ in 0..1000 {
            number += 1;
            batch.put(&number.to_be_bytes(), &text);
        }
        apply(&tx, &batch);
        assert!(number * 200 <= 2 * INLINE_MEMORY_BYTES_MAX as u64, "its memory has a limit");
    }
    assert!(number * 200 >= INLINE_MEMORY_BYTES_MAX as u64 / 4, "{number} changes");
    assert!(tx.may_inline(INLINE_ALWAYS_BYTES), "a slice takes as much");
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn scan<E: Store>(
    store: &E,
    range: KeyRange<'_>,
    direction: Direction,
    limits: (usize, usize),
) -> (Entries, bool) {
    let mut page = ScanPage::default();
    let snapshot = store.snapshot();
    store.scan(range, store.seq(&snapshot), direction, limits.0, limits.1, &mut page).unwrap();
    (page.iter().map(|e| (e.key.to_vec(), e.value.to_vec())).collect(), page.more)
}

fn check(tx: &impl Store, twin: &impl Store, rng: &mut Rng, what: &str) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let asked = key(rng);
    let (there, also) =
        (tx.get(&asked, Seq::MAX, &mut a).unwrap(), twin.get(&asked, Seq::MAX, &mut b).unwrap());
    assert_eq!((there, &a), (also, &b), "{what}: {asked:?}");
    let (start, end) = (key(rng), key(rng));
    let range = match rng.below(3) {
        0 => KeyRange { start: b"", end: None },
        1 => KeyRange { start: &start, end: None },
        _ => KeyRange { start: &start, end: Some(&end) },
    };
    let direction = if rng.below(2) == 0 { Direction::Forward } else { Direction::Backward };
    let limits = ([1, 3, 1000][rng.below(3) as usize], [1, 30, 1 << 20][rng.below(3) as usize]);
    assert_eq!(
        scan(tx, range, direction, limits),
        scan(twin, range, direction, limits),
        "{what}: {range:?} {direction:?} {limits:?}"
    );
}

#[test]
fn a_transaction_reads_like_a_map_in_which_its_changes_were_made() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut made: Vec<Batch> = (0..rng.below(30)).map(|_| change(&mut rng)).collect();
        let below = Arc::new(twin_of(&made));
        let tx = TxStore::begin(below.clone(), ListSchema, &unlimited());
        let mut marks: Vec<(TxMark, usize)> = Vec::new();
        let mut twin = twin_of(&made);
        for step in 0..60 {
            match rng.below(10) {
                0..3 => {
                    let batch = change(&mut rng);
                    apply(&tx, &batch);
                    apply(&twin, &batch);
                    made.push(batch);
                }
                3 => marks.push((tx.mark(), made.len())),
                4 => {
                    if let Some((mark, len)) = marks.pop() {
                        tx.roll_back(&mark);
                        made.truncate(len);
                        twin = twin_of(&made);
                    }
                }
                // Others go on below; the transaction does not see it.
                5 => apply(&*below, &change(&mut rng)),
                _ => check(&tx, &twin, &mut rng, &format!("seed {seed} step {step}")),
            }
        }
    }
}

#[test]
fn changes_committed_below_are_those_that_were_seen_inside() {
    for seed in 0..200 {
        let mut rng = Rng(5000 + seed);
        let made: Vec<Batch> = (0..rng.below(20)).map(|_| change(&mut rng)).collect();
        let (below, twin) = (Arc::new(twin_of(&made)), twin_of(&made));
        let tx = TxStore::begin(below.clone(), ListSchema, &unlimited());
        for _ in 0..rng.below(20) {
            let batch = change(&mut rng);
            apply(&tx, &batch);
            apply(&twin, &batch);
        }
        let changes = tx.seal().unwrap();
        below.commit(&changes.batch, Some(&changes.reads), changes.admit).unwrap();
        let all = KeyRange { start: b"", end: None };
        let limits = (usize::MAX, usize::MAX);
        assert_eq!(
            scan(&*below, all, Direction::Forward, limits),
            scan(&twin, all, Direction::Forward, limits),
            "seed {seed}"
        );
    }
}

fn put(key: &[u8], text: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.put(key, &text_item(text));
    batch
}

fn conflicts(read: impl FnOnce(&TxStore<Below, ListSchema>), meanwhile: &Batch) -> bool {
    let below = Arc::new(twin_of(&[put(b"a", b"1"), put(b"c", b"3"), put(b"e", b"5")]));
    let tx = TxStore::begin(below.clone(), ListSchema, &unlimited());
    read(&tx);
    apply(&tx, &put(b"z", b"26"));
    apply(&*below, meanwhile);
    let changes = tx.seal().unwrap();
    matches!(below.commit(&changes.batch, Some(&changes.reads), changes.admit), Err(CommitError::Conflict))
}

#[test]
fn only_what_was_read_conflicts() {
    let get =
        |key: &'static [u8]| move |tx: &TxStore<_, _>| _ = tx.get(key, Seq::MAX, &mut Vec::new()).unwrap();
    assert!(conflicts(get(b"a"), &put(b"a", b"2")));
    assert!(conflicts(get(b"b"), &put(b"b", b"2")), "that it was missing has been read");
    assert!(!conflicts(get(b"b"), &put(b"a", b"2")));
    assert!(!conflicts(|tx| apply(tx, &put(b"a", b"0")), &put(b"a", b"2")), "a blind write reads nothing");
    let blind = |tx: &TxStore<_, _>| {
        apply(tx, &put(b"a", b"0"));
        tx.get(b"a", Seq::MAX, &mut Vec::new()).unwrap();
    };
    assert!(!conflicts(blind, &put(b"a", b"2")), "its own writes are not read from below");
}

#[test]
fn a_page_reads_as_far_as_it_shows() {
    let first = |direction| {
        move |tx: &TxStore<_, _>| {
            assert_eq!(scan(tx, KeyRange { start: b"a", end: Some(b"x") }, direction, (1, 1000)).0.len(), 1);
        }
    };
    assert!(conflicts(first(Direction::Forward), &put(b"b", b"2")), "it said what comes next");
    assert!(!conflicts(first(Direction::Forward), &put(b"d", b"4")));
    assert!(conflicts(first(Direction::Backward), &put(b"d", b"4")));
    assert!(!conflicts(first(Direction::Backward), &put(b"b", b"2")));
    let all = |tx: &TxStore<_, _>| {
        _ = scan(tx, KeyRange { start: b"a", end: Some(b"x") }, Direction::Forward, (9, 999))
    };
    assert!(conflicts(all, &put(b"w", b"23")));
    assert!(!conflicts(all, &put(b"y", b"25")));
}

#[test]
fn slices_stay_until_the_transaction_ends_and_then_only_if_they_were_committed() {
    for commits in [true, false] {
        let below = Arc::new(MapStore::new(ListSchema));
        let tx = TxStore::begin(below.clone(), ListSchema, &unlimited());
        let slices = tx.write(Stream::Large, b"bytes", Admit::User).unwrap();
        let mut batch = Batch::new();
        batch.put(b"k", &pointer_item(slices[0]));
        apply(&tx, &batch);
        tx.release(&slices);
        if commits {
            let changes = tx.seal().unwrap();
            below.commit(&changes.batch, Some(&changes.reads), changes.admit).unwrap();
        }
        drop(tx);
        while below.background_step().unwrap() {}
        assert_eq!(below.slices_stored(), usize::from(commits));
    }
}

#[test]
fn what_has_ended_says_so_and_what_only_reads_changes_nothing() {
    let below = Arc::new(twin_of(&[put(b"a", b"1")]));
    let tx = TxStore::begin(below.clone(), ListSchema, &unlimited());
    tx.end();
    assert!(matches!(tx.get(b"a", Seq::MAX, &mut Vec::new()), Err(MetaError::Ended)));
    let tx = TxStore::begin_read_only(below, ListSchema, &unlimited());
    assert!(tx.get(b"a", Seq::MAX, &mut Vec::new()).unwrap());
    let refused = tx.commit(&put(b"a", b"2"), None, Admit::User);
    assert!(matches!(refused, Err(CommitError::Failed(MetaError::ReadOnlyTransaction))));
}

/// A page ends before the key that had no room. That this key exists was seen, so its removal conflicts.
#[test]
fn the_key_after_a_page_is_part_of_the_read() {
    for (direction, next, beyond) in [(Direction::Forward, b"b", b"c"), (Direction::Backward, b"b", b"a")] {
        let conflict = |gone: &[u8]| {
            let below = Arc::new(MapStore::new(ListSchema));
            let mut batch = Batch::new();
            [b"a", b"b", b"c"].iter().for_each(|key| batch.put(*key, &text_item(b"1")));
            apply(&*below, &batch);
            let tx = TxStore::begin(below.clone(), ListSchema, &unlimited());
            let (page, more) = scan(&tx, KeyRange { start: b"", end: None }, direction, (1, 1 << 20));
            assert!(page.len() == 1 && more);
            let mut changes = Batch::new();
            changes.put(b"seen", &text_item(b"more"));
            apply(&tx, &changes);
            let mut removal = Batch::new();
            removal.delete(gone);
            apply(&*below, &removal);
            let changes = tx.seal().unwrap();
            matches!(
                below.commit(&changes.batch, Some(&changes.reads), changes.admit),
                Err(CommitError::Conflict)
            )
        };
        assert!(!conflict(beyond), "{direction:?}: the page says nothing about keys further on");
        assert!(conflict(next), "{direction:?}: the page says that this key exists");
    }
}

#[test]
fn what_a_transaction_keeps_is_charged_until_it_ends() {
    let budget = MemoryBudget::new(MemoryLimits::of_total(16 << 20));
    let below = Arc::new(twin_of(&[put(b"a", b"1")]));
    let begin = || TxStore::begin(below.clone(), ListSchema, &budget.account(Some(7)));
    let long = [7; 60_000];
    let fill = |tx: &TxStore<Below, ListSchema>| {
        let put_number = |n: u32| tx.commit(&put(&n.to_be_bytes(), &long), None, Admit::User).is_ok();
        (0..1000).take_while(|n| put_number(*n)).count()
    };
    for end in ["end", "seal", "drop", "roll back"] {
        let tx = begin();
        let mark = tx.mark();
        assert!((15..=18).contains(&fill(&tx)), "a user has a sixteenth: 1 MiB");
        let refused = tx.commit(&put(b"more", &long), None, Admit::User);
        assert!(matches!(refused, Err(CommitError::Failed(MetaError::Memory(MemoryRefused::Share)))));
        assert!(!tx.peek(b"more", &mut Vec::new()).unwrap(), "a refused change changes nothing");
        assert!((900 << 10..=1 << 20).contains(&budget.used_bytes_of(7)));
        match end {
            "end" => tx.end(),
            "roll back" => {
                tx.roll_back(&mark);
                assert!((15..=18).contains(&fill(&tx)), "undone changes are free");
                drop(tx);
            }
            "seal" => {
                let changes = tx.seal().unwrap();
                drop(tx);
                assert!(
                    budget.used_bytes() >= 900 << 10,
                    "sealed changes are charged until they are dropped"
                );
                below.commit(&changes.batch, Some(&changes.reads), changes.admit).unwrap();
                drop(changes);
            }
            _ => drop(tx),
        }
        assert_eq!(budget.used_bytes(), 0, "{end}");
    }
}

#[test]
fn reads_without_room_are_refused() {
    let budget = MemoryBudget::new(MemoryLimits::of_total(16 << 20));
    let below = Arc::new(twin_of(&[put(b"a", b"1")]));
    let tx = TxStore::begin(below, ListSchema, &budget.account(Some(7)));
    let read = |n: u64| tx.get(&n.to_be_bytes(), Seq::MAX, &mut Vec::new());
    let count = (0..1_000_000).take_while(|n| read(*n).is_ok()).count() as u64;
    assert!((10_000..100_000).contains(&count), "{count}");
    assert!(matches!(read(count), Err(MetaError::Memory(MemoryRefused::Share))));
    assert!(!read(0).unwrap(), "a key that was read before needs no room");
    assert!(budget.used_bytes() <= 1 << 20);
    let reads = tx.seal().unwrap().reads;
    assert_eq!((reads.key_count() as u64, reads.ranges().len()), (count, 0));
}

#[test]
fn the_slices_that_a_transaction_keeps_are_charged_each() {
    const SLICES: usize = 300;
    let budget = MemoryBudget::new(MemoryLimits::of_total(64 << 20));
    let used_with = |names_slices: bool| {
        let tx = TxStore::begin(Arc::new(twin_of(&[])), ListSchema, &budget.account(Some(7)));
        for n in 0..SLICES {
            let slices = tx.write(Stream::Large, &n.to_be_bytes(), Admit::User).unwrap();
            let mut batch = Batch::new();
            let item = if names_slices { pointer_item(slices[0]) } else { text_item(&[7; 19]) };
            batch.put(&n.to_be_bytes(), &item);
            tx.commit(&batch, None, Admit::User).unwrap();
            tx.release(&slices);
        }
        budget.used_bytes_of(7)
    };
    let (with, without) = (used_with(true), used_with(false));
    let each = super::KEPT_SLICE_BYTES;
    assert!(with >= without + SLICES * each, "{with} bytes, {without} without slices");
}
