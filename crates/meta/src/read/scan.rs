//! Scans. The versions in memory are copied, one piece of the range at a time, and read together with the
//! runs.
//!
//! ```text
//!   active shards ─▶ KeyOrder::walk ┐ a piece: at most PASSED_KEYS_MAX keys,   bound
//!                                   ├▶ of each the versions that matter          │
//!   frozen memtable ▶ FrozenKeys ───┘  ├────────────── piece ───────────────────┤
//!                                                        │
//!   run, newest   ──▶ RunCursor ──┐                      ▼ next: the first key in
//!   …                             ├────────────────▶ read_window ──▶ page
//!   run, oldest   ──▶ RunCursor ──┘                        the scan's order
//! ```
//!
//! A scan forward goes from the range's start up, one backward from its end down. *Before* and *after* below
//! mean the order of the scan. The copy of a piece is its `MemoryWindow`. A full piece has a bound, its last
//! key: `read_window` stops there, and the scan copies the next piece from there on. A piece may be full and
//! hold nothing.
//!
//! # Invariants
//! 1. A piece is copied under the locks of all shards, together with the table set of that moment. So no
//!    version is missed or met twice.
//! 2. Keys after a piece's bound are not returned before the next piece is copied.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::resolve::{FoundInPast, KeyPart, Resolver};
use crate::domain::HiddenSeqs;
use crate::engine::EngineInner;
use crate::memtable::{FrozenMemtable, MemtableShard, OrderedKey};
use crate::schema::Schema;
use crate::store::{KeyRange, MetaError, ScanPage, SeqRange};
use crate::table::{RunCursor, Table};
use crate::table_set::TableSet;

/// Keys that one piece copies at most, and bytes after which it ends.
const WINDOW_KEYS_MAX: usize = 1024;
const WINDOW_BYTES_MAX: usize = 256 * 1024;

/// Keys that one piece passes at most, copied or not: a reader of an old seq needs no version of a key that
/// is new since, and commits wait for the locks.
const PASSED_KEYS_MAX: usize = 4 * WINDOW_KEYS_MAX;

struct CopiedVersion {
    key_end: usize,
    value_end: usize,
    seq: Seq,
    kind: VersionKind,
    /// Whether it is the first of its key.
    first: bool,
}

/// The copy of one piece: the visible versions in memory that matter, by key, newest first.
#[derive(Default)]
struct MemoryWindow {
    bytes: Vec<u8>,
    versions: Vec<CopiedVersion>,
    keys: usize,
    at: usize,
    /// The piece is complete up to and with this key; `None`: to the end of the range.
    bound: Option<Vec<u8>>,
}

impl MemoryWindow {
    fn push(&mut self, entry: KeyVersion<'_>, first: bool) {
        self.bytes.extend_from_slice(entry.key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(entry.value);
        let value_end = self.bytes.len();
        self.versions.push(CopiedVersion { key_end, value_end, seq: entry.seq, kind: entry.kind, first });
        self.keys += usize::from(first);
    }

    fn entry(&self, i: usize) -> KeyVersion<'_> {
        let v = &self.versions[i];
        let start = if i == 0 { 0 } else { self.versions[i - 1].value_end };
        let (key, value) = (&self.bytes[start..v.key_end], &self.bytes[v.key_end..v.value_end]);
        KeyVersion { key, seq: v.seq, kind: v.kind, value }
    }

    fn key(&self) -> Option<&[u8]> {
        (self.at < self.versions.len()).then(|| self.entry(self.at).key)
    }

    fn group_end(&self) -> usize {
        (self.at + 1..self.versions.len()).find(|i| self.versions[*i].first).unwrap_or(self.versions.len())
    }

    /// Copies the versions of a key that a reader at `at` needs, without hidden ones. `false`: older sources
    /// do not matter for it. `first` says that no version of the key has been copied yet.
    fn copy<'e>(
        &mut self,
        versions: impl Iterator<Item = KeyVersion<'e>>,
        (at, hidden): (Seq, &HiddenSeqs),
        first: &mut bool,
    ) -> bool {
        for entry in versions.filter(|e| e.seq <= at && !hidden.has(e.seq)) {
            self.push(entry, *first);
            *first = false;
            // A put or a delete hides all that is older; an operand needs what it changes.
            if entry.kind != VersionKind::Merge {
                return false;
            }
        }
        true
    }

    fn is_full(&self) -> bool {
        self.keys >= WINDOW_KEYS_MAX || self.bytes.len() >= WINDOW_BYTES_MAX
    }
}

