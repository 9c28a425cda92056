//! The calls that take, place and move slices.
//!
//! # Invariants
//! 1. A call that uses a value has a pin before it asks whether the value's holds are live, and until its
//!    commit. So a lease that ends in between frees nothing that the commit names (`tests::slices`).
//! 2. Several files are locked in the order of their inode numbers (assert in `concat`).

use std::cell::OnceCell;
use std::time::Duration;

use warpfire_env::Timestamp;
use warpfire_meta::{Admit, SliceRead, Storage};
use warpfire_units::SlicePtr;

use super::compare::pieces_from;
use super::yanked_slice::{YankLimit, YankedSlice};
use crate::acl::Caller;
use crate::data::{FilePiece, Position, Splice, check_end, check_regular, pieces_of};
use crate::error::FsError;
use crate::fs::Fs;
use crate::node::{NodeRef, NodeState, StateReadGuard, StateWriteGuard};
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

/// The state of a file among several that are locked together.
enum LockedState<'n> {
    Source(StateReadGuard<'n>),
    Target(StateWriteGuard<'n>),
}

impl LockedState<'_> {
    fn state(&self) -> &NodeState {
        match self {
            LockedState::Source(state) => state,
            LockedState::Target(state) => state,
        }
    }
}

impl<E: Storage> Fs<E> {
    /// Takes a range of a file as a value, as it is now; offset and length are in bytes. A range past the end
    /// of the file is clipped. The caller of this function checks the permission to read.
    ///
    /// # Errors
    /// `IsDirectory`; `Invalid` for a node without content; `FileTooLarge` for more than 2^18 regions.
    pub fn yank(&self, node: &NodeRef, offset: u64, len: u64) -> Result<YankedSlice, FsError> {
        self.yank_within(node, offset, len, YankLimit::NONE)
    }

    /// As `yank`, within a limit of memory. The limit is checked while the pointers are read, so that a value
    /// beyond it takes no more memory than one within it.
    ///
    /// # Errors
    /// As `yank`, and `FileTooLarge` beyond the limit.
    pub fn yank_within(
        &self,
        node: &NodeRef,
        offset: u64,
        len: u64,
        limit: YankLimit,
    ) -> Result<YankedSlice, FsError> {
        let range = RangeToYank { offset, len, limit };
        let recorded = OnceCell::new();
        let run = || {
            let yanked = self.take_range(node, range)?;
            self.renew_atime_if_due(node)?;
            if self.call_gate.is_transaction() {
                // A lease on the caller's value must not end the bytes that a replay compares with.
                _ = recorded.set(yanked.with_own_hold(&self.engine.holder())?);
            }
            Ok(yanked)
        };
        self.call(|| YankRange { node: node.ino(), range, yanked: recorded.get().cloned() }, run)
    }

    /// As `yank`, for a server that keeps a copy of the file elsewhere and compares it later: this counts as
    /// no access, and a transaction does not have it.
    ///
    /// # Errors
    /// As `yank`.
    pub fn keep_content(&self, node: &NodeRef, offset: u64, len: u64) -> Result<YankedSlice, FsError> {
        assert!(!self.call_gate.is_transaction(), "only the base is compared with copies");
        let _guard = self.call_gate.enter();
        self.take_range(node, RangeToYank { offset, len, limit: YankLimit::NONE })
    }

    fn take_range(&self, node: &NodeRef, range: RangeToYank) -> Result<YankedSlice, FsError> {
        let RangeToYank { offset, len, limit } = range;
        check_regular(node)?;
        self.leases.expire(self.lease_time());
        // The pin keeps the bytes from the read of their pointers until the value holds them.
        let _pin = self.engine.pin()?;
        let state = node.state.read();
        let end = offset.saturating_add(len).min(state.attrs.size_bytes);
        let yanked = if offset < end {
            let values = self.values_within(node, &state, offset, end, limit)?;
            YankedSlice::take(&self.engine.holder(), &pieces_of(&values, offset, end, 0)?)?
        } else {
            YankedSlice::take(&self.engine.holder(), &[])?
        };
        debug_assert_eq!(yanked.len_bytes(), end.saturating_sub(offset), "the value is the whole range");
        Ok(yanked)
    }

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

    /// Makes a value the whole content of a file, in one commit.
    ///
    /// # Errors
    /// As `paste`, where the file's own regions count too.
    pub fn replace_content(
        &self,
        caller: &Caller<'_>,
        node: &NodeRef,
        slice: &YankedSlice,
    ) -> Result<(), FsError> {
        let record =
            || ReplaceContent { caller: RecordedCaller::of(caller), node: node.ino(), slice: slice.clone() };
        self.call(record, || {
            check_regular(node)?;
            let now = self.use_slice(slice)?;
            let _pin = self.pin_to_commit()?;
            let mut scratch = Scratch::take();
            let mut state = node.state.write();
            let len = check_end(0, slice.len_bytes())?;
            let in_use = slice.in_use(now)?;
            let pieces = in_use.pieces(0);
            let edit = self.edit_of_write(caller, node, &state, &mut scratch.batch);
            // Everything is removed, and nothing moves.
            let splice = Splice { start: 0, from: state.attrs.size_bytes, to: len, inserted: &pieces };
            self.splice(node, &mut state, &splice, edit, &mut scratch.batch)
        })
    }

