//! Holds of slices that end with their owner, and the leases that bound them in time.
//!
//! # Terms
//! A *lease* is a deadline for a hold. `Leases` is the book of all leases, ordered by deadline.
//!
//! # Invariants
//! 1. Until a hold ends, the store keeps its slices, even if metadata drops their names.
//! 2. A hold ends once: when its last owner drops it, or when its lease expires
//!    (`tests::a_hold_ends_once_by_drop_or_by_deadline`).
//! 3. A hold does not end while a caller uses its slices. A lease that expires in between ends it when the
//!    last use ends (`tests::a_lease_that_expires_during_a_use_ends_the_hold_after_it`).
//! 4. A leased hold is in the book under its deadline or an earlier one, so `expire` ends it in time (assert
//!    in `add`; `tests::a_later_lease_replaces_an_earlier_one`).
//! 5. `count` is the length of the book whenever the book is unlocked (assert in `expire`).
//!
//! ```text
//!         `add`             `add` (another deadline)
//!   held ───────► leased ◄───┐
//!     │             │  └─────┘
//!     │ drop        │ drop, `expire`
//!     └─────────────┴──────────────────► ended
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use warpfire_env::sync::atomic::{AtomicUsize, Ordering};

use warpfire_env::Timestamp;
use warpfire_env::sync::Mutex;
use warpfire_units::SlicePtr;

use crate::error::SliceError;
use crate::store::SliceHolder;

/// Length of the book at which `add` first looks for leases of dropped holds.
const SWEEP_MIN: usize = 1024;

/// A hold of slices. It ends when it is dropped or when its lease expires.
pub struct SliceHold {
    /// Weak: a hold may outlive its store, and does not keep it open.
    holder: Weak<dyn SliceHolder>,
    state: Mutex<State>,
}

struct State {
    /// `None` after the hold has ended.
    slices: Option<Box<[SlicePtr]>>,
    deadline: Option<Timestamp>,
    /// Callers that use the slices now.
    uses: usize,
    /// The lease expired while a caller used the slices: the last of them ends the hold.
    is_due: bool,
}

/// A use of held slices. The hold does not end before it is dropped.
#[derive(Debug)]
#[must_use = "the hold may end when the use is dropped"]
pub struct HoldUse(Arc<SliceHold>);

impl SliceHold {
    /// Holds slices. The caller has a pin that began while metadata named them.
    ///
    /// # Errors
    /// As `SliceHolder::hold`.
    pub fn take(holder: &Arc<dyn SliceHolder>, slices: Vec<SlicePtr>) -> Result<Arc<Self>, SliceError> {
        holder.hold(&slices)?;
        let state = State { slices: Some(slices.into_boxed_slice()), deadline: None, uses: 0, is_due: false };
        Ok(Arc::new(SliceHold { holder: Arc::downgrade(holder), state: Mutex::new(state) }))
    }

    /// Whether the slices are still held at `now`. The hold may end at any moment afterwards.
    #[must_use]
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.state.lock().is_live(now)
    }

    /// Begins a use of the slices, if they are still held at `now`. A lease that expires during the use ends
    /// the hold only after it.
    #[must_use]
    pub fn begin_use(self: &Arc<Self>, now: Timestamp) -> Option<HoldUse> {
        let mut state = self.state.lock();
        if !state.is_live(now) {
            return None;
        }
        state.uses += 1;
        Some(HoldUse(Arc::clone(self)))
    }

    fn set_deadline(&self, until: Timestamp) {
        self.state.lock().deadline = Some(until);
    }

    fn end(state: &mut State, holder: &Weak<dyn SliceHolder>) {
        if let (Some(slices), Some(holder)) = (state.slices.take(), holder.upgrade()) {
            holder.release_hold(&slices);
        }
    }

    fn end_if_due(&self, now: Timestamp) {
        let mut state = self.state.lock();
        if state.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        if state.uses > 0 {
            state.is_due = true;
        } else {
            Self::end(&mut state, &self.holder);
        }
    }
}

impl State {
    fn is_live(&self, now: Timestamp) -> bool {
        self.slices.is_some() && !self.is_due && self.deadline.is_none_or(|deadline| now < deadline)
    }
}

impl Drop for HoldUse {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.uses = state.uses.checked_sub(1).expect("a use that ends has begun");
        if state.uses == 0 && state.is_due {
            SliceHold::end(&mut state, &self.0.holder);
        }
    }
}

impl Drop for SliceHold {
    fn drop(&mut self) {
        Self::end(self.state.get_mut(), &self.holder);
    }
}

/// The book of all leases.
pub struct Leases {
    book: Mutex<LeaseBook>,
    /// Length of the book: with no leases, `expire` costs one atomic load.
    count: AtomicUsize,
}

struct LeaseBook {
    /// By deadline and a number that makes equal deadlines distinct.
    holds: BTreeMap<(Timestamp, u64), Weak<SliceHold>>,
    next: u64,
    /// Length at which `add` next removes the leases of dropped holds.
    sweep_at: usize,
}

impl Default for Leases {
    fn default() -> Self {
        let book = LeaseBook { holds: BTreeMap::new(), next: 0, sweep_at: SWEEP_MIN };
        Leases { book: Mutex::new(book), count: AtomicUsize::new(0) }
    }
}

