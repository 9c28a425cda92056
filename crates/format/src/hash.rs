//! The checksum and the hash of keys. Their results are on flash, so neither function may ever change.

/// CRC32C (Castagnoli, reflected, as in iSCSI) of `bytes`: the only checksum of the format.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xe703_7ed1_a0b4_28db;
const K2: u64 = 0x8ebc_6af0_9c88_c6e3;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// The 64-bit hash of a key. The state starts from the length. Each little-endian word of 8 bytes is mixed in
/// by one multiplication of which the two halves are xored (the construction of wyhash). A last, shorter word
/// is padded with zeroes and mixed with a constant of its own.
#[must_use]
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    let mut h = K0 ^ (key.len() as u64).wrapping_mul(K1);
    let (words, tail) = key.as_chunks::<8>();
    for word in words {
        h = fold(h ^ u64::from_le_bytes(*word), K1);
    }
    if !tail.is_empty() {
        let mut word = [0; 8];
        word[..tail.len()].copy_from_slice(tail);
        h = fold(h ^ u64::from_le_bytes(word), K2);
    }
    fold(h ^ K2, K0)
}

#[cfg(test)]
mod tests {
    use super::{crc32c, key_hash};

    #[test]
    fn the_published_check_value_holds() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA, "RFC 3720, B.4: 32 bytes of zeroes");
    }

    #[test]
    fn the_hash_never_changes() {
        assert_eq!(key_hash(b""), GOLDEN[0]);
        assert_eq!(key_hash(b"warpfire"), GOLDEN[1]);
        assert_eq!(key_hash(b"a key that is longer"), GOLDEN[2]);
    }

    #[test]
    fn counted_keys_spread_over_every_part_of_the_hash() {
        for shift in [0, 16, 32, 48] {
            let mut buckets = vec![0u32; 256];
            for i in 0..65_536u64 {
                let key = format!("key{i:020}");
                buckets[(key_hash(key.as_bytes()) >> shift) as usize & 255] += 1;
            }
            let (least, most) = (buckets.iter().min().unwrap(), buckets.iter().max().unwrap());
            assert!(*least > 180 && *most < 340, "256 expected, {least}..{most} at bit {shift}");
        }
    }

    const GOLDEN: [u64; 3] = [0x9f32_5994_6eee_b43e, 0xa203_c78a_c9ff_6152, 0xc1a3_52fe_b78c_a41b];
}
