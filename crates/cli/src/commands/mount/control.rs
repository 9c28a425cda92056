//! How other processes reach the server of a mounted pool.
//!
//! The server listens on an abstract socket named for the pool, which goes away with the process. Whoever
//! connects is sent one JSON document, the status, and the connection ends. Only the server's own user and the superuser are answered.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Uid, geteuid, pidfd_open};
use warpfire_terminal::Failure;

use crate::commands::status::StatusReport;

/// How a mounted pool calls its device in the table of mounts.
pub const SOURCE_PREFIX: &str = "warpfire:";

/// The server of a mounted pool, connected.
pub struct Server(UnixStream);

fn address(pool: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("warpfire/{pool}"))
}

/// Answers everyone who asks for the status, until the process ends.
pub fn serve(pool: &str, status: impl Fn() -> StatusReport) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&address(pool)?)?;
    loop {
        let (mut client, _) = listener.accept()?;
        let user = rustix::net::sockopt::socket_peercred(&client).map(|peer| peer.uid);
        if !user.is_ok_and(|user| user == Uid::ROOT || user == geteuid()) {
            continue;
        }
        let answer = serde_json::to_vec(&status()).expect("a status has string keys only");
        // A client that went away needs no answer.
        let _ = client.write_all(&answer);
    }
}

impl Server {
    /// Connects to the server of a pool; `None` when none runs.
    #[must_use]
    pub fn find(pool: &str) -> Option<Server> {
        UnixStream::connect_addr(&address(pool).ok()?).ok().map(Server)
    }

    /// What it says of its pool.
    pub fn status(mut self) -> Result<StatusReport, Failure> {
        let mut answer = Vec::new();
        let read = self.0.read_to_end(&mut answer);
        read.map_err(|error| Failure::new(format_args!("the server of the pool does not answer: {error}")))?;
        serde_json::from_slice(&answer).map_err(|_| {
            Failure::new("the server of the pool gives no answer")
                .hint("ask as root or as the user who mounted it")
        })
    }

    /// A descriptor that becomes readable when the server has ended.
    pub fn watch(&self) -> Option<std::os::fd::OwnedFd> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0).ok()?;
        pidfd_open(Pid::from_raw(peer.pid.as_raw_nonzero().get())?, PidfdFlags::empty()).ok()
    }
}

/// The pool that is mounted at this folder; `None` when none is.
#[must_use]
pub fn pool_mounted_at(folder: &Path) -> Option<String> {
    if folder.as_os_str().is_empty() {
        return None;
    }
    // The last component alone is not resolved: asking a server that died about its root would fail.
    let folder = match (folder.parent(), folder.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            parent.canonicalize().ok()?.join(name)
        }
        _ => folder.canonicalize().ok()?,
    };
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let pool = table.lines().rev().find_map(|line| mounted_pool(line, &folder));
    pool.map(str::to_owned)
}

/// Where the pool is mounted that a folder is in; `None` if it is in none.
#[must_use]
pub fn mount_around(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    nearest_pool(&table, &folder)
}

/// Where the filesystem that a folder is in is mounted, if that is a pool.
fn nearest_pool(table: &str, folder: &Path) -> Option<PathBuf> {
    let around = table.lines().filter_map(mount_of).filter(|(at, _)| folder.starts_with(at));
    // Of those at one place the last hides the others.
    let (at, source) = around.max_by_key(|(at, _)| at.len())?;
    source.starts_with(SOURCE_PREFIX).then(|| at.into())
}

/// The mountpoint and the source in a line of mountinfo(5).
fn mount_of(line: &str) -> Option<(String, &str)> {
    let (place, source) = line.split_once(" - ")?;
    Some((unescape(place.split(' ').nth(4)?), source.split(' ').nth(1)?))
}

/// The pool that a line of mountinfo(5) says is mounted at `folder`.
fn mounted_pool<'a>(line: &'a str, folder: &Path) -> Option<&'a str> {
    let (mountpoint, source) = mount_of(line)?;
    if mountpoint != folder.to_str()? {
        return None;
    }
    source.strip_prefix(SOURCE_PREFIX)
}

/// Undoes the octal escapes of space, tab, newline and backslash in the table of mounts.
fn unescape(text: &str) -> String {
    let mut plain = text.to_owned();
    for (escape, letter) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(escape, letter);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "64 28 0:53 / /mnt/my\\040pool rw,nosuid - fuse.warpfire warpfire:0a1b rw,user_id=0";

    #[test]
    fn a_mounted_pool_is_found_by_its_folder() {
        assert_eq!(mounted_pool(LINE, Path::new("/mnt/my pool")), Some("0a1b"));
        assert_eq!(mounted_pool(LINE, Path::new("/mnt")), None);
    }

    #[test]
    fn a_folder_is_in_the_pool_that_is_mounted_nearest_around_it() {
        let table = format!(
            "28 1 8:1 / / rw - ext4 /dev/vda rw\n{LINE}\n70 64 8:2 / /mnt/my\\040pool/usb rw - vfat /dev/sdb rw"
        );
        let pool = Some(PathBuf::from("/mnt/my pool"));
        assert_eq!(nearest_pool(&table, Path::new("/mnt/my pool")), pool);
        assert_eq!(nearest_pool(&table, Path::new("/mnt/my pool/a/b")), pool);
        for outside in ["/mnt/my pool 2", "/mnt/my pool/usb/x", "/mnt"] {
            assert_eq!(nearest_pool(&table, Path::new(outside)), None, "{outside}");
        }
    }

    #[test]
    fn another_filesystem_is_no_pool() {
        let line = "64 28 7:0 / /mnt rw - ext4 /dev/loop0 rw";
        assert_eq!(mounted_pool(line, Path::new("/mnt")), None);
    }
}
