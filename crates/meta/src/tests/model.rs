//! Random histories on the engine and on `MapStore`: both must answer alike at every version that is held.

pub(super) mod bookmarks;
pub(super) mod domains;
pub(super) mod rollbacks;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use warpfire_log::{Admit, LogStore, MemLog, MemLogOptions, RecoveredLog, Stream};
use warpfire_units::Seq;

use super::census::check_counts;
use super::snapshot_bytes::check_snapshot_bytes;
use crate::domain::{DomainId, DomainRecord, RollbackRecord};
use crate::testing::{
    ListItem, ListSchema, Rng, clear_item, items, pointer_item, resolved, snapshot_key, text_item,
};
use crate::{
    Background, Batch, Direction, Engine, EngineOptions, EngineSnapshot, KeyRange, MapStore, ScanPage,
    SliceStore, SnapshotStore, Store, WantedBytes,
};
use bookmarks::{drop_bookmark, keep_bookmark};
use domains::{forget_domain, forget_origin, make_domain, release_origin, remove_domain};
use rollbacks::{end_rollbacks, forget_rollback, roll_back};

type TestEngine = Engine<MemLog, ListSchema>;

fn open(log: MemLog, recovered: RecoveredLog) -> TestEngine {
    let options = EngineOptions {
        memtable_bytes: 32 << 10,
        block_cache_bytes: 64 << 10,
        log_bytes_max: 128 << 10,
        background: Background::Manual,
        read_only: false,
    };
    Engine::open(log, recovered, ListSchema, options).unwrap()
}

/// A commit of the history.
enum HistoryStep {
    Commit(Batch),
    MakeSnapshot,
    DropSnapshot(Seq),
    KeepBookmark(u64, Seq),
    DropBookmark(u64, Seq),
    MakeDomain(DomainId, DomainId, Option<Seq>),
    RemoveDomain(DomainId),
    ForgetDomain(DomainId),
    ReleaseOrigin(DomainId),
    ForgetOrigin(DomainId),
    RollBack(DomainId, Seq),
    EndRollbacks(Vec<RollbackRecord>),
    ForgetRollback(RollbackRecord),
}

/// Makes a persistent snapshot.
fn make_snapshot(store: &impl SnapshotStore) -> Seq {
    let text = text_item(b"a snapshot");
    store.commit_at_newest(Admit::User, &mut |seq, batch| batch.put(&snapshot_key(seq), &text)).unwrap()
}

/// Drops a persistent snapshot.
fn drop_snapshot(store: &impl SnapshotStore, seq: Seq) {
    let mut batch = Batch::new();
    batch.delete(&snapshot_key(seq));
    store.drop_snapshot(seq, &batch).unwrap();
    store.sync(Seq::MAX).unwrap();
}

/// The items of a range of the bytes of a value.
fn part_of(value: &[u8], range: Range<usize>) -> Vec<u8> {
    let (mut part, mut at) = (Vec::new(), 0);
    for item in items(value).unwrap() {
        let len = match &item {
            ListItem::Text(text) => text.len(),
            ListItem::Pointer(slice) => slice.len_bytes as usize,
            ListItem::Clear => 0,
        };
        let (from, to) = (range.start.max(at), range.end.min(at + len));
        if from < to {
            match item {
                ListItem::Text(text) => part.extend(text_item(&text[from - at..to - at])),
                ListItem::Pointer(slice) => {
                    part.extend(pointer_item(slice.part((from - at) as u32, (to - from) as u32)));
                }
                ListItem::Clear => unreachable!("it has no bytes"),
            }
        }
        at += len;
    }
    part
}

struct EngineAndTwin {
    rng: Rng,
    engine: TestEngine,
    twin: MapStore<ListSchema>,
    /// Every commit, as the twin got it.
    history: Vec<HistoryStep>,
    /// The persistent snapshots.
    kept: BTreeSet<Seq>,
    /// The bookmarks, by number.
    bookmarks: BTreeMap<u64, Seq>,
    next_bookmark: u64,
    /// The domains with a record.
    domains: BTreeMap<DomainId, DomainRecord>,
    next_domain: u32,
    synced: Seq,
    held: Vec<(EngineSnapshot, EngineSnapshot)>,
    keys: u64,
}

