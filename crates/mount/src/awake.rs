//! Keeps idle processors from halting while requests flow.
//!
//! Each request wakes the server, and each answer wakes who asked. On a virtual machine whose idle processors halt at once, a wake takes tens of µs.
//! Linux lets a process say how long a wake may take, by [holding a descriptor](https://docs.kernel.org/power/pm_qos_interface.html): where the answer is "no
//! time at all", idle processors poll.
//!
//! ```text
//!            a request                    BUSY requests in a tick
//!   resting ───────────▶ watching ──────────────────────────────▶ holding
//!      ▲                   │                                        │
//!      └───── QUIET ticks in a row without so many requests ◀───────┘
//! ```
//!
//! Invariants
//! 1. At rest the thread sleeps and nothing is held: a mount that nobody uses costs no processor.
//! 2. What is held is a descriptor: it ends with the process at the latest, however that ends.
//! 3. Who brings a request does not wait: it counts, and wakes the thread if that rests.
//! 4. Only while processors are held awake, who has answered looks for the next request for a moment before it sleeps; where none came in time, the next few
//!    answers are not waited after.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warpfire_env::{Clock, SystemClock};

/// How often requests are counted.
const TICK: Duration = Duration::from_millis(2);

/// Requests in a tick that are a flow: one program alone makes 15 to 30 where each finds both processors halted.
const BUSY: u64 = 5;

/// Ticks without a flow until processors may halt again: 10 ms.
const QUIET: u32 = 5;

/// How long the next request is looked for: one program alone sends it some 5 µs after the answer.
const LINGER_NANOS: u64 = 50_000;

/// Answers after which it is not, once it did not come in time. So a program that works between its calls costs 50 µs a dozen calls.
const UNLUCKY: u32 = 12;

/// Most processors of a machine that are kept from halting: all of them poll.
const PROCESSORS_MAX: usize = 8;

/// Who holds this open, and has written a number of µs to it, bounds the time that the wake of a processor takes.
const LATENCY_DEVICE: &str = "/dev/cpu_dma_latency";

/// What decides how an idle processor rests; `haltpoll` is for virtual machines.
const GOVERNOR: &str = "/sys/devices/system/cpu/cpuidle/current_governor";

/// How long that one polls before it halts a processor, in ns.
const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// Is told of requests.
#[derive(Clone, Default)]
pub(crate) struct Requests(Option<Arc<Shared>>);

/// The thread that watches how many requests there are.
pub(crate) struct Awake {
    watching: Option<(Arc<Shared>, JoinHandle<()>)>,
}

thread_local! {
    /// Answers of this thread after which it does not look for the next request.
    static PASSED_OVER: Cell<u32> = const { Cell::new(0) };
}

#[derive(Default)]
struct Shared {
    requests: AtomicU64,
    resting: AtomicBool,
    holds: AtomicBool,
    stop: Mutex<bool>,
    wake: Condvar,
}

impl Requests {
    /// A request has come.
    pub(crate) fn count(&self) {
        let Some(shared) = &self.0 else { return };
        shared.requests.fetch_add(1, Ordering::Relaxed);
        if shared.resting.load(Ordering::Relaxed) && shared.resting.swap(false, Ordering::AcqRel) {
            // Under the lock, so that the thread is either before its look at the flag or in its wait.
            let _stop = shared.stop.lock();
            shared.wake.notify_one();
        }
    }

    /// After an answer: waits a moment for the next request of this connection without sleeping.
    pub(crate) fn linger(&self, connection: BorrowedFd<'_>) {
        let holds = self.0.as_ref().is_some_and(|shared| shared.holds.load(Ordering::Relaxed));
        if !holds {
            return;
        }
        let passed_over = PASSED_OVER.get();
        if passed_over > 0 {
            PASSED_OVER.set(passed_over - 1);
            return;
        }
        let until = SystemClock.monotonic_nanos() + LINGER_NANOS;
        // A connection that has ended is no reason to wait either.
        while poll(&mut [PollFd::from_borrowed_fd(connection, PollFlags::IN)], Some(&Timespec::default()))
            == Ok(0)
        {
            if SystemClock.monotonic_nanos() >= until {
                PASSED_OVER.set(UNLUCKY);
                return;
            }
        }
    }
}

impl Awake {
    /// Starts the thread where it is `wanted`, halting is what makes requests slow, and this process may do something about it; nothing otherwise.
    pub(crate) fn start(wanted: bool) -> std::io::Result<(Awake, Requests)> {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let processors = thread::available_parallelism().map_or(1, usize::from);
        if wanted && halts_at_once(&read(GOVERNOR), &read(HALT_POLL), processors) && hold().is_ok() {
            Awake::watch(hold)
        } else {
            Ok((Awake { watching: None }, Requests::default()))
        }
    }

    /// Starts the thread, which keeps what `hold` gives it while requests flow.
    fn watch<H>(
        hold: impl Fn() -> std::io::Result<H> + Send + 'static,
    ) -> std::io::Result<(Awake, Requests)> {
        let shared = Arc::new(Shared { resting: AtomicBool::new(true), ..Shared::default() });
        let mine = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("warpfire-awake".to_owned()).spawn(move || mine.run(&hold))?;
        Ok((Awake { watching: Some((Arc::clone(&shared), thread)) }, Requests(Some(shared))))
    }

