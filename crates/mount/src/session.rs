//! The life of a mount.
//!
//! An *unmounted* mount has no open files; the kernel has ended the connection. A *detached* mount is out of
//! the tree with files still open; the kernel keeps the connection until they are closed.
//!
//! ```text
//!   mount() ──▶ serving ──umount(8), Session::unmount, a signal──▶ unmounted ──▶ closed   (`finish`)
//!                  │                                                              ▲
//!                  └──Session::detach, a signal while files are open──▶ detached ─┘
//! ```
//!
//! Invariants
//! 1. Only `Session::finish` closes the filesystem, once (`close` is taken there). When `wait`, `unmount` or
//!    `detach` has returned without `InUse`, the filesystem is closed.
//! 2. The filesystem of an unmounted mount is closed after the last answer to the kernel: `finish` joins the
//!    serving threads first. In a detached mount, files that are still open get errors from the close on.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use warpfire_env::IntervalTask;
use warpfire_fs::{Fs, FsError, NodeRef, Rollback, Transaction, VolumeInfo, VolumeOrder};
use warpfire_fuse::{Filesystem, InitFlags, Notifier, ServingThreads};
use warpfire_meta::{SnapshotStore, Storage};

use crate::attach::attach;
use crate::blocking_threads::{BlockingThreads, READ_THREADS, SYNC_THREADS};
use crate::cpu_latency::CpuLatency;
use crate::error::MountError;
use crate::failed_requests::FailedRequests;
use crate::invalidation_gate::InvalidationGate;
use crate::kernel_nodes::KernelNodes;
use crate::mountpoint::{Mounted, Mountpoint, READAHEAD_KIB, system_error};
use crate::options::{MountOptions, PermissionChecks, THREADS_MAX};
use crate::server::{KernelConnection, MainServer, OPENED_ONCE_NAME, ServerContext};
use crate::views::{MainMount, MountKind, TransactionControl, Views};

/// Signals that end a mount. The last may have another use.
const ENDS: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];

/// How a mount ends.
enum MountEnd {
    /// The kernel has ended the connection.
    Unmounted,
    /// The mount is out of the tree, and files in it are still open.
    Detached,
}

/// Rolls back the filesystem of a mount: from the name of the snapshot, and the name of the one that keeps
/// the tree as it was.
pub type RollBack = Arc<dyn Fn(&[u8], &[u8]) -> Result<Rollback, FsError> + Send + Sync>;

