//! Decides which of the found groups count, by table GROUP of `cases`.
//!
//! Every group but the last was durable, since the next one is begun only after its flush returned. The last
//! one may be torn, so each bulk stripe that it requires is verified. It does not require the stripes of
//! segments that it frees: once it was durable, their zones were reset.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use warpfire_env::{PlantedBug, is_planted};
use warpfire_format::log_frame::LogFrame;
use warpfire_format::log_state::LogState;
use warpfire_format::segment::{SegmentDescriptor, SegmentState, StripeRun};
use warpfire_pool::{Pool, StripeHealth};
use warpfire_units::{DeviceIndex, SegmentId, ZoneIndex};

use super::cases::{self, GroupDecision, GroupFacts};
use super::walk::{LogGroup, WalkedLog};
use super::{BAD_EDIT, unreadable};
use crate::log_writer::PastSegment;
use crate::segment_table::append_runs;
use crate::store::{LogError, LogPos};

type SegmentMap = BTreeMap<SegmentId, SegmentDescriptor>;

/// The state as of the last accepted barrier.
pub(super) struct AcceptedLog {
    pub(super) segments: Vec<SegmentDescriptor>,
    /// Segments with a stripe that some column lacks, and the first such stripe.
    pub(super) damaged: BTreeMap<SegmentId, u32>,
    pub(super) records: Vec<(LogPos, Vec<u8>)>,
    pub(super) past: VecDeque<PastSegment>,
    pub(super) barrier: u64,
    pub(super) sequence: u64,
    pub(super) next_pos: LogPos,
    pub(super) next_segment: SegmentId,
    /// The number of accepted groups.
    pub(super) groups: usize,
    /// The barrier of the refused group, if there was one.
    pub(super) refused: Option<u64>,
}

/// Accepts groups, and applies their edits to the root's segments.
pub(super) fn accept(
    pool: &Pool,
    state: &LogState,
    saved: &SegmentMap,
    found: WalkedLog,
) -> Result<AcceptedLog, LogError> {
    let mut segments = saved.clone();
    let mut groups = found.groups;
    let mut damaged = found.damaged;
    // Missing devices may be why the log ends here: in the last segment with a stripe, or behind it.
    for past in found.past.iter().rev() {
        pool.note_tail(&past.descriptor);
        if !past.starts.is_empty() {
            break;
        }
    }
    let last = groups.pop();
    for group in &groups {
        let facts = GroupFacts { last: false, stripes_read: false, stripes_whole: false };
        assert_eq!(cases::group(facts).1, GroupDecision::Accept, "a group that is followed was durable");
        apply(&mut segments, group)?;
    }
    let mut refused = None;
    if let Some(group) = last {
        // On a copy: a refused group leaves the table as the group before it made it.
        let mut with_last = segments.clone();
        apply(&mut with_last, &group)?;
        let stripes_whole = is_complete(pool, &segments, &group, &mut damaged)?;
        match cases::group(GroupFacts { last: true, stripes_read: true, stripes_whole }) {
            (_, GroupDecision::Accept) => {
                segments = with_last;
                groups.push(group);
            }
            (case, GroupDecision::Refuse) => {
                tracing::info!(
                    name: "log_group_refused",
                    group = group.barrier,
                    records = group.records.len(),
                    case,
                    "the last group of the commit log is torn and is left out: its sync had not returned"
                );
                // Missing devices may be why it looks torn: then its sync may have returned.
                let written = group.edits.iter().filter_map(|edit| match edit {
                    LogFrame::Grew { segment, .. } => Some(*segment),
                    _ => None,
                });
                let written: BTreeSet<SegmentId> = written.collect();
                let written = written.iter().filter_map(|id| with_last.get(id));
                written.for_each(|d| pool.note_tail(d));
                refused = Some(group.barrier);
            }
        }
    }
    let accepted_groups = groups.len();
    let (barrier, sequence) =
        groups.last().map_or((state.barrier, state.sequence), |group| (group.barrier, group.sequence));
    let records: Vec<_> = groups.into_iter().flat_map(|group| group.records).collect();
    debug_assert!(records.is_sorted_by(|a, b| a.0 < b.0), "the walk takes records in order only");
    // A root may have absorbed records that no group holds, so its next place may be the larger one.
    let next_pos = records.last().map_or(state.next_pos, |(pos, _)| state.next_pos.max(pos.0 + 1));
    // A stream of the new session opens its own segment: the unaccepted end of an old one is never written.
    for descriptor in segments.values_mut() {
        descriptor.state = SegmentState::Sealed;
    }
    assert!(
        refused.is_none_or(|refused| refused > barrier),
        "a group that was refused is after those accepted"
    );
    let past = clip_chain(found.past, state.first_stripe, found.first_sequence, sequence);
    damaged.retain(|id, _| segments.contains_key(id) || past.iter().any(|p| p.descriptor.id == *id));
    Ok(AcceptedLog {
        segments: segments.into_values().collect(),
        damaged,
        records,
        past,
        barrier,
        sequence,
        next_pos: LogPos(next_pos),
        next_segment: found.next_segment,
        groups: accepted_groups,
        refused,
    })
}