/// The frozen memtable's keys in the rest of the range, taken from the front of the scan.
struct FrozenKeys<'a> {
    frozen: Option<&'a FrozenMemtable>,
    items: &'a [OrderedKey],
    /// Indices of `items` that have not been taken.
    rest: Range<usize>,
    forward: bool,
}

impl<'a> FrozenKeys<'a> {
    fn new(frozen: Option<&'a FrozenMemtable>, range: KeyRange<'_>, forward: bool) -> Self {
        let items = frozen.map_or(&[][..], FrozenMemtable::order);
        let key =
            |item: &OrderedKey| frozen.map_or(&[][..], |f| f.shards[item.shard()].entry(item.slot()).key);
        let below = |bound: &[u8]| items.partition_point(|item| key(item) < bound);
        let rest = below(range.start)..range.end.map_or(items.len(), below);
        FrozenKeys { frozen, items, rest, forward }
    }

    /// The memtable's shard and the slot of the next key's newest version; `None`: all keys are taken.
    #[inline]
    fn front(&self) -> Option<(&'a MemtableShard, usize)> {
        let i = match () {
            () if self.rest.is_empty() => return None,
            () if self.forward => self.rest.start,
            () => self.rest.end - 1,
        };
        let item = &self.items[i];
        Some((&self.frozen?.shards[item.shard()], item.slot()))
    }

    #[inline]
    fn advance(&mut self) {
        debug_assert!(!self.rest.is_empty(), "a key is taken once");
        if self.forward { self.rest.start += 1 } else { self.rest.end -= 1 }
    }
}

/// The order in which a scan meets two keys.
#[inline]
pub(super) fn scan_order(a: &[u8], b: &[u8], forward: bool) -> Ordering {
    if forward { a.cmp(b) } else { b.cmp(a) }
}

/// Returns the hidden seqs of a key.
type HiddenOf<'a> = &'a dyn Fn(&[u8]) -> &'a HiddenSeqs;

/// Makes a piece from two memtables. Their keys come in the order of the scan.
struct PieceMaker<'a> {
    window: MemoryWindow,
    frozen: FrozenKeys<'a>,
    at: Seq,
    hidden_of: HiddenOf<'a>,
    /// The key taken last, whether or not a version of it was copied.
    last: Vec<u8>,
    /// Keys that were taken.
    passed: usize,
}

impl PieceMaker<'_> {
    fn is_full(&self) -> bool {
        self.window.is_full() || self.passed >= PASSED_KEYS_MAX
    }

    /// Copies the frozen keys before `until`, or all that are left, while there is room.
    fn copy_frozen(&mut self, until: Option<&[u8]>) {
        while !self.is_full()
            && let Some((shard, slot)) = self.frozen.front()
        {
            let key = shard.entry(slot).key;
            if until.is_some_and(|until| scan_order(key, until, self.frozen.forward).is_ge()) {
                return;
            }
            let seen = (self.at, (self.hidden_of)(key));
            self.window.copy(shard.versions(slot), seen, &mut true);
            self.took(key);
            self.frozen.advance();
        }
    }

    /// Copies a key of the active memtable, and the versions of the same key in the frozen one. All frozen
    /// keys before it have been copied.
    fn copy_active(&mut self, shard: &MemtableShard, slot: usize) {
        let newest = shard.newest_of(slot);
        let key = shard.entry(newest).key;
        let mut first = true;
        let seen = (self.at, (self.hidden_of)(key));
        let older_matter = self.window.copy(shard.versions(newest), seen, &mut first);
        if let Some((frozen, slot)) = self.frozen.front()
            && frozen.entry(slot).key == key
        {
            // The frozen memtable is older: its versions come after those of the active one, or not at all.
            if older_matter {
                self.window.copy(frozen.versions(slot), seen, &mut first);
            }
            self.frozen.advance();
        }
        self.took(key);
    }

    fn took(&mut self, key: &[u8]) {
        self.last.clear();
        self.last.extend_from_slice(key);
        self.passed += 1;
    }

    /// The piece; one that is not full reaches to the end of the range.
    fn finish(mut self) -> MemoryWindow {
        self.copy_frozen(None);
        assert!(
            self.is_full() || self.frozen.rest.is_empty(),
            "a piece without a bound holds every key of the rest of the range"
        );
        if self.is_full() {
            self.window.bound = Some(self.last);
        }
        self.window
    }
}