    /// Makes the contents of `sources`, one after the other, the content of `target`: as of one moment, in
    /// one commit. `target` may be one of the sources. With one source this is `copy`. Returns the length in
    /// bytes.
    ///
    /// # Errors
    /// `FileTooLarge` beyond 2^63 - 1, or if target and sources have more than 2^18 regions; otherwise as
    /// `write`.
    pub fn concat(&self, caller: &Caller<'_>, target: &NodeRef, sources: &[NodeRef]) -> Result<u64, FsError> {
        let record = || Concatenate {
            caller: RecordedCaller::of(caller),
            target: target.ino(),
            sources: sources.iter().map(|source| source.ino()).collect(),
        };
        self.call(record, || {
            check_regular(target)?;
            sources.iter().try_for_each(|source| check_regular(source))?;
            let _pin = self.pin_to_commit()?;
            // All files are locked at the same time, so that the result is of one moment. Each is locked
            // once, in the order of inode numbers: that is the order of every call that locks several.
            let mut files: Vec<&NodeRef> = sources.iter().chain([target]).collect();
            files.sort_unstable_by_key(|node| node.ino());
            files.dedup_by_key(|node| node.ino());
            debug_assert!(
                files.is_sorted_by(|a, b| a.ino() < b.ino()),
                "files are locked in the order of their inode numbers, each once"
            );
            let mut held: Vec<LockedState<'_>> = files
                .iter()
                .map(|node| match node.ino() == target.ino() {
                    true => LockedState::Target(node.state.write()),
                    false => LockedState::Source(node.state.read()),
                })
                .collect();
            let place = |node: &NodeRef| {
                files.binary_search_by_key(&node.ino(), |file| file.ino()).expect("every file is among them")
            };
            // All values are read before the first is written: the target may be a source.
            let mut values = Vec::with_capacity(sources.len());
            let mut len = 0;
            for source in sources {
                let state = held.get(place(source)).expect("every file is locked").state();
                let size = state.attrs.size_bytes;
                len = check_end(len, size)?;
                values.push((size, self.values_of(source, state, 0, size)?));
            }
            let mut pieces = Vec::new();
            let mut at = 0;
            for (size, values) in &values {
                pieces.extend(pieces_of(values, 0, *size, at)?);
                at += size;
            }
            debug_assert_eq!(at, len, "the sources are as long as when they were read");
            let mut scratch = Scratch::take();
            let Some(LockedState::Target(state)) = held.get_mut(place(target)) else {
                unreachable!("the target is locked for writing")
            };
            let edit = self.edit_of_write(caller, target, state, &mut scratch.batch);
            let splice = Splice { start: 0, from: state.attrs.size_bytes, to: len, inserted: &pieces };
            self.splice(target, state, &splice, edit, &mut scratch.batch)?;
            // Renewing access times locks the sources again.
            drop(held);
            sources.iter().try_for_each(|source| self.renew_atime_if_due(source))?;
            Ok(len)
        })
    }

    /// Fills `buf` with a value's bytes, from the offset `at` in the value on. Returns the number of bytes,
    /// which is less than `buf` has only at the end of the value.
    ///
    /// # Errors
    /// `ForeignSlice`, `LeaseExpired`; `Damaged` if bytes cannot be read.
    pub fn read_yanked_slice(&self, slice: &YankedSlice, at: u64, buf: &mut [u8]) -> Result<usize, FsError> {
        let now = self.use_slice(slice)?;
        let _pin = self.engine.pin()?;
        self.read_pieces(&slice.in_use(now)?.pieces(0), at, buf)
    }

