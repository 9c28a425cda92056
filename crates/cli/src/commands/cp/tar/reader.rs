//! The members of a tar stream: ustar, GNU and pax headers, sparse files of all GNU kinds.
//!
//! Invariants
//! 1. Every byte is hostile until it is checked. No length of a header is allocated before its bytes are
//!    there, and no header takes more memory than `EXTENSION_BYTES_MAX` and `RANGES_MAX` allow.
//! 2. A stream is whole only with its end: two blocks of zeros (`ArchiveReader::next`).
//! 3. After a fault the stream is not read further (`ArchiveReader::has_failed`).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};
use warpfire::{FileType, Timestamp};
use warpfire_terminal::Failure;

use super::pax::{Records, decimal, parse_time};
use super::{BLOCK_BYTES, Block, EXTENSION_BYTES_MAX, RANGES_MAX, padding, xattr_name};
use crate::commands::cp::source::{Attributes, Content, Piece};

/// Why a stream ends before its end.
#[derive(Debug)]
pub enum ArchiveFault {
    /// The first block is no header.
    Foreign,
    /// The stream ends after so many bytes.
    Cut(u64),
    /// The header before this byte of the stream makes no sense.
    Damaged(u64, &'static str),
    Input(io::Error),
}

type ArchiveResult<T> = Result<T, ArchiveFault>;

impl From<ArchiveFault> for Failure {
    fn from(fault: ArchiveFault) -> Failure {
        match fault {
            ArchiveFault::Foreign => Failure::new("is no tar archive")
                .hint("decompress an archive first: 'zstdcat x.tar.zst | warpfire cp --tar - POOL:/'"),
            ArchiveFault::Cut(at) => {
                Failure::new(format_args!("the archive is cut after {at} bytes")).hint("get the rest of it")
            }
            ArchiveFault::Damaged(at, what) => {
                Failure::new(format_args!("the archive is damaged before byte {at}: {what}"))
                    .hint("get the archive again")
            }
            ArchiveFault::Input(error) => Failure::new(format_args!("the archive cannot be read: {error}")),
        }
    }
}

/// What a member of an archive is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberKind {
    Directory,
    /// A regular file with these ranges of data.
    File(VecDeque<Range<u64>>),
    /// Another name of the member with this path.
    HardLink(Vec<u8>),
    Symlink(Vec<u8>),
    /// A pipe or device node.
    Special,
    /// A kind that no file of a pool has, by its letter.
    Other(u8),
}

/// A member of an archive. Its paths are as they are stored.
#[derive(Clone, Debug)]
pub struct Member {
    pub path: Vec<u8>,
    pub kind: MemberKind,
    pub attributes: Attributes,
    pub xattrs: Vec<(OsString, Vec<u8>)>,
}

/// A tar stream.
pub struct ArchiveReader<R> {
    input: R,
    /// The archive in messages.
    path: PathBuf,
    /// Bytes that have been read.
    offset: u64,
    /// Stored bytes of the member that have not been read, and those that fill its last block.
    stored: u64,
    padding: u64,
    /// Records that hold for all members that follow.
    globals: Records,
    has_failed: bool,
}

/// The content of the headers that extend the one of a member.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Option<Records>,
}

impl<R: Read> ArchiveReader<R> {
    pub fn new(input: R, path: &Path) -> ArchiveReader<R> {
        let (path, globals) = (path.to_path_buf(), Records::default());
        ArchiveReader { input, path, offset: 0, stored: 0, padding: 0, globals, has_failed: false }
    }

    /// The failure of the copy: nothing can be read behind a fault.
    pub fn failure(&self, fault: ArchiveFault) -> Failure {
        Failure::from(fault).about(&self.path).ends_command()
    }

    /// Whether a fault has ended the stream.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The next member; `None` at the end. The rest of the one before is skipped.
    pub fn next(&mut self) -> ArchiveResult<Option<Member>> {
        let found = self.find_next();
        self.has_failed |= found.is_err();
        found
    }

