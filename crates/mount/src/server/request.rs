//! Parts of every request: its span, the guard that it holds, its caller, and the error of a refused one.

use std::ops::Deref;
use std::os::fd::BorrowedFd;

use fuser::{Errno, INodeNo, ReplyXattr, Request};
use tracing::span::EnteredSpan;
use warpfire_fs::FsError;
use warpfire_fs::acl::Caller;

use crate::caller::CallerGroups;
use crate::cpu_latency::RequestCounter;
use crate::invalidation_gate::GatePass;

/// Enters the span of a request. While debug events are off this costs two comparisons of levels.
pub(super) fn enter_request(req: &Request, operation: &'static str, ino: INodeNo) -> EnteredSpan {
    let span = tracing::debug_span!("request", id = req.unique().0, operation, ino = ino.0).entered();
    tracing::debug!("request received");
    span
}

/// The caller of a request. Its permissions count as checked: see
/// [`PermissionChecks`](crate::options::PermissionChecks).
pub(super) fn caller<'a>(req: &Request, groups: &'a CallerGroups) -> Caller<'a> {
    Caller { uid: req.uid(), gid: req.gid(), groups, checked: true }
}

/// Held while a request is answered. Its drop first ends the pass, then polls for the next request.
pub(super) struct RequestGuard<'a> {
    pub(super) pass: GatePass<'a>,
    pub(super) _poll: PollOnDrop<'a>,
}

impl<'a> Deref for RequestGuard<'a> {
    type Target = GatePass<'a>;

    fn deref(&self) -> &GatePass<'a> {
        &self.pass
    }
}

/// Polls for the next request when it is dropped.
pub(super) struct PollOnDrop<'a>(pub(super) Option<(&'a RequestCounter, BorrowedFd<'a>)>);

impl Drop for PollOnDrop<'_> {
    fn drop(&mut self) {
        if let Some((requests, connection)) = self.0 {
            requests.poll_next_request(connection);
        }
    }
}

/// A request's error, on its way to the kernel.
pub(super) struct Refusal(pub(super) Errno);

impl From<FsError> for Refusal {
    fn from(e: FsError) -> Refusal {
        // The program sees only `EIO`. All other errors say enough by their number.
        if matches!(e, FsError::Damaged { .. } | FsError::Unknown(_)) {
            tracing::error!(error = %e, "request failed");
        }
        Refusal(Errno::from_i32(e.errno()))
    }
}

/// The answer to a request for an inode that is not in [`KernelNodes`](crate::kernel_nodes::KernelNodes). The
/// kernel looks the name up again.
pub(super) const STALE: Refusal = Refusal(Errno::ESTALE);

pub(super) type RequestResult<T> = Result<T, Refusal>;

/// Answers with the value of an attribute, or with its length if the caller's buffer has no room at all.
pub(super) fn sized(answer: RequestResult<Vec<u8>>, room: u32, reply: ReplyXattr) {
    match answer {
        Ok(value) if room == 0 => {
            reply.size(u32::try_from(value.len()).expect("an attribute has at most 64 KiB"));
        }
        Ok(value) if value.len() > room as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(Refusal(errno)) => reply.error(errno),
    }
}
