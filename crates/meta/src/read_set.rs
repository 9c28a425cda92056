//! The read set: the keys and ranges that a transaction has read, and the version at which it read them.
//!
//! # Invariants
//! 1. `numbers` has the number of each key in `keys`, and each key is there once (assert in `add_key`).
//! 2. After `normalize` the ranges are in order and do not meet, so a binary search finds the range of a key
//!    (assert in `has_in_range`).
//! 3. Its memory is bounded: beyond a limit it becomes the range of all keys
//!    (`tests::a_key_counts_once_and_very_many_count_as_everything`,
//!    `tests::ranges_count_once_and_very_many_count_as_everything`).
//! 4. `range_bytes` is the memory of all ranges (assert in `normalize`).

use hashbrown::HashTable;
use warpfire_format::key_hash;
use warpfire_units::Seq;

use crate::key_list::KeyList;

type RangeEnd = Option<Vec<u8>>;

/// Most memory of a read set, some three million keys. Beyond it the read set becomes the range of all keys.
const READS_BYTES_MAX: usize = 128 << 20;

/// Memory of a number in `numbers`, at its usual load.
const NUMBER_BYTES: usize = 2 * size_of::<u32>();

/// Memory of a range beside the bytes of its two keys.
const RANGE_BYTES: usize = size_of::<(Vec<u8>, RangeEnd)>() + 2 * 16;

/// Memory of ranges at which they are first put in order, so that those that were scanned again count once.
const NORMALIZE_BYTES_MIN: usize = 1 << 20;

/// The keys and ranges that a transaction has read. Its commit fails if any of them has changed since `at`.
#[derive(Clone, Debug, Default)]
pub struct ReadSet {
    /// The seq at which it has read. A caller that finds all of it unchanged at a later seq may set that.
    pub at: Seq,
    /// Keys that were read, present or not.
    keys: KeyList,
    numbers: HashTable<u32>,
    /// Ranges that were scanned: start, end (`None` to the end of the map).
    ranges: Vec<(Vec<u8>, RangeEnd)>,
    range_bytes: usize,
    /// `range_bytes` after the last `normalize`.
    normalized_bytes: usize,
    /// Whether ranges were added since the last `normalize`.
    is_mixed: bool,
    /// Whether it has become the range of all keys: nothing more is added.
    is_everything: bool,
}

/// Memory of a key that is added.
pub(crate) fn bytes_of_key(key: &[u8]) -> usize {
    key.len() + size_of::<u32>() + NUMBER_BYTES
}

/// Memory of a range that is added.
pub(crate) fn bytes_of_range(start: &[u8], end: Option<&[u8]>) -> usize {
    RANGE_BYTES + start.len() + end.map_or(0, <[u8]>::len)
}

impl ReadSet {
    /// Of these keys and ranges, read at `at`.
    #[must_use]
    pub fn new<K: AsRef<[u8]>>(
        at: Seq,
        keys: impl IntoIterator<Item = K>,
        ranges: impl IntoIterator<Item = (Vec<u8>, Option<Vec<u8>>)>,
    ) -> ReadSet {
        let mut reads = ReadSet { at, ..ReadSet::default() };
        keys.into_iter().for_each(|key| reads.add_key(key.as_ref()));
        ranges.into_iter().for_each(|(start, end)| reads.add_range(&start, end.as_deref()));
        reads.normalize();
        reads
    }

    /// The same keys and ranges, as if they had been read at this seq.
    pub(crate) fn as_of(&self, at: Seq) -> ReadSet {
        debug_assert!(at <= self.at, "an older seq finds all changes that the later one finds");
        ReadSet { at, ..self.clone() }
    }

    pub(crate) fn add_key(&mut self, key: &[u8]) {
        if self.is_everything {
            return;
        }
        let ReadSet { keys, numbers, .. } = self;
        let is_key = |number: &u32| keys.key(*number as usize) == key;
        let hash = key_hash(key);
        if numbers.find(hash, is_key).is_some() {
            return;
        }
        let number = u32::try_from(keys.len()).expect("fewer keys than bytes");
        numbers.insert_unique(hash, number, |number| key_hash(keys.key(*number as usize)));
        keys.push(key);
        debug_assert_eq!(keys.len(), numbers.len(), "each key of the read set has its number");
        self.bound();
    }

