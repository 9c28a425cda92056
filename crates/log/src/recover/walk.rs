//! Reads the commit log from a root on, stripe by stripe, into groups. `cases` decides about each stripe,
//! each frame behind a gap and each barrier; this file collects the facts and carries the decisions out.
//!
//! # Invariants
//! 1. Stripes are taken in sequence: the chain holds exactly those from the first one read to `next_sequence`
//!    (assert in `walk`).
//! 2. Nothing counts after a gap (assert in `take`).
//! 3. Records are taken in the order of their places (`record` refuses others).

use std::collections::{BTreeMap, VecDeque};

use warpfire_format::log_frame::{LogFrame, RecordFragment};
use warpfire_format::log_state::LogState;
use warpfire_format::segment::{SegmentDescriptor, SegmentState};
use warpfire_pool::{Pool, StripeHealth, WalkedStripe};
use warpfire_units::{BLOCK_BYTES, SegmentId};

use super::cases::{
    self, BarrierDecision, BarrierFacts, BehindDecision, BehindFacts, StripeDecision, StripeFacts,
};
use super::{LOG_MISSING, OUT_OF_ORDER, ROOT_LOST, unreadable};
use crate::log_writer::{PastSegment, StripeStart};
use crate::store::{LogError, LogPos};

/// The largest number of a record, group, stripe, checkpoint or segment that recovery accepts. At a billion a
/// second it lasts for 292 years.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// Records and edits that count together.
#[derive(Default)]
pub(super) struct LogGroup {
    /// The number of the barrier at its end.
    pub(super) barrier: u64,
    pub(super) records: Vec<(LogPos, Vec<u8>)>,
    /// Edits of the segment table, without those that the root holds already.
    pub(super) edits: Vec<LogFrame<'static>>,
    /// The last stripe of the group.
    pub(super) sequence: u64,
}

/// The groups that the walk found, and the chain that holds them.
pub(super) struct WalkedLog {
    pub(super) groups: Vec<LogGroup>,
    /// The log's segments with the stripes that were found, and where each begins.
    pub(super) past: VecDeque<PastSegment>,
    /// The sequence of the first stripe in `past[0].starts`.
    pub(super) first_sequence: u64,
    /// Larger than every segment id met.
    pub(super) next_segment: SegmentId,
    /// Log segments with a stripe that some column lacks, and the first such stripe.
    pub(super) damaged: BTreeMap<SegmentId, u32>,
}

/// Reads the log as far as its stripes follow each other.
pub(super) fn walk(pool: &Pool, state: &LogState) -> Result<WalkedLog, LogError> {
    let known = known_stripes(state).ok_or(OUT_OF_ORDER)?;
    let first_sequence = (state.sequence + 1).checked_sub(known).ok_or(OUT_OF_ORDER)?;
    let mut reader = LogReader::new(state, first_sequence);
    let mut chain: VecDeque<SegmentDescriptor> = state.chain.iter().cloned().collect();
    let mut from_stripe = state.first_stripe;
    // The root lists the segments that the log had when it was written. The last of them announces the next
    // one, if the log has gone on since, and so on to the segment that announces none.
    while let Some(descriptor) = chain.pop_front() {
        reader.is_last = chain.is_empty();
        reader.begin_segment(&descriptor, from_stripe);
        let mut failed = None;
        let id = descriptor.id;
        pool.walk_open_segment(&descriptor, from_stripe, &mut |stripe| {
            if stripe.health != StripeHealth::Intact {
                reader.damaged.entry(id).or_insert(stripe.index);
            }
            if failed.is_none() {
                failed = reader.take(&stripe).err();
            }
        })
        .map_err(unreadable)?;
        if let Some(e) = failed {
            return Err(e);
        }
        chain.extend(reader.announced.take());
        from_stripe = 0;
    }
    // These stripes were durable before the root was written. Without them the root is an older one or the
    // log is lost, and neither must pass for an older state.
    if reader.next_sequence <= state.sequence {
        return Err(LOG_MISSING.into());
    }
    assert_eq!(
        reader.past.iter().map(|past| past.starts.len() as u64).sum::<u64>() - u64::from(state.first_stripe),
        reader.next_sequence - first_sequence,
        "each stripe taken is in the chain"
    );
    Ok(reader.finish(first_sequence))
}

/// Refuses numbers of a root that no pool reaches.
pub(super) fn check_numbers(state: &LogState) -> Result<(), LogError> {
    let counts = [state.next_pos, state.barrier, state.sequence, state.checkpoint, state.state_sequence];
    counts.into_iter().chain([state.next_segment.get()]).try_for_each(check_number)
}

