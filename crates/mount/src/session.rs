//! The life of a mount.
//!
//! ```text
//!   mount ──▶ serving ──umount(8), Session::unmount, a signal──▶ unmounted ──▶ closed   (`wait` returns)
//!                │                                                              ▲
//!                └──Session::detach, a signal while files are open──▶ detached ─┘
//! ```
//!
//! Invariants
//! 1. From `mount` to the return of `wait` the session alone closes the filesystem; after it, it is closed.
//! 2. A filesystem is closed only after the last answer to the kernel, but for a detached mount: what is still open
//!    in that one gets errors from then on.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use fuser::{Config, Notifier, SessionACL};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use warpfire_fs::{Fs, FsError, IntervalSync};
use warpfire_meta::Storage;

use crate::attach::attach;
use crate::blocking_threads::{BlockingThreads, SYNC_THREADS};
use crate::cpu_latency::CpuLatency;
use crate::error::MountError;
use crate::invalidation_gate::InvalidationGate;
use crate::kernel_nodes::KernelNodes;
use crate::mountpoint::{self, system_error};
use crate::options::{MountOptions, PermissionChecks, THREADS_MAX};
use crate::server::{Server, ServerContext};
use crate::views::{MainMount, MountKind, TransactionControl, Views};

/// How a mount ends.
enum MountEnd {
    /// The kernel has let go of it.
    Unmounted,
    /// It is out of the tree, and files in it are open.
    Detached,
}

/// A mounted filesystem. Dropping it detaches the mount and closes the filesystem; `unmount` and `wait` say how
/// that went.
pub struct Session {
    mountpoint: PathBuf,
    ends: Receiver<MountEnd>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
    signals: Option<(Handle, JoinHandle<()>)>,
    interval_sync: IntervalSync,
    cpu_latency: CpuLatency,
    close: Option<Box<dyn FnOnce() -> Result<(), FsError> + Send>>,
}

/// Mounts `fs` on a directory. A mount there whose server has died is detached first.
///
/// # Errors
/// See [`MountError`]; nothing is mounted then, and `fs` stays open.
pub fn mount<E: Storage>(
    fs: Arc<Fs<E>>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<Session, MountError> {
    let at = mountpoint::prepare(mountpoint)?;
    let threads_failed = |e| system_error(&at, "start threads", e);
    let committing = Arc::clone(&fs);
    let sync = move || {
        if let Err(e) = committing.sync() {
            tracing::error!("background commit: {e}");
        }
    };
    let (interval_sync, changes) =
        IntervalSync::after_changes(options.sync_interval, sync).map_err(threads_failed)?;
    let (cpu_latency, requests) = CpuLatency::start(options.hold_cpu_latency).map_err(threads_failed)?;
    let checks = PermissionChecks::of(options, rustix::process::geteuid().as_raw());
    let blocking_threads =
        Arc::new(BlockingThreads::start("warpfire-sync", SYNC_THREADS).map_err(threads_failed)?);
    let (root, gate) = (fs.root(), Arc::new(InvalidationGate::default()));
    let nodes = Arc::new(KernelNodes::new(root.ino(), root));
    let main = MainMount {
        nodes: Arc::clone(&nodes),
        gate: Arc::clone(&gate),
        changes: changes.clone(),
        requests: requests.clone(),
        blocking_threads: Arc::clone(&blocking_threads),
    };
    let views = Arc::new(Views::new(Arc::clone(&fs), main, options).map_err(threads_failed)?);
    let control: Arc<dyn TransactionControl> = Arc::clone(&views) as Arc<dyn TransactionControl>;
    let context = ServerContext {
        nodes,
        gate,
        changes,
        requests,
        blocking_threads,
        mount_kind: MountKind::MainMount(control),
        read_only: options.read_only,
    };
    let server = Server::new(Arc::clone(&fs), checks, context);
    let device = attach(&at, options)?;
    let (detached, ends) = mpsc::channel();
    let ended = detached.clone();
    // Nobody waits any more if the session was dropped.
    let tell_end = move || _ = ended.send(MountEnd::Unmounted);
    let (serving, notifier) = serve(server, device, options, &at, tell_end).inspect_err(|_| {
        // Nobody would ever answer; the first error is the one to tell.
        let _ = mountpoint::detach(&at);
    })?;
    mountpoint::raise_readahead(&at);
    let ending = Arc::clone(&views);
    let mut session = Session {
        mountpoint: at.clone(),
        ends,
        serving: Some(serving),
        signals: None,
        interval_sync,
        cpu_latency,
        close: Some(Box::new(move || {
            ending.end_all();
            fs.close()
        })),
    };
    views.start(notifier).map_err(threads_failed)?;
    if options.unmount_on_signals {
        session.signals = Some(watch_signals(at.clone(), detached).map_err(threads_failed)?);
    }
    Ok(session)
}

/// Greets the kernel and starts the threads that answer it. They end when the kernel has let go of the mount, and then call `at_end`.
///
/// # Errors
/// If the kernel does not speak the protocol, or threads cannot be started.
pub(crate) fn serve<E: Storage>(
    mut server: Server<E>,
    device: OwnedFd,
    options: &MountOptions,
    at: &Path,
    at_end: impl FnOnce() + Send + 'static,
) -> Result<(JoinHandle<std::io::Result<()>>, Notifier), MountError> {
    let mut config = Config::default();
    config.n_threads = Some(options.threads.clamp(1, THREADS_MAX));
    // A descriptor for each thread needs the device's name, which an ordinary user may not have.
    config.clone_fd = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    // Who may come in is the kernel's to say: it knows the mount's owner and `allow_other`.
    if config.n_threads == Some(1)
        && let Ok(connection) = device.try_clone()
    {
        server.set_sole_connection(connection);
    }
    let known = server.notifier();
    let session = fuser::Session::from_fd(server, device, SessionACL::All, config)
        .map_err(|e| system_error(at, "agree with the kernel on a protocol", e))?;
    let notifier = session.notifier();
    assert!(known.set(notifier.clone()).is_ok(), "a server serves one mount");
    let run = move || {
        let ended = session.run();
        at_end();
        ended
    };
    let serving = thread::Builder::new()
        .name("warpfire-serve".to_owned())
        .spawn(run)
        .map_err(|e| system_error(at, "start threads", e))?;
    Ok((serving, notifier))
}

/// Unmounts when the process is asked to end.
fn watch_signals(at: PathBuf, ends: Sender<MountEnd>) -> std::io::Result<(Handle, JoinHandle<()>)> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    let watch = move || {
        for signal in signals.forever() {
            tracing::info!(signal, mountpoint = %at.display(), "unmounting");
            let ended = match mountpoint::unmount(&at) {
                Err(MountError::InUse(_)) => write_back_and_detach(&at).map(|()| {
                    // As above.
                    let _ = ends.send(MountEnd::Detached);
                }),
                done => done,
            };
            if let Err(e) = ended {
                tracing::error!("{e}");
            }
        }
    };
    let thread = thread::Builder::new().name("warpfire-signal".to_owned()).spawn(watch)?;
    Ok((handle, thread))
}

