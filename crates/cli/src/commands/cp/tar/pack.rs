//! Writes the files of a copy to a tar stream: ustar headers, and pax records for whatever these cannot hold.
//!
//! A header says how many bytes follow. So a file that fails behind its header breaks the archive, and the
//! copy ends. A short file is read before its header, and its failure leaves out that file alone.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tar::{EntryType, Header};
use warpfire::FileType;
use warpfire_terminal::{Failure, note, shown};

use super::pax::{Records, time_text};
use super::{BLOCK_BYTES, EXTENSION_BYTES_MAX, RANGES_MAX, padding, xattr_key};
use crate::commands::cp::job::{CopyJob, Poured};
use crate::commands::cp::short::ShortContent;
use crate::commands::cp::sink::{Existing, Sink};
use crate::commands::cp::source::{Attributes, Content, FileIdentity, NewFile};
use crate::commands::cp::xattrs::Xattrs;

/// The largest numbers of ustar fields of 8 and of 12 bytes, in octal digits and a NUL.
const SHORT_NUMBER_MAX: u64 = 0o777_7777;
const LONG_NUMBER_MAX: u64 = 0o777_7777_7777;
/// The longest name and target of a link in a header, in bytes.
const NAME_BYTES_MAX: usize = 100;

const ZEROS: &[u8] = &[0; 64 << 10];

type Output<'a> = Box<dyn FnMut(&[u8]) -> Result<(), Failure> + 'a>;

/// An archive that is being written.
pub struct TarSink<'a> {
    output: Output<'a>,
    /// The paths of the current directory and of those above it, up to the top, which is empty.
    levels: Vec<PathBuf>,
    /// Files that may get further names: the path of the first.
    linked: HashMap<FileIdentity, PathBuf>,
}

/// What a header says besides the attributes.
struct MemberHeader<'a> {
    entry_type: EntryType,
    /// With a slash at its end for a directory.
    path: &'a [u8],
    /// The target of a link.
    link: &'a [u8],
    /// The bytes that follow.
    stored: u64,
    records: Records,
}

impl<'a> TarSink<'a> {
    pub fn new(output: Output<'a>) -> TarSink<'a> {
        TarSink { output, levels: vec![PathBuf::new()], linked: HashMap::new() }
    }

    /// Writes the end of the archive.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.zeros(2 * BLOCK_BYTES)
    }

    fn path(&self, name: &OsStr) -> PathBuf {
        self.levels.last().expect("the top stays").join(name)
    }

    fn zeros(&mut self, mut bytes: u64) -> Result<(), Failure> {
        while bytes > 0 {
            let len = bytes.min(ZEROS.len() as u64);
            self.write(&ZEROS[..usize::try_from(len).expect("at most the zeros that there are")])?;
            bytes -= len;
        }
        Ok(())
    }

    /// Writes bytes. Where that fails the archive is broken, so the copy ends.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        (self.output)(bytes).map_err(Failure::ends_command)
    }

    /// Writes the header of a member without data.
    fn empty(
        &mut self,
        path: &Path,
        entry_type: EntryType,
        attributes: &Attributes,
        xattrs: &Xattrs,
        link: &OsStr,
    ) -> Result<(), Failure> {
        let mut path = path.as_os_str().as_bytes().to_vec();
        if entry_type.is_dir() {
            path.extend_from_slice(if path.is_empty() { b"./" } else { b"/" });
        }
        let (link, records) = (link.as_bytes(), Records::default());
        let member = MemberHeader { entry_type, path: &path, link, stored: 0, records };
        self.write(&member.encode(attributes, xattrs)?)
    }

    /// Writes the data in the ranges of a map. Data of the source beside them came during the copy; where the
    /// source has none any more, zeros are written.
    fn pour(
        &mut self,
        job: &mut CopyJob,
        map: Vec<Range<u64>>,
        content: &mut dyn Content,
    ) -> Result<Poured, Failure> {
        let mut left = VecDeque::from(map);
        let poured = job.pour(content, |mut bytes, mut at| {
            while let Some(range) = left.front_mut() {
                let gap = at.min(range.end).saturating_sub(range.start);
                self.zeros(gap)?;
                range.start += gap;
                if range.is_empty() {
                    left.pop_front();
                    continue;
                }
                let dropped = (range.start.saturating_sub(at)).min(bytes.len() as u64);
                let fitting = (range.end - range.start).min(bytes.len() as u64 - dropped);
                let (dropped, end) = (usize::try_from(dropped), usize::try_from(dropped + fitting));
                let (dropped, end) = (dropped.expect("in the bytes"), end.expect("in the bytes"));
                self.write(&bytes[dropped..end])?;
                range.start += fitting;
                at += end as u64;
                bytes = &bytes[end..];
                if bytes.is_empty() {
                    break;
                }
            }
            Ok(())
        })?;
        for range in left {
            self.zeros(range.end - range.start)?;
        }
        Ok(poured)
    }

    fn note(&mut self, new: NewFile<'_>, path: PathBuf) {
        if let Some(identity) = &new.attributes.identity {
            self.linked.insert(identity.clone(), path);
        }
    }
}

