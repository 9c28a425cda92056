//! The server of the main mount: the filesystem, and below `/.snapshots` its snapshots.
//!
//! ```text
//!   number of an inode        bits 44 to 60               bits 0 to 43
//!     of the filesystem       0                           its own
//!     in a snapshot           the snapshot's *slot*       its own
//!     of `/.snapshots`        SNAPSHOTS_NUMBER
//! ```
//!
//! A snapshot gets a slot when somebody looks it up, and keeps it until the kernel has forgotten all of its
//! inodes. Then its view ends.
//!
//! # Invariants
//! 1. Two files of the mount have different numbers, also if one is in a snapshot of the other
//!    (`tests/mount/snapshots.rs`).
//! 2. A slot is taken by one snapshot at a time, and free only when the kernel knows no inode in it: both
//!    are decided under the lock of `shown` (`enter`, `forget`).
//! 3. The kernel caches neither the name `.snapshots` nor the names in it. So a deleted snapshot is not
//!    found, and a name that is used again leads to the new snapshot.
//! 4. `.snapshots` in the root is always this directory. A file of that name in the filesystem is not
//!    reachable, and no listing shows the directory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use warpfire_env::Timestamp;
use warpfire_fs::{FileKind, Fs, FsError, RECEIVE_NAME, Seq, SnapshotFs};
use warpfire_fuse::{
    AttrChange, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, INodeNo, KernelConfig, NewNode,
    OpenFlags, ReadRequest, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx,
    ReplyWrite, ReplyXattr, Request, SetXattr, Time, WriteRequest,
};
use warpfire_meta::{SnapshotStore, SnapshotView, Storage};

use super::request::{RequestResult, STALE, sized};
use super::{Refusal, Server, ServerContext};
use crate::invalidation_gate::InvalidationGate;
use crate::kernel_nodes::KernelNodes;
use crate::options::{MountOptions, PermissionChecks};
use crate::views::MountKind;

/// The name of the directory of snapshots in the root.
const SNAPSHOTS_NAME: &[u8] = b".snapshots";

/// Bits of an inode's own number.
const INO_BITS: u32 = 44;

/// The number of the directory of snapshots: larger than those of all slots.
const SNAPSHOTS_NUMBER: INodeNo = INodeNo(1 << 61);

/// Slots: as many snapshots can be in use at a time, less one.
const SLOTS: u64 = 1 << (61 - INO_BITS);

/// Names in one piece of a listing of the directory of snapshots.
const LISTED_AT_ONCE: usize = 512;

/// Positions of `.` and `..` in a listing. A snapshot has the position of its seq behind them.
const FIXED_NAMES: u64 = 2;

type SnapshotServer<E> = Server<SnapshotView<E>>;

/// The adapter between the kernel, a filesystem and its snapshots.
pub(crate) struct MainServer<E: Storage> {
    fs: Arc<Fs<E>>,
    main: Server<E>,
    checks: PermissionChecks,
    /// Most inodes that the kernel remembers of one snapshot before it is asked to forget some.
    inodes_max: usize,
    /// Reads the moment in a name `@MOMENT`.
    parse_moment: fn(&str) -> Option<Timestamp>,
    shown: Mutex<ShownSnapshots<E>>,
}

/// The snapshots that the kernel knows.
struct ShownSnapshots<E: Storage> {
    slots: BTreeMap<u64, (Seq, Arc<SnapshotServer<E>>)>,
    /// The slot of the last snapshot that got one.
    last: u64,
}

impl<E: Storage> ShownSnapshots<E> {
    /// The server of a snapshot that has a slot. A lookup of its root is counted: `forget` finds the count,
    /// or has freed the slot before.
    fn enter(&self, seq: Seq) -> Option<Arc<SnapshotServer<E>>> {
        let (_, server) = self.slots.values().find(|(of, _)| *of == seq)?;
        server.count_root();
        Some(Arc::clone(server))
    }

    /// A free slot; `None` if all are taken.
    fn next_slot(&mut self) -> Option<u64> {
        let mut slots = (self.last + 1..SLOTS).chain(1..=self.last);
        self.last = slots.find(|slot| !self.slots.contains_key(slot))?;
        Some(self.last)
    }
}

/// The slot of an inode of a snapshot.
fn slot_of_number(ino: INodeNo) -> u64 {
    ino.0 >> INO_BITS
}

/// Whether an inode is one of the filesystem.
fn is_main(ino: INodeNo) -> bool {
    slot_of_number(ino) == 0
}