    fn find_next(&mut self) -> ArchiveResult<Option<Member>> {
        self.skip_rest()?;
        let mut extensions = Extensions::default();
        loop {
            let is_first = self.offset == 0;
            let mut header = Header::new_old();
            self.fill(header.as_mut_bytes()).map_err(|fault| match fault {
                ArchiveFault::Cut(1..BLOCK_BYTES) => ArchiveFault::Foreign,
                fault => fault,
            })?;
            if is_zero(header.as_bytes()) {
                let mut second: Block = [0; _];
                self.fill(&mut second)?;
                let is_end = is_zero(&second) && extensions.is_empty();
                return if is_end { Ok(None) } else { Err(self.damaged("an end within the archive")) };
            }
            if !header.cksum().is_ok_and(|sum| sum == checksum(&header)) {
                let damaged = self.damaged("a header does not match its checksum");
                return Err(if is_first { ArchiveFault::Foreign } else { damaged });
            }
            match header.entry_type().as_byte() {
                b'L' => extensions.name = Some(self.long_name(&header)?),
                b'K' => extensions.link = Some(self.long_name(&header)?),
                b'x' | b'X' => extensions.records = Some(self.records(&header)?),
                b'g' => {
                    let records = self.records(&header)?;
                    self.globals.replace_by(records);
                }
                _ => return self.member(&header, extensions).map(Some),
            }
        }
    }

    /// The bytes behind an extension header.
    fn extension(&mut self, header: &Header) -> ArchiveResult<Vec<u8>> {
        let len = header.entry_size().map_err(|_| self.damaged("a length is no number"))?;
        if len > EXTENSION_BYTES_MAX {
            return Err(self.damaged("a name or an extended header is too long"));
        }
        let mut bytes = vec![0; usize::try_from(len).expect("at most the limit")];
        self.fill(&mut bytes)?;
        self.padding = padding(len);
        self.skip_rest()?;
        Ok(bytes)
    }

    fn long_name(&mut self, header: &Header) -> ArchiveResult<Vec<u8>> {
        let mut name = self.extension(header)?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    fn records(&mut self, header: &Header) -> ArchiveResult<Records> {
        let bytes = self.extension(header)?;
        Records::parse(&bytes).ok_or_else(|| self.damaged("an extended header is malformed"))
    }

    fn member(&mut self, header: &Header, extensions: Extensions) -> ArchiveResult<Member> {
        let mut records = self.globals.clone();
        records.replace_by(extensions.records.unwrap_or_default());
        let number = |key| match records.get(key) {
            Some(digits) => decimal(digits).map(Some).ok_or("a number of an extended header is none"),
            None => Ok(None),
        };
        let number = |key| number(key).map_err(|what| ArchiveFault::Damaged(self.offset, what));
        let (user, group, size) = (number("uid")?, number("gid")?, number("size")?);
        let real_size = number("GNU.sparse.realsize")?.or(number("GNU.sparse.size")?);
        let size = match size {
            Some(size) => size,
            None => header.entry_size().map_err(|_| self.damaged("a length is no number"))?,
        };
        let name = records.get("GNU.sparse.name").or_else(|| records.get("path"));
        let path =
            name.map(<[u8]>::to_vec).or(extensions.name).unwrap_or_else(|| header.path_bytes().into_owned());
        let link = records.get("linkpath").map(<[u8]>::to_vec).or(extensions.link);
        let link = link.or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        let letter = header.entry_type().as_byte();
        // Links, directories and special files have no data, whatever length their header has.
        self.stored = if (b'1'..=b'6').contains(&letter) { 0 } else { size };
        self.padding = padding(self.stored);
        if self.stored.checked_add(self.padding).is_none() {
            return Err(self.damaged("a length is too large"));
        }
        let mut file_type = FileType::File;
        let mut len = None;
        let kind = match letter {
            0 | b'0' if path.ends_with(b"/") => MemberKind::Directory,
            0 | b'0' | b'7' | b'S' => {
                let ranges = self.ranges(header, &records)?;
                let real = if letter == b'S' { header.size().ok() } else { real_size };
                if real.is_some_and(|real| real < ranges.end) {
                    return Err(self.damaged("a sparse file is longer than its length"));
                }
                len = Some(real.unwrap_or(ranges.end));
                MemberKind::File(ranges.list)
            }
            b'1' => MemberKind::HardLink(link.unwrap_or_default()),
            b'2' => MemberKind::Symlink(link.unwrap_or_default()),
            b'3' | b'4' | b'6' => MemberKind::Special,
            b'5' | b'D' => MemberKind::Directory,
            other => MemberKind::Other(other),
        };
        match letter {
            b'2' => file_type = FileType::Symlink,
            b'3' => file_type = FileType::CharDevice,
            b'4' => file_type = FileType::BlockDevice,
            b'6' => file_type = FileType::Fifo,
            _ if kind == MemberKind::Directory => file_type = FileType::Dir,
            _ => {}
        }
        let user = user.or_else(|| header.uid().ok()).and_then(|user| u32::try_from(user).ok());
        let group = group.or_else(|| header.gid().ok()).and_then(|group| u32::try_from(group).ok());
        let device = |number: io::Result<Option<u32>>| number.ok().flatten().unwrap_or(0);
        let mode = header.mode().map_err(|_| self.damaged("a mode is no number"))?;
        let modified = match records.get("mtime") {
            Some(text) => parse_time(text),
            // A negative number of GNU is in two's complement.
            None => header.mtime().ok().map(|at| Timestamp { seconds: at.cast_signed(), nanos: 0 }),
        };
        let attributes = Attributes {
            owner: user.zip(group),
            accessed: records.get("atime").and_then(parse_time),
            modified,
            device: (device(header.device_major()), device(header.device_minor())),
            len,
            ..Attributes::made_up(file_type, mode & 0o7777)
        };
        let xattrs = records
            .iter()
            .filter_map(|(key, value)| Some((OsString::from_vec(xattr_name(key)?), value.to_vec())));
        Ok(Member { path, kind, attributes, xattrs: xattrs.collect() })
    }

    /// The ranges of data of a regular file. The map of a sparse file is read from wherever its kind has it.
    fn ranges(&mut self, header: &Header, records: &Records) -> ArchiveResult<Ranges> {
        let mut ranges = Ranges::default();
        let is_made = if header.entry_type().is_gnu_sparse() {
            self.old_map(header, &mut ranges)?
        } else if let Some(major) = records.get("GNU.sparse.major") {
            let is_known = major == b"1" && records.get("GNU.sparse.minor") == Some(b"0");
            is_known && self.stored_map(&mut ranges)?
        } else if let Some(map) = records.get("GNU.sparse.map") {
            let numbers: Option<Vec<u64>> = map.split(|&byte| byte == b',').map(decimal).collect();
            numbers.is_some_and(|numbers| {
                numbers.chunks(2).all(|pair| matches!(pair, &[at, len] if ranges.add(at, len)))
            })
        } else if records.get("GNU.sparse.numblocks").is_some() {
            // The oldest kind repeats two keys, which `Records` keeps in their order.
            let of = |key: &'static [u8]| {
                let found = records.iter().filter(move |(found, _)| *found == key);
                found.map(|(_, value)| decimal(value))
            };
            let mut pairs = of(b"GNU.sparse.offset").zip(of(b"GNU.sparse.numbytes"));
            pairs.all(|pair| matches!(pair, (Some(at), Some(len)) if ranges.add(at, len)))
        } else {
            ranges.add(0, self.stored)
        };
        match is_made && ranges.bytes == self.stored {
            true => Ok(ranges),
            false => Err(self.damaged("the map of a sparse file makes no sense")),
        }
    }

