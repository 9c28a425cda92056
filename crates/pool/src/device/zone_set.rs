//! A set of zones of one device: one bit a zone, and a summary that finds the next member of a large set.
//!
//! # Invariants
//! 1. Bit w of `filled` is set exactly if word w of `words` is not zero (test
//!    `agrees_with_a_plain_set`).
//! 2. No bit from `zones` on is set (assert in `insert`; `resize` clears them).

/// Zones of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct ZoneSet {
    words: Vec<u64>,
    /// One bit for each word.
    filled: Vec<u64>,
    /// Zones of the device.
    zones: u32,
}

/// The word and the bit of a number.
const fn place(number: usize) -> (usize, u64) {
    (number / 64, 1 << (number % 64))
}

/// The first set bit from number `from` on.
fn first_from(words: &[u64], from: usize) -> Option<usize> {
    let (first, bit) = place(from);
    let masked = words.get(first)? & !(bit - 1);
    let rest = words.iter().enumerate().skip(first + 1).map(|(n, word)| (n, *word));
    let (n, word) = std::iter::once((first, masked)).chain(rest).find(|(_, word)| *word != 0)?;
    Some(n * 64 + word.trailing_zeros() as usize)
}

impl ZoneSet {
    /// An empty set for a device with so many zones.
    pub(crate) fn empty(zones: u32) -> Self {
        let words = (zones as usize).div_ceil(64);
        ZoneSet { words: vec![0; words], filled: vec![0; words.div_ceil(64)], zones }
    }

    /// Number of zones of the device.
    pub(crate) fn zones(&self) -> u32 {
        self.zones
    }

    pub(crate) fn contains(&self, zone: u32) -> bool {
        let (word, bit) = place(zone as usize);
        self.words.get(word).is_some_and(|found| found & bit != 0)
    }

    /// Adds a zone of the device.
    pub(crate) fn insert(&mut self, zone: u32) {
        assert!(zone < self.zones, "a zone of the device");
        let (word, bit) = place(zone as usize);
        self.words[word] |= bit;
        let (summary, bit) = place(word);
        self.filled[summary] |= bit;
    }

    /// Takes a zone out. Returns whether it was in the set.
    pub(crate) fn remove(&mut self, zone: u32) -> bool {
        let was_in = self.contains(zone);
        if was_in {
            let (word, bit) = place(zone as usize);
            self.words[word] &= !bit;
            if self.words[word] == 0 {
                let (summary, bit) = place(word);
                self.filled[summary] &= !bit;
            }
        }
        was_in
    }

    /// Adds or takes out a zone of the device.
    pub(crate) fn set(&mut self, zone: u32, is_in: bool) {
        if is_in { self.insert(zone) } else { _ = self.remove(zone) }
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
        self.filled.fill(0);
    }

    /// Gives the device another number of zones. Zones that it gains are not in the set, those that it loses
    /// leave the set.
    pub(crate) fn resize(&mut self, zones: u32) {
        let lost: Vec<u32> = self.from(zones).collect();
        lost.into_iter().for_each(|zone| _ = self.remove(zone));
        let words = (zones as usize).div_ceil(64);
        self.words.resize(words, 0);
        self.filled.resize(words.div_ceil(64), 0);
        self.zones = zones;
    }

    /// The first member from `zone` on.
    pub(crate) fn next_from(&self, zone: u32) -> Option<u32> {
        let (word, bit) = place(zone as usize);
        let here = self.words.get(word)? & !(bit - 1);
        let (word, found) = match here {
            0 => first_from(&self.filled, word + 1).map(|word| (word, self.words[word]))?,
            here => (word, here),
        };
        let zone = word * 64 + found.trailing_zeros() as usize;
        Some(u32::try_from(zone).expect("zones are numbered by 32 bits"))
    }

    /// The members from `zone` on, in ascending order.
    pub(crate) fn from(&self, zone: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.next_from(zone), |last| self.next_from(last + 1))
    }

    /// Number of members before `end`.
    pub(crate) fn count_before(&self, end: u32) -> u32 {
        let (word, bit) = place(end as usize);
        let whole: u32 = self.words.iter().take(word).map(|word| word.count_ones()).sum();
        whole + self.words.get(word).map_or(0, |word| (word & (bit - 1)).count_ones())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    proptest::proptest! {
        #[test]
        fn agrees_with_a_plain_set(
            zones in 1u32..9000,
            steps in proptest::collection::vec((0u8..4, 0u32..9000), 1..200),
        ) {
            let (mut set, mut plain) = (ZoneSet::empty(zones), BTreeSet::new());
            for (step, number) in steps {
                let zone = number % set.zones();
                match step {
                    0 | 1 => {
                        set.insert(zone);
                        plain.insert(zone);
                    }
                    2 => proptest::prop_assert_eq!(set.remove(zone), plain.remove(&zone)),
                    _ => {
                        set.resize(number + 1);
                        plain.retain(|zone| *zone <= number);
                    }
                }
                let next = |from: u32| plain.range(from..).next().copied();
                for from in [0, zone, zone + 1, number, number + 64, 9000] {
                    proptest::prop_assert_eq!(set.next_from(from), next(from));
                    proptest::prop_assert_eq!(set.contains(from), plain.contains(&from));
                    let before = plain.range(..from).count();
                    proptest::prop_assert_eq!(set.count_before(from) as usize, before);
                }
                proptest::prop_assert!(set.from(0).eq(plain.iter().copied()));
                for (word, found) in set.words.iter().enumerate() {
                    let (summary, bit) = place(word);
                    proptest::prop_assert_eq!(set.filled[summary] & bit != 0, *found != 0);
                }
            }
        }
    }
}
