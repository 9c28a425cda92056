//! Domains in random histories.

use std::collections::BTreeMap;

use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::{EngineAndTwin, HistoryStep};
use crate::domain::{DomainId, DomainOrigin, DomainRecord, ORIGINS_MAX};
use crate::testing::{domain_key, domain_value, resolved, text_item};
use crate::{
    Admit, Batch, Direction, DomainPart, KeyRange, ReadSet, ScanPage, SliceStore, SnapshotStore, Store,
};

/// Makes a domain with this origin: at the newest version, or at that of a persistent snapshot.
pub(in crate::tests) fn make_domain(
    store: &impl SnapshotStore,
    domain: DomainId,
    origin: DomainId,
    at: Option<Seq>,
) -> DomainRecord {
    let mut made = None;
    let mut build = |newest: Seq, batch: &mut Batch| {
        let seq = at.unwrap_or(newest);
        let origin = Some(DomainOrigin { domain: origin, seq, released_at: None });
        let record = made.insert(DomainRecord { domain, origin, removed_at: None });
        batch.put(&domain_key(domain), &domain_value(record));
    };
    store.commit_at_newest(Admit::User, &mut build).unwrap();
    made.unwrap()
}

pub(in crate::tests) fn remove_domain(store: &impl SnapshotStore, record: DomainRecord) -> DomainRecord {
    let mut removed = record;
    let mut build = |newest: Seq, batch: &mut Batch| {
        removed.removed_at = Some(newest);
        batch.put(&domain_key(record.domain), &domain_value(&removed));
    };
    store.commit_at_newest(Admit::User, &mut build).unwrap();
    store.sync(Seq::MAX).unwrap();
    removed
}

/// Releases the origin of a domain that settles all that it shows.
pub(in crate::tests) fn release_origin(store: &impl SnapshotStore, record: DomainRecord) -> DomainRecord {
    let mut released = record;
    let mut build = |newest: Seq, batch: &mut Batch| {
        released.origin = record.origin.map(|of| DomainOrigin { released_at: Some(newest), ..of });
        batch.put(&domain_key(record.domain), &domain_value(&released));
    };
    store.commit_at_newest(Admit::User, &mut build).unwrap();
    released
}

/// Takes the origin, which is released, out of the record of a domain.
pub(in crate::tests) fn forget_origin(store: &impl SnapshotStore, record: DomainRecord) -> DomainRecord {
    let alone = DomainRecord { origin: None, ..record };
    let mut batch = Batch::new();
    batch.put(&domain_key(record.domain), &domain_value(&alone));
    store.forget_origin(record.domain, &batch).unwrap();
    store.sync(Seq::MAX).unwrap();
    alone
}

pub(in crate::tests) fn forget_domain(store: &impl SnapshotStore, domain: DomainId) {
    let mut batch = Batch::new();
    batch.delete(&domain_key(domain));
    store.forget_domain(domain, &batch).unwrap();
    store.sync(Seq::MAX).unwrap();
}

impl EngineAndTwin {
    pub(super) fn make_domain(&mut self) {
        let live = self.live_domains();
        let from = match self.rng.below(2) {
            0 if !live.is_empty() => live[self.rng.below(live.len() as u64) as usize],
            _ => *[b"dire", b"zzzz"][self.rng.below(2) as usize],
        };
        // No earlier than the origin of the domain below: what that shows before is not held.
        let from_seq = self.domains.get(&from).and_then(|d| d.origin).map_or(Seq(0), |origin| origin.seq);
        let kept: Vec<Seq> = self.kept.range(from_seq..).copied().collect();
        let at = match self.rng.below(3) {
            0 if !kept.is_empty() => Some(kept[self.rng.below(kept.len() as u64) as usize]),
            _ => None,
        };
        let (mut depth, mut below, mut seen_at) = (1, from, at.unwrap_or(Seq::MAX));
        let origin_of = |domain| self.domains.get(&domain).and_then(|record| record.origin);
        while let Some(origin) = origin_of(below).filter(|origin| origin.is_read_at(seen_at)) {
            (depth, below, seen_at) = (depth + 1, origin.domain, seen_at.min(origin.seq));
        }
        if depth > ORIGINS_MAX || self.domains.len() > 12 {
            return;
        }
        self.next_domain += 1;
        let domain = *format!("c{:03}", self.next_domain).as_bytes().first_chunk().unwrap();
        let record = make_domain(&self.engine, domain, from, at);
        assert_eq!(record, make_domain(&self.twin, domain, from, at));
        self.history.push(HistoryStep::MakeDomain(domain, from, at));
        self.domains.insert(domain, record);
    }

    pub(super) fn remove_domain(&mut self) {
        let live = self.live_domains();
        if live.is_empty() {
            return;
        }
        let domain = live[self.rng.below(live.len() as u64) as usize];
        let removed = remove_domain(&self.engine, self.domains[&domain]);
        assert_eq!(removed, remove_domain(&self.twin, self.domains[&domain]));
        self.history.push(HistoryStep::RemoveDomain(domain));
        self.domains.insert(domain, removed);
        self.synced = Seq(self.history.len() as u64);
    }

