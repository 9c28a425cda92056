//! Tools of all decoders: the error that they return and the reader that takes fields off the front of bytes.

use crate::varint;

/// Bytes that do not decode. The code is permanent: `docs/FORMAT.md`, "Corruption codes".
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("corrupt ({code}): {reason}")]
pub struct Corrupt {
    /// Permanent number of this kind of corruption.
    pub code: u16,
    /// The broken rule, in plain English.
    pub reason: &'static str,
}

impl Corrupt {
    /// A corruption of kind `code`. Product code calls this for named constants only and with a literal,
    /// because a test of the repository reads the codes from the source.
    #[must_use]
    pub const fn new(code: u16, reason: &'static str) -> Self {
        Corrupt { code, reason }
    }
}

/// The errors that a [`Reader`] returns when it cannot take a field. Each structure has one set of them.
#[derive(Debug)]
pub struct FieldErrors {
    /// The bytes end before the field does.
    pub short: Corrupt,
    /// A varint is longer than its number needs, or its number is too large.
    pub varint: Corrupt,
    /// Bytes follow the last field.
    pub trailing: Corrupt,
}

impl FieldErrors {
    /// One error for all three cases.
    #[must_use]
    pub const fn all(error: Corrupt) -> Self {
        FieldErrors { short: error, varint: error, trailing: error }
    }
}

/// Takes fields off the front of a byte string. Fixed-width fields are little-endian. When a field cannot be
/// taken, the reader stays where it is and returns the error of its structure.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    errors: &'static FieldErrors,
}

impl<'a> Reader<'a> {
    /// Reads from the front of `bytes`.
    #[must_use]
    #[inline]
    pub fn new(bytes: &'a [u8], errors: &'static FieldErrors) -> Self {
        Reader { rest: bytes, errors }
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(self.errors.short)?;
        self.rest = rest;
        Ok(*head)
    }

    /// The next `len` bytes.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(self.errors.short)?;
        self.rest = rest;
        Ok(head)
    }

    /// The next byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Corrupt> {
        self.array::<1>().map(|[b]| b)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, Corrupt> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, Corrupt> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, Corrupt> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, Corrupt> {
        self.array().map(u128::from_le_bytes)
    }

    /// The next varint.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Corrupt> {
        match varint::take(&mut self.rest) {
            Some(value) => Ok(value),
            None => Err(self.varint_error()),
        }
    }

    /// Chooses the error of a varint that could not be taken: too few bytes, or bytes that are no varint.
    #[cold]
    fn varint_error(&self) -> Corrupt {
        // If every byte announces another one and there is room for more, only the end of the bytes is to
        // blame.
        let ends_early = self.rest.len() < varint::BYTES_MAX && self.rest.iter().all(|byte| *byte >= 0x80);
        if ends_early { self.errors.short } else { self.errors.varint }
    }

    /// The next varint. Its number must fit 32 bits.
    #[inline]
    pub fn varint32(&mut self) -> Result<u32, Corrupt> {
        u32::try_from(self.varint()?).map_err(|_| self.errors.varint)
    }

    /// The next varint as a signed number in zigzag order, in which numbers near zero are short.
    pub fn signed(&mut self) -> Result<i64, Corrupt> {
        let raw = self.varint()?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// The bytes that have not been taken yet.
    #[must_use]
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes all bytes that are left.
    #[inline]
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// An error unless every byte has been taken.
    #[inline]
    pub fn end(&self) -> Result<(), Corrupt> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.errors.trailing) }
    }
}

/// Returns `otherwise` as an error unless every byte is zero. Padding is verified so that it can get a
/// meaning in a later version.
pub(crate) fn only_zeroes(padding: &[u8], otherwise: Corrupt) -> Result<(), Corrupt> {
    if padding.iter().all(|b| *b == 0) { Ok(()) } else { Err(otherwise) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    static ERRORS: FieldErrors = FieldErrors {
        short: Corrupt::new(1, "short"),
        varint: Corrupt::new(2, "varint"),
        trailing: Corrupt::new(3, "trailing"),
    };

    fn reader(bytes: &[u8]) -> Reader<'_> {
        Reader::new(bytes, &ERRORS)
    }

    #[test]
    fn fields_come_off_the_front_in_order_until_the_bytes_end() {
        let mut r = reader(&[1, 2, 0, 3, 0, 0, 0, 9]);
        assert_eq!(r.u8(), Ok(1));
        assert_eq!(r.u16(), Ok(2));
        assert_eq!(r.u32(), Ok(3));
        assert_eq!(r.u16(), Err(ERRORS.short));
        assert_eq!(r.rest(), [9], "a failed read takes nothing");
        assert_eq!(r.end(), Err(ERRORS.trailing));
        assert_eq!(only_zeroes(r.rest(), ERRORS.varint), Err(ERRORS.varint));
        assert_eq!(r.take_rest(), [9]);
        assert_eq!(r.end(), Ok(()));
    }

    #[test]
    fn a_varint_that_ends_early_has_another_error_than_a_wrong_one() {
        for short in [&[][..], &[0x80], &[0xff; 9]] {
            assert_eq!(reader(short).varint(), Err(ERRORS.short));
        }
        for wrong in [&[0x80, 0x00][..], &[0x80, 0x00, 1], &[0xff; 10], &[0xff; 11]] {
            assert_eq!(reader(wrong).varint(), Err(ERRORS.varint));
        }
        assert_eq!(reader(&[0xff, 0xff, 0xff, 0xff, 0x0f]).varint32(), Ok(u32::MAX));
        assert_eq!(reader(&[0x80, 0x80, 0x80, 0x80, 0x10]).varint32(), Err(ERRORS.varint));
    }

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, shift in 0u32..64, signed: i64) {
            let value = value >> shift;
            let mut out = Vec::new();
            varint::put(&mut out, value);
            varint::put_signed(&mut out, signed);
            let mut r = reader(&out);
            prop_assert_eq!(r.varint(), Ok(value));
            prop_assert_eq!(r.signed(), Ok(signed));
            prop_assert_eq!(r.end(), Ok(()));
        }
    }
}
