//! Views: transactions for programs that do not use the library.
//!
//! The *main mount* shows the filesystem. A *view* is a second mount by the same process: it shows one
//! transaction at a time ([`warpfire_fs::TxFs`]). Programs that work in a view see the snapshot that
//! the transaction began with, and its own changes. Programs on the main mount see none of these changes
//! before the commit, and all of them after it.
//!
//! ```text
//!             EBUSY: in use         a call would have another answer now
//!            ┌───────┐              ┌──────────────────────────────────▶ conflict
//!            ▼       │              │
//!   begin ─▶ open ──commit──▶ ending ──caches emptied, committed───────▶ committed
//!              └──abort, its process ends, idle too long, the mount ends──▶ aborted
//! ```
//! `begin`, `commit` and `abort` make the transitions; `reap_abandoned` and `end_all` call `abort`.
//!
//! # Invariants
//! 1. An open view is in the registry together with its transaction. `ViewEntry::take` takes both out before
//!    the view ends, so it ends once.
//! 2. When a transaction is committed, its files are out of the tree, none is open there, and the kernel has
//!    sent the pages that programs changed through mappings (`ViewMount::close`). Files that another mount
//!    namespace still has open in the view get `EBADF` from then on.
//! 3. A commit is announced as `invalidation_gate.rs` describes: programs on the main mount see all of it or
//!    nothing. The exception is a file that is read without a pause while the commit changes it: such reads
//!    may return old data until the caches have been emptied once more.
//! 4. A serving thread neither mounts nor unmounts nor invalidates the kernel's caches: the kernel may wait
//!    for that thread to answer first. Jobs on other threads do it. A transaction has at most one job, and
//!    there are at most [`TRANSACTIONS_MAX`] transactions, so the queue of jobs always has room (the constant
//!    assert below).
//! 5. The changes of a transaction are listed on other threads than commits, so a listing never delays a
//!    commit (`diff/`).
//! 6. A view does not outlive the server: a transaction that was open when the server died leaves no trace.

mod announce;
mod announced_change;
mod chain;
mod client;
mod diff;
mod end_on_panic;
mod idle_reaper;
mod jobs;
mod namespace;
mod process;
mod registry;
mod shares;
mod view_directory;
mod view_mount;
mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use warpfire_env::ChangeSignal;
use warpfire_env::{Clock, RankedMutex, SystemClock};
use warpfire_fs::{Fs, FsError, NodeRef};
use warpfire_fuse::Notifier;
use warpfire_meta::Storage;

use crate::blocking_threads::{BlockingThreads, QUEUED_JOBS_MAX};
use crate::caller;
use crate::cpu_latency::RequestCounter;
use crate::error::MountError;
use crate::failed_requests::FailedRequests;
use crate::invalidation_gate::InvalidationGate;
use crate::kernel_nodes::KernelNodes;
use crate::lock_ranks::COMMITTING;
use crate::options::MountOptions;
use diff::ListingSlot;
use process::Process;
use registry::{LastUse, View, ViewEntry, ViewRegistry, report_without_view};
use shares::{JobShares, USER_JOBS_MAX};
pub use view_directory::{is_view_mountpoint, prepare_runtime_directory, runtime_directory};
use view_mount::{KeptMounts, ViewMount};

pub use client::{TransactionChanges, TransactionClient};
pub(crate) use diff::{DiffBlock, DiffRequest};
pub use diff::{decode_change, encode_change};
pub use namespace::{enter_view, forward_signals_to};
pub(crate) use wire::TransactionRequest;
pub use wire::{TransactionReport, TransactionState};

/// Most transactions of one mount at a time. Each is a mount with threads of its own.
const TRANSACTIONS_MAX: usize = 64;

/// Transactions that begin or end at the same time. The others wait.
const JOB_THREADS: usize = 8;

const _: () = assert!(USER_JOBS_MAX < JOB_THREADS, "one user leaves threads for the others");

/// Listings that run at the same time. The others wait.
const LIST_THREADS: usize = 2;

const _: () = assert!(TRANSACTIONS_MAX <= QUEUED_JOBS_MAX, "no serving thread has to run a job itself");

