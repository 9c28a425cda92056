//! Access control lists, as attributes hold them: extended attribute format 2 of Linux.
//!
//! ```text
//! offset  width  field
//!      0      4  version, 2
//! then for each entry
//!      0      2  tag: 1 owner · 2 user · 4 owning group · 8 group · 16 mask · 32 other
//!      2      2  permissions, 3 bits
//!      4      4  id of a user or group
//! ```

const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// What is wrong with a list, if something is.
pub(super) fn fault(value: &[u8]) -> Option<&'static str> {
    let Some((version, rest)) = value.split_first_chunk::<4>() else { return Some("is too short") };
    if u32::from_le_bytes(*version) != 2 {
        return Some("is of an unknown version");
    }
    let (entries, tail) = rest.as_chunks::<8>();
    if !tail.is_empty() || entries.is_empty() {
        return Some("is not whole entries");
    }
    let mut tags = Vec::with_capacity(entries.len());
    for [tag_low, tag_high, perm_low, perm_high, id @ ..] in entries {
        let tag = u16::from_le_bytes([*tag_low, *tag_high]);
        if u16::from_le_bytes([*perm_low, *perm_high]) > 7 {
            return Some("has permissions beyond rwx");
        }
        let named = matches!(tag, USER | GROUP);
        tags.push((tag, if named { u32::from_le_bytes(*id) } else { 0 }));
    }
    if tags.iter().any(|(tag, _)| !matches!(*tag, OWNER | USER | OWNING_GROUP | GROUP | MASK | OTHER)) {
        return Some("has an entry of an unknown kind");
    }
    let has = |wanted: u16| tags.iter().any(|(tag, _)| *tag == wanted);
    if !has(OWNER) || !has(OWNING_GROUP) || !has(OTHER) {
        return Some("lacks owner, group or other");
    }
    if (has(USER) || has(GROUP)) && !has(MASK) {
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
    fn a_good_list_has_no_fault_and_each_kind_of_bad_one_has() {
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
