//! `fallocate`: to reserve, punch, zero, insert or collapse a range.

use warpfire_meta::{Admit, Storage};

use super::check_regular;
use super::piece::FilePiece;
use super::splice::Splice;
use super::write::check_end;
use crate::acl::Caller;
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::NodeRef;
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

/// The change of [`Fs::fallocate`] to a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocMode {
    /// Check that there is room; the file grows to the end of the range.
    Allocate,
    /// Check that there is room; the size stays.
    KeepSize,
    /// Make a hole; the size stays.
    PunchHole,
    /// Make zeros; the file grows to the end of the range unless `keep_size`.
    ZeroRange {
        /// The size stays.
        keep_size: bool,
    },
    /// Insert a hole; the bytes behind it move up. Any offset and length will do.
    Insert,
    /// Remove the range; the bytes behind it move down. Any offset and length will do.
    Collapse,
}

impl<E: Storage> Fs<E> {
    /// Changes how a range of a file is stored; offset and length are in bytes. No data is read or moved.
    /// Room is checked and not reserved: the next writer, of any file, may use it.
    ///
    /// # Errors
    /// `Invalid` for an empty range, or for one that does not end before the end of the file where `Insert`
    /// and `Collapse` need that; `FileTooLarge`; `NoSpace`.
    pub fn fallocate(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        mode: AllocMode,
        offset: u64,
        len: u64,
    ) -> Result<(), FsError> {
        let record = || Allocate { caller: RecordedCaller::of(caller), node: node.ino(), mode, offset, len };
        self.call(record, || {
            check_regular(node)?;
            if len == 0 {
                return Err(FsError::Invalid("the range is empty"));
            }
            let end = check_end(offset, len)?;
            if matches!(mode, AllocMode::Allocate | AllocMode::KeepSize)
                && self.statfs()?.available_bytes < len
            {
                return Err(FsError::NoSpace);
            }
            let mut scratch = Scratch::take();
            let mut state = node.state.write();
            let size = state.attrs.size_bytes;
            let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
            let batch = &mut scratch.batch;
            match mode {
                AllocMode::Insert if offset >= size => {
                    return Err(FsError::Invalid("a range is inserted before the end of the file"));
                }
                AllocMode::Insert => {
                    check_end(size, len)?;
                    let splice = Splice { start: offset, from: offset, to: end, inserted: &[] };
                    return self.splice(node, &mut state, &splice, edit, batch);
                }
                AllocMode::Collapse if end >= size => {
                    return Err(FsError::Invalid(
                        "a range that is collapsed ends before the end of the file",
                    ));
                }
                AllocMode::Collapse => {
                    let splice = Splice { start: offset, from: end, to: offset, inserted: &[] };
                    return self.splice(node, &mut state, &splice, edit, batch);
                }
                _ => {}
            }
            let grows = match mode {
                AllocMode::Allocate => true,
                AllocMode::ZeroRange { keep_size } => !keep_size,
                _ => false,
            };
            // From here on the file keeps its bytes in place: it grows by a hole, or a hole covers the range.
            let size_after = if grows { size.max(end) } else { size };
            let punches = matches!(mode, AllocMode::PunchHole | AllocMode::ZeroRange { .. }) && offset < size;
            let hole = [FilePiece::hole(offset, end.min(size).saturating_sub(offset))];
            let pieces = if punches { &hole[..] } else { &[] };
            debug_assert!(size_after >= size, "no mode but collapsing makes a file shorter");
            // Punching makes room, so a full pool allows it.
            let admit = if grows { Admit::User } else { Admit::Reserve };
            self.apply_pieces(node, &mut state, pieces, size_after, edit, batch, admit)
        })
    }
}

/// The journal's form of [`Fs::fallocate`].
struct Allocate {
    caller: RecordedCaller,
    node: u64,
    mode: AllocMode,
    offset: u64,
    len: u64,
}

impl<E: Storage> Operation<Fs<E>> for Allocate {
    fn name(&self) -> &'static str {
        "allocate"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        fs.fallocate(&self.caller.get(), scene.node(self.node)?, self.mode, self.offset, self.len)
    }
}
