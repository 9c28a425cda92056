//! Requests that a batch stopped waiting for.
//!
//! A device *owes an answer* while the kernel has a request to it that no batch waits for any more. The
//! request is *abandoned*.
//!
//! # Invariants
//! 1. The memory of an abandoned request outlives it. A read goes to the scratch memory of its ring, which
//!    stays here with the ring. The memory of a write is lent (`buf::lend`): its owner cannot free it before
//!    the answer.
//! 2. The device of an abandoned request, and so its descriptor, outlives the request.
//! 3. Each answer is taken once, by whoever asks next: `unanswered`, or a batch that needs a ring.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use io_uring::IoUring;
use parking_lot::Mutex;

use crate::buf::{AlignedBuf, end_loan, lend};
use crate::device::Device;

/// A request without an answer.
pub(super) struct AbandonedRequest {
    /// The number under which the kernel will answer.
    pub user_data: u64,
    /// The device that owes the answer.
    pub device: Arc<dyn Device>,
    /// The addresses from which the kernel still writes to the device; `None` for a read or a flush.
    pub written_from: Option<Range<usize>>,
}

struct AbandonedRing {
    ring: IoUring,
    /// Held until the last answer: the kernel reads into it.
    _scratch: Option<AlignedBuf>,
    requests: Vec<AbandonedRequest>,
}

static ABANDONED: Mutex<Vec<AbandonedRing>> = Mutex::new(Vec::new());
/// Number of rings in `ABANDONED`, for callers that need not lock while there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Takes over a ring whose only requests in flight are `requests`, and the memory that they read into.
pub(super) fn abandon(ring: IoUring, scratch: Option<AlignedBuf>, requests: Vec<AbandonedRequest>) {
    assert!(!requests.is_empty(), "a ring is abandoned because an answer is due");
    requests.iter().filter_map(|r| r.written_from.clone()).for_each(lend);
    let mut abandoned = ABANDONED.lock();
    abandoned.push(AbandonedRing { ring, _scratch: scratch, requests });
    COUNT.store(abandoned.len(), Ordering::Release);
}

/// Takes the answers that have come. Rings without a request in flight are closed.
pub(super) fn take_answers() {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let mut answered = Vec::new();
    let mut closed = Vec::new();
    let mut abandoned = ABANDONED.lock();
    for AbandonedRing { ring, requests, .. } in abandoned.iter_mut() {
        for done in ring.completion() {
            let nth = requests.iter().position(|r| r.user_data == done.user_data());
            answered.push(requests.swap_remove(nth.expect("a request is answered once")));
        }
    }
    closed.extend(abandoned.extract_if(.., |ring| ring.requests.is_empty()));
    COUNT.store(abandoned.len(), Ordering::Release);
    drop(abandoned);
    // Without the lock: the last reference to a device, or memory that was waiting, may be dropped here.
    answered.iter().filter_map(|r| r.written_from.clone()).for_each(end_loan);
}

/// Number of operations on a device that batches stopped waiting for and that have not ended.
#[must_use]
pub fn unanswered(device: &Arc<dyn Device>) -> usize {
    take_answers();
    let own = device.unanswered();
    if COUNT.load(Ordering::Acquire) == 0 {
        return own;
    }
    let abandoned = ABANDONED.lock();
    let requests = abandoned.iter().flat_map(|ring| &ring.requests);
    own + requests.filter(|r| Arc::ptr_eq(&r.device, device)).count()
}
