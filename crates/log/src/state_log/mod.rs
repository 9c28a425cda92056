//! The state log: what checkpoints save of the segment table and of the client's state.
//!
//! The *saved state* is a string of frames (`warpfire_format::state_frame`). Its beginning lies in the
//! *chain*, mirror segments that nothing else uses; its end, the *tail*, lies in the root. A checkpoint adds
//! frames of the changes to the tail. A tail that is longer than `tail_bytes_max` is appended to the chain
//! first. A chain that is much longer than the state is replaced by a *base*: frames of the whole state, in
//! fresh segments, or in the tail alone if they fit there.
//!
//! ```text
//!   no chain: the tail holds the base ──spill: too long for a root──▶ base in a chain, short tail
//!      ▲                                                               │ ▲
//!      └──────────spill: the base fits the tail again──────────────────┘ └─ spill: append, or a new base
//! ```
//!
//! # Invariants
//! 1. The chain's listed stripes and the tail, read in order, are the state as of the last `put_segments` and
//!    `put_client` (`tests/state_log.rs` opens after each checkpoint).
//! 2. A root names a stripe of the chain only after a flush behind the write (`Log::write_root` spills, then
//!    flushes, then writes the root; `tests/crash.rs`).
//! 3. The segments of a replaced chain stay until a root without them is durable (`take_replaced` is called
//!    behind `Pool::write_root`; `tests/crash.rs` on append-only devices).
//! 4. A checkpoint needs no room: without free segments the tail stays in the root (`spill`;
//!    `tests/full.rs`). The chain leaves what streams of user data leave, and the zones of a table and of a
//!    victim.
//! 5. A session writes no segment of an older session (`recovered` has no writer).
//! 6. A chain with fewer whole columns than new segments get is replaced by the next checkpoint (`is_weak`;
//!    `tests/returning.rs`).

mod patch;
mod read;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState, SegmentStream};
use warpfire_format::state_frame::{GONE_BYTES, STATE_FRAME_OVERHEAD_BYTES, StateFrame};
use warpfire_pool::{Pool, PoolError, SegmentWriter, StripeBuf};
use warpfire_units::SegmentId;

use crate::limits::{LOG_RESERVE_SEGMENTS, STATE_CHAIN_SLACK_BYTES, STATE_TAIL_MAX_BYTES};
use crate::stream::log_segments_in_bulk;

pub(crate) use read::{ReadState, read_state};

/// A segment as the commit log knows it, or the id of one that is gone.
pub(crate) enum SavedChange {
    Segment(SegmentDescriptor),
    Gone(SegmentId),
}

impl SavedChange {
    fn frame(self) -> StateFrame<'static> {
        match self {
            SavedChange::Segment(descriptor) => StateFrame::Segment(descriptor),
            SavedChange::Gone(id) => StateFrame::Gone(id),
        }
    }

    /// Most bytes of the frame of a segment with so many columns, lost columns and runs, or that is gone.
    pub(crate) fn bytes_max(columns: usize, lost: usize, runs: usize) -> usize {
        let descriptor = SegmentDescriptor::encoded_bytes_max(columns, lost, runs);
        (STATE_FRAME_OVERHEAD_BYTES + descriptor).max(GONE_BYTES)
    }
}

/// The writer of the state log.
pub(crate) struct StateLog {
    /// Segments of the chain that take no more stripes, oldest first.
    past: Vec<SegmentDescriptor>,
    /// The end of the chain.
    current: Option<SegmentWriter>,
    /// Segments for the next stripes.
    spares: VecDeque<SegmentWriter>,
    /// Segments of the chain before, which a durable root may still name.
    replaced: Vec<SegmentId>,
    /// The number of the last stripe.
    sequence: u64,
    /// Bytes of the base at the beginning of the chain.
    base_bytes: u64,
    /// Bytes of the whole chain.
    chain_bytes: u64,
    /// The frames behind those of the chain.
    tail: Vec<u8>,
    /// Bytes of a tail, at most, while the chain can take them.
    tail_bytes_max: usize,
    /// The client's state in the frames.
    client: Vec<u8>,
    /// A stripe of the chain is not on all its columns.
    lacks_columns: bool,
}

impl StateLog {
    /// The state log of a new pool.
    pub(crate) fn new() -> Self {
        StateLog {
            past: Vec::new(),
            current: None,
            spares: VecDeque::new(),
            replaced: Vec::new(),
            sequence: 0,
            base_bytes: 0,
            chain_bytes: 0,
            tail: Vec::new(),
            tail_bytes_max: STATE_TAIL_MAX_BYTES,
            client: Vec::new(),
            lacks_columns: false,
        }
    }

