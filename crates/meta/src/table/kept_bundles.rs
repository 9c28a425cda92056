//! The bundles that were read last for callers that want their bytes soon: a file is looked up first, and its
//! bytes are read by another call.
//!
//! # Invariants
//! 1. A kept bundle is never stale: its place is its name, each byte of a segment is written once, and
//!    segment ids are not reused. A place is asked for only while a table names it.
//! 2. The bundles have at most `bytes_max` bytes, their overhead included (assert in `keep`).
//! 3. Of each bundle that is kept the hash of its key is known. So a reader that wants a kept bundle only
//!    does not look for its place in vain (`may_have`).

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
const OVERHEAD_BYTES: usize = 128;

/// The place of a bundle.
type Place = (SegmentId, u64);

struct KeptBundle {
    bytes: Arc<[u8]>,
    key_hash: u64,
}

#[derive(Default)]
struct KeptInOrder {
    by_place: HashMap<Place, KeptBundle, FixedState>,
    /// Number of bundles by the hash of their key.
    key_hashes: HashMap<u64, usize, FixedState>,
    /// Oldest first.
    order: VecDeque<Place>,
    bytes: usize,
}

impl KeptInOrder {
    /// Takes a bundle that is not kept any more out of the sums.
    fn forget(&mut self, bundle: &KeptBundle) {
        self.bytes -= bundle.bytes.len() + OVERHEAD_BYTES;
        let count = self.key_hashes.get_mut(&bundle.key_hash).expect("the hash of a kept bundle is known");
        *count -= 1;
        if *count == 0 {
            self.key_hashes.remove(&bundle.key_hash);
        }
    }
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

    fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Whether a bundle is kept of which the key has this hash.
    pub(super) fn may_have(&self, key_hash: u64) -> bool {
        self.has_any() && self.kept.lock().key_hashes.contains_key(&key_hash)
    }

    /// The bundle at a place, if it is kept.
    pub(super) fn get(&self, slice: SlicePtr) -> Option<Arc<[u8]>> {
        if !self.has_any() {
            return None;
        }
        let kept = self.kept.lock();
        let bundle =
            kept.by_place.get(&(slice.segment, slice.offset_bytes)).map(|kept| Arc::clone(&kept.bytes));
        bundle.filter(|bytes| bytes.len() == slice.len_bytes as usize)
    }

    /// Keeps the bundle of a key, until newer ones need its room.
    pub(super) fn keep(&self, slice: SlicePtr, key_hash: u64, bundle: &Arc<[u8]>) {
        let bytes = bundle.len() + OVERHEAD_BYTES;
        if bytes > self.bytes_max / BUNDLE_PART {
            return;
        }
        self.has_any.store(true, Ordering::Relaxed);
        let place = (slice.segment, slice.offset_bytes);
        let mut kept = self.kept.lock();
        *kept.key_hashes.entry(key_hash).or_insert(0) += 1;
        kept.bytes += bytes;
        match kept.by_place.insert(place, KeptBundle { bytes: Arc::clone(bundle), key_hash }) {
            None => kept.order.push_back(place),
            // It has the same length, unless a forged table says otherwise.
            Some(before) => kept.forget(&before),
        }
        while kept.bytes > self.bytes_max {
            let oldest = kept.order.pop_front().expect("one bundle is smaller than the room");
            let dropped = kept.by_place.remove(&oldest).expect("each place in the order has a bundle");
            kept.forget(&dropped);
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
        assert!(!bundles.may_have(0) && bundles.get(slice(0, 3)).is_none());
        let bundle: Arc<[u8]> = vec![1; 10_000].into();
        for n in 0..1000 {
            bundles.keep(slice(n, 10_000), n, &bundle);
            assert!(bundles.may_have(n) && bundles.get(slice(n, 10_000)).is_some());
            assert!(bundles.get(slice(n, 9000)).is_none(), "another length is another bundle");
        }
        let kept = (0..1000).filter(|n| bundles.get(slice(*n, 10_000)).is_some()).count();
        assert_eq!(kept, BYTES_MIN as usize / (10_000 + OVERHEAD_BYTES));
        assert!(bundles.get(slice(999 - kept as u64, 10_000)).is_none(), "the oldest go first");
        assert_eq!((0..1000).filter(|n| bundles.may_have(*n)).count(), kept);
    }

    #[test]
    fn a_place_that_is_named_with_several_lengths_takes_the_memory_of_the_last() {
        let bundles = KeptBundles::new(0);
        let keep = |n, len: u32| bundles.keep(slice(n, len), u64::from(len), &vec![1; len as usize].into());
        for n in 0..1000 {
            keep(n, 100);
            keep(n, 50_000);
            assert!(bundles.get(slice(n, 100)).is_none() && bundles.get(slice(n, 50_000)).is_some());
        }
        let kept = bundles.kept.lock();
        let bytes: usize = kept.by_place.values().map(|kept| kept.bytes.len() + OVERHEAD_BYTES).sum();
        assert_eq!(kept.bytes, bytes);
        assert!(bytes <= BYTES_MIN as usize);
    }

    #[test]
    fn a_bundle_that_would_displace_many_is_not_kept() {
        let bundles = KeptBundles::new(0);
        let large: Arc<[u8]> = vec![1; BYTES_MIN as usize / BUNDLE_PART].into();
        bundles.keep(slice(1, large.len() as u32), 1, &large);
        assert!(!bundles.may_have(1) && bundles.get(slice(1, large.len() as u32)).is_none());
    }
}