/// Refuses a number from flash that no pool reaches, so that the numbers of a session can count on from it.
fn check_number(number: u64) -> Result<(), LogError> {
    if number <= NUMBER_MAX { Ok(()) } else { Err(OUT_OF_ORDER.into()) }
}

/// The number of stripes that the root lists, from the one where reading begins. `None` if it begins behind
/// them.
fn known_stripes(state: &LogState) -> Option<u64> {
    let listed: u64 = state.chain.iter().map(|d| u64::from(d.stripe_count())).sum();
    listed.checked_sub(u64::from(state.first_stripe))
}

/// The state of a walk.
struct LogReader {
    /// The sequence of the next stripe of the log.
    next_sequence: u64,
    /// Groups up to this barrier are in the root.
    root_barrier: u64,
    /// The number of the root's checkpoint.
    root_checkpoint: u64,
    /// Whether the present segment is the last one known, so that an announcement in it leads on.
    is_last: bool,
    /// The length of the present segment, if the root has sealed it.
    sealed_stripes: Option<u32>,
    /// The segment after the present one, once a frame has announced it.
    announced: Option<SegmentDescriptor>,
    /// The number of the next barrier, `None` before the first.
    next_barrier: Option<u64>,
    /// The place of the next record, 0 before the first.
    next_pos: u64,
    /// The group without its barrier yet.
    group: LogGroup,
    groups: Vec<LogGroup>,
    past: VecDeque<PastSegment>,
    next_segment: SegmentId,
    /// A stripe was missing; nothing behind it is part of the log.
    gap: bool,
    /// The barrier of the torn group was read behind the gap.
    gap_barrier_seen: bool,
    damaged: BTreeMap<SegmentId, u32>,
}

impl LogReader {
    fn new(state: &LogState, first_sequence: u64) -> Self {
        LogReader {
            next_sequence: first_sequence,
            root_barrier: state.barrier,
            root_checkpoint: state.checkpoint,
            is_last: false,
            sealed_stripes: None,
            announced: None,
            next_barrier: None,
            next_pos: 0,
            group: LogGroup::default(),
            groups: Vec::new(),
            past: VecDeque::new(),
            next_segment: state.next_segment,
            gap: false,
            gap_barrier_seen: false,
            damaged: BTreeMap::new(),
        }
    }

    fn begin_segment(&mut self, descriptor: &SegmentDescriptor, from_stripe: u32) {
        let sealed = descriptor.state == SegmentState::Sealed;
        self.sealed_stripes = sealed.then(|| descriptor.stripe_count());
        // The list of stripes is built anew, from those that are found.
        let mut descriptor = descriptor.clone();
        descriptor.truncate_stripes(from_stripe);
        // No record that is needed begins in the stripes before the first one read, so their starts do not
        // matter.
        let starts = vec![StripeStart { pos: 0, bytes_before: 0 }; from_stripe as usize];
        self.past.push_back(PastSegment { descriptor, starts, bytes: 0 });
    }

    /// Takes the next stripe of the present segment.
    fn take(&mut self, stripe: &WalkedStripe<'_>) -> Result<(), LogError> {
        let facts = StripeFacts {
            past_seal: self.sealed_stripes.is_some_and(|count| stripe.index >= count),
            after_gap: self.gap,
            readable: stripe.payload.is_some(),
            expected: stripe.payload.is_some() && stripe.sequence == self.next_sequence,
        };
        let (case, decision) = cases::stripe(facts);
        self.gap |= matches!(decision, StripeDecision::Miss | StripeDecision::LookBehind);
        let payload = match (decision, stripe.payload) {
            (StripeDecision::Take, Some(payload)) => payload,
            (StripeDecision::LookBehind, Some(payload)) => return self.look_past_gap(payload),
            (StripeDecision::Ignore | StripeDecision::Miss, _) => return Ok(()),
            (_, None) => unreachable!("case {case} is of a readable stripe"),
        };
        assert!(!self.gap, "nothing counts after a gap");
        // The new root lists this stripe, with the place of the first record that begins in it or later.
        let past = self.past.back_mut().expect("a segment was begun");
        past.starts.push(StripeStart { pos: self.next_pos, bytes_before: past.bytes });
        past.bytes += payload.len().next_multiple_of(BLOCK_BYTES) as u64;
        past.descriptor.push_stripe(stripe.rows);
        self.next_sequence += 1;
        let mut rest = payload;
        while !rest.is_empty() {
            let (frame, after) = LogFrame::decode(rest)?;
            self.frame(frame)?;
            rest = after;
        }
        Ok(())
    }

