//! Records: the steps by which the receiver makes a tree.
//!
//! A receiver is in a *current directory* and has a *current file*. Both are the root of the tree at first.
//!
//! ```text
//! record: kind (1), length of the rest (varint), the rest
//!
//!  1 up          levels (varint), not zero: to the parent, so many times
//!  2 enter       name: into a directory of the current one
//!  3 remove      name
//!  4 stash       keeps (1: 0 or 1), number (varint), name: takes a file out of the tree under a number, for
//!                a later place; with keeps, the name stays too
//!  5 place       is last (1: 0 or 1), number (varint), name: gives the file with this number a name; after
//!                the last place the number is free
//!  6 make        file type (1), name, number (varint, 0: none), attributes, and the content:
//!                regular file: pieces from its beginning to its end or beyond 1 MiB
//!                symbolic link: target, 1 to 4095 bytes, to the end
//!                device: number of the device (varint); else nothing
//!  7 open        name; empty: the current directory itself
//!  8 write       offset (varint), pieces that follow each other
//!  9 truncate    length (varint)
//! 10 attributes  attributes
//! 11 set xattr   name, value to the end
//! 12 remove xattr   name
//!
//! name         length (varint), bytes; the last field of a record has no length
//! attributes   permissions (2), uid, gid (varints), modification and access time (zigzag varint, u32)
//! piece        length << 2 | source (varint), then by source
//!                1 bytes: the bytes        2 data: data position (varint)        3 hole
//! ```
//!
//! Make, open and enter change the current file or directory; 8 to 12 are about the current file.

use super::{BAD_RECORD, RECORD_FIELDS};
use crate::fs::{FileKind, InodeTime, XATTR_BYTES_MAX, file_name, xattr_name};
use crate::{Corrupt, Reader, varint};

/// Most bytes that a piece takes from data.
pub const RECORD_DATA_BYTES_MAX: u64 = 1 << 20;

/// Largest file: offsets of programs are signed 64-bit numbers.
const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();

/// Longest target of a symbolic link.
const TARGET_BYTES_MAX: usize = 4095;

/// Attributes of a file that a receiver sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileAttributes {
    /// Permissions with setuid, setgid and sticky bits: 12 bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of content.
    pub mtime: InodeTime,
    /// Time of the last access.
    pub atime: InodeTime,
}

/// The source of the bytes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PieceSource<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// Bytes of the stream, from this data position on.
    Data(u64),
    /// Zeros that take no space.
    Hole,
}

/// A run of bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// Length in bytes, not zero.
    pub len_bytes: u64,
    /// The bytes.
    pub source: PieceSource<'a>,
}

/// A new file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MadeFile<'a> {
    /// Type of the file.
    pub kind: FileKind,
    /// Its name in the current directory.
    pub name: &'a [u8],
    /// The number under which it is also stashed, for later names; 0 for none.
    pub number: u64,
    /// Its attributes.
    pub attributes: FileAttributes,
    /// Number of a device, else 0.
    pub rdev: u64,
    /// Target of a symbolic link, else empty.
    pub target: &'a [u8],
    /// Content of a regular file from its beginning on.
    pub pieces: Vec<Piece<'a>>,
}

