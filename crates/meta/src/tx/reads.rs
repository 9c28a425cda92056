//! What a transaction has read of the version below.

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use warpfire_units::Seq;

use crate::store::ReadSet;

type Bound = Option<Vec<u8>>;

#[derive(Default)]
pub(super) struct Reads {
    keys: HashSet<Box<[u8]>, FixedState>,
    ranges: Vec<(Vec<u8>, Bound)>,
}

impl Reads {
    pub(super) fn key(&mut self, key: &[u8]) {
        if !self.keys.contains(key) {
            self.keys.insert(key.into());
        }
    }

    /// A range was scanned. Pages that follow each other become one range.
    pub(super) fn range(&mut self, start: &[u8], end: Option<&[u8]>) {
        if let Some((first, past)) = self.ranges.last_mut()
            && first.as_slice() <= start
            && past.as_ref().is_none_or(|past| start <= past.as_slice())
        {
            let grows = past.as_ref().is_some_and(|past| end.is_none_or(|end| end > past.as_slice()));
            if grows {
                *past = end.map(<[u8]>::to_vec);
            }
            return;
        }
        self.ranges.push((start.to_vec(), end.map(<[u8]>::to_vec)));
    }

    pub(super) fn to_set(&self, at: Seq) -> ReadSet {
        // Sorted, so that a commit does the same whatever the hashes are.
        let mut keys: Vec<Vec<u8>> = self.keys.iter().map(|key| key.to_vec()).collect();
        keys.sort_unstable();
        ReadSet { at, keys, ranges: self.ranges.clone() }
    }
}
