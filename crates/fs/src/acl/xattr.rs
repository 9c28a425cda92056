//! Lists as values of attributes. `warpfire_format::fs` encodes and decodes the bytes.

use warpfire_format::fs::{AclCodingError, decode_acl, encode_acl};

use super::entry::{Acl, AclEntry, AclError, Perm};

/// The attribute that holds an inode's access list.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds a directory's default list.
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

impl Acl {
    /// The list in an attribute's value; `None` for a value without entries, which asks for the removal of
    /// the list.
    pub fn from_xattr(value: &[u8]) -> Result<Option<Acl>, AclError> {
        let refused = |error| match error {
            AclCodingError::Length => AclError::Length(value.len()),
            AclCodingError::Version(version) => AclError::Version(version),
            AclCodingError::UnknownTag(tag) => AclError::UnknownTag(tag),
            AclCodingError::UnknownPermissions(bits) => AclError::UnknownPerm(bits),
        };
        let raw = decode_acl(value).map_err(refused)?;
        if raw.len() == 0 {
            return Ok(None);
        }
        let entry = |(tag, bits)| AclEntry { tag, perm: Perm::from_bits(u32::from(bits)) };
        let entries = raw.map(|raw| raw.map(entry).map_err(refused)).collect::<Result<Vec<_>, _>>()?;
        Acl::new(entries).map(Some)
    }

    /// The attribute's value.
    #[must_use]
    pub fn to_xattr(&self) -> Vec<u8> {
        encode_acl(self.entries().map(|entry| (entry.tag, entry.perm.bits() as u8)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::AclTag;
    use super::*;

    /// `setfacl -m u:10:rw,g:20:rwx,m::r` on a file of mode 0751, read back with getfattr.
    const GOLDEN: [u8; 52] = [
        2, 0, 0, 0, //
        1, 0, 7, 0, 255, 255, 255, 255, //
        2, 0, 6, 0, 10, 0, 0, 0, //
        4, 0, 5, 0, 255, 255, 255, 255, //
        8, 0, 7, 0, 20, 0, 0, 0, //
        16, 0, 4, 0, 255, 255, 255, 255, //
        32, 0, 1, 0, 255, 255, 255, 255,
    ];

    #[test]
    fn golden_bytes_decode_and_encode() {
        let acl = Acl::from_xattr(&GOLDEN).unwrap().unwrap();
        assert_eq!(acl.perm(AclTag::User(10)), Some(Perm::READ.or(Perm::WRITE)));
        assert_eq!(acl.perm(AclTag::Mask), Some(Perm::READ));
        assert_eq!(acl.to_xattr(), GOLDEN);
    }

    #[test]
    fn a_header_alone_asks_for_removal() {
        assert_eq!(Acl::from_xattr(&[2, 0, 0, 0]), Ok(None));
    }

    #[test]
    fn malformed_values_are_typed_errors() {
        assert_eq!(Acl::from_xattr(&[]), Err(AclError::Length(0)));
        assert_eq!(Acl::from_xattr(&[1, 0, 0, 0]), Err(AclError::Version(1)));
        assert_eq!(Acl::from_xattr(&GOLDEN[..51]), Err(AclError::Length(51)));
        let with = |at: usize, byte: u8| {
            let mut value = GOLDEN;
            value[at] = byte;
            Acl::from_xattr(&value)
        };
        assert_eq!(with(4, 0), Err(AclError::UnknownTag(0)));
        assert_eq!(with(6, 8), Err(AclError::UnknownPerm(8)));
        assert_eq!(with(4, 2), Err(AclError::NoId));
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_a_decoded_list_encodes_alike() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut decoded = 0;
        for _ in 0..20_000 {
            let mut value = GOLDEN.to_vec();
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % value.len();
                value[at] = (state >> 24) as u8;
            }
            value.truncate(52 - (state >> 50) as usize % 12);
            if let Ok(Some(acl)) = Acl::from_xattr(&value) {
                decoded += 1;
                assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(Some(acl)));
            }
        }
        assert!(decoded > 100, "the mutations leave some lists valid: {decoded}");
    }
}
