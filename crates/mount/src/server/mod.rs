//! Answers to the kernel's requests.
//!
//! Invariants
//! 1. Each answer that names an inode is counted in `nodes` before it is sent. So an inode number in a
//!    request that is not in `nodes` is one that the kernel has forgotten: the answer is `ESTALE` (`node`).
//! 2. A file that exists is opened without the server: OPEN is answered with `ENOSYS`, so the kernel opens it
//!    itself. The exception is OPEN in views with checked permissions, which says why the kernel asked for
//!    attributes (`serves_open`). A new file is opened by CREATE. A handle of a file is `content::PAST_PAGES`
//!    or 0, which means nothing; directories have other ones.
//! 3. A request that may have changed the filesystem marks `changes`, so that the interval sync runs.
//! 4. An answer that the kernel may cache is sent under a pass (`pass`; see `invalidation_gate.rs`).
//!
//! Each request runs in a span `request` at level debug, with the fields `id` (the kernel's number of the
//! request), `operation` and `ino`, so every event of the engine during it carries them.

mod attributes_asked;
mod carried;
mod connection;
mod content;
mod expected_reads;
mod filesystem;
mod flags;
mod init;
mod ioctl;
mod listing;
mod lookups;
mod main_server;
mod reads;
mod request;
mod shown_snapshots;
mod snapshot_directory;
#[cfg(test)]
mod tests;
mod view_server;

use std::sync::Arc;
use std::time::Duration;

use warpfire_env::ChangeSignal;
use warpfire_fs::{Attr, Fs, FsError, NewMode, NodeRef};
use warpfire_fuse::{
    Errno, FileAttr, INodeNo, NewNode, OpenFlags, ReplyCreate, ReplyEmpty, ReplyEntry, Request,
};
use warpfire_meta::Storage;

use crate::attr::file_attr;
use crate::blocking_threads::BlockingThreads;
use crate::caller::CallerGroups;
use crate::cpu_latency::RequestCounter;
use crate::failed_requests::FailedRequests;
use crate::invalidation_gate::{GatePass, InvalidationGate};
use crate::kernel_nodes::KernelNodes;
use crate::options::PermissionChecks;
use crate::slices::SliceShelf;
use crate::views::MountKind;
use attributes_asked::AttributesAsked;
use carried::CarriedInodes;
pub(crate) use carried::HeldView;
pub(crate) use connection::KernelConnection;
use expected_reads::ExpectedReads;
use flags::file_kind;
use listing::OpenDirs;
pub(crate) use main_server::{MainServer, OPENED_ONCE_NAME};
use reads::ReadBatches;
use request::{PollOnDrop, Refusal, RequestGuard, RequestResult, STALE, caller};
use shown_snapshots::number_in_slot;
pub use view_server::VIEW_ROOT_NUMBER;
pub(crate) use view_server::{ShownTransaction, ViewServer};

/// The adapter between the kernel and a filesystem.
pub(crate) struct Server<E: Storage> {
    fs: Arc<Fs<E>>,
    open_dirs: OpenDirs,
    checks: PermissionChecks,
    context: ServerContext,
    /// Whether the files that are looked up are read.
    expected_reads: ExpectedReads,
    /// Attributes that the kernel has asked for in a view.
    attributes_asked: AttributesAsked,
    /// In a view: the inodes of the transaction before.
    carried: CarriedInodes,
    /// Slices that programs have yanked by ioctl.
    shelf: Arc<SliceShelf>,
    read_batches: Arc<ReadBatches>,
}

/// The parts of a server that it shares with the rest of the mount.
pub(crate) struct ServerContext {
    /// The connection that requests come from.
    pub(crate) connection: KernelConnection,
    /// The kernel's number of the root directory.
    pub(crate) root_number: u64,
    /// The slot of the way into a snapshot: it is in the numbers of the inodes there.
    pub(crate) slot: Option<u64>,
    /// The inodes that the kernel remembers.
    pub(crate) nodes: Arc<KernelNodes<NodeRef>>,
    /// Limits what the kernel may cache.
    pub(crate) gate: Arc<InvalidationGate>,
    /// Wakes the interval sync.
    pub(crate) changes: ChangeSignal,
    /// Counts requests.
    pub(crate) requests: RequestCounter,
    /// Threads for requests that wait.
    pub(crate) blocking_threads: Arc<BlockingThreads>,
    /// Threads for reads that wait for a device. `None` in a view, where one request follows the other.
    pub(crate) read_threads: Option<Arc<BlockingThreads>>,
    /// Whether this is the main mount or a view: it decides which ioctls the root directory answers.
    pub(crate) mount_kind: MountKind,
    /// Whether changes are refused.
    pub(crate) read_only: bool,
    /// Threads that take requests by queues over io_uring, if the kernel has them.
    pub(crate) queue_threads: usize,
    /// The requests of the mount and its views that have met damage.
    pub(crate) failures: Arc<FailedRequests>,
}

