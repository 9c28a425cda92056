//! How long values keep their bytes.
//!
//! # Invariants
//! 1. While a hold has not ended, the store keeps its slices whatever becomes of the files that named them.
//! 2. A hold ends once: when the last value that has it goes, or when its lease has run out. Then it keeps nothing.
//! 3. Each hold with a lease is in `Leases` under a deadline that is not later than its own, so that it is met in time.
//!
//! ```text
//!            lease             lease (another deadline)
//!   kept ────────────► leased ◄───┐
//!     │                  │  └─────┘
//!     └── dropped ───────┴── dropped, `Leases::expire` ──► ended
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use warpfire_env::Timestamp;
use warpfire_meta::SliceHolder;
use warpfire_units::SlicePtr;

/// Leases kept before the ones of values that are gone are looked for.
const SWEEP_MIN: usize = 1024;

/// Slices that a value keeps.
pub(super) struct SliceHold {
    /// Values outlive their pool; they do not keep it open.
    holder: Weak<dyn SliceHolder>,
    state: Mutex<HoldState>,
}

struct HoldState {
    /// `None` once it has ended.
    slices: Option<Box<[SlicePtr]>>,
    deadline: Option<Timestamp>,
}

impl SliceHold {
    /// Keeps slices; the caller has had a pin since metadata named them.
    pub(super) fn take(holder: &Arc<dyn SliceHolder>, slices: Vec<SlicePtr>) -> Arc<Self> {
        holder.hold(&slices);
        let state = HoldState { slices: Some(slices.into_boxed_slice()), deadline: None };
        Arc::new(SliceHold { holder: Arc::downgrade(holder), state: Mutex::new(state) })
    }

    /// Whether the slices are kept. Who has a pin may use them as long as it lives.
    pub(super) fn is_live(&self, now: Timestamp) -> bool {
        let state = self.state.lock();
        state.slices.is_some() && state.deadline.is_none_or(|deadline| now < deadline)
    }

    fn lease(&self, until: Timestamp) {
        self.state.lock().deadline = Some(until);
    }

    fn end(state: &mut HoldState, holder: &Weak<dyn SliceHolder>) {
        if let (Some(slices), Some(holder)) = (state.slices.take(), holder.upgrade()) {
            holder.release_hold(&slices);
        }
    }

    fn end_if_due(&self, now: Timestamp) {
        let mut state = self.state.lock();
        if state.deadline.is_some_and(|deadline| deadline <= now) {
            Self::end(&mut state, &self.holder);
        }
    }
}

impl Drop for SliceHold {
    fn drop(&mut self) {
        Self::end(self.state.get_mut(), &self.holder);
    }
}

/// Holds that end at a time, by that time.
pub(crate) struct Leases {
    by_deadline: Mutex<LeaseQueue>,
    /// Length of the book, so that asking costs nothing where there are no leases.
    count: AtomicUsize,
}

struct LeaseQueue {
    holds: BTreeMap<(Timestamp, u64), Weak<SliceHold>>,
    next: u64,
    sweep_at: usize,
}

impl Leases {
    pub(crate) fn new() -> Self {
        let queue = LeaseQueue { holds: BTreeMap::new(), next: 0, sweep_at: SWEEP_MIN };
        Leases { by_deadline: Mutex::new(queue), count: AtomicUsize::new(0) }
    }

    pub(super) fn add(&self, hold: &Arc<SliceHold>, until: Timestamp) {
        let mut queue = self.by_deadline.lock();
        hold.lease(until);
        let number = queue.next;
        queue.next += 1;
        queue.holds.insert((until, number), Arc::downgrade(hold));
        if queue.holds.len() >= queue.sweep_at {
            queue.holds.retain(|_, hold| hold.strong_count() > 0);
            queue.sweep_at = SWEEP_MIN.max(2 * queue.holds.len());
        }
        self.count.store(queue.holds.len(), Ordering::Release);
    }

    /// Ends what is due.
    pub(crate) fn expire(&self, now: Timestamp) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut due = Vec::new();
        let mut queue = self.by_deadline.lock();
        while let Some(first) = queue.holds.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        self.count.store(queue.holds.len(), Ordering::Release);
        drop(queue);
        for hold in due.iter().filter_map(Weak::upgrade) {
            hold.end_if_due(now);
        }
    }
}