/// The next key of all sources, and its source.
struct NextKey<'a> {
    key: &'a [u8],
    /// The first source that has it, the newest of those.
    source: KeySource,
    /// No other source has it.
    alone: bool,
}

/// Finds the first key of all sources in the order of the scan.
#[inline]
fn next_key<'a, L: LogStore>(
    window: &'a MemoryWindow,
    cursors: &'a [RunCursor<'_, L>],
    forward: bool,
) -> Option<NextKey<'a>> {
    let mut next = window.key().map(|key| NextKey { key, source: KeySource::MemoryWindow, alone: true });
    for (i, cursor) in cursors.iter().enumerate() {
        let Some(key) = cursor.key() else { continue };
        let order = next.as_ref().map_or(Ordering::Less, |next| scan_order(key, next.key, forward));
        match order {
            Ordering::Less => next = Some(NextKey { key, source: KeySource::Cursor(i), alone: true }),
            Ordering::Equal => next = next.map(|next| NextKey { alone: false, ..next }),
            Ordering::Greater => {}
        }
    }
    next
}

/// Moves a cursor to its next key in the order of the scan.
#[inline]
fn advance<L: LogStore>(cursor: &mut RunCursor<'_, L>, forward: bool) -> Result<(), MetaError> {
    if forward { cursor.next() } else { cursor.previous() }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    /// Copies the first keys of the range from memory, and takes the tables of the same moment.
    fn window(
        &self,
        range: KeyRange<'_>,
        (at, hidden): (Seq, &HiddenSeqs),
        forward: bool,
    ) -> (MemoryWindow, Arc<TableSet<L>>) {
        let nothing = HiddenSeqs::default();
        let hidden_of = |key: &[u8]| {
            if hidden.is_empty() || self.schema.goes_back(key) { hidden } else { &nothing }
        };
        // All shards are locked until the piece and the version are taken (invariant 1).
        let shards = self.shards.read_all();
        let active = |n: usize| -> &MemtableShard { &shards[n].active };
        let mut order = self.order.lock();
        order.refresh(active);
        let frozen = FrozenKeys::new(shards[0].frozen.as_deref(), range, forward);
        let (window, last) = (MemoryWindow::default(), Vec::new());
        let mut maker = PieceMaker { window, frozen, at, hidden_of: &hidden_of, last, passed: 0 };
        order.walk(range.start, range.end, forward, active, |key, item| {
            maker.copy_frozen(Some(key));
            // The frozen keys may have filled the piece: then this key belongs to the next one.
            if maker.is_full() {
                return false;
            }
            maker.copy_active(active(item.shard()), item.slot());
            !maker.is_full()
        });
        (maker.finish(), Arc::clone(&shards[0].table_set))
    }

    /// Adds the keys of the range to the page, piece by piece.
    pub(super) fn read_pieces(
        &self,
        range: KeyRange<'_>,
        limits: PageLimits<'_>,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        let PageLimits { at, hidden, forward, .. } = limits;
        let (mut start, mut end) = (range.start.to_vec(), range.end.map(<[u8]>::to_vec));
        loop {
            if end.as_ref().is_some_and(|end| *end <= start) {
                return Ok(());
            }
            let rest = KeyRange { start: &start, end: end.as_deref() };
            let (mut window, table_set) = self.window(rest, (at, hidden), forward);
            if !self.read_window(&mut window, &table_set, rest, limits, page)? {
                return Ok(());
            }
            let Some(bound) = window.bound else { return Ok(()) };
            debug_assert!(
                bound.as_slice() >= start.as_slice() && end.as_ref().is_none_or(|end| bound < *end),
                "each piece leaves less of the range"
            );
            if forward {
                // The least key after the bound.
                start = bound;
                start.push(0);
            } else {
                end = Some(bound);
            }
        }
    }

    /// As `SnapshotStore::changed_between`.
    pub(crate) fn changed_between(
        &self,
        range: KeyRange<'_>,
        commits: SeqRange,
        max: usize,
    ) -> Result<Vec<Box<[u8]>>, MetaError> {
        let mut changed: Vec<Box<[u8]>> = Vec::new();
        let mut start = range.start.to_vec();
        let commits = match self.domains.get() {
            Some(table) => {
                let after = table.any_changed_after(commits.after, commits.upto);
                SeqRange { after, ..commits }
            }
            None => commits,
        };
        while changed.len() < max && range.end.is_none_or(|end| start.as_slice() < end) {
            let rest = KeyRange { start: &start, end: range.end };
            let (mut window, table_set) = self.window(rest, (commits.upto, &HiddenSeqs::default()), true);
            let has_some = |table: &&Arc<Table<L>>| table.entry().seq_max > commits.after;
            let newer: Vec<Vec<_>> = (table_set.runs.iter().chain(&table_set.past))
                .map(|run| run.tables.iter().filter(has_some).map(Arc::clone).collect())
                .collect();
            let mut cursors = Vec::with_capacity(newer.len());
            for tables in &newer {
                cursors.push(RunCursor::first_in(tables, &self.cache, rest, None)?);
            }
            while changed.len() < max
                && let Some(next) = next_key(&window, &cursors, true)
                && range.end.is_none_or(|end| next.key < end)
                && window.bound.as_deref().is_none_or(|bound| next.key <= bound)
            {
                let key: Box<[u8]> = next.key.into();
                let mut has_changed = false;
                if window.key() == Some(&key[..]) {
                    let end = window.group_end();
                    has_changed = (window.at..end).any(|at| commits.contains(window.entry(at).seq));
                    window.at = end;
                }
                for cursor in cursors.iter_mut().filter(|cursor| cursor.key() == Some(&key[..])) {
                    has_changed |= cursor.versions().any(|version| commits.contains(version.seq));
                    cursor.next()?;
                }
                if has_changed {
                    changed.push(key);
                }
            }
            let Some(bound) = window.bound else { break };
            start = bound;
            start.push(0);
        }
        Ok(changed)
    }

    /// As `SnapshotStore::has_versions`.
    pub(crate) fn has_versions(&self, range: KeyRange<'_>) -> Result<bool, MetaError> {
        let (window, table_set) = self.window(range, (Seq::MAX, &HiddenSeqs::default()), true);
        if window.key().is_some() {
            return Ok(true);
        }
        let all: Vec<_> = table_set.past.iter().map(|run| run.tables.clone()).collect();
        let cursors = self.run_cursors(&table_set, &all, range, true, None)?;
        let is_inside = |key: &[u8]| range.end.is_none_or(|end| key < end);
        Ok(cursors.iter().filter_map(RunCursor::key).any(is_inside))
    }

    /// A cursor in each run that has a key in the range, at the first key of the scan: those of the present,
    /// newest first, and then those of these tables of the past.
    fn run_cursors<'v>(
        &'v self,
        table_set: &'v TableSet<L>,
        past: &'v [Vec<Arc<Table<L>>>],
        range: KeyRange<'v>,
        forward: bool,
        passed: Option<&'v Cell<bool>>,
    ) -> Result<Vec<RunCursor<'v, L>>, MetaError> {
        let mut cursors = Vec::with_capacity(table_set.runs.len());
        let present = table_set.runs.iter().map(|run| (&run.tables, false));
        for (tables, is_past) in present.chain(past.iter().map(|tables| (tables, true))) {
            let mut cursor = if forward {
                RunCursor::first_in(tables, &self.cache, range, passed)?
            } else {
                RunCursor::last_before(tables, &self.cache, range.end)?
            };
            cursor.is_past = is_past;
            if cursor.key().is_some() {
                cursors.push(cursor);
            }
        }
        Ok(cursors)
    }

    /// Adds keys to the page up to the piece's bound. `false`: the page is full.
    fn read_window(
        &self,
        window: &mut MemoryWindow,
        table_set: &TableSet<L>,
        range: KeyRange<'_>,
        limits: PageLimits<'_>,
        page: &mut ScanPage,
    ) -> Result<bool, MetaError> {
        let forward = limits.forward;
        let (schema, nothing) = (&self.schema, HiddenSeqs::default());
        let hidden_of = |key: &[u8]| {
            if limits.hidden.is_empty() || schema.goes_back(key) { limits.hidden } else { &nothing }
        };
        let seen = || limits.hidden.seen_ranges(limits.at).map(|(_, upto)| upto);
        let oldest = seen().last().expect("a reader sees a range");
        let past: Vec<Vec<_>> = (table_set.past_at(oldest).iter())
            .map(|run| {
                let is_read = |table: &&Arc<Table<L>>| seen().any(|upto| table.is_read_at(upto));
                run.tables.iter().filter(is_read).cloned().collect()
            })
            .filter(|tables: &Vec<_>| !tables.is_empty())
            .collect();
        let mut cursors = self.run_cursors(table_set, &past, range, forward, limits.passed)?;
        let mut resolver = Resolver::new(limits.at, HiddenSeqs::default());
        let mut key = Vec::new();
        let mut value = Vec::new();
        loop {
            let Some(next) = next_key(window, &cursors, forward) else { return Ok(true) };
            // Cursors began inside the range and run on past it; the piece lies inside.
            let in_range =
                if forward { range.end.is_none_or(|end| next.key < end) } else { next.key >= range.start };
            // Memory may hold a newer version of a key after the bound: the next piece has it (invariant 2).
            let after_bound =
                window.bound.as_deref().is_some_and(|bound| scan_order(next.key, bound, forward).is_gt());
            if !in_range || after_bound {
                return Ok(true);
            }
            // The usual case: one run alone has the key, and its newest version is the value. It is not
            // copied.
            if next.alone
                && let KeySource::Cursor(i) = next.source
                && let Some(entry) = cursors[i].newest()
                && entry.seq <= limits.at
                && !(limits.hidden.has(entry.seq) && schema.goes_back(entry.key))
                && entry.kind == VersionKind::Put
                && !cursors[i].is_past
            {
                if !limits.push_part(page, entry.key, KeyPart::Value, entry.value) {
                    return Ok(false);
                }
                advance(&mut cursors[i], forward)?;
                if cursors[i].key().is_none() {
                    cursors.remove(i);
                }
                continue;
            }
            // Else the key's versions are offered newest first, until one settles the value. The key is
            // copied: the sources move on.
            key.clear();
            key.extend_from_slice(next.key);
            resolver.restart(hidden_of(&key));
            let settled = offer_piece(window, &key, &mut resolver, &mut value);
            offer_runs(&mut cursors, &key, settled, forward, &mut resolver, &mut value)?;
            // A deleted key has no value and is left out, unless it hides the value of an origin.
            let part = if limits.parts {
                resolver.finish_part(&self.schema, &key, &mut value)?
            } else if resolver.finish(&self.schema, &key, &mut value)? {
                KeyPart::Value
            } else {
                KeyPart::Nothing
            };
            if part != KeyPart::Nothing && !limits.push_part(page, &key, part, &value) {
                return Ok(false);
            }
        }
    }
}

