//! Permissions, entries, and lists of entries. A list that exists is valid.

use smallvec::SmallVec;
use warpfire_format::fs::acl_bytes;

pub use warpfire_format::fs::{ACL_ENTRIES_MAX as ENTRIES_MAX, AclTag};

/// Read, write and execute, as three bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Perm(u8);

impl Perm {
    /// No permission.
    pub const NONE: Perm = Perm(0);
    /// To execute a file, or to search a directory.
    pub const EXECUTE: Perm = Perm(1);
    /// To change contents, or to add and remove names.
    pub const WRITE: Perm = Perm(2);
    /// To read contents, or to list names.
    pub const READ: Perm = Perm(4);
    /// All three.
    pub const ALL: Perm = Perm(7);

    /// The lowest three bits of `bits`; others are dropped.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Perm {
        Perm((bits & 7) as u8)
    }

    /// As the lowest three bits of a mode.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether all of `want` is in here.
    #[must_use]
    pub const fn contains(self, want: Perm) -> bool {
        self.0 & want.0 == want.0
    }

    /// The permissions that both have.
    #[must_use]
    pub const fn and(self, other: Perm) -> Perm {
        Perm(self.0 & other.0)
    }

    /// The permissions that at least one of them has.
    #[must_use]
    pub const fn or(self, other: Perm) -> Perm {
        Perm(self.0 | other.0)
    }
}

/// The place of an entry in a list. Entries are in rising order, and only users and groups repeat.
fn rank(tag: AclTag) -> u8 {
    match tag {
        AclTag::Owner => 0,
        AclTag::User(_) => 1,
        AclTag::OwningGroup => 2,
        AclTag::Group(_) => 3,
        AclTag::Mask => 4,
        AclTag::Other => 5,
    }
}

/// One line of a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AclEntry {
    /// The users that it is about.
    pub tag: AclTag,
    /// Their permissions.
    pub perm: Perm,
}

/// Why bytes or entries are not an access control list. Each is a mistake of the caller (EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AclError {
    /// The attribute has a version other than 2.
    #[error("access control list of version {0}, only 2 is known")]
    Version(u32),
    /// The bytes are not a header with whole entries, or they are too many.
    #[error("access control list of {0} bytes")]
    Length(usize),
    /// A tag that acl(5) does not define.
    #[error("unknown tag {0:#x} in an access control list")]
    UnknownTag(u16),
    /// Permission bits beyond read, write and execute.
    #[error("unknown permission bits {0:#x} in an access control list")]
    UnknownPerm(u16),
    /// A named entry without a user or group.
    #[error("a named entry of an access control list has no id")]
    NoId,
    /// The entries are out of order, or an entry that may not repeat is there twice.
    #[error("entries of an access control list are out of order")]
    Order,
    /// An entry that every list needs is missing.
    #[error("an access control list has no {0} entry")]
    Missing(&'static str),
}

/// A valid access control list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: SmallVec<[AclEntry; 8]>,
}

impl Acl {
    /// Checks entries and makes a list of them.
    pub fn new(entries: impl IntoIterator<Item = AclEntry>) -> Result<Acl, AclError> {
        let acl = Acl { entries: entries.into_iter().collect() };
        acl.validate()?;
        Ok(acl)
    }

    /// The minimal list that means the same as the mode bits.
    #[must_use]
    pub fn from_mode(mode: u32) -> Acl {
        let entry = |tag, shift: u32| AclEntry { tag, perm: Perm::from_bits(mode >> shift) };
        let minimal = [entry(AclTag::Owner, 6), entry(AclTag::OwningGroup, 3), entry(AclTag::Other, 0)];
        let acl = Acl { entries: SmallVec::from_slice(&minimal) };
        debug_assert!(acl.validate().is_ok(), "a minimal list is valid");
        acl
    }

    /// Checks invariant 1 of this module.
    fn validate(&self) -> Result<(), AclError> {
        if self.entries.len() > ENTRIES_MAX {
            return Err(AclError::Length(acl_bytes(self.entries.len())));
        }
        // The order first: then each entry that may not repeat is there at most once, and the checks below
        // only ask for its presence.
        for (before, after) in self.entries.iter().zip(self.entries.iter().skip(1)) {
            let repeats = rank(before.tag) == rank(after.tag) && after.tag.is_named();
            if rank(before.tag) >= rank(after.tag) && !repeats {
                return Err(AclError::Order);
            }
        }
        for entry in &self.entries {
            if matches!(entry.tag, AclTag::User(u32::MAX) | AclTag::Group(u32::MAX)) {
                return Err(AclError::NoId);
            }
        }
        let has = |tag| self.perm(tag).is_some();
        match () {
            () if !has(AclTag::Owner) => Err(AclError::Missing("owner")),
            () if !has(AclTag::OwningGroup) => Err(AclError::Missing("owning group")),
            () if !has(AclTag::Other) => Err(AclError::Missing("other")),
            () if !has(AclTag::Mask) && self.entries.iter().any(|e| e.tag.is_named()) => {
                Err(AclError::Missing("mask"))
            }
            () => Ok(()),
        }
    }

