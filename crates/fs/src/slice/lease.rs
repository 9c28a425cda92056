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
use warpfire_meta::Holder;
use warpfire_units::SlicePtr;

/// Leases kept before the ones of values that are gone are looked for.
const SWEEP_MIN: usize = 1024;

/// Slices that a value keeps.
pub(super) struct Hold {
    /// Values outlive their pool; they do not keep it open.
    holder: Weak<dyn Holder>,
    state: Mutex<State>,
}

struct State {
    /// `None` once it has ended.
    slices: Option<Box<[SlicePtr]>>,
    deadline: Option<Timestamp>,
}

impl Hold {
    /// Keeps slices; the caller has had a pin since metadata named them.
    pub(super) fn take(holder: &Arc<dyn Holder>, slices: Vec<SlicePtr>) -> Arc<Self> {
        holder.hold(&slices);
        let state = State { slices: Some(slices.into_boxed_slice()), deadline: None };
        Arc::new(Hold { holder: Arc::downgrade(holder), state: Mutex::new(state) })
    }

    /// Whether the slices are kept. Who has a pin may use them as long as it lives.
    pub(super) fn is_kept(&self, now: Timestamp) -> bool {
        let state = self.state.lock();
        state.slices.is_some() && state.deadline.is_none_or(|deadline| now < deadline)
    }

    fn lease(&self, until: Timestamp) {
        self.state.lock().deadline = Some(until);
    }

    fn end(state: &mut State, holder: &Weak<dyn Holder>) {
        if let (Some(slices), Some(holder)) = (state.slices.take(), holder.upgrade()) {
            holder.let_go(&slices);
        }
    }

    fn end_if_due(&self, now: Timestamp) {
        let mut state = self.state.lock();
        if state.deadline.is_some_and(|deadline| deadline <= now) {
            Self::end(&mut state, &self.holder);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        Self::end(self.state.get_mut(), &self.holder);
    }
}

/// Holds that end at a time, by that time.
pub(crate) struct Leases {
    by_deadline: Mutex<Book>,
    /// Length of the book, so that asking costs nothing where there are no leases.
    count: AtomicUsize,
}

struct Book {
    holds: BTreeMap<(Timestamp, u64), Weak<Hold>>,
    next: u64,
    sweep_at: usize,
}

impl Leases {
    pub(crate) fn new() -> Self {
        let book = Book { holds: BTreeMap::new(), next: 0, sweep_at: SWEEP_MIN };
        Leases { by_deadline: Mutex::new(book), count: AtomicUsize::new(0) }
    }

    pub(super) fn add(&self, hold: &Arc<Hold>, until: Timestamp) {
        let mut book = self.by_deadline.lock();
        hold.lease(until);
        let number = book.next;
        book.next += 1;
        book.holds.insert((until, number), Arc::downgrade(hold));
        if book.holds.len() >= book.sweep_at {
            book.holds.retain(|_, hold| hold.strong_count() > 0);
            book.sweep_at = SWEEP_MIN.max(2 * book.holds.len());
        }
        self.count.store(book.holds.len(), Ordering::Release);
    }

    /// Ends what is due.
    pub(crate) fn expire(&self, now: Timestamp) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut due = Vec::new();
        let mut book = self.by_deadline.lock();
        while let Some(first) = book.holds.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        self.count.store(book.holds.len(), Ordering::Release);
        drop(book);
        for hold in due.iter().filter_map(Weak::upgrade) {
            hold.end_if_due(now);
        }
    }
}