/// Offers the piece's versions of the key, and moves the piece past it. `true`: the value is settled.
fn offer_piece(window: &mut MemoryWindow, key: &[u8], resolver: &mut Resolver, value: &mut Vec<u8>) -> bool {
    if window.key() != Some(key) {
        return false;
    }
    let end = window.group_end();
    let settled = resolver.offer_all((window.at..end).map(|i| window.entry(i)), value);
    window.at = end;
    settled
}

/// Offers the runs' versions of the key, newest run first and those of the past last, unless the value is
/// `settled`. All cursors at the key move past it, and cursors at their end are removed.
fn offer_runs<L: LogStore>(
    cursors: &mut Vec<RunCursor<'_, L>>,
    key: &[u8],
    mut settled: bool,
    forward: bool,
    resolver: &mut Resolver,
    value: &mut Vec<u8>,
) -> Result<(), MetaError> {
    let (mut ended, mut has_past) = (false, false);
    for cursor in cursors.iter_mut().filter(|cursor| cursor.key() == Some(key)) {
        if cursor.is_past {
            has_past = true;
            continue;
        }
        settled = settled || resolver.offer_all(cursor.versions(), value);
        advance(cursor, forward)?;
        ended |= cursor.key().is_none();
    }
    if has_past {
        let of_key = |cursor: &&mut RunCursor<'_, L>| cursor.is_past && cursor.key() == Some(key);
        for seen in resolver.seen_ranges() {
            let mut past = FoundInPast::default();
            for cursor in cursors.iter_mut().filter(of_key) {
                settled = settled || resolver.offer_past(cursor.versions(), seen, &mut past, value);
            }
            settled = settled || resolver.end_past(past);
        }
        for cursor in cursors.iter_mut().filter(of_key) {
            advance(cursor, forward)?;
            ended |= cursor.key().is_none();
        }
    }
    if ended {
        cursors.retain(|cursor| cursor.key().is_some());
    }
    Ok(())
}

