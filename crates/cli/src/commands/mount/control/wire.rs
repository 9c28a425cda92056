//! Requests to the server of a mounted pool, and its answers.
//!
//! ```text
//!   client  {"version":1,"request":"scrub","rate_bytes":50000000}\n     one line, at most 16384 bytes
//!   server  {"scrubbing":{"segments":7, ...}}\n                        any number of lines
//!   server  {"scrubbed":{...}}\n  or  {"error":{...}}\n                one line; then the server closes
//! ```
//!
//! Each line is one JSON value. A client that closes its side, or shuts it down, cancels the work. Both sides
//! are one program as a rule; a server refuses requests of another version.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use warpfire_check::CheckProgress;
use warpfire_terminal::{Failure, RelayedFailure};

use crate::commands::device::{
    AddOrder, ChangeOrder, OnlineOrder, PlannedDevices, ReplaceOrder, ResizeOrder, ResizedDevice,
};
use crate::commands::fsck::{CheckAnswer, CheckOrder};
use crate::commands::receive::{ReceiveOrder, ReceiveProgressOutput, ReceivedOutput};
use crate::commands::scrub::{ScrubAnswer, ScrubProgress};
use crate::commands::send::{SendOrder, SentOutput};
use crate::commands::snapshot::{
    DiffOrder, RuleAnswer, RuleOrder, WireBookmark, WireRollback, WireSnapshot, WireSpace,
};
use crate::commands::status::StatusReport;
use crate::commands::trim::TrimOutput;
use crate::commands::tune::{TuneOrder, TunedPool};
use crate::commands::upkeep::WishOrder;
use crate::commands::volume::{WireOrder, WireVolume};

/// The version of requests and answers.
pub const VERSION: u32 = 1;

/// Most bytes of a request, with its line end.
pub const REQUEST_BYTES_MAX: usize = 16384;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// The status of the pool.
    Status,
    /// Release the space that the pool does not need.
    Trim,
    /// Add a device to the pool.
    AddDevice(AddOrder),
    /// Name the pool; without a name if it is empty.
    SetLabel {
        /// The name.
        label: String,
    },
    /// Remove a device from the pool.
    RemoveDevice {
        /// Its index.
        index: u16,
    },
    /// Make a snapshot.
    CreateSnapshot {
        /// Its name.
        name: Vec<u8>,
    },
    /// Delete a snapshot.
    DeleteSnapshot {
        /// Its name.
        name: Vec<u8>,
    },
    /// Add a hold to a snapshot, or release one.
    HoldSnapshot {
        /// The snapshot.
        name: Vec<u8>,
        /// The hold.
        hold: Vec<u8>,
        /// Whether it is released.
        releases: bool,
    },
    /// Make a bookmark of a snapshot.
    CreateBookmark {
        /// The snapshot.
        snapshot: Vec<u8>,
        /// The name of the bookmark.
        name: Vec<u8>,
    },
    /// Delete a bookmark.
    DeleteBookmark {
        /// Its name.
        name: Vec<u8>,
    },
    /// List the bookmarks.
    ListBookmarks,
    /// Make the files what a snapshot shows.
    RollBackSnapshot {
        /// The snapshot.
        name: Vec<u8>,
        /// The name of the snapshot that keeps the files as they are.
        keep_as: Vec<u8>,
    },
    /// Work on the rules for snapshots.
    SnapshotRule(RuleOrder),
    /// List the next snapshots.
    ListSnapshots {
        /// The number of the last one that is known; 0 for the first page.
        after: u64,
    },
    /// Report what deleting each snapshot frees.
    SnapshotSpace,
    /// Report what deleting some snapshots frees.
    FreedBytes {
        /// The numbers of the first and the last snapshot of each stretch of them.
        stretches: Vec<(u64, u64)>,
    },
    /// List the changes between snapshots.
    DiffSnapshots(DiffOrder),
    /// Make, change, detach or delete a volume.
    ChangeVolume(WireOrder),
    /// List the volumes.
    ListVolumes,
    /// Add a device and remove another one.
    ReplaceDevice(ReplaceOrder),
    /// Send a snapshot: a stream follows the answer `streaming`, as in `chunks`.
    Send(SendOrder),
    /// Receive a stream, which the client sends after the answer `streaming`, as in `chunks`.
    Receive(ReceiveOrder),
    /// How far a stream for a directory is received.
    ReceiveProgress {
        /// Its path.
        target: Vec<u8>,
    },
    /// Drop the part of a stream that has arrived for a directory.
    AbortReceive {
        /// Its path.
        target: Vec<u8>,
    },
    /// Plan a change of the devices.
    PlanDevices(ChangeOrder),
    /// Give a device another size, or plan that.
    ResizeDevice(ResizeOrder),
    /// Take a device offline.
    TakeOffline {
        /// Its index.
        index: u16,
        /// Whether only to check that it could be.
        is_dry_run: bool,
    },
    /// Take a device online.
    TakeOnline(OnlineOrder),
    /// Change the wishes of the pool.
    Wish(WishOrder),
    /// Change the shape of new data, or plan that.
    Tune(TuneOrder),
    /// Wait for the end of the mount. The first answer is `awaiting`, at once.
    AwaitEnd,
    /// Verify everything, and repair what parity covers.
    Scrub {
        /// Most bytes to read in a second.
        rate_bytes: Option<NonZeroU64>,
    },
    /// Check everything. Nothing is repaired.
    Check(CheckOrder),
}

