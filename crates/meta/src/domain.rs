//! Domains: the keys that share their first four bytes. A domain may have an *origin*: another domain at a
//! seq, which it shows except where it has changes of its own. So a copy of a domain of any size is one
//! record. A domain may also be *rolled back*: then it shows an older seq of itself where it has no later
//! changes. So the way back is one record too, however much has changed.
//!
//! # Terms
//! To *read on* is to go from a key of a domain to the same key of its origin, at the origin's seq.
//! `Schema::reads_on` says for which keys. A domain is *removed* at a seq: then nobody reads it at a later
//! seq, and compaction drops what only such a reader would see. An origin is *released* at a seq: readers of
//! that seq and later ones do not read on in it.
//!
//! A rollback at a seq R to a seq S *hides* the versions between: those after S, up to and with R. Readers
//! of seqs after R do not see them. It *ends* at a seq once each hidden key has a later put or delete:
//! readers of that seq and later ones need not know of it. `Schema::goes_back` says which keys it hides.
//!
//! ```text
//!   versions        a reader of 3   a reader of 7   a rollback at 7 to 3:   a reader of 9
//!    9  operand                                     ─────────────────────   9, folded onto 2
//!    6  put                         6               hidden
//!    5  delete                                      hidden
//!    2  put         2                                                       2
//! ```
//!
//! # Invariants
//! 1. A read of a key takes the versions of its own domain. If no put or delete settles it, the read goes on
//!    in the origin, and the operands fold onto what it finds there (`read`; `tests::model`,
//!    `tests::bundles`).
//! 2. So an operand or a delete of a domain with an origin is kept where nothing is below it: what it changes
//!    or hides is in the origin (`OriginTable::may_hold_older`).
//! 3. The versions that an origin shows are held like those of a persistent snapshot, in its domain alone:
//!    from before the record of the domain above is visible until the removal of that record is durable. An
//!    open registers the domains of the map before its first job (`OriginTable::visible_in`).
//! 4. Origins lead from domain to domain at most `ORIGINS_MAX` times, never in a circle and never to a later
//!    seq. The records of a map that do not keep this are refused (`OriginTable::check`).
//! 5. No version of a domain is dropped that a held seq up to its removal sees (`fold`).
//! 6. An origin that is released stays registered, and invariants 2 and 3 with it, until no held seq of the
//!    domain above reads on in it and a record without it is durable (`OriginTable::unneeded_origins`,
//!    `commit/persistent.rs`). No such seq comes back: a new snapshot or origin has the newest seq, or one
//!    that is held.
//! 7. The versions that a rollback shows again are held like those of an origin, and until its record is
//!    durable so are those of the seq at which it was made (`OriginTable::held_for`). A hidden version that
//!    no held seq up to the rollback sees is dropped (`VersionGroup::drop_hidden`), so none folds together
//!    with a later one. Deletes and operands of its domain are kept as those above an origin are.
//! 8. A rollback is forgotten as an origin is: once it has ended, no held seq lies between its seq and its
//!    end, and its record is durably gone (`OriginTable::unneeded_rollbacks`).
//! 9. Before that, the versions since the rollback are brought together: an operand from its time never
//!    folds onto a hidden value, because the later put or delete of the same key is in the same table
//!    (`commit/persistent.rs`; the random sessions of `warpfire-sim`).
//! 10. Of the rollbacks of a domain the oldest ends first (assert in `commit/persistent.rs`). A later one may
//!     go back to a seq that it hides, and show its versions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use warpfire_env::sync::RwLock;
use warpfire_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use warpfire_env::{PlantedBug, is_planted};
use warpfire_units::Seq;

use crate::schema::Schema;
use crate::snapshot::SnapshotRegistry;
use crate::store::{KeyRange, SeqRange};

/// Length of a domain: the first bytes of its keys.
pub const DOMAIN_BYTES: usize = 4;

/// Most origins that a read passes.
pub const ORIGINS_MAX: usize = 8;