    /// Forgets the removed domains that nobody needs. `true`: it forgot one.
    pub(super) fn forget_domain(&mut self) -> bool {
        let Some(domain) = self.engine.unneeded_domains().unwrap().pop() else { return false };
        self.twin.background_step().unwrap();
        // The twin drops the keys of a domain together, so it may need it for longer.
        let unneeded = self.twin.unneeded_domains().unwrap();
        if !unneeded.contains(&domain) {
            return false;
        }
        forget_domain(&self.engine, domain);
        forget_domain(&self.twin, domain);
        self.history.push(HistoryStep::ForgetDomain(domain));
        self.domains.remove(&domain);
        self.synced = Seq(self.history.len() as u64);
        true
    }

    /// Copies what a domain shows of its origin, in some commits, and releases the origin.
    pub(super) fn release_origin(&mut self) {
        let is_whole = |d: &&DomainRecord| {
            d.removed_at.is_none() && d.origin.is_some_and(|origin| origin.released_at.is_none())
        };
        let Some(record) = self.domains.values().find(is_whole).copied() else { return };
        let keys = record.keys();
        let mut start = keys.as_range().start.to_vec();
        loop {
            let range = KeyRange { start: &start, ..keys.as_range() };
            let next = self.copy_page(range);
            let Some(next) = next else { break };
            start = next;
        }
        let released = release_origin(&self.engine, record);
        assert_eq!(released, release_origin(&self.twin, record));
        self.history.push(HistoryStep::ReleaseOrigin(record.domain));
        self.domains.insert(record.domain, released);
    }

    /// Puts the values of the next keys that a domain shows of its origin. Returns the start of the rest.
    pub(super) fn copy_page(&mut self, range: KeyRange<'_>) -> Option<Vec<u8>> {
        let limits = ([3, 10_000][self.rng.below(2) as usize], 1 << 20);
        let _pin = self.engine.pin().unwrap();
        let snapshot = self.engine.snapshot();
        let at = snapshot.seq();
        let (mut page, mut twin_page) = (ScanPage::default(), ScanPage::default());
        self.engine.scan_part(range, at, DomainPart::ReadOn, limits, &mut page).unwrap();
        self.twin.scan_part(range, at, DomainPart::ReadOn, (limits.0, usize::MAX), &mut twin_page).unwrap();
        let shown = page.iter().map(|entry| entry.key).zip(twin_page.iter().map(|entry| entry.key));
        shown.for_each(|(a, b)| assert_eq!(a, b, "both show the same keys of the origin"));
        assert!(page.more || page.len() == twin_page.len());
        if page.is_empty() {
            return None;
        }
        let (mut batch, mut twin_batch) = (Batch::new(), Batch::new());
        for entry in page.iter() {
            let texts = resolved(entry.value, |slice, buf| self.engine.log().read(slice, buf)).unwrap();
            batch.put(entry.key, entry.value);
            twin_batch.put(entry.key, &text_item(&texts));
        }
        let reads = ReadSet::new(at, page.iter().map(|entry| entry.key.to_vec()), []);
        let seq = self.engine.commit(&batch, Some(&reads), Admit::User).unwrap();
        assert_eq!(seq, self.twin.commit(&twin_batch, None, Admit::User).unwrap());
        self.history.push(HistoryStep::Commit(twin_batch));
        page.iter().next_back().filter(|_| page.more).map(|last| [last.key, &[0]].concat())
    }

    /// Takes an origin away in which nobody reads on.
    pub(super) fn forget_origin(&mut self) {
        let unneeded = self.engine.unneeded_origins();
        assert_eq!(unneeded, self.twin.unneeded_origins());
        let Some(domain) = unneeded.first() else { return };
        let alone = forget_origin(&self.engine, self.domains[domain]);
        assert_eq!(alone, forget_origin(&self.twin, self.domains[domain]));
        self.history.push(HistoryStep::ForgetOrigin(*domain));
        self.domains.insert(*domain, alone);
        self.synced = Seq(self.history.len() as u64);
    }

    /// Both parts of a domain together are the domain.
    pub(super) fn check_parts(&mut self) {
        let live = self.live_domains();
        if live.is_empty() {
            return;
        }
        let domain = live[self.rng.below(live.len() as u64) as usize];
        let (snapshot, keys) = (self.engine.snapshot(), self.domains[&domain].keys());
        let (range, at) = (keys.as_range(), snapshot.seq());
        let mut all = ScanPage::default();
        self.engine.scan(range, at, Direction::Forward, usize::MAX, usize::MAX, &mut all).unwrap();
        let mut parts = BTreeMap::new();
        for part in [DomainPart::Settled, DomainPart::ReadOn] {
            let mut page = ScanPage::default();
            self.engine.scan_part(range, at, part, (usize::MAX, usize::MAX), &mut page).unwrap();
            for entry in page.iter() {
                assert!(parts.insert(entry.key.to_vec(), entry.value.to_vec()).is_none(), "in one part");
            }
        }
        assert!(parts.iter().map(|(k, v)| (&k[..], &v[..])).eq(all.iter().map(|e| (e.key, e.value))));
    }
}
