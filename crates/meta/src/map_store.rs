//! The naive twin of the engine: every version of every key in one ordered map behind one lock.
//!
//! It is the oracle of the engine's own tests, and the store for tests of the crates above. It keeps nothing
//! across a crash, so `sync` only runs the sync point hook.
//!
//! # Invariants
//! 1. A key's versions are in the order of their commits (assert in `apply`); `newest` is the seq of the
//!    newest commit.
//! 2. A slice is a segment of its own. Its bytes stay while its writer's reference is held, while a version
//!    names it, or while a pin lives; `background_step` drops the others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use warpfire_env::sync::Mutex;
use warpfire_log::LogError;
use warpfire_slices::{Admit, Pin, SliceError, SliceHolder, SliceRead, SliceStore, Slices, Space, Stream};
use warpfire_units::{SegmentId, Seq, SlicePtr};

use crate::batch::{Batch, BatchOp, RESERVED, SUMS};
use crate::domain::{DomainOrigin, Domains, domain_of, key_in};
use crate::key_locks::{KeyLockGuard, KeyLocks};
use crate::read_set::ReadSet;
use crate::reserved::ReservedBytes;
use crate::schema::{FoldResult, OlderValue, Schema};
use crate::snapshot::{EngineSnapshot, SnapshotRegistry};
use crate::store::{CommitError, Direction, KeyRange, MetaError, ScanPage, Store, SyncPointHook};

#[derive(Clone, PartialEq, Eq, Debug)]
enum MapChange {
    Put(Vec<u8>),
    Delete,
    Merge(Vec<u8>),
}

type MapVersions = Vec<(Seq, MapChange)>;

struct MapSlice {
    bytes: Vec<u8>,
    /// Bytes that the writer has not released yet, and bytes that holds keep.
    held_bytes: u64,
}

#[derive(Default)]
struct MapState {
    newest: Seq,
    map: BTreeMap<Vec<u8>, MapVersions>,
    slices: BTreeMap<SegmentId, MapSlice>,
    next_segment: Option<SegmentId>,
    closed: bool,
    /// Additions to the running sums since the last sync point.
    sums: [i64; SUMS],
}

