//! Groups and roots: the writes that make appended bytes and records durable.

use warpfire_env::sync::atomic::Ordering;
use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::log_state::LogState;
use warpfire_format::segment::SegmentKind;
use warpfire_pool::PoolError;
use warpfire_units::SegmentId;

use super::append::Buffers;
use super::{Log, SyncState};
use crate::limits::EDIT_MAX_BYTES;
use crate::pending::RecordBuffer;
use crate::pins::Retired;
use crate::store::{LogError, LogPos};
use crate::stream::STREAMS;

impl Log {
    /// Writes a group because of the bytes since the last one, so that the next recovery has no more of them
    /// to verify. Without room for a group it waits for as many bytes again: the caller's append stands.
    pub(super) fn write_due_group(&self) -> Result<(), LogError> {
        let mut state = self.sync_state.lock();
        let state = state.as_mut().ok_or(LogError::OpenForReading)?;
        // While this thread waited for the lock, another one may have written the group.
        let unlogged_bytes = self.segment_table.lock().unlogged_bytes();
        if unlogged_bytes < self.group_due_bytes.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.write_group(state, Buffers::Needed) {
            Err(LogError::NoSpace) => {
                self.group_due_bytes.store(unlogged_bytes + self.group_bytes, Ordering::Relaxed);
                Ok(())
            }
            other => other,
        }
    }

    /// Frees the retired segments and zones that no pin holds. The zones of the segments follow when the next
    /// group is durable.
    pub(super) fn collect_unpinned(&self) {
        while let Some(retired) = self.pins.take_unpinned() {
            match retired {
                Retired::Segment(id) => self.segment_table.lock().free(id),
                Retired::Zones(zones) => self.pool.free_old_zones(zones),
            }
        }
    }

    /// Frees zones by a sync, for an append that found none. `true` if the append is worth another try.
    pub(super) fn reclaim(&self) -> Result<bool, LogError> {
        let before = self.pool.free_segments(SegmentKind::Mirror);
        self.seal_dead()?;
        let mut state = self.sync_state.lock();
        self.write_group(state.as_mut().ok_or(LogError::OpenForReading)?, Buffers::Needed)?;
        let _freed_some = self.pool.find_free_zones();
        let now = self.pool.free_segments(SegmentKind::Mirror);
        tracing::debug!(
            name: "log_reclaimed",
            free_before = before,
            free_now = now,
            "an append found no free segment and synced to free some"
        );
        Ok(now > before)
    }

    /// Makes every record that was logged before the call durable, with the bytes that it needs, and with all
    /// buffers everything that was appended.
    pub(super) fn write_group(&self, state: &mut SyncState, which: Buffers) -> Result<(), LogError> {
        self.latch.check()?;
        // Read before the records are taken: a change that comes later only makes the next sync write again.
        let changes = self.changes.load(Ordering::Acquire);
        // Records before streams (invariant 2).
        let records = self.pending.lock().take();
        let which = if records.needs_all_appends() { Buffers::All } else { which };
        let written = self.write_group_of(state, &records, which).and_then(|()| {
            // A device was lost in the flush: the root that says so has a copy when the sync returns.
            if self.copy_changed_root(state).map_err(|e| self.latch.on_write(e))? {
                self.pool.flush().map_err(|e| self.latch.on_write(e))?;
            }
            Ok(())
        });
        match written {
            Ok(()) => {
                if which == Buffers::All {
                    state.synced_changes = changes;
                }
                self.group_due_bytes.store(self.group_bytes, Ordering::Relaxed);
            }
            Err(e) => {
                // A full pool may take them later, after a checkpoint.
                self.pending.lock().put_back(records);
                return Err(e);
            }
        }
        self.free_zones()
    }

    /// Frees the zones of segments that a durable barrier or root has freed, and retires the old zones of
    /// columns that it has moved.
    pub(super) fn free_zones(&self) -> Result<(), LogError> {
        let (freed, moved) = {
            let mut segment_table = self.segment_table.lock();
            (segment_table.take_freed(), segment_table.take_moved())
        };
        moved.into_iter().for_each(|zones| self.pins.retire(Retired::Zones(zones)));
        for id in &freed {
            tracing::trace!(name: "segment_freed", segment = %id, "the zones of a segment are free");
            self.pool.free(*id).map_err(|e| self.latch.on_write(e))?;
        }
        if !freed.is_empty() {
            self.note_room();
        }
        Ok(())
    }

