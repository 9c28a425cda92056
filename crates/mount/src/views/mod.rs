//! Views: transactions for programs that know nothing of them.
//!
//! A view is a second mount, of a transaction's own filesystem ([`warpfire_fs::TxFs`]), by the same process. Programs that work there see what was there
//! when it began and what was done in it; others see nothing of it until it is committed, and all of it from then on.
//!
//! ```text
//!             in use                 refused: a call would answer otherwise
//!            ┌───────┐              ┌─────────────────────────────────────▶ conflict
//!            ▼       │              │
//!   begin ─▶ open ──commit──▶ ending ──▶ caches emptied, committed ───────▶ committed
//!              └── abort, its process ends, not used for long, the mount ends ──▶ aborted
//! ```
//!
//! # Invariants
//! 1. A view that is open is in the registry with its transaction; who ends it takes it out first, so it ends once.
//! 2. Before a commit the view is out of the tree, with nothing open in it, and what programs wrote through mappings has been handed over. What another
//!    mount namespace still holds of it gets `EBADF` from then on.
//! 3. A commit is announced as `invalidation_gate.rs` says: no one who goes through the mount sees a part of it. What is read all the while from a file that the
//!    commit changes may be of before for as long as emptying its cache takes once more.
//! 4. A thread that takes requests from the kernel neither mounts, nor unmounts, nor tells the kernel something by itself: it would wait for itself. Threads of their own
//!    do; each transaction has at most one job for them, and there are at most [`TRANSACTIONS_MAX`].
//! 5. What a transaction would change is listed by threads of their own too, so that no listing keeps others from committing (`diff/`).
//! 6. Nothing of a view outlives the server: a transaction that was open when it died has never been.

mod announce;
mod client;
mod diff;
mod idle_reaper;
mod namespace;
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
use warpfire_env::{Clock, SystemClock};
use warpfire_fs::{ChangeSignal, Fs, FsError, NodeRef, Transaction};
use warpfire_meta::Storage;

use crate::attach::attach;
use crate::blocking_threads::{BlockingThreads, QUEUED_JOBS_MAX};
use crate::caller;
use crate::cpu_latency::RequestCounter;
use crate::error::MountError;
use crate::invalidation_gate::InvalidationGate;
use crate::kernel_nodes::KernelNodes;
use crate::mountpoint;
use crate::options::{MountOptions, PermissionChecks};
use crate::server::{Server, ServerContext};
use crate::session::serve;
use diff::{ListingSlot, SharedListingSlot};
use view_directory::ViewDirectory;

pub use client::{TransactionChanges, TransactionClient};
pub(crate) use diff::{DiffBlock, DiffRequest};
pub use namespace::{enter_view, forward_signals_to};
pub(crate) use wire::TransactionRequest;
pub use wire::{TransactionReport, TransactionState};

/// Transactions of one mount at a time: each is a mount with threads of its own.
const TRANSACTIONS_MAX: usize = 64;

/// Transactions that begin or end at a time; the others wait.
const JOB_THREADS: usize = 4;

/// Transactions whose changes are listed at a time.
const LIST_THREADS: usize = 2;

const _: () = assert!(TRANSACTIONS_MAX <= QUEUED_JOBS_MAX, "no job is left to a thread that takes requests");

/// How often, and how long each time, a commit waits for those who have just closed what they had open in the view: half a second.
const IN_USE_TRIES_MAX: u32 = 20;
const IN_USE_PAUSE: Duration = Duration::from_millis(25);

/// Begins and ends transactions, for who asks through the mount.
pub(crate) trait TransactionControl: Send + Sync {
    /// Answers a request, on this thread or another.
    fn ask(self: Arc<Self>, requester: Requester, request: TransactionRequest, answer: ReportCallback);

    /// Has some of a transaction's changes listed by another thread.
    fn list(self: Arc<Self>, requester: Requester, request: DiffRequest, answer: DiffCallback);
}

/// What a mount's root directory answers.
pub(crate) enum MountKind {
    /// Of the mount that views are begun from: everything.
    MainMount(Arc<dyn TransactionControl>),
    /// Of a view: what its own transaction would change. Transactions are not nested.
    View(Arc<dyn TransactionControl>, u64),
}

impl MountKind {
    pub(crate) fn main_control(&self) -> Option<&Arc<dyn TransactionControl>> {
        match self {
            MountKind::MainMount(control) => Some(control),
            MountKind::View(..) => None,
        }
    }