/// Applies a group's edits. They come from flash, so an impossible one is corruption and no broken invariant.
fn apply(segments: &mut SegmentMap, group: &LogGroup) -> Result<(), LogError> {
    for edit in &group.edits {
        match edit {
            LogFrame::Opened(descriptor) => match segments.entry(descriptor.id) {
                Entry::Vacant(vacant) if descriptor.stripes.is_empty() && descriptor.lost.is_empty() => {
                    vacant.insert(descriptor.clone());
                }
                _ => return Err(BAD_EDIT.into()),
            },
            LogFrame::Grew { segment, first_stripe, runs } => {
                // Growth goes on where the list ends: a lost `Grew` frame must not pass for a shorter
                // segment.
                let descriptor = open_segment(segments, *segment)?;
                if descriptor.stripe_count() != *first_stripe {
                    return Err(BAD_EDIT.into());
                }
                append_runs(descriptor, runs);
            }
            LogFrame::Sealed(segment) => open_segment(segments, *segment)?.state = SegmentState::Sealed,
            LogFrame::Freed(segment) => {
                let freed = segments.remove(segment).filter(|d| d.state == SegmentState::Sealed);
                freed.ok_or(BAD_EDIT)?;
            }
            LogFrame::Moved { segment, column, to } => {
                let descriptor = segments.get_mut(segment).ok_or(BAD_EDIT)?;
                move_column(descriptor, *column, *to)?;
            }
            LogFrame::Lost { segment, lost } => {
                let descriptor = segments.get_mut(segment).ok_or(BAD_EDIT)?;
                if usize::from(lost.column) >= descriptor.columns.len() {
                    return Err(BAD_EDIT.into());
                }
                _ = descriptor.note_lost(*lost);
            }
            LogFrame::Record { .. } | LogFrame::Barrier { .. } | LogFrame::LogNext(_) | LogFrame::Root(_) => {
            }
        }
    }
    Ok(())
}

/// Gives a column another zone, if that makes a possible segment.
fn move_column(
    descriptor: &mut SegmentDescriptor,
    column: u16,
    to: (DeviceIndex, ZoneIndex),
) -> Result<(), LogError> {
    if !descriptor.takes_column(column, to.0) {
        return Err(BAD_EDIT.into());
    }
    _ = descriptor.move_column(column, to);
    Ok(())
}

/// The segment, if it is one that an edit may change.
fn open_segment(segments: &mut SegmentMap, id: SegmentId) -> Result<&mut SegmentDescriptor, LogError> {
    segments.get_mut(&id).filter(|d| d.state == SegmentState::Open).ok_or_else(|| BAD_EDIT.into())
}