/// Changes the volumes of a mounted filesystem.
pub type ChangeVolume = Arc<dyn Fn(&VolumeOrder<'_>) -> Result<VolumeInfo, FsError> + Send + Sync>;

/// A mounted filesystem. Dropping it detaches the mount, closes the filesystem and logs an error. `unmount`,
/// `wait` and `detach` do the same and return the error.
pub struct Session {
    mounted: Arc<Mounted>,
    ends: Receiver<MountEnd>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
    signals: Option<(Handle, JoinHandle<()>)>,
    interval_sync: IntervalTask,
    cpu_latency: CpuLatency,
    failures: Arc<FailedRequests>,
    nodes: Arc<KernelNodes<NodeRef>>,
    open_transactions: Box<dyn Fn() -> usize + Send>,
    aborted_transactions: Arc<AtomicUsize>,
    roll_back: RollBack,
    change_volume: ChangeVolume,
    close: Option<Box<dyn FnOnce() -> Result<(), FsError> + Send>>,
}

/// Mounts `fs` on a directory. A dead mount on it, left by a server that has died, is detached first.
///
/// While it is mounted, other callers in this process may read `fs` and must not change it: the kernel keeps
/// its caches, and their changes do not empty them.
///
/// # Errors
/// See [`MountError`]. Then nothing is mounted, and `fs` stays open.
pub fn mount<E: Storage + SnapshotStore>(
    fs: Arc<Fs<E>>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<Session, MountError> {
    mount_with_commits(fs, mountpoint, options).map(|(session, _)| session)
}

/// Commits a transaction of the mounted filesystem. The kernel drops what the commit has changed.
pub type Commits<E> = Arc<dyn Fn(Transaction<E>) -> Result<(), FsError> + Send + Sync>;

/// As [`mount`]. Also returns how other callers in this process may change the filesystem: by transactions.
/// They need not end before the mount; their commits fail then as every call does.
///
/// # Errors
/// As [`mount`].
pub fn mount_with_commits<E: Storage + SnapshotStore>(
    fs: Arc<Fs<E>>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<(Session, Commits<E>), MountError> {
    let at = Mountpoint::find(mountpoint)?;
    let path = at.path().to_owned();
    let threads_failed = |e| system_error(&path, "start threads", e);
    let synced = Arc::clone(&fs);
    let sync = move || {
        if let Err(e) = synced.sync() {
            tracing::error!(error = %e, "interval sync failed");
        }
    };
    let (interval_sync, changes) =
        IntervalTask::after_changes("warpfire-commit", options.sync_interval, sync)
            .map_err(threads_failed)?;
    let (cpu_latency, requests) = CpuLatency::start(options.hold_cpu_latency).map_err(threads_failed)?;
    let threads = ServingThreads::new(options.threads.clamp(1, THREADS_MAX), requests.helpers_may_rest());
    let checks = PermissionChecks::of_this_process(options);
    let blocking_threads =
        Arc::new(BlockingThreads::start("warpfire-sync", SYNC_THREADS).map_err(threads_failed)?);
    let read_threads =
        Arc::new(BlockingThreads::start("warpfire-read", READ_THREADS).map_err(threads_failed)?);
    let root = fs.root();
    let gate = Arc::new(InvalidationGate::default());
    let nodes = Arc::new(KernelNodes::new(root.ino(), root, options.inodes_max));
    let failures = Arc::<FailedRequests>::default();
    let main = MainMount {
        nodes: Arc::clone(&nodes),
        gate: Arc::clone(&gate),
        changes: changes.clone(),
        requests: requests.clone(),
        blocking_threads: Arc::clone(&blocking_threads),
        failures: Arc::clone(&failures),
    };
    let views = Arc::new(Views::new(Arc::clone(&fs), main, options).map_err(threads_failed)?);
    let committing = Arc::downgrade(&views);
    let commits: Commits<E> = Arc::new(move |transaction| match committing.upgrade() {
        Some(views) => views.commit_announced(transaction),
        None => Err(FsError::Ended),
    });
    let control: Arc<dyn TransactionControl> = Arc::clone(&views) as Arc<dyn TransactionControl>;
    let context = ServerContext {
        connection: KernelConnection::default(),
        root_number: fs.root().ino(),
        slot: None,
        nodes,
        gate,
        changes,
        requests,
        blocking_threads,
        read_threads: Some(read_threads),
        mount_kind: MountKind::MainMount(control),
        read_only: options.read_only,
        queue_threads: if options.queues { options.threads } else { 0 },
        failures: Arc::clone(&failures),
    };
    let connection = context.connection.clone();
    let known = Arc::clone(&context.nodes);
    let server = MainServer::new(Arc::clone(&fs), checks, options, context);
    // Last, because nothing so far needs to be undone: from here on a failure leaves a mount in the tree.
    let (device, mounted) = attach(at, options)?;
    let mounted = Arc::new(mounted);
    let (detached, ends) = mpsc::channel();
    let ended = detached.clone();
    // A session that was dropped no longer receives; then the send fails, which is right.
    let send_end = move || _ = ended.send(MountEnd::Unmounted);
    let (serving, notifier) =
        serve(server, &connection, device, threads, &path, send_end).inspect_err(|_| {
            // Without a server the mount is dead. The caller gets the error of `serve`, not one of this.
            let _ = mounted.detach();
        })?;
    mounted.raise_readahead(READAHEAD_KIB);
    mounted.open_once(OPENED_ONCE_NAME);
    tracing::info!(mountpoint = %path.display(), read_only = options.read_only, "mounted");
    let (ending, counted) = (Arc::clone(&views), Arc::clone(&views));
    let (rolled, changed) = (Arc::clone(&views), Arc::clone(&views));
    let aborted_transactions = Arc::<AtomicUsize>::default();
    let aborted = Arc::clone(&aborted_transactions);
    let mut session = Session {
        mounted: Arc::clone(&mounted),
        ends,
        serving: Some(serving),
        signals: None,
        interval_sync,
        cpu_latency,
        failures,
        nodes: known,
        open_transactions: Box::new(move || counted.open_count()),
        aborted_transactions,
        roll_back: Arc::new(move |name, kept_as| rolled.roll_back_announced(name, kept_as)),
        change_volume: Arc::new(move |order| changed.change_volume_announced(order)),
        close: Some(Box::new(move || {
            aborted.store(ending.end_all(), Ordering::SeqCst);
            fs.close()
        })),
    };
    // Errors from here on drop the session, which detaches the mount and closes the filesystem.
    views.start(notifier).map_err(threads_failed)?;
    if options.unmount_on_signals {
        let signals = if options.unmount_on_hangup { &ENDS[..] } else { &ENDS[..2] };
        session.signals = Some(watch_signals(signals, mounted, detached).map_err(threads_failed)?);
    }
    Ok((session, commits))
}

/// Negotiates the protocol with the kernel and starts the serving threads. Returns the first, which ends
/// after the others. When the kernel has ended the connection, the threads end and `at_end` is called.
///
/// # Errors
/// If the kernel does not speak the protocol, or if threads cannot be started.
pub(crate) fn serve<F: Filesystem + Send + Sync + 'static>(
    server: F,
    connection: &KernelConnection,
    device: OwnedFd,
    threads: ServingThreads,
    at: &Path,
    at_end: impl FnOnce() + Send + 'static,
) -> Result<(JoinHandle<std::io::Result<()>>, Notifier), MountError> {
    let threads = Arc::new(threads);
    assert!(connection.threads.set(Arc::clone(&threads)).is_ok(), "a connection is served once");
    if let Ok(device) = device.try_clone() {
        assert!(connection.device.set(device).is_ok(), "a connection is served once");
    }
    let session = warpfire_fuse::Session::begin(server, device)
        .map_err(|e| system_error(at, "negotiate the protocol with the kernel", e))?;
    let drops_pages = session.offered().contains(InitFlags::DIRECT_IO_ALLOW_MMAP);
    assert!(connection.drops_pages.set(drops_pages).is_ok(), "a connection is served once");
    let notifier = session.notifier();
    assert!(connection.notifier.set(notifier.clone()).is_ok(), "a connection is served once");
    let run = move || {
        let ended = session.run(&threads);
        at_end();
        ended
    };
    let threads = thread::Builder::new()
        .name("warpfire-serve".to_owned())
        .spawn(run)
        .map_err(|e| system_error(at, "start threads", e))?;
    Ok((threads, notifier))
}

/// Unmounts at a signal that asks the process to end. Detaches if files are open: the process ends anyway.
fn watch_signals(
    signals: &[i32],
    at: Arc<Mounted>,
    ends: Sender<MountEnd>,
) -> std::io::Result<(Handle, JoinHandle<()>)> {
    let mut signals = Signals::new(signals)?;
    let handle = signals.handle();
    let watch = move || {
        for signal in signals.forever() {
            tracing::info!(signal, mountpoint = %at.path().display(), "unmounting at a signal");
            let mut detached = false;
            // By value: the descriptor of a mount inside another is closed before the outer one is unmounted.
            for mounted in at.everywhere() {
                let ended = match mounted.unmount() {
                    Err(MountError::InUse(_)) => write_back_and_detach(&mounted).map(|()| detached = true),
                    // The serving thread reports the unmount of the last one.
                    done => done,
                };
                if let Err(e) = ended {
                    let mountpoint = mounted.path().display();
                    tracing::error!(signal, %mountpoint, error = %e, "unmount at a signal failed");
                }
            }
            if detached {
                // Fails only if the session was dropped: then the mount has ended.
                let _ = ends.send(MountEnd::Detached);
            }
        }
    };
    let thread = thread::Builder::new().name("warpfire-signal".to_owned()).spawn(watch)?;
    Ok((handle, thread))
}

/// Detaches a mount that is in use, after the kernel has sent the pages that programs changed through
/// mappings.
fn write_back_and_detach(at: &Mounted) -> Result<(), MountError> {
    if let Err(e) = at.write_back() {
        tracing::error!(mountpoint = %at.path().display(), error = %e, "write-back before a detach failed");
    }
    at.detach()
}

impl Session {
    /// The directory that it is mounted on.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        self.mounted.path()
    }

    /// Number of inodes that the kernel remembers. The server has some hundred bytes in memory for each.
    #[must_use]
    pub fn remembered_inodes(&self) -> usize {
        self.nodes.len()
    }

    /// The requests of the mount that have met damage. The list outlives the mount.
    #[must_use]
    pub fn failed_requests(&self) -> Arc<FailedRequests> {
        Arc::clone(&self.failures)
    }

    /// The rollback of the mounted filesystem (`Fs::roll_back`): on return no program sees the state before
    /// the rollback. Its end fails with `Ended` in a session that has ended.
    #[must_use]
    pub fn rollback(&self) -> RollBack {
        Arc::clone(&self.roll_back)
    }

    /// Changes the volumes of the mounted filesystem (`Fs::change_volume`): on return every program sees the
    /// change. It fails with `Ended` in a session that has ended.
    #[must_use]
    pub fn volume_changes(&self) -> ChangeVolume {
        Arc::clone(&self.change_volume)
    }

    /// How many transactions the end of the mount has aborted, from the moment that the session has ended. No
    /// transaction begins or ends after that.
    #[must_use]
    pub fn aborted_transactions(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.aborted_transactions)
    }

    /// Waits until the mount has ended, by whatever means, and closes the filesystem. On return all changes
    /// are durable.
    ///
    /// # Errors
    /// `Close` if the last changes could not be made durable; `System` if serving ended with an error.
    pub fn wait(self) -> Result<(), MountError> {
        self.wait_with(|| ())
    }

    /// As [`Session::wait`]. Calls `at_end` when the mount has ended, before the filesystem is closed.
    ///
    /// # Errors
    /// As [`Session::wait`].
    pub fn wait_with(mut self, at_end: impl FnOnce()) -> Result<(), MountError> {
        self.finish_after_end(at_end)
    }

    /// Unmounts and closes the filesystem.
    ///
    /// # Errors
    /// `InUse` while a file in the mount is open, `TransactionsOpen` while transactions are: it stays
    /// mounted, and the session goes on. Otherwise as [`Session::wait`].
    pub fn unmount(&mut self) -> Result<(), MountError> {
        match (self.open_transactions)() {
            0 => {}
            count => return Err(MountError::TransactionsOpen { path: self.mountpoint().to_owned(), count }),
        }
        self.mounted.unmount()?;
        self.finish_after_end(|| ())
    }

    fn finish_after_end(&mut self, at_end: impl FnOnce()) -> Result<(), MountError> {
        if self.close.is_none() {
            return Ok(());
        }
        // Without a sender, the serving thread has panicked; the join in `finish` reports that.
        let end = self.ends.recv().unwrap_or(MountEnd::Unmounted);
        at_end();
        self.finish(&end)
    }

    /// Takes the mount out of the tree and closes the filesystem. Files that are still open in it get errors
    /// from then on. Open transactions are aborted.
    ///
    /// # Errors
    /// As [`Session::wait`], and `System` or `NotPermitted` if the mount cannot be detached.
    pub fn detach(mut self) -> Result<(), MountError> {
        write_back_and_detach(&self.mounted)?;
        self.finish(&MountEnd::Detached)
    }

    fn finish(&mut self, end: &MountEnd) -> Result<(), MountError> {
        if let Some((handle, thread)) = self.signals.take() {
            handle.close();
            thread.join().expect("the signal thread does not panic");
        }
        let served = match (end, self.serving.take()) {
            // Serving threads of a detached mount run until its files are closed; nothing waits for them.
            (MountEnd::Unmounted, Some(serving)) => {
                serving.join().expect("the serving thread does not panic")
            }
            _ => Ok(()),
        };
        // Before the close, which makes a last sync itself: no other thread touches the filesystem from here
        // on.
        self.interval_sync.stop();
        self.cpu_latency.stop();
        let Some(close) = self.close.take() else { return Ok(()) };
        close()?;
        tracing::info!(
            mountpoint = %self.mountpoint().display(),
            detached = matches!(end, MountEnd::Detached),
            "unmounted"
        );
        served.map_err(|e| system_error(self.mountpoint(), "serve", e))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.close.is_none() {
            return;
        }
        let ended = write_back_and_detach(&self.mounted).and_then(|()| self.finish(&MountEnd::Detached));
        if let Err(e) = ended {
            tracing::error!(mountpoint = %self.mountpoint().display(), error = %e, "unmount failed");
        }
    }
}