impl EngineAndTwin {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let log = MemLog::with_options(MemLogOptions { capacity_bytes: 64 << 20, segment_bytes: 128 << 10 });
        let keys = [20, 300, 3000][rng.below(3) as usize];
        EngineAndTwin {
            rng,
            engine: open(log, RecoveredLog::empty()),
            twin: MapStore::new(ListSchema),
            history: Vec::new(),
            kept: BTreeSet::new(),
            bookmarks: BTreeMap::new(),
            next_bookmark: 0,
            domains: BTreeMap::new(),
            next_domain: 0,
            synced: Seq(0),
            held: Vec::new(),
            keys,
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let n = self.rng.below(self.keys);
        // Long shared prefixes, short keys, keys that are prefixes of others.
        let mut key = match n % 3 {
            0 => format!("directory/with/a/long/name/{n:06}").into_bytes(),
            1 => format!("{n}").into_bytes(),
            _ => vec![b'z'; (n % 40 + 1) as usize],
        };
        if n.is_multiple_of(17) {
            key = format!("dire/its own {n:06}").into_bytes();
        }
        let live = self.live_domains();
        if key.len() >= 4 && !live.is_empty() && self.rng.below(2) == 0 {
            key[..4].copy_from_slice(&live[self.rng.below(live.len() as u64) as usize]);
        }
        key
    }

    fn live_domains(&self) -> Vec<DomainId> {
        self.domains.values().filter(|d| d.removed_at.is_none()).map(|d| d.domain).collect()
    }

    fn text(&mut self) -> Vec<u8> {
        let len = [1u16, 5, 20, 100, 700][self.rng.below(5) as usize];
        let byte = self.rng.next() as u8;
        (0..len).map(|i| byte.wrapping_add(i as u8)).collect()
    }

