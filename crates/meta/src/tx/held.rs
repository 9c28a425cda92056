//! Slices that are kept for a transaction.
//!
//! # Invariants
//! 1. `written` has what was written inside, neighbours as one, by where it begins; the references that writing gave are not given back yet.
//! 2. `held` are holds of the log: one in each segment that was written to, since bytes that only a transaction knows of can not be moved, and every
//!    slice that changes name and someone else wrote.

use std::collections::BTreeMap;

use warpfire_units::{SegmentId, SlicePtr};

use crate::store::Holder;

#[derive(Default)]
pub(super) struct Held {
    written: BTreeMap<(SegmentId, u64), u32>,
    held: Vec<SlicePtr>,
}

impl Held {
    /// A slice was written.
    pub(super) fn wrote(&mut self, slice: SlicePtr, holder: &dyn Holder) {
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let mut before = self.written.range_mut((segment, 0)..(segment, offset_bytes));
        match before.next_back() {
            None => {
                holder.hold(&[slice]);
                self.held.push(slice);
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
    pub(super) fn named(&mut self, slice: SlicePtr, holder: &dyn Holder) {
        if cfg!(feature = "planted-bug-named-not-held") {
            return;
        }
        let SlicePtr { segment, offset_bytes, len_bytes } = slice;
        let end = offset_bytes + u64::from(len_bytes);
        let before = self.written.range((segment, 0)..=(segment, offset_bytes)).next_back();
        if before.is_none_or(|((_, start), len)| *start + u64::from(*len) < end) {
            holder.hold(&[slice]);
            self.held.push(slice);
        }
    }

    /// Lets go of what is held, and says what was written, whose references are to be given back.
    pub(super) fn end(self, holder: &dyn Holder) -> Vec<SlicePtr> {
        holder.let_go(&self.held);
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
    struct Counting(Mutex<Vec<SlicePtr>>);

    impl Holder for Counting {
        fn hold(&self, slices: &[SlicePtr]) {
            self.0.lock().unwrap().extend_from_slice(slices);
        }

        fn let_go(&self, slices: &[SlicePtr]) {
            self.0.lock().unwrap().retain(|held| !slices.contains(held));
        }
    }

    #[test]
    fn neighbours_are_one_and_only_what_others_wrote_is_held_slice_by_slice() {
        let (mut held, holder) = (Held::default(), Counting::default());
        let slice = |offset_bytes, len_bytes| SlicePtr { segment: SegmentId::FIRST, offset_bytes, len_bytes };
        held.wrote(slice(100, 10), &holder);
        held.wrote(slice(110, 10), &holder);
        held.wrote(slice(200, 10), &holder);
        assert_eq!(*holder.0.lock().unwrap(), [slice(100, 10)]);
        held.named(slice(105, 15), &holder);
        assert_eq!(holder.0.lock().unwrap().len(), 1, "it wrote these itself");
        held.named(slice(115, 10), &holder);
        held.named(slice(0, 10), &holder);
        assert_eq!(holder.0.lock().unwrap().len(), 3);
        assert_eq!(held.end(&holder), [slice(100, 20), slice(200, 10)]);
        assert!(holder.0.lock().unwrap().is_empty());
    }
}
