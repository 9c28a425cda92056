//! What can go wrong, sorted by what the caller can do about it.

use std::fmt;
use std::sync::Arc;

use warpfire_env::DeviceError;
use warpfire_format::{Corrupt, Uuid};
use warpfire_units::{DeviceIndex, SegmentId, SlicePtr};

/// Why the pool could not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolError {
    /// Too few devices have a free zone. Free a segment, or add a device.
    #[error("no free zones for another segment")]
    NoSpace,
    /// A write, reset or flush failed on more devices than parity covers. What was flushed before is safe;
    /// what was written since may be lost. Write no more and reopen.
    #[error("writing failed on more devices than parity covers: {reason}")]
    Failed {
        /// The last device error.
        reason: Arc<str>,
    },
    /// Bytes can be neither read nor rebuilt: more columns are missing or damaged than parity covers.
    #[error("{segment} stripe {stripe} is damaged beyond parity: {readable} of {needed} columns readable")]
    Unreadable {
        /// The segment.
        segment: SegmentId,
        /// The stripe.
        stripe: u32,
        /// Columns that verify at the worst block.
        readable: usize,
        /// Columns that are needed.
        needed: usize,
    },
    /// The slice is not inside its segment, or the segment can not be addressed.
    #[error("bad slice pointer {0}")]
    BadSlice(SlicePtr),
    /// No such segment is known to the pool.
    #[error("{0} is not in the pool")]
    UnknownSegment(SegmentId),
    /// A descriptor contradicts the pool: a zone that is taken or does not exist, or a number in use.
    #[error("{id} does not fit the pool: {source}")]
    Misfit {
        /// The segment described.
        id: SegmentId,
        /// What does not fit.
        source: Corrupt,
    },
    /// The root's payload is longer than a zone can take.
    #[error("a root of {bytes} bytes; at most {max} fit")]
    RootTooLarge {
        /// What was asked for.
        bytes: u64,
        /// What a zone can take.
        max: u64,
    },
    /// The wrong devices, or a pool that can not be made of them. Nothing was written.
    #[error(transparent)]
    Devices(#[from] DeviceSetError),
    /// A device failed while it was being identified or labelled.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a set of devices is not a pool, or can not become one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceSetError {
    /// Geometry or zone size can not be made of these devices.
    #[error("can not make this pool: {0}")]
    Impossible(String),
    /// The device holds a pool already; only `force` overwrites it.
    #[error("{device} already belongs to pool {pool}")]
    InUse {
        /// The device's name.
        device: String,
        /// The pool it belongs to.
        pool: Uuid,
    },
    /// No device that was given holds a readable root.
    #[error("no pool found on {}", devices.join(", "))]
    NoPool {
        /// The names of the devices.
        devices: Vec<String>,
    },
    /// Devices of different pools were given.
    #[error("{device} belongs to pool {found}, not to {expected}")]
    Foreign {
        /// The odd one's name.
        device: String,
        /// The pool it belongs to.
        found: Uuid,
        /// The pool of the devices before it.
        expected: Uuid,
    },
    /// Two devices claim the same place: one is a copy of the other, or one device was given twice.
    #[error("{first} and {second} are both {index} of the pool")]
    Duplicate {
        /// The place both claim.
        index: DeviceIndex,
        /// One device's name.
        first: String,
        /// The other's.
        second: String,
    },
    /// More devices are absent than parity covers.
    #[error("{} devices are missing and parity covers {parity}: {}", missing.len(), NameList(missing))]
    Missing {
        /// Those absent.
        missing: Vec<(DeviceIndex, Uuid)>,
        /// How many could be absent.
        parity: u8,
    },
    /// The device is smaller than when it joined the pool.
    #[error("{device} has {found_bytes} bytes; its zones need {needed_bytes}")]
    Shrunk {
        /// Its name.
        device: String,
        /// Its size now.
        found_bytes: u64,
        /// What its zones take.
        needed_bytes: u64,
    },
    /// Two parts of the pool went on without each other; their states can not be joined. Open with one part only.
    #[error("{first} and {second} were written apart from each other at root {sequence}")]
    Diverged {
        /// One device's name.
        first: String,
        /// The other's.
        second: String,
        /// The first root known to differ.
        sequence: u64,
    },
    /// Roots were found and none of them can be read whole.
    #[error("no root is readable: {0}")]
    NoRoot(Corrupt),
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