/// The first bytes of the keys of a domain.
pub type DomainId = [u8; DOMAIN_BYTES];

/// What a domain shows where it has no changes of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainOrigin {
    /// The domain below.
    pub domain: DomainId,
    /// The version of it.
    pub seq: Seq,
    /// The first seq of the domain above at which nobody reads on, if the origin is released.
    pub released_at: Option<Seq>,
}

impl DomainOrigin {
    /// Whether a reader of the domain above reads on at this seq.
    pub(crate) fn is_read_at(&self, at: Seq) -> bool {
        debug_assert!(
            self.released_at.is_none_or(|released| released > self.seq),
            "a domain is there only after the seq of its origin, and so is its release"
        );
        self.released_at.is_none_or(|released| at < released)
    }
}

/// A domain, as its record describes it. Domains without a record have no origin and are not removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainRecord {
    /// The domain.
    pub domain: DomainId,
    /// Its origin.
    pub origin: Option<DomainOrigin>,
    /// The last seq at which anybody reads it.
    pub removed_at: Option<Seq>,
}

/// A rollback of a domain, as its record describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RollbackRecord {
    /// The domain.
    pub domain: DomainId,
    /// The seq that it shows again.
    pub to: Seq,
    /// The newest seq when it was made: the last one that does not know of it.
    pub at: Seq,
    /// The first seq at which nobody needs to know of it, if it has ended.
    pub ended_at: Option<Seq>,
}

impl RollbackRecord {
    /// Whether the versions are hidden from a reader of the domain at this seq.
    fn is_known_at(&self, at: Seq) -> bool {
        debug_assert!(self.to <= self.at, "a rollback goes back");
        self.at < at && self.ended_at.is_none_or(|ended| at < ended)
    }

    /// The hidden versions.
    fn hidden(&self) -> SeqRange {
        SeqRange { after: self.to, upto: self.at }
    }
}

/// The seqs that a reader sees: those up to its own, except for hidden ones.
#[derive(Clone, Default, Debug)]
pub(crate) struct HiddenSeqs {
    /// From the newest to the oldest. They do not overlap.
    ranges: SmallVec<[SeqRange; 1]>,
}

impl HiddenSeqs {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    #[inline]
    pub(crate) fn has(&self, seq: Seq) -> bool {
        self.ranges.iter().any(|range| range.contains(seq))
    }

    /// The ranges that a reader at a seq sees, from the newest to the oldest: the seqs after `after`, up to
    /// and with `upto`. `None` in front of the oldest: it has seq 0 too.
    pub(crate) fn seen_ranges(&self, at: Seq) -> impl Iterator<Item = (Option<Seq>, Seq)> + '_ {
        let uptos = std::iter::once(at).chain(self.ranges.iter().map(|range| range.after));
        let afters = self.ranges.iter().map(|range| Some(range.upto)).chain([None]);
        afters.zip(uptos)
    }
}

/// The keys of a domain: the first one, and the first one past them.
pub(crate) struct DomainKeys {
    start: DomainId,
    end: Option<DomainId>,
}

impl DomainKeys {
    pub(crate) fn as_range(&self) -> KeyRange<'_> {
        KeyRange { start: &self.start, end: self.end.as_ref().map(|end| &end[..]) }
    }
}

impl DomainRecord {
    pub(crate) fn keys(&self) -> DomainKeys {
        DomainKeys { start: self.domain, end: past_domain(self.domain) }
    }

    /// Whether a snapshot may show the domain, which is removed. It was made after the seq of its origin.
    pub(crate) fn is_read_by(&self, snapshots: &SnapshotRegistry) -> bool {
        let made_after = self.origin.map_or(Seq(0), |origin| origin.seq);
        self.removed_at.is_none_or(|removed| snapshots.holds_between(made_after, removed))
    }
}

/// The domain of a key. Keys that are shorter are in none.
pub(crate) fn domain_of(key: &[u8]) -> Option<DomainId> {
    key.first_chunk::<DOMAIN_BYTES>().copied()
}