    /// Whether the key was read by itself.
    pub(crate) fn has_key(&self, key: &[u8]) -> bool {
        self.is_everything
            || self.numbers.find(key_hash(key), |number| self.keys.key(*number as usize) == key).is_some()
    }

    /// Memory that it takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.keys.memory_bytes() + self.keys.len() * NUMBER_BYTES + self.range_bytes
    }

    /// Becomes the range of all keys.
    fn cover_everything(&mut self) {
        *self = ReadSet { at: self.at, is_everything: true, ..ReadSet::default() };
        self.push_range(&[], None);
    }

    fn bound(&mut self) {
        if self.memory_bytes() > READS_BYTES_MAX {
            self.cover_everything();
        }
    }

    /// Adds a scanned range. Pages that follow each other become one range.
    pub(crate) fn add_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        self.join_range(start, end);
        // A program that lists the same directories again adds the same ranges. Twice the memory of the last
        // time keeps the cost of the order in proportion.
        if self.range_bytes > NORMALIZE_BYTES_MIN.max(2 * self.normalized_bytes) {
            self.normalize();
        }
        self.bound();
    }

    fn push_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        self.range_bytes += bytes_of_range(start, end);
        self.ranges.push((start.to_vec(), end.map(<[u8]>::to_vec)));
    }

    fn join_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        if let Some((first, past)) = self.ranges.last_mut()
            && first.as_slice() <= start
            && past.as_ref().is_none_or(|past| start <= past.as_slice())
        {
            let grows = past.as_ref().is_some_and(|past| end.is_none_or(|end| end > past.as_slice()));
            if grows {
                self.range_bytes -= past.as_ref().map_or(0, Vec::len);
                self.range_bytes += end.map_or(0, <[u8]>::len);
                *past = end.map(<[u8]>::to_vec);
            }
            return;
        }
        self.push_range(start, end);
        self.is_mixed = true;
    }

    /// Adds all that another read set has, and takes over its seq. The caller makes sure that nothing in this
    /// read set has changed up to that seq, or that the other one has everything that did.
    pub fn go_on_with(&mut self, later: &ReadSet) {
        self.at = later.at;
        later.keys().for_each(|key| self.add_key(key));
        later.ranges.iter().for_each(|(start, end)| self.add_range(start, end.as_deref()));
        self.normalize();
    }

    /// Orders the ranges and joins those that meet, for `has_in_range`.
    pub(crate) fn normalize(&mut self) {
        if !std::mem::take(&mut self.is_mixed) {
            return;
        }
        let mut ranges = std::mem::take(&mut self.ranges);
        self.range_bytes = 0;
        ranges.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        ranges.iter().for_each(|(start, end)| self.join_range(start, end.as_deref()));
        self.normalized_bytes = self.range_bytes;
        self.is_mixed = false;
        debug_assert_eq!(
            self.range_bytes,
            self.ranges.iter().map(|(start, end)| bytes_of_range(start, end.as_deref())).sum::<usize>(),
            "the memory of ranges is counted as they come and go"
        );
    }

    /// The keys, in the order in which they were read first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter()
    }

    /// Number of keys.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The ranges: start, end (`None` to the end of the map).
    #[must_use]
    pub fn ranges(&self) -> &[(Vec<u8>, RangeEnd)] {
        &self.ranges
    }

    /// Whether the key was read, by itself or in a range.
    pub(crate) fn covers(&self, hash: u64, key: &[u8]) -> bool {
        self.numbers.find(hash, |number| self.keys.key(*number as usize) == key).is_some()
            || self.has_in_range(key)
    }

    fn has_in_range(&self, key: &[u8]) -> bool {
        debug_assert!(!self.is_mixed, "the ranges are in order");
        let after = self.ranges.partition_point(|(start, _)| start.as_slice() <= key);
        after.checked_sub(1).is_some_and(|number| {
            let (_, end) = &self.ranges[number];
            end.as_ref().is_none_or(|end| key < end.as_slice())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::KEY_BYTES_MAX;

    #[test]
    fn a_read_set_counts_the_memory_of_its_keys_their_numbers_and_its_ranges() {
        let keys: Vec<[u8; 8]> = (0..1000u64).map(u64::to_be_bytes).collect();
        let memory = |keys: &[[u8; 8]], ranges: &[(Vec<u8>, RangeEnd)]| {
            ReadSet::new(Seq(1), keys, ranges.iter().cloned()).memory_bytes()
        };
        let range = (vec![b'a'; 100], Some(vec![b'b'; 100]));
        assert_eq!(memory(&[], &[]), 0);
        let of_keys = memory(&keys, &[]);
        assert!(of_keys >= keys.len() * (8 + NUMBER_BYTES), "{of_keys}");
        let of_range = memory(&[], std::slice::from_ref(&range));
        assert!(of_range >= 200, "{of_range}");
        assert_eq!(memory(&keys, &[range]), of_keys + of_range);
    }

    #[test]
    fn a_key_counts_once_and_very_many_count_as_everything() {
        let mut reads = ReadSet::new(Seq(1), [&b"a"[..], b"b", b"a", b""], []);
        let keys: Vec<&[u8]> = reads.keys().collect();
        assert_eq!(keys, [&b"a"[..], b"b", b""]);
        for n in 0..=READS_BYTES_MAX / KEY_BYTES_MAX {
            let mut key = vec![0; KEY_BYTES_MAX];
            key[..8].copy_from_slice(&n.to_le_bytes());
            reads.add_key(&key);
        }
        assert_eq!(reads.at, Seq(1));
        assert_eq!(reads.key_count(), 0, "all keys are part of the range of all keys");
        assert_eq!(reads.ranges(), [(Vec::new(), None)]);
        assert!(reads.covers(key_hash(b"a"), b"a"));
    }

    #[test]
    fn ranges_count_once_and_very_many_count_as_everything() {
        let mut reads = ReadSet::default();
        // Two directories in turn, as a program that compares them lists them.
        for _ in 0..2 * NORMALIZE_BYTES_MIN / RANGE_BYTES {
            reads.add_range(b"a", Some(b"b"));
            reads.add_range(b"x", Some(b"y"));
        }
        assert!(reads.memory_bytes() <= NORMALIZE_BYTES_MIN + bytes_of_range(b"a", Some(b"b")));
        reads.normalize();
        assert_eq!(reads.ranges().len(), 2);
        for n in 0..=READS_BYTES_MAX / KEY_BYTES_MAX {
            let mut key = vec![0; KEY_BYTES_MAX];
            key[..8].copy_from_slice(&(2 * n).to_le_bytes());
            let mut end = key.clone();
            *end.last_mut().expect("a key has bytes") = 1;
            reads.add_range(&key, Some(&end));
        }
        assert_eq!(reads.ranges(), [(Vec::new(), None)]);
        assert!(reads.memory_bytes() < 1024);
    }

    #[test]
    fn ranges_in_any_order_cover_their_keys_and_no_others() {
        let range = |start: &[u8], end: &[u8]| (start.to_vec(), Some(end.to_vec()));
        let reads = ReadSet::new(
            Seq(1),
            [b"zz"],
            [range(b"m", b"p"), range(b"a", b"c"), range(b"b", b"d"), range(b"p", b"q")],
        );
        assert_eq!(reads.ranges(), [range(b"a", b"d"), range(b"m", b"q")]);
        let covered = |key: &[u8]| reads.covers(key_hash(key), key);
        for key in [&b"a"[..], b"b", b"cz", b"m", b"p", b"pz", b"zz"] {
            assert!(covered(key), "{key:?}");
        }
        for key in [&b"0"[..], b"d", b"lz", b"q", b"z", b"zzz"] {
            assert!(!covered(key), "{key:?}");
        }
        let all = ReadSet::new(Seq(1), [] as [&[u8]; 0], [(b"k".to_vec(), None)]);
        assert!(all.covers(0, b"zzz") && !all.covers(0, b"j"));
    }
}
