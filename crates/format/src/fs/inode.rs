//! Inodes and directory entries. A directory entry (dentry) holds an inode or refers to one.
//!
//! ```text
//! dentry value, reference                  dentry, inode or orphan value, inode
//!  0   1  tag, 1                            0   1  tag, 2
//!  1   1  file type (mode >> 12)            1   *  inode number (varint)
//!  2   *  inode number (varint)             *   2  mode: type << 12 | permissions
//!                                           *   1  presence, a bit for each field in [ ]
//!                                           *   *  uid, gid (varints)
//!                                           *   *  size (varint), of a regular file only
//!                                           *   *  birth time
//!   a time: seconds (zigzag varint),       [*]  *  bit 0: modification time, seconds since birth
//!   nanoseconds (4); other times count     [*]  *  bit 1: change time, seconds since modification
//!   their seconds from another             [*]  *  bit 2: access time, seconds since birth
//!   (wrapping); a time that is absent      [*]  *  bit 3: links (varint); else 1, of a directory 2
//!   equals the one it counts from          [*]  *  bit 4: device number (varint), of a device only
//!                                          [*]  *  bit 5: flags (varint)
//!                                          [*]  *  bit 6: size - allocated bytes (zigzag varint, wrapping)
//!                                          [*]  *  flag 32: reserved bytes (varint), not zero
//!                                           *   *  content, to the end:
//!                                                    regular, bit 7 clear: extents
//!                                                    regular, bit 7 set: nothing, it is in regions
//!                                                    symbolic link: target, 1 to 4095 bytes
//!                                                    directory: parent's number (varint), own name
//!                                                    else nothing
//! ```

use super::extent::{ExtentReader, SMALL_FILE_BYTES_MAX};
use super::number::{self, number_from, number_in};
use super::{
    BAD_CONTENT, BAD_FLAGS, BAD_INO, BAD_LINKS, BAD_MODE, BAD_NANOS, BAD_TAG, FIELDS, VolumeId, key,
};
use crate::{Corrupt, Reader, varint};

const TAG_REFERENCE: u8 = 1;
const TAG_INODE: u8 = 2;

/// Longest target of a symbolic link, in bytes: a path with its final NUL fits 4096.
const TARGET_BYTES_MAX: usize = 4095;

mod bit {
    pub const MTIME: u8 = 1;
    pub const CTIME: u8 = 1 << 1;
    pub const ATIME: u8 = 1 << 2;
    pub const NLINK: u8 = 1 << 3;
    pub const RDEV: u8 = 1 << 4;
    pub const FLAGS: u8 = 1 << 5;
    pub const ALLOCATED: u8 = 1 << 6;
    pub const REGIONS: u8 = 1 << 7;
}

/// Flags of an inode.
pub mod flag {
    /// The file has, or once had, a hole: writes inside it may allocate.
    pub const SPARSE: u32 = 1;
    /// There may be extended attributes.
    pub const XATTRS: u32 = 1 << 1;
    /// One of them is an access ACL that says more than the mode.
    pub const ACL: u32 = 1 << 2;
    /// One of them is a default ACL.
    pub const DEFAULT_ACL: u32 = 1 << 3;
    /// One of them is `security.capability`.
    pub const CAPABILITY: u32 = 1 << 4;
    /// All flags that attributes have.
    pub const ALL: u32 = 31;
    /// Reserved bytes follow. Only records have this flag: it is there if the attributes have such bytes.
    pub(super) const RESERVED: u32 = 1 << 5;
}

/// A time as whole seconds since 1970 and nanoseconds past them. Seconds are negative before 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct InodeTime {
    /// Whole seconds since 1970-01-01T00:00:00Z.
    pub seconds: i64,
    /// Nanoseconds past them, below 1,000,000,000.
    pub nanos: u32,
}

impl InodeTime {
    pub(crate) fn encode(self, out: &mut Vec<u8>, since: i64) {
        varint::put_signed(out, self.seconds.wrapping_sub(since));
        out.extend_from_slice(&self.nanos.to_le_bytes());
    }

    pub(crate) fn decode(reader: &mut Reader<'_>, since: i64) -> Result<InodeTime, Corrupt> {
        let seconds = since.wrapping_add(reader.signed()?);
        let nanos = reader.u32()?;
        if nanos < 1_000_000_000 { Ok(InodeTime { seconds, nanos }) } else { Err(BAD_NANOS) }
    }
}