/// An ordered map with versions and a slice store, in memory, by the plainest means.
pub struct MapStore<S> {
    schema: S,
    capacity_bytes: u64,
    state: Mutex<MapState>,
    hook: Mutex<Option<SyncPointHook>>,
    registry: Arc<SnapshotRegistry>,
    domains: Domains,
    locks: KeyLocks,
    reserved: ReservedBytes,
    pins: Arc<dyn Send + Sync>,
    before_reads: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl<S: Schema> MapStore<S> {
    /// An empty store without a bound on its size.
    #[must_use]
    pub fn new(schema: S) -> Self {
        Self::with_capacity(schema, u64::MAX)
    }

    /// An empty store that refuses new user bytes (keys, values and slices together) beyond `capacity_bytes`.
    #[must_use]
    pub fn with_capacity(schema: S, capacity_bytes: u64) -> Self {
        MapStore {
            schema,
            capacity_bytes,
            state: Mutex::default(),
            hook: Mutex::new(None),
            registry: Arc::default(),
            domains: Domains::default(),
            locks: KeyLocks::default(),
            reserved: ReservedBytes::default(),
            pins: Arc::new(()),
            before_reads: Mutex::default(),
        }
    }

    /// Runs `wait` before each read of slices from now on: for tests in which a device does not answer for a
    /// while.
    pub fn wait_before_reads(&self, wait: impl Fn() + Send + Sync + 'static) {
        *self.before_reads.lock() = Some(Arc::new(wait));
    }

    /// Number of stored slices: for tests of the release of space.
    #[must_use]
    pub fn slices_stored(&self) -> usize {
        self.state.lock().slices.len()
    }

    fn live_bytes(state: &MapState) -> u64 {
        let value_bytes = |(_, change): &(Seq, MapChange)| match change {
            MapChange::Put(v) | MapChange::Merge(v) => v.len(),
            MapChange::Delete => 0,
        };
        let keys: usize =
            state.map.iter().map(|(key, vs)| key.len() + vs.iter().map(value_bytes).sum::<usize>()).sum();
        let slices: usize = state.slices.values().map(|s| s.bytes.len()).sum();
        (keys + slices) as u64
    }

    fn admit(&self, state: &MapState, bytes: usize, admit: Admit) -> Result<(), LogError> {
        if state.closed {
            return Err(LogError::ReadOnly("the store is closed".into()));
        }
        // No sum where no answer could refuse: the twin is naive, not quadratic.
        if admit == Admit::User
            && self.capacity_bytes != u64::MAX
            && Self::live_bytes(state).saturating_add(bytes as u64).saturating_add(self.reserved.room())
                > self.capacity_bytes
        {
            return Err(LogError::NoSpace);
        }
        Ok(())
    }

    fn apply(state: &mut MapState, batch: &Batch) {
        state.newest = Seq(state.newest.0 + 1);
        let seq = state.newest;
        for (sum, added) in state.sums.iter_mut().zip(batch.sums()) {
            *sum = sum.wrapping_add(*added);
        }
        for op in batch.iter() {
            let (key, change) = match op {
                BatchOp::Put(key, value) => (key, MapChange::Put(value.to_vec())),
                BatchOp::Delete(key) => (key, MapChange::Delete),
                BatchOp::Merge(key, operand) => (key, MapChange::Merge(operand.to_vec())),
            };
            let versions = state.map.entry(key.to_vec()).or_default();
            debug_assert!(
                versions.last().is_none_or(|(last, _)| *last <= seq),
                "the versions of a key are in order"
            );
            versions.push((seq, change));
        }
    }

    /// The keys of the read set with a version newer than its seq.
    fn changed(state: &MapState, reads: &ReadSet) -> Vec<Box<[u8]>> {
        let is_newer = |versions: &MapVersions| versions.iter().any(|(seq, _)| *seq > reads.at);
        let keys = reads.keys().filter(|key| state.map.get(*key).is_some_and(is_newer)).map(Box::from);
        let in_ranges = reads.ranges().iter().flat_map(|(start, end)| {
            let end = end.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            state.map.range::<Vec<u8>, _>((Bound::Included(start), end))
        });
        let in_ranges =
            in_ranges.filter(|(_, versions)| is_newer(versions)).map(|(key, _)| key.as_slice().into());
        keys.chain(in_ranges).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }

    /// Folds what `at` sees of a key's versions, and of the same key in the origins. `None`: the key has no
    /// value.
    fn fold(&self, state: &MapState, key: &[u8], at: Seq) -> Result<Option<Vec<u8>>, MetaError> {
        let none = MapVersions::new();
        let versions = state.map.get(key).unwrap_or(&none);
        let seen: Vec<&MapChange> = versions.iter().filter(|(seq, _)| *seq <= at).map(|(_, c)| c).collect();
        let base_at = seen.iter().rposition(|c| !matches!(c, MapChange::Merge(_)));
        let below = match (base_at, self.origin_at(key, at)) {
            (None, Some(origin)) => self.fold(state, &key_in(origin.domain, key), at.min(origin.seq))?,
            _ => None,
        };
        let base = match base_at.map(|i| seen[i]) {
            Some(MapChange::Put(value)) => OlderValue::Value(value),
            Some(_) => OlderValue::Absent,
            None => below.as_deref().map_or(OlderValue::Absent, OlderValue::Value),
        };
        let operands: Vec<&[u8]> = seen[base_at.map_or(0, |i| i + 1)..]
            .iter()
            .map(|c| match c {
                MapChange::Merge(operand) => operand.as_slice(),
                _ => unreachable!("only operands follow the last base"),
            })
            .collect();
        if operands.is_empty() {
            return Ok(match base {
                OlderValue::Value(value) => Some(value.to_vec()),
                OlderValue::Absent | OlderValue::Unknown => None,
            });
        }
        let mut out = Vec::new();
        match self.schema.fold(key, base, &operands, &mut out)? {
            FoldResult::Value => Ok(Some(out)),
            FoldResult::Deleted => Ok(None),
            FoldResult::Operand => unreachable!("a known base folds to a value"),
        }
    }

    /// The origin in which a read of the key goes on at a seq.
    fn origin_at(&self, key: &[u8], at: Seq) -> Option<DomainOrigin> {
        self.domains.get()?.origin_at(key, at).filter(|_| self.schema.reads_on(key))
    }

    /// Whether an older version of the key may be seen through an origin, at any seq.
    fn may_hold_older(&self, key: &[u8]) -> bool {
        self.domains.get().is_some_and(|table| table.is_above_origin(key, &self.schema))
    }

    /// Whether the versions of the key's own domain settle its value at a seq.
    fn is_settled(&self, state: &MapState, key: &[u8], at: Seq) -> bool {
        if !self.schema.reads_on(key) {
            return true;
        }
        let seen = state.map.get(key).into_iter().flatten().filter(|(seq, _)| *seq <= at);
        seen.into_iter().any(|(_, change)| !matches!(change, MapChange::Merge(_)))
    }

    /// The keys of a range that have a version, or may have a value through an origin.
    fn keys_in(&self, state: &MapState, range: KeyRange<'_>) -> BTreeSet<Vec<u8>> {
        let bounds = (Bound::Included(range.start), range.end.map_or(Bound::Unbounded, Bound::Excluded));
        let own: BTreeSet<Vec<u8>> = state.map.range::<[u8], _>(bounds).map(|(key, _)| key.clone()).collect();
        let mut keys = own;
        let Some(table) = self.domains.get() else { return keys };
        for key in state.map.keys() {
            // The same key in each domain that reads on in this one, directly or through others.
            for domain in table.ids() {
                let Some(_) = domain_of(key) else { continue };
                let there = key_in(domain, key);
                let is_inside =
                    range.start <= there.as_slice() && range.end.is_none_or(|end| there.as_slice() < end);
                if is_inside && self.may_hold_older(&there) {
                    keys.insert(there);
                }
            }
        }
        keys
    }

    /// Adds the values of these keys to the page, while it has room.
    fn fill<'k>(
        &self,
        state: &MapState,
        at: Seq,
        (max_entries, max_bytes): (usize, usize),
        page: &mut ScanPage,
        mut next: impl FnMut() -> Option<&'k Vec<u8>>,
    ) -> Result<(), MetaError> {
        while let Some(key) = next() {
            let Some(value) = self.fold(state, key, at)? else { continue };
            if page.len() >= max_entries || (!page.is_empty() && page.bytes() >= max_bytes) {
                page.more = true;
                return Ok(());
            }
            page.push(key, &value);
        }
        Ok(())
    }

