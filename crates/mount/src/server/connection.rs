//! The connection of a mount to the kernel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warpfire_fuse::Notifier;

/// The connection. `session::serve` sets both parts before the first request.
#[derive(Clone, Default)]
pub(crate) struct KernelConnection {
    /// Sends cache invalidations to the kernel.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    /// The connection itself.
    pub(crate) device: Arc<OnceLock<OwnedFd>>,
    /// Whether one thread alone serves the connection. Then that thread may wait for the next request by
    /// polling. One of several threads must not: the kernel would wake another thread for the request.
    pub(crate) has_one_thread: Arc<OnceLock<bool>>,
}

impl KernelConnection {
    /// The connection, if one thread alone serves it.
    pub(super) fn sole(&self) -> Option<BorrowedFd<'_>> {
        let is_sole = self.has_one_thread.get().is_some_and(|sole| *sole);
        self.device.get().filter(|_| is_sole).map(AsFd::as_fd)
    }

    /// Whether a request waits for a thread that takes it.
    pub(super) fn has_request(&self) -> bool {
        let Some(device) = self.device.get() else { return false };
        poll(&mut [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)], Some(&Timespec::default()))
            .is_ok_and(|ready| ready > 0)
    }
}
