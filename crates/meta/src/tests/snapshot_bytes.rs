//! The bytes that snapshots alone need: against a naive count, and against what their deletion frees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warpfire_log::{LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_units::{Seq, SlicePtr};

use super::small;
use crate::domain::domain_of;
use crate::schema::Schema;
use crate::snapshot_bytes::{NeededPiece, Needers, SnapshotBytes, merged};
use crate::table::RunStream;
use crate::testing::{ListItem, ListSchema, Rng, items, pointer_item, snapshot_key, text_item};
use crate::{
    Admit, Background, Batch, Direction, DomainId, DomainRecord, Engine, KeyRange, ScanPage, SliceStore,
    SnapshotStore, Store,
};

type TestEngine = Engine<MemLog, ListSchema>;

/// The bundles in tables, by the key and the slice that its value names of them. `None`: another version of
/// the key names such a slice too and has no bundle, or another one.
fn bundles(engine: &TestEngine) -> Option<BTreeMap<(Vec<u8>, SlicePtr), SlicePtr>> {
    let mut found: BTreeMap<_, BTreeSet<Option<SlicePtr>>> = BTreeMap::new();
    for (_, table) in engine.inner_for_tests().table_set().tables() {
        let mut stream = RunStream::new(vec![Arc::clone(table)]).unwrap();
        while let Some(entry) = stream.entry() {
            let bundle = stream.bundle().map(|bundle| bundle.slice);
            let mut note = |slice: SlicePtr| {
                let whole = bundle.filter(|bundle| slice.is_end_of(*bundle));
                found.entry((entry.key.to_vec(), slice)).or_default().insert(whole);
            };
            ListSchema.pointers(entry.key, entry.value, false, &mut note).unwrap();
            stream.next().unwrap();
        }
    }
    let only = |(name, wholes): (_, BTreeSet<Option<SlicePtr>>)| match (wholes.first(), wholes.len()) {
        (Some(Some(bundle)), 1) => Some(Some((name, *bundle))),
        (_, 1) => Some(None),
        _ => None,
    };
    found.into_iter().map(only).collect::<Option<Vec<_>>>().map(|all| all.into_iter().flatten().collect())
}

/// Compares the engine's answer for some snapshots with one from reads at the seq of each reader.
pub(super) fn check_snapshot_bytes(
    engine: &TestEngine,
    listed: &[Seq],
    others: &[Seq],
    domains: &BTreeMap<DomainId, DomainRecord>,
) {
    let found = engine.snapshot_bytes(listed).unwrap();
    let Some(bundles) = bundles(engine) else { return };
    let mut pieces = Vec::new();
    let mut read = |at: Seq, only: Option<DomainId>, needers: Needers| {
        let mut page = ScanPage::default();
        let all = KeyRange { start: b"", end: None };
        engine.scan(all, at, Direction::Forward, usize::MAX, usize::MAX, &mut page).unwrap();
        for entry in page.iter() {
            let of = domain_of(entry.key);
            let removed_at = of.and_then(|of| domains.get(&of)?.removed_at);
            if removed_at.is_some_and(|removed| removed < at) || only.is_some_and(|only| of != Some(only)) {
                continue;
            }
            let mut add = |slice| {
                let bundle = bundles.get(&(entry.key.to_vec(), slice));
                pieces.push(NeededPiece::new(*bundle.unwrap_or(&slice), needers));
            };
            ListSchema.pointers(entry.key, entry.value, false, &mut add).unwrap();
        }
    };
    for (place, seq) in listed.iter().enumerate() {
        let place = place as u32;
        read(*seq, None, Needers::at(place));
    }
    others.iter().for_each(|seq| read(*seq, None, Needers::OTHERS));
    for origin in domains.values().filter_map(|record| record.origin) {
        read(origin.seq, Some(origin.domain), Needers::OTHERS);
    }
    for rollback in engine.rollbacks() {
        read(rollback.to, Some(rollback.domain), Needers::OTHERS);
    }
    read(engine.snapshot().seq(), None, Needers::OTHERS);
    let mut expected = SnapshotBytes::default();
    expected.add(&merged(pieces));
    assert_eq!(found, expected, "{listed:?} of {others:?}");
}

fn open() -> TestEngine {
    let options = MemLogOptions { capacity_bytes: 64 << 20, segment_bytes: 128 << 10 };
    let log = MemLog::with_options(options);
    Engine::open(log, RecoveredLog::empty(), ListSchema, small(Background::Manual)).unwrap()
}

/// The bytes of all slices that values name, each once, when everything is compacted.
fn data_bytes(engine: &TestEngine) -> u64 {
    while engine.background_step().unwrap() {}
    engine.compact().unwrap();
    engine.reclaim_all().unwrap();
    engine.count_live().unwrap();
    let tables: u64 = engine.runs().iter().chain(&engine.past_runs()).map(|(_, bytes)| bytes).sum();
    engine.log().space().live_bytes - tables
}

struct Life {
    rng: Rng,
    engine: TestEngine,
    kept: BTreeSet<Seq>,
}

impl Life {
    fn key(&mut self) -> Vec<u8> {
        format!("file {:03}", self.rng.below(150)).into_bytes()
    }

