//! Threads for requests that wait: for a device, for a flush, or for the end of a transaction.
//!
//! A *serving thread* takes requests from the kernel. A *job* is the part of a request that waits.
//!
//! Invariants
//! 1. A serving thread does not wait for a flush, nor for a read while other requests wait. A job on one of
//!    these threads waits and answers, and the serving thread takes the next request.
//! 2. Syncs that wait at the same time share one flush, so there are more of these threads than processors
//!    (`tests::jobs_wait_together`).
//! 3. At most [`QUEUED_JOBS_MAX`] jobs queue. The thread that brings one more runs it itself (`spawn`),
//!    starts a thread for it (`spawn_elsewhere`) or refuses it (`spawn_or`). No job is lost
//!    (`tests::every_job_is_done_also_those_beyond_the_queue`).
//! 4. A job wakes one thread, and none if all are at work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

/// Syncs that can wait at the same time.
pub(crate) const SYNC_THREADS: usize = 16;

/// Reads that can wait at the same time. A flash drive is at its best with about so many.
pub(crate) const READ_THREADS: usize = 32;

/// Most jobs that no thread has taken yet: four for each sync that can wait.
pub(crate) const QUEUED_JOBS_MAX: usize = 4 * SYNC_THREADS;

type BlockingJob = Box<dyn FnOnce() + Send>;

/// The threads. Dropping them waits for all jobs, those in the queue too.
pub(crate) struct BlockingThreads {
    queue: Arc<JobQueue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct JobQueue {
    state: Mutex<JobQueueState>,
    brought: Condvar,
}

#[derive(Default)]
struct JobQueueState {
    /// Jobs that no thread has taken yet.
    jobs: VecDeque<BlockingJob>,
    /// Jobs that a thread is running.
    running: usize,
    /// Whether no more jobs come.
    is_closed: bool,
}

impl BlockingThreads {
    /// Starts `threads` threads. Each is called `name` and a number.
    pub(crate) fn start(name: &str, threads: usize) -> std::io::Result<BlockingThreads> {
        assert!(threads > 0, "a job needs a thread to run it");
        let mut started = BlockingThreads { queue: Arc::default(), threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let queue = Arc::clone(&started.queue);
            let thread = thread::Builder::new().name(format!("{name}-{number}"));
            // On an error the drop ends the threads before this one.
            started.threads.push(thread.spawn(move || queue.work())?);
        }
        Ok(started)
    }

    /// Whether jobs are queued or running.
    pub(crate) fn have_jobs(&self) -> bool {
        let state = self.queue.state.lock();
        state.running > 0 || !state.jobs.is_empty()
    }

    /// Runs a job on one of the threads, or on this one if the queue is full.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.spawn_or(job, |job| job(), |job| job());
    }

    /// Runs a job on one of the threads, or on a new one if the queue is full; never on this one. Without
    /// any thread the job is dropped, and with it the answer that it has: the program gets `EIO`.
    pub(crate) fn spawn_elsewhere(&self, job: impl FnOnce() + Send + 'static) {
        let start = |job: BlockingJob| {
            if let Err(e) = thread::Builder::new().name("warpfire-job".to_owned()).spawn(job) {
                tracing::error!(error = %e, "no thread for a request that waits");
            }
        };
        self.spawn_or(Box::new(job) as BlockingJob, |job| job(), start);
    }

    /// Runs a job with a value on one of the threads, never on this one. If the queue is full, `refuse` gets
    /// the value.
    pub(crate) fn spawn_or<T: Send + 'static>(
        &self,
        with: T,
        job: impl FnOnce(T) + Send + 'static,
        refuse: impl FnOnce(T),
    ) {
        let mut state = self.queue.state.lock();
        if state.jobs.len() < QUEUED_JOBS_MAX {
            state.jobs.push_back(Box::new(move || job(with)));
            drop(state);
            self.queue.brought.notify_one();
        } else {
            drop(state);
            refuse(with);
        }
    }
}

impl Drop for BlockingThreads {
    fn drop(&mut self) {
        // From now on the threads end when the queue is empty.
        self.queue.state.lock().is_closed = true;
        self.queue.brought.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("a panic of a job is caught");
        }
    }
}

impl JobQueue {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(job) = state.jobs.pop_front() else {
                if state.is_closed {
                    return;
                }
                self.brought.wait(&mut state);
                continue;
            };
            state.running += 1;
            drop(state);
            // The reply of a job that panics is dropped, which answers `EIO`. The thread goes on.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("a job panicked; its request is answered with EIO");
            }
            state = self.state.lock();
            state.running -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn jobs_wait_together() {
        let blocking_threads = BlockingThreads::start("test", SYNC_THREADS).unwrap();
        let all = Arc::new(Barrier::new(SYNC_THREADS));
        for _ in 0..SYNC_THREADS {
            let all = Arc::clone(&all);
            blocking_threads.spawn(move || _ = all.wait());
        }
        drop(blocking_threads);
    }

    #[test]
    fn every_job_is_done_also_those_beyond_the_queue() {
        let done = Arc::new(AtomicUsize::new(0));
        let blocking_threads = BlockingThreads::start("test", SYNC_THREADS).unwrap();
        for _ in 0..10 * QUEUED_JOBS_MAX {
            let done = Arc::clone(&done);
            blocking_threads.spawn(move || _ = done.fetch_add(1, Ordering::Relaxed));
        }
        let here = thread::current().id();
        for _ in 0..2 * QUEUED_JOBS_MAX {
            let done = Arc::clone(&done);
            blocking_threads.spawn_elsewhere(move || {
                assert_ne!(thread::current().id(), here);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        while done.load(Ordering::Relaxed) < 12 * QUEUED_JOBS_MAX {
            thread::yield_now();
        }
        drop(blocking_threads);
        assert_eq!(done.load(Ordering::Relaxed), 12 * QUEUED_JOBS_MAX);
    }

    #[test]
    fn jobs_are_there_from_the_call_that_brings_them_until_they_end() {
        let blocking_threads = BlockingThreads::start("test", 1).unwrap();
        assert!(!blocking_threads.have_jobs());
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        blocking_threads.spawn(move || wait.recv().unwrap());
        assert!(blocking_threads.have_jobs());
        go_on.send(()).unwrap();
        while blocking_threads.have_jobs() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_job_that_panics_leaves_its_thread() {
        let blocking_threads = BlockingThreads::start("test", 1).unwrap();
        let (done, was_done) = std::sync::mpsc::channel();
        blocking_threads.spawn(|| panic!("on purpose"));
        blocking_threads.spawn(move || done.send(()).unwrap());
        was_done.recv().unwrap();
    }
}
