//! Views: transactions for programs that do not use the library.
//!
//! The *main mount* shows the filesystem. A *view* is a second mount by the same process: it shows the
//! filesystem of one transaction ([`warpfire_fs::TxFs`]). Programs that work in a view see the snapshot that
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
//! 2. When a transaction is committed, its view is out of the tree, no file is open in it, and the kernel has
//!    sent the pages that programs changed through mappings (`unmount_view`). Files that another mount
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
mod client;
mod diff;
mod end_on_panic;
mod idle_reaper;
mod namespace;
mod shares;
mod view_directory;
mod wire;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fuser::Notifier;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use warpfire_env::{Clock, RankedMutex, SystemClock};
use warpfire_fs::{ChangeSignal, Fs, FsError, NodeRef, Transaction};
use warpfire_meta::Storage;

use crate::attach::attach;
use crate::blocking_threads::{BlockingThreads, QUEUED_JOBS_MAX};
use crate::caller;
use crate::cpu_latency::RequestCounter;
use crate::error::MountError;
use crate::invalidation_gate::InvalidationGate;
use crate::kernel_nodes::KernelNodes;
use crate::lock_ranks::COMMITTING;
use crate::mountpoint::{Mounted, system_error};
use crate::options::{MountOptions, PermissionChecks};
use crate::server::{Server, ServerContext};
use crate::session::serve;
use diff::{ListingSlot, SharedListingSlot};
use end_on_panic::EndOnPanic;
use shares::{JobShares, SessionCounts, USER_JOBS_MAX};
use view_directory::ViewDirectory;
pub use view_directory::{prepare_runtime_directory, runtime_directory};

pub use client::{TransactionChanges, TransactionClient};
pub(crate) use diff::{DiffBlock, DiffRequest};
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

/// A commit waits for a view in use: the kernel closes a file a moment after its program does. At most 20
/// pauses, half a second in all.
const IN_USE_TRIES_MAX: u32 = 20;
/// See [`IN_USE_TRIES_MAX`].
const IN_USE_PAUSE: Duration = Duration::from_millis(25);

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
}

impl MountKind {
    /// The control of the main mount; `None` for a view.
    pub(crate) fn main_control(&self) -> Option<&Arc<dyn TransactionControl>> {
        match self {
            MountKind::MainMount(control) => Some(control),
            MountKind::View(..) => None,
        }
    }

    /// The control that lists changes, and the request with the id of the transaction: in a view, id 0 is its
    /// own.
    pub(crate) fn diff_target(&self, request: DiffRequest) -> (&Arc<dyn TransactionControl>, DiffRequest) {
        match self {
            MountKind::View(control, own) if request.id == 0 => {
                (control, DiffRequest { id: *own, ..request })
            }
            MountKind::MainMount(control) | MountKind::View(control, _) => (control, request),
        }
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
}

struct ViewRegistry<E: Storage> {
    views: BTreeMap<u64, ViewEntry<E>>,
    /// The user of each view with a live connection to the kernel, by the id of the transaction. It outlives
    /// an aborted transaction while a program has files open in the view.
    sessions: BTreeMap<u64, u32>,
    last_id: u64,
    stop: bool,
}

enum ViewEntry<E: Storage> {
    Open(Box<View<E>>),
    /// A job begins or ends it, or it has just ended.
    Busy {
        uid: u32,
    },
}

struct View<E: Storage> {
    id: u64,
    uid: u32,
    ends_with: Option<Process>,
    transaction: Transaction<E>,
    view_directory: ViewDirectory,
    mounted: Mounted,
    gate: Arc<InvalidationGate>,
    last_use: LastUse,
    listing: SharedListingSlot<E>,
}

/// A process, with a descriptor that becomes readable when it ends.
struct Process {
    pid: u32,
    handle: OwnedFd,
}

/// The last check at which a view turned out to have been used.
#[derive(Clone, Copy)]
struct LastUse {
    /// Passes of the view's gate up to that check.
    passes: u64,
    at_nanos: u64,
}

impl<E: Storage> View<E> {
    /// Nanoseconds since a request to the view was last noticed.
    fn idle_nanos(&mut self) -> u64 {
        let passes = self.gate.passes();
        let now = SystemClock.monotonic_nanos();
        if passes != self.last_use.passes {
            self.last_use = LastUse { passes, at_nanos: now };
        }
        debug_assert!(now >= self.last_use.at_nanos, "a monotonic clock does not run backward");
        now - self.last_use.at_nanos
    }

