//! A transaction as a store: what it changes lies over a snapshot of the engine below and is seen by itself
//! alone.
//!
//! Whatever works on a [`Store`] works inside a transaction unchanged, and reads what it wrote.
//!
//! # Terms
//! The *overlay* is what the transaction has changed, in order. A key's *floor* is its last put or delete in
//! the overlay; operands above it fold onto it, and without a floor onto what the snapshot shows.
//!
//! # Invariants
//! 1. A read is of the snapshot with the overlay over it, at whatever version it asks for.
//! 2. What a read took from the snapshot is in the read set, what was missing there included, unless the
//!    transaction only reads.
//! 3. Slices that were written, and those that changes name, are held until the transaction ends, so that the
//!    changes can be committed; then they are given back, whichever way it ended. Nothing else is pinned:
//!    what others replace is cleaned meanwhile.
//! 4. An overlay that was rolled back to a mark is as it was when the mark was made. The read set only grows:
//!    what was done since may follow from all that was read.
//! 5. Once sealed or ended, it neither reads nor changes anything.
//! 6. Its memory is bounded: changes beyond a limit are refused (`write_set.rs`), reads beyond one count as
//!    reads of everything (`reads.rs`), and bytes that could ride in a change are slices once many ride.
//!
//! ```text
//!   open ──seal──► sealed ──► ended      `end`, or dropped
//!     └───────────────────────►
//! ```
//!
//! Calls of one transaction are one after the other; who shares it among threads sees to that. So its key
//! locks are empty.

mod reads;
mod scan;
#[cfg(test)]
mod tests;
mod write_set;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use warpfire_slices::{Admit, HasSlices, PrivateSlices};
use warpfire_units::Seq;

use crate::batch::{Batch, SUMS};
use crate::schema::{OlderValue, Schema};
use crate::store::{
    CommitError, Direction, KeyRange, MetaError, ReadSet, ScanPage, Storage, Store, SyncPointHook,
};
use reads::TxReads;
use write_set::{KeyWrites, WriteSet};

/// A transaction over a store. What [`seal`](TxStore::seal) gives is what to commit below.
pub struct TxStore<E: Storage, S: Schema> {
    below: Arc<E>,
    slices: Arc<PrivateSlices<E>>,
    schema: S,
    at: Seq,
    state: Mutex<TxState>,
    /// Until it ends.
    snapshot: Mutex<Option<E::Snapshot>>,
}

struct TxState {
    write_set: WriteSet,
    reads: Option<TxReads>,
    admit: Admit,
    phase: TxPhase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TxPhase {
    Open,
    Sealed,
    Ended,
}

/// Once changes take so much memory, bytes do not ride in them any more, but for very short ones: they become
/// slices at once.
const INLINE_MEMORY_BYTES_MAX: usize = 8 << 20;

/// What rides even then: a slice's place takes about as much.
const INLINE_ALWAYS_BYTES: usize = 32;

/// A moment in a transaction.
#[derive(Clone, Copy, Debug)]
pub struct TxMark {
    ops: usize,
    sums: [i64; SUMS],
    admit: Admit,
}

/// What a transaction has changed, each key once, and read.
#[derive(Clone, Debug)]
pub struct TxChanges {
    /// The changes.
    pub batch: Batch,
    /// What was read.
    pub reads: ReadSet,
    /// Whether the reserve may be used for them: only if that was so for each of them.
    pub admit: Admit,
}

impl<E: Storage, S: Schema> TxStore<E, S> {
    /// A transaction over what `below` holds now.
    #[must_use]
    pub fn begin(below: Arc<E>, schema: S) -> Self {
        Self::over(below, schema, Some(TxReads::default()))
    }

    /// A transaction that only reads: it keeps no read set, and changes to it are refused.
    #[must_use]
    pub fn begin_read_only(below: Arc<E>, schema: S) -> Self {
        Self::over(below, schema, None)
    }

    fn over(below: Arc<E>, schema: S, reads: Option<TxReads>) -> Self {
        let snapshot = below.snapshot();
        let at = below.seq(&snapshot);
        let state =
            TxState { write_set: WriteSet::default(), reads, admit: Admit::Reserve, phase: TxPhase::Open };
        let slices = Arc::new(PrivateSlices::new(Arc::clone(&below)));
        TxStore { below, slices, schema, at, state: Mutex::new(state), snapshot: Mutex::new(Some(snapshot)) }
    }

    /// The version that lies below.
    #[must_use]
    pub fn at(&self) -> Seq {
        self.at
    }

