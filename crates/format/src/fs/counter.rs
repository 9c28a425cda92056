//! Sums. Value and operand look alike.
//!
//! ```text
//!  0   1  tag, 1
//!  1   *  sum, or what is added to it (zigzag varint); sums wrap at 2^64
//! ```

use super::{BAD_TAG, FIELDS};
use crate::{Corrupt, Reader, varint};

/// Longest encoded counter.
pub const COUNTER_BYTES_MAX: usize = 11;

const TAG: u8 = 1;

/// Writes a sum, or an addition to one.
pub fn encode_counter(out: &mut Vec<u8>, value: i64) {
    out.push(TAG);
    varint::put_signed(out, value);
}

/// Reads a sum, or an addition to one.
///
/// # Errors
/// If the bytes are no counter.
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
