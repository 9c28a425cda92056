//! A second implementation of the erasure code, by the plainest method. Tests use it as the oracle for every
//! kernel. The offline check uses it so that it does not trust the code that wrote the pool.
//!
//! It shares no code with the rest of the crate: products come from tables of logarithms, and recovery solves
//! all k equations instead of only those of the lost shards. It is safe code, and slow: about 2 GB/s for one
//! parity row.

/// `power[e]` is the generator 2 to the power e, for e below 510, so that the sum of two logarithms needs no
/// reduction. `logarithm` is its inverse.
struct Tables {
    power: [u8; 510],
    logarithm: [u8; 256],
}

static TABLES: Tables = tables();

const fn tables() -> Tables {
    let mut made = Tables { power: [0; 510], logarithm: [0; 256] };
    let mut value: u16 = 1;
    let mut exponent: u8 = 0;
    while exponent < 255 {
        made.power[exponent as usize] = value as u8;
        made.power[exponent as usize + 255] = value as u8;
        made.logarithm[value as usize] = exponent;
        value <<= 1;
        // Reduction modulo x^8 + x^4 + x^3 + x^2 + 1.
        if value > 255 {
            value ^= 0x11d;
        }
        exponent += 1;
    }
    made
}

/// The product of two field elements.
#[must_use]
pub fn product(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let exponent = TABLES.logarithm[usize::from(a)] as usize + TABLES.logarithm[usize::from(b)] as usize;
    TABLES.power[exponent]
}

/// The multiplicative inverse: its product with `a` is 1.
///
/// # Panics
/// If `a` is zero, which has no inverse.
#[must_use]
pub fn inverse(a: u8) -> u8 {
    assert!(a != 0, "only zero has no inverse");
    TABLES.power[255 - usize::from(TABLES.logarithm[usize::from(a)])]
}

/// The coefficient of data column `column` in parity row `row`.
///
/// # Panics
/// If `row` + `column` is 255 or more. No code has so many columns.
#[must_use]
pub fn coefficient(row: usize, column: usize) -> u8 {
    let x = u8::try_from(255 - row).expect("255 less a row fits a byte");
    let y = u8::try_from(column).expect("columns are numbered below 255");
    product(x, inverse(x ^ y))
}

/// `sum += factor · source` in the field, byte by byte, up to the end of the shorter slice.
pub fn add_scaled(sum: &mut [u8], factor: u8, source: &[u8]) {
    for (to, &from) in sum.iter_mut().zip(source) {
        *to ^= product(factor, from);
    }
}

/// Parity row `row` of the shards `data`, which all have one length.
#[must_use]
pub fn parity(data: &[&[u8]], row: usize) -> Vec<u8> {
    let mut sum = vec![0; data.first().map_or(0, |shard| shard.len())];
    for (column, shard) in data.iter().enumerate() {
        add_scaled(&mut sum, coefficient(row, column), shard);
    }
    sum
}

/// All `data` data columns of a code, computed from the shards in `present` (shard number, bytes). `None` if
/// these are too few.
#[must_use]
pub fn recover_data(data: usize, present: &[(usize, &[u8])]) -> Option<Vec<Vec<u8>>> {
    // Gauss-Jordan elimination over one equation for each present shard: coefficients on the left, bytes on
    // the right.
    let mut equations: Vec<(Vec<u8>, Vec<u8>)> =
        present.iter().map(|&(shard, bytes)| (left_side(data, shard), bytes.to_vec())).collect();
    for column in 0..data {
        let usable = (column..equations.len()).find(|&row| equations[row].0[column] != 0)?;
        equations.swap(column, usable);
        let (mut left, mut right) = equations[column].clone();
        let scale = inverse(left[column]);
        for byte in left.iter_mut().chain(&mut right) {
            *byte = product(scale, *byte);
        }
        for (row, equation) in equations.iter_mut().enumerate() {
            let factor = equation.0[column];
            if row != column && factor != 0 {
                add_scaled(&mut equation.0, factor, &left);
                add_scaled(&mut equation.1, factor, &right);
            }
        }
        equations[column] = (left, right);
    }
    Some(equations.into_iter().take(data).map(|(_, right)| right).collect())
}

/// The coefficients with which the data columns add up to `shard`: one 1 for a data shard, a parity row
/// otherwise.
fn left_side(data: usize, shard: usize) -> Vec<u8> {
    match shard.checked_sub(data) {
        Some(row) => (0..data).map(|column| coefficient(row, column)).collect(),
        None => (0..data).map(|column| u8::from(column == shard)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{parity, recover_data};

    #[test]
    fn lost_data_comes_back_from_parity() {
        let data: [&[u8]; 3] = [b"one", b"two", b"six"];
        let (p, q) = (parity(&data, 0), parity(&data, 1));
        let recovered = recover_data(3, &[(4, &q), (1, data[1]), (3, &p)]);
        assert_eq!(recovered, Some(data.map(<[u8]>::to_vec).to_vec()));
    }

    #[test]
    fn too_few_shards_recover_nothing() {
        let data: [&[u8]; 3] = [b"one", b"two", b"six"];
        assert_eq!(recover_data(3, &[(1, data[1]), (3, &parity(&data, 0))]), None);
    }
}