/// The same key in another domain.
pub(crate) fn key_in(domain: DomainId, key: &[u8]) -> Vec<u8> {
    [&domain, &key[DOMAIN_BYTES..]].concat()
}

/// The first key past a domain; `None`: it is the last domain.
pub(crate) fn past_domain(domain: DomainId) -> Option<DomainId> {
    u32::from_be_bytes(domain).checked_add(1).map(u32::to_be_bytes)
}

/// All domains with a record, and all rollbacks.
#[derive(Clone, Default, Debug)]
pub(crate) struct OriginTable {
    domains: BTreeMap<DomainId, DomainRecord>,
    /// Those of each domain by rising seq. No list is empty.
    rollbacks: BTreeMap<DomainId, Vec<RollbackRecord>>,
    /// The seqs of the rollbacks of which the record is not known to be durable.
    volatile: BTreeSet<Seq>,
}

impl OriginTable {
    /// As `Domains::rollbacks_end`.
    fn rollbacks_end(&self) -> u64 {
        let ends = self.rollbacks.values().flatten();
        ends.map(|rollback| rollback.ended_at.map_or(u64::MAX, |ended| ended.0)).max().unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.domains.is_empty() && self.rollbacks.is_empty()
    }

    /// The origin of a key's domain.
    fn origin_of(&self, key: &[u8]) -> Option<DomainOrigin> {
        self.domains.get(&domain_of(key)?)?.origin
    }

    /// The origin in which a reader of a key reads on at a seq.
    pub(crate) fn origin_at(&self, key: &[u8], at: Seq) -> Option<DomainOrigin> {
        self.origin_of(key).filter(|origin| origin.is_read_at(at))
    }

    fn rollbacks_of(&self, domain: Option<DomainId>) -> &[RollbackRecord] {
        domain.and_then(|domain| self.rollbacks.get(&domain)).map_or(&[], Vec::as_slice)
    }

    /// What a reader of a domain at a seq does not see.
    pub(crate) fn hidden_at(&self, domain: Option<DomainId>, at: Seq) -> HiddenSeqs {
        let (mut hidden, mut at) = (HiddenSeqs::default(), at);
        for rollback in self.rollbacks_of(domain).iter().rev() {
            if rollback.is_known_at(at) {
                hidden.ranges.push(rollback.hidden());
                // From here on the reader sees the same as one of that seq.
                at = rollback.to;
            }
        }
        hidden
    }

    /// The rollbacks of a key's domain, by rising seq.
    pub(crate) fn rollbacks_at(&self, key: &[u8]) -> &[RollbackRecord] {
        if self.rollbacks.is_empty() { &[] } else { self.rollbacks_of(domain_of(key)) }
    }

    /// The oldest seq after which a version may be seen by one of two readers of a domain and not by the
    /// other. One reads at `after`, the other at `upto`, which is later.
    pub(crate) fn changed_after(&self, domain: Option<DomainId>, after: Seq, upto: Seq) -> Seq {
        let mut from = after;
        // What the later one sees may have been hidden from it by a rollback that the earlier one does not
        // know, and that goes back behind another one.
        for rollback in self.rollbacks_of(domain).iter().rev() {
            if from <= rollback.at && rollback.at < upto {
                from = from.min(rollback.to);
            }
        }
        from
    }

    /// As `changed_after`, for readers of any domain.
    pub(crate) fn any_changed_after(&self, after: Seq, upto: Seq) -> Seq {
        let domains = self.rollbacks.keys();
        domains.map(|domain| self.changed_after(Some(*domain), after, upto)).min().unwrap_or(after)
    }

    /// As `SnapshotStore::seqs_to_settle`.
    pub(crate) fn seqs_to_settle(&self, rollback: &RollbackRecord) -> SeqRange {
        // A reader of the seq that it shows may know of an older one, and sees what that one shows. The puts
        // that have settled the older one may be hidden and gone.
        let shown = self.hidden_at(Some(rollback.domain), rollback.to);
        let after = shown.ranges.last().map_or(rollback.to, |oldest| oldest.after);
        SeqRange { after, upto: rollback.at }
    }