    fn sync_point(&self, state: &mut MapState) {
        if let Some(hook) = &*self.hook.lock() {
            let mut batch = Batch::new();
            hook(&std::mem::take(&mut state.sums), &mut batch);
            if !batch.is_empty() {
                Self::apply(state, &batch);
            }
        }
    }

    /// Drops versions that no snapshot sees, then slices that nothing refers to.
    fn sweep(&self, state: &mut MapState) -> Result<bool, MetaError> {
        let visible = self.registry.visible_to(|| state.newest);
        let mut dropped = false;
        let mut named = std::collections::BTreeSet::new();
        let mut emptied = Vec::new();
        let (domains, visible_to_all) = (self.domains.get(), visible.all);
        for (key, versions) in &mut state.map {
            let visible = match &domains {
                Some(table) => table.visible_in(domain_of(key), &visible_to_all),
                None => visible_to_all.clone(),
            };
            let first_needed = visible
                .iter()
                .filter_map(|at| {
                    let seen = versions.partition_point(|(seq, _)| seq <= at);
                    versions[..seen].iter().rposition(|(_, c)| !matches!(c, MapChange::Merge(_)))
                })
                .min();
            // A base is dropped only if every visible version has a later one of its own.
            let all_have_a_base = visible
                .iter()
                .all(|at| versions.iter().any(|(seq, c)| seq <= at && !matches!(c, MapChange::Merge(_))));
            // Nobody reads a removed domain after its removal.
            if let Some(removed) = self.domains.get().and_then(|table| table.removed_at(key))
                && visible.iter().all(|at| *at > removed)
            {
                emptied.push(key.clone());
                continue;
            }
            if let (Some(first), true) = (first_needed, all_have_a_base) {
                dropped |= first > 0;
                versions.drain(..first);
            }
            if let [(seq, MapChange::Delete)] = versions.as_slice()
                && visible.first().is_some_and(|oldest| seq <= oldest)
                && !self.may_hold_older(key)
            {
                emptied.push(key.clone());
            }
            for (_, change) in versions.iter() {
                let (value, is_operand) = match change {
                    MapChange::Put(value) => (value, false),
                    MapChange::Merge(operand) => (operand, true),
                    MapChange::Delete => continue,
                };
                self.schema.pointers(key, value, is_operand, &mut |slice| {
                    named.insert(slice.segment);
                })?;
            }
        }
        for key in emptied {
            state.map.remove(&key);
            dropped = true;
        }
        if Arc::strong_count(&self.pins) == 1 {
            let before = state.slices.len();
            state.slices.retain(|id, slice| slice.held_bytes > 0 || named.contains(id));
            dropped |= state.slices.len() < before;
        }
        Ok(dropped)
    }
}

