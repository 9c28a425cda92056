//! Requests by ioctl(2): calls for which the kernel has no request of its own.
//!
//! The kernel forwards an ioctl number that it does not know, with as many bytes of the argument as the
//! number encodes. An unknown number is answered with `ENOTTY`, as any regular file answers it.

use std::sync::Arc;

use warpfire_fuse::{Errno, INodeNo, ReplyIoctl, Request};
use warpfire_meta::Storage;

use super::{Refusal, Server};
use crate::caller::CallerGroups;
use crate::{slices, views};

impl<E: Storage> Server<E> {
    /// Answers an ioctl, here or on another thread.
    pub(super) fn answer_ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        command: u32,
        given: &[u8],
        reply: ReplyIoctl,
    ) {
        let requester = views::Requester { uid: req.uid(), pid: req.pid() };
        let is_root = ino.0 == self.context.root_number;
        // A view begins no transactions: there `main_control` is `None`, and its root answers BEGIN with
        // `ENOTTY`.
        match self.context.mount_kind.main_control() {
            Some(control) if is_root && views::TransactionRequest::is_known(command) => {
                let Some(request) = views::TransactionRequest::decode(command, given) else {
                    return reply.error(Errno::INVAL);
                };
                let answer = move |outcome: Result<views::TransactionReport, Errno>| match outcome {
                    Ok(report) => reply.ioctl(0, &report.encode()),
                    Err(errno) => reply.error(errno),
                };
                Arc::clone(control).ask(requester, request, Box::new(answer));
            }
            _ if is_root && views::DiffRequest::is_known(command) => {
                let Some(request) = views::DiffRequest::decode(given) else {
                    return reply.error(Errno::INVAL);
                };
                let Some((control, request)) = self.context.mount_kind.diff_target(request) else {
                    return reply.error(Errno::NOTTY);
                };
                let answer = move |listed: Result<Box<views::DiffBlock>, Errno>| match listed {
                    Ok(block) => reply.ioctl(0, &*block),
                    Err(errno) => reply.error(errno),
                };
                Arc::clone(control).list(requester, request, Box::new(answer));
            }
            _ if slices::SliceRequest::is_known(command) => {
                self.answer_slice_request(req, ino, command, given, reply)
            }
            _ => reply.error(Errno::NOTTY),
        }
    }

    /// Answers a request that rearranges a file on another thread, because the answer empties the kernel's
    /// cache of the file and so waits for the kernel.
    fn answer_slice_request(
        &self,
        req: &Request,
        ino: INodeNo,
        command: u32,
        given: &[u8],
        reply: ReplyIoctl,
    ) {
        let task = self.node(ino).and_then(|node| {
            Ok(slices::SliceTask {
                fs: Arc::clone(&self.fs),
                shelf: Arc::clone(&self.shelf),
                notifier: Arc::clone(&self.context.connection.notifier),
                node,
                uid: req.uid(),
                gid: req.gid(),
                groups: CallerGroups::of(req.pid()),
                request: slices::SliceRequest::decode(command, given).ok_or(Refusal(Errno::INVAL))?,
                read_only: self.context.read_only,
            })
        });
        let task = match task {
            Ok(task) => task,
            Err(Refusal(errno)) => return reply.error(errno),
        };
        let changes = self.context.changes.clone();
        // With a full queue the program gets EAGAIN: a serving thread must not wait for the kernel itself.
        self.context.blocking_threads.spawn_or(
            reply,
            move |reply| {
                match task.answer() {
                    Ok(outcome) => reply.ioctl(0, &outcome.encode()),
                    Err(slices::SliceRefusal::Errno(errno)) => reply.error(errno),
                    Err(slices::SliceRefusal::Filesystem(e)) => reply.error(Refusal::from(e).0),
                }
                changes.mark();
            },
            |reply| reply.error(Errno::AGAIN),
        );
    }
}
