//! Edits: operands of inodes, changes that are merged without reading the inode.
//!
//! ```text
//!  0   1  tag, 3
//!  1   *  presence (varint), a bit for each field; fields follow in the order of their bits
//!  bit 0   2  permissions are                       bit  8  *  links grow by (zigzag varint)
//!      1   *  owner and group are (varints)              9  *  flags are (varint)
//!      2   *  size is (varint), size - allocated        10  *  parent is (varint), 1 byte length, name
//!             bytes is (zigzag varint, wrapping)        11  -  change time is the time of bit 4
//!      3   *  access time is                            12  -  change time is at least the time of bit 6
//!      4   *  modification time is                      13  *  extents over a small file's, to the end
//!      5   *  change time is
//!      6   *  modification time is at least
//!      7   *  change time is at least                  14  *  reserved bytes are (varint), before bit 13
//! ```
//! Times are encoded like an inode's birth time. "Is" sets the field; "at least" raises it if it is lower,
//! after "is" has set it.

use super::extent::{ExtentMap, ExtentReader, SMALL_FILE_BYTES_MAX};
use super::inode::{Attrs, InodeTime, flag};
use super::number;
use super::{BAD_FLAGS, BAD_LINKS, BAD_MODE, BAD_TAG, FIELDS, key};
use crate::{Corrupt, Reader, varint};

const TAG: u8 = 3;

mod bit {
    pub const PERMISSIONS: u64 = 1;
    pub const OWNER: u64 = 1 << 1;
    pub const SIZE: u64 = 1 << 2;
    pub const ATIME: u64 = 1 << 3;
    pub const MTIME: u64 = 1 << 4;
    pub const CTIME: u64 = 1 << 5;
    pub const MTIME_MAX: u64 = 1 << 6;
    pub const CTIME_MAX: u64 = 1 << 7;
    pub const LINKS: u64 = 1 << 8;
    pub const FLAGS: u64 = 1 << 9;
    pub const PARENT: u64 = 1 << 10;
    pub const CTIME_SAME: u64 = 1 << 11;
    pub const CTIME_MAX_SAME: u64 = 1 << 12;
    pub const EXTENTS: u64 = 1 << 13;
    pub const RESERVED: u64 = 1 << 14;
    pub const ALL: u64 = (1 << 15) - 1;
}

/// Changes to an inode. An absent field changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InodeEdit<'a> {
    /// New permissions.
    pub permissions: Option<u16>,
    /// New owner and group.
    pub owner: Option<(u32, u32)>,
    /// New size and allocated bytes.
    pub size: Option<(u64, u64)>,
    /// New number of reserved bytes.
    pub reserved: Option<u64>,
    /// New access time.
    pub atime: Option<InodeTime>,
    /// New modification time.
    pub mtime: Option<InodeTime>,
    /// New change time.
    pub ctime: Option<InodeTime>,
    /// Earliest modification time after the edit.
    pub mtime_max: Option<InodeTime>,
    /// Earliest change time after the edit.
    pub ctime_max: Option<InodeTime>,
    /// Number to add to the links.
    pub links_add: i64,
    /// New flags.
    pub flags: Option<u32>,
    /// New parent of a directory, by its number as stored, and its name there.
    pub parent: Option<(u64, &'a [u8])>,
    /// Extents that replace what they cover of a small file.
    pub extents: ExtentMap<'a>,
}

/// Composes the changes of one time: its "is" and "at least" in an edit, then those of a later edit.
fn then(
    (set, max): (Option<InodeTime>, Option<InodeTime>),
    (later_set, later_max): (Option<InodeTime>, Option<InodeTime>),
) -> (Option<InodeTime>, Option<InodeTime>) {
    // A later "is" replaces everything before it. Otherwise the higher of the two bounds holds, and a bound
    // on a known time is applied at once.
    let (set, max) = if later_set.is_some() { (later_set, later_max) } else { (set, max.max(later_max)) };
    match set {
        Some(_) => (set.max(max), None),
        None => (None, max),
    }
}