impl<S: Schema> Store for MapStore<S> {
    type Snapshot = EngineSnapshot;
    type KeyGuard<'a> = KeyLockGuard<'a>;

    fn snapshot(&self) -> EngineSnapshot {
        let state = self.state.lock();
        self.registry.acquire(|| state.newest)
    }

    fn seq(&self, snapshot: &EngineSnapshot) -> Seq {
        snapshot.seq()
    }

    fn get(&self, key: &[u8], at: Seq, out: &mut Vec<u8>) -> Result<bool, MetaError> {
        out.clear();
        let state = self.state.lock();
        let Some(value) = self.fold(&state, key, at)? else { return Ok(false) };
        out.extend_from_slice(&value);
        Ok(true)
    }

    fn scan(
        &self,
        range: KeyRange<'_>,
        at: Seq,
        direction: Direction,
        max_entries: usize,
        max_bytes: usize,
        page: &mut ScanPage,
    ) -> Result<(), MetaError> {
        page.clear();
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(());
        }
        let state = self.state.lock();
        if self.domains.get().is_some() {
            let keys = self.keys_in(&state, range);
            let mut keys = keys.iter();
            return self.fill(&state, at, (max_entries, max_bytes), page, || match direction {
                Direction::Forward => keys.next(),
                Direction::Backward => keys.next_back(),
            });
        }
        let bounds = (Bound::Included(range.start), range.end.map_or(Bound::Unbounded, Bound::Excluded));
        let mut keys = state.map.range::<[u8], _>(bounds).map(|(key, _)| key);
        self.fill(&state, at, (max_entries, max_bytes), page, || match direction {
            Direction::Forward => keys.next(),
            Direction::Backward => keys.next_back(),
        })
    }

    fn lock<'a>(&'a self, keys: &[&[u8]]) -> KeyLockGuard<'a> {
        self.locks.lock(keys)
    }

    fn commit(&self, batch: &Batch, reads: Option<&ReadSet>, admit: Admit) -> Result<Seq, CommitError> {
        let mut state = self.state.lock();
        let added = batch.sums()[RESERVED];
        // Under the lock of the state nobody sees the sum between.
        self.reserved.add(added.max(0));
        let admit_reserved = if added > 0 { Admit::User } else { admit };
        if let Err(e) = self.admit(&state, batch.bytes(), admit_reserved) {
            self.reserved.add(-added.max(0));
            return Err(e.into());
        }
        if reads.is_some_and(|reads| !Self::changed(&state, reads).is_empty()) {
            self.reserved.add(-added.max(0));
            return Err(CommitError::Conflict);
        }
        let claimed = if let Admit::Reserved(claimed) = admit { claimed.cast_signed() } else { 0 };
        self.reserved.add(added.min(0) + claimed);
        Self::apply(&mut state, batch);
        Ok(state.newest)
    }

    fn add_reserved(&self, bytes: i64) {
        self.reserved.add(bytes);
    }

    fn has_room(&self, bytes: u64, admit: Admit) -> bool {
        usize::try_from(bytes).is_ok_and(|bytes| self.admit(&self.state.lock(), bytes, admit).is_ok())
    }

    /// Does nothing: there is nothing to reclaim.
    fn find_room(&self, _bytes: u64, _admit: Admit) {}

    fn changed_keys(&self, reads: &ReadSet, max: usize) -> Result<Option<Vec<Box<[u8]>>>, MetaError> {
        let changed = Self::changed(&self.state.lock(), reads);
        Ok((changed.len() <= max).then_some(changed))
    }

    fn table_bytes(&self) -> u64 {
        0
    }

    fn sync(&self, _upto: Seq) -> Result<(), MetaError> {
        let mut state = self.state.lock();
        self.admit(&state, 0, Admit::Reserve)?;
        self.sync_point(&mut state);
        Ok(())
    }

    fn set_sync_point_hook(&self, hook: SyncPointHook) {
        *self.hook.lock() = Some(hook);
    }

    fn background_step(&self) -> Result<bool, MetaError> {
        self.sweep(&mut self.state.lock())
    }

    fn close(&self) -> Result<(), MetaError> {
        self.sync(Seq::MAX)?;
        self.state.lock().closed = true;
        Ok(())
    }
}