impl MemberHeader<'_> {
    /// The header, and before it a pax header with what it cannot hold.
    fn encode(mut self, attributes: &Attributes, xattrs: &Xattrs) -> Result<Vec<u8>, Failure> {
        let records = &mut self.records;
        let mut header = Header::new_ustar();
        header.set_entry_type(self.entry_type);
        header.set_mode(attributes.mode);
        let (user, group) = attributes.owner.unwrap_or((0, 0));
        header.set_uid(fitting(records, "uid", u64::from(user), SHORT_NUMBER_MAX));
        header.set_gid(fitting(records, "gid", u64::from(group), SHORT_NUMBER_MAX));
        header.set_size(fitting(records, "size", self.stored, LONG_NUMBER_MAX));
        if let Some(modified) = attributes.modified {
            let whole = u64::try_from(modified.seconds).ok().filter(|&seconds| seconds <= LONG_NUMBER_MAX);
            header.set_mtime(whole.unwrap_or(0));
            if modified.nanos > 0 || whole.is_none() {
                records.push(b"mtime", time_text(modified));
            }
        }
        if let Some(accessed) = attributes.accessed {
            records.push(b"atime", time_text(accessed));
        }
        let ustar = header.as_ustar_mut().expect("it was made as one");
        ustar.set_device_major(attributes.device.0);
        ustar.set_device_minor(attributes.device.1);
        put_name(&mut ustar.name, records, "path", self.path);
        put_name(&mut ustar.linkname, records, "linkpath", self.link);
        header.set_cksum();
        for (name, value) in xattrs.iter() {
            records.push(&xattr_key(name.as_bytes()), value);
        }
        let mut blocks = extended_header(records)?;
        blocks.extend_from_slice(header.as_bytes());
        Ok(blocks)
    }
}

/// A pax header; nothing if there are no records.
fn extended_header(records: &Records) -> Result<Vec<u8>, Failure> {
    let bytes = records.encode();
    if bytes.len() as u64 > EXTENSION_BYTES_MAX {
        return Err(Failure::new("the path and the extended attributes are too long for an archive"));
    }
    if bytes.is_empty() {
        return Ok(bytes);
    }
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(bytes.len() as u64);
    let ustar = header.as_ustar_mut().expect("it was made as one");
    put_name(&mut ustar.name, &mut Records::default(), "path", b"PaxHeader");
    header.set_cksum();
    let mut blocks = header.as_bytes().to_vec();
    blocks.extend(bytes);
    fill_block(&mut blocks);
    Ok(blocks)
}

fn fill_block(bytes: &mut Vec<u8>) {
    let whole = (bytes.len() as u64).next_multiple_of(BLOCK_BYTES);
    bytes.resize(usize::try_from(whole).expect("a few bytes more"), 0);
}

/// A number for a field of a header: 0 if it does not fit, and a record holds it.
fn fitting(records: &mut Records, key: &str, number: u64, max: u64) -> u64 {
    if number <= max {
        return number;
    }
    records.push(key.as_bytes(), number.to_string());
    0
}

/// Puts a path into a field of a header. If it does not fit, the field has its beginning.
fn put_name(field: &mut [u8; NAME_BYTES_MAX], records: &mut Records, key: &str, path: &[u8]) {
    let len = path.len().min(field.len());
    field[..len].copy_from_slice(&path[..len]);
    if len < path.len() {
        records.push(key.as_bytes(), path);
    }
}