    fn commit(&mut self) {
        let (mut batch, mut twin_batch) = (Batch::new(), Batch::new());
        let mut slices = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let key = self.key();
            let text = self.text();
            match self.rng.below(10) {
                0..3 => {
                    batch.put(&key, &text_item(&text));
                    twin_batch.put(&key, &text_item(&text));
                }
                3..5 => {
                    batch.delete(&key);
                    twin_batch.delete(&key);
                }
                5..8 => {
                    batch.merge(&key, &text_item(&text));
                    twin_batch.merge(&key, &text_item(&text));
                }
                8 => {
                    batch.merge(&key, &clear_item());
                    twin_batch.merge(&key, &clear_item());
                }
                _ => {
                    let written = self.engine.write(Stream::Large, &text, Admit::User).unwrap();
                    for slice in &written {
                        batch.merge(&key, &pointer_item(*slice));
                    }
                    twin_batch.merge(&key, &text_item(&text));
                    slices.extend(written);
                }
            }
        }
        let seq = self.engine.commit(&batch, None, Admit::User).unwrap();
        let twin_seq = self.twin.commit(&twin_batch, None, Admit::User).unwrap();
        assert_eq!(seq, twin_seq);
        SliceStore::release(&self.engine, &slices);
        self.history.push(HistoryStep::Commit(twin_batch));
    }

    /// Names a part of a key's value under another key too: its slices have two names then, and begin and end
    /// anywhere.
    fn copy(&mut self) {
        let (from, to) = (self.key(), self.key());
        let _pin = self.engine.pin().unwrap();
        let mut value = Vec::new();
        if !self.engine.get(&from, Seq::MAX, &mut value).unwrap() {
            return;
        }
        let texts = resolved(&value, |slice, buf| self.engine.log().read(slice, buf)).unwrap();
        if texts.is_empty() || texts.len() > 20_000 {
            return;
        }
        let start = self.rng.below(texts.len() as u64) as usize;
        let end = start + 1 + self.rng.below((texts.len() - start) as u64) as usize;
        let (mut batch, mut twin_batch) = (Batch::new(), Batch::new());
        batch.put(&to, &part_of(&value, start..end));
        twin_batch.put(&to, &text_item(&texts[start..end]));
        let seq = self.engine.commit(&batch, None, Admit::User).unwrap();
        assert_eq!(seq, self.twin.commit(&twin_batch, None, Admit::User).unwrap());
        self.history.push(HistoryStep::Commit(twin_batch));
    }

    fn at(&mut self) -> Seq {
        let kept = self.kept.iter().copied();
        let seqs: Vec<Seq> = self.held.iter().map(|(snapshot, _)| snapshot.seq()).chain(kept).collect();
        match self.rng.below(seqs.len() as u64 + 1) as usize {
            0 => Seq::MAX,
            n => seqs[n - 1],
        }
    }

    fn check_get(&mut self) {
        let (mut key, at) = (self.key(), self.at());
        // A snapshot shows the domains that were there, also those that are removed by now.
        let shown = |d: &&DomainRecord| {
            let made_after = d.origin.map_or(Seq(0), |origin| origin.seq);
            d.removed_at.is_some_and(|removed| made_after < at && at <= removed)
        };
        if let Some(removed) = self.domains.values().find(shown)
            && key.len() >= 4
        {
            key[..4].copy_from_slice(&removed.domain);
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let found = self.engine.get(&key, at, &mut a).unwrap();
        assert_eq!(found, self.twin.get(&key, at, &mut b).unwrap(), "{key:?} at {at:?}");
        if found {
            let value = resolved(&a, |slice, buf| self.engine.log().read(slice, buf)).unwrap();
            assert_eq!(value, resolved(&b, |_, _| unreachable!("the twin has texts")).unwrap());
        }
        if at == Seq::MAX {
            let _pin = self.engine.pin().unwrap();
            let read =
                |value: &[u8]| resolved(value, |slice, buf| self.engine.log().read(slice, buf)).unwrap();
            for wanted in [
                WantedBytes::Now,
                WantedBytes::Again,
                WantedBytes::Soon,
                WantedBytes::InParts,
                WantedBytes::IfKept,
            ] {
                assert_eq!(self.engine.get_with_bytes(&key, wanted, &mut b).unwrap(), found);
                assert_eq!(read(&b), read(&a), "{key:?} with its bytes, {wanted:?}");
            }
        }
    }

    fn check_scan(&mut self) {
        let snapshot = self.engine.snapshot();
        let at = match self.at() {
            Seq::MAX => snapshot.seq(),
            held => held,
        };
        let (start, mut end) = (self.key(), self.key());
        let removed = self.domains.values().any(|d| d.removed_at.is_some());
        if removed && start.len() >= 4 {
            let len = end.len().max(4);
            end.resize(len, 0xff);
            end[..4].copy_from_slice(&start[..4]);
        }
        let range = match self.rng.below(3) {
            // Nobody reads the rest of a removed domain: a scan stays in one that is live.
            _ if removed && start.len() < 4 => KeyRange { start: b"directory", end: Some(b"dirf") },
            _ if removed => KeyRange { start: &start, end: Some(&end) },
            0 => KeyRange { start: b"", end: None },
            1 => KeyRange { start: &start, end: None },
            _ => KeyRange { start: &start, end: Some(&end) },
        };
        let direction = if self.rng.below(2) == 0 { Direction::Forward } else { Direction::Backward };
        let limit = [1, 7, 10_000][self.rng.below(3) as usize];
        let (mut a, mut b) = (ScanPage::default(), ScanPage::default());
        self.engine.scan(range, at, direction, limit, 1 << 20, &mut a).unwrap();
        self.twin.scan(range, at, direction, limit, usize::MAX, &mut b).unwrap();
        assert_eq!(a.len(), b.len(), "{range:?} {direction:?} at {at:?}");
        // A page that ends with a domain does not look into the next one.
        if a.more && !b.more {
            let last = a.entry(a.len() - 1).key.to_vec();
            let after = [&last[..], &[0]].concat();
            let rest = match direction {
                Direction::Forward => KeyRange { start: &after, end: range.end },
                Direction::Backward => KeyRange { start: range.start, end: Some(&last) },
            };
            let mut page = ScanPage::default();
            self.engine.scan(rest, at, direction, limit, 1 << 20, &mut page).unwrap();
            assert!(page.is_empty() && !page.more, "{range:?} {direction:?} at {at:?} says more");
        }
        assert!(a.more || !b.more, "{range:?} {direction:?} at {at:?}");
        for (a, b) in a.iter().zip(b.iter()) {
            assert_eq!(a.key, b.key);
            let value = resolved(a.value, |slice, buf| self.engine.log().read(slice, buf)).unwrap();
            assert_eq!(value, resolved(b.value, |_, _| unreachable!("the twin has texts")).unwrap());
        }
    }

    fn crash(&mut self) {
        self.held.clear();
        let (log, recovered) = self.engine.log().crash_seeded(self.rng.next());
        self.engine = open(log, recovered);
        let newest = self.engine.snapshot().seq();
        assert!(newest >= self.synced, "{newest:?} is older than the sync at {:?}", self.synced);
        self.history.truncate(newest.0 as usize);
        assert_eq!(self.history.len(), newest.0 as usize, "a commit came from nowhere");
        self.twin = MapStore::new(ListSchema);
        self.kept.clear();
        self.bookmarks.clear();
        self.domains.clear();
        for step in &self.history {
            match step {
                HistoryStep::Commit(batch) => drop(self.twin.commit(batch, None, Admit::User).unwrap()),
                HistoryStep::MakeSnapshot => drop(self.kept.insert(make_snapshot(&self.twin))),
                HistoryStep::DropSnapshot(seq) => {
                    drop_snapshot(&self.twin, *seq);
                    self.kept.remove(seq);
                }
                HistoryStep::KeepBookmark(number, seq) => {
                    keep_bookmark(&self.twin, *number, *seq);
                    self.bookmarks.insert(*number, *seq);
                }
                HistoryStep::DropBookmark(number, seq) => {
                    drop_bookmark(&self.twin, *number, *seq);
                    self.bookmarks.remove(number);
                }
                HistoryStep::MakeDomain(domain, from, at) => {
                    self.domains.insert(*domain, make_domain(&self.twin, *domain, *from, *at));
                }
                HistoryStep::RemoveDomain(domain) => {
                    let removed = remove_domain(&self.twin, self.domains[domain]);
                    self.domains.insert(*domain, removed);
                }
                HistoryStep::ReleaseOrigin(domain) => {
                    let released = release_origin(&self.twin, self.domains[domain]);
                    self.domains.insert(*domain, released);
                }
                HistoryStep::ForgetOrigin(domain) => {
                    let alone = forget_origin(&self.twin, self.domains[domain]);
                    self.domains.insert(*domain, alone);
                }
                HistoryStep::RollBack(domain, to) => drop(roll_back(&self.twin, *domain, *to)),
                HistoryStep::EndRollbacks(records) => drop(end_rollbacks(&self.twin, records)),
                HistoryStep::ForgetRollback(record) => forget_rollback(&self.twin, record),
                HistoryStep::ForgetDomain(domain) => {
                    self.twin.background_step().unwrap();
                    forget_domain(&self.twin, *domain);
                    self.domains.remove(domain);
                }
            }
        }
        self.synced = newest;
        assert_eq!(self.engine.rollbacks(), self.twin.rollbacks(), "the crash lost a rollback");
        for seq in &self.kept {
            assert!(self.engine.snapshot_at(*seq).is_some(), "the crash lost the snapshot at {seq:?}");
        }
        for seq in self.bookmarks.values() {
            assert!(self.engine.bookmark_at(*seq).is_some(), "the crash lost the bookmark of {seq:?}");
        }
    }

    fn make_snapshot(&mut self) {
        let seq = make_snapshot(&self.engine);
        assert_eq!(seq, make_snapshot(&self.twin));
        self.history.push(HistoryStep::MakeSnapshot);
        self.kept.insert(seq);
    }

    /// Drops one of the persistent snapshots, if there is one.
    fn drop_snapshot(&mut self) {
        let n = self.rng.below(self.kept.len().max(1) as u64) as usize;
        let Some(&seq) = self.kept.iter().nth(n) else { return };
        drop_snapshot(&self.engine, seq);
        drop_snapshot(&self.twin, seq);
        self.history.push(HistoryStep::DropSnapshot(seq));
        self.kept.remove(&seq);
        assert!(self.engine.snapshot_at(seq).is_none());
        // Everything up to the removal of the record is durable.
        self.synced = Seq(self.history.len() as u64);
    }

    /// What some of the persistent snapshots need alone, all of them or every second one.
    fn check_snapshot_bytes(&mut self) {
        // A rollback holds more until its record is durable.
        self.engine.sync(Seq::MAX).unwrap();
        self.synced = self.engine.snapshot().seq();
        let every = 1 + self.rng.below(2) as usize;
        let (mut listed, mut others) = (Vec::new(), Vec::new());
        for (place, seq) in self.kept.iter().enumerate() {
            if place.is_multiple_of(every) { listed.push(*seq) } else { others.push(*seq) }
        }
        others.extend(self.held.iter().map(|(snapshot, _)| snapshot.seq()));
        // What a bookmark holds does not fade where a domain reads on, or goes back, at the same seq.
        let origins = self.domains.values().filter_map(|d| d.origin).map(|of| of.seq);
        let of_rollbacks = self.engine.rollbacks().into_iter().map(|of| of.to);
        let whole: Vec<Seq> = origins.chain(of_rollbacks).collect();
        others.extend(self.bookmarks.values().filter(|seq| whole.contains(seq)));
        others.retain(|seq| !listed.contains(seq));
        check_snapshot_bytes(&self.engine, &listed, &others, &self.domains);
    }

    fn step(&mut self) {
        match self.rng.below(1000) {
            0..600 => self.commit(),
            600..677 => self.copy(),
            677..680 => check_counts(&self.engine),
            _ if self.rng.below(400) == 0 => self.check_snapshot_bytes(),
            680..690 => self.make_snapshot(),
            690..700 => self.drop_snapshot(),
            700..706 => self.make_domain(),
            706..709 => self.remove_domain(),
            709 => self.drop_bookmark(),
            710..714 => {
                self.forget_domain();
            }
            714..717 => self.release_origin(),
            717..722 => self.forget_origin(),
            722..726 => self.check_parts(),
            726..732 => self.keep_bookmark(),
            732..752 => self.check_bookmark(),
            752..757 => self.drop_bookmark(),
            757..760 => self.roll_back(),
            760..764 => self.end_rollback(),
            764..768 => drop(self.forget_rollback()),
            768..772 => self.check_changed(),
            772..800 => self.check_get(),
            800..880 => self.check_scan(),
            880..920 if self.held.len() < 5 => {
                self.held.push((self.engine.snapshot(), self.twin.snapshot()));
            }
            880..940 => {
                if !self.held.is_empty() {
                    let n = self.rng.below(self.held.len() as u64) as usize;
                    self.held.swap_remove(n);
                }
            }
            940..965 => {
                let newest = self.engine.snapshot().seq();
                let upto = if self.rng.below(2) == 0 { Seq::MAX } else { newest };
                self.engine.sync(upto).unwrap();
                self.synced = newest;
            }
            965..985 => {
                self.engine.background_step().unwrap();
            }
            985..990 => self.engine.flush().unwrap(),
            990..993 => self.engine.compact().unwrap(),
            993..996 => {
                self.engine.inner_for_tests().clean_step().unwrap();
            }
            _ => self.crash(),
        }
    }
}

