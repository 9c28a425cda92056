//! The requests of the kernel, one call for each kind.

use std::sync::Arc;
use std::time::Duration;

use warpfire_fs::acl::{Caller, Perm, XATTR_ACCESS};
use warpfire_fs::{NewMode, SetAttr};
use warpfire_fuse::{
    AttrChange, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, KernelConfig, NewNode, OpenFlags,
    ReadRequest, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite,
    ReplyXattr, Request, SetXattr, Statfs, WriteRequest,
};
use warpfire_meta::Storage;

use super::flags::{alloc_mode, rename_mode, xattr_mode};
use super::request::{Refusal, caller, enter_request, set_id_caller, sized};
use super::{Server, init};
use crate::attr::set_time;
use crate::caller::CallerGroups;
use crate::views::MountKind;

/// Unit of the block counts of `statfs`, in bytes.
const STATFS_BLOCK_BYTES: u32 = 4096;

/// Bytes that an empty file takes on flash, approximately. There is no table of inodes, so `statfs` reports
/// as many free inodes as there is space for.
const INODE_BYTES: u64 = 48;

/// Longest name.
const NAME_BYTES_MAX: u32 = 255;

impl<E: Storage> Filesystem for Server<E> {
    fn init(&mut self, config: &mut KernelConfig) -> std::io::Result<()> {
        let listings = match self.context.mount_kind {
            MountKind::MainMount(_) => init::ListingDetail::WithAttributes,
            MountKind::View(..) | MountKind::Snapshot => init::ListingDetail::NamesOnly,
        };
        init::configure(config, self.checks, listings, self.context.queue_threads)
    }

    fn destroy(&mut self) {
        self.forget_all();
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &[u8], reply: ReplyEntry) {
        let _request = self.enter(req, "lookup", parent);
        let pass = self.pass();
        match self.find_name(req, parent, name) {
            Ok(None) => reply.absent(pass.cache_time()),
            Ok(Some(node)) => self.reply_entry(&pass, Ok(node), reply),
            Err(refusal) => self.reply_entry(&pass, Err(refusal), reply),
        }
    }

    fn forget(&self, req: &Request, ino: INodeNo, lookups: u64) {
        let _request = self.enter(req, "forget", ino);
        self.carried.forget(ino.0, lookups);
        if self.context.nodes.forget(ino.0, lookups).is_none() {
            return;
        }
        // The kernel may have been the last user of a file without a name: its space can be freed now.
        if let Err(e) = self.fs.reap() {
            tracing::error!(error = %e, "removal of files without a name failed");
        }
        if self.context.nodes.have_become_few() {
            // On another thread, because it takes some milliseconds.
            self.context.blocking_threads.spawn_elsewhere(warpfire_env::return_freed_memory);
        }
        self.context.changes.mark();
    }

