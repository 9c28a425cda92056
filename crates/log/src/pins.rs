//! Pins: they keep a retired segment, or retired zones, until their last possible reader is done.
//!
//! A segment is *retired* when nothing refers to it any more. A reader may still hold a pointer into it, and
//! every such reader holds a pin. A *token* is a reference count shared by the pins of one period: `pin`
//! clones the current token. `retire` queues a segment together with the token that was current until then,
//! and begins a new period with a new token. The old zones of a segment's moved columns are retired in the
//! same way.
//!
//! # Invariants
//! 1. A pin taken before a segment was retired holds that segment's token or an older one
//!    (`tests::a_pin_keeps_segments_retired_after_it_and_no_others`).
//! 2. Segments leave the queue in the order in which they were retired, and only when no pin holds their
//!    token or an older one (`tests::a_pin_keeps_segments_retired_after_it_and_no_others`).
//! 3. Taking a pin takes no lock: a reader never waits for a thread that retires segments.

use std::collections::VecDeque;
use std::sync::Arc;

use arc_swap::ArcSwap;
use warpfire_env::sync::Mutex;
use warpfire_env::{PlantedBug, is_planted};
use warpfire_pool::OldZones;
use warpfire_units::SegmentId;

use crate::store::Pin;

/// Carries no data: only its reference count matters.
struct PinToken;

/// What the pins of a pool's log keep.
#[derive(Debug)]
pub(crate) enum Retired {
    /// A segment that nothing refers to.
    Segment(SegmentId),
    /// Zones that no descriptor names.
    Zones(OldZones),
}

/// The queue of retired segments and zones, and the token that new pins share.
pub(crate) struct Pins<T> {
    current: ArcSwap<PinToken>,
    retired: Mutex<VecDeque<(Arc<PinToken>, T)>>,
}

impl<T> Pins<T> {
    pub(crate) fn new() -> Self {
        Pins { current: ArcSwap::from_pointee(PinToken), retired: Mutex::new(VecDeque::new()) }
    }

    /// Keeps every segment that is not retired yet.
    pub(crate) fn pin(&self) -> Pin {
        Pin::new(self.current.load_full())
    }

    /// Queues a segment or zones. `take_unpinned` returns them once every older pin is dropped.
    pub(crate) fn retire(&self, unused: T) {
        let mut retired = self.retired.lock();
        // `swap` waits for every `load_full` in progress, so from here on the old token's count only falls.
        let token = self.current.swap(Arc::new(PinToken));
        retired.push_back((token, unused));
    }

    /// Whether `take_unpinned` would return something.
    pub(crate) fn has_unpinned(&self) -> bool {
        self.retired.lock().front().is_some_and(|(token, _)| Arc::strong_count(token) == 1)
    }

    /// Whether anything is in the queue, pinned or not.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.lock().is_empty()
    }

    /// Takes the oldest entry of the queue, if no pin holds it.
    pub(crate) fn take_unpinned(&self) -> Option<T> {
        let mut retired = self.retired.lock();
        let (token, _) = retired.front()?;
        // The queue itself holds one count. A segment behind a pinned one waits with it: an older pin may
        // hold pointers into every segment that was retired later.
        if Arc::strong_count(token) > 1 && !is_planted(PlantedBug::PinsUnread) {
            return None;
        }
        retired.pop_front().map(|(_, oldest)| oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> SegmentId {
        SegmentId::new(n).unwrap()
    }

    #[test]
    fn a_segment_without_pins_is_free_at_once() {
        let pins = Pins::new();
        pins.retire(id(1));
        assert_eq!(pins.take_unpinned(), Some(id(1)));
        assert_eq!(pins.take_unpinned(), None);
    }

    #[test]
    fn a_pin_keeps_segments_retired_after_it_and_no_others() {
        let pins = Pins::new();
        pins.retire(id(1));
        let pin = pins.pin();
        pins.retire(id(2));
        pins.retire(id(3));
        assert_eq!(pins.take_unpinned(), Some(id(1)));
        assert_eq!(pins.take_unpinned(), None);
        assert_eq!((pins.has_retired(), pins.has_unpinned()), (true, false));
        drop(pin);
        assert_eq!((pins.has_retired(), pins.has_unpinned()), (true, true));
        assert_eq!(pins.take_unpinned(), Some(id(2)));
        assert_eq!(pins.take_unpinned(), Some(id(3)));
        assert!(!pins.has_retired());
    }

    #[test]
    fn a_clone_of_a_pin_keeps_as_well() {
        let pins = Pins::new();
        let pin = pins.pin();
        let clone = pin.clone();
        pins.retire(id(1));
        drop(pin);
        assert_eq!(pins.take_unpinned(), None);
        drop(clone);
        assert_eq!(pins.take_unpinned(), Some(id(1)));
    }
}
