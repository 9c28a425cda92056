//! `fallocate`: to reserve, punch, zero, insert or collapse a range.
//!
//! # Terms
//! A *reserved* range reads as zeros and shows as a hole, as unwritten extents do elsewhere. Its bytes are
//! allocated. The engine keeps room for them: an amount, not a place, because the log only appends.
//!
//! # Invariants
//! 1. After success of `Allocate` or `KeepSize`, every byte of the range has data or is reserved
//!    (`tests::reserved`, `tests::file_model`).
//! 2. The first write of a reserved byte does not fail for want of room, and does not change the allocated
//!    bytes of its file. Later writes of it need room of their own, as every overwrite does
//!    (`tests::reserved`).
//! 3. Data that is there already needs no room: a range without holes is allocated on a full pool too
//!    (`tests::reserved`).
//! 4. A call that is refused for want of room has reserved nothing (`tests::reserved`). Only a range with
//!    holes in more than 2^18 regions (256 GiB) is reserved in steps, and another writer can take the room
//!    between two of them.
//! 5. Inside a transaction a call changes only the transaction. Its commit reserves, and fails with `NoSpace`
//!    if there is no room then.

use warpfire_format::fs::REGION_BYTES;
use warpfire_meta::{Admit, Storage, room_of_reserved};

use super::check_regular;
use super::piece::FilePiece;
use super::splice::Splice;
use super::write::check_end;
use crate::acl::Caller;
use crate::error::FsError;
use crate::fs::Fs;
use crate::limits::REGIONS_PER_COMMIT;
use crate::node::{Node, NodeRef, NodeState};
use crate::op::{HeapBytes, Operation, RecordedCaller, ReplayScene};
use crate::scratch::Scratch;

const REGION: u64 = REGION_BYTES as u64;

/// The change of [`Fs::fallocate`] to a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocMode {
    /// Reserve the holes of the range; the file grows to its end.
    Allocate,
    /// Reserve the holes of the range, also past the end of the file; the size stays.
    KeepSize,
    /// Make a hole; the size stays.
    PunchHole,
    /// Make zeros and reserve the range; the file grows to the end of the range unless `keep_size`.
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
    ///
    /// # Errors
    /// `Invalid` for an empty range, or for one that does not end before the end of the file where `Insert`
    /// and `Collapse` need that; `NoSpace`; `FileTooLarge` beyond 2^63 - 1, and for `Insert` and `Collapse`
    /// where more than 2^18 regions (256 GiB of data) would move. They are one commit, since a file with half
    /// of its bytes moved is of no use after a crash, and a commit is held in memory whole.
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
            // A range may take several commits, so each mode locks the file for itself.
            match mode {
                AllocMode::Allocate => self.reserve_range(caller, node, (offset, end), true, false),
                AllocMode::KeepSize => self.reserve_range(caller, node, (offset, end), false, false),
                AllocMode::ZeroRange { keep_size } => {
                    self.reserve_range(caller, node, (offset, end), !keep_size, true)
                }
                AllocMode::PunchHole => self.punch(caller, node, offset, end),
                AllocMode::Insert | AllocMode::Collapse => self.shift(caller, node, mode, offset, end),
            }
        })
    }

    /// Inserts or removes the range `offset..end`.
    fn shift(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        mode: AllocMode,
        offset: u64,
        end: u64,
    ) -> Result<(), FsError> {
        let _pin = self.pin_to_commit()?;
        let mut scratch = Scratch::take();
        let mut state = node.state.write();
        let size = state.attrs.size_bytes;
        let splice = match mode {
            AllocMode::Insert if offset >= size => {
                return Err(FsError::Invalid("a range is inserted before the end of the file"));
            }
            AllocMode::Insert => {
                check_end(size, end - offset)?;
                Splice { start: offset, from: offset, to: end, inserted: &[] }
            }
            _ if end >= size => {
                return Err(FsError::Invalid("a range that is collapsed ends before the end of the file"));
            }
            _ => Splice { start: offset, from: end, to: offset, inserted: &[] },
        };
        // In one commit: a step in between would show a file that no call has made.
        let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
        self.splice(node, &mut state, &splice, edit, &mut scratch.batch)
    }

    /// Makes a hole of the range `start..end`, from its start on in as many commits as it takes. Each of them
    /// removes at most 2^18 regions.
    fn punch(&self, caller: &Caller<'_>, node: &NodeRef, start: u64, end: u64) -> Result<(), FsError> {
        let mut at = start;
        loop {
            let mut scratch = Scratch::take();
            let mut state = node.state.write();
            let end = end.min(state.extents_end());
            let mut until = end;
            if end.saturating_sub(at) / REGION > REGIONS_PER_COMMIT as u64 {
                let regions = self.regions_from(node.ino(), at / REGION, end, REGIONS_PER_COMMIT + 1)?;
                until = regions.get(REGIONS_PER_COMMIT).map_or(end, |index| index * REGION);
            }
            let hole = [FilePiece::hole(at, until.saturating_sub(at))];
            let pieces = if at < until { &hole[..] } else { &[] };
            let size = state.attrs.size_bytes;
            let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
            // Punching makes room, so a full pool allows it.
            self.apply_pieces(node, &mut state, pieces, size, edit, &mut scratch.batch, Admit::Reserve)?;
            if until == end {
                return Ok(());
            }
            assert!(at < until, "each step goes on behind the one before");
            at = until;
        }
    }

    /// Reserves the holes of the range `start..end`; with `zero` all of it, and the data there goes.
    fn reserve_range(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        (start, end): (u64, u64),
        grows: bool,
        zero: bool,
    ) -> Result<(), FsError> {
        let mut at = start;
        let mut is_first = true;
        while at < end {
            let mut scratch = Scratch::take();
            let mut state = node.state.write();
            // Before any step: more than the pool can ever hold is refused as a whole.
            if is_first {
                let before = self.allocated_in(node, &state, at, end)?;
                let kept = if zero { before.reserved } else { before.allocated()? };
                let wanted = (end - at).saturating_sub(kept);
                if wanted > 0 && self.statfs()?.available_bytes < room_of_reserved(wanted) {
                    return Err(FsError::NoSpace);
                }
                is_first = false;
            }
            let until = end.min((at / REGION + REGIONS_PER_COMMIT as u64) * REGION);
            let pieces = if zero {
                vec![FilePiece::reserved(at, until - at)]
            } else {
                self.holes_in(node, &state, at, until)?
            };
            let size = state.attrs.size_bytes;
            let size = if grows { size.max(until) } else { size };
            let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
            // With nothing to reserve the call needs no room, whether or not the pool is full.
            let admit = if pieces.is_empty() { Admit::Reserve } else { Admit::User };
            self.apply_pieces(node, &mut state, &pieces, size, edit, &mut scratch.batch, admit)?;
            at = until;
        }
        Ok(())
    }

    /// The holes of a range, as pieces that reserve them.
    fn holes_in(
        &self,
        node: &Node,
        state: &NodeState,
        start: u64,
        end: u64,
    ) -> Result<Vec<FilePiece<'static>>, FsError> {
        let mut holes = Vec::new();
        let mut at = start;
        self.for_each_extent(node, state, start, end, &mut |piece| {
            debug_assert!(at <= piece.offset, "extents are visited in order");
            if at < piece.offset {
                holes.push(FilePiece::reserved(at, piece.offset - at));
            }
            at = piece.end();
            Ok(true)
        })?;
        if at < end {
            holes.push(FilePiece::reserved(at, end - at));
        }
        Ok(holes)
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
