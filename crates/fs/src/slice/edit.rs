//! Calls that paste, insert and remove: pointers of one file change, and no data moves.

use warpfire_meta::{Admit, Storage};

use super::yanked_slice::YankedSlice;
use crate::acl::Caller;
use crate::data::{FilePiece, Position, Splice, check_end, check_regular};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::NodeRef;
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

/// The content that [`Fs::insert_range`] inserts.
#[derive(Clone, Copy, Debug)]
pub enum InsertSource<'y> {
    /// Zeros: this many bytes.
    Hole(u64),
    /// A value that was yanked from a file.
    Slice(&'y YankedSlice),
}

impl InsertSource<'_> {
    fn len_bytes(&self) -> u64 {
        match self {
            InsertSource::Hole(len_bytes) => *len_bytes,
            InsertSource::Slice(slice) => slice.len_bytes(),
        }
    }
}

impl<E: Storage> Fs<E> {
    /// Writes a value, holes included, in one commit. Returns the offset of its first byte.
    ///
    /// # Errors
    /// `ForeignSlice`, `LeaseExpired`; `FileTooLarge` beyond 2^63 - 1 and for more than 2^18 regions;
    /// otherwise as `write`.
    pub fn paste(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        position: Position,
        slice: &YankedSlice,
    ) -> Result<u64, FsError> {
        let record = || PasteSlice {
            caller: RecordedCaller::of(caller),
            node: node.ino(),
            position,
            slice: slice.clone(),
        };
        self.call(record, || {
            check_regular(node)?;
            let now = self.use_slice(slice)?;
            self.change_with_pin(|| {
                let _pin = self.pin_to_commit()?;
                let mut scratch = Scratch::take();
                let mut state = node.state.write();
                let offset = match position {
                    Position::At(offset) => offset,
                    Position::End => state.attrs.size_bytes,
                };
                let end = check_end(offset, slice.len_bytes())?;
                // Until the commit counts the bytes: a lease may expire while the commit waits for room.
                let in_use = slice.in_use(now)?;
                let pieces = in_use.pieces(offset);
                if !pieces.is_empty() {
                    let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
                    let size_after = state.attrs.size_bytes.max(end);
                    self.apply_pieces(
                        node,
                        &mut state,
                        &pieces,
                        size_after,
                        edit,
                        &mut scratch.batch,
                        Admit::User,
                    )?;
                }
                Ok(offset)
            })
        })
    }

    /// Inserts a value or a hole into a file, in one commit: the bytes from `offset` on move up by its
    /// length.
    ///
    /// # Errors
    /// `Invalid` past the end of the file; as `paste`, where all regions from `offset` on count.
    pub fn insert_range(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        offset: u64,
        inserted: InsertSource<'_>,
    ) -> Result<(), FsError> {
        let record = || InsertRange {
            caller: RecordedCaller::of(caller),
            node: node.ino(),
            offset,
            inserted: RecordedInsert::of(&inserted),
        };
        self.call(record, || {
            check_regular(node)?;
            let now = match inserted {
                InsertSource::Slice(slice) => self.use_slice(slice)?,
                InsertSource::Hole(_) => self.lease_time(),
            };
            self.change_with_pin(|| {
                let _pin = self.pin_to_commit()?;
                let mut scratch = Scratch::take();
                let mut state = node.state.write();
                let size = state.attrs.size_bytes;
                let len = inserted.len_bytes();
                if offset > size {
                    return Err(FsError::Invalid("a range is inserted within the file or at its end"));
                }
                let size_after = check_end(size, len)?;
                let in_use;
                let pieces = match inserted {
                    InsertSource::Slice(slice) => {
                        in_use = slice.in_use(now)?;
                        in_use.pieces(offset)
                    }
                    InsertSource::Hole(len) => vec![FilePiece::hole(offset, len)],
                };
                // Checked after the value: an empty insertion of an expired value is an error too.
                if len == 0 {
                    return Ok(());
                }
                let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
                if offset == size {
                    // Nothing moves: an append does not write the regions before it anew.
                    return self.apply_pieces(
                        node,
                        &mut state,
                        &pieces,
                        size_after,
                        edit,
                        &mut scratch.batch,
                        Admit::User,
                    );
                }
                let splice = Splice { start: offset, from: offset, to: offset + len, inserted: &pieces };
                self.splice(node, &mut state, &splice, edit, &mut scratch.batch)
            })
        })
    }

