//! Inserting and collapsing: what follows keeps its slices and changes its place.

use warpfire_format::fs::{
    Content, Extents, Inode, InodeEdit, REGION_BYTES, SMALL_FILE_BYTES_MAX, decode_region, encode_region,
    flag, region_key,
};
use warpfire_meta::{Admit, Batch, SliceStore, Store};

use super::change::miscounted;
use super::piece::{Piece, by_region};
use super::write::check_end;
use crate::attrs::lost;
use crate::dirty::BYTES;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::REGIONS_PER_COMMIT;
use crate::node::{History, Layout, Node, State};

const REGION: u64 = REGION_BYTES as u64;

/// What lies before `cut` stays; what lies from `from` on goes to `to`; what is between goes.
#[derive(Clone, Copy)]
struct Shift {
    cut: u64,
    from: u64,
    to: u64,
}

impl Shift {
    fn place<'a>(self, piece: Piece<'a>, out: &mut Vec<Piece<'a>>) {
        out.extend(piece.clip(0, self.cut));
        out.extend(
            piece.clip(self.from, u64::MAX).map(|p| Piece { offset: p.offset - self.from + self.to, ..p }),
        );
    }
}

impl<E: Store + SliceStore> Fs<E> {
    pub(super) fn insert_range(
        &self,
        node: &Node,
        state: &mut State,
        offset: u64,
        len: u64,
        edit: InodeEdit<'_>,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        let size = state.attrs.size_bytes;
        if offset >= size {
            return Err(FsError::Invalid("a range is inserted before the end of the file"));
        }
        let size_after = check_end(size, len)?;
        let shift = Shift { cut: offset, from: offset, to: offset + len };
        self.shift(node, state, shift, size_after, edit, batch)
    }

    pub(super) fn collapse_range(
        &self,
        node: &Node,
        state: &mut State,
        offset: u64,
        len: u64,
        edit: InodeEdit<'_>,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        let size = state.attrs.size_bytes;
        let end = check_end(offset, len)?;
        if end >= size {
            return Err(FsError::Invalid("a range that is collapsed ends before the end of the file"));
        }
        let shift = Shift { cut: offset, from: end, to: offset };
        self.shift(node, state, shift, size - len, edit, batch)
    }

    /// Writes anew every extent from the region of the cut on.
    fn shift(
        &self,
        node: &Node,
        state: &mut State,
        shift: Shift,
        size_after: u64,
        edit: InodeEdit<'_>,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        let _pin = self.engine.pin();
        let first = shift.cut / REGION;
        let mut values: Vec<(u64, Vec<u8>)> = Vec::new();
        let record;
        let mut pieces = Vec::new();
        let mut data_before = 0;
        if state.layout == Layout::Inline {
            record = self.record(node, state)?;
            let Content::Small(extents) = Inode::decode(&record)?.content else { return Err(lost()) };
            for extent in extents.to_map()?.iter() {
                data_before += u64::from(extent.len);
                shift.place(Piece::of_extent(0, extent), &mut pieces);
            }
        } else {
            self.for_each_region(node.ino(), first, &mut |index, value| {
                values.push((index, value.to_vec()));
                if values.len() > REGIONS_PER_COMMIT { Err(FsError::FileTooLarge) } else { Ok(true) }
            })?;
            for (index, value) in &values {
                for extent in decode_region(value, false)?.iter() {
                    data_before += u64::from(extent.len);
                    shift.place(Piece::of_extent(*index, extent), &mut pieces);
                }
                batch.delete(&region_key(self.volume, node.ino(), *index));
            }
        }
        let moved: u64 = pieces.iter().map(|p| p.len).sum();
        let allocated = state.attrs.allocated_bytes.checked_sub(data_before).map(|kept| kept + moved);
        let allocated = allocated.filter(|bytes| *bytes <= size_after).ok_or_else(miscounted)?;
        self.put_shifted(node, state, &pieces, (size_after, allocated), edit, batch)
    }

    fn put_shifted(
        &self,
        node: &Node,
        state: &mut State,
        pieces: &[Piece<'_>],
        (size_after, allocated): (u64, u64),
        edit: InodeEdit<'_>,
        batch: &mut Batch,
    ) -> Result<(), FsError> {
        let before = state.attrs;
        let mut attrs = before;
        edit.apply(&mut attrs)?;
        attrs.size_bytes = size_after;
        attrs.allocated_bytes = allocated;
        let small = state.layout == Layout::Inline && size_after <= u64::from(SMALL_FILE_BYTES_MAX);
        let mut out = Vec::new();
        let sparse = attrs.allocated_bytes < size_after;
        attrs.flags = if sparse { attrs.flags | flag::SPARSE } else { attrs.flags & !flag::SPARSE };
        let content = if small { Content::Small(Extents::EMPTY) } else { Content::Regions };
        let mut record = Vec::new();
        Inode { ino: node.ino(), attrs, content }.encode(&mut record);
        for (index, map) in by_region(pieces) {
            if small {
                map.encode(&mut record);
                continue;
            }
            out.clear();
            encode_region(&mut out, &map, false);
            batch.put(&region_key(self.volume, node.ino(), index), &out);
        }
        let key = state.home_key(self.volume, node.ino()).ok_or_else(lost)?;
        batch.put(&key, &record);
        batch.add(BYTES, attrs.allocated_bytes.wrapping_sub(before.allocated_bytes).cast_signed());
        self.commit(batch, Admit::User)?;
        self.stripes.moved(&key);
        state.attrs = attrs;
        state.layout = if small { Layout::Inline } else { Layout::Regions };
        state.history = History::default();
        Ok(())
    }
}
