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
mod client;
mod diff;
mod end_on_panic;
mod idle_reaper;
mod namespace;
mod shares;
mod view_directory;
mod view_mount;
mod wire;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use warpfire_env::ChangeSignal;
use warpfire_env::{Clock, RankedMutex, SystemClock};
use warpfire_fs::{Fs, FsError, NodeRef, Transaction};
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
use diff::{ListingSlot, SharedListingSlot};
use end_on_panic::EndOnPanic;
use shares::{JobShares, SessionCounts, USER_JOBS_MAX};
pub use view_directory::{is_view_mountpoint, prepare_runtime_directory, runtime_directory};
use view_mount::{KeptMounts, ViewMount, ViewSession};

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

struct ViewRegistry<E: Storage> {
    views: BTreeMap<u64, ViewEntry<E>>,
    /// Each mount of a view with a live connection to the kernel, by the id of its first transaction. It
    /// outlives an aborted transaction while a program has files open in the view.
    sessions: BTreeMap<u64, ViewSession>,
    kept: KeptMounts<ViewMount<E>>,
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
    mount: ViewMount<E>,
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
            path: self.mount.path(self.id),
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
        let left = || self.sessions.values().filter(|session| session.is_left());
        SessionCounts {
            open: self.views.len(),
            open_of_user: self.views.values().filter(|entry| entry.uid() == uid).count(),
            left: left().count(),
            left_of_user: left().filter(|session| session.uid == uid).count(),
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

impl Process {
    /// The process of a thread.
    ///
    /// # Errors
    /// `ESRCH` if it has ended.
    fn find(thread: u32) -> Result<Process, Errno> {
        // A request has the number of a thread; pidfd_open(2) takes that of a process, which is that of its
        // first thread.
        Process::open(thread).or_else(|_| Process::open(caller::process_of(thread).ok_or(Errno::SRCH)?))
    }

    /// As `find`. `before` is a process that is known, perhaps this one.
    ///
    /// # Errors
    /// As `find`.
    fn find_again(before: Option<Process>, thread: u32) -> Result<Process, Errno> {
        // While a process runs, no other has its number.
        let is_same = |process: &Process| process.pid == thread && !process.has_ended();
        before.filter(is_same).map_or_else(|| Process::find(thread), Ok)
    }

    fn open(pid: u32) -> Result<Process, Errno> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(Process { pid, handle: pidfd_open(number, PidfdFlags::empty())? })
    }
}

impl<E: Storage> TransactionControl for Views<E> {
    fn ask(self: Arc<Self>, requester: Requester, request: TransactionRequest, answer: ReportCallback) {
        let mut registry = self.registry.lock();
        let job: Result<(u64, JobPlace, TransactionJob<E>), Errno> = match request {
            TransactionRequest::Begin { .. } if self.options.read_only => Err(Errno::ROFS),
            TransactionRequest::Begin { .. } if registry.stop => Err(Errno::SHUTDOWN),
            TransactionRequest::Begin { ends_with_process } => {
                registry.counts(requester.uid).admit(requester.uid).map(|()| {
                    registry.last_id += 1;
                    let id = registry.last_id;
                    // The entry counts toward the limits while the job is still in the queue.
                    registry.views.insert(id, ViewEntry::Busy { uid: requester.uid });
                    // A transaction in a mount that is there begins within microseconds, and waits for
                    // nothing but the gate of the filesystem.
                    let kept = registry.kept.take(requester);
                    let place = if kept.is_some() { JobPlace::Here } else { JobPlace::OtherThread };
                    let job =
                        move |views: &Arc<Views<E>>| views.begin(id, requester, ends_with_process, kept);
                    (id, place, Box::new(job) as TransactionJob<E>)
                })
            }
            TransactionRequest::Commit { id, durable } => {
                let taken = registry.take(id, requester);
                taken.map(|view| {
                    let job = move |views: &Arc<Views<E>>| views.commit(view, durable);
                    (id, JobPlace::OtherThread, Box::new(job) as TransactionJob<E>)
                })
            }
            TransactionRequest::Abort { id } => {
                let taken = registry.take(id, requester);
                taken.map(|view| {
                    let job = move |views: &Arc<Views<E>>| Ok(views.abort(view));
                    (id, JobPlace::OtherThread, Box::new(job) as TransactionJob<E>)
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
            Ok((id, JobPlace::Here, job)) => self.run_job(id, job, answer),
            Ok((id, JobPlace::OtherThread, job)) => self.start_job(requester.uid, id, job, answer),
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

/// Where a job runs: on the serving thread, or on one for jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JobPlace {
    Here,
    OtherThread,
}

type TransactionJob<E> = Box<dyn FnOnce(&Arc<Views<E>>) -> Result<TransactionReport, Errno> + Send>;

impl<E: Storage> Views<E> {
    /// Runs a job of a user, about one transaction, on another thread and answers with its result.
    fn start_job(self: Arc<Self>, uid: u32, id: u64, job: TransactionJob<E>, answer: ReportCallback) {
        let views = Arc::clone(&self);
        let job = Box::new(move || views.run_job(id, job, answer));
        if let Some(job) = self.job_shares.start_or_keep(uid, job) {
            self.spawn_job(uid, job);
        }
    }

    /// Runs a job about one transaction and answers with its result.
    fn run_job(self: &Arc<Self>, id: u64, job: TransactionJob<E>, answer: ReportCallback) {
        // A panic drops it before `answer`: the transaction ends first, then the program gets `EIO`. In one
        // expression with the job, `answer` would be moved out of the closure and dropped first.
        let answer = answer;
        let _end = EndOnPanic { views: self, id };
        let outcome = job(self);
        answer(outcome);
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
        self.spawn(run);
    }

    /// Runs something about a transaction on a thread for jobs. The transaction has an entry in the registry.
    fn spawn(&self, run: impl FnOnce() + Send + 'static) {
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