    /// Fills `buf` with the bytes of pieces that follow each other, from the offset `at` on. Returns the
    /// number of bytes. The caller has a pin.
    pub(super) fn read_pieces(
        &self,
        pieces: &[FilePiece<'_>],
        at: u64,
        buf: &mut [u8],
    ) -> Result<usize, FsError> {
        // Holes and inline bytes are copied at once; slices are collected, so that the devices get one batch.
        let end = at.saturating_add(buf.len() as u64);
        let pieces = pieces_from(pieces, at).iter().map_while(|piece| piece.clip(at, end));
        let mut reads: Vec<SliceRead<'_>> = Vec::new();
        let mut rest = buf;
        let mut done = 0;
        for piece in pieces {
            let (place, behind) = rest.split_at_mut(usize::try_from(piece.len).expect("inside the buffer"));
            done += place.len();
            rest = behind;
            match piece.source {
                warpfire_format::fs::ExtentSource::Hole | warpfire_format::fs::ExtentSource::Reserved => {
                    place.fill(0)
                }
                warpfire_format::fs::ExtentSource::Bytes(bytes) => place.copy_from_slice(bytes),
                warpfire_format::fs::ExtentSource::Slice(segment, offset_bytes) => {
                    let len_bytes = u32::try_from(place.len()).expect("a run of a value is below 4 GiB");
                    reads.push((SlicePtr { segment, offset_bytes, len_bytes }, place));
                }
            }
        }
        self.engine.read(&mut reads)?;
        Ok(done)
    }

    /// Limits how long a value, with all its clones and parts, keeps its bytes: for `time` from now, even if
    /// the value lives longer. A later lease replaces an earlier one. A transaction in which the value was
    /// yanked keeps the bytes until the transaction ends. After the deadline the next call on slices, or the
    /// next `sync`, releases the bytes.
    ///
    /// # Errors
    /// `ForeignSlice`; `LeaseExpired` if the value's time is over already.
    pub fn lease(&self, slice: &YankedSlice, time: Duration) -> Result<(), FsError> {
        let now = self.use_slice(slice)?;
        if slice.holds().any(|hold| !hold.is_live(now)) {
            return Err(FsError::LeaseExpired);
        }
        let until = now.saturating_add(time);
        slice.holds().for_each(|hold| self.leases.add(hold, until));
        Ok(())
    }

    /// Checks that a value is of this pool, and expires leases. Returns the time to compare its leases with.
    pub(crate) fn use_slice(&self, slice: &YankedSlice) -> Result<Timestamp, FsError> {
        if !slice.is_of(&self.engine.holder()) {
            return Err(FsError::ForeignSlice);
        }
        let now = self.lease_time();
        self.leases.expire(now);
        Ok(now)
    }

    /// The time that leases are compared with: that of the monotonic clock, so that a step of the wall clock
    /// neither ends a lease nor makes it longer.
    pub(crate) fn lease_time(&self) -> Timestamp {
        let since_start = Duration::from_nanos(self.clock.monotonic_nanos());
        Timestamp::default().saturating_add(since_start)
    }
}

/// A range to yank, and the most memory that its value may take.
#[derive(Clone, Copy)]
struct RangeToYank {
    offset: u64,
    len: u64,
    limit: YankLimit,
}

/// The journal's form of [`Fs::yank_within`].
struct YankRange {
    node: u64,
    range: RangeToYank,
    /// The value that the caller got, with a hold of its own; `None` if the call failed.
    yanked: Option<YankedSlice>,
}

impl<E: Storage> Operation<Fs<E>> for YankRange {
    fn name(&self) -> &'static str {
        "yank"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.node, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.yanked.heap_bytes()
    }

    fn content_bytes(&self) -> usize {
        self.yanked.as_ref().map_or(0, YankedSlice::content_bytes)
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let RangeToYank { offset, len, limit } = self.range;
        let now = fs.yank_within(scene.node(self.node)?, offset, len, limit)?;
        // Pointers may differ where cleaning or packing moved the bytes, so the values are compared. Bytes
        // that cannot be read are not known to be the same.
        let is_same =
            self.yanked.as_ref().is_some_and(|then| fs.have_same_bytes(then, &now).unwrap_or(false));
        if !is_same {
            scene.note_other_bytes();
        }
        Ok(())
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

/// The journal's form of [`Fs::replace_content`].
struct ReplaceContent {
    caller: RecordedCaller,
    node: u64,
    slice: YankedSlice,
}

impl<E: Storage> Operation<Fs<E>> for ReplaceContent {
    fn name(&self) -> &'static str {
        "replace content"
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
        fs.replace_content(&self.caller.get(), scene.node(self.node)?, &self.slice)
    }
}

/// The journal's form of [`Fs::concat`].
struct Concatenate {
    caller: RecordedCaller,
    target: u64,
    sources: Box<[u64]>,
}

impl<E: Storage> Operation<Fs<E>> for Concatenate {
    fn name(&self) -> &'static str {
        "concatenate"
    }

    fn subject(&self) -> (u64, &[u8]) {
        (self.target, b"")
    }

    fn heap_bytes(&self) -> usize {
        self.caller.heap_bytes() + self.sources.heap_bytes()
    }

    fn replay(&self, fs: &Fs<E>, scene: &mut ReplayScene) -> Result<(), FsError> {
        let sources: Vec<NodeRef> =
            self.sources.iter().map(|ino| scene.node(*ino).cloned()).collect::<Result<_, _>>()?;
        fs.concat(&self.caller.get(), scene.node(self.target)?, &sources).map(drop)
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
