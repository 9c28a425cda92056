//! The seqs that were released, as far as later questions need them: whether an old one was among the last
//! ones.
//!
//! # Invariants
//! 1. Numbers and seqs rise along the list: a release of a later seq does not matter once an earlier one has
//!    followed (assert in `note`).
//! 2. An entry has the lowest seq of its release and of all that follow, or a lower one. So `any_below` never
//!    misses a release (`tests::no_release_is_missed`).

use std::collections::VecDeque;

use warpfire_units::Seq;

/// Most entries. Beyond them the two oldest become one.
const ENTRIES_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Releases {
    /// The number of each release, and its seq.
    lowest: VecDeque<(u64, Seq)>,
}

impl Releases {
    /// Notes the release with this number.
    pub(crate) fn note(&mut self, number: u64, seq: Seq) {
        debug_assert!(self.lowest.back().is_none_or(|(last, _)| *last < number), "numbers rise");
        while self.lowest.back().is_some_and(|(_, later)| *later >= seq) {
            self.lowest.pop_back();
        }
        self.lowest.push_back((number, seq));
        if self.lowest.len() > ENTRIES_MAX
            && let Some((_, lowest)) = self.lowest.pop_front()
            && let Some(next) = self.lowest.front_mut()
        {
            next.1 = lowest;
        }
    }

    /// Whether a release after the one numbered `since` was of a seq below `seq`, or may have been.
    pub(crate) fn any_below(&self, since: u64, seq: Seq) -> bool {
        let after = self.lowest.partition_point(|(number, _)| *number <= since);
        self.lowest.get(after).is_some_and(|(_, lowest)| *lowest < seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    #[test]
    fn no_release_is_missed() {
        for seed in 0..20 {
            let mut rng = Rng(seed);
            let (mut releases, mut all) = (Releases::default(), Vec::new());
            for number in 1..=4000u64 {
                // Mostly readers of the newest seq, and now and then an old snapshot.
                let seq = Seq(if rng.below(50) == 0 { rng.below(number) } else { number });
                releases.note(number, seq);
                all.push(seq);
                let (since, below) = (rng.below(number + 1), Seq(rng.below(number + 2)));
                let any = all[since as usize..].iter().any(|released| *released < below);
                let said = releases.any_below(since, below);
                assert!(said || !any, "seed {seed}: {since} {below:?}");
                let is_recent = number - since < ENTRIES_MAX as u64;
                assert!(!is_recent || said == any, "seed {seed}: exact for the last releases");
            }
            assert!(releases.lowest.len() <= ENTRIES_MAX);
        }
    }
}
