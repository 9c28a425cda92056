//! Decisions about changes: the special bits of a mode after a change, and the sticky bit.

use super::access::{Caller, Subject};

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_ISVTX: u32 = 0o1000;
const S_IXGRP: u32 = 0o010;

/// Whether the sticky bit of `dir` lets the caller remove or move the name of a file that belongs to
/// `victim_uid`. In a sticky directory only the owner of the directory or of the file may. Write permission
/// on `dir` is a separate check.
#[must_use]
pub fn may_delete_from(dir: &Subject<'_>, victim_uid: u32, caller: &Caller<'_>) -> bool {
    dir.mode & S_ISVTX == 0 || dir.is_owned_by(caller) || caller.uid == victim_uid
}

/// The mode after a chmod to `wanted`. A caller outside the inode's group cannot set its set-group-id bit. Of
/// a caller that the kernel has checked, the kernel has cleared the bit already if it had to: it knows the
/// caller's capabilities in the user namespace of the file.
#[must_use]
pub fn mode_after_chmod(subject: &Subject<'_>, wanted: u32, caller: &Caller<'_>) -> u32 {
    let mut mode = subject.mode & S_IFMT | wanted & 0o7777;
    if mode & S_ISGID != 0 && !caller.checked && !caller.is_root() && !caller.is_in(subject.gid) {
        mode &= !S_ISGID;
    }
    debug_assert_eq!(mode & S_IFMT, subject.mode & S_IFMT, "a chmod does not change the type");
    mode
}

/// The mode after a change of owner or group. Everything except a directory loses its set-id bits, for every
/// caller. Without group execution the set-group-id bit means mandatory locking, and root and members of the
/// group keep it.
#[must_use]
pub fn mode_after_chown(subject: &Subject<'_>, caller: &Caller<'_>) -> u32 {
    if subject.mode & S_IFMT == S_IFDIR { subject.mode } else { without_set_id(subject, caller) }
}

/// The mode after a write, truncation or allocation. A regular file loses its set-id bits, unless the caller
/// is root.
#[must_use]
pub fn mode_after_write(subject: &Subject<'_>, caller: &Caller<'_>) -> u32 {
    let exempt = subject.mode & S_IFMT != S_IFREG || caller.is_root();
    if exempt { subject.mode } else { without_set_id(subject, caller) }
}

/// The mode without its set-id bits, as far as a change removes them.
fn without_set_id(subject: &Subject<'_>, caller: &Caller<'_>) -> u32 {
    let mut mode = subject.mode & !S_ISUID;
    // Mandatory locking is no privilege, so the bit for it can stay.
    let executable = mode & S_IXGRP != 0;
    if mode & S_ISGID != 0 && (executable || !(caller.is_root() || caller.is_in(subject.gid))) {
        mode &= !S_ISGID;
    }
    mode
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Caller<'static> = Caller { uid: 10, gid: 20, groups: &[0u32; 0], checked: false };
    const STRANGER: Caller<'static> = Caller { uid: 11, gid: 21, groups: &[0u32; 0], checked: false };

    fn file(mode: u32) -> Subject<'static> {
        Subject { uid: 10, gid: 20, mode: S_IFREG | mode, acl: None }
    }

    #[test]
    fn a_sticky_directory_keeps_strangers_hands_off() {
        let sticky = Subject { uid: 10, gid: 20, mode: S_IFDIR | 0o1777, acl: None };
        assert!(!may_delete_from(&sticky, 12, &STRANGER));
        assert!(may_delete_from(&sticky, 11, &STRANGER));
        assert!(may_delete_from(&sticky, 12, &OWNER));
        assert!(may_delete_from(&sticky, 12, &Caller::ROOT));
        assert!(may_delete_from(&Subject { mode: S_IFDIR | 0o777, ..sticky }, 12, &STRANGER));
    }

    #[test]
    fn writing_takes_set_id_bits_from_an_executable() {
        assert_eq!(mode_after_write(&file(0o6755), &STRANGER), S_IFREG | 0o755);
        assert_eq!(mode_after_write(&file(0o6755), &OWNER), S_IFREG | 0o755);
        assert_eq!(mode_after_write(&file(0o6755), &Caller::ROOT), S_IFREG | 0o6755);
    }

    #[test]
    fn set_group_id_without_execution_is_a_lock_mark_that_members_keep() {
        assert_eq!(mode_after_write(&file(0o2644), &OWNER), S_IFREG | 0o2644);
        assert_eq!(mode_after_write(&file(0o2644), &STRANGER), S_IFREG | 0o644);
        assert_eq!(mode_after_chown(&file(0o2644), &Caller::ROOT), S_IFREG | 0o2644);
    }

    #[test]
    fn changing_the_owner_takes_set_id_bits_even_from_root_but_not_from_directories() {
        assert_eq!(mode_after_chown(&file(0o6711), &Caller::ROOT), S_IFREG | 0o711);
        let dir = Subject { mode: S_IFDIR | 0o6755, ..file(0) };
        assert_eq!(mode_after_chown(&dir, &OWNER), S_IFDIR | 0o6755);
    }

    #[test]
    fn set_group_id_is_for_members_to_set() {
        assert_eq!(mode_after_chmod(&file(0o644), 0o2755, &OWNER), S_IFREG | 0o2755);
        let elsewhere = Caller { gid: 21, ..OWNER };
        assert_eq!(mode_after_chmod(&file(0o644), 0o2755, &elsewhere), S_IFREG | 0o755);
        assert_eq!(mode_after_chmod(&file(0o644), 0o6755, &Caller::ROOT), S_IFREG | 0o6755);
        let checked = Caller { checked: true, ..elsewhere };
        assert_eq!(mode_after_chmod(&file(0o644), 0o2755, &checked), S_IFREG | 0o2755);
    }
}