    /// Whether nothing has been changed.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.state.lock().write_set.is_empty()
    }

    /// Whether the key has been changed.
    #[must_use]
    pub fn has_changed(&self, key: &[u8]) -> bool {
        self.state.lock().write_set.contains(key)
    }

    /// Visits each key that has been changed, in order. The transaction waits meanwhile: `visit` must not
    /// call it.
    ///
    /// # Errors
    /// `Ended`; what `visit` says, which ends it.
    pub fn visit_changed<F: From<MetaError>>(
        &self,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), F>,
    ) -> Result<(), F> {
        self.open()?.write_set.keys(&[], None).try_for_each(|(key, _)| visit(key))
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

    /// The key's value inside, for who looks at the transaction from outside: it does not count as read.
    ///
    /// # Errors
    /// `Ended`; what reading says.
    pub fn peek(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        self.without_noting_reads(|state| self.get_in(state, key, out))
    }

    /// As `peek`, the value that lies below.
    ///
    /// # Errors
    /// As `peek`.
    pub fn peek_below(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        let _open = self.open()?;
        self.below.get(key, self.at, out)
    }

    /// A page of the range inside, forward, as [`Store::scan`] gives it; it does not count as read.
    ///
    /// # Errors
    /// As `peek`.
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

    /// Takes out what was changed and read, for a commit below. What is held stays so until the end.
    ///
    /// # Errors
    /// `Ended`; if an operand does not decode.
    pub fn seal(&self) -> Result<TxChanges, MetaError> {
        let mut state = self.open()?;
        state.phase = TxPhase::Sealed;
        self.slices.seal();
        let (write_set, reads, admit) =
            (std::mem::take(&mut state.write_set), state.reads.take(), state.admit);
        drop(state);
        let reads = reads.map_or_else(ReadSet::default, |reads| reads.into_set(self.at));
        Ok(TxChanges { batch: write_set.into_batch(&self.schema)?, reads, admit })
    }

    /// This moment, to come back to.
    #[must_use]
    pub fn mark(&self) -> TxMark {
        let state = self.state.lock();
        TxMark { ops: state.write_set.len(), sums: *state.write_set.sums(), admit: state.admit }
    }

    /// Undoes every change since the mark. Marks made later are void.
    pub fn roll_back(&self, mark: &TxMark) {
        let mut state = self.state.lock();
        state.write_set.truncate(mark.ops, mark.sums);
        state.admit = mark.admit;
    }

    /// Ends the transaction and gives back what it held. What it changed has to be committed below before.
    pub fn end(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.phase, TxPhase::Ended) != TxPhase::Ended {
            state.write_set = WriteSet::default();
            self.slices.end();
            *self.snapshot.lock() = None;
        }
    }

    fn open(&self) -> Result<MutexGuard<'_, TxState>, MetaError> {
        let state = self.state.lock();
        if state.phase == TxPhase::Open { Ok(state) } else { Err(MetaError::Ended) }
    }

    /// The key's value is known, as of the version that lies below, without a read of it: noted as read.
    pub fn note_read(&self, key: &[u8]) {
        if let Some(reads) = &mut self.state.lock().reads {
            reads.key(key);
        }
    }

    /// The key's value below, noted as read.
    fn get_below(&self, state: &mut TxState, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        if let Some(reads) = &mut state.reads {
            reads.key(key);
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

    /// What is read inside changes by nothing but what is committed inside, so `reads` can not have changed.
    fn commit(&self, batch: &Batch, _reads: Option<&ReadSet>, admit: Admit) -> Result<Seq, CommitError> {
        let mut state = self.open()?;
        if state.reads.is_none() {
            return Err(MetaError::ReadOnlyTransaction.into());
        }
        let keep = |slice| Ok(self.slices.keep(slice)?);
        state.write_set.append(batch, &self.schema, keep)?;
        if admit == Admit::User {
            state.admit = Admit::User;
        }
        Ok(self.at)
    }

    fn may_inline(&self, len: usize) -> bool {
        len <= INLINE_ALWAYS_BYTES || self.state.lock().write_set.memory_bytes() < INLINE_MEMORY_BYTES_MAX
    }

    fn table_bytes(&self) -> u64 {
        self.below.table_bytes()
    }

    /// Nothing inside is durable before it is committed below.
    fn sync(&self, _upto: Seq) -> Result<(), MetaError> {
        self.open().map(drop)
    }

    /// A transaction makes no cuts, so it calls no hook.
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