/// The map of a sparse file as text in whole blocks, in the format 1.0 of GNU tar for pax archives.
fn map_text(map: &[Range<u64>], len: u64) -> Vec<u8> {
    // An empty range stands for a hole at the end.
    let end = map.last().is_none_or(|last| last.end < len).then_some(len..len);
    let ranges = map.iter().chain(&end);
    let numbers = ranges.flat_map(|range| [range.start, range.end - range.start]);
    let count = map.len() + usize::from(end.is_some());
    let lines: Vec<String> =
        [count as u64].into_iter().chain(numbers).map(|number| number.to_string()).collect();
    let mut text = (lines.join("\n") + "\n").into_bytes();
    fill_block(&mut text);
    text
}

impl Sink for TarSink<'_> {
    fn look(&mut self, _: &OsStr) -> Result<Option<Existing>, Failure> {
        Ok(None)
    }

    fn enter(
        &mut self,
        name: Option<&OsStr>,
        attributes: &Attributes,
        xattrs: &Xattrs,
        is_plan: bool,
    ) -> Result<(), Failure> {
        let path = self.path(name.unwrap_or_default());
        if !is_plan {
            self.empty(&path, EntryType::Directory, attributes, xattrs, OsStr::new(""))?;
        }
        if name.is_some() {
            self.levels.push(path);
        }
        Ok(())
    }

    fn keep(&mut self, _: &Attributes, _: &Xattrs) -> Result<(), Failure> {
        Ok(())
    }

    fn leave(&mut self) {
        self.levels.pop();
    }

    fn file(
        &mut self,
        job: &mut CopyJob,
        new: NewFile<'_>,
        xattrs: &Xattrs,
        content: &mut dyn Content,
    ) -> Result<u64, Failure> {
        let mut short;
        let mut content = content;
        if ShortContent::is_short(new.attributes) {
            short = ShortContent::read(job, content)?;
            content = &mut short;
        }
        let path = self.path(new.name);
        let member_path = path.as_os_str().as_bytes();
        let len = content.len();
        let mut map = content.map()?;
        let dense: Vec<_> = std::iter::once(0..len).filter(|range| !range.is_empty()).collect();
        if map.len() >= RANGES_MAX {
            map.clone_from(&dense);
        }
        let stored = map.iter().map(|range| range.end - range.start).sum::<u64>();
        let (mut records, mut text) = (Records::default(), Vec::new());
        if map != dense {
            text = map_text(&map, len);
            records.push(b"GNU.sparse.major", "1");
            records.push(b"GNU.sparse.minor", "0");
            records.push(b"GNU.sparse.name", member_path);
            records.push(b"GNU.sparse.realsize", len.to_string());
        }
        let header = MemberHeader {
            entry_type: EntryType::Regular,
            path: member_path,
            link: b"",
            stored: text.len() as u64 + stored,
            records,
        };
        self.write(&header.encode(new.attributes, xattrs)?)?;
        self.write(&text)?;
        let poured = self.pour(job, map, content).map_err(|failure| {
            if failure.is_end_of_command() {
                return failure;
            }
            let left = "the archive is not whole; copy the rest of damaged files with --salvage";
            failure.about(&path).hint(left).ends_command()
        })?;
        self.zeros(padding(stored))?;
        self.note(new, path);
        Ok(poured.bytes)
    }

    fn symlink(&mut self, new: NewFile<'_>, to: &OsStr) -> Result<(), Failure> {
        let path = self.path(new.name);
        self.empty(&path, EntryType::Symlink, new.attributes, &Xattrs::default(), to)?;
        self.note(new, path);
        Ok(())
    }

    fn special(&mut self, new: NewFile<'_>, xattrs: &Xattrs) -> Result<(), Failure> {
        let path = self.path(new.name);
        let entry_type = match new.attributes.kind {
            FileType::Fifo => EntryType::Fifo,
            FileType::CharDevice => EntryType::Char,
            FileType::BlockDevice => EntryType::Block,
            _ => {
                note(format_args!("{}: is a socket, which an archive cannot hold", shown(&path)));
                return Ok(());
            }
        };
        self.empty(&path, entry_type, new.attributes, xattrs, OsStr::new(""))?;
        self.note(new, path);
        Ok(())
    }

    fn link(&mut self, new: NewFile<'_>) -> Result<bool, Failure> {
        let first = new.attributes.identity.as_ref().and_then(|identity| self.linked.get(identity));
        let Some(first) = first.cloned() else { return Ok(false) };
        let path = self.path(new.name);
        self.empty(&path, EntryType::Link, new.attributes, &Xattrs::default(), first.as_os_str())?;
        Ok(true)
    }

    fn shown(&self, name: &OsStr) -> PathBuf {
        self.path(name)
    }
}
