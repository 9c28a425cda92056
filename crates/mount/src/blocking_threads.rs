//! Threads for requests that wait: a sync, which takes as long as the device does, or the end of a transaction.
//!
//! Invariants
//! 1. A thread that reads requests from the kernel does not wait for a flush: who asks for one is answered from here,
//!    and others are served meanwhile.
//! 2. Syncs that wait at the same time share one flush, so there are more of these threads than processors.
//! 3. At most [`QUEUED_JOBS_MAX`] jobs queue; one more is done by the thread that brought it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

/// Syncs that can wait together.
pub(crate) const SYNC_THREADS: usize = 16;

/// Jobs that no thread has taken yet: four for each sync that can wait.
pub(crate) const QUEUED_JOBS_MAX: usize = 4 * SYNC_THREADS;

type BlockingJob = Box<dyn FnOnce() + Send>;

/// The threads. Dropping them waits for what they have begun and been given.
pub(crate) struct BlockingThreads {
    jobs: Option<SyncSender<BlockingJob>>,
    threads: Vec<JoinHandle<()>>,
}

impl BlockingThreads {
    /// So many threads, of this name and a number.
    pub(crate) fn start(name: &str, threads: usize) -> std::io::Result<BlockingThreads> {
        let (jobs, queue) = sync_channel(QUEUED_JOBS_MAX);
        let queue = Arc::new(Mutex::new(queue));
        let start = |number| {
            let queue = Arc::clone(&queue);
            thread::Builder::new().name(format!("{name}-{number}")).spawn(move || work(&queue))
        };
        let threads = (0..threads).map(start).collect::<Result<_, _>>()?;
        Ok(BlockingThreads { jobs: Some(jobs), threads })
    }

    /// Has a job done by one of the threads, or here if all are busy and enough wait.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let jobs = self.jobs.as_ref().expect("only dropping takes the sender away");
        match jobs.try_send(Box::new(job)) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job(),
        }
    }

    /// Has a job done with something by one of the threads, never here: if all are busy and enough wait, `refuse` gets it.
    pub(crate) fn spawn_or<T: Send + 'static>(
        &self,
        with: T,
        job: impl FnOnce(T) + Send + 'static,
        refuse: impl FnOnce(T),
    ) {
        let jobs = self.jobs.as_ref().expect("only dropping takes the sender away");
        let with = Arc::new(Mutex::new(Some(with)));
        let shared = Arc::clone(&with);
        let job = move || {
            let with = shared.lock().take();
            job(with.expect("a job is done once"));
        };
        if jobs.try_send(Box::new(job)).is_err() {
            let with = with.lock().take();
            refuse(with.expect("the job was not taken"));
        }
    }
}

impl Drop for BlockingThreads {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            thread.join().expect("a sync thread does not panic");
        }
    }
}

fn work(queue: &Mutex<Receiver<BlockingJob>>) {
    loop {
        // Its own statement, so that the lock is free while the job is done.
        let job = queue.lock().recv();
        let Ok(job) = job else { return };
        job();
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
        drop(blocking_threads);
        assert_eq!(done.load(Ordering::Relaxed), 10 * QUEUED_JOBS_MAX);
    }
}
