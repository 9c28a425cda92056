//! Following the commit log from the root to its accepted end.
//!
//! The rule (`docs/FORMAT.md`, "Log frames" and "Log state"): stripes with sequence numbers that count up by one; every group
//! but the last counts because a barrier after it was written; the last counts if all stripes that it lists verify.

use std::collections::{BTreeMap, VecDeque};

use warpfire_format::log_frame::LogFrame;
use warpfire_format::log_state::LogState;
use warpfire_format::segment::{SegmentDescriptor, SegmentState};
use warpfire_units::SegmentId;

use super::groups::{GroupCollector, LogGroup, SegmentEdit};
use super::stripe::{LogStripe, find_headers, read_stripe};
use crate::code::FindingCode;
use crate::media::{CheckedSegment, Media, StripeVerifier};
use crate::report::{Findings, Totals};

/// What root and log together say.
pub(crate) struct LogReplay {
    /// Bulk segments that are live.
    pub(crate) segments: BTreeMap<SegmentId, CheckedSegment>,
    /// The commit log's own segments with the stripes that were found, oldest first.
    pub(crate) chain: Vec<CheckedSegment>,
    /// Records that the client replays, oldest first.
    pub(crate) records: Vec<(u64, Vec<u8>)>,
}

/// Reads the log that `state` points at.
pub(crate) fn replay(media: &Media, state: &LogState, totals: &mut Totals, findings: &Findings) -> LogReplay {
    let listed: u64 = state.chain.iter().map(|d| u64::from(d.stripe_count())).sum();
    let known = listed.saturating_sub(u64::from(state.first_stripe));
    let expected = state.sequence.saturating_add(1).saturating_sub(known);
    let mut walk = LogWalk { media, state, expected, broken: false, barrier_after_gap: false, findings };
    let mut groups = GroupCollector::new(state.checkpoint);
    let chain = walk.follow(&mut groups, totals);
    let segments = state.segments.iter().map(|d| (d.id, CheckedSegment::new(d.clone()))).collect();
    let mut replayed = LogReplay { segments, chain, records: Vec::new() };
    if groups.has_rest() {
        findings.note(FindingCode::LogTail, "commit log", "what follows the last barrier does not count");
    }
    let last = groups.whole.pop();
    for group in groups.whole {
        apply(group, state, media.zone_blocks, &mut replayed, findings);
    }
    if let Some(last) = last {
        let number = last.barrier;
        if number <= state.barrier || verifies(media, &last, &replayed) {
            apply(last, state, media.zone_blocks, &mut replayed, findings);
        } else {
            let message =
                format_args!("barrier {number} does not count: stripes that it needs are not there");
            findings.note(FindingCode::LogTail, "commit log", message);
        }
    }
    totals.log_records = replayed.records.len() as u64;
    replayed
}

struct LogWalk<'a> {
    media: &'a Media,
    state: &'a LogState,
    /// The sequence number of the next stripe.
    expected: u64,
    /// Frames made no sense, or a stripe that must be there is not: nothing after it counts.
    broken: bool,
    /// Behind a gap a barrier was seen: whatever comes after it was written when the gap's group was durable.
    barrier_after_gap: bool,
    findings: &'a Findings,
}

