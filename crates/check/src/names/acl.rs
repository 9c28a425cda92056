//! The rules of a valid access control list.

use warpfire_format::fs::{AclCodingError, AclTag, decode_acl};

/// The fault of an attribute's value as an access control list. `None` if the list is valid.
pub(super) fn fault(value: &[u8]) -> Option<&'static str> {
    let entries = match decode_acl(value).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Ok(entries) => entries,
        Err(AclCodingError::Length) => return Some("does not consist of whole entries"),
        Err(AclCodingError::Version(_)) => return Some("has an unknown version"),
        Err(AclCodingError::UnknownTag(_)) => return Some("has an entry of an unknown kind"),
        Err(AclCodingError::UnknownPermissions(_)) => return Some("has permissions beyond rwx"),
    };
    if entries.is_empty() {
        return Some("has no entry");
    }
    let mut tags: Vec<AclTag> = entries.into_iter().map(|(tag, _)| tag).collect();
    if ![AclTag::Owner, AclTag::OwningGroup, AclTag::Other].iter().all(|needed| tags.contains(needed)) {
        return Some("lacks owner, group or other");
    }
    // Without a mask the kernel cannot limit the named entries by the group bits of the mode.
    if tags.iter().any(|tag| tag.is_named()) && !tags.contains(&AclTag::Mask) {
        return Some("names users or groups and has no mask");
    }
    let given = tags.len();
    tags.sort_unstable();
    tags.dedup();
    (tags.len() < given).then_some("has an entry twice")
}

#[cfg(test)]
mod tests {
    use super::fault;

    const GOOD: [u8; 44] = [
        2, 0, 0, 0, //
        1, 0, 7, 0, 255, 255, 255, 255, //
        2, 0, 6, 0, 10, 0, 0, 0, //
        4, 0, 5, 0, 255, 255, 255, 255, //
        16, 0, 4, 0, 255, 255, 255, 255, //
        32, 0, 1, 0, 255, 255, 255, 255,
    ];

    #[test]
    fn a_valid_list_has_no_fault_and_each_invalid_one_has_one() {
        assert_eq!(fault(&GOOD), None);
        assert!(fault(&GOOD[..43]).is_some());
        assert!(fault(&GOOD[..4]).is_some());
        assert!(fault(&[]).is_some());
        for (at, value) in [(0, 1), (4, 3), (4, 4), (6, 8), (28, 32), (20, 16)] {
            let mut bad = GOOD;
            bad[at] = value;
            assert!(fault(&bad).is_some(), "byte {at} set to {value}");
        }
    }
}
