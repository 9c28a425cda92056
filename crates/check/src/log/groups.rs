//! Frames, gathered into the groups that barriers end.
//!
//! Invariants
//! 1. `number` is the last barrier seen; the group being gathered is the one that barrier `number + 1` ends.
//! 2. `partial` is a record of which a first fragment has been seen and no last.

use warpfire_format::log_frame::{LogFrame, RecordFragment};
use warpfire_format::segment::{SegmentDescriptor, StripeRun};
use warpfire_units::SegmentId;

use crate::code::FindingCode;
use crate::report::Findings;

/// A change of the segment table.
pub(super) enum SegmentEdit {
    Opened(SegmentDescriptor),
    Grew { segment: SegmentId, first_stripe: u32, runs: Vec<StripeRun> },
    Sealed(SegmentId),
    Freed(SegmentId),
}

/// What lies between two barriers.
#[derive(Default)]
pub(super) struct LogGroup {
    pub(super) barrier: u64,
    pub(super) edits: Vec<SegmentEdit>,
    /// Record number and bytes.
    pub(super) records: Vec<(u64, Vec<u8>)>,
}

/// Gathers frames.
pub(super) struct GroupCollector {
    number: Option<u64>,
    checkpoint: u64,
    next_record: Option<u64>,
    pending: LogGroup,
    partial: Option<(u64, Vec<u8>)>,
    /// Whole groups, oldest first.
    pub(super) whole: Vec<LogGroup>,
    /// The segment in which the log goes on, as announced last.
    pub(super) announced: Option<SegmentDescriptor>,
}

impl GroupCollector {
    /// `checkpoint` is the number of the checkpoint in the root.
    pub(super) fn new(checkpoint: u64) -> Self {
        GroupCollector {
            number: None,
            checkpoint,
            next_record: None,
            pending: LogGroup::default(),
            partial: None,
            whole: Vec::new(),
            announced: None,
        }
    }

    /// The last barrier seen.
    pub(super) fn last_barrier(&self) -> Option<u64> {
        self.number
    }

    /// Whether frames follow the last barrier.
    pub(super) fn has_rest(&self) -> bool {
        self.partial.is_some() || !self.pending.edits.is_empty() || !self.pending.records.is_empty()
    }

    /// Takes the frames of one stripe. `false` if they make no sense: the log can not be followed any further.
    pub(super) fn take(&mut self, mut payload: &[u8], place: &str, findings: &Findings) -> bool {
        while !payload.is_empty() {
            let (frame, rest) = match LogFrame::decode(payload) {
                Ok(decoded) => decoded,
                Err(e) => {
                    findings.error(FindingCode::LogFrame, place, e);
                    return false;
                }
            };
            if let Err((code, message)) = self.take_frame(frame) {
                findings.error(code, place, message);
                return false;
            }
            payload = rest;
        }
        true
    }

    fn take_frame(&mut self, frame: LogFrame<'_>) -> Result<(), (FindingCode, String)> {
        match frame {
            LogFrame::Record { fragment, pos, bytes } => self.take_record(fragment, pos, bytes)?,
            LogFrame::Barrier { number, checkpoint } => self.take_barrier(number, checkpoint)?,
            LogFrame::LogNext(descriptor) => self.announced = Some(descriptor),
            LogFrame::Opened(descriptor) => self.pending.edits.push(SegmentEdit::Opened(descriptor)),
            LogFrame::Grew { segment, first_stripe, runs } => {
                self.pending.edits.push(SegmentEdit::Grew { segment, first_stripe, runs });
            }
            LogFrame::Sealed(segment) => self.pending.edits.push(SegmentEdit::Sealed(segment)),
            LogFrame::Freed(segment) => self.pending.edits.push(SegmentEdit::Freed(segment)),
        }
        Ok(())
    }

    fn take_record(
        &mut self,
        fragment: RecordFragment,
        pos: u64,
        bytes: &[u8],
    ) -> Result<(), (FindingCode, String)> {
        let wrong = |message: &str| Err((FindingCode::LogFrame, format!("record {pos}: {message}")));
        match (fragment, &mut self.partial) {
            (RecordFragment::Whole | RecordFragment::First, Some(_)) => {
                return wrong("begins inside another one");
            }
            (RecordFragment::Whole | RecordFragment::First, None) => {
                if self.next_record.is_some_and(|next| next != pos) {
                    return wrong("does not follow the one before it");
                }
                self.partial = Some((pos, bytes.to_vec()));
            }
            (RecordFragment::Middle | RecordFragment::Last, Some((begun, so_far))) if *begun == pos => {
                so_far.extend_from_slice(bytes);
            }
            // The end of a record that began before reading did, and is not needed.
            (RecordFragment::Middle | RecordFragment::Last, None) if self.next_record.is_none() => {
                return Ok(());
            }
            (RecordFragment::Middle | RecordFragment::Last, _) => {
                return wrong("goes on without having begun");
            }
        }
        if matches!(fragment, RecordFragment::Whole | RecordFragment::Last) {
            self.pending.records.extend(self.partial.take());
            self.next_record = pos.checked_add(1);
        }
        Ok(())
    }

    fn take_barrier(&mut self, number: u64, checkpoint: u64) -> Result<(), (FindingCode, String)> {
        if checkpoint > self.checkpoint {
            let message =
                format!("the log knows checkpoint {checkpoint}, the newest root is of {}", self.checkpoint);
            return Err((FindingCode::RootStale, message));
        }
        if self.partial.is_some() {
            return Err((FindingCode::LogFrame, format!("barrier {number} lies inside a record")));
        }
        if let Some(last) = self.number.filter(|last| last.checked_add(1) != Some(number)) {
            return Err((FindingCode::LogFrame, format!("barrier {number} follows {last}")));
        }
        self.number = Some(number);
        let mut group = std::mem::take(&mut self.pending);
        group.barrier = number;
        self.whole.push(group);
        Ok(())
    }
}
