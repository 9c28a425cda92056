//! The bytes of the ioctl that lists the changes of a transaction.
//!
//! The caller makes it on the root directory of the mount or of the view. Each call passes one block, which
//! the answer overwrites with a page of changes. Integers are in the byte order of the machine.
//!
//! ```text
//! offset  bytes  field     in                                    out
//!      0      4  version   1                                     1
//!      4      4  flags     0                                     0
//!      8      8  id        number of the transaction             the same
//!     16      8  at        0 for the first page,                 number of changes sent so far
//!                          else `at` of the last answer
//!     24      4  count     0                                     number of changes in this page, 0 at end
//!     28      4  zero      0                                     0
//!     32  16344  changes   0                                     the changes, one after the other
//!
//! DIFF  _IOWR('W', 0x45, 16376)
//!
//! a change
//!      0      4  bytes     length of the whole change, a multiple of 8
//!      4      1  how       1 created, 2 deleted, 3 renamed, 4 linked, 5 changed
//!      5      1  truncated 1 if a path was too long and is truncated, else 0
//!      6      2  aspects   1 data, 2 size, 4 mode, 8 owner, 16 mtime, 32 atime, 64 extended attributes
//!      8      2  path      length of the path with its NUL
//!     10      2  other     length of the other path with its NUL; 0 if there is none
//!     12      2  names     length of the names of extended attributes with their NULs
//!     14      2  ranges    number n of the ranges below
//!     16      8  data      number of bytes that differ
//!     24      8  count     number of ranges in which they differ
//!     32      8  xattrs    number of extended attributes that differ
//!     40    112  before    the file before the change, all 0 if it is created
//!    152    112  after     the file after the change, all 0 if it is deleted
//!    264   16 n  ranges    of each the offset of its first byte, and the offset of its end
//!      *      *  texts     the path, the other path, the names; then zeros
//!
//! a file
//!      0      8  ino
//!      8      8  size      bytes
//!     16      8  allocated bytes outside holes
//!     24      8  rdev
//!     32      4  mode      type and permissions
//!     36      4  links
//!     40      4  uid
//!     44      4  gid
//!     48     16  atime     seconds (8), nanoseconds (4), zero (4)
//!     64     16  mtime     as atime
//!     80     16  ctime     as atime
//!     96     16  btime     as atime
//! ```
//!
//! Errors:
//! - `EINVAL`: another version, or a field that has to be 0;
//! - `ENOENT`: this user has no such transaction, or it ended during the call;
//! - `EBUSY`: it is beginning or ending, or another call lists its changes;
//! - `ESTALE`: the last answer of the listing had another `at`; begin again with 0;
//! - other errors of the filesystem.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use warpfire_env::Timestamp;
use warpfire_fs::{Aspect, Attr, ChangeKind, ChangedRanges, FileKind, PathChange};

/// Version of this block.
const VERSION: u32 = 1;

/// Length of a block, in bytes: the largest multiple of 8 that the number of an ioctl can encode.
pub(crate) const BLOCK_BYTES: usize = 16_376;

const HEAD_BYTES: usize = 32;
const CHANGE_BYTES: usize = 40 + 2 * FILE_BYTES;
const FILE_BYTES: usize = 112;

/// Longest text with its NUL, in bytes: `PATH_MAX`. It has room for the names of all listed attributes.
const TEXT_BYTES: usize = 4096;

const _: () = assert!(
    HEAD_BYTES + CHANGE_BYTES + 16 * warpfire_fs::RANGES_LISTED_MAX + 3 * TEXT_BYTES + 8 <= BLOCK_BYTES,
    "every change fits a block"
);
const _: () = assert!(warpfire_fs::XATTRS_LISTED_MAX * 256 <= TEXT_BYTES, "the listed names fit a text");

/// The argument of the ioctl.
pub(crate) type DiffBlock = [u8; BLOCK_BYTES];

/// The number of the ioctl.
pub(crate) const DIFF: u32 = 3 << 30 | (BLOCK_BYTES as u32) << 16 | (b'W' as u32) << 8 | 0x45;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DiffRequest {
    pub(crate) id: u64,
    pub(crate) at: u64,
}

impl DiffRequest {
    /// Whether the number is that of DIFF.
    pub(crate) fn is_known(command: u32) -> bool {
        command == DIFF
    }