    /// The map of a sparse file in the header and in blocks behind it.
    fn old_map(&mut self, header: &Header, ranges: &mut Ranges) -> ArchiveResult<bool> {
        let Some(gnu) = header.as_gnu() else { return Ok(false) };
        let mut is_good = ranges.add_headers(&gnu.sparse);
        let mut is_extended = gnu.is_extended();
        while is_extended && is_good {
            let mut more = GnuExtSparseHeader::new();
            self.fill(more.as_mut_bytes())?;
            is_good = ranges.add_headers(&more.sparse);
            is_extended = more.is_extended();
        }
        Ok(is_good)
    }

    /// The map of a sparse file in the first blocks of its data: numbers, each on a line.
    fn stored_map(&mut self, ranges: &mut Ranges) -> ArchiveResult<bool> {
        let mut lines = StoredNumbers { block: [0; _], at: usize::try_from(BLOCK_BYTES).unwrap_or(0) };
        let Some(count) = lines.next(self)? else { return Ok(false) };
        for _ in 0..count {
            let (Some(at), Some(len)) = (lines.next(self)?, lines.next(self)?) else { return Ok(false) };
            if !ranges.add(at, len) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads stored bytes of the member; as many as the buffer has, or as are left.
    fn read_stored(&mut self, buffer: &mut [u8]) -> ArchiveResult<usize> {
        let len = usize::try_from(self.stored).unwrap_or(usize::MAX).min(buffer.len());
        self.fill(&mut buffer[..len])?;
        self.stored -= len as u64;
        Ok(len)
    }

    fn skip_rest(&mut self) -> ArchiveResult<()> {
        let mut rest = std::mem::take(&mut self.stored) + std::mem::take(&mut self.padding);
        let mut buffer = [0; 16 << 10];
        while rest > 0 {
            let len = usize::try_from(rest).unwrap_or(usize::MAX).min(buffer.len());
            self.fill(&mut buffer[..len])?;
            rest -= len as u64;
        }
        Ok(())
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> ArchiveResult<()> {
        while !buffer.is_empty() {
            match self.input.read(buffer) {
                Ok(0) => return Err(ArchiveFault::Cut(self.offset)),
                Ok(read) => {
                    self.offset += read as u64;
                    buffer = &mut buffer[read..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ArchiveFault::Input(error)),
            }
        }
        Ok(())
    }

    fn damaged(&self, what: &'static str) -> ArchiveFault {
        ArchiveFault::Damaged(self.offset, what)
    }
}

impl Extensions {
    fn is_empty(&self) -> bool {
        self.name.is_none() && self.link.is_none() && self.records.is_none()
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The sum of the bytes of a header, in which the field of the sum counts as spaces.
fn checksum(header: &Header) -> u32 {
    let (before, after) = (header.as_bytes().iter().take(148), header.as_bytes().iter().skip(156));
    before.chain(after).map(|&byte| u32::from(byte)).sum::<u32>() + 8 * u32::from(b' ')
}

/// The map of a sparse file while it is read: ranges in order, none empty.
#[derive(Default)]
struct Ranges {
    list: VecDeque<Range<u64>>,
    bytes: u64,
    end: u64,
}

impl Ranges {
    /// Adds a range; `false` if it makes no sense behind those before it.
    fn add(&mut self, at: u64, len: u64) -> bool {
        let Some(end) = at.checked_add(len).filter(|&end| i64::try_from(end).is_ok()) else { return false };
        if at < self.end || self.list.len() >= RANGES_MAX {
            return false;
        }
        if len > 0 {
            self.list.push_back(at..end);
        }
        (self.bytes, self.end) = (self.bytes + len, end);
        true
    }

    fn add_headers(&mut self, headers: &[GnuSparseHeader]) -> bool {
        let used = headers.iter().filter(|header| !header.is_empty());
        let mut pairs = used.map(|header| header.offset().ok().zip(header.length().ok()));
        pairs.all(|pair| pair.is_some_and(|(at, len)| self.add(at, len)))
    }
}

/// Numbers in stored blocks, each with a line end.
struct StoredNumbers {
    block: Block,
    at: usize,
}

impl StoredNumbers {
    fn next<R: Read>(&mut self, reader: &mut ArchiveReader<R>) -> ArchiveResult<Option<u64>> {
        let mut digits = Vec::new();
        loop {
            if self.at == self.block.len() {
                if reader.read_stored(&mut self.block)? < self.block.len() {
                    return Ok(None);
                }
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return Ok(decimal(&digits)),
                b'0'..=b'9' if digits.len() < 20 => digits.push(byte),
                _ => return Ok(None),
            }
        }
    }
}

/// The content of a regular file of an archive.
pub struct MemberContent<'a, R> {
    reader: &'a mut ArchiveReader<R>,
    /// The data that has not been read.
    ranges: VecDeque<Range<u64>>,
    len: u64,
}

impl<'a, R: Read> MemberContent<'a, R> {
    pub fn new(reader: &'a mut ArchiveReader<R>, ranges: VecDeque<Range<u64>>, len: u64) -> Self {
        MemberContent { reader, ranges, len }
    }
}

impl<R: Read> Content for MemberContent<'_, R> {
    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, Failure> {
        let Some(range) = self.ranges.front_mut() else { return Ok(None) };
        let wanted = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.reader.read_stored(&mut buffer[..wanted]);
        self.reader.has_failed |= read.is_err();
        let read = read.map_err(|fault| self.reader.failure(fault))?;
        let piece = Piece::at(range.start, read);
        range.start += wanted as u64;
        if range.is_empty() {
            self.ranges.pop_front();
        }
        Ok(Some(piece))
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn map(&mut self) -> Result<Vec<Range<u64>>, Failure> {
        Ok(self.ranges.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack::TarSink;
    use super::*;
    use crate::commands::cp::job::{CopyJob, CopyOptions};
    use crate::commands::cp::sink::Sink;
    use crate::commands::cp::source::NewFile;
    use crate::commands::cp::xattrs::Xattrs;

    /// A content that never ends before its length.
    struct Endless {
        at: u64,
        len: u64,
    }

    impl Content for Endless {
        fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Piece>, Failure> {
            let len = buffer.len().min(usize::try_from(self.len - self.at).expect("it fits"));
            self.at += len as u64;
            Ok((len > 0).then(|| Piece::at(self.at - len as u64, len)))
        }

        fn len(&self) -> u64 {
            self.len
        }

        fn map(&mut self) -> Result<Vec<Range<u64>>, Failure> {
            Ok(std::iter::once(0..self.len).collect())
        }
    }

    /// An archive of files with these lengths, up to `bytes_max` bytes.
    fn archive(lens: &[u64], bytes_max: usize) -> Vec<u8> {
        let mut archive = Vec::new();
        let mut job = CopyJob::new(CopyOptions::default());
        let mut sink = TarSink::new(Box::new(|bytes: &[u8]| {
            archive.extend_from_slice(bytes);
            if archive.len() < bytes_max { Ok(()) } else { Err(Failure::new("full")) }
        }));
        for &len in lens {
            let mut attributes = Attributes::made_up(FileType::File, 0o640);
            attributes.len = Some(len);
            attributes.owner = Some((u32::MAX - 1, 0o7_777_777));
            attributes.modified = Some(Timestamp { seconds: -7, nanos: 5 });
            let name = OsString::from(format!("{len}"));
            let new = NewFile { name: &name, attributes: &attributes };
            let made = sink.file(&mut job, new, &Xattrs::default(), &mut Endless { at: 0, len });
            if made.is_err() {
                break;
            }
        }
        let _ = sink.finish();
        drop(sink);
        archive
    }

    fn reader(archive: &[u8]) -> ArchiveReader<&[u8]> {
        ArchiveReader::new(archive, Path::new("archive"))
    }

    #[test]
    fn a_file_longer_than_a_header_can_say_has_its_length_owner_and_time() {
        let archive = archive(&[9 << 30], 1 << 20);
        let mut reader = reader(&archive);
        let member = reader.next().expect("read").expect("there");
        assert_eq!(member.path, (9_u64 << 30).to_string().as_bytes());
        assert_eq!(member.attributes.len, Some(9 << 30));
        assert_eq!(member.attributes.owner, Some((u32::MAX - 1, 0o7_777_777)));
        assert_eq!(member.attributes.modified, Some(Timestamp { seconds: -7, nanos: 5 }));
        assert_eq!(member.kind, MemberKind::File(std::iter::once(0..9 << 30).collect()));
        assert!(matches!(reader.next(), Err(ArchiveFault::Cut(_))));
        assert!(reader.has_failed());
    }

    #[test]
    fn an_archive_is_whole_only_with_its_end() {
        let whole = archive(&[3, 512, 600, 0], usize::MAX);
        for end in 0..=whole.len() {
            let mut reader = reader(&whole[..end]);
            let found = std::iter::from_fn(|| reader.next().transpose()).collect::<Result<Vec<_>, _>>();
            assert_eq!(found.is_ok(), end == whole.len(), "cut at {end}");
        }
    }

    #[test]
    fn any_bytes_are_read_in_bounds() {
        let whole = archive(&[3, 512, 600, 0], usize::MAX);
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).expect("31 bits") % below
        };
        let words: [&[u8]; 8] =
            [b"GNU.sparse.map=", b"size=99999999999999", b"\x80\xff\xff", b"L", b"S", b"x", b"g", b"\n"];
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..=random(4) {
                let (at, word) = (random(bytes.len() - 32), words[random(words.len())]);
                bytes[at..at + word.len()].copy_from_slice(word);
                bytes[random(whole.len())] = u8::try_from(random(256)).expect("a byte");
            }
            // With good checksums, damage in headers comes through.
            for at in (0..bytes.len() - 512).step_by(512) {
                let mut header = Header::new_old();
                header.as_mut_bytes().copy_from_slice(&bytes[at..at + 512]);
                header.set_cksum();
                bytes[at..at + 512].copy_from_slice(header.as_bytes());
            }
            let mut reader = reader(&bytes);
            let mut buffer = vec![0; 4096];
            for _ in 0..bytes.len() / 512 {
                let Ok(Some(member)) = reader.next() else { break };
                let MemberKind::File(ranges) = member.kind else { continue };
                let len = member.attributes.len.expect("a file has a length");
                assert!(ranges.back().is_none_or(|last| last.end <= len));
                let mut content = MemberContent::new(&mut reader, ranges, len);
                while let Ok(Some(piece)) = content.next(&mut buffer) {
                    assert!(piece.at + piece.bytes.len() as u64 <= len);
                }
            }
        }
    }
}
