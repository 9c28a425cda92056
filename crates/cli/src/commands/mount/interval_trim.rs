//! Trim of a mounted pool at an interval, slowly.
//!
//! Invariants
//! 1. It discards zones that are free already, and cleans nothing: it writes no data.
//! 2. No more than `RATE_BYTES` are discarded in a second, on average. A request that needs a zone waits for
//!    one discard at most (`warpfire::Warpfire::discard_free`).
//! 3. No discard runs when it has been dropped.

use std::io;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use warpfire::Warpfire;
use warpfire_env::{Clock, SystemClock};

use crate::commands::scrub::pause_nanos;

/// Most bytes to discard in a second: a terabyte takes an hour.
const RATE_BYTES: NonZeroU64 = NonZeroU64::new(256 << 20).expect("it is not 0");

/// The thread that trims.
pub struct IntervalTrim {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IntervalTrim {
    /// Trims the pool from now on, each time after an interval.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(pool: Warpfire, interval: Duration) -> io::Result<IntervalTrim> {
        let (stop, stopped) = mpsc::channel();
        let run = move || {
            while goes_on(&stopped, interval).is_continue() {
                trim(&pool, &stopped);
            }
        };
        let thread = thread::Builder::new().name("warpfire-trim".to_owned()).spawn(run)?;
        Ok(IntervalTrim { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for IntervalTrim {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed. The mount ends as without it.
            let _ = thread.join();
        }
    }
}

/// Waits for so long, or until the trim is to end.
fn goes_on(stopped: &Receiver<()>, wait: Duration) -> ControlFlow<()> {
    match stopped.recv_timeout(wait) {
        Err(RecvTimeoutError::Timeout) => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    }
}

fn trim(pool: &Warpfire, stopped: &Receiver<()>) {
    let started_nanos = SystemClock.monotonic_nanos();
    let trimmed = pool.discard_free(|so_far| {
        let pause_nanos = pause_nanos(Some(RATE_BYTES), so_far.discarded_bytes, started_nanos);
        goes_on(stopped, Duration::from_nanos(pause_nanos))
    });
    match trimmed {
        Ok(trimmed) if trimmed.discarded_bytes > 0 => {
            tracing::info!(discarded_bytes = trimmed.discarded_bytes, "free space discarded");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "free space not discarded"),
    }
}

#[cfg(test)]
mod tests {
    use warpfire::Pool;

    use super::*;

    #[test]
    fn it_trims_after_each_interval_and_ends_at_once() {
        let pool = Pool::options().size_bytes(64 << 20).in_memory().expect("a pool");
        let trim = IntervalTrim::start(pool.clone(), Duration::from_millis(1)).expect("started");
        let all = pool.stats().space.free_bytes;
        // Everything that is free is discarded soon, and then there is nothing left to discard.
        let is_done = (0..1000).any(|_| {
            thread::park_timeout(Duration::from_millis(10));
            let left = pool.discard_free(|_| ControlFlow::Break(())).expect("the pool takes changes");
            left.discarded_bytes == 0
        });
        assert!(is_done, "{all} bytes are free");
        drop(trim);
        let slow = IntervalTrim::start(pool, Duration::from_secs(3600)).expect("started");
        drop(slow);
    }
}
