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
const BUSY_REQUESTS_MIN: u64 = 5;

/// Ticks without a flow until processors may halt again: 10 ms.
const QUIET_TICKS: u32 = 5;

/// How long the next request is looked for: one program alone sends it some 5 µs after the answer.
const POLL_NANOS: u64 = 50_000;

/// Answers after which it is not, once it did not come in time. So a program that works between its calls costs 50 µs a dozen calls.
const SKIPS_AFTER_MISS: u32 = 12;

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
pub(crate) struct RequestCounter(Option<Arc<LatencyState>>);

/// The thread that watches how many requests there are.
pub(crate) struct CpuLatency {
    running: Option<(Arc<LatencyState>, JoinHandle<()>)>,
}

thread_local! {
    /// Answers of this thread after which it does not look for the next request.
    static POLL_SKIPS: Cell<u32> = const { Cell::new(0) };
}

#[derive(Default)]
struct LatencyState {
    requests: AtomicU64,
    resting: AtomicBool,
    holds: AtomicBool,
    stop: Mutex<bool>,
    wake: Condvar,
}

impl RequestCounter {
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
    pub(crate) fn poll_next_request(&self, connection: BorrowedFd<'_>) {
        let holds = self.0.as_ref().is_some_and(|shared| shared.holds.load(Ordering::Relaxed));
        if !holds {
            return;
        }
        let poll_skips = POLL_SKIPS.get();
        if poll_skips > 0 {
            POLL_SKIPS.set(poll_skips - 1);
            return;
        }
        let until = SystemClock.monotonic_nanos() + POLL_NANOS;
        // A connection that has ended is no reason to wait either.
        while poll(&mut [PollFd::from_borrowed_fd(connection, PollFlags::IN)], Some(&Timespec::default()))
            == Ok(0)
        {
            if SystemClock.monotonic_nanos() >= until {
                POLL_SKIPS.set(SKIPS_AFTER_MISS);
                return;
            }
        }
    }
}

impl CpuLatency {
    /// Starts the thread where it is `wanted`, halting is what makes requests slow, and this process may do something about it; nothing otherwise.
    pub(crate) fn start(wanted: bool) -> std::io::Result<(CpuLatency, RequestCounter)> {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let processors = thread::available_parallelism().map_or(1, usize::from);
        if wanted && halts_at_once(&read(GOVERNOR), &read(HALT_POLL), processors) && open_hold().is_ok() {
            CpuLatency::start_with(open_hold)
        } else {
            Ok((CpuLatency { running: None }, RequestCounter::default()))
        }
    }

    /// Starts the thread, which keeps what `open_hold` gives it while requests flow.
    fn start_with<H>(
        open_hold: impl Fn() -> std::io::Result<H> + Send + 'static,
    ) -> std::io::Result<(CpuLatency, RequestCounter)> {
        let shared = Arc::new(LatencyState { resting: AtomicBool::new(true), ..LatencyState::default() });
        let state = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("warpfire-latency".to_owned())
            .spawn(move || state.run(&open_hold))?;
        Ok((CpuLatency { running: Some((Arc::clone(&shared), thread)) }, RequestCounter(Some(shared))))
    }

    /// Ends the thread, and lets go.
    pub(crate) fn stop(&mut self) {
        if let Some((shared, thread)) = self.running.take() {
            *shared.stop.lock() = true;
            shared.wake.notify_one();
            thread.join().expect("the watching thread does not panic");
        }
    }
}