    /// Whether a rollback that has not ended was made at this seq or later.
    pub(crate) fn is_rolled_back_since(&self, at: Seq) -> bool {
        let mut all = self.rollbacks.values().flatten();
        all.any(|rollback| at <= rollback.at && rollback.ended_at.is_none())
    }

    /// Number of rollbacks that have not ended.
    pub(crate) fn unsettled_rollbacks(&self) -> usize {
        self.rollbacks.values().flatten().filter(|rollback| rollback.ended_at.is_none()).count()
    }

    /// Whether all rollbacks of a domain before this seq have ended.
    pub(crate) fn have_ended_before(&self, domain: DomainId, at: Seq) -> bool {
        let older = self.rollbacks_of(Some(domain)).iter().filter(|rollback| rollback.at < at);
        older.into_iter().all(|rollback| rollback.ended_at.is_some())
    }

    /// Every rollback, by domain and seq.
    pub(crate) fn rollbacks(&self) -> Vec<RollbackRecord> {
        self.rollbacks.values().flatten().copied().collect()
    }

    /// The rollbacks that have ended and that no held seq knows of: neither a snapshot nor a domain above
    /// reads at a seq between.
    pub(crate) fn unneeded_rollbacks(&self, snapshots: &SnapshotRegistry) -> Vec<RollbackRecord> {
        let is_unneeded = |rollback: &&RollbackRecord| {
            let Some(ended_at) = rollback.ended_at else { return false };
            let last = Seq(ended_at.0.saturating_sub(1));
            let is_between = |seq: Seq| rollback.at < seq && seq < ended_at;
            !snapshots.holds_between(rollback.at, last)
                && !self.held_for(Some(rollback.domain)).any(is_between)
        };
        self.rollbacks.values().flatten().filter(is_unneeded).copied().collect()
    }

