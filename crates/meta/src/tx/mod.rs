//! A transaction as a store: what it changes lies over a snapshot of the engine below and is seen by itself alone.
//!
//! Whatever works on a [`Store`] works inside a transaction unchanged, and reads what it wrote.
//!
//! # Terms
//! The *overlay* is what the transaction has changed, in order. A key's *floor* is its last put or delete in the overlay;
//! operands above it fold onto it, and without a floor onto what the snapshot shows.
//!
//! # Invariants
//! 1. A read is of the snapshot with the overlay over it, at whatever version it asks for.
//! 2. What a read took from the snapshot is in the read set, what was missing there included, unless the transaction only reads.
//! 3. Slices that were written are held until the transaction ends, so that the changes that name them can be committed; then
//!    they are given back, whichever way it ended.
//! 4. An overlay that was rolled back to a mark is as it was when the mark was made. The read set only grows: what was
//!    done since may follow from all that was read.
//! 5. Once ended, it neither reads nor changes anything.
//!
//! ```text
//!   open ──────► ended      `end`, or dropped
//! ```
//!
//! Calls of one transaction are one after the other; who shares it among threads sees to that. So its key locks are empty.

mod overlay;
mod reads;
mod scan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use warpfire_log::{Admit, LogError, Pin, Slices, Space, Stream};
use warpfire_units::{Seq, SlicePtr};

use crate::batch::{Batch, SUMS};
use crate::schema::{Base, Schema};
use crate::store::{
    CommitError, CutHook, Direction, Holder, KeyRange, MetaError, Page, ReadSet, SliceRead, SliceStore, Store,
};
use overlay::{Found, Overlay};
use reads::Reads;

/// A transaction over a store. [`changes`](TxStore::changes) and [`reads`](TxStore::reads) are what to commit below.
pub struct TxStore<E: Store + SliceStore, S: Schema> {
    below: Arc<E>,
    schema: S,
    at: Seq,
    state: Mutex<State>,
    /// What is kept for this transaction, until it ends.
    view: Mutex<Option<View<E>>>,
}

#[expect(dead_code, reason = "held for its drop")]
struct View<E: Store> {
    snapshot: E::Snapshot,
    /// Values that were read may be written elsewhere, with the slices in them.
    pin: Pin,
}

struct State {
    overlay: Overlay,
    reads: Option<Reads>,
    held: Vec<SlicePtr>,
    who: Admit,
    ended: bool,
}

/// A moment in a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    ops: usize,
    sums: [i64; SUMS],
    who: Admit,
}

/// What a transaction changes, each key once.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The changes.
    pub batch: Batch,
    /// Whether the reserve may be used for them: only if that was so for each of them.
    pub who: Admit,
}

impl<E: Store + SliceStore, S: Schema> TxStore<E, S> {
    /// A transaction over what `below` holds now.
    #[must_use]
    pub fn begin(below: Arc<E>, schema: S) -> Self {
        Self::over(below, schema, Some(Reads::default()))
    }

    /// A transaction that only reads: it keeps no read set, and changes to it are refused.
    #[must_use]
    pub fn begin_read_only(below: Arc<E>, schema: S) -> Self {
        Self::over(below, schema, None)
    }

    fn over(below: Arc<E>, schema: S, reads: Option<Reads>) -> Self {
        let pin = below.pin();
        let snapshot = below.snapshot();
        let at = below.seq(&snapshot);
        let state =
            State { overlay: Overlay::default(), reads, held: Vec::new(), who: Admit::Reserve, ended: false };
        let view = Mutex::new(Some(View { snapshot, pin }));
        TxStore { below, schema, at, state: Mutex::new(state), view }
    }

    /// The version that lies below.
    #[must_use]
    pub fn at(&self) -> Seq {
        self.at
    }

