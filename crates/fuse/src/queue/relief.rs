//! Threads serve a queue in turn: one works, and another relieves it if its request takes long.
//!
//! ```text
//!           its request takes longer than WATCH
//!   working ──────────────────────────────────▶ held up ──its request is done──▶ standing by
//!      ▲                                           │                                 │
//!      └──────────────── relieves ─────────────────┼─────────────────────────────────┘
//!                                                  └ one that stood by works now; if it was the last
//!                                                    one, another thread is started
//! ```
//!
//! # Invariants
//! 1. A request that takes long, because of a pool that is full, say, keeps those behind it in its queue
//!    waiting for no longer than two `WATCH`. So does each further one ahead of them: a queue may have a
//!    thread for each of its entries (`tests::a_thread_that_is_held_up_is_relieved`). A thread that sleeps
//!    uninterruptibly keeps others waiting all the time: the kernel hands requests to the thread that
//!    registered or committed their entry, even if another one waits for them. So the filesystem waits for
//!    devices interruptibly (`Filesystem::begin_queue_thread`).
//! 2. While there are no requests, the threads that stand by sleep without a limit: a mount that is not used
//!    costs no processor time. The next request wakes them, once (`is_quiet`). One of them looks for all.
//! 3. After the end nobody stands by (`tests::the_end_wakes_those_that_stand_by`).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How often a thread that stands by looks whether requests are served, while there are some.
const WATCH: Duration = Duration::from_millis(50);

/// The threads of a queue.
#[derive(Default)]
pub(super) struct Relief {
    /// Requests that were begun, wrapping around.
    begun: AtomicU64,
    /// Requests that are served now.
    served: AtomicUsize,
    /// Whether those that stand by sleep until the next request.
    is_quiet: AtomicBool,
    state: Mutex<ReliefState>,
    called: Condvar,
}

#[derive(Default)]
struct ReliefState {
    /// Threads that have been started, the first one too.
    threads: usize,
    standing_by: usize,
    /// Whether one of those that stand by looks whether requests are served.
    is_watched: bool,
    has_ended: bool,
}

impl Relief {
    /// A thread works now. If nobody stands by, `start` starts a thread that does, unless there are
    /// `threads_max` already. It returns whether it could.
    pub(super) fn call_another(&self, threads_max: usize, start: impl FnOnce() -> bool) {
        let mut state = self.state.lock();
        // The first thread has not been counted yet.
        state.threads = state.threads.max(1);
        if state.standing_by > 0 || state.threads >= threads_max || state.has_ended {
            return;
        }
        state.threads += 1;
        // It stands by from now on: another thread that works meets it here.
        state.standing_by += 1;
        drop(state);
        if !start() {
            let mut state = self.state.lock();
            state.threads -= 1;
            state.standing_by -= 1;
        }
    }

    /// Runs `serve`, which serves one request.
    pub(super) fn watch<T>(&self, serve: impl FnOnce() -> T) -> T {
        self.served.fetch_add(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
        if self.is_quiet.load(Ordering::SeqCst) && self.is_quiet.swap(false, Ordering::SeqCst) {
            // Under the lock, so that those that stand by have either not looked yet or sleep already.
            let _state = self.state.lock();
            self.called.notify_all();
        }
        let answer = serve();
        self.served.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    /// Stands by until a thread that works is held up by a request. Returns whether that is so; if not, the
    /// queue has ended. `is_counted` says whether `call_another` has counted this thread.
    pub(super) fn stand_by(&self, is_counted: bool) -> bool {
        let mut state = self.state.lock();
        state.standing_by += usize::from(!is_counted);
        let mut is_held_up = false;
        while !state.has_ended && !is_held_up {
            if state.is_watched {
                self.called.wait(&mut state);
                continue;
            }
            state.is_watched = true;
            is_held_up = self.is_held_up(&mut state);
            state.is_watched = false;
        }
        state.standing_by -= 1;
        // Another one looks now.
        self.called.notify_all();
        is_held_up
    }

    /// Sleeps for `WATCH`; if there are no requests, until the next one. Returns whether none was begun
    /// although one is served.
    fn is_held_up(&self, state: &mut MutexGuard<'_, ReliefState>) -> bool {
        let seen = self.begun.load(Ordering::SeqCst);
        if self.served.load(Ordering::SeqCst) == 0 {
            // `watch` counts the request before it looks at the flag: it sees the flag, or this sees the
            // request.
            self.is_quiet.store(true, Ordering::SeqCst);
            if self.begun.load(Ordering::SeqCst) == seen {
                self.called.wait(state);
            }
            return false;
        }
        let is_over = self.called.wait_for(state, WATCH).timed_out();
        let none_was_begun = self.begun.load(Ordering::SeqCst) == seen;
        is_over && none_was_begun && self.served.load(Ordering::SeqCst) > 0
    }

    /// The queue has ended.
    pub(super) fn end(&self) {
        self.state.lock().has_ended = true;
        self.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn until_quiet(relief: &Relief) {
        while !relief.is_quiet.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_is_held_up_is_relieved() {
        let relief = &Relief::default();
        let (go_on, wait) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let others = [(); 2].map(|()| scope.spawn(|| relief.stand_by(false)));
            until_quiet(relief);
            // Requests that are short call nobody.
            for _ in 0..1000 {
                relief.watch(thread::yield_now);
            }
            assert!(!others.iter().any(thread::ScopedJoinHandle::is_finished));
            let held_up = scope.spawn(move || relief.watch(|| wait.recv().unwrap()));
            // The second one looks after the first.
            assert!(others.into_iter().all(|other| other.join().unwrap()));
            go_on.send(()).unwrap();
            held_up.join().unwrap();
        });
        assert_eq!(relief.served.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn another_thread_is_started_if_nobody_stands_by() {
        let relief = &Relief::default();
        let started = AtomicUsize::new(0);
        let start = || started.fetch_add(1, Ordering::SeqCst) < 10;
        relief.call_another(3, start);
        // One stands by already, if it has come so far or not.
        relief.call_another(3, start);
        assert_eq!(started.load(Ordering::SeqCst), 1);
        relief.watch(|| assert!(relief.stand_by(true)));
        relief.call_another(3, start);
        assert_eq!(started.load(Ordering::SeqCst), 2);
        relief.watch(|| assert!(relief.stand_by(true)));
        relief.call_another(3, start);
        assert_eq!(started.load(Ordering::SeqCst), 2, "there are three with the first one");
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_tried_again() {
        let relief = Relief::default();
        relief.call_another(2, || false);
        let is_started = &mut false;
        relief.call_another(2, || {
            *is_started = true;
            true
        });
        assert!(*is_started);
    }

    #[test]
    fn the_end_wakes_those_that_stand_by() {
        let relief = &Relief::default();
        thread::scope(|scope| {
            let others = [(); 2].map(|()| scope.spawn(|| relief.stand_by(false)));
            until_quiet(relief);
            relief.end();
            assert!(!others.into_iter().any(|other| other.join().unwrap()));
        });
        assert!(!relief.stand_by(false), "nobody stands by after the end");
    }
}
