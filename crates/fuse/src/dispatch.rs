//! From a message of the kernel to the call of the filesystem.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::attr::AttrChange;
use crate::fields::{Fields, Malformed};
use crate::filesystem::Filesystem;
use crate::reply::{
    AnswerTo, Reply, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
};
use crate::request::{FileHandle, INodeNo, NewNode, OpenFlags, ReadRequest, Request, SetXattr, WriteRequest};

/// The kernel's numbers of operations, with their names in events.
macro_rules! operations {
    ($($name:ident = $number:literal;)*) => {
        $(pub(crate) const $name: u32 = $number;)*

        fn name_of(operation: u32) -> &'static str {
            match operation {
                $($name => stringify!($name),)*
                _ => "unknown",
            }
        }
    };
}

operations! {
    LOOKUP = 1;
    FORGET = 2;
    GETATTR = 3;
    SETATTR = 4;
    READLINK = 5;
    SYMLINK = 6;
    MKNOD = 8;
    MKDIR = 9;
    UNLINK = 10;
    RMDIR = 11;
    RENAME = 12;
    LINK = 13;
    OPEN = 14;
    READ = 15;
    WRITE = 16;
    STATFS = 17;
    RELEASE = 18;
    FSYNC = 20;
    SETXATTR = 21;
    GETXATTR = 22;
    LISTXATTR = 23;
    REMOVEXATTR = 24;
    FLUSH = 25;
    INIT = 26;
    OPENDIR = 27;
    READDIR = 28;
    RELEASEDIR = 29;
    FSYNCDIR = 30;
    ACCESS = 34;
    CREATE = 35;
    DESTROY = 38;
    IOCTL = 39;
    BATCH_FORGET = 42;
    FALLOCATE = 43;
    READDIRPLUS = 44;
    RENAME2 = 45;
    LSEEK = 46;
    COPY_FILE_RANGE = 47;
    TMPFILE = 51;
    STATX = 52;
}

/// The largest whole number of pages below 2^32: the longest copy that an answer of 32 bits can name.
const COPY_BYTES_MAX: u64 = (u32::MAX - 4095) as u64;

/// Whether the session goes on.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Next {
    Serve,
    End,
}

/// Calls the filesystem for one request. A panic of the filesystem costs this request: the reply is dropped
/// unsent, which answers `EIO`. Locks are free after a panic, because their guards are dropped.
pub(crate) fn dispatch<F: Filesystem>(
    filesystem: &F,
    to: AnswerTo,
    request: &Request,
    body: &mut Fields<'_>,
    has_long_setxattr: bool,
) -> Next {
    let operation = name_of(request.opcode);
    if request.opcode == DESTROY {
        ReplyEmpty(Reply::new(to, request.unique)).ok();
        return Next::End;
    }
    let call = || call(filesystem, to, request, body, has_long_setxattr);
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => {}
        Ok(Err(Malformed)) => tracing::error!(operation, "the kernel sent a request that ends too early"),
        Err(_) => tracing::error!(operation, "a request panicked; it is answered with EIO"),
    }
    Next::Serve
}

