//! The server of a view: a mount that shows one transaction, and later perhaps another one.
//!
//! To mount and to unmount takes milliseconds, a short transaction some microseconds. So a view whose
//! transaction is committed is kept and shows the next transaction of the same user. Each transaction is a
//! directory in the root of the view, named by its id:
//!
//! ```text
//!   root of the view      number 1, without content of its own
//!     17                  VIEW_ROOT_NUMBER: the root of the transaction that is shown
//!       ...               the files of the transaction, each with its inode number
//!
//!   empty ──show──▶ shown ──close: the kernel has forgotten all──▶ empty
//!                     └────end of the mount, with whatever is shown──▶ ended
//! ```
//!
//! # Invariants
//! 1. A view shows at most one transaction (assert in `show`). When it shows another, the kernel has
//!    forgotten every inode of the one before (`close`). So no open file, no working directory and no cached
//!    answer of a transaction reaches a later one
//!    (`tests::kept_views::a_kept_view_shows_nothing_of_the_transaction_before`).
//! 2. While a view closes, nobody enters the transaction: its name is not found (`lookup`). So a forgotten
//!    inode stays forgotten.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use warpfire_fs::FileKind;
use warpfire_fuse::{
    AttrChange, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, INodeNo, KernelConfig, NewNode,
    OpenFlags, ReadRequest, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx,
    ReplyWrite, ReplyXattr, Request, SetXattr, Time, WriteRequest,
};
use warpfire_meta::Storage;

use super::request::{RequestResult, STALE, enter_request, sized};
use super::{KernelConnection, Refusal, Server, init};
use crate::invalidation_gate::CACHE_TIME;
use crate::options::PermissionChecks;

/// The inode number of the root of a transaction in a view. The root of the view itself has the number 1. No
/// other file has this number: numbers are given out one after the other.
pub const VIEW_ROOT_NUMBER: u64 = 1 << 62;

/// How long `close` waits for the kernel to forget. It does so within microseconds, unless something is in
/// use.
const FORGET_WAIT: Duration = Duration::from_millis(20);

/// Most inodes that the kernel is asked to forget one by one at the end of a transaction.
const FORGOTTEN_ONE_BY_ONE_MAX: usize = 16;

/// What a view shows; its server and its transaction share it.
pub(crate) struct ShownTransaction<E: Storage> {
    connection: KernelConnection,
    /// Held shared by each request of the transaction. Taken before all other locks.
    requests: RwLock<()>,
    shown: Mutex<Option<ServedTransaction<E>>>,
    /// Signalled when the kernel has forgotten inodes while the view closes.
    forgotten: Condvar,
}

/// A transaction, by its name and its server.
pub(super) struct ServedTransaction<E: Storage> {
    name: Vec<u8>,
    server: Arc<Server<E>>,
    is_closing: bool,
}

impl<E: Storage> ServedTransaction<E> {
    pub(super) fn new(name: &str, server: Server<E>) -> Self {
        ServedTransaction { name: name.into(), server: Arc::new(server), is_closing: false }
    }
}

/// The server of a request. The view shows its transaction until the request is answered or waits elsewhere.
struct RequestServer<'a, E: Storage> {
    server: Arc<Server<E>>,
    _request: RwLockReadGuard<'a, ()>,
}

impl<E: Storage> Deref for RequestServer<'_, E> {
    type Target = Server<E>;

    fn deref(&self) -> &Server<E> {
        &self.server
    }
}

impl<E: Storage> ShownTransaction<E> {
    pub(crate) fn new(connection: KernelConnection) -> Self {
        ShownTransaction {
            connection,
            requests: RwLock::default(),
            shown: Mutex::new(None),
            forgotten: Condvar::new(),
        }
    }

    pub(crate) fn connection(&self) -> &KernelConnection {
        &self.connection
    }

    /// Shows a transaction as a directory of this name.
    pub(crate) fn show(&self, name: &str, server: Server<E>) {
        let before = self.replace(Some(ServedTransaction::new(name, server)));
        assert!(before.is_none(), "a view shows one transaction at a time");
    }

