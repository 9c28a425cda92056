//! Manifest edits: changes of the list of tables. The state of a checkpoint is one edit that adds every table
//! to an empty list.
//!
//! ```text
//! 0   u32     CRC32C of all that follows
//! 4   u8      kind 2; 3 if there are runs of the past
//! 5   varints: number of this edit (edits count up) | flushed seq | next table id | next run id
//!     varint  number of runs, then their ids (varints), newest first: all runs of the present after the edit
//!     kind 3: varint  number of runs of the past, at least 1, then their ids (varints)
//!     varint  number of tables removed, then their ids (varints)
//!     varint  number of tables moved, then for each: id, new run id (varints)
//!     varint  number of tables added, then for each:
//!       varints: id | run id | entries | deletes | superseded | length | top block's length, in bytes
//!       varints: lowest seq | highest seq (seq 0 not counted; both 0 if there is no other)
//!       varint  smallest key's length, key;  varint largest key's length, key
//!       varint  number of slices, then for each: segment, offset, length (varints): the table in order
//!       varint  number of segments named by values, then for each: segment, bytes named (varints)
//! ```
//!
//! Ids are never zero. The top block is the last block of a table.

use warpfire_units::{SegmentId, Seq, SlicePtr};

use crate::{Corrupt, FieldErrors, Reader, crc32c, varint};

const KIND: u8 = 2;

/// The kind of an edit after which there are runs of the past.
const KIND_WITH_PAST: u8 = 3;

const BAD_CHECKSUM: Corrupt = Corrupt::new(320, "manifest edit checksum");
const BAD_EDIT: Corrupt = Corrupt::new(321, "manifest edit structure");

static FIELDS: FieldErrors = FieldErrors::all(BAD_EDIT);

/// The manifest's record of one table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableDescriptor {
    /// The table's number, never reused.
    pub id: u64,
    /// The run that the table belongs to.
    pub run: u64,
    /// Number of key versions in the table.
    pub entries: u64,
    /// Number of deletes among them.
    pub deletes: u64,
    /// Number of versions below a newer version of their key in the table: snapshots keep them.
    pub superseded: u64,
    /// Length of the table.
    pub len_bytes: u32,
    /// Length of the top block at the table's end.
    pub top_len_bytes: u32,
    /// Lowest seq in the table, 0 not counted. A table of the past has no seq 0.
    pub seq_min: Seq,
    /// Highest seq in the table.
    pub seq_max: Seq,
    /// First key.
    pub smallest: Vec<u8>,
    /// Last key.
    pub largest: Vec<u8>,
    /// The slices that hold the table's bytes, in order.
    pub slices: Vec<SlicePtr>,
    /// The number of bytes that slice pointers in the table's values name, for each segment.
    pub references: Vec<(SegmentId, u64)>,
}

/// A change of the manifest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManifestEdit {
    /// The edit's number. Edits count up by one.
    pub number: u64,
    /// Every commit up to this seq is in tables.
    pub flushed: Seq,
    /// The next table's id.
    pub next_table: u64,
    /// The next run's id.
    pub next_run: u64,
    /// All runs of the present after the edit, newest first.
    pub runs: Vec<u64>,
    /// All runs of the past after the edit, in any order: what each has of a key stands alone.
    pub past: Vec<u64>,
    /// Ids of removed tables.
    pub removed: Vec<u64>,
    /// Tables that change to another run: (table, run).
    pub moved: Vec<(u64, u64)>,
    /// New tables.
    pub added: Vec<TableDescriptor>,
}

impl ManifestEdit {
    /// The edit's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let kind = if self.past.is_empty() { KIND } else { KIND_WITH_PAST };
        let mut out = vec![0, 0, 0, 0, kind];
        for n in [self.number, self.flushed.0, self.next_table, self.next_run] {
            varint::put(&mut out, n);
        }
        put_list(&mut out, &self.runs, |out, run| varint::put(out, *run));
        if !self.past.is_empty() {
            put_list(&mut out, &self.past, |out, run| varint::put(out, *run));
        }
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

    /// Verifies and decodes an edit. `None` if the record is of another kind.
    ///
    /// # Errors
    /// Codes 320 and 321.
    pub fn decode(record: &[u8]) -> Result<Option<Self>, Corrupt> {
        let mut reader = Reader::new(record, &FIELDS);
        let crc = reader.u32()?;
        if crc32c(reader.rest()) != crc {
            return Err(BAD_CHECKSUM);
        }
        let has_past = match reader.u8()? {
            KIND => false,
            KIND_WITH_PAST => true,
            _ => return Ok(None),
        };
        let edit = take_edit(&mut reader, has_past)?;
        reader.end()?;
        Ok(Some(edit))
    }
}

fn put_list<T>(out: &mut Vec<u8>, items: &[T], each: impl Fn(&mut Vec<u8>, &T)) {
    varint::put(out, items.len() as u64);
    for item in items {
        each(out, item);
    }
}