    /// Looks for proof that the torn group was durable: a frame behind its barrier, or a later barrier. With
    /// proof the log is damaged, and an older state must not pass for the newest. Without it the group is the
    /// torn last one.
    fn look_past_gap(&mut self, payload: &[u8]) -> Result<(), LogError> {
        // The torn group is the one after the last barrier. Where no barrier was read, the root knows the
        // last one.
        let torn_group = self.next_barrier.unwrap_or(self.root_barrier + 1);
        let mut rest = payload;
        while !rest.is_empty() {
            let (frame, after) = LogFrame::decode(rest)?;
            let facts = BehindFacts {
                barrier_seen: self.gap_barrier_seen,
                is_barrier: matches!(frame, LogFrame::Barrier { .. }),
                later: matches!(frame, LogFrame::Barrier { number, .. } if number > torn_group),
            };
            match cases::behind_gap(facts) {
                (_, BehindDecision::Torn) => {}
                (_, BehindDecision::Ends) => self.gap_barrier_seen = true,
                (case, BehindDecision::Damaged) => {
                    tracing::debug!(
                        name: "log_group_lost",
                        group = torn_group,
                        case,
                        "a durable group of the commit log is lost"
                    );
                    return Err(LogError::Damaged("commit log unreadable before its end".into()));
                }
            }
            rest = after;
        }
        Ok(())
    }

    /// Takes a frame of a stripe that counts.
    fn frame(&mut self, frame: LogFrame<'_>) -> Result<(), LogError> {
        match &frame {
            LogFrame::Record { pos: number, .. } | LogFrame::Barrier { number, .. } => check_number(*number)?,
            LogFrame::LogNext(descriptor) | LogFrame::Opened(descriptor) => {
                check_number(descriptor.id.get())?;
            }
            LogFrame::Grew { .. }
            | LogFrame::Sealed(_)
            | LogFrame::Freed(_)
            | LogFrame::Moved { .. }
            | LogFrame::Lost { .. }
            | LogFrame::Root(_) => {}
        }
        match frame {
            LogFrame::Record { fragment, pos, bytes } => self.record(fragment, pos, bytes)?,
            LogFrame::Barrier { number, checkpoint } => self.barrier(number, checkpoint)?,
            LogFrame::LogNext(descriptor) => {
                self.note_segment(descriptor.id);
                if self.is_last && self.sealed_stripes.is_none() {
                    self.announced = Some(descriptor);
                }
            }
            LogFrame::Opened(descriptor) => {
                self.note_segment(descriptor.id);
                self.group.edits.push(LogFrame::Opened(descriptor));
            }
            LogFrame::Grew { segment, first_stripe, runs } => {
                self.group.edits.push(LogFrame::Grew { segment, first_stripe, runs });
            }
            LogFrame::Sealed(segment) => self.group.edits.push(LogFrame::Sealed(segment)),
            LogFrame::Freed(segment) => self.group.edits.push(LogFrame::Freed(segment)),
            LogFrame::Moved { segment, column, to } => {
                self.group.edits.push(LogFrame::Moved { segment, column, to });
            }
            LogFrame::Lost { segment, lost } => self.group.edits.push(LogFrame::Lost { segment, lost }),
            // For a reader without a root.
            LogFrame::Root(_) => {}
        }
        Ok(())
    }

    /// Keeps `next_segment` above every id that was met, in a refused group too.
    fn note_segment(&mut self, id: SegmentId) {
        self.next_segment = self.next_segment.max(id.next());
    }

    /// Takes a record or a fragment of one.
    fn record(&mut self, fragment: RecordFragment, pos: u64, bytes: &[u8]) -> Result<(), LogError> {
        match fragment {
            RecordFragment::Whole | RecordFragment::First => {
                if self.next_pos != 0 && pos != self.next_pos {
                    return Err(OUT_OF_ORDER.into());
                }
                self.next_pos = pos + 1;
                self.group.records.push((LogPos(pos), bytes.to_vec()));
            }
            RecordFragment::Middle | RecordFragment::Last => match self.group.records.last_mut() {
                Some((last, record)) if last.0 == pos => record.extend_from_slice(bytes),
                // The end of a record that began before reading did, and is not needed.
                None if self.next_pos == 0 => {}
                _ => return Err(OUT_OF_ORDER.into()),
            },
        }
        Ok(())
    }

