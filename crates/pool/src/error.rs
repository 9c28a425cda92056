//! The pool's errors, one variant for each thing that the caller can do about them.

use std::fmt;
use std::sync::Arc;

use warpfire_env::DeviceError;
use warpfire_format::root::{FeatureBits, Unsupported};
use warpfire_format::{Corrupt, Uuid};
use warpfire_units::{DeviceIndex, SegmentId, SlicePtr};

/// Why a call on the pool failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolError {
    /// Too few devices have a free zone. Free a segment, or add a device.
    #[error("no free zones for another segment")]
    NoSpace,
    /// A write, reset or flush failed on more devices than parity covers. Flushed bytes are safe; bytes
    /// written since the last flush may be lost. The caller must stop writing and reopen the pool.
    #[error("writing failed on more devices than parity covers: {reason}")]
    Failed {
        /// The last device error.
        reason: Arc<str>,
    },
    /// The pool is open for reading. Open it for writing to change it.
    #[error("the pool is open for reading only")]
    OpenForReading,
    /// Bytes can be neither read nor reconstructed: more columns are missing or damaged than parity covers.
    #[error("{segment} stripe {stripe} is damaged beyond parity: {readable} of {needed} columns readable")]
    Unreadable {
        /// The segment.
        segment: SegmentId,
        /// The stripe.
        stripe: u32,
        /// Number of columns that verify in the row with the fewest.
        readable: usize,
        /// Number of columns that must verify.
        needed: usize,
    },
    /// The slice is not inside the written part of its segment, or the segment is a mirror.
    #[error("bad slice pointer {0}")]
    BadSlice(SlicePtr),
    /// The pool has no segment with this number.
    #[error("{0} is not in the pool")]
    UnknownSegment(SegmentId),
    /// A descriptor contradicts the pool: it names a zone that is used or does not exist, or a number in use.
    #[error("{id} does not fit the pool: {source}")]
    Misfit {
        /// The segment of the descriptor.
        id: SegmentId,
        /// The contradiction.
        source: Corrupt,
    },
    /// The root's payload is longer than a zone can hold.
    #[error("a root of {bytes} bytes is too long; at most {max} fit")]
    RootTooLarge {
        /// Bytes in the payload.
        bytes: u64,
        /// Most payload bytes that fit into a zone.
        max: u64,
    },
    /// The change of membership is refused. Nothing was written.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The devices are not one pool, or cannot become one. Nothing was written.
    #[error(transparent)]
    Devices(#[from] DeviceSetError),
    /// A device failed while it was being identified or labelled.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a change of the pool's devices is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MembershipError {
    /// The pool has no device with this index, or it was removed.
    #[error("the pool has no {0}")]
    Unknown(DeviceIndex),
    /// The device does not leave the pool, or segments have columns on it.
    #[error("{device} cannot be removed: {segments} segments are on it")]
    InUse {
        /// The device.
        device: DeviceIndex,
        /// Segments with a column on it.
        segments: usize,
    },
    /// The device belongs to this pool already.
    #[error("{device} belongs to the pool already")]
    Member {
        /// The device's name.
        device: String,
    },
    /// Segments need the device: without it they would have lost more columns than parity covers.
    #[error("{device} is needed: {segments} segments would lose more than parity covers without it")]
    Needed {
        /// The device.
        device: DeviceIndex,
        /// Number of such segments.
        segments: usize,
    },
    /// Too few devices take writes without it.
    #[error("{device} is needed: {others} other devices take writes")]
    LastDevices {
        /// The device.
        device: DeviceIndex,
        /// Number of the others.
        others: usize,
    },
    /// The device takes no writes.
    #[error("{0} is not online")]
    Away(DeviceIndex),
    /// The device takes writes now.
    #[error("{0} is online already")]
    Online(DeviceIndex),
    /// The device has a label of this pool, and is not one of its devices: it was removed, or its addition
    /// was not completed.
    #[error("{device} has left the pool")]
    NotMember {
        /// The device's name.
        device: String,
    },
    /// The device holds an older state than it had when it left. It is a copy from before, or has lost writes
    /// that it had flushed.
    #[error("{device} holds an older state than when it left the pool: it may be an old copy")]
    OldCopy {
        /// The device's name.
        device: String,
    },
    /// The device has not answered an operation that the pool stopped waiting for. It may still take place.
    #[error("{device} still owes an answer from before")]
    OwesAnswer {
        /// The device's name.
        device: String,
    },
    /// The device has no room for a pool's fewest zones.
    #[error("{device} has {size_bytes} bytes; it needs at least {least_bytes}")]
    TooSmall {
        /// The device's name.
        device: String,
        /// Its size.
        size_bytes: u64,
        /// Bytes of the fewest zones that a device may have.
        least_bytes: u64,
    },
    /// The zones of the device have another size than those of the pool.
    #[error("{device} has zones of {found_bytes} bytes, and the pool has zones of {zone_bytes}")]
    OtherZones {
        /// The device's name.
        device: String,
        /// Bytes of its zones.
        found_bytes: u64,
        /// Bytes of the pool's zones.
        zone_bytes: u64,
    },
    /// The device table has no room for another device.
    #[error("the table of the pool has no room for another device: it holds {held}")]
    TableFull {
        /// Devices in the table, those that were removed too.
        held: usize,
    },
    /// Fewer devices than k+m would stay.
    #[error("{staying} devices would stay, and the pool needs {width}")]
    TooFew {
        /// Devices that would neither leave nor have left.
        staying: usize,
        /// Data and parity columns of the pool together.
        width: usize,
    },
}