    /// Decodes a request; `None` if it is malformed.
    pub(crate) fn decode(given: &[u8]) -> Option<DiffRequest> {
        let mut input = BlockReader(given);
        let (version, flags) = (input.u32()?, input.u32()?);
        let request = DiffRequest { id: input.u64()?, at: input.u64()? };
        let zeros = (input.u32()?, input.u32()?);
        let is_valid = given.len() == BLOCK_BYTES && version == VERSION && flags == 0 && zeros == (0, 0);
        is_valid.then_some(request)
    }

    pub(crate) fn encode(self) -> DiffBlock {
        head(self.id, self.at, 0)
    }
}

fn head(id: u64, at: u64, count: u32) -> DiffBlock {
    let mut block = [0; BLOCK_BYTES];
    block[..4].copy_from_slice(&VERSION.to_ne_bytes());
    block[8..16].copy_from_slice(&id.to_ne_bytes());
    block[16..24].copy_from_slice(&at.to_ne_bytes());
    block[24..28].copy_from_slice(&count.to_ne_bytes());
    block
}

/// The changes of one answer, encoded.
pub(crate) struct DiffPage {
    changes: Vec<u8>,
    count: u32,
}

impl DiffPage {
    pub(crate) fn new() -> DiffPage {
        DiffPage { changes: Vec::with_capacity(BLOCK_BYTES), count: 0 }
    }

    /// Number of changes.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Adds a change; `false` if there is no room for it. An empty page has room for any.
    pub(crate) fn add(&mut self, change: &PathChange) -> bool {
        let before = self.changes.len();
        encode(change, &mut self.changes);
        assert!(self.changes.len().is_multiple_of(8), "the next change is aligned");
        let fits = HEAD_BYTES + self.changes.len() <= BLOCK_BYTES;
        if fits {
            self.count += 1;
        } else {
            self.changes.truncate(before);
        }
        fits
    }

    /// The answer. `at` is the position for the next request.
    pub(crate) fn finish(&self, id: u64, at: u64) -> Box<DiffBlock> {
        let mut block = Box::new(head(id, at, self.count));
        block[HEAD_BYTES..HEAD_BYTES + self.changes.len()].copy_from_slice(&self.changes);
        block
    }
}

/// Decodes an answer: the position for the next request, and the changes. No changes mean the end. `None` if
/// the answer is malformed.
pub(crate) fn decode(block: &DiffBlock) -> Option<(u64, Vec<PathChange>)> {
    let mut input = BlockReader(block);
    let (version, _flags, _id, at) = (input.u32()?, input.u32()?, input.u64()?, input.u64()?);
    let (count, _zero) = (input.u32()?, input.u32()?);
    if version != VERSION {
        return None;
    }
    let mut changes = Vec::new();
    for _ in 0..count {
        let len = usize::try_from(u32::from_ne_bytes(*input.0.first_chunk()?)).ok()?;
        let (change, rest) = input.0.split_at_checked(len)?;
        changes.push(decode_change(change)?);
        input = BlockReader(rest);
    }
    Some((at, changes))
}

const ASPECTS: [Aspect; 7] = [
    Aspect::Data,
    Aspect::Size,
    Aspect::Mode,
    Aspect::Owner,
    Aspect::ModifiedTime,
    Aspect::AccessTime,
    Aspect::Xattrs,
];

/// A change as bytes, for [`decode_change`].
#[must_use]
pub fn encode_change(change: &PathChange) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(change, &mut bytes);
    bytes
}

