//! Reading and writing of the pieces that values are made of.

use super::{BAD_VARINT, TRAILING, TRUNCATED};
use crate::Corrupt;

/// What is left to decode of a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn u8(&mut self) -> Result<u8, Corrupt> {
        let (&first, rest) = self.0.split_first().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(first)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Corrupt> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Corrupt> {
        self.array().map(u32::from_le_bytes)
    }

    /// Little-endian base 128, at most ten bytes, no needless trailing zero group.
    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, Corrupt> {
        let mut value = 0u64;
        for (i, &byte) in self.0.iter().enumerate().take(10) {
            let group = u64::from(byte & 0x7f);
            if (i == 9 && byte > 1) || (byte == 0 && i > 0) {
                return Err(BAD_VARINT);
            }
            value |= group << (7 * i);
            if byte & 0x80 == 0 {
                self.0 = self.0.split_at(i + 1).1;
                return Ok(value);
            }
        }
        Err(if self.0.len() < 10 { TRUNCATED } else { BAD_VARINT })
    }

    /// A varint whose value fits 32 bits.
    pub(super) fn varint32(&mut self) -> Result<u32, Corrupt> {
        u32::try_from(self.varint()?).map_err(|_| BAD_VARINT)
    }

    /// A signed number, small magnitudes short (zigzag).
    pub(super) fn signed(&mut self) -> Result<i64, Corrupt> {
        let raw = self.varint()?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let (first, rest) = self.0.split_at_checked(len).ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn end(self) -> Result<(), Corrupt> {
        if self.0.is_empty() { Ok(()) } else { Err(TRAILING) }
    }
}

#[inline]
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back(v: u64, s: i64) {
            let mut out = Vec::new();
            put_varint(&mut out, v);
            put_signed(&mut out, s);
            let mut input = Input(&out);
            prop_assert_eq!(input.varint(), Ok(v));
            prop_assert_eq!(input.signed(), Ok(s));
            prop_assert_eq!(input.end(), Ok(()));
        }
    }

    #[test]
    fn a_varint_has_one_spelling() {
        assert_eq!(Input(&[0x80, 0x00]).varint(), Err(BAD_VARINT));
        assert_eq!(Input(&[0xff; 11]).varint(), Err(BAD_VARINT));
        assert_eq!(Input(&[0x80]).varint(), Err(TRUNCATED));
    }
}