    fn getattr(&self, req: &Request, ino: INodeNo, reply: ReplyAttr) {
        let _request = self.enter(req, "getattr", ino);
        let pass = self.pass();
        match self.attributes(req, ino, &pass) {
            Ok((keep, attr)) => reply.attr(keep, &attr),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    /// The kernel asks so if a program wants the time of birth.
    fn statx(&self, req: &Request, ino: INodeNo, reply: ReplyStatx) {
        let _request = self.enter(req, "statx", ino);
        let pass = self.pass();
        match self.attributes(req, ino, &pass) {
            Ok((keep, attr)) => reply.attr(keep, &attr),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn setattr(&self, req: &Request, ino: INodeNo, change: &AttrChange, reply: ReplyAttr) {
        let _request = self.enter(req, "setattr", ino);
        let pass = self.pass();
        let groups = CallerGroups::of(req.pid());
        let set = SetAttr {
            mode: change.mode,
            uid: change.uid,
            gid: change.gid,
            size_bytes: change.size,
            atime: change.atime.map(set_time),
            mtime: change.mtime.map(set_time),
        };
        let set = self.node(ino).and_then(|node| {
            let caller = caller(req, &groups);
            if self.asks_for_attributes(&node) {
                self.fs.set_attributes(&caller, &node, &set)?;
                return Ok((Duration::ZERO, self.fs.permissions(&node)));
            }
            Ok((pass.cache_time(), self.fs.setattr(&caller, &node, &set)?))
        });
        match set {
            Ok((keep, attr)) => reply.attr(keep, &self.sent_attr(&attr)),
            Err(Refusal(errno)) => reply.error(errno),
        }
        self.context.changes.mark();
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let _request = self.enter(req, "readlink", ino);
        match self.node(ino).and_then(|node| Ok(self.fs.readlink(&node)?)) {
            Ok(target) => reply.data(&target),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &[u8], made: NewNode, reply: ReplyEntry) {
        let _request = self.enter(req, "mknod", parent);
        let pass = self.pass();
        let made = self.make_node(req, parent, name, made);
        self.reply_new_entry(&pass, made, reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &[u8],
        made: NewNode,
        flags: OpenFlags,
        reply: ReplyCreate,
    ) {
        let _request = self.enter(req, "create", parent);
        let pass = self.pass();
        let made = self.make_node(req, parent, name, made);
        self.reply_created(&pass, made, flags, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &[u8], made: NewNode, reply: ReplyEntry) {
        let _request = self.enter(req, "mkdir", parent);
        let pass = self.pass();
        let groups = CallerGroups::of(req.pid());
        let made = self.node(parent).and_then(|dir| {
            let mode = NewMode { mode: made.mode & 0o7777, umask: made.umask };
            Ok(self.fs.mkdir(&caller(req, &groups), &dir, name, mode)?)
        });
        self.reply_new_entry(&pass, made, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &[u8], reply: ReplyEmpty) {
        let _request = self.enter(req, "unlink", parent);
        let groups = CallerGroups::of(req.pid());
        let removed =
            self.node(parent).and_then(|dir| Ok(self.fs.unlink(&caller(req, &groups), &dir, name)?));
        self.reply_done(removed, reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &[u8], reply: ReplyEmpty) {
        let _request = self.enter(req, "rmdir", parent);
        let groups = CallerGroups::of(req.pid());
        let removed =
            self.node(parent).and_then(|dir| Ok(self.fs.rmdir(&caller(req, &groups), &dir, name)?));
        self.reply_done(removed, reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let _request = self.enter(req, "symlink", parent);
        let pass = self.pass();
        let groups = CallerGroups::of(req.pid());
        let made = self
            .node(parent)
            .and_then(|dir| Ok(self.fs.symlink(&caller(req, &groups), &dir, name, target)?));
        self.reply_new_entry(&pass, made, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &[u8],
        (newparent, newname): (INodeNo, &[u8]),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _request = self.enter(req, "rename", parent);
        let pass = self.pass();
        pass.note_names();
        let groups = CallerGroups::of(req.pid());
        let renamed = self.node(parent).and_then(|from| {
            let to = self.node(newparent)?;
            let mode = rename_mode(flags).ok_or(Refusal(Errno::INVAL))?;
            let caller = caller(req, &groups);
            Ok(self.fs.rename(&caller, (&from, name), (&to, newname), mode)?)
        });
        self.reply_done(renamed, reply);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &[u8], reply: ReplyEntry) {
        let _request = self.enter(req, "link", ino);
        let pass = self.pass();
        let groups = CallerGroups::of(req.pid());
        let linked = self.node(ino).and_then(|node| {
            let dir = self.node(newparent)?;
            self.fs.link(&caller(req, &groups), &node, &dir, newname)?;
            Ok(node)
        });
        self.reply_new_entry(&pass, linked, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _request = self.enter(req, "open", ino);
        if !self.serves_open() {
            return reply.error(Errno::NOSYS);
        }
        if let Some(number) = self.attributes_asked.take(req.pid(), ino) {
            self.fs.mark_unseen(number);
        }
        let (handle, flags) = self.opened(flags);
        reply.opened(handle, flags);
    }

    /// The file is open in the answer. Its handle means nothing.
    fn tmpfile(&self, req: &Request, parent: INodeNo, made: NewNode, reply: ReplyCreate) {
        let _request = self.enter(req, "tmpfile", parent);
        let pass = self.pass();
        let groups = CallerGroups::of(req.pid());
        let made = self.node(parent).and_then(|dir| {
            let mode = NewMode { mode: made.mode & 0o7777, umask: made.umask };
            Ok(self.fs.tmpfile(&caller(req, &groups), &dir, mode)?)
        });
        self.reply_created(&pass, made, OpenFlags(libc::O_RDWR), reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, reply: ReplyOpen) {
        let _request = self.enter(req, "opendir", ino);
        let groups = CallerGroups::of(req.pid());
        match self.node(ino).and_then(|dir| self.open_directory(&caller(req, &groups), &dir)) {
            Ok(number) => reply.opened(number, FopenFlags::NONE),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn releasedir(&self, req: &Request, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        let _request = self.enter(req, "releasedir", ino);
        self.open_dirs.remove(fh);
        reply.ok();
    }

    fn read(&self, req: &Request, ino: INodeNo, read: ReadRequest, reply: ReplyData) {
        self.read_content(req, ino, read, reply);
    }

    fn write(&self, req: &Request, ino: INodeNo, write: WriteRequest<'_>, reply: ReplyWrite) {
        let _request = self.enter_at(req, "write", ino, write.offset);
        self.write_content(req, ino, write, reply);
    }

    fn fsync(&self, req: &Request, ino: INodeNo, reply: ReplyEmpty) {
        let span = enter_request(req, "fsync", ino);
        let fs = Arc::clone(&self.fs);
        match self.node(ino) {
            Ok(node) => {
                // The span goes on where the request does.
                let span = span.exit();
                self.context.blocking_threads.spawn(move || {
                    let _span = span.entered();
                    match fs.fsync(&node) {
                        Ok(()) => reply.ok(),
                        Err(e) => reply.error(Refusal::from(e).0),
                    }
                });
            }
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, reply: ReplyEmpty) {
        self.fsync(req, ino, reply);
    }

    fn readdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let _request = self.enter(req, "readdir", ino);
        self.list_names(fh, offset, reply);
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let _request = self.enter(req, "readdirplus", ino);
        self.list_nodes(&self.pass(), fh, offset, reply);
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let _request = self.enter(req, "statfs", ino);
        // A directory of snapshots has no node: it shows the space of the pool.
        let space = match self.node(ino) {
            Ok(node) => self.fs.statfs_of(node.ino()),
            Err(_) => self.fs.statfs(),
        };
        match space {
            Ok(space) => {
                let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK_BYTES);
                let more_inodes = space.available_bytes / INODE_BYTES;
                let left_inodes = space.inodes_max.map(|max| max.saturating_sub(space.inodes));
                let more_inodes = left_inodes.map_or(more_inodes, |left| left.min(more_inodes));
                reply.statfs(&Statfs {
                    blocks: blocks(space.total_bytes),
                    free: blocks(space.free_bytes),
                    available: blocks(space.available_bytes),
                    files: space.inodes.saturating_add(more_inodes),
                    free_files: more_inodes,
                    block_bytes: STATFS_BLOCK_BYTES,
                    name_bytes_max: NAME_BYTES_MAX,
                });
            }
            Err(e) => reply.error(Refusal::from(e).0),
        }
    }

    fn setxattr(&self, req: &Request, ino: INodeNo, set: SetXattr<'_>, reply: ReplyEmpty) {
        let _request = self.enter(req, "setxattr", ino);
        let groups = CallerGroups::of(req.pid());
        let set = self.node(ino).and_then(|node| {
            let SetXattr { name, value, flags, kills_set_group_id } = set;
            let mode = xattr_mode(flags).ok_or(Refusal(Errno::INVAL))?;
            let caller = match (caller(req, &groups), kills_set_group_id) {
                (caller, Some(kills)) if name == XATTR_ACCESS => set_id_caller(caller, kills),
                (caller, _) => caller,
            };
            Ok(self.fs.setxattr(&caller, &node, name, value, mode)?)
        });
        self.reply_done(set, reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &[u8], size: u32, reply: ReplyXattr) {
        let _request = self.enter(req, "getxattr", ino);
        let pass = self.pass();
        pass.note_acl(ino.0);
        let groups = CallerGroups::of(req.pid());
        let got = self.node(ino).and_then(|node| Ok(self.fs.getxattr(&caller(req, &groups), &node, name)?));
        sized(got, size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _request = self.enter(req, "listxattr", ino);
        let groups = CallerGroups::of(req.pid());
        let names = self.node(ino).and_then(|node| Ok(self.fs.listxattr(&caller(req, &groups), &node)?));
        sized(names, size, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &[u8], reply: ReplyEmpty) {
        let _request = self.enter(req, "removexattr", ino);
        let groups = CallerGroups::of(req.pid());
        let removed =
            self.node(ino).and_then(|node| Ok(self.fs.removexattr(&caller(req, &groups), &node, name)?));
        self.reply_done(removed, reply);
    }

    /// The kernel sends ACCESS only if it does not check permissions itself: then it is access(2) by root.
    fn access(&self, req: &Request, ino: INodeNo, mask: u32, reply: ReplyEmpty) {
        let _request = self.enter(req, "access", ino);
        let groups = CallerGroups::of(req.pid());
        let caller = Caller { checked: false, ..caller(req, &groups) };
        let want = Perm::from_bits(mask);
        match self.node(ino).and_then(|node| Ok(self.fs.access(&caller, &node, want)?)) {
            Ok(()) => reply.ok(),
            Err(Refusal(errno)) => reply.error(errno),
        }
    }

    fn fallocate(&self, req: &Request, ino: INodeNo, mode: i32, offset: u64, length: u64, reply: ReplyEmpty) {
        let _request = self.enter(req, "fallocate", ino);
        let groups = CallerGroups::of(req.pid());
        let caller = caller(req, &groups);
        let found = self.node(ino).and_then(|node| {
            let mode = alloc_mode(mode).ok_or(Refusal(Errno::OPNOTSUPP))?;
            Ok((node, mode))
        });
        let (node, mode) = match found {
            Ok(found) => found,
            Err(Refusal(errno)) => return reply.error(errno),
        };
        let change = || self.fs.fallocate(&caller, &node, mode, offset, length);
        self.answer_change(&caller, &node, change, |allocated| match allocated {
            Ok(()) => reply.ok(),
            Err(Refusal(errno)) => reply.error(errno),
        });
    }

    fn lseek(&self, req: &Request, ino: INodeNo, offset: i64, whence: i32, reply: ReplyLseek) {
        let _request = self.enter(req, "lseek", ino);
        self.seek_content(req, ino, offset, whence, reply);
    }

    fn ioctl(&self, req: &Request, ino: INodeNo, command: u32, given: &[u8], reply: ReplyIoctl) {
        let _request = self.enter(req, "ioctl", ino);
        self.answer_ioctl(req, ino, command, given, reply);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        (ino_in, offset_in): (INodeNo, u64),
        (ino_out, offset_out): (INodeNo, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        let _request = self.enter(req, "copy_file_range", ino_in);
        let groups = CallerGroups::of(req.pid());
        let caller = caller(req, &groups);
        let (from, to) = match self.node(ino_in).and_then(|from| Ok((from, self.node(ino_out)?))) {
            Ok(found) => found,
            Err(Refusal(errno)) => return reply.error(errno),
        };
        let change = || self.fs.copy_range(&caller, (&from, offset_in), (&to, offset_out), len);
        self.answer_change(&caller, &to, change, |copied| match copied {
            Ok(copied) => {
                reply.written(u32::try_from(copied).expect("a copy is at most as long as the request"))
            }
            Err(Refusal(errno)) => reply.error(errno),
        });
    }
}