    fn report(&mut self) -> TransactionReport {
        let idle = Duration::from_nanos(self.idle_nanos());
        TransactionReport {
            pid: self.ends_with.as_ref().map(|process| process.pid),
            idle_seconds: u32::try_from(idle.as_secs()).unwrap_or(u32::MAX),
            path: self.view_directory.view(),
            ..report_without_view(self.id, self.uid, TransactionState::Open)
        }
    }
}

/// A report of a transaction that has no view.
fn report_without_view(id: u64, uid: u32, state: TransactionState) -> TransactionReport {
    let (call, path) = (String::new(), PathBuf::new());
    TransactionReport { id, state, uid, pid: None, idle_seconds: 0, call, path }
}

fn errno_of(e: &FsError) -> Errno {
    Errno::from_raw_os_error(e.errno())
}

impl<E: Storage> ViewRegistry<E> {
    /// Takes an open view out of the registry, to end it.
    ///
    /// # Errors
    /// `ENOENT` if there is none, or if the requester may not see it; `EBUSY` if a job begins or ends it.
    fn take(&mut self, id: u64, requester: Requester) -> Result<View<E>, Errno> {
        let entry =
            self.views.get_mut(&id).filter(|entry| entry.is_visible_to(requester)).ok_or(Errno::NOENT)?;
        entry.take().ok_or(Errno::BUSY)
    }
}

impl<E: Storage> ViewRegistry<E> {
    /// The open transactions and sessions, of a user and in all.
    fn counts(&self, uid: u32) -> SessionCounts {
        let left = || self.sessions.iter().filter(|(id, _)| !self.views.contains_key(id));
        SessionCounts {
            open: self.views.len(),
            open_of_user: self.views.values().filter(|entry| entry.uid() == uid).count(),
            left: left().count(),
            left_of_user: left().filter(|(_, user)| **user == uid).count(),
        }
    }
}

impl<E: Storage> ViewEntry<E> {
    fn uid(&self) -> u32 {
        match self {
            ViewEntry::Open(view) => view.uid,
            ViewEntry::Busy { uid } => *uid,
        }
    }

    /// Whether the requester is the user that began the transaction, or root.
    fn is_visible_to(&self, requester: Requester) -> bool {
        requester.uid == 0 || requester.uid == self.uid()
    }

    fn take(&mut self) -> Option<View<E>> {
        let uid = self.uid();
        match std::mem::replace(self, ViewEntry::Busy { uid }) {
            ViewEntry::Open(view) => Some(*view),
            ViewEntry::Busy { .. } => None,
        }
    }

