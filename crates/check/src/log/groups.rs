//! Groups: the frames of the commit log between two barriers.
//!
//! Invariants
//! 1. `number` is the last barrier. `pending` holds the frames after it; barrier `number + 1` ends them
//!    (`take_barrier`).
//! 2. `partial` is the record with a first fragment and no last fragment yet. Records do not overlap
//!    (`take_record`) and do not contain a barrier (`take_barrier`).
//! 3. `whole` holds the groups in the order of their barriers, without gaps (assert in `take_barrier`).

use warpfire_format::log_frame::{LogFrame, RecordFragment};
use warpfire_format::segment::{LostColumn, SegmentDescriptor, StripeRun};
use warpfire_units::{DeviceIndex, SegmentId, ZoneIndex};

use crate::code::FindingCode;
use crate::report::Findings;

/// A change of the segment table.
pub(super) enum SegmentEdit {
    Opened(SegmentDescriptor),
    Grew { segment: SegmentId, first_stripe: u32, runs: Vec<StripeRun> },
    Sealed(SegmentId),
    Freed(SegmentId),
    Moved { segment: SegmentId, column: u16, to: (DeviceIndex, ZoneIndex) },
    Lost { segment: SegmentId, lost: LostColumn },
}

/// The frames from one barrier (not included) to the next.
#[derive(Default)]
pub(super) struct LogGroup {
    /// Number of the barrier that ends the group.
    pub(super) barrier: u64,
    pub(super) edits: Vec<SegmentEdit>,
    /// Record number and bytes.
    pub(super) records: Vec<(u64, Vec<u8>)>,
}

/// Collects frames into groups.
pub(super) struct GroupCollector {
    number: Option<u64>,
    checkpoint: u64,
    next_record: Option<u64>,
    pending: LogGroup,
    partial: Option<(u64, Vec<u8>)>,
    /// Whole groups, oldest first.
    pub(super) whole: Vec<LogGroup>,
    /// The segment in which the log continues, from the newest `log continues` frame.
    pub(super) announced: Option<SegmentDescriptor>,
}

impl GroupCollector {
    /// A collector without frames. `checkpoint` is the checkpoint number of the root.
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

    /// Takes the frames of one stripe. `false` if they contradict the rules: the log cannot be read further.
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
            LogFrame::Moved { segment, column, to } => {
                self.pending.edits.push(SegmentEdit::Moved { segment, column, to });
            }
            LogFrame::Lost { segment, lost } => self.pending.edits.push(SegmentEdit::Lost { segment, lost }),
            // For a reader without a root.
            LogFrame::Root(_) => {}
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
            // The root's log state lies inside this record. Only records that begin after it are needed.
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
                format!("the log names checkpoint {checkpoint}, the newest root has {}", self.checkpoint);
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
        debug_assert!(
            self.whole.last().is_none_or(|last| last.barrier < number),
            "groups stand in the order of their barriers"
        );
        self.whole.push(group);
        Ok(())
    }
}
