//! Small dense matrices over the field.

use crate::field::{inverse, mul};

/// Rows of coefficients, row-major; at most 8 × 250.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Matrix {
    columns: usize,
    cells: Vec<u8>,
}

impl Matrix {
    /// The matrix with `cell(row, column)` in each cell.
    pub(crate) fn from_fn(rows: usize, columns: usize, cell: impl Fn(usize, usize) -> u8) -> Matrix {
        let cells =
            (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(|(r, c)| cell(r, c));
        Matrix { columns, cells: cells.collect() }
    }

    pub(crate) fn rows(&self) -> usize {
        self.cells.len() / self.columns
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The cells of one row.
    pub(crate) fn row(&self, row: usize) -> &[u8] {
        &self.cells[row * self.columns..][..self.columns]
    }

    /// All cells, row after row.
    pub(crate) fn cells(&self) -> &[u8] {
        &self.cells
    }

    fn row_mut(&mut self, row: usize) -> &mut [u8] {
        &mut self.cells[row * self.columns..][..self.columns]
    }

    /// `row(to) += factor · row(from)`.
    fn add_row(&mut self, to: usize, from: usize, factor: u8) {
        for column in 0..self.columns {
            let term = mul(factor, self.cells[from * self.columns + column]);
            self.cells[to * self.columns + column] ^= term;
        }
    }

    /// The inverse of a square submatrix of the parity matrix, by Gauss-Jordan elimination.
    ///
    /// # Panics
    /// If the matrix is not square, or a leading minor is zero. A submatrix of a Cauchy matrix has no zero
    /// minor.
    pub(crate) fn cauchy_inverse(mut self) -> Matrix {
        // No rows are exchanged: every pivot of a Cauchy matrix differs from zero.
        let size = self.columns;
        assert_eq!(self.rows(), size, "only a square matrix is inverted");
        let mut inverted = Matrix::from_fn(size, size, |row, column| u8::from(row == column));
        for pivot in 0..size {
            let scale = inverse(self.row(pivot)[pivot]);
            for cell in self.row_mut(pivot).iter_mut().chain(inverted.row_mut(pivot)) {
                *cell = mul(*cell, scale);
            }
            for row in (0..size).filter(|&row| row != pivot) {
                let factor = self.row(row)[pivot];
                self.add_row(row, pivot, factor);
                inverted.add_row(row, pivot, factor);
            }
        }
        inverted
    }
}

#[cfg(test)]
mod tests {
    use super::Matrix;
    use crate::cauchy::coefficient;
    use crate::field::mul;

    #[test]
    fn an_inverse_times_its_matrix_is_the_identity() {
        for size in 1..=8 {
            let matrix = Matrix::from_fn(size, size, |row, column| coefficient(row, 11 * column));
            let inverted = matrix.clone().cauchy_inverse();
            let product = Matrix::from_fn(size, size, |row, column| {
                (0..size).fold(0, |sum, i| sum ^ mul(inverted.row(row)[i], matrix.row(i)[column]))
            });
            assert_eq!(product, Matrix::from_fn(size, size, |row, column| u8::from(row == column)));
        }
    }
}
