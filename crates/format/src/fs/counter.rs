//! Counters: sums over a volume. A value and an operand have the same encoding.
//!
//! ```text
//!  0   1  tag, 1
//!  1   *  value: the sum; operand: the number to add to it (zigzag varint); sums wrap at 2^64
//! ```

use super::{BAD_TAG, FIELDS};
use crate::{Corrupt, Reader, varint};

/// Longest encoded counter, in bytes.
pub const COUNTER_BYTES_MAX: usize = 11;

const TAG: u8 = 1;

/// Appends a sum or an operand of one.
pub fn encode_counter(out: &mut Vec<u8>, value: i64) {
    out.push(TAG);
    varint::put_signed(out, value);
}

/// Decodes a sum or an operand of one.
///
/// # Errors
/// Codes 401, 402, 403 and 412.
pub fn decode_counter(bytes: &[u8]) -> Result<i64, Corrupt> {
    let mut reader = Reader::new(bytes, &FIELDS);
    if reader.u8()? != TAG {
        return Err(BAD_TAG);
    }
    let value = reader.signed()?;
    reader.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        encode_counter(&mut out, -3);
        assert_eq!(out, [1, 5]);
        assert_eq!(decode_counter(&out), Ok(-3));
        assert_eq!(decode_counter(&[0, 5]), Err(BAD_TAG));
    }
}
