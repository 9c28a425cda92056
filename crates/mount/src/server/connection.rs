//! The connection of a mount to the kernel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warpfire_fuse::{Notifier, ServingThreads};

/// The connection. `session::serve` sets all parts before the first request.
#[derive(Clone, Default)]
pub(crate) struct KernelConnection {
    /// Sends cache invalidations to the kernel.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    /// The connection itself.
    pub(crate) device: Arc<OnceLock<OwnedFd>>,
    /// Whether the kernel drops its pages of a range, after it has sent the changed ones, before it sends a
    /// write that goes past them.
    pub(crate) drops_pages: Arc<OnceLock<bool>>,
    /// The threads that serve it.
    pub(crate) threads: Arc<OnceLock<Arc<ServingThreads>>>,
}

impl KernelConnection {
    /// The connection, if one thread alone serves it now. Then that thread may wait for the next request by
    /// polling. One of several threads must not: the kernel would wake another thread for the request.
    pub(super) fn sole(&self) -> Option<BorrowedFd<'_>> {
        let is_sole = self.threads.get().is_some_and(|threads| threads.is_sole());
        self.device.get().filter(|_| is_sole).map(AsFd::as_fd)
    }

    /// Whether a write past the kernel's pages keeps what programs have stored into these pages.
    pub(super) fn drops_pages_before_writes(&self) -> bool {
        self.drops_pages.get().is_some_and(|drops| *drops)
    }

    /// Whether the connection has one thread and never gets another.
    pub(super) fn has_one_thread(&self) -> bool {
        self.threads.get().is_some_and(|threads| threads.is_only())
    }

    /// At the end of a request of the sole thread: calls another thread if a request has waited at most such
    /// ends of late. Returns whether one waits now.
    pub(super) fn notes_waiting(&self) -> bool {
        let waits = self.has_request();
        if let Some(threads) = self.threads.get().filter(|threads| !threads.is_only()) {
            threads.note_end(waits);
        }
        waits
    }

    /// Whether a request waits for a thread that takes it; on the thread of a queue, whether one waited when
    /// it took its own.
    pub(super) fn has_request(&self) -> bool {
        if let Some(others_wait) = warpfire_fuse::other_requests_wait() {
            return others_wait;
        }
        let Some(device) = self.device.get() else { return false };
        poll(&mut [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)], Some(&Timespec::default()))
            .is_ok_and(|ready| ready > 0)
    }
}
