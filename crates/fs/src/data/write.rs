//! Writing to files.

use warpfire_meta::{Admit, Storage};

use super::check_regular;
use super::piece::{FilePiece, RecordedContent, WriteSource};
use crate::acl::Caller;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::FILE_BYTES_MAX;
use crate::node::{Layout, NodeRef, NodeState};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

/// The offset of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// At this offset.
    At(u64),
    /// At the end of the file at the time of the write.
    End,
}

impl<E: Storage> Fs<E> {
    /// Writes all of `data` in one commit. Returns the offset of its first byte. Removes set-id bits and
    /// capabilities of the file as the kernel does.
    ///
    /// # Errors
    /// `FileTooLarge` if it would end beyond 2^63 - 1; `NoSpace`; `IsDirectory`; `Invalid` for a node without
    /// content. Nothing is written then.
    pub fn write(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        position: Position,
        data: &[u8],
    ) -> Result<u64, FsError> {
        self.write_data(caller, node, position, data, true)
    }

    /// As `write` at the end, without an answer. In a transaction such an append does not conflict with
    /// appends of others: the offset is no part of its answer.
    ///
    /// # Errors
    /// As `write`.
    pub fn append(&self, caller: &Caller<'_>, node: &NodeRef, data: &[u8]) -> Result<(), FsError> {
        self.write_data(caller, node, Position::End, data, false).map(drop)
    }

    /// Makes `data` the whole content of a file. It is one commit: a reader and a crash find the old content
    /// or the new one. Only a file that loses more than 2^18 regions (256 GiB of data) becomes shorter in
    /// steps first, as by `truncate`.
    ///
    /// # Errors
    /// As `write`. Nothing is written then; a file of more than 2^18 regions may already be shorter.
    pub fn overwrite(&self, caller: &Caller<'_>, node: &NodeRef, data: &[u8]) -> Result<(), FsError> {
        check_regular(node)?;
        check_end(0, data.len() as u64)?;
        let source = WriteSource::stage(&*self.engine, data, Admit::User)?;
        let written = self.overwrite_source(caller, node, &source);
        // As in `write_beside_reserved`.
        source.release(&*self.engine);
        written
    }

    fn overwrite_source(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        source: &WriteSource<'_>,
    ) -> Result<(), FsError> {
        let record = || OverwriteContent {
            caller: RecordedCaller::of(caller),
            node: node.ino(),
            content: RecordedContent::of(source),
        };
        self.call(record, || {
            let len = source.len();
            self.truncate_to_one_commit(caller, node, len)?;
            let mut scratch = Scratch::take();
            let mut state = node.state.write();
            let mut pieces = source.pieces(0);
            let end = state.extents_end();
            if len < end {
                pieces.push(FilePiece::hole(len, end - len));
            }
            let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
            let admit = if self.frees_room(node, &state, source)? { Admit::Reserve } else { Admit::User };
            self.apply_pieces(node, &mut state, &pieces, len, edit, &mut scratch.batch, admit)
        })
    }

    /// Whether a full pool gets room by this content in the place of a file's: a few bytes for many more.
    fn frees_room(
        &self,
        node: &NodeRef,
        state: &NodeState,
        source: &WriteSource<'_>,
    ) -> Result<bool, FsError> {
        let len = source.len();
        if state.layout == Layout::Inline
            || !matches!(source, WriteSource::Bytes(_))
            || self.engine.has_room(len, Admit::User)
        {
            return Ok(false);
        }
        let before = self.allocated_in(node, state, 0, state.extents_end())?;
        Ok(before.allocated()? > 2 * len)
    }

    fn write_data(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        position: Position,
        data: &[u8],
        wants_result: bool,
    ) -> Result<u64, FsError> {
        check_regular(node)?;
        if let Position::At(offset) = position {
            check_end(offset, data.len() as u64)?;
        }
        let has_reserved = self.has_reserved(node);
        // With room for all, a write of reserved bytes is like any other.
        if has_reserved
            && !self.engine.has_room(data.len() as u64, Admit::User)
            && let Some(offset) = self.write_reserved(caller, node, position, data)?
        {
            return Ok(offset);
        }
        match self.write_beside_reserved(caller, node, position, data, wants_result) {
            // Other writes may have taken the room in between.
            Err(FsError::NoSpace) if has_reserved => {
                self.write_reserved(caller, node, position, data)?.ok_or(FsError::NoSpace)
            }
            written => written,
        }
    }

    /// Writes data beside the room that is kept for reserved bytes.
    fn write_beside_reserved(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        position: Position,
        data: &[u8],
        wants_result: bool,
    ) -> Result<u64, FsError> {
        // Long data is written before the file is locked: other calls on the file do not wait for the device.
        let source = WriteSource::stage(&*self.engine, data, Admit::User)?;
        let written = self.write_source(caller, node, position, &source, wants_result);
        // The commit took references of its own, and after an error the bytes belong to nobody.
        source.release(&*self.engine);
        written
    }

