//! Scans over the snapshot below and the write set together.

use warpfire_log::LogError;

use super::write_set::WriteSet;
use super::{TxState, TxStore};
use crate::schema::{OlderValue, Schema};
use crate::store::{Direction, KeyRange, MetaError, ScanEntry, ScanPage, Storage};

/// The key right after `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// The next key of the two sources, and the snapshot's entry if it has one.
enum NextKey<'a> {
    Below(ScanEntry<'a>),
    Changed(&'a [u8], Option<ScanEntry<'a>>),
}

impl<E: Storage, S: Schema> TxStore<E, S> {
    pub(super) fn scan_in(
        &self,
        state: &mut TxState,
        range: KeyRange<'_>,
        direction: Direction,
        (max_entries, max_bytes): (usize, usize),
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        page.clear();
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(());
        }
        let (mut start, mut end) = (range.start.to_vec(), range.end.map(<[u8]>::to_vec));
        let mut below = ScanPage::default();
        // The first key that had no room in the page; `None`: the scan reached the end of the range.
        let stopped = loop {
            let wanted = max_entries.saturating_sub(page.len()).max(1);
            let left = KeyRange { start: &start, end: end.as_deref() };
            self.below.scan(left, self.at, direction, wanted, max_bytes, &mut below)?;
            let last = below.iter().last().filter(|_| below.more).map(|entry| entry.key.to_vec());
            if below.more && last.is_none() {
                return Err(MetaError::Log(LogError::Damaged(
                    "an empty page of a scan says that more follows".into(),
                )));
            }
            // The part of the range that this page of the snapshot covers: changed keys are added within it.
            let (part_start, part_end) = match (&last, direction) {
                (None, _) => (start.clone(), end.clone()),
                (Some(last), Direction::Forward) => (start.clone(), Some(after(last))),
                (Some(last), Direction::Backward) => (last.clone(), end.clone()),
            };
            let part = KeyRange { start: &part_start, end: part_end.as_deref() };
            let full =
                self.add_part(&state.write_set, &below, part, direction, (max_entries, max_bytes), page)?;
            if full.is_some() {
                break full;
            }
            match (last, direction) {
                (None, _) => break None,
                (Some(_), Direction::Forward) => start = part_end.expect("the part ends after its last key"),
                (Some(_), Direction::Backward) => end = Some(part_start),
            }
        };
        page.more = stopped.is_some();
        debug_assert!(page.len() <= max_entries.max(1), "a page stays within its limit");
        // Only the part that the page shows was read, up to the key that says that more follows.
        match (stopped, direction) {
            (None, _) => state.add_range(range.start, range.end),
            (Some(key), Direction::Forward) => state.add_range(range.start, Some(&after(&key))),
            (Some(key), Direction::Backward) => state.add_range(&key, range.end),
        }
    }

    /// Adds the entries of a part of the range to the page. Returns the first key that had no room.
    fn add_part(
        &self,
        write_set: &WriteSet,
        below: &ScanPage,
        part: KeyRange<'_>,
        direction: Direction,
        (max_entries, max_bytes): (usize, usize),
        page: &mut ScanPage,
    ) -> Result<Option<Vec<u8>>, MetaError> {
        let mut entries = below.iter().peekable();
        let mut changed = write_set.keys(part.start, part.end);
        let mut step = || match direction {
            Direction::Forward => changed.next(),
            Direction::Backward => changed.next_back(),
        };
        let mut waiting = step().map(|(key, _)| &**key);
        let mut value = Vec::new();
        loop {
            // The smaller key in the scan's order comes next; a key of both is folded onto the snapshot's
            // value.
            let next = match (entries.peek().copied(), waiting) {
                (None, None) => return Ok(None),
                (Some(entry), None) => NextKey::Below(entry),
                (None, Some(key)) => NextKey::Changed(key, None),
                (Some(entry), Some(key)) => {
                    let order = match direction {
                        Direction::Forward => entry.key.cmp(key),
                        Direction::Backward => key.cmp(entry.key),
                    };
                    match order {
                        std::cmp::Ordering::Less => NextKey::Below(entry),
                        std::cmp::Ordering::Equal => NextKey::Changed(key, Some(entry)),
                        std::cmp::Ordering::Greater => NextKey::Changed(key, None),
                    }
                }
            };
            let (key, visible) = match next {
                NextKey::Below(entry) => {
                    entries.next();
                    (entry.key, Some(entry.value))
                }
                NextKey::Changed(key, entry) => {
                    if entry.is_some() {
                        entries.next();
                    }
                    waiting = step().map(|(key, _)| &**key);
                    let base = entry.map_or(OlderValue::Absent, |entry| OlderValue::Value(entry.value));
                    let has_value = write_set.fold(&self.schema, key, Some(base), &mut value)?;
                    (key, has_value.then_some(value.as_slice()))
                }
            };
            let Some(visible) = visible else { continue };
            if page.len() >= max_entries || (!page.is_empty() && page.bytes() >= max_bytes) {
                return Ok(Some(key.to_vec()));
            }
            page.push(key, visible);
        }
    }
}