fn call<F: Filesystem>(
    filesystem: &F,
    to: AnswerTo,
    request: &Request,
    body: &mut Fields<'_>,
    has_long_setxattr: bool,
) -> Result<(), Malformed> {
    let ino = request.node;
    match request.opcode {
        // These two have no answer.
        FORGET => {
            filesystem.forget(request, ino, body.u64()?);
            return Ok(());
        }
        BATCH_FORGET => {
            let count = body.u32()?;
            let _padding = body.u32()?;
            for _ in 0..count {
                filesystem.forget(request, INodeNo(body.u64()?), body.u64()?);
            }
            return Ok(());
        }
        _ => {}
    }
    let reply = Reply::new(to, request.unique);
    match request.opcode {
        LOOKUP => filesystem.lookup(request, ino, body.name()?, ReplyEntry(reply)),
        GETATTR => filesystem.getattr(request, ino, ReplyAttr(reply)),
        STATX => filesystem.statx(request, ino, ReplyStatx(reply)),
        SETATTR => filesystem.setattr(request, ino, &AttrChange::decode(body)?, ReplyAttr(reply)),
        READLINK => filesystem.readlink(request, ino, ReplyData(reply)),
        SYMLINK => filesystem.symlink(request, ino, body.name()?, body.name()?, ReplyEntry(reply)),
        MKNOD => {
            let (mode, rdev, umask, _padding) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
            let made = NewNode { mode, umask, rdev };
            filesystem.mknod(request, ino, body.name()?, made, ReplyEntry(reply));
        }
        MKDIR => {
            let made = NewNode { mode: body.u32()?, umask: body.u32()?, rdev: 0 };
            filesystem.mkdir(request, ino, body.name()?, made, ReplyEntry(reply));
        }
        UNLINK => filesystem.unlink(request, ino, body.name()?, ReplyEmpty(reply)),
        RMDIR => filesystem.rmdir(request, ino, body.name()?, ReplyEmpty(reply)),
        RENAME | RENAME2 => {
            let parent = INodeNo(body.u64()?);
            let flags = if request.opcode == RENAME2 {
                let (flags, _padding) = (body.u32()?, body.u32()?);
                flags
            } else {
                0
            };
            let flags = RenameFlags::from_bits_retain(flags);
            let (from, to) = (body.name()?, body.name()?);
            filesystem.rename(request, ino, from, (parent, to), flags, ReplyEmpty(reply));
        }
        // The header names the directory.
        LINK => filesystem.link(request, INodeNo(body.u64()?), ino, body.name()?, ReplyEntry(reply)),
        CREATE => {
            let flags = OpenFlags(body.u32()?.cast_signed());
            let (mode, umask, _open_flags) = (body.u32()?, body.u32()?, body.u32()?);
            let made = NewNode { mode, umask, rdev: 0 };
            filesystem.create(request, ino, body.name()?, made, flags, ReplyCreate(reply));
        }
        TMPFILE => {
            let (_flags, mode, umask, _open_flags) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
            filesystem.tmpfile(request, ino, NewNode { mode, umask, rdev: 0 }, ReplyCreate(reply));
        }
        OPEN => filesystem.open(request, ino, OpenFlags(body.u32()?.cast_signed()), ReplyOpen(reply)),
        OPENDIR => filesystem.opendir(request, ino, ReplyOpen(reply)),
        RELEASE => filesystem.release(request, ino, FileHandle(body.u64()?), ReplyEmpty(reply)),
        RELEASEDIR => filesystem.releasedir(request, ino, FileHandle(body.u64()?), ReplyEmpty(reply)),
        READ => filesystem.read(request, ino, ReadRequest::decode(body)?, ReplyData(reply)),
        WRITE => filesystem.write(request, ino, WriteRequest::decode(body)?, ReplyWrite(reply)),
        FLUSH => filesystem.flush(request, ino, ReplyEmpty(reply)),
        FSYNC => filesystem.fsync(request, ino, ReplyEmpty(reply)),
        FSYNCDIR => filesystem.fsyncdir(request, ino, ReplyEmpty(reply)),
        READDIR | READDIRPLUS => {
            let (handle, from, room) = (FileHandle(body.u64()?), body.u64()?, body.u32()?);
            if request.opcode == READDIR {
                filesystem.readdir(request, ino, handle, from, ReplyDirectory::new(reply, room));
            } else {
                filesystem.readdirplus(request, ino, handle, from, ReplyDirectoryPlus::new(reply, room));
            }
        }
        STATFS => filesystem.statfs(request, ino, ReplyStatfs(reply)),
        SETXATTR => {
            let (len, flags) = (body.u32()?, body.u32()?);
            let kills_set_group_id = if has_long_setxattr {
                let (more, _padding) = (body.u32()?, body.u32()?);
                Some(more & 1 != 0)
            } else {
                None
            };
            let (name, value) = (body.name()?, body.bytes(len)?);
            let set = SetXattr { name, value, flags, kills_set_group_id };
            filesystem.setxattr(request, ino, set, ReplyEmpty(reply));
        }
        GETXATTR => {
            let (room, _padding) = (body.u32()?, body.u32()?);
            filesystem.getxattr(request, ino, body.name()?, room, ReplyXattr(reply));
        }
        LISTXATTR => filesystem.listxattr(request, ino, body.u32()?, ReplyXattr(reply)),
        REMOVEXATTR => filesystem.removexattr(request, ino, body.name()?, ReplyEmpty(reply)),
        ACCESS => filesystem.access(request, ino, body.u32()?, ReplyEmpty(reply)),
        IOCTL => {
            let (_handle, _flags, command) = (body.u64()?, body.u32()?, body.u32()?);
            let (_argument, len, _room) = (body.u64()?, body.u32()?, body.u32()?);
            filesystem.ioctl(request, ino, command, body.bytes(len)?, ReplyIoctl(reply));
        }
        FALLOCATE => {
            let (_handle, offset, len, mode) = (body.u64()?, body.u64()?, body.u64()?, body.u32()?);
            filesystem.fallocate(request, ino, mode.cast_signed(), offset, len, ReplyEmpty(reply));
        }
        LSEEK => {
            let (_handle, offset, whence) = (body.u64()?, body.u64()?, body.u32()?);
            let (offset, whence) = (offset.cast_signed(), whence.cast_signed());
            filesystem.lseek(request, ino, offset, whence, ReplyLseek(reply));
        }
        COPY_FILE_RANGE => {
            let (_handle, from) = (body.u64()?, body.u64()?);
            let to = INodeNo(body.u64()?);
            let (_handle, at, len) = (body.u64()?, body.u64()?, body.u64()?);
            let len = len.min(COPY_BYTES_MAX);
            filesystem.copy_file_range(request, (ino, from), (to, at), len, ReplyWrite(reply));
        }
        // INTERRUPT among them: after this answer the kernel sends no more of them.
        _ => reply.error(Errno::NOSYS),
    }
    Ok(())
}
