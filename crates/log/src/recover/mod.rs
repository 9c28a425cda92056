//! Recovery: opens a log from one root and the commit log that the root leads to.
//!
//! A group is *accepted* if its records and edits count. Only the last group can be refused.
//!
//! ```text
//!   root ─walk─▶ groups ─accept─▶ segment table and records as of the last accepted barrier
//!        ─resilver_damaged─▶ full redundancy ─Log::assemble─▶ a new root ─▶ open
//! ```
//!
//! # Invariants
//! 1. Until the new root is durable, recovery writes free zones only. So a power cut in recovery leaves a
//!    pool that recovers again (`tests/crash.rs` cuts recoveries, and the recoveries after them).
//! 2. The new root lists the accepted stripes of the old log as *sealed*. So the refused ones are never read
//!    again, and the accepted records stay until the client's next checkpoint (assert in `recover`).
//! 3. Accepted stripes have full redundancy again, where devices allow, before the new root is written
//!    (`tests/crash.rs`, with devices missing).
//! 4. An acknowledged sync is never dropped: another group follows its group, or its group verifies
//!    (`cases`, table GROUP; `tests/crash.rs`).
//!
//! 5. On a pool that is open for reading, recovery decides the same and writes nothing: it ends with the
//!    accepted stripes, which are read through parity where columns are lost, and with a log that has no
//!    writer (`LogEnd::Read`; `crates/sim` compares both openings in crash states and counts writes).
//!
//! The decisions are the four tables in `cases`. Events: `log_recovered` (debug) with a summary;
//! `log_group_refused` (info) for a last group that does not count; `log_group_lost` (debug) for a durable
//! group that is missing; `log_root_refused` (warn) when the log cannot be opened from the root;
//! `log_segment_not_resilvered` (warn) for a segment that stays damaged.

mod accept;
mod cases;
mod walk;

use std::collections::VecDeque;

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::Corrupt;
use warpfire_format::log_state::LogState;
use warpfire_format::segment::{SegmentKind, SegmentState, SegmentStream};
use warpfire_pool::{OldZones, Pool, PoolError, Root, SegmentWriter, Suspects, Vacated};
use warpfire_units::SegmentId;

use accept::AcceptedLog;

use crate::log::Log;
use crate::log_writer::{LogOrigin, LogWriter, PastSegment};
use crate::segment_table::SegmentTable;
use crate::state_log::{StateLog, read_state};
use crate::store::{LogError, LogPos, RecordIter, RecoveredLog};

/// The parts of a log that is new or recovered, for `Log::assemble`.
pub(crate) struct LogParts {
    pub(crate) pool: Pool,
    pub(crate) segment_table: SegmentTable,
    pub(crate) end: LogEnd,
    pub(crate) next_segment: SegmentId,
    pub(crate) next_pos: LogPos,
    pub(crate) keep_from: LogPos,
}

/// The end of the commit log.
pub(crate) enum LogEnd {
    /// The log goes on behind it, and the state log behind what the root leads to.
    Writer(Box<LogWriter>, Box<StateLog>),
    /// The pool is open for reading: so many bytes and segments were read, and nothing follows.
    Read { bytes: u64, segments: u64 },
}

/// Stripes that were durable before the root was written are missing: the root is not the newest.
pub(crate) const LOG_MISSING: Corrupt = Corrupt::new(262, "the commit log does not reach what the root says");
/// A group was written after a newer root than the one that was found.
pub(crate) const ROOT_LOST: Corrupt = Corrupt::new(263, "the commit log knows a newer root than was found");
/// The numbers of groups or records do not follow each other.
pub(crate) const OUT_OF_ORDER: Corrupt = Corrupt::new(260, "commit log out of order");
/// An edit of a segment that the segment table does not allow.
pub(crate) const BAD_EDIT: Corrupt = Corrupt::new(261, "commit log edits a segment in an impossible way");

impl From<Corrupt> for LogError {
    fn from(e: Corrupt) -> Self {
        LogError::Corrupt { code: e.code, reason: e.reason.into() }
    }
}

