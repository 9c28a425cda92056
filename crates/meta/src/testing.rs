//! A schema for tests: values are lists of items, operands are items to append.
//!
//! ```text
//! item: kind u8 | ...
//!   b'T' text     length u16, bytes        inline in the value until a table is written
//!   b'P' pointer  segment u64, offset u64, length u32
//!   b'X' clear    (operands only) drops all items before it; a list that stays empty is deleted
//! ```

use warpfire_format::Corrupt;
use warpfire_log::{LogError, Slices};
use warpfire_units::{SegmentId, Seq, SlicePtr};

use crate::domain::{DOMAIN_BYTES, DomainId, DomainOrigin, DomainRecord, RollbackRecord};
use crate::memory::{MemoryAccount, MemoryBudget, MemoryLimits};
use crate::schema::{FoldResult, OlderValue, RelocateError, Relocator, Schema, SchemaError};

/// Texts of this length or more are packed when a table is written.
pub(crate) const PACKED_BYTES_MIN: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListSchema;

pub(crate) enum ListItem<'a> {
    Text(&'a [u8]),
    Pointer(SlicePtr),
    Clear,
}

/// An account that tests do not fill.
pub(crate) fn unlimited() -> MemoryAccount {
    MemoryBudget::new(MemoryLimits::default()).account(None)
}

pub(crate) fn text_item(text: &[u8]) -> Vec<u8> {
    let mut item = vec![b'T'];
    item.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
    item.extend_from_slice(text);
    item
}

pub(crate) fn pointer_item(slice: SlicePtr) -> Vec<u8> {
    let mut item = vec![b'P'];
    item.extend_from_slice(&slice.segment.get().to_le_bytes());
    item.extend_from_slice(&slice.offset_bytes.to_le_bytes());
    item.extend_from_slice(&slice.len_bytes.to_le_bytes());
    item
}

pub(crate) fn clear_item() -> Vec<u8> {
    vec![b'X']
}

/// No room of the product owns this number.
const BAD_LIST: Corrupt = Corrupt::new(900, "test list");

/// The items of a value or operand.
pub(crate) fn items(mut bytes: &[u8]) -> Result<Vec<ListItem<'_>>, SchemaError> {
    let bad = || SchemaError { code: BAD_LIST.code, reason: BAD_LIST.reason.to_owned() };
    let mut found = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        match kind {
            b'T' => {
                let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(bad)?;
                let (text, rest) =
                    rest.split_at_checked(usize::from(u16::from_le_bytes(*len))).ok_or_else(bad)?;
                found.push(ListItem::Text(text));
                bytes = rest;
            }
            b'P' => {
                let (segment, rest) = rest.split_first_chunk::<8>().ok_or_else(bad)?;
                let (offset, rest) = rest.split_first_chunk::<8>().ok_or_else(bad)?;
                let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(bad)?;
                found.push(ListItem::Pointer(SlicePtr {
                    segment: SegmentId::new(u64::from_le_bytes(*segment)).ok_or_else(bad)?,
                    offset_bytes: u64::from_le_bytes(*offset),
                    len_bytes: u32::from_le_bytes(*len),
                }));
                bytes = rest;
            }
            b'X' => {
                found.push(ListItem::Clear);
                bytes = rest;
            }
            _ => return Err(bad()),
        }
    }
    Ok(found)
}

