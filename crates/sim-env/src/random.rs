//! Random numbers that a seed determines.

use std::sync::atomic::{AtomicU64, Ordering};

use warpfire_env::Random;

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of SplitMix64's output function (Steele, Lea, Flood 2014): spreads `z` over all 64 bits.
#[must_use]
pub fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// SplitMix64: the same seed gives the same numbers.
#[derive(Debug)]
pub struct SimRandom {
    state: AtomicU64,
}

impl SimRandom {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SimRandom { state: AtomicU64::new(seed) }
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// If `bound` is zero: there is no such number.
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of a 128-bit product")
    }

    /// `true` once in `n` times.
    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// An independent generator. Drawing from it does not move this one.
    #[must_use]
    pub fn split(&self) -> SimRandom {
        SimRandom::new(self.next_u64())
    }

    pub(crate) fn copy(&self) -> SimRandom {
        SimRandom::new(self.state.load(Ordering::Relaxed))
    }
}

impl Random for SimRandom {
    fn next_u64(&self) -> u64 {
        mix(self.state.fetch_add(GOLDEN_GAMMA, Ordering::Relaxed).wrapping_add(GOLDEN_GAMMA))
    }
}

/// Numbers of which no two in a process are equal, for the sessions of a pool: worlds that are forks of one
/// world have equal generators, but what happens in them are different sessions.
#[derive(Clone, Copy, Debug)]
pub struct DistinctNumbers;

impl Random for DistinctNumbers {
    fn next_u64(&self) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        mix(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_its_numbers() {
        let (a, b) = (SimRandom::new(7), SimRandom::new(7));
        for _ in 0..100 {
            assert_eq!(a.next_u64(), b.next_u64());
        }
    }

    #[test]
    fn the_published_first_number_of_seed_zero() {
        assert_eq!(SimRandom::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn bounded_numbers_reach_every_value_and_no_other() {
        let random = SimRandom::new(1);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(5)).expect("below five")] += 1;
        }
        assert!(seen.iter().all(|&n| n > 100), "{seen:?}");
    }
}
