//! Reading the commit log from the root to its accepted end.
//!
//! The rules are in `docs/FORMAT.md`, "Log frames" and "Log state". Log stripes have sequences that count up
//! by one. Every group but the last is accepted, because a barrier after it was written. The last group is
//! accepted if all stripes that it lists can be read.
//!
//! ```text
//! replay ─▶ follow ─▶ read_segment ─▶ read_on ─▶ look_after_gap   stripes into groups, for each log segment
//!    │
//!    └────▶ apply (every group but the last; the last if `verifies`)   groups into segments and records
//! ```

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

/// The state after the root and the accepted groups of the log.
pub(crate) struct LogReplay {
    /// Live bulk segments.
    pub(crate) segments: BTreeMap<SegmentId, CheckedSegment>,
    /// Segments of the commit log with the stripes that were found, oldest first.
    pub(crate) chain: Vec<CheckedSegment>,
    /// Records that the client replays, by number, oldest first.
    pub(crate) records: Vec<(u64, Vec<u8>)>,
}

/// Reads the log from the place that `state` names and applies its accepted groups to the `saved` segments.
pub(crate) fn replay(
    media: &Media,
    state: &LogState,
    saved: &BTreeMap<SegmentId, SegmentDescriptor>,
    totals: &mut Totals,
    findings: &Findings,
) -> LogReplay {
    // The state names the sequence of its last stripe. Counting back over the listed stripes that are read
    // again gives the sequence of the first one.
    let listed: u64 = state.chain.iter().map(|d| u64::from(d.stripe_count())).sum();
    let known = listed.saturating_sub(u64::from(state.first_stripe));
    let expected = state.sequence.saturating_add(1).saturating_sub(known);
    let mut walk =
        LogWalk { media, state, expected, broken: false, barrier_after_gap: false, needed: None, findings };
    let mut groups = GroupCollector::new(state.checkpoint);
    let mut chain = walk.follow(&mut groups, totals);
    // From the end: what follows the last stripe that recovery needs.
    for segment in chain.iter_mut().rev() {
        match walk.needed {
            Some((id, stripes)) if id == segment.descriptor.id => {
                segment.needed_stripes = stripes;
                break;
            }
            _ => segment.needed_stripes = 0,
        }
    }
    let segments = saved.values().map(|d| (d.id, CheckedSegment::new(d.clone()))).collect();
    let mut replayed = LogReplay { segments, chain, records: Vec::new() };
    if groups.has_rest() {
        findings.note(FindingCode::LogTail, "commit log", "frames after the last barrier do not count");
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
            let message = format_args!("barrier {number} does not count: stripes that it needs are missing");
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
    /// A frame contradicted the rules, or a required stripe is missing. Nothing after it counts.
    broken: bool,
    /// A barrier was found after a gap. Stripes after that barrier were written when the gap's group was
    /// durable.
    barrier_after_gap: bool,
    /// The last stripe that recovery needs: its segment, and the number of stripes up to it.
    needed: Option<(SegmentId, u32)>,
    findings: &'a Findings,
}

impl LogWalk<'_> {
    /// Reads all stripes of the log into `groups`. Returns the log's segments with the stripes that were
    /// found.
    fn follow(&mut self, groups: &mut GroupCollector, totals: &mut Totals) -> Vec<CheckedSegment> {
        let mut ahead: VecDeque<SegmentDescriptor> = self.state.chain.iter().cloned().collect();
        let mut read: Vec<CheckedSegment> = Vec::new();
        let mut first = self.state.first_stripe;
        while let Some(descriptor) = ahead.pop_front() {
            groups.announced = None;
            let listed = read.len() < self.state.chain.len();
            let segment = self.read_segment(descriptor, first, groups, totals);
            first = 0;
            // The root lists the segments that earlier ones announce. Only the last one leads to a new
            // segment.
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

    /// Reads one segment of the log: the listed stripes, and in an open segment the stripes after them.
    fn read_segment(
        &mut self,
        descriptor: SegmentDescriptor,
        first: u32,
        groups: &mut GroupCollector,
        totals: &mut Totals,
    ) -> CheckedSegment {
        let mut segment = CheckedSegment::new(descriptor);
        // A list that does not fit its zones is wrong, so the place after it is not known either.
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
                    let message = "is needed by the commit log, and no copy is good";
                    self.findings.error(FindingCode::LogStripeLost, place, message);
                }
            }
        }
        if !segment.is_sealed() && fits && !self.broken {
            self.read_on(&mut segment, groups, totals);
        }
        segment
    }

    /// Reads the stripes after the listed ones of an open segment, until the next sequence is not there.
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
        let number = stripe.header.identity.stripe;
        if self.expected <= self.state.sequence || !holds_copies_only(&stripe.payload) {
            self.needed = Some((segment.descriptor.id, number.saturating_add(1)));
        }
        self.expected = self.expected.saturating_add(1);
        let place = format!("{} stripe {number}", segment.descriptor.id);
        self.broken |= !groups.take(&stripe.payload, &place, self.findings);
    }

    /// Decides whether stripe `stripe`, which is not there, was lost. Usually the log ends here, torn or not,
    /// or continues in the next segment. But a later barrier may show that the missing stripe's group was
    /// durable.
    fn look_after_gap(&mut self, segment: &CheckedSegment, stripe: u32, block: u64, groups: &GroupCollector) {
        // The barrier of the group that the missing stripe belongs to. It is written before that group is
        // durable; a higher barrier is written after.
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

/// Whether a stripe holds copies of roots and announcements of segments, and nothing else.
fn holds_copies_only(mut payload: &[u8]) -> bool {
    while let Ok((frame, rest)) = LogFrame::decode(payload) {
        if !matches!(frame, LogFrame::Root(_) | LogFrame::LogNext(_)) {
            return false;
        }
        payload = rest;
    }
    payload.is_empty()
}

/// The numbers of the barriers in a stripe's payload.
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

/// Whether every stripe that a group lists can be read. Segments that the group frees are left out, because
/// their zones may have been reset after the group was durable.
fn verifies(media: &Media, group: &LogGroup, replayed: &LogReplay) -> bool {
    let quiet = Findings::default();
    let mut shards = StripeVerifier::default();
    // Segments as they are after the edits so far. The group is not applied to `replayed` before it is
    // accepted.
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
                // A moved column counts in its new zone: the old one may have been reset since.
                for edit in &group.edits {
                    if let SegmentEdit::Moved { segment: moved, column, to } = edit
                        && moved == segment
                        && known.descriptor.takes_column(*column, to.0)
                    {
                        _ = known.descriptor.move_column(*column, *to);
                    }
                }
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
            SegmentEdit::Sealed(_)
            | SegmentEdit::Freed(_)
            | SegmentEdit::Moved { .. }
            | SegmentEdit::Lost { .. } => {}
        }
    }
    true
}

/// Applies a group. Edits of groups up to the root's barrier are in the root's segment table already; their
/// records may still be needed.
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
            // A later edit is applied to the newer descriptor, so that one contradiction is one finding.
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
        SegmentEdit::Moved { segment: id, column, to } => {
            let segment = segments
                .get_mut(&id)
                .ok_or_else(|| format!("column {column} of {id}, which does not exist, moves"))?;
            if !segment.descriptor.takes_column(column, to.0) {
                return Err(format!("{id} has no column {column} that can move to device {}", to.0.0));
            }
            _ = segment.descriptor.move_column(column, to);
        }
        SegmentEdit::Lost { segment: id, lost } => {
            let column = lost.column;
            let segment = segments
                .get_mut(&id)
                .ok_or_else(|| format!("column {column} of {id}, which does not exist, is lost"))?;
            if usize::from(column) >= segment.descriptor.columns.len() {
                return Err(format!("{id} has no column {column} to lose"));
            }
            _ = segment.descriptor.note_lost(lost);
        }
    }
    Ok(())
}
