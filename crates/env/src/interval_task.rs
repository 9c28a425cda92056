//! A task that a thread runs at an interval, such as the sync after changes that no program syncs.
//!
//! ```text
//!            a mark                  interval over
//!   clean ───────────────▶ dirty ───────────────────▶ running ──▶ clean
//!   (the thread sleeps)    (the thread waits)          (a mark during the run: dirty)
//! ```
//!
//! # Invariants
//! 1. The task runs at most one interval after a `mark`, or one interval after the run that the mark met. A
//!    caller marks after its change, not before it (`tests::a_mark_during_a_run_asks_for_another`).
//! 2. The thread sleeps while nothing is marked (`tests::a_mark_runs_the_task_and_silence_does_not`).
//! 3. No run begins after `stop` (assert in `run`); `stop` does not wait for the interval
//!    (`tests::stopping_does_not_wait_for_the_interval`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::background_work::begin_background_work;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The state that the thread and its users share.
struct IntervalState {
    /// Whether a mark has not been followed by a run yet.
    dirty: AtomicBool,
    /// Whether `dirty` stays set, because no caller marks changes.
    always_dirty: bool,
    stop: Mutex<bool>,
    wake: Condvar,
}

/// Marks changes after which an [`IntervalTask`] runs.
#[derive(Clone)]
pub struct ChangeSignal(Arc<IntervalState>);

impl ChangeSignal {
    /// A signal without a thread.
    #[must_use]
    pub fn ignored() -> ChangeSignal {
        ChangeSignal(Arc::new(IntervalState::new(true)))
    }

    /// Notes a change that is complete.
    pub fn mark(&self) {
        // The load alone is the common case: a write to the flag would move its cache line between
        // processors.
        if !self.0.dirty.load(Ordering::Relaxed) && !self.0.dirty.swap(true, Ordering::AcqRel) {
            // Under the lock the thread has not read the flag yet or is in its wait, so the wake is not lost.
            let _stop = self.0.stop.lock();
            self.0.wake.notify_one();
        }
    }
}

/// A thread that runs a task, until it is stopped or dropped.
pub struct IntervalTask {
    shared: Arc<IntervalState>,
    thread: Option<JoinHandle<()>>,
}

impl IntervalTask {
    /// Starts a thread with this name that calls `task` at every `interval`.
    ///
    /// # Errors
    /// The operating system's error if it starts no thread.
    pub fn always(
        name: &str,
        interval: Duration,
        task: impl Fn() + Send + 'static,
    ) -> io::Result<IntervalTask> {
        IntervalTask::start(Arc::new(IntervalState::new(true)), name, interval, task)
    }

    /// Starts a thread with this name that calls `task` one `interval` after the first mark since the last
    /// run.
    ///
    /// # Errors
    /// The operating system's error if it starts no thread.
    pub fn after_changes(
        name: &str,
        interval: Duration,
        task: impl Fn() + Send + 'static,
    ) -> io::Result<(IntervalTask, ChangeSignal)> {
        let shared = Arc::new(IntervalState::new(false));
        Ok((IntervalTask::start(Arc::clone(&shared), name, interval, task)?, ChangeSignal(shared)))
    }

    fn start(
        shared: Arc<IntervalState>,
        name: &str,
        interval: Duration,
        task: impl Fn() + Send + 'static,
    ) -> io::Result<IntervalTask> {
        let mine = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || mine.run(interval, task))?;
        Ok(IntervalTask { shared, thread: Some(thread) })
    }

    /// Ends the thread after the run that it may be in. Marks since then are dropped.
    ///
    /// # Panics
    /// If `task` has panicked.
    pub fn stop(&mut self) {
        // Set under the lock of the wait, so that the thread cannot miss it.
        *self.shared.stop.lock() = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a task does not panic");
        }
    }
}

impl Drop for IntervalTask {
    fn drop(&mut self) {
        self.stop();
    }
}

impl IntervalState {
    fn new(always_dirty: bool) -> IntervalState {
        IntervalState {
            dirty: AtomicBool::new(always_dirty),
            always_dirty,
            stop: Mutex::new(false),
            wake: Condvar::new(),
        }
    }

    fn run(&self, interval: Duration, task: impl Fn()) {
        let _in_background = begin_background_work();
        let mut stop = self.stop.lock();
        loop {
            while !*stop && !self.dirty.load(Ordering::Acquire) {
                self.wake.wait(&mut stop);
            }
            // Marks of one interval share a run.
            if !*stop {
                self.wake.wait_while_for(&mut stop, |stop| !*stop, interval);
            }
            if *stop {
                return;
            }
            assert!(!*stop, "no run begins after the stop");
            // Cleared first: a mark during the run asks for another one.
            self.dirty.store(self.always_dirty, Ordering::Release);
            // Without the lock, so that `mark` and `stop` do not wait for the task.
            MutexGuard::unlocked(&mut stop, &task);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SOON: Duration = Duration::from_millis(5);
    const LATE: Duration = Duration::from_secs(10);

    /// The pool that the task holds can then be closed and opened again.
    #[test]
    fn a_dropped_task_has_ended_its_thread() {
        let held = Arc::new(());
        let seen = Arc::downgrade(&held);
        let task = IntervalTask::always("held", LATE * 100, move || drop(Arc::clone(&held))).unwrap();
        assert!(seen.upgrade().is_some());
        drop(task);
        assert!(seen.upgrade().is_none(), "the thread has given up what it held");
    }

    #[test]
    fn a_mark_runs_the_task_and_silence_does_not() {
        let (send, ran) = mpsc::channel();
        let (mut task, changes) =
            IntervalTask::after_changes("test", SOON, move || send.send(()).unwrap()).unwrap();
        assert!(ran.recv_timeout(SOON * 4).is_err(), "nothing is marked yet");
        for _ in 0..3 {
            changes.mark();
            changes.mark();
            ran.recv_timeout(LATE).expect("a mark runs the task");
            assert!(ran.recv_timeout(SOON * 4).is_err(), "two marks in one interval are one run");
        }
        task.stop();
    }

    #[test]
    fn a_mark_during_a_run_asks_for_another() {
        let (enter, entered) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        let (mut task, changes) = IntervalTask::after_changes("test", SOON, move || {
            enter.send(()).unwrap();
            may_leave.recv().unwrap();
        })
        .unwrap();
        changes.mark();
        entered.recv_timeout(LATE).unwrap();
        changes.mark();
        leave.send(()).unwrap();
        entered.recv_timeout(LATE).expect("the second mark runs it too");
        leave.send(()).unwrap();
        task.stop();
    }

    #[test]
    fn stopping_does_not_wait_for_the_interval() {
        let (mut task, changes) = IntervalTask::after_changes("test", LATE * 60, || ()).unwrap();
        changes.mark();
        task.stop();
    }

    #[test]
    fn without_marks_every_interval_ends_in_a_run() {
        let (send, ran) = mpsc::channel();
        let mut task = IntervalTask::always("test", SOON, move || send.send(()).unwrap()).unwrap();
        for _ in 0..3 {
            ran.recv_timeout(LATE).expect("an interval ends in a run");
        }
        task.stop();
    }
}