impl<S: Schema> SliceHolder for MapStore<S> {
    fn hold(&self, slices: &[SlicePtr]) -> Result<(), SliceError> {
        let mut state = self.state.lock();
        for ptr in slices {
            // Metadata that names a slice which does not exist is damage, which reading it reports.
            if let Some(slice) = state.slices.get_mut(&ptr.segment) {
                slice.held_bytes += u64::from(ptr.len_bytes);
            }
        }
        Ok(())
    }

    fn release_hold(&self, slices: &[SlicePtr]) {
        let mut state = self.state.lock();
        for ptr in slices {
            if let Some(slice) = state.slices.get_mut(&ptr.segment) {
                let held = slice.held_bytes.checked_sub(u64::from(ptr.len_bytes));
                slice.held_bytes = held.expect("a released hold was held");
            }
        }
    }
}

impl<S: Schema> SliceStore for MapStore<S> {
    fn write(&self, _stream: Stream, bytes: &[u8], admit: Admit) -> Result<Slices, SliceError> {
        assert!(!bytes.is_empty(), "a slice has bytes");
        let mut state = self.state.lock();
        self.admit(&state, bytes.len(), admit)?;
        let segment = state.next_segment.unwrap_or(SegmentId::FIRST);
        state.next_segment = Some(segment.next());
        state.slices.insert(segment, MapSlice { bytes: bytes.to_vec(), held_bytes: bytes.len() as u64 });
        let len_bytes = u32::try_from(bytes.len()).expect("a write stays below 4 GiB");
        Ok(Slices::from_buf([SlicePtr { segment, offset_bytes: 0, len_bytes }]))
    }

    fn release(&self, slices: &[SlicePtr]) {
        let mut state = self.state.lock();
        for ptr in slices {
            let slice = state.slices.get_mut(&ptr.segment).expect("the writer's reference kept the slice");
            slice.held_bytes = slice
                .held_bytes
                .checked_sub(u64::from(ptr.len_bytes))
                .expect("a writer releases its reference once");
        }
    }

    fn holder(self: &Arc<Self>) -> Arc<dyn SliceHolder> {
        Arc::clone(self) as Arc<dyn SliceHolder>
    }

    fn may_share_batch(&self, _len_bytes: usize) -> bool {
        true
    }

    fn read(&self, reads: &mut [SliceRead<'_>]) -> Result<(), SliceError> {
        let wait = self.before_reads.lock().clone();
        if let Some(wait) = wait {
            wait();
        }
        let state = self.state.lock();
        for (ptr, buf) in reads {
            let slice = state.slices.get(&ptr.segment).ok_or(LogError::BadPointer(*ptr))?;
            let start = usize::try_from(ptr.offset_bytes).map_err(|_| LogError::BadPointer(*ptr))?;
            let bytes = slice
                .bytes
                .get(start..start.saturating_add(ptr.len_bytes as usize))
                .ok_or(LogError::BadPointer(*ptr))?;
            buf.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn pin(&self) -> Result<Pin, SliceError> {
        Ok(Pin::new(Arc::clone(&self.pins)))
    }

    fn held_bytes(&self) -> u64 {
        self.state.lock().slices.values().map(|slice| slice.held_bytes).sum()
    }

    fn space(&self) -> Result<Space, SliceError> {
        let live_bytes = Self::live_bytes(&self.state.lock());
        Ok(Space {
            total_bytes: self.capacity_bytes,
            live_bytes,
            free_bytes: self.capacity_bytes.saturating_sub(live_bytes),
            ..Space::default()
        })
    }
}

mod persistent;
#[cfg(test)]
mod tests;
