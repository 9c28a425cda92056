//! Carries out the records of a stream.
//!
//! # Invariants
//! 1. Every name is looked up in a directory of the tree, and no symbolic link is followed. So no record
//!    reaches anything outside of the tree and the stash (`enter`, `open`). The spools are outside, also if
//!    the tree is the whole pool (`dir_of`).
//! 2. The content of a file is named where the spool has it: no bytes are copied, but for the few that are
//!    inline in records or in the spool's own metadata (`SpoolData::source`).

use std::ops::Range;

use warpfire_format::fs::{ExtentSource, FileKind};
use warpfire_format::stream::{FileAttributes, MadeFile, Piece, PieceSource, StreamRecord};
use warpfire_meta::Storage;
use warpfire_units::SlicePtr;

use crate::acl::{Caller, XATTR_ACCESS, XATTR_DEFAULT};
use crate::attrs::{NewMode, SetAttr, SetTime, XattrMode};
use crate::data::{AllocMode, Position, WriteSource};
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::{DEPTH_MAX, INLINE_BYTES_MAX};
use crate::names::{NewFile, RenameMode};
use crate::node::{NameBuf, NodeRef};
use crate::slice::YankedSlice;
use crate::stamp::timestamp;
use crate::transfer::is_receive_directory;

const ROOT: Caller<'static> = Caller::ROOT;

/// Bytes of the spool that are held as one value. Its parts name the files' slices.
const WINDOW_BYTES: u64 = 16 << 20;

/// Runs that one commit of the content of a file takes, of some 100 bytes of memory each. A record may name
/// the same bytes again and again, so its content may have far more runs than the stream has bytes.
const RUNS_AT_ONCE: usize = 1 << 16;

/// Bytes in memory that one commit of the content of a file takes. They are inline in the spool's metadata.
const INLINE_BYTES_AT_ONCE: usize = INLINE_BYTES_MAX;

/// The bytes of files in the spool.
pub(super) struct SpoolData<'a, E: Storage> {
    fs: &'a Fs<E>,
    node: NodeRef,
    len_bytes: u64,
    window: Option<(Range<u64>, YankedSlice)>,
}

impl<'a, E: Storage> SpoolData<'a, E> {
    pub(super) fn new(fs: &'a Fs<E>, node: NodeRef, len_bytes: u64) -> Self {
        SpoolData { fs, node, len_bytes, window: None }
    }

    /// A range of the data as a value.
    fn part(&mut self, position: u64, len_bytes: u64) -> Result<YankedSlice, FsError> {
        let wanted = position..position + len_bytes;
        if wanted.end > self.len_bytes {
            return Err(FsError::Invalid("a record names bytes that the stream does not have"));
        }
        let is_inside = |range: &Range<u64>| range.start <= wanted.start && wanted.end <= range.end;
        if !self.window.as_ref().is_some_and(|(range, _)| is_inside(range)) {
            let end = wanted.end.max(position + WINDOW_BYTES).min(self.len_bytes);
            let value = self.fs.keep_content(&self.node, position, end - position)?;
            self.window = Some((position..end, value));
        }
        let (range, value) = self.window.as_ref().expect("filled above");
        Ok(value.part(wanted.start - range.start..wanted.end - range.start))
    }
}

/// Parts of the data that follow each other in a file.
#[derive(Default)]
struct Parts {
    values: Vec<YankedSlice>,
    runs: usize,
    inline_bytes: usize,
}

impl Parts {
    fn push(&mut self, part: YankedSlice) {
        self.runs += part.runs();
        self.inline_bytes += part.content_bytes();
        self.values.push(part);
    }

    /// Whether they are enough for one commit.
    fn are_many(&self) -> bool {
        self.runs >= RUNS_AT_ONCE || self.inline_bytes > INLINE_BYTES_AT_ONCE
    }
}

/// The current file.
enum CurrentFile {
    /// Its node is known.
    Open(NodeRef),
    /// It was made under this name, and nobody has asked for its node yet.
    Made(NodeRef, NameBuf),
}

/// A directory on the way to the current one.
struct TreeLevel {
    dir: NodeRef,
    /// Whether files that are made in it inherit lists.
    has_default_acl: bool,
}

/// Carries out records in a tree.
pub(super) struct TreeBuilder<'a, S: Storage, E: Storage> {
    fs: &'a Fs<S>,
    stash: NodeRef,
    levels: Vec<TreeLevel>,
    file: CurrentFile,
    data: SpoolData<'a, E>,
}

