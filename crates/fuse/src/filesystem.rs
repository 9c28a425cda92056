//! The calls that a filesystem answers.

use std::io;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::attr::AttrChange;
use crate::init::KernelConfig;
use crate::reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
};
use crate::request::{FileHandle, INodeNo, NewNode, OpenFlags, ReadRequest, Request, SetXattr, WriteRequest};

/// A filesystem that answers requests of the kernel. Several threads may call it at the same time.
///
/// A method may answer after it returns, on another thread. One that is not implemented answers `ENOSYS`:
/// for many requests the kernel then stops asking.
pub trait Filesystem: Send + Sync {
    /// Called once, before all other calls: chooses features and limits.
    ///
    /// # Errors
    /// An error refuses the mount.
    fn init(&mut self, _config: &mut KernelConfig) -> io::Result<()> {
        Ok(())
    }

    /// Called on each thread of a queue, before its first request. While such a thread sleeps
    /// uninterruptibly, as in a plain read of a device, other requests of its processor may wait for it.
    fn begin_queue_thread(&self) {}

    /// Called once, after all other calls. The kernel has forgotten all inodes.
    fn destroy(&mut self) {}

    /// The kernel forgets an inode, after so many lookups of it.
    fn forget(&self, _request: &Request, _ino: INodeNo, _lookups: u64) {}

    /// An open file was closed for the last time.
    fn release(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, reply: ReplyEmpty) {
        reply.ok();
    }

    /// An open directory was closed for the last time.
    fn releasedir(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, reply: ReplyEmpty) {
        reply.ok();
    }

    /// The attributes of a file by its name in a directory.
    fn lookup(&self, _request: &Request, _parent: INodeNo, _name: &[u8], reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// The attributes of an inode.
    fn getattr(&self, _request: &Request, _ino: INodeNo, reply: ReplyAttr) {
        reply.error(Errno::NOSYS);
    }

    /// The attributes of an inode, with its time of birth.
    fn statx(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatx) {
        reply.error(Errno::NOSYS);
    }

    /// Changes attributes, and answers with all of them.
    fn setattr(&self, _request: &Request, _ino: INodeNo, _change: &AttrChange, reply: ReplyAttr) {
        reply.error(Errno::NOSYS);
    }

    /// The target of a symbolic link.
    fn readlink(&self, _request: &Request, _ino: INodeNo, reply: ReplyData) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file of any kind but a directory or a symbolic link.
    fn mknod(&self, _request: &Request, _parent: INodeNo, _name: &[u8], _made: NewNode, reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a directory.
    fn mkdir(&self, _request: &Request, _parent: INodeNo, _name: &[u8], _made: NewNode, reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Removes a name of a file that is no directory.
    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &[u8], reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an empty directory.
    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &[u8], reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a symbolic link.
    fn symlink(&self, _request: &Request, _parent: INodeNo, _name: &[u8], _target: &[u8], reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Renames a file.
    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &[u8],
        _to: (INodeNo, &[u8]),
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Gives a file another name.
    fn link(&self, _request: &Request, _ino: INodeNo, _parent: INodeNo, _name: &[u8], reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file without a name and opens it (`O_TMPFILE`).
    fn tmpfile(&self, _request: &Request, _parent: INodeNo, _made: NewNode, reply: ReplyCreate) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a regular file and opens it. After `ENOSYS` the kernel makes it by `mknod` and opens it then.
    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &[u8],
        _made: NewNode,
        _flags: OpenFlags,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a file. After `ENOSYS` the kernel opens files by itself, without handles.
    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a directory.
    fn opendir(&self, _request: &Request, _ino: INodeNo, reply: ReplyOpen) {
        reply.error(Errno::NOSYS);
    }

    /// Reads content.
    fn read(&self, _request: &Request, _ino: INodeNo, _read: ReadRequest, reply: ReplyData) {
        reply.error(Errno::NOSYS);
    }

    /// Writes content.
    fn write(&self, _request: &Request, _ino: INodeNo, _write: WriteRequest<'_>, reply: ReplyWrite) {
        reply.error(Errno::NOSYS);
    }

    /// Called at each close of a descriptor.
    fn flush(&self, _request: &Request, _ino: INodeNo, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file durable.
    fn fsync(&self, _request: &Request, _ino: INodeNo, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a directory durable.
    fn fsyncdir(&self, _request: &Request, _ino: INodeNo, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Names in a directory from a position on: 0, or the cookie of an entry.
    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _from: u64,
        reply: ReplyDirectory,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// As `readdir`, with attributes.
    fn readdirplus(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _from: u64,
        reply: ReplyDirectoryPlus,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// The space of the filesystem.
    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        reply.error(Errno::NOSYS);
    }

    /// Sets an extended attribute.
    fn setxattr(&self, _request: &Request, _ino: INodeNo, _set: SetXattr<'_>, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// The value of an extended attribute, or its length if `room` is 0.
    fn getxattr(&self, _request: &Request, _ino: INodeNo, _name: &[u8], _room: u32, reply: ReplyXattr) {
        reply.error(Errno::NOSYS);
    }

    /// The names of the extended attributes, or their length if `room` is 0.
    fn listxattr(&self, _request: &Request, _ino: INodeNo, _room: u32, reply: ReplyXattr) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an extended attribute.
    fn removexattr(&self, _request: &Request, _ino: INodeNo, _name: &[u8], reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Checks access(2), if the kernel does not check permissions itself.
    fn access(&self, _request: &Request, _ino: INodeNo, _mask: u32, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// An ioctl(2) that the kernel does not know, with the bytes of its argument.
    fn ioctl(&self, _request: &Request, _ino: INodeNo, _command: u32, _given: &[u8], reply: ReplyIoctl) {
        reply.error(Errno::NOSYS);
    }

    /// fallocate(2).
    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _mode: i32,
        _offset: u64,
        _len: u64,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// `SEEK_DATA` and `SEEK_HOLE` of lseek(2).
    fn lseek(&self, _request: &Request, _ino: INodeNo, _offset: i64, _whence: i32, reply: ReplyLseek) {
        reply.error(Errno::NOSYS);
    }

    /// Copies a range of `from` to an offset of `to`. The answer has 32 bits; programs call again for the
    /// rest.
    fn copy_file_range(
        &self,
        _request: &Request,
        _from: (INodeNo, u64),
        _to: (INodeNo, u64),
        _len: u64,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::NOSYS);
    }
}
