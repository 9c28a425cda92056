//! A transaction as a [`Store`]. Its changes lie over a snapshot of the store below, and only the transaction
//! sees them.
//!
//! Code that works on a [`Store`] works inside a transaction unchanged, and reads its own writes.
//!
//! # Terms
//! The *write set* holds the changes of the transaction, in order. A key's *floor* is its last put or delete
//! in the write set. Operands above the floor fold onto it; without a floor they fold onto the snapshot's
//! value.
//!
//! # Invariants
//! 1. Every read is of the snapshot with the write set over it, at whatever seq it asks for.
//! 2. A key or range that was read from the snapshot is in the read set, missing keys included. A read-only
//!    transaction has no read set.
//! 3. The transaction keeps the slices that it has written and those that its changes name until it ends,
//!    committed or not. It pins no other slice: cleaning may move and free the slices that others replace.
//! 4. Rolling back to a mark restores the write set of that moment (assert in `roll_back`). The read set only
//!    grows: later calls may depend on everything that was read.
//! 5. A sealed or ended transaction neither reads nor changes anything (`open`).
//! 6. Its memory is bounded. Changes beyond a limit are refused (`write_set.rs`), a read set beyond a limit
//!    becomes a read of everything (`read_set.rs`), and beyond a limit inline bytes become slices
//!    (`may_inline`).
//! 7. Its changes, its kept slices and its reads are charged to its account, until it ends or the sealed
//!    changes are dropped. Without room there, changes and reads are refused
//!    (`tests::what_a_transaction_keeps_is_charged_until_it_ends`, `tests::reads_without_room_are_refused`).
//!
//! ```text
//!   open ──seal──► sealed ──► ended      `end`, or dropped
//!     └───────────────────────►
//! ```
//!
//! Calls on one transaction run one after the other: a caller with several threads serialises them. So key
//! locks inside a transaction are empty.

mod scan;
#[cfg(test)]
mod tests;
mod write_set;

use std::cell::Cell;
use std::sync::Arc;

use warpfire_env::sync::{Mutex, MutexGuard};
use warpfire_slices::{Admit, HasSlices, PrivateSlices};
use warpfire_units::Seq;

use crate::batch::{Batch, SUMS};
use crate::memory::{MemoryAccount, MemoryCharge, MemoryNeed};
use crate::read_set::{ReadSet, bytes_of_key, bytes_of_range};
use crate::schema::{OlderValue, Schema};
use crate::store::{CommitError, Direction, KeyRange, MetaError, ScanPage, Storage, Store, SyncPointHook};
use write_set::{KeyWrites, WriteSet};

/// A transaction over a store. [`seal`](TxStore::seal) returns the changes to commit below.
pub struct TxStore<E: Storage, S: Schema> {
    below: Arc<E>,
    slices: Arc<PrivateSlices<E>>,
    schema: S,
    at: Seq,
    state: Mutex<TxState>,
    /// `None` after the end.
    snapshot: Mutex<Option<E::Snapshot>>,
}

struct TxState {
    write_set: WriteSet,
    changes_charge: MemoryCharge,
    /// Memory of the slices that are kept, as of the last change that named one.
    kept_bytes: usize,
    reads: Option<ReadSet>,
    reads_charge: MemoryCharge,
    admit: Admit,
    phase: TxPhase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TxPhase {
    Open,
    Sealed,
    Ended,
}

/// Memory of the changes at which bytes are no longer inline: they become slices at once, except for very
/// short ones.
const INLINE_MEMORY_BYTES_MAX: usize = 8 << 20;

/// Bytes that stay inline even then: a slice pointer takes about as much memory.
const INLINE_ALWAYS_BYTES: usize = 32;

/// Memory of a kept slice: its place among those of the transaction, and in the book of held bytes.
const KEPT_SLICE_BYTES: usize = 128;

/// A moment in a transaction.
#[derive(Clone, Copy, Debug)]
pub struct TxMark {
    ops: usize,
    sums: [i64; SUMS],
    admit: Admit,
}

/// The changes of a transaction, each key once, and its read set. They stay charged until they are dropped.
#[derive(Debug)]
pub struct TxChanges {
    /// The changes.
    pub batch: Batch,
    /// The charge for the changes.
    pub batch_charge: MemoryCharge,
    /// The keys and ranges that were read.
    pub reads: ReadSet,
    /// The charge for `reads`.
    pub reads_charge: MemoryCharge,
    /// Whether they may use the reserve: only if every commit inside was allowed to.
    pub admit: Admit,
}

impl<E: Storage, S: Schema> TxStore<E, S> {
    /// A transaction over the newest commit of `below`. `account` has the memory that it keeps.
    #[must_use]
    pub fn begin(below: Arc<E>, schema: S, account: &MemoryAccount) -> Self {
        Self::over(below, schema, Some(ReadSet::default()), account)
    }

