//! The mode and lists that a new inode inherits from its directory.

use super::entry::{Acl, AclTag, Perm};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;

/// Mode and lists of a new inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InheritedAcl {
    /// Type, special and permission bits.
    pub mode: u32,
    /// Its access list, if it means more than the mode.
    pub access: Option<Acl>,
    /// Its own default list, if it is a directory and its parent has one.
    pub default: Option<Acl>,
}

/// The mode and lists of a new inode of type and mode `mode`, in a directory with the default list
/// `parent_default`. The umask applies only without a default list. Neither applies to symbolic links.
#[must_use]
pub fn inherit(parent_default: Option<&Acl>, mode: u32, umask: u32) -> InheritedAcl {
    if mode & S_IFMT == S_IFLNK {
        return InheritedAcl { mode, access: None, default: None };
    }
    let Some(default) = parent_default else {
        return InheritedAcl { mode: mode & !(umask & 0o777), access: None, default: None };
    };
    // The mode that the caller asks for bounds the default list, as the umask would bound the mode.
    let mut access = default.clone();
    let granted = default.mode() & mode;
    access.chmod(granted);
    debug_assert!(
        access.perm(AclTag::Owner).is_some_and(|p| Perm::from_bits(mode >> 6).contains(p)),
        "a new inode grants no more than the caller asks for"
    );
    InheritedAcl {
        mode: mode & !0o777 | granted,
        access: access.equivalent_mode().is_none().then_some(access),
        default: (mode & S_IFMT == S_IFDIR).then(|| default.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::AclEntry;

    fn default_list() -> Acl {
        let entry = |tag, bits| AclEntry { tag, perm: Perm::from_bits(bits) };
        Acl::new([
            entry(AclTag::Owner, 7),
            entry(AclTag::User(10), 7),
            entry(AclTag::OwningGroup, 5),
            entry(AclTag::Mask, 6),
            entry(AclTag::Other, 4),
        ])
        .unwrap()
    }

    #[test]
    fn without_a_default_list_the_umask_decides() {
        let got = inherit(None, 0o100_666, 0o027);
        assert_eq!(got, InheritedAcl { mode: 0o100_640, access: None, default: None });
    }

    #[test]
    fn a_default_list_replaces_the_umask_and_is_bounded_by_the_mode() {
        let got = inherit(Some(&default_list()), 0o100_640, 0o777);
        assert_eq!(got.mode, 0o100_640);
        let access = got.access.unwrap();
        assert_eq!(access.perm(AclTag::Mask), Some(Perm::READ));
        assert_eq!(access.perm(AclTag::User(10)), Some(Perm::ALL));
        assert_eq!(access.perm(AclTag::OwningGroup), Some(Perm::from_bits(5)));
        assert_eq!(access.perm(AclTag::Other), Some(Perm::NONE));
        assert_eq!(got.default, None);
    }

    #[test]
    fn a_directory_passes_the_default_list_on() {
        let got = inherit(Some(&default_list()), 0o042_777, 0);
        assert_eq!(got.default, Some(default_list()));
        assert_eq!(got.mode, 0o042_764);
    }

    #[test]
    fn a_minimal_default_list_leaves_only_mode_bits() {
        let got = inherit(Some(&Acl::from_mode(0o750)), 0o100_666, 0o777);
        assert_eq!(got, InheritedAcl { mode: 0o100_640, access: None, default: None });
    }

    #[test]
    fn a_symbolic_link_takes_nothing() {
        let got = inherit(Some(&default_list()), 0o120_777, 0o777);
        assert_eq!(got, InheritedAcl { mode: 0o120_777, access: None, default: None });
    }
}