#[derive(Clone, Copy)]
pub(super) struct PageLimits<'a> {
    /// Set once a block was passed that cannot be read, if the caller wants to pass those.
    pub(super) passed: Option<&'a Cell<bool>>,
    pub(super) at: Seq,
    /// What the reader does not see of keys that go back.
    pub(super) hidden: &'a HiddenSeqs,
    pub(super) forward: bool,
    pub(super) max_entries: usize,
    pub(super) max_bytes: usize,
    /// Whether the page gets the parts of keys, for a merge with an origin: deletes and operands too.
    pub(super) parts: bool,
}

impl PageLimits<'_> {
    /// Adds to the page, if it has room; `false` if more must wait for the next page.
    #[inline]
    fn push_part(&self, page: &mut ScanPage, key: &[u8], part: KeyPart, value: &[u8]) -> bool {
        if page.len() >= self.max_entries || (!page.is_empty() && page.bytes() >= self.max_bytes) {
            page.more = true;
            return false;
        }
        if self.parts {
            page.push_tagged(key, part.tag(), if part == KeyPart::Deleted { &[] } else { value });
        } else {
            page.push(key, value);
        }
        true
    }
}

#[derive(Clone, Copy)]
enum KeySource {
    MemoryWindow,
    Cursor(usize),
}