impl Schema for ListSchema {
    fn fold(
        &self,
        _key: &[u8],
        base: OlderValue<'_>,
        operands: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<FoldResult, SchemaError> {
        out.clear();
        if let OlderValue::Value(value) = base {
            items(value)?;
            out.extend_from_slice(value);
        }
        for operand in operands {
            if items(operand)?.iter().any(|item| matches!(item, ListItem::Clear)) {
                assert_eq!(operand.first(), Some(&b'X'), "a clear comes first");
                out.clear();
                if base == OlderValue::Unknown {
                    out.push(b'X');
                }
                out.extend_from_slice(&operand[1..]);
            } else {
                out.extend_from_slice(operand);
            }
        }
        Ok(match base {
            OlderValue::Unknown => FoldResult::Operand,
            _ if out.is_empty() => FoldResult::Deleted,
            _ => FoldResult::Value,
        })
    }

    fn pointers(
        &self,
        _key: &[u8],
        value: &[u8],
        _is_operand: bool,
        visit: &mut dyn FnMut(SlicePtr),
    ) -> Result<(), SchemaError> {
        for item in items(value)? {
            if let ListItem::Pointer(slice) = item {
                visit(slice);
            }
        }
        Ok(())
    }

    fn group_key_bytes(&self) -> usize {
        5
    }

    fn is_bundled(&self, _key: &[u8]) -> bool {
        true
    }

    fn relocate(
        &self,
        _key: &[u8],
        value: &[u8],
        _is_operand: bool,
        relocator: &mut dyn Relocator,
        out: &mut Vec<u8>,
    ) -> Result<bool, RelocateError> {
        let mut changed = false;
        let mut placed = Vec::new();
        for item in items(value)? {
            match item {
                ListItem::Text(text) if text.len() >= PACKED_BYTES_MIN && relocator.packs() => {
                    changed = true;
                    placed.extend(pointer_item(relocator.pack(text)?));
                }
                ListItem::Text(text) => placed.extend(text_item(text)),
                ListItem::Pointer(slice) => {
                    let moved = relocator.move_slice(slice)?;
                    changed |= moved.is_some();
                    for piece in moved.unwrap_or_else(|| Slices::from_buf([slice])) {
                        placed.extend(pointer_item(piece));
                    }
                }
                ListItem::Clear => placed.extend(clear_item()),
            }
        }
        if changed {
            out.clear();
            out.extend_from_slice(&placed);
        }
        Ok(changed)
    }

    fn snapshot_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        Some((SNAPSHOT_PREFIX.to_vec(), [SNAPSHOT_PREFIX, &[0xff; 9]].concat()))
    }

    fn snapshot_seq(&self, key: &[u8]) -> Result<Option<Seq>, SchemaError> {
        let number = key.strip_prefix(SNAPSHOT_PREFIX).and_then(|rest| rest.try_into().ok());
        Ok(number.map(|number| Seq(u64::from_be_bytes(number))))
    }

    fn bookmark_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        Some((BOOKMARK_PREFIX.to_vec(), [BOOKMARK_PREFIX, &[0xff; 9]].concat()))
    }

    fn bookmark_seq(&self, key: &[u8], value: &[u8]) -> Result<Option<Seq>, SchemaError> {
        if !key.starts_with(BOOKMARK_PREFIX) {
            return Ok(None);
        }
        let found = items(value)?;
        let Some(ListItem::Text(seq)) = found.first() else { panic!("a record of a bookmark is a text") };
        Ok(Some(Seq(u64::from_be_bytes(seq[..8].try_into().unwrap()))))
    }

    fn faded(&self, key: &[u8]) -> Option<&'static [u8]> {
        key.ends_with(b"zz").then_some(FADED)
    }

    /// A value keeps that it has items, and an operand that it clears or appends some.
    fn fade(
        &self,
        _key: &[u8],
        value: &[u8],
        is_operand: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool, SchemaError> {
        if items(value)?.iter().all(|item| matches!(item, ListItem::Clear)) {
            return Ok(false);
        }
        out.clear();
        if is_operand {
            out.extend(clear_item());
        }
        out.extend_from_slice(FADED);
        Ok(true)
    }

    fn domain_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        Some((DOMAIN_PREFIX.to_vec(), [DOMAIN_PREFIX, &[0xff; 5]].concat()))
    }

    fn domain(&self, key: &[u8], value: &[u8]) -> Result<Option<DomainRecord>, SchemaError> {
        let Some(domain) = key.strip_prefix(DOMAIN_PREFIX).and_then(|rest| rest.try_into().ok()) else {
            return Ok(None);
        };
        let found = items(value)?;
        let Some(ListItem::Text(fields)) = found.first() else { panic!("a record of a domain is a text") };
        let (below, seqs) = fields.split_first_chunk::<DOMAIN_BYTES>().unwrap();
        let number = |n: usize| seqs[3 * n..][..3].iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let seq = |n| Some(Seq(number(n))).filter(|seq| *seq != Seq(0));
        let (seq_below, removed_at, released_at) = (Seq(number(0)), seq(1), seq(2));
        let origin =
            (*below != [0; 4]).then_some(DomainOrigin { domain: *below, seq: seq_below, released_at });
        Ok(Some(DomainRecord { domain, origin, removed_at }))
    }

    fn reads_on(&self, key: &[u8]) -> bool {
        !key[DOMAIN_BYTES..].starts_with(b"/its own")
    }

    fn rollback_range(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        Some((ROLLBACK_PREFIX.to_vec(), [ROLLBACK_PREFIX, &[0xff; 5]].concat()))
    }

    fn rollback(&self, key: &[u8], value: &[u8]) -> Result<Option<RollbackRecord>, SchemaError> {
        let Some((domain, at)) =
            key.strip_prefix(ROLLBACK_PREFIX).and_then(|rest| rest.split_first_chunk::<DOMAIN_BYTES>())
        else {
            return Ok(None);
        };
        let found = items(value)?;
        let Some(ListItem::Text(seqs)) = found.first() else { panic!("a record of a rollback is a text") };
        let seq = |bytes: &[u8]| Seq(bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
        let ended_at = Some(seq(&seqs[3..])).filter(|ended| *ended != Seq(0));
        Ok(Some(RollbackRecord { domain: *domain, to: seq(&seqs[..3]), at: seq(at), ended_at }))
    }

    fn goes_back(&self, key: &[u8]) -> bool {
        key.get(DOMAIN_BYTES..).is_some_and(|rest| !rest.starts_with(b"/its own"))
    }
}

