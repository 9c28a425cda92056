//! The field GF(2^8): bytes are polynomials over GF(2), modulo x^8 + x^4 + x^3 + x^2 + 1.
//!
//! The functions follow the definition, without tables. They serve to make matrices and never process data.
//! The oracle in [`crate::scalar`] multiplies by another method, and a test compares all 65,536 products.

/// The modulus without its leading x^8, the bit that a shift drops.
const MODULUS_LOW: u8 = 0x1d;

/// The product of two elements.
pub(crate) const fn mul(a: u8, b: u8) -> u8 {
    let mut product = 0;
    let mut shifted = a;
    let mut bit = 0;
    while bit < 8 {
        if (b >> bit) & 1 == 1 {
            product ^= shifted;
        }
        let overflow = shifted >> 7 == 1;
        shifted <<= 1;
        if overflow {
            shifted ^= MODULUS_LOW;
        }
        bit += 1;
    }
    product
}

/// The multiplicative inverse: its product with `a` is 1.
///
/// # Panics
/// If `a` is zero, which has no inverse.
pub(crate) const fn inverse(a: u8) -> u8 {
    assert!(a != 0, "only zero has no inverse");
    // The multiplicative group has 255 elements, so a^254 · a = 1. 254 = 2 + 4 + … + 128.
    let mut square = mul(a, a);
    let mut power = square;
    let mut step = 2;
    while step < 8 {
        square = mul(square, square);
        power = mul(power, square);
        step += 1;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::{inverse, mul};
    use crate::scalar;

    #[test]
    fn every_product_agrees_with_the_oracle() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), scalar::product(a, b), "{a} · {b}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        for a in 1..=255 {
            assert_eq!(mul(a, inverse(a)), 1, "{a}");
            assert_eq!(inverse(a), scalar::inverse(a), "{a}");
        }
    }

    #[test]
    fn the_modulus_is_11d() {
        assert_eq!(mul(0x80, 2), 0x1d);
    }
}
