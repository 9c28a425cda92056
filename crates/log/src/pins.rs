//! Who may still read a segment that nothing refers to any more.
//!
//! A *token* is current for a while; `pin` hands out clones of it. When a segment is retired it queues
//! behind the token that was current then, and a new token becomes current.
//!
//! # Invariants
//! 1. A pin taken before a segment was retired holds that segment's token or an older one.
//! 2. Segments leave the queue in the order in which they came, and only when no pin holds their token or
//!    an older one.
//! 3. Taking a pin takes no lock.

use std::collections::VecDeque;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use warpfire_units::SegmentId;

use crate::store::Pin;

struct PinToken;

/// Retired segments, and the pins that keep them.
pub(crate) struct Pins {
    current: ArcSwap<PinToken>,
    retired: Mutex<VecDeque<(Arc<PinToken>, SegmentId)>>,
}

impl Pins {
    pub(crate) fn new() -> Self {
        Pins { current: ArcSwap::from_pointee(PinToken), retired: Mutex::new(VecDeque::new()) }
    }

    /// Keeps every segment that is not retired yet.
    pub(crate) fn pin(&self) -> Pin {
        Pin::new(self.current.load_full())
    }

    /// Queues a segment to be handed out by `take_unpinned` once no older pin lives.
    pub(crate) fn retire(&self, segment: SegmentId) {
        let mut retired = self.retired.lock();
        // `swap` settles every `load_full` in progress, so the old token's count is exact from here on.
        let token = self.current.swap(Arc::new(PinToken));
        retired.push_back((token, segment));
    }

    /// Takes the oldest retired segment that no pin holds.
    pub(crate) fn take_unpinned(&self) -> Option<SegmentId> {
        let mut retired = self.retired.lock();
        let (token, _) = retired.front()?;
        if Arc::strong_count(token) > 1 {
            return None;
        }
        retired.pop_front().map(|(_, segment)| segment)
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
    fn a_pin_keeps_what_is_retired_later_and_not_what_was_retired_before() {
        let pins = Pins::new();
        pins.retire(id(1));
        let pin = pins.pin();
        pins.retire(id(2));
        pins.retire(id(3));
        assert_eq!(pins.take_unpinned(), Some(id(1)));
        assert_eq!(pins.take_unpinned(), None);
        drop(pin);
        assert_eq!(pins.take_unpinned(), Some(id(2)));
        assert_eq!(pins.take_unpinned(), Some(id(3)));
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
