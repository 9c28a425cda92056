//! Frames, gathered into the groups that barriers end.
//!
//! Invariants
//! 1. `number` is the last barrier seen; the group being gathered is the one that barrier `number + 1` ends.
//! 2. `partial` is a record of which a first fragment has been seen and no last.

use warpfire_format::logframe::{Fragment, Frame};
use warpfire_format::segment::{SegmentDescriptor, StripeRun};
use warpfire_units::SegmentId;

use crate::code::Code;
use crate::report::Findings;

/// A change of the segment table.
pub(super) enum Edit {
    Opened(SegmentDescriptor),
    Grew { segment: SegmentId, first_stripe: u32, runs: Vec<StripeRun> },
    Sealed(SegmentId),
    Freed(SegmentId),
}

/// What lies between two barriers.
#[derive(Default)]
pub(super) struct Group {
    pub(super) barrier: u64,
    pub(super) edits: Vec<Edit>,
    /// Record number and bytes.
    pub(super) records: Vec<(u64, Vec<u8>)>,
}

/// Gathers frames.
pub(super) struct Groups {
    number: Option<u64>,
    checkpoint: u64,
    next_record: Option<u64>,
    gathering: Group,
    partial: Option<(u64, Vec<u8>)>,
    /// Whole groups, oldest first.
    pub(super) whole: Vec<Group>,
    /// The segment in which the log goes on, as announced last.
    pub(super) announced: Option<SegmentDescriptor>,
}

impl Groups {
    /// `checkpoint` is the number of the checkpoint in the root.
    pub(super) fn new(checkpoint: u64) -> Self {
        Groups {
            number: None,
            checkpoint,
            next_record: None,
            gathering: Group::default(),
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
        self.partial.is_some() || !self.gathering.edits.is_empty() || !self.gathering.records.is_empty()
    }

    /// Takes the frames of one stripe. `false` if they make no sense: the log can not be followed any further.
    pub(super) fn take(&mut self, mut payload: &[u8], place: &str, findings: &Findings) -> bool {
        while !payload.is_empty() {
            let (frame, rest) = match Frame::decode(payload) {
                Ok(decoded) => decoded,
                Err(e) => {
                    findings.error(Code::LogFrame, place, e);
                    return false;
                }
            };
            if let Err((code, what)) = self.take_frame(frame) {
                findings.error(code, place, what);
                return false;
            }
            payload = rest;
        }
        true
    }

    fn take_frame(&mut self, frame: Frame<'_>) -> Result<(), (Code, String)> {
        match frame {
            Frame::Record { fragment, pos, bytes } => self.take_record(fragment, pos, bytes)?,
            Frame::Barrier { number, checkpoint } => self.take_barrier(number, checkpoint)?,
            Frame::LogNext(descriptor) => self.announced = Some(descriptor),
            Frame::Opened(descriptor) => self.gathering.edits.push(Edit::Opened(descriptor)),
            Frame::Grew { segment, first_stripe, runs } => {
                self.gathering.edits.push(Edit::Grew { segment, first_stripe, runs });
            }
            Frame::Sealed(segment) => self.gathering.edits.push(Edit::Sealed(segment)),
            Frame::Freed(segment) => self.gathering.edits.push(Edit::Freed(segment)),
        }
        Ok(())
    }

    fn take_record(&mut self, fragment: Fragment, pos: u64, bytes: &[u8]) -> Result<(), (Code, String)> {
        let wrong = |what: &str| Err((Code::LogFrame, format!("record {pos}: {what}")));
        match (fragment, &mut self.partial) {
            (Fragment::Whole | Fragment::First, Some(_)) => return wrong("begins inside another one"),
            (Fragment::Whole | Fragment::First, None) => {
                if self.next_record.is_some_and(|next| next != pos) {
                    return wrong("does not follow the one before it");
                }
                self.partial = Some((pos, bytes.to_vec()));
            }
            (Fragment::Middle | Fragment::Last, Some((begun, so_far))) if *begun == pos => {
                so_far.extend_from_slice(bytes);
            }
            // The end of a record that began before reading did, and is not needed.
            (Fragment::Middle | Fragment::Last, None) if self.next_record.is_none() => return Ok(()),
            (Fragment::Middle | Fragment::Last, _) => return wrong("goes on without having begun"),
        }
        if matches!(fragment, Fragment::Whole | Fragment::Last) {
            self.gathering.records.extend(self.partial.take());
            self.next_record = pos.checked_add(1);
        }
        Ok(())
    }

    fn take_barrier(&mut self, number: u64, checkpoint: u64) -> Result<(), (Code, String)> {
        if checkpoint > self.checkpoint {
            let what =
                format!("the log knows checkpoint {checkpoint}, the newest root is of {}", self.checkpoint);
            return Err((Code::RootStale, what));
        }
        if self.partial.is_some() {
            return Err((Code::LogFrame, format!("barrier {number} lies inside a record")));
        }
        if let Some(last) = self.number.filter(|last| last.checked_add(1) != Some(number)) {
            return Err((Code::LogFrame, format!("barrier {number} follows {last}")));
        }
        self.number = Some(number);
        let mut group = std::mem::take(&mut self.gathering);
        group.barrier = number;
        self.whole.push(group);
        Ok(())
    }
}