    /// Whether a write to this file may claim reserved bytes. In a transaction none may: it keeps the old
    /// bytes beside the new ones until it ends.
    fn has_reserved(&self, node: &NodeRef) -> bool {
        self.deferred.has_reserved()
            && !self.call_gate.is_transaction()
            && node.state.read().attrs.reserved_bytes > 0
    }

    /// Writes data into the room that is kept for it, on a pool without other room. Returns the offset, or
    /// `None` if a part of the range is a hole, or no part of it is reserved: then nothing was promised.
    ///
    /// The file stays locked from the look at its extents to the commit. So two writes never claim the same
    /// reserved bytes.
    fn write_reserved(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        position: Position,
        data: &[u8],
    ) -> Result<Option<u64>, FsError> {
        debug_assert!(!self.call_gate.is_transaction(), "a transaction claims no reserved bytes");
        let _guard = self.enter_unrecorded();
        let mut scratch = Scratch::take();
        let mut state = node.state.write();
        let size = state.attrs.size_bytes;
        let len = data.len() as u64;
        let offset = match position {
            Position::At(offset) => offset,
            Position::End => size,
        };
        let end = check_end(offset, len)?;
        let before = self.allocated_in(node, &state, offset, end.min(state.extents_end()))?;
        if before.reserved == 0 || before.allocated()? < len {
            return Ok(None);
        }
        let claimed = before.reserved.cast_signed();
        let admit = Admit::Reserved(before.reserved);
        self.engine.add_reserved(-claimed);
        let written = WriteSource::stage(&*self.engine, data, admit).and_then(|source| {
            let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
            let pieces = source.pieces(offset);
            let (after, batch) = (size.max(end), &mut scratch.batch);
            let written = self.apply_pieces(node, &mut state, &pieces, after, edit, batch, admit);
            source.release(&*self.engine);
            written
        });
        // The commit returns the claim; without one it is returned here.
        if written.is_err() {
            self.engine.add_reserved(claimed);
        }
        written.map(|()| Some(offset))
    }

    /// As `write`, of a staged source. With `wants_result` the offset is part of the answer; without it the
    /// answer is 0.
    pub(crate) fn write_source(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        position: Position,
        source: &WriteSource<'_>,
        wants_result: bool,
    ) -> Result<u64, FsError> {
        let record = || WriteContent {
            caller: RecordedCaller::of(caller),
            node: node.ino(),
            position,
            content: RecordedContent::of(source),
            wants_result,
        };
        let run = || {
            let offset = self.write_staged(caller, node, position, source)?;
            Ok(if wants_result { offset } else { 0 })
        };
        self.call(record, run)
    }

    fn write_staged(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        position: Position,
        source: &WriteSource<'_>,
    ) -> Result<u64, FsError> {
        // From here on the file is locked, so its size is the one that the commit changes.
        let mut scratch = Scratch::take();
        let mut state = node.state.write();
        let size = state.attrs.size_bytes;
        let offset = match position {
            Position::At(offset) => offset,
            Position::End => size,
        };
        let len = source.len();
        if len == 0 {
            return Ok(offset);
        }
        let end = check_end(offset, len)?;
        let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
        let pieces = source.pieces(offset);
        debug_assert_eq!(pieces.last().map(|piece| piece.end()), Some(end), "the pieces hold all the data");
        self.apply_pieces(node, &mut state, &pieces, size.max(end), edit, &mut scratch.batch, Admit::User)?;
        Ok(offset)
    }
}

/// The end of a range in bytes.
///
/// # Errors
/// `FileTooLarge` if it is beyond 2^63 - 1.
pub(crate) fn check_end(offset: u64, len: u64) -> Result<u64, FsError> {
    offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX).ok_or(FsError::FileTooLarge)
}

/// The journal's form of [`Fs::write_source`].
struct WriteContent {
    caller: RecordedCaller,
    node: u64,
    position: Position,
    content: RecordedContent,
    /// Whether the offset is part of the answer.
    wants_result: bool,
}

impl<E: Storage> Operation<Fs<E>> for WriteContent {
    fn name(&self) -> &'static str {
        "write"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.content.heap_bytes()
    }

    fn content_bytes(&self) -> usize {
        self.content.content_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let source = self.content.source();
        let node = scene.node(self.node)?;
        fs.write_source(&self.caller.get(), node, self.position, &source, self.wants_result).map(drop)
    }
}

/// The journal's form of [`Fs::overwrite`].
struct OverwriteContent {
    caller: RecordedCaller,
    node: u64,
    content: RecordedContent,
}

impl<E: Storage> Operation<Fs<E>> for OverwriteContent {
    fn name(&self) -> &'static str {
        "overwrite"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.content.heap_bytes()
    }

    fn content_bytes(&self) -> usize {
        self.content.content_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.overwrite_source(&self.caller.get(), scene.node(self.node)?, &self.content.source())
    }
}