    /// A read-only transaction: it keeps no read set and refuses changes.
    #[must_use]
    pub fn begin_read_only(below: Arc<E>, schema: S, account: &MemoryAccount) -> Self {
        Self::over(below, schema, None, account)
    }

    fn over(below: Arc<E>, schema: S, reads: Option<ReadSet>, account: &MemoryAccount) -> Self {
        let snapshot = below.snapshot();
        let at = below.seq(&snapshot);
        let state = TxState {
            write_set: WriteSet::default(),
            changes_charge: account.coarse_charge(),
            kept_bytes: 0,
            reads,
            reads_charge: account.coarse_charge(),
            admit: Admit::Reserve,
            phase: TxPhase::Open,
        };
        let slices = Arc::new(PrivateSlices::new(Arc::clone(&below)));
        TxStore { below, slices, schema, at, state: Mutex::new(state), snapshot: Mutex::new(Some(snapshot)) }
    }

    /// The seq of the snapshot below.
    #[must_use]
    pub fn at(&self) -> Seq {
        self.at
    }

    /// Whether nothing has been changed.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.state.lock().write_set.is_empty()
    }

    /// The first keys of a range that have been changed, in order: at most `max`.
    ///
    /// # Errors
    /// `Ended`.
    pub fn changed_keys(&self, range: KeyRange<'_>, max: usize) -> Result<Vec<Box<[u8]>>, MetaError> {
        Ok(self
            .open()?
            .write_set
            .keys(range.start, range.end)
            .take(max)
            .map(|(key, _)| key.clone())
            .collect())
    }

    /// The key's value inside the transaction, without an entry in the read set: for callers that inspect it.
    ///
    /// # Errors
    /// `Ended`; the errors of `get`.
    pub fn peek(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        self.without_noting_reads(|state| self.get_in(state, key, out))
    }

    /// As `peek`, for the value in the snapshot below. A sealed transaction answers too.
    ///
    /// # Errors
    /// The errors of `peek`.
    pub fn peek_below(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        // Held until the value is read: the end of the transaction drops the snapshot that keeps it.
        let state = self.state.lock();
        if state.phase == TxPhase::Ended {
            return Err(MetaError::Ended);
        }
        self.below.get(key, self.at, out)
    }

    /// A page of the range inside the transaction, forward, as [`Store::scan`] returns it, without an entry
    /// in the read set.
    ///
    /// # Errors
    /// The errors of `peek`.
    pub fn peek_range(
        &self,
        range: KeyRange<'_>,
        max_entries: usize,
        max_bytes: usize,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        let most = (max_entries, max_bytes);
        self.without_noting_reads(|state| self.scan_in(state, range, Direction::Forward, most, page))
    }

    fn without_noting_reads<T>(
        &self,
        look: impl FnOnce(&mut TxState) -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        let mut state = self.open()?;
        let reads = state.reads.take();
        let seen = look(&mut state);
        state.reads = reads;
        seen
    }