/// The prefix of the keys of rollbacks; behind it are the domain and the seq.
const ROLLBACK_PREFIX: &[u8] = b"rollback ";

/// The key of a rollback's record.
pub(crate) fn rollback_key(record: &RollbackRecord) -> Vec<u8> {
    [ROLLBACK_PREFIX, &record.domain, &record.at.0.to_be_bytes()].concat()
}

/// The record of a rollback, with seqs of 24 bits. It is too short to be packed.
pub(crate) fn rollback_value(record: &RollbackRecord) -> Vec<u8> {
    let mut fields = Vec::new();
    for seq in [record.to, record.ended_at.unwrap_or_default()] {
        assert!(seq.0 < 1 << 24, "histories of tests are short");
        fields.extend_from_slice(&seq.0.to_be_bytes()[5..]);
    }
    text_item(&fields)
}

/// The rest of a value that only bookmarks show: an empty text.
pub(crate) const FADED: &[u8] = b"T\0\0";

/// The prefix of the keys of bookmarks; behind it is a number.
const BOOKMARK_PREFIX: &[u8] = b"bookmark ";

/// The key of a bookmark's record.
pub(crate) fn bookmark_key(number: u64) -> Vec<u8> {
    [BOOKMARK_PREFIX, &number.to_be_bytes()].concat()
}

/// The record of a bookmark.
pub(crate) fn bookmark_value(seq: Seq) -> Vec<u8> {
    text_item(&seq.0.to_be_bytes())
}

/// The prefix of the keys of domains; behind it is the domain.
const DOMAIN_PREFIX: &[u8] = b"domain ";

/// The key of a domain's record.
pub(crate) fn domain_key(domain: DomainId) -> Vec<u8> {
    [DOMAIN_PREFIX, &domain].concat()
}

/// The record of a domain, with seqs of 24 bits. It is too short to be packed.
pub(crate) fn domain_value(record: &DomainRecord) -> Vec<u8> {
    let origin = record.origin.map_or([0; 4], |origin| origin.domain);
    let released_at = record.origin.and_then(|origin| origin.released_at);
    let seqs = [record.origin.map(|origin| origin.seq), record.removed_at, released_at];
    let mut fields = origin.to_vec();
    for seq in seqs {
        let number = seq.map_or(0, |seq| seq.0);
        assert!(number < 1 << 24, "histories of tests are short");
        fields.extend_from_slice(&number.to_be_bytes()[5..]);
    }
    text_item(&fields)
}

/// The prefix of the keys of persistent snapshots; behind it is the seq.
const SNAPSHOT_PREFIX: &[u8] = b"snapshot ";

/// The key of a persistent snapshot.
pub(crate) fn snapshot_key(seq: Seq) -> Vec<u8> {
    [SNAPSHOT_PREFIX, &seq.0.to_be_bytes()].concat()
}

/// A value with its pointers followed, so that packed and unpacked forms compare equal.
pub(crate) fn resolved(
    value: &[u8],
    mut read: impl FnMut(SlicePtr, &mut [u8]) -> Result<(), LogError>,
) -> Result<Vec<u8>, LogError> {
    let mut texts = Vec::new();
    for item in items(value).expect("test values decode") {
        match item {
            ListItem::Text(text) => texts.extend_from_slice(text),
            ListItem::Pointer(slice) => {
                let start = texts.len();
                texts.resize(start + slice.len_bytes as usize, 0);
                read(slice, &mut texts[start..])?;
            }
            ListItem::Clear => {}
        }
    }
    Ok(texts)
}

/// Numbers from a seed (SplitMix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