/// Why a set of devices is not a pool, or cannot become one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceSetError {
    /// These devices do not allow the geometry or the zone size.
    #[error("cannot make this pool: {0}")]
    Impossible(String),
    /// The device belongs to a pool already; only `force` overwrites it.
    #[error("{device} already belongs to pool {pool}")]
    InUse {
        /// The device's name.
        device: String,
        /// The pool it belongs to.
        pool: Uuid,
    },
    /// None of the devices holds a readable root.
    #[error("no pool found on {}", devices.join(", "))]
    NoPool {
        /// The names of the devices.
        devices: Vec<String>,
    },
    /// None of the devices holds a readable root, and one of them holds data of a pool.
    #[error("the roots of pool {pool} are lost: {device} holds its data, and no named device holds a root")]
    RootsLost {
        /// The first device with data.
        device: String,
        /// The pool of the data.
        pool: Uuid,
    },
    /// The devices belong to different pools.
    #[error("{device} belongs to pool {found}, not to {expected}")]
    Foreign {
        /// Name of the first device of another pool.
        device: String,
        /// The pool it belongs to.
        found: Uuid,
        /// The pool of the devices before it.
        expected: Uuid,
    },
    /// Two devices have the same index: one is a copy of the other, or one device was named twice.
    #[error("{first} and {second} are both {index} of the pool")]
    Duplicate {
        /// The index of both.
        index: DeviceIndex,
        /// Name of one device.
        first: String,
        /// Name of the other device.
        second: String,
    },
    /// More devices are missing than parity covers.
    #[error(
        "{} missing and parity covers {parity}: {}{}", devices_are(missing.len()), NameList(missing), OldCopies(old_copies)
    )]
    Missing {
        /// Index and uuid of each missing device.
        missing: Vec<(DeviceIndex, Uuid)>,
        /// How many devices may be missing.
        parity: u8,
        /// Those that are kept offline.
        offline: Vec<DeviceIndex>,
        /// Old copies of missing devices, by name.
        old_copies: Vec<(DeviceIndex, String)>,
    },
    /// Segments have fewer columns on the devices that are here than they need, and the last sync may be
    /// missing too. Only `open_for_reading` and `open_degraded` open the pool then.
    #[error(
        "{} missing, and some data cannot be read without: {}{}",
        devices_are(missing.len()),
        NameList(missing),
        OldCopies(old_copies)
    )]
    Uncovered {
        /// Index and uuid of each missing device.
        missing: Vec<(DeviceIndex, Uuid)>,
        /// Number of segments that need them.
        segments: usize,
        /// Those that are kept offline.
        offline: Vec<DeviceIndex>,
        /// Old copies of missing devices, by name.
        old_copies: Vec<(DeviceIndex, String)>,
    },
    /// The device is smaller than when it joined the pool.
    #[error("{device} has {found_bytes} bytes; its zones need {needed_bytes}")]
    Shrunk {
        /// Its name.
        device: String,
        /// Its size now, in bytes.
        found_bytes: u64,
        /// Bytes in all its zones.
        needed_bytes: u64,
    },
    /// Two parts of the pool were each written without the other. Their states cannot be joined; the caller
    /// must open the pool with one part only.
    #[error("{} and {} were written separately, each without the other", one.join(", "), other.join(", "))]
    Diverged {
        /// Names of the devices with the newest root, and of those that go with it.
        one: Vec<String>,
        /// Names of the other devices.
        other: Vec<String>,
    },
    /// The missing devices are enough to go on by themselves, and the newest root that is here had them in
    /// use: they may hold a newer state. Only `open_degraded` writes then.
    #[error(
        "the missing devices may hold a newer state of the pool: {}{}",
        NameList(missing),
        OldCopies(old_copies)
    )]
    MayBeOlder {
        /// Index and uuid of each of these devices.
        missing: Vec<(DeviceIndex, Uuid)>,
        /// Old copies of missing devices, by name.
        old_copies: Vec<(DeviceIndex, String)>,
    },
    /// The device belongs to a pool that this version cannot read.
    #[error("the pool of {device} {found}")]
    Unsupported {
        /// Its name.
        device: String,
        /// What this version lacks.
        found: Unsupported,
    },
    /// The pool has features that a writer has to know. Reading it is possible.
    #[error("the pool needs features that this version cannot write: {}", FeatureBits(*features))]
    WriteFeatures {
        /// The unknown features, one bit each.
        features: u64,
    },
    /// The devices hold roots, but none of these can be read whole.
    #[error("no root is readable: {0}")]
    NoRoot(Corrupt),
}

impl DeviceSetError {
    /// The name of the device that is the reason, if it is one device.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match self {
            DeviceSetError::InUse { device, .. }
            | DeviceSetError::Foreign { device, .. }
            | DeviceSetError::Unsupported { device, .. }
            | DeviceSetError::Duplicate { second: device, .. }
            | DeviceSetError::RootsLost { device, .. }
            | DeviceSetError::Shrunk { device, .. } => Some(device),
            DeviceSetError::NoPool { devices } if devices.len() == 1 => devices.first().map(String::as_str),
            _ => None,
        }
    }
}

/// `1 device is` or `3 devices are`.
fn devices_are(count: usize) -> String {
    if count == 1 { "1 device is".to_owned() } else { format!("{count} devices are") }
}

/// The old copies of devices, in words; nothing if there are none.
struct OldCopies<'a>(&'a [(DeviceIndex, String)]);

impl fmt::Display for OldCopies<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, device) in self.0 {
            write!(f, "; {device} has an older state than {index} had: it may be an old copy")?;
        }
        Ok(())
    }
}

struct NameList<'a>(&'a [(DeviceIndex, Uuid)]);

impl fmt::Display for NameList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (index, uuid)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{index} ({uuid})")?;
        }
        Ok(())
    }
}
