//! The bundles that were read last for callers that want their bytes soon: a file is looked up first, and its
//! bytes are read by another call.
//!
//! # Invariants
//! 1. A kept bundle is never stale: its place is its name, each byte of a segment is written once, and
//!    segment ids are not reused. A place is asked for only while a table names it.
//! 2. The bundles have at most `bytes_max` bytes, their overhead included (assert in `keep`).

use std::collections::VecDeque;
use std::sync::Arc;
use warpfire_env::sync::Mutex;
use warpfire_env::sync::atomic::{AtomicBool, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use warpfire_units::{SegmentId, SlicePtr};

/// Bounds of the memory for bundles. Several programs may open files at the same time, of up to 32 KiB each.
const BYTES_MAX: u64 = 4 << 20;
const BYTES_MIN: u64 = 512 << 10;

/// A bundle is kept only if it takes at most one part in so many of the memory.
const BUNDLE_PART: usize = 8;

/// Memory of a bundle beside its bytes.
const OVERHEAD_BYTES: usize = 96;

/// The place of a bundle.
type Place = (SegmentId, u64);

#[derive(Default)]
struct KeptInOrder {
    by_place: HashMap<Place, Arc<[u8]>, FixedState>,
    /// Oldest first.
    order: VecDeque<Place>,
    bytes: usize,
}

/// Bundles by their places. A new one takes the room of the oldest.
pub(super) struct KeptBundles {
    kept: Mutex<KeptInOrder>,
    /// Whether one was ever kept: readers that want no such bundle save the lock.
    has_any: AtomicBool,
    bytes_max: usize,
}

impl KeptBundles {
    /// Bundles beside a cache of so many bytes.
    pub(super) fn new(cache_bytes: u64) -> KeptBundles {
        let bytes_max = (cache_bytes / 16).clamp(BYTES_MIN, BYTES_MAX) as usize;
        KeptBundles { kept: Mutex::default(), has_any: AtomicBool::new(false), bytes_max }
    }

    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// The bundle at a place, if it is kept.
    pub(super) fn get(&self, slice: SlicePtr) -> Option<Arc<[u8]>> {
        if !self.has_any() {
            return None;
        }
        let kept = self.kept.lock();
        let bundle = kept.by_place.get(&(slice.segment, slice.offset_bytes)).map(Arc::clone);
        bundle.filter(|bytes| bytes.len() == slice.len_bytes as usize)
    }

    /// Keeps a bundle, until newer ones need its room.
    pub(super) fn keep(&self, slice: SlicePtr, bundle: &Arc<[u8]>) {
        let bytes = bundle.len() + OVERHEAD_BYTES;
        if bytes > self.bytes_max / BUNDLE_PART {
            return;
        }
        self.has_any.store(true, Ordering::Relaxed);
        let place = (slice.segment, slice.offset_bytes);
        let mut kept = self.kept.lock();
        match kept.by_place.insert(place, Arc::clone(bundle)) {
            None => kept.order.push_back(place),
            // It has the same length, unless a forged table says otherwise.
            Some(before) => kept.bytes -= before.len() + OVERHEAD_BYTES,
        }
        kept.bytes += bytes;
        while kept.bytes > self.bytes_max {
            let oldest = kept.order.pop_front().expect("one bundle is smaller than the room");
            let dropped = kept.by_place.remove(&oldest).expect("each place in the order has a bundle");
            kept.bytes -= dropped.len() + OVERHEAD_BYTES;
        }
        debug_assert!(kept.bytes <= self.bytes_max, "kept bundles have a bounded number of bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(n: u64, len_bytes: u32) -> SlicePtr {
        SlicePtr { segment: SegmentId::FIRST, offset_bytes: n * 10_000, len_bytes }
    }

    #[test]
    fn the_last_bundles_are_kept_in_bounded_memory() {
        let bundles = KeptBundles::new(0);
        assert!(!bundles.has_any() && bundles.get(slice(0, 3)).is_none());
        let bundle: Arc<[u8]> = vec![1; 10_000].into();
        for n in 0..1000 {
            bundles.keep(slice(n, 10_000), &bundle);
            assert!(bundles.get(slice(n, 10_000)).is_some());
            assert!(bundles.get(slice(n, 9000)).is_none(), "another length is another bundle");
        }
        let kept = (0..1000).filter(|n| bundles.get(slice(*n, 10_000)).is_some()).count();
        assert_eq!(kept, BYTES_MIN as usize / (10_000 + OVERHEAD_BYTES));
        assert!(bundles.get(slice(999 - kept as u64, 10_000)).is_none(), "the oldest go first");
    }

    #[test]
    fn a_place_that_is_named_with_several_lengths_takes_the_memory_of_the_last() {
        let bundles = KeptBundles::new(0);
        let keep = |n, len: u32| bundles.keep(slice(n, len), &vec![1; len as usize].into());
        for n in 0..1000 {
            keep(n, 100);
            keep(n, 50_000);
            assert!(bundles.get(slice(n, 100)).is_none() && bundles.get(slice(n, 50_000)).is_some());
        }
        let kept = bundles.kept.lock();
        let bytes: usize = kept.by_place.values().map(|bundle| bundle.len() + OVERHEAD_BYTES).sum();
        assert_eq!(kept.bytes, bytes);
        assert!(bytes <= BYTES_MIN as usize);
    }

    #[test]
    fn a_bundle_that_would_displace_many_is_not_kept() {
        let bundles = KeptBundles::new(0);
        let large: Arc<[u8]> = vec![1; BYTES_MIN as usize / BUNDLE_PART].into();
        bundles.keep(slice(1, large.len() as u32), &large);
        assert!(bundles.get(slice(1, large.len() as u32)).is_none());
    }
}