impl<'a> InodeEdit<'a> {
    /// Composes two edits: afterwards this edit has the effect of itself and then of `later`.
    ///
    /// # Errors
    /// Code 416, if the sum of link changes leaves its range.
    pub fn compose(&mut self, later: InodeEdit<'a>) -> Result<(), Corrupt> {
        self.permissions = later.permissions.or(self.permissions);
        self.owner = later.owner.or(self.owner);
        self.size = later.size.or(self.size);
        self.reserved = later.reserved.or(self.reserved);
        self.atime = later.atime.or(self.atime);
        (self.mtime, self.mtime_max) = then((self.mtime, self.mtime_max), (later.mtime, later.mtime_max));
        (self.ctime, self.ctime_max) = then((self.ctime, self.ctime_max), (later.ctime, later.ctime_max));
        self.links_add = self.links_add.checked_add(later.links_add).ok_or(BAD_LINKS)?;
        self.flags = later.flags.or(self.flags);
        self.parent = later.parent.or(self.parent);
        for extent in later.extents.iter() {
            self.extents.overlay(*extent);
        }
        Ok(())
    }

    /// Applies the edit to the attributes. The caller applies parent and extents.
    ///
    /// # Errors
    /// Code 416, if the link count leaves its range.
    pub fn apply(&self, attrs: &mut Attrs) -> Result<(), Corrupt> {
        attrs.permissions = self.permissions.unwrap_or(attrs.permissions);
        (attrs.uid, attrs.gid) = self.owner.unwrap_or((attrs.uid, attrs.gid));
        (attrs.size_bytes, attrs.allocated_bytes) =
            self.size.unwrap_or((attrs.size_bytes, attrs.allocated_bytes));
        attrs.reserved_bytes = self.reserved.unwrap_or(attrs.reserved_bytes);
        attrs.atime = self.atime.unwrap_or(attrs.atime);
        attrs.mtime = self.mtime.unwrap_or(attrs.mtime);
        attrs.ctime = self.ctime.unwrap_or(attrs.ctime);
        attrs.mtime = self.mtime_max.map_or(attrs.mtime, |t| t.max(attrs.mtime));
        attrs.ctime = self.ctime_max.map_or(attrs.ctime, |t| t.max(attrs.ctime));
        let links = i64::from(attrs.links).checked_add(self.links_add).ok_or(BAD_LINKS)?;
        attrs.links = u32::try_from(links).map_err(|_| BAD_LINKS)?;
        attrs.flags = self.flags.unwrap_or(attrs.flags);
        Ok(())
    }

    /// Appends the operand.
    pub fn encode(&self, out: &mut Vec<u8>) {
        // Most writes set both times to one moment; a bit without a field says so in place of twelve bytes.
        let ctime_same = self.ctime.is_some() && self.ctime == self.mtime;
        let ctime_max_same = self.ctime_max.is_some() && self.ctime_max == self.mtime_max;
        let presence = [
            (bit::PERMISSIONS, self.permissions.is_some()),
            (bit::OWNER, self.owner.is_some()),
            (bit::SIZE, self.size.is_some()),
            (bit::ATIME, self.atime.is_some()),
            (bit::MTIME, self.mtime.is_some()),
            (bit::CTIME, self.ctime.is_some() && !ctime_same),
            (bit::MTIME_MAX, self.mtime_max.is_some()),
            (bit::CTIME_MAX, self.ctime_max.is_some() && !ctime_max_same),
            (bit::LINKS, self.links_add != 0),
            (bit::FLAGS, self.flags.is_some()),
            (bit::PARENT, self.parent.is_some()),
            (bit::CTIME_SAME, ctime_same),
            (bit::CTIME_MAX_SAME, ctime_max_same),
            (bit::EXTENTS, !self.extents.is_empty()),
            (bit::RESERVED, self.reserved.is_some()),
        ];
        let presence = presence.iter().filter(|(_, there)| *there).fold(0, |all, (bit, _)| all | bit);
        out.push(TAG);
        varint::put(out, presence);
        if let Some(p) = self.permissions {
            out.extend_from_slice(&p.to_le_bytes());
        }
        if let Some((uid, gid)) = self.owner {
            varint::put(out, u64::from(uid));
            varint::put(out, u64::from(gid));
        }
        if let Some((size, allocated)) = self.size {
            varint::put(out, size);
            varint::put_signed(out, size.wrapping_sub(allocated).cast_signed());
        }
        let times = [
            self.atime,
            self.mtime,
            self.ctime.filter(|_| !ctime_same),
            self.mtime_max,
            self.ctime_max.filter(|_| !ctime_max_same),
        ];
        for time in times.into_iter().flatten() {
            time.encode(out, 0);
        }
        if self.links_add != 0 {
            varint::put_signed(out, self.links_add);
        }
        if let Some(flags) = self.flags {
            varint::put(out, u64::from(flags));
        }
        if let Some((parent, name)) = self.parent {
            varint::put(out, parent);
            out.push(u8::try_from(name.len()).expect("names have at most 255 bytes"));
            out.extend_from_slice(name);
        }
        if let Some(reserved) = self.reserved {
            varint::put(out, reserved);
        }
        self.extents.encode(out);
    }