/// Begins and ends transactions, for requests by ioctl.
pub(crate) trait TransactionControl: Send + Sync {
    /// Answers a request, on this thread or another.
    fn ask(self: Arc<Self>, requester: Requester, request: TransactionRequest, answer: ReportCallback);

    /// Lists some changes of a transaction on another thread.
    fn list(self: Arc<Self>, requester: Requester, request: DiffRequest, answer: DiffCallback);
}

/// The kind of a mount. It decides which ioctls the root directory answers.
pub(crate) enum MountKind {
    /// The main mount: all ioctls.
    MainMount(Arc<dyn TransactionControl>),
    /// The view of the transaction with this id: only DIFF, because transactions are not nested.
    View(Arc<dyn TransactionControl>, u64),
    /// A snapshot in the main mount: none.
    Snapshot,
}

impl MountKind {
    /// The control of the main mount; `None` for a view.
    pub(crate) fn main_control(&self) -> Option<&Arc<dyn TransactionControl>> {
        match self {
            MountKind::MainMount(control) => Some(control),
            MountKind::View(..) | MountKind::Snapshot => None,
        }
    }

    /// The control that lists changes, and the request with the id of the transaction: in a view, id 0 is its
    /// own. `None` in a snapshot.
    pub(crate) fn diff_target(
        &self,
        request: DiffRequest,
    ) -> Option<(&Arc<dyn TransactionControl>, DiffRequest)> {
        Some(match self {
            MountKind::Snapshot => return None,
            MountKind::View(control, own) if request.id == 0 => {
                (control, DiffRequest { id: *own, ..request })
            }
            MountKind::MainMount(control) | MountKind::View(control, _) => (control, request),
        })
    }
}

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) uid: u32,
    /// The kernel's number of the thread.
    pub(crate) pid: u32,
}

/// Sends the answer to the kernel.
pub(crate) type ReportCallback = Box<dyn FnOnce(Result<TransactionReport, Errno>) + Send>;

/// Sends a page of changes to the kernel.
pub(crate) type DiffCallback = Box<dyn FnOnce(Result<Box<DiffBlock>, Errno>) + Send>;

/// The views of one mount.
pub(crate) struct Views<E: Storage> {
    fs: Arc<Fs<E>>,
    main: MainMount,
    /// Sends invalidations to the kernel for the main mount. `start` sets it.
    notifier: OnceLock<Notifier>,
    options: MountOptions,
    base: PathBuf,
    registry: Mutex<ViewRegistry<E>>,
    /// Signalled when a view begins or ends, and when the mount ends.
    registry_changed: Condvar,
    /// Signalled when the mount ends.
    stopped: Condvar,
    /// Held during an announced commit: there is one at a time.
    committing: RankedMutex<COMMITTING, ()>,
    reaper: Mutex<Option<JoinHandle<()>>>,
    /// Threads that begin and end transactions; until `end_all`.
    jobs: Mutex<Option<BlockingThreads>>,
    job_shares: JobShares,
    /// Threads that list changes; until `end_all`.
    listers: Mutex<Option<BlockingThreads>>,
}

/// The parts of the main mount that views use.
pub(crate) struct MainMount {
    pub(crate) nodes: Arc<KernelNodes<NodeRef>>,
    pub(crate) gate: Arc<InvalidationGate>,
    pub(crate) changes: ChangeSignal,
    pub(crate) requests: RequestCounter,
    pub(crate) blocking_threads: Arc<BlockingThreads>,
    pub(crate) failures: Arc<FailedRequests>,
}

/// The answer to a COMMIT.
fn report_of_commit(
    id: u64,
    uid: u32,
    outcome: Result<(), FsError>,
    is_synced: bool,
) -> Result<TransactionReport, Errno> {
    match outcome {
        Ok(()) if !is_synced => Ok(report_without_view(id, uid, TransactionState::NotDurable)),
        Ok(()) => Ok(report_without_view(id, uid, TransactionState::Committed)),
        Err(FsError::Conflict { call, path }) => Ok(TransactionReport {
            call: call.to_owned(),
            path: Path::new(&*path).to_owned(),
            ..report_without_view(id, uid, TransactionState::Conflict)
        }),
        Err(e) => {
            tracing::error!(id, error = %e, "commit of a transaction failed");
            Err(errno_of(&e))
        }
    }
}

