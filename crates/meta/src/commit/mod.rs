//! Commits: they only touch the memtable.
//!
//! # Invariants
//! 1. A commit takes its seq while it holds the locks of all its shards, and lets go when all its changes are in. So
//!    a reader that takes a shard's lock after it learned of a seq finds everything of that commit and of all before.
//! 2. However many changes a commit has, they are in one memtable under one seq. A cut is made with no commit in progress, so they get to the log in
//!    one record, or in the tables of one edit.
//! 3. No lock of a shard is held while room is asked for, tables are read or anything is waited for.

mod group_sync;
mod reads;
mod room;
mod sync_point;

use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;
use warpfire_format::key_hash;
use warpfire_format::table::{KeyVersion, VersionKind};
use warpfire_log::{Admit, LogStore};
use warpfire_units::{Seq, SlicePtr};

pub(crate) use group_sync::GroupSync;
pub(crate) use room::EngineUsage;
pub(crate) use sync_point::SyncPoint;

use crate::batch::{Batch, BatchOp, Named};
use crate::engine::{EngineInner, EngineShard};
use crate::memtable::{KEY_BYTES_MAX, SLOT_BYTES, shard_of};
use crate::schema::{Schema, SchemaError};
use crate::store::{CommitError, MetaError, ReadSet};

type KeyHashes = SmallVec<[u64; 16]>;
type ShardGuards<'a, L> = SmallVec<[RwLockWriteGuard<'a, EngineShard<L>>; 8]>;

/// A batch that is ready to be applied: all that can fail is behind it.
struct PreparedCommit<'b> {
    batch: &'b Batch,
    hashes: KeyHashes,
    /// Bit i: shard i is involved.
    shards: u32,
    pointers: Vec<SlicePtr>,
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
        Ok(p)
    }
}

impl<L: LogStore, S: Schema> EngineInner<L, S> {
    pub(crate) fn commit(
        &self,
        batch: &Batch,
        reads: Option<&ReadSet>,
        admit: Admit,
    ) -> Result<Seq, CommitError> {
        self.latch.check()?;
        let prepared = PreparedCommit::new(batch, &self.schema).map_err(MetaError::from)?;
        if batch.is_empty() && reads.is_none() {
            return Ok(self.newest());
        }
        let Some(reads) = reads else {
            let mut guards = self.lock_with_credit(prepared.shards, prepared.bytes, admit)?;
            return Ok(self.apply(&prepared, prepared.shards, &mut guards));
        };
        loop {
            let table_set = self.table_set();
            if self.tables_changed(&table_set, reads)? {
                return Err(CommitError::Conflict);
            }
            let shards = prepared.shards | reads::shards_of(reads);
            let mut guards = self.lock_with_credit(shards, prepared.bytes, admit)?;
            let Some(first) = guards.first() else { return Ok(self.newest()) };
            // What was a memtable may be a table by now, which has not been looked at.
            if !std::sync::Arc::ptr_eq(&first.table_set, &table_set) {
                continue;
            }
            if reads::memory_changed(&guards, shards, reads) {
                return Err(CommitError::Conflict);
            }
            if batch.is_empty() {
                return Ok(self.newest());
            }
            return Ok(self.apply(&prepared, shards, &mut guards));
        }
    }

    /// Locks shards, the lowest of which pays for the commit.
    fn lock_with_credit(
        &self,
        shards: u32,
        bytes: u64,
        admit: Admit,
    ) -> Result<ShardGuards<'_, L>, MetaError> {
        let mut granted = 0;
        loop {
            let mut guards = ShardGuards::new();
            let mut rest = shards;
            while rest != 0 {
                guards.push(self.shards.write(rest.trailing_zeros() as usize));
                rest &= rest - 1;
            }
            let Some(first) = guards.first_mut() else { return Ok(guards) };
            first.credit += granted;
            if let Some(left) = first.credit.checked_sub(bytes) {
                first.credit = left;
                return Ok(guards);
            }
            drop(guards);
            granted = self.make_room(bytes, admit)?;
        }
    }

    /// Applies a batch; the guards are those of `shards`, which include the batch's.
    fn apply(
        &self,
        p: &PreparedCommit<'_>,
        shards: u32,
        guards: &mut [RwLockWriteGuard<'_, EngineShard<L>>],
    ) -> Seq {
        for slice in &p.pointers {
            self.log.retain(*slice);
            let references = &mut guards[0].active.references;
            *references.entry(slice.segment).or_insert(0) += u64::from(slice.len_bytes);
        }
        for (sum, added) in guards[0].sums.iter_mut().zip(p.batch.sums()) {
            *sum = sum.wrapping_add(*added);
        }
        let seq = Seq(self.seq.fetch_add(1, Ordering::AcqRel) + 1);
        for (op, &hash) in p.batch.iter().zip(&p.hashes) {
            let (key, kind, value) = match op {
                BatchOp::Put(key, value) => (key, VersionKind::Put, value),
                BatchOp::Delete(key) => (key, VersionKind::Delete, &[][..]),
                BatchOp::Merge(key, operand) => (key, VersionKind::Merge, operand),
            };
            let below = shards & ((1 << shard_of(hash)) - 1);
            guards[below.count_ones() as usize].active.insert(hash, KeyVersion { key, seq, kind, value });
        }
        seq
    }
}
