//! The read set of an open transaction.
//!
//! # Invariants
//! 1. `numbers` has the number of each key in `keys`, and each key is there once (assert in `key`).

use hashbrown::HashTable;
use warpfire_format::key_hash;
use warpfire_units::Seq;

use crate::key_list::KeyList;
use crate::store::ReadSet;

type RangeEnd = Option<Vec<u8>>;

/// Most memory of a read set, some three million keys. Beyond it the read set becomes the range of all keys.
const READS_BYTES_MAX: usize = 128 << 20;

/// Memory of a number in `numbers`, at its usual load.
const NUMBER_BYTES: usize = 2 * size_of::<u32>();

#[derive(Default)]
pub(super) struct TxReads {
    keys: KeyList,
    numbers: HashTable<u32>,
    ranges: Vec<(Vec<u8>, RangeEnd)>,
}

impl TxReads {
    pub(super) fn key(&mut self, key: &[u8]) {
        let TxReads { keys, numbers, .. } = self;
        let is_key = |number: &u32| keys.key(*number as usize) == key;
        let hash = key_hash(key);
        if numbers.find(hash, is_key).is_some() {
            return;
        }
        let number = u32::try_from(keys.len()).expect("fewer keys than bytes");
        numbers.insert_unique(hash, number, |number| key_hash(keys.key(*number as usize)));
        keys.push(key);
        debug_assert_eq!(keys.len(), numbers.len(), "each key of the read set has its number");
        if keys.memory_bytes() + keys.len() * NUMBER_BYTES > READS_BYTES_MAX {
            *self = TxReads { ranges: vec![(Vec::new(), None)], ..TxReads::default() };
        }
    }

    /// Adds a scanned range. Pages that follow each other become one range.
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

    pub(super) fn into_set(self, at: Seq) -> ReadSet {
        ReadSet { at, keys: self.keys, ranges: self.ranges }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::KEY_BYTES_MAX;

    #[test]
    fn a_key_counts_once_and_very_many_count_as_everything() {
        let mut reads = TxReads::default();
        for key in [&b"a"[..], b"b", b"a", b""] {
            reads.key(key);
        }
        let keys: Vec<&[u8]> = reads.keys.iter().collect();
        assert_eq!(keys, [&b"a"[..], b"b", b""]);
        for n in 0..=READS_BYTES_MAX / KEY_BYTES_MAX {
            let mut key = vec![0; KEY_BYTES_MAX];
            key[..8].copy_from_slice(&n.to_le_bytes());
            reads.key(&key);
        }
        let set = reads.into_set(Seq(1));
        assert!(set.keys.len() < 4, "earlier keys are part of the range of all keys");
        assert_eq!(set.ranges, [(Vec::new(), None)]);
    }
}
