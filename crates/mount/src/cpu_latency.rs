//! Keeps idle processors from halting while requests arrive.
//!
//! Each request wakes the server, and each answer wakes the caller. On a virtual machine with processors that
//! halt as soon as they are idle, a wake-up takes tens of µs. A process can bound the wake-up latency of all
//! processors: it writes a number of µs to `/dev/cpu_dma_latency` and keeps the descriptor open ([PM
//! QoS](https://docs.kernel.org/power/pm_qos_interface.html)). The *hold* is such a descriptor with the
//! number 0: while it is open, idle processors poll. A *tick* is the interval in which a thread of its own
//! counts requests.
//!
//! ```text
//!            count()                      BUSY_REQUESTS_MIN in a tick
//!   resting ───────────▶ watching ──────────────────────────────▶ holding
//!      ▲                   │                                        │
//!      └────── QUIET_TICKS in a row, each with fewer requests ◀─────┘
//! ```
//! The thread makes all transitions but the first, in `LatencyState::run`.
//!
//! Invariants
//! 1. At rest the thread sleeps and there is no hold: a mount that is not used costs no processor time
//!    (`tests::a_flow_of_requests_opens_the_hold_and_silence_closes_it_each_time`).
//! 2. The hold is a descriptor, so it ends at the latest with the process, however the process ends.
//! 3. A serving thread does not wait here: it counts the request, and wakes the thread if the thread rests.
//! 4. Only while there is a hold, a serving thread polls up to 50 µs for its next request. After a miss it
//!    skips polling for 12 answers
//!    (`tests::the_next_request_is_polled_for_only_while_processors_are_held_and_it_comes`).
//! 5. A serving thread stops polling as soon as another thread takes a request of the mount or of a view:
//!    several programs are at work, and they need the processor more. It skips polling for 120 answers then
//!    (`tests::polling_ends_when_another_thread_serves`).

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

/// Requests in a tick from which a hold is worth its power. A single program makes 15 to 30 in a tick, even
/// if each request finds both processors halted.
const BUSY_REQUESTS_MIN: u64 = 5;

/// Quiet ticks until processors may halt again: 10 ms.
const QUIET_TICKS: u32 = 5;

/// How long a serving thread polls for its next request. A single program sends it about 5 µs after the
/// answer.
const POLL_NANOS: u64 = 50_000;

/// Answers without polling after a miss. A program that works between its calls thus costs 50 µs for a dozen
/// calls.
const SKIPS_AFTER_MISS: u32 = 12;

/// Answers without polling after another thread has served while this one polled: several programs are at
/// work, and will be for a while.
const SKIPS_WHILE_OTHERS_SERVE: u32 = 120;

/// Largest machine that a hold is used on: all its processors poll.
const PROCESSORS_MAX: usize = 8;

/// An open descriptor of this device bounds the wake-up latency of all processors to the µs written to it.
const LATENCY_DEVICE: &str = "/dev/cpu_dma_latency";

/// The kernel's policy for idle processors. `haltpoll` is the one for virtual machines.
const GOVERNOR: &str = "/sys/devices/system/cpu/cpuidle/current_governor";

/// How long `haltpoll` polls before it halts a processor, in ns.
const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// Counts the requests of a mount and its views.
#[derive(Clone, Default)]
pub(crate) struct RequestCounter(Option<Arc<LatencyState>>);

/// The thread that opens and closes the hold.
pub(crate) struct CpuLatency {
    running: Option<(Arc<LatencyState>, JoinHandle<()>)>,
}

thread_local! {
    /// Answers of this thread that it will not poll after.
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
    /// Whether threads that serve may rest while one of them suffices: not on a machine that halts idle
    /// processors at once and that this process cannot keep from it. There the next thread in turn is often
    /// on the processor of the program.
    pub(crate) fn helpers_may_rest(&self) -> bool {
        self.0.is_some() || !this_machine_halts_at_once()
    }

    /// Counts one request.
    pub(crate) fn count(&self) {
        let Some(shared) = &self.0 else { return };
        shared.requests.fetch_add(1, Ordering::Relaxed);
        if shared.resting.load(Ordering::Relaxed) && shared.resting.swap(false, Ordering::AcqRel) {
            // Under the lock, so that the thread has either not read the flag yet or waits already.
            let _stop = shared.stop.lock();
            shared.wake.notify_one();
        }
    }

    /// After an answer: polls for the next request of this connection, if there is a hold.
    pub(crate) fn poll_next_request(&self, connection: BorrowedFd<'_>) {
        let Some(shared) = self.0.as_ref().filter(|shared| shared.holds.load(Ordering::Relaxed)) else {
            return;
        };
        let poll_skips = POLL_SKIPS.get();
        if poll_skips > 0 {
            POLL_SKIPS.set(poll_skips - 1);
            return;
        }
        let until = SystemClock.monotonic_nanos() + POLL_NANOS;
        let counted = shared.requests.load(Ordering::Relaxed);
        // A connection that has ended is readable too, and ends the loop.
        while poll(&mut [PollFd::from_borrowed_fd(connection, PollFlags::IN)], Some(&Timespec::default()))
            == Ok(0)
        {
            if shared.requests.load(Ordering::Relaxed) != counted {
                return POLL_SKIPS.set(SKIPS_WHILE_OTHERS_SERVE);
            }
            if SystemClock.monotonic_nanos() >= until {
                return POLL_SKIPS.set(SKIPS_AFTER_MISS);
            }
        }
    }
}

