//! Devices joined by parity and checksums.
//!
//! A [`Pool`] is made of devices once ([`Pool::create`]) and opened from them later ([`Pool::open`]), with up to
//! m of them missing. It hands out segments to append to ([`Pool::allocate`], [`SegmentWriter`]), reads slices of
//! them back verified and, where need be, rebuilt ([`Pool::read`]), and keeps one small state for its client, the
//! root ([`Pool::write_root`]).
//!
//! What the pool does not keep is which segments exist: the client names them after each open, by
//! [`Pool::adopt`], and walks those that were open with [`Pool::recover`].

#![forbid(unsafe_code)]

mod allocate;
mod checksums;
mod counters;
mod create;
mod devices;
mod error;
mod geometry;
mod header_window;
mod load;
mod open;
mod pool;
mod read;
mod rebuild;
mod recover;
mod restore;
mod roots;
mod scan;
mod segment;
mod stripe_buf;
mod stripes;
mod writer;
mod zones;

pub use counters::{Counters, DeviceCounters};
pub use create::CreateOptions;
pub use devices::DeviceState;
pub use error::{DeviceSetError, PoolError};
pub use geometry::{Geometry, ZONES_MIN, device_bytes_min};
pub use pool::{DeviceStatus, Pool, Status};
pub use recover::{Health, RecoveredStripe};
pub use restore::Restored;
pub use roots::Root;
pub use stripe_buf::StripeBuf;
pub use warpfire_format::segment::{SegmentDescriptor, SegmentKind, SegmentState, StripeRun};
pub use writer::{PreparedStripe, SegmentWriter};