    /// Who lists changes, and which transaction is meant.
    pub(crate) fn diff_target(&self, request: DiffRequest) -> (&Arc<dyn TransactionControl>, DiffRequest) {
        match self {
            MountKind::View(control, own) if request.id == 0 => {
                (control, DiffRequest { id: *own, ..request })
            }
            MountKind::MainMount(control) | MountKind::View(control, _) => (control, request),
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) uid: u32,
    pub(crate) pid: u32,
}

/// Takes what is answered.
pub(crate) type ReportCallback = Box<dyn FnOnce(Result<TransactionReport, Errno>) + Send>;

/// Takes what is listed.
pub(crate) type DiffCallback = Box<dyn FnOnce(Result<Box<DiffBlock>, Errno>) + Send>;

/// The views of one mount.
pub(crate) struct Views<E: Storage> {
    fs: Arc<Fs<E>>,
    main: MainMount,
    /// Known once the kernel has been greeted, which is before anyone can ask.
    notifier: OnceLock<Notifier>,
    options: MountOptions,
    base: PathBuf,
    registry: Mutex<ViewRegistry<E>>,
    /// Signalled when a view begins, ends, or is to be looked at.
    registry_changed: Condvar,
    /// Held by who announces a commit.
    committing: Mutex<()>,
    reaper: Mutex<Option<JoinHandle<()>>>,
    /// Threads that begin and end transactions; until `end_all`.
    jobs: Mutex<Option<BlockingThreads>>,
    /// Threads that list changes; until `end_all`.
    listers: Mutex<Option<BlockingThreads>>,
}

/// What views share with the mount that they are begun from.
pub(crate) struct MainMount {
    pub(crate) nodes: Arc<KernelNodes<NodeRef>>,
    pub(crate) gate: Arc<InvalidationGate>,
    pub(crate) changes: ChangeSignal,
    pub(crate) requests: RequestCounter,
    pub(crate) blocking_threads: Arc<BlockingThreads>,
}

struct ViewRegistry<E: Storage> {
    views: BTreeMap<u64, ViewEntry<E>>,
    last_id: u64,
    stop: bool,
}

enum ViewEntry<E: Storage> {
    Open(View<E>),
    /// Someone begins or ends it.
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
    gate: Arc<InvalidationGate>,
    last_use: LastUse,
    listing: SharedListingSlot<E>,
}

/// A process whose end can be seen.
struct Process {
    pid: u32,
    handle: OwnedFd,
}

/// When a view was used last, as far as someone has looked.
#[derive(Clone, Copy)]
struct LastUse {
    passes: u64,
    at_nanos: u64,
}

impl<E: Storage> View<E> {
    /// Nanoseconds since something was asked of the view's server.
    fn idle_nanos(&mut self) -> u64 {
        let (passes, now) = (self.gate.passes(), SystemClock.monotonic_nanos());
        if passes != self.last_use.passes {
            self.last_use = LastUse { passes, at_nanos: now };
        }
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
    /// Takes a view that is open, if `requester` may end it.
    fn take(&mut self, id: u64, requester: Requester) -> Result<View<E>, Errno> {
        let entry =
            self.views.get_mut(&id).filter(|entry| entry.is_visible_to(requester)).ok_or(Errno::NOENT)?;
        entry.take().ok_or(Errno::BUSY)
    }
}

impl<E: Storage> ViewEntry<E> {
    fn uid(&self) -> u32 {
        match self {
            ViewEntry::Open(view) => view.uid,
            ViewEntry::Busy { uid } => *uid,
        }
    }

    /// Whether the asker may know of it: who began it, and root.
    fn is_visible_to(&self, requester: Requester) -> bool {
        requester.uid == 0 || requester.uid == self.uid()
    }

    fn take(&mut self) -> Option<View<E>> {
        let uid = self.uid();
        match std::mem::replace(self, ViewEntry::Busy { uid }) {
            ViewEntry::Open(view) => Some(view),
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
            base: options.views_at.clone().unwrap_or_else(view_directory::default_base),
            registry: Mutex::new(ViewRegistry { views: BTreeMap::new(), last_id: 0, stop: false }),
            registry_changed: Condvar::new(),
            committing: Mutex::default(),
            reaper: Mutex::default(),
            jobs: Mutex::new(Some(BlockingThreads::start("warpfire-tx", JOB_THREADS)?)),
            listers: Mutex::new(Some(BlockingThreads::start("warpfire-diff", LIST_THREADS)?)),
        })
    }

