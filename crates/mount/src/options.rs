//! Options of a mount.

use std::path::PathBuf;
use std::time::Duration;

use warpfire_env::Timestamp;

/// How to mount. `Default` mounts writable, for the mounting user alone, with a sync five seconds after a
/// change.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Refuse every change. The kernel refuses it before the request reaches the server.
    pub read_only: bool,
    /// Admit users other than the mounting one. The kernel checks their permissions. An ordinary user can set
    /// this only if `/etc/fuse.conf` has the line `user_allow_other`.
    pub allow_other: bool,
    /// Let set-user-id and set-group-id programs and file capabilities take effect. Only root can set this.
    pub suid: bool,
    /// Let device files be devices. Only root can set this.
    pub dev: bool,
    /// Let programs be run.
    pub exec: bool,
    /// Threads that take requests from the kernel: at least 1, at most [`THREADS_MAX`]. All but one rest
    /// while one suffices. A view has half as many. The default is one thread for each processor, at most 16.
    pub threads: usize,
    /// Take requests by queues over io_uring, on the processors that make them, if the kernel offers that: it
    /// does since Linux 6.14 if root has set its parameter `fuse.enable_uring`. Views have no queues.
    pub queues: bool,
    /// Keep idle processors from halting while requests arrive. It acts only on virtual machines of two to
    /// eight processors that halt without polling first: there the wake-up takes most of a request's time. It
    /// needs write access to `/dev/cpu_dma_latency`, which root has; without that access it does nothing.
    pub hold_cpu_latency: bool,
    /// How long a change may wait until it is made durable, if no sync comes first.
    pub sync_interval: Duration,
    /// The source in the mount table.
    pub fsname: String,
    /// Unmount on SIGTERM and SIGINT, and on SIGHUP unless `unmount_on_hangup` is false.
    pub unmount_on_signals: bool,
    /// Unmount on SIGHUP too: the terminal of the process is gone.
    pub unmount_on_hangup: bool,
    /// Number of inodes beyond which the kernel is asked to forget those that no request has named for long.
    /// Each costs the server some hundred bytes. Kernels before Linux 6.18 cannot be asked.
    pub inodes_max: usize,
    /// How long a transaction that is bound to no process may be idle before it is aborted.
    pub transaction_timeout: Duration,
    /// The directory in which views of transactions are mounted. It is made if it does not exist. `None` is
    /// `/run/warpfire` for root; for other users it is `$XDG_RUNTIME_DIR/warpfire`, or `/tmp/warpfire-UID` if
    /// that variable is not set.
    pub views_at: Option<PathBuf>,
    /// Reads the moment in a name `@MOMENT` in `.snapshots`, with the `@`: it leads to the newest snapshot
    /// then. The default knows seconds since 1970 only.
    pub parse_moment: fn(&str) -> Option<Timestamp>,
    /// In which directories the name `.snapshots` leads to snapshots. A file of that name comes first.
    pub snapshot_directories: SnapshotDirectories,
    /// The names in listings of `.snapshots`. All of them can be looked up always.
    pub snapshot_names: SnapshotNames,
}

/// The directories of a mount that have a directory `.snapshots`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SnapshotDirectories {
    /// Every directory. Programs on the mount cannot make a file with this name.
    #[default]
    Every,
    /// Only the root.
    Root,
    /// None.
    Nowhere,
}

/// The names of snapshots in listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SnapshotNames {
    /// Their own.
    #[default]
    Own,
    /// The time at which they were made, as Samba's `shadow_copy2` reads it: `@GMT-2026.11.24-21.56.00`. Of
    /// several snapshots of one second the last one is listed.
    Gmt,
}

/// Most threads that serve one mount. Each has a request buffer of its own.
pub const THREADS_MAX: usize = 64;

impl Default for MountOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        MountOptions {
            read_only: false,
            allow_other: false,
            suid: false,
            dev: false,
            exec: true,
            threads: cores.clamp(1, 16),
            queues: true,
            hold_cpu_latency: true,
            sync_interval: Duration::from_secs(5),
            fsname: "warpfire".to_owned(),
            unmount_on_signals: true,
            unmount_on_hangup: true,
            inodes_max: 400_000,
            transaction_timeout: Duration::from_secs(3600),
            views_at: None,
            parse_moment: |text| {
                let seconds = text.strip_prefix('@')?.parse().ok()?;
                Some(Timestamp { seconds, nanos: 0 })
            },
            snapshot_directories: SnapshotDirectories::default(),
            snapshot_names: SnapshotNames::default(),
        }
    }
}

/// Where permissions are checked. The server cannot check them: lookups of names that the kernel has cached
/// do not reach it, so it would miss the search permission of the directories on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PermissionChecks {
    /// In the kernel, by the modes and access control lists that the server sends it.
    Kernel,
    /// Nowhere: only root can reach the mount, and permissions do not bind root. This saves one GETATTR of
    /// the directory for each create and unlink.
    RootOnly,
}

impl PermissionChecks {
    pub(crate) fn of_this_process(options: &MountOptions) -> PermissionChecks {
        PermissionChecks::of(options, rustix::process::geteuid().as_raw())
    }

    fn of(options: &MountOptions, uid: u32) -> PermissionChecks {
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