/// Whether every bulk stripe that the group requires is readable: those that it lists, except in segments
/// that it also frees. `before` is the table without the group.
fn is_complete(
    pool: &Pool,
    before: &SegmentMap,
    group: &LogGroup,
    damaged: &mut BTreeMap<SegmentId, u32>,
) -> Result<bool, LogError> {
    if is_planted(PlantedBug::SkipBarrierCheck) {
        return Ok(true);
    }
    let mut grown = before.clone();
    // Collected first: the `Freed` frame of a segment comes after its `Grew` frames.
    let freed = group.edits.iter().filter_map(|edit| match edit {
        LogFrame::Freed(segment) => Some(*segment),
        _ => None,
    });
    let freed: BTreeSet<SegmentId> = freed.collect();
    // Moved columns are verified in their new zones: once the group was durable, the old ones were reset.
    for edit in &group.edits {
        match edit {
            LogFrame::Opened(descriptor) => {
                grown.insert(descriptor.id, descriptor.clone());
            }
            LogFrame::Moved { segment, column, to } => {
                move_column(grown.get_mut(segment).ok_or(BAD_EDIT)?, *column, *to)?;
            }
            _ => {}
        }
    }
    for edit in &group.edits {
        if let LogFrame::Grew { segment, first_stripe, runs } = edit {
            let descriptor = grown.get_mut(segment).ok_or(BAD_EDIT)?;
            if !freed.contains(segment) && !stripes_verify(pool, descriptor, *first_stripe, runs, damaged)? {
                return Ok(false);
            }
            append_runs(descriptor, runs);
        }
    }
    Ok(true)
}

/// Whether the segment holds these stripes from `first_stripe` on, each readable. Notes the segment as
/// damaged if one of them is not whole.
fn stripes_verify(
    pool: &Pool,
    descriptor: &SegmentDescriptor,
    first_stripe: u32,
    runs: &[StripeRun],
    damaged: &mut BTreeMap<SegmentId, u32>,
) -> Result<bool, LogError> {
    let mut wanted = runs.iter().flat_map(|run| std::iter::repeat_n(run.rows, run.count as usize));
    let mut missing: u32 = runs.iter().map(|run| run.count).sum();
    pool.walk_open_segment(descriptor, first_stripe, &mut |stripe| {
        if stripe.index < first_stripe {
            return;
        }
        // The segment may go on with stripes that no group lists: they do not count.
        let Some(rows) = wanted.next() else { return };
        if stripe.rows == rows && stripe.health != StripeHealth::Damaged {
            missing -= 1;
        }
        if stripe.health != StripeHealth::Intact {
            // Not the number of this stripe: a column on a device that is away may lack earlier ones too.
            damaged.insert(descriptor.id, first_stripe);
        }
    })
    .map_err(unreadable)?;
    Ok(missing == 0)
}

/// Clips the log's segments to the stripes up to `sequence`, seals them, and drops those without stripes.
fn clip_chain(
    mut past: VecDeque<PastSegment>,
    first_stripe: u32,
    first_sequence: u64,
    sequence: u64,
) -> VecDeque<PastSegment> {
    assert!(sequence + 1 >= first_sequence, "an accepted stripe is not before the first one read");
    // Stripes that are still to be kept, and those of the first segment before the first one read. The root
    // skips these, but the segment's list holds them.
    let mut left = sequence + 1 - first_sequence;
    let mut skipped = u64::from(first_stripe);
    for segment in &mut past {
        let held = u64::from(segment.descriptor.stripe_count()) - skipped;
        let kept = held.min(left);
        left -= kept;
        let stripes = usize::try_from(skipped + kept).expect("a zone has fewer than 2^32 stripes");
        // The start of the first stripe clipped off is the length of the rest.
        if let Some(first_clipped) = segment.starts.get(stripes) {
            segment.bytes = first_clipped.bytes_before;
        }
        segment.starts.truncate(stripes);
        segment.descriptor.truncate_stripes(u32::try_from(stripes).expect("as above"));
        segment.descriptor.state = SegmentState::Sealed;
        if kept == 0 {
            segment.starts.clear();
        }
        skipped = 0;
    }
    assert_eq!(left, 0, "every accepted stripe was found in the chain");
    past.retain(|segment| !segment.starts.is_empty());
    past
}
