//! Two threads serve a queue in turn: one works, and the other relieves it if a request takes long.
//!
//! ```text
//!           its request takes longer than WATCH
//!   working ──────────────────────────────────▶ held up ──its request is done──▶ standing by
//!      ▲                                           │                                 │
//!      └──────────────── relieves ─────────────────┼─────────────────────────────────┘
//!                                                  └ the one that stood by works now
//! ```
//!
//! # Invariants
//! 1. A request that takes long, because of a pool that is full, say, keeps the others of its queue waiting
//!    for no longer than two `WATCH` (`tests::a_thread_that_is_held_up_is_relieved`). A second one beside it
//!    does keep them waiting. So does a thread that sleeps uninterruptibly: the kernel hands requests to the
//!    thread that registered or committed their entry, even if the other one waits for them.
//! 2. While there are no requests, the thread that stands by sleeps without a limit: a mount that is not used
//!    costs no processor time. The next request wakes it, once (`is_quiet`).
//! 3. After the end nobody stands by (`tests::the_end_wakes_the_one_that_stands_by`).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How often the thread that stands by looks whether requests are served, while there are some.
const WATCH: Duration = Duration::from_millis(50);

/// The two threads of a queue.
#[derive(Default)]
pub(super) struct Relief {
    /// Requests that were begun, wrapping around.
    begun: AtomicU64,
    /// Requests that are served now.
    served: AtomicUsize,
    /// Whether the thread that stands by sleeps until the next request.
    is_quiet: AtomicBool,
    has_ended: Mutex<bool>,
    called: Condvar,
}

impl Relief {
    /// Runs `serve`, which serves one request.
    pub(super) fn watch<T>(&self, serve: impl FnOnce() -> T) -> T {
        self.served.fetch_add(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
        if self.is_quiet.load(Ordering::SeqCst) && self.is_quiet.swap(false, Ordering::SeqCst) {
            // Under the lock, so that the other thread has either not looked yet or sleeps already.
            let _state = self.has_ended.lock();
            self.called.notify_all();
        }
        let answer = serve();
        self.served.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    /// Stands by until the other thread is held up by a request. Returns whether that is so; if not, the
    /// queue has ended.
    pub(super) fn stand_by(&self) -> bool {
        let mut has_ended = self.has_ended.lock();
        while !*has_ended {
            let seen = self.begun.load(Ordering::SeqCst);
            if self.served.load(Ordering::SeqCst) == 0 {
                // `watch` counts the request before it looks at the flag: it sees the flag, or this sees the
                // request.
                self.is_quiet.store(true, Ordering::SeqCst);
                if self.begun.load(Ordering::SeqCst) == seen {
                    self.called.wait(&mut has_ended);
                }
                continue;
            }
            let is_over = self.called.wait_for(&mut has_ended, WATCH).timed_out();
            let none_was_begun = self.begun.load(Ordering::SeqCst) == seen;
            if is_over && none_was_begun && self.served.load(Ordering::SeqCst) > 0 {
                return true;
            }
        }
        false
    }

    /// The queue has ended.
    pub(super) fn end(&self) {
        *self.has_ended.lock() = true;
        self.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_that_is_held_up_is_relieved() {
        let relief = &Relief::default();
        let (go_on, wait) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let other = scope.spawn(|| relief.stand_by());
            while !relief.is_quiet.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            // Requests that are short call nobody.
            for _ in 0..1000 {
                relief.watch(thread::yield_now);
            }
            assert!(!other.is_finished());
            let held_up = scope.spawn(move || relief.watch(|| wait.recv().unwrap()));
            assert!(other.join().unwrap());
            go_on.send(()).unwrap();
            held_up.join().unwrap();
        });
        assert_eq!(relief.served.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn the_end_wakes_the_one_that_stands_by() {
        let relief = &Relief::default();
        thread::scope(|scope| {
            let other = scope.spawn(|| relief.stand_by());
            while !relief.is_quiet.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            relief.end();
            assert!(!other.join().unwrap());
        });
        assert!(!relief.stand_by(), "nobody stands by after the end");
    }
}