impl Drop for CpuLatency {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether idle processors of this machine halt without polling first, and are few enough to be kept from it.
fn halts_at_once(governor: &str, halt_poll: &str, processors: usize) -> bool {
    governor.trim() == "haltpoll" && halt_poll.trim() == "0" && (2..=PROCESSORS_MAX).contains(&processors)
}

/// Asks for wakes that take no time, until what is returned is dropped.
fn open_hold() -> std::io::Result<File> {
    let mut device = OpenOptions::new().write(true).open(LATENCY_DEVICE)?;
    device.write_all(&0_i32.to_ne_bytes())?;
    Ok(device)
}

impl LatencyState {
    fn run<H>(&self, open_hold: &impl Fn() -> std::io::Result<H>) {
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
            if requests.wrapping_sub(seen) >= BUSY_REQUESTS_MIN {
                quiet = 0;
                // Where it is refused, requests are as slow as without.
                held = held.or_else(|| open_hold().ok());
                self.holds.store(held.is_some(), Ordering::Relaxed);
            } else {
                quiet += 1;
            }
            seen = requests;
            if quiet == QUIET_TICKS {
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
    struct HoldProbe(Sender<bool>);

    impl Drop for HoldProbe {
        fn drop(&mut self) {
            self.0.send(false).unwrap();
        }
    }

    fn start_observed() -> (CpuLatency, RequestCounter, Receiver<bool>) {
        let (hold_sender, hold_changes) = mpsc::channel();
        let open_hold = move || {
            hold_sender.send(true).unwrap();
            Ok(HoldProbe(hold_sender.clone()))
        };
        let (cpu_latency, requests) = CpuLatency::start_with(open_hold).unwrap();
        (cpu_latency, requests, hold_changes)
    }

    /// Makes requests until something is told.
    fn hold_change_under_load(requests: &RequestCounter, hold_changes: &Receiver<bool>) -> bool {
        loop {
            for _ in 0..10 * BUSY_REQUESTS_MIN {
                requests.count();
            }
            if let Ok(holds) = hold_changes.recv_timeout(TICK / 4) {
                return holds;
            }
        }
    }

    #[test]
    fn a_flow_of_requests_opens_the_hold_and_silence_closes_it_each_time() {
        let (_awake, requests, hold_changes) = start_observed();
        for _ in 0..3 {
            assert!(hold_changes.recv_timeout(TICK * 10).is_err(), "nobody asks for anything");
            assert!(hold_change_under_load(&requests, &hold_changes));
            assert_eq!(hold_changes.recv_timeout(LATE), Ok(false), "let go by itself");
        }
    }

    #[test]
    fn the_next_request_is_polled_for_only_while_processors_are_held_and_it_comes() {
        let shared = Arc::new(LatencyState::default());
        let requests = RequestCounter(Some(Arc::clone(&shared)));
        let (sender, receiver) = std::os::unix::net::UnixStream::pair().unwrap();
        requests.poll_next_request(receiver.as_fd());
        assert_eq!(POLL_SKIPS.get(), 0, "at rest there is nothing to wait for");
        shared.holds.store(true, Ordering::Relaxed);
        requests.poll_next_request(receiver.as_fd());
        assert_eq!(POLL_SKIPS.get(), SKIPS_AFTER_MISS, "nothing came");
        (&sender).write_all(b"a request").unwrap();
        (0..SKIPS_AFTER_MISS).for_each(|_| requests.poll_next_request(receiver.as_fd()));
        assert_eq!(POLL_SKIPS.get(), 0);
        requests.poll_next_request(receiver.as_fd());
        assert_eq!(POLL_SKIPS.get(), 0, "something is there");
    }

    #[test]
    fn a_request_now_and_then_is_no_flow() {
        let (_awake, requests, hold_changes) = start_observed();
        for _ in 0..BUSY_REQUESTS_MIN {
            requests.count();
            assert!(hold_changes.recv_timeout(TICK * (QUIET_TICKS + 2)).is_err());
        }
    }

    #[test]
    fn stopping_closes_the_hold() {
        let (mut cpu_latency, requests, hold_changes) = start_observed();
        assert!(hold_change_under_load(&requests, &hold_changes));
        cpu_latency.stop();
        assert_eq!(hold_changes.recv_timeout(LATE), Ok(false));
        requests.count();
    }

    #[test]
    fn only_small_machines_whose_processors_halt_at_once_are_held() {
        assert!(halts_at_once("haltpoll\n", "0\n", 2));
        assert!(!halts_at_once("haltpoll\n", "200000\n", 2), "they poll by themselves");
        assert!(!halts_at_once("menu\n", "", 2));
        assert!(!halts_at_once("", "", 2), "nothing is known of the machine");
        assert!(!halts_at_once("haltpoll\n", "0\n", 1), "all is done on one processor");
        assert!(!halts_at_once("haltpoll\n", "0\n", PROCESSORS_MAX + 1));
    }
}
