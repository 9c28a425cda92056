//! Devices joined by parity and checksums.
//!
//! [`Pool::create`] makes a pool of devices. [`Pool::open`] opens it from the same devices; up to m of them
//! may be missing. [`Pool::allocate`] makes a segment, and its [`SegmentWriter`] appends stripes to it.
//! [`Pool::read`] reads slices of segments, verifies them and reconstructs lost blocks. [`Pool::write_root`]
//! stores one small state for the client, the root.
//!
//! The pool does not record which segments exist. After each open the client adds every segment that it knows
//! ([`Pool::adopt`]), and finds the stripes of segments that were open ([`Pool::walk_open_segment`]).

#![forbid(unsafe_code)]

mod device;
mod error;
mod life;
mod lock_ranks;
mod pool;
mod read;
mod segment;

pub use device::active_zones::ACTIVE_ZONES_MIN;
pub use device::counters::{DeviceCounters, PoolCounters};
pub use device::devices::{DeviceState, READ_WAIT_MAX, WRITE_WAIT_MAX};
pub use device::geometry::{Geometry, ZONES_MIN, device_bytes_min};
pub use device::planned_space::PlannedChange;
pub use device::stranded::{MoreDevices, Stranded};
pub use device::trim::Trimmed;
pub use error::{DeviceSetError, MembershipError, PoolError};
pub use life::create::CreateOptions;
pub use life::find_roots::possible_zone_bytes;
pub use life::frozen::FrozenState;
pub use life::piece_work::{AtOnce, PieceWork, Turns};
pub use life::resilver::{ColumnMove, OldZones, ResilveredSegment, Suspects, Vacated, VerifiedSegment};
pub use life::roots::Root;
pub use life::scan::{ScannedDevice, ScannedMember, ScannedPool};
pub use life::tune::Tuning;
pub use life::walk_open_segment::{StripeHealth, WalkedStripe};
pub use pool::{DeviceStatus, Pool, Status};
pub use segment::stripe_buf::StripeBuf;
pub use segment::writer::{PreparedStripe, SegmentWriter};
pub use warpfire_format::root::{DeviceLife, PoolLabel, RootWishes};
pub use warpfire_format::segment::{
    LostColumn, SegmentDescriptor, SegmentKind, SegmentState, SegmentStream, StripeRun,
};
