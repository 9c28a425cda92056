//! Opening: one root, then the commit log from where the root says.
//!
//! ```text
//!   root ──▶ walk: stripes in sequence ──▶ groups ──▶ accept: all but the last; the last if it verifies
//!        ──▶ table and records as of the last accepted barrier ──▶ restore what is not whole
//!        ──▶ a new root that says so ──▶ open
//! ```
//!
//! # Invariants
//! 1. Until the new root is durable nothing is written but free zones, so recovery can be cut and begun
//!    again.
//! 2. The new root lists the accepted stripes of the old log as *sealed*, so what was not accepted is never
//!    looked at again, and the records that were accepted stay until the client's next checkpoint.
//! 3. What was accepted has full redundancy again, where devices allow, before the new root says so.
//! 4. An acknowledged sync is never dropped: its group is followed by another one, or it verifies.
//!
//! What is decided by cases is decided in `cases`, by four tables. Events: `log_recovered` (debug) when it is
//! done, `log_group_refused` (info) for a group that does not count, `log_group_lost` (debug) for one that
//! had to, and `log_root_refused` (warn) where the log cannot be opened from the root.

mod accept;
mod cases;
mod walk;

use std::collections::{BTreeSet, VecDeque};

use warpfire_format::Corrupt;
use warpfire_format::log_state::LogState;
use warpfire_format::segment::SegmentKind;
use warpfire_pool::{Pool, PoolError, ResilveredSegment, Root};
use warpfire_units::SegmentId;

use accept::AcceptedLog;

use crate::log::{Log, LogParts};
use crate::log_writer::{LogOrigin, LogWriter};
use crate::segment_table::SegmentTable;
use crate::store::{LogError, LogPos, RecordIter, RecoveredLog};

/// The log's first stripes, which the root says are durable, are not all there: the root is not the newest.
pub(crate) const LOG_MISSING: Corrupt = Corrupt::new(262, "the commit log does not reach what the root says");
/// A group was written after a newer root than the one that was found.
pub(crate) const ROOT_LOST: Corrupt = Corrupt::new(263, "the commit log knows a newer root than was found");
/// Groups or records that do not count up.
pub(crate) const OUT_OF_ORDER: Corrupt = Corrupt::new(260, "commit log out of order");
/// An edit of a segment that the table does not allow.
pub(crate) const BAD_EDIT: Corrupt = Corrupt::new(261, "commit log edits a segment in an impossible way");

impl From<Corrupt> for LogError {
    fn from(e: Corrupt) -> Self {
        LogError::Corrupt { code: e.code, reason: e.reason.into() }
    }
}

fn unreadable(error: PoolError) -> LogError {
    match error {
        PoolError::NoSpace => LogError::NoSpace,
        PoolError::Misfit { source, .. } => source.into(),
        other => LogError::Damaged(other.to_string().into()),
    }
}

impl Log {
    /// Makes the log of a new pool. Durable on return.
    ///
    /// # Errors
    /// `NoSpace` if the pool is too small, `Damaged` or `ReadOnly` if its devices fail.
    pub fn create(pool: Pool) -> Result<(Log, RecoveredLog), LogError> {
        let current = pool.allocate(SegmentId::FIRST, SegmentKind::Mirror).map_err(unreadable)?;
        let next_pos = LogPos(1);
        let origin = LogOrigin { sequence: 0, barrier: 0, checkpoint: 0, next: next_pos };
        let parts = LogParts {
            segment_table: SegmentTable::default(),
            damaged: BTreeSet::new(),
            log_writer: LogWriter::new(VecDeque::new(), current, origin),
            next_segment: SegmentId::FIRST.next(),
            next_pos,
            keep_from: next_pos,
            pool,
        };
        Ok((Log::assemble(parts, &[])?, RecoveredLog::empty()))
    }

    /// Opens the log of a pool as it was after some cut no older than the last sync that returned.
    ///
    /// # Errors
    /// `Corrupt` if the root is not the newest or does not decode, `Damaged` if devices fail beyond parity,
    /// `NoSpace` if not one log segment is free.
    pub fn open(pool: Pool, root: &Root) -> Result<(Log, RecoveredLog), LogError> {
        Self::recover(pool, root).inspect_err(|error| {
            tracing::warn!(
                name: "log_root_refused",
                root = root.sequence,
                %error,
                "the log cannot be opened from this root"
            );
        })
    }

    fn recover(pool: Pool, root: &Root) -> Result<(Log, RecoveredLog), LogError> {
        let (state, client) = LogState::decode(&root.payload)?;
        let found = walk::walk(&pool, &state)?;
        let mut accepted = accept::accept(&pool, &state, found)?;
        for descriptor in accepted.segments.iter().chain(accepted.past.iter().map(|p| &p.descriptor)) {
            pool.adopt(descriptor).map_err(unreadable)?;
        }
        let current = pool.allocate(accepted.next_segment, SegmentKind::Mirror).map_err(unreadable)?;
        let resilvered = resilver_damaged(&pool, &mut accepted);
        // Stable: a person asks afterwards what a mount found.
        tracing::debug!(
            name: "log_recovered",
            root = root.sequence,
            groups = accepted.groups,
            refused_group = accepted.refused,
            barrier = accepted.barrier,
            sequence = accepted.sequence,
            records = accepted.records.len(),
            segments = accepted.segments.len(),
            log_segments = accepted.past.len(),
            resilvered = resilvered.len(),
            damaged = accepted.damaged.len(),
            "the commit log is recovered"
        );
        let origin = LogOrigin {
            sequence: accepted.sequence,
            barrier: accepted.barrier,
            checkpoint: state.checkpoint,
            next: accepted.next_pos,
        };
        let keep_from = LogPos(state.keep_from);
        let parts = LogParts {
            segment_table: SegmentTable::recovered(accepted.segments),
            damaged: accepted.damaged,
            log_writer: LogWriter::new(accepted.past, current, origin),
            next_segment: accepted.next_segment.next(),
            next_pos: accepted.next_pos,
            keep_from,
            pool,
        };
        let log = Log::assemble(parts, client)?;
        for segment in resilvered {
            log.pool().free_old_zones(segment);
        }
        let wanted = accepted.records.into_iter().filter(move |(pos, _)| *pos >= keep_from);
        let records: RecordIter = Box::new(wanted.map(Ok));
        Ok((log, RecoveredLog { state: client.to_vec(), records }))
    }
}

/// Gives damaged segments their lost columns back, where that is possible: what was accepted by luck or by
/// parity has full redundancy before anything is acknowledged on top of it. The others stay damaged, first in
/// line for cleaning.
fn resilver_damaged(pool: &Pool, accepted: &mut AcceptedLog) -> Vec<ResilveredSegment> {
    let mut all = Vec::new();
    let segments = accepted.segments.iter_mut();
    for descriptor in segments.chain(accepted.past.iter_mut().map(|past| &mut past.descriptor)) {
        if !accepted.damaged.contains(&descriptor.id) {
            continue;
        }
        match pool.resilver(descriptor.id) {
            Ok(resilvered) => {
                accepted.damaged.remove(&descriptor.id);
                if let Some(segment) = resilvered {
                    *descriptor = segment.descriptor.clone();
                    all.push(segment);
                }
            }
            Err(e) => tracing::warn!("{} could not be restored: {e}", descriptor.id),
        }
    }
    all
}
