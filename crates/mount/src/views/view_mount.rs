//! The mounts of views. The mount of a committed transaction is kept for a while, and shows the next
//! transaction of the same user: `server/view_server.rs` says how.
//!
//! # Invariants
//! 1. A mount in [`KeptMounts`] shows no transaction, and the kernel has forgotten all of the last one
//!    (`ShownTransaction::close`). It shows transactions of one user only (`KeptMounts::take`).
//! 2. At most [`KEPT_MAX`] mounts are kept, each for at most [`KEPT_NANOS_MAX`].

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use warpfire_env::ChangeSignal;
use warpfire_env::{Clock, SystemClock};
use warpfire_fs::{FsSchema, Transaction};
use warpfire_fuse::ServingThreads;
use warpfire_meta::{Storage, TxStore};

use super::process::Process;
use super::view_directory::ViewDirectory;
use super::{MountKind, Requester, TransactionControl, Views};
use crate::attach::attach;
use crate::error::MountError;
use crate::invalidation_gate::InvalidationGate;
use crate::kernel_nodes::KernelNodes;
use crate::mountpoint::{Mounted, VIEW_READAHEAD_KIB, system_error};
use crate::options::{PermissionChecks, THREADS_MAX};
use crate::server::{
    HeldView, KernelConnection, Server, ServerContext, ShownTransaction, VIEW_ROOT_NUMBER, ViewServer,
};
use crate::session::serve;

/// Most mounts that are kept. Each has threads of its own.
const KEPT_MAX: usize = 16;

/// How long a mount is kept unused.
const KEPT_NANOS_MAX: u64 = 10_000_000_000;

/// A commit waits for a view in use: the kernel closes a file a moment after its program does. At most 20
/// pauses, half a second in all.
const IN_USE_TRIES_MAX: u32 = 20;
/// See [`IN_USE_TRIES_MAX`].
const IN_USE_PAUSE: Duration = Duration::from_millis(25);

/// The mount of a view.
pub(super) struct ViewMount<E: Storage> {
    uid: u32,
    directory: ViewDirectory,
    mounted: Mounted,
    shown: Arc<ShownTransaction<TxStore<E, FsSchema>>>,
    /// The process that the last transaction was bound to. Mostly the next one is bound to the same.
    pub(super) bound_to: Option<Process>,
    /// Lives as long as this value: a session whose token is dead has outlived its view.
    #[expect(dead_code, reason = "held for its drop")]
    token: Arc<()>,
}

/// A connection to the kernel of a view.
pub(super) struct ViewSession {
    pub(super) uid: u32,
    token: Weak<()>,
}

impl ViewSession {
    /// Whether it has outlived its view: a program has files open in it.
    pub(super) fn is_left(&self) -> bool {
        self.token.strong_count() == 0
    }
}

impl<E: Storage> ViewMount<E> {
    /// The path of a transaction.
    pub(super) fn path(&self, id: u64) -> PathBuf {
        self.directory.view().join(id.to_string())
    }

    /// Ends the use of the mount by a transaction whose changes are to be committed. Returns whether the
    /// mount can be kept; otherwise it is unmounted. Either way nothing in it is in use any more, and the
    /// transaction has all that was written, also through mappings.
    ///
    /// # Errors
    /// `InUse` while a file or a working directory in it is in use: the transaction goes on.
    pub(super) fn close(&self) -> Result<bool, MountError> {
        if self.shown.close() {
            return Ok(true);
        }
        // While it is mounted, because the kernel sends these pages through it.
        self.mounted.write_back()?;
        for _ in 0..IN_USE_TRIES_MAX {
            match self.mounted.unmount() {
                Err(MountError::InUse(_)) => thread::park_timeout(IN_USE_PAUSE),
                closed => return closed.map(|()| false),
            }
        }
        self.mounted.unmount().map(|()| false)
    }

    /// Empties the kernel's caches of the mount, and holds the requests on what programs use in it. `None` if
    /// that is too much: the transaction goes on.
    pub(super) fn hold(&self, gate: &InvalidationGate) -> Option<HeldView<'_, TxStore<E, FsSchema>>> {
        self.shown.hold(gate)
    }

    /// Takes the mount out of the tree, whatever uses it, and removes its directory.
    pub(super) fn remove(self) {
        self.directory.remove();
    }
}