    pub(super) fn replace(&self, shown: Option<ServedTransaction<E>>) -> Option<ServedTransaction<E>> {
        std::mem::replace(&mut *self.shown.lock(), shown)
    }

    /// Takes the transaction that closes.
    pub(super) fn take_closing(&self) -> Option<ServedTransaction<E>> {
        self.shown.lock().take_if(|shown| shown.is_closing)
    }

    /// The lock that each request holds shared.
    pub(super) fn requests(&self) -> &RwLock<()> {
        &self.requests
    }

    /// From now on nobody finds the transaction by its name. Returns the name and the server.
    pub(super) fn start_closing(&self) -> Option<(Vec<u8>, Arc<Server<E>>)> {
        let mut state = self.shown.lock();
        let shown = state.as_mut()?;
        shown.is_closing = true;
        Some((shown.name.clone(), Arc::clone(&shown.server)))
    }

    /// The transaction is found by its name again.
    pub(super) fn stop_closing(&self) {
        self.shown.lock().iter_mut().for_each(|shown| shown.is_closing = false);
    }

    /// Waits a moment for a condition that FORGET brings about.
    pub(super) fn wait_until(&self, is_so: impl Fn() -> bool) {
        let mut state = self.shown.lock();
        while !is_so() {
            if self.forgotten.wait_for(&mut state, FORGET_WAIT).timed_out() {
                break;
            }
        }
    }

    /// Makes the kernel forget the transaction. Returns whether it has: then nobody uses anything in the
    /// transaction, no page of it waits to be written back, and nobody can enter it any more. Otherwise the
    /// transaction is shown as before.
    pub(crate) fn close(&self) -> bool {
        let Some((name, server)) = self.start_closing() else { return true };
        let notifier = self.connection.notifier.get().expect("the notifier is set before the first request");
        // Without the root, `inval_entry` would also drop the attributes of the view's root, and the next
        // transaction would cost a GETATTR more.
        server.forget_few(INodeNo(VIEW_ROOT_NUMBER), FORGOTTEN_ONE_BY_ONE_MAX, notifier);
        // Unlocked: the kernel waits for answers to lookups of the name. It drops all names below, and so all
        // inodes that nobody uses. If it knows no such name, it has none of them.
        if let Err(e) = notifier.inval_entry(INodeNo::ROOT, &name) {
            tracing::debug!(kind = "name", ino = INodeNo::ROOT.0, error = %e, "nothing to invalidate");
        }
        self.wait_until(|| server.is_forgotten());
        // Nobody enters it, so a forgotten inode stays forgotten.
        if !server.is_forgotten() {
            self.stop_closing();
            return false;
        }
        let ended = self.replace(None);
        // Dropped without the lock: it releases slices.
        drop((ended, server));
        true
    }

    /// The server of the transaction that is shown, for a request.
    fn server(&self) -> RequestResult<RequestServer<'_, E>> {
        let request = self.requests.read();
        let server = self.server_alone().ok_or(STALE)?;
        Ok(RequestServer { server, _request: request })
    }

    /// The server of the transaction that is shown.
    fn server_alone(&self) -> Option<Arc<Server<E>>> {
        self.shown.lock().as_ref().map(|shown| Arc::clone(&shown.server))
    }

    /// As `server`, for a request on an inode of the transaction. The root of the view cannot be changed.
    fn server_of(&self, ino: INodeNo) -> RequestResult<RequestServer<'_, E>> {
        if ino == INodeNo::ROOT { Err(Refusal(Errno::PERM)) } else { self.server() }
    }
}

/// The adapter between the kernel and the transactions that a view shows.
pub(crate) struct ViewServer<E: Storage> {
    shown: Arc<ShownTransaction<E>>,
    checks: PermissionChecks,
}

impl<E: Storage> ViewServer<E> {
    pub(crate) fn new(shown: Arc<ShownTransaction<E>>, checks: PermissionChecks) -> Self {
        ViewServer { shown, checks }
    }
}