    /// Removes a range of a file, in one commit: the bytes behind it move down.
    ///
    /// # Errors
    /// `FileTooLarge` for more than 2^18 regions from `offset` on; `truncate` removes those at the end in
    /// steps.
    pub fn remove_range(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        offset: u64,
        len: u64,
    ) -> Result<(), FsError> {
        let record = || RemoveRange { caller: RecordedCaller::of(caller), node: node.ino(), offset, len };
        self.call(record, || {
            check_regular(node)?;
            let _pin = self.pin_to_commit_as(Admit::Reserve)?;
            let mut scratch = Scratch::take();
            let mut state = node.state.write();
            let size = state.attrs.size_bytes;
            let end = offset.saturating_add(len).min(size);
            if offset >= end {
                return Ok(());
            }
            if end == size {
                // Nothing moves: this is a truncation.
                let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
                let rest = [FilePiece::hole(offset, state.extents_end() - offset)];
                return self.apply_pieces(
                    node,
                    &mut state,
                    &rest,
                    offset,
                    edit,
                    &mut scratch.batch,
                    Admit::Reserve,
                );
            }
            let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
            let splice = Splice { start: offset, from: end, to: offset, inserted: &[] };
            self.splice(node, &mut state, &splice, edit, &mut scratch.batch)
        })
    }
}

/// The journal's form of [`Fs::paste`].
struct PasteSlice {
    caller: RecordedCaller,
    node: u64,
    position: Position,
    slice: YankedSlice,
}

impl<E: Storage> Operation<Fs<E>> for PasteSlice {
    fn name(&self) -> &'static str {
        "paste"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.slice.heap_bytes()
    }

    fn content_bytes(&self) -> usize {
        self.slice.content_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.paste(&self.caller.get(), scene.node(self.node)?, self.position, &self.slice).map(drop)
    }
}

/// The journal's form of [`Fs::insert_range`].
struct InsertRange {
    caller: RecordedCaller,
    node: u64,
    offset: u64,
    inserted: RecordedInsert,
}

impl<E: Storage> Operation<Fs<E>> for InsertRange {
    fn name(&self) -> &'static str {
        "insert a range"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.inserted.heap_bytes()
    }

    fn content_bytes(&self) -> usize {
        self.inserted.content_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.insert_range(&self.caller.get(), scene.node(self.node)?, self.offset, self.inserted.get())
    }
}

/// The journal's form of [`InsertSource`].
enum RecordedInsert {
    Hole(u64),
    Slice(YankedSlice),
}

impl RecordedInsert {
    fn of(inserted: &InsertSource<'_>) -> RecordedInsert {
        match inserted {
            InsertSource::Hole(len_bytes) => RecordedInsert::Hole(*len_bytes),
            InsertSource::Slice(slice) => RecordedInsert::Slice((*slice).clone()),
        }
    }

    fn get(&self) -> InsertSource<'_> {
        match self {
            RecordedInsert::Hole(len_bytes) => InsertSource::Hole(*len_bytes),
            RecordedInsert::Slice(slice) => InsertSource::Slice(slice),
        }
    }

    fn content_bytes(&self) -> usize {
        match self {
            RecordedInsert::Hole(_) => 0,
            RecordedInsert::Slice(slice) => slice.content_bytes(),
        }
    }
}

impl HeapBytes for RecordedInsert {
    fn heap_bytes(&self) -> usize {
        match self {
            RecordedInsert::Hole(_) => 0,
            RecordedInsert::Slice(slice) => slice.heap_bytes(),
        }
    }
}

/// The journal's form of [`Fs::remove_range`].
struct RemoveRange {
    caller: RecordedCaller,
    node: u64,
    offset: u64,
    len: u64,
}

impl<E: Storage> Operation<Fs<E>> for RemoveRange {
    fn name(&self) -> &'static str {
        "remove a range"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.remove_range(&self.caller.get(), scene.node(self.node)?, self.offset, self.len)
    }
}
