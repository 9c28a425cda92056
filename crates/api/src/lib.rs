//! Warpfire, a transactional filesystem for flash, as a library.
//!
//! [`Pool::options`] makes or opens a pool: in memory, on one image file, on many devices with parity. What comes back is a
//! [`Warpfire`], whose calls are those of `std::fs`: by path, through a [`File`], through a [`Dir`]. All of them may be called
//! from many threads at once.
//!
//! ```
//! use warpfire::Pool;
//!
//! let fs = Pool::options().data(4).parity(2).size_bytes(64 << 20).in_memory()?;
//! fs.create_dir("/letters")?;
//! fs.write("/letters/1", b"Dear all, ...")?;
//! fs.sync()?;
//! assert_eq!(fs.metadata("/letters/1")?.len(), 13);
//! # Ok::<(), warpfire::Error>(())
//! ```
//!
//! # What is durable
//! What was done before a [`sync`](Warpfire::sync), a [`sync_all`](File::sync_all) or a [`close`](Warpfire::close) returned survives any
//! crash, and the loss of as many devices as there is parity. After a crash the pool is as it was at some moment not before the last of these: every change
//! before that moment is there, none after it.
//!
//! # Errors
//! One type, [`Error`], with few [kinds](ErrorKind), the operating system's number and a hint what to do.

#![forbid(unsafe_code)]

mod devices;
mod diff;
mod dir;
mod error;
mod file;
mod identity;
mod metadata;
mod open_pool;
mod options;
mod path;
mod scrub;
mod slice;
mod stats;
mod tree;
mod tx;
mod warpfire;
mod xattr;

pub use devices::{DeviceContent, DeviceLabel, device_content, device_label, prefilled};
pub use diff::{Aspect, Change, ChangeKind, ChangedRanges, Diff};
pub use dir::{Dir, DirEntry, ReadDir};
pub use error::{Error, ErrorKind, Result};
pub use file::{File, OpenOptions};
pub use identity::Identity;
pub use metadata::{FileType, Metadata, SetMetadata};
pub use open_pool::Engine;
pub use options::{Pool, PoolOptions};
pub use scrub::ScrubReport;
pub use slice::Slice;
pub use stats::{
    DefragmentCounts, DeviceCounters, DeviceState, DeviceStats, Space, Stats, TransactionCounts,
};
pub use tx::{FileVersion, Savepoint, Tx, TxEngine};
pub use warpfire::Warpfire;
pub use warpfire_env::Timestamp;
pub use warpfire_pool::{ZONES_MIN, device_bytes_min};
pub use warpfire_units::{COLUMNS_MAX, PARITY_MAX};
