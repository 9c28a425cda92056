//! Commits. A commit changes only the memtable; `sync` makes it durable.
//!
//! # Steps of a commit
//! 1. `PreparedCommit::new` finds the keys' hashes, the shards and the slices. Every check of the batch is
//!    here.
//! 2. With a read set: `tables_changed` looks for newer versions in tables, without a lock.
//! 3. `lock_with_credit` locks the shards in rising order and takes room for the bytes from the lowest one's
//!    credit. If the credit is too small, it unlocks, asks for room (`make_room`) and tries again.
//! 4. With a read set: if a flush has made tables since step 2, back to step 2, for these tables only. After
//!    two passes the commit keeps others from flushing. Else `memory_changed` looks for newer versions in
//!    memory.
//! 5. `apply_in_place` names slices anew if cleaning has moved their bytes (`slices`: held bytes), and calls
//!    `apply`, which retains the slices, takes the next seq and inserts the changes. `apply` cannot fail.
//!
//! # Invariants
//! 1. A commit takes its seq while it holds the locks of all its shards, and unlocks them after its last
//!    change. So a reader that locks a shard after it learned a seq finds all changes of this commit and of
//!    the earlier ones.
//! 2. All changes of a commit are in one memtable under one seq. A sync point is made while no commit is in
//!    progress, so they reach the log in one record, or in the tables of one edit (assert in `apply`).
//! 3. A commit holds no shard's lock while it asks for room, reads tables or waits (assert in
//!    `lock_with_credit`).
//! 4. A commit that names slices takes a pin before it looks for moved bytes, and keeps it until the slices
//!    are retained. It takes none while it asks for room. Bytes that move in between stay where the commit
//!    names them, because the pin keeps their segment and `retain` makes it referenced again (`tests::held`).

mod group_sync;
mod pace;
mod persistent;
mod reads;
mod removals;
mod room;
mod sync_point;

use warpfire_env::sync::atomic::Ordering;

use smallvec::SmallVec;
use warpfire_format::key_hash;
use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_log::{Admit, LogError, LogStore, Slices};
use warpfire_slices::HeldSlices;
use warpfire_units::{Seq, SlicePtr};

pub(crate) use group_sync::GroupSync;
pub(crate) use removals::PendingRemovals;
pub(crate) use room::EngineUsage;
pub(crate) use sync_point::SyncPoint;

use crate::batch::{Batch, BatchOp, Named, RESERVED};
use crate::engine::{EngineInner, ShardWriteGuard};
use crate::memtable::{KEY_BYTES_MAX, SLOT_BYTES, shard_of};
use crate::read_set::ReadSet;
use crate::schema::{Relocator, Schema, SchemaError};
use crate::store::{CommitError, MetaError};

type KeyHashes = SmallVec<[u64; 16]>;
type ShardGuards<'a, L> = SmallVec<[ShardWriteGuard<'a, L>; 8]>;

/// Passes over tables during which others may flush.
const TABLE_PASSES_MAX: u32 = 2;

/// A batch that is ready to be applied: nothing about it can fail any more.
struct PreparedCommit<'b> {
    batch: &'b Batch,
    hashes: KeyHashes,
    /// Bit i: a key of shard i changes.
    shards: u32,
    /// Every slice that a value of the batch names.
    pointers: Vec<SlicePtr>,
    /// Memory that the batch takes in a memtable.
    bytes: u64,
}

impl<'b> PreparedCommit<'b> {
    fn new<S: Schema>(batch: &'b Batch, schema: &S) -> Result<Self, SchemaError> {
        let bytes = (batch.bytes() + batch.len() * SLOT_BYTES) as u64;
        let mut p =
            PreparedCommit { batch, hashes: KeyHashes::new(), shards: 0, pointers: Vec::new(), bytes };
        let mut found = Named::new();
        for (number, op) in batch.iter().enumerate() {
            let key = op.key();
            assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "keys have 1 to KEY_BYTES_MAX bytes");
            p.pointers.extend_from_slice(batch.slices_of(number, schema, &mut found)?);
            let hash = key_hash(key);
            p.shards |= 1 << shard_of(hash);
            p.hashes.push(hash);
        }
        debug_assert_eq!(p.hashes.len(), batch.len(), "every change has the hash of its key");
        Ok(p)
    }
}

/// The places of held bytes, for `Schema::relocate`.
struct MovedPlaces<'a, L>(&'a HeldSlices<L>);

