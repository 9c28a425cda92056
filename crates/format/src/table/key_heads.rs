//! Binary search among sorted keys. Most comparisons are of 64-bit *heads*: the first eight bytes of each key
//! after the prefix that all the keys share.

use smallvec::SmallVec;

use super::shared_len;

/// The heads of sorted keys: big-endian, so that they compare like bytes, and padded with zeroes.
#[derive(Clone, Debug, Default)]
pub struct KeyHeads {
    /// The prefix that all keys share. It lies here, so that most searches read no key.
    common: SmallVec<[u8; 24]>,
    heads: Vec<u64>,
}

fn head(key: &[u8], common: usize) -> u64 {
    let rest = key.get(common..).unwrap_or(&[]);
    match rest.first_chunk::<8>() {
        Some(word) => u64::from_be_bytes(*word),
        None => {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(word)
        }
    }
}

/// Heads in a line of memory.
const LINE: usize = 8;

/// Up to so many heads are searched without steps that wait for each other.
const UNSTEPPED_MAX: usize = 32 * LINE;

/// Number of sorted heads below `wanted`.
///
/// Heads that were not used lately come from memory, which takes much longer than to compare them. A binary
/// search waits for one line of memory after the other. This one reads the last head of each line, and
/// nothing of that waits.
fn heads_below(heads: &[u64], wanted: u64) -> usize {
    let (mut heads, mut before) = (heads, 0);
    while heads.len() > UNSTEPPED_MAX {
        let (first, rest) = heads.split_at(heads.len() / 2);
        if rest[0] < wanted {
            before += first.len();
            heads = rest;
        } else {
            heads = first;
        }
    }
    let below = |h: &&u64| **h < wanted;
    let whole = heads.iter().skip(LINE - 1).step_by(LINE).filter(below).count() * LINE;
    let line = &heads[whole..heads.len().min(whole + LINE)];
    before + whole + line.iter().filter(below).count()
}

impl KeyHeads {
    /// The heads of `count` sorted keys; `key(i)` returns the i-th.
    #[must_use]
    pub fn new<'a>(count: usize, key: impl Fn(usize) -> &'a [u8]) -> Self {
        if count == 0 {
            return Self::default();
        }
        let common = &key(0)[..shared_len(key(0), key(count - 1))];
        let heads = (0..count).map(|i| head(key(i), common.len())).collect();
        KeyHeads { common: SmallVec::from_slice(common), heads }
    }

    /// Number of keys below `target`; with `or_equal`, below or equal to it. `key(i)` returns the i-th key.
    pub fn count_below<'a>(&self, target: &[u8], or_equal: bool, key: impl Fn(usize) -> &'a [u8]) -> usize {
        let common = self.common.as_slice();
        let target_common = &target[..target.len().min(common.len())];
        // A target that differs from the shared prefix, or ends inside it, lies before or after all keys.
        match target_common.cmp(common) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return self.heads.len(),
            std::cmp::Ordering::Equal => {}
        }
        let wanted = head(target, common.len());
        let mut low = heads_below(&self.heads, wanted);
        // Whole keys are compared only where heads are equal, which few are.
        let mut end = match self.heads[low..] {
            [first, second, ..] if first == wanted && second == wanted => {
                low + self.heads[low..].partition_point(|h| *h == wanted)
            }
            [first, ..] => low + usize::from(first == wanted),
            [] => low,
        };
        while low < end {
            let middle = low.midpoint(end);
            let below = if or_equal { key(middle) <= target } else { key(middle) < target };
            if below {
                low = middle + 1;
            } else {
                end = middle;
            }
        }
        low
    }

    pub(super) fn bytes(&self) -> usize {
        let spilled = if self.common.spilled() { self.common.capacity() } else { 0 };
        self.heads.len() * 8 + spilled
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn heads_are_counted_as_one_by_one(
            mut heads in prop::collection::vec(0u64..400, 0..1200),
            wanted in 0u64..410,
        ) {
            heads.sort_unstable();
            prop_assert_eq!(heads_below(&heads, wanted), heads.iter().filter(|h| **h < wanted).count());
        }

        #[test]
        fn a_search_agrees_with_counting(
            mut keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..12), 0..30),
            prefix in prop::collection::vec(0u8..3, 0..10),
            target in prop::collection::vec(0u8..3, 0..20),
        ) {
            for key in &mut keys {
                key.splice(0..0, prefix.iter().copied());
            }
            keys.sort();
            let heads = KeyHeads::new(keys.len(), |i| &keys[i]);
            for target in keys.iter().chain([&target]) {
                let below = keys.iter().filter(|k| *k < target).count();
                let or_equal = keys.iter().filter(|k| *k <= target).count();
                prop_assert_eq!(heads.count_below(target, false, |i| &keys[i]), below);
                prop_assert_eq!(heads.count_below(target, true, |i| &keys[i]), or_equal);
            }
        }
    }
}
