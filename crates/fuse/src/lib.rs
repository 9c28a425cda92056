//! The FUSE protocol: requests of the Linux kernel to a filesystem in user space, and the answers.
//!
//! A [`Session`] reads requests from the connection that a mount made (`/dev/fuse`), decodes them, and calls
//! the methods of a [`Filesystem`]. Each request that has an answer comes with a reply, which any thread may
//! send. Requests that the filesystem does not implement are answered with `ENOSYS`, as the kernel expects.
//!
//! The numbers and layouts are those of the kernel's `include/uapi/linux/fuse.h`, version 7.39.

#![deny(unsafe_code)]

mod attr;
mod connection;
mod dispatch;
mod fields;
mod filesystem;
mod init;
mod notifier;
mod queue;
mod reply;
mod request;
mod serving_threads;
mod session;

pub use attr::{AttrChange, FileAttr, Time, TimeOrNow};
pub use filesystem::Filesystem;
pub use init::{InitFlags, KernelConfig};
pub use notifier::Notifier;
pub use queue::other_requests_wait;
pub use reply::{
    FopenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr, Statfs,
};
pub use request::{
    FileHandle, INodeNo, NewNode, OpenFlags, ReadRequest, Request, SetXattr, WriteFlags, WriteRequest,
};
pub use rustix::fs::RenameFlags;
/// Error numbers.
pub use rustix::io::Errno;
pub use serving_threads::ServingThreads;
pub use session::Session;