/// A step of the receiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamRecord<'a> {
    /// Go to the parent, so many times.
    Up(u64),
    /// Go into a directory.
    Enter(&'a [u8]),
    /// Remove a name; of a directory that is empty by now.
    Remove(&'a [u8]),
    /// Keep a file under a number.
    Stash {
        /// Its name in the current directory.
        name: &'a [u8],
        /// The number.
        number: u64,
        /// Whether the name stays.
        keeps: bool,
    },
    /// Give a stashed file a name.
    Place {
        /// The name in the current directory.
        name: &'a [u8],
        /// Its number.
        number: u64,
        /// Whether the number is free then.
        is_last: bool,
    },
    /// Make a file or a directory.
    Make(MadeFile<'a>),
    /// Make a file of the current directory the current file; with an empty name, the directory itself.
    Open(&'a [u8]),
    /// Write pieces.
    Write {
        /// Offset of the first piece.
        offset: u64,
        /// The pieces, which follow each other.
        pieces: Vec<Piece<'a>>,
    },
    /// Set the length.
    Truncate(u64),
    /// Set the attributes.
    Attributes(FileAttributes),
    /// Set an extended attribute.
    SetXattr {
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// Remove an extended attribute.
    RemoveXattr(&'a [u8]),
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    varint::put(out, name.len() as u64);
    out.extend_from_slice(name);
}

fn take_name<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Corrupt> {
    let len = reader.varint32()? as usize;
    good_name(reader.bytes(len)?)
}

fn good_name(name: &[u8]) -> Result<&[u8], Corrupt> {
    file_name(name).map_err(|_| BAD_RECORD)
}

fn good_xattr_name(name: &[u8]) -> Result<&[u8], Corrupt> {
    xattr_name(name).map_err(|_| BAD_RECORD)
}

fn take_flag(reader: &mut Reader<'_>) -> Result<bool, Corrupt> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(BAD_RECORD),
    }
}

fn take_number(reader: &mut Reader<'_>) -> Result<u64, Corrupt> {
    Some(reader.varint()?).filter(|number| *number != 0).ok_or(BAD_RECORD)
}

impl FileAttributes {
    fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.permissions < 1 << 12, "permissions hold no type bits");
        out.extend_from_slice(&self.permissions.to_le_bytes());
        varint::put(out, u64::from(self.uid));
        varint::put(out, u64::from(self.gid));
        self.mtime.encode(out, 0);
        self.atime.encode(out, 0);
    }

    fn take(reader: &mut Reader<'_>) -> Result<FileAttributes, Corrupt> {
        let attributes = FileAttributes {
            permissions: reader.u16()?,
            uid: reader.varint32()?,
            gid: reader.varint32()?,
            mtime: InodeTime::decode(reader, 0).map_err(|_| BAD_RECORD)?,
            atime: InodeTime::decode(reader, 0).map_err(|_| BAD_RECORD)?,
        };
        if attributes.permissions < 1 << 12 { Ok(attributes) } else { Err(BAD_RECORD) }
    }
}

impl<'a> Piece<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        let word = self.len_bytes << 2;
        match self.source {
            PieceSource::Bytes(bytes) => {
                debug_assert_eq!(bytes.len() as u64, self.len_bytes, "a piece is as long as its bytes");
                varint::put(out, word | 1);
                out.extend_from_slice(bytes);
            }
            PieceSource::Data(position) => {
                debug_assert!(self.len_bytes <= RECORD_DATA_BYTES_MAX);
                varint::put(out, word | 2);
                varint::put(out, position);
            }
            PieceSource::Hole => varint::put(out, word | 3),
        }
    }

    fn take(reader: &mut Reader<'a>) -> Result<Piece<'a>, Corrupt> {
        let word = reader.varint()?;
        let len_bytes = word >> 2;
        let source = match word & 3 {
            1 => PieceSource::Bytes(reader.bytes(usize::try_from(len_bytes).map_err(|_| BAD_RECORD)?)?),
            2 => {
                let position = reader.varint()?;
                let end = position.checked_add(len_bytes).ok_or(BAD_RECORD)?;
                if len_bytes > RECORD_DATA_BYTES_MAX || end > FILE_BYTES_MAX {
                    return Err(BAD_RECORD);
                }
                PieceSource::Data(position)
            }
            3 => PieceSource::Hole,
            _ => return Err(BAD_RECORD),
        };
        if len_bytes == 0 { Err(BAD_RECORD) } else { Ok(Piece { len_bytes, source }) }
    }
}

/// Takes pieces up to the end. They begin at `offset` of a file, and end within the largest file.
fn take_pieces<'a>(reader: &mut Reader<'a>, offset: u64) -> Result<Vec<Piece<'a>>, Corrupt> {
    let mut pieces = Vec::new();
    let mut end = offset;
    while !reader.rest().is_empty() {
        let piece = Piece::take(reader)?;
        end = end.checked_add(piece.len_bytes).filter(|end| *end <= FILE_BYTES_MAX).ok_or(BAD_RECORD)?;
        pieces.push(piece);
    }
    Ok(pieces)
}

fn is_device(kind: FileKind) -> bool {
    matches!(kind, FileKind::CharDevice | FileKind::BlockDevice)
}

impl<'a> MadeFile<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        put_name(out, self.name);
        varint::put(out, self.number);
        self.attributes.encode(out);
        match self.kind {
            FileKind::Regular => self.pieces.iter().for_each(|piece| piece.encode(out)),
            FileKind::Symlink => out.extend_from_slice(self.target),
            kind if is_device(kind) => varint::put(out, self.rdev),
            _ => {}
        }
    }

    fn take(reader: &mut Reader<'a>) -> Result<MadeFile<'a>, Corrupt> {
        let kind = FileKind::new(reader.u8()?).ok_or(BAD_RECORD)?;
        let name = take_name(reader)?;
        let number = reader.varint()?;
        let attributes = FileAttributes::take(reader)?;
        let mut made = MadeFile { kind, name, number, attributes, rdev: 0, target: &[], pieces: Vec::new() };
        match kind {
            FileKind::Regular => made.pieces = take_pieces(reader, 0)?,
            FileKind::Symlink => {
                made.target = reader.take_rest();
                if !(1..=TARGET_BYTES_MAX).contains(&made.target.len()) || made.target.contains(&0) {
                    return Err(BAD_RECORD);
                }
            }
            kind if is_device(kind) => made.rdev = reader.varint()?,
            FileKind::Directory if number != 0 => return Err(BAD_RECORD),
            _ => {}
        }
        Ok(made)
    }
}