/// Attributes of the directory of snapshots: everybody may look into it, and nobody changes it.
fn directory_attr() -> FileAttr {
    let mode = u32::from(FileKind::Directory as u8) << 12 | 0o555;
    FileAttr::new(SNAPSHOTS_NUMBER, mode, Time::default())
}

impl<E: Storage + SnapshotStore> MainServer<E> {
    pub(crate) fn new(
        fs: Arc<Fs<E>>,
        checks: PermissionChecks,
        options: &MountOptions,
        context: ServerContext,
    ) -> MainServer<E> {
        let main = Server::new(Arc::clone(&fs), checks, context);
        let shown = Mutex::new(ShownSnapshots { slots: BTreeMap::new(), last: 0 });
        let MountOptions { inodes_max, parse_moment, .. } = *options;
        MainServer { fs, main, checks, inodes_max, parse_moment, shown }
    }

    /// The server of the snapshot that an inode is in.
    fn snapshot(&self, ino: INodeNo) -> RequestResult<Arc<SnapshotServer<E>>> {
        match ino {
            SNAPSHOTS_NUMBER => Err(Refusal(Errno::ROFS)),
            ino => {
                let shown = self.shown.lock();
                shown.slots.get(&slot_of_number(ino)).map(|(_, server)| Arc::clone(server)).ok_or(STALE)
            }
        }
    }

    /// The server of the snapshot with this name, or of the newest one at the moment `@MOMENT`. A lookup of
    /// its root is counted.
    fn enter(&self, name: &[u8]) -> Result<Arc<SnapshotServer<E>>, FsError> {
        let snapshot = match name.strip_prefix(b"@") {
            None => self.fs.snapshot(name)?,
            Some(_) => {
                let text = std::str::from_utf8(name).map_err(|_| FsError::NotFound)?;
                self.fs.snapshot_at((self.parse_moment)(text).ok_or(FsError::NotFound)?)?
            }
        };
        if let Some(server) = self.shown.lock().enter(snapshot.seq) {
            return Ok(server);
        }
        // Unlocked: it reads the devices.
        let then = self.fs.open_found_snapshot(&snapshot)?;
        let mut shown = self.shown.lock();
        if let Some(server) = shown.enter(snapshot.seq) {
            return Ok(server);
        }
        let slot = shown.next_slot().ok_or(FsError::Busy)?;
        let server = Arc::new(self.server_of(then, slot));
        server.count_root();
        shown.slots.insert(slot, (snapshot.seq, Arc::clone(&server)));
        Ok(server)
    }

    fn server_of(&self, then: Arc<SnapshotFs<E>>, slot: u64) -> SnapshotServer<E> {
        let number_base = slot << INO_BITS;
        let main = &self.main.context;
        let context = ServerContext {
            connection: main.connection.clone(),
            root_number: number_base + INodeNo::ROOT.0,
            number_base,
            nodes: Arc::new(KernelNodes::empty(self.inodes_max)),
            // Nothing in a snapshot changes, so nothing is announced and everything may be cached.
            gate: Arc::new(InvalidationGate::default()),
            changes: main.changes.clone(),
            requests: main.requests.clone(),
            blocking_threads: Arc::clone(&main.blocking_threads),
            read_threads: main.read_threads.clone(),
            mount_kind: MountKind::Snapshot,
            read_only: true,
            failures: Arc::clone(&main.failures),
        };
        Server::new(then, self.checks, context)
    }