    /// Takes note of the columns that missed a write or a flush. The next group or root records them: until
    /// then recovery verifies each stripe that a column may lack, because the last group lists it.
    pub(crate) fn note_losses(&self) {
        let lost = self.pool.take_lost();
        if !lost.is_empty() && !is_planted(PlantedBug::LostNotLogged) {
            let mut segment_table = self.segment_table.lock();
            lost.into_iter().for_each(|(id, lost)| segment_table.note_lost(id, lost));
        }
    }

    /// The sync of a checkpoint that keeps no pending record. The root holds the records' effect and the
    /// edits, so nothing is logged, and a full pool can still make a checkpoint. `false` if a pending record
    /// is kept.
    pub(super) fn absorb_into_root(
        &self,
        state: &mut SyncState,
        keep_from: LogPos,
    ) -> Result<bool, LogError> {
        let changes = self.changes.load(Ordering::Acquire);
        {
            let mut pending = self.pending.lock();
            if pending.next() > keep_from && !pending.is_empty() {
                return Ok(false);
            }
            state.log_writer.skip(&pending.take());
        }
        self.write_all_out(Buffers::All).map_err(|e| self.latch.on_write(e))?;
        self.collect_unpinned();
        // The root lists the segments as these edits leave them, so the frames are not written.
        let _edits_in_the_root = self.segment_table.lock().edits();
        state.synced_changes = changes;
        Ok(true)
    }

    /// The sync of a checkpoint on a full pool: the commit log has no room for a group. The root holds the
    /// edits, so they are not written as frames. The records stay pending for the next sync.
    pub(super) fn absorb_edits_into_root(&self) -> Result<(), LogError> {
        self.write_all_out(Buffers::All).map_err(|e| self.latch.on_write(e))?;
        self.collect_unpinned();
        let _edits_in_the_root = self.segment_table.lock().edits();
        Ok(())
    }

    /// Checks that a root with this client state and all edits that wait fits its zone, if need be because
    /// the state log takes the rest.
    pub(super) fn check_root_fits(&self, state: &mut SyncState, client: &[u8]) -> Result<(), LogError> {
        let state_log = &mut state.state_log;
        // Other threads may open segments before the root is made, one for each stream.
        let changed_bytes = self.segment_table.lock().unsaved_bytes_max() + STREAMS.len() * EDIT_MAX_BYTES;
        let tail_bytes = state_log.tail_bytes_with(client, changed_bytes);
        let chain_bytes = state.log_writer.root_bytes_max() + state_log.chain_bytes_max();
        let left_bytes = self.pool.root_payload_bytes_max().saturating_sub(chain_bytes as u64);
        if tail_bytes as u64 <= left_bytes {
            return Ok(());
        }
        let has_room = state_log.make_room(&self.pool, tail_bytes, || self.next_id());
        if has_room.map_err(|e| self.latch.on_write(e))? { Ok(()) } else { Err(LogError::NoSpace) }
    }

    /// Writes a group with these records, durable on return.
    pub(super) fn write_group_of(
        &self,
        state: &mut SyncState,
        records: &RecordBuffer,
        which: Buffers,
    ) -> Result<(), LogError> {
        let failed = |e| self.latch.on_write(e);
        // A crash from here to the flush leaves stripes that no group lists, or a torn group. Recovery drops
        // both: the sync has not returned.
        self.write_all_out(which).map_err(failed)?;
        self.collect_unpinned();
        self.note_losses();
        let _written = self.copy_changed_root(state).map_err(failed)?;
        let bytes = records.bytes() + records.len() * 64 + self.segment_table.lock().edit_bytes_max();
        // Room first: once the edits are taken the table counts them as logged, and `NoSpace` would lose
        // them.
        state.log_writer.make_room(&self.pool, bytes, || self.next_id()).map_err(failed)?;
        if state.log_writer.needs_root() {
            self.write_root(state, state.keep_from)?;
        }
        let edits = self.segment_table.lock().edits();
        if records.is_empty() && edits.is_empty() && !state.log_writer.is_outdated() {
            return Ok(());
        }
        if is_planted(PlantedBug::FreeBeforeBarrier) {
            self.free_zones()?;
        }
        state.log_writer.write_group(records, &edits).map_err(failed)?;
        // One flush for bulk stripes and log stripes: the barrier makes recovery verify the stripes of the
        // last group, so their order on the devices does not matter.
        self.pool.flush().map_err(failed)?;
        self.publish_log_size(state);
        Ok(())
    }

