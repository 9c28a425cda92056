//! The server of the main mount: the filesystem, and the snapshots of each directory below its `.snapshots`.
//!
//! `.snapshots/NAME` in a directory is that directory as the snapshot NAME shows it, whatever its path was
//! then; `.snapshots/@MOMENT` is it in the newest snapshot at that moment.
//!
//! # Invariants
//! 1. No listing of a directory has the name `.snapshots`, unless somebody has made a file of that name. Then
//!    the name leads to that file (`lookup`).
//! 2. The kernel caches neither the name `.snapshots` nor the names in it (`NAME_TIME`). So a deleted
//!    snapshot is not found, and a name that is used again leads to the new snapshot. Everything below these
//!    names never changes, and the kernel caches it for ever.
//! 3. A caller enters a directory of a snapshot only if the directories above it admitted the caller then
//!    (`enter`). Below it the kernel checks the permissions of then.
//! 4. Snapshots are shown without the doors of volumes: an inode behind one would need the bits of the slot
//!    for its volume. A directory of a volume shows itself in the snapshots, as every directory does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::thread::gettid;
use warpfire_env::Timestamp;
use warpfire_fs::acl::Caller;
use warpfire_fs::{FileKind, Fs, NodeRef, RECEIVE_NAME, SnapshotFs};
use warpfire_fuse::{
    AttrChange, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, INodeNo, KernelConfig, NewNode,
    OpenFlags, ReadRequest, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx,
    ReplyWrite, ReplyXattr, Request, SetXattr, Time, WriteRequest,
};
use warpfire_meta::{SnapshotStore, Storage};

use super::request::{RequestResult, STALE, caller, enter_request, sized};
use super::shown_snapshots::{
    OPENED_ONCE, ShownSnapshots, SnapshotServer, Way, directory_of_snapshots, is_main, number_in_slot,
    slot_of_number, snapshots_number,
};
use super::snapshot_directory::{NAME_TIME, SNAPSHOTS_NAME, directory_attr, find, list};
use super::{Refusal, Server, ServerContext};
use crate::caller::CallerGroups;
use crate::invalidation_gate::{CACHE_TIME, InvalidationGate};
use crate::kernel_nodes::KernelNodes;
use crate::options::{MountOptions, PermissionChecks, SnapshotDirectories, SnapshotNames};
use crate::views::MountKind;

/// Most inodes in one slot that the kernel is asked to forget one by one.
const FORGOTTEN_ONE_BY_ONE_MAX: usize = 1024;

/// The name of a file in the root directory that the thread that mounts finds, once, and opens
/// (`Mounted::open_once`). The answer to OPEN is that the kernel opens files itself. From that answer on, the
/// kernel sends no RELEASE when it closes a file that CREATE has opened.
pub(crate) const OPENED_ONCE_NAME: &[u8] = b".warpfire-opened-once";

/// The adapter between the kernel, a filesystem and its snapshots.
pub(crate) struct MainServer<E: Storage> {
    fs: Arc<Fs<E>>,
    main: Server<E>,
    checks: PermissionChecks,
    /// Most inodes that the kernel remembers of one snapshot before it is asked to forget some.
    inodes_max: usize,
    /// Reads the moment in a name `@MOMENT`.
    parse_moment: fn(&str) -> Option<Timestamp>,
    directories: SnapshotDirectories,
    names: SnapshotNames,
    /// The thread that mounts, until it has found the file that it opens once.
    mounting_thread: AtomicU32,
    shown: Mutex<ShownSnapshots<E>>,
}

impl<E: Storage + SnapshotStore> MainServer<E> {
    pub(crate) fn new(
        fs: Arc<Fs<E>>,
        checks: PermissionChecks,
        options: &MountOptions,
        context: ServerContext,
    ) -> MainServer<E> {
        let main = Server::new(Arc::clone(&fs), checks, context);
        let MountOptions { inodes_max, parse_moment, snapshot_directories, snapshot_names, .. } = *options;
        MainServer {
            fs,
            main,
            checks,
            inodes_max,
            parse_moment,
            directories: snapshot_directories,
            names: snapshot_names,
            mounting_thread: AtomicU32::new(gettid().as_raw_nonzero().get().cast_unsigned()),
            shown: Mutex::new(ShownSnapshots::default()),
        }
    }

    /// The server of the snapshot that an inode is in.
    fn snapshot(&self, ino: INodeNo) -> RequestResult<Arc<SnapshotServer<E>>> {
        if directory_of_snapshots(ino).is_some() {
            return Err(Refusal(Errno::ROFS));
        }
        self.shown.lock().server(slot_of_number(ino)).map(Arc::clone).ok_or(STALE)
    }

