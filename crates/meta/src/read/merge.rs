//! Scans of domains with origins: the versions of the domain and the entries of its origin, merged key by
//! key.
//!
//! ```text
//!   own versions     ─▶ page of parts ──┐
//!                                       ├─▶ the first key in the scan's order ─▶ page
//!   origin, at seq s ─▶ page ───────────┘   (its own origin is merged below it)
//! ```
//!
//! # Invariants
//! 1. Both sides list their keys in the order of the scan, and a page of a side is read on from its last key.
//!    So each key of either side is met once.
//! 2. A key that the domain itself settles never shows the origin's value.
//! 3. A scan of a part (`DomainPart`) returns each key that a scan of the domain returns in one part or in
//!    the other, with the same value (`tests::model`).

use std::cell::Cell;
use std::cmp::Ordering;
use std::sync::Arc;

use warpfire_log::LogStore;
use warpfire_units::Seq;

use super::resolve::KeyPart;
use super::scan::{PageLimits, scan_order};
use crate::domain::{DOMAIN_BYTES, DomainOrigin, ORIGINS_MAX, OriginTable, domain_of, key_in, past_domain};
use crate::engine::EngineInner;
use crate::schema::{FoldResult, OlderValue, Schema};
use crate::store::{Direction, DomainPart, KeyRange, MetaError, ScanPage};

/// Fewest entries that a side is asked for: a page of which all keys are deleted is not an entry at a time.
const SIDE_ENTRIES_MIN: usize = 64;

/// Bytes that a side is asked for at most.
const SIDE_BYTES_MAX: usize = 64 * 1024;

/// What a scan asks for, and what it may pass.
#[derive(Clone, Copy)]
struct Wanted {
    at: Seq,
    forward: bool,
    passes_damage: bool,
    entries: usize,
    bytes: usize,
    /// The part of the domain whose keys are returned; `None`: all. Of its origins all are read.
    part: Option<DomainPart>,
}

impl Wanted {
    /// Whether a key is returned that the domain settles, or does not.
    fn has(&self, is_settled: bool) -> bool {
        match self.part {
            None => true,
            Some(DomainPart::Settled) => is_settled,
            Some(DomainPart::ReadOn) => !is_settled,
        }
    }
}