    /// Every domain with a record.
    #[cfg(any(test, feature = "twin"))]
    pub(crate) fn ids(&self) -> impl Iterator<Item = DomainId> + '_ {
        self.domains.keys().copied()
    }

    /// Whether an older version of the key may be seen through an origin or by a rollback.
    pub(crate) fn may_hold_older<S: Schema>(&self, key: &[u8], schema: &S) -> bool {
        self.is_above_origin(key, schema) || !self.rollbacks_at(key).is_empty() && schema.goes_back(key)
    }

    /// Whether an older version of the key may be seen through an origin.
    pub(crate) fn is_above_origin<S: Schema>(&self, key: &[u8], schema: &S) -> bool {
        !self.domains.is_empty() && self.origin_of(key).is_some() && schema.reads_on(key)
    }

    /// The last seq at which anybody reads the key, if its domain is removed.
    pub(crate) fn removed_at(&self, key: &[u8]) -> Option<Seq> {
        self.domains.get(&domain_of(key)?)?.removed_at
    }

    /// Whether keys from `smallest` to `largest` may be in a removed domain.
    pub(crate) fn has_removed_between(&self, smallest: &[u8], largest: &[u8]) -> bool {
        let mut removed = self.domains.values().filter(|d| d.removed_at.is_some());
        removed.any(|d| {
            largest >= d.domain.as_slice()
                && past_domain(d.domain).is_none_or(|past| smallest < past.as_slice())
        })
    }

    /// Whether all keys from `smallest` to `largest` are in one removed domain of which no reader sees any.
    /// `visible` has the seqs that readers may read at in every domain.
    pub(crate) fn is_unread_between(&self, smallest: &[u8], largest: &[u8], visible: &[Seq]) -> bool {
        debug_assert!(smallest <= largest, "a table has keys in order");
        debug_assert!(visible.is_sorted(), "the seqs of readers are in order");
        let Some(removed_at) = self.removed_at(smallest) else { return false };
        // A table that reaches into another domain has keys that somebody may read.
        let domain = domain_of(smallest);
        domain == domain_of(largest)
            && self.visible_in(domain, visible).first().is_none_or(|oldest| *oldest > removed_at)
    }

    /// The seqs that readers of a domain may read at, rising: `visible` to all, and those of `held_for`.
    pub(crate) fn visible_in(&self, domain: Option<DomainId>, visible: &[Seq]) -> Vec<Seq> {
        debug_assert!(visible.is_sorted(), "the seqs of readers are in order");
        let mut seqs: Vec<Seq> = visible.iter().copied().chain(self.held_for(domain)).collect();
        seqs.sort_unstable();
        seqs.dedup();
        seqs
    }

    /// The seqs of a domain that are held for other domains, of which it is the origin, and for its
    /// rollbacks; of keys in no domain there are none.
    pub(crate) fn held_for(&self, domain: Option<DomainId>) -> impl Iterator<Item = Seq> + '_ {
        // Also those of domains that are removed: a snapshot may show them.
        let origins = self.domains.values().filter_map(|record| record.origin);
        let origins = origins.filter(move |origin| Some(origin.domain) == domain).map(|origin| origin.seq);
        let rollbacks = self.rollbacks_of(domain).iter();
        let rollbacks = rollbacks.filter(|_| !is_planted(PlantedBug::RollbackNotHeld));
        origins.chain(rollbacks.flat_map(|rollback| self.held_by(rollback)))
    }

    /// The last seq at which anybody reads keys from `smallest` to `largest`, if they are in one removed
    /// domain.
    pub(crate) fn removed_with(&self, smallest: &[u8], largest: &[u8]) -> Option<Seq> {
        self.removed_at(smallest).filter(|_| domain_of(smallest) == domain_of(largest))
    }

    /// The seqs that are held for a rollback: the one that it shows again and, while a crash may take it
    /// back, the one before it.
    fn held_by(&self, rollback: &RollbackRecord) -> impl Iterator<Item = Seq> + use<> {
        let before = self.volatile.contains(&rollback.at).then_some(rollback.at);
        [Some(rollback.to), before].into_iter().flatten()
    }

    /// As `held_for`, of the keys from `smallest` to `largest`: of their domain, or of all if the keys are in
    /// several.
    pub(crate) fn held_with<'a>(&'a self, smallest: &[u8], largest: &[u8]) -> impl Iterator<Item = Seq> + 'a {
        let only = domain_of(smallest).filter(|domain| Some(*domain) == domain_of(largest));
        // Also those of domains that are removed: a snapshot may show them.
        let origins = self.domains.values().filter_map(|record| record.origin);
        let origins = origins.filter(move |origin| only.is_none_or(|only| only == origin.domain));
        let rollbacks = self.rollbacks.values().flatten();
        let rollbacks = rollbacks.filter(move |of| only.is_none_or(|only| only == of.domain));
        origins.map(|origin| origin.seq).chain(rollbacks.flat_map(|rollback| self.held_by(rollback)))
    }

    /// The removed domains that are nobody's origin.
    pub(crate) fn removed_leaves(&self) -> Vec<DomainRecord> {
        let origins = self.domains.values().filter_map(|d| d.origin);
        let origins: BTreeSet<DomainId> = origins.map(|origin| origin.domain).collect();
        let removed =
            self.domains.values().filter(|d| d.removed_at.is_some() && !origins.contains(&d.domain));
        removed.copied().collect()
    }

    /// The live domains with an origin that is released and in which nobody reads on any more: neither a
    /// snapshot nor a domain above at a seq between.
    pub(crate) fn unneeded_origins(&self, snapshots: &SnapshotRegistry) -> Vec<DomainId> {
        let is_read_between = |domain: DomainId, from: Seq, end: Seq| {
            self.held_for(Some(domain)).any(|seq| from <= seq && seq < end)
        };
        let is_unneeded = |record: &&DomainRecord| {
            let Some(origin) = record.origin else { return false };
            // A removed domain keeps its origin until its record goes.
            let Some(released_at) = origin.released_at.filter(|_| record.removed_at.is_none()) else {
                return false;
            };
            debug_assert!(origin.seq < released_at, "an origin is released after it was taken");
            let last = Seq(released_at.0.saturating_sub(1));
            (!snapshots.holds_between(origin.seq, last) || is_planted(PlantedBug::OriginForgottenInUse))
                && !is_read_between(record.domain, origin.seq, released_at)
        };
        self.domains.values().filter(is_unneeded).map(|record| record.domain).collect()
    }

    /// The parts of a range in their order, each within one domain with an origin or a rollback, or without
    /// any such key.
    pub(crate) fn parts<'a>(&self, range: KeyRange<'a>) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut parts = Vec::new();
        let mut start = range.start.to_vec();
        let with_origin = self.domains.values().filter(|record| record.origin.is_some());
        let domains: BTreeSet<DomainId> =
            with_origin.map(|record| record.domain).chain(self.rollbacks.keys().copied()).collect();
        for domain in domains {
            let past = past_domain(domain).map(|past| past.to_vec());
            for bound in [Some(domain.to_vec()), past].into_iter().flatten() {
                let inside = bound > start && range.end.is_none_or(|end| bound.as_slice() < end);
                if inside {
                    parts.push((std::mem::replace(&mut start, bound.clone()), Some(bound)));
                }
            }
        }
        parts.push((start, range.end.map(<[u8]>::to_vec)));
        parts
    }

    /// Whether every domain reaches the end of its origins within `ORIGINS_MAX` steps, by falling seqs.
    pub(crate) fn check(&self) -> bool {
        self.domains.values().all(|record| {
            // The reader that passes most origins reads at the seq before the release.
            let mut origin = record.origin;
            for _ in 0..ORIGINS_MAX {
                let Some(DomainOrigin { domain, seq, .. }) = origin else { return true };
                origin = self.origin_at(&domain, seq);
                if origin.is_some_and(|below| below.seq > seq) {
                    return false;
                }
            }
            origin.is_none()
        })
    }
}