fn put_table(out: &mut Vec<u8>, t: &TableDescriptor) {
    let lens = [u64::from(t.len_bytes), u64::from(t.top_len_bytes)];
    for n in [t.id, t.run, t.entries, t.deletes, t.superseded]
        .into_iter()
        .chain(lens)
        .chain([t.seq_min.0, t.seq_max.0])
    {
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

fn take_list<T>(
    reader: &mut Reader<'_>,
    each: impl Fn(&mut Reader<'_>) -> Result<T, Corrupt>,
) -> Result<Vec<T>, Corrupt> {
    let count = reader.varint32()? as usize;
    // An item takes at least one byte, so a false count cannot make a large allocation.
    if count > reader.rest().len() {
        return Err(BAD_EDIT);
    }
    (0..count).map(|_| each(reader)).collect()
}

fn take_id(reader: &mut Reader<'_>) -> Result<u64, Corrupt> {
    match reader.varint()? {
        0 => Err(BAD_EDIT),
        id => Ok(id),
    }
}

fn take_segment(reader: &mut Reader<'_>) -> Result<SegmentId, Corrupt> {
    SegmentId::new(reader.varint()?).ok_or(BAD_EDIT)
}

fn take_key(reader: &mut Reader<'_>) -> Result<Vec<u8>, Corrupt> {
    let len = reader.varint32()? as usize;
    reader.bytes(len).map(<[u8]>::to_vec)
}

fn take_slice(reader: &mut Reader<'_>) -> Result<SlicePtr, Corrupt> {
    let slice = SlicePtr {
        segment: take_segment(reader)?,
        offset_bytes: reader.varint()?,
        len_bytes: reader.varint32()?,
    };
    let ends = slice.offset_bytes.checked_add(u64::from(slice.len_bytes)).is_some();
    if ends && slice.len_bytes > 0 { Ok(slice) } else { Err(BAD_EDIT) }
}

fn take_past(reader: &mut Reader<'_>) -> Result<Vec<u64>, Corrupt> {
    let past = take_list(reader, take_id)?;
    if past.is_empty() { Err(BAD_EDIT) } else { Ok(past) }
}

fn take_edit(reader: &mut Reader<'_>, has_past: bool) -> Result<ManifestEdit, Corrupt> {
    Ok(ManifestEdit {
        number: reader.varint()?,
        flushed: Seq(reader.varint()?),
        next_table: take_id(reader)?,
        next_run: take_id(reader)?,
        runs: take_list(reader, take_id)?,
        past: if has_past { take_past(reader)? } else { Vec::new() },
        removed: take_list(reader, take_id)?,
        moved: take_list(reader, |reader| Ok((take_id(reader)?, take_id(reader)?)))?,
        added: take_list(reader, take_table)?,
    })
}

fn take_table(reader: &mut Reader<'_>) -> Result<TableDescriptor, Corrupt> {
    let t = TableDescriptor {
        id: take_id(reader)?,
        run: take_id(reader)?,
        entries: reader.varint()?,
        deletes: reader.varint()?,
        superseded: reader.varint()?,
        len_bytes: reader.varint32()?,
        top_len_bytes: reader.varint32()?,
        seq_min: Seq(reader.varint()?),
        seq_max: Seq(reader.varint()?),
        smallest: take_key(reader)?,
        largest: take_key(reader)?,
        slices: take_list(reader, take_slice)?,
        references: take_list(reader, |reader| Ok((take_segment(reader)?, reader.varint()?)))?,
    };
    let len_bytes: u64 = t.slices.iter().map(|slice| u64::from(slice.len_bytes)).sum();
    let whole = len_bytes == u64::from(t.len_bytes) && t.top_len_bytes <= t.len_bytes;
    let in_order = t.smallest <= t.largest && t.seq_min <= t.seq_max;
    if whole && in_order { Ok(t) } else { Err(BAD_EDIT) }
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
            past: Vec::new(),
            removed: vec![2],
            moved: vec![(1, 4)],
            added: vec![TableDescriptor {
                id: 8,
                run: 4,
                entries: 10,
                deletes: 1,
                superseded: 1,
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
                8, 4, 10, 1, 1, 100, 20, 30, 40, 1, b'a', 2, b'z', b'z', // the table
                1, 6, 0x80, 0x20, 100, 1, 1, 17, // its slices and references
            ]
        );
    }

    #[test]
    fn runs_of_the_past_make_another_kind() {
        let edit = ManifestEdit { past: vec![3, 2], ..sample() };
        assert_eq!(edit.encode()[4..16], [3, 3, 40, 9, 5, 2, 4, 1, 2, 3, 2, 1]);
        assert_eq!(ManifestEdit::decode(&edit.encode()).unwrap().unwrap(), edit);
    }

    #[test]
    fn the_other_kind_without_a_run_of_the_past_is_refused() {
        let mut record = ManifestEdit { past: vec![3], ..sample() }.encode();
        // The list of the past, with its one run.
        record.drain(12..14);
        record.insert(12, 0);
        let crc = crc32c(&record[4..]);
        record[..4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(ManifestEdit::decode(&record).unwrap_err(), BAD_EDIT);
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
        fn no_bytes_make_it_panic(
            kind in KIND..=KIND_WITH_PAST,
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut record = vec![0, 0, 0, 0, kind];
            record.extend_from_slice(&body);
            let crc = crc32c(&record[4..]);
            record[..4].copy_from_slice(&crc.to_le_bytes());
            let _ = ManifestEdit::decode(&record);
            let _ = ManifestEdit::decode(&body);
        }
    }
}