    /// Copies the newest root if the pool has changed its devices or its name since the last copy: the next
    /// group may name columns on a device that an older copy does not know. Returns whether it wrote one.
    fn copy_changed_root(&self, state: &mut SyncState) -> Result<bool, PoolError> {
        let last_root = self.pool.last_root();
        if last_root == state.copied_root || is_planted(PlantedBug::ChangedRootNotCopied) {
            return Ok(false);
        }
        let Some(copy) = self.pool.root_copy(None) else { return Ok(false) };
        let has_room = state.log_writer.make_room_for_root(&self.pool, copy.len(), || self.next_id())?;
        if has_room {
            state.log_writer.write_root_copy(&copy)?;
            state.copied_root = last_root;
        }
        Ok(has_room)
    }

    /// Publishes the size of the logs for readers without the lock.
    pub(super) fn publish_log_size(&self, state: &SyncState) {
        self.log_bytes.store(state.log_writer.bytes(), Ordering::Relaxed);
        let state_segments = state.state_log.segments();
        let segments = state.log_writer.segments() + state_segments;
        self.log_segments.store(segments as u64, Ordering::Relaxed);
        self.state_segments.store(state_segments as u64, Ordering::Relaxed);
    }

    /// Writes a root with the state as of the last group, and frees the log segments that it does not need.
    pub(super) fn write_root(&self, state: &mut SyncState, keep_from: LogPos) -> Result<(), LogError> {
        assert!(keep_from >= state.keep_from, "records that a root has dropped stay dropped");
        let failed = |e| self.latch.on_write(e);
        let state_log = &mut state.state_log;
        state_log.put_segments(self.segment_table.lock().take_unsaved());
        state_log
            .spill(&self.pool, || self.segment_table.lock().logged(), || self.next_id())
            .map_err(failed)?;
        // Before the root is made: a device that fails this flush has columns that the root records as lost.
        // The flush covers the stripes of the state log, which the root names.
        if !is_planted(PlantedBug::RootBeforeFlush) {
            self.pool.flush().map_err(failed)?;
        }
        self.note_losses();
        state_log.put_segments(self.segment_table.lock().take_unsaved());
        if is_planted(PlantedBug::StateFreedBeforeRoot) {
            for id in state_log.take_replaced() {
                self.pool.free(id).map_err(failed)?;
            }
        }
        let log_writer = &mut state.log_writer;
        // The chain may get a segment for the copy of the root, so room comes first.
        let payload_bytes =
            log_writer.root_bytes_max() + state_log.chain_bytes_max() + state_log.tail().len();
        let copy_bytes = self.pool.root_copy_bytes_max(payload_bytes);
        let has_room =
            log_writer.make_room_for_root(&self.pool, copy_bytes, || self.next_id()).map_err(failed)?;
        let log_chain = log_writer.log_chain(keep_from);
        let root = LogState {
            next_segment: SegmentId::new(self.next_segment.load(Ordering::Relaxed)).expect("ids count up"),
            next_pos: log_writer.written_pos().0,
            keep_from: keep_from.0,
            barrier: log_writer.barrier(),
            sequence: log_writer.sequence(),
            checkpoint: log_writer.checkpoint() + 1,
            first_stripe: log_chain.first_stripe,
            state_sequence: state_log.sequence(),
            chain: log_chain.chain.clone(),
            state_chain: state_log.chain(),
        };
        let payload = root.encode(state_log.tail());
        // All that the root names is durable, and so is the copy before the root: the pool flushes.
        match self.pool.root_copy(Some(&payload)).filter(|copy| has_room && copy.len() <= copy_bytes) {
            Some(copy) => log_writer.write_root_copy(&copy).map_err(failed)?,
            None => {
                tracing::debug!(name: "root_without_copy", "the commit log does not take a copy of the root")
            }
        }
        self.pool.write_root(&payload).map_err(failed)?;
        state.copied_root = self.pool.last_root();
        state.keep_from = keep_from;
        // The root has the edits: the next group is due after as many bytes as ever.
        self.group_due_bytes.store(self.group_bytes, Ordering::Relaxed);
        // Only now: until the root was durable, recovery would have read these segments from the root before.
        for id in
            log_writer.note_root(root.checkpoint, &log_chain).into_iter().chain(state_log.take_replaced())
        {
            self.pool.free(id).map_err(failed)?;
        }
        self.publish_log_size(state);
        self.note_room();
        Ok(())
    }
}