/// Attributes of the root of a view: all users that can reach it pass through, and only the server lists it.
fn root_attr() -> FileAttr {
    let mode = u32::from(FileKind::Directory as u8) << 12 | 0o711;
    FileAttr {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..FileAttr::new(INodeNo::ROOT, mode, Time::default())
    }
}

/// Forwards requests on inodes of the transaction.
macro_rules! forwarded {
    ($($name:ident($ino:ident $(, $argument:ident: $kind:ty)*) -> $reply:ty;)*) => {
        $(fn $name(&self, req: &Request, $ino: INodeNo, $($argument: $kind,)* reply: $reply) {
            match self.shown.server_of($ino) {
                Ok(server) => server.$name(req, $ino, $($argument,)* reply),
                Err(Refusal(errno)) => reply.error(errno),
            }
        })*
    };
}

/// Forwards requests that are about the root of a view as if they were about that of the transaction.
macro_rules! forwarded_with_root {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $reply:ty;)*) => {
        $(fn $name(&self, req: &Request, ino: INodeNo, $($argument: $kind,)* reply: $reply) {
            let ino = if ino == INodeNo::ROOT { INodeNo(VIEW_ROOT_NUMBER) } else { ino };
            match self.shown.server() {
                Ok(server) => server.$name(req, ino, $($argument,)* reply),
                Err(Refusal(errno)) => reply.error(errno),
            }
        })*
    };
}

impl<E: Storage> Filesystem for ViewServer<E> {
    fn init(&mut self, config: &mut KernelConfig) -> std::io::Result<()> {
        // A view is short-lived, and its memory for queues would be larger than all else that it has.
        init::configure(config, self.checks, init::ListingDetail::NamesOnly, 0)
    }

    fn destroy(&mut self) {
        if let Ok(server) = self.shown.server() {
            server.forget_all();
        }
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &[u8], reply: ReplyEntry) {
        if parent != INodeNo::ROOT {
            return match self.shown.server() {
                Ok(server) => server.lookup(req, parent, name, reply),
                Err(Refusal(errno)) => reply.error(errno),
            };
        }
        let _span = enter_request(req, "lookup", parent);
        let _request = self.shown.requests.read();
        let entered = self.shown.shown.lock().as_ref().and_then(|shown| {
            let is_open = shown.name == name && !shown.is_closing;
            // Counted under the lock: `close` finds the count, or forbids the answer.
            is_open.then(|| shown.server.count_root()).map(|()| Arc::clone(&shown.server))
        });
        match entered {
            Some(server) => server.reply_counted_root(CACHE_TIME, reply),
            // Not cached by the kernel, unlike an answer that the name does not exist.
            None => reply.error(Errno::NOENT),
        }
    }

