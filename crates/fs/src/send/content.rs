//! The content of files: pieces of new files, changed ranges of known ones, and extended attributes.

use std::ops::Range;

use warpfire_format::fs::{
    Extent, ExtentMap, FileKind, Inode, InodeContent, Key, REGION_BYTES, decode_region, decode_xattr, flag,
};
use warpfire_format::stream::{MadeFile, Piece, StreamRecord};
use warpfire_meta::{KeyRange, ScanPage, Storage};

use super::SendError;
use super::attach::{Attach, attributes_differ, attributes_of};
use super::writer::push_hole;
use crate::attrs::CAPABILITY;
use crate::damage::WRONG_RANGE;
use crate::diff::sides::{DiffSide, SideRecord};
use crate::keys::{region_key, region_range, xattr_range};
use crate::limits::PAGE_BYTES;
use crate::transfer::RECEIVED_XATTR;

/// Most pieces of one record.
const PIECES_MAX: usize = 2048;

/// Regions that one look-up returns.
const REGIONS_AT_ONCE: usize = 16;

const REGION: u64 = REGION_BYTES as u64;

/// Takes the offset in the file of the first piece, and pieces that follow each other.
type PutPieces<'f, T> = &'f mut dyn FnMut(&mut T, u64, Vec<Piece<'_>>) -> Result<(), SendError>;

/// A symbolic link with another target is another file, and so is a device with another number. So of a known
/// file that is not regular only attributes differ.
fn has_content(inode: &Inode<'_>) -> bool {
    inode.attrs.kind == FileKind::Regular
}

impl<E: Storage> Attach<'_, E> {
    /// Makes a file that is no directory. The caller has had a pin since it read the record.
    pub(super) fn put_new_file(&mut self, made: MadeFile<'_>, inode: &Inode<'_>) -> Result<(), SendError> {
        let attributes = made.attributes;
        let is_whole = match inode.content {
            InodeContent::Small(extents) => {
                let len = inode.attrs.size_bytes.min(REGION) as u32;
                self.put_first_pieces(made, &extents.to_map()?, len)?
            }
            InodeContent::Regions => {
                self.put_regions(made, inode)?;
                false
            }
            _ => {
                self.put(&StreamRecord::Make(made))?;
                true
            }
        };
        if !is_whole {
            // Writing has set other times.
            self.put(&StreamRecord::Attributes(attributes))?;
        }
        self.put_xattrs(inode)
    }

    /// Makes a file with its first pieces. Returns whether these are all.
    fn put_first_pieces(
        &mut self,
        made: MadeFile<'_>,
        extents: &ExtentMap<'_>,
        len: u32,
    ) -> Result<bool, SendError> {
        let mut made = Some(made);
        let mut is_whole = true;
        self.put_pieces(extents, 0, 0..len, &mut |this, offset, pieces| match made.take() {
            Some(made) => this.put(&StreamRecord::Make(MadeFile { pieces, ..made })),
            None => {
                is_whole = false;
                this.put(&StreamRecord::Write { offset, pieces })
            }
        })?;
        if let Some(made) = made {
            self.put(&StreamRecord::Make(made))?;
        }
        Ok(is_whole)
    }

    /// Makes a file in regions.
    fn put_regions(&mut self, made: MadeFile<'_>, inode: &Inode<'_>) -> Result<(), SendError> {
        let size = inode.attrs.size_bytes;
        let mut made = Some(made);
        let mut done = 0;
        // This may take long. The names around are read again after it.
        self.writer.drop_pins()?;
        let (mut start, end) = region_range(inode.ino, 0);
        let mut page = ScanPage::default();
        loop {
            self.writer.pin(&self.trees.sides)?;
            let range = KeyRange { start: &start, end: Some(&end) };
            self.trees.sides.page_of(DiffSide::After, range, REGIONS_AT_ONCE, PAGE_BYTES, &mut page)?;
            for entry in page.iter() {
                let Key::Region(_, _, index) = Key::decode(entry.key)? else {
                    return Err(WRONG_RANGE.into());
                };
                let at = index.saturating_mul(REGION);
                if at >= size {
                    break;
                }
                if made.is_some() || at > done {
                    // Nothing or a hole is before the region.
                    self.put_hole(&mut made, done..at)?;
                }
                let len = (size - at).min(REGION) as u32;
                self.put_pieces(
                    &decode_region(entry.value, false)?,
                    at,
                    0..len,
                    &mut |this, offset, pieces| this.put(&StreamRecord::Write { offset, pieces }),
                )?;
                done = at + u64::from(len);
            }
            self.writer.unpin()?;
            let Some(last) = page.iter().next_back().filter(|_| page.more) else { break };
            start.clear();
            start.extend_from_slice(last.key);
            start.push(0);
        }
        if made.is_some() || done < size {
            self.put_hole(&mut made, done..size)?;
        }
        Ok(())
    }

    /// Makes the file, if it is not made yet, and a hole in it.
    fn put_hole(&mut self, made: &mut Option<MadeFile<'_>>, hole: Range<u64>) -> Result<(), SendError> {
        let mut pieces = Vec::new();
        push_hole(&mut pieces, hole.end - hole.start);
        match made.take() {
            Some(made) => self.put(&StreamRecord::Make(MadeFile { pieces, ..made })),
            None => self.put(&StreamRecord::Write { offset: hole.start, pieces }),
        }
    }

    /// Puts the pieces of a range of a region that begins at `region_start`.
    fn put_pieces(
        &mut self,
        extents: &ExtentMap<'_>,
        region_start: u64,
        range: Range<u32>,
        put: PutPieces<'_, Self>,
    ) -> Result<(), SendError> {
        let (mut begin, mut at) = (range.start, range.start);
        let mut pieces = Vec::new();
        let all: &[Extent<'_>] = extents.iter().as_slice();
        let first = all.partition_point(|extent| extent.end() <= range.start);
        for extent in all.iter().skip(first).take_while(|extent| extent.offset < range.end) {
            if pieces.len() >= PIECES_MAX {
                put(self, region_start + u64::from(begin), std::mem::take(&mut pieces))?;
                begin = at;
            }
            let part = extent.clip(range.start, range.end);
            push_hole(&mut pieces, u64::from(part.offset - at));
            self.writer.place(&part, &mut pieces)?;
            at = part.end();
        }
        push_hole(&mut pieces, u64::from(range.end - at));
        match pieces.is_empty() {
            true => Ok(()),
            false => put(self, region_start + u64::from(begin), pieces),
        }
    }

    /// Changes a known file. The caller has had a pin since it read the records.
    pub(super) fn change(
        &mut self,
        name: &[u8],
        before: &SideRecord,
        after: &SideRecord,
    ) -> Result<(), SendError> {
        let (was, is) = (before.inode()?, after.inode()?);
        let mut is_open = false;
        if has_content(&is) {
            self.put_changed_ranges(name, &was, &is, &mut is_open)?;
            if was.attrs.size_bytes != is.attrs.size_bytes {
                self.open(name, &mut is_open)?;
                self.put(&StreamRecord::Truncate(is.attrs.size_bytes))?;
            }
        }
        if is_open || attributes_differ(&was, &is) {
            self.open(name, &mut is_open)?;
            self.put(&StreamRecord::Attributes(attributes_of(&is)))?;
        }
        self.put_changed_xattrs(name, &is, &mut is_open)
    }

    fn open(&mut self, name: &[u8], is_open: &mut bool) -> Result<(), SendError> {
        if !std::mem::replace(is_open, true) {
            self.put(&StreamRecord::Open(name))?;
        }
        Ok(())
    }

    fn put_changed_ranges(
        &mut self,
        name: &[u8],
        was: &Inode<'_>,
        is: &Inode<'_>,
        is_open: &mut bool,
    ) -> Result<(), SendError> {
        // As in a diff: an inline file has its extents in its record, and all regions but the first are found
        // by their changed keys.
        let is_small = |inode: &Inode<'_>| matches!(inode.content, InodeContent::Small(_));
        let mut next = 0;
        if is_small(was) || is_small(is) {
            self.put_changed_region(name, was, is, 0, is_open)?;
            next = 1;
        }
        let end = region_range(is.ino, 0).1;
        // As in `put_regions`.
        self.writer.drop_pins()?;
        loop {
            let start = region_key(is.ino, next);
            let keys = self.trees.sides.changed(&start, Some(&end), REGIONS_AT_ONCE)?;
            for key in &keys {
                if let Key::Region(_, _, index) = Key::decode(key)? {
                    self.writer.pin(&self.trees.sides)?;
                    self.put_changed_region(name, was, is, index, is_open)?;
                    self.writer.unpin()?;
                    next = index + 1;
                }
            }
            if keys.len() < REGIONS_AT_ONCE {
                return Ok(());
            }
        }
    }

    fn put_changed_region(
        &mut self,
        name: &[u8],
        was: &Inode<'_>,
        is: &Inode<'_>,
        index: u64,
        is_open: &mut bool,
    ) -> Result<(), SendError> {
        let start = index * REGION;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        self.trees.sides.compare_region(was, is, index, &mut |range| match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        })?;
        if ranges.is_empty() {
            return Ok(());
        }
        let mut value = Vec::new();
        self.open(name, is_open)?;
        let extents = self.trees.sides.extents(DiffSide::After, is, index, &mut value)?;
        for range in ranges {
            let range = (range.start - start) as u32..(range.end - start) as u32;
            self.put_pieces(&extents, start, range, &mut |this, offset, pieces| {
                this.put(&StreamRecord::Write { offset, pieces })
            })?;
        }
        Ok(())
    }

    /// Sets all extended attributes of the current file, which has none.
    pub(super) fn put_xattrs(&mut self, inode: &Inode<'_>) -> Result<(), SendError> {
        if inode.attrs.flags & flag::XATTRS == 0 {
            return Ok(());
        }
        let (start, end) = xattr_range(inode.ino);
        let mut page = ScanPage::default();
        let range = KeyRange { start: &start, end: Some(&end) };
        // All at once: a file has no more of them than its list of names has room for.
        self.trees.sides.page_of(DiffSide::After, range, usize::MAX, usize::MAX, &mut page)?;
        for entry in page.iter() {
            let Key::Xattr(_, _, name) = Key::decode(entry.key)? else { return Err(WRONG_RANGE.into()) };
            if name != RECEIVED_XATTR {
                self.put(&StreamRecord::SetXattr { name, value: decode_xattr(entry.value)? })?;
            }
        }
        Ok(())
    }

    /// Sets and removes the extended attributes that have changed.
    pub(super) fn put_changed_xattrs(
        &mut self,
        name: &[u8],
        inode: &Inode<'_>,
        is_open: &mut bool,
    ) -> Result<(), SendError> {
        let (start, end) = xattr_range(inode.ino);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for key in self.trees.sides.changed(&start, Some(&end), usize::MAX)? {
            let Key::Xattr(_, _, xattr) = Key::decode(&key)? else { continue };
            if xattr == RECEIVED_XATTR {
                continue;
            }
            let was = self.trees.sides.get(DiffSide::Before, &key, &mut before)?;
            let is = self.trees.sides.get(DiffSide::After, &key, &mut after)?;
            // The receiver's writes have removed it, as those of the sender did before it was set again.
            let is_removed_by_writes = xattr == CAPABILITY && *is_open;
            if is && (!was || before != after || is_removed_by_writes) {
                self.open(name, is_open)?;
                self.put(&StreamRecord::SetXattr { name: xattr, value: decode_xattr(&after)? })?;
            } else if was && !is {
                self.open(name, is_open)?;
                self.put(&StreamRecord::RemoveXattr(xattr))?;
            }
        }
        Ok(())
    }
}
