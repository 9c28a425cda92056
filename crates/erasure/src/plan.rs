//! How to rebuild: which shards to combine, with which coefficients, for one pattern of losses.
//!
//! 1. A plan's sources are the data shards that are present and then as many parity shards, lowest first, as make
//!    up k. With e data shards lost, e of the sources are parity.
//! 2. Only the e × e system over the lost columns is inverted, e ≤ m ≤ 8; the k × k system that it stands for
//!    never exists.
//! 3. A plan depends on its pattern alone, so a cached plan is never stale.

use std::sync::Arc;

use parking_lot::Mutex;
use warpfire_units::PARITY_MAX;

use crate::cauchy::coefficient;
use crate::field::mul;
use crate::kernel::{Kernel, LinearMap};
use crate::matrix::Matrix;

/// Most patterns that a code remembers: a pool with one dead device has at most k+m of them, a few at a time.
/// The widest plan (8 × 250 coefficients) has 16 KB of tables with our kernel and 64 KB with the
/// library's, so all of them stay below 2 MB.
const PLANS_MAX: usize = 32;

/// What is combined and what for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pattern {
    sources: [u64; 4],
    wanted: [u8; PARITY_MAX],
    wanted_count: u8,
}

impl Pattern {
    /// The pattern that makes the shards `wanted`, in this order, from `sources`.
    ///
    /// # Panics
    /// If more than [`PARITY_MAX`] are wanted; with k sources, so many can not be missing.
    pub(crate) fn new(
        sources: impl Iterator<Item = usize>,
        wanted: impl ExactSizeIterator<Item = usize>,
    ) -> Pattern {
        let mut pattern = Pattern { sources: [0; 4], wanted: [0; PARITY_MAX], wanted_count: 0 };
        for shard in sources {
            pattern.sources[shard / 64] |= 1 << (shard % 64);
        }
        assert!(wanted.len() <= PARITY_MAX, "beside k sources at most m shards are missing");
        for (slot, shard) in pattern.wanted.iter_mut().zip(wanted) {
            *slot = u8::try_from(shard).expect("shards are numbered below 250");
            pattern.wanted_count += 1;
        }
        pattern
    }

    fn sources(&self) -> impl Iterator<Item = usize> {
        (0..256).filter(|shard| self.has(*shard))
    }

    fn has(&self, shard: usize) -> bool {
        self.sources[shard / 64] >> (shard % 64) & 1 == 1
    }

    fn wanted(&self) -> &[u8] {
        &self.wanted[..usize::from(self.wanted_count)]
    }

    /// One row for each wanted shard, one column for each source in ascending order, for a code with
    /// `data` data columns.
    fn matrix(&self, data: usize) -> Matrix {
        let sources: Vec<usize> = self.sources().collect();
        assert_eq!(sources.len(), data, "as many sources as data columns determine the data");
        let (parities, lost): (Vec<usize>, Vec<usize>) = (
            sources.iter().filter_map(|shard| shard.checked_sub(data)).collect(),
            (0..data).filter(|column| !self.has(*column)).collect(),
        );
        // Lost data, as the parities tell of it: solved · (parity rows − what the surviving data put into them).
        let recovered = (!lost.is_empty()).then(|| {
            let solved = Matrix::from_fn(lost.len(), lost.len(), |r, l| coefficient(parities[r], lost[l]))
                .cauchy_inverse();
            Matrix::from_fn(lost.len(), data, |l, source| match sources[source].checked_sub(data) {
                Some(parity) => solved.row(l)[parities.partition_point(|&p| p < parity)],
                None => sum(parities.iter().zip(solved.row(l)), |(&row, &share)| {
                    mul(share, coefficient(row, sources[source]))
                }),
            })
        });
        let recovered_cell = |l: usize, source: usize| {
            recovered.as_ref().expect("there is a solution where something is lost").row(l)[source]
        };
        Matrix::from_fn(self.wanted().len(), data, |wanted, source| {
            let wanted = usize::from(self.wanted()[wanted]);
            match wanted.checked_sub(data) {
                None => recovered_cell(lost.partition_point(|&l| l < wanted), source),
                Some(row) => {
                    let own = if sources[source] < data { coefficient(row, sources[source]) } else { 0 };
                    own ^ sum(lost.iter().enumerate(), |(l, &column)| {
                        mul(coefficient(row, column), recovered_cell(l, source))
                    })
                }
            }
        })
    }
}

fn sum<T>(terms: impl Iterator<Item = T>, value: impl Fn(T) -> u8) -> u8 {
    terms.fold(0, |sum, term| sum ^ value(term))
}

/// The plans used last, newest first.
#[derive(Default)]
pub(crate) struct Plans {
    recent: Mutex<Vec<(Pattern, Arc<dyn LinearMap>)>>,
}

impl Plans {
    /// The plan for `pattern`, remembered or made for `kernel`.
    pub(crate) fn get(&self, pattern: Pattern, data: usize, kernel: Kernel) -> Arc<dyn LinearMap> {
        if let Some(plan) = self.find(&pattern) {
            return plan;
        }
        // Made outside the lock; if two threads make the same plan, both are right and one is kept.
        let plan: Arc<dyn LinearMap> = kernel.prepare(&pattern.matrix(data)).into();
        let mut recent = self.recent.lock();
        recent.retain(|(known, _)| *known != pattern);
        recent.truncate(PLANS_MAX - 1);
        recent.insert(0, (pattern, Arc::clone(&plan)));
        plan
    }

    fn find(&self, pattern: &Pattern) -> Option<Arc<dyn LinearMap>> {
        let mut recent = self.recent.lock();
        let place = recent.iter().position(|(known, _)| known == pattern)?;
        recent[..=place].rotate_right(1);
        recent.first().map(|(_, plan)| Arc::clone(plan))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{PLANS_MAX, Pattern, Plans};
    use crate::kernel::Kernel;

    fn losing(column: usize) -> Pattern {
        Pattern::new((0..101).filter(|shard| *shard != column), [column].into_iter())
    }

    #[test]
    fn a_plan_is_remembered_until_enough_others_were_used() {
        let plans = Plans::default();
        let first = plans.get(losing(0), 100, Kernel::Scalar);
        for column in 1..PLANS_MAX {
            plans.get(losing(column), 100, Kernel::Scalar);
        }
        assert!(
            Arc::ptr_eq(&first, &plans.get(losing(0), 100, Kernel::Scalar)),
            "used last, so kept longest"
        );
        for column in 1..=PLANS_MAX {
            plans.get(losing(column), 100, Kernel::Scalar);
        }
        assert!(!Arc::ptr_eq(&first, &plans.get(losing(0), 100, Kernel::Scalar)));
        assert_eq!(plans.recent.lock().len(), PLANS_MAX);
    }

    #[test]
    fn with_all_data_there_a_parity_shard_is_its_own_row() {
        let pattern = Pattern::new(0..5, [6].into_iter());
        assert_eq!(
            pattern.matrix(5),
            crate::matrix::Matrix::from_fn(1, 5, |_, j| crate::scalar::coefficient(1, j))
        );
    }
}
