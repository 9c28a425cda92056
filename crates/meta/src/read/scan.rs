//! Scans: what memory holds of the range is copied, a piece at a time, and merged with the runs.
//!
//! # Invariants
//! 1. A piece is taken under all shards' locks, with the tables of the same moment: nothing is missed or seen twice.
//! 2. Keys beyond a piece's bound are not given out before the next piece is there.

use std::cmp::Ordering;
use std::sync::Arc;

use warpfire_format::table::{Entry, EntryKind};
use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::resolve::Resolver;
use crate::engine::Inner;
use crate::memtable::MemShard;
use crate::schema::Schema;
use crate::store::{Direction, KeyRange, MetaError, Page};
use crate::table::RunCursor;
use crate::version::Version;

/// Keys that one piece copies at most, and bytes after which it ends.
const PIECE_KEYS: usize = 1024;
const PIECE_BYTES: usize = 256 * 1024;

struct Copied {
    key_end: usize,
    value_end: usize,
    seq: Seq,
    kind: EntryKind,
    /// Whether it is the first of its key.
    first: bool,
}

/// What memory holds of a part of the range: the visible versions that matter, by key, newest first.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    versions: Vec<Copied>,
    keys: usize,
    at: usize,
    /// The piece is complete up to and with this key; `None`: to the end of the range.
    bound: Option<Vec<u8>>,
}

impl Piece {
    fn push(&mut self, entry: Entry<'_>, first: bool) {
        self.bytes.extend_from_slice(entry.key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(entry.value);
        let value_end = self.bytes.len();
        self.versions.push(Copied { key_end, value_end, seq: entry.seq, kind: entry.kind, first });
        self.keys += usize::from(first);
    }

    fn entry(&self, i: usize) -> Entry<'_> {
        let v = &self.versions[i];
        let start = if i == 0 { 0 } else { self.versions[i - 1].value_end };
        let (key, value) = (&self.bytes[start..v.key_end], &self.bytes[v.key_end..v.value_end]);
        Entry { key, seq: v.seq, kind: v.kind, value }
    }

    fn key(&self) -> Option<&[u8]> {
        (self.at < self.versions.len()).then(|| self.entry(self.at).key)
    }

    fn group_end(&self) -> usize {
        (self.at + 1..self.versions.len()).find(|i| self.versions[*i].first).unwrap_or(self.versions.len())
    }

    /// Copies a key's versions that a reader at `at` needs; `false`: an older source does not matter for it.
    fn copy<'e>(&mut self, versions: impl Iterator<Item = Entry<'e>>, at: Seq, first: &mut bool) -> bool {
        for entry in versions.filter(|e| e.seq <= at) {
            self.push(entry, *first);
            *first = false;
            if entry.kind != EntryKind::Merge {
                return false;
            }
        }
        true
    }

    fn is_full(&self) -> bool {
        self.keys >= PIECE_KEYS || self.bytes.len() >= PIECE_BYTES
    }
}

impl<L: LogStore, S: Schema> Inner<L, S> {
    /// Copies the first keys of the range from memory.
    fn piece(&self, range: KeyRange<'_>, at: Seq, forward: bool) -> (Piece, Arc<Version<L>>) {
        let mut piece = Piece::default();
        let shards = self.shards.read_all();
        let active = |n: usize| -> &MemShard { &shards[n].active };
        let mut order = self.order.lock();
        order.refresh(active);
        let frozen = shards[0].frozen.as_deref();
        let frozen_items = frozen.map_or(&[][..], |f| f.order());
        let frozen_key = |i: usize| {
            let item = &frozen_items[i];
            frozen.map_or(&[][..], |f| f.shards[item.shard()].entry(item.slot()).key)
        };
        let below = |bound: &[u8]| {
            let (mut low, mut high) = (0, frozen_items.len());
            while low < high {
                let middle = low.midpoint(high);
                if frozen_key(middle) < bound { low = middle + 1 } else { high = middle }
            }
            low
        };
        let mut rest = below(range.start)..range.end.map_or(frozen_items.len(), below);
        let frozen_versions = |i: usize| {
            let item = &frozen_items[i];
            frozen.into_iter().flat_map(move |f| f.shards[item.shard()].versions(item.slot()))
        };
        let front = |rest: &std::ops::Range<usize>| if forward { rest.start } else { rest.end - 1 };
        let advance = |rest: &mut std::ops::Range<usize>| {
            if forward { rest.start += 1 } else { rest.end -= 1 }
        };
        let mut bound: Option<Vec<u8>> = None;
        order.walk(range.start, range.end, forward, active, |key, item| {
            let shard = active(item.shard());
            let newest =
                shard.newest(warpfire_format::key_hash(key), key).expect("an ordered key is indexed");
            let mut first = true;
            // Frozen keys that come before this one.
            while !rest.is_empty() && !piece.is_full() {
                let i = front(&rest);
                let place = frozen_key(i).cmp(key);
                if place == if forward { Ordering::Less } else { Ordering::Greater } {
                    piece.copy(frozen_versions(i), at, &mut true);
                    bound = Some(frozen_key(i).to_vec());
                    advance(&mut rest);
                    continue;
                }
                break;
            }
            if piece.is_full() {
                return false;
            }
            let more = piece.copy(shard.versions(newest), at, &mut first);
            if !rest.is_empty() && frozen_key(front(&rest)) == key {
                if more {
                    piece.copy(frozen_versions(front(&rest)), at, &mut first);
                }
                advance(&mut rest);
            }
            bound = Some(key.to_vec());
            !piece.is_full()
        });
        while !rest.is_empty() && !piece.is_full() {
            let i = front(&rest);
            piece.copy(frozen_versions(i), at, &mut true);
            bound = Some(frozen_key(i).to_vec());
            advance(&mut rest);
        }
        if piece.is_full() {
            piece.bound = bound;
        }
        (piece, Arc::clone(&shards[0].version))
    }

