//! The one checksum of the format: CRC32C (Castagnoli, reflected, as in iSCSI).

/// CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn the_published_check_value_holds() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA, "RFC 3720, B.4: 32 bytes of zeroes");
    }
}
