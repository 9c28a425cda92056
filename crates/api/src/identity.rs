//! The identity that a handle acts as.

use warpfire_fs::acl::{Caller, GroupSet};

/// A user and groups. Calls check permissions against it, and files that they make belong to it.
///
/// ```
/// use warpfire::{ErrorKind, Identity, Pool};
///
/// let fs = Pool::options().identity(Identity::superuser()).in_memory()?;
/// fs.create_dir("/private")?;
/// fs.set_mode("/private", 0o700)?;
///
/// let guest = fs.acting_as(Identity::new(1000, 1000));
/// let refused = guest.write("/private/x", b"").expect_err("only the owner may");
/// assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
/// # Ok::<(), warpfire::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    groups: GroupList,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct GroupList(Vec<u32>);

impl GroupSet for GroupList {
    fn contains(&self, gid: u32) -> bool {
        self.0.contains(&gid)
    }

    fn known(&self) -> Vec<u32> {
        self.0.clone()
    }
}

impl Identity {
    /// A user in one group.
    #[must_use]
    pub fn new(uid: u32, gid: u32) -> Self {
        Identity { uid, gid, groups: GroupList(Vec::new()) }
    }

    /// The same user with these supplementary groups.
    #[must_use]
    pub fn groups(mut self, groups: impl Into<Vec<u32>>) -> Self {
        self.groups = GroupList(groups.into());
        self
    }

    /// User 0, which passes all permission checks.
    #[must_use]
    pub fn superuser() -> Self {
        Identity::new(0, 0)
    }

    /// The effective user and all groups of this process: the default of every handle.
    #[must_use]
    pub fn of_process() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Identity::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
            .groups(groups.into_iter().map(rustix::process::Gid::as_raw).collect::<Vec<_>>())
    }

    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller { uid: self.uid, gid: self.gid, groups: &self.groups, checked: false }
    }
}

impl Default for Identity {
    fn default() -> Self {
        Identity::of_process()
    }
}