    /// Ends the thread, and lets go.
    pub(crate) fn stop(&mut self) {
        if let Some((shared, thread)) = self.watching.take() {
            *shared.stop.lock() = true;
            shared.wake.notify_one();
            thread.join().expect("the watching thread does not panic");
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether idle processors of this machine halt without polling first, and are few enough to be kept from it.
fn halts_at_once(governor: &str, halt_poll: &str, processors: usize) -> bool {
    governor.trim() == "haltpoll" && halt_poll.trim() == "0" && (2..=PROCESSORS_MAX).contains(&processors)
}

/// Asks for wakes that take no time, until what is returned is dropped.
fn hold() -> std::io::Result<File> {
    let mut device = OpenOptions::new().write(true).open(LATENCY_DEVICE)?;
    device.write_all(&0_i32.to_ne_bytes())?;
    Ok(device)
}

impl Shared {
    fn run<H>(&self, hold: &impl Fn() -> std::io::Result<H>) {
        let mut stop = self.stop.lock();
        let (mut held, mut quiet, mut seen) = (None, 0, 0);
        while !*stop {
            if self.resting.load(Ordering::Acquire) {
                self.wake.wait(&mut stop);
                quiet = 0;
                continue;
            }
            self.wake.wait_while_for(&mut stop, |stop| !*stop, TICK);
            let requests = self.requests.load(Ordering::Relaxed);
            if requests.wrapping_sub(seen) >= BUSY {
                quiet = 0;
                // Where it is refused, requests are as slow as without.
                held = held.or_else(|| hold().ok());
                self.holds.store(held.is_some(), Ordering::Relaxed);
            } else {
                quiet += 1;
            }
            seen = requests;
            if quiet == QUIET {
                held = None;
                self.holds.store(false, Ordering::Relaxed);
                self.resting.store(true, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    const LATE: Duration = Duration::from_secs(10);

    /// Tells when it is made, and when it goes.
    struct Told(Sender<bool>);

    impl Drop for Told {
        fn drop(&mut self) {
            self.0.send(false).unwrap();
        }
    }

    fn watched() -> (Awake, Requests, Receiver<bool>) {
        let (tell, told) = mpsc::channel();
        let hold = move || {
            tell.send(true).unwrap();
            Ok(Told(tell.clone()))
        };
        let (awake, requests) = Awake::watch(hold).unwrap();
        (awake, requests, told)
    }

    /// Makes requests until something is told.
    fn told_in_a_flow(requests: &Requests, told: &Receiver<bool>) -> bool {
        loop {
            for _ in 0..10 * BUSY {
                requests.count();
            }
            if let Ok(holds) = told.recv_timeout(TICK / 4) {
                return holds;
            }
        }
    }

    #[test]
    fn a_flow_of_requests_is_held_for_and_silence_lets_go_each_time() {
        let (_awake, requests, told) = watched();
        for _ in 0..3 {
            assert!(told.recv_timeout(TICK * 10).is_err(), "nobody asks for anything");
            assert!(told_in_a_flow(&requests, &told));
            assert_eq!(told.recv_timeout(LATE), Ok(false), "let go by itself");
        }
    }

    #[test]
    fn the_next_request_is_looked_for_only_while_processors_are_held_and_it_comes() {
        let shared = Arc::new(Shared::default());
        let requests = Requests(Some(Arc::clone(&shared)));
        let (sender, receiver) = std::os::unix::net::UnixStream::pair().unwrap();
        requests.linger(receiver.as_fd());
        assert_eq!(PASSED_OVER.get(), 0, "at rest there is nothing to wait for");
        shared.holds.store(true, Ordering::Relaxed);
        requests.linger(receiver.as_fd());
        assert_eq!(PASSED_OVER.get(), UNLUCKY, "nothing came");
        (&sender).write_all(b"a request").unwrap();
        (0..UNLUCKY).for_each(|_| requests.linger(receiver.as_fd()));
        assert_eq!(PASSED_OVER.get(), 0);
        requests.linger(receiver.as_fd());
        assert_eq!(PASSED_OVER.get(), 0, "something is there");
    }

    #[test]
    fn a_request_now_and_then_is_no_flow() {
        let (_awake, requests, told) = watched();
        for _ in 0..BUSY {
            requests.count();
            assert!(told.recv_timeout(TICK * (QUIET + 2)).is_err());
        }
    }

    #[test]
    fn the_end_lets_go_of_what_is_held() {
        let (mut awake, requests, told) = watched();
        assert!(told_in_a_flow(&requests, &told));
        awake.stop();
        assert_eq!(told.recv_timeout(LATE), Ok(false));
        requests.count();
    }

    #[test]
    fn only_small_machines_whose_processors_halt_at_once_are_kept_awake() {
        assert!(halts_at_once("haltpoll\n", "0\n", 2));
        assert!(!halts_at_once("haltpoll\n", "200000\n", 2), "they poll by themselves");
        assert!(!halts_at_once("menu\n", "", 2));
        assert!(!halts_at_once("", "", 2), "nothing is known of the machine");
        assert!(!halts_at_once("haltpoll\n", "0\n", 1), "all is done on one processor");
        assert!(!halts_at_once("haltpoll\n", "0\n", PROCESSORS_MAX + 1));
    }
}