impl<'a, S: Storage, E: Storage> TreeBuilder<'a, S, E> {
    pub(super) fn new(
        fs: &'a Fs<S>,
        root: NodeRef,
        stash: NodeRef,
        data: SpoolData<'a, E>,
    ) -> Result<Self, FsError> {
        let file = CurrentFile::Open(NodeRef::clone(&root));
        let mut builder = TreeBuilder { fs, stash, levels: Vec::new(), file, data };
        builder.push(root)?;
        Ok(builder)
    }

    fn push(&mut self, dir: NodeRef) -> Result<(), FsError> {
        // Each level takes memory, and no tree is deeper.
        if self.levels.len() >= DEPTH_MAX as usize {
            return Err(FsError::Invalid("a record enters a directory below more than 2^20 others"));
        }
        let has_default_acl = match self.fs.getxattr(&ROOT, &dir, XATTR_DEFAULT) {
            Err(FsError::NoAttribute) => false,
            found => found.map(|_| true)?,
        };
        self.levels.push(TreeLevel { dir, has_default_acl });
        Ok(())
    }

    fn level(&self) -> &TreeLevel {
        self.levels.last().expect("the root of the tree is never left")
    }

    /// The current directory, for a record with this name in it.
    ///
    /// # Errors
    /// `Invalid` for the directory of the spools.
    fn dir_of(&self, name: &[u8]) -> Result<NodeRef, FsError> {
        let dir = &self.level().dir;
        if is_receive_directory(dir.ino(), name) {
            return Err(FsError::Invalid("a record names the directory of streams that are received"));
        }
        Ok(NodeRef::clone(dir))
    }

    fn file(&mut self) -> Result<NodeRef, FsError> {
        if let CurrentFile::Made(dir, name) = &self.file {
            self.file = CurrentFile::Open(self.fs.lookup(&ROOT, dir, name)?);
        }
        match &self.file {
            CurrentFile::Open(node) => Ok(NodeRef::clone(node)),
            CurrentFile::Made(..) => unreachable!("opened above"),
        }
    }

    /// Carries out one record.
    ///
    /// # Errors
    /// Those of the call that it asks for.
    pub(super) fn apply(&mut self, record: &StreamRecord<'_>) -> Result<(), FsError> {
        match record {
            StreamRecord::Up(levels) => self.up(*levels),
            StreamRecord::Enter(name) => self.enter(name),
            StreamRecord::Remove(name) => self.remove(name),
            StreamRecord::Stash { name, number, keeps } => self.stash(name, *number, *keeps),
            StreamRecord::Place { name, number, is_last } => self.place(name, *number, *is_last),
            StreamRecord::Make(made) => self.make(made),
            StreamRecord::Open(name) => self.open(name),
            StreamRecord::Write { offset, pieces } => self.write(*offset, pieces),
            StreamRecord::Truncate(len) => {
                let file = self.file()?;
                self.fs.truncate(&ROOT, &file, *len)
            }
            StreamRecord::Attributes(attributes) => self.set_attributes(attributes),
            StreamRecord::SetXattr { name, value } => {
                let file = self.file()?;
                self.fs.setxattr(&ROOT, &file, name, value, XattrMode::Either)
            }
            StreamRecord::RemoveXattr(name) => {
                let file = self.file()?;
                match self.fs.removexattr(&ROOT, &file, name) {
                    // A change of the owner, or a write, has removed it.
                    Err(FsError::NoAttribute) => Ok(()),
                    removed => removed,
                }
            }
        }
    }

    fn up(&mut self, levels: u64) -> Result<(), FsError> {
        let levels = usize::try_from(levels).unwrap_or(usize::MAX);
        if levels >= self.levels.len() {
            return Err(FsError::Invalid("a record leaves the root of the tree"));
        }
        self.levels.truncate(self.levels.len() - levels);
        Ok(())
    }

    fn enter(&mut self, name: &[u8]) -> Result<(), FsError> {
        let dir = self.fs.lookup(&ROOT, &self.dir_of(name)?, name)?;
        if !dir.is_dir() {
            return Err(FsError::NotDirectory);
        }
        self.push(dir)
    }