impl<'a> StreamRecord<'a> {
    /// Appends the record. `scratch` is overwritten.
    pub fn encode(&self, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        scratch.clear();
        let kind = match self {
            StreamRecord::Up(levels) => {
                varint::put(scratch, *levels);
                1
            }
            StreamRecord::Enter(name) => {
                scratch.extend_from_slice(name);
                2
            }
            StreamRecord::Remove(name) => {
                scratch.extend_from_slice(name);
                3
            }
            StreamRecord::Stash { name, number, keeps } => {
                scratch.push(u8::from(*keeps));
                varint::put(scratch, *number);
                scratch.extend_from_slice(name);
                4
            }
            StreamRecord::Place { name, number, is_last } => {
                scratch.push(u8::from(*is_last));
                varint::put(scratch, *number);
                scratch.extend_from_slice(name);
                5
            }
            StreamRecord::Make(made) => {
                made.encode(scratch);
                6
            }
            StreamRecord::Open(name) => {
                scratch.extend_from_slice(name);
                7
            }
            StreamRecord::Write { offset, pieces } => {
                varint::put(scratch, *offset);
                pieces.iter().for_each(|piece| piece.encode(scratch));
                8
            }
            StreamRecord::Truncate(len) => {
                varint::put(scratch, *len);
                9
            }
            StreamRecord::Attributes(attributes) => {
                attributes.encode(scratch);
                10
            }
            StreamRecord::SetXattr { name, value } => {
                put_name(scratch, name);
                scratch.extend_from_slice(value);
                11
            }
            StreamRecord::RemoveXattr(name) => {
                scratch.extend_from_slice(name);
                12
            }
        };
        out.push(kind);
        varint::put(out, scratch.len() as u64);
        out.extend_from_slice(scratch);
    }

    fn decode(kind: u8, body: &'a [u8]) -> Result<StreamRecord<'a>, Corrupt> {
        let mut reader = Reader::new(body, &RECORD_FIELDS);
        let record = match kind {
            1 => StreamRecord::Up(take_number(&mut reader)?),
            2 => StreamRecord::Enter(good_name(reader.take_rest())?),
            3 => StreamRecord::Remove(good_name(reader.take_rest())?),
            4 => {
                let (keeps, number) = (take_flag(&mut reader)?, take_number(&mut reader)?);
                StreamRecord::Stash { name: good_name(reader.take_rest())?, number, keeps }
            }
            5 => {
                let (is_last, number) = (take_flag(&mut reader)?, take_number(&mut reader)?);
                StreamRecord::Place { name: good_name(reader.take_rest())?, number, is_last }
            }
            6 => StreamRecord::Make(MadeFile::take(&mut reader)?),
            7 => match reader.take_rest() {
                [] => StreamRecord::Open(&[]),
                name => StreamRecord::Open(good_name(name)?),
            },
            8 => {
                let offset = reader.varint()?;
                let pieces = take_pieces(&mut reader, offset)?;
                if pieces.is_empty() {
                    return Err(BAD_RECORD);
                }
                StreamRecord::Write { offset, pieces }
            }
            9 => {
                let len = reader.varint()?;
                StreamRecord::Truncate(Some(len).filter(|len| *len <= FILE_BYTES_MAX).ok_or(BAD_RECORD)?)
            }
            10 => StreamRecord::Attributes(FileAttributes::take(&mut reader)?),
            11 => {
                let len = reader.varint32()? as usize;
                let name = good_xattr_name(reader.bytes(len)?)?;
                let value = reader.take_rest();
                if value.len() > XATTR_BYTES_MAX {
                    return Err(BAD_RECORD);
                }
                StreamRecord::SetXattr { name, value }
            }
            12 => StreamRecord::RemoveXattr(good_xattr_name(reader.take_rest())?),
            _ => return Err(BAD_RECORD),
        };
        reader.end().map(|()| record)
    }
}

/// The records in the payload of a frame, in order. After an error the iterator ends.
#[derive(Clone, Debug)]
pub struct StreamRecords<'a>(Reader<'a>);