    /// Whether a name in a directory of the filesystem leads to its snapshots, unless a file has that name.
    fn shows_snapshots(&self, parent: INodeNo, name: &[u8]) -> bool {
        name == SNAPSHOTS_NAME
            && match self.directories {
                SnapshotDirectories::Every => true,
                SnapshotDirectories::Root => parent == INodeNo::ROOT,
                SnapshotDirectories::Nowhere => false,
            }
    }

    /// Whether this is the thread that mounts, which has not opened the file yet.
    fn opens_once(&self, thread: u32) -> bool {
        // The kernel sends 0 for a thread outside the process namespace of the server.
        let taken =
            self.mounting_thread.compare_exchange(thread, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        thread != 0 && taken
    }

    /// Answers a lookup of `.snapshots` in a directory of the filesystem.
    fn look_up_snapshots(&self, req: &Request, parent: INodeNo, reply: ReplyEntry) {
        let _request = self.main.enter(req, "lookup", parent);
        let pass = self.main.pass();
        match self.main.find_name(req, parent, SNAPSHOTS_NAME) {
            Ok(None) => {
                let attr = directory_attr(snapshots_number(parent));
                reply.entry_with_ttls(NAME_TIME, CACHE_TIME, &attr);
            }
            Ok(Some(node)) => self.main.reply_entry(&pass, Ok(node), reply),
            Err(refusal) => self.main.reply_entry(&pass, Err(refusal), reply),
        }
    }

    /// The server of a directory in the snapshot that a name or `@MOMENT` leads to, and the directory. A
    /// lookup of it is counted: `forget` finds the count, or has freed the slot before.
    fn enter(
        &self,
        req: &Request,
        directory: u64,
        name: &[u8],
    ) -> RequestResult<(Arc<SnapshotServer<E>>, NodeRef)> {
        let (snapshot, by_moment) = find(&self.fs, name, self.parse_moment)?;
        let way = Way { seq: snapshot.seq, directory, by_moment };
        loop {
            let open = {
                let shown = self.shown.lock();
                let of_way = shown.server_of(way).map(|server| Arc::clone(&server.fs));
                of_way.or_else(|| shown.open_snapshot(way.seq))
            };
            // Unlocked: it reads the devices.
            let then = open.map_or_else(|| self.fs.open_snapshot_without_doors(&snapshot), Ok)?;
            let node = self.directory_then(req, &then, directory)?;
            let mut shown = self.shown.lock();
            match shown.server_of(way) {
                Some(server) if Arc::ptr_eq(&server.fs, &then) => {
                    server.count_entered(&node);
                    return Ok((Arc::clone(server), node));
                }
                // Somebody has opened the snapshot at the same time. A node belongs to one of the two.
                Some(_) => {}
                None => {
                    let slot = shown.next_slot().ok_or(Refusal(Errno::BUSY))?;
                    let server = Arc::new(self.server_of(then, slot));
                    server.count_entered(&node);
                    shown.add(slot, way, Arc::clone(&server));
                    let forgotten = shown.choose_forgotten();
                    drop(shown);
                    self.ask_to_forget(forgotten);
                    return Ok((server, node));
                }
            }
        }
    }

    /// The directory that has this number in a snapshot, if the caller could reach it then.
    fn directory_then(&self, req: &Request, then: &SnapshotFs<E>, directory: u64) -> RequestResult<NodeRef> {
        let groups = CallerGroups::of(req.pid());
        let caller = match self.checks {
            PermissionChecks::RootOnly => Caller::ROOT,
            PermissionChecks::Kernel => Caller { checked: false, ..caller(req, &groups) },
        };
        Ok(then.directory_then(&caller, directory)?)
    }

    /// Asks the kernel to forget what it knows below some ways and does not use. Kernels before Linux 6.18
    /// cannot be asked.
    fn ask_to_forget(&self, servers: Vec<(INodeNo, Arc<SnapshotServer<E>>)>) {
        if servers.is_empty() {
            return;
        }
        let main = &self.main.context;
        let notifier = Arc::clone(&main.connection.notifier);
        main.blocking_threads.spawn_elsewhere(move || {
            let notifier = notifier.get().expect("the notifier is set before the first request");
            for (entered, server) in servers {
                server.forget_few(entered, FORGOTTEN_ONE_BY_ONE_MAX, notifier);
            }
        });
    }

    fn server_of(&self, then: Arc<SnapshotFs<E>>, slot: u64) -> SnapshotServer<E> {
        let main = &self.main.context;
        let context = ServerContext {
            connection: main.connection.clone(),
            root_number: number_in_slot(slot, INodeNo::ROOT.0),
            slot: Some(slot),
            nodes: Arc::new(KernelNodes::empty(self.inodes_max)),
            // Nothing in a snapshot changes, so nothing is announced and everything may be cached.
            gate: Arc::new(InvalidationGate::default()),
            changes: main.changes.clone(),
            requests: main.requests.clone(),
            blocking_threads: Arc::clone(&main.blocking_threads),
            read_threads: main.read_threads.clone(),
            mount_kind: MountKind::Snapshot,
            read_only: true,
            queue_threads: 0,
            failures: Arc::clone(&main.failures),
        };
        Server::new(then, self.checks, context)
    }
}

/// Forwards requests on an inode to the server of the filesystem or of a snapshot.
macro_rules! forwarded {
    ($($name:ident($ino:ident $(, $argument:ident: $kind:ty)*) -> $reply:ty;)*) => {
        $(fn $name(&self, req: &Request, $ino: INodeNo, $($argument: $kind,)* reply: $reply) {
            if is_main($ino) {
                return self.main.$name(req, $ino, $($argument,)* reply);
            }
            match self.snapshot($ino) {
                Ok(server) => server.$name(req, $ino, $($argument,)* reply),
                Err(Refusal(errno)) => reply.error(errno),
            }
        })*
    };
}

impl<E: Storage + SnapshotStore> Filesystem for MainServer<E> {
    fn init(&mut self, config: &mut KernelConfig) -> std::io::Result<()> {
        self.main.init(config)
    }