impl Leases {
    /// Leases a hold until `until`, when `expire` ends it. A later call replaces an earlier one.
    pub fn add(&self, hold: &Arc<SliceHold>, until: Timestamp) {
        let mut book = self.book.lock();
        // Under the book's lock: `expire` never meets an entry before the hold has its deadline.
        hold.set_deadline(until);
        let number = book.next;
        book.next += 1;
        let replaced = book.holds.insert((until, number), Arc::downgrade(hold));
        assert!(replaced.is_none(), "each lease has a number of its own");
        if book.holds.len() >= book.sweep_at {
            // Doubling keeps the cost of sweeps constant for each lease, however many holds live.
            book.holds.retain(|_, hold| hold.strong_count() > 0);
            book.sweep_at = SWEEP_MIN.max(2 * book.holds.len());
        }
        self.count.store(book.holds.len(), Ordering::Release);
    }

    /// Ends every hold with a deadline at `now` or before.
    pub fn expire(&self, now: Timestamp) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut due = Vec::new();
        let mut book = self.book.lock();
        while let Some(first) = book.holds.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        assert!(
            book.holds.first_key_value().is_none_or(|((deadline, _), _)| *deadline > now),
            "no due lease stays in the book"
        );
        self.count.store(book.holds.len(), Ordering::Release);
        // Without the book's lock: ending a hold calls the store. A lease that a later `add` prolonged is due
        // in the book and not in the hold, so the hold checks its own deadline.
        drop(book);
        for hold in due.iter().filter_map(Weak::upgrade) {
            hold.end_if_due(now);
        }
    }
}

impl std::fmt::Debug for SliceHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SliceHold until {:?}", self.state.lock().deadline)
    }
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leases({})", self.count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use warpfire_units::SegmentId;

    use super::*;
    use crate::testing::Counting;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    fn slice(offset_bytes: u64) -> SlicePtr {
        SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes: 10 }
    }

    fn store() -> (Arc<Counting>, Arc<dyn SliceHolder>) {
        let store = Arc::new(Counting::default());
        (store.clone(), store)
    }

    #[test]
    fn a_hold_ends_once_by_drop_or_by_deadline() {
        let ((store, holder), leases) = (store(), Leases::default());
        let dropped = SliceHold::take(&holder, vec![slice(0)]).unwrap();
        let leased = SliceHold::take(&holder, vec![slice(10), slice(20)]).unwrap();
        leases.add(&leased, at(5));
        assert_eq!(store.held.lock().len(), 3);
        drop(dropped);
        leases.expire(at(4));
        assert_eq!(*store.held.lock(), [slice(10), slice(20)]);
        assert!(leased.is_live(at(4)) && !leased.is_live(at(5)), "a hold is not live at its deadline");
        leases.expire(at(5));
        assert!(store.held.lock().is_empty());
        leases.expire(at(6));
        // The store asserts that no hold ends twice.
        drop(leased);
    }

    #[test]
    fn a_lease_that_expires_during_a_use_ends_the_hold_after_it() {
        let ((store, holder), leases) = (store(), Leases::default());
        let hold = SliceHold::take(&holder, vec![slice(0)]).unwrap();
        leases.add(&hold, at(5));
        let first = hold.begin_use(at(4)).expect("it is live");
        let second = hold.begin_use(at(4)).expect("it is live");
        leases.expire(at(5));
        assert_eq!(store.held.lock().len(), 1, "the uses keep it");
        assert!(!hold.is_live(at(4)) && hold.begin_use(at(4)).is_none(), "no use begins any more");
        drop(first);
        assert_eq!(store.held.lock().len(), 1);
        drop(second);
        assert!(store.held.lock().is_empty());
        leases.expire(at(6));
        drop(hold);
    }

    #[test]
    fn a_later_lease_replaces_an_earlier_one() {
        for (first, second) in [(5, 9), (9, 5)] {
            let ((store, holder), leases) = (store(), Leases::default());
            let hold = SliceHold::take(&holder, vec![slice(0)]).unwrap();
            leases.add(&hold, at(first));
            leases.add(&hold, at(second));
            leases.expire(at(second - 1));
            assert_eq!(store.held.lock().len(), 1, "{first} then {second}");
            leases.expire(at(second));
            assert!(store.held.lock().is_empty(), "{first} then {second}");
        }
    }

    #[test]
    fn leases_of_dropped_holds_do_not_accumulate() {
        let ((store, holder), leases) = (store(), Leases::default());
        for n in 0..10 * SWEEP_MIN as u64 {
            leases.add(&SliceHold::take(&holder, vec![slice(n)]).unwrap(), at(1000));
        }
        assert!(leases.book.lock().holds.len() <= SWEEP_MIN);
        assert!(store.held.lock().is_empty());
    }

    #[test]
    fn a_hold_may_outlive_its_store_and_a_refused_hold_is_an_error() {
        let (store, holder) = store();
        let hold = SliceHold::take(&holder, vec![slice(0)]).unwrap();
        store.refuses_holds.store(true, Ordering::Relaxed);
        assert!(SliceHold::take(&holder, vec![slice(10)]).is_err());
        drop((store, holder));
        drop(hold);
    }
}
