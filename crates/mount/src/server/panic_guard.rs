//! A panic while a request is answered costs that request and nothing else.
//!
//! The thread that takes requests from the kernel would end with the panic, and a mount with one thread would
//! hang for all programs. The guard catches the panic, logs the kind of the request, and the thread goes on.
//! The reply is dropped by the panic, and the drop of an unsent reply answers `EIO`.

use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::SystemTime;

use fuser::*;

/// A filesystem whose requests may panic.
pub(crate) struct PanicGuard<F>(pub(crate) F);

impl<F> PanicGuard<F> {
    /// Locks are free after a panic, because their guards are dropped. What a lock protects may be half
    /// changed in memory; on the pool a commit is whole or not there.
    fn run(operation: &'static str, answer: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(answer)).is_err() {
            tracing::error!(operation, "a request panicked; it is answered with EIO");
        }
    }
}

/// Forwards requests to the filesystem inside, each under the guard.
macro_rules! guarded {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        $(fn $name(&self, req: &Request, $($argument: $kind),*) {
            PanicGuard::<F>::run(stringify!($name), || self.0.$name(req, $($argument),*));
        })*
    };
}

/// All requests of the transport, so that none takes the default answer, which is that it is not supported.
/// The default of `batch_forget` forgets one by one.
impl<F: Filesystem> Filesystem for PanicGuard<F> {
    fn init(&mut self, req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.0.init(req, config)
    }

    fn destroy(&mut self) {
        self.0.destroy();
    }

    guarded! {
        lookup(parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        forget(ino: INodeNo, nlookup: u64);
        getattr(ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr);
        setattr(
            ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size:
            Option<u64>, atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, ctime:
            Option<SystemTime>, fh: Option<FileHandle>, crtime: Option<SystemTime>, chgtime:
            Option<SystemTime>, bkuptime: Option<SystemTime>, flags: Option<BsdFileFlags>,
            reply: ReplyAttr
        );
        readlink(ino: INodeNo, reply: ReplyData);
        mknod(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry);
        mkdir(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry);
        unlink(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        rmdir(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        symlink(parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry);
        rename(
            parent: INodeNo, name: &OsStr, newparent: INodeNo, newname: &OsStr, flags:
            RenameFlags, reply: ReplyEmpty
        );
        link(ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry);
        open(ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        read(
            ino: INodeNo, fh: FileHandle, offset: u64, size: u32, flags: OpenFlags, lock_owner:
            Option<LockOwner>, reply: ReplyData
        );
        write(
            ino: INodeNo, fh: FileHandle, offset: u64, data: &[u8], write_flags: WriteFlags,
            flags: OpenFlags, lock_owner: Option<LockOwner>, reply: ReplyWrite
        );
        flush(ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty);
        release(
            ino: INodeNo, fh: FileHandle, flags: OpenFlags, lock_owner: Option<LockOwner>,
            flush: bool, reply: ReplyEmpty
        );
        fsync(ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty);
        opendir(ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        readdir(ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory);
        readdirplus(ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus);
        releasedir(ino: INodeNo, fh: FileHandle, flags: OpenFlags, reply: ReplyEmpty);
        fsyncdir(ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty);
        statfs(ino: INodeNo, reply: ReplyStatfs);
        setxattr(ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32, reply: ReplyEmpty);
        getxattr(ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr);
        listxattr(ino: INodeNo, size: u32, reply: ReplyXattr);
        removexattr(ino: INodeNo, name: &OsStr, reply: ReplyEmpty);
        access(ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty);
        create(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate);
        getlk(
            ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, start: u64, end: u64, typ:
            i32, pid: u32, reply: ReplyLock
        );
        setlk(
            ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, start: u64, end: u64, typ:
            i32, pid: u32, sleep: bool, reply: ReplyEmpty
        );
        bmap(ino: INodeNo, blocksize: u32, idx: u64, reply: ReplyBmap);
        ioctl(
            ino: INodeNo, fh: FileHandle, flags: IoctlFlags, cmd: u32, in_data: &[u8],
            out_size: u32, reply: ReplyIoctl
        );
        poll(
            ino: INodeNo, fh: FileHandle, ph: PollNotifier, events: PollEvents, flags:
            PollFlags, reply: ReplyPoll
        );
        fallocate(ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty);
        lseek(ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek);
        copy_file_range(
            ino_in: INodeNo, fh_in: FileHandle, offset_in: u64, ino_out: INodeNo, fh_out:
            FileHandle, offset_out: u64, len: u64, flags: CopyFileRangeFlags, reply: ReplyWrite
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use rustix::io::Errno as Number;
    use warpfire_test_needs::{Need, skip};

    use super::*;
    use crate::attach::attach;
    use crate::mountpoint::Mountpoint;
    use crate::options::MountOptions;

    struct Panics;

    impl Filesystem for Panics {
        fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
            assert_ne!(name, "panics", "a panic on purpose");
            reply.error(Errno::ENOENT);
        }
    }

    #[test]
    fn a_panic_is_an_error_of_one_request_and_the_mount_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Mountpoint::find(directory.path()).and_then(|at| attach(at, &MountOptions::default()));
        let (device, mounted) = match mounted {
            Ok(mounted) => mounted,
            Err(e) => return skip(Need::Fuse, e),
        };
        let session =
            Session::from_fd(PanicGuard(Panics), device, SessionACL::All, Config::default()).unwrap();
        let serving = std::thread::spawn(|| session.run());
        for _ in 0..2 {
            let error = fs::metadata(directory.path().join("panics")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Number::IO.raw_os_error()));
            let error = fs::metadata(directory.path().join("other")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        mounted.detach().unwrap();
        serving.join().unwrap().unwrap();
    }
}
