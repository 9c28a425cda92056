//! Processes that transactions end with.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::caller;

/// A process, with a descriptor that becomes readable when it ends.
pub(super) struct Process {
    pub(super) pid: u32,
    handle: OwnedFd,
}

impl Process {
    /// The process of a thread.
    ///
    /// # Errors
    /// `ESRCH` if it has ended.
    pub(super) fn find(thread: u32) -> Result<Process, Errno> {
        // A request has the number of a thread; pidfd_open(2) takes that of a process, which is that of its
        // first thread.
        Process::open(thread).or_else(|_| Process::open(caller::process_of(thread).ok_or(Errno::SRCH)?))
    }

    /// As `find`. `before` is a process that is known, perhaps this one.
    ///
    /// # Errors
    /// As `find`.
    pub(super) fn find_again(before: Option<Process>, thread: u32) -> Result<Process, Errno> {
        // While a process runs, no other has its number.
        let is_same = |process: &Process| process.pid == thread && !process.has_ended();
        before.filter(is_same).map_or_else(|| Process::find(thread), Ok)
    }

    fn open(pid: u32) -> Result<Process, Errno> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(Process { pid, handle: pidfd_open(number, PidfdFlags::empty())? })
    }

    pub(super) fn has_ended(&self) -> bool {
        let mut ends = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }
}