impl<L: LogStore> Relocator for MovedPlaces<'_, L> {
    fn packs(&self) -> bool {
        false
    }

    fn pack(&mut self, _bytes: &[u8]) -> Result<SlicePtr, LogError> {
        unreachable!("a schema asks `packs` before it packs")
    }

    fn move_slice(&mut self, slice: SlicePtr) -> Result<Option<Slices>, LogError> {
        Ok(self.0.resolve(slice))
    }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    pub(crate) fn commit(
        &self,
        batch: &Batch,
        reads: Option<&ReadSet>,
        admit: Admit,
    ) -> Result<Seq, CommitError> {
        let added = batch.sums()[RESERVED];
        if added > 0 {
            self.reserve(added)?;
        }
        let committed = self.commit_batch(batch, reads, admit);
        self.settle_reserved(added, admit, committed.is_ok());
        committed
    }

    /// Counts the reserved bytes that a commit has added, after it has succeeded or failed.
    fn settle_reserved(&self, added: i64, admit: Admit, is_committed: bool) {
        match admit {
            // Before the commit the claim stood for the bytes: they are reserved no more.
            Admit::Reserved(claimed) if is_committed => self.reserved.add(claimed.cast_signed() + added),
            _ if is_committed => self.reserved.add(added.min(0)),
            _ => self.reserved.add(-added.max(0)),
        }
    }

    /// Keeps room for more reserved bytes.
    fn reserve(&self, added: i64) -> Result<(), MetaError> {
        debug_assert!(added > 0, "only more bytes need room");
        // Before the question: nobody else is admitted to the same room.
        self.reserved.add(added);
        let admitted = self.latch.check().and_then(|()| self.admit(0, Admit::User));
        if admitted.is_err() {
            self.reserved.add(-added);
        }
        admitted
    }

    fn commit_batch(&self, batch: &Batch, reads: Option<&ReadSet>, admit: Admit) -> Result<Seq, CommitError> {
        self.latch.check()?;
        let prepared = PreparedCommit::new(batch, &self.schema).map_err(MetaError::from)?;
        if batch.is_empty() && reads.is_none() {
            return Ok(self.newest());
        }
        // Without a read set nothing can conflict: the usual commit locks its own shards only.
        let Some(reads) = reads else {
            let shards = prepared.shards;
            let mut guards = self.lock_with_credit(shards, prepared.bytes, admit, 0)?;
            return Ok(self.apply_in_place(prepared, shards, &mut guards)?);
        };
        let shards = prepared.shards | reads::shards_of(reads);
        // Every version up to this seq that is in a table has been compared.
        let mut compared = reads.at;
        for pass in 0.. {
            // In the third pass nobody else flushes, so it is the last one. Its room is taken before: whoever
            // waits for room under this lock waits for work that needs the lock.
            let is_last = pass >= TABLE_PASSES_MAX;
            let granted = if is_last { self.make_room(prepared.bytes, admit)? } else { 0 };
            let _flushing = is_last.then(|| self.flushing.lock());
            let table_set = self.table_set();
            if self.tables_changed(&table_set, reads, compared)? {
                return Err(CommitError::Conflict);
            }
            compared = compared.max(table_set.seq_max());
            let mut guards = self.lock_with_credit(shards, prepared.bytes, admit, granted)?;
            // An empty batch and an empty read set need no shard.
            let Some(first) = guards.first() else { return Ok(self.newest()) };
            // A rollback locks all shards, so none comes while these are held.
            if self.domains.is_rolled_back_since(reads.at) {
                return Err(CommitError::Conflict);
            }
            // A flush may have turned a memtable into tables since `tables_changed`, which did not see these.
            // Its versions are newer than those of all earlier tables.
            if first.table_set.seq_max() > compared {
                continue;
            }
            if reads::memory_changed(&guards, shards, reads) {
                return Err(CommitError::Conflict);
            }
            if batch.is_empty() {
                return Ok(self.newest());
            }
            return Ok(self.apply_in_place(prepared, shards, &mut guards)?);
        }
        unreachable!("a pass returns, or another one follows")
    }

    /// Applies a batch, with its slices named where their bytes are now.
    fn apply_in_place(
        &self,
        prepared: PreparedCommit<'_>,
        shards: u32,
        guards: &mut [ShardWriteGuard<'_, L>],
    ) -> Result<Seq, MetaError> {
        if prepared.pointers.is_empty() {
            return Ok(self.apply(&prepared, shards, guards));
        }
        // Only now: a commit that waits for room with a pin would keep the segments that reclaim empties.
        let _pin = self.log.pin();
        let is_moved = |slice: &SlicePtr| self.held.resolve(*slice).is_some();
        if !self.held.has_moved() || !prepared.pointers.iter().any(is_moved) {
            return Ok(self.apply(&prepared, shards, guards));
        }
        let renamed = self.name_moved_slices(prepared.batch)?;
        let renamed = PreparedCommit::new(&renamed, &self.schema)?;
        assert_eq!(renamed.shards, prepared.shards, "the same keys change");
        // A slice that moved may have become several, which take more bytes than were granted.
        let more_bytes = renamed.bytes.saturating_sub(prepared.bytes);
        self.usage.active_bytes.fetch_add(more_bytes, Ordering::Relaxed);
        Ok(self.apply(&renamed, shards, guards))
    }

    /// The same changes, with slices named where their bytes are now.
    fn name_moved_slices(&self, batch: &Batch) -> Result<Batch, MetaError> {
        let mut renamed = Batch::new();
        let (mut found, mut value) = (Named::new(), Vec::new());
        let mut places = MovedPlaces(&self.held);
        for (number, op) in batch.iter().enumerate() {
            let is_operand = matches!(op, BatchOp::Merge(..));
            let changed = match op {
                BatchOp::Delete(_) => false,
                BatchOp::Put(key, old) | BatchOp::Merge(key, old) => {
                    self.schema.relocate(key, old, is_operand, &mut places, &mut value)?
                }
            };
            match op {
                BatchOp::Put(key, _) if changed => renamed.put(key, &value),
                BatchOp::Merge(key, _) if changed => renamed.merge(key, &value),
                op => renamed.push_op(op, batch.slices_of(number, &self.schema, &mut found)?),
            }
        }
        for (sum, added) in batch.sums().iter().enumerate() {
            renamed.add(sum, *added);
        }
        debug_assert_eq!(renamed.len(), batch.len(), "every change is there once");
        Ok(renamed)
    }

    /// Locks shards, and takes `bytes` from the credit of the lowest one and from the bytes granted already.
    fn lock_with_credit(
        &self,
        shards: u32,
        bytes: u64,
        admit: Admit,
        mut granted: u64,
    ) -> Result<ShardGuards<'_, L>, MetaError> {
        loop {
            // In rising order: two commits cannot wait for each other.
            let mut guards = ShardGuards::new();
            let mut rest = shards;
            while rest != 0 {
                guards.push(self.shards.write(rest.trailing_zeros() as usize));
                rest &= rest - 1;
            }
            debug_assert_eq!(
                guards.len(),
                shards.count_ones() as usize,
                "every shard of the commit is locked"
            );
            let Some(first) = guards.first_mut() else { return Ok(guards) };
            // Another commit may use up the grant before this one has the lock again: then it asks once more.
            first.credit += granted;
            if let Some(left) = first.credit.checked_sub(bytes) {
                first.credit = left;
                first.deletions += u64::from(admit == Admit::Reserve);
                return Ok(guards);
            }
            // Making room may flush and compact, and these lock the shards themselves.
            drop(guards);
            granted = self.make_room(bytes, admit)?;
        }
    }

    /// Applies a batch; the guards are those of `shards`, which include the batch's.
    fn apply(&self, p: &PreparedCommit<'_>, shards: u32, guards: &mut [ShardWriteGuard<'_, L>]) -> Seq {
        debug_assert_eq!(guards.len(), shards.count_ones() as usize, "the guards are those of `shards`");
        debug_assert_eq!(p.shards & !shards, 0, "every shard that changes is locked");
        // Before the values: cleaning must never find a named slice without a reference.
        for slice in &p.pointers {
            self.log.retain(*slice);
            self.log.need(*slice);
            let references = &mut guards[0].active.references;
            *references.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
        }
        for (sum, added) in guards[0].sums.iter_mut().zip(p.batch.sums()) {
            *sum = sum.wrapping_add(*added);
        }
        // Under all locks: within each shard, seqs rise with the slots.
        let seq = Seq(self.seq.fetch_add(1, Ordering::AcqRel) + 1);
        for (op, &hash) in p.batch.iter().zip(&p.hashes) {
            let (key, kind, value) = match op {
                BatchOp::Put(key, value) => (key, VersionKind::Put, value),
                BatchOp::Delete(key) => (key, VersionKind::Delete, &[][..]),
                BatchOp::Merge(key, operand) => (key, VersionKind::Merge, operand),
            };
            // The guards are packed: a shard's guard comes after those of the lower shards in the mask.
            let below = shards & ((1 << shard_of(hash)) - 1);
            guards[below.count_ones() as usize].active.insert(hash, KeyVersion { key, seq, kind, value });
        }
        seq
    }
}
