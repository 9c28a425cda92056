//! Manifest edits: which tables there are. A checkpoint's state is one edit that starts from nothing.
//!
//! ```text
//! 0   u32     CRC32C of all that follows
//! 4   u8      kind 2
//! 5   varints: number of this edit (edits count up) | flushed seq | next table id | next run id
//!     varint  number of runs, then their ids (varints), newest first: all runs there are after the edit
//!     varint  number of tables removed, then their ids (varints)
//!     varint  number of tables moved, then for each: id, new run id (varints)
//!     varint  number of tables added, then for each:
//!       varints: id | run id | entries | deletes | length in bytes | top block's length in bytes
//!       varints: lowest seq | highest seq (not counting seq 0; both 0 if there is no other)
//!       varint  smallest key's length, key;  varint largest key's length, key
//!       varint  number of slices, then for each: segment, offset, length (varints): the table's bytes, in order
//!       varint  number of segments named by values, then for each: segment, bytes named (varints)
//! ```
//!
//! Identifiers are never zero. The top block is the last thing in a table.

use warpfire_units::{SegmentId, Seq, SlicePtr};

use crate::{Corrupt, crc32c, varint};

const KIND: u8 = 2;

const BAD_CHECKSUM: Corrupt = Corrupt::new(320, "manifest edit checksum");
const BAD_EDIT: Corrupt = Corrupt::new(321, "manifest edit structure");

/// A table, as the manifest knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// Its number; never reused.
    pub id: u64,
    /// The run that it belongs to.
    pub run: u64,
    /// Versions in it.
    pub entries: u64,
    /// How many of them are deletes.
    pub deletes: u64,
    /// Length of the table.
    pub len_bytes: u32,
    /// Length of the top block, at its end.
    pub top_len_bytes: u32,
    /// Lowest seq in it, except 0.
    pub seq_min: Seq,
    /// Highest seq in it.
    pub seq_max: Seq,
    /// First key.
    pub smallest: Vec<u8>,
    /// Last key.
    pub largest: Vec<u8>,
    /// Where its bytes lie, in order.
    pub slices: Vec<SlicePtr>,
    /// Bytes that its values name, by segment.
    pub references: Vec<(SegmentId, u64)>,
}

/// A change of the manifest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManifestEdit {
    /// Edits count up by one.
    pub number: u64,
    /// Every commit up to this one is in tables.
    pub flushed: Seq,
    /// The next table's id.
    pub next_table: u64,
    /// The next run's id.
    pub next_run: u64,
    /// All runs after the edit, newest first.
    pub runs: Vec<u64>,
    /// Tables that go.
    pub removed: Vec<u64>,
    /// Tables that change to another run as they are: table, run.
    pub moved: Vec<(u64, u64)>,
    /// Tables that come.
    pub added: Vec<TableEntry>,
}

impl ManifestEdit {
    /// The edit's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0, 0, 0, 0, KIND];
        for n in [self.number, self.flushed.0, self.next_table, self.next_run] {
            varint::put(&mut out, n);
        }
        put_list(&mut out, &self.runs, |out, run| varint::put(out, *run));
        put_list(&mut out, &self.removed, |out, id| varint::put(out, *id));
        put_list(&mut out, &self.moved, |out, (id, run)| {
            varint::put(out, *id);
            varint::put(out, *run);
        });
        put_list(&mut out, &self.added, put_table);
        let crc = crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Verifies and decodes an edit. `None` if it is a record of another kind.
    pub fn decode(record: &[u8]) -> Result<Option<Self>, Corrupt> {
        let (crc, rest) = record.split_first_chunk::<4>().ok_or(BAD_EDIT)?;
        if crc32c(rest) != u32::from_le_bytes(*crc) {
            return Err(BAD_CHECKSUM);
        }
        let (kind, mut rest) = rest.split_first().ok_or(BAD_EDIT)?;
        if *kind != KIND {
            return Ok(None);
        }
        let edit = take_edit(&mut rest).ok_or(BAD_EDIT)?;
        if rest.is_empty() { Ok(Some(edit)) } else { Err(BAD_EDIT) }
    }
}

fn put_list<T>(out: &mut Vec<u8>, items: &[T], each: impl Fn(&mut Vec<u8>, &T)) {
    varint::put(out, items.len() as u64);
    for item in items {
        each(out, item);
    }
}

fn put_table(out: &mut Vec<u8>, t: &TableEntry) {
    let lens = [u64::from(t.len_bytes), u64::from(t.top_len_bytes)];
    for n in [t.id, t.run, t.entries, t.deletes].into_iter().chain(lens).chain([t.seq_min.0, t.seq_max.0]) {
        varint::put(out, n);
    }
    for key in [&t.smallest, &t.largest] {
        varint::put(out, key.len() as u64);
        out.extend_from_slice(key);
    }
    put_list(out, &t.slices, |out, s| {
        for n in [s.segment.get(), s.offset_bytes, u64::from(s.len_bytes)] {
            varint::put(out, n);
        }
    });
    put_list(out, &t.references, |out, (segment, bytes)| {
        varint::put(out, segment.get());
        varint::put(out, *bytes);
    });
}