fn encode(change: &PathChange, out: &mut Vec<u8>) {
    let start = out.len();
    let (kind, other) = match &change.kind {
        ChangeKind::Created => (1, None),
        ChangeKind::Deleted => (2, None),
        ChangeKind::Renamed(from) => (3, Some(from)),
        ChangeKind::Linked(other) => (4, other.as_ref()),
        ChangeKind::Changed => (5, None),
    };
    let aspects = change.aspects();
    let bits = ASPECTS.iter().enumerate().filter(|(_, aspect)| aspects.contains(aspect));
    let bits = bits.fold(0u16, |bits, (number, _)| bits | 1 << number);
    let (path, path_truncated) = text(&change.path);
    let (other, other_truncated) = other.map_or((Vec::new(), false), |other| text(other));
    let mut names = Vec::new();
    for name in &change.xattrs.1 {
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    let narrow = |len: usize| u16::try_from(len).expect("texts and ranges are bounded").to_ne_bytes();
    // The length of the whole change is filled in at the end.
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[kind, u8::from(path_truncated || other_truncated)]);
    out.extend_from_slice(&bits.to_ne_bytes());
    for len in [path.len(), other.len(), names.len(), change.data.ranges.len()] {
        out.extend_from_slice(&narrow(len));
    }
    for number in [change.data.bytes, change.data.count, change.xattrs.0] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
    for file in [&change.before, &change.after] {
        match file {
            Some(attr) => encode_file(attr, out),
            None => out.extend_from_slice(&[0; FILE_BYTES]),
        }
    }
    for range in &change.data.ranges {
        out.extend_from_slice(&range.start.to_ne_bytes());
        out.extend_from_slice(&range.end.to_ne_bytes());
    }
    for text in [path, other, names] {
        out.extend_from_slice(&text);
    }
    let len = (out.len() - start).next_multiple_of(8);
    out.resize(start + len, 0);
    let bytes = u32::try_from(len).expect("a change fits a block").to_ne_bytes();
    out[start..start + 4].copy_from_slice(&bytes);
}

/// A path with its NUL, and whether it is truncated.
fn text(path: &Path) -> (Vec<u8>, bool) {
    let bytes = path.as_os_str().as_bytes();
    let kept = &bytes[..bytes.len().min(TEXT_BYTES - 1)];
    ([kept, &[0]].concat(), kept.len() < bytes.len())
}

fn encode_file(attr: &Attr, out: &mut Vec<u8>) {
    for number in [attr.ino, attr.size_bytes, attr.allocated_bytes, attr.rdev] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
    for number in [attr.mode, attr.links, attr.uid, attr.gid] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
    for time in [attr.atime, attr.mtime, attr.ctime, attr.btime] {
        out.extend_from_slice(&time.seconds.to_ne_bytes());
        out.extend_from_slice(&time.nanos.to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
    }
}

/// The change of these bytes; `None` if they are malformed.
#[must_use]
pub fn decode_change(bytes: &[u8]) -> Option<PathChange> {
    let mut input = BlockReader(bytes);
    // The caller has used the length. The aspects follow from the fields, so the decoded change computes them
    // again.
    let (_bytes, [kind, _truncated]) = (input.u32()?, *input.take::<2>()?);
    let _aspects = input.u16()?;
    let (path, other) = (usize::from(input.u16()?), usize::from(input.u16()?));
    let (names, ranges) = (usize::from(input.u16()?), input.u16()?);
    let mut data = ChangedRanges { bytes: input.u64()?, count: input.u64()?, ranges: Vec::new() };
    let xattrs = input.u64()?;
    let (before, after) = (decode_file(&mut input)?, decode_file(&mut input)?);
    for _ in 0..ranges {
        data.ranges.push(input.u64()?..input.u64()?);
    }
    let path = input.path(path)?;
    let other = if other == 0 { None } else { Some(input.path(other)?) };
    let (names, _zeros) = input.0.split_at_checked(names)?;
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let names: Vec<OsString> = names.map(|name| OsStr::from_bytes(name).to_owned()).collect();
    let kind = match (kind, other) {
        (1, None) => ChangeKind::Created,
        (2, None) => ChangeKind::Deleted,
        (3, Some(from)) => ChangeKind::Renamed(from),
        (4, other) => ChangeKind::Linked(other),
        (5, None) => ChangeKind::Changed,
        _ => return None,
    };
    Some(PathChange { path, kind, before, after, data, xattrs: (xattrs, names) })
}

/// A file; `Some(None)` for the zeros that mean no file, `None` if the bytes are malformed.
fn decode_file(input: &mut BlockReader<'_>) -> Option<Option<Attr>> {
    let (ino, size_bytes) = (input.u64()?, input.u64()?);
    let (allocated_bytes, rdev) = (input.u64()?, input.u64()?);
    let (mode, links, uid, gid) = (input.u32()?, input.u32()?, input.u32()?, input.u32()?);
    let mut times = [Timestamp { seconds: 0, nanos: 0 }; 4];
    for time in &mut times {
        *time = Timestamp { seconds: input.u64()?.cast_signed(), nanos: input.u32()? };
        input.u32()?;
    }
    // Only now, so that the reader has passed all fields of the file.
    if ino == 0 {
        return Some(None);
    }
    let kind = FileKind::new(u8::try_from(mode >> 12).ok()?)?;
    let [atime, mtime, ctime, btime] = times;
    Some(Some(Attr {
        ino,
        kind,
        mode,
        links,
        uid,
        gid,
        rdev,
        size_bytes,
        allocated_bytes,
        atime,
        mtime,
        ctime,
        btime,
    }))
}

/// Reads fields from the front of a byte slice. Every method returns `None` if too few bytes are left.
struct BlockReader<'a>(&'a [u8]);

