//! `warpfire-empty-server DIRECTORY [--allow-other]`: a server that speaks the protocol of the kernel by the
//! transport of a mounted pool, and has no filesystem behind it. It answers that files can be made and
//! written, and keeps nothing. What it costs to make a file in it is the share of the kernel and the
//! transport.

#![forbid(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use warpfire_fuse::{
    FileAttr, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig, NewNode, OpenFlags,
    ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyWrite, Request, ServingThreads, Session, Time,
    WriteRequest,
};
use warpfire_terminal::Failure;

/// How long the kernel may cache answers: as long as those of a mounted pool.
const CACHE_TIME: Duration = Duration::from_secs(1 << 30);

const DIRECTORY: u32 = 0o40_755;
const REGULAR_FILE: u32 = 0o100_444;

/// A file that is opened once at the beginning, as in a mounted pool: the answer is that the kernel opens
/// files by itself. From then on it sends no request when it closes a file.
const OPENED_ONCE_NAME: &[u8] = b"opened-once";

struct Empty {
    checks: bool,
    last: AtomicU64,
}

impl Empty {
    fn made(&self, mode: u32) -> FileAttr {
        attr(INodeNo(self.last.fetch_add(1, Ordering::Relaxed) + 1), mode)
    }
}

fn attr(ino: INodeNo, mode: u32) -> FileAttr {
    FileAttr::new(ino, mode, Time { seconds: 1 << 30, nanos: 0 })
}

impl Filesystem for Empty {
    fn init(&mut self, config: &mut KernelConfig) -> io::Result<()> {
        // As a mounted pool does.
        config.wanted = InitFlags::PARALLEL_DIROPS
            .union(InitFlags::DONT_MASK)
            .union(InitFlags::HANDLE_KILLPRIV_V2)
            .union(if self.checks { InitFlags::POSIX_ACL } else { InitFlags::NONE });
        config.max_write = 1 << 20;
        config.queue_threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &[u8], reply: ReplyEntry) {
        match name {
            OPENED_ONCE_NAME => reply.entry(CACHE_TIME, &self.made(REGULAR_FILE)),
            _ => reply.absent(CACHE_TIME),
        }
    }

    /// Only directories are asked for: the attributes of files stay in the kernel.
    fn getattr(&self, _request: &Request, ino: INodeNo, reply: ReplyAttr) {
        reply.attr(CACHE_TIME, &attr(ino, DIRECTORY));
    }

    /// Writes go past the pages of the kernel.
    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &[u8],
        made: NewNode,
        _flags: OpenFlags,
        reply: ReplyCreate,
    ) {
        let attr = self.made(made.mode & !made.umask);
        reply.created(CACHE_TIME, &attr, FileHandle(0), FopenFlags::DIRECT_IO);
    }

    fn mkdir(&self, _request: &Request, _parent: INodeNo, _name: &[u8], _made: NewNode, reply: ReplyEntry) {
        reply.entry(CACHE_TIME, &self.made(DIRECTORY));
    }

    fn write(&self, _request: &Request, _ino: INodeNo, write: WriteRequest<'_>, reply: ReplyWrite) {
        reply.written(u32::try_from(write.data.len()).expect("a request is shorter than 4 GiB"));
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn mount(at: &Path, allow_other: bool) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let others = if allow_other { ",default_permissions,allow_other" } else { "" };
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0{others}", device.as_raw_fd());
    let data = CString::new(data).expect("numbers and words hold no NUL");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("empty", at, "fuse.empty", flags, Some(data.as_c_str()))?;
    Ok(device.into())
}

fn serve(at: &Path, allow_other: bool) -> io::Result<()> {
    let device = mount(at, allow_other)?;
    let empty = Empty { checks: allow_other, last: AtomicU64::new(INodeNo::ROOT.0) };
    let session = Session::begin(empty, device).inspect_err(|_| {
        // Without a server the mount is dead. The caller gets the error of `begin`, not one of this.
        let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
    })?;
    let opened_once = at.join(OsStr::from_bytes(OPENED_ONCE_NAME));
    std::thread::spawn(move || match File::open(&opened_once) {
        Ok(_) => println!("mounted"),
        Err(error) => eprintln!("{}: {error}", opened_once.display()),
    });
    // As many as a mount has by default.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    session.run(&ServingThreads::new(threads, true))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (at, allow_other) = match &words[..] {
        [at] => (PathBuf::from(at), false),
        [at, option] if option == "--allow-other" => (PathBuf::from(at), true),
        _ => return Failure::new("usage: warpfire-empty-server DIRECTORY [--allow-other]").report(),
    };
    match serve(&at, allow_other) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Failure::local(&at, &error).report(),
    }
}
