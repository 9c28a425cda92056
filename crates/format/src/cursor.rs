//! Reading little-endian fields from bytes that nobody has checked yet.

use crate::Corrupt;

/// Takes fields off the front of a byte string. Running out is the `Corrupt` that the cursor was made with.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
    short: Corrupt,
}

impl<'a> Cursor<'a> {
    /// Reads from the front of `bytes`; `short` is the error when they end too early.
    #[must_use]
    pub fn new(bytes: &'a [u8], short: Corrupt) -> Self {
        Cursor { rest: bytes, short }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(self.short)?;
        self.rest = rest;
        Ok(*head)
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(self.short)?;
        self.rest = rest;
        Ok(head)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, Corrupt> {
        self.array::<1>().map(|[b]| b)
    }

    /// The next two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16, Corrupt> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, Corrupt> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, Corrupt> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next sixteen bytes, little-endian.
    pub fn u128(&mut self) -> Result<u128, Corrupt> {
        self.array().map(u128::from_le_bytes)
    }

    /// What has not been taken yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// `otherwise` unless everything left is zero: padding is verified, not ignored.
    pub fn only_zeroes_left(&self, otherwise: Corrupt) -> Result<(), Corrupt> {
        if self.rest.iter().all(|b| *b == 0) { Ok(()) } else { Err(otherwise) }
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;
    use crate::Corrupt;

    const SHORT: Corrupt = Corrupt::new(1, "short");

    #[test]
    fn fields_come_off_the_front_in_order_until_the_bytes_end() {
        let mut c = Cursor::new(&[1, 2, 0, 3, 0, 0, 0, 9], SHORT);
        assert_eq!(c.u8(), Ok(1));
        assert_eq!(c.u16(), Ok(2));
        assert_eq!(c.u32(), Ok(3));
        assert_eq!(c.u16(), Err(SHORT));
        assert_eq!(c.rest(), [9], "a failed read takes nothing");
        assert_eq!(c.only_zeroes_left(Corrupt::new(2, "padding")), Err(Corrupt::new(2, "padding")));
    }
}
