//! The filesystem behind the kernel's FUSE interface.
//!
//! [`mount`] puts a filesystem on a directory and returns a [`Session`], which lasts until the mount is
//! unmounted. The adapter is thin. `warpfire_fs` keeps names, data and attributes. This crate keeps the
//! kernel's view of them (which inodes the kernel remembers, which answers it may cache, where permissions
//! are checked) and runs the life of a mount.

#![deny(unsafe_code)]

mod attach;
mod attr;
mod blocking_threads;
mod caller;
mod cpu_latency;
mod error;
mod failed_requests;
mod invalidation_gate;
mod kernel_nodes;
mod lock_ranks;
mod mountinfo;
mod mountpoint;
mod options;
mod process;
mod server;
mod session;
mod slices;
mod stale_pages;
mod views;

pub use error::MountError;
pub use failed_requests::{FailedRequest, FailedRequests};
pub use mountinfo::{MountEntry, mounts};
pub use mountpoint::unmount;
pub use options::{MountOptions, SnapshotDirectories, SnapshotNames, THREADS_MAX};
pub use process::{prepare_server_process, watch_hangups};
pub use server::VIEW_ROOT_NUMBER;
pub use session::{ChangeVolume, Commits, RollBack, Session, mount, mount_with_commits};
pub use slices::{MountedSlice, remove_range};
pub use views::{
    TransactionChanges, TransactionClient, TransactionReport, TransactionState, decode_change, encode_change,
    enter_view, forward_signals_to, is_view_mountpoint, prepare_runtime_directory, runtime_directory,
};
pub use warpfire_fs::{Aspect, Attr, ChangeKind, ChangedRanges, FileKind, PathChange};
