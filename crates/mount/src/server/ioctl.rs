//! What programs ask with ioctl(2): calls that the kernel has no request of its own for.
//!
//! The kernel passes on what it does not know itself, with the argument of numbers that say how large that is. A number that means
//! nothing here is answered with `ENOTTY`, as a disk's file answers whoever asks whether it is a terminal.

use std::sync::Arc;

use fuser::{Errno, INodeNo, ReplyIoctl, Request};
use warpfire_meta::{SliceStore, Store};

use super::Server;
use crate::views;

impl<E: Store + SliceStore> Server<E> {
    /// Answers the ioctl with this number, or has it answered by another thread.
    pub(super) fn answer_ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        command: u32,
        given: &[u8],
        reply: ReplyIoctl,
    ) {
        match &self.setting.control {
            Some(control) if views::Request::is_known(command) && ino.0 == self.fs.root().ino() => {
                let Some(request) = views::Request::decode(command, given) else {
                    return reply.error(Errno::EINVAL);
                };
                let asker = views::Asker { uid: req.uid(), pid: req.pid() };
                let answer = move |told: Result<views::TransactionReport, rustix::io::Errno>| match told {
                    Ok(report) => reply.ioctl(0, &report.encode()),
                    Err(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
                };
                Arc::clone(control).ask(asker, request, Box::new(answer));
            }
            _ => reply.error(Errno::ENOTTY),
        }
    }
}