impl<'a> BlockReader<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_ne_bytes(*self.take()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.take()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(*self.take()?))
    }

    /// A path of `len` bytes, of which the last is its NUL.
    fn path(&mut self, len: usize) -> Option<PathBuf> {
        let (path, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        let (nul, path) = path.split_last()?;
        (*nul == 0).then(|| OsStr::from_bytes(path).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(size_bytes: u64) -> Attr {
        let time = |nanos| Timestamp { seconds: -5, nanos };
        Attr {
            ino: 77,
            kind: FileKind::Regular,
            mode: 0o100_644,
            links: 2,
            uid: 1,
            gid: 2,
            rdev: 3,
            size_bytes,
            allocated_bytes: 4,
            atime: time(1),
            mtime: time(2),
            ctime: time(3),
            btime: time(4),
        }
    }

    fn change(path: &str, kind: ChangeKind) -> PathChange {
        let data = ChangedRanges { bytes: 9, count: 20, ranges: vec![1..5, 7..12] };
        let xattrs = (3, vec!["user.a".into(), "user.b".into()]);
        PathChange { path: path.into(), kind, before: Some(attr(1)), after: Some(attr(2)), data, xattrs }
    }

    #[test]
    fn the_number_is_that_of_the_c_macro() {
        assert_eq!(DIFF, 0xfff8_5745);
    }

    #[test]
    fn requests_come_back_as_they_were_sent_and_others_are_refused() {
        let request = DiffRequest { id: 7, at: 9 };
        let mut block = request.encode();
        assert_eq!(DiffRequest::decode(&block), Some(request));
        assert_eq!(DiffRequest::decode(&block[1..]), None);
        for field in [0, 4, 24, 28] {
            block[field] ^= 2;
            assert_eq!(DiffRequest::decode(&block), None, "field at {field}");
            block[field] ^= 2;
        }
    }

    #[test]
    fn changes_come_back_as_they_were_sent_as_many_as_there_is_room_for() {
        let sent = [
            change("/a", ChangeKind::Changed),
            PathChange { before: None, ..change("/b", ChangeKind::Created) },
            PathChange { after: None, ..change("/c", ChangeKind::Deleted) },
            change("/d", ChangeKind::Renamed("/e".into())),
            change("/f", ChangeKind::Linked(Some("/g".into()))),
            change("/h", ChangeKind::Linked(None)),
        ];
        let mut page = DiffPage::new();
        assert!(sent.iter().all(|change| page.add(change)));
        assert_eq!(decode(&page.finish(3, 6)), Some((6, sent.to_vec())));
        while page.add(&sent[0]) {}
        let (_, received) = decode(&page.finish(3, 0)).unwrap();
        assert_eq!((received.len() as u32, received.last()), (page.count(), Some(&sent[0])));
    }

    #[test]
    fn the_longest_change_fits_and_a_longer_path_is_truncated() {
        let long = "x".repeat(5000);
        let mut longest = change(&long, ChangeKind::Renamed(long.clone().into()));
        longest.data.ranges = (0..warpfire_fs::RANGES_LISTED_MAX as u64).map(|n| 2 * n..2 * n + 1).collect();
        longest.xattrs.1 = vec!["n".repeat(255).into(); warpfire_fs::XATTRS_LISTED_MAX];
        let mut page = DiffPage::new();
        assert!(page.add(&longest));
        let (_, received) = decode(&page.finish(1, 1)).unwrap();
        assert_eq!(received[0].path.as_os_str().len(), TEXT_BYTES - 1);
        assert_eq!(received[0].xattrs, longest.xattrs);
    }

    #[test]
    fn any_bytes_decode_or_are_none() {
        let mut page = DiffPage::new();
        page.add(&change("/a", ChangeKind::Renamed("/b".into())));
        let good = page.finish(1, 1);
        for at in 0..HEAD_BYTES + CHANGE_BYTES + 64 {
            for flip in [1, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                let _ = decode(&bad);
            }
        }
    }
}
