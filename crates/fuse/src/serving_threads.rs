//! The threads that take requests from the kernel: one while one program works, more while several do.
//!
//! The kernel wakes the threads that wait for requests in turn. For a single program that is bad: each of its
//! requests is served by a thread that was asleep, with cold caches, and no thread can poll for the next one.
//! For several programs one thread is bad: the processors of the others stand still. So the first thread
//! always serves, and the others, the *helpers*, rest while they are not needed.
//!
//! ```text
//!             LONELY_MAX requests in a row, each served while no other was
//!    helping ─────────────────────────────────────────────────────────────▶ resting
//!       ▲                                                                      │
//!       ├──── a request waited at most ends of requests of late (WAITED_MAX) ◀─┤
//!       └──── no request was taken for WATCH, because all threads are at work ◀─┘
//! ```
//! On a machine that halts idle processors at once, and where the server cannot keep them awake, helpers do
//! not rest: there the next thread in turn is often on the processor of the program, which need not be woken.
//!
//! # Invariants
//! 1. The first thread never rests, so every request is taken.
//! 2. A helper rests in `before_request` only, so it has no request
//!    (`tests::helpers_rest_while_one_thread_suffices_and_come_when_requests_wait`).
//! 3. A request that takes long, because of a device that hangs or a pool that is full, keeps no other one
//!    waiting for longer than two `WATCH`, as long as a helper rests
//!    (`tests::a_request_that_takes_long_calls_a_helper`).
//! 4. While there are no requests, resting helpers sleep without a limit: a mount that is not used costs no
//!    processor time. The next request wakes them, once (`is_quiet`).
//! 5. After the end no helper rests (`tests::the_end_wakes_those_who_rest`).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Requests in a row, each without another one beside it, after which a helper rests.
const LONELY_MAX: u32 = 32;

/// Ends of requests at which another one waited, less those at which none did, after which a helper comes.
/// A single program has a request that nobody waits for (RELEASE, FORGET) among those that it waits for, so
/// now and then two of its requests are there at once.
const WAITED_MAX: u32 = 16;

/// How often a resting helper looks whether requests are taken, while there are some.
const WATCH: Duration = Duration::from_millis(50);

/// The threads of one connection.
#[derive(Debug)]
pub struct ServingThreads {
    /// All threads, those too that could not be started.
    threads: usize,
    /// Whether helpers may rest.
    may_rest: bool,
    /// Whether requests come by queues, each with a thread of its own.
    has_queues: AtomicBool,
    /// Threads that do not rest.
    awake: AtomicUsize,
    /// Requests that were taken, wrapping around.
    taken: AtomicU64,
    /// Requests that are served now.
    served: AtomicUsize,
    /// Whether helpers that rest sleep until the next request.
    is_quiet: AtomicBool,
    /// Requests in a row, each served alone.
    lonely: AtomicU32,
    /// Ends of requests at which another one waited, less those at which none did.
    waited: AtomicU32,
    state: Mutex<RestState>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct RestState {
    resting: usize,
    /// Helpers that were called and have not woken up yet.
    calls: usize,
    has_ended: bool,
}

/// A request that is served.
pub(crate) struct Served<'a>(&'a ServingThreads);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.0.served.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServingThreads {
    /// So many threads, at least one. `may_rest` says whether helpers may rest.
    ///
    /// # Panics
    /// Without a thread.
    #[must_use]
    pub fn new(threads: usize, may_rest: bool) -> ServingThreads {
        assert!(threads > 0, "requests need a thread");
        ServingThreads {
            threads,
            may_rest,
            has_queues: AtomicBool::new(false),
            awake: AtomicUsize::new(threads),
            taken: AtomicU64::new(0),
            served: AtomicUsize::new(0),
            is_quiet: AtomicBool::new(false),
            lonely: AtomicU32::new(0),
            waited: AtomicU32::new(0),
            state: Mutex::new(RestState::default()),
            called: Condvar::new(),
        }
    }