    /// Ends the present group.
    fn barrier(&mut self, number: u64, checkpoint: u64) -> Result<(), LogError> {
        let facts = BarrierFacts {
            follows: self.next_barrier.is_none_or(|next| next == number),
            newer_checkpoint: checkpoint > self.root_checkpoint,
            in_root: number <= self.root_barrier,
        };
        let edits_count = match cases::barrier(facts) {
            (_, BarrierDecision::OutOfOrder) => return Err(OUT_OF_ORDER.into()),
            (_, BarrierDecision::RootLost) => return Err(ROOT_LOST.into()),
            (_, BarrierDecision::RecordsCount) => false,
            (_, BarrierDecision::AllCounts) => true,
        };
        self.next_barrier = Some(number + 1);
        let mut group = std::mem::take(&mut self.group);
        group.barrier = number;
        // The stripe being taken is counted already.
        group.sequence = self.next_sequence - 1;
        if !edits_count {
            group.edits.clear();
        }
        self.groups.push(group);
        Ok(())
    }

    fn finish(self, first_sequence: u64) -> WalkedLog {
        // A group without its barrier was never flushed: nothing in it counts.
        if !self.group.records.is_empty() || !self.group.edits.is_empty() {
            tracing::info!(
                name: "log_group_refused",
                group = self.next_barrier.unwrap_or(self.root_barrier + 1),
                records = self.group.records.len(),
                case = "no barrier",
                "the last group of the commit log is unfinished and is left out: its sync had not returned"
            );
        }
        WalkedLog {
            groups: self.groups,
            past: self.past,
            first_sequence,
            next_segment: self.next_segment,
            damaged: self.damaged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader of a log whose root has the groups up to this barrier.
    fn reader(barrier: u64) -> LogReader {
        let id = SegmentId::FIRST;
        let state = LogState {
            next_segment: id.next(),
            next_pos: 1,
            keep_from: 1,
            barrier,
            sequence: 0,
            checkpoint: 1,
            first_stripe: 0,
            state_sequence: 0,
            chain: Vec::new(),
            state_chain: Vec::new(),
        };
        LogReader::new(&state, 1)
    }

    #[test]
    fn a_log_without_one_of_its_barriers_is_refused() {
        let barrier = |number| LogFrame::Barrier { number, checkpoint: 1 };
        let mut reader = reader(0);
        reader.next_sequence = 3;
        reader.frame(barrier(1)).expect("the first group");
        let refused = reader.frame(barrier(3));
        assert!(matches!(refused, Err(LogError::Corrupt { code: 260, .. })), "{refused:?}");
    }

    #[test]
    fn the_fragments_of_a_record_have_one_position() {
        let mut reader = reader(0);
        let fragment = |fragment, pos, bytes| LogFrame::Record { fragment, pos, bytes };
        reader.frame(fragment(RecordFragment::Last, 6, b"of a record that is not needed")).unwrap();
        reader.frame(fragment(RecordFragment::First, 7, b"a")).unwrap();
        reader.frame(fragment(RecordFragment::Middle, 7, b"b")).unwrap();
        reader.frame(fragment(RecordFragment::Last, 7, b"c")).unwrap();
        reader.frame(fragment(RecordFragment::Whole, 8, b"d")).unwrap();
        let records: Vec<(u64, &[u8])> =
            reader.group.records.iter().map(|(pos, record)| (pos.0, &record[..])).collect();
        assert_eq!(records, [(7, &b"abc"[..]), (8, b"d")]);
        for refused in [fragment(RecordFragment::Last, 7, b"x"), fragment(RecordFragment::Whole, 10, b"x")] {
            let refused = reader.frame(refused);
            assert!(matches!(refused, Err(LogError::Corrupt { code: 260, .. })), "{refused:?}");
        }
    }

    /// Without a barrier before the gap, the torn group is the one after those of the root.
    #[test]
    fn the_barrier_behind_a_gap_proves_a_loss_only_if_its_group_is_not_the_torn_one() {
        let behind = |numbers: &[u64]| {
            let mut payload = Vec::new();
            for number in numbers {
                LogFrame::Barrier { number: *number, checkpoint: 1 }.encode(&mut payload);
            }
            reader(4).look_past_gap(&payload)
        };
        behind(&[5]).expect("the torn group ends");
        assert!(matches!(behind(&[6]), Err(LogError::Damaged(_))));
        assert!(matches!(behind(&[5, 6]), Err(LogError::Damaged(_))));
    }
}
