//! The parity matrix: one fixed table. The matrix of each code is its upper left corner.
//!
//! Row i belongs to parity column i, column j to data column j. With x = 255 − i:
//!
//! ```text
//!   c(i, j) = x / (x XOR j)
//! ```
//!
//! 1. The table does not depend on k or m. A missing data column acts like a column of zeros, so stripes of
//!    every width share their coefficients, and one more parity column leaves the others unchanged (test
//!    `a_narrow_code_is_the_corner_of_a_wide_one`).
//! 2. It is the Cauchy matrix 1 / (x_i XOR y_j) with x_i = 255 − i and y_j = j; each row is scaled by x_i.
//!    All x and y of one code differ, because i + j ≤ 248 < 255. So every square submatrix is invertible, and
//!    any k shards determine the data.
//! 3. c(i, 0) = 1: with one data column, each parity shard is a copy. Mirrors need no special case (test
//!    `the_first_column_is_ones`).

use warpfire_units::{COLUMNS_MAX, PARITY_MAX};

use crate::field::{inverse, mul};
use crate::matrix::Matrix;

/// x of parity row 0; row i has this value minus i.
const FIRST_ROW_POINT: usize = 255;

// i + j stays below 255 for every row i < m and column j < k, so x XOR j is never zero (rule 2).
const _: () = assert!(COLUMNS_MAX < FIRST_ROW_POINT && PARITY_MAX < COLUMNS_MAX);

/// The coefficient of data column `column` in parity row `row`.
///
/// # Panics
/// Unless some code has both: `row` < [`PARITY_MAX`] and `row` + `column` + 2 ≤ [`COLUMNS_MAX`].
pub(crate) fn coefficient(row: usize, column: usize) -> u8 {
    assert!(row < PARITY_MAX && row + column + 2 <= COLUMNS_MAX, "some code has this row and this column");
    let x = element(FIRST_ROW_POINT - row);
    mul(x, inverse(x ^ element(column)))
}

/// The first `parity` rows and `data` columns.
pub(crate) fn parity_matrix(data: usize, parity: usize) -> Matrix {
    Matrix::from_fn(parity, data, coefficient)
}

fn element(number: usize) -> u8 {
    u8::try_from(number).expect("rows and columns are numbered below 256")
}

#[cfg(test)]
mod tests {
    use super::{PARITY_MAX, coefficient, parity_matrix};
    use crate::scalar;

    #[test]
    fn the_first_column_is_ones() {
        for row in 0..PARITY_MAX {
            assert_eq!(coefficient(row, 0), 1);
        }
    }

    #[test]
    fn no_coefficient_is_zero_and_the_oracle_agrees() {
        for row in 0..PARITY_MAX {
            for column in 0..249 - row {
                assert_ne!(coefficient(row, column), 0);
                assert_eq!(coefficient(row, column), scalar::coefficient(row, column));
            }
        }
    }

    #[test]
    fn every_square_submatrix_of_two_rows_is_invertible() {
        // Cauchy's determinant proves it for all sizes. Submatrices of two rows are few enough to try them
        // all.
        for (a, b) in (0..PARITY_MAX).flat_map(|b| (0..b).map(move |a| (a, b))) {
            for (c, d) in (0..249 - b).flat_map(|d| (0..d).map(move |c| (c, d))) {
                let across = scalar::product(coefficient(a, c), coefficient(b, d));
                let back = scalar::product(coefficient(a, d), coefficient(b, c));
                assert_ne!(across, back, "rows {a} and {b}, columns {c} and {d}");
            }
        }
    }

    #[test]
    fn a_narrow_code_is_the_corner_of_a_wide_one() {
        let (wide, narrow) = (parity_matrix(242, 8), parity_matrix(3, 2));
        for row in 0..2 {
            assert_eq!(narrow.row(row), &wide.row(row)[..3]);
        }
    }
}