    fn begin_queue_thread(&self) {
        warpfire_env::wait_in_rings();
    }

    fn destroy(&mut self) {
        self.main.destroy();
        self.shown.get_mut().take_all().iter().for_each(|server| server.forget_all());
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &[u8], reply: ReplyEntry) {
        match parent {
            // Where streams are received. The kernel never caches anything of it, so that they may change it.
            INodeNo::ROOT if name == RECEIVE_NAME => reply.error(Errno::NOENT),
            INodeNo::ROOT if name == OPENED_ONCE_NAME && self.opens_once(req.pid()) => {
                let mode = u32::from(FileKind::Regular as u8) << 12 | 0o444;
                let attr = FileAttr::new(OPENED_ONCE, mode, Time::default());
                reply.entry_with_ttls(Duration::ZERO, CACHE_TIME, &attr);
            }
            parent if is_main(parent) && self.shows_snapshots(parent, name) => {
                self.look_up_snapshots(req, parent, reply);
            }
            parent if is_main(parent) => self.main.lookup(req, parent, name, reply),
            parent => match directory_of_snapshots(parent) {
                Some(directory) => {
                    let _span = enter_request(req, "lookup", parent);
                    match self.enter(req, directory, name) {
                        Ok((server, node)) => server.reply_counted(&node, NAME_TIME, reply),
                        // Not cached: the name may be taken later.
                        Err(Refusal(errno)) => reply.error(errno),
                    }
                }
                None => match self.snapshot(parent) {
                    Ok(server) => server.lookup(req, parent, name, reply),
                    Err(Refusal(errno)) => reply.error(errno),
                },
            },
        }
    }

