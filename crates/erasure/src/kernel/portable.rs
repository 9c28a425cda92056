//! The arithmetic of the oracle as a kernel, for tests.

use super::{LinearMap, common_len};
use crate::matrix::Matrix;
use crate::scalar::add_scaled;

/// A matrix without tables.
pub(super) struct Portable(Matrix);

impl Portable {
    pub(super) fn new(matrix: &Matrix) -> Portable {
        Portable(matrix.clone())
    }
}

impl LinearMap for Portable {
    fn combine(&self, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        common_len(self.0.rows(), self.0.columns(), sources, outputs);
        for (row, output) in outputs.iter_mut().enumerate() {
            output.fill(0);
            for (source, &factor) in sources.iter().zip(self.0.row(row)) {
                add_scaled(output, factor, source);
            }
        }
    }
}