impl CpuLatency {
    /// Starts the thread if it is `wanted`, this machine halts its processors at once, and this process may
    /// open the latency device. Otherwise the counter does nothing.
    pub(crate) fn start(wanted: bool) -> std::io::Result<(CpuLatency, RequestCounter)> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let may_hold = wanted && all_may_poll(processors) && this_machine_halts_at_once();
        if may_hold && open_hold().is_ok() {
            CpuLatency::start_with(open_hold)
        } else {
            Ok((CpuLatency { running: None }, RequestCounter::default()))
        }
    }

    /// Starts the thread. `open_hold` makes a hold.
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

    /// Ends the thread and its hold.
    pub(crate) fn stop(&mut self) {
        if let Some((shared, thread)) = self.running.take() {
            *shared.stop.lock() = true;
            shared.wake.notify_one();
            thread.join().expect("the latency thread does not panic");
        }
    }
}

impl Drop for CpuLatency {
    fn drop(&mut self) {
        self.stop();
    }
}

fn this_machine_halts_at_once() -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    halts_at_once(&read(GOVERNOR), &read(HALT_POLL))
}

/// Whether idle processors halt without polling first.
fn halts_at_once(governor: &str, halt_poll: &str) -> bool {
    governor.trim() == "haltpoll" && halt_poll.trim() == "0"
}

/// Whether a machine has several processors, and so few that all may poll.
fn all_may_poll(processors: usize) -> bool {
    (2..=PROCESSORS_MAX).contains(&processors)
}

/// Bounds the wake-up latency to 0 µs until the returned file is dropped.
fn open_hold() -> std::io::Result<File> {
    let mut device = OpenOptions::new().write(true).open(LATENCY_DEVICE)?;
    device.write_all(&0_i32.to_ne_bytes())?;
    Ok(device)
}

impl LatencyState {
    fn run<H>(&self, open_hold: &impl Fn() -> std::io::Result<H>) {
        let mut stop = self.stop.lock();
        let mut hold = None;
        let mut quiet = 0;
        let mut seen = 0;
        while !*stop {
            if self.resting.load(Ordering::Acquire) {
                assert!(hold.is_none(), "a thread at rest holds nothing");
                // The next `count` clears the flag under the lock that this wait releases.
                self.wake.wait(&mut stop);
                quiet = 0;
                continue;
            }
            self.wake.wait_while_for(&mut stop, |stop| !*stop, TICK);
            let requests = self.requests.load(Ordering::Relaxed);
            if requests.wrapping_sub(seen) >= BUSY_REQUESTS_MIN {
                quiet = 0;
                // If the device cannot be opened any more, requests are as slow as without a hold.
                hold = hold.or_else(|| open_hold().ok());
                self.holds.store(hold.is_some(), Ordering::Relaxed);
            } else {
                quiet += 1;
            }
            seen = requests;
            if quiet == QUIET_TICKS {
                // The hold ends before the flag says rest (invariant 1).
                hold = None;
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

    /// A hold that reports `true` when it is made and `false` when it is dropped.
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

    /// Makes requests until a hold is made or dropped.
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
        let (_latency, requests, hold_changes) = start_observed();
        for _ in 0..3 {
            assert!(hold_changes.recv_timeout(TICK * 10).is_err(), "there are no requests");
            assert!(hold_change_under_load(&requests, &hold_changes));
            assert_eq!(hold_changes.recv_timeout(LATE), Ok(false), "silence ends the hold");
        }
    }

    #[test]
    fn the_next_request_is_polled_for_only_while_processors_are_held_and_it_comes() {
        let shared = Arc::new(LatencyState::default());
        let requests = RequestCounter(Some(Arc::clone(&shared)));
        let (sender, receiver) = std::os::unix::net::UnixStream::pair().unwrap();
        requests.poll_next_request(receiver.as_fd());
        assert_eq!(POLL_SKIPS.get(), 0, "without a hold nothing is polled");
        shared.holds.store(true, Ordering::Relaxed);
        requests.poll_next_request(receiver.as_fd());
        assert_eq!(POLL_SKIPS.get(), SKIPS_AFTER_MISS, "no request came in time");
        (&sender).write_all(b"a request").unwrap();
        (0..SKIPS_AFTER_MISS).for_each(|_| requests.poll_next_request(receiver.as_fd()));
        assert_eq!(POLL_SKIPS.get(), 0);
        requests.poll_next_request(receiver.as_fd());
        assert_eq!(POLL_SKIPS.get(), 0, "a request is there");
    }

    #[test]
    fn polling_ends_when_another_thread_serves() {
        let shared = Arc::new(LatencyState { holds: AtomicBool::new(true), ..LatencyState::default() });
        let requests = RequestCounter(Some(Arc::clone(&shared)));
        let (_sender, receiver) = std::os::unix::net::UnixStream::pair().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    requests.count();
                }
            });
            let skips_of_a_poll = |_| {
                POLL_SKIPS.set(0);
                requests.poll_next_request(receiver.as_fd());
                POLL_SKIPS.get()
            };
            // Many: the other thread may not have a processor at the moment.
            let ended = (0..1000).map(skips_of_a_poll).any(|skips| skips == SKIPS_WHILE_OTHERS_SERVE);
            stop.store(true, Ordering::Relaxed);
            assert!(ended, "no poll has ended before its time");
        });
    }

    #[test]
    fn a_request_now_and_then_opens_no_hold() {
        let (_latency, requests, hold_changes) = start_observed();
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
    fn a_hold_is_for_small_machines_with_processors_that_halt_at_once() {
        assert!(halts_at_once("haltpoll\n", "0\n"));
        assert!(!halts_at_once("haltpoll\n", "200000\n"), "haltpoll polls by itself");
        assert!(!halts_at_once("menu\n", ""));
        assert!(!halts_at_once("", ""), "the machine has no such files");
        assert!(!all_may_poll(1), "no other processor has to wake up");
        assert!(all_may_poll(2) && !all_may_poll(PROCESSORS_MAX + 1));
    }
}
