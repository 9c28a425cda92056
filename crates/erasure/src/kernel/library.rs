//! The kernels of the library `rusty_erasure`: for processors on which our own kernel does not run.

use rusty_erasure::kernel::Kernels;

use super::{LinearMap, common_len};
use crate::matrix::Matrix;

/// A matrix as tables of the library.
pub(super) struct Library {
    kernels: Kernels,
    rows: usize,
    columns: usize,
    /// In the format of `kernels`; other kernels of the library have other formats.
    tables: Vec<u8>,
}

impl Library {
    pub(super) fn new(matrix: &Matrix) -> Library {
        let kernels = rusty_erasure::best_kernels();
        let tables = (kernels.init)(matrix.cells());
        Library { kernels, rows: matrix.rows(), columns: matrix.columns(), tables }
    }
}

impl LinearMap for Library {
    fn combine(&self, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        if common_len(self.rows, self.columns, sources, outputs) > 0 {
            (self.kernels.encode)(&self.tables, sources, outputs);
        }
    }
}
