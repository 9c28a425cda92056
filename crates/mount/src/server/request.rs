//! Parts of every request: its span, the guard that it holds, its caller, and the error of a refused one.

use std::cell::Cell;
use std::ops::{Deref, Range};
use std::sync::Arc;

use tracing::span::EnteredSpan;
use warpfire_fs::acl::Caller;
use warpfire_fs::{Fs, FsError, NodeRef};
use warpfire_fuse::{Errno, INodeNo, ReplyXattr, Request};
use warpfire_meta::Storage;

use crate::caller::CallerGroups;
use crate::cpu_latency::RequestCounter;
use crate::failed_requests::{Failed, FailedRequests};
use crate::invalidation_gate::GatePass;

use super::{KernelConnection, Server};

/// Enters the span of a request. While debug events are off this costs two comparisons of levels.
pub(super) fn enter_request(req: &Request, operation: &'static str, ino: INodeNo) -> EnteredSpan {
    let span = tracing::debug_span!("request", id = req.unique(), operation, ino = ino.0).entered();
    tracing::debug!("request received");
    span
}

thread_local! {
    /// Whether this thread serves a request.
    static IN_REQUEST: Cell<bool> = const { Cell::new(false) };
    /// The failure of the request that this thread serves, for its report.
    static FAILURE: Cell<Option<String>> = const { Cell::new(None) };
}

/// A request that this thread serves. When it is dropped, a failure of the request is reported.
pub(super) struct RequestScope<'a, E: Storage> {
    fs: &'a Arc<Fs<E>>,
    failures: &'a FailedRequests,
    operation: &'static str,
    ino: u64,
    offset: Option<u64>,
    process: u32,
    /// The file and the bytes of a read.
    content: Option<(NodeRef, Range<u64>)>,
    _span: EnteredSpan,
}

impl<E: Storage> Server<E> {
    /// Enters a request.
    pub(super) fn enter(&self, req: &Request, operation: &'static str, ino: INodeNo) -> RequestScope<'_, E> {
        self.scope(req, operation, ino, None)
    }

    /// Enters a request on the bytes at an offset.
    pub(super) fn enter_at(
        &self,
        req: &Request,
        operation: &'static str,
        ino: INodeNo,
        offset: u64,
    ) -> RequestScope<'_, E> {
        self.scope(req, operation, ino, Some(offset))
    }

    fn scope(
        &self,
        req: &Request,
        operation: &'static str,
        ino: INodeNo,
        offset: Option<u64>,
    ) -> RequestScope<'_, E> {
        let span = enter_request(req, operation, ino);
        let failures = &self.context.failures;
        RequestScope::new(&self.fs, failures, operation, ino, offset, req.pid(), span)
    }
}

impl<'a, E: Storage> RequestScope<'a, E> {
    /// Enters a request of a process on this thread.
    pub(super) fn new(
        fs: &'a Arc<Fs<E>>,
        failures: &'a FailedRequests,
        operation: &'static str,
        ino: INodeNo,
        offset: Option<u64>,
        process: u32,
        span: EnteredSpan,
    ) -> Self {
        IN_REQUEST.set(true);
        RequestScope { fs, failures, operation, ino: ino.0, offset, process, content: None, _span: span }
    }

    /// Says which bytes the request reads.
    pub(super) fn of_content(mut self, node: &NodeRef, bytes: Range<u64>) -> Self {
        self.content = Some((NodeRef::clone(node), bytes));
        self
    }
}

impl<E: Storage> Drop for RequestScope<'_, E> {
    fn drop(&mut self) {
        IN_REQUEST.set(false);
        let Some(error) = FAILURE.take() else { return };
        self.failures.report(Failed {
            operation: self.operation,
            ino: self.ino,
            offset: self.offset,
            process: self.process,
            error,
            wanted: self.content.as_ref().map(|(_, bytes)| bytes.clone()),
            lost_in: &|bytes| {
                let of_node =
                    |(node, _): &(NodeRef, Range<u64>)| self.fs.unreadable(node, bytes.clone()).ok();
                self.content.as_ref().and_then(of_node).unwrap_or_default()
            },
            path_of: &|ino| self.fs.shown_path(ino),
        });
    }
}

/// The caller of a request. Its permissions count as checked: see
/// [`PermissionChecks`](crate::options::PermissionChecks).
pub(super) fn caller<'a>(req: &Request, groups: &'a CallerGroups) -> Caller<'a> {
    Caller { uid: req.uid(), gid: req.gid(), groups, checked: true }
}

/// The user of a change that clears set-id bits although user 0 makes it: without `CAP_FSETID` it is any
/// other user.
const NOBODY: u32 = 65534;

/// The caller of a change for which the kernel has decided whether it clears set-id bits, by the capabilities
/// of the process. A change by root keeps them.
pub(super) fn set_id_caller(caller: Caller<'_>, clears_set_id: bool) -> Caller<'_> {
    match caller {
        _ if !clears_set_id => Caller::ROOT,
        root if root.is_root() => Caller { uid: NOBODY, gid: NOBODY, ..root },
        other => other,
    }
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

/// When it is dropped, the sole thread of a connection polls for the next request, and calls another thread
/// if it cannot keep up.
pub(super) struct PollOnDrop<'a> {
    pub(super) connection: &'a KernelConnection,
    pub(super) requests: &'a RequestCounter,
}

impl Drop for PollOnDrop<'_> {
    fn drop(&mut self) {
        let Some(sole) = self.connection.sole() else { return };
        if !self.connection.notes_waiting() {
            self.requests.poll_next_request(sole);
        }
    }
}

/// A request's error, on its way to the kernel.
pub(super) struct Refusal(pub(super) Errno);

impl From<FsError> for Refusal {
    fn from(e: FsError) -> Refusal {
        // The program sees only `EIO`. All other errors say enough by their number.
        if matches!(e, FsError::Damaged { .. } | FsError::Unknown(_)) {
            if IN_REQUEST.get() {
                FAILURE.set(Some(e.to_string()));
            } else {
                tracing::error!(error = %e, "request failed");
            }
        }
        Refusal(Errno::from_raw_os_error(e.errno()))
    }
}

/// The answer to a request for an inode that is not in [`KernelNodes`](crate::kernel_nodes::KernelNodes). The
/// kernel looks the name up again.
pub(super) const STALE: Refusal = Refusal(Errno::STALE);

pub(super) type RequestResult<T> = Result<T, Refusal>;

/// Answers with the value of an attribute, or with its length if the caller's buffer has no room at all.
pub(super) fn sized(answer: RequestResult<Vec<u8>>, room: u32, reply: ReplyXattr) {
    match answer {
        Ok(value) if room == 0 => {
            reply.size(u32::try_from(value.len()).expect("an attribute has at most 64 KiB"));
        }
        Ok(value) if value.len() > room as usize => reply.error(Errno::RANGE),
        Ok(value) => reply.data(&value),
        Err(Refusal(errno)) => reply.error(errno),
    }
}