/// Translates an error of the pool during recovery.
pub(crate) fn unreadable(error: PoolError) -> LogError {
    match error {
        PoolError::NoSpace => LogError::NoSpace,
        PoolError::OpenForReading => LogError::OpenForReading,
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
        let current = pool.allocate(SegmentId::FIRST, SegmentStream::CommitLog).map_err(unreadable)?;
        let next_pos = LogPos(1);
        let origin = LogOrigin { sequence: 0, barrier: 0, checkpoint: 0, next: next_pos };
        let parts = LogParts {
            segment_table: SegmentTable::default(),
            end: LogEnd::Writer(
                Box::new(LogWriter::new(VecDeque::new(), current, origin)),
                Box::new(StateLog::new()),
            ),
            next_segment: SegmentId::FIRST.next(),
            next_pos,
            keep_from: next_pos,
            pool,
        };
        Ok((Log::assemble(parts)?, RecoveredLog::empty()))
    }

    /// Opens the log of a pool, as of the last sync that returned or of a later group.
    ///
    /// If the pool is open for reading, the log is too: it is the same state, and nothing is written.
    ///
    /// # Errors
    /// `Corrupt` if the root is not the newest or does not decode, `Damaged` if devices fail beyond parity.
    /// `NoSpace` if no segment is free for the new commit log and the old one has no stripe to go on behind:
    /// only devices that are lost beyond what the pool keeps free for a recovery leave it so.
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
        let (state, tail) = LogState::decode(&root.payload)?;
        walk::check_numbers(&state)?;
        let (saved, state_log) = read_state(&pool, &state, tail)?;
        let found = walk::walk(&pool, &state)?;
        let mut accepted = accept::accept(&pool, &state, &saved.segments, found)?;
        // Every zone in use must be known before one is allocated. From here on only free zones are written,
        // so a crash leaves the old root and the log that it leads to.
        let log_segments = accepted.past.iter().map(|p| &p.descriptor).chain(state_log.chain());
        for descriptor in accepted.segments.iter().chain(log_segments) {
            assert_eq!(descriptor.state, SegmentState::Sealed, "recovery seals every segment");
            pool.adopt(descriptor).map_err(unreadable)?;
        }
        pool.refuse_uncovered().map_err(|e| unreadable(e.into()))?;
        pool.look_for_newer_session();
        let (current, resilvered) = if pool.is_for_reading() {
            (None, Vec::new())
        } else {
            pool.finish_old_zones();
            let current = match pool.allocate(accepted.next_segment, SegmentStream::CommitLog) {
                Err(PoolError::NoSpace) => None,
                other => Some(other.map_err(unreadable)?),
            };
            (current, resilver_damaged(&pool, &mut accepted))
        };
        // The name and the fields are stable: a person looks them up after a mount.
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
        let end = if pool.is_for_reading() {
            let bytes = accepted.past.iter().map(|past| past.bytes).sum();
            LogEnd::Read { bytes, segments: (accepted.past.len() + state_log.chain().len()) as u64 }
        } else {
            let log_writer = log_writer(&pool, accepted.past, current, origin)?;
            LogEnd::Writer(Box::new(log_writer), Box::new(StateLog::recovered(state_log)))
        };
        let parts = LogParts {
            segment_table: SegmentTable::recovered(accepted.segments, &saved.segments, |data| {
                capacity_bytes(&pool, data)
            }),
            end,
            next_segment: accepted.next_segment.next(),
            next_pos: accepted.next_pos,
            keep_from,
            pool,
        };
        let log = Log::assemble(parts)?;
        // After the new root is durable: the old one names the old zones.
        for zones in resilvered {
            log.pool().free_old_zones(zones);
        }
        // Reading begins with a whole stripe, which may hold records before the first one kept.
        let wanted = accepted.records.into_iter().filter(move |(pos, _)| *pos >= keep_from);
        let records: RecordIter = Box::new(wanted.map(Ok));
        Ok((log, RecoveredLog { state: saved.client, records }))
    }
}

/// Payload bytes of a bulk segment with `data` data columns.
fn capacity_bytes(pool: &Pool, data: u16) -> u64 {
    if is_planted(PlantedBug::NarrowCountedAsWide) {
        return pool.geometry(SegmentKind::Bulk).segment_payload_bytes;
    }
    pool.bulk_payload_bytes(data)
}

/// The writer that goes on in `current`, the segment for the new log. Without one it begins behind the old
/// log's last segment, and finds a segment when checkpoints have freed some.
fn log_writer(
    pool: &Pool,
    mut past: VecDeque<PastSegment>,
    current: Option<SegmentWriter>,
    origin: LogOrigin,
) -> Result<LogWriter, LogError> {
    let Some(current) = current else {
        let last = past.pop_back().ok_or(LogError::NoSpace)?;
        tracing::info!(
            name: "log_opened_without_room",
            segment = %last.descriptor.id,
            "no segment is free for a new commit log; the next checkpoint has to free one"
        );
        return LogWriter::without_room(past, last, pool, origin).map_err(unreadable);
    };
    Ok(LogWriter::new(past, current, origin))
}

/// Rewrites the columns of damaged segments that lack a stripe. A crash may leave an accepted stripe with
/// parity spent; it has full redundancy again before a sync builds on it. A column that cannot be rewritten
/// now is recorded as lost.
fn resilver_damaged(pool: &Pool, accepted: &mut AcceptedLog) -> Vec<OldZones> {
    let mut all = Vec::new();
    let segments = accepted.segments.iter_mut();
    // The commit log too: its records must outlive m more devices until the client's next checkpoint.
    for descriptor in segments.chain(accepted.past.iter_mut().map(|past| &mut past.descriptor)) {
        let Some(first_stripe) = accepted.damaged.get(&descriptor.id) else { continue };
        let suspects = Suspects::WrittenLast(*first_stripe);
        let failure = match pool.resilver(descriptor.id, suspects, &Vacated::default()) {
            Ok(resilvered) => {
                assert_eq!(resilvered.descriptor.id, descriptor.id, "a resilvered segment keeps its id");
                *descriptor = resilvered.descriptor;
                all.extend((!resilvered.moves.is_empty()).then_some(resilvered.old_zones));
                resilvered.failure
            }
            Err(e) => Some(e),
        };
        if let Some(error) = failure {
            tracing::warn!(
                name: "log_segment_not_resilvered",
                segment = %descriptor.id,
                %error,
                "a segment stays damaged"
            );
        }
    }
    all
}
