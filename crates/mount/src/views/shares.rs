//! Shares of users in the transactions of one mount, so that one user cannot take what the others need.
//!
//! # Invariants
//! 1. A user other than root and the server's own has at most [`USER_TRANSACTIONS_MAX`] transactions and
//!    sessions that outlive their transaction, in all: a view that was aborted keeps its threads as long as a
//!    program holds a file in it open (`admit`).
//! 2. An ordinary user begins a transaction only while more than [`RESERVED`] places are free. The last ones
//!    are for root and the server's own user.
//! 3. Of one such user at most [`USER_JOBS_MAX`] jobs run at a time; the others wait in order
//!    (`tests::jobs_of_one_user_leave_threads_for_others`).

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::TRANSACTIONS_MAX;
use crate::caller::has_no_share;

/// Most transactions of one user at a time.
const USER_TRANSACTIONS_MAX: usize = 16;

/// Places for transactions that ordinary users leave free.
const RESERVED: usize = 16;

/// Most jobs of one user that run at the same time.
pub(super) const USER_JOBS_MAX: usize = 2;

/// The counts on which the admission of a new transaction rests.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SessionCounts {
    /// Transactions of the mount.
    pub(super) open: usize,
    /// Transactions of the user.
    pub(super) open_of_user: usize,
    /// Sessions of the mount that outlive their transactions.
    pub(super) left: usize,
    /// Sessions of the user that outlive their transactions.
    pub(super) left_of_user: usize,
}

impl SessionCounts {
    /// Whether a user may begin one more transaction.
    ///
    /// # Errors
    /// `EDQUOT` if the user's share is in use, `EAGAIN` if the mount has no more.
    pub(super) fn admit(self, uid: u32) -> Result<(), Errno> {
        let limit = if has_no_share(uid) { TRANSACTIONS_MAX } else { TRANSACTIONS_MAX - RESERVED };
        let of_user = self.open_of_user + self.left_of_user;
        if !has_no_share(uid) && of_user >= USER_TRANSACTIONS_MAX {
            return Err(Errno::DQUOT);
        }
        if self.open + self.left >= limit { Err(Errno::AGAIN) } else { Ok(()) }
    }
}

type SharedJob = Box<dyn FnOnce() + Send>;

/// The jobs of users that have jobs.
#[derive(Default)]
pub(super) struct JobShares(Mutex<BTreeMap<u32, JobsOfUser>>);

#[derive(Default)]
struct JobsOfUser {
    running: usize,
    waiting: VecDeque<SharedJob>,
}

impl JobShares {
    /// The job, if it may start now; otherwise it is kept until a job of the same user has ended.
    pub(super) fn start_or_keep(&self, uid: u32, job: SharedJob) -> Option<SharedJob> {
        let mut users = self.0.lock();
        let of_user = users.entry(uid).or_default();
        if of_user.running < USER_JOBS_MAX || has_no_share(uid) {
            of_user.running += 1;
            return Some(job);
        }
        of_user.waiting.push_back(job);
        None
    }

    /// Notes that a job has ended, and returns the next job of its user to start.
    pub(super) fn end(&self, uid: u32) -> Option<SharedJob> {
        let mut users = self.0.lock();
        let of_user = users.get_mut(&uid).expect("a running job is counted");
        let next = of_user.waiting.pop_front();
        if next.is_none() {
            of_user.running -= 1;
            if of_user.running == 0 {
                users.remove(&uid);
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 4_000_000;

    #[test]
    fn one_user_leaves_transactions_for_others() {
        let full = SessionCounts { open: 16, open_of_user: 16, ..SessionCounts::default() };
        assert_eq!(full.admit(USER), Err(Errno::DQUOT));
        assert_eq!(SessionCounts { open_of_user: 0, ..full }.admit(USER), Ok(()));
        let left = SessionCounts { left: 16, left_of_user: 16, ..SessionCounts::default() };
        assert_eq!(left.admit(USER), Err(Errno::DQUOT), "views that files keep open count");
        let both = SessionCounts { open_of_user: 8, left_of_user: 8, ..SessionCounts::default() };
        assert_eq!(both.admit(USER), Err(Errno::DQUOT), "both kinds count together");
        let many = SessionCounts { open: TRANSACTIONS_MAX - RESERVED, ..SessionCounts::default() };
        assert_eq!(many.admit(USER), Err(Errno::AGAIN));
        assert_eq!(many.admit(0), Ok(()));
        assert_eq!(SessionCounts { open: TRANSACTIONS_MAX, ..many }.admit(0), Err(Errno::AGAIN));
    }

    #[test]
    fn jobs_of_one_user_leave_threads_for_others() {
        let shares = JobShares::default();
        let job = || -> SharedJob { Box::new(|| ()) };
        for _ in 0..USER_JOBS_MAX {
            assert!(shares.start_or_keep(USER, job()).is_some());
        }
        assert!(shares.start_or_keep(USER, job()).is_none());
        assert!(shares.start_or_keep(USER + 1, job()).is_some());
        assert!(shares.end(USER).is_some(), "the job that was kept starts");
        assert!(shares.end(USER).is_none());
        assert!(shares.end(USER).is_none());
        assert!(shares.end(USER + 1).is_none());
        assert!(shares.0.lock().is_empty());
    }
}