    pub(crate) fn scan(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        direction: Direction,
        max_entries: usize,
        max_bytes: usize,
        page: &mut Page,
    ) -> Result<(), MetaError> {
        page.clear();
        let at = at.min(self.newest());
        let forward = direction == Direction::Forward;
        let (mut start, mut end) = (range.start.to_vec(), range.end.map(<[u8]>::to_vec));
        loop {
            if end.as_ref().is_some_and(|end| *end <= start) {
                return Ok(());
            }
            let rest = KeyRange { start: &start, end: end.as_deref() };
            let (mut piece, version) = self.piece(rest, at, forward);
            let limits = Limits { at, forward, max_entries, max_bytes };
            if !self.merge_piece(&mut piece, &version, rest, limits, page)? {
                return Ok(());
            }
            let Some(bound) = piece.bound else { return Ok(()) };
            if forward {
                // The least key after the bound.
                start = bound;
                start.push(0);
            } else {
                end = Some(bound);
            }
        }
    }

    /// Gives out keys up to the piece's bound. `false`: the page is full.
    fn merge_piece(
        &self,
        piece: &mut Piece,
        version: &Version<L>,
        range: KeyRange<'_>,
        limits: Limits,
        page: &mut Page,
    ) -> Result<bool, MetaError> {
        let mut cursors = Vec::with_capacity(version.runs.len());
        for run in &version.runs {
            let cursor = if limits.forward {
                RunCursor::first_from(&run.tables, &self.cache, range.start)?
            } else {
                RunCursor::last_before(&run.tables, &self.cache, range.end)?
            };
            if cursor.key().is_some() {
                cursors.push(cursor);
            }
        }
        let compare = |a: &[u8], b: &[u8]| if limits.forward { a.cmp(b) } else { b.cmp(a) };
        let mut resolver = Resolver::new(limits.at);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        loop {
            let mut next = piece.key();
            let (mut source, mut alone) = (Source::Piece, true);
            for (i, cursor) in cursors.iter().enumerate() {
                let Some(candidate) = cursor.key() else { continue };
                let order = next.map_or(Ordering::Less, |next| compare(candidate, next));
                match order {
                    Ordering::Less => (next, source, alone) = (Some(candidate), Source::Cursor(i), true),
                    Ordering::Equal => alone = false,
                    Ordering::Greater => {}
                }
            }
            let Some(next) = next else { return Ok(true) };
            let in_range =
                if limits.forward { range.end.is_none_or(|end| next < end) } else { next >= range.start };
            if !in_range || piece.bound.as_deref().is_some_and(|bound| compare(bound, next).is_lt()) {
                return Ok(true);
            }
            // The usual case: one source has the key, and its newest version says it all.
            if let Source::Cursor(i) = source
                && alone
                && let Some(entry) = cursors[i].newest()
                && entry.seq <= limits.at
                && entry.kind == EntryKind::Put
            {
                if !limits.give(page, entry.key, entry.value) {
                    return Ok(false);
                }
                let cursor = &mut cursors[i];
                if limits.forward {
                    cursor.next()?
                } else {
                    cursor.previous()?
                }
                if cursor.key().is_none() {
                    cursors.remove(i);
                }
                continue;
            }
            key.clear();
            key.extend_from_slice(next);
            resolver.restart();
            let mut settled = false;
            if piece.key() == Some(key.as_slice()) {
                let end = piece.group_end();
                settled = resolver.offer_all((piece.at..end).map(|i| piece.entry(i)), &mut value);
                piece.at = end;
            }
            let mut ended = false;
            for cursor in &mut cursors {
                if cursor.key() == Some(key.as_slice()) {
                    settled = settled || resolver.offer_all(cursor.versions(), &mut value);
                    if limits.forward {
                        cursor.next()?
                    } else {
                        cursor.previous()?
                    }
                    ended |= cursor.key().is_none();
                }
            }
            if ended {
                cursors.retain(|c| c.key().is_some());
            }
            if !resolver.finish(&self.schema, &key, &mut value)? {
                continue;
            }
            if !limits.give(page, &key, &value) {
                return Ok(false);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Limits {
    at: Seq,
    forward: bool,
    max_entries: usize,
    max_bytes: usize,
}

impl Limits {
    /// Adds to the page, if it has room; `false` if more must wait for the next page.
    #[inline]
    fn give(&self, page: &mut Page, key: &[u8], value: &[u8]) -> bool {
        if page.len() >= self.max_entries || (!page.is_empty() && page.bytes() >= self.max_bytes) {
            page.more = true;
            return false;
        }
        page.push(key, value);
        true
    }
}

#[derive(Clone, Copy)]
enum Source {
    Piece,
    Cursor(usize),
}
