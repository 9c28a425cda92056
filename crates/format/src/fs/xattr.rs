//! Values of extended attributes.
//!
//! ```text
//!  0   1  tag, 1
//!  1   *  the attribute's bytes, 0 to 65536, to the end
//! ```

use super::{BAD_TAG, FIELDS, TRAILING};
use crate::{Corrupt, Reader};

/// Longest value of an extended attribute, in bytes.
pub const XATTR_BYTES_MAX: usize = 64 << 10;

const TAG: u8 = 1;

/// Appends an attribute's value.
///
/// # Panics
/// If it is longer than [`XATTR_BYTES_MAX`].
pub fn encode_xattr(out: &mut Vec<u8>, value: &[u8]) {
    assert!(value.len() <= XATTR_BYTES_MAX, "the caller has refused longer values");
    out.push(TAG);
    out.extend_from_slice(value);
}

/// Decodes an attribute's value.
///
/// # Errors
/// Codes 401, 403 and 412.
pub fn decode_xattr(bytes: &[u8]) -> Result<&[u8], Corrupt> {
    let mut reader = Reader::new(bytes, &FIELDS);
    if reader.u8()? != TAG {
        return Err(BAD_TAG);
    }
    let value = reader.take_rest();
    if value.len() > XATTR_BYTES_MAX { Err(TRAILING) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        encode_xattr(&mut out, b"v");
        assert_eq!(out, [1, b'v']);
        assert_eq!(decode_xattr(&out), Ok(&b"v"[..]));
        assert_eq!(decode_xattr(&[0]), Err(BAD_TAG));
        assert!(decode_xattr(&[]).is_err());
    }
}