/// The type of a file. The numbers are those of `st_mode >> 12` and of `d_type`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// A named pipe.
    Fifo = 1,
    /// A character device.
    CharDevice = 2,
    /// A directory.
    Directory = 4,
    /// A block device.
    BlockDevice = 6,
    /// A regular file.
    Regular = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A socket.
    Socket = 12,
}

impl FileKind {
    /// The type with this number, `None` if there is none.
    #[must_use]
    pub fn new(raw: u8) -> Option<FileKind> {
        Some(match raw {
            1 => FileKind::Fifo,
            2 => FileKind::CharDevice,
            4 => FileKind::Directory,
            6 => FileKind::BlockDevice,
            8 => FileKind::Regular,
            10 => FileKind::Symlink,
            12 => FileKind::Socket,
            _ => return None,
        })
    }

    /// The link count of a new inode: 2 for a directory (its name and its own `.`), else 1.
    #[must_use]
    pub fn first_links(self) -> u32 {
        if self == FileKind::Directory { 2 } else { 1 }
    }

    fn is_device(self) -> bool {
        matches!(self, FileKind::CharDevice | FileKind::BlockDevice)
    }
}

/// The attributes of a file: everything in its inode but number and content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attrs {
    /// Type of the file.
    pub kind: FileKind,
    /// Permissions with setuid, setgid and sticky bits: 12 bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names. A directory has 2 and one more for each subdirectory; an orphan has 0.
    pub links: u32,
    /// Length of a regular file or of the target of a symbolic link, in bytes; else 0.
    pub size_bytes: u64,
    /// Bytes of a regular file that are not holes, reserved ones among them.
    pub allocated_bytes: u64,
    /// Bytes of a regular file that are reserved: zeros for which room is kept. They may lie past the end.
    pub reserved_bytes: u64,
    /// Device number of a device file, else 0.
    pub rdev: u64,
    /// Birth time.
    pub btime: InodeTime,
    /// Time of the last change of content.
    pub mtime: InodeTime,
    /// Time of the last change of content or attributes.
    pub ctime: InodeTime,
    /// Time of the last read of content, to the precision of relatime.
    pub atime: InodeTime,
    /// See [`flag`].
    pub flags: u32,
}

/// The content of a file.
#[derive(Clone, Copy, Debug)]
pub enum InodeContent<'a> {
    /// Nothing: pipes, sockets, devices.
    None,
    /// A regular file of at most [`SMALL_FILE_BYTES_MAX`]: extents in the inode.
    Small(ExtentReader<'a>),
    /// A regular file in regions.
    Regions,
    /// A symbolic link's target.
    Symlink(&'a [u8]),
    /// A directory's parent, by inode number as stored, and its name there. The root of the first volume is
    /// its own parent and has no name. The root of another volume has its parent in the volume of its door.
    Directory(u64, &'a [u8]),
}

/// An inode.
#[derive(Clone, Copy, Debug)]
pub struct Inode<'a> {
    /// Inode number, never reused: local if it comes from a record, until `in_volume`.
    pub ino: u64,
    /// Attributes of the file.
    pub attrs: Attrs,
    /// Content of the file.
    pub content: InodeContent<'a>,
}

/// The value of a name in a directory.
#[derive(Clone, Copy, Debug)]
pub enum Dentry<'a> {
    /// A reference to an inode with a key of its own: file type, inode number. It is stored, until
    /// `in_volume`. A reference to a directory in another volume is a door.
    Reference(FileKind, u64),
    /// The inode itself.
    Embedded(Inode<'a>),
}

impl<'a> Dentry<'a> {
    /// Writes a reference to an inode, by its number as the directory stores it.
    pub fn encode_reference(out: &mut Vec<u8>, kind: FileKind, stored: u64) {
        out.push(TAG_REFERENCE);
        out.push(kind as u8);
        varint::put(out, stored);
    }

    /// The same with the number in place of the stored or local one. `volume` has the record.
    #[must_use]
    pub fn in_volume(self, volume: VolumeId) -> Dentry<'a> {
        match self {
            Dentry::Reference(kind, stored) => Dentry::Reference(kind, number_from(volume, stored)),
            Dentry::Embedded(inode) => Dentry::Embedded(inode.in_volume(volume)),
        }
    }

    /// Decodes the value of a name.
    ///
    /// # Errors
    /// Codes 401 to 416, if the bytes are no dentry.
    pub fn decode(bytes: &'a [u8]) -> Result<Dentry<'a>, Corrupt> {
        if bytes.first() != Some(&TAG_REFERENCE) {
            // An inode is embedded only while it has exactly this name; directories never are.
            let inode = Inode::decode(bytes)?;
            return match inode.attrs {
                Attrs { kind: FileKind::Directory, .. } => Err(BAD_CONTENT),
                Attrs { links: 1, .. } => Ok(Dentry::Embedded(inode)),
                _ => Err(BAD_LINKS),
            };
        }
        let mut reader = Reader::new(bytes, &FIELDS);
        reader.u8()?;
        let kind = FileKind::new(reader.u8()?).ok_or(BAD_MODE)?;
        let ino = reader.varint()?;
        reader.end()?;
        // Only a directory can be in another volume.
        let ino = if kind == FileKind::Directory { number::stored(ino)? } else { number::local(ino)? };
        Ok(Dentry::Reference(kind, ino))
    }

    /// The inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        match self {
            Dentry::Reference(_, ino) => *ino,
            Dentry::Embedded(inode) => inode.ino,
        }
    }

    /// The file type.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match self {
            Dentry::Reference(kind, _) => *kind,
            Dentry::Embedded(inode) => inode.attrs.kind,
        }
    }
}