impl LogWalk<'_> {
    /// Reads every stripe that may count into `groups`; returns the log's segments with the stripes found.
    fn follow(&mut self, groups: &mut GroupCollector, totals: &mut Totals) -> Vec<CheckedSegment> {
        let mut ahead: VecDeque<SegmentDescriptor> = self.state.chain.iter().cloned().collect();
        let mut read: Vec<CheckedSegment> = Vec::new();
        let mut first = self.state.first_stripe;
        while let Some(descriptor) = ahead.pop_front() {
            groups.announced = None;
            let listed = read.len() < self.state.chain.len();
            let segment = self.read_segment(descriptor, first, groups, totals);
            first = 0;
            // What the last segment announces is where the log goes on; earlier announcements are in the root.
            ahead.extend(groups.announced.take().filter(|_| ahead.is_empty() && !segment.is_sealed()));
            if listed || segment.stripe_count() > 0 {
                read.push(segment);
            }
        }
        if self.expected <= self.state.sequence && !self.broken {
            let message =
                format_args!("ends before stripe {}; {} is durable", self.expected, self.state.sequence);
            self.findings.error(FindingCode::LogStripeLost, "commit log", message);
        }
        read
    }

    /// Reads one segment of the log: what its descriptor lists, and if it is open what follows.
    fn read_segment(
        &mut self,
        descriptor: SegmentDescriptor,
        first: u32,
        groups: &mut GroupCollector,
        totals: &mut Totals,
    ) -> CheckedSegment {
        let mut segment = CheckedSegment::new(descriptor);
        let fits = !segment.clip(self.media.zone_blocks);
        for stripe in first..segment.stripe_count() {
            let Some(place) = segment.stripe(stripe).filter(|_| !self.broken) else { break };
            match read_stripe(self.media, &segment.descriptor, stripe, place.block) {
                Some(found) if found.header.sequence == self.expected => {
                    self.take(&segment, &found, groups, totals);
                }
                _ => {
                    self.broken = true;
                    let place = format_args!("{} stripe {stripe}", segment.descriptor.id);
                    let message = "the commit log needs it and no copy is good";
                    self.findings.error(FindingCode::LogStripeLost, place, message);
                }
            }
        }
        if !segment.is_sealed() && fits && !self.broken {
            self.read_on(&mut segment, groups, totals);
        }
        segment
    }

    /// Reads what follows the listed stripes of an open segment, as long as the sequence goes on.
    fn read_on(&mut self, segment: &mut CheckedSegment, groups: &mut GroupCollector, totals: &mut Totals) {
        while !self.broken {
            let stripe = segment.stripe_count();
            let block = segment.descriptor.zone_blocks_used();
            match read_stripe(self.media, &segment.descriptor, stripe, block) {
                Some(found) if found.header.sequence == self.expected => {
                    segment.grow(found.header.rows, 1);
                    self.take(segment, &found, groups, totals);
                }
                _ => return self.look_after_gap(segment, stripe, block, groups),
            }
        }
    }

    fn take(
        &mut self,
        segment: &CheckedSegment,
        stripe: &LogStripe,
        groups: &mut GroupCollector,
        totals: &mut Totals,
    ) {
        totals.log_stripes += 1;
        self.expected = self.expected.saturating_add(1);
        let place = format!("{} stripe {}", segment.descriptor.id, stripe.header.identity.stripe);
        self.broken |= !groups.take(&stripe.payload, &place, self.findings);
    }

    /// The segment has no next stripe. Usually that is where the log ends, torn or not, or the next segment begins. But if
    /// what follows has a barrier that was written after the missing stripe's group was durable, the stripe was lost.
    fn look_after_gap(&mut self, segment: &CheckedSegment, stripe: u32, block: u64, groups: &GroupCollector) {
        let torn_group = groups.last_barrier().unwrap_or(self.state.barrier).saturating_add(1);
        for (at, header) in find_headers(self.media, &segment.descriptor, block) {
            let number = header.identity.stripe;
            let later = number > stripe && header.sequence > self.expected;
            let Some(found) = read_stripe(self.media, &segment.descriptor, number, at).filter(|_| later)
            else {
                continue;
            };
            let barriers = barriers(&found.payload);
            if self.barrier_after_gap || barriers.iter().any(|b| *b > torn_group) {
                self.broken = true;
                let place = format_args!("{} stripe {stripe}", segment.descriptor.id);
                let message = format_args!("is lost; stripe {number} shows that it was durable");
                self.findings.error(FindingCode::LogStripeLost, place, message);
                return;
            }
            self.barrier_after_gap |= !barriers.is_empty();
        }
    }
}

