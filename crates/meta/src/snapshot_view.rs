//! A snapshot as a [`Store`]: code that works on a `Store` reads a snapshot unchanged, and changes nothing.
//!
//! # Invariants
//! 1. Every read is of the snapshot's seq, which the view keeps readable. The versions of a snapshot that is
//!    dropped in that time go when its last view ends.
//! 2. A view passes no change to the store below.

use std::sync::Arc;

use warpfire_slices::{Admit, Pin, SliceError, SliceHolder, SliceRead, SliceStore, Slices, Space, Stream};
use warpfire_units::{Seq, SlicePtr};

use crate::batch::Batch;
use crate::read_set::ReadSet;
use crate::store::{
    CommitError, Direction, KeyRange, MetaError, ScanPage, SnapshotStore, Storage, Store, SyncPointHook,
};

/// A persistent snapshot of a store. Calls from many threads run side by side.
pub struct SnapshotView<E: Storage> {
    below: Arc<E>,
    at: Seq,
    /// Held for its drop: it keeps the versions readable.
    _snapshot: E::Snapshot,
}

impl<E: Storage + SnapshotStore> SnapshotView<E> {
    /// The view of the persistent snapshot with this seq; `None` if there is none.
    #[must_use]
    pub fn open(below: &Arc<E>, seq: Seq) -> Option<SnapshotView<E>> {
        let snapshot = below.snapshot_at(seq)?;
        debug_assert_eq!(below.seq(&snapshot), seq, "a persistent snapshot is found by its seq");
        Some(SnapshotView { below: Arc::clone(below), at: seq, _snapshot: snapshot })
    }
}

impl<E: Storage> Store for SnapshotView<E> {
    type Snapshot = ();
    type KeyGuard<'a> = ();

    fn snapshot(&self) {}

    fn seq(&self, (): &()) -> Seq {
        self.at
    }

    fn get(&self, key: &[u8], _at: Seq, out: &mut Vec<u8>) -> Result<bool, MetaError> {
        self.below.get(key, self.at, out)
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
        self.below.scan(range, self.at, direction, max_entries, max_bytes, page)
    }

    fn lock(&self, _keys: &[&[u8]]) {}

    fn commit(&self, batch: &Batch, _reads: Option<&ReadSet>, _admit: Admit) -> Result<Seq, CommitError> {
        if batch.is_empty() { Ok(self.at) } else { Err(MetaError::ReadOnlySnapshot.into()) }
    }

    /// Nothing changes.
    fn changed_keys(&self, _reads: &ReadSet, _max: usize) -> Result<Option<Vec<Box<[u8]>>>, MetaError> {
        Ok(Some(Vec::new()))
    }

    fn table_bytes(&self) -> u64 {
        self.below.table_bytes()
    }

    /// Does nothing: a snapshot is as durable as its record.
    fn sync(&self, _upto: Seq) -> Result<(), MetaError> {
        Ok(())
    }

    /// Does nothing: the store below keeps the room.
    fn add_reserved(&self, _bytes: i64) {}

    fn has_room(&self, _bytes: u64, _admit: Admit) -> bool {
        false
    }

    /// Does nothing: nothing is committed.
    fn find_room(&self, _bytes: u64, _admit: Admit) {}

    /// Does nothing: a snapshot has no sync points.
    fn set_sync_point_hook(&self, _hook: SyncPointHook) {}

    fn background_step(&self) -> Result<bool, MetaError> {
        Ok(false)
    }

    fn close(&self) -> Result<(), MetaError> {
        Ok(())
    }
}

impl<E: Storage> SliceStore for SnapshotView<E> {
    fn write(&self, _stream: Stream, _bytes: &[u8], _admit: Admit) -> Result<Slices, SliceError> {
        Err(SliceError::ReadOnly("a snapshot does not change".into()))
    }

    /// Does nothing: the view has written no slice.
    fn release(&self, _slices: &[SlicePtr]) {}

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError> {
        self.below.read(reads)
    }

    fn read_ahead(&self, read: &mut SliceRead<'_>) -> bool {
        self.below.read_ahead(read)
    }

    fn may_share_batch(&self, len_bytes: usize) -> bool {
        self.below.may_share_batch(len_bytes)
    }

    fn pin(&self) -> Result<Pin, SliceError> {
        self.below.pin()
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        self.below.holder()
    }

    fn held_bytes(&self) -> u64 {
        self.below.held_bytes()
    }

    fn space(&self) -> Result<Space, SliceError> {
        self.below.space()
    }
}

impl<E: Storage> std::fmt::Debug for SnapshotView<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SnapshotView({})", self.at.0)
    }
}