    /// The entries, in their order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = AclEntry> + '_ {
        self.entries.iter().copied()
    }

    /// The permissions of the first entry with this tag.
    #[must_use]
    pub fn perm(&self, tag: AclTag) -> Option<Perm> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    /// The nine mode bits that an inode with this access list has.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let bits = |tag| self.perm(tag).map_or(0, Perm::bits);
        bits(AclTag::Owner) << 6 | bits(self.group_class()) << 3 | bits(AclTag::Other)
    }

    /// The nine mode bits that mean the same as this list; `None` if it is not minimal.
    #[must_use]
    pub fn equivalent_mode(&self) -> Option<u32> {
        let extended = self.entries.iter().any(|e| e.tag.is_named() || e.tag == AclTag::Mask);
        (!extended).then(|| self.mode())
    }

    /// Follows a change of the mode: its bits become those of the owner, of others, and of the mask, or
    /// without a mask of the owning group.
    pub fn chmod(&mut self, mode: u32) {
        let group_class = self.group_class();
        for entry in &mut self.entries {
            let shift = match entry.tag {
                AclTag::Owner => 6,
                AclTag::Other => 0,
                tag if tag == group_class => 3,
                _ => continue,
            };
            entry.perm = Perm::from_bits(mode >> shift);
        }
        debug_assert_eq!(self.mode(), mode & 0o777, "the list and the mode agree");
    }

    /// The entry with the group bits of the mode.
    fn group_class(&self) -> AclTag {
        if self.perm(AclTag::Mask).is_some() { AclTag::Mask } else { AclTag::OwningGroup }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: AclTag, bits: u32) -> AclEntry {
        AclEntry { tag, perm: Perm::from_bits(bits) }
    }

    fn extended() -> Vec<AclEntry> {
        vec![
            entry(AclTag::Owner, 7),
            entry(AclTag::User(10), 6),
            entry(AclTag::OwningGroup, 5),
            entry(AclTag::Group(20), 7),
            entry(AclTag::Mask, 4),
            entry(AclTag::Other, 1),
        ]
    }

    #[test]
    fn the_mode_of_a_list_has_the_mask_in_its_group_bits() {
        let acl = Acl::new(extended()).unwrap();
        assert_eq!(acl.mode(), 0o741);
        assert_eq!(acl.equivalent_mode(), None);
    }

    #[test]
    fn every_mode_and_its_minimal_list_mean_the_same() {
        for mode in 0..0o1000 {
            assert_eq!(Acl::from_mode(mode).equivalent_mode(), Some(mode));
        }
    }

    #[test]
    fn a_list_with_only_a_mask_more_is_kept() {
        let acl = Acl::new([
            entry(AclTag::Owner, 6),
            entry(AclTag::OwningGroup, 7),
            entry(AclTag::Mask, 4),
            entry(AclTag::Other, 0),
        ])
        .unwrap();
        assert_eq!(acl.equivalent_mode(), None);
        assert_eq!(acl.mode(), 0o640);
    }

    #[test]
    fn chmod_moves_the_mask_and_leaves_the_owning_group() {
        let mut acl = Acl::new(extended()).unwrap();
        acl.chmod(0o6012);
        assert_eq!(acl.mode(), 0o012);
        assert_eq!(acl.perm(AclTag::OwningGroup), Some(Perm::from_bits(5)));
        assert_eq!(acl.perm(AclTag::User(10)), Some(Perm::from_bits(6)));
    }

    #[test]
    fn chmod_of_a_list_without_a_mask_changes_the_owning_group() {
        let mut acl = Acl::from_mode(0o777);
        acl.chmod(0o640);
        assert_eq!(acl, Acl::from_mode(0o640));
    }

    #[test]
    fn each_missing_entry_is_named() {
        for (dropped, name) in [(0, "owner"), (2, "owning group"), (4, "mask"), (5, "other")] {
            let mut entries = extended();
            entries.remove(dropped);
            assert_eq!(Acl::new(entries), Err(AclError::Missing(name)));
        }
    }

    #[test]
    fn no_two_neighbours_can_be_swapped() {
        for at in 0..5 {
            let mut entries = extended();
            entries.swap(at, at + 1);
            assert_eq!(Acl::new(entries), Err(AclError::Order));
        }
    }

    #[test]
    fn only_named_entries_repeat() {
        for at in 0..6 {
            let mut entries = extended();
            entries.insert(at, entries[at]);
            assert_eq!(Acl::new(entries).is_ok(), at == 1 || at == 3, "entry {at} twice");
        }
    }
}
