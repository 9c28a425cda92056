//! Slices that are kept for a transaction.
//!
//! # Invariants
//! 1. `written` has what was written inside, neighbours as one, by where it begins; the references that writing gave are not given back yet.
//! 2. `holds` are holds of the log: one in each segment that was written to, since bytes that only a transaction knows of can not be moved, and every
//!    slice that changes name and someone else wrote.

use std::collections::BTreeMap;

use warpfire_units::{SegmentId, SlicePtr};

use crate::store::SliceHolder;

#[derive(Default)]
pub(super) struct SliceHolds {
    written: BTreeMap<(SegmentId, u64), u32>,
    holds: Vec<SlicePtr>,
}

impl SliceHolds {
    /// A slice was written.
    pub(super) fn add_written(&mut self, slice: SlicePtr, holder: &dyn SliceHolder) {
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let mut before = self.written.range_mut((segment, 0)..(segment, offset_bytes));
        match before.next_back() {
            None => {
                holder.hold(&[slice]);
                self.holds.push(slice);
            }
            Some(((_, start), len)) if *start + u64::from(*len) == offset_bytes => {
                if let Some(both) = len.checked_add(len_bytes) {
                    *len = both;
                    return;
                }
            }
            Some(_) => {}
        }
        self.written.insert((segment, offset_bytes), len_bytes);
    }

    /// A change names a slice. Who made the change keeps the bytes meanwhile.
    pub(super) fn add_named(&mut self, slice: SlicePtr, holder: &dyn SliceHolder) {
        if cfg!(feature = "planted-bug-named-not-held") {
            return;
        }
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let end = offset_bytes + u64::from(len_bytes);
        let before = self.written.range((segment, 0)..=(segment, offset_bytes)).next_back();
        if before.is_none_or(|((_, start), len)| *start + u64::from(*len) < end) {
            holder.hold(&[slice]);
            self.holds.push(slice);
        }
    }

    /// Lets go of what is held, and says what was written, whose references are to be given back.
    pub(super) fn end(self, holder: &dyn SliceHolder) -> Vec<SlicePtr> {
        holder.release_hold(&self.holds);
        let slices = self.written.into_iter();
        slices
            .map(|((segment, offset_bytes), len_bytes)| SlicePtr { segment, offset_bytes, len_bytes })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct CountingHolder(Mutex<Vec<SlicePtr>>);

    impl SliceHolder for CountingHolder {
        fn hold(&self, slices: &[SlicePtr]) {
            self.0.lock().unwrap().extend_from_slice(slices);
        }

        fn release_hold(&self, slices: &[SlicePtr]) {
            self.0.lock().unwrap().retain(|holds| !slices.contains(holds));
        }
    }

    #[test]
    fn neighbours_are_one_and_only_what_others_wrote_is_held_slice_by_slice() {
        let (mut holds, holder) = (SliceHolds::default(), CountingHolder::default());
        let slice = |offset_bytes, len_bytes| SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes };
        holds.add_written(slice(100, 10), &holder);
        holds.add_written(slice(110, 10), &holder);
        holds.add_written(slice(200, 10), &holder);
        assert_eq!(*holder.0.lock().unwrap(), [slice(100, 10)]);
        holds.add_named(slice(105, 15), &holder);
        assert_eq!(holder.0.lock().unwrap().len(), 1, "it wrote these itself");
        holds.add_named(slice(115, 10), &holder);
        holds.add_named(slice(0, 10), &holder);
        assert_eq!(holder.0.lock().unwrap().len(), 3);
        assert_eq!(holds.end(&holder), [slice(100, 20), slice(200, 10)]);
        assert!(holder.0.lock().unwrap().is_empty());
    }
}