/// A request as it is sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestLine {
    version: u32,
    #[serde(flatten)]
    request: Request,
}

/// A request of any version.
#[derive(Deserialize)]
struct AnyRequest {
    version: u32,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The status: the result of `status`.
    Status(Box<StatusReport>),
    /// Bytes that a trim has discarded so far.
    Trimming(u64),
    /// The result of `trim`.
    Trimmed(TrimOutput),
    /// The device has joined.
    DeviceAdded {
        /// Its index in the pool.
        index: u16,
        /// Bytes that can be written to files.
        available_bytes: u64,
    },
    /// The wishes are changed.
    Wished,
    /// The shape is changed, or planned.
    Tuned(TunedPool),
    /// The pool has its name.
    Labelled,
    /// Segments that are left on a device that is removed, or behind its new end.
    Removing(u64),
    /// The device is removed.
    DeviceRemoved {
        /// Bytes that can be written to files.
        available_bytes: u64,
    },
    /// The snapshot is made, and durable.
    SnapshotCreated(WireSnapshot),
    /// The snapshot is deleted.
    SnapshotDeleted(WireSnapshot),
    /// The snapshot with its holds as they are now, durable.
    SnapshotHeld(WireSnapshot),
    /// The bookmark is made, and durable.
    BookmarkCreated(WireBookmark),
    /// The bookmark is deleted.
    BookmarkDeleted(WireBookmark),
    /// The bookmarks.
    BookmarksListed(Vec<WireBookmark>),
    /// The files are those of the snapshot, durably.
    SnapshotRolledBack(WireRollback),
    /// The result of work on the rules for snapshots.
    SnapshotRules(RuleAnswer),
    /// The next snapshots; none after the last one.
    SnapshotsListed(Vec<WireSnapshot>),
    /// What deleting each snapshot frees.
    SnapshotSpace(Vec<WireSpace>),
    /// The bytes that deleting some snapshots frees.
    FreedBytes(u64),
    /// Some of the changes between snapshots, each as bytes.
    SnapshotChanges(Vec<Vec<u8>>),
    /// All changes are sent.
    SnapshotsCompared,
    /// How far a detach is.
    Detaching {
        /// Names that it has looked at.
        names: u64,
        /// Records that it has copied.
        records: u64,
    },
    /// The volume that is made, changed, detached or deleted, durably.
    VolumeChanged(WireVolume),
    /// The volumes.
    VolumesListed(Vec<WireVolume>),
    /// A stream follows, in the direction of the request.
    Streaming,
    /// The stream is sent to its end.
    Sent(SentOutput),
    /// The stream is received.
    Received(ReceivedOutput),
    /// How far a stream is received; `None` if none is.
    ReceiveProgress(Option<ReceiveProgressOutput>),
    /// Whether something was dropped.
    ReceiveAborted(bool),
    /// What a change of the devices would do.
    DevicesPlanned(PlannedDevices),
    /// The device has its new size.
    DeviceResized(ResizedDevice),
    /// The device is offline.
    DeviceOffline {
        /// How many more devices may be lost.
        losses_left: Option<u8>,
    },
    /// The device is online.
    DeviceOnline {
        /// Segments of which it lacks a part.
        missed_segments: u64,
        /// Bytes that it gets.
        missed_bytes: u64,
    },
    /// How far a scrub is.
    Scrubbing(ScrubProgress),
    /// The result of `scrub`.
    Scrubbed(Box<ScrubAnswer>),
    /// How far a check is.
    Checking(CheckProgress),
    /// The result of `check`.
    Checked(Box<CheckAnswer>),
    /// The request to wait for the end is taken.
    Awaiting,
    /// The mount has ended, and the pool is closed.
    Ended {
        /// Transactions that were open at the end, and are aborted.
        aborted_transactions: usize,
    },
    /// The request is refused, or its work has failed.
    Error(RelayedFailure),
}

