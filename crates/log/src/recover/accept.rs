//! Which of the groups that were found count; the cases are in `cases`, table GROUP.
//!
//! Every group but the last was durable: the next one is begun only after its flush returned. The last one
//! may be torn, so each bulk stripe that it requires is verified. What it frees itself it does not require:
//! once it was durable, those zones were reset.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use warpfire_format::log_frame::LogFrame;
use warpfire_format::log_state::LogState;
use warpfire_format::segment::{SegmentDescriptor, SegmentState, StripeRun};
use warpfire_pool::{Pool, StripeHealth};
use warpfire_units::SegmentId;

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
    pub(super) damaged: BTreeSet<SegmentId>,
    pub(super) records: Vec<(LogPos, Vec<u8>)>,
    pub(super) past: VecDeque<PastSegment>,
    pub(super) barrier: u64,
    pub(super) sequence: u64,
    pub(super) next_pos: LogPos,
    pub(super) next_segment: SegmentId,
    /// Groups that were accepted.
    pub(super) groups: usize,
    /// The barrier of the group that was not.
    pub(super) refused: Option<u64>,
}

pub(super) fn accept(pool: &Pool, state: &LogState, found: WalkedLog) -> Result<AcceptedLog, LogError> {
    let mut segments: SegmentMap = state.segments.iter().map(|d| (d.id, d.clone())).collect();
    let mut groups = found.groups;
    let mut damaged = found.damaged;
    let last = groups.pop();
    for group in &groups {
        let facts = GroupFacts { last: false, stripes_read: false, stripes_whole: false };
        assert_eq!(cases::group(facts).1, GroupDecision::Accept, "a group that is followed was durable");
        apply(&mut segments, group)?;
    }
    let mut refused = None;
    if let Some(group) = last {
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
                refused = Some(group.barrier);
            }
        }
    }
    let accepted_groups = groups.len();
    let (barrier, sequence) =
        groups.last().map_or((state.barrier, state.sequence), |group| (group.barrier, group.sequence));
    let records: Vec<_> = groups.into_iter().flat_map(|group| group.records).collect();
    let next_pos = records.last().map_or(state.next_pos, |(pos, _)| state.next_pos.max(pos.0 + 1));
    for descriptor in segments.values_mut() {
        descriptor.state = SegmentState::Sealed;
    }
    assert!(
        refused.is_none_or(|refused| refused > barrier),
        "a group that was refused is after those accepted"
    );
    let past = clip_chain(found.past, state.first_stripe, found.first_sequence, sequence);
    damaged.retain(|id| segments.contains_key(id) || past.iter().any(|p| p.descriptor.id == *id));
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

fn apply(segments: &mut SegmentMap, group: &LogGroup) -> Result<(), LogError> {
    for edit in &group.edits {
        match edit {
            LogFrame::Opened(descriptor) => match segments.entry(descriptor.id) {
                Entry::Vacant(vacant) if descriptor.stripes.is_empty() => {
                    vacant.insert(descriptor.clone());
                }
                _ => return Err(BAD_EDIT.into()),
            },
            LogFrame::Grew { segment, first_stripe, runs } => {
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
            LogFrame::Record { .. } | LogFrame::Barrier { .. } | LogFrame::LogNext(_) => {}
        }
    }
    Ok(())
}

fn open_segment(segments: &mut SegmentMap, id: SegmentId) -> Result<&mut SegmentDescriptor, LogError> {
    segments.get_mut(&id).filter(|d| d.state == SegmentState::Open).ok_or_else(|| BAD_EDIT.into())
}

/// Whether every bulk stripe that the group requires is readable: those it lists, but for segments that it
/// frees too. `before` is the table without the group.
fn is_complete(
    pool: &Pool,
    before: &SegmentMap,
    group: &LogGroup,
    damaged: &mut BTreeSet<SegmentId>,
) -> Result<bool, LogError> {
    if cfg!(feature = "planted-bug-skip-barrier-check") {
        return Ok(true);
    }
    let mut grown = before.clone();
    let freed = group.edits.iter().filter_map(|edit| match edit {
        LogFrame::Freed(segment) => Some(*segment),
        _ => None,
    });
    let freed: BTreeSet<SegmentId> = freed.collect();
    for edit in &group.edits {
        match edit {
            LogFrame::Opened(descriptor) => {
                grown.insert(descriptor.id, descriptor.clone());
            }
            LogFrame::Grew { segment, first_stripe, runs } => {
                let descriptor = grown.get_mut(segment).ok_or(BAD_EDIT)?;
                if !freed.contains(segment)
                    && !stripes_verify(pool, descriptor, *first_stripe, runs, damaged)?
                {
                    return Ok(false);
                }
                append_runs(descriptor, runs);
            }
            _ => {}
        }
    }
    Ok(true)
}

fn stripes_verify(
    pool: &Pool,
    descriptor: &SegmentDescriptor,
    first_stripe: u32,
    runs: &[StripeRun],
    damaged: &mut BTreeSet<SegmentId>,
) -> Result<bool, LogError> {
    let mut wanted = runs.iter().flat_map(|run| std::iter::repeat_n(run.rows, run.count as usize));
    let mut missing: u32 = runs.iter().map(|run| run.count).sum();
    pool.walk_open_segment(descriptor, first_stripe, &mut |stripe| {
        if stripe.index < first_stripe {
            return;
        }
        let Some(rows) = wanted.next() else { return };
        if stripe.rows == rows && stripe.health != StripeHealth::Damaged {
            missing -= 1;
        }
        if stripe.health != StripeHealth::Intact {
            damaged.insert(descriptor.id);
        }
    })
    .map_err(unreadable)?;
    Ok(missing == 0)
}

/// Cuts the log's segments down to the stripes up to `sequence`, seals them, and drops those of which nothing
/// is left.
fn clip_chain(
    mut past: VecDeque<PastSegment>,
    first_stripe: u32,
    first_sequence: u64,
    sequence: u64,
) -> VecDeque<PastSegment> {
    // Stripes that are still to be kept, and those of the first segment that lie before the first one read.
    let mut left = sequence + 1 - first_sequence;
    let mut skipped = u64::from(first_stripe);
    for segment in &mut past {
        let held = u64::from(segment.descriptor.stripe_count()) - skipped;
        let kept = held.min(left);
        left -= kept;
        let stripes = usize::try_from(skipped + kept).expect("a zone has fewer than 2^32 stripes");
        // The first stripe that goes says how many bytes lie before it.
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