/// Numbers of the barriers among a stripe's frames.
fn barriers(mut payload: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Ok((frame, rest)) = LogFrame::decode(payload) {
        if let LogFrame::Barrier { number, .. } = frame {
            numbers.push(number);
        }
        payload = rest;
    }
    numbers
}

/// Whether every stripe that a group lists is there and can be read, but for segments that it frees: their zones may have been reset since.
fn verifies(media: &Media, group: &LogGroup, replayed: &LogReplay) -> bool {
    let quiet = Findings::default();
    let mut shards = StripeVerifier::default();
    let mut grown: BTreeMap<SegmentId, CheckedSegment> = BTreeMap::new();
    for edit in &group.edits {
        match edit {
            SegmentEdit::Opened(d) => {
                grown.insert(d.id, CheckedSegment::new(d.clone()));
            }
            SegmentEdit::Grew { segment, first_stripe, runs } => {
                let known = grown.get(segment).or_else(|| replayed.segments.get(segment)).cloned();
                let Some(mut known) = known.filter(|s| s.stripe_count() == *first_stripe) else {
                    return false;
                };
                for run in runs {
                    known.grow(run.rows, run.count);
                }
                if known.clip(media.zone_blocks) {
                    return false;
                }
                let is_freed =
                    group.edits.iter().any(|e| matches!(e, SegmentEdit::Freed(freed) if freed == segment));
                for place in known.stripes().filter(|p| !is_freed && p.stripe >= *first_stripe) {
                    let d = &known.descriptor;
                    let verdict = shards.verify(media, d, place, true, &mut Totals::default(), &quiet);
                    if verdict.header.is_none() || !verdict.readable {
                        return false;
                    }
                }
                grown.insert(*segment, known);
            }
            SegmentEdit::Sealed(_) | SegmentEdit::Freed(_) => {}
        }
    }
    true
}

/// Makes a group's changes. Those up to the root's barrier are in its segment table already; its records
/// may still be needed.
fn apply(group: LogGroup, state: &LogState, zone_blocks: u32, replayed: &mut LogReplay, findings: &Findings) {
    if group.barrier > state.barrier {
        for edit in group.edits {
            if let Err(message) = apply_edit(edit, &mut replayed.segments, zone_blocks) {
                findings.error(
                    FindingCode::LogEdit,
                    format_args!("commit log, barrier {}", group.barrier),
                    message,
                );
            }
        }
    }
    replayed.records.extend(group.records.into_iter().filter(|(pos, _)| *pos >= state.keep_from));
}

fn apply_edit(
    edit: SegmentEdit,
    segments: &mut BTreeMap<SegmentId, CheckedSegment>,
    zone_blocks: u32,
) -> Result<(), String> {
    match edit {
        SegmentEdit::Opened(d) => {
            let id = d.id;
            if segments.insert(id, CheckedSegment::new(d)).is_some() {
                return Err(format!("{id} is opened twice"));
            }
        }
        SegmentEdit::Grew { segment: id, first_stripe, runs } => {
            let segment = segments.get_mut(&id).ok_or_else(|| format!("{id} grows and does not exist"))?;
            if segment.is_sealed() || segment.stripe_count() != first_stripe {
                let has = segment.stripe_count();
                return Err(format!("{id} grows from stripe {first_stripe} and has {has}"));
            }
            for run in runs {
                segment.grow(run.rows, run.count);
            }
            if segment.clip(zone_blocks) {
                return Err(format!("{id} grows past its zones"));
            }
        }
        SegmentEdit::Sealed(id) => {
            let segment =
                segments.get_mut(&id).ok_or_else(|| format!("{id} is sealed and does not exist"))?;
            segment.descriptor.state = SegmentState::Sealed;
        }
        SegmentEdit::Freed(id) => {
            segments.remove(&id).ok_or_else(|| format!("{id} is freed and does not exist"))?;
        }
    }
    Ok(())
}