    /// Whether nothing has been changed.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.state.lock().overlay.is_empty()
    }

    /// Whether the key has been changed.
    #[must_use]
    pub fn has_changed(&self, key: &[u8]) -> bool {
        self.state.lock().overlay.contains(key)
    }

    /// What has been changed so far, for a commit below.
    ///
    /// # Errors
    /// If an operand does not decode.
    pub fn changes(&self) -> Result<Changes, MetaError> {
        let state = self.state.lock();
        let mut batch = Batch::new();
        state.overlay.fold_into(&self.schema, &mut batch)?;
        Ok(Changes { batch, who: state.who })
    }

    /// What has been read so far, for a commit below.
    #[must_use]
    pub fn reads(&self) -> ReadSet {
        self.state.lock().reads.as_ref().map_or_else(ReadSet::default, |reads| reads.to_set(self.at))
    }

    /// This moment, to come back to.
    #[must_use]
    pub fn mark(&self) -> Mark {
        let state = self.state.lock();
        Mark { ops: state.overlay.len(), sums: *state.overlay.sums(), who: state.who }
    }

    /// Undoes every change since the mark. Marks made later are void.
    pub fn roll_back(&self, mark: &Mark) {
        let mut state = self.state.lock();
        state.overlay.truncate(mark.ops, mark.sums);
        state.who = mark.who;
    }

    /// Ends the transaction and gives back what it held. What it changed has to be committed below before.
    pub fn end(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.ended, true) {
            let held = std::mem::take(&mut state.held);
            state.overlay = Overlay::default();
            self.below.release(&held);
            *self.view.lock() = None;
        }
    }

    fn open(&self) -> Result<MutexGuard<'_, State>, MetaError> {
        let state = self.state.lock();
        if state.ended { Err(MetaError::Ended) } else { Ok(state) }
    }

    /// The key's value below, noted as read.
    fn get_below(&self, state: &mut State, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        if let Some(reads) = &mut state.reads {
            reads.key(key);
        }
        self.below.get(key, self.at, out)
    }

    fn get_in(&self, state: &mut State, key: &[u8], out: &mut Vec<u8>) -> Result<bool, MetaError> {
        out.clear();
        match state.overlay.find(key) {
            Found::Nothing => self.get_below(state, key, out),
            Found::Floor => state.overlay.fold(&self.schema, key, None, out),
            Found::Operands => {
                let mut value = Vec::new();
                let base =
                    if self.get_below(state, key, &mut value)? { Base::Value(&value) } else { Base::Absent };
                state.overlay.fold(&self.schema, key, Some(base), out)
            }
        }
    }
}

impl<E: Store + SliceStore, S: Schema> Drop for TxStore<E, S> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<E: Store + SliceStore, S: Schema> Store for TxStore<E, S> {
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
        page: &mut Page,
    ) -> Result<(), MetaError> {
        let mut state = self.open()?;
        self.scan_in(&mut state, range, direction, (max_entries, max_bytes), page)
    }

    fn lock(&self, _keys: &[&[u8]]) {}

    /// What is read inside changes by nothing but what is committed inside, so `reads` can not have changed.
    fn commit(&self, batch: &Batch, _reads: Option<&ReadSet>, who: Admit) -> Result<Seq, CommitError> {
        let mut state = self.open()?;
        if state.reads.is_none() {
            return Err(MetaError::OnlyReads.into());
        }
        state.overlay.append(batch)?;
        if who == Admit::User {
            state.who = Admit::User;
        }
        Ok(self.at)
    }

    /// Nothing inside is durable before it is committed below.
    fn sync(&self, _upto: Seq) -> Result<(), MetaError> {
        self.open().map(drop)
    }

    /// A transaction makes no cuts, so it calls no hook.
    fn set_cut_hook(&self, _hook: CutHook) {}

    fn background_step(&self) -> Result<bool, MetaError> {
        Ok(false)
    }

    fn close(&self) -> Result<(), MetaError> {
        self.end();
        Ok(())
    }
}

impl<E: Store + SliceStore, S: Schema> SliceStore for TxStore<E, S> {
    fn write(&self, stream: Stream, bytes: &[u8], who: Admit) -> Result<Slices, LogError> {
        let over = |_| LogError::ReadOnly("the transaction has ended".into());
        drop(self.open().map_err(over)?);
        let slices = self.below.write(stream, bytes, who)?;
        self.state.lock().held.extend_from_slice(&slices);
        Ok(slices)
    }

    /// Held until the transaction ends: see invariant 3.
    fn release(&self, _slices: &[SlicePtr]) {}

    fn holder(self: &Arc<Self>) -> Arc<dyn Holder> {
        self.below.holder()
    }

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), LogError> {
        self.below.read(reads)
    }

    fn pin(&self) -> Pin {
        self.below.pin()
    }

    fn space(&self) -> Space {
        self.below.space()
    }

    fn table_bytes(&self) -> u64 {
        self.below.table_bytes()
    }
}

impl<E: Store + SliceStore, S: Schema> std::fmt::Debug for TxStore<E, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TxStore({})", self.at.0)
    }
}