fn errno_of(e: &FsError) -> Errno {
    Errno::from_raw_os_error(e.errno())
}

impl<E: Storage> Views<E> {
    /// # Errors
    /// If threads cannot be started.
    pub(crate) fn new(fs: Arc<Fs<E>>, main: MainMount, options: &MountOptions) -> std::io::Result<Views<E>> {
        Ok(Views {
            fs,
            main,
            notifier: OnceLock::new(),
            options: options.clone(),
            base: options.views_at.clone().unwrap_or_else(view_directory::runtime_directory),
            registry: Mutex::new(ViewRegistry {
                views: BTreeMap::new(),
                sessions: BTreeMap::new(),
                kept: KeptMounts::new(),
                last_id: 0,
                stop: false,
            }),
            registry_changed: Condvar::new(),
            stopped: Condvar::new(),
            committing: RankedMutex::default(),
            reaper: Mutex::default(),
            jobs: Mutex::new(Some(BlockingThreads::start("warpfire-tx", JOB_THREADS)?)),
            job_shares: JobShares::default(),
            listers: Mutex::new(Some(BlockingThreads::start("warpfire-diff", LIST_THREADS)?)),
        })
    }

    /// Starts the reaper of abandoned transactions, and removes directories of views that dead servers have
    /// left. Called once the main mount is served.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(self: &Arc<Self>, notifier: Notifier) -> std::io::Result<()> {
        view_directory::sweep(&self.base);
        assert!(self.notifier.set(notifier).is_ok(), "a mount is started once");
        let views = Arc::clone(self);
        let reaper =
            thread::Builder::new().name("warpfire-views".to_owned()).spawn(move || views.reap_abandoned())?;
        *self.reaper.lock() = Some(reaper);
        Ok(())
    }

    /// How many transactions are open or about to end.
    pub(crate) fn open_count(&self) -> usize {
        self.registry.lock().views.len()
    }

    /// Aborts the open transactions and waits for commits that are running. No transaction begins after it.
    /// Returns how many it has aborted.
    pub(crate) fn end_all(&self) -> usize {
        let mut registry = self.registry.lock();
        registry.stop = true;
        self.registry_changed.notify_all();
        self.stopped.notify_all();
        let open: Vec<View<E>> = registry.views.values_mut().filter_map(ViewEntry::take).collect();
        let kept = registry.kept.take_all();
        // Unlocked: this unmounts views, and jobs that are running need the registry to finish.
        drop(registry);
        kept.into_iter().for_each(ViewMount::remove);
        let aborted = open.len();
        for view in open {
            tracing::warn!(id = view.id, "transaction aborted at the end of the mount");
            self.abort_alone(view);
        }
        let mut registry = self.registry.lock();
        while !registry.views.is_empty() {
            self.registry_changed.wait(&mut registry);
        }
        drop(registry);
        if let Some(reaper) = self.reaper.lock().take() {
            reaper.join().expect("the reaper does not panic");
        }
        // A job removes its entry before it ends, so some may still run. Taken out of the mutexes first: a
        // request that comes now must find `None` and not wait for these joins.
        let jobs = self.jobs.lock().take();
        let listers = self.listers.lock().take();
        drop(jobs);
        drop(listers);
        aborted
    }

    /// The job of BEGIN: makes the view and puts it in place of the busy entry.
    fn begin(
        self: &Arc<Self>,
        id: u64,
        requester: Requester,
        ends_with_process: bool,
        kept: Option<ViewMount<E>>,
    ) -> Result<TransactionReport, Errno> {
        let made = self.make_view(id, requester, ends_with_process, kept);
        let mut registry = self.registry.lock();
        let outcome = match made {
            // `end_all` has come first and waits for this entry: it does not abort a view that is not open.
            Ok(view) if registry.stop => {
                drop(registry);
                let views = Arc::clone(self);
                // Elsewhere, because it unmounts the view, and this may be a serving thread.
                self.spawn(move || views.abort_alone(view));
                return Err(Errno::SHUTDOWN);
            }
            Ok(mut view) => {
                let report = view.report();
                let reserved = registry.views.insert(id, ViewEntry::Open(Box::new(view)));
                assert!(matches!(reserved, Some(ViewEntry::Busy { .. })), "BEGIN reserved this id");
                tracing::debug!(id, uid = requester.uid, view = %report.path.display(), "view begun");
                Ok(report)
            }
            Err(errno) => {
                registry.views.remove(&id);
                Err(errno)
            }
        };
        self.registry_changed.notify_all();
        outcome
    }

    fn make_view(
        self: &Arc<Self>,
        id: u64,
        requester: Requester,
        ends_with_process: bool,
        mut kept: Option<ViewMount<E>>,
    ) -> Result<View<E>, Errno> {
        let before = kept.as_mut().and_then(|mount| mount.bound_to.take());
        let ends_with = match ends_with_process {
            true => Some(Process::find_again(before, requester.pid)?),
            false => None,
        };
        let uid = requester.uid;
        let mount = kept.map_or_else(|| self.make_mount(id, uid), Ok)?;
        let transaction = match self.fs.begin_for(caller::share_of(uid)) {
            Ok(transaction) => transaction,
            Err(e) => {
                mount.remove();
                return Err(errno_of(&e));
            }
        };
        let gate = Arc::new(InvalidationGate::default());
        self.show(&mount, id, &transaction, &gate);
        let last_use = LastUse { passes: gate.passes(), at_nanos: SystemClock.monotonic_nanos() };
        let listing = Arc::new(Mutex::new(ListingSlot::Idle(None)));
        Ok(View { id, uid, ends_with, transaction, mount, gate, last_use, listing })
    }

    /// The job of COMMIT: unmounts the view, makes an announced commit, and removes the view's entry and
    /// directory.
    fn commit(&self, mut view: View<E>, durable: bool) -> Result<TransactionReport, Errno> {
        let id = view.id;
        let uid = view.uid;
        // First, so that the transaction has all that was written in the view, and nothing is written any
        // more.
        let can_be_kept = match view.mount.close() {
            Ok(can_be_kept) => can_be_kept,
            Err(MountError::InUse(_)) => return Err(self.open_again(view)),
            Err(e) => {
                tracing::error!(id, error = %e, "view not unmounted; transaction aborted");
                self.abort(view);
                return Err(Errno::IO);
            }
        };
        let outcome = self.commit_announced(view.transaction);
        self.main.changes.mark();
        let synced = if durable && outcome.is_ok() { self.fs.sync() } else { Ok(()) };
        if can_be_kept {
            view.mount.bound_to = view.ends_with;
            self.keep(view.mount);
        } else {
            view.mount.remove();
        }
        self.remove_entry(id);
        tracing::debug!(id, committed = outcome.is_ok(), can_be_kept, "view ended");
        report_of_commit(id, uid, outcome, synced.is_ok())
    }

    /// Opens a transaction again that could not be committed: the program can close its files and try again.
    /// Returns the answer to the program.
    fn open_again(&self, view: View<E>) -> Errno {
        let mut registry = self.registry.lock();
        if registry.stop {
            // The mount ends and waits for this entry, which nobody else would abort.
            drop(registry);
            self.abort(view);
            return Errno::SHUTDOWN;
        }
        registry.views.insert(view.id, ViewEntry::Open(Box::new(view)));
        drop(registry);
        self.registry_changed.notify_all();
        Errno::BUSY
    }

    /// The job of ABORT: detaches the view and drops the changes.
    fn abort(&self, view: View<E>) -> TransactionReport {
        let id = view.id;
        let uid = view.uid;
        view.mount.remove();
        view.transaction.abort();
        self.remove_entry(id);
        tracing::debug!(id, committed = false, "view ended");
        report_without_view(id, uid, TransactionState::Aborted)
    }

    fn remove_entry(&self, id: u64) {
        let entry = self.registry.lock().views.remove(&id);
        assert!(!matches!(entry, Some(ViewEntry::Open(_))), "a view is taken out before it ends");
        self.registry_changed.notify_all();
    }
}