    fn open(&mut self, name: &[u8]) -> Result<(), FsError> {
        let node = match name {
            [] => self.dir_of(name)?,
            name => self.fs.lookup(&ROOT, &self.dir_of(name)?, name)?,
        };
        self.file = CurrentFile::Open(node);
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> Result<(), FsError> {
        let dir = self.dir_of(name)?;
        match self.fs.unlink(&ROOT, &dir, name) {
            Err(FsError::IsDirectory) => self.fs.rmdir(&ROOT, &dir, name),
            removed => removed,
        }
    }

    fn stash(&mut self, name: &[u8], number: u64, keeps: bool) -> Result<(), FsError> {
        let (dir, number) = (self.dir_of(name)?, number.to_string());
        if keeps {
            let node = self.fs.lookup(&ROOT, &dir, name)?;
            return self.fs.link(&ROOT, &node, &self.stash, number.as_bytes());
        }
        self.fs.rename(&ROOT, (&dir, name), (&self.stash, number.as_bytes()), RenameMode::NoReplace)
    }

    fn place(&mut self, name: &[u8], number: u64, is_last: bool) -> Result<(), FsError> {
        let (dir, number) = (self.dir_of(name)?, number.to_string());
        if is_last {
            let from = (&self.stash, number.as_bytes());
            return self.fs.rename(&ROOT, from, (&dir, name), RenameMode::NoReplace);
        }
        let node = self.fs.lookup(&ROOT, &self.stash, number.as_bytes())?;
        self.fs.link(&ROOT, &node, &dir, name)
    }

    fn make(&mut self, made: &MadeFile<'_>) -> Result<(), FsError> {
        let dir = self.dir_of(made.name)?;
        let is_simple = self.make_file(&dir, made)?;
        self.file = CurrentFile::Made(NodeRef::clone(&dir), made.name.into());
        if self.level().has_default_acl {
            let file = self.file()?;
            for list in [XATTR_ACCESS, XATTR_DEFAULT] {
                match self.fs.removexattr(&ROOT, &file, list) {
                    Err(FsError::NoAttribute | FsError::Unsupported) => {}
                    removed => removed?,
                }
            }
        }
        if !is_simple {
            self.write(0, &made.pieces)?;
        }
        if !is_simple || self.level().has_default_acl {
            self.set_attributes(&made.attributes)?;
        }
        if made.number != 0 {
            let file = self.file()?;
            self.fs.link(&ROOT, &file, &self.stash, made.number.to_string().as_bytes())?;
        }
        Ok(())
    }

    /// Makes a file. Returns whether its content and attributes are complete.
    fn make_file(&mut self, dir: &NodeRef, made: &MadeFile<'_>) -> Result<bool, FsError> {
        let set = all_attributes(made.kind, &made.attributes);
        let new = NewFile {
            kind: made.kind,
            mode: NewMode::exact(u32::from(made.attributes.permissions)),
            rdev: made.rdev,
            content: made.target,
            set: Some(&set),
        };
        if made.kind != FileKind::Regular {
            return self.fs.make(&ROOT, dir, made.name, &new, false).map(|_| true);
        }
        match made.pieces.as_slice() {
            [] => self.fs.make(&ROOT, dir, made.name, &new, false).map(|_| true),
            [Piece { source: PieceSource::Bytes(bytes), .. }] => {
                let new = NewFile { content: bytes, ..new };
                self.fs.make(&ROOT, dir, made.name, &new, false).map(|_| true)
            }
            pieces => match self.joined(pieces)? {
                Some(content) => self.make_of(dir, made.name, &new, &content).map(|()| true),
                None => {
                    self.fs.make(&ROOT, dir, made.name, &NewFile { set: None, ..new }, false).map(|_| false)
                }
            },
        }
    }

    /// The content of pieces that are all in the data. It consists of slices, or it is short. `None` for all
    /// other pieces: `write` takes them step by step.
    fn joined(&mut self, pieces: &[Piece<'_>]) -> Result<Option<YankedSlice>, FsError> {
        let mut parts = Parts::default();
        for piece in pieces {
            let PieceSource::Data(position) = piece.source else { return Ok(None) };
            parts.push(self.data.part(position, piece.len_bytes)?);
            if parts.are_many() {
                return Ok(None);
            }
        }
        let content = YankedSlice::join(&parts.values)?;
        let is_short = |content: &YankedSlice| content.len_bytes() <= INLINE_BYTES_MAX as u64;
        Ok(content.filter(|content| content.is_of_slices() || is_short(content)))
    }

    /// Makes a regular file with a value as its content.
    fn make_of(
        &self,
        dir: &NodeRef,
        name: &[u8],
        new: &NewFile<'_>,
        content: &YankedSlice,
    ) -> Result<(), FsError> {
        let now = self.fs.use_slice(content)?;
        let pin = self.fs.pin_to_commit()?;
        let in_use = content.in_use(now)?;
        let slices: Option<Vec<SlicePtr>> = in_use
            .pieces(0)
            .iter()
            .map(|piece| match piece.source {
                ExtentSource::Slice(segment, offset_bytes) => {
                    let len_bytes = u32::try_from(piece.len).ok()?;
                    Some(SlicePtr { segment, offset_bytes, len_bytes })
                }
                _ => None,
            })
            .collect();
        if let Some(slices) = slices {
            let source = WriteSource::Slices(slices);
            return self.fs.make_source(&ROOT, dir, name, new, &source, false).map(drop);
        }
        // A part of the spool is so short that its metadata holds its bytes. So is the content (`joined`).
        let mut bytes = vec![0; usize::try_from(content.len_bytes()).map_err(|_| FsError::FileTooLarge)?];
        self.fs.read_yanked_slice(content, 0, &mut bytes)?;
        drop((in_use, pin));
        self.fs.make(&ROOT, dir, name, &NewFile { content: &bytes, ..*new }, false).map(drop)
    }

    fn write(&mut self, offset: u64, pieces: &[Piece<'_>]) -> Result<(), FsError> {
        let file = self.file()?;
        let mut at = offset;
        let mut parts = Parts::default();
        let mut parts_at = offset;
        for piece in pieces {
            let PieceSource::Data(position) = piece.source else {
                self.paste(&file, parts_at, &mut parts)?;
                self.write_piece(&file, at, piece)?;
                at += piece.len_bytes;
                parts_at = at;
                continue;
            };
            parts.push(self.data.part(position, piece.len_bytes)?);
            at += piece.len_bytes;
            if parts.are_many() {
                self.paste(&file, parts_at, &mut parts)?;
                parts_at = at;
            }
        }
        self.paste(&file, parts_at, &mut parts)?;
        if self.fs.getattr(&file).size_bytes < at {
            // The last piece is a hole.
            self.fs.truncate(&ROOT, &file, at)?;
        }
        Ok(())
    }

    fn paste(&self, file: &NodeRef, at: u64, parts: &mut Parts) -> Result<(), FsError> {
        if let Some(content) = YankedSlice::join(&std::mem::take(parts).values)? {
            self.fs.paste(&ROOT, file, Position::At(at), &content)?;
        }
        Ok(())
    }

    fn write_piece(&self, file: &NodeRef, at: u64, piece: &Piece<'_>) -> Result<(), FsError> {
        match piece.source {
            PieceSource::Bytes(bytes) => self.fs.write(&ROOT, file, Position::At(at), bytes).map(drop),
            // Past the end there is nothing to make a hole in.
            PieceSource::Hole if self.fs.getattr(file).size_bytes > at => {
                self.fs.fallocate(&ROOT, file, AllocMode::PunchHole, at, piece.len_bytes)
            }
            PieceSource::Hole => Ok(()),
            PieceSource::Data(_) => unreachable!("pasted by the caller"),
        }
    }

    fn set_attributes(&mut self, attributes: &FileAttributes) -> Result<(), FsError> {
        let file = self.file()?;
        let has = self.fs.getattr(&file);
        let mut set = all_attributes(file.kind(), attributes);
        // Setting the owner, even to the same one, removes capabilities.
        if (has.uid, has.gid) == (attributes.uid, attributes.gid) {
            (set.uid, set.gid) = (None, None);
        }
        self.fs.set_attributes(&ROOT, &file, &set)
    }
}

fn all_attributes(kind: FileKind, attributes: &FileAttributes) -> SetAttr {
    SetAttr {
        mode: (kind != FileKind::Symlink).then_some(u32::from(attributes.permissions)),
        uid: Some(attributes.uid),
        gid: Some(attributes.gid),
        size_bytes: None,
        atime: Some(SetTime::At(timestamp(attributes.atime))),
        mtime: Some(SetTime::At(timestamp(attributes.mtime))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::world;

    #[test]
    fn a_tree_of_a_stream_has_a_greatest_depth() {
        let fs = world();
        let root = fs.root();
        let data = SpoolData::new(&fs, NodeRef::clone(&root), 0);
        let mut builder = TreeBuilder::new(&fs, NodeRef::clone(&root), NodeRef::clone(&root), data).unwrap();
        fs.mkdir(&ROOT, &root, b"d", NewMode::exact(0o755)).unwrap();
        let level = || TreeLevel { dir: NodeRef::clone(&root), has_default_acl: false };
        builder.levels.resize_with(DEPTH_MAX as usize - 1, level);
        builder.apply(&StreamRecord::Enter(b"d")).unwrap();
        builder.apply(&StreamRecord::Up(1)).unwrap();
        builder.levels.push(level());
        let refused = builder.apply(&StreamRecord::Enter(b"d"));
        assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
    }
}
