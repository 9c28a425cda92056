//! Threads for requests that wait: for a flush of the devices, or for the end of a transaction.
//!
//! A *serving thread* takes requests from the kernel. A *job* is the part of a request that waits.
//!
//! Invariants
//! 1. A serving thread does not wait for a flush. A job on one of these threads waits and answers, and the
//!    serving thread takes the next request.
//! 2. Syncs that wait at the same time share one flush, so there are more of these threads than processors
//!    (`tests::jobs_wait_together`).
//! 3. At most [`QUEUED_JOBS_MAX`] jobs queue. The thread that brings one more runs it itself (`spawn`),
//!    starts a thread for it (`spawn_elsewhere`) or refuses it (`spawn_or`). No job is lost
//!    (`tests::every_job_is_done_also_those_beyond_the_queue`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

/// Syncs that can wait at the same time.
pub(crate) const SYNC_THREADS: usize = 16;

/// Most jobs that no thread has taken yet: four for each sync that can wait.
pub(crate) const QUEUED_JOBS_MAX: usize = 4 * SYNC_THREADS;

type BlockingJob = Box<dyn FnOnce() + Send>;

/// The threads. Dropping them waits for all jobs, those in the queue too.
pub(crate) struct BlockingThreads {
    jobs: Option<SyncSender<BlockingJob>>,
    threads: Vec<JoinHandle<()>>,
}

impl BlockingThreads {
    /// Starts `threads` threads. Each is called `name` and a number.
    pub(crate) fn start(name: &str, threads: usize) -> std::io::Result<BlockingThreads> {
        assert!(threads > 0, "a job needs a thread to run it");
        let (jobs, queue) = sync_channel(QUEUED_JOBS_MAX);
        let queue = Arc::new(Mutex::new(queue));
        let start = |number| {
            let queue = Arc::clone(&queue);
            thread::Builder::new().name(format!("{name}-{number}")).spawn(move || work(&queue))
        };
        let threads = (0..threads).map(start).collect::<Result<_, _>>()?;
        Ok(BlockingThreads { jobs: Some(jobs), threads })
    }

    /// Runs a job on one of the threads, or on this one if the queue is full.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let jobs = self.jobs.as_ref().expect("the sender is there until the threads are dropped");
        match jobs.try_send(Box::new(job)) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job(),
        }
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
        let jobs = self.jobs.as_ref().expect("the sender is there until the threads are dropped");
        // Shared, because a failed send returns the job as a closed box: the value could not be taken out
        // again.
        let with = Arc::new(Mutex::new(Some(with)));
        let shared = Arc::clone(&with);
        let job = move || {
            let with = shared.lock().take();
            job(with.expect("a job runs once"));
        };
        if jobs.try_send(Box::new(job)).is_err() {
            let with = with.lock().take();
            refuse(with.expect("a job that was not queued still has its value"));
        }
    }
}

impl Drop for BlockingThreads {
    fn drop(&mut self) {
        // Without a sender the threads end when the queue is empty.
        self.jobs = None;
        for thread in self.threads.drain(..) {
            thread.join().expect("a panic of a job is caught");
        }
    }
}

fn work(queue: &Mutex<Receiver<BlockingJob>>) {
    loop {
        // A statement of its own: the lock is free again before the job runs.
        let job = queue.lock().recv();
        let Ok(job) = job else { return };
        // The reply of a job that panics is dropped, which answers `EIO`. The thread goes on.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a job panicked; its request is answered with EIO");
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
    fn a_job_that_panics_leaves_its_thread() {
        let blocking_threads = BlockingThreads::start("test", 1).unwrap();
        let (done, was_done) = std::sync::mpsc::channel();
        blocking_threads.spawn(|| panic!("on purpose"));
        blocking_threads.spawn(move || done.send(()).unwrap());
        was_done.recv().unwrap();
    }
}
