//! What programs ask with ioctl(2): calls that the kernel has no request of its own for.
//!
//! The kernel passes on what it does not know itself, with the argument of numbers that say how large that is. A number that means
//! nothing here is answered with `ENOTTY`, as a disk's file answers whoever asks whether it is a terminal.

use std::sync::Arc;

use fuser::{Errno, INodeNo, ReplyIoctl, Request};
use warpfire_meta::Storage;

use super::{Refusal, Server};
use crate::caller::CallerGroups;
use crate::{slices, views};

impl<E: Storage> Server<E> {
    /// Answers the ioctl with this number, or has it answered by another thread.
    pub(super) fn answer_ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        command: u32,
        given: &[u8],
        reply: ReplyIoctl,
    ) {
        let requester = views::Requester { uid: req.uid(), pid: req.pid() };
        let is_root = ino.0 == self.fs.root().ino();
        match self.context.mount_kind.main_control() {
            Some(control) if is_root && views::TransactionRequest::is_known(command) => {
                let Some(request) = views::TransactionRequest::decode(command, given) else {
                    return reply.error(Errno::EINVAL);
                };
                let answer = move |outcome: Result<views::TransactionReport, rustix::io::Errno>| match outcome
                {
                    Ok(report) => reply.ioctl(0, &report.encode()),
                    Err(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
                };
                Arc::clone(control).ask(requester, request, Box::new(answer));
            }
            _ if is_root && views::DiffRequest::is_known(command) => {
                let Some(request) = views::DiffRequest::decode(given) else {
                    return reply.error(Errno::EINVAL);
                };
                let answer = move |listed: Result<Box<views::DiffBlock>, rustix::io::Errno>| match listed {
                    Ok(block) => reply.ioctl(0, &*block),
                    Err(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
                };
                let (control, request) = self.context.mount_kind.diff_target(request);
                Arc::clone(control).list(requester, request, Box::new(answer));
            }
            _ if slices::SliceRequest::is_known(command) => {
                self.answer_slice_request(req, ino, command, given, reply)
            }
            _ => reply.error(Errno::ENOTTY),
        }
    }

    /// Has one that rearranges a file answered by another thread: the kernel will be told to forget what it knows of the file.
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
                notifier: Arc::clone(&self.notifier),
                node,
                uid: req.uid(),
                gid: req.gid(),
                groups: CallerGroups::of(req.pid()),
                request: slices::SliceRequest::decode(command, given).ok_or(Refusal(Errno::EINVAL))?,
                read_only: self.context.read_only,
            })
        });
        let task = match task {
            Ok(task) => task,
            Err(Refusal(errno)) => return reply.error(errno),
        };
        let changes = self.context.changes.clone();
        // Who cannot wait for a thread is told so: a thread that takes requests must not do it itself.
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
            |reply| reply.error(Errno::EAGAIN),
        );
    }
}
