//! A set of segment ids that takes little memory: a device of a wide pool has columns of nearly all segments.
//!
//! Ids with the same upper 48 bits share a *chunk*. A chunk is a sorted list of two bytes an id, or a bitmap
//! of 8 KiB once that is shorter.
//!
//! # Invariants
//! 1. Chunks ascend, no chunk is empty, a list has at most `LIST_MAX` ids, and `len` is the sum of the chunks
//!    (`tests::a_set_is_the_naive_set`).

use warpfire_units::SegmentId;

/// Most ids of a list: as many take the bytes of a bitmap.
const LIST_MAX: usize = 4096;

/// A bitmap with fewer ids becomes a list. Less than `LIST_MAX`, so that an id that comes and goes changes no
/// chunk's form.
const BITMAP_MIN: usize = 3072;

const WORDS: usize = 1024;

/// A set of segment ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentSet {
    /// By the upper bits, ascending. Few: a pool makes 65,536 segments before the next chunk.
    chunks: Vec<(u64, Chunk)>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Chunk {
    List(Vec<u16>),
    Bitmap(Box<[u64; WORDS]>, usize),
}

fn split(id: SegmentId) -> (u64, u16) {
    (id.get() >> 16, (id.get() & 0xFFFF) as u16)
}

fn bit(low: u16) -> (usize, u64) {
    (usize::from(low >> 6), 1 << (low & 63))
}

impl Chunk {
    fn len(&self) -> usize {
        match self {
            Chunk::List(list) => list.len(),
            Chunk::Bitmap(_, len) => *len,
        }
    }

    fn insert(&mut self, low: u16) -> bool {
        match self {
            Chunk::List(list) => {
                // Mostly ids rise.
                let at = if list.last().is_some_and(|last| *last < low) {
                    list.len()
                } else {
                    let Err(at) = list.binary_search(&low) else { return false };
                    at
                };
                list.insert(at, low);
                if list.len() > LIST_MAX {
                    let mut words = Box::new([0; WORDS]);
                    list.iter().map(|low| bit(*low)).for_each(|(word, bit)| words[word] |= bit);
                    *self = Chunk::Bitmap(words, list.len());
                }
                true
            }
            Chunk::Bitmap(words, len) => {
                let (word, bit) = bit(low);
                let is_new = words[word] & bit == 0;
                words[word] |= bit;
                *len += usize::from(is_new);
                is_new
            }
        }
    }

    fn remove(&mut self, low: u16) -> bool {
        match self {
            Chunk::List(list) => {
                let found = list.binary_search(&low);
                found.is_ok_and(|at| list.remove(at) == low)
            }
            Chunk::Bitmap(words, len) => {
                let (word, bit) = bit(low);
                let was_there = words[word] & bit != 0;
                words[word] &= !bit;
                *len -= usize::from(was_there);
                if *len < BITMAP_MIN {
                    *self = Chunk::List(self.iter().collect());
                }
                was_there
            }
        }
    }

    fn iter(&self) -> Box<dyn Iterator<Item = u16> + '_> {
        match self {
            Chunk::List(list) => Box::new(list.iter().copied()),
            Chunk::Bitmap(words, _) => Box::new((0u16..).zip(words.iter()).flat_map(|(at, word)| {
                let mut left = *word;
                std::iter::from_fn(move || {
                    let low = u16::try_from(left.trailing_zeros()).expect("a place in a word");
                    let found = (left != 0).then_some(at << 6 | low);
                    left &= left.wrapping_sub(1);
                    found
                })
            })),
        }
    }
}

impl SegmentSet {
    /// Adds an id that may be there.
    pub(crate) fn insert(&mut self, id: SegmentId) {
        let (upper, low) = split(id);
        let at = self.place(upper).unwrap_or_else(|at| {
            self.chunks.insert(at, (upper, Chunk::List(Vec::new())));
            at
        });
        self.len += usize::from(self.chunks[at].1.insert(low));
    }

    /// Removes an id that may not be there.
    pub(crate) fn remove(&mut self, id: SegmentId) {
        let (upper, low) = split(id);
        let Ok(at) = self.place(upper) else { return };
        let chunk = &mut self.chunks[at].1;
        self.len -= usize::from(chunk.remove(low));
        if chunk.len() == 0 {
            self.chunks.remove(at);
        }
    }

    /// The place of a chunk, or the one that it would have.
    fn place(&self, upper: u64) -> Result<usize, usize> {
        // Mostly it is the newest one.
        match self.chunks.last() {
            Some((last, _)) if *last == upper => Ok(self.chunks.len() - 1),
            _ => self.chunks.binary_search_by_key(&upper, |(upper, _)| *upper),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ids, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.after(None)
    }

    /// The ids after this one, ascending.
    pub(crate) fn after(&self, after: Option<SegmentId>) -> impl Iterator<Item = SegmentId> + '_ {
        let first = after.map_or(0, |id| id.get() + 1);
        let from = self.place(first >> 16).unwrap_or_else(|at| at);
        let chunks = self.chunks[from..].iter();
        let ids = chunks.flat_map(|(upper, ids)| ids.iter().map(move |low| upper << 16 | u64::from(low)));
        let later = ids.skip_while(move |id| *id < first);
        later.map(|id| SegmentId::new(id).expect("an id was inserted"))
    }
}

impl PartialEq for SegmentSet {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for SegmentSet {}

impl FromIterator<SegmentId> for SegmentSet {
    fn from_iter<T: IntoIterator<Item = SegmentId>>(ids: T) -> Self {
        let mut set = SegmentSet::default();
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use warpfire_sim_env::SimRandom;

    use super::*;

    fn assert_invariants(set: &SegmentSet) {
        assert_eq!(set.len, set.chunks.iter().map(|(_, chunk)| chunk.len()).sum::<usize>());
        assert!(set.chunks.is_sorted_by(|(one, _), (next, _)| one < next));
        for (_, chunk) in &set.chunks {
            assert!(chunk.len() > 0);
            match chunk {
                Chunk::List(list) => assert!(list.len() <= LIST_MAX),
                Chunk::Bitmap(_, len) => assert!(*len >= BITMAP_MIN),
            }
        }
    }

    #[test]
    fn a_set_is_the_naive_set() {
        let random = SimRandom::new(3);
        let (mut set, mut naive) = (SegmentSet::default(), BTreeSet::new());
        // It fills until its chunks are bitmaps, and empties again.
        for round in 0..8u64 {
            for _ in 0..20_000 {
                let id = 1 + random.below(3 << 14) + if random.below(2) == 0 { 0 } else { 1 << 40 };
                let id = SegmentId::new(id).expect("it counts from 1");
                if random.below(8) < if round < 4 { 6 } else { 1 } {
                    set.insert(id);
                    naive.insert(id);
                } else {
                    set.remove(id);
                    naive.remove(&id);
                }
            }
            assert_invariants(&set);
            assert_eq!((set.len(), set.is_empty()), (naive.len(), naive.is_empty()));
            assert!(set.iter().eq(naive.iter().copied()), "round {round}");
            assert_eq!(set, naive.iter().rev().copied().collect());
        }
        naive.iter().for_each(|id| set.remove(*id));
        assert!(set.is_empty() && set.chunks.is_empty());
    }
}
