//! The processes that hold a mount: that have a file or directory of it open, run a program of it, or are in
//! one of its directories, as fuser(1) finds them.
//!
//! No server is asked on the way, so a server that hangs does not stop the search.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use warpfire_terminal::shown;

/// A process that holds a mount.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holder {
    pub process: u32,
    /// The name of its program.
    pub program: String,
}

/// Holders that a message names.
const NAMED_MAX: usize = 5;

/// The processes that hold the mount of the filesystem `device` at `mountpoint`, by their numbers. Of
/// processes of other users only root learns.
pub fn holders(mountpoint: &Path, device: (u32, u32)) -> Vec<Holder> {
    let mount = mount_number(mountpoint);
    let holds = |link: &Path| {
        // Another directory may show the same filesystem.
        device_of(link) == Some(device) && (mount.is_none() || mount_number(link) == mount)
    };
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = process.path();
        let Some(number) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let mut links = ["cwd", "root", "exe"].iter().map(|name| path.join(name)).collect::<Vec<_>>();
        links.extend(links_in(&path.join("fd")));
        if links.iter().any(|link| holds(link)) || maps(&path, device) {
            let program = fs::read(path.join("comm")).unwrap_or_default();
            let program = String::from_utf8_lossy(program.trim_ascii_end()).into_owned();
            found.push(Holder { process: number, program });
        }
    }
    found.sort();
    found
}

/// The holders for a message; `None` if there are none.
pub fn in_words(holders: &[Holder]) -> Option<String> {
    let named = holders.iter().take(NAMED_MAX);
    let named = named.map(|holder| {
        format!("{} ({})", shown(&PathBuf::from(OsString::from(&holder.program))), holder.process)
    });
    let named = named.collect::<Vec<_>>().join(", ");
    match holders.len().saturating_sub(NAMED_MAX) {
        _ if holders.is_empty() => None,
        0 => Some(named),
        more => Some(format!("{named} and {more} more")),
    }
}

fn links_in(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The filesystem that a link in /proc leads to. Asks for nothing else, so the kernel does not ask a server.
fn device_of(link: &Path) -> Option<(u32, u32)> {
    let found = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

/// The number of the mount that a path leads to; `None` where the kernel does not say.
fn mount_number(path: &Path) -> Option<u64> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

/// Whether a process has bytes of a file of the filesystem mapped: proc_pid_maps(5).
fn maps(process: &Path, (major, minor): (u32, u32)) -> bool {
    let device = format!("{major:02x}:{minor:02x}");
    let table = fs::read(process.join("maps")).unwrap_or_default();
    let mut lines = table.split(|&byte| byte == b'\n');
    lines.any(|line| line.split(|&byte| byte == b' ').nth(3) == Some(device.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_the_filesystem_of_a_file_that_it_has_open() {
        let file = tempfile::NamedTempFile::new().expect("made");
        let device = device_of(file.path()).expect("there");
        let mountpoint = file.path().parent().expect("a directory");
        let found = holders(mountpoint, device);
        let own = found.iter().find(|holder| holder.process == std::process::id()).expect("it is found");
        assert!(!own.program.is_empty());
        assert!(holders(mountpoint, (0, u32::MAX)).is_empty());
    }

    #[test]
    fn many_holders_are_counted() {
        assert_eq!(in_words(&[]), None);
        let holder = |process| Holder { process, program: "sh".to_owned() };
        assert_eq!(in_words(&[holder(1), holder(2)]).expect("two"), "sh (1), sh (2)");
        let many = (1..=8).map(holder).collect::<Vec<_>>();
        assert!(in_words(&many).expect("eight").ends_with("sh (5) and 3 more"));
    }
}
