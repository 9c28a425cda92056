//! Warpfire, a transactional filesystem for flash, as a library.
//!
//! A *pool* is a set of devices (block devices or image files) that hold one filesystem. [`Pool::options`]
//! makes a pool or opens one: in memory, on one image file, or on many devices with parity. Both return a
//! [`Warpfire`]. Its calls follow `std::fs`: by path, through a [`File`], through a [`Dir`]. Any number of
//! threads may share a handle. [`Warpfire::begin`] begins a [transaction](Tx), which has the same calls.
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
//! # Durability
//! A change is visible to every handle as soon as its call returns. It is durable once a later
//! [`sync`](Warpfire::sync), [`sync_all`](File::sync_all), [`commit_durable`](Tx::commit_durable) or
//! [`close`](Warpfire::close) has returned. A durable change survives any crash, and the loss of as many
//! devices as the pool has parity.
//!
//! After a crash the pool shows the state of one moment, which is not before the last sync that returned.
//! Every change before that moment is there, and no change after it.
//!
//! # Errors
//! All calls fail with one type, [`Error`]. It has a [kind](ErrorKind) that a program can match, the errno of
//! the operating system, a sentence for a person, and often a [hint](Error::hint) what to try.
//!
//! # Units
//! Offsets and lengths are in bytes. Sizes are powers of two where their documentation says so, times are
//! [`Timestamp`]s, and user and group numbers are those of the operating system.

#![forbid(unsafe_code)]

mod bookmark;
mod cache_size;
mod consume_beside;
mod device_plan;
mod devices;
mod diff;
mod dir;
mod error;
mod file;
mod frozen;
mod health;
mod identity;
mod lost_roots;
mod members;
mod metadata;
mod open_pool;
mod options;
mod path;
mod resize;
mod returns;
mod scrub;
mod slice;
mod snapshot;
mod snapshot_policy;
mod snapshot_rules;
mod stats;
mod stream;
#[cfg(test)]
mod test_pools;
mod tree;
mod trim;
mod tune;
mod tx;
mod upkeep;
mod upkeep_progress;
mod volume;
mod warpfire;
mod wishes;
mod xattr;

pub use bookmark::BookmarkInfo;
pub use cache_size::default_cache_bytes;
pub use device_plan::{DeviceChange, DevicePlan};
pub use devices::{
    DeviceContent, DeviceLabel, FoundDevice, FoundPool, Opens, Scan, block_devices, check_named_once,
    device_content, device_label, prefilled, scan,
};
pub use diff::{Aspect, Change, ChangeKind, ChangedRanges, Diff};
pub use dir::{Dir, DirEntry, ReadDir};
pub use error::{Error, ErrorKind, Result};
pub use file::{File, OpenOptions};
pub use health::{DeviceHealth, Health, ScrubOutcome};
pub use identity::Identity;
pub use lost_roots::{FoundRoots, RootDevice, devices_with_roots};
pub use members::AddDevice;
pub use metadata::{FileType, Metadata, SetMetadata};
pub use open_pool::Engine;
pub use options::{AccessTimes, Pool, PoolOptions};
pub use resize::ResizePlan;
pub use scrub::ScrubReport;
pub use slice::Slice;
pub use snapshot::{Snapshot, SnapshotEngine, SnapshotInfo, SnapshotRollback, SnapshotSpace};
pub use snapshot_policy::{SnapshotPeriod, SnapshotReason};
pub use snapshot_rules::{AppliedRules, ExplainedSnapshot, SnapshotRule};
pub use stats::{
    CacheMemory, DefragmentCounts, DeviceCounters, DeviceLife, DeviceState, DeviceStats, Space, StateAge,
    Stats, TransactionCounts,
};
pub use stream::{ReceiveProgress, ReceivedStream, ResumeToken, SendOptions, SentStream};
pub use trim::TrimReport;
pub use tune::{DataGuarantee, TunePlan, Tuning};
pub use tx::{FileVersion, Savepoint, Tx, TxEngine};
pub use upkeep::{SegmentsAtRisk, Upkeep, UpkeepReason, UpkeepWork};
pub use volume::VolumeInfo;
pub use warpfire::Warpfire;
pub use warpfire_env::Timestamp;
pub use warpfire_format::fs::FORMAT_VERSION;
pub use warpfire_fs::SpaceInfo;
/// A change of volumes, for the server of a mount.
pub use warpfire_fs::{DetachProgress, LIMIT_MAX, LimitChange, NewLimit, VolumeLimits, VolumeOrder};
/// The commit that [`Warpfire::receive_by`] has made by its caller, and its error.
pub use warpfire_fs::{FsError, Transaction};
/// Names of snapshots by their times, as Samba's `shadow_copy2` reads them.
pub use warpfire_fs::{gmt_name, gmt_second};
/// The bound of the parameter of [`Warpfire`], [`Dir`] and [`File`], for functions that work on a pool and
/// inside a transaction alike.
pub use warpfire_meta::Storage;
pub use warpfire_pool::{FrozenState, ZONES_MIN, device_bytes_min};
pub use warpfire_units::{COLUMNS_MAX, PARITY_MAX};
pub use wishes::{ScrubRound, ScrubRoundStep, ScrubSchedule, UpkeepWishes};
