//! Devices joined by parity and checksums.
//!
//! [`Pool::create`] makes a pool of devices. [`Pool::open`] opens it from the same devices, of which up to m may be
//! missing. The pool hands out segments to append to ([`Pool::allocate`], [`SegmentWriter`]), reads slices of
//! them back, verified and where needed reconstructed ([`Pool::read`]), and keeps one small state for its client, the
//! root ([`Pool::write_root`]).
//!
//! The pool does not record which segments exist. After each open the client names them by [`Pool::adopt`], and
//! walks those that were open by [`Pool::walk_open_segment`].

#![forbid(unsafe_code)]

mod device;
mod error;
mod life;
mod pool;
mod read;
mod segment;

pub use device::counters::{DeviceCounters, PoolCounters};
pub use device::devices::DeviceState;
pub use device::geometry::{Geometry, ZONES_MIN, device_bytes_min};
pub use error::{DeviceSetError, PoolError};
pub use life::create::CreateOptions;
pub use life::resilver::ResilveredSegment;
pub use life::roots::Root;
pub use life::walk_open_segment::{StripeHealth, WalkedStripe};
pub use pool::{DeviceStatus, Pool, Status};
pub use segment::stripe_buf::StripeBuf;
pub use segment::writer::{PreparedStripe, SegmentWriter};
pub use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState, StripeRun};
