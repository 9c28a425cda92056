//! The access check: whether a caller has permissions on an inode.

use std::fmt;

use super::entry::{Acl, AclTag, Perm};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

/// A caller's supplementary groups. They are read only when a decision depends on them, so that the mount can
/// look them up late.
pub trait GroupSet {
    /// Whether the caller is a member of `gid`.
    fn contains(&self, gid: u32) -> bool;

    /// The groups, for a check that is repeated later; none if no decision has depended on them yet. A
    /// repetition that then depends on them grants nothing by them.
    fn known(&self) -> Vec<u32>;
}

impl GroupSet for [u32] {
    fn contains(&self, gid: u32) -> bool {
        <[u32]>::contains(self, &gid)
    }

    fn known(&self) -> Vec<u32> {
        self.into()
    }
}

impl<const N: usize> GroupSet for [u32; N] {
    fn contains(&self, gid: u32) -> bool {
        GroupSet::contains(self.as_slice(), gid)
    }

    fn known(&self) -> Vec<u32> {
        self.as_slice().into()
    }
}

/// The user that a call acts for. Permissions do not bind user 0, as they do not bind a process with all
/// capabilities.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Filesystem user id.
    pub uid: u32,
    /// Filesystem group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a dyn GroupSet,
    /// Whether the kernel has checked permissions already, as it does for a mount of several users. Then only
    /// the consequences of identity are left: the owner of new files, set-id bits.
    pub checked: bool,
}

impl Caller<'static> {
    /// User and group 0.
    pub const ROOT: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[0u32; 0], checked: false };
}

impl Caller<'_> {
    /// Whether permissions do not bind the caller.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether `gid` is one of the caller's groups.
    #[must_use]
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(gid)
    }
}

impl fmt::Debug for Caller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "caller {}:{}", self.uid, self.gid)
    }
}

/// The inode of an access check: the attributes that permissions depend on.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Type and permission bits. They agree with the list (invariant 2 of this module).
    pub mode: u32,
    /// Its access list, if it has one.
    pub acl: Option<&'a Acl>,
}

