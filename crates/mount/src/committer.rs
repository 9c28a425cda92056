//! The background commit: what no sync asks for becomes durable soon anyway.
//!
//! ```text
//!            a change                interval over
//!   clean ───────────────▶ dirty ───────────────────▶ committing ──▶ clean
//!   (the thread sleeps)    (the thread waits)          (a change meanwhile: dirty)
//! ```
//!
//! Invariants
//! 1. Whoever changes the filesystem calls `mark` after the change: it is committed at most one interval and one
//!    commit later.
//! 2. While nothing changes the thread does not wake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

struct Shared {
    dirty: AtomicBool,
    stop: Mutex<bool>,
    wake: Condvar,
}

/// Tells the background commit of changes.
#[derive(Clone)]
pub(crate) struct Changes(Arc<Shared>);

impl Changes {
    /// For a filesystem that needs no background commit.
    pub(crate) fn ignored() -> Changes {
        Changes(Arc::new(Shared {
            dirty: AtomicBool::new(true),
            stop: Mutex::new(false),
            wake: Condvar::new(),
        }))
    }

    /// Something has changed.
    pub(crate) fn mark(&self) {
        if !self.0.dirty.load(Ordering::Relaxed) && !self.0.dirty.swap(true, Ordering::AcqRel) {
            // Under the lock, so that the thread is either before its look at the flag or in its wait.
            let _stop = self.0.stop.lock();
            self.0.wake.notify_one();
        }
    }
}

/// The thread that commits.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts the thread; it calls `commit` one `interval` after a change, as long as there are changes.
    pub(crate) fn start(
        interval: Duration,
        commit: impl Fn() + Send + 'static,
    ) -> std::io::Result<(Committer, Changes)> {
        let shared =
            Arc::new(Shared { dirty: AtomicBool::new(false), stop: Mutex::new(false), wake: Condvar::new() });
        let mine = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("warpfire-commit".to_owned())
            .spawn(move || mine.run(interval, commit))?;
        Ok((Committer { shared: Arc::clone(&shared), thread: Some(thread) }, Changes(shared)))
    }

    /// Ends the thread, after the commit that it may be in. What is dirty stays so.
    pub(crate) fn stop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the commit thread does not panic");
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self, interval: Duration, commit: impl Fn()) {
        let mut stop = self.stop.lock();
        loop {
            while !*stop && !self.dirty.load(Ordering::Acquire) {
                self.wake.wait(&mut stop);
            }
            if !*stop {
                self.wake.wait_while_for(&mut stop, |stop| !*stop, interval);
            }
            if *stop {
                return;
            }
            // Cleared first: a change during the commit asks for another one.
            self.dirty.store(false, Ordering::Release);
            parking_lot::MutexGuard::unlocked(&mut stop, &commit);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SOON: Duration = Duration::from_millis(5);
    const LATE: Duration = Duration::from_secs(10);

    #[test]
    fn a_change_is_committed_and_silence_is_not() {
        let (tell, told) = mpsc::channel();
        let (mut committer, changes) = Committer::start(SOON, move || tell.send(()).unwrap()).unwrap();
        assert!(told.recv_timeout(SOON * 4).is_err(), "nothing has changed yet");
        for _ in 0..3 {
            changes.mark();
            changes.mark();
            told.recv_timeout(LATE).expect("a change is committed");
            assert!(told.recv_timeout(SOON * 4).is_err(), "two changes in one interval are one commit");
        }
        committer.stop();
    }

    #[test]
    fn a_change_during_a_commit_asks_for_another() {
        let (enter, entered) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        let (mut committer, changes) = Committer::start(SOON, move || {
            enter.send(()).unwrap();
            may_leave.recv().unwrap();
        })
        .unwrap();
        changes.mark();
        entered.recv_timeout(LATE).unwrap();
        changes.mark();
        leave.send(()).unwrap();
        entered.recv_timeout(LATE).expect("the second change is committed too");
        leave.send(()).unwrap();
        committer.stop();
    }

    #[test]
    fn stopping_does_not_wait_for_the_interval() {
        let (mut committer, changes) = Committer::start(LATE * 60, || ()).unwrap();
        changes.mark();
        committer.stop();
    }
}
