//! Facts about the caller that a request does not carry: supplementary groups, and the process of a thread.

use std::cell::OnceCell;
use std::fs;

use smallvec::SmallVec;
use warpfire_fs::acl::GroupSet;

/// The groups of a process, read from `/proc` the first time that an answer depends on them.
pub(crate) struct CallerGroups {
    pid: u32,
    groups: OnceCell<SmallVec<[u32; 32]>>,
}

impl CallerGroups {
    pub(crate) fn of(pid: u32) -> CallerGroups {
        CallerGroups { pid, groups: OnceCell::new() }
    }
}

impl CallerGroups {
    fn ids(&self) -> &[u32] {
        let read = || {
            // A process that has ended, or that this namespace does not show, is in no group: nothing is
            // granted.
            let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
            groups_of_status(&status)
        };
        self.groups.get_or_init(read)
    }
}

impl GroupSet for CallerGroups {
    fn contains(&self, gid: u32) -> bool {
        self.ids().contains(&gid)
    }

    fn known(&self) -> Vec<u32> {
        // A call that has not asked for the groups is recorded without them, so it costs no look into /proc.
        self.groups.get().map(|ids| ids.to_vec()).unwrap_or_default()
    }
}

/// The line `Groups:` of proc_pid_status(5).
fn groups_of_status(status: &str) -> SmallVec<[u32; 32]> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.into_iter().flat_map(str::split_whitespace).filter_map(|gid| gid.parse().ok()).collect()
}

/// Whether a user may use all that a mount has, beyond the share of one user: root, and the user of the
/// server.
pub(crate) fn has_no_share(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// The user, if it has a share of what a mount has.
pub(crate) fn share_of(uid: u32) -> Option<u32> {
    (!has_no_share(uid)).then_some(uid)
}

/// The process that a thread belongs to; `None` if the thread has ended.
pub(crate) fn process_of(thread: u32) -> Option<u32> {
    process_of_status(&fs::read_to_string(format!("/proc/{thread}/status")).ok()?)
}

fn process_of_status(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        let status = "Name:\tcat\nUid:\t0\t0\t0\t0\nGroups:\t4 24 1000 \nNStgid:\t7\n";
        assert_eq!(groups_of_status(status).as_slice(), [4, 24, 1000]);
        assert!(groups_of_status("").is_empty());
        assert_eq!(process_of_status("Name:\tcat\nTgid:\t4711\nNgid:\t0\nPid:\t4712\n"), Some(4711));
    }

    #[test]
    fn groups_are_known_once_a_decision_has_asked_for_them() {
        let groups = CallerGroups::of(std::process::id());
        assert!(groups.known().is_empty() && groups.groups.get().is_none(), "/proc is not read");
        let _ = groups.contains(0);
        assert_eq!(groups.known().as_slice(), groups.ids());
    }

    #[test]
    fn a_process_that_has_ended_is_in_no_group() {
        assert!(!CallerGroups::of(u32::MAX).contains(0));
    }
}