    /// Takes out the changes and the read set, for a commit below. Kept slices stay kept until the end.
    ///
    /// # Errors
    /// `Ended`; if an operand does not decode.
    pub fn seal(&self) -> Result<TxChanges, MetaError> {
        let mut state = self.open()?;
        state.phase = TxPhase::Sealed;
        self.slices.seal();
        let (write_set, reads, admit) =
            (std::mem::take(&mut state.write_set), state.reads.take(), state.admit);
        let (batch_charge, reads_charge) = (state.changes_charge.take(), state.reads_charge.take());
        drop(state);
        let mut reads = reads.unwrap_or_default();
        reads.at = self.at;
        reads.normalize();
        let batch = write_set.into_batch(&self.schema)?;
        Ok(TxChanges { batch, batch_charge, reads, reads_charge, admit })
    }

    /// A mark of this moment, for `roll_back`.
    #[must_use]
    pub fn mark(&self) -> TxMark {
        let state = self.state.lock();
        TxMark { ops: state.write_set.len(), sums: *state.write_set.sums(), admit: state.admit }
    }

    /// Undoes every change since the mark. Marks made later are void.
    pub fn roll_back(&self, mark: &TxMark) {
        let mut state = self.state.lock();
        assert!(
            state.phase != TxPhase::Open || mark.ops <= state.write_set.len(),
            "a mark is void once an earlier one was rolled back to"
        );
        state.write_set.truncate(mark.ops, mark.sums);
        // The slices of undone changes stay kept.
        let bytes = state.write_set.memory_bytes() + state.kept_bytes;
        state.changes_charge.shrink_to(bytes);
        state.admit = mark.admit;
    }

    /// Ends the transaction and releases its slices. A caller that wants its changes commits them below
    /// first.
    pub fn end(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.phase, TxPhase::Ended) != TxPhase::Ended {
            state.write_set = WriteSet::default();
            state.changes_charge.shrink_to(0);
            state.reads = state.reads.take().map(|_| ReadSet::default());
            state.reads_charge.shrink_to(0);
            self.slices.end();
            *self.snapshot.lock() = None;
        }
    }

    fn open(&self) -> Result<MutexGuard<'_, TxState>, MetaError> {
        let state = self.state.lock();
        if state.phase == TxPhase::Open { Ok(state) } else { Err(MetaError::Ended) }
    }

    /// Adds a key to the read set: the caller knows its value in the snapshot without reading it.
    pub fn note_read(&self, key: &[u8]) {
        if let Some(reads) = &mut self.state.lock().reads {
            reads.add_key(key);
        }
    }

    /// Whether the transaction has changed the key.
    #[must_use]
    pub fn has_changed(&self, key: &[u8]) -> bool {
        !matches!(self.state.lock().write_set.find(key), KeyWrites::Nothing)
    }

    /// The key's value in the snapshot; adds the key to the read set.
    fn get_below(&self, state: &mut TxState, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        if let Some(reads) = &mut state.reads {
            let bytes = reads.memory_bytes() + bytes_of_key(key);
            if let Err(e) = state.reads_charge.grow_to(bytes, MemoryNeed::Needed)
                && !reads.has_key(key)
            {
                return Err(e.into());
            }
            reads.add_key(key);
        }
        self.below.get(key, self.at, out)
    }

    fn get_in(&self, state: &mut TxState, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        out.clear();
        match state.write_set.find(key) {
            KeyWrites::Nothing => self.get_below(state, key, out),
            KeyWrites::Floor => state.write_set.fold(&self.schema, key, None, out),
            KeyWrites::Operands => {
                let mut value = Vec::new();
                let base = if self.get_below(state, key, &mut value)? {
                    OlderValue::Value(&value)
                } else {
                    OlderValue::Absent
                };
                state.write_set.fold(&self.schema, key, Some(base), out)
            }
        }
    }
}

impl TxState {
    /// Adds a range to the read set and to its charge.
    ///
    /// # Errors
    /// `Memory`: the range is not in the read set then.
    fn add_range(&mut self, start: &[u8], end: Option<&[u8]>) -> Result<(), MetaError> {
        let Some(reads) = &mut self.reads else { return Ok(()) };
        let bytes = reads.memory_bytes() + bytes_of_range(start, end);
        self.reads_charge.grow_to(bytes, MemoryNeed::Needed)?;
        reads.add_range(start, end);
        Ok(())
    }
}