impl Request {
    /// Whether the result follows at once.
    pub fn is_short(&self) -> bool {
        matches!(self, Request::Status | Request::AwaitEnd)
    }

    /// The work that the request asks for, as a refusal of other work names it. Empty if other work runs
    /// beside it.
    pub fn work_name(&self) -> &'static str {
        match self {
            Request::Trim => "a trim",
            Request::Scrub { .. } => "a scrub",
            Request::Check(_) => "a check",
            Request::AddDevice(_)
            | Request::RemoveDevice { .. }
            | Request::ReplaceDevice(_)
            | Request::PlanDevices(_)
            | Request::ResizeDevice(_)
            | Request::TakeOffline { .. }
            | Request::TakeOnline(_) => "a change of its devices",
            Request::SetLabel { .. } => "a change of its label",
            Request::CreateSnapshot { .. }
            | Request::DeleteSnapshot { .. }
            | Request::HoldSnapshot { .. }
            | Request::CreateBookmark { .. }
            | Request::DeleteBookmark { .. } => "a change of its snapshots",
            Request::ListSnapshots { .. } | Request::ListBookmarks => "a list of its snapshots",
            Request::SnapshotRule(_) => "its rules for snapshots",
            Request::RollBackSnapshot { .. } => "a rollback",
            Request::SnapshotSpace | Request::FreedBytes { .. } => "a count of the bytes of its snapshots",
            Request::DiffSnapshots(_) => "a comparison of its snapshots",
            Request::ChangeVolume(WireOrder::Detach { .. }) => "the detach of a clone",
            Request::ChangeVolume(_) => "a change of its volumes",
            Request::ListVolumes => "a list of its volumes",
            Request::Status
            | Request::Wish(_)
            | Request::Tune(_)
            | Request::Send(_)
            | Request::Receive(_)
            | Request::ReceiveProgress { .. }
            | Request::AbortReceive { .. }
            | Request::AwaitEnd => "",
        }
    }
}

impl RequestLine {
    /// A request of this version.
    pub fn new(request: Request) -> RequestLine {
        RequestLine { version: VERSION, request }
    }

    /// The line that is sent.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line =
            serde_json::to_vec(self).expect("a request has string keys only, and a path that is UTF-8");
        line.push(b'\n');
        line
    }

    /// The request of a line.
    ///
    /// # Errors
    /// The line is no request, or one of another version.
    pub fn parse(line: &[u8]) -> Result<Request, Failure> {
        match serde_json::from_slice::<RequestLine>(line) {
            Ok(found) if found.version == VERSION => Ok(found.request),
            _ => Err(match serde_json::from_slice::<AnyRequest>(line) {
                Ok(any) if any.version != VERSION => Failure::new(format_args!(
                    "the server of the pool takes requests of version {VERSION}, and this is version {}",
                    any.version
                ))
                .hint("mount the pool again with this version of warpfire"),
                _ => Failure::usage("the server of the pool does not know this request")
                    .hint("mount the pool again with this version of warpfire"),
            }),
        }
    }
}

impl Answer {
    /// Whether other answers follow.
    pub fn is_progress(&self) -> bool {
        matches!(
            self,
            Answer::Trimming(_)
                | Answer::Scrubbing(_)
                | Answer::Removing(_)
                | Answer::Checking(_)
                | Answer::Detaching { .. }
                | Answer::SnapshotChanges(_)
        )
    }

    /// The line that is sent.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("an answer has string keys only");
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_these_bytes() {
        let line = RequestLine::new(Request::Trim).to_line();
        assert_eq!(line, b"{\"version\":1,\"request\":\"trim\"}\n");
        assert_eq!(RequestLine::parse(&line).expect("a request"), Request::Trim);
        let scrub = Request::Scrub { rate_bytes: NonZeroU64::new(4096) };
        let line = RequestLine::new(scrub.clone()).to_line();
        assert_eq!(line, b"{\"version\":1,\"request\":\"scrub\",\"rate_bytes\":4096}\n");
        assert_eq!(RequestLine::parse(&line).expect("a request"), scrub);
    }

    #[test]
    fn other_lines_are_refused_with_a_sentence() {
        let later = RequestLine::parse(br#"{"version":2,"request":"dance"}"#).expect_err("version 2");
        assert!(later.to_string().contains("this is version 2"), "{later}");
        for wrong in [&b""[..], b"\xff\x00", b"{}", b"[1,2]", br#"{"version":1,"request":"dance"}"#] {
            let refused = RequestLine::parse(wrong).expect_err("no request");
            assert!(refused.to_string().contains("does not know"), "{refused}");
        }
    }
}
