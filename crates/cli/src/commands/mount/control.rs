//! The socket by which other processes reach the server of a mounted pool.
//!
//! The server listens on an abstract socket that is named after the pool and ends with the process. It sends
//! one JSON document, the status, to each client and closes the connection. It serves only its own user and
//! the superuser.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Uid, geteuid, pidfd_open};
use warpfire_mount::{MountEntry, mounts};
use warpfire_terminal::Failure;

use crate::commands::status::StatusReport;

/// Prefix of the source of a mounted pool in the mount table. The id of the pool follows.
pub const SOURCE_PREFIX: &str = "warpfire:";

/// A connection to the server of a mounted pool.
pub struct ServerConnection(UnixStream);

fn address(pool: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("warpfire/{pool}"))
}

/// Sends the status to every client, until the process ends.
pub fn serve(pool: &str, status: impl Fn() -> StatusReport) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&address(pool)?)?;
    loop {
        let (mut client, _) = listener.accept()?;
        let user = rustix::net::sockopt::socket_peercred(&client).map(|peer| peer.uid);
        if !user.is_ok_and(|user| user == Uid::ROOT || user == geteuid()) {
            continue;
        }
        let answer = serde_json::to_vec(&status()).expect("a status has string keys only");
        // Fails if the client has closed the connection, and needs no answer.
        let _ = client.write_all(&answer);
    }
}

impl ServerConnection {
    /// Connects to the server of a pool; `None` if none runs.
    #[must_use]
    pub fn find(pool: &str) -> Option<ServerConnection> {
        UnixStream::connect_addr(&address(pool).ok()?).ok().map(ServerConnection)
    }

    /// The status of its pool.
    pub fn status(mut self) -> Result<StatusReport, Failure> {
        let mut answer = Vec::new();
        let read = self.0.read_to_end(&mut answer);
        read.map_err(|error| Failure::new(format_args!("the server of the pool does not answer: {error}")))?;
        serde_json::from_slice(&answer).map_err(|_| {
            Failure::new("the server of the pool sends no status")
                .hint("run the command as root or as the user that mounted the pool")
        })
    }

    /// A descriptor that becomes readable when the server ends.
    pub fn watch(&self) -> Option<std::os::fd::OwnedFd> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0).ok()?;
        pidfd_open(Pid::from_raw(peer.pid.as_raw_nonzero().get())?, PidfdFlags::empty()).ok()
    }
}

/// The pool that is mounted at this directory; `None` if there is none.
#[must_use]
pub fn pool_mounted_at(directory: &Path) -> Option<String> {
    if directory.as_os_str().is_empty() {
        return None;
    }
    // The last component is not resolved: on a dead mount that would fail.
    let directory = match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            parent.canonicalize().ok()?.join(name)
        }
        _ => directory.canonicalize().ok()?,
    };
    mounts().ok()?.iter().rev().find_map(|mount| mounted_pool(mount, &directory)).map(str::to_owned)
}

/// The mountpoint of the pool that a directory is in; `None` if it is in none.
#[must_use]
pub fn mount_around(directory: &Path) -> Option<PathBuf> {
    nearest_pool(&mounts().ok()?, &directory.canonicalize().ok()?)
}

/// The mountpoint of the filesystem that a directory is in, if that filesystem is a pool.
fn nearest_pool(mounts: &[MountEntry], directory: &Path) -> Option<PathBuf> {
    let around = mounts.iter().filter(|mount| directory.starts_with(&mount.mountpoint));
    // Of several mounts on one directory the last hides the others.
    let nearest = around.max_by_key(|mount| mount.mountpoint.as_os_str().len())?;
    pool_of(nearest).map(|_| nearest.mountpoint.clone())
}

/// The pool of a mount at `directory`.
fn mounted_pool<'a>(mount: &'a MountEntry, directory: &Path) -> Option<&'a str> {
    pool_of(mount).filter(|_| mount.mountpoint == directory)
}

/// The pool that is mounted; `None` for other filesystems.
fn pool_of(mount: &MountEntry) -> Option<&str> {
    mount.source.to_str()?.strip_prefix(SOURCE_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(at: &str, source: &str) -> MountEntry {
        MountEntry { mountpoint: at.into(), filesystem: "any".into(), source: source.into() }
    }

    #[test]
    fn a_mounted_pool_is_found_by_its_directory() {
        let pool = mount("/mnt/my pool", "warpfire:0a1b");
        assert_eq!(mounted_pool(&pool, Path::new("/mnt/my pool")), Some("0a1b"));
        assert_eq!(mounted_pool(&pool, Path::new("/mnt")), None);
    }

    #[test]
    fn a_directory_is_in_the_pool_that_is_mounted_nearest_around_it() {
        let mounts = [
            mount("/", "/dev/vda"),
            mount("/mnt/my pool", "warpfire:0a1b"),
            mount("/mnt/my pool/usb", "/dev/sdb"),
        ];
        let pool = Some(PathBuf::from("/mnt/my pool"));
        assert_eq!(nearest_pool(&mounts, Path::new("/mnt/my pool")), pool);
        assert_eq!(nearest_pool(&mounts, Path::new("/mnt/my pool/a/b")), pool);
        for outside in ["/mnt/my pool 2", "/mnt/my pool/usb/x", "/mnt"] {
            assert_eq!(nearest_pool(&mounts, Path::new(outside)), None, "{outside}");
        }
    }

    #[test]
    fn another_filesystem_is_no_pool() {
        assert_eq!(mounted_pool(&mount("/mnt", "/dev/loop0"), Path::new("/mnt")), None);
    }
}