    fn forget(&self, req: &Request, ino: INodeNo, lookups: u64) {
        if is_main(ino) {
            return self.main.forget(req, ino, lookups);
        }
        let Ok(server) = self.snapshot(ino) else { return };
        server.forget(req, ino, lookups);
        if !server.context.nodes.is_empty() {
            return;
        }
        let mut shown = self.shown.lock();
        let slot = slot_of_number(ino);
        // Again, under the lock: somebody may have entered since.
        let is_left = server.context.nodes.is_empty();
        let ended = if is_left { shown.remove(slot) } else { None };
        drop(shown);
        // Dropped without the lock: it may end the snapshot.
        drop(ended);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, reply: ReplyAttr) {
        match ino {
            ino if directory_of_snapshots(ino).is_some() => reply.attr(CACHE_TIME, &directory_attr(ino)),
            ino if is_main(ino) => self.main.getattr(req, ino, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.getattr(req, ino, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn statx(&self, req: &Request, ino: INodeNo, reply: ReplyStatx) {
        match ino {
            ino if directory_of_snapshots(ino).is_some() => reply.attr(CACHE_TIME, &directory_attr(ino)),
            ino if is_main(ino) => self.main.statx(req, ino, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.statx(req, ino, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn opendir(&self, req: &Request, ino: INodeNo, reply: ReplyOpen) {
        match ino {
            ino if directory_of_snapshots(ino).is_some() => reply.opened(FileHandle(0), FopenFlags::NONE),
            ino if is_main(ino) => self.main.opendir(req, ino, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.opendir(req, ino, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn releasedir(&self, req: &Request, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        match ino {
            ino if directory_of_snapshots(ino).is_some() => reply.ok(),
            ino if is_main(ino) => self.main.releasedir(req, ino, fh, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.releasedir(req, ino, fh, reply),
                Err(_) => reply.ok(),
            },
        }
    }

    fn readdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if is_main(ino) {
            return self.main.readdir(req, ino, fh, offset, reply);
        }
        if directory_of_snapshots(ino).is_none() {
            return match self.snapshot(ino) {
                Ok(server) => server.readdir(req, ino, fh, offset, reply),
                Err(Refusal(errno)) => reply.error(errno),
            };
        }
        let kind = FileKind::Directory as u8;
        match list(&self.fs, ino, self.names, offset, |at, number, name| reply.add(number, at, kind, name)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(Refusal::from(error).0),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        if is_main(ino) {
            return self.main.readdirplus(req, ino, fh, offset, reply);
        }
        if directory_of_snapshots(ino).is_none() {
            return match self.snapshot(ino) {
                Ok(server) => server.readdirplus(req, ino, fh, offset, reply),
                Err(Refusal(errno)) => reply.error(errno),
            };
        }
        let kind = FileKind::Directory as u8;
        match list(&self.fs, ino, self.names, offset, |at, number, name| {
            reply.add_name(number, at, kind, name)
        }) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(Refusal::from(error).0),
        }
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: u32, reply: ReplyEmpty) {
        match ino {
            // Only root asks: see `Server::access`.
            ino if directory_of_snapshots(ino).is_some() => reply.ok(),
            ino if is_main(ino) => self.main.access(req, ino, mask, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.access(req, ino, mask, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    /// The directory of snapshots has no extended attributes.
    fn getxattr(&self, req: &Request, ino: INodeNo, name: &[u8], size: u32, reply: ReplyXattr) {
        match ino {
            ino if directory_of_snapshots(ino).is_some() => reply.error(Errno::NODATA),
            ino if is_main(ino) => self.main.getxattr(req, ino, name, size, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.getxattr(req, ino, name, size, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match ino {
            ino if directory_of_snapshots(ino).is_some() => sized(Ok(Vec::new()), size, reply),
            ino if is_main(ino) => self.main.listxattr(req, ino, size, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.listxattr(req, ino, size, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        if is_main(ino) {
            return self.main.statfs(req, ino, reply);
        }
        match self.snapshot(ino) {
            Ok(server) => server.statfs(req, ino, reply),
            Err(_) => self.main.statfs(req, INodeNo::ROOT, reply),
        }
    }

    fn ioctl(&self, req: &Request, ino: INodeNo, command: u32, given: &[u8], reply: ReplyIoctl) {
        match ino {
            ino if directory_of_snapshots(ino).is_some() => reply.error(Errno::NOTTY),
            ino if is_main(ino) => self.main.ioctl(req, ino, command, given, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.ioctl(req, ino, command, given, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    forwarded! {
        create(parent, name: &[u8], made: NewNode, flags: OpenFlags) -> ReplyCreate;
        fallocate(ino, mode: i32, offset: u64, len: u64) -> ReplyEmpty;
        flush(ino) -> ReplyEmpty;
        fsync(ino) -> ReplyEmpty;
        fsyncdir(ino) -> ReplyEmpty;
        lseek(ino, offset: i64, whence: i32) -> ReplyLseek;
        mkdir(parent, name: &[u8], made: NewNode) -> ReplyEntry;
        mknod(parent, name: &[u8], made: NewNode) -> ReplyEntry;
        read(ino, read: ReadRequest) -> ReplyData;
        readlink(ino) -> ReplyData;
        release(ino, handle: FileHandle) -> ReplyEmpty;
        removexattr(ino, name: &[u8]) -> ReplyEmpty;
        rmdir(parent, name: &[u8]) -> ReplyEmpty;
        setattr(ino, change: &AttrChange) -> ReplyAttr;
        setxattr(ino, set: SetXattr<'_>) -> ReplyEmpty;
        symlink(parent, name: &[u8], target: &[u8]) -> ReplyEntry;
        tmpfile(parent, made: NewNode) -> ReplyCreate;
        unlink(parent, name: &[u8]) -> ReplyEmpty;
        write(ino, write: WriteRequest<'_>) -> ReplyWrite;
    }

    fn link(&self, req: &Request, ino: INodeNo, parent: INodeNo, name: &[u8], reply: ReplyEntry) {
        if !is_main(ino) || !is_main(parent) {
            return reply.error(Errno::XDEV);
        }
        self.main.link(req, ino, parent, name, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &[u8],
        to: (INodeNo, &[u8]),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !is_main(parent) || !is_main(to.0) {
            return reply.error(Errno::XDEV);
        }
        self.main.rename(req, parent, name, to, flags, reply);
    }

    /// Programs that copy files in this way read and write instead after `EXDEV`.
    fn copy_file_range(
        &self,
        req: &Request,
        from: (INodeNo, u64),
        to: (INodeNo, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        if !is_main(from.0) || !is_main(to.0) {
            return reply.error(Errno::XDEV);
        }
        self.main.copy_file_range(req, from, to, len, reply);
    }
}