/// The domains of a store with their origins.
#[derive(Default)]
pub(crate) struct Domains {
    /// Whether there is any, or a rollback: most stores have none, and their reads need not look.
    any: AtomicBool,
    /// No reader after this seq knows of a rollback: the highest seq at which one has ended, or the highest
    /// of all while one has not. 0 without any.
    rollbacks_end: AtomicU64,
    /// How many domains have been removed since the store was opened, and how many were removed then. The
    /// loss of an origin counts too: tables of a removed domain may be unread from then on.
    removals: AtomicU64,
    table: RwLock<Arc<OriginTable>>,
}

impl Domains {
    /// The table of this moment; `None` if it is empty.
    #[inline]
    pub(crate) fn get(&self) -> Option<Arc<OriginTable>> {
        self.any.load(Ordering::Acquire).then(|| Arc::clone(&self.table.read()))
    }

    /// What a reader of a key at a seq does not see.
    #[inline]
    pub(crate) fn hidden_at(&self, key: &[u8], at: Seq) -> HiddenSeqs {
        let end = self.rollbacks_end.load(Ordering::Acquire);
        if end == 0 || at.0 > end {
            return HiddenSeqs::default();
        }
        self.table.read().hidden_at(domain_of(key), at)
    }

    /// Whether a rollback that has not ended was made at this seq or later.
    #[inline]
    pub(crate) fn is_rolled_back_since(&self, at: Seq) -> bool {
        self.rollbacks_end.load(Ordering::Acquire) == u64::MAX && self.table.read().is_rolled_back_since(at)
    }

