//! What a mount can be asked for.

use std::path::PathBuf;
use std::time::Duration;

/// How to mount. `Default` mounts for the mounting user alone, writable, with a commit every five seconds.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Refuses every change, in the kernel.
    pub read_only: bool,
    /// Lets other users in. Permissions bind them, and are checked by the kernel. An ordinary user may ask for
    /// this only where `/etc/fuse.conf` says `user_allow_other`.
    pub allow_other: bool,
    /// Threads that take requests from the kernel; at least 1, at most [`THREADS_MAX`]. The kernel gives requests to them
    /// in turn, so that one program alone is served fastest by one: unless said, there is one for two processors.
    pub threads: usize,
    /// Keeps idle processors from halting while requests flow, where that is what makes requests slow: in virtual machines of at most eight processors
    /// that halt without polling first. Needs write access to `/dev/cpu_dma_latency`, which root has; without it nothing is done.
    pub hold_cpu_latency: bool,
    /// How long a change may wait before it is made durable without a sync asking for it.
    pub sync_interval: Duration,
    /// What mount tables show as the source.
    pub fsname: String,
    /// Unmounts on SIGTERM, SIGINT and SIGHUP.
    pub unmount_on_signals: bool,
    /// How long a transaction that ends with no process may be left alone before it is aborted.
    pub transaction_timeout: Duration,
    /// The directory that views of transactions are mounted in, made if it is not there. `None`: `/run/warpfire`; of an ordinary
    /// user, `warpfire` in `$XDG_RUNTIME_DIR`, or `/tmp/warpfire-UID`.
    pub views_at: Option<PathBuf>,
}

/// Most threads that serve one mount: each has a request buffer of its own.
pub const THREADS_MAX: usize = 64;

impl Default for MountOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        MountOptions {
            read_only: false,
            allow_other: false,
            threads: (cores / 2).clamp(1, 16),
            hold_cpu_latency: true,
            sync_interval: Duration::from_secs(5),
            fsname: "warpfire".to_owned(),
            unmount_on_signals: true,
            transaction_timeout: Duration::from_secs(3600),
            views_at: None,
        }
    }
}

/// Who decides whether a caller may do what it asks. The server itself cannot: names that the kernel has cached
/// never reach it, so nobody would check the search permission of the directories on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PermissionChecks {
    /// The kernel, with the modes and lists that the server tells it.
    Kernel,
    /// Nobody: only root can reach the mount, and permissions do not bind root. Saves the kernel a request for the
    /// directory's attributes at each create and unlink.
    RootOnly,
}

impl PermissionChecks {
    pub(crate) fn of(options: &MountOptions, uid: u32) -> PermissionChecks {
        if uid == 0 && !options.allow_other { PermissionChecks::RootOnly } else { PermissionChecks::Kernel }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mount_that_root_alone_can_reach_goes_unchecked() {
        let alone = MountOptions::default();
        let shared = MountOptions { allow_other: true, ..MountOptions::default() };
        assert_eq!(PermissionChecks::of(&alone, 0), PermissionChecks::RootOnly);
        assert_eq!(PermissionChecks::of(&alone, 1000), PermissionChecks::Kernel);
        assert_eq!(PermissionChecks::of(&shared, 0), PermissionChecks::Kernel);
    }
}
