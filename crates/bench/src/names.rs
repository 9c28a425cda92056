//! Names of the files of a benchmark, computed from their numbers, so that no list is kept.

use clap::ValueEnum;
use serde::Serialize;

/// The order of the names of consecutive files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Each name sorts after the one of the file before.
    InOrder,
    /// Names are scattered.
    Random,
}

/// A buffer for one name, so that no name needs an allocation.
#[derive(Debug)]
pub struct Name([u8; 16]);

impl Name {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Name([b'0'; 16])
    }

    /// The name of file `number`: 16 hexadecimal digits.
    pub fn of(&mut self, number: u64, order: Order) -> &str {
        let mut rest = match order {
            Order::InOrder => number,
            Order::Random => mix(number),
        };
        for digit in self.0.iter_mut().rev() {
            *digit = b"0123456789abcdef"[(rest & 15) as usize];
            rest >>= 4;
        }
        std::str::from_utf8(&self.0).expect("hexadecimal digits are ASCII")
    }
}

/// Maps numbers to numbers one to one, without a visible pattern (the finaliser of SplitMix64).
#[must_use]
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills a buffer with bytes that do not compress and that differ for each number.
pub fn fill(bytes: &mut [u8], number: u64) {
    let mut state = mix(number);
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = (state ^ (state >> 33)).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_order_sort_and_random_names_do_not_repeat() {
        let names = |order| (0..1000).map(|n| Name::new().of(n, order).to_owned()).collect::<Vec<_>>();
        assert!(names(Order::InOrder).is_sorted());
        let mut random = names(Order::Random);
        assert!(!random.is_sorted());
        random.sort();
        random.dedup();
        assert_eq!(random.len(), 1000);
    }
}