    /// The state log as recovery read it. Its segments take no more stripes.
    pub(crate) fn recovered(read: ReadState) -> Self {
        StateLog {
            past: read.chain,
            sequence: read.sequence,
            base_bytes: read.base_bytes,
            chain_bytes: read.chain_bytes,
            tail: read.tail,
            client: read.client,
            lacks_columns: read.lacks_columns,
            ..StateLog::new()
        }
    }

    pub(crate) fn set_tail_bytes_max(&mut self, bytes: usize) {
        self.tail_bytes_max = bytes;
    }

    /// The frames that a root holds.
    pub(crate) fn tail(&self) -> &[u8] {
        &self.tail
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The segments that a root names, oldest first.
    pub(crate) fn chain(&self) -> Vec<SegmentDescriptor> {
        self.past.iter().cloned().chain(self.current.iter().map(SegmentWriter::descriptor)).collect()
    }

    /// Segments of the chain, and spares for it. Between two checkpoints no others are in use.
    pub(crate) fn segments(&self) -> usize {
        self.past.len() + usize::from(self.current.is_some()) + self.spares.len()
    }

    /// Adds changes of the segment table to the state.
    pub(crate) fn put_segments(&mut self, changes: Vec<SavedChange>) {
        for change in changes {
            change.frame().encode(&mut self.tail);
        }
    }

    /// Makes `client` the client's state.
    pub(crate) fn put_client(&mut self, client: &[u8]) {
        if self.client == client {
            return;
        }
        StateFrame::Client(patch::pieces(&self.client, client)).encode(&mut self.tail);
        self.client = client.to_vec();
    }

    /// Most bytes that the tail takes with `client` and `changed_bytes` of other changes.
    pub(crate) fn tail_bytes_with(&self, client: &[u8], changed_bytes: usize) -> usize {
        let client = if self.client == client { 0 } else { STATE_FRAME_OVERHEAD_BYTES + client.len() };
        self.tail.len() + changed_bytes + client
    }

    /// Most bytes that the chain takes in a root.
    pub(crate) fn chain_bytes_max(&self) -> usize {
        let bytes = |d: &SegmentDescriptor| {
            SegmentDescriptor::encoded_bytes_max(d.columns.len(), d.lost.len(), d.stripes.len())
        };
        self.chain().iter().map(bytes).sum()
    }

    /// Shortens the tail if it is too long for a root that should be short, and replaces a chain that is too
    /// long or lacks columns. `table` returns every segment as `put_segments` left it. What it writes is
    /// durable after the next flush. Without free segments the tail stays as it is.
    pub(crate) fn spill(
        &mut self,
        pool: &Pool,
        table: impl FnOnce() -> Vec<SegmentDescriptor>,
        mut next_id: impl FnMut() -> SegmentId,
    ) -> Result<(), PoolError> {
        let root_bytes = usize::try_from(pool.root_payload_bytes_max()).unwrap_or(usize::MAX);
        let tail_bytes_max = self.tail_bytes_max.min(root_bytes / 4);
        self.drop_outdated_spares(pool)?;
        let is_weak = self.is_weak(pool);
        if self.tail.len() <= tail_bytes_max && !is_weak {
            return Ok(());
        }
        let has_chain = !self.past.is_empty() || self.current.is_some();
        let segment_bytes = pool.geometry(SegmentKind::Mirror).segment_payload_bytes.max(1);
        let slack_bytes = STATE_CHAIN_SLACK_BYTES.min(segment_bytes);
        let grown_bytes = self.chain_bytes + self.tail.len() as u64;
        // Each session begins a segment, so the chain may be short and have many.
        let is_scattered = self.past.len() as u64 > 1 + self.base_bytes.div_ceil(segment_bytes);
        if !has_chain || is_weak || is_scattered || grown_bytes > 2 * self.base_bytes + slack_bytes {
            let base = self.base(table());
            if base.len() <= tail_bytes_max || self.make_room_for(pool, base.len(), 0, &mut next_id)? {
                return self.replace(base, tail_bytes_max);
            }
            if !has_chain {
                // Frames that later ones have replaced leave the tail all the same.
                self.tail = base;
                return Ok(());
            }
        }
        if self.tail.len() > tail_bytes_max && self.make_room(pool, self.tail.len(), &mut next_id)? {
            let tail = std::mem::take(&mut self.tail);
            self.append(&tail)?;
        }
        Ok(())
    }

    /// Frees the spares that new segments are better than. No root names a spare.
    fn drop_outdated_spares(&mut self, pool: &Pool) -> Result<(), PoolError> {
        let spares = std::mem::take(&mut self.spares);
        let (outdated, kept): (VecDeque<_>, _) = spares.into_iter().partition(SegmentWriter::is_outdated);
        self.spares = kept;
        outdated.into_iter().try_for_each(|writer| pool.free(writer.id()))
    }

    /// The segments of the chain before. The caller knows that a root without them is durable.
    pub(crate) fn take_replaced(&mut self) -> Vec<SegmentId> {
        std::mem::take(&mut self.replaced)
    }

    /// Whether a new chain would have more whole columns than this one, or avoid a device that leaves.
    fn is_weak(&self, pool: &Pool) -> bool {
        if is_planted(PlantedBug::StateKeptWeak) {
            return false;
        }
        let of_new = usize::from(pool.geometry(SegmentKind::Mirror).parity);
        let lacks = |d: &SegmentDescriptor| pool.losses_left(d.id).is_none_or(|left| left < of_new);
        let leaves =
            |d: &SegmentDescriptor| d.columns.iter().any(|(device, zone)| pool.vacates(*device, *zone));
        self.lacks_columns || self.chain().iter().any(|d| lacks(d) || leaves(d))
    }

    /// The whole state as frames.
    fn base(&self, table: Vec<SegmentDescriptor>) -> Vec<u8> {
        let mut out = Vec::new();
        for descriptor in table {
            StateFrame::Segment(descriptor).encode(&mut out);
        }
        if !self.client.is_empty() {
            StateFrame::Client(patch::pieces(&[], &self.client)).encode(&mut out);
        }
        out
    }

    /// Allocates segments until `bytes` more fit behind the chain. `false` if too few are free.
    pub(crate) fn make_room(
        &mut self,
        pool: &Pool,
        bytes: usize,
        next_id: impl FnMut() -> SegmentId,
    ) -> Result<bool, PoolError> {
        let open_bytes = self.current.as_ref().map_or(0, SegmentWriter::remaining_bytes);
        self.make_room_for(pool, bytes, open_bytes, next_id)
    }

    /// Allocates segments until `bytes` fit into them and into `open_bytes` of the present one.
    fn make_room_for(
        &mut self,
        pool: &Pool,
        bytes: usize,
        open_bytes: u64,
        mut next_id: impl FnMut() -> SegmentId,
    ) -> Result<bool, PoolError> {
        let segment_bytes = pool.geometry(SegmentKind::Mirror).segment_payload_bytes.max(1);
        let wanted = (bytes as u64).saturating_sub(open_bytes).div_ceil(segment_bytes);
        let missing = wanted.saturating_sub(self.spares.len() as u64);
        // Without room the tail stays in the root. So all that frees zones comes first.
        let in_bulk = log_segments_in_bulk(pool, pool.geometry(SegmentKind::Bulk));
        let kept = LOG_RESERVE_SEGMENTS + 2 * in_bulk;
        if missing > 0 && pool.free_segments(SegmentKind::Mirror) < missing + kept {
            tracing::debug!(name: "state_without_room", bytes, "no segment is free for the state log");
            return Ok(false);
        }
        while (self.spares.len() as u64) < wanted {
            if !pool.leaves_a_mirror() {
                return Ok(false);
            }
            match pool.allocate(next_id(), SegmentStream::StateLog) {
                Ok(writer) => self.spares.push_back(writer),
                Err(PoolError::NoSpace) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Begins anew with `base`: in the tail if it is short, else in a new chain, for which there is room.
    fn replace(&mut self, base: Vec<u8>, tail_bytes_max: usize) -> Result<(), PoolError> {
        self.replaced.extend(self.past.drain(..).map(|d| d.id));
        self.replaced.extend(self.current.take().map(|writer| writer.id()));
        self.lacks_columns = false;
        self.chain_bytes = 0;
        self.base_bytes = 0;
        if base.len() <= tail_bytes_max {
            self.tail = base;
            return Ok(());
        }
        self.tail.clear();
        self.append(&base)?;
        self.base_bytes = self.chain_bytes;
        Ok(())
    }

    /// Writes bytes behind the chain. There is room for them.
    fn append(&mut self, bytes: &[u8]) -> Result<(), PoolError> {
        let mut buf = StripeBuf::without_stripe();
        let mut rest = bytes;
        while !rest.is_empty() {
            let writer = match &mut self.current {
                Some(writer) if writer.next_stripe_capacity() > 0 => writer,
                current => {
                    let next = self.spares.pop_front().expect("there is room for the bytes");
                    self.past.extend(current.take().map(SegmentWriter::seal));
                    current.insert(next)
                }
            };
            writer.begin(&mut buf);
            let taken = buf.append(rest);
            self.sequence += 1;
            writer.write_stripe(&mut buf, self.sequence)?;
            rest = &rest[taken..];
        }
        self.chain_bytes += bytes.len() as u64;
        debug_assert!(self.past.iter().all(|d| d.state == SegmentState::Sealed), "only the last one grows");
        Ok(())
    }
}
