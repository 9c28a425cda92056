//! Plans of reconstruction: the matrix that computes the wanted shards from the sources, for one pattern of
//! losses.
//!
//! A *pattern* is the set of source shards and the list of wanted shards. A *plan* is its matrix, prepared
//! for a kernel.
//!
//! 1. The sources of a plan are k shards: the present data shards, then as many parity shards as are needed,
//!    lowest first (assert in `matrix`). If e data shards are lost, e of the sources are parity shards.
//! 2. Only the e × e system over the lost data shards is inverted, with e ≤ m ≤ 8, not a k × k system.
//! 3. A plan depends on its pattern, the number of data columns and the kernel. A `Plans` serves one code,
//!    which fixes the last two, so a cached plan is never stale.

use std::sync::Arc;

use parking_lot::Mutex;
use warpfire_units::PARITY_MAX;

use crate::cauchy::coefficient;
use crate::field::mul;
use crate::kernel::{Kernel, LinearMap};
use crate::matrix::Matrix;

/// Most plans that a code caches. A pool with one lost device has at most k+m patterns, and uses few at a
/// time. The widest plan (8 × 250 coefficients) has tables of 16 KB with our kernel and of 64 KB with the
/// library's, or 2 MB for all.
const PLANS_MAX: usize = 32;

/// The source shards, as a bit set, and the wanted shards, in the order of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pattern {
    sources: [u64; 4],
    wanted: [u8; PARITY_MAX],
    wanted_count: u8,
}

impl Pattern {
    /// The pattern that computes the shards `wanted`, in this order, from `sources`.
    ///
    /// # Panics
    /// If more than [`PARITY_MAX`] shards are wanted: beside k sources a code has at most m others.
    pub(crate) fn new(
        sources: impl Iterator<Item = usize>,
        wanted: impl ExactSizeIterator<Item = usize>,
    ) -> Pattern {
        let mut pattern = Pattern { sources: [0; 4], wanted: [0; PARITY_MAX], wanted_count: 0 };
        for shard in sources {
            pattern.sources[shard / 64] |= 1 << (shard % 64);
        }
        assert!(wanted.len() <= PARITY_MAX, "beside k sources at most m shards are wanted");
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

    /// The matrix with one row for each wanted shard and one column for each source, in ascending order, for
    /// a code with `data` data columns.
    fn matrix(&self, data: usize) -> Matrix {
        let sources: Vec<usize> = self.sources().collect();
        assert_eq!(sources.len(), data, "as many sources as data columns determine the data");
        let parities: Vec<usize> = sources.iter().filter_map(|shard| shard.checked_sub(data)).collect();
        let lost: Vec<usize> = (0..data).filter(|column| !self.has(*column)).collect();
        assert_eq!(parities.len(), lost.len(), "one parity shard for each lost data shard");
        // Each parity shard, minus the shares of the present data shards, is a combination of the lost ones.
        // `solved` is the inverse of that system: it computes the lost data shards from these differences.
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
            recovered.as_ref().expect("a solution exists if a data shard is lost").row(l)[source]
        };
        // A wanted data shard is a row of `recovered`. A wanted parity shard combines all data shards: the
        // present ones directly, the lost ones through their rows.
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

/// The plans that were used last, newest first.
#[derive(Default)]
pub(crate) struct Plans {
    recent: Mutex<Vec<(Pattern, Arc<dyn LinearMap>)>>,
}

impl Plans {
    /// The plan for `pattern`, from the cache or newly made for `kernel`.
    pub(crate) fn get(&self, pattern: Pattern, data: usize, kernel: Kernel) -> Arc<dyn LinearMap> {
        if let Some(plan) = self.find(&pattern) {
            return plan;
        }
        // Made outside the lock. If two threads make the same plan, both are right and one is cached.
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
        // To the front, so that the plan used longest ago is dropped first.
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
    fn a_plan_is_cached_until_enough_others_were_used() {
        let plans = Plans::default();
        let first = plans.get(losing(0), 100, Kernel::Scalar);
        for column in 1..PLANS_MAX {
            plans.get(losing(column), 100, Kernel::Scalar);
        }
        assert!(
            Arc::ptr_eq(&first, &plans.get(losing(0), 100, Kernel::Scalar)),
            "the plan used last is dropped last"
        );
        for column in 1..=PLANS_MAX {
            plans.get(losing(column), 100, Kernel::Scalar);
        }
        assert!(!Arc::ptr_eq(&first, &plans.get(losing(0), 100, Kernel::Scalar)));
        assert_eq!(plans.recent.lock().len(), PLANS_MAX);
    }

    #[test]
    fn from_all_data_shards_a_parity_shard_is_its_row_of_the_parity_matrix() {
        let pattern = Pattern::new(0..5, [6].into_iter());
        assert_eq!(
            pattern.matrix(5),
            crate::matrix::Matrix::from_fn(1, 5, |_, j| crate::scalar::coefficient(1, j))
        );
    }
}