/// The keys of one side from the front of the scan on.
struct Side {
    page: ScanPage,
    next: usize,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl Side {
    fn new(start: Vec<u8>, end: Option<Vec<u8>>, passes_damage: bool) -> Side {
        let mut page = if passes_damage { ScanPage::past_damage() } else { ScanPage::default() };
        // The first page is read like those after it.
        page.more = true;
        Side { page, next: 0, start, end }
    }

    /// Whether the next page must be read before `front` is known.
    fn wants_page(&self) -> bool {
        self.next == self.page.len() && self.page.more
    }

    /// Reads the next page with `read`.
    fn read_page(
        &mut self,
        forward: bool,
        read: impl FnOnce(KeyRange<'_>, &mut ScanPage) -> Result<(), MetaError>,
    ) -> Result<(), MetaError> {
        if let Some(last) = self.page.iter().next_back() {
            if forward {
                self.start = [last.key, &[0]].concat();
            } else {
                self.end = Some(last.key.to_vec());
            }
        }
        self.next = 0;
        self.page.clear();
        if self.end.as_ref().is_some_and(|end| *end <= self.start) {
            return Ok(());
        }
        read(KeyRange { start: &self.start, end: self.end.as_deref() }, &mut self.page)
    }

    /// The next key without its domain, and its value.
    fn front(&self) -> Option<(&[u8], &[u8])> {
        let entry = (self.next < self.page.len()).then(|| self.page.entry(self.next))?;
        Some((&entry.key[DOMAIN_BYTES..], entry.value))
    }
}

/// Whether a range has keys of one domain alone.
fn is_within_domain(range: KeyRange<'_>) -> bool {
    let past = domain_of(range.start).and_then(past_domain);
    past.is_none_or(|past| range.end.is_some_and(|end| end <= &past[..]))
}

/// The part that a value of a page of parts begins with.
fn part_of(value: &[u8]) -> (KeyPart, &[u8]) {
    let (tag, rest) = value.split_first().expect("a page of parts has a tag before each value");
    (KeyPart::of_tag(*tag), rest)
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    pub(crate) fn scan(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        direction: Direction,
        max_entries: usize,
        max_bytes: usize,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        let wanted = Wanted {
            at: at.min(self.newest()),
            forward: direction == Direction::Forward,
            passes_damage: page.passes_damage,
            entries: max_entries,
            bytes: max_bytes,
            part: None,
        };
        match self.domains.get() {
            None => self.scan_domain(&OriginTable::default(), range, wanted, false, page),
            Some(table) => self.scan_parts(&table, range, wanted, page),
        }
    }

    /// Reads a page of the keys of one part of a domain; see `SnapshotStore::scan_part`.
    pub(crate) fn scan_part(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        part: DomainPart,
        (entries, bytes): (usize, usize),
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        page.clear();
        debug_assert!(is_within_domain(range), "a part is one of a single domain");
        let wanted = Wanted {
            at: at.min(self.newest()),
            forward: true,
            passes_damage: false,
            entries,
            bytes,
            part: Some(part),
        };
        let table = self.domains.get();
        let origin = table.as_ref().and_then(|table| table.origin_at(range.start, wanted.at));
        match (table, origin) {
            (Some(table), Some(origin)) => {
                self.merge_origin(&table, origin, ORIGINS_MAX, range, wanted, page)
            }
            // The domain settles every key that it has.
            (table, _) if part == DomainPart::Settled => {
                self.scan_domain(&table.unwrap_or_default(), range, wanted, false, page)
            }
            _ => Ok(()),
        }
    }

    /// Reads a page of the range as if no domain had an origin. A range with keys of a domain that was rolled
    /// back lies in it.
    fn scan_domain(
        &self,
        table: &OriginTable,
        range: KeyRange<'_>,
        wanted: Wanted,
        parts: bool,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        page.clear();
        let passed = Cell::new(false);
        let hidden = table.hidden_at(domain_of(range.start), wanted.at);
        let limits = PageLimits {
            passed: wanted.passes_damage.then_some(&passed),
            at: wanted.at,
            hidden: &hidden,
            forward: wanted.forward,
            max_entries: wanted.entries,
            max_bytes: wanted.bytes,
            parts,
        };
        self.read_pieces(range, limits, page)?;
        page.has_passed_damage = passed.get();
        Ok(())
    }

    /// Reads a page of the range, domain by domain.
    fn scan_parts(
        &self,
        table: &Arc<OriginTable>,
        range: KeyRange<'_>,
        wanted: Wanted,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        page.clear();
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(());
        }
        let mut parts = table.parts(range);
        if !wanted.forward {
            parts.reverse();
        }
        if let [(start, end)] = parts.as_slice() {
            return self.scan_merged(table, KeyRange { start, end: end.as_deref() }, wanted, page);
        }
        let mut part = if wanted.passes_damage { ScanPage::past_damage() } else { ScanPage::default() };
        for (start, end) in parts {
            // A page that is full says that more follows without a look at the rest.
            if page.len() >= wanted.entries || (!page.is_empty() && page.bytes() >= wanted.bytes) {
                page.more = true;
                return Ok(());
            }
            let rest = Wanted {
                entries: wanted.entries - page.len(),
                bytes: wanted.bytes - page.bytes().min(wanted.bytes),
                ..wanted
            };
            self.scan_merged(table, KeyRange { start: &start, end: end.as_deref() }, rest, &mut part)?;
            part.iter().for_each(|entry| page.push(entry.key, entry.value));
            page.has_passed_damage |= part.has_passed_damage;
            if part.more {
                page.more = true;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads a page of a range that lies in one domain, or has no key of a domain with an origin.
    fn scan_merged(
        &self,
        table: &Arc<OriginTable>,
        range: KeyRange<'_>,
        wanted: Wanted,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        let Some(origin) = table.origin_at(range.start, wanted.at) else {
            return self.scan_domain(table, range, wanted, false, page);
        };
        self.merge_origin(table, origin, ORIGINS_MAX, range, wanted, page)
    }

    /// Reads a page of a domain with this origin. At most `depth` domains follow each other by their origins.
    fn merge_origin(
        &self,
        table: &Arc<OriginTable>,
        origin: DomainOrigin,
        depth: usize,
        range: KeyRange<'_>,
        wanted: Wanted,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        page.clear();
        let forward = wanted.forward;
        let side = Wanted {
            entries: wanted.entries.max(SIDE_ENTRIES_MIN),
            bytes: wanted.bytes.min(SIDE_BYTES_MAX),
            part: None,
            ..wanted
        };
        let below_at = Wanted { at: wanted.at.min(origin.seq), ..side };
        let domain = *range.start.first_chunk::<DOMAIN_BYTES>().expect("the range is in a domain");
        assert!(depth > 0, "the origins of every domain are checked when it is made or opened");
        debug_assert_ne!(domain, origin.domain, "no domain is its own origin");
        let mut own = Side::new(range.start.to_vec(), range.end.map(<[u8]>::to_vec), wanted.passes_damage);
        // A range up to the end of the domain ends with the origin's domain.
        let below_end = match range.end {
            Some(end) if end.starts_with(&domain) => Some(key_in(origin.domain, end)),
            _ => past_domain(origin.domain).map(|past| past.to_vec()),
        };
        let mut below = Side::new(key_in(origin.domain, range.start), below_end, wanted.passes_damage);
        // What the domain settles shows nothing of the origin.
        below.page.more = wanted.part != Some(DomainPart::Settled);
        let (mut key, mut value) = (domain.to_vec(), Vec::new());
        loop {
            if own.wants_page() {
                own.read_page(forward, |rest, page| self.scan_domain(table, rest, side, true, page))?;
                page.has_passed_damage |= own.page.has_passed_damage;
                continue;
            }
            if below.wants_page() {
                below.read_page(forward, |rest, page| match table.origin_at(rest.start, below_at.at) {
                    Some(next) => self.merge_origin(table, next, depth - 1, rest, below_at, page),
                    _ => self.scan_domain(table, rest, below_at, false, page),
                })?;
                page.has_passed_damage |= below.page.has_passed_damage;
                continue;
            }
            let (own_front, below_front) = (own.front(), below.front());
            // A key of both sides is met once: the domain's part of it decides about the origin's value.
            let order = match (own_front, below_front) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => scan_order(a, b, forward),
            };
            key.truncate(DOMAIN_BYTES);
            let (mut is_settled, mut has_value) = (false, false);
            if order == Ordering::Greater {
                let (rest, found) = below_front.expect("the origin has the first key");
                key.extend_from_slice(rest);
                value.clear();
                value.extend_from_slice(found);
                has_value = self.schema.reads_on(&key);
            } else {
                let (rest, found) = own_front.expect("the domain has the first key");
                key.extend_from_slice(rest);
                let (part, found) = part_of(found);
                let reads_on = self.schema.reads_on(&key);
                is_settled = !reads_on || matches!(part, KeyPart::Value | KeyPart::Deleted);
                let base = below_front.filter(|_| order == Ordering::Equal && reads_on);
                // An operand of a key that is not returned would miss its base.
                if wanted.has(is_settled) {
                    let base = base.map(|(_, value)| value);
                    has_value = self.fold_part(&key, part, found, base, &mut value)?;
                }
            }
            if has_value && wanted.has(is_settled) {
                if page.len() >= wanted.entries || (!page.is_empty() && page.bytes() >= wanted.bytes) {
                    page.more = true;
                    return Ok(());
                }
                page.push(&key, &value);
            }
            own.next += usize::from(order != Ordering::Greater);
            below.next += usize::from(order != Ordering::Less);
        }
    }

    /// The value of a key of which the domain has `part` and the origin has `below`; `false` if it has none.
    fn fold_part(
        &self,
        key: &[u8],
        part: KeyPart,
        found: &[u8],
        below: Option<&[u8]>,
        value: &mut Vec<u8>,
    ) -> Result<bool, MetaError> {
        match part {
            KeyPart::Nothing | KeyPart::Deleted => Ok(false),
            KeyPart::Value => {
                value.clear();
                value.extend_from_slice(found);
                Ok(true)
            }
            KeyPart::Operand => {
                let base = below.map_or(OlderValue::Absent, OlderValue::Value);
                Ok(self.schema.fold(key, base, &[found], value)? == FoldResult::Value)
            }
        }
    }
}