impl<E: Storage, S: Schema> Drop for TxStore<E, S> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<E: Storage, S: Schema> Store for TxStore<E, S> {
    type Snapshot = ();
    type KeyGuard<'a> = ();

    fn snapshot(&self) {}

    fn seq(&self, (): &()) -> Seq {
        self.at
    }

    fn get(&self, key: &[u8], _at: Seq, out: &mut Vec<u8>) -> Result<bool, MetaError> {
        self.get_in(&mut *self.open()?, key, out)
    }

    fn scan(
        &self,
        range: KeyRange<'_>,
        _at: Seq,
        direction: Direction,
        max_entries: usize,
        max_bytes: usize,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        let mut state = self.open()?;
        self.scan_in(&mut state, range, direction, (max_entries, max_bytes), page)
    }

    fn lock(&self, _keys: &[&[u8]]) {}

    /// Ignores the read set of a commit inside: only commits inside change the results of reads inside, and
    /// calls run one after the other.
    fn commit(&self, batch: &Batch, _reads: Option<&ReadSet>, admit: Admit) -> Result<Seq, CommitError> {
        let mut state = self.open()?;
        if state.reads.is_none() {
            return Err(MetaError::ReadOnlyTransaction.into());
        }
        let names_slices = Cell::new(false);
        let keep = |slice| {
            names_slices.set(true);
            Ok(self.slices.keep(slice)?)
        };
        let TxState { write_set, changes_charge, kept_bytes, .. } = &mut *state;
        // Before anything is added: a change that finds no room changes nothing.
        let bytes =
            write_set.memory_bytes_with(batch)? + *kept_bytes + KEPT_SLICE_BYTES * batch.slice_count();
        changes_charge.grow_to(bytes, MemoryNeed::Needed).map_err(MetaError::from)?;
        let appended = write_set.append(batch, &self.schema, keep);
        if names_slices.get() {
            *kept_bytes = self.slices.kept_count() * KEPT_SLICE_BYTES;
        }
        appended?;
        if admit != Admit::Reserve {
            state.admit = Admit::User;
        }
        Ok(self.at)
    }

    /// Nothing: calls inside run one after the other, and nobody else changes what they see.
    fn changed_keys(&self, _reads: &ReadSet, _max: usize) -> Result<Option<Vec<Box<[u8]>>>, MetaError> {
        Ok(Some(Vec::new()))
    }

    fn may_inline(&self, len: usize) -> bool {
        len <= INLINE_ALWAYS_BYTES || self.state.lock().write_set.memory_bytes() < INLINE_MEMORY_BYTES_MAX
    }

    fn table_bytes(&self) -> u64 {
        self.below.table_bytes()
    }

    /// Does nothing: changes become durable only after their commit below.
    fn sync(&self, _upto: Seq) -> Result<(), MetaError> {
        self.open().map(drop)
    }

    /// Does nothing: the store below keeps the room, and the commit below changes it.
    fn add_reserved(&self, _bytes: i64) {}

    fn has_room(&self, bytes: u64, admit: Admit) -> bool {
        self.below.has_room(bytes, admit)
    }

    /// Does nothing: the commit below finds the room.
    fn find_room(&self, _bytes: u64, _admit: Admit) {}

    /// Does nothing: a transaction has no sync points.
    fn set_sync_point_hook(&self, _hook: SyncPointHook) {}

    fn background_step(&self) -> Result<bool, MetaError> {
        Ok(false)
    }

    fn close(&self) -> Result<(), MetaError> {
        self.end();
        Ok(())
    }
}

impl<E: Storage, S: Schema> HasSlices for TxStore<E, S> {
    type Slices = PrivateSlices<E>;

    fn slices(&self) -> &Arc<PrivateSlices<E>> {
        &self.slices
    }
}

impl<E: Storage, S: Schema> std::fmt::Debug for TxStore<E, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TxStore({})", self.at.0)
    }
}