/// Detaches a mount that is in use, after the kernel has handed over what programs wrote through mappings.
fn write_back_and_detach(at: &Path) -> Result<(), MountError> {
    if let Err(e) = mountpoint::write_back(at) {
        tracing::error!("before a detach: {e}");
    }
    mountpoint::detach(at)
}

impl Session {
    /// Where it is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Waits until the mount has ended, by whatever means, and closes the filesystem: everything is durable then.
    ///
    /// # Errors
    /// `Close` if the last changes could not be made durable; `System` if serving ended by an error.
    pub fn wait(mut self) -> Result<(), MountError> {
        self.finish_after_end()
    }

    /// Unmounts and closes the filesystem.
    ///
    /// # Errors
    /// `InUse` while something in the mount is open: it stays mounted, and goes on. Otherwise as [`Session::wait`].
    pub fn unmount(&mut self) -> Result<(), MountError> {
        mountpoint::unmount(&self.mountpoint)?;
        self.finish_after_end()
    }

    fn finish_after_end(&mut self) -> Result<(), MountError> {
        if self.close.is_none() {
            return Ok(());
        }
        // No sender left: serving has ended without a word, and `finish` says why.
        let end = self.ends.recv().unwrap_or(MountEnd::Unmounted);
        self.finish(&end)
    }

    /// Takes the mount out of the tree and closes the filesystem. What is still open in it gets errors from now on.
    ///
    /// # Errors
    /// As [`Session::wait`], and when the system refuses.
    pub fn detach(mut self) -> Result<(), MountError> {
        write_back_and_detach(&self.mountpoint)?;
        self.finish(&MountEnd::Detached)
    }

    fn finish(&mut self, end: &MountEnd) -> Result<(), MountError> {
        if let Some((handle, thread)) = self.signals.take() {
            handle.close();
            thread.join().expect("the signal thread does not panic");
        }
        let served = match (end, self.serving.take()) {
            (MountEnd::Unmounted, Some(serving)) => {
                serving.join().expect("the serving thread does not panic")
            }
            _ => Ok(()),
        };
        self.interval_sync.stop();
        self.cpu_latency.stop();
        let Some(close) = self.close.take() else { return Ok(()) };
        close()?;
        served.map_err(|e| system_error(&self.mountpoint, "serve", e))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.close.is_none() {
            return;
        }
        let ended = write_back_and_detach(&self.mountpoint).and_then(|()| self.finish(&MountEnd::Detached));
        if let Err(e) = ended {
            tracing::error!("{e}");
        }
    }
}
