//! Holds with an owner, and the leases that bound them in time.
//!
//! # Invariants
//! 1. While a hold has not ended, the store keeps its slices, whatever becomes of the metadata that named
//!    them.
//! 2. A hold ends once: when its last owner drops it, or when its lease has run out. Then it keeps nothing.
//!    Held by `a_hold_ends_once_by_drop_or_by_deadline`.
//! 3. Each hold with a lease is in `Leases` under a deadline that is not later than its own, so `expire`
//!    meets it in time. Held by `a_later_lease_takes_the_place_of_an_earlier_one`.
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
use warpfire_units::SlicePtr;

use crate::error::SliceError;
use crate::store::SliceHolder;

/// Leases kept before those of dropped holds are looked for.
const SWEEP_MIN: usize = 1024;

/// Slices that are kept until this is dropped or its lease ends.
pub struct SliceHold {
    /// A hold may outlive its store and does not keep it open.
    holder: Weak<dyn SliceHolder>,
    state: Mutex<State>,
}

struct State {
    /// `None` once it has ended.
    slices: Option<Box<[SlicePtr]>>,
    deadline: Option<Timestamp>,
}

impl SliceHold {
    /// Keeps slices; the caller has had a pin since metadata named them.
    ///
    /// # Errors
    /// As `SliceHolder::hold`.
    pub fn take(holder: &Arc<dyn SliceHolder>, slices: Vec<SlicePtr>) -> Result<Arc<Self>, SliceError> {
        holder.hold(&slices)?;
        let state = State { slices: Some(slices.into_boxed_slice()), deadline: None };
        Ok(Arc::new(SliceHold { holder: Arc::downgrade(holder), state: Mutex::new(state) }))
    }

    /// Whether the slices are kept. A caller with a pin may use them as long as the pin lives.
    #[must_use]
    pub fn is_live(&self, now: Timestamp) -> bool {
        let state = self.state.lock();
        state.slices.is_some() && state.deadline.is_none_or(|deadline| now < deadline)
    }

    fn lease(&self, until: Timestamp) {
        self.state.lock().deadline = Some(until);
    }

    fn end(state: &mut State, holder: &Weak<dyn SliceHolder>) {
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
pub struct Leases {
    by_deadline: Mutex<Book>,
    /// Length of the book, so that asking costs nothing where there are no leases.
    count: AtomicUsize,
}

struct Book {
    holds: BTreeMap<(Timestamp, u64), Weak<SliceHold>>,
    next: u64,
    sweep_at: usize,
}

impl Default for Leases {
    fn default() -> Self {
        let book = Book { holds: BTreeMap::new(), next: 0, sweep_at: SWEEP_MIN };
        Leases { by_deadline: Mutex::new(book), count: AtomicUsize::new(0) }
    }
}

impl Leases {
    /// Bounds a hold: it ends at `until` at the latest. A later call takes the place of an earlier one.
    pub fn add(&self, hold: &Arc<SliceHold>, until: Timestamp) {
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

    /// Ends the holds whose deadline has come.
    pub fn expire(&self, now: Timestamp) {
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
        assert!(leased.is_live(at(4)) && !leased.is_live(at(5)), "at its deadline it may not be used");
        leases.expire(at(5));
        assert!(store.held.lock().is_empty());
        leases.expire(at(6));
        // A second end would be noticed by the store.
        drop(leased);
    }

    #[test]
    fn a_later_lease_takes_the_place_of_an_earlier_one() {
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
    fn leases_of_dropped_holds_do_not_pile_up() {
        let ((store, holder), leases) = (store(), Leases::default());
        for n in 0..10 * SWEEP_MIN as u64 {
            leases.add(&SliceHold::take(&holder, vec![slice(n)]).unwrap(), at(1000));
        }
        assert!(leases.by_deadline.lock().holds.len() <= SWEEP_MIN);
        assert!(store.held.lock().is_empty());
    }

    #[test]
    fn a_hold_outlives_its_store_and_a_refused_one_is_none() {
        let (store, holder) = store();
        let hold = SliceHold::take(&holder, vec![slice(0)]).unwrap();
        store.refuses_holds.store(true, Ordering::Relaxed);
        assert!(SliceHold::take(&holder, vec![slice(10)]).is_err());
        drop((store, holder));
        drop(hold);
    }
}