/// Mounts that show nothing, the one that was used last at the end.
pub(super) struct KeptMounts<M>(VecDeque<KeptMount<M>>);

struct KeptMount<M> {
    uid: u32,
    /// The process of its last transaction, if that was bound to one.
    pid: Option<u32>,
    mount: M,
    since_nanos: u64,
}

impl<M> KeptMounts<M> {
    pub(super) fn new() -> Self {
        KeptMounts(VecDeque::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a mount for a transaction of a user: one of the same process, if there is one.
    pub(super) fn take(&mut self, requester: Requester) -> Option<M> {
        let of_user = |kept: &KeptMount<M>| kept.uid == requester.uid;
        let of_process = |kept: &KeptMount<M>| of_user(kept) && kept.pid == Some(requester.pid);
        let at = self.0.iter().rposition(of_process).or_else(|| self.0.iter().rposition(of_user))?;
        self.0.remove(at).map(|kept| kept.mount)
    }

    /// Keeps a mount of a user. Returns the oldest one if there are too many.
    fn add(&mut self, uid: u32, pid: Option<u32>, mount: M, now_nanos: u64) -> Option<M> {
        self.0.push_back(KeptMount { uid, pid, mount, since_nanos: now_nanos });
        if self.0.len() > KEPT_MAX { self.0.pop_front().map(|kept| kept.mount) } else { None }
    }

    /// Takes the mounts that have been kept for too long.
    pub(super) fn take_expired(&mut self, now_nanos: u64) -> Vec<M> {
        let is_expired = |kept: &&KeptMount<M>| now_nanos.saturating_sub(kept.since_nanos) > KEPT_NANOS_MAX;
        let expired = self.0.iter().take_while(is_expired).count();
        self.0.drain(..expired).map(|kept| kept.mount).collect()
    }

    pub(super) fn take_all(&mut self) -> Vec<M> {
        self.0.drain(..).map(|kept| kept.mount).collect()
    }
}

impl<E: Storage> Views<E> {
    /// Makes a mount for transactions of a user. `id` is that of the first one.
    pub(super) fn make_mount(self: &Arc<Self>, id: u64, uid: u32) -> Result<ViewMount<E>, Errno> {
        let made = ViewDirectory::make(&self.base, uid);
        // The program gets only the number: the log has the path.
        let directory = made.map_err(|e| {
            tracing::error!(id, base = %self.base.display(), error = %e, "directory of a view not made");
            Errno::from_io_error(&e).unwrap_or(Errno::ACCESS)
        })?;
        let token = Arc::new(());
        self.registry.lock().sessions.insert(id, ViewSession { uid, token: Arc::downgrade(&token) });
        let shown = Arc::new(ShownTransaction::new(KernelConnection::default()));
        let mounted = self.mount_view(id, &shown, &directory).map_err(|e| {
            self.registry.lock().sessions.remove(&id);
            tracing::error!(id, error = %e, "view not mounted");
            directory.remove();
            match e {
                MountError::System { source, .. } => Errno::from_io_error(&source).unwrap_or(Errno::IO),
                _ => Errno::PERM,
            }
        })?;
        Ok(ViewMount { uid, directory, mounted, shown, bound_to: None, token })
    }

    /// Its serving threads end when the kernel has ended the connection.
    fn mount_view(
        self: &Arc<Self>,
        id: u64,
        shown: &Arc<ShownTransaction<TxStore<E, FsSchema>>>,
        directory: &ViewDirectory,
    ) -> Result<Mounted, MountError> {
        let server = ViewServer::new(Arc::clone(shown), PermissionChecks::of_this_process(&self.options));
        let at = directory.view();
        let mountpoint = directory.mountpoint().map_err(|e| system_error(&at, "open the mountpoint", e))?;
        let (device, mounted) = attach(mountpoint, &self.options)?;
        let views = Arc::clone(self);
        // A transaction is mostly of one program.
        let threads = ServingThreads::new(self.options.threads.clamp(1, THREADS_MAX).div_ceil(2), true);
        let at_end = move || _ = views.registry.lock().sessions.remove(&id);
        serve(server, shown.connection(), device, threads, &at, at_end).inspect_err(|_| {
            // Without a server the mount is dead. The caller gets the error of `serve`, not one of this.
            let _ = mounted.detach();
        })?;
        mounted.raise_readahead(VIEW_READAHEAD_KIB);
        Ok(mounted)
    }

    /// Shows a transaction in a mount.
    pub(super) fn show(
        self: &Arc<Self>,
        mount: &ViewMount<E>,
        id: u64,
        transaction: &Transaction<E>,
        gate: &Arc<InvalidationGate>,
    ) {
        mount.shown.show(&id.to_string(), self.view_server(mount, id, transaction, gate));
    }

    /// The server of a transaction in a mount.
    pub(super) fn view_server(
        self: &Arc<Self>,
        mount: &ViewMount<E>,
        id: u64,
        transaction: &Transaction<E>,
        gate: &Arc<InvalidationGate>,
    ) -> Server<TxStore<E, FsSchema>> {
        let context = ServerContext {
            connection: mount.shown.connection().clone(),
            root_number: VIEW_ROOT_NUMBER,
            slot: None,
            nodes: Arc::new(KernelNodes::empty(self.options.inodes_max)),
            gate: Arc::clone(gate),
            // Changes of a transaction are durable after its commit at the earliest, so no sync has to run
            // for them.
            changes: ChangeSignal::ignored(),
            requests: self.main.requests.clone(),
            blocking_threads: Arc::clone(&self.main.blocking_threads),
            read_threads: None,
            mount_kind: MountKind::View(Arc::clone(self) as Arc<dyn TransactionControl>, id),
            read_only: self.options.read_only,
            queue_threads: 0,
            failures: Arc::clone(&self.main.failures),
        };
        let checks = PermissionChecks::of_this_process(&self.options);
        Server::new(Arc::clone(transaction.files()), checks, context)
    }

    /// Keeps a mount that shows nothing for the next transaction of its user.
    pub(super) fn keep(&self, mount: ViewMount<E>) {
        let mut registry = self.registry.lock();
        let now = SystemClock.monotonic_nanos();
        let pid = mount.bound_to.as_ref().map(|process| process.pid);
        let too_many =
            if registry.stop { Some(mount) } else { registry.kept.add(mount.uid, pid, mount, now) };
        drop(registry);
        // Unlocked: it unmounts.
        if let Some(mount) = too_many {
            mount.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, id};

    use super::*;

    #[test]
    fn a_process_is_found_again_while_it_runs() {
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let known = || Some(Process::find(other.id()).unwrap());
        assert_eq!(Process::find_again(known(), id()).unwrap().pid, id());
        assert_eq!(Process::find_again(None, id()).unwrap().pid, id());
        assert_eq!(Process::find_again(known(), other.id()).unwrap().pid, other.id());
        let known = known();
        other.kill().unwrap();
        other.wait().unwrap();
        // Its number may be that of another process at any time.
        let found = Process::find_again(known, other.id());
        assert!(found.is_err_and(|e| e == Errno::SRCH));
    }

    #[test]
    fn kept_mounts_are_few_and_for_one_user_and_expire() {
        let mut kept = KeptMounts::new();
        assert_eq!(kept.add(1, Some(70), "first", 0), None);
        assert_eq!(kept.add(2, Some(71), "other", 1), None);
        assert_eq!(kept.add(1, None, "second", 2), None);
        assert_eq!(kept.add(1, Some(72), "third", 2), None);
        let mut taken = |pid| kept.take(Requester { uid: 1, pid });
        assert_eq!(taken(70), Some("first"), "the one of this process");
        assert_eq!((taken(71), taken(70), taken(72)), (Some("third"), Some("second"), None));
        assert_eq!(kept.take_expired(KEPT_NANOS_MAX + 1), Vec::<&str>::new());
        assert_eq!(kept.take_expired(KEPT_NANOS_MAX + 2), ["other"]);
        assert!(kept.is_empty());
        let mut kept = KeptMounts::new();
        let dropped: Vec<u64> =
            (0..KEPT_MAX as u64 + 2).filter_map(|number| kept.add(1, None, number, number)).collect();
        assert_eq!(dropped, [0, 1]);
        assert_eq!(kept.take_all().len(), KEPT_MAX);
    }
}
