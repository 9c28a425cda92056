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

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::{Condvar, Mutex};
use warpfire_meta::Storage;

use super::request::{RequestResult, STALE, sized};
use super::{KernelConnection, Refusal, Server, init};
use crate::invalidation_gate::CACHE_TIME;
use crate::options::PermissionChecks;

/// The inode number of the root of a transaction in a view. The root of the view itself has the number 1. No
/// other file has this number: numbers are given out one after the other.
pub const VIEW_ROOT_NUMBER: u64 = 1 << 62;

/// How long `close` waits for the kernel to forget. It does so within microseconds, unless something is in
/// use.
const FORGET_WAIT: Duration = Duration::from_millis(20);

/// What a view shows; its server and its transaction share it.
pub(crate) struct ShownTransaction<E: Storage> {
    connection: KernelConnection,
    shown: Mutex<Option<ServedTransaction<E>>>,
    /// Signalled when the kernel has forgotten inodes while the view closes.
    forgotten: Condvar,
}

/// A transaction, by its name and its server.
struct ServedTransaction<E: Storage> {
    name: OsString,
    server: Arc<Server<E>>,
    is_closing: bool,
}

impl<E: Storage> ShownTransaction<E> {
    pub(crate) fn new(connection: KernelConnection) -> Self {
        ShownTransaction { connection, shown: Mutex::new(None), forgotten: Condvar::new() }
    }

    pub(crate) fn connection(&self) -> &KernelConnection {
        &self.connection
    }

    /// Shows a transaction as a directory of this name.
    pub(crate) fn show(&self, name: &str, server: Server<E>) {
        let shown = ServedTransaction { name: name.into(), server: Arc::new(server), is_closing: false };
        assert!(self.shown.lock().replace(shown).is_none(), "a view shows one transaction at a time");
    }