    fn forget(&self, req: &Request, ino: INodeNo, lookups: u64) {
        // Without a transaction there is nothing to forget. The next transaction takes the counts over, and
        // no count changes while it does.
        let Ok(server) = self.shown.server() else { return };
        server.forget(req, ino, lookups);
        drop(server);
        // Under the lock: `close` looks and waits without a gap.
        let shown = self.shown.shown.lock();
        if shown.as_ref().is_some_and(|shown| shown.is_closing) {
            self.shown.forgotten.notify_all();
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, reply: ReplyAttr) {
        if ino == INodeNo::ROOT {
            let _span = enter_request(req, "getattr", ino);
            return reply.attr(CACHE_TIME, &root_attr());
        }
        match self.shown.server() {
            Ok(server) => server.getattr(req, ino, reply),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn statx(&self, req: &Request, ino: INodeNo, reply: ReplyStatx) {
        if ino == INodeNo::ROOT {
            let _span = enter_request(req, "statx", ino);
            return reply.attr(CACHE_TIME, &root_attr());
        }
        match self.shown.server() {
            Ok(server) => server.statx(req, ino, reply),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    /// A file that `Server::open` has opened. Its transaction may have ended since.
    fn release(&self, req: &Request, ino: INodeNo, _handle: FileHandle, reply: ReplyEmpty) {
        let _span = enter_request(req, "release", ino);
        reply.ok();
    }

    fn opendir(&self, req: &Request, ino: INodeNo, reply: ReplyOpen) {
        if ino == INodeNo::ROOT {
            let _span = enter_request(req, "opendir", ino);
            return reply.opened(FileHandle(0), FopenFlags::NONE);
        }
        match self.shown.server() {
            Ok(server) => server.opendir(req, ino, reply),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn readdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if ino != INodeNo::ROOT {
            return match self.shown.server() {
                Ok(server) => server.readdir(req, ino, fh, offset, reply),
                Err(Refusal(errno)) => reply.error(errno),
            };
        }
        let shown = self.shown.shown.lock();
        let own = shown.as_ref().map(|shown| (INodeNo(VIEW_ROOT_NUMBER), &*shown.name));
        let fixed = [&b"."[..], b".."].map(|name| (INodeNo::ROOT, name));
        for (at, (number, name)) in (1..).zip(fixed.into_iter().chain(own)) {
            if at > offset && reply.add(number, at, FileKind::Directory as u8, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, req: &Request, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        match self.shown.server() {
            Ok(server) => server.releasedir(req, ino, fh, reply),
            Err(_) => reply.ok(),
        }
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: u32, reply: ReplyEmpty) {
        match self.shown.server() {
            // Only root asks: see `Server::access`.
            _ if ino == INodeNo::ROOT => reply.ok(),
            Ok(server) => server.access(req, ino, mask, reply),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    /// The root of a view has no extended attributes and no access control list.
    fn getxattr(&self, req: &Request, ino: INodeNo, name: &[u8], size: u32, reply: ReplyXattr) {
        match self.shown.server() {
            _ if ino == INodeNo::ROOT => reply.error(Errno::NODATA),
            Ok(server) => server.getxattr(req, ino, name, size, reply),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.shown.server() {
            _ if ino == INodeNo::ROOT => sized(Ok(Vec::new()), size, reply),
            Ok(server) => server.listxattr(req, ino, size, reply),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    forwarded_with_root! {
        ioctl(command: u32, given: &[u8]) -> ReplyIoctl;
        statfs() -> ReplyStatfs;
    }

    forwarded! {
        create(parent, name: &[u8], made: NewNode, flags: OpenFlags) -> ReplyCreate;
        fallocate(ino, mode: i32, offset: u64, len: u64) -> ReplyEmpty;
        fsync(ino) -> ReplyEmpty;
        fsyncdir(ino) -> ReplyEmpty;
        link(ino, newparent: INodeNo, newname: &[u8]) -> ReplyEntry;
        lseek(ino, offset: i64, whence: i32) -> ReplyLseek;
        mkdir(parent, name: &[u8], made: NewNode) -> ReplyEntry;
        mknod(parent, name: &[u8], made: NewNode) -> ReplyEntry;
        open(ino, flags: OpenFlags) -> ReplyOpen;
        read(ino, read: ReadRequest) -> ReplyData;
        readdirplus(ino, fh: FileHandle, offset: u64) -> ReplyDirectoryPlus;
        readlink(ino) -> ReplyData;
        removexattr(ino, name: &[u8]) -> ReplyEmpty;
        rename(parent, name: &[u8], to: (INodeNo, &[u8]), flags: RenameFlags) -> ReplyEmpty;
        rmdir(parent, name: &[u8]) -> ReplyEmpty;
        setattr(ino, change: &AttrChange) -> ReplyAttr;
        setxattr(ino, set: SetXattr<'_>) -> ReplyEmpty;
        symlink(parent, name: &[u8], target: &[u8]) -> ReplyEntry;
        tmpfile(parent, made: NewNode) -> ReplyCreate;
        unlink(parent, name: &[u8]) -> ReplyEmpty;
        write(ino, write: WriteRequest<'_>) -> ReplyWrite;
    }

    fn copy_file_range(
        &self,
        req: &Request,
        from: (INodeNo, u64),
        to: (INodeNo, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        match self.shown.server_of(from.0) {
            Ok(server) => server.copy_file_range(req, from, to, len, reply),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }
}