    fn slices(&self, key: &[u8]) -> Vec<SlicePtr> {
        let mut value = Vec::new();
        if !self.engine.get(key, Seq::MAX, &mut value).unwrap() {
            return Vec::new();
        }
        let of = |item: ListItem<'_>| match item {
            ListItem::Pointer(slice) => Some(slice),
            _ => None,
        };
        items(&value).unwrap().into_iter().filter_map(of).collect()
    }

    fn step(&mut self) {
        let key = self.key();
        let _pin = self.engine.pin().unwrap();
        let mut batch = Batch::new();
        let len = 200 + self.rng.below(3000) as usize;
        let text: Vec<u8> = (0..len).map(|_| self.rng.next() as u8).collect();
        let (mut written, mut named) = (Vec::new(), self.slices(&key));
        match self.rng.below(10) {
            // Small bytes, which the flush makes a bundle of.
            0 => batch.put(&key, &text_item(&text[..200])),
            1 => batch.delete(&key),
            // Parts of another file: its bytes have two names.
            2 | 3 => {
                let other = self.key();
                named = self.slices(&other);
                named.truncate(1 + self.rng.below(3) as usize);
                if let Some(first) = named.first_mut().filter(|first| first.len_bytes > 10) {
                    *first = first.part(5, first.len_bytes - 7);
                }
            }
            kind => {
                written = self.engine.write(Stream::Large, &text, Admit::User).unwrap().to_vec();
                if kind < 7 {
                    named.clear();
                } else {
                    named.truncate(4);
                }
                named.extend(&written);
            }
        }
        if batch.is_empty() {
            batch.put(&key, &named.iter().flat_map(|slice| pointer_item(*slice)).collect::<Vec<_>>());
        }
        self.engine.commit(&batch, None, Admit::User).unwrap();
        SliceStore::release(&self.engine, &written);
    }

    fn live(seed: u64) -> Life {
        let mut life = Life { rng: Rng(seed), engine: open(), kept: BTreeSet::new() };
        for _ in 0..12 {
            for _ in 0..life.rng.below(150) {
                life.step();
            }
            let put = &mut |seq, batch: &mut Batch| batch.put(&snapshot_key(seq), &text_item(b"mine"));
            life.kept.insert(life.engine.commit_at_newest(Admit::User, put).unwrap());
            if life.rng.below(3) == 0 {
                while life.engine.background_step().unwrap() {}
            }
        }
        for _ in 0..life.rng.below(150) {
            life.step();
        }
        life
    }

    fn delete(&mut self, seqs: &[Seq]) {
        for seq in seqs {
            let mut batch = Batch::new();
            batch.delete(&snapshot_key(*seq));
            self.engine.drop_snapshot(*seq, &batch).unwrap();
            self.engine.sync(Seq::MAX).unwrap();
            assert!(self.kept.remove(seq), "it is there");
        }
    }
}

#[test]
fn what_a_deletion_was_to_free_is_free_after_it() {
    let mut freed_most = 0;
    for seed in 0..20 {
        let mut life = Life::live(seed);
        let mut before = data_bytes(&life.engine);
        while !life.kept.is_empty() {
            let kept: Vec<Seq> = life.kept.iter().copied().collect();
            let from = life.rng.below(kept.len() as u64) as usize;
            let to = from + 1 + life.rng.below((kept.len() - from).min(3) as u64) as usize;
            let gone = &kept[from..to];
            // As one of all snapshots, and as a list of its own.
            let all = life.engine.snapshot_bytes(&kept).unwrap();
            let of_all: u64 =
                all.iter().filter(|(of, _)| from <= of.start && of.end <= to).map(|(_, bytes)| bytes).sum();
            let promised = life.engine.snapshot_bytes(gone).unwrap().total();
            assert_eq!(of_all, promised, "seed {seed}");
            life.delete(gone);
            let after = data_bytes(&life.engine);
            assert_eq!(before - after, promised, "seed {seed}: {gone:?} of {kept:?}");
            freed_most = freed_most.max(promised);
            before = after;
        }
    }
    assert!(freed_most > 50_000, "snapshots held {freed_most} bytes at most");
}

#[test]
fn a_reader_that_only_reads_counts_what_is_in_memory() {
    let engine = open();
    let slices = engine.write(Stream::Large, &[1; 5000], Admit::User).unwrap();
    let mut batch = Batch::new();
    batch.put(b"file", &pointer_item(slices[0]));
    engine.commit(&batch, None, Admit::User).unwrap();
    SliceStore::release(&engine, &slices);
    let put = &mut |seq, batch: &mut Batch| batch.put(&snapshot_key(seq), &text_item(b"mine"));
    let seq = engine.commit_at_newest(Admit::User, put).unwrap();
    let mut batch = Batch::new();
    batch.delete(b"file");
    engine.commit(&batch, None, Admit::User).unwrap();
    engine.sync(Seq::MAX).unwrap();
    let (log, recovered) = engine.log().crash();
    let options = crate::EngineOptions { read_only: true, ..small(Background::Manual) };
    let reader = Engine::open(log, recovered, ListSchema, options).unwrap();
    assert_eq!((reader.runs(), reader.snapshot_bytes(&[seq]).unwrap().total()), (vec![], 5000));
}

/// Small bytes are slices only in tables. Those of the active memtable were left out where another one was
/// frozen already.
#[test]
fn small_bytes_behind_a_frozen_memtable_count() {
    let engine = open();
    let put = |key: &[u8], len: usize| {
        let mut batch = Batch::new();
        batch.put(key, &text_item(&vec![7; len]));
        engine.commit(&batch, None, Admit::User).unwrap();
    };
    put(b"older", 300);
    assert!(engine.inner_for_tests().freeze().unwrap());
    put(b"small", 300);
    let keep = &mut |seq, batch: &mut Batch| batch.put(&snapshot_key(seq), &text_item(b"mine"));
    let seq = engine.commit_at_newest(Admit::User, keep).unwrap();
    let mut batch = Batch::new();
    batch.delete(b"small");
    engine.commit(&batch, None, Admit::User).unwrap();
    let alone = engine.snapshot_bytes(&[seq]).unwrap().total();
    assert!((300..400).contains(&alone), "{alone} bytes: those of the value, and its bundle's record");
}