    /// The mount is there: what has been left by servers that died goes, and those who abandon transactions are watched for.
    pub(crate) fn start(self: &Arc<Self>, notifier: Notifier) -> std::io::Result<()> {
        view_directory::sweep(&self.base);
        assert!(self.notifier.set(notifier).is_ok(), "a mount is started once");
        let views = Arc::clone(self);
        let reaper =
            thread::Builder::new().name("warpfire-views".to_owned()).spawn(move || views.reap_abandoned())?;
        *self.reaper.lock() = Some(reaper);
        Ok(())
    }

    /// Aborts what is open, and waits for what is being committed. No transaction begins after it.
    pub(crate) fn end_all(&self) {
        let mut registry = self.registry.lock();
        registry.stop = true;
        self.registry_changed.notify_all();
        let open: Vec<View<E>> = registry.views.values_mut().filter_map(ViewEntry::take).collect();
        drop(registry);
        for view in open {
            tracing::warn!(id = view.id, "the mount ends: its transaction is aborted");
            self.abort(view);
        }
        let mut registry = self.registry.lock();
        while !registry.views.is_empty() {
            self.registry_changed.wait(&mut registry);
        }
        drop(registry);
        if let Some(reaper) = self.reaper.lock().take() {
            reaper.join().expect("the watching thread does not panic");
        }
        // A job lets go of its view before it is done: not on its own thread, which this waits for.
        let (jobs, listers) = (self.jobs.lock().take(), self.listers.lock().take());
        drop((jobs, listers));
    }

