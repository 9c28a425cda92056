//! Access control lists: the values of the two attributes `system.posix_acl_*`. The encoding is version 2 of
//! Linux, which the kernel and its tools use too.
//!
//! ```text
//! offset  width  field
//!      0      4  version, 2
//! then for each entry, in the order of the list
//!      0      2  tag: 0x01 owner · 0x02 user · 0x04 owning group · 0x08 group · 0x10 mask · 0x20 other
//!      2      2  permissions: 4 read | 2 write | 1 execute
//!      4      4  id of a user or group; for the other tags 0xffffffff, which a reader ignores
//! ```
//!
//! This module encodes and decodes. Its callers decide which entries make a valid list.

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// Most entries of one list: they fill an extended attribute of 64 KiB, the kernel's limit.
pub const ACL_ENTRIES_MAX: usize = (super::XATTR_BYTES_MAX - HEADER_BYTES) / ENTRY_BYTES;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// The subject of an entry. The order of variants is the order of entries in a list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AclTag {
    /// The inode's owner.
    Owner,
    /// The user with this id.
    User(u32),
    /// The inode's group.
    OwningGroup,
    /// The group with this id.
    Group(u32),
    /// The most that named users, named groups and the owning group can have.
    Mask,
    /// Everyone else.
    Other,
}

impl AclTag {
    /// Whether the tag names one user or one group.
    #[must_use]
    pub fn is_named(self) -> bool {
        matches!(self, AclTag::User(_) | AclTag::Group(_))
    }
}

/// Why bytes are not an encoded list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclCodingError {
    /// The bytes are not a header and whole entries, or there are too many entries.
    Length,
    /// The version is not 2.
    Version(u32),
    /// The tag has no meaning.
    UnknownTag(u16),
    /// Bits other than read, write and execute are set.
    UnknownPermissions(u16),
}

/// Length in bytes of a value with `entries` entries.
#[must_use]
pub const fn acl_bytes(entries: usize) -> usize {
    HEADER_BYTES + entries * ENTRY_BYTES
}

/// Decodes the entries of an attribute's value in order, each as tag and permissions. The list may be empty.
///
/// # Errors
/// [`AclCodingError`], at once for the whole value or from the iterator for one entry.
pub fn decode_acl(
    value: &[u8],
) -> Result<impl ExactSizeIterator<Item = Result<(AclTag, u8), AclCodingError>>, AclCodingError> {
    let (version, rest) = value.split_first_chunk::<HEADER_BYTES>().ok_or(AclCodingError::Length)?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(AclCodingError::Version(version));
    }
    let (entries, tail) = rest.as_chunks::<ENTRY_BYTES>();
    if !tail.is_empty() || entries.len() > ACL_ENTRIES_MAX {
        return Err(AclCodingError::Length);
    }
    Ok(entries.iter().map(decode_entry))
}

fn decode_entry(raw: &[u8; ENTRY_BYTES]) -> Result<(AclTag, u8), AclCodingError> {
    let [tag0, tag1, permissions0, permissions1, id @ ..] = *raw;
    let id = u32::from_le_bytes(id);
    let tag = match u16::from_le_bytes([tag0, tag1]) {
        OWNER => AclTag::Owner,
        USER => AclTag::User(id),
        OWNING_GROUP => AclTag::OwningGroup,
        GROUP => AclTag::Group(id),
        MASK => AclTag::Mask,
        OTHER => AclTag::Other,
        unknown => return Err(AclCodingError::UnknownTag(unknown)),
    };
    match u16::from_le_bytes([permissions0, permissions1]) {
        permissions @ 0..=7 => Ok((tag, permissions as u8)),
        unknown => Err(AclCodingError::UnknownPermissions(unknown)),
    }
}

/// Encodes an attribute's value.
///
/// # Panics
/// If there are more than [`ACL_ENTRIES_MAX`] entries or permissions have more than three bits.
#[must_use]
pub fn encode_acl(entries: impl ExactSizeIterator<Item = (AclTag, u8)>) -> Vec<u8> {
    assert!(entries.len() <= ACL_ENTRIES_MAX, "a list fits an attribute");
    let mut value = Vec::with_capacity(acl_bytes(entries.len()));
    value.extend_from_slice(&VERSION.to_le_bytes());
    for (tag, permissions) in entries {
        assert!(permissions <= 7, "permissions are three bits");
        let (tag, id) = match tag {
            AclTag::Owner => (OWNER, NO_ID),
            AclTag::User(id) => (USER, id),
            AclTag::OwningGroup => (OWNING_GROUP, NO_ID),
            AclTag::Group(id) => (GROUP, id),
            AclTag::Mask => (MASK, NO_ID),
            AclTag::Other => (OTHER, NO_ID),
        };
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&u16::from(permissions).to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
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

    fn decode(value: &[u8]) -> Result<Vec<(AclTag, u8)>, AclCodingError> {
        decode_acl(value)?.collect()
    }

    #[test]
    fn golden_bytes_decode_and_encode() {
        let entries = [
            (AclTag::Owner, 7),
            (AclTag::User(10), 6),
            (AclTag::OwningGroup, 5),
            (AclTag::Group(20), 7),
            (AclTag::Mask, 4),
            (AclTag::Other, 1),
        ];
        assert_eq!(decode(&GOLDEN).unwrap(), entries);
        assert!(entries.is_sorted(), "tags sort as a list has them");
        assert_eq!(encode_acl(entries.into_iter()), GOLDEN);
        assert_eq!(decode(&GOLDEN[..4]), Ok(vec![]));
    }

    #[test]
    fn damaged_values_are_typed_errors() {
        assert_eq!(decode(&[]), Err(AclCodingError::Length));
        assert_eq!(decode(&[1, 0, 0, 0]), Err(AclCodingError::Version(1)));
        assert_eq!(decode(&GOLDEN[..51]), Err(AclCodingError::Length));
        let longest = [&GOLDEN[..4], &[1, 0, 7, 0, 0, 0, 0, 0].repeat(ACL_ENTRIES_MAX)].concat();
        assert_eq!(decode(&longest).map(|entries| entries.len()), Ok(ACL_ENTRIES_MAX));
        assert_eq!(decode(&[&longest[..], &[0; 8]].concat()), Err(AclCodingError::Length));
        let with = |at: usize, byte: u8| {
            let mut value = GOLDEN;
            value[at] = byte;
            decode(&value)
        };
        assert_eq!(with(4, 0), Err(AclCodingError::UnknownTag(0)));
        assert_eq!(with(6, 8), Err(AclCodingError::UnknownPermissions(8)));
    }
}
