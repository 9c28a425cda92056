//! Varints: numbers of one to ten bytes. Each byte holds seven bits, low bits first; its high bit says that
//! another byte follows. A number has exactly one encoding: the last byte is not zero, except in the number
//! zero.

/// Bytes of the largest number.
pub(crate) const BYTES_MAX: usize = 10;

/// Appends `value`.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number, zigzag: 0, -1, 1, -2 become 0, 1, 2, 3.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Takes a number off the front. `None` if the bytes end too early or are not the only encoding of the
/// number; `bytes` is then unchanged.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(u64::from(first));
    }
    take_long(bytes)
}

fn take_long(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().enumerate().take(BYTES_MAX) {
        let bits = u64::from(byte & 0x7f);
        // Nine bytes hold 63 bits, so the tenth has one bit left.
        if i == BYTES_MAX - 1 && byte > 1 {
            return None;
        }
        value |= bits << (7 * i);
        if byte < 0x80 {
            // A last byte of zero adds nothing: the number has a shorter encoding.
            if byte == 0 {
                return None;
            }
            *bytes = bytes.get(i + 1..)?;
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_encoding() {
        assert_eq!(take(&mut &[0x80, 0x00][..]), None, "zero in two bytes");
        assert_eq!(take(&mut &[0xff; 10][..]), None, "beyond 64 bits");
        assert_eq!(take(&mut &[0x80][..]), None, "cut short");
        let mut largest = Vec::new();
        put(&mut largest, u64::MAX);
        assert_eq!(largest.len(), BYTES_MAX);
    }

    #[test]
    fn signed_numbers_alternate() {
        let mut out = Vec::new();
        for n in [0, -1, 1, -2] {
            put_signed(&mut out, n);
        }
        assert_eq!(out, [0, 1, 2, 3]);
    }
}