    /// Their number, those that rest too.
    pub(crate) fn number(&self) -> usize {
        self.threads
    }

    /// Whether there is one thread in all.
    #[must_use]
    pub fn is_only(&self) -> bool {
        self.threads == 1 && !self.has_queues.load(Ordering::Relaxed)
    }

    /// Whether all threads but one rest.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.awake.load(Ordering::Relaxed) == 1 && !self.has_queues.load(Ordering::Relaxed)
    }

    /// Requests come by queues, whose threads are not among these.
    pub(crate) fn note_queues(&self) {
        self.has_queues.store(true, Ordering::Relaxed);
    }

    /// A helper could not be started.
    pub(crate) fn note_missing(&self) {
        self.awake.fetch_sub(1, Ordering::Relaxed);
    }

    /// A thread, counted from 0, is about to take a request. A helper that is not needed rests here.
    pub(crate) fn before_request(&self, thread: usize) {
        if thread == 0 || !self.may_rest || self.lonely.load(Ordering::Relaxed) < LONELY_MAX {
            return;
        }
        let mut state = self.state.lock();
        if state.has_ended {
            return;
        }
        state.resting += 1;
        self.awake.fetch_sub(1, Ordering::Relaxed);
        while state.calls == 0 && !state.has_ended && !self.all_are_held_up(&mut state) {}
        state.calls = state.calls.saturating_sub(1);
        state.resting -= 1;
        self.awake.fetch_add(1, Ordering::Relaxed);
        self.lonely.store(0, Ordering::Relaxed);
    }

    /// Sleeps for `WATCH` or until a call; if there are no requests, until the next one. Returns whether no
    /// request was taken because all threads that do not rest were at work all the time.
    fn all_are_held_up(&self, state: &mut MutexGuard<'_, RestState>) -> bool {
        let seen = self.taken.load(Ordering::SeqCst);
        if self.served.load(Ordering::SeqCst) == 0 {
            // `serve` counts the request before it looks at the flag: it sees the flag, or this sees the
            // request.
            self.is_quiet.store(true, Ordering::SeqCst);
            if self.taken.load(Ordering::SeqCst) == seen {
                self.called.wait(state);
            }
            return false;
        }
        let is_over = self.called.wait_for(state, WATCH).timed_out();
        let none_was_taken = self.taken.load(Ordering::SeqCst) == seen;
        let awake = self.awake.load(Ordering::Relaxed);
        is_over && none_was_taken && self.served.load(Ordering::SeqCst) >= awake
    }

    /// A thread has taken a request.
    pub(crate) fn serve(&self) -> Served<'_> {
        let others = self.served.fetch_add(1, Ordering::SeqCst);
        self.taken.fetch_add(1, Ordering::SeqCst);
        if self.is_quiet.load(Ordering::SeqCst) && self.is_quiet.swap(false, Ordering::SeqCst) {
            // Under the lock, so that a helper has either not looked yet or sleeps already.
            let _state = self.state.lock();
            self.called.notify_all();
        }
        if others == 0 {
            // Two threads may count at once: the number is a hint.
            let lonely = self.lonely.load(Ordering::Relaxed);
            self.lonely.store(lonely.saturating_add(1), Ordering::Relaxed);
        } else {
            self.lonely.store(0, Ordering::Relaxed);
            let awake = self.awake.load(Ordering::Relaxed);
            if awake < self.threads {
                self.note_end(others + 1 >= awake);
            }
        }
        Served(self)
    }

    /// Takes note whether a request waits while all threads that do not rest are at work, and calls a helper
    /// if that has been so mostly.
    pub fn note_end(&self, waits: bool) {
        let waited = self.waited.load(Ordering::Relaxed);
        let waited = if waits { waited + 1 } else { waited.saturating_sub(1) };
        if waited < WAITED_MAX {
            return self.waited.store(waited, Ordering::Relaxed);
        }
        self.waited.store(0, Ordering::Relaxed);
        let mut state = self.state.lock();
        if state.calls < state.resting {
            state.calls += 1;
            self.called.notify_one();
        }
    }

    /// The connection has ended: helpers rest no more.
    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn serve_alone(threads: &ServingThreads, requests: u32) {
        (0..requests).for_each(|_| drop(threads.serve()));
    }

    #[test]
    fn helpers_rest_while_one_thread_suffices_and_come_when_requests_wait() {
        let threads = ServingThreads::new(2, true);
        assert!(!threads.is_sole() && !threads.is_only());
        threads.before_request(1);
        serve_alone(&threads, LONELY_MAX);
        threads.before_request(0);
        thread::scope(|scope| {
            let helper = scope.spawn(|| threads.before_request(1));
            while !threads.is_sole() {
                thread::yield_now();
            }
            // As often as not is not mostly.
            (0..10 * WAITED_MAX).for_each(|n| threads.note_end(n % 2 == 0));
            assert!(threads.is_sole() && !helper.is_finished());
            (0..WAITED_MAX).for_each(|_| threads.note_end(true));
            helper.join().unwrap();
            assert!(!threads.is_sole());
            threads.before_request(1);
        });
    }

    #[test]
    fn helpers_stay_while_requests_are_served_beside_each_other() {
        let threads = ServingThreads::new(2, true);
        let _first = threads.serve();
        serve_alone(&threads, 2 * LONELY_MAX);
        threads.before_request(1);
        assert!(!threads.is_sole());
    }

    #[test]
    fn a_third_thread_comes_when_two_are_at_work_mostly() {
        let threads = &ServingThreads::new(3, true);
        serve_alone(threads, LONELY_MAX);
        thread::scope(|scope| {
            let helpers = [1, 2].map(|thread| scope.spawn(move || threads.before_request(thread)));
            while !threads.is_sole() {
                thread::yield_now();
            }
            (0..WAITED_MAX).for_each(|_| threads.note_end(true));
            while threads.is_sole() {
                thread::yield_now();
            }
            let _first = threads.serve();
            serve_alone(threads, WAITED_MAX);
            helpers.into_iter().for_each(|helper| helper.join().unwrap());
        });
        assert_eq!(threads.awake.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_request_that_takes_long_calls_a_helper() {
        let threads = ServingThreads::new(2, true);
        serve_alone(&threads, LONELY_MAX);
        thread::scope(|scope| {
            let helper = scope.spawn(|| threads.before_request(1));
            while !threads.is_quiet.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            // Requests that are short call nobody, for longer than a helper waits between two looks.
            let begun = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let since = || rustix::time::clock_gettime(rustix::time::ClockId::Monotonic) - begun;
            while Duration::try_from(since()).unwrap() < 3 * WATCH {
                serve_alone(&threads, 1);
                thread::yield_now();
            }
            assert!(threads.is_sole() && !helper.is_finished());
            let _long = threads.serve();
            helper.join().unwrap();
            assert!(!threads.is_sole());
        });
    }

    #[test]
    fn nobody_rests_where_processors_halt() {
        let threads = ServingThreads::new(2, false);
        serve_alone(&threads, 2 * LONELY_MAX);
        threads.before_request(1);
        assert!(!threads.is_sole());
        assert!(ServingThreads::new(1, false).is_only());
    }

    #[test]
    fn the_end_wakes_those_who_rest() {
        let threads = &ServingThreads::new(4, true);
        serve_alone(threads, LONELY_MAX);
        thread::scope(|scope| {
            let helpers = [1, 2, 3].map(|thread| scope.spawn(move || threads.before_request(thread)));
            while !threads.is_sole() {
                thread::yield_now();
            }
            threads.end();
            helpers.into_iter().for_each(|helper| helper.join().unwrap());
        });
        threads.before_request(1);
    }
}