    /// Lists the names of snapshots from a position on. `add` takes position, number, and name, and returns
    /// whether it has no room.
    fn list(&self, from: u64, mut add: impl FnMut(u64, INodeNo, &[u8]) -> bool) -> Result<(), FsError> {
        for (at, name) in (1..).zip([&b"."[..], b".."]) {
            if at > from && add(at, SNAPSHOTS_NUMBER, name) {
                return Ok(());
            }
        }
        let mut after = Seq(from.saturating_sub(FIXED_NAMES));
        loop {
            let found = self.fs.snapshots_after(after, LISTED_AT_ONCE)?;
            for snapshot in &found {
                after = snapshot.seq;
                // A snapshot has no number before it is looked up, so the entry has that of the directory.
                if add(after.0 + FIXED_NAMES, SNAPSHOTS_NUMBER, &snapshot.name) {
                    return Ok(());
                }
            }
            if found.len() < LISTED_AT_ONCE {
                return Ok(());
            }
        }
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

    fn destroy(&mut self) {
        self.main.destroy();
        let slots = std::mem::take(&mut self.shown.get_mut().slots);
        slots.values().for_each(|(_, server)| server.forget_all());
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &[u8], reply: ReplyEntry) {
        match parent {
            // Where streams are received. The kernel never caches anything of it, so that they may change it.
            INodeNo::ROOT if name == RECEIVE_NAME => reply.error(Errno::NOENT),
            INodeNo::ROOT if name == SNAPSHOTS_NAME => reply.entry(Duration::ZERO, &directory_attr()),
            SNAPSHOTS_NUMBER => match self.enter(name) {
                Ok(server) => server.reply_counted_root(Duration::ZERO, reply),
                // Not cached: the name may be taken later.
                Err(error) => reply.error(Refusal::from(error).0),
            },
            parent if is_main(parent) => self.main.lookup(req, parent, name, reply),
            parent => match self.snapshot(parent) {
                Ok(server) => server.lookup(req, parent, name, reply),
                Err(Refusal(errno)) => reply.error(errno),
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
        let ended = if is_left { shown.slots.remove(&slot) } else { None };
        drop(shown);
        // Dropped without the lock: it may end the snapshot.
        drop(ended);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, reply: ReplyAttr) {
        match ino {
            SNAPSHOTS_NUMBER => reply.attr(Duration::ZERO, &directory_attr()),
            ino if is_main(ino) => self.main.getattr(req, ino, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.getattr(req, ino, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn statx(&self, req: &Request, ino: INodeNo, reply: ReplyStatx) {
        match ino {
            SNAPSHOTS_NUMBER => reply.attr(Duration::ZERO, &directory_attr()),
            ino if is_main(ino) => self.main.statx(req, ino, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.statx(req, ino, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn opendir(&self, req: &Request, ino: INodeNo, reply: ReplyOpen) {
        match ino {
            SNAPSHOTS_NUMBER => reply.opened(FileHandle(0), FopenFlags::NONE),
            ino if is_main(ino) => self.main.opendir(req, ino, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.opendir(req, ino, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn releasedir(&self, req: &Request, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        match ino {
            SNAPSHOTS_NUMBER => reply.ok(),
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
        if ino != SNAPSHOTS_NUMBER {
            return match self.snapshot(ino) {
                Ok(server) => server.readdir(req, ino, fh, offset, reply),
                Err(Refusal(errno)) => reply.error(errno),
            };
        }
        let kind = FileKind::Directory as u8;
        match self.list(offset, |at, number, name| reply.add(number, at, kind, name)) {
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
        if ino != SNAPSHOTS_NUMBER {
            return match self.snapshot(ino) {
                Ok(server) => server.readdirplus(req, ino, fh, offset, reply),
                Err(Refusal(errno)) => reply.error(errno),
            };
        }
        let kind = FileKind::Directory as u8;
        match self.list(offset, |at, number, name| reply.add_name(number, at, kind, name)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(Refusal::from(error).0),
        }
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: u32, reply: ReplyEmpty) {
        match ino {
            // Only root asks: see `Server::access`.
            SNAPSHOTS_NUMBER => reply.ok(),
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
            SNAPSHOTS_NUMBER => reply.error(Errno::NODATA),
            ino if is_main(ino) => self.main.getxattr(req, ino, name, size, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.getxattr(req, ino, name, size, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match ino {
            SNAPSHOTS_NUMBER => sized(Ok(Vec::new()), size, reply),
            ino if is_main(ino) => self.main.listxattr(req, ino, size, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.listxattr(req, ino, size, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.snapshot(ino) {
            Ok(server) if !is_main(ino) => server.statfs(req, ino, reply),
            _ => self.main.statfs(req, INodeNo::ROOT, reply),
        }
    }

    fn ioctl(&self, req: &Request, ino: INodeNo, command: u32, given: &[u8], reply: ReplyIoctl) {
        match ino {
            SNAPSHOTS_NUMBER => reply.error(Errno::NOTTY),
            ino if is_main(ino) => self.main.ioctl(req, ino, command, given, reply),
            ino => match self.snapshot(ino) {
                Ok(server) => server.ioctl(req, ino, command, given, reply),
                Err(Refusal(errno)) => reply.error(errno),
            },
        }
    }

    forwarded! {
        fallocate(ino, mode: i32, offset: u64, len: u64) -> ReplyEmpty;
        flush(ino) -> ReplyEmpty;
        fsync(ino) -> ReplyEmpty;
        fsyncdir(ino) -> ReplyEmpty;
        lseek(ino, offset: i64, whence: i32) -> ReplyLseek;
        mkdir(parent, name: &[u8], made: NewNode) -> ReplyEntry;
        mknod(parent, name: &[u8], made: NewNode) -> ReplyEntry;
        open(ino, flags: OpenFlags) -> ReplyOpen;
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