    fn report(&mut self, id: u64) -> TransactionReport {
        match self {
            ViewEntry::Open(view) => view.report(),
            ViewEntry::Busy { uid } => report_without_view(id, *uid, TransactionState::Ending),
        }
    }
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
                last_id: 0,
                stop: false,
            }),
            registry_changed: Condvar::new(),
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
    pub(crate) fn end_all(&self) {
        let mut registry = self.registry.lock();
        registry.stop = true;
        self.registry_changed.notify_all();
        let open: Vec<View<E>> = registry.views.values_mut().filter_map(ViewEntry::take).collect();
        // Unlocked: aborts unmount views, and jobs that are running need the registry to finish.
        drop(registry);
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
    }

    /// The job of BEGIN: makes the view and puts it in place of the busy entry.
    fn begin(
        self: &Arc<Self>,
        id: u64,
        requester: Requester,
        ends_with_process: bool,
    ) -> Result<TransactionReport, Errno> {
        let made = self.make_view(id, requester, ends_with_process);
        let mut registry = self.registry.lock();
        let outcome = match made {
            // `end_all` has come first and waits for this entry: it does not abort a view that is not open.
            Ok(view) if registry.stop => {
                drop(registry);
                self.abort(view);
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
    ) -> Result<View<E>, Errno> {
        let ends_with = if ends_with_process { Some(Process::find(requester.pid)?) } else { None };
        let made = ViewDirectory::make(&self.base, requester.uid);
        // The program gets only the number: the log has the path.
        let view_directory = made.map_err(|e| {
            tracing::error!(id, base = %self.base.display(), error = %e, "directory of a view not made");
            Errno::from_io_error(&e).unwrap_or(Errno::ACCESS)
        })?;
        let transaction = self
            .fs
            .begin_for(caller::share_of(requester.uid))
            .map_err(|e| errno_of(&e))
            .inspect_err(|_| view_directory.remove())?;
        let gate = Arc::new(InvalidationGate::default());
        self.registry.lock().sessions.insert(id, requester.uid);
        let mounted = self.mount_view(id, &transaction, &gate, &view_directory).map_err(|e| {
            self.registry.lock().sessions.remove(&id);
            tracing::error!(id, error = %e, "view not mounted");
            view_directory.remove();
            match e {
                MountError::System { source, .. } => Errno::from_io_error(&source).unwrap_or(Errno::IO),
                _ => Errno::PERM,
            }
        })?;
        let last_use = LastUse { passes: gate.passes(), at_nanos: SystemClock.monotonic_nanos() };
        let listing = Arc::new(Mutex::new(ListingSlot::Idle(None)));
        let uid = requester.uid;
        Ok(View { id, uid, ends_with, transaction, view_directory, mounted, gate, last_use, listing })
    }

    /// Mounts a transaction. Its serving threads end when the kernel has ended the connection.
    fn mount_view(
        self: &Arc<Self>,
        id: u64,
        transaction: &Transaction<E>,
        gate: &Arc<InvalidationGate>,
        directory: &ViewDirectory,
    ) -> Result<Mounted, MountError> {
        let files = transaction.files();
        let root = files.root();
        let context = ServerContext {
            nodes: Arc::new(KernelNodes::new(root.ino(), root)),
            gate: Arc::clone(gate),
            // Changes of a transaction are durable after its commit at the earliest, so no sync has to run
            // for them.
            changes: ChangeSignal::ignored(),
            requests: self.main.requests.clone(),
            blocking_threads: Arc::clone(&self.main.blocking_threads),
            mount_kind: MountKind::View(Arc::clone(self) as Arc<dyn TransactionControl>, id),
            read_only: self.options.read_only,
        };
        let checks = PermissionChecks::of_this_process(&self.options);
        let server = Server::new(Arc::clone(files), checks, context);
        let at = directory.view();
        let mountpoint = directory.mountpoint().map_err(|e| system_error(&at, "open the mountpoint", e))?;
        let (device, mounted) = attach(mountpoint, &self.options)?;
        let views = Arc::clone(self);
        let at_end = move || _ = views.registry.lock().sessions.remove(&id);
        serve(server, device, &self.options, &at, at_end).inspect_err(|_| {
            // Without a server the mount is dead. The caller gets the error of `serve`, not one of this.
            let _ = mounted.detach();
        })?;
        mounted.raise_readahead();
        Ok(mounted)
    }

    /// The job of COMMIT: unmounts the view, makes an announced commit, and removes the view's entry and
    /// directory.
    fn commit(&self, view: View<E>, durable: bool) -> Result<TransactionReport, Errno> {
        let id = view.id;
        let uid = view.uid;
        // First, so that the transaction has all that was written in the view, and nothing is written any
        // more.
        match unmount_view(&view.mounted) {
            Ok(()) => {}
            Err(MountError::InUse(_)) => {
                let mut registry = self.registry.lock();
                if registry.stop {
                    // The mount ends and waits for this entry, which nobody else would abort.
                    drop(registry);
                    self.abort(view);
                    return Err(Errno::SHUTDOWN);
                }
                // The transaction is open again: the program can close its files and try again.
                registry.views.insert(id, ViewEntry::Open(Box::new(view)));
                drop(registry);
                self.registry_changed.notify_all();
                return Err(Errno::BUSY);
            }
            Err(e) => {
                tracing::error!(id, error = %e, "view not unmounted; transaction aborted");
                self.abort(view);
                return Err(Errno::IO);
            }
        }
        let outcome = self.commit_announced(view.transaction);
        self.main.changes.mark();
        let synced = if durable && outcome.is_ok() { self.fs.sync() } else { Ok(()) };
        view.view_directory.remove();
        self.remove_entry(id);
        tracing::debug!(id, committed = outcome.is_ok(), "view ended");
        match outcome {
            Ok(()) if synced.is_err() => Ok(report_without_view(id, uid, TransactionState::NotDurable)),
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

    /// The job of ABORT: detaches the view and drops the changes.
    fn abort(&self, view: View<E>) -> TransactionReport {
        let id = view.id;
        let uid = view.uid;
        view.view_directory.remove();
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

/// Unmounts a view. If a file is open in it, waits a moment and then fails with `InUse`.
fn unmount_view(view: &Mounted) -> Result<(), MountError> {
    // While the view is mounted, because the kernel sends these pages through it.
    view.write_back()?;
    for _ in 0..IN_USE_TRIES_MAX {
        match view.unmount() {
            Err(MountError::InUse(_)) => thread::park_timeout(IN_USE_PAUSE),
            closed => return closed,
        }
    }
    view.unmount()
}

impl Process {
    /// The process of a thread.
    ///
    /// # Errors
    /// `ESRCH` if it has ended.
    fn find(pid: u32) -> Result<Process, Errno> {
        // A request has the number of a thread; pidfd_open(2) takes that of a process.
        let pid = caller::process_of(pid).ok_or(Errno::SRCH)?;
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(Process { pid, handle: pidfd_open(number, PidfdFlags::empty())? })
    }
}

impl<E: Storage> TransactionControl for Views<E> {
    fn ask(self: Arc<Self>, requester: Requester, request: TransactionRequest, answer: ReportCallback) {
        let mut registry = self.registry.lock();
        let job: Result<(u64, TransactionJob<E>), Errno> = match request {
            TransactionRequest::Begin { .. } if self.options.read_only => Err(Errno::ROFS),
            TransactionRequest::Begin { .. } if registry.stop => Err(Errno::SHUTDOWN),
            TransactionRequest::Begin { ends_with_process } => {
                registry.counts(requester.uid).admit(requester.uid).map(|()| {
                    registry.last_id += 1;
                    let id = registry.last_id;
                    // The entry counts toward the limits while the job is still in the queue.
                    registry.views.insert(id, ViewEntry::Busy { uid: requester.uid });
                    let job = move |views: &Arc<Views<E>>| views.begin(id, requester, ends_with_process);
                    (id, Box::new(job) as TransactionJob<E>)
                })
            }
            TransactionRequest::Commit { id, durable } => {
                let taken = registry.take(id, requester);
                taken.map(|view| {
                    let job = move |views: &Arc<Views<E>>| views.commit(view, durable);
                    (id, Box::new(job) as TransactionJob<E>)
                })
            }
            TransactionRequest::Abort { id } => {
                let taken = registry.take(id, requester);
                taken.map(|view| {
                    let job = move |views: &Arc<Views<E>>| Ok(views.abort(view));
                    (id, Box::new(job) as TransactionJob<E>)
                })
            }
            TransactionRequest::Status { id } => {
                let entry = registry.views.get_mut(&id).filter(|entry| entry.is_visible_to(requester));
                return answer(entry.map(|entry| entry.report(id)).ok_or(Errno::NOENT));
            }
            TransactionRequest::Next { after } => {
                let mut later = registry.views.range_mut(after.saturating_add(1)..);
                let next = later.find(|(_, entry)| entry.is_visible_to(requester));
                return answer(next.map(|(id, entry)| entry.report(*id)).ok_or(Errno::NOENT));
            }
        };
        // Unlocked before the job starts, because the job locks the registry.
        drop(registry);
        match job {
            Ok((id, job)) => self.start_job(requester.uid, id, job, answer),
            Err(errno) => answer(Err(errno)),
        }
    }

    fn list(self: Arc<Self>, requester: Requester, request: DiffRequest, answer: DiffCallback) {
        let call = match self.take_listing(requester, request) {
            Ok(call) => call,
            Err(errno) => return answer(Err(errno)),
        };
        match &*self.listers.lock() {
            Some(listers) => listers.spawn(move || answer(call.list())),
            None => answer(Err(Errno::SHUTDOWN)),
        }
    }
}

type TransactionJob<E> = Box<dyn FnOnce(&Arc<Views<E>>) -> Result<TransactionReport, Errno> + Send>;

impl<E: Storage> Views<E> {
    /// Runs a job of a user, about one transaction, on another thread and answers with its result.
    fn start_job(self: Arc<Self>, uid: u32, id: u64, job: TransactionJob<E>, answer: ReportCallback) {
        let views = Arc::clone(&self);
        let job = Box::new(move || {
            // A panic drops it before `answer`: the transaction ends first, then the program gets `EIO`. In
            // one expression with the job, `answer` would be moved out of the closure and dropped first.
            let _end = EndOnPanic { views: &views, id };
            let outcome = job(&views);
            answer(outcome);
        });
        if let Some(job) = self.job_shares.start_or_keep(uid, job) {
            self.spawn_job(uid, job);
        }
    }

    /// Runs a job, then hands over the next one of the same user. That one goes to the end of the queue, so
    /// that the jobs of others come first.
    fn spawn_job(self: Arc<Self>, uid: u32, job: Box<dyn FnOnce() + Send>) {
        let views = Arc::clone(&self);
        let run = move || {
            let ending = JobEnd { views, uid };
            job();
            // Also after a panic.
            drop(ending);
        };
        let jobs = self.jobs.lock();
        let jobs =
            jobs.as_ref().expect("`end_all` waits for the entry of every job before it takes the threads");
        jobs.spawn(run);
    }
}

/// Its drop ends a job of a user.
struct JobEnd<E: Storage> {
    views: Arc<Views<E>>,
    uid: u32,
}

impl<E: Storage> Drop for JobEnd<E> {
    fn drop(&mut self) {
        if let Some(next) = self.views.job_shares.end(self.uid) {
            Arc::clone(&self.views).spawn_job(self.uid, next);
        }
    }
}