impl<E: Storage> Server<E> {
    pub(crate) fn new(fs: Arc<Fs<E>>, checks: PermissionChecks, context: ServerContext) -> Server<E> {
        Server {
            fs,
            open_dirs: OpenDirs::new(),
            checks,
            context,
            expected_reads: ExpectedReads::default(),
            attributes_asked: AttributesAsked::default(),
            carried: CarriedInodes::default(),
            shelf: Arc::default(),
            read_batches: Arc::default(),
        }
    }

    /// The number that the kernel has for an inode: its own, except for the root of a view, and in snapshots.
    fn number_of(&self, ino: u64) -> u64 {
        match self.context.slot {
            _ if ino == INodeNo::ROOT.0 => self.context.root_number,
            None => ino,
            Some(slot) => number_in_slot(slot, ino),
        }
    }

    /// Attributes as the kernel gets them.
    fn sent_attr(&self, attr: &Attr) -> FileAttr {
        FileAttr { ino: INodeNo(self.number_of(attr.ino)), ..file_attr(attr) }
    }

    /// Attributes that a program asks for, and how long the kernel may cache them.
    fn attributes(
        &self,
        req: &Request,
        ino: INodeNo,
        pass: &GatePass<'_>,
    ) -> RequestResult<(Duration, FileAttr)> {
        let node = self.node(ino)?;
        let (keep, attr) = self.asked_attributes(req.pid(), &node, pass);
        Ok((keep, self.sent_attr(&attr)))
    }

    /// Forgets all that the kernel knows, as the kernel does at the end of a mount.
    fn forget_all(&self) {
        self.open_dirs.clear();
        self.context.nodes.clear();
        self.carried.clear();
    }

    /// The node of the inode number in a request. Counts the request.
    fn node(&self, ino: INodeNo) -> RequestResult<NodeRef> {
        self.context.requests.count();
        self.context.nodes.get(ino.0).map_or_else(|| self.find_carried(ino), Ok)
    }

    /// The guard of a request with a cacheable answer.
    fn pass(&self) -> RequestGuard<'_> {
        let poll = PollOnDrop { connection: &self.context.connection, requests: &self.context.requests };
        RequestGuard { pass: self.context.gate.pass(), _poll: poll }
    }

    /// As `reply_entry`, for a node that the request made.
    fn reply_new_entry(&self, pass: &GatePass<'_>, answer: RequestResult<NodeRef>, reply: ReplyEntry) {
        self.reply_entry(pass, answer, reply);
        self.context.changes.mark();
    }

    /// Makes a file, as MKNOD and CREATE ask for it.
    fn make_node(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &[u8],
        made: NewNode,
    ) -> RequestResult<NodeRef> {
        let groups = CallerGroups::of(req.pid());
        let dir = self.node(parent)?;
        let NewNode { mode, umask, rdev } = made;
        let kind = file_kind(mode).ok_or(Refusal(Errno::INVAL))?;
        let mode = NewMode { mode: mode & 0o7777, umask };
        match self.fs.mknod(&caller(req, &groups), &dir, name, kind, mode, u64::from(rdev)) {
            // The kernel has just found no such name, so a commit has made it since. The request may be of an
            // open(2) without `O_EXCL`, which then opens the file: the kernel looks up again.
            Err(FsError::Exists) => Err(STALE),
            made => Ok(made?),
        }
    }

    /// Answers with a file that the request made and opened, and counts the lookup.
    fn reply_created(
        &self,
        pass: &GatePass<'_>,
        answer: RequestResult<NodeRef>,
        flags: OpenFlags,
        reply: ReplyCreate,
    ) {
        match answer {
            Ok(node) => {
                self.count_lookup(self.number_of(node.ino()), &node);
                let (handle, flags) = self.created(flags);
                reply.created(pass.cache_time(), &self.sent_attr(&self.fs.getattr(&node)), handle, flags);
            }
            Err(Refusal(errno)) => reply.error(errno),
        }
        self.context.changes.mark();
    }

    /// Answers a request that changes something and returns nothing.
    fn reply_done(&self, answer: RequestResult<()>, reply: ReplyEmpty) {
        match answer {
            Ok(()) => reply.ok(),
            Err(Refusal(errno)) => reply.error(errno),
        }
        self.context.changes.mark();
    }
}