    /// Makes the kernel forget the transaction. Returns whether it has: then nobody uses anything in the
    /// transaction, no page of it waits to be written back, and nobody can enter it any more. Otherwise the
    /// transaction is shown as before.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.shown.lock();
        let Some(shown) = &mut *state else { return true };
        shown.is_closing = true;
        let (name, server) = (shown.name.clone(), Arc::clone(&shown.server));
        drop(state);
        let notifier = self.connection.notifier.get().expect("the notifier is set before the first request");
        // Unlocked: the kernel waits for answers to lookups of the name. It drops all names below, and so all
        // inodes that nobody uses. If it knows no such name, it has none of them.
        if let Err(e) = notifier.inval_entry(INodeNo::ROOT, &name) {
            tracing::debug!(kind = "name", ino = INodeNo::ROOT.0, error = %e, "nothing to invalidate");
        }
        let mut state = self.shown.lock();
        while !server.context.nodes.is_empty() {
            if self.forgotten.wait_for(&mut state, FORGET_WAIT).timed_out() {
                break;
            }
        }
        if let Some(shown) = &mut *state
            && !server.context.nodes.is_empty()
        {
            shown.is_closing = false;
            return false;
        }
        let ended = state.take();
        drop(state);
        // Dropped without the lock: it releases slices.
        drop((ended, server));
        true
    }

    /// The server of the transaction that is shown.
    fn server(&self) -> RequestResult<Arc<Server<E>>> {
        self.shown.lock().as_ref().map(|shown| Arc::clone(&shown.server)).ok_or(STALE)
    }

    /// As `server`, for a request on an inode of the transaction. The root of the view cannot be changed.
    fn server_of(&self, ino: INodeNo) -> RequestResult<Arc<Server<E>>> {
        if ino == INodeNo::ROOT { Err(Refusal(Errno::EPERM)) } else { self.server() }
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
    FileAttr {
        ino: INodeNo::ROOT,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0o711,
        nlink: 2,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
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
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        init::configure(config, self.checks, init::ListingDetail::NamesOnly)
    }

    fn destroy(&mut self) {
        if let Ok(server) = self.shown.server() {
            server.forget_all();
        }
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent != INodeNo::ROOT {
            return match self.shown.server() {
                Ok(server) => server.lookup(req, parent, name, reply),
                Err(Refusal(errno)) => reply.error(errno),
            };
        }
        let entered = self.shown.shown.lock().as_ref().and_then(|shown| {
            let is_open = shown.name == name && !shown.is_closing;
            // Counted under the lock: `close` finds the count, or forbids the answer.
            is_open.then(|| shown.server.count_root()).map(|()| Arc::clone(&shown.server))
        });
        match entered {
            Some(server) => server.reply_counted_root(reply),
            // Not cached by the kernel, unlike an answer that the name does not exist.
            None => reply.error(Errno::ENOENT),
        }
    }

    fn forget(&self, req: &Request, ino: INodeNo, lookups: u64) {
        // Without a transaction there is nothing to forget.
        let Ok(server) = self.shown.server() else { return };
        server.forget(req, ino, lookups);
        // Under the lock: `close` looks and waits without a gap.
        let shown = self.shown.shown.lock();
        if shown.as_ref().is_some_and(|shown| shown.is_closing) {
            self.shown.forgotten.notify_all();
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        if ino == INodeNo::ROOT {
            return reply.attr(&CACHE_TIME, &root_attr());
        }
        match self.shown.server() {
            Ok(server) => server.getattr(req, ino, fh, reply),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn opendir(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if ino == INodeNo::ROOT {
            return reply.opened(FileHandle(0), FopenFlags::empty());
        }
        match self.shown.server() {
            Ok(server) => server.opendir(req, ino, flags, reply),
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
        let fixed = [".", ".."].map(|name| (INodeNo::ROOT, OsStr::new(name)));
        for (at, (number, name)) in (1..).zip(fixed.into_iter().chain(own)) {
            if at > offset && reply.add(number, at, FileType::Directory, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, req: &Request, ino: INodeNo, fh: FileHandle, flags: OpenFlags, reply: ReplyEmpty) {
        match self.shown.server() {
            Ok(server) => server.releasedir(req, ino, fh, flags, reply),
            Err(_) => reply.ok(),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        match self.shown.server() {
            // Only root asks: see `Server::access`.
            _ if ino == INodeNo::ROOT => reply.ok(),
            Ok(server) => server.access(req, ino, mask, reply),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    /// The root of a view has no extended attributes and no access control list.
    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.shown.server() {
            _ if ino == INodeNo::ROOT => reply.error(Errno::NO_XATTR),
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
        ioctl(fh: FileHandle, flags: IoctlFlags, command: u32, given: &[u8], room: u32) -> ReplyIoctl;
        statfs() -> ReplyStatfs;
    }

    forwarded! {
        copy_file_range(
            ino, fh_in: FileHandle, offset_in: u64, ino_out: INodeNo, fh_out: FileHandle, offset_out: u64,
            len: u64, flags: CopyFileRangeFlags) -> ReplyWrite;
        fallocate(ino, fh: FileHandle, offset: u64, length: u64, mode: i32) -> ReplyEmpty;
        fsync(ino, fh: FileHandle, datasync: bool) -> ReplyEmpty;
        fsyncdir(ino, fh: FileHandle, datasync: bool) -> ReplyEmpty;
        link(ino, newparent: INodeNo, newname: &OsStr) -> ReplyEntry;
        lseek(ino, fh: FileHandle, offset: i64, whence: i32) -> ReplyLseek;
        mkdir(parent, name: &OsStr, mode: u32, umask: u32) -> ReplyEntry;
        mknod(parent, name: &OsStr, mode: u32, umask: u32, rdev: u32) -> ReplyEntry;
        open(ino, flags: OpenFlags) -> ReplyOpen;
        read(
            ino, fh: FileHandle, offset: u64, size: u32, flags: OpenFlags, owner: Option<LockOwner>) -> ReplyData;
        readdirplus(ino, fh: FileHandle, offset: u64) -> ReplyDirectoryPlus;
        readlink(ino) -> ReplyData;
        removexattr(ino, name: &OsStr) -> ReplyEmpty;
        rename(
            parent, name: &OsStr, newparent: INodeNo, newname: &OsStr, flags: RenameFlags) -> ReplyEmpty;
        rmdir(parent, name: &OsStr) -> ReplyEmpty;
        setattr(
            ino, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
            atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, ctime: Option<SystemTime>,
            fh: Option<FileHandle>, crtime: Option<SystemTime>, chgtime: Option<SystemTime>,
            bkuptime: Option<SystemTime>, flags: Option<BsdFileFlags>) -> ReplyAttr;
        setxattr(ino, name: &OsStr, value: &[u8], flags: i32, position: u32) -> ReplyEmpty;
        symlink(parent, name: &OsStr, target: &Path) -> ReplyEntry;
        unlink(parent, name: &OsStr) -> ReplyEmpty;
        write(
            ino, fh: FileHandle, offset: u64, data: &[u8], write_flags: WriteFlags, flags: OpenFlags,
            owner: Option<LockOwner>) -> ReplyWrite;
    }
}
