//! Numbers of one to ten bytes: seven bits a byte, low bits first, the high bit says that more follow.
//! A number has exactly one encoding: the last byte is not zero, except in the one-byte zero.

/// Appends `value`.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off the front; `None` if the bytes end too early or are not the number's one encoding.
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
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && byte > 1 {
            return None;
        }
        value |= bits << (7 * i);
        if byte < 0x80 {
            if byte == 0 {
                return None;
            }
            *bytes = bytes.get(i + 1..)?;
            return Some(value);
        }
    }
    None
}

/// Takes a number that must fit 32 bits.
#[inline]
pub(crate) fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    u32::try_from(take(bytes)?).ok()
}

/// Takes `len` bytes off the front.
#[inline]
pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_has_one_encoding() {
        assert_eq!(take(&mut &[0x80, 0x00][..]), None, "zero in two bytes");
        assert_eq!(take(&mut &[0xff; 10][..]), None, "beyond 64 bits");
        assert_eq!(take(&mut &[0x80][..]), None, "cut short");
        let mut largest = Vec::new();
        put(&mut largest, u64::MAX);
        assert_eq!(largest.len(), 10);
    }

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut out = Vec::new();
            put(&mut out, value);
            let mut rest = out.as_slice();
            prop_assert_eq!(take(&mut rest), Some(value));
            prop_assert!(rest.is_empty());
        }
    }
}