    fn begin(
        self: &Arc<Self>,
        id: u64,
        requester: Requester,
        ends_with_process: bool,
    ) -> Result<TransactionReport, Errno> {
        let made = self.make_view(id, requester, ends_with_process);
        let mut registry = self.registry.lock();
        let outcome = match made {
            Ok(view) if registry.stop => {
                drop(registry);
                self.abort(view);
                return Err(Errno::SHUTDOWN);
            }
            Ok(mut view) => {
                let report = view.report();
                registry.views.insert(id, ViewEntry::Open(view));
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
        let made = view_directory::prepare_base(&self.base)
            .and_then(|()| ViewDirectory::make(&self.base, id, requester.uid));
        let view_directory = made.map_err(|e| {
            tracing::error!(at = %self.base.display(), "a view cannot be made: {e}");
            Errno::from_io_error(&e).unwrap_or(Errno::ACCESS)
        })?;
        let transaction =
            self.fs.begin().map_err(|e| errno_of(&e)).inspect_err(|_| view_directory.remove())?;
        let gate = Arc::new(InvalidationGate::default());
        if let Err(e) = self.mount_view(id, &transaction, &gate, &view_directory.view()) {
            tracing::error!("{e}");
            view_directory.remove();
            return Err(match e {
                MountError::System { source, .. } => Errno::from_io_error(&source).unwrap_or(Errno::IO),
                _ => Errno::PERM,
            });
        }
        let last_use = LastUse { passes: gate.passes(), at_nanos: SystemClock.monotonic_nanos() };
        let listing = Arc::new(Mutex::new(ListingSlot::Idle(None)));
        Ok(View { id, uid: requester.uid, ends_with, transaction, view_directory, gate, last_use, listing })
    }

    /// Mounts a transaction. The threads that serve it end when the kernel has let go of the mount.
    fn mount_view(
        self: &Arc<Self>,
        id: u64,
        transaction: &Transaction<E>,
        gate: &Arc<InvalidationGate>,
        at: &Path,
    ) -> Result<(), MountError> {
        let inside = transaction.files();
        let root = inside.root();
        let context = ServerContext {
            nodes: Arc::new(KernelNodes::new(root.ino(), root)),
            gate: Arc::clone(gate),
            changes: ChangeSignal::ignored(),
            requests: self.main.requests.clone(),
            blocking_threads: Arc::clone(&self.main.blocking_threads),
            mount_kind: MountKind::View(Arc::clone(self) as Arc<dyn TransactionControl>, id),
            read_only: self.options.read_only,
        };
        let checks = PermissionChecks::of(&self.options, rustix::process::geteuid().as_raw());
        let server = Server::new(Arc::clone(inside), checks, context);
        let device = attach(at, &self.options)?;
        serve(server, device, &self.options, at, || ()).inspect_err(|_| {
            // Nobody would ever answer; the first error is the one to tell.
            let _ = mountpoint::detach(at);
        })?;
        mountpoint::raise_readahead(at);
        Ok(())
    }

    fn commit(&self, view: View<E>, durable: bool) -> Result<TransactionReport, Errno> {
        let (id, uid) = (view.id, view.uid);
        match unmount_view(&view.view_directory.view()) {
            Ok(()) => {}
            Err(MountError::InUse(_)) => {
                self.registry.lock().views.insert(id, ViewEntry::Open(view));
                self.registry_changed.notify_all();
                return Err(Errno::BUSY);
            }
            Err(e) => {
                tracing::error!(id, "a view cannot be closed, its transaction is aborted: {e}");
                self.abort(view);
                return Err(Errno::IO);
            }
        }
        let outcome = self.commit_announced(view.transaction);
        self.main.changes.mark();
        let synced = if durable && outcome.is_ok() { self.fs.sync() } else { Ok(()) };
        view.view_directory.remove();
        self.remove_entry(id);
        match outcome {
            Ok(()) if synced.is_err() => Ok(report_without_view(id, uid, TransactionState::NotDurable)),
            Ok(()) => Ok(report_without_view(id, uid, TransactionState::Committed)),
            Err(FsError::Conflict { call, path }) => Ok(TransactionReport {
                call: call.to_owned(),
                path: Path::new(&*path).to_owned(),
                ..report_without_view(id, uid, TransactionState::Conflict)
            }),
            Err(e) => {
                tracing::error!(id, "a transaction cannot be committed: {e}");
                Err(errno_of(&e))
            }
        }
    }

    fn abort(&self, view: View<E>) -> TransactionReport {
        let (id, uid) = (view.id, view.uid);
        view.view_directory.remove();
        view.transaction.abort();
        self.remove_entry(id);
        report_without_view(id, uid, TransactionState::Aborted)
    }

    fn remove_entry(&self, id: u64) {
        self.registry.lock().views.remove(&id);
        self.registry_changed.notify_all();
    }
}

/// Takes a view out of the tree when no one has anything open in it any more.
fn unmount_view(at: &Path) -> Result<(), MountError> {
    mountpoint::write_back(at)?;
    for _ in 0..IN_USE_TRIES_MAX {
        match mountpoint::unmount(at) {
            Err(MountError::InUse(_)) => thread::park_timeout(IN_USE_PAUSE),
            closed => return closed,
        }
    }
    mountpoint::unmount(at)
}

impl Process {
    /// The process of a thread.
    fn find(pid: u32) -> Result<Process, Errno> {
        // The kernel names the thread that asks; processes alone have handles.
        let pid = caller::process_of(pid).ok_or(Errno::SRCH)?;
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(Process { pid, handle: pidfd_open(number, PidfdFlags::empty())? })
    }
}

impl<E: Storage> TransactionControl for Views<E> {
    fn ask(self: Arc<Self>, requester: Requester, request: TransactionRequest, answer: ReportCallback) {
        let mut registry = self.registry.lock();
        let job: Result<TransactionJob<E>, Errno> = match request {
            TransactionRequest::Begin { .. } if self.options.read_only => Err(Errno::ROFS),
            TransactionRequest::Begin { .. } if registry.stop => Err(Errno::SHUTDOWN),
            TransactionRequest::Begin { .. } if registry.views.len() >= TRANSACTIONS_MAX => Err(Errno::AGAIN),
            TransactionRequest::Begin { ends_with_process } => {
                registry.last_id += 1;
                let id = registry.last_id;
                registry.views.insert(id, ViewEntry::Busy { uid: requester.uid });
                Ok(Box::new(move |views| views.begin(id, requester, ends_with_process)))
            }
            TransactionRequest::Commit { id, durable } => {
                let taken = registry.take(id, requester);
                taken.map(|view| {
                    Box::new(move |views: &Arc<Views<E>>| views.commit(view, durable)) as TransactionJob<E>
                })
            }
            TransactionRequest::Abort { id } => {
                let taken = registry.take(id, requester);
                taken.map(|view| {
                    Box::new(move |views: &Arc<Views<E>>| Ok(views.abort(view))) as TransactionJob<E>
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
        drop(registry);
        match job {
            Ok(job) => self.start_job(job, answer),
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
    /// Has a job done by another thread, and answered with what it says.
    fn start_job(self: Arc<Self>, job: TransactionJob<E>, answer: ReportCallback) {
        let views = Arc::clone(&self);
        let jobs = self.jobs.lock();
        let jobs = jobs.as_ref().expect("`end_all` waits for all jobs, and none comes after it");
        jobs.spawn(move || answer(job(&views)));
    }
}
