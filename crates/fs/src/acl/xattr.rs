//! The bytes of a list as the kernel and its tools exchange them: extended attribute format 2.
//!
//! ```text
//! offset  width  field
//!      0      4  version, 2, little-endian
//! then for each entry, in the order of the list
//!      0      2  tag: 0x01 owner · 0x02 user · 0x04 owning group · 0x08 group · 0x10 mask · 0x20 other
//!      2      2  permissions: 4 read | 2 write | 1 execute
//!      4      4  id of a user or group; 0xffffffff, and not looked at, for the other tags
//! ```

use super::entry::{Acl, AclError, ENTRIES_MAX, Entry, Perm, Tag};

/// The attribute that holds an inode's access list.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds what a directory gives to what is made in it.
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

pub(super) const HEADER_BYTES: usize = 4;
pub(super) const ENTRY_BYTES: usize = 8;

const VERSION: u32 = 2;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

impl Acl {
    /// Reads an attribute's value. `None` when it holds no entry, which asks for the list to be removed.
    pub fn from_xattr(value: &[u8]) -> Result<Option<Acl>, AclError> {
        let bad_length = AclError::Length(value.len());
        let (version, rest) = value.split_first_chunk::<HEADER_BYTES>().ok_or(bad_length)?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(AclError::Version(version));
        }
        let (raw_entries, tail) = rest.as_chunks::<ENTRY_BYTES>();
        if !tail.is_empty() || raw_entries.len() > ENTRIES_MAX {
            return Err(bad_length);
        }
        if raw_entries.is_empty() {
            return Ok(None);
        }
        let entries = raw_entries.iter().map(decode_entry).collect::<Result<Vec<_>, _>>()?;
        Acl::new(entries).map(Some)
    }

    /// The attribute's value.
    #[must_use]
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER_BYTES + self.entries().len() * ENTRY_BYTES);
        value.extend_from_slice(&VERSION.to_le_bytes());
        for entry in self.entries() {
            let (tag, id) = match entry.tag {
                Tag::Owner => (OWNER, NO_ID),
                Tag::User(id) => (USER, id),
                Tag::OwningGroup => (OWNING_GROUP, NO_ID),
                Tag::Group(id) => (GROUP, id),
                Tag::Mask => (MASK, NO_ID),
                Tag::Other => (OTHER, NO_ID),
            };
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&(entry.perm.bits() as u16).to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }
}

fn decode_entry(raw: &[u8; ENTRY_BYTES]) -> Result<Entry, AclError> {
    let [tag0, tag1, perm0, perm1, id @ ..] = *raw;
    let id = u32::from_le_bytes(id);
    let tag = match u16::from_le_bytes([tag0, tag1]) {
        OWNER => Tag::Owner,
        USER => Tag::User(id),
        OWNING_GROUP => Tag::OwningGroup,
        GROUP => Tag::Group(id),
        MASK => Tag::Mask,
        OTHER => Tag::Other,
        unknown => return Err(AclError::UnknownTag(unknown)),
    };
    let perm = u16::from_le_bytes([perm0, perm1]);
    if perm > 7 {
        return Err(AclError::UnknownPerm(perm));
    }
    Ok(Entry { tag, perm: Perm::from_bits(u32::from(perm)) })
}

#[cfg(test)]
mod tests {
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
        assert_eq!(acl.perm(Tag::User(10)), Some(Perm::READ.or(Perm::WRITE)));
        assert_eq!(acl.perm(Tag::Mask), Some(Perm::READ));
        assert_eq!(acl.to_xattr(), GOLDEN);
    }

    #[test]
    fn a_header_alone_asks_for_removal() {
        assert_eq!(Acl::from_xattr(&[2, 0, 0, 0]), Ok(None));
    }

    #[test]
    fn damaged_values_are_typed_errors() {
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
    fn arbitrary_bytes_never_panic_and_what_decodes_encodes_alike() {
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