    /// Adds a rollback of which the record is not durable yet.
    pub(crate) fn add_rollback(&self, record: RollbackRecord) {
        Arc::make_mut(&mut self.table.write()).volatile.insert(record.at);
        self.set_rollback(record);
    }

    /// Notes that all commits up to a seq are durable. `true`: with the record of a rollback.
    pub(crate) fn note_durable(&self, upto: Seq) -> bool {
        // The record of a rollback is in the commit after its seq.
        let is_one = |at: &Seq| *at < upto;
        if self.rollbacks_end.load(Ordering::Acquire) == 0 || !self.table.read().volatile.iter().any(is_one) {
            return false;
        }
        Arc::make_mut(&mut self.table.write()).volatile.retain(|at| !is_one(at));
        true
    }

    /// Adds or replaces a rollback, of which the record is durable or was added before.
    pub(crate) fn set_rollback(&self, record: RollbackRecord) {
        let mut table = self.table.write();
        let of_domain = Arc::make_mut(&mut table).rollbacks.entry(record.domain).or_default();
        of_domain.retain(|other| other.at != record.at);
        of_domain.push(record);
        of_domain.sort_unstable_by_key(|rollback| rollback.at);
        self.any.store(true, Ordering::Release);
        self.rollbacks_end.store(table.rollbacks_end(), Ordering::Release);
    }

    /// Removes a rollback.
    pub(crate) fn remove_rollback(&self, domain: DomainId, at: Seq) {
        let mut guard = self.table.write();
        let table = Arc::make_mut(&mut guard);
        if let Some(of_domain) = table.rollbacks.get_mut(&domain) {
            of_domain.retain(|rollback| rollback.at != at);
        }
        table.rollbacks.retain(|_, of_domain| !of_domain.is_empty());
        self.rollbacks_end.store(table.rollbacks_end(), Ordering::Release);
        self.any.store(!table.is_empty(), Ordering::Release);
    }

    /// Adds or replaces a domain. Returns what it was.
    pub(crate) fn set(&self, record: DomainRecord) -> Option<DomainRecord> {
        let mut table = self.table.write();
        if record.removed_at.is_some() {
            self.removals.fetch_add(1, Ordering::Relaxed);
        }
        let before = Arc::make_mut(&mut table).domains.insert(record.domain, record);
        self.any.store(true, Ordering::Release);
        before
    }

    /// Adds or replaces a domain as one that is not removed, and returns what it was. It keeps an origin that
    /// its record has lost: the loss may not be durable.
    pub(crate) fn set_live(&self, record: DomainRecord) -> Option<DomainRecord> {
        let mut table = self.table.write();
        let domains = &mut Arc::make_mut(&mut table).domains;
        let before = domains.get(&record.domain).copied();
        let origin = record.origin.or(before.and_then(|before| before.origin));
        domains.insert(record.domain, DomainRecord { origin, removed_at: None, ..record });
        self.any.store(true, Ordering::Release);
        before
    }

    /// Takes the origin away from a domain.
    pub(crate) fn forget_origin(&self, domain: DomainId) {
        let mut table = self.table.write();
        if let Some(record) = Arc::make_mut(&mut table).domains.get_mut(&domain)
            && let Some(origin) = record.origin
        {
            debug_assert!(origin.released_at.is_some(), "an origin is released before it is forgotten");
            record.origin = None;
            self.removals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Rises with each removal.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Relaxed)
    }