fn take_list<T>(rest: &mut &[u8], each: impl Fn(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    let count = varint::take_u32(rest)? as usize;
    // An item takes at least a byte: a false count can not make a large allocation.
    if count > rest.len() {
        return None;
    }
    (0..count).map(|_| each(rest)).collect()
}

fn take_id(rest: &mut &[u8]) -> Option<u64> {
    varint::take(rest).filter(|id| *id != 0)
}

fn take_key(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let len = varint::take_u32(rest)? as usize;
    varint::take_bytes(rest, len).map(<[u8]>::to_vec)
}

fn take_edit(rest: &mut &[u8]) -> Option<ManifestEdit> {
    Some(ManifestEdit {
        number: varint::take(rest)?,
        flushed: Seq(varint::take(rest)?),
        next_table: take_id(rest)?,
        next_run: take_id(rest)?,
        runs: take_list(rest, take_id)?,
        removed: take_list(rest, take_id)?,
        moved: take_list(rest, |rest| Some((take_id(rest)?, take_id(rest)?)))?,
        added: take_list(rest, take_table)?,
    })
}

fn take_table(rest: &mut &[u8]) -> Option<TableEntry> {
    let t = TableEntry {
        id: take_id(rest)?,
        run: take_id(rest)?,
        entries: varint::take(rest)?,
        deletes: varint::take(rest)?,
        len_bytes: varint::take_u32(rest)?,
        top_len_bytes: varint::take_u32(rest)?,
        seq_min: Seq(varint::take(rest)?),
        seq_max: Seq(varint::take(rest)?),
        smallest: take_key(rest)?,
        largest: take_key(rest)?,
        slices: take_list(rest, |rest| {
            Some(SlicePtr {
                segment: SegmentId::new(varint::take(rest)?)?,
                offset_bytes: varint::take(rest)?,
                len_bytes: varint::take_u32(rest).filter(|len| *len > 0)?,
            })
        })?,
        references: take_list(rest, |rest| {
            Some((SegmentId::new(varint::take(rest)?)?, varint::take(rest)?))
        })?,
    };
    let mut len_bytes = 0u64;
    for slice in &t.slices {
        slice.offset_bytes.checked_add(u64::from(slice.len_bytes))?;
        len_bytes += u64::from(slice.len_bytes);
    }
    let whole = len_bytes == u64::from(t.len_bytes) && t.top_len_bytes <= t.len_bytes;
    (whole && t.smallest <= t.largest && t.seq_min <= t.seq_max).then_some(t)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> ManifestEdit {
        let segment = SegmentId::new(6).unwrap();
        ManifestEdit {
            number: 3,
            flushed: Seq(40),
            next_table: 9,
            next_run: 5,
            runs: vec![4, 1],
            removed: vec![2],
            moved: vec![(1, 4)],
            added: vec![TableEntry {
                id: 8,
                run: 4,
                entries: 10,
                deletes: 1,
                len_bytes: 100,
                top_len_bytes: 20,
                seq_min: Seq(30),
                seq_max: Seq(40),
                smallest: b"a".to_vec(),
                largest: b"zz".to_vec(),
                slices: vec![SlicePtr { segment, offset_bytes: 4096, len_bytes: 100 }],
                references: vec![(SegmentId::FIRST, 17)],
            }],
        }
    }

    #[test]
    fn the_bytes_are_as_documented() {
        assert_eq!(
            sample().encode()[4..],
            [
                2, 3, 40, 9, 5, 2, 4, 1, 1, 2, 1, 1, 4, 1, // edit, runs, removed, moved, one added
                8, 4, 10, 1, 100, 20, 30, 40, 1, b'a', 2, b'z', b'z', // the table
                1, 6, 0x80, 0x20, 100, 1, 1, 17, // its slices and references
            ]
        );
    }

    #[test]
    fn an_edit_comes_back() {
        assert_eq!(ManifestEdit::decode(&sample().encode()).unwrap().unwrap(), sample());
    }

    #[test]
    fn a_table_whose_slices_do_not_add_up_is_refused() {
        let mut edit = sample();
        edit.added[0].len_bytes = 99;
        assert_eq!(ManifestEdit::decode(&edit.encode()).unwrap_err(), BAD_EDIT);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut record = vec![0, 0, 0, 0, KIND];
            record.extend_from_slice(&body);
            let crc = crc32c(&record[4..]);
            record[..4].copy_from_slice(&crc.to_le_bytes());
            let _ = ManifestEdit::decode(&record);
            let _ = ManifestEdit::decode(&body);
        }
    }
}
