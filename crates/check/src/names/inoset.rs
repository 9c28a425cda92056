//! A set of inode numbers. Numbers are assigned in sequence, so a bitmap in pages is dense.

use std::collections::BTreeMap;

/// Words of 64 numbers in a page: 4 KiB for 32,768 numbers.
const PAGE_WORDS: usize = 512;
const PAGE_NUMBERS: u64 = PAGE_WORDS as u64 * 64;

/// Memory of a page in bytes, its entry in the tree included.
const PAGE_BYTES: u64 = 4096 + 32;

/// A set of inode numbers.
#[derive(Default)]
pub(crate) struct InoSet {
    pages: BTreeMap<u64, Box<[u64; PAGE_WORDS]>>,
}

impl InoSet {
    /// Adds a number. `false` if the set has it already.
    pub(crate) fn insert(&mut self, ino: u64) -> bool {
        let page = self.pages.entry(ino / PAGE_NUMBERS).or_insert_with(|| Box::new([0; PAGE_WORDS]));
        let word = page.get_mut(word_of(ino)).expect("a page has all words of its numbers");
        let bit = 1 << (ino % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Whether the set has a number.
    pub(crate) fn contains(&self, ino: u64) -> bool {
        let page = self.pages.get(&(ino / PAGE_NUMBERS));
        page.and_then(|p| p.get(word_of(ino))).is_some_and(|word| word & (1 << (ino % 64)) != 0)
    }

    /// Memory of the set, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }
}

fn word_of(ino: u64) -> usize {
    usize::try_from(ino % PAGE_NUMBERS / 64).expect("a page is small")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use warpfire_sim_env::mix;

    use super::*;

    #[test]
    fn agrees_with_a_plain_set() {
        let (mut set, mut plain) = (InoSet::default(), BTreeSet::new());
        for n in 0..20_000 {
            let ino = match n % 3 {
                0 => n,
                1 => mix(n) % 100_000,
                _ => u64::MAX - mix(n) % 100,
            };
            assert_eq!(set.insert(ino), plain.insert(ino), "{ino}");
        }
        for n in 0..100_000 {
            assert_eq!(set.contains(n), plain.contains(&n), "{n}");
        }
        assert!(set.bytes() < 6 * PAGE_BYTES);
    }
}