fn run(seed: u64, steps: usize) {
    let mut world = EngineAndTwin::new(seed);
    for _ in 0..steps {
        world.step();
    }
    check_counts(&world.engine);
    world.crash();
    check_counts(&world.engine);
    world.keys = 3000;
    for _ in 0..50 {
        world.check_scan();
    }
    // When nothing is stored any more, nothing is referenced any more.
    world.held.clear();
    while !world.kept.is_empty() {
        world.drop_snapshot();
    }
    for _ in 0..20 {
        world.check_bookmark();
    }
    while !world.bookmarks.is_empty() {
        world.drop_bookmark();
    }
    while !world.live_domains().is_empty() {
        world.remove_domain();
    }
    while world.engine.rollbacks().iter().any(|rollback| rollback.ended_at.is_none()) {
        world.end_rollback();
    }
    // What one domain reads through its origin goes after that domain is forgotten.
    loop {
        world.engine.compact().unwrap();
        // The origin of a domain may be held in a domain that was rolled back.
        if !world.forget_domain() && !world.forget_rollback() {
            break;
        }
    }
    assert!(world.engine.rollbacks().is_empty(), "nobody knows of a rollback");
    assert!(world.domains.is_empty(), "a removed domain leaves nothing");
    let snapshot = world.engine.snapshot();
    let mut page = ScanPage::default();
    let all = KeyRange { start: b"", end: None };
    world.engine.scan(all, snapshot.seq(), Direction::Forward, usize::MAX, usize::MAX, &mut page).unwrap();
    drop(snapshot);
    let mut batch = Batch::new();
    page.iter().for_each(|entry| batch.delete(entry.key));
    world.engine.commit(&batch, None, Admit::Reserve).unwrap();
    world.engine.compact().unwrap();
    assert_eq!((world.engine.runs(), world.engine.past_runs()), (vec![], vec![]));
    assert_eq!(world.engine.space().unwrap().live_bytes, 0, "references leak");
}

#[test]
fn random_histories_agree_with_the_twin() {
    for seed in 0..40 {
        let outcome = std::panic::catch_unwind(|| run(seed, 3000));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

#[test]
fn what_was_closed_reopens() {
    let engine = open(MemLog::new(), RecoveredLog::empty());
    let mut batch = Batch::new();
    batch.put(b"key", &text_item(b"value"));
    engine.commit(&batch, None, Admit::User).unwrap();
    engine.close().unwrap();
    assert!(engine.commit(&batch, None, Admit::User).is_err());
    let (log, recovered) = engine.log().crash();
    let engine = open(log, recovered);
    let mut value = Vec::new();
    assert!(engine.get(b"key", Seq::MAX, &mut value).unwrap());
    assert_eq!(value, text_item(b"value"));
}