impl<'a> Inode<'a> {
    /// The same with the inode number in place of the local one. `volume` has the record. A directory's
    /// parent stays as it is stored.
    #[must_use]
    pub fn in_volume(self, volume: VolumeId) -> Inode<'a> {
        Inode { ino: number_in(volume, self.ino), ..self }
    }

    /// Appends the inode with its content.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_head(out);
        match self.content {
            InodeContent::None | InodeContent::Regions => {}
            InodeContent::Small(extents) => out.extend_from_slice(extents.raw()),
            InodeContent::Symlink(target) => out.extend_from_slice(target),
            InodeContent::Directory(parent, name) => {
                varint::put(out, parent);
                out.extend_from_slice(name);
            }
        }
    }

    /// Appends the inode without its content. A caller that has changed the extents appends them after it.
    ///
    /// # Panics
    /// If the number is zero, or permissions or flags have bits without a meaning.
    pub fn encode_head(&self, out: &mut Vec<u8>) {
        let a = &self.attrs;
        assert!(
            self.ino != 0 && a.permissions < 1 << 12 && a.flags & !flag::ALL == 0,
            "an inode is encoded whole"
        );
        out.push(TAG_INODE);
        varint::put(out, number::local_of(self.ino));
        out.extend_from_slice(&((a.kind as u16) << 12 | a.permissions).to_le_bytes());
        // Which optional fields there are is known only when they are written, so their bits are filled in
        // last.
        let presence_at = out.len();
        out.push(0);
        varint::put(out, u64::from(a.uid));
        varint::put(out, u64::from(a.gid));
        if a.kind == FileKind::Regular {
            varint::put(out, a.size_bytes);
        }
        a.btime.encode(out, 0);
        // A time that equals the one it counts from is left out: a file that was only created has one time.
        let mut presence = 0;
        for (bit, time, base) in
            [(bit::MTIME, a.mtime, a.btime), (bit::CTIME, a.ctime, a.mtime), (bit::ATIME, a.atime, a.btime)]
        {
            if time != base {
                presence |= bit;
                time.encode(out, base.seconds);
            }
        }
        if a.links != a.kind.first_links() {
            presence |= bit::NLINK;
            varint::put(out, u64::from(a.links));
        }
        if a.kind.is_device() {
            presence |= bit::RDEV;
            varint::put(out, a.rdev);
        }
        let flags = if a.reserved_bytes > 0 { a.flags | flag::RESERVED } else { a.flags };
        if flags != 0 {
            presence |= bit::FLAGS;
            varint::put(out, u64::from(flags));
        }
        if a.kind == FileKind::Regular && a.allocated_bytes != a.size_bytes {
            presence |= bit::ALLOCATED;
            varint::put_signed(out, a.size_bytes.wrapping_sub(a.allocated_bytes).cast_signed());
        }
        if a.reserved_bytes > 0 {
            varint::put(out, a.reserved_bytes);
        }
        if matches!(self.content, InodeContent::Regions) {
            presence |= bit::REGIONS;
        }
        *out.get_mut(presence_at).expect("pushed above") = presence;
    }

    /// Decodes an inode. Extents of a small file are decoded later, by [`ExtentReader`].
    ///
    /// # Errors
    /// Codes 401 to 416, if the bytes are no inode.
    pub fn decode(bytes: &'a [u8]) -> Result<Inode<'a>, Corrupt> {
        let mut reader = Reader::new(bytes, &FIELDS);
        if reader.u8()? != TAG_INODE {
            return Err(BAD_TAG);
        }
        let ino = number::local(reader.varint()?)?;
        let mode = reader.u16()?;
        let kind = FileKind::new((mode >> 12) as u8).ok_or(BAD_MODE)?;
        let presence = reader.u8()?;
        let has = |bit: u8| presence & bit != 0;
        let regular = kind == FileKind::Regular;
        // Fields of one file type only must not appear in another: each inode has one encoding.
        if (has(bit::REGIONS | bit::ALLOCATED) && !regular) || has(bit::RDEV) != kind.is_device() {
            return Err(BAD_FLAGS);
        }
        let uid = reader.varint32()?;
        let gid = reader.varint32()?;
        let mut size_bytes = if regular { reader.varint()? } else { 0 };
        let btime = InodeTime::decode(&mut reader, 0)?;
        let mut time = |bit: u8, base: InodeTime| {
            if has(bit) { InodeTime::decode(&mut reader, base.seconds) } else { Ok(base) }
        };
        let mtime = time(bit::MTIME, btime)?;
        let ctime = time(bit::CTIME, mtime)?;
        let atime = time(bit::ATIME, btime)?;
        let links = if has(bit::NLINK) {
            u32::try_from(reader.varint()?).map_err(|_| BAD_LINKS)?
        } else {
            kind.first_links()
        };
        let rdev = if has(bit::RDEV) { reader.varint()? } else { 0 };
        let flags = if has(bit::FLAGS) { reader.varint32()? } else { 0 };
        let has_reserved = flags & flag::RESERVED != 0;
        let flags = flags & !flag::RESERVED;
        if flags & !flag::ALL != 0 || (has_reserved && !regular) {
            return Err(BAD_FLAGS);
        }
        let holes = if has(bit::ALLOCATED) { reader.signed()? } else { 0 };
        let allocated_bytes = size_bytes.wrapping_sub(holes.cast_unsigned());
        let reserved_bytes = if has_reserved { reader.varint()? } else { 0 };
        if has_reserved && reserved_bytes == 0 {
            return Err(BAD_FLAGS);
        }
        let content = match kind {
            FileKind::Regular if !has(bit::REGIONS) => {
                if size_bytes > u64::from(SMALL_FILE_BYTES_MAX) {
                    return Err(BAD_CONTENT);
                }
                InodeContent::Small(ExtentReader::new(reader.take_rest(), SMALL_FILE_BYTES_MAX, false))
            }
            FileKind::Regular => InodeContent::Regions,
            FileKind::Symlink => {
                let target = reader.take_rest();
                if !(1..=TARGET_BYTES_MAX).contains(&target.len()) || target.contains(&0) {
                    return Err(BAD_CONTENT);
                }
                size_bytes = target.len() as u64;
                InodeContent::Symlink(target)
            }
            FileKind::Directory => {
                let parent = reader.varint()?;
                let name = reader.take_rest();
                match (parent, name) {
                    (p, _) if number::stored(p).is_err() => return Err(BAD_INO),
                    (p, []) if p == ino => {}
                    (_, name) => _ = key::dentry_name(name)?,
                }
                InodeContent::Directory(parent, name)
            }
            _ => InodeContent::None,
        };
        if !matches!(content, InodeContent::Small(_) | InodeContent::Symlink(_) | InodeContent::Directory(..))
        {
            reader.end()?;
        }
        let permissions = mode & 0xfff;
        let attrs = Attrs {
            kind,
            permissions,
            uid,
            gid,
            links,
            size_bytes,
            allocated_bytes: if regular { allocated_bytes } else { 0 },
            reserved_bytes,
            rdev,
            btime,
            mtime,
            ctime,
            atime,
            flags,
        };
        Ok(Inode { ino, attrs, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use warpfire_units::{SegmentId, SlicePtr};

    fn plain() -> Attrs {
        let born = InodeTime { seconds: 1_700_000_000, nanos: 5 };
        Attrs {
            kind: FileKind::Regular,
            permissions: 0o644,
            uid: 0,
            gid: 0,
            links: 1,
            size_bytes: 100,
            allocated_bytes: 100,
            reserved_bytes: 0,
            rdev: 0,
            btime: born,
            mtime: born,
            ctime: born,
            atime: born,
            flags: 0,
        }
    }

    #[test]
    fn golden_bytes_of_a_plain_file_stay_within_thirty_five() {
        let mut out = Vec::new();
        let head = Inode {
            ino: 1_000_000,
            attrs: plain(),
            content: InodeContent::Small(ExtentReader::new(&[], 0, false)),
        };
        head.encode_head(&mut out);
        let slice = SlicePtr { segment: SegmentId::FIRST, offset_bytes: 20_000_000, len_bytes: 100 };
        let map: super::super::ExtentMap<'_> = [super::super::Extent::slice(0, slice)].into_iter().collect();
        map.encode(&mut out);
        let golden = [
            2, 0xc0, 0x84, 0x3d, 0xa4, 0x81, 0, 0, 0, 100, 0x80, 0xc4, 0x9f, 0xd5, 0x0c, 5, 0, 0, 0, //
            0, 0x92, 0x03, 1, 0x80, 0xda, 0xc4, 0x09,
        ];
        assert_eq!(out, golden);
        assert!(out.len() <= 35);
        let back = Inode::decode(&out).unwrap();
        assert_eq!((back.ino, back.attrs), (1_000_000, plain()));
    }

    #[test]
    fn a_directory_inside_its_dentry_is_refused() {
        let mut out = Vec::new();
        let attrs =
            Attrs { kind: FileKind::Directory, links: 2, size_bytes: 0, allocated_bytes: 0, ..plain() };
        Inode { ino: 4, attrs, content: InodeContent::Directory(1, b"d") }.encode(&mut out);
        assert!(Inode::decode(&out).is_ok());
        assert_eq!(Dentry::decode(&out).unwrap_err(), BAD_CONTENT);
    }

    fn stamps() -> impl Strategy<Value = InodeTime> {
        (any::<i64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanos)| InodeTime { seconds, nanos })
    }

    proptest! {
        #[test]
        fn inodes_come_back(
            ino in 1..=number::LOCAL_INO_MAX, perm in 0u16..4096, owner: (u32, u32), links: u32, size in 0u64..=65536, allocated: u64,
            reserved: u64,
            times in (stamps(), stamps(), stamps(), stamps()), flags in 0..=flag::ALL, rdev: u64, pick in 0..5,
        ) {
            let (kind, content) = match pick {
                0 => (FileKind::Regular, InodeContent::Small(ExtentReader::new(&[], 0, false))),
                1 => (FileKind::Regular, InodeContent::Regions),
                2 => (FileKind::Symlink, InodeContent::Symlink(b"target")),
                3 => (FileKind::Directory, InodeContent::Directory(9, b"name")),
                _ => (FileKind::BlockDevice, InodeContent::None),
            };
            let regular = kind == FileKind::Regular;
            let attrs = Attrs {
                kind, permissions: perm, uid: owner.0, gid: owner.1, links,
                size_bytes: match kind { FileKind::Regular => size, FileKind::Symlink => 6, _ => 0 },
                allocated_bytes: if regular { allocated } else { 0 },
                reserved_bytes: if regular { reserved & allocated } else { 0 },
                rdev: if kind == FileKind::BlockDevice { rdev } else { 0 },
                btime: times.0, mtime: times.1, ctime: times.2, atime: times.3, flags,
            };
            let mut out = Vec::new();
            Inode { ino, attrs, content }.encode(&mut out);
            let back = Inode::decode(&out).unwrap();
            prop_assert_eq!(back.ino, ino);
            prop_assert_eq!(back.attrs, attrs);
            let mut encoded_again = Vec::new();
            back.encode(&mut encoded_again);
            prop_assert_eq!(out, encoded_again);
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let mut tagged = vec![2, 1];
            tagged.extend_from_slice(&bytes);
            for b in [&bytes, &tagged] {
                if let Ok(Inode { content: InodeContent::Small(extents), .. }) = Inode::decode(b) {
                    let _ = extents.to_map();
                }
                let _ = Dentry::decode(b);
            }
        }
    }
}