    /// Removes a domain. Returns what it was.
    pub(crate) fn remove(&self, domain: DomainId) -> Option<DomainRecord> {
        let mut table = self.table.write();
        let before = Arc::make_mut(&mut table).domains.remove(&domain);
        self.any.store(!table.is_empty(), Ordering::Release);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(domain: u32, origin: Option<u32>) -> DomainRecord {
        let origin = origin.map(|d| DomainOrigin { domain: d.to_be_bytes(), seq: Seq(1), released_at: None });
        DomainRecord { domain: domain.to_be_bytes(), origin, removed_at: None }
    }

    #[test]
    fn origins_in_a_circle_or_too_deep_are_found() {
        let domains = Domains::default();
        assert!(domains.get().is_none());
        for d in 2..=9 {
            domains.set(record(d, Some(d - 1)));
        }
        assert!(domains.get().unwrap().check(), "eight deep");
        domains.set(record(10, Some(9)));
        assert!(!domains.get().unwrap().check(), "nine deep");
        domains.remove(10_u32.to_be_bytes());
        domains.set(record(1, Some(9)));
        assert!(!domains.get().unwrap().check(), "a circle");
    }

    /// A record of domain `domain` with an origin at `seq` that is released at `released_at`.
    fn released(domain: u32, origin: u32, seq: u64, released_at: u64) -> DomainRecord {
        let (domain, below) = (domain.to_be_bytes(), origin.to_be_bytes());
        let released_at = Some(Seq(released_at));
        let origin = Some(DomainOrigin { domain: below, seq: Seq(seq), released_at });
        DomainRecord { domain, origin, removed_at: None }
    }

    #[test]
    fn a_released_origin_counts_for_readers_of_seqs_before_alone() {
        let domains = Domains::default();
        for d in 2..=9 {
            domains.set(record(d, Some(d - 1)));
        }
        domains.set(released(9, 8, 1, 5));
        let above = |seq| {
            let origin = Some(DomainOrigin { domain: 9_u32.to_be_bytes(), seq: Seq(seq), released_at: None });
            DomainRecord { domain: 10_u32.to_be_bytes(), origin, removed_at: None }
        };
        domains.set(above(4));
        assert!(!domains.get().unwrap().check(), "nine deep for a reader of 4");
        domains.set(above(5));
        let table = domains.get().unwrap();
        assert!(table.check(), "a reader of 5 passes one");
        assert!(table.origin_at(&9_u32.to_be_bytes(), Seq(4)).is_some());
        assert!(table.origin_at(&9_u32.to_be_bytes(), Seq(5)).is_none());
        let key = [&9_u32.to_be_bytes()[..], b"key"].concat();
        assert!(table.may_hold_older(&key, &crate::PlainSchema), "compaction keeps what readers of 4 need");
    }

    #[test]
    fn a_released_origin_is_needed_while_a_seq_between_is_held() {
        let domains = Domains::default();
        domains.set(released(3, 1, 4, 9));
        let snapshots = Arc::new(SnapshotRegistry::default());
        let unneeded = || domains.get().unwrap().unneeded_origins(&snapshots);
        let outside = [snapshots.acquire(|| Seq(4)), snapshots.acquire(|| Seq(9))];
        assert_eq!(unneeded(), [3_u32.to_be_bytes()], "readers of 4 and of 9 do not read on");
        let between = snapshots.acquire(|| Seq(8));
        assert!(unneeded().is_empty());
        drop((between, outside));
        let origin = Some(DomainOrigin { domain: 3_u32.to_be_bytes(), seq: Seq(8), released_at: None });
        domains.set(DomainRecord { domain: 5_u32.to_be_bytes(), origin, removed_at: None });
        assert!(unneeded().is_empty(), "a domain above reads on");
    }

    #[test]
    fn a_range_is_cut_at_domains_with_origins() {
        let domains = Domains::default();
        domains.set(record(3, Some(1)));
        domains.set(record(4, None));
        let table = domains.get().unwrap();
        let (three, four) = (3_u32.to_be_bytes(), 4_u32.to_be_bytes());
        let all = table.parts(KeyRange { start: b"", end: None });
        let expected =
            [(vec![], Some(three.to_vec())), (three.to_vec(), Some(four.to_vec())), (four.to_vec(), None)];
        assert_eq!(all, expected);
        let inside = KeyRange { start: &[0, 0, 0, 3, 7], end: Some(&[0, 0, 0, 3, 9]) };
        assert_eq!(table.parts(inside), [(inside.start.to_vec(), inside.end.map(<[u8]>::to_vec))]);
    }
}