impl Subject<'_> {
    /// Whether the caller has all permissions of `want`.
    #[must_use]
    pub fn permits(&self, caller: &Caller<'_>, want: Perm) -> bool {
        if caller.checked {
            return true;
        }
        if caller.is_root() {
            return self.permits_root(want);
        }
        // The owner's bits decide alone, also if the group or others have more.
        if caller.uid == self.uid {
            return Perm::from_bits(self.mode >> 6).contains(want);
        }
        match self.acl {
            Some(acl) => self.permits_by_list(acl, caller, want),
            None => self.permits_by_mode(caller, want),
        }
    }

    /// Whether the caller may make the changes that only an owner may: mode, times, lists.
    #[must_use]
    pub fn is_owned_by(&self, caller: &Caller<'_>) -> bool {
        caller.checked || caller.is_root() || caller.uid == self.uid
    }

    /// Root reads, writes and searches everything. It executes a file only if some user may.
    fn permits_root(&self, want: Perm) -> bool {
        let is_dir = self.mode & S_IFMT == S_IFDIR;
        is_dir || !want.contains(Perm::EXECUTE) || self.mode & 0o111 != 0
    }

    fn permits_by_mode(&self, caller: &Caller<'_>, want: Perm) -> bool {
        let group = Perm::from_bits(self.mode >> 3).contains(want);
        let other = Perm::from_bits(self.mode).contains(want);
        // The mount finds groups in the files of the caller's process, so they are read only if the bits of
        // group and others disagree.
        if group != other && caller.is_in(self.gid) { group } else { other }
    }

    /// acl(5), "Access check algorithm", for a caller that is not the owner. A group that matches denies only
    /// if no other group that matches grants.
    fn permits_by_list(&self, acl: &Acl, caller: &Caller<'_>, want: Perm) -> bool {
        debug_assert_ne!(caller.uid, self.uid, "the owner's bits decide for the owner");
        // A named user is decided by that entry, whatever the groups grant.
        if let Some(perm) = acl.perm(AclTag::User(caller.uid)) {
            let mask = acl.perm(AclTag::Mask).unwrap_or(Perm::ALL);
            return perm.and(mask).contains(want);
        }
        let mask = acl.perm(AclTag::Mask).unwrap_or(Perm::ALL);
        let mut in_a_group = false;
        for entry in acl.entries() {
            let gid = match entry.tag {
                AclTag::OwningGroup => self.gid,
                AclTag::Group(gid) => gid,
                _ => continue,
            };
            if caller.is_in(gid) {
                in_a_group = true;
                if entry.perm.and(mask).contains(want) {
                    return true;
                }
            }
        }
        !in_a_group && acl.perm(AclTag::Other).is_some_and(|p| p.contains(want))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::AclEntry;

    const FILE: u32 = 0o100_000;
    const WANTS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    /// The algorithm of acl(5), step by step, as the oracle.
    fn acl5(s: &Subject<'_>, entries: &[AclEntry], uid: u32, groups: &[u32], want: Perm) -> bool {
        let of = |tag: AclTag| entries.iter().find(|e| e.tag == tag).map(|e| e.perm);
        let mask = of(AclTag::Mask);
        let masked = |p: Perm| mask.map_or(p, |m| p.and(m));
        if uid == s.uid {
            return of(AclTag::Owner).unwrap().contains(want);
        }
        if let Some(p) = of(AclTag::User(uid)) {
            return p.contains(want) && masked(p).contains(want);
        }
        let matching: Vec<Perm> = entries
            .iter()
            .filter(|e| match e.tag {
                AclTag::OwningGroup => groups.contains(&s.gid),
                AclTag::Group(g) => groups.contains(&g),
                _ => false,
            })
            .map(|e| e.perm)
            .collect();
        if !matching.is_empty() {
            return matching.iter().any(|&p| masked(p).contains(want));
        }
        of(AclTag::Other).unwrap().contains(want)
    }

    #[test]
    fn every_small_list_answers_as_acl5_says() {
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as u32
        };
        for round in 0..20_000 {
            let named = draw() & 3;
            let mut entries = vec![AclEntry { tag: AclTag::Owner, perm: Perm::from_bits(draw()) }];
            let mut push = |tag, bits| entries.push(AclEntry { tag, perm: Perm::from_bits(bits) });
            if named & 1 != 0 {
                push(AclTag::User(11), draw());
                push(AclTag::User(12), draw());
            }
            push(AclTag::OwningGroup, draw());
            if named & 2 != 0 {
                push(AclTag::Group(21), draw());
                push(AclTag::Group(22), draw());
            }
            if named != 0 || draw() & 1 == 0 {
                push(AclTag::Mask, draw());
            }
            push(AclTag::Other, draw());
            let acl = Acl::new(entries.iter().copied()).unwrap();
            let subject = Subject { uid: 10, gid: 20, mode: FILE | acl.mode(), acl: Some(&acl) };
            for uid in 10..14 {
                for member in 0..8u32 {
                    let groups: Vec<u32> = (0..3).filter(|b| member >> b & 1 != 0).map(|b| 20 + b).collect();
                    let caller = Caller { uid, gid: 99, groups: &TestGroups(groups.clone()), checked: false };
                    for want in WANTS.map(Perm::from_bits) {
                        assert_eq!(
                            subject.permits(&caller, want),
                            acl5(&subject, &entries, uid, &groups, want),
                            "round {round}: {entries:?}, user {uid} in {groups:?} wants {want:?}"
                        );
                    }
                }
            }
        }
    }

    struct TestGroups(Vec<u32>);
    impl GroupSet for TestGroups {
        fn contains(&self, gid: u32) -> bool {
            self.0.contains(&gid)
        }

        fn known(&self) -> Vec<u32> {
            self.0.as_slice().into()
        }
    }

    struct UnaskedGroups;
    impl GroupSet for UnaskedGroups {
        fn contains(&self, _: u32) -> bool {
            panic!("the answer did not depend on groups")
        }

        fn known(&self) -> Vec<u32> {
            panic!("no check is repeated")
        }
    }

    #[test]
    fn every_mode_answers_as_its_minimal_list() {
        for mode in 0..0o1000 {
            let acl = Acl::from_mode(mode);
            let plain = Subject { uid: 10, gid: 20, mode: FILE | mode, acl: None };
            let listed = Subject { acl: Some(&acl), ..plain };
            for (uid, gid) in [(10, 20), (10, 21), (11, 20), (11, 21)] {
                let caller = Caller { uid, gid, groups: &[0u32; 0], checked: false };
                for want in WANTS.map(Perm::from_bits) {
                    assert_eq!(plain.permits(&caller, want), listed.permits(&caller, want));
                }
            }
        }
    }

    #[test]
    fn groups_are_not_asked_for_when_group_and_others_agree() {
        let caller = Caller { uid: 11, gid: 21, groups: &UnaskedGroups, checked: false };
        let s = Subject { uid: 10, gid: 20, mode: FILE | 0o644, acl: None };
        assert!(s.permits(&caller, Perm::READ));
        assert!(!s.permits(&caller, Perm::WRITE));
    }

    #[test]
    fn the_owner_is_bound_by_the_owner_bits_alone() {
        let caller = Caller { uid: 10, gid: 20, groups: &[0u32; 0], checked: false };
        let s = Subject { uid: 10, gid: 20, mode: FILE | 0o077, acl: None };
        assert!(!s.permits(&caller, Perm::READ));
        assert!(s.is_owned_by(&caller));
    }

    #[test]
    fn a_caller_that_the_kernel_has_checked_is_not_checked_again() {
        let caller = Caller { uid: 11, gid: 21, groups: &UnaskedGroups, checked: true };
        let s = Subject { uid: 10, gid: 20, mode: FILE | 0o640, acl: None };
        assert!(s.permits(&caller, Perm::ALL) && s.is_owned_by(&caller) && !caller.is_root());
    }

    #[test]
    fn root_executes_a_file_only_if_someone_may() {
        let with = |mode| Subject { uid: 10, gid: 20, mode, acl: None };
        assert!(with(FILE).permits(&Caller::ROOT, Perm::READ.or(Perm::WRITE)));
        assert!(!with(FILE | 0o666).permits(&Caller::ROOT, Perm::EXECUTE));
        assert!(with(FILE | 0o001).permits(&Caller::ROOT, Perm::ALL));
        assert!(with(S_IFDIR).permits(&Caller::ROOT, Perm::ALL));
    }
}
