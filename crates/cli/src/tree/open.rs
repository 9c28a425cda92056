//! Opening of the pool that a command works on. A pool that another process has open is reached through its
//! mount.
//!
//! Any user can mount a filesystem that claims to be this pool. A mount is believed if its server has the
//! devices open, as the kernel proves it, or where that cannot be asked if root has made it.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::geteuid;
use warpfire::{ErrorKind, Pool, PoolOptions, device_label};
use warpfire_env::FileDevice;
use warpfire_terminal::{Exit, Failure, shown};

use super::Tree;
use super::error::no_server;
use super::mounted::MountedTree;
use crate::commands::mount::control::{NoServer, ServerConnection};
use crate::commands::mount::mounted_pool::{MountedPool, mounted_pools, pool_mounted_at};
use crate::commands::pool::{as_asked, warn_if_degraded};
use crate::location::PoolName;

/// Opens a pool for one command that changes it. If the pool is degraded, prints a note on stderr.
pub fn open(name: &PoolName) -> Result<Tree, Failure> {
    open_as(&Pool::options(), name)
}

/// Opens a pool for one command that only reads it. Its devices need no permission to write, and other
/// commands may read it at the same time. If the pool is degraded, prints a note on stderr.
pub fn open_for_reading(name: &PoolName) -> Result<Tree, Failure> {
    open_as(&Pool::options().read_only(true), name)
}

fn open_as(options: &PoolOptions, name: &PoolName) -> Result<Tree, Failure> {
    if let Some((mountpoint, is_plain)) = name.mountpoint() {
        let opened = MountedTree::open(&mountpoint, is_plain);
        return opened.map(Tree::Mounted).map_err(|errno| not_opened(errno, &mountpoint));
    }
    let devices = name.devices()?;
    // An open waits for a process that has just ended. The server of a mount goes on: it is asked first.
    if !mounted_pools().is_empty()
        && devices.iter().any(|device| FileDevice::is_in_use(device))
        && let Some(mounted) = Users::of(&devices).mounted_tree()
    {
        return mounted.map(Tree::Mounted);
    }
    match as_asked(options).open(&devices) {
        Ok(pool) => {
            warn_if_degraded(&pool);
            Ok(Tree::Open(pool))
        }
        Err(error) if error.kind() == ErrorKind::InUse => {
            Users::of(&devices).through_mount(&error).map(Tree::Mounted)
        }
        Err(error) => Err(Failure::pool(&error)),
    }
}

/// The failure of a command that needs the devices of a pool, when another process has them open.
pub fn refuse_mounted(devices: &[PathBuf], error: &warpfire::Error) -> Failure {
    let users = Users::of(devices);
    match users.mounts.first() {
        Some(mount) => mounted_at(&mount.mountpoint),
        None => users.refusal(error),
    }
}

/// The failure of a command that needs the devices of a pool that is mounted here.
pub fn mounted_at(mountpoint: &Path) -> Failure {
    let at = shown(mountpoint);
    Failure::unreadable(format_args!("the pool is mounted at {at}")).hint(format_args!(
        "'warpfire scrub {at}' verifies it while it is in use; or run 'warpfire umount {at}' first"
    ))
}

/// The failure to reach a mount that the command line names.
fn not_opened(errno: Errno, mountpoint: &Path) -> Failure {
    match errno {
        Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => no_server(mountpoint),
        Errno::ACCESS | Errno::PERM => not_admitted(mountpoint),
        errno => Failure::local(mountpoint, &errno.into()),
    }
    .exit_code(Exit::Pool as u8)
}

fn not_admitted(mountpoint: &Path) -> Failure {
    Failure::unreadable(format_args!(
        "the pool is mounted at {}, and the mount does not admit this user",
        shown(mountpoint)
    ))
    .hint("run the command as the user that has mounted the pool, or mount it with --allow-other")
}

/// Whether a tree that was opened at a mount is of its pool. It is the view where the transaction of 'tx run'
/// has taken the place of the pool, and nothing of the pool if another filesystem is mounted over it.
fn is_pool_at(mount: &MountedPool, tree: &MountedTree) -> bool {
    let Ok(device) = tree.device() else { return false };
    device == mount.device
        || pool_mounted_at(&mount.mountpoint)
            .is_some_and(|top| (top.device, &top.id, top.owner) == (device, &mount.id, mount.owner))
}