#[cfg(test)]
mod tests {
    use warpfire_log::{Admit, MemLog, RecoveredLog};

    use super::*;
    use crate::testing::{ListSchema, text_item};
    use crate::{Background, Batch, Engine, EngineOptions, Store};

    /// Commits wait while a piece is copied, so it ends also when its reader needs none of the keys.
    #[test]
    fn a_piece_passes_few_keys_that_its_reader_does_not_need() {
        let memory = EngineOptions { memtable_bytes: 64 << 20, ..EngineOptions::default() };
        let options = EngineOptions { background: Background::Manual, ..memory };
        let engine = Engine::open(MemLog::new(), RecoveredLog::empty(), ListSchema, options).unwrap();
        let then = engine.snapshot();
        let mut batch = Batch::new();
        for n in 0..4 * PASSED_KEYS_MAX {
            batch.put(format!("file {n:06}").as_bytes(), &text_item(b"new"));
        }
        engine.commit(&batch, None, Admit::User).unwrap();
        let inner = engine.inner_for_tests();
        for frozen in [false, true] {
            assert!(!frozen || inner.freeze().unwrap());
            for forward in [false, true] {
                let range = KeyRange { start: b"file", end: None };
                let at = (engine.seq(&then), &HiddenSeqs::default());
                let (window, _) = inner.window(range, at, forward);
                let last = if forward { PASSED_KEYS_MAX - 1 } else { 3 * PASSED_KEYS_MAX };
                assert_eq!(window.keys, 0, "frozen {frozen}, forward {forward}");
                assert_eq!(window.bound, Some(format!("file {last:06}").into_bytes()));
            }
        }
    }
}