impl<'a> StreamRecords<'a> {
    /// The records in this payload.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> StreamRecords<'a> {
        StreamRecords(Reader::new(payload, &RECORD_FIELDS))
    }

    /// The number of bytes of whole records at the beginning of these bytes.
    #[must_use]
    pub fn whole_bytes(bytes: &[u8]) -> usize {
        let mut reader = Reader::new(bytes, &RECORD_FIELDS);
        let mut whole = 0;
        let mut skip = || -> Result<usize, Corrupt> {
            reader.u8()?;
            let len = reader.varint32()? as usize;
            reader.bytes(len)?;
            Ok(bytes.len() - reader.rest().len())
        };
        while let Ok(end) = skip() {
            whole = end;
        }
        whole
    }

    fn read(&mut self) -> Result<StreamRecord<'a>, Corrupt> {
        let kind = self.0.u8()?;
        let len = self.0.varint32()? as usize;
        StreamRecord::decode(kind, self.0.bytes(len)?)
    }
}

impl<'a> Iterator for StreamRecords<'a> {
    /// A record, or code 444.
    type Item = Result<StreamRecord<'a>, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.rest().is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.0.take_rest();
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(records: &[StreamRecord<'_>]) -> Vec<u8> {
        let (mut out, mut scratch) = (Vec::new(), Vec::new());
        records.iter().for_each(|record| record.encode(&mut out, &mut scratch));
        out
    }

    fn attributes() -> FileAttributes {
        let time = InodeTime { seconds: -1, nanos: 999_999_999 };
        FileAttributes { permissions: 0o4755, uid: 1000, gid: 0, mtime: time, atime: time }
    }

    fn examples() -> Vec<StreamRecord<'static>> {
        let pieces = vec![
            Piece { len_bytes: 3, source: PieceSource::Bytes(b"abc") },
            Piece { len_bytes: 1 << 40, source: PieceSource::Hole },
            Piece { len_bytes: RECORD_DATA_BYTES_MAX, source: PieceSource::Data(1 << 33) },
        ];
        let made = |kind, rdev, target, pieces| MadeFile {
            kind,
            name: b"\xff name",
            number: 0,
            attributes: attributes(),
            rdev,
            target,
            pieces,
        };
        vec![
            StreamRecord::Up(2),
            StreamRecord::Enter(b"a"),
            StreamRecord::Remove(b"b"),
            StreamRecord::Stash { name: b"c", number: 300, keeps: true },
            StreamRecord::Place { name: b"d", number: 300, is_last: false },
            StreamRecord::Make(MadeFile { number: 8, ..made(FileKind::Regular, 0, b"", pieces.clone()) }),
            StreamRecord::Make(made(FileKind::Symlink, 0, b"/there", Vec::new())),
            StreamRecord::Make(made(FileKind::CharDevice, 0x0103, b"", Vec::new())),
            StreamRecord::Make(made(FileKind::Directory, 0, b"", Vec::new())),
            StreamRecord::Open(b""),
            StreamRecord::Open(b"e"),
            StreamRecord::Write { offset: 5, pieces },
            StreamRecord::Truncate(FILE_BYTES_MAX),
            StreamRecord::Attributes(attributes()),
            StreamRecord::SetXattr { name: b"user.a", value: b"" },
            StreamRecord::RemoveXattr(b"user.b"),
        ]
    }

    #[test]
    fn records_come_back_in_order() {
        let bytes = encoded(&examples());
        let decoded: Result<Vec<_>, _> = StreamRecords::new(&bytes).collect();
        assert_eq!(decoded, Ok(examples()));
    }

    #[test]
    fn golden_bytes() {
        let stash = StreamRecord::Stash { name: b"c", number: 300, keeps: true };
        assert_eq!(encoded(&[stash]), [4, 4, 1, 0xac, 2, b'c']);
        let piece = Piece { len_bytes: 5, source: PieceSource::Data(9) };
        assert_eq!(encoded(&[StreamRecord::Write { offset: 7, pieces: vec![piece] }]), [8, 3, 7, 22, 9]);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            for kind in [2, 3] {
                let mut bytes = vec![kind, name.len() as u8];
                bytes.extend_from_slice(name);
                let refused: Vec<_> = StreamRecords::new(&bytes).collect();
                assert_eq!(refused, [Err(BAD_RECORD)], "{name:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail_and_what_decodes_encodes_back(kind in 0u8..14, body: Vec<u8>, cut in 0usize..400) {
            let mut likely = vec![kind];
            varint::put(&mut likely, body.len() as u64);
            likely.extend_from_slice(&body);
            let mut examples = encoded(&examples());
            examples.truncate(cut);
            for candidate in [&body, &likely, &examples] {
                let decoded: Result<Vec<_>, _> = StreamRecords::new(candidate).collect();
                if let Ok(records) = decoded {
                    prop_assert_eq!(&encoded(&records), candidate);
                }
            }
        }
    }
}