    /// Decodes an operand.
    ///
    /// # Errors
    /// Codes 401 to 416, if the bytes are no operand of an inode.
    pub fn decode(bytes: &'a [u8]) -> Result<InodeEdit<'a>, Corrupt> {
        let (mut edit, extents) = Self::decode_head(bytes)?;
        if let Some(extents) = extents {
            edit.extents = extents.to_map()?;
        }
        Ok(edit)
    }

    /// Decodes an operand without its extents, which are returned as a reader.
    pub(super) fn decode_head(bytes: &'a [u8]) -> Result<(InodeEdit<'a>, Option<ExtentReader<'a>>), Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != TAG {
            return Err(BAD_TAG);
        }
        let presence = reader.varint()?;
        let has = |bit: u64| presence & bit != 0;
        // Each edit has one encoding: a change time stands in the operand once or is the modification time.
        let twice =
            (has(bit::CTIME) && has(bit::CTIME_SAME)) || (has(bit::CTIME_MAX) && has(bit::CTIME_MAX_SAME));
        let same_as_nothing =
            (has(bit::CTIME_SAME) && !has(bit::MTIME)) || (has(bit::CTIME_MAX_SAME) && !has(bit::MTIME_MAX));
        if presence & !bit::ALL != 0 || twice || same_as_nothing {
            return Err(BAD_FLAGS);
        }
        let mut edit = InodeEdit::default();
        if has(bit::PERMISSIONS) {
            edit.permissions = Some(Some(reader.u16()?).filter(|p| p >> 12 == 0).ok_or(BAD_MODE)?);
        }
        if has(bit::OWNER) {
            edit.owner = Some((reader.varint32()?, reader.varint32()?));
        }
        if has(bit::SIZE) {
            let size = reader.varint()?;
            edit.size = Some((size, size.wrapping_sub(reader.signed()?.cast_unsigned())));
        }
        let mut time = |bit: u64| has(bit).then(|| InodeTime::decode(&mut reader, 0)).transpose();
        edit.atime = time(bit::ATIME)?;
        edit.mtime = time(bit::MTIME)?;
        edit.ctime = if has(bit::CTIME_SAME) { edit.mtime } else { time(bit::CTIME)? };
        edit.mtime_max = time(bit::MTIME_MAX)?;
        edit.ctime_max = if has(bit::CTIME_MAX_SAME) { edit.mtime_max } else { time(bit::CTIME_MAX)? };
        if has(bit::LINKS) {
            edit.links_add = reader.signed()?;
        }
        if has(bit::FLAGS) {
            edit.flags = Some(Some(reader.varint32()?).filter(|f| f & !flag::ALL == 0).ok_or(BAD_FLAGS)?);
        }
        if has(bit::PARENT) {
            let parent = number::stored(reader.varint()?)?;
            let len = usize::from(reader.u8()?);
            edit.parent = Some((parent, key::dentry_name(reader.bytes(len)?)?));
        }
        if has(bit::RESERVED) {
            edit.reserved = Some(reader.varint()?);
        }
        let extents =
            has(bit::EXTENTS).then(|| ExtentReader::new(reader.take_rest(), SMALL_FILE_BYTES_MAX, true));
        reader.end()?;
        Ok((edit, extents))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Extent;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes_of_a_small_write() {
        let mut out = Vec::new();
        let now = Some(InodeTime { seconds: 1, nanos: 2 });
        let extents = [Extent::bytes(3, b"abc")].into_iter().collect();
        let edit = InodeEdit { size: Some((6, 6)), mtime: now, ctime: now, extents, ..InodeEdit::default() };
        edit.encode(&mut out);
        assert_eq!(out, [3, 0x94, 0x50, 6, 0, 2, 2, 0, 0, 0, 3, 13, b'a', b'b', b'c']);
        let back = InodeEdit::decode(&out);
        assert_eq!(back.unwrap(), edit);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>, presence in 0u64..1 << 15) {
            let mut tagged = vec![TAG];
            varint::put(&mut tagged, presence);
            tagged.extend_from_slice(&bytes);
            for b in [&bytes, &tagged] {
                let mut out = Vec::new();
                if let Ok(edit) = InodeEdit::decode(b) {
                    edit.encode(&mut out);
                    let back = InodeEdit::decode(&out);
                    prop_assert_eq!(back.unwrap(), edit);
                }
            }
        }
    }
}
