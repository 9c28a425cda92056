//! Calls of the kernel that have no time limit, with one.
//!
//! # Invariants
//! 1. A call is counted as late from the moment at which its caller stops waiting until it ends
//!    (test `a_late_call_is_counted_until_it_ends`). The channel holds no message, so a result is either
//!    taken by the caller or refused to the thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// The calls on one device that nobody waits for any more.
#[derive(Clone, Debug, Default)]
pub(super) struct LateCalls(Arc<AtomicUsize>);

impl LateCalls {
    /// The number of late calls that have not ended.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Makes a call on a thread of its own and waits at most `limit` for it; `None` if it takes longer.
    /// Without a thread it waits for the end.
    pub fn bounded<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl FnOnce() -> T + Clone + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = sync_channel(0);
        let late = Arc::clone(&self.0);
        let threaded = call.clone();
        let work = move || {
            if sender.send(threaded()).is_err() {
                late.fetch_sub(1, Ordering::AcqRel);
            }
        };
        if std::thread::Builder::new().name("warpfire-reset".to_owned()).spawn(work).is_err() {
            return Some(call());
        }
        match receiver.recv_timeout(limit) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => {
                // Before the receiver is dropped: from then on the thread may subtract.
                self.0.fetch_add(1, Ordering::AcqRel);
                drop(receiver);
                None
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the call does not panic"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_call_in_time_gives_its_result() {
        let late = LateCalls::default();
        assert_eq!(late.bounded(Duration::from_mins(1), || 7), Some(7));
        assert_eq!(late.count(), 0);
    }

    #[test]
    fn a_late_call_is_counted_until_it_ends() {
        let late = LateCalls::default();
        let (release, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let waits = move || _ = held.lock().expect("one call").recv();
        assert_eq!(late.bounded(Duration::from_millis(1), waits), None);
        assert_eq!(late.count(), 1);
        drop(release);
        for _ in 0..10_000 {
            if late.count() == 0 {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        panic!("the call has ended and still counts as late");
    }
}