/// The processes that have a pool open, as far as this one can know.
struct Users {
    /// Mounts of the pool, those that show all of it first.
    mounts: Vec<MountedPool>,
    /// Mounts that claim to be of this pool. Nothing proves it.
    claims: Vec<MountedPool>,
    /// A mount for reading of the pool, by a server of root or of this user.
    reader: Option<MountedPool>,
    /// A server whose mount this process does not see, and the directory of the mount there.
    elsewhere: Option<(u32, Option<String>)>,
}

/// Whether the user that the kernel has recorded for a mount is root or this one.
fn is_believed(mount: &MountedPool) -> bool {
    mount.owner == 0 || mount.owner == geteuid().as_raw()
}

fn is_for_reading(mount: &MountedPool) -> bool {
    let status = ServerConnection::of_mount(mount).ok().and_then(|server| server.status().ok());
    status.is_some_and(|status| status.read_only)
}

impl Users {
    fn of(devices: &[PathBuf]) -> Users {
        let mut users = Users { mounts: Vec::new(), claims: Vec::new(), reader: None, elsewhere: None };
        let Some(label) = devices.iter().find_map(|device| device_label(device).ok().flatten()) else {
            return users;
        };
        let server = ServerConnection::of_devices(&label.pool, devices);
        for mount in mounted_pools().into_iter().filter(|mount| mount.id == label.pool) {
            match (ServerConnection::of_mount(&mount), &server) {
                (Ok(found), Some(server)) if found.is_same_process(server) => users.mounts.push(mount),
                // This user may not ask the server. Of root's mounts the table of the kernel is enough.
                (Err(NoServer::NotAdmitted), None) if mount.owner == 0 => users.mounts.push(mount),
                (Err(NoServer::NotRunning | NoServer::Stranger(_)), _) => {}
                // A server for reading has no device open for writing, so its devices do not prove it.
                (Ok(_), None) if is_believed(&mount) && is_for_reading(&mount) => users.reader = Some(mount),
                _ => users.claims.push(mount),
            }
        }
        users.mounts.sort_by_key(|mount| !mount.shows_all);
        if let Some(server) = server.filter(|_| users.mounts.is_empty()) {
            let process = server.process();
            users.elsewhere = Some((process, server.status().ok().and_then(|status| status.mounted_at)));
        }
        users
    }

    /// The files of the pool through one of its mounts; `None` if no mount of it shows them.
    fn mounted_tree(&self) -> Option<Result<MountedTree, Failure>> {
        self.mounts.iter().filter(|mount| mount.shows_all).find_map(|mount| {
            match MountedTree::open(&mount.mountpoint, false) {
                Ok(tree) if is_pool_at(mount, &tree) => Some(Ok(tree)),
                Err(Errno::ACCESS | Errno::PERM) => Some(Err(not_admitted(&mount.mountpoint))),
                _ => None,
            }
        })
    }

    /// As [`mounted_tree`](Users::mounted_tree). Without one, the failure of the open says why.
    fn through_mount(&self, error: &warpfire::Error) -> Result<MountedTree, Failure> {
        self.mounted_tree().unwrap_or_else(|| Err(self.refusal(error)))
    }

    /// Names the processes that have the pool open, as far as they are known.
    fn refusal(&self, error: &warpfire::Error) -> Failure {
        if let Some((process, at)) = &self.elsewhere {
            let at = at.as_deref().map(|at| shown(Path::new(at))).unwrap_or_default();
            return Failure::unreadable(format_args!(
                "the pool is mounted at {at} in another mount namespace, by process {process}"
            ))
            .hint(format_args!(
                "run the command there, with 'nsenter -m -t {process}', or unmount it first"
            ));
        }
        if let Some(mount) = self.mounts.first() {
            let at = shown(&mount.mountpoint);
            let said = match mount.shows_all {
                true => format!("the pool is mounted at {at}, and another filesystem is mounted over it"),
                false => format!("the pool is mounted, and {at} shows a part of it only"),
            };
            return Failure::unreadable(said).hint("mount the pool in another directory too");
        }
        if let Some(mount) = &self.reader {
            let at = shown(&mount.mountpoint);
            return Failure::unreadable(format_args!("the pool is mounted read-only at {at}"))
                .hint(format_args!("run 'warpfire umount {at}' first, and mount it without --read-only"));
        }
        if let Some(claim) = self.claims.iter().find(|claim| claim.owner != geteuid().as_raw()) {
            return Failure::pool(error).hint(format_args!(
                "it may be the pool that user {} has mounted at {}; name files there if you trust that user",
                claim.owner,
                shown(&claim.mountpoint)
            ));
        }
        Failure::pool(error)
    }
}
